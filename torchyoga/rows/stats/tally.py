"""How often each value of a column comes, as long as there are not too many.

Counts are right, or there are none.
Beyond 10,000 different values, or with a text of more than 64 bytes, none are kept. Both follow from all
values of the column, whichever come first. A manifest has the most frequent ones only: they cannot be merged
with others, since a value that either lacks may come as often; so the result has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from ...process.lazy import np
from ..types import Array, Json
from .numbers import checked_counts

MOST_DISTINCT = 10_000
MOST_TEXT = 64  # bytes of a text
MOST_TOP = 100  # values that a manifest has
_RANGE = 2**16  # ints in such a range are counted without sorting them
Value: TypeAlias = "int | float | bytes"
Kind: TypeAlias = Literal["int", "float", "bool", "str", "bytes"]


class Tally:
    """How often each value comes.

    Attributes:
        kind: of the values.
        counts: of each value, or only of the most frequent ones; None if there are too many.
        distinct: how many different values there are; None if that is not known.

    Example:
        >>> tally = Tally("str")
        >>> tally.add_texts([b"cat", b"dog", b"cat"])
        >>> tally.top(), tally.distinct
        ([(b'cat', 2), (b'dog', 1)], 2)
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.counts: dict[Value, int] | None = {}
        self.distinct: int | None = 0

    def add_numbers(self, values: Array) -> None:
        """Adds numbers (N,); NaN are left out."""
        if self.counts is None or not len(values):
            return
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)] + values.dtype.type(0)  # -0.0 is 0.0
        is_int, start = values.dtype.kind != "f", values[: 2 * MOST_DISTINCT]
        if is_int and int(values.max()) - (low := int(values.min())) < _RANGE and low < 2**62:
            numbers = np.bincount(values.astype(np.int64) - low)
            distinct = np.flatnonzero(numbers)
            self._add((distinct + low).tolist(), numbers[distinct].tolist())
        elif len(start) < len(values) and len(np.unique(start)) > MOST_DISTINCT:
            self.give_up()
        else:
            distinct, numbers = np.unique(values, return_counts=True)
            self._add(distinct.tolist(), numbers.tolist())

    def add_texts(self, texts: Sequence[bytes]) -> None:
        """Adds texts."""
        if self.counts is None:
            return
        longest, some = max(map(len, texts), default=0), set(texts[: 2 * MOST_DISTINCT])
        if longest > MOST_TEXT or len(some) > MOST_DISTINCT:
            self.give_up()
            return
        counts = Counter(texts)
        try:
            for text in counts if self.kind == "str" else ():
                text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.give_up()
            return
        self._add(counts.keys(), counts.values())

    def merge(self, other: Tally) -> None:
        """Adds what another has counted."""
        if other.distinct == 0:
            return
        if self.distinct == 0:
            self.counts, self.distinct = None if other.counts is None else dict(other.counts), other.distinct
        elif other.counts is None or not (self.is_whole and other.is_whole):
            self.give_up()
        else:
            self._add(other.counts.keys(), other.counts.values())

    @property
    def is_whole(self) -> bool:
        """True if all values are here, not only the most frequent ones."""
        return self.counts is not None and len(self.counts) == self.distinct

    def give_up(self) -> None:
        """Forgets all values: there are too many."""
        self.counts = self.distinct = None

    def top(self, most: int | None = None) -> list[tuple[Value, int]]:
        """The values that come most often, with their counts; of equal counts the smaller value first."""
        return sorted((self.counts or {}).items(), key=lambda pair: (-pair[1], pair[0]))[:most]

    def _add(self, values: Collection[Value], numbers: Collection[int]) -> None:
        """Adds different values, and how often each comes."""
        counts = self.counts
        assert counts is not None
        if len(values) <= MOST_DISTINCT:
            for value, number in zip(values, numbers, strict=True):
                counts[value] = counts.get(value, 0) + number
        self.distinct = len(counts)
        if max(len(counts), len(values)) > MOST_DISTINCT:
            self.give_up()

    def to_json(self, most: int | None = None) -> Json:
        """Plain data, with the most frequent values only if `most` says how many."""
        pairs = self.top(most)
        values = [self._plain(value) for value, _ in pairs]
        return {"distinct": self.distinct, "values": values, "counts": [count for _, count in pairs]}

    def _plain(self, value: Value) -> object:
        if isinstance(value, bytes):
            # Of bytes each is a character, so that any are text.
            return value.decode("latin-1") if self.kind == "bytes" else value.decode("utf-8", "surrogatepass")
        return str(value) if value in (np.inf, -np.inf) else value

    @staticmethod
    def from_json(data: Json, kind: Kind, total: int) -> Tally:
        """The counts that `to_json` described; ValueError, TypeError or KeyError if they cannot be.

        Args:
            data: plain data.
            kind: of the values.
            total: how many values there are together.
        """
        found = Tally(kind)
        distinct, values = data["distinct"], [_value_in(value, kind) for value in data["values"]]
        counts = checked_counts(data["counts"])
        found.distinct = distinct
        if distinct is None:
            found.counts = None
            if values or counts:
                raise ValueError("values were counted, and there are too many")
            return found
        found.counts = dict(zip(values, counts, strict=True))
        (size,) = checked_counts([distinct])
        sound = len(values) == len(found.counts) <= size <= MOST_DISTINCT and min(counts, default=1) > 0
        left = total - sum(counts)
        if not sound or (left != 0 if size == len(values) else left < size - len(values)):
            raise ValueError(f"the counts of {size} different values are not those of {total} in all")
        if found.top() != list(found.counts.items()):
            raise ValueError("the most frequent value must be first")
        return found


def _value_in(value: object, kind: Kind) -> Value:
    if kind in ("str", "bytes") and isinstance(value, str):
        return value.encode("latin-1") if kind == "bytes" else value.encode("utf-8", "surrogatepass")
    if kind == "float" and value in ("inf", "-inf"):
        return float(str(value))
    types: dict[Kind, tuple[type, ...]] = {"int": (int,), "bool": (int,), "float": (int, float)}
    if type(value) not in types.get(kind, ()) or value != value:
        raise TypeError(f"not a value of the column: {value!r:.80}")
    return float(value) if kind == "float" else value  # type: ignore[arg-type, return-value]
