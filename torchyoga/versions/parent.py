"""The version that another one was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..rows.types import Json

__all__ = ["Parent"]


@dataclass(frozen=True)
class Parent:
    """A version that another version of the same id was made from.

    Attributes:
        version: its name.
        fingerprint: of its rows.
        rows: how many it has.
        is_prefix: the other version begins with its rows, as after `append`; a state of this one can then be
            carried over.
        columns: for each column of the other version its number in this one, -1 if it has none of that name,
            as it has none for columns beyond; None if columns of both have the same numbers.
    """

    version: str
    fingerprint: str
    rows: int
    is_prefix: bool
    columns: tuple[int, ...] | None = None

    def with_columns(self, numbers: Sequence[int]) -> Parent:
        """This parent, for a version made of the other: for each of its columns the number in that, or -1."""
        numbers = [self._number(column) for column in numbers]
        is_alike = all(number in (-1, place) for place, number in enumerate(numbers))
        return replace(self, columns=None if is_alike else tuple(numbers))

    def numbers_of(self, columns: Sequence[int]) -> tuple[int, ...] | None:
        """The numbers of some columns of the other version in this one; None if it lacks one."""
        found = tuple(map(self._number, columns))
        return None if -1 in found else found

    def _number(self, column: int) -> int:
        if self.columns is None or column < 0:
            return column
        return self.columns[column] if column < len(self.columns) else -1

    def to_json(self) -> Json:
        """Plain data."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @staticmethod
    def from_json(data: Json) -> Parent:
        """The parent that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        version, fingerprint, rows, is_prefix = (
            data[key] for key in ("version", "fingerprint", "rows", "is_prefix")
        )
        if not (isinstance(version, str) and version and isinstance(fingerprint, str)):
            raise TypeError("the version and the fingerprint of a parent must be text")
        if type(rows) is not int or not 0 <= rows < 2**62 or type(is_prefix) is not bool:
            raise ValueError(f"not the rows of a parent: {rows!r:.40}")
        columns = data.get("columns")
        if not all(type(number) is int and -1 <= number < 2**31 for number in columns or ()):
            raise ValueError(f"not the columns of a parent: {columns!r:.80}")
        return Parent(version, fingerprint, rows, is_prefix, None if columns is None else tuple(columns))
