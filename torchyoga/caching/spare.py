"""Versions that need not be kept, and files that no version needs -> removed, with their row hashes."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import cache, partial

from ..errors import NotFoundError
from ..stores.contract import Versions
from ..stores.history.keep import removed_versions, spare_versions
from ..stores.history.tags import refuse_tagged
from ..stores.sharing import Sharing
from ..versions.names import folder_of, natural
from ..versions.outline import DataFile

__all__ = ["cleanable", "cleaned", "freed", "removed"]


def cleaned(store: Versions, grace: float, last: int | None, tagged: bool, id: str | None) -> list[str]:
    """Removes versions, then files, as `Storage.clean` describes it; returns their names."""
    names, sharing = [], cache(partial(Sharing, store))
    for one in _ids(store, last, tagged, id):
        assert last is not None, "else there are no ids"
        gone = removed_versions(sharing(one), last, tagged, grace)
        if gone:
            # One that is there was built again meanwhile.
            _remove_hashes(store, one, {*gone}.difference(store.versions(one)), 0)
        names += [folder_of(one, version) for version in gone]
    return sorted(names + store.clean(grace, id, sweep=lambda one: sharing(one).clean), key=natural)


def cleanable(
    store: Versions, grace: float, last: int | None, tagged: bool, id: str | None
) -> dict[str, int]:
    """The names of what `cleaned` would remove, sorted, and the bytes of each."""
    found: dict[str, int] = {}
    sharing = cache(partial(Sharing, store))
    for one in _ids(store, last, tagged, id):
        assert last is not None, "else there are no ids"
        spare = spare_versions(sharing(one), last, tagged, grace)
        found |= {
            folder_of(one, version): nbytes for version, nbytes in _freed(sharing(one), [*spare]).items()
        }
    store.clean(grace, id, found, lambda one: sharing(one).clean)
    return {name: found[name] for name in sorted(found, key=natural)}


def freed(store: Versions, id: str, version: str) -> int:
    """The bytes of the files of a version that no other one names; 0 if that is not known."""
    return _freed(Sharing(store, id), [version])[version]


def _freed(sharing: Sharing, spare: Collection[str]) -> dict[str, int]:
    """The bytes of the files of each version that no other one needs; what they share counts once."""
    versions, damaged = sharing.outlines()
    if damaged:
        return dict.fromkeys(spare, 0)
    seen: set[tuple[str, str]] = set()
    named: set[DataFile] = set()
    for version in versions.keys() - {*spare}:
        named |= sharing.files_of(versions[version], seen)
    nbytes = {}
    for version in sorted(spare, key=natural):
        files = sharing.files_of(versions[version], seen) - named if version in versions else set()
        nbytes[version] = sum(file.nbytes for file in files)
        named |= files
    return nbytes


def removed(store: Versions, id: str, version: str, timeout: float, force: bool) -> None:
    """Removes a version and its row hashes, as `Storage.remove` describes it."""
    refuse = None if force else partial(refuse_tagged, store, id, version)
    Sharing(store, id).remove_one(version, timeout, refuse)
    _remove_hashes(store, id, [version], timeout)


def _ids(store: Versions, last: int | None, tagged: bool, id: str | None) -> list[str]:
    """The ids whose versions may be removed; none if `last` does not say how many of these to keep."""
    if last is None:
        return []
    if not (last or tagged):
        raise ValueError("this keeps no version at all; use Storage.remove for that, or keep the newest one")
    return sorted({one for one, _ in store.published()}) if id is None else [id]


def _remove_hashes(store: Versions, id: str, versions: Collection[str], timeout: float) -> None:
    """Removes the row hashes that are kept beside versions."""
    for version in {*versions}.intersection(store.hashes.versions(id)):
        with suppress(NotFoundError):
            Sharing(store.hashes, id).remove_one(version, timeout, None)
