"""Versions and what they were made from -> the newest one, and their order in time.

A version that another one was made from is not the newest.
Parents are compared by name and fingerprint, so one that was overwritten by other rows is nobody's parent.
All parents of a manifest count, not only the direct one: if that is removed, the one before it is still no
head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from ..errors import CorruptError, NotFoundError
from ..process.messages import escaped
from ..versions.lineage import Parent
from ..versions.listed import Listed, pieces_of
from ..versions.names import natural
from ..versions.outline import Outline
from .contract import MOST_NAMED, Shown, Versions

_LOOKS = 3  # at versions that are removed or replaced meanwhile


def _is_parent(parent: Parent, of: Outline, nodes: Mapping[str, Outline]) -> bool:
    """True for a parent that is published, with the rows that it had."""
    found = nodes.get(parent.version)
    return found is not None and found.fingerprint == parent.fingerprint and found.version != of.version


def parent_of(node: Outline, nodes: Mapping[str, Outline]) -> str | None:
    """The nearest version that a version was made from and that is still published; None if there is none."""
    return next((p.version for p in reversed(node.parents) if _is_parent(p, node, nodes)), None)


def line_of(node: Outline, nodes: Mapping[str, Outline]) -> set[str]:
    """A version and those that it was made from, but for those that were removed or have other rows now."""
    others = {p.version for p in node.parents if p.version not in nodes or _is_parent(p, node, nodes)}
    return {node.version, *others}


def heads(nodes: Mapping[str, Outline]) -> list[str]:
    """The versions that no other one was made from, sorted."""
    below: set[str] = set()
    read: set[str] = set()
    for node in nodes.values():
        below |= {p.version for p in _line(node, read) if p is not None and _is_parent(p, node, nodes)}
    return sorted(nodes.keys() - below, key=natural)


def _line(node: Outline, read: set[str]) -> Iterator[Parent | None]:
    """The parents of a version, but None for those of each list that has been `read`, which notes its own."""
    for piece in pieces_of(node.parents):
        if isinstance(piece, Parent):
            yield piece
        elif piece.name in read or not isinstance(node.parents, Listed):
            yield None
        else:
            read.add(piece.name)
            yield from node.parents.of_piece(piece)


def in_time(nodes: Mapping[str, Outline]) -> list[str]:
    """All versions, the oldest first: by when they were made, but each after what it was made from."""
    placed: dict[str, tuple[str, int]] = {}
    for start in sorted(nodes, key=natural):
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
    return sorted(nodes, key=lambda version: (placed[version], natural(version)))


def newest(store: Versions, id: str) -> Outline:
    """The only version that no other one was made from.

    Raises:
        NotFoundError: there is none, or there are several; names them, and when they were made.
        CorruptError: a manifest is damaged, so that it is not known.
    """
    for left in reversed(range(_LOOKS)):
        try:
            nodes = _latest(store, id, _published(store, id))
            break
        except CorruptError:  # unless it was removed or replaced while its lists were read
            if not left:
                raise
    if not nodes:
        store.manifest(id, "latest")  # its error lists what is published
    found = heads(nodes)
    if len(found) == 1:
        return nodes[found[0]]
    if not found:
        named = _dated(nodes, sorted(nodes, key=natural))
        raise NotFoundError(
            f"the newest version of {id!r} is not known: {named} were made from each other in a circle; name "
            "the version to read, or the one to append to"
        )
    raise NotFoundError(
        f"{id!r} has {len(found)} newest versions, none made from another: {_dated(nodes, found)}; name the "
        "version to read, or the one to append to; or give one a tag and fetch that"
    )


def _published(store: Versions, id: str) -> dict[str, Shown]:
    return {version: place for version, place in store.places(id).items() if place.is_published}


def _latest(store: Versions, id: str, places: Mapping[str, Shown]) -> dict[str, Outline]:
    """The published versions of an id but for those that one of these was made from.

    They are read from the one on that was written last. Parents that are in line, each older than the next,
    have not been overwritten since, so they need not be read.

    Raises:
        CorruptError: a manifest is damaged.
    """
    times = {v: place.written for v, place in places.items() if place.written is not None}
    nodes: dict[str, Outline] = {}
    below: set[str] = set()
    read: set[str] = set()
    for version in sorted(places, key=lambda version: (-times.get(version, math.inf), natural(version))):
        if version in below:
            continue
        try:
            text = store.read_manifest(id, version)
            if text is None:  # removed just now
                continue
            nodes[version] = node = store.parsed(id, version, text, Outline)
            line = [*(parent and parent.version for parent in _line(node, read)), version]
            below |= {
                parent
                for parent, child in pairwise(line)
                if parent in times and child in times and times[parent] < times[child]
            }
        except CorruptError as error:
            raise CorruptError(
                f"the newest version of {id!r} is not known, since that of {version!r} cannot be read: "
                f"{error}"
            ) from error
    return nodes


def recent(store: Versions, id: str, most: int) -> tuple[list[Outline], int] | None:
    """The newest versions of an id, the newest first, and how many there are in all, without reading others.

    None if that takes all of them: they are not in one line, or one is damaged.
    """
    places = _published(store, id)
    if not 0 < most < len(places):
        return None
    try:
        nodes = _latest(store, id, places)
        if len(found := heads(nodes)) != 1:
            return None
        node = nodes[found[0]]
        line = [parent.version for parent in reversed(node.parents) if parent.version in places]
        if sorted([*line, node.version]) != sorted(places):
            return None
        texts = store.each(line[: most - 1], partial(store.read_manifest, id))
        below = [store.parsed(id, v, text or b"", Outline) for v, text in zip(line, texts, strict=False)]
    except (CorruptError, NotFoundError, FileNotFoundError):
        return None
    for child, parent in pairwise([node, *below]):
        direct = child.parents[-1] if child.parents else None
        if direct is None or (direct.version, direct.fingerprint) != (parent.version, parent.fingerprint):
            return None
    return [node, *below][:most], len(places)


def _dated(nodes: Mapping[str, Outline], versions: Sequence[str]) -> str:
    latest = sorted(versions, key=lambda version: nodes[version].created, reverse=True)
    shown = [f"{version!r} of {escaped(nodes[version].created)[:40]}" for version in latest[:MOST_NAMED]]
    more = f" and {len(latest) - MOST_NAMED} more" if len(latest) > MOST_NAMED else ""
    return ", ".join(shown) + more
