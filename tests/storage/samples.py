"""Rows of several kinds, and a version that is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from damaged import flip

import torchyoga as yoga

ROWS = [{"x": np.full((2, 3), i, np.float32), "y": (i, str(i)), "t": torch.arange(i % 4)} for i in range(40)]
OTHER = {"lmdb": "hdf5", "hdf5": "lmdb"}


def submit_damaged(storage: yoga.Storage) -> Path:
    """A version of 5,000 numbers in which the 2,000th is wrong; the path of its only file."""
    storage.submit({"x": np.arange(5000)}, "a", "1")
    (data,) = (path for path in (storage.path / "a" / "1").iterdir() if path.suffix != ".json")
    flip(data, np.arange(2000, 2010).tobytes())
    return data
