"""Versions that need not be kept, and files that no version needs -> removed.

What is kept is marked by what names it.
Marks come from manifests and tags that were read, never from how old something is; an id with a manifest or
tag that cannot be read keeps all its versions. While the lock of a version is held, its tags are read once
more, and a tag is only made while it is held, so no version is removed that has just been tagged. One that is
being built, overwritten or removed is locked, and stays. `grace` only keeps more.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, partial

from ..errors import CorruptError
from ..process.messages import log
from ..versions.manifest import DataFile, Outline
from ..versions.names import folder_of, natural
from .contract import Store
from .history import in_time, moves_of, parent_of, refuse_tagged
from .sharing import Sharing


def spare_versions(sharing: Sharing, last: int, tagged: bool, grace: float) -> dict[str, Outline]:
    """The versions of an id that may be removed, the oldest first; none if something cannot be read.

    Args:
        sharing: of the id.
        last: how many of the newest ones to keep.
        tagged: whether to keep those that a tag names.
        grace: seconds; younger versions stay.
    """
    store, id = sharing.store, sharing.id
    # The tags first: of a version that is published and tagged meanwhile, neither is known.
    damaged_tags: list[str] = []
    moves = moves_of(store, id, damaged_tags)
    ages = store.ages(id)
    nodes, damaged = sharing.outlines()
    if damaged or damaged_tags:
        what = [f"the manifest of {name!r}" for name in damaged] + [
            f"the tag {tag!r}" for tag in damaged_tags
        ]
        log.warning(
            "%s: all versions of %r are kept, since %s is damaged", store.name, id, " and ".join(what)
        )
        return {}
    order = in_time(nodes)
    kept = {*order[max(0, len(order) - last) :]}
    if tagged:
        kept |= {str(entry.version) for entry in moves.values()} & nodes.keys()
    kept |= {parent for version in kept if (parent := parent_of(nodes[version], nodes)) is not None}
    return {v: nodes[v] for v in order if v not in kept and ages.get(v, -1.0) >= grace}


def removed_versions(sharing: Sharing, last: int, tagged: bool, grace: float) -> list[str]:
    """Removes the versions of an id that are not to be kept, as `spare_versions`; returns their names."""

    def needed() -> Collection[str] | None:
        if not tagged:
            return ()
        try:
            return {str(entry.version) for entry in moves_of(sharing.store, sharing.id).values()}
        except CorruptError:  # any of them may be tagged
            return None

    return sharing.remove(spare_versions(sharing, last, tagged, grace), needed)


def cleaned(
    store: Store, grace: float, last: int | None, tagged: bool, id: str | None, dry_run: bool = False
) -> dict[str, int]:
    """Removes versions, then files, as `Storage.clean` describes it; returns their names, sorted, and the
    bytes of each that only a dry run counts of versions."""
    found: dict[str, int] = {}
    sharing = cache(partial(Sharing, store))
    if last is not None:
        for one in _ids(store, last, tagged, id):
            if dry_run:
                spare = _freed(sharing(one), [*spare_versions(sharing(one), last, tagged, grace)])
            else:
                spare = dict.fromkeys(removed_versions(sharing(one), last, tagged, grace), 0)
            found |= {folder_of(one, version): nbytes for version, nbytes in spare.items()}
    found |= store.clean(grace, id, dry_run, lambda one: sharing(one).clean)
    return {name: found[name] for name in sorted(found, key=natural)}


def freed(store: Store, id: str, version: str) -> int:
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


def removed(store: Store, id: str, version: str, timeout: float, force: bool) -> None:
    """Removes a version, as `Storage.remove` describes it."""
    refuse = None if force else partial(refuse_tagged, store, id, version)
    Sharing(store, id).remove_one(version, timeout, refuse)


def _ids(store: Store, last: int, tagged: bool, id: str | None) -> list[str]:
    """The ids whose versions may be removed, all but `last` of each."""
    if not (last or tagged):
        raise ValueError("this keeps no version at all; use Storage.remove for that, or keep the newest one")
    return sorted({one for one, _ in store.published()}) if id is None else [id]
