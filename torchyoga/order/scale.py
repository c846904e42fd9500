"""Positions of stages, by what they count -> rows, of all epochs and ranks."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from .full import as_int

__all__ = ["Begin", "Scale", "StagedBy", "exact"]

StagedBy = Literal["rows", "steps", "tokens", "epochs"]
_MOST = 2**60


@dataclass(frozen=True)
class Scale:
    """The unit of positions.

    Args:
        by: "rows", "steps", "tokens" or "epochs".
        batch: rows of a step, over all ranks.
        tokens: a ragged column.

    Raises:
        ValueError: an argument is missing, or of another scale.
    """

    by: StagedBy = "rows"
    batch: int | None = None
    tokens: str | None = None

    def __post_init__(self) -> None:
        if self.by not in ("rows", "steps", "tokens", "epochs"):
            raise ValueError(f'by must be "rows", "steps", "tokens" or "epochs", found {self.by!r}')
        if (self.batch is None) == (self.by == "steps"):
            raise ValueError('by="steps", and nothing else, needs batch=, the rows of a step of all ranks')
        if (self.tokens is None) == (self.by == "tokens"):
            raise ValueError('by="tokens", and nothing else, needs tokens=, the column whose values count')
        if self.batch is not None:
            as_int("batch", self.batch, 1, _MOST)

    def place(self, position: object, number: int, before: Begin, length: int, mean: Fraction) -> int:
        """The row, over all epochs, at which a stage begins.

        Args:
            position: as the user gives it.
            number: of the stage, for messages.
            before: where the stage before it begins.
            length: rows of an epoch.
            mean: the tokens of a row of the stage before.

        Raises:
            ValueError: it is no such number, or does not lie behind the one before.
        """
        name = f"the position of stage {number}"
        low, high = (int(before.position) + 1, _MOST) if number else (0, 0)
        if self.by in ("rows", "steps"):
            return as_int(name, position, low, high) * (self.batch or 1)  # type: ignore[arg-type]
        if (
            isinstance(position, bool)
            or not isinstance(position, numbers.Real)
            or not 0 <= float(position) < _MOST
        ):
            raise ValueError(f"{name} must be a number of at least 0, found {position!r:.80}")
        place = math.ceil(exact(position) * length)
        if self.by == "tokens":
            place = before.place + math.ceil((exact(position) - before.position) / mean) if number else 0
        if exact(position) > high or (number and place <= before.place):
            must = f"lie behind that of the stage before, {before.position}" if number else "be 0"
            raise ValueError(f"{name} must {must}, found {position!r} {self.by}")
        return place

    def told(self, number: int, position: object) -> str:
        """A stage as messages call it."""
        return f"stage {number}, from {position!r} {self.by} on"


class Begin(NamedTuple):
    """Where a stage begins: as it was given, and as a row over all epochs."""

    position: Fraction
    place: int


def exact(number: numbers.Real | int | float) -> Fraction:
    """A number as it is written: 0.1 is a tenth."""
    return Fraction(repr(float(number))) if not isinstance(number, numbers.Rational) else Fraction(number)
