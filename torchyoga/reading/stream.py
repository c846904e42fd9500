"""Positions -> rows or batches, in sequence, over anything that can take rows by number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Generic, NamedTuple, cast

import numpy as np

from ..order.contract import Appended, Arrangement, Saved
from ..order.epoch import Iteration, IterationOptions
from ..order.options import OrderOptions
from ..order.place import batches, chunks
from ..process.numbers import as_int
from ..process.seeding import GeneratorsPutBack, row_seeds
from ..rows.block import Rows
from ..rows.schema import Schema
from ..rows.types import Ints, RowT
from .contract import Contract
from .readahead import ReadAhead

_WINDOW = 256  # rows read at once when they are wanted one by one


def in_epoch(source: Contract[RowT], epoch: int, seed: int) -> Contract[RowT]:
    """A DataRef as it is in an epoch; rows made with random numbers get those of (seed, epoch, row)."""
    bound = source.in_epoch(epoch)
    return _Seeded(bound, epoch, seed) if bound._is_random else bound


class _Seeded(Contract[RowT]):
    """A random DataRef whose rows follow from the seed and the epoch."""

    def __init__(self, source: Contract[RowT], epoch: int, seed: int) -> None:
        self._source = source
        self._epoch, self._seed = epoch, seed

    def __len__(self) -> int:
        return len(self._source)

    @property
    def _readahead(self) -> ReadAhead | None:
        """The source's."""
        return self._source._readahead

    @property
    def schema(self) -> Schema | None:
        """The source's."""
        return self._source.schema

    @property
    def _arrangement(self) -> Arrangement | None:
        """The source's."""
        return self._source._arrangement

    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers; all generators are put back after it."""
        with GeneratorsPutBack():
            return self._source._take_seeded(rows, row_seeds(self._seed, self._epoch, rows))


def read_batches(source: Contract[RowT], batches: Iterable[Ints]) -> Iterator[Sequence[RowT]]:
    """The rows of each batch of numbers; small batches are read several at once."""
    for window in windows_of(source, batches):
        try:
            rows = source.take(window.numbers)
        except Exception:
            if len(window.ends) == 1:
                raise
            # One of them fails: those before it are delivered nevertheless.
            for alone in window.apart():
                yield source.take(alone.numbers)
            continue
        if len(window.ends) == 1:
            yield rows
            continue
        for start, end in window.bounds:
            yield rows[start:end]


_OF_MEMORY = 9 * 2**19  # bytes of a read, where rows are in memory


class Window(NamedTuple):
    """Some batches that are read at once."""

    numbers: Ints
    ends: list[int]  # for each batch

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Where each batch begins and ends."""
        return list(zip([0, *self.ends], self.ends, strict=False))

    def apart(self) -> list[Window]:
        """Each batch as a window of its own."""
        return [Window(self.numbers[start:stop], [stop - start]) for start, stop in self.bounds]


def windows_of(
    source: Contract,
    batches: Iterable[Ints],
    read_here: bool = True,
    most: int | None = None,
    read_bytes: int | None = None,
) -> Iterator[Window]:
    """The batches in windows, as they are best read; those that follow are read ahead.

    Args:
        source: what they will be read from.
        batches: the rows of each batch.
        read_here: False if other processes read them.
        most: batches of a window.
        read_bytes: of a window, of more than one batch.
    """
    readahead = source._readahead
    if readahead is None:
        for batch in batches:
            yield Window(batch, [len(batch)])
        return
    # What workers send is smaller, and a file is downloaded before a read that wants it.
    nbytes = read_bytes or (_OF_MEMORY if read_here and not readahead.is_cold else None)
    windows: deque[Window] = deque()  # those that `announced` holds back
    # Which rows of a mixture of many sources come takes long to say: the first batch waits for no others.
    is_slow_to_begin = read_here and source._arrangement is not None

    def numbers() -> Iterator[Ints]:
        left, begun = iter(batches), 1 if is_slow_to_begin else 2**20
        for first in left:
            together = min(readahead.batches_of_read(len(first), nbytes), begun)
            begun *= 2
            window = [first, *islice(left, min(together, most or together) - 1)]
            joined = np.concatenate(window) if len(window) > 1 else first
            windows.append(Window(joined, list(accumulate(map(len, window)))))
            yield joined

    for _ in readahead.announced(numbers(), read_here, is_slow_to_begin):
        yield windows.popleft()


def begun(stream: Stream[RowT], options: IterationOptions) -> Iteration:
    """An iteration of a stream that begins now; `Cursor.finish` counts it, if it counts."""
    iteration = stream.cursor.iteration(options)
    readahead = in_epoch(stream.source, iteration.start.epoch, stream.cursor.order.seed)._readahead
    if readahead is not None:
        readahead.follow(chunks(stream.cursor.order, iteration.shard, iteration.start), iteration.progress)
    return iteration


class _Lifetime:
    """Lives as long as the generator that holds it."""


class Stream(Generic[RowT]):
    """One epoch of rows per iteration; iterating again is the next epoch, reshuffled. See `DataRef.stream`.

    Attributes:
        source: what the rows are read from.
        cursor: where it stands; code that takes rows without the stream reports there.
    """

    def __init__(self, source: Contract[RowT], options: OrderOptions) -> None:
        self.source = source
        self.cursor = options.cursor_of(source)

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        return self.cursor.epoch

    def __len__(self) -> int:
        """Rows of a whole epoch in this shard."""
        return self.cursor.shard.count(self.cursor.length)

    def __repr__(self) -> str:
        cursor = self.cursor
        return (
            f"Stream({cursor.length} rows of a {type(self.source).__name__}, shuffle={cursor.shuffle!r}, "
            f"seed={cursor.seed}, shard {cursor.shard.rank} of {cursor.shard.num_replicas}, at epoch "
            f"{cursor.epoch}, position {cursor.position})"
        )

    def __iter__(self) -> Iterator[RowT]:
        return self._rows(self.cursor.num_begun)

    def _rows(self, made: int) -> Iterator[RowT]:
        iteration, _held = self._iterating(IterationOptions(made=made, in_rows=1))
        for rows in read_batches(self._source_in(iteration), self._numbers(iteration, _WINDOW)):
            for row in rows:
                self._deliver(iteration)
                yield row
        self.cursor.finished(iteration)

    def batches(self, batch_size: int, drop_last: bool = False) -> Iterator[Rows[RowT]]:
        """One epoch in batches: each a sequence of `batch_size` rows, the last perhaps shorter.

        The batches of a cached dataset are `Rows` over one block: `torch.utils.data.default_collate` turns
        one into tensors without taking it apart, and `batch.block` has its columns as arrays. For a
        DataRef of your own they are what its `take` returns.
        """
        return self._batches(as_int("batch_size", batch_size, low=1), drop_last, self.cursor.num_begun)

    def _batches(self, batch_size: int, drop_last: bool, made: int) -> Iterator[Rows[RowT]]:
        iteration, _held = self._iterating(IterationOptions(batch_size, drop_last, made=made))
        numbers = self._numbers(iteration, iteration.batch_size)
        for rows in read_batches(self._source_in(iteration), numbers):
            self._deliver(iteration)
            yield cast("Rows[RowT]", rows)
        self.cursor.finished(iteration)

    def _iterating(self, options: IterationOptions) -> tuple[Iteration, object]:
        """An iteration of a generator, and what that generator holds."""
        iteration, held = begun(self, options), _Lifetime()
        iteration.hold(held)
        self.cursor.warn_of_rows_left_out(iteration)
        self.cursor.begun(iteration)
        return iteration, held

    def _source_in(self, iteration: Iteration) -> Contract[RowT]:
        """The source of the rows of an iteration: the source as it is in its epoch."""
        return in_epoch(self.source, iteration.start.epoch, self.cursor.order.seed)

    def _numbers(self, iteration: Iteration, size: int) -> Iterator[Ints]:
        return batches(self.cursor.order, self.cursor.shard, iteration.start, size, iteration.drop_last)

    def _deliver(self, iteration: Iteration) -> None:
        self.cursor.check_generation(iteration.generation)
        iteration.advance()
        if self.cursor.latest is not iteration:
            self.cursor.moved(iteration)

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin; see `ResumableSampler.set_epoch`."""
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """The state after the last row or batch handed out."""
        return self.cursor.state_dict()

    def state_after(self, steps: int, batch_size: int = 1, drop_last: bool = False) -> Saved:
        """The state after so many batches of this shard, over all epochs since it was made or loaded.

        For consumers that take rows before they are trained on, such as tf.data: count the steps of your
        loop. Steps of iterations that ended early and were begun again do not count.

        Example:
            >>> stream = Squares().stream(shuffle=True)
            >>> stream.state_after(steps=3, batch_size=4)["epoch"]  # of 4, 4 and 2 rows
            1
        """
        steps = as_int("steps", steps, low=0)
        place = self.cursor.ahead(steps, as_int("batch_size", batch_size, low=1), drop_last)
        return self.cursor.state_at(place)

    def receipt(self) -> Saved:
        """The receipt of what this shard has delivered, to be put together with the others' by `prove`."""
        return self.cursor.receipt()

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from a state, of any number of shards; see `ResumableSampler.load_state_dict`."""
        self.cursor.load_state_dict(state, strict, appended)
