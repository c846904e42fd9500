"""Datasets of MosaicML Streaming, written as their format lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write(
    folder: Path, rows: list[dict[str, bytes]], per_shard: int, fixed: dict[str, int], **index: Any
) -> None:
    """Writes encoded rows as MDS lays them out; `fixed` has the sizes of columns that have one."""
    names = sorted(rows[0])
    shards = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(rows), per_shard)):
        records = []
        for row in rows[start : start + per_shard]:
            sizes = [len(row[name]) for name in names if name not in fixed]
            records.append(np.array(sizes, "<u4").tobytes() + b"".join(row[name] for name in names))
        ends = np.cumsum([4 * (len(records) + 2), *map(len, records)])
        data = np.array([len(records), *ends], "<u4").tobytes() + b"".join(records)
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(data)
        shards.append(
            {
                "column_names": names,
                "column_encodings": ["int" if name in fixed else "bytes" for name in names],
                "column_sizes": [fixed.get(name) for name in names],
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
                "samples": len(records),
                "size_limit": 1000,
                "version": 2,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))


def encoded(count: int) -> list[dict[str, bytes]]:
    return [{"n": np.int64(n).tobytes(), "x": b"x" * (n % 7), "y": bytes([n % 256])} for n in range(count)]
