"""A point in the endless sequence of epochs, and the positions that each rank takes from there.

Note 13. Positions go round the ranks, with `locality="shard"`, too.
Position p belongs to rank p mod W, and the order puts the rank's own rows there. So places, states, proofs
and batches need not know; only the number of shards is in the state, because it stays the same for an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from ..process.numbers import as_int
from ..rows.types import Ints
from .contract import AnyOrder

Remainder = Literal["keep", "drop", "pad"]
Ranges = tuple[range, ...]

# Positions computed at once: few for a quick start, since those of many sources take long, then many.
_FIRST_CHUNK, _GROWTH, _CHUNK = 64, 16, 65536


@dataclass(frozen=True)
class Shard:
    """The positions of the global order that one rank takes: rank, rank + W, rank + 2W, ... from any start.

    Args:
        num_replicas: number of ranks W.
        rank: this one, in 0..W-1.
        remainder: what happens to the last rows if W does not divide their number: `keep` (every row once,
            ranks may differ by one), `drop` (equal ranks without the last rows), `pad` (equal ranks; rows
            from the front of the epoch, or from the last change of weights in it, come again).
        run_length: positions dealt to a rank at a time, one by default. With batches of just as many rows,
            the batches of all ranks, laid end to end, are in the global order.
    """

    num_replicas: int = 1
    rank: int = 0
    remainder: Remainder = "keep"
    run_length: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_replicas", as_int("num_replicas", self.num_replicas, low=1))
        object.__setattr__(self, "rank", as_int("rank", self.rank, low=0, high=self.num_replicas - 1))
        if self.remainder not in ("keep", "drop", "pad"):
            raise ValueError(f"remainder must be 'keep', 'drop' or 'pad', found {self.remainder!r}")

    def end(self, length: int, start: int = 0) -> int:
        """The global position at which an epoch of `length` rows, continued at `start`, ends on all ranks."""
        left = max(length - start, 0)
        whole, tail = divmod(left, self.num_replicas)
        if self.remainder == "drop":
            left = whole * self.num_replicas
        elif self.remainder == "pad":
            left = (whole + (tail > 0)) * self.num_replicas
        return start + left

    def count(self, length: int, start: int = 0, rank: int | None = None) -> int:
        """How many rows this rank (or `rank`) takes between `start` and the end."""
        first = self.rank if rank is None else rank
        return len(range(start + first, self.end(length, start), self.num_replicas))

    def steps(
        self, length: int, start: int, batch_size: int, drop_last: bool, rank: int | None = None
    ) -> int:
        """How many batches these rows are; `drop_last` leaves out a shorter last one."""
        rows = self.count(length, start, rank)
        return rows // batch_size if drop_last else -(-rows // batch_size)


class Place(NamedTuple):
    """A point of an epoch: the rows that have been consumed.

    Attributes:
        epoch: the epoch.
        position: rows consumed in it, over all ranks.
        left: the positions that come next, if later batches came early; the others follow from `position +
            len(left)` on. Empty as long as batches come in order. All ranks take them in turn.
    """

    epoch: int
    position: int
    left: Ranges = ()

    @property
    def first(self) -> int:
        """The first position that is still to come."""
        return self.left[0].start if self.left else self.position

    @property
    def end(self) -> int:
        """The position behind all that was delivered, or is left before it."""
        return self.position + sum(map(len, self.left))


def skipped(ranges: Ranges, count: int) -> Ranges:
    """The ranges without the first `count` of their numbers."""
    return _sliced(ranges, count, sum(map(len, ranges)), 1)


def _sliced(ranges: Ranges, start: int, stop: int, step: int) -> Ranges:
    """`[start:stop:step]` of the ranges laid end to end."""
    found, before = [], 0
    for numbers in ranges:
        first = start - before if start >= before else (start - before) % step
        some = numbers[first : max(stop - before, 0) : step]
        if some:
            found.append(some)
        before += len(numbers)
    return tuple(found)


def taken(place: Place, shard: Shard, length: int, start: int, stop: int) -> Ranges:
    """The positions of a rank's rows number `start` to `stop`, counted from `place` on, in order."""
    if start >= stop:
        return ()
    if place.left:
        mine = _sliced(place.left, shard.rank, sum(map(len, place.left)), shard.num_replicas)
        count = sum(map(len, mine))
        behind = replace(shard, run_length=1)
        tail = taken(place._replace(left=()), behind, length, max(start, count), stop)
        return _sliced(mine, start, min(stop, count), 1) + tail
    if shard.run_length > 1 and shard.num_replicas > 1:
        return tuple(_runs(place.position, shard, length, start, stop))
    first, step = place.position + shard.rank, shard.num_replicas
    return (range(first + start * step, first + stop * step, step),)


def _runs(origin: int, shard: Shard, length: int, start: int, stop: int) -> Iterator[range]:
    world, rank = shard.num_replicas, shard.rank
    full, rest = divmod(shard.end(length, origin) - origin, shard.run_length * world)
    while start < stop:
        step, offset = divmod(start, shard.run_length)
        run, longer = (shard.run_length, 0) if step < full else divmod(rest, world)
        first = origin + step * shard.run_length * world + rank * run + min(rank, longer) + offset
        count = min(run + (rank < longer) - offset, stop - start)
        yield range(first, first + count)
        start += count


def chunks(order: AnyOrder, shard: Shard, place: Place, multiple: int = 1) -> Iterator[Ints]:
    """The rows of a rank from a place on, some at a time, in multiples of `multiple`."""
    length = order.length_in(place.epoch)
    count = shard.count(length, place.position)
    done, size = 0, _FIRST_CHUNK
    while done < count:
        size_now = min(max(size // multiple, 1) * multiple, count - done)
        yield order.rows(place.epoch, positions(place, shard, length, done, done + size_now))
        done += size_now
        size = min(size * _GROWTH, order.at_once)


def batches(order: AnyOrder, shard: Shard, place: Place, batch_size: int, drop_last: bool) -> Iterator[Ints]:
    """The rows of `chunks` as arrays of `batch_size`; the last may be shorter unless `drop_last`."""
    for rows in chunks(order, shard, place, multiple=batch_size):
        for first in range(0, len(rows), batch_size):
            batch = rows[first : first + batch_size]
            if len(batch) == batch_size or not drop_last:
                yield batch


def first_positions(
    shard: Shard, length: int, place: Place, batch_size: int, chunk: int = _CHUNK
) -> Iterator[int]:
    """The position of the first row of each batch of a rank, and of a shorter last one; of `chunk` batches at
    once."""
    count, step = shard.count(length, place.position), chunk * batch_size
    for start in range(0, count, step):
        stop = min(start + step, count)
        for firsts in _sliced(taken(place, shard, length, start, stop), 0, stop - start, batch_size):
            yield from firsts


def positions(place: Place, shard: Shard, length: int, start: int, stop: int) -> Ints:
    """`taken` as an array."""
    ranges = taken(place, shard, length, start, stop)
    if len(ranges) == 1:
        return _numbers(ranges[0])
    return np.concatenate([np.empty(0, np.int64), *map(_numbers, ranges)])


def _numbers(found: range) -> Ints:
    return np.arange(found.start, found.stop, found.step, dtype=np.int64)


def after(start: Place, shard: Shard, length: int, rows: int) -> Place:
    """The place after `rows` rows on every rank, or as many as there are, from `start` on."""
    position = min(start.position + rows * shard.num_replicas, shard.end(length, start.position))
    if not start.left:
        return Place(start.epoch, position)
    return Place(start.epoch, position, skipped(start.left, position - start.position))
