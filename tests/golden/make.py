"""Writes the golden versions of the format. Run once; the files are never written again.

python tests/golden/make.py
"""

from __future__ import annotations

import datetime
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchyoga as yoga


def rows() -> list[Any]:
    """A row of many kinds, five times."""
    return [
        {
            "image": np.arange(6, dtype=np.uint8).reshape(2, 3) + i,
            "label": i,
            "name": "né" * i,
            "tokens": torch.arange(i, dtype=torch.int32),
            "nested": (float(i), [i % 2 == 0, None, b"\x00" * i]),
            "half": torch.full((2,), i, dtype=torch.bfloat16),
            "box": np.full((i, 2), i, ">f4"),
        }
        for i in range(5)
    ]


def nested() -> list[Any]:
    """A row of None, lists, times and decimals, five times."""
    return [
        {
            "age": None if i % 2 else i,
            "ids": list(range(i)),
            "scores": [None if n == 1 else n / 2 for n in range(i)],
            "words": ["né" * n for n in range(i)],
            "maybe": None if i % 3 else [i] * i,
            "deep": [[n] * n for n in range(i)],
            "boxes": [{"at": (n, n + 1.5), "label": None if n else b"x"} for n in range(i)],
            "meta": None if i == 1 else {"x": np.full(2, i, "<f4")},
            "naive": datetime.datetime(2024, 2, 29, 23, 59, i, 123456),
            "aware": datetime.datetime(2024, 2, 29, i, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            "date": datetime.date(2024, 1, 1 + i),
            "time": datetime.time(i, 0, 0, 1),
            "took": datetime.timedelta(days=-i, microseconds=7),
            "price": Decimal(125 * i).scaleb(-2),
        }
        for i in range(5)
    ]


def grown(version: int) -> list[int]:
    """The rows of a version of the golden history, whose every version is two rows longer."""
    return list(range(2 * version + 2))


def wide() -> dict[str, list[dict[str, Any]]]:
    """The rows of the versions of a golden history whose columns come and go."""
    found = {"1": [{"x": n, "y": "a" * n} for n in range(3)]}
    found["2"] = [{**row, "z": n / 2} for n, row in enumerate(found["1"])]
    found["3"] = [*found["2"], {"x": 7, "y": "b", "z": 3.5}]
    found["4"] = [{**row, "y": n} for n, row in enumerate(found["3"])]
    found["5"] = [{"y": row["y"], "z": row["z"]} for row in found["4"]]
    found["6"] = found["5"][1:]
    return found


if __name__ == "__main__":
    storage = yoga.Storage(Path(__file__).parent / "v1")
    storage.submit(rows(), "golden", "1", record=False)
    for version, compression in (("hdf5", None), ("hdf5 gzip", "gzip")):
        storage.submit(rows(), "golden", version, format="hdf5", compression=compression, record=False)
    for format in ("lmdb", "hdf5"):
        storage.submit(nested(), "nested", format, format=format, record=False)
    storage = yoga.Storage(Path(__file__).parent / "v1", format="hdf5")
    storage.submit({"x": np.array(grown(0))}, "grown", "0", record=False)
    for number in range(1, 12):
        data = {"x": np.array(grown(number)[-2:])}
        storage.append(data, "grown", str(number), after=str(number - 1), record=False)
    rows_of = wide()
    storage.submit(rows_of["1"], "wide", "1", record=False)
    storage.add_columns([{"z": row["z"]} for row in rows_of["2"]], "wide", "2", record=False)
    storage.append(rows_of["3"][3:], "wide", "3", record=False)
    storage.add_columns([{"y": row["y"]} for row in rows_of["4"]], "wide", "4", replace=True, record=False)
    storage.drop_columns(["x"], "wide", "5", record=False)
    storage.delete_rows("wide", "5", rows=[0], to="6", record=False)
    shutil.rmtree(Path(__file__).parent / "v1" / ".locks")
