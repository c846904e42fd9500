"""Row groups and chunks, decoded as a whole when a row of one is wanted, and kept while there is room.

Under a block shuffle a few groups are in use at once, and one after the other is replaced. The order says
which comes next, and a thread decodes it while the rows of the others are used. It begins only once rows are
taken in this process: where workers read, it would decode for nobody. Rows of several groups are gathered
into one block by address, so values are copied once.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import torch.distributed as dist
from torch.utils.data import get_worker_info

from ..formats.items import MappedRuns
from ..formats.mapped import Memory
from ..process.buffers import BufferPool, address_of
from ..process.control_group import free_memory
from ..process.messages import bytes_text, warn_user
from ..process.numbers import distinct
from ..process.threads import renew_in_children
from ..reading.in_place_ref import files_of
from ..reading.stored_ref import Threads
from ..rows.block import Block, Data, bounds_of, interleaved
from ..rows.column import Column
from ..rows.types import Ints
from ..versions.location import Progress


def contiguous(block: Block) -> Block:
    """A block whose values can be taken by address: each column in one run of memory."""
    data = []
    for column, held in zip(block.schema.columns, block.data, strict=True):
        values = np.ascontiguousarray(held.values, column.storage)
        if held.offsets is None:
            data.append(Data(values))
        else:
            data.append(Data(values.reshape(-1), np.ascontiguousarray(held.offsets, "<i8"), held.shapes))
    return Block(block.schema, block.num_rows, tuple(data))


def gathered(blocks: Sequence[Block], which: Ints, rows: Ints, pool: BufferPool) -> Block:
    """Rows of several blocks of the same schema.

    Args:
        blocks: at least one, as `contiguous` makes them.
        which: (N,) the block of each row.
        rows: (N,) its number there.
        pool: memory for the copies. Ragged values are copied when they are wanted.
    """
    schema = blocks[0].schema
    pieces = zip(schema.columns, zip(*(block.data for block in blocks), strict=True), strict=True)
    data = []
    for column, held in pieces:
        gather = _ragged if column.is_ragged else _fixed
        data.append(gather(column, held, which, rows, pool))
    return Block(schema, len(rows), tuple(data))


def _fixed(column: Column, held: Sequence[Data], which: Ints, rows: Ints, pool: BufferPool) -> Data:
    assert column.shape is not None
    shape, nbytes = (len(rows), *column.shape), column.row_bytes
    if not nbytes:
        return Data(np.empty(shape, column.storage))
    memory, origins = _memory_of(held)
    found = memory.gather(origins[which] + rows * nbytes, nbytes, pool.empty)
    return Data(found.view(column.storage).reshape(shape))


def _ragged(column: Column, held: Sequence[Data], which: Ints, rows: Ints, pool: BufferPool) -> Data:
    low, high = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    shapes = None if held[0].shapes is None else np.empty((len(rows), column.ndim), np.int64)
    for number, data in enumerate(held):
        places = np.flatnonzero(which == number)
        own, offsets = rows[places], data.part("offsets")
        low[places], high[places] = offsets[own], offsets[own + 1]
        if shapes is not None:
            shapes[places] = data.part("shapes")[own]
    offsets = bounds_of(high - low)
    memory, origins = _memory_of(held)
    size = column.storage.itemsize
    runs = MappedRuns(memory, origins[which] + low * size, (high - low) * size)
    return Data(None, offsets, shapes, runs=runs, dtype=column.storage, empty=pool.empty)


def _memory_of(held: Sequence[Data]) -> tuple[Memory, Ints]:
    """The memory of values, and where those of each begin."""
    arrays = [data.values.reshape(-1).view(np.uint8) for data in held]
    return Memory(arrays), np.array([address_of(array) for array in arrays], np.int64)


_WINDOW = 8  # groups that a block shuffle mixes, by default
_SPARE = 1  # a group that has ended in the middle of a batch; the one decoded ahead comes on top
_LEAST_BYTES, _MOST_BYTES = 64 * 2**20, 2 * 2**30  # for a window, where the caller does not say
_SHARE = 4  # of the memory that there would be without groups, one in so many bytes is for them
_MEASURED = 64 * 2**20  # bytes decoded until it is measured again
_STEP = 256  # rows of an order that are computed at once
_MOST_DECODED = 4  # rows decoded for each row that is used: with more, converting pays within a few epochs


class GroupWords(NamedTuple):
    """The name of groups in messages.

    Attributes:
        one: a group.
        smaller: how to write smaller ones.
        opened: what opens the data.
    """

    one: str
    smaller: str
    opened: str


_OF_PARQUET = GroupWords("row group", "groups (row_group_size=)", "from_parquet")


class RowGroups:
    """The decoded row groups of one table: those used last, up to a number of bytes.

    May be called from several threads, and after a fork.

    Args:
        name: what they are of, for messages.
        starts: (groups + 1,) the first row of each, and the number of rows.
        nbytes: (groups,) about how large each is when it is decoded.
        decode: makes one of them.
        limit: bytes to keep; None for a share of the memory, which all tables of a process and all workers of
            a loader have together, or as many as a block shuffle needs, if that is more.
        words: for messages.
        threads: decode what is wanted at the same time; the caller does if there are none.
    """

    def __init__(
        self,
        name: str,
        starts: Ints,
        nbytes: Ints,
        decode: Callable[[int], Block],
        limit: int | None,
        words: GroupWords = _OF_PARQUET,
        threads: Threads | None = None,
    ) -> None:
        self._name, self._words, self._threads, self._ahead = name, words, threads, Threads(1)
        self._starts, self._sizes = starts, np.diff(starts)
        self._nbytes = nbytes
        self._decode = decode
        self._given = limit
        self._pool = BufferPool()
        self._kept: OrderedDict[int, Block] = OrderedDict()  # the one used last comes last
        self._kept_bytes = self._largest = 0
        self._order: Iterator[Ints] = iter(())
        self._progress: Progress = _over
        self._coming = np.zeros(0, np.int64)  # groups of rows of the order that were not looked at yet
        self._seen = 0  # rows of the order that were
        self._num_taken = 0  # rows taken since the order began
        self._has_warned = False
        self._inherited: dict[int, Block] = {}
        _alive[:] = [*(one for one in _alive if one() is not None), weakref.ref(self)]
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes new locks and threads, in a forked child; what another thread was decoding is gone.

        What the parent has decoded is in memory once for all its children, and takes nothing of their share.
        """
        self._inherited |= self._kept
        self._kept, self._kept_bytes = OrderedDict(), 0
        self._share = 0  # bytes that all groups of this process may have
        self._measured_at = -_MEASURED
        self._decoded_bytes = self._decoded_rows = self._taken_rows = 0
        self._lock = threading.Lock()
        self._following = threading.Lock()  # held while the order is looked at
        self._under_way: dict[int, Future[Block]] = {}  # and those decoded ahead that nobody has used yet
        self._looking: Future[None] | None = None
        self._progress = _over

    @property
    def limit(self) -> int:
        """Bytes to keep now."""
        if self._given is not None:
            return self._given
        window = (_WINDOW + _SPARE) * max(self._largest, int(self._nbytes.max(initial=0)))
        kept = sum(one.nbytes for one in (ref() for ref in list(_alive)) if one is not None)
        if self._decoded_bytes - self._measured_at >= _MEASURED:
            self._measured_at = self._decoded_bytes
            readers = _num_readers()
            # Those that are kept would be free without them; other readers keep as many.
            self._share = ((free_memory() or 0) + readers * kept) // _SHARE // readers
        return max(min(max(window, _LEAST_BYTES), _MOST_BYTES), self._share - (kept - self.nbytes))

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        return self._kept_bytes

    def take(self, rows: Ints) -> Block:
        """The rows of these numbers, at least one, gathered; raises as `get` does."""
        group = files_of(self._starts, rows)
        wanted = distinct(group)
        self._num_taken += len(rows)  # in the order that is followed, if there is one
        self._taken_rows += len(rows)
        turns = list(self._turns(wanted))
        if len(turns) == 1:
            return self._taken(wanted, group, rows - self._starts[group])
        pieces = []
        for turn in turns:
            places = np.flatnonzero(np.isin(group, turn))
            found = self._taken(turn, group[places], rows[places] - self._starts[group[places]])
            pieces.append((places, _copied(found)))
        return interleaved(pieces, self._pool.empty)

    def _taken(self, wanted: Ints, group: Ints, rows: Ints) -> Block:
        groups = self._here_first(wanted).tolist()
        made = map(self.get, groups) if self._threads is None else self._threads.map(self.get, groups)
        found = dict(zip(groups, made, strict=True))
        blocks = [found[group] for group in wanted.tolist()]
        return gathered(blocks, np.searchsorted(wanted, group), rows, self._pool)

    def _turns(self, groups: Ints) -> Iterator[Ints]:
        """These groups, some at a time: as many as may be in memory at once."""
        start, limit = 0, self.limit
        if int(self._nbytes[groups].sum()) > limit:
            groups = self._here_first(groups)
        ends = np.cumsum(self._nbytes[groups])
        while start < len(groups):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
            yield np.sort(groups[start:stop])
            start = stop

    def _here_first(self, groups: Ints) -> Ints:
        """These groups; those that are here come before others take their places."""
        are_here = np.array([self._here(group) is not None for group in groups.tolist()], bool)
        return np.concatenate([groups[are_here], groups[~are_here]])

    def _here(self, group: int) -> Block | None:
        return self._kept.get(group) or self._inherited.get(group)

    def get(self, group: int) -> Block:
        """A decoded group.

        Raises:
            ValueError: it is larger than what may be kept.
            CorruptError: its file has changed, or is damaged.
        """
        self._check_size(group)
        with self._lock:
            found = self._here(group)
            if found is not None:
                if group in self._kept:
                    self._kept.move_to_end(group)
                return found
            future = self._under_way.get(group)
            is_mine = future is None
            if future is None:
                future = self._under_way[group] = Future()
        if is_mine:
            self._make(group, future)
        try:
            found = future.result()
        except BaseException as error:
            with self._lock:
                if future.done() and self._under_way.get(group) is future:
                    del self._under_way[group]
            if is_mine or not isinstance(error, Exception):
                raise
            return self._decode(group)  # what failed in another thread may have passed
        self._keep(group, found)
        self._look_ahead()
        self._check_work()
        return found

    def _make(self, group: int, future: Future[Block]) -> None:
        """Decodes a group; whoever asks for the result gets an error."""
        try:
            future.set_result(self._decode(group))
        except BaseException as error:
            future.set_exception(error)

    def _keep(self, group: int, block: Block) -> None:
        with self._lock:
            self._under_way.pop(group, None)
            if group in self._kept:
                return
            nbytes = block.nbytes
            self._kept[group] = block
            self._kept_bytes += nbytes
            self._decoded_bytes += nbytes
            self._decoded_rows += block.num_rows
            self._largest = max(self._largest, nbytes)
            limit = self.limit
            while self._kept_bytes > limit and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.nbytes

    def _check_size(self, group: int) -> None:
        nbytes = int(self._nbytes[group])
        limit = _MOST_BYTES if self._given is None else self._given
        if nbytes > limit and (self._given is not None or nbytes > self.limit):
            raise ValueError(
                f"{self._name}: {self._words.one} {group} has about {bytes_text(nbytes)} decoded, and "
                f"cache_bytes is {bytes_text(limit)}; raise cache_bytes, name fewer columns, write the file "
                f"with smaller {self._words.smaller}, or convert it: storage.submit reads it in pieces"
            )

    # -- reading ahead

    is_cold = False
    ahead_bytes = None

    def announce(self, rows: Ints, values: bool) -> None:
        """Does nothing: `follow` says enough."""

    def probe(self) -> None:
        """Does nothing."""

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Decodes the next group ahead of an iteration, in place of the one before."""
        with self._following:
            self._order, self._progress = iter(order), progress
            self._coming, self._seen, self._num_taken = np.zeros(0, np.int64), 0, 0

    def _check_work(self) -> None:
        """Warns, once, if groups are decoded again and again."""
        if self._has_warned or self._decoded_rows <= 2 * int(self._starts[-1]):
            return
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        # Each worker decodes what all of them use.
        if number or self._decoded_rows <= _MOST_DECODED * workers * self._taken_rows:
            return
        self._has_warned = True
        rows = self._decoded_rows // max(1, self._taken_rows)
        size, limit = int(self._nbytes.mean()), self.limit
        warn_user(
            f"{self._name}: in this order about {rows} rows are decoded for each one that is used, because "
            f"its {len(self._sizes)} {self._words.one}s have about {bytes_text(size)} each, and "
            f"cache_bytes={limit} keeps {limit // max(1, size)}. Convert once and shuffle that: "
            f"storage.submit(yoga.{self._words.opened}(...), id, version); or use shuffle='block', with a "
            "shuffle_window that fits; or raise cache_bytes"
        )

    def _look_ahead(self) -> None:
        """Lets the thread decode the next group, unless one is waiting already."""
        if self._progress is _over:
            return
        with self._lock:
            is_busy = self._looking is not None and not self._looking.done()
            if is_busy or self._under_way:
                return
            self._looking = self._ahead.submit(RowGroups._decode_next, self)

    def _decode_next(self) -> None:
        group = self._next()
        if group is None or int(self._nbytes[group]) > self.limit:
            return
        with self._lock:
            if self._here(group) is not None or group in self._under_way:
                return
            mine = self._under_way[group] = Future()
        self._make(group, mine)

    def _next(self) -> int | None:
        """The next group in the order that is not here; None if none comes soon."""
        most = int(self._sizes.max(initial=0)) + 4 * _STEP
        with self._following:
            while True:
                delivered = self._progress()
                if delivered is None:
                    return None
                now = max(delivered, self._num_taken)
                past = now - (self._seen - len(self._coming))
                self._coming = self._coming[max(0, past) :]
                changes = np.flatnonzero(np.diff(self._coming, prepend=-1))
                for place in changes.tolist():
                    group = int(self._coming[place])
                    if self._here(group) is None and group not in self._under_way:
                        self._coming = self._coming[place:]
                        return group
                self._coming = np.zeros(0, np.int64)
                if self._seen > now + most:
                    return None
                rows = next(self._order, None)
                if rows is None:
                    return None
                self._coming = files_of(self._starts, rows)
                self._seen += len(rows)


def _copied(block: Block) -> Block:
    """A block that holds nothing but its own rows."""
    data = tuple(Data(held.values, held.offsets, held.shapes) for held in block.data)
    return Block(block.schema, block.num_rows, data)


_alive: list[weakref.ref[RowGroups]] = []  # of this process


def _num_readers() -> int:
    """How many processes share this machine's memory: the workers of a loader, for each rank on it."""
    worker = get_worker_info()
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not ranks.isdigit():
        ranks = str(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else "1"
    return max(1, int(ranks)) * (1 if worker is None else worker.num_workers)


def _over() -> int | None:
    """The progress where no order is followed."""
    return None
