"""Rows of datasets that others have written: what DataRefs of them share, and one that asks a library."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..process.lazy import cached_property
from ..process.stages import Stage, timed
from ..rows.block import Block, Rows
from ..rows.data import Data
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Ints, Row
from .dataref import DataRef, Numbers
from .readahead import Prefetch, ReadAhead

__all__ = ["ForeignRef", "ForeignRows", "LibraryRef", "LibraryRows"]


class ForeignRows(Protocol):
    """The rows of one dataset of others; they pickle."""

    @property
    def name(self) -> str:
        """The name of the dataset in messages."""

    @property
    def schema(self) -> Schema:
        """How a row looks."""

    @property
    def starts(self) -> Ints:
        """(files + 1,) the row at which each file or chunk begins, and the number of rows."""

    @property
    def content(self) -> str:
        """A name for the content of all rows."""

    @property
    def only_copies(self) -> bool:
        """True if threads of one process read as fast as processes."""


class ForeignRef(DataRef):
    """Rows of a dataset that others have written.

    Args:
        source: the dataset.
        of: the columns; all by default.
    """

    is_thread_safe = True

    def __init__(self, source: ForeignRows, of: Projection | None) -> None:
        self._rows, self._of = source, of
        self._length = int(source.starts[-1])
        self._schema = source.schema if of is None else of.schema
        self._columns = tuple(range(len(self._schema.columns))) if of is None else of.columns

    def __len__(self) -> int:
        return self._length

    def projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        return self._with(of if self._of is None else self._of.then(of))

    @abstractmethod
    def _with(self, of: Projection) -> DataRef:
        """The same rows with these columns of all."""

    @property
    def keeps_rows(self) -> bool:
        """False: each batch is gathered anew."""
        return False

    @property
    def only_copies(self) -> bool:
        """True if threads of one process read as fast as processes."""
        return self._rows.only_copies

    @property
    def schema(self) -> Schema:
        """How a row looks."""
        return self._schema

    @property
    def file_starts(self) -> Ints:
        """The row at which each file or chunk begins."""
        return self._rows.starts

    @property
    def fingerprint(self) -> str | None:
        """A name for the content."""
        return self._rows.content if self._of is None else self._of.pinned(self._rows.content)

    def _title(self) -> str:
        return f"DataRef {self._rows.name}"

    @property
    @abstractmethod
    def _is_cold(self) -> bool:
        """True while batches of one row, too, are to be made ready before they are taken."""

    @abstractmethod
    def _values_of_one(self) -> Callable[[int], Sequence[Row] | None] | None:
        """A quick function of the number of one row to the values of its columns, or to None where `take` is
        to say what is wrong; None if there is none."""

    def __getitem__(self, index: Any) -> Any:
        """A row, a list of rows, or a view, as of any DataRef."""
        if type(index) is int and 0 <= index < self._length:
            row = self._alone(index)
            if row is not None:
                return row
        return super().__getitem__(index)

    def __getitems__(self, indices: Sequence[int] | Numbers) -> Sequence[Row]:
        """The rows of a batch; for a single one no block is made."""
        if type(indices) is list and len(indices) == 1 and not self._is_cold:
            (index,) = indices
            row = self._alone(index) if type(index) is int and 0 <= index < self._length else None
            if row is not None:
                return [row]
        return super().__getitems__(indices)

    @cached_property
    def _alone(self) -> Callable[[int], Row | None]:
        """A quick function of the number of one row to this row, or to None where `take` has to read it."""
        tree = self._schema.tree
        is_flat = tree.kind == "dict" and all(child.kind == "leaf" for child in tree.children)
        alone = self._values_of_one() if is_flat or tree.kind == "leaf" else None
        if alone is None:
            return lambda number: None
        keys = tree.keys

        def several(number: int) -> Row | None:
            values = alone(number)
            return None if values is None else dict(zip(keys, values))  # noqa: B905 (strict takes as long again)

        def one(number: int) -> Row | None:
            values = alone(number)
            return None if values is None else {key: values[0]}

        def bare(number: int) -> Row | None:
            values = alone(number)
            return None if values is None else values[0]

        if not is_flat:
            return bare
        key = keys[0]
        return one if len(keys) == 1 else several

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_alone"}


class LibraryRows(ForeignRows, Protocol):
    """The rows of one dataset, which each process opens anew; they pickle. Several threads may call them."""

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row."""

    @property
    def opened_by(self) -> int | None:
        """The process that has opened it, where the library does not work in others that this one forks."""

    @property
    def prefetch(self) -> Prefetch | None:
        """Makes rows ready before they are taken; None if nothing does."""

    def gather(self, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns of rows (N,), at least one.

        Raises:
            CorruptError: the dataset is damaged, or has changed; says which row.
        """

    def alone(self, columns: Sequence[int]) -> Callable[[int], Sequence[Row] | None] | None:
        """A quick function of the number of one row to the values of these columns, or to None where `gather`
        is to say what is wrong; None if there is none."""


class LibraryRef(ForeignRef):
    """Rows of a dataset that another library reads.

    Args:
        source: reads them.
        of: the columns; all by default.
    """

    def __init__(self, source: LibraryRows, of: Projection | None = None) -> None:
        super().__init__(source, of)
        self._source = source

    def __reduce__(self) -> tuple[object, ...]:
        return LibraryRef, (self._source, self._of)

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block.

        Raises:
            ValueError: this process was forked after the dataset was opened, which the library does not
                survive.
        """
        if not len(rows):
            return []
        if self._is_forked:
            raise ValueError(
                f"{self._source.name}: the library that reads it does not survive a fork, and this process "
                "was forked after it was opened; start processes with multiprocessing_context='forkserver', "
                "as torchyoga's DataLoader does by itself"
            )
        with timed(Stage.READ):
            data = self._source.gather(rows, self._columns)
        return Rows(Block(self._schema, len(rows), tuple(data)))

    @property
    def _is_forked(self) -> bool:
        return self._source.opened_by not in (None, os.getpid())

    @property
    def _is_cold(self) -> bool:
        return False

    def _values_of_one(self) -> Callable[[int], Sequence[Row] | None] | None:
        alone = self._source.alone(self._columns)
        return None if alone is None else lambda number: None if self._is_forked else alone(number)

    def _with(self, of: Projection) -> LibraryRef:
        return LibraryRef(self._source, of)

    @property
    def survives_fork(self) -> bool:
        """False if the library does not."""
        return self._source.opened_by is None

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row with all columns."""
        return self._source.row_bytes

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """The reader ahead, if there is one."""
        prefetch = self._source.prefetch
        return None if prefetch is None else ReadAhead(self.row_bytes, prefetch)
