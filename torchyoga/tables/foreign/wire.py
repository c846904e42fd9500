"""Protocol buffers of many rows, read in step: the same field of each at a time.

Writers lay out their messages in one way. Whatever else is allowed, such as unpacked numbers, unknown fields
or a field in several parts, is `Odd` here, and left to `messages`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...formats.items import MappedRuns
from ...formats.mapped import Bytes, Memory
from ...process.buffers import fresh
from ...rows.block import bounds_of
from ...rows.types import Array, Ints

FIRST, SECOND = 0x0A, 0x12  # tags of fields 1 and 2 that have a size
_LONGEST_HEAD, _MOST_ENTRIES = 400, 4096  # bytes; of a map
_MOST_HEADS = 16  # kinds of entries that are read at once where rows differ
_SHORTEST, _LONGEST = 4, 10  # bytes of a number: of one that is read quickly, of any
_PIECE = 2**15  # bytes of numbers that are read at once
_FEW = 8  # rows, which are read one by one sooner than in step
_SHORT = 64  # bytes of a run: shorter ones are copied byte by byte sooner than one by one
_SIZES = (1, 2, 3)  # bytes of a size that is read quickly
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(5)], np.uint32)
_MORE = np.uint32(0x80808080)  # set in all bytes of a number but its last one


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
        at, end = span if len(some) == len(rows) else span.take(some)
        head = _EntryHead.of(self._data[at[0] : min(at[0] + _LONGEST_HEAD, end[0])].tobytes())
        if head is None:
            return some
        good = at + head.body <= end
        # So that no byte behind it is looked at; those before a message are always there.
        stop, fits = head.read(self, at if good.all() else np.where(good, at, at[0]))
        good &= fits & (stop <= end)
        left = some[:0]
        if not good.all():
            left, some, at, stop = some[~good], some[good], at[good], stop[good]
        ends[some] = stop
        if head.key in tags:
            which = slice(None) if len(some) == len(places[head.key][0]) else rows[some]
            values = at + head.value, stop, at + head.body if head.tag == tags[head.key] else -1
            for place, value in zip(places[head.key], values, strict=True):
                place[which] = value
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

    def gather(self, places: Ints, nbytes: int) -> Bytes:
        """Copies of so many bytes from each place on."""
        return self._memory.gather(places + self._low, nbytes, fresh)

    # -- values

    def joined(self, span: Span) -> Bytes:
        """Copies of runs of bytes, end to end."""
        widths = span.widths
        total = int(widths.sum())
        if not total:
            return np.empty(0, np.uint8)
        if (widths == widths[0]).all():
            return self.gather(span.at, int(widths[0]))
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
            bits = self.gather(span.at, _SHORTEST).view("<u4") & _MASKS.take(widths)
            if (bits & _MORE == _MORE & _MASKS.take(widths - 1)).all():  # one each
                values = bits & 127
                for place in range(1, int(widths.max())):
                    values |= bits >> np.uint32(place) & np.uint32(127 << 7 * place)
                return values.astype(np.int64), np.ones(len(values), np.int64)
        bounds = bounds_of(widths)
        # Some runs at once, so that they and their numbers stay in the processor's cache.
        cuts = np.append(bounds.searchsorted(np.arange(0, bounds[-1], _PIECE)), len(widths))
        values, counts, count = np.empty(int(bounds[-1]), np.int64), np.zeros_like(widths), 0
        for first, last in pairwise(np.unique(cuts).tolist()):
            part, stops = span.take(slice(first, last)), bounds[first + 1 : last + 1] - bounds[first]
            data = self.joined(part)
            ends = np.flatnonzero(data < 128)
            closed = ends.searchsorted(stops)  # how many numbers end in all runs so far
            self.demand(np.append(-1, ends).take(closed) + 1 == stops, part.at)
            numbers = _numbers(data, ends)
            if numbers is None:
                raise Odd(part.at)
            values[count : count + len(ends)] = numbers
            counts[first:last] = np.diff(closed, prepend=0)
            count += len(ends)
        return values[:count], counts


def _numbers(data: Bytes, ends: Ints) -> Array | None:
    """The numbers whose last bytes are these of `data`; None if one has too many bytes."""
    if len(ends) == len(data):
        return data
    more, shifts, place = data >> 7, np.zeros(len(data), np.uint8), 1
    before = more[:-1]  # 1 where so many bytes before belong to the number, too
    while before.any():
        if place == _LONGEST:
            return None
        shifts[place:] += 7 * before
        before = before[1:] & more[: -1 - place]
        place += 1
    kind = np.uint16 if place < 3 else np.uint32 if place <= _SHORTEST else np.uint64
    # Sums of all parts of numbers so far; to exceed 64 bits does no harm, for they are subtracted again.
    sums = ((data & 127).astype(kind) << shifts.astype(kind)).cumsum(dtype=kind).take(ends)
    sums[1:] -= sums[:-1].copy()
    return sums.view(np.int64) if kind is np.uint64 else sums


class _EntryHead(NamedTuple):
    """The bytes before the only value of an entry.

    Attributes:
        key: of the entry.
        tag: of the field of the value.
        value, body: where the value, without its size, and the body of its only field begin.
        sizes: where the sizes of entry, value, field and body begin and end.
        words, mask: 8 bytes at once, the last ones before the body: what they are, but for the sizes.
    """

    key: bytes
    tag: int
    value: int
    body: int
    sizes: tuple[tuple[int, int], ...]
    words: Array
    mask: Array

    @staticmethod
    def of(data: bytes) -> _EntryHead | None:
        """The one that bytes begin with; None if they do not begin with one."""

        def sized(at: int) -> tuple[int, int]:
            return at, next(at + n for n in _SIZES if data[at + n - 1] < 128)

        try:
            sizes = [sized(1)]
            key = sizes[0][1] + 2
            stop = key + data[key - 1]
            sizes.append(sized(stop + 1))
            sizes.append(sized(sizes[1][1] + 1))
            sizes.append(sized(sizes[2][1] + 1))
            tags = data[0], data[key - 2], data[stop], data[sizes[2][1]]
        except (IndexError, StopIteration):
            return None
        body = sizes[3][1]
        if data[key - 1] > 127 or tags != (FIRST, FIRST, SECOND, FIRST):
            return None
        before = -body % 8
        words, mask = np.zeros((2, before + body), np.uint8)
        words[before:], mask[before:] = np.frombuffer(data, np.uint8, body), 255
        for first, last in sizes:
            mask[before + first : before + last] = 128
        words &= mask
        tag, value = data[sizes[1][1]], sizes[1][1]
        return _EntryHead(
            data[key:stop], tag, value, body, tuple(sizes), words.view(np.uint64), mask.view(np.uint64)
        )

    def read(self, wire: Wire, at: Ints) -> tuple[Ints, Array]:
        """Where entries end that begin at these places, and which of them begin so."""
        before = -self.body % 8
        data = wire.gather(at - before, before + self.body).reshape(len(at), -1)
        found, good = data.view(np.uint64), np.ones(len(at), np.bool_)
        for nth, (word, mask) in enumerate(zip(self.words, self.mask, strict=True)):
            good &= (found[:, nth] & mask) == word
        sizes = []
        for first, last in self.sizes:
            size = data[:, before + first].astype(np.int64) & 127
            for place in range(1, last - first):
                size |= (data[:, before + first + place].astype(np.int64) & 127) << 7 * place
            sizes.append(size + last)
        for size in sizes[:-1]:
            good &= size == sizes[-1]
        return at + sizes[-1], good
