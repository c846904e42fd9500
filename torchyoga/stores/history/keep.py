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
from dataclasses import dataclass

from ...errors import CorruptError
from ...order.full import as_int
from ...versions.names import encoded
from ...versions.outline import Outline
from ..sharing import Sharing
from .graph import in_time, parent_of
from .tags import moves_of

__all__ = ["Keep", "removed_versions", "spare_versions"]

_log = logging.getLogger("torchyoga")


@dataclass(frozen=True)
class Keep:
    """Which versions of each id `Storage.clean` keeps; all others are removed.

    The version that a kept one was made from is kept, too, so that the two can be compared.

    Args:
        last: how many of the newest ones.
        tagged: those that a tag names.
        versions: those of these names.

    Raises:
        ValueError, TypeError: an argument is out of range, or nothing at all would be kept.

    Example:
        >>> for number in range(4):
        ...     ref = storage.submit([number], "counted", str(number))
        >>> entry = storage.tag("counted", "prod", "0")
        >>> [*storage.clean(0, keep=yoga.Keep(last=1), id="counted", dry_run=True)]
        ['counted/1', 'counted/2']
        >>> storage.versions("counted")
        ['0', '1', '2', '3']
    """

    last: int = 1
    tagged: bool = True
    versions: Collection[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "last", as_int("last", self.last, low=0))
        if not isinstance(self.tagged, bool):
            raise TypeError(f"tagged must be True or False, found {self.tagged!r:.80}")
        if isinstance(self.versions, str):
            raise TypeError(f"versions must be names of versions, such as [{self.versions!r}], found a text")
        object.__setattr__(self, "versions", tuple(self.versions))
        for version in self.versions:
            encoded("version", version)
        if not (self.last or self.tagged or self.versions):
            raise ValueError("this keeps no version at all; use Storage.remove for that, or set last=1")


def spare_versions(sharing: Sharing, keep: Keep, grace: float) -> dict[str, Outline]:
    """The versions of an id that may be removed, the oldest first; none if something cannot be read.

    Args:
        sharing: of the id.
        keep: which ones to keep.
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
    kept = {*order[max(0, len(order) - keep.last) :], *keep.versions} & nodes.keys()
    if keep.tagged:
        kept |= {str(entry.version) for entry in moves.values()} & nodes.keys()
    kept |= {parent for version in kept if (parent := parent_of(nodes[version], nodes)) is not None}
    return {v: nodes[v] for v in order if v not in kept and ages.get(v, -1.0) >= grace}


def removed_versions(sharing: Sharing, keep: Keep, grace: float) -> list[str]:
    """Removes the versions of an id that are not to be kept, as `spare_versions`; returns their names."""

    def needed() -> Collection[str] | None:
        if not keep.tagged:
            return ()
        try:
            return {str(entry.version) for entry in moves_of(sharing.store, sharing.id).values()}
        except CorruptError:  # any of them may be tagged
            return None

    return sharing.remove(spare_versions(sharing, keep, grace), needed)
