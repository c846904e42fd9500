"""Rows of several versions, copied by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..formats.mapped.gather import Bytes, Memory
from ..formats.mapped.pages import usage
from ..rows.block import Block
from ..rows.data import Data
from ..rows.schema import Schema
from ..rows.types import Ints

__all__ = ["LocatedRows", "Together"]


@dataclass(frozen=True)
class LocatedRows:
    """Rows where they lie in mapped files; none of their columns is ragged.

    Attributes:
        schema: of the rows.
        memory: holds them.
        addresses: for each column, (N,) the first byte of each row.
        after_fault: called if copying them has waited for the disk.
    """

    schema: Schema
    memory: Memory
    addresses: Sequence[Ints]
    after_fault: Callable[[], object]


class Together:
    """Copies rows of some versions, all at once: what is mapped is one range of addresses.

    Args:
        empty: makes the memory for large copies.
    """

    def __init__(self, empty: Callable[[int], Bytes]) -> None:
        self._empty = empty
        self._made: tuple[list[int], Memory] | None = None  # what the memory was made of

    def block(self, found: Sequence[tuple[Ints, LocatedRows]]) -> Block:
        """The rows as one block; each comes with the places that its rows are to take, 0..N-1 in all."""
        memory, schema = self._over([located.memory for _, located in found]), found[0][1].schema
        count = sum(len(places) for places, _ in found)
        before, data = usage(), []
        for number, column in enumerate(schema.columns):
            addresses = np.empty(count, np.int64)
            for places, located in found:
                addresses[places] = located.addresses[number]
            assert column.shape is not None, "ragged rows are not located"
            if column.row_bytes and count:
                values = memory.gather(addresses, column.row_bytes, self._empty)
            else:
                values = np.empty(0, np.uint8)
            data.append(Data(values.view(column.storage).reshape(count, *column.shape)))
        if usage().faults > before.faults:
            for _, located in found:
                located.after_fault()
        return Block(schema, count, tuple(data))

    def _over(self, memories: Sequence[Memory]) -> Memory:
        """The memory of all of them; made anew when one has more files."""
        arrays = [array for memory in memories for array in memory.arrays]
        known = list(map(id, arrays))  # which the memory keeps alive
        made = self._made
        if made is None or made[0] != known:
            made = self._made = known, Memory(arrays)
        return made[1]
