"""Which versions to keep -> those that may go, each looked at again before it goes.

What is kept is marked by what names it.
Marks come from manifests and tags that were read, never from how old something is; an id with a manifest or
tag that cannot be read keeps all its versions. While the lock of a version is held, its tags are read once
more, and a tag is only made while it is held, so no version is removed that has just been tagged. One that is
being built, overwritten or removed is locked, and stays. `grace` only keeps more.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ...errors import CorruptError
from ...versions.outline import Outline
from ..sharing import Sharing
from .graph import in_time, parent_of
from .tags import moves_of

__all__ = ["removed_versions", "spare_versions"]

_log = logging.getLogger("torchyoga")


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
        _log.warning(
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
