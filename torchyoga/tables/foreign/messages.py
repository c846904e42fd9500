"""One `tf.train.Example` or `SequenceExample`, however it was written -> its features, and back in one way.

Nesting is as deep as the format says, and no deeper; sizes that lead beyond what they are in are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from ...errors import CorruptError

T = TypeVar("T")
BYTES, FLOATS, INTS = 1, 2, 3  # the fields of a feature
KINDS = {BYTES: "bytes", FLOATS: "floats", INTS: "ints"}
_VARINT = 10  # bytes of a number at most


class Feature(NamedTuple):
    """A feature of a row: its field, 0 if it says none, and its values; floats are their bytes."""

    kind: int
    values: list[Any]


class Message(NamedTuple):
    """A row: the features of an Example or of a context, and those of each step of a SequenceExample."""

    features: dict[str, Feature]
    lists: dict[str, list[Feature]]


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and data[at] < 128:
        return data[at], at + 1
    value = 0
    for place, byte in enumerate(data[at : min(end, at + _VARINT)]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & 2**64 - 1, at + place + 1
    raise CorruptError(f"the number at byte {at} has no end")


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, wire type, and its number or bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at, end)
        wire, begin = key & 7, at
        if wire == 0 and key:
            value, at = _varint(data, at, end)
            yield key >> 3, wire, value
            continue
        if wire == 2:
            size, begin = _varint(data, at, end)
            at = begin + size
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        if not key >> 3 or wire not in (1, 2, 5) or at > end:
            raise CorruptError(f"field {key >> 3} of type {wire} at byte {begin} of {end} is damaged")
        yield key >> 3, wire, data[begin:at]


def _joined(data: bytes, number: int) -> bytes:
    """The message in a field; several are one, in several parts."""
    return b"".join(value for field, wire, value in _fields(data) if field == number and wire == 2)


def _entries(data: bytes, read: Callable[[bytes], T]) -> dict[str, T]:
    """The entries of a map; later ones replace earlier ones."""
    values = {}
    for number, wire, entry in _fields(data):
        if number == 1 and wire == 2:
            keys = [str(value, "utf-8") for field, kind, value in _fields(entry) if (field, kind) == (1, 2)]
            values[keys[-1] if keys else ""] = read(_joined(entry, 2))
    return values


def _feature(data: bytes) -> Feature:
    kind, values = 0, list[Any]()
    for number, wire, body in _fields(data):
        if number in KINDS and wire == 2:
            if number != kind:
                kind, values = number, []
            for field, how, value in _fields(body):
                if field == 1:
                    values += _values(kind, how, value)
    return Feature(kind, values)


def _values(kind: int, wire: int, value: Any) -> list[Any]:
    if kind == INTS and wire == 0:
        return [value]
    if kind == FLOATS and wire in (2, 5) and not len(value) % 4:
        return [value[at : at + 4] for at in range(0, len(value), 4)]
    if kind == INTS and wire == 2:
        numbers, at = [], 0
        while at < len(value):
            number, at = _varint(value, at, len(value))
            numbers.append(number)
        return numbers
    if kind != BYTES or wire != 2:
        raise CorruptError(f"a list of {KINDS[kind]} holds a field of type {wire}")
    return [value]


def message_of(data: bytes) -> Message:
    """A message, whatever the way in which it was written; CorruptError if it is damaged."""
    try:
        context = _entries(_joined(data, 1), _feature)
        steps = _entries(
            _joined(data, 2), lambda body: [_feature(v) for n, w, v in _fields(body) if (n, w) == (1, 2)]
        )
    except UnicodeDecodeError as error:
        raise CorruptError(f"the name of a feature is not text: {error}") from error
    return Message(context, steps)


def _size(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def _field(number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([number << 3 | 2]) + _size(len(body)) + body


def written(message: Message, kinds: Mapping[str, int]) -> bytes:
    """A message in the way of writers: the features that have a kind, those without values as none."""

    def feature(one: Feature) -> bytes:
        if not one.values:
            return b""
        if one.kind == BYTES:
            return _field(BYTES, *(_field(1, value) for value in one.values))
        parts = one.values if one.kind == FLOATS else map(_size, one.values)
        return _field(one.kind, _field(1, *parts))

    def entries(values: Mapping[str, bytes]) -> list[bytes]:
        wanted = [(name.encode(), value) for name, value in values.items() if name in kinds]
        return [_field(1, _field(1, name), _field(2, value)) for name, value in wanted]

    context = entries({name: feature(one) for name, one in message.features.items()})
    lists = {name: b"".join(_field(1, feature(one)) for one in some) for name, some in message.lists.items()}
    steps = entries(lists)
    return _field(1, *context) + (_field(2, *steps) if steps else b"")
