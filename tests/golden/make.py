"""Writes the golden version of format 1. Run once for each version of the format; the files are never written
again.

python tests/golden/make.py
"""

from __future__ import annotations

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


if __name__ == "__main__":
    storage = yoga.Storage(Path(__file__).parent / "v1")
    if not storage.versions("golden"):
        storage.submit(rows(), "golden", "1")
    for version, compression in (("hdf5", None), ("hdf5 gzip", "gzip"), ("hdf5 lzf", "lzf")):
        if version not in storage.versions("golden"):
            storage.submit(rows(), "golden", version, format="hdf5", compression=compression)
