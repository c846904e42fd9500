"""Rows with columns of many kinds, for views of all sorts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from own import Own

import torchyoga as yoga

ROWS = [
    {
        "id": number,
        "text": "abc"[number % 3] * (number % 4),
        "ids": np.arange(number % 5, dtype=np.int32),
        "meta": {"half": number / 2, "pair": (np.float32(number), torch.tensor([number, 1]))},
    }
    for number in range(60)
]


SCHEMA = yoga.Schema.of(ROWS[0], ragged=["ids"])


def own() -> Own:
    return Own(ROWS, SCHEMA, "own")


def plain(row: Any) -> Any:
    """A row as something that compares."""
    if isinstance(row, dict):
        return {key: plain(value) for key, value in row.items()}
    if isinstance(row, (tuple, list)):
        return type(row)(map(plain, row))
    return (str(row.dtype), row.tolist()) if isinstance(row, (np.ndarray, torch.Tensor)) else row


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]
