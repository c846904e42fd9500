"""The store below a storage: what a test acts on as another process, or asks what `Storage` does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import torchyoga as yoga
from torchyoga.stores import patience
from torchyoga.versions.listed import SIZES

__all__ = ["objects_of", "over", "short_lists", "short_waits", "store_of", "tidied"]

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


def tidied(
    storage: yoga.Storage,
    id: str,
    rows: dict[str, list[Any]],
    what: str,
    versions: tuple[str, str],
    random: np.random.Generator,
) -> None:
    """Deletes a row, compacts, removes or cleans, in a history and in what its versions are to hold.

    Args:
        storage: has the history of `id`.
        id: which dataset.
        rows: of each version, changed in step.
        what: "delete", "compact", "remove" or "clean"; anything else does nothing.
        versions: the one that is looked at, and the name of a new one.
        random: draws the row.
    """
    before, name = versions
    if what == "delete" and len(rows[before]) > 1:
        gone = int(random.integers(len(rows[before])))
        storage.delete_rows(id, before, rows=[gone], to=name)
        rows[name] = [one for number, one in enumerate(rows[before]) if number != gone]
    elif what == "compact":
        storage.compact(id, before)
    elif what == "remove" and len(rows) > 1:
        storage.remove(id, before)
        del rows[before]
    elif what == "clean":
        storage.clean(0, id=id)


def short_waits(first: float, longest: float = 8.0, patch: Patch = setattr) -> None:
    """Requests of this process are tried again after so long: for ever, or until patches are undone."""
    patch(patience, "_FIRST_WAIT", first)
    patch(patience, "_LONGEST_WAIT", longest)
