"""Machines that share a store, the rows they publish, and damage to what they published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored import objects_of

import torchyoga as yoga

Machine = Callable[..., yoga.Storage]
ROWS = [{"x": np.arange(100) + n, "text": "t" * (n % 7), "n": n} for n in range(500)]


def storages(url: str, options: Any, folder: Path) -> Machine:
    def on(name: str, **more: Any) -> yoga.Storage:
        return yoga.Storage(
            url,
            storage_options=options,
            cache_dir=folder / name,
            **{"lease_seconds": 2, "timeout": 30, **more},
        )

    return on


def same(ref: yoga.DataRef, rows: list[Any] = ROWS) -> bool:
    return len(ref) == len(rows) and all(
        found.keys() == row.keys() and all(np.array_equal(found[name], row[name]) for name in row)
        for found, row in zip(ref, rows, strict=True)
    )


def cached(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "files").glob("*"))


@contextmanager
def damaged(storage: yoga.Storage, pattern: str, change: Callable[[bytes], bytes | None]) -> Iterator[None]:
    remote = objects_of(storage)
    (name,) = [name for name in remote.find() if pattern in name and not name.startswith(".")]
    data = remote.read(name, 2**24)
    new = change(data)
    remote.delete([name]) if new is None else remote.write(name, new)
    yield
    remote.write(name, data)


def download_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """One thread of each process downloads what is planned."""
    patch.setattr("torchyoga.stores.downloads._AT_ONCE", (1, 1, 1))
