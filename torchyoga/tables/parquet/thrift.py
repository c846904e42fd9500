"""The bytes of a Parquet footer -> where its columns lie, and how many nulls they have.

pyarrow ends the process when it is asked about a column whose description is damaged or encrypted. So footers
are read here first: in Thrift's compact protocol, and only what is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Chunks", "chunks_of"]

Ints: TypeAlias = npt.NDArray[np.int64]
_MOST_DEPTH = 16
_BYTE_ARRAY = 6  # the type of text and bytes
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
# What is read of a value: a number, some fields of a struct, or of each struct in a list.
Wanted: TypeAlias = "type[int] | dict[int, Wanted] | list[Wanted]"
_NUMBERS: dict[int, Wanted] = {
    1: int,
    6: int,
    7: int,
    9: int,
    11: int,
    12: {3: int},
    16: {1: int, 2: [int], 3: [int]},
}
_CHUNK: dict[int, Wanted] = {3: _NUMBERS, 8: {}}
_FOOTER: dict[int, Wanted] = {2: [{1: int}], 4: [{1: [_CHUNK]}], 8: {}}


class Chunks(NamedTuple):
    """The runs of values of each column in each group; arrays are (groups, columns).

    Attributes:
        start: first byte in the file.
        stored: bytes there; `unpacked`: bytes before compression.
        nulls: -1 if it is not known.
        are_encrypted: True if a column is.
        levels: for each column of each group, how many repetition levels and definition levels are counted.
        defined: for each column of each group, how often each definition level occurs; empty if not counted.
    """

    start: Ints
    stored: Ints
    unpacked: Ints
    nulls: Ints
    are_encrypted: bool
    levels: list[list[tuple[int, int]]]
    defined: list[list[Sequence[int]]]

    def fit(self, most: list[tuple[int, int]]) -> bool:
        """True if the columns have counts of levels such as those of the schema, or none.

        Args:
            most: for each column, the highest repetition level and the highest definition level.
        """
        return all(
            count in (0, highest + 1)
            for group in self.levels
            for counts, column in zip(group, most, strict=True)
            for count, highest in zip(counts, column, strict=True)
        )


def chunks_of(footer: bytes) -> Chunks:
    """What a footer says of its columns.

    Raises:
        ValueError: it is damaged.
    """
    try:
        found = _Bytes(footer).struct(_FOOTER)
    except IndexError:
        raise ValueError("it ends in the middle of a value") from None
    types = [element[1] for element in found.get(2, []) if 1 in element]
    groups = [group.get(1, []) for group in found.get(4, [])]
    are_encrypted = 8 in found or any(8 in chunk for group in groups for chunk in group)
    rows, levels, defined = [], [], []
    for number, group in enumerate(groups if not are_encrypted else []):
        described = [chunk.get(3, {}) for chunk in group]
        if [one.get(1) for one in described] != types:
            raise ValueError(f"the columns of row group {number} are not of the types that the file has")
        rows.append([_row(one) for one in described])
        counted = [one.get(16, {}) for one in described]
        levels.append([(len(one.get(2, ())), len(one.get(3, ()))) for one in counted])
        defined.append([one.get(3, ()) for one in counted])
        if any(1 in one and kind != _BYTE_ARRAY for one, kind in zip(counted, types, strict=True)):
            raise ValueError(f"a column of row group {number} has the size of texts, and holds none")
    table = np.array(rows, np.int64).reshape(len(rows), len(types), 4)
    if (table[..., :3] < 0).any():
        raise ValueError("a column begins before the file, or has fewer than 0 bytes")
    return Chunks(table[..., 0], table[..., 1], table[..., 2], table[..., 3], are_encrypted, levels, defined)


def _row(chunk: dict[int, object]) -> tuple[int, ...]:
    numbers = {field: value for field, value in chunk.items() if isinstance(value, int)}
    start, first = numbers.get(9, 0), numbers.get(11, 0)
    statistics = chunk.get(12)
    nulls = statistics.get(3, -1) if isinstance(statistics, dict) else -1
    return (min(start, first) if first > 0 else start, numbers.get(7, 0), numbers.get(6, 0), nulls)


class _Bytes:
    """Values of Thrift's compact protocol, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0

    def varint(self) -> int:
        """An unsigned number."""
        data, at, found, shift = self.data, self.at, 0, 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return found
            shift += 7
            if shift > 63:
                raise ValueError("a number has more than 64 bits")

    def value(self, kind: int, wanted: Wanted) -> Any:
        """What is wanted of a value of this kind."""
        if isinstance(wanted, dict) and kind == _STRUCT:
            return self.struct(wanted)
        if isinstance(wanted, list) and kind == _LIST:
            item, count = self.head_of_list()
            return [self.value(item, wanted[0]) for _ in range(count)]
        if wanted is int and _BYTE < kind < _DOUBLE:
            found = self.varint()
            return (found >> 1) ^ -(found & 1)
        raise ValueError("a value is of another kind than it should be")

    def struct(self, wanted: dict[int, Wanted]) -> dict[int, Any]:
        """The wanted fields of a struct."""
        found: dict[int, Any] = {}
        field = 0
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise ValueError("it nests too deeply")
        while True:
            head = self.data[self.at]
            self.at += 1
            kind, delta = head & 15, head >> 4
            if kind == _STOP:
                self.depth -= 1
                return found
            if delta:
                field += delta
            else:
                number = self.varint()
                field = (number >> 1) ^ -(number & 1)
            if field in wanted:
                found[field] = self.value(kind, wanted[field])
            else:
                self.skip(kind)

    def head_of_list(self) -> tuple[int, int]:
        """The kind and the number of the items of a list."""
        head = self.data[self.at]
        self.at += 1
        count = head >> 4
        if count == 15:
            count = self.varint()
        if count > len(self.data) - self.at:
            raise ValueError("a list is longer than the footer")
        return head & 15, count

    def skip(self, kind: int) -> None:
        """Goes behind a value."""
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.at += 1
        elif kind < _DOUBLE:
            self.varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            nbytes = self.varint()
            self.at += nbytes
        elif kind in (_LIST, _SET):
            item, count = self.head_of_list()
            for _ in range(count):
                self.skip(_BYTE if item in (_TRUE, _FALSE) else item)
        elif kind == _MAP:
            count = self.varint()
            kinds = self.data[self.at] if count else 0
            self.at += bool(count)
            if count > len(self.data):
                raise ValueError("a map is longer than the footer")
            for _ in range(count):
                self.skip(kinds >> 4)
                self.skip(kinds & 15)
        elif kind == _STRUCT:
            self.struct({})
        else:
            raise ValueError(f"there is no kind {kind} of values")
