"""Versions that need not be kept, and files that nobody needs -> removed, with what is kept beside them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..errors import CorruptError, NotFoundError
from ..stores.contract import Versions
from ..stores.history.keep import Keep, removed_versions, spare_versions
from ..versions.names import encoded, kept_id

__all__ = ["cleanable", "cleaned", "remove_kept"]


def cleaned(store: Versions, grace: float, keep: Keep | None, id: str | None) -> list[str]:
    """Removes versions, then files, as `Storage.clean` describes it; returns their names."""
    removed = []
    for one in _ids(store, keep, id):

        def remove(version: str, is_needed: Callable[[], bool], one: str = one) -> None:
            store.remove(one, version, 0, is_needed)

        assert keep is not None, "else there are no ids"
        for version in removed_versions(store, one, keep, grace, remove):
            if store.find(one, version) is None:  # else it was built again meanwhile
                remove_kept(store, one, version, 0)
            removed.append(_name(one, version))
    return sorted(removed + store.clean(grace, id))


def cleanable(store: Versions, grace: float, keep: Keep | None, id: str | None) -> dict[str, int]:
    """The names of what `cleaned` would remove, sorted, and the bytes of each."""
    found: dict[str, int] = {}
    for one in _ids(store, keep, id):
        assert keep is not None, "else there are no ids"
        spare = spare_versions(store, one, keep, grace)
        found |= {_name(one, version): nbytes for version, nbytes in _freed(store, one, set(spare)).items()}
    store.clean(grace, id, found)
    return dict(sorted(found.items()))


def _freed(store: Versions, id: str, spare: set[str]) -> dict[str, int]:
    """The bytes of the files of each version that no other version of the id needs."""
    named: set[tuple[str, str]] = set()
    manifests = {}
    for version in store.versions(id) if spare else []:
        with suppress(CorruptError, NotFoundError):  # it was removed since, or may name anything
            manifests[version] = store.manifest(id, version)
            if version not in spare:
                named |= {(file.of or version, file.name) for file in manifests[version].files}
    found = dict.fromkeys(spare, 0)
    counted: set[tuple[str, str]] = set()
    for version in sorted(spare & manifests.keys()):
        for file in manifests[version].files:
            place = file.of or version, file.name
            if place not in named and place not in counted:
                counted.add(place)
                found[version] += file.nbytes
    return found


def _ids(store: Versions, keep: Keep | None, id: str | None) -> list[str]:
    """The ids whose versions may be removed."""
    if keep is None:
        return []
    return sorted({one for one, _ in store.published()}) if id is None else [id]


def _name(id: str, version: str) -> str:
    return f"{encoded('id', id)}/{encoded('version', version)}"


def remove_kept(store: Versions, id: str, version: str, timeout: float) -> None:
    """Removes what is kept beside a version."""
    kept, of = store.kept, kept_id(id, version)
    for name in kept.versions(of):
        with suppress(NotFoundError):
            kept.remove(of, name, timeout)
