"""The columns of another DataRef, changed by a function of arrays."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..errors import SchemaError
from ..order.contract import Arrangement
from ..process.lazy import cached_property
from ..process.seeding import generators, seeds_within
from ..process.stages import Stage, timed
from ..process.warned import warn_user
from ..reading.dataref import DataRef
from ..reading.readahead import ReadAhead
from ..rows.block import Block, Rows
from ..rows.collector import block_of
from ..rows.schema import Schema
from ..rows.types import Json, Row
from .draw import Draw
from .functions import check_can_be_sent, name_of
from .returned import block_from, columns_of

__all__ = ["ComputedRef"]

Ints = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]
Function: TypeAlias = Callable[..., Any]


class ComputedRef(DataRef):
    """The rows of another DataRef, many at once through a function: what `ref.map_batches(function)` is.

    Args:
        whole: the other DataRef; it has a schema.
        function: takes the columns of some rows, and `draw` if it has a parameter of that name.
        threads: True if the function may be called by a thread.

    Raises:
        TypeError: it is not a function; when read: `whole` does not say what its rows look like.
    """

    def __init__(self, whole: DataRef, function: Function, threads: bool = False) -> None:
        self.whole = whole
        self.function = function
        self.is_thread_safe = threads and whole.is_thread_safe
        self._threads = threads
        self._draws = _takes_draw(function)
        self._seen: Schema | None = None  # what the first rows looked like that it was called with

    def __getstate__(self) -> Json:
        check_can_be_sent(self.function)
        return super().__getstate__()

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def is_random(self) -> bool:
        """True if the function takes `draw`, or rows of the whole are random."""
        return self._draws or self.whole.is_random

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows`; torch's generator gives the seeds of what it draws."""
        if not len(rows):
            return []
        seeds = torch.randint(2**63 - 1, (len(rows),)).numpy().view(np.uint64) if self._draws else None
        return self._computed(rows, self.whole.take(rows), seeds)

    def take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[Row]:
        """The rows of these numbers, as `Rows`, made with these seeds."""
        if not len(rows):
            return []
        whole = self.whole
        given = whole.take_seeded(rows, seeds_within(seeds, 0)) if whole.is_random else whole.take(rows)
        return self._computed(rows, given, seeds)

    def _computed(self, rows: Ints, given: Sequence[Row], seeds: Seeds | None) -> Rows:
        schema = self.whole.schema
        if schema is None:
            raise TypeError(
                f"{self.whole!r} does not say what its rows look like: its schema is None, so there are no "
                "columns for map_batches; use map, or give the map before it a schema"
            )
        block = block_of(given, schema)
        columns = columns_of(block)
        draws = {"draw": Draw(seeds)} if self._draws and seeds is not None else {}
        with timed(Stage.TRANSFORM):
            returned = self._called(columns, draws)
        where = f"map_batches({name_of(self.function)}) of {_numbered(rows)}"
        found = block_from(returned, columns, block, where)
        self._check_alike(found, where)
        return Rows(found)

    def _called(self, columns: object, draws: dict[str, Draw]) -> object:
        """What the function returns; warns, once, if it draws random numbers that nothing here can seed."""
        if self._seen is not None or self._draws:
            return self.function(columns, **draws)
        before = generators()
        returned = self.function(columns, **draws)
        if generators() != before:
            warn_user(
                f"map_batches({name_of(self.function)}) draws from the generators of random, NumPy or torch: "
                "its rows depend on the batch that they are in, and come out otherwise after a resume. Give "
                "it a parameter named draw, whose numbers depend on (seed, epoch, row), or use map"
            )
        return returned

    def _check_alike(self, found: Block, where: str) -> None:
        """All batches must look alike, else rows would depend on what is beside them."""
        if self._seen is None:
            self._seen = found.schema
        if found.schema == self._seen:
            return
        for one, other in zip(found.schema.columns, self._seen.columns, strict=False):
            if one != other:
                raise SchemaError(
                    f"{where} returned {one}; for the rows before it was {other}. Every batch must look "
                    "alike; values whose number varies are a list of arrays, or a yoga.RaggedColumn"
                )
        names = [[column.name for column in schema.columns] for schema in (found.schema, self._seen)]
        raise SchemaError(f"{where} returned the columns {names[0]}; for the rows before {names[1]}")

    def in_epoch(self, epoch: int) -> DataRef:
        """The rows of the whole as it is in an epoch, through the function."""
        whole = self.whole.in_epoch(epoch)
        return self if whole is self.whole else ComputedRef(whole, self.function, self._threads)

    @property
    def arrangement(self) -> Arrangement | None:
        """The whole's: the rows are the same."""
        return self.whole.arrangement

    @property
    def schema(self) -> Schema | None:
        """What a row looks like, as the first row shows it; None if there are none."""
        if self._seen is None and len(self):
            self.take(np.zeros(1, np.int64))
        return self._seen

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row of the whole, which is read."""
        return self.whole.row_bytes

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """What makes rows of the whole ready; None if the whole has none."""
        whole = self.whole.readahead
        return None if whole is None else ReadAhead(self.row_bytes, whole.prefetch, most_batches=1)

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's and the name of the function."""
        whole = self.whole.fingerprint
        return None if whole is None else self._pinned(whole)

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's: each row is made of one of its rows."""
        return [(self._pinned(name), rows) for name, rows in self.whole.prefixes]

    def _pinned(self, whole: str) -> str:
        text = f"{whole} map_batches {name_of(self.function)}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def info(self) -> Json:
        """The whole's info."""
        return self.whole.info

    def __repr__(self) -> str:
        return f"{self.whole!r} through {name_of(self.function)}"


def _takes_draw(function: Function) -> bool:
    if not callable(function):
        raise TypeError(f"map_batches takes a function of columns, found {function!r:.80}")
    try:
        return "draw" in inspect.signature(function).parameters
    except ValueError:  # a C function without a signature
        return False


def _numbered(rows: Ints) -> str:
    return f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows, {rows[0]} to {rows[-1]}"
