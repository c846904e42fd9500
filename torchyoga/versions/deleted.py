"""Rows of a data file that a version leaves out: their numbers, and the checks of the whole file."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass

from ..process.lazy import cached_property, np
from ..rows.types import Ints, Json

MOST_DELETED = 2**27  # of all files of a version: their numbers take a gigabyte


@dataclass(frozen=True)
class Deleted:
    """Rows that a file holds and its version leaves out.

    Attributes:
        text: their numbers within the file, as `of_rows` writes them.
        count: how many they are.
        checks: those of all rows of the file, as in `FileEntry`.
    """

    text: str
    count: int
    checks: tuple[tuple[int, int], ...]

    @staticmethod
    def of_rows(rows: Ints, checks: tuple[tuple[int, int], ...]) -> Deleted:
        """These rows of a file; (D,) sorted numbers within it, each once.

        Example:
            >>> Deleted.of_rows(np.array([2, 3, 9]), ()).rows.tolist()
            [2, 3, 9]
        """
        steps = np.diff(rows, prepend=0).astype("<i8")
        text = base64.b64encode(zlib.compress(steps.tobytes())).decode()
        return Deleted(text, len(rows), checks)

    @cached_property
    def rows(self) -> Ints:
        """(D,) their numbers within the file, sorted.

        Raises:
            ValueError: the text does not hold `count` numbers that rise.
        """
        if self.count > MOST_DELETED:
            raise ValueError(f"{self.count} rows of a file are deleted, {MOST_DELETED} may be")
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(base64.b64decode(self.text, validate=True), 8 * self.count + 1)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"the numbers of deleted rows are damaged: {error}") from error
        if len(found) != 8 * self.count or unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError(f"there are not {self.count} numbers of deleted rows")
        steps = np.frombuffer(found, "<i8").astype(np.int64)
        # A sum that is exact as float has not wrapped around as int64.
        if not (steps[:1] >= 0).all() or not (steps[1:] > 0).all() or steps.astype(float).sum() >= 2**53:
            raise ValueError("the numbers of deleted rows do not rise")
        return np.cumsum(steps)

    def to_json(self) -> Json:
        """Plain data."""
        return {"rows": self.text, "count": self.count, "checks": [list(check) for check in self.checks]}

    @staticmethod
    def from_json(data: Json) -> Deleted:
        """The rows that `to_json` described; ValueError, TypeError or KeyError if it is not that."""
        checks = tuple((size, crc) for size, crc in data["checks"])
        if not all(type(n) is int and 0 <= n < 2**62 for check in checks for n in check):
            raise ValueError("checks of a whole file must be ints of at least 0")
        if any(crc >= 2**32 for _, crc in checks):
            raise ValueError("a CRC-32 has 32 bits")
        if not isinstance(data["rows"], str) or type(data["count"]) is not int:
            raise TypeError("deleted rows must be text and a count")
        if not 0 < data["count"] <= MOST_DELETED:
            raise ValueError(f"{data['count']!r:.40} rows of a file are deleted, 1 to {MOST_DELETED} may be")
        return Deleted(data["rows"], data["count"], checks)
