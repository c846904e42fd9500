"""The sources that a mixture has, as a state tells them: names, how many rows, which ones.

Few are told one by one: then new ones may stand anywhere among them. Many are told by a digest that is made
source by source, and by four bits of it after each. So the versions that the sources had are found one after
the other, although each may have grown: a wrong one is noticed after a few more sources. New ones then stand
behind the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...errors import StateError
from ...process.digests import hexdigest
from ..saved import Pin, digest
from .turns import Era, read_era

__all__ = [
    "Source",
    "Version",
    "read_eras",
    "read_sources",
    "same_rows",
    "told_sources",
    "tag_of",
    "written_sources",
]

_LONG = 512  # characters
_MOST_TRIES = 2**20  # versions in all
_TAG = 8  # hex digits


class Version(NamedTuple):
    """A source as it is, or as it was.

    Attributes:
        rows: how many it has.
        tag: a short digest of what they are.
    """

    rows: int
    tag: str


class Source(NamedTuple):
    """A source of a mixture.

    Attributes:
        name: its name.
        rows: how many it has.
        tag: a short digest of what they are.
        eras: passes over it, if it has grown.
    """

    name: str
    rows: int
    tag: str
    eras: tuple[Era, ...] = ()

    @property
    def told(self) -> str:
        """Its name and its rows, as text."""
        return f"{quote(self.name, safe='')}={self.rows}-{self.tag}"


def tag_of(identity: str) -> str:
    """A short digest of a name for some rows."""
    return hexdigest(identity, size=_TAG // 2)


@lru_cache(maxsize=16)
def written_sources(sources: tuple[Source, ...], together: bool = False) -> str:
    """The sources as a state tells them.

    Args:
        sources: they.
        together: they are parts of one dataset, so one digest names their versions.

    Example:
        >>> written_sources((Source("web", 700, "0123abcd"), Source("c++", 90, "89ab4567")))
        'web=700-0123abcd,c%2B%2B=90-89ab4567'
    """
    eras = ["".join(f"@{era.told}" for era in source.eras) for source in sources]
    texts = [source.told for source in sources]
    if len(",".join(texts)) <= _LONG:
        return ",".join(text + passes for text, passes in zip(texts, eras, strict=True))
    names, tags, last = digest(*(source.name for source in sources)), "", hexdigest(",".join(texts), size=8)
    if not together:
        chain = list(itertools.accumulate(texts, _chained, initial=""))[1:]
        tags, last = "".join(link[0] for link in chain), chain[-1]
    grown = [f"{number}{passes}" for number, passes in enumerate(eras) if passes]
    return ",".join([f"{names}#{last}#{len(sources)}-{tags}", *grown])


def _chained(before: str, told: str) -> str:
    """A digest of some sources and one more."""
    return hexdigest(before, told, size=8)


def read_sources(pin: Pin, versions: Mapping[str, Sequence[Version]], where: str) -> list[Source]:
    """The sources that a state tells.

    Args:
        pin: what `written_sources` gave.
        versions: of each source that is here: as it is, and as it was before rows were appended.
        where: the place of the state, for messages.

    Raises:
        StateError: a source of the state is not here, or has other rows.
    """
    try:
        if not isinstance(pin, str):
            raise ValueError("no sources")
        return _few(pin, versions, where) if not pin.startswith("#") else _many(pin, versions, where)
    except StateError:
        raise
    except (ValueError, IndexError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> StateError:
    return StateError(f"the state's sources are damaged ({error}); pass what state_dict() gave")


def told_sources(pin: Pin) -> list[Source] | None:
    """The sources that a state tells by name; None if it tells none, or digests.

    Raises:
        StateError: the text is damaged.
    """
    if not isinstance(pin, str) or pin.startswith("#"):
        return None
    try:
        return _read_few(pin)
    except ValueError as error:
        raise _damaged(error) from error


def read_eras(pin: Pin, names: Sequence[str]) -> dict[str, tuple[Era, ...]]:
    """The passes over sources that have grown, by name; `names` are those of sources that are many.

    Raises:
        StateError: the text is damaged.
    """
    few = told_sources(pin)
    if few is not None or not isinstance(pin, str):
        return {source.name: source.eras for source in few or () if source.eras}
    try:
        texts = [text.split("@") for text in pin.split(",")[1:]]
        return {names[int(number)]: tuple(map(read_era, eras)) for number, *eras in texts}
    except (ValueError, IndexError) as error:
        raise _damaged(error) from error


def same_rows(one: Pin, other: Pin) -> bool:
    """True if two states tell the same sources with the same rows, whatever has been read of them."""
    return _without_eras(one) == _without_eras(other)


def _without_eras(pin: Pin) -> list[str]:
    texts = pin.split(",") if isinstance(pin, str) else []
    return texts[:1] if texts[:1] and texts[0].startswith("#") else [text.partition("@")[0] for text in texts]


def _read_few(pin: str) -> list[Source]:
    sources = []
    for text in pin.split(","):
        told, *eras = text.split("@")
        quoted, equals, content = told.rpartition("=")
        rows, dash, tag = content.partition("-")
        if not equals or not dash or not rows.isascii() or not rows.isdigit() or len(rows) > 18:
            raise ValueError("damaged text")
        sources.append(Source(unquote(quoted), int(rows), tag, tuple(map(read_era, eras))))
    if len({source.name for source in sources}) != len(sources):
        raise ValueError("a name comes twice")
    return sources


def _few(pin: str, versions: Mapping[str, Sequence[Version]], where: str) -> list[Source]:
    sources = _read_few(pin)
    for source in sources:
        if source.name not in versions:
            raise StateError(
                f"the state, at {where}, mixes the source {source.name!r}, which is not here: the sources "
                f"are {list(versions)[:20]}. Pass it under that name; to leave it out from there on, give it "
                "the weight 0"
            )
        if (source.rows, source.tag) not in versions[source.name]:
            raise StateError(
                f"the state, at {where}, has {source.rows} rows of the source {source.name!r}, which are not "
                f"those that it has here, {versions[source.name][0][0]}, nor those that it began with: they "
                "are of other data, or made otherwise, such as packs of another budget or width. If the "
                "state is of packs or windows of a mixture, reweight those, not the mixture before: "
                "mix.packed(...).reweighted(weights, at=state). Rows may be of a version to which some were "
                "appended; packs, windows and batches may not: make them of the version of the state, and "
                "mix what was appended as a source of its own; or pass strict=False to take its epoch and "
                "position"
            )
    return sources


def _many(pin: str, versions: Mapping[str, Sequence[Version]], where: str) -> list[Source]:
    head, *grown = pin.split(",")
    _, names, last, rest = head.split("#")
    count, _, tags = rest.partition("-")
    if not count.isascii() or not count.isdigit() or len(tags) not in (0, int(count)) or int(count) > 2**16:
        raise ValueError("damaged text")
    if tags:
        here = list(versions)[: len(tags)]
        if digest(*here) != f"#{names}":
            raise StateError(
                f"the state, at {where}, mixes {count} sources, which are not the first {count} of the "
                f"{len(versions)} here; pass them under the names that they had, in the same order, and new "
                "ones behind them"
            )
        able = [[Source(name, *one) for one in versions[name]] for name in here]
        sources = _traced(able, tags, last, where)
    else:
        sources = _together(versions, int(count), last, where)
    for text in grown:
        number, *eras = text.split("@")
        sources[int(number)] = sources[int(number)]._replace(eras=tuple(map(read_era, eras)))
    return sources


def _together(versions: Mapping[str, Sequence[Version]], count: int, last: str, where: str) -> list[Source]:
    """The parts of the version of one dataset whose digest is `last`."""
    for parts in zip(*versions.values(), strict=True):
        sources = [Source(name, *one) for name, one in zip(versions, parts, strict=True) if one[0]]
        if len(sources) == count and hexdigest(",".join(one.told for one in sources), size=8) == last:
            return sources
    raise StateError(
        f"the state, at {where}, has other rows, of {count} classes, than there are here, or were before "
        "rows were appended; pass the version of the state, or one that storage.append(...) made of it"
    )


def _traced(able: Sequence[Sequence[Source]], tags: str, last: str, where: str) -> list[Source]:
    """One of each of these, so that their digests begin with the tags, and the last one is `last`."""
    chain, turns, reached = [""], [0], 0
    for _ in range(_MOST_TRIES):
        at = len(turns) - 1
        if at == len(able):
            if chain[-1] == last:
                return [some[turn - 1] for some, turn in zip(able, turns, strict=False)]
        elif turns[-1] < len(able[at]):
            link = _chained(chain[-1], able[at][turns[-1]].told)
            turns[-1] += 1
            if link[0] == tags[at]:
                chain.append(link)
                turns.append(0)
                reached = max(reached, at + 1)
            continue
        chain.pop()
        turns.pop()
        if not turns:
            break
    # A wrong version may have looked right for a source or two.
    name = able[min(reached, len(able) - 1)][0].name
    raise StateError(
        f"the state, at {where}, has other rows of the source {name!r}, or of one shortly before it, than it "
        "has here or began with; pass the version of the state, or one to which rows were appended, and make "
        "packs, windows and batches as they were"
    )
