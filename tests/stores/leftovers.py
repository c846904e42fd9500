"""A version of numbers, and what builds and others leave beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from waiting import PATIENCE, running

from torchyoga.stores.local import LocalStore

OLD = {"x": np.arange(30)}
NEW = {"x": np.arange(50, 90)}
OLD_ROWS = [{"x": x} for x in OLD["x"]]
NEW_ROWS = [{"x": x} for x in NEW["x"]]


def values(ref: Any) -> list[int]:
    return [int(row["x"]) for row in ref]


def put(directory: Path, name: str) -> None:
    path = directory / name
    if name.endswith("/"):
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")


def interrupted(root: Path) -> None:
    """A build that has left a file and its note."""
    staging = LocalStore(root).stage("a", "1")
    (staging.path / "0123456789abcdef-00000.mdb").write_bytes(b"half of a file")
    staging.save({"files": []})


@contextmanager
def held_by_another(root: Path, until: Callable[[], object]) -> Iterator[None]:
    """Another thread holds the lock of a version until a function returns."""
    entered = threading.Event()

    def hold() -> None:
        with LocalStore(root).lock("a", "1", timeout=0):
            entered.set()
            until()

    with running(hold):
        assert entered.wait(PATIENCE)
        yield
