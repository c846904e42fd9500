"""Damaged files and samples -> left out and named, as long as they are few; else an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import CorruptError
from ..process.warned import warn_user
from ..rows.types import Json

_NAMED = 10  # in a message
_KEPT = 100  # in the info of a version


class LeftOut(NamedTuple):
    """A file that is not among the rows, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name!r:.200} {self.reason}"


def check_share(max_bad: float) -> float:
    """A share; ValueError if it is not in 0..1."""
    if isinstance(max_bad, bool) or not isinstance(max_bad, (int, float)) or not 0 <= max_bad <= 1:
        raise ValueError(
            f"max_bad must be in 0..1, found {max_bad!r}; it is the share that may be left out, such as 0.01"
        )
    return float(max_bad)


def refuse_many(bad: Sequence[LeftOut], total: int, max_bad: float, where: str, what: str) -> None:
    """Raises CorruptError if more than this share of all is to be left out; names the first ones."""
    if len(bad) > max_bad * total:
        raise CorruptError(
            f"{where}: {len(bad)} of {total} {what} are bad, more than max_bad={max_bad:g} allows: "
            f"{_listed(bad)}. Repair or remove them, or allow more with max_bad"
        )


def warn_of(
    bad: Sequence[LeftOut], total: int, where: str, what: str, how: str = "are bad and left out"
) -> None:
    """Warns of what is left out, if anything is."""
    if bad:
        warn_user(f"{where}: {len(bad)} of {total} {what} {how}: {_listed(bad)}")


def told_of(bad: Sequence[LeftOut]) -> Json:
    """The entries of `info` about them; nothing if there are none."""
    if not bad:
        return {}
    first = {part.name: part.reason for part in bad[:_KEPT]}
    return {"left_out": {"count": len(bad), "first": first}}


def _listed(bad: Sequence[LeftOut]) -> str:
    return "; ".join(map(str, bad[:_NAMED])) + ("; ..." if len(bad) > _NAMED else "")
