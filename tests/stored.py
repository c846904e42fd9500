"""The store below a storage: what a test acts on as another process, or asks what `Storage` does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torchyoga as yoga
from torchyoga.stores import patience
from torchyoga.versions.listed import SIZES

__all__ = ["objects_of", "over", "short_lists", "short_waits", "store_of"]

Patch = Callable[[object, str, float], None]


def store_of(storage: yoga.Storage) -> Any:
    """The versions of a storage, a `Store` or a `Mirror`."""
    return storage._store


def objects_of(storage: yoga.Storage) -> Any:
    """The objects of a storage behind a URL."""
    return store_of(storage)._remote


def over(store: object, storage: yoga.Storage) -> yoga.Storage:
    """That storage, with another store below it."""
    storage._store = store  # type: ignore[assignment]
    return storage


def short_lists(patch: Callable[[Any, str, Any], None]) -> None:
    """A few files and parents make lists: until patches are undone."""
    for kind in SIZES:
        patch(SIZES, kind, (1, 2, 4))


def short_waits(first: float, longest: float = 8.0, patch: Patch = setattr) -> None:
    """Requests of this process are tried again after so long: for ever, or until patches are undone."""
    patch(patience, "_FIRST_WAIT", first)
    patch(patience, "_LONGEST_WAIT", longest)
