"""Protocol buffers of many rows, read in step: the same field of each at a time.

Writers lay out their messages in one way. Whatever else is allowed, such as unpacked numbers, unknown fields
or a field in several parts, is `Odd` here, and left to `messages`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...formats.mapped.gather import Bytes, Memory
from ...formats.mapped.items import MappedRuns
from ...process.buffers import fresh
from ...rows.data import bounds_of
from ...rows.types import Array, Ints

__all__ = ["FIRST", "SECOND", "Odd", "Span", "Wire"]

FIRST, SECOND = 0x0A, 0x12  # tags of fields 1 and 2 that have a size
_LONGEST_HEAD, _MOST_ENTRIES = 400, 4096  # bytes; of a map
_MOST_HEADS = 16  # kinds of entries that are read at once where rows differ
_SHORTEST = 4  # bytes of a number that is read quickly
_FEW = 8  # rows, which are read one by one sooner than in step
_SHORT = 64  # bytes of a run: shorter ones are copied byte by byte sooner than one by one
_SIZES = (1, 2, 3)  # bytes of a size that is read quickly
_PARTS = [np.uint32(127 << 7 * place) for place in range(4)]  # of a number in four bytes
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(5)], np.uint32)


class Odd(Exception):
    """Something that writers do not write, at these places."""

    def __init__(self, places: Ints) -> None:
        super().__init__()
        self.places = places


class Span(NamedTuple):
    """Where runs of bytes begin and end."""

    at: Ints
    end: Ints

    @property
    def widths(self) -> Ints:
        """The bytes of each."""
        return self.end - self.at

    def take(self, rows: Array | slice) -> Span:
        """Some of them."""
        return Span(self.at[rows], self.end[rows])


class Wire:
    """Messages in memory.

    Args:
        memory: holds them, and at least 4 bytes more behind each.
        addresses: (N,) where they begin.
        nbytes: (N,) their sizes.

    Attributes:
        messages: their places.
    """

    def __init__(self, memory: Memory, addresses: Ints, nbytes: Ints) -> None:
        self._memory = memory
        self._data, self._low = memory.whole
        begins = addresses - self._low
        self.messages = Span(begins, begins + nbytes)

    def rows(self, places: Ints) -> Ints:
        """The message that each place is in."""
        order = np.argsort(self.messages.at, kind="stable")
        return order[self.messages.at[order].searchsorted(places, "right") - 1]

    @staticmethod
    def demand(good: Array, places: Ints) -> None:
        """Odd, with the places where it is not so."""
        if not good.all():
            raise Odd(places[~good])

    # -- fields

    def field(self, span: Span, tag: int) -> Span:
        """The body of the field that each run begins with; Odd if one has another tag."""
        at, end = span
        size, body = self._data.take(at + 1).astype(np.int64), at + 2
        good = (self._data.take(at) == tag) & (at < end)
        if size.max(initial=0) > 127:
            size, more = size & 127, np.flatnonzero(size > 127)
            for place in range(2, 6):
                byte = self._data.take(np.minimum(at[more] + place, end[more])).astype(np.int64)
                size[more] |= (byte & 127) << 7 * (place - 1)
                body[more] += 1
                more = more[byte > 127]
            good[more] = False
        stop = body + size
        good &= stop <= end
        self.demand(good, at)
        return Span(body, stop)

    def optional(self, span: Span, tag: int) -> tuple[Span, Span]:
        """The body of the field that runs begin with, empty where they begin with another, and the rest."""
        there = (span.at < span.end) & (self._data.take(span.at) == tag)
        body = Span(span.at.copy(), span.at.copy())
        body.at[there], body.end[there] = self.field(span.take(there), tag)
        return body, Span(body.end, span.end)

    def only(self, span: Span, tag: int) -> Span:
        """As `field`; Odd if more follows it. Where a run is empty, so is the body."""
        some = span.at < span.end
        if not some.all():
            body = Span(span.at.copy(), span.end)
            body.at[some] = self.only(span.take(some), tag).at
            return body
        body = self.field(span, tag)
        self.demand(body.end == span.end, span.at)
        return body

    def repeated(self, span: Span) -> tuple[Span, Ints]:
        """The bodies of all the fields 1 that runs are made of, and (N,) how many each has."""
        at, counts = span.at.copy(), np.zeros(len(span.at), np.int64)
        rows, bodies = np.flatnonzero(at < span.end), list[tuple[Ints, Span]]()
        while len(rows) > _FEW:
            body = self.field(Span(at[rows], span.end[rows]), FIRST)
            counts[rows] += 1
            bodies.append((rows, body))
            at[rows] = body.end
            rows = rows[body.end < span.end[rows]]
        for row in rows.tolist():
            pairs = self._listed(int(at[row]), int(span.end[row]))
            counts[row] += len(pairs)
            bodies.append((np.full(len(pairs), row), Span(*np.array(pairs, np.int64).T)))
        if not bodies:
            return Span(at[:0], at[:0]), counts
        order = np.argsort(np.concatenate([rows for rows, _ in bodies]), kind="stable")
        begins, ends = (np.concatenate(some)[order] for some in zip(*(b for _, b in bodies), strict=True))
        return Span(begins, ends), counts

    def _listed(self, at: int, end: int) -> list[tuple[int, int]]:
        data, base, pairs = self._data[at:end].tobytes(), at, []
        at, end = 0, end - at
        while at < end:
            size, body, place, byte = 0, at + 1, 0, 128
            while byte > 127 and body < end and place < 35:
                byte = data[body]
                size |= (byte & 127) << place
                body, place = body + 1, place + 7
            if data[at] != FIRST or byte > 127 or body + size > end:
                raise Odd(np.array([base + at]))
            pairs.append((base + body, base + body + size))
            at = body + size
        return pairs

    # -- maps

    def entries(self, span: Span, tags: dict[bytes, int]) -> dict[bytes, Array]:
        """Where the values of a map's entries lie.

        Args:
            span: the maps.
            tags: the keys, and the tag that their values should have.

        Returns:
            For each key (3, N) where values begin and end, and where the body of their only field begins; -1
            where there is none, or that is not known.
        """
        places = {key: np.full((3, len(span.at)), -1, np.int64) for key in tags}
        rows = np.arange(len(span.at))
        for _ in range(_MOST_ENTRIES):
            left = span.at < span.end
            if not left.all():
                rows, span = rows[left], span.take(left)
            if not len(rows):
                return places
            ends, others = span.at.copy(), np.arange(len(rows))
            for _ in range(_MOST_HEADS):
                others = self._alike(rows, span, others, tags, places, ends)
                if len(others) <= _FEW:
                    break
            if len(others):
                ends[others] = self._others(rows[others], span.take(others), places)
            span = Span(ends, span.end)
        raise Odd(span.at)

    def _alike(
        self,
        rows: Ints,
        span: Span,
        some: Ints,
        tags: dict[bytes, int],
        places: dict[bytes, Array],
        ends: Ints,
    ) -> Ints:
        """Reads the next entries of some rows that have the key of the first of these, and sizes of as many
        bytes, all at once; returns which are left."""
        first = int(span.at[some[0]])
        head = _EntryHead.of(self._data[first : min(first + _LONGEST_HEAD, int(span.end[some[0]]))].tobytes())
        if head is None:
            return some
        good = span.at[some] + head.body <= span.end[some]  # so that no byte behind it is looked at
        left, some = some[~good], some[good]
        at, end = span.at[some], span.end[some]
        text = head.text
        good = self._gather(at + head.key, len(text)).view(f"S{len(text)}") == text
        outer = self._gather(at, 4).view("<u4")
        middle = self._gather(at + head.value, 8).view("<u8")
        inner = self._gather(at + head.inner, 4).view("<u4")
        size, good_size = _size(inner, 1, head.widths[3])
        stop = at + head.body + size
        good &= good_size & ((inner & 255) == FIRST) & (stop <= end)
        if head.widths == (1, 1, 1, 1):  # so each of the sizes is the last one and what lies between them
            more = head.body - head.key
            good &= ((outer & 0xFFFF) == FIRST + 256 * (size + more)) & (size + more < 128)
            sizes = 0x10001 * (size + 2) + 2 + 256 * head.tag
            good &= (middle & np.uint64(0xFFFFFF)) == sizes.view(np.uint64)
        else:
            good &= ((outer & 255) == FIRST) & (
                (middle >> np.uint64(8 * head.widths[1]) & np.uint64(255)) == head.tag
            )
            for window, offset, width, begin in (
                (outer, 1, head.widths[0], head.key),
                (middle, 0, head.widths[1], head.value + head.widths[1]),
                (middle, head.widths[1] + 1, head.widths[2], head.inner),
            ):
                size, good_size = _size(window, offset, width)
                good &= good_size & (at + begin + size == stop)
        if not good.all():
            left = np.concatenate([left, some[~good]])
            some, at, stop = some[good], at[good], stop[good]
        ends[some] = stop
        name = text[2:-1]
        if name in tags:
            place, which = places[name], rows[some]
            place[0, which], place[1, which] = at + head.value + head.widths[1], stop
            place[2, which] = at + head.body if head.tag == tags[name] else -1
        return left

    def _others(self, rows: Ints, span: Span, places: dict[bytes, Array]) -> Ints:
        """Reads the next entries of rows, whatever their keys and sizes; returns where they end."""
        entry = self.field(span, FIRST)
        key = self.field(entry, FIRST)
        value = self.field(Span(key.end, entry.end), SECOND)
        self.demand(value.end == entry.end, span.at)
        for row, begin, end, at, stop in zip(
            rows.tolist(), *map(np.ndarray.tolist, (key.at, key.end, *value)), strict=True
        ):
            place = places.get(self._data[begin:end].tobytes())
            if place is not None:
                place[:, row] = at, stop, -1
        return entry.end

    def _gather(self, places: Ints, nbytes: int) -> Bytes:
        return self._memory.gather(places + self._low, nbytes, fresh)

    # -- values

    def joined(self, span: Span) -> Bytes:
        """Copies of runs of bytes, end to end."""
        widths = span.widths
        total = int(widths.sum())
        if not total:
            return np.empty(0, np.uint8)
        if (widths == widths[0]).all():
            return self._gather(span.at, int(widths[0]))
        if total < _SHORT * len(widths):
            shifts = span.at - bounds_of(widths)[:-1]
            return self._data.take(np.arange(total) + shifts.repeat(widths))
        copies = fresh(total)
        self._memory.gather_runs(span.at + self._low, widths, copies)
        return copies

    def runs(self, span: Span) -> MappedRuns:
        """Runs of bytes, to be copied when they are wanted."""
        return MappedRuns(self._memory, span.at + self._low, span.widths)

    def ints(self, span: Span) -> tuple[Ints, Ints]:
        """The numbers in runs, end to end, and (N,) how many each has."""
        widths = span.widths
        if len(widths) and widths.min() >= 1 and widths.max() <= _SHORTEST:
            byte = self._data.take(span.end - 1)
            values, alone = byte.astype(np.int64), byte < 128
            for place in range(2, int(widths.max()) + 1):
                byte, more = self._data.take(span.end - place), widths >= place
                alone &= (byte > 127) | ~more
                values = np.where(more, values << 7 | (byte & 127), values)
            if alone.all():
                return values, np.ones(len(values), np.int64)
        data, bounds = self.joined(span), bounds_of(widths)
        ends = np.flatnonzero(data < 128) + 1
        lasts = ends.searchsorted(bounds, "right")
        closed = np.append(ends, 0)[lasts - 1] == bounds  # the last byte of each run ends a number
        self.demand(closed[1:], span.at)
        begins = np.append(0, ends[:-1])[: len(ends)]
        sizes = ends - begins
        longest = int(sizes.max(initial=0))
        if longest > 10:
            raise Odd(span.at[bounds.searchsorted(begins[sizes > 10], "right") - 1])
        if longest <= 4 and len(data):
            window = np.ndarray((len(data),), "V4", np.append(data, np.zeros(4, np.uint8)), strides=(1,))
            bits = window[begins].view("<u4") & _MASKS.take(sizes)
            small = bits & 127
            for place in range(1, longest):
                small |= bits >> np.uint32(place) & _PARTS[place]
            return small.astype(np.int64), np.diff(lasts)
        values = (data.take(begins) & 127).astype(np.int64)
        left = np.flatnonzero(sizes > 1)
        for place in range(1, longest):
            values[left] |= (data.take(begins[left] + place) & 127).astype(np.int64) << 7 * place
            left = left[sizes[left] > place + 1]
        return values, np.diff(lasts)


class _EntryHead(NamedTuple):
    """The bytes before the only value of an entry.

    Attributes:
        text: the tag of the key, its size, the key, and the tag of the value.
        tag: of the field of the value.
        widths: the bytes of the sizes of entry, value, field and body.
        key, value, inner, body: where those begin: key with its tag, value with its size, the field that is
            the body with its tag.
    """

    text: bytes
    tag: int
    widths: tuple[int, int, int, int]
    key: int
    value: int
    inner: int
    body: int

    @staticmethod
    def of(data: bytes) -> _EntryHead | None:
        """The one that bytes begin with; None if they do not begin with one."""

        def width(at: int) -> int:
            return next(n for n in _SIZES if data[at + n - 1] < 128)

        try:
            outer = width(1)
            value = 4 + outer + data[2 + outer]
            widths = outer, width(value), 0, 0
            tag = data[value + widths[1]]
            widths = outer, widths[1], width(value + widths[1] + 1), 0
            inner = value + widths[1] + 1 + widths[2]
            widths = outer, widths[1], widths[2], width(inner + 1)
            body = inner + 1 + widths[3]
        except (IndexError, StopIteration):
            return None
        tags = data[0], data[1 + outer], data[value - 1], data[inner]
        if body > len(data) or data[2 + outer] > 127 or tags != (FIRST, FIRST, SECOND, FIRST):
            return None
        return _EntryHead(data[1 + outer : value], tag, widths, 1 + outer, value, inner, body)


def _size(window: Array, offset: int, width: int) -> tuple[Ints, Array]:
    """The sizes of so many bytes from an offset on in windows of 4 or 8 bytes; and which are of so many."""
    byte = (window >> window.dtype.type(8 * offset)).astype(np.int64) & 255
    if width == 1:
        return byte, byte < 128
    size, good = byte & 127, byte > 127
    for place in range(1, width):
        byte = (window >> window.dtype.type(8 * (offset + place))).astype(np.int64) & 255
        good &= (byte > 127) == (place < width - 1)
        size |= (byte & 127) << 7 * place
    return size, good
