"""The bytes of a footer -> what it says of its columns and row groups, in Thrift's compact protocol.

pyarrow ends the process when it is asked about a column whose description is damaged or encrypted. So footers
are read here first, and only what is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...rows.types import Ints

_MOST_DEPTH = 16
_BYTE_ARRAY = 6  # the type of text and bytes
_STOP, _FALSE, _BYTE, _INT, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 2, 3, 6, 7, 8, 9, 10, 11, 12
# What is read of a value: a number, some fields of a struct, or of each struct in a list.
Wanted: TypeAlias = "type[int] | dict[int, Wanted] | list[Wanted]"
_NUMBERS: dict[int, Wanted] = {
    **{1: int, 6: int, 7: int, 9: int, 11: int},
    **{12: {3: int}, 16: {1: int, 2: [int], 3: [int]}},
}
_COLUMN: dict[int, Wanted] = {3: _NUMBERS, 8: {}}
_FOOTER: dict[int, Wanted] = {2: [{1: int}], 3: int, 4: [{1: [_COLUMN], 3: int}], 8: {}}


class Described(NamedTuple):
    """What a footer says of its columns; arrays are (groups, columns).

    Attributes:
        num_rows: of the file, 0 where the writer does not say; `rows` (groups,): of each group.
        unpacked: bytes of the values of each column, before compression.
        nulls: of each column; -1 if it is not known.
        counts: (groups, columns, 2) how many repetition levels and definition levels are counted.
        defined: how often each definition level occurs, for all columns of all groups, end to end.
    """

    num_rows: int
    rows: Ints
    unpacked: Ints
    nulls: Ints
    counts: Ints
    defined: Ints


class _Column(NamedTuple):
    """What is said of one column of one group; -1 for a number that is not said."""

    type: int
    unpacked: int
    nulls: int
    has_texts: bool
    repeated: Sequence[int]
    defined: Sequence[int]


def described(footer: bytes) -> Described | None:
    """What a footer says of its columns; None if one is encrypted.

    Raises:
        ValueError, OverflowError: it is damaged.
    """
    try:
        found = _struct(footer, 0, _FOOTER, 0)[0]
    except IndexError:
        raise ValueError("it ends in the middle of a value") from None
    types = [element[1] for element in found.get(2, []) if 1 in element]
    groups = found.get(4, [])
    columns = [_column(column) for group in groups for column in group.get(1, [])]
    known = [column for column in columns if column is not None]
    if 8 in found or len(known) < len(columns):
        return None
    if any(len(group.get(1, [])) != len(types) for group in groups):
        raise ValueError(f"a row group does not have the {len(types)} columns that the file has")
    shape = len(groups), len(types)
    table = np.array([column[:4] for column in known], np.int64).reshape(*shape, 4)
    kinds, unpacked, nulls, has_texts = table.transpose(2, 0, 1)
    if (kinds != types).any():
        raise ValueError("the columns of a row group are not of the types that the file has")
    if (has_texts & (kinds != _BYTE_ARRAY)).any():
        raise ValueError("a column has the size of texts, and holds none")
    return Described(
        num_rows=found.get(3, 0),
        rows=np.array([group.get(3, 0) for group in groups], np.int64),
        unpacked=unpacked,
        nulls=nulls,
        counts=np.array([(len(c.repeated), len(c.defined)) for c in known], np.int64).reshape(*shape, 2),
        defined=np.array([count for column in known for count in column.defined], np.int64),
    )


def _column(said: dict[int, Any] | _Column) -> _Column | None:
    """A column of a group; None if it is encrypted."""
    if isinstance(said, _Column):
        return said
    if 8 in said:
        return None
    about = said.get(3, {})
    sizes, places = about.get(16, {}), [about.get(field, 0) for field in (6, 7, 9)]
    if not 0 <= min(places) <= max(places) < 2**63:
        raise ValueError("a column begins before the file, or has fewer than 0 bytes")
    nulls = about.get(12, {}).get(3, -1)
    return _Column(about.get(1, -1), places[0], nulls, 1 in sizes, sizes.get(2, ()), sizes.get(3, ()))


# -- columns as nearly all writers write them, in one step, which takes a fifth of the time
#
# A field begins with a byte: by how much its number is above that of the field before it, and its kind. So 15
# and 16 are the next field, a number, 18 a text, 19 a list, 1c a struct; 26 is a number after one left out.


def _several(item: bytes, kinds: bytes, most: int) -> bytes:
    """The pattern of a list of up to so many items of these kinds."""
    heads = [
        b"[" + b"".join(b"\\x%02x" % (count << 4 | kind) for kind in kinds) + b"]" for count in range(most)
    ]
    return b"(?:" + b"|".join(head + item * count for count, head in enumerate(heads)) + b")"


_N = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_EVEN = [
    b"[" + b"".join(b"\\x%02x" % byte for byte in range(first, first + 128, 2)) + b"]" for first in (0, 128)
]
_SIZE = rb"(?:%b|%b[\x80-\xff]{0,7}[\x00-\x7f])" % tuple(_EVEN)  # a number from 0 on
_TEXT = b"(?:" + b"|".join(b"\\x%02x.{%d}" % (count, count) for count in range(128)) + b")"
_USUAL = re.compile(
    # Where this description is again; the type, encodings, path, codec, values, sizes, and the places.
    rb"(?:\x26%(N)b\x1c|\x3c)\x15(%(N)b)\x19%(INTS)b\x19%(PATH)b\x15%(N)b\x16%(N)b\x16(%(SIZE)b)\x16%(SIZE)b"
    rb"\x26%(SIZE)b(?:\x26%(N)b(?=[\x1c\x00])|(?=[\x3c\x00]))"
    # How many nulls, the largest and the smallest value. How pages are encoded.
    rb"(?:[\x1c\x3c](?:\x36|\x18%(TEXT)b\x18%(TEXT)b\x16)(%(N)b)"
    rb"(?:\x28%(TEXT)b\x18%(TEXT)b(?:[\x11\x12]{2})?)?\x00\x19%(PAGES)b"
    # The size of texts, and how often each level occurs. Where indices of pages lie.
    rb"(?:\x3c(?:(\x16)%(N)b\x19|\x29)(%(INTS)b)\x19(%(INTS)b)\x00)?)?\x00"
    rb"(?:\x16%(N)b\x15%(N)b\x16%(N)b\x15%(N)b)?\x00"
    % {
        b"N": _N,
        b"SIZE": _SIZE,
        b"INTS": _several(_N, b"\x04\x05\x06", 12),
        b"TEXT": _TEXT,
        b"PATH": _several(_TEXT, b"\x08", 4),
        b"PAGES": _several(rb"\x15%(N)b\x15%(N)b\x15%(N)b\x00" % {b"N": _N}, b"\x0c", 8),
    },
    re.DOTALL,
)


def _usual(match: re.Match[bytes]) -> _Column:
    kind, unpacked, nulls, texts, repeated, defined = match.groups()
    levels = _levels(repeated), _levels(defined)
    return _Column(_whole(kind), _whole(unpacked), _whole(nulls), texts is not None, *levels)


@lru_cache(2**14)
def _whole(number: bytes | None) -> int:
    return -1 if number is None else int(_value(number, 0, _INT, int, 0)[0])


@lru_cache(2**14)
def _levels(counts: bytes | None) -> Sequence[int]:
    return () if counts is None else tuple(_value(counts, 0, _LIST, [int], 0)[0])


# -- any values: each function returns what it has read, and the place behind it


def _number(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _value(data: bytes, at: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    """The wanted parts of a value of this kind."""
    if isinstance(wanted, dict) and kind == _STRUCT:
        return _struct(data, at, wanted, depth + 1)
    if isinstance(wanted, list) and kind == _LIST:
        item, count, at = _head_of_list(data, at)
        of, found = wanted[0], []
        for _ in range(count):
            usual = _USUAL.match(data, at) if of is _COLUMN and item == _STRUCT else None
            if usual is not None:
                one, at = _usual(usual), usual.end()
            else:
                one, at = _value(data, at, item, of, depth)
            found.append(one)
        return found, at
    if wanted is int and _BYTE < kind < _DOUBLE:
        number, at = _number(data, at)
        return (number >> 1) ^ -(number & 1), at
    raise ValueError("a value is of another kind than it should be")


def _struct(data: bytes, at: int, wanted: dict[int, Wanted], depth: int) -> tuple[dict[int, Any], int]:
    """The wanted fields of a struct."""
    if depth > _MOST_DEPTH:
        raise ValueError("it nests too deeply")
    found: dict[int, Any] = {}
    field = 0
    while True:
        kind, delta = data[at] & 15, data[at] >> 4
        at += 1
        if kind == _STOP:
            return found, at
        if delta:
            field += delta
        else:
            number, at = _number(data, at)
            field = (number >> 1) ^ -(number & 1)
        if field in wanted:
            found[field], at = _value(data, at, kind, wanted[field], depth)
        else:
            at = _behind(data, at, kind, depth)


def _head_of_list(data: bytes, at: int) -> tuple[int, int, int]:
    """The kind and the number of the items of a list."""
    head = data[at]
    at, count = at + 1, head >> 4
    if count == 15:
        count, at = _number(data, at)
    if count > len(data) - at:
        raise ValueError("a list is longer than the footer")
    return head & 15, count, at


def _behind(data: bytes, at: int, kind: int, depth: int) -> int:
    """The place behind a value that is not wanted."""
    if kind <= _FALSE:  # a bool, which its kind says
        return at
    if kind == _BYTE:
        return at + 1
    if kind < _DOUBLE:
        return _number(data, at)[1]
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        nbytes, at = _number(data, at)
        return at + nbytes
    if kind == _STRUCT:
        return _struct(data, at, {}, depth + 1)[1]
    if kind in (_LIST, _SET):
        item, count, at = _head_of_list(data, at)
        kinds = [item]
    elif kind == _MAP:
        count, at = _number(data, at)
        if count > len(data) - at:
            raise ValueError("a map is longer than the footer")
        kinds = [data[at] >> 4, data[at] & 15] if count else []
        at += bool(count)
    else:
        raise ValueError(f"there is no kind {kind} of values")
    if depth > _MOST_DEPTH:
        raise ValueError("it nests too deeply")
    for _ in range(count):
        for item in kinds:  # each takes a byte or more, a bool as well
            at = _behind(data, at, max(item, _BYTE), depth + 1)
    return at
