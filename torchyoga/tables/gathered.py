"""Some rows of several blocks -> one block: values are copied once, by address."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..formats.items import MappedRuns
from ..formats.mapped import Memory
from ..process.buffers import BufferPool, address_of
from ..rows.block import Block, Data, bounds_of
from ..rows.column import Column
from ..rows.types import Ints

_RUN = 64  # rows, on average, from which runs are copied as such


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
    ends = np.append(np.flatnonzero((np.diff(rows) != 1) | (np.diff(which) != 0)) + 1, len(rows))
    if not any(column.is_ragged for column in schema.columns) and len(rows) >= _RUN * len(ends):
        return _in_runs(blocks, which, rows, ends, pool)
    pieces = zip(schema.columns, zip(*(block.data for block in blocks), strict=True), strict=True)
    data = tuple(
        _ragged(column, held, which, rows, pool)
        if column.is_ragged
        else _fixed(column, held, which, rows, pool)
        for column, held in pieces
    )
    return Block(schema, len(rows), data)


def _in_runs(blocks: Sequence[Block], which: Ints, rows: Ints, ends: Ints, pool: BufferPool) -> Block:
    """As `gathered`, of rows without ragged columns that follow each other, up to each of `ends`."""
    starts = np.concatenate([[0], ends[:-1]])
    runs = list(zip(which[starts].tolist(), rows[starts].tolist(), (ends - starts).tolist(), strict=True))
    data = []
    for place, column in enumerate(blocks[0].schema.columns):
        assert column.shape is not None
        pieces = [blocks[block].data[place].values[first : first + count] for block, first, count in runs]
        out = pool.empty(len(rows) * column.row_bytes).view(column.storage).reshape(len(rows), *column.shape)
        data.append(Data(np.concatenate(pieces, out=out)))
    return Block(blocks[0].schema, len(rows), tuple(data))


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
