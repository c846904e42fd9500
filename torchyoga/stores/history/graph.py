"""Versions and what they were made from -> the newest one, and their order in time.

A version that another one was made from is not the newest.
Parents are compared by name and fingerprint, so one that was overwritten by other rows is nobody's parent.
All parents of a manifest count, not only the direct one: if that is removed, the one before it is still no
head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import CorruptError, NotFoundError
from ...versions.lineage import escaped
from ...versions.outline import Outline
from ...versions.parent import Parent
from ..contract import MOST_NAMED, Versions
from ..sharing import Sharing

__all__ = ["heads", "in_time", "newest", "parent_of"]

_LOOKS = 4  # at versions that are removed or overwritten meanwhile


def _is_parent(parent: Parent, of: Outline, nodes: Mapping[str, Outline]) -> bool:
    """True for a parent that is published, with the rows that it had."""
    found = nodes.get(parent.version)
    return found is not None and found.fingerprint == parent.fingerprint and found.version != of.version


def parent_of(node: Outline, nodes: Mapping[str, Outline]) -> str | None:
    """The nearest version that a version was made from and that is still published; None if there is none."""
    return next((p.version for p in reversed(node.parents) if _is_parent(p, node, nodes)), None)


def heads(nodes: Mapping[str, Outline]) -> list[str]:
    """The versions that no other one was made from, sorted."""
    below = {p.version for node in nodes.values() for p in node.parents if _is_parent(p, node, nodes)}
    return sorted(nodes.keys() - below)


def in_time(nodes: Mapping[str, Outline]) -> list[str]:
    """All versions, the oldest first: by when they were made, but each after what it was made from."""
    placed: dict[str, tuple[str, int]] = {}
    for start in sorted(nodes):
        way: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in placed and at not in way:
            way[at] = None
            at = parent_of(nodes[at], nodes)
        for version in reversed(way):  # those before it first; a circle begins somewhere
            parent = parent_of(nodes[version], nodes)
            time, depth = placed.get(parent, ("", -1)) if parent is not None else ("", -1)
            own = nodes[version].created
            placed[version] = (own, 0) if own > time else (time, depth + 1)
    return sorted(nodes, key=lambda version: (placed[version], version))


def newest(store: Versions, id: str) -> Outline:
    """The only version that no other one was made from.

    Raises:
        NotFoundError: there is none, or there are several; names them, and when they were made.
        CorruptError: a manifest is damaged, so that it is not known.
    """
    nodes, damaged = Sharing(store, id).outlines()
    if damaged:
        version, error = next(iter(damaged.items()))
        raise CorruptError(
            f"the newest version of {id!r} is not known, since that of {version!r} cannot be read: {error}"
        ) from error
    if not nodes:
        store.manifest(id, "latest")  # its error lists what is published
    found = heads(nodes)
    if len(found) == 1:
        return nodes[found[0]]
    if not found:
        raise NotFoundError(
            f"the newest version of {id!r} is not known: {_dated(nodes, sorted(nodes))} were made from each "
            "other in a circle; fetch one by version="
        )
    raise NotFoundError(
        f"{id!r} has {len(found)} newest versions, none made from another: {_dated(nodes, found)}; fetch one "
        "by version=, or give one a tag and fetch that"
    )


def _dated(nodes: Mapping[str, Outline], versions: Sequence[str]) -> str:
    latest = sorted(versions, key=lambda version: nodes[version].created, reverse=True)
    shown = [f"{version!r} of {escaped(nodes[version].created)[:40]}" for version in latest[:MOST_NAMED]]
    more = f" and {len(latest) - MOST_NAMED} more" if len(latest) > MOST_NAMED else ""
    return ", ".join(shown) + more
