"""Rows that stay in the files of another library: a DataRef that takes them from there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..formats.gather import Bytes, Memory
from ..formats.items import MappedRuns
from ..formats.pages import usage
from ..process.lazy import cached_property
from ..process.stages import Stage, timed
from ..rows.block import Block
from ..rows.data import Data, check_parts
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Numbers, Row
from ..versions.location import Progress
from .dataref import DataRef
from .readahead import Prefetch
from .shards import MappedShards, ShardFiles
from .stored_ref import StoredRef


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


class ForeignRef(StoredRef):
    """Rows of a dataset that others have written.

    Args:
        source: the dataset.
        of: the columns; all by default.
    """

    def __init__(self, source: ForeignRows, of: Projection | None) -> None:
        self._rows, self._of = source, of
        schema = source.schema if of is None else of.schema
        super().__init__(source.name, schema, int(source.starts[-1]))
        self._columns = tuple(range(len(schema.columns))) if of is None else of.columns

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        return self._with(of if self._of is None else self._of.then(of))

    @abstractmethod
    def _with(self, of: Projection) -> DataRef:
        """The same rows with these columns of all."""

    @property
    def _only_copies(self) -> bool:
        """True if threads of one process read as fast as processes."""
        return self._rows.only_copies

    @property
    def file_starts(self) -> Ints:
        """The row at which each file or chunk begins."""
        return self._rows.starts

    @property
    def fingerprint(self) -> str | None:
        """A name for the content."""
        return self._rows.content if self._of is None else self._of.pinned(self._rows.content)

    @property
    def _is_cold(self) -> bool:
        """True while batches of one row, too, are to be made ready before they are taken."""
        return False

    def _values_of_one(self) -> Callable[[int], Sequence[Row] | None] | None:
        """A quick function of the number of one row to the values of its columns, or to None where `take` is
        to say what is wrong; None if there is none, as where rows take long to decode."""
        return None

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


@dataclass(frozen=True, eq=False)
class FileLayout(ABC):
    """How the rows of some files lie in them; plain data, which pickles.

    Attributes:
        name: for messages.
        files: where they are.
        starts: (files + 1,) the row at which each file begins, and the number of rows.
        schema: what a row looks like.
        content: a name for the content of all rows.
    """

    name: str
    files: ShardFiles
    starts: Ints
    schema: Schema
    content: str

    @property
    def only_copies(self) -> bool:
        """True if threads of one process read as fast as processes; False where rows are parsed."""
        return False

    def check(self, number: int, data: Bytes) -> None:
        """Raises CorruptError unless a file of this number can hold these bytes; here it can hold any."""
        return

    @abstractmethod
    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory | None, Ints, Ints]:
        """Where rows (N,), at least one, lie: the memory, the address of each, and its bytes.

        Raises:
            CorruptError: a file is damaged; says which row.
        """

    @abstractmethod
    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns of rows (N,), at least one; CorruptError as `spans`."""

    def alone(
        self, shards: MappedShards, columns: Sequence[int]
    ) -> Callable[[int], Sequence[Row] | None] | None:
        """A quick function of the number of one row to the values of these columns, or to None where `gather`
        is to say what is wrong; None if there is none, as where rows take long to parse."""
        return None

    def where(self, row: int) -> str:
        """The file and the place of a row, for messages."""
        file = int(self.starts.searchsorted(row, "right")) - 1
        return f"{self.files.where(file)}: record {row - int(self.starts[file])} (row {row})"


class InPlaceRef(ForeignRef):
    """Rows of files that another library has written.

    Args:
        layout: how they lie there.
        of: the columns; all by default.
        shards: the files, if this process has them open.
    """

    def __init__(
        self, layout: FileLayout, of: Projection | None = None, shards: MappedShards | None = None
    ) -> None:
        super().__init__(layout, of)
        self._layout = layout
        self._shards = shards or MappedShards(layout.files, layout.check)

    def __reduce__(self) -> tuple[object, ...]:
        return InPlaceRef, (self._layout, self._of)

    def _block(self, rows: Ints) -> Block:
        with timed(Stage.READ):
            before, warmth = usage(), self._shards.warmth
            if warmth.cold:
                self._shards.advise(*self._layout.spans(self._shards, rows)[1:])
            data = self._layout.gather(self._shards, rows, self._columns)
            if usage().faults > before.faults:
                warmth.after_fault()
        return Block(self.schema, len(rows), tuple(data))

    @property
    def _is_cold(self) -> bool:
        return self._shards.warmth.cold

    def _values_of_one(self) -> Callable[[int], Sequence[Row] | None] | None:
        return self._layout.alone(self._shards, self._columns)

    def _take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, end to end; nothing else of them is read."""
        if not self.schema.is_sequence or not len(rows):
            return super()._take_parts(rows, starts, stops)
        (data,) = self._layout.gather(self._shards, rows, self._columns)
        if not isinstance(data.runs, MappedRuns):
            return super()._take_parts(rows, starts, stops)
        check_parts(rows, np.diff(data.part("offsets")), starts, stops)
        size = data.dtype.itemsize
        return data.runs.parts(starts * size, stops * size, self._shards.empty).view(data.dtype)

    def _with(self, of: Projection) -> InPlaceRef:
        return InPlaceRef(self._layout, of, self._shards)

    @property
    def _only_copies(self) -> bool:
        """True if rows are bytes of files on this machine, as they lie there."""
        return super()._only_copies and not self._layout.files.is_remote

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row with all columns."""
        return sum(self._layout.files.nbytes) // max(1, len(self))

    @cached_property
    def _prefetch(self) -> Prefetch:
        """Reads pages and downloads files before their rows are taken."""
        return _Announced(self._layout, self._shards)


def files_of(starts: Ints, rows: Ints) -> Ints:
    """(N,) the file of each row, given the row at which each file begins."""
    if len(starts) == 2:
        return np.zeros(len(rows), np.int64)
    return starts.searchsorted(rows, "right") - 1


class _Announced:
    """Makes rows ready before they are taken."""

    def __init__(self, layout: FileLayout, shards: MappedShards) -> None:
        self._layout, self._shards = layout, shards

    @property
    def is_cold(self) -> bool:
        return self._shards.warmth.cold

    @property
    def ahead_bytes(self) -> int | None:
        return self._layout.files.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        if not values and len(rows) and self._shards.has(files_of(self._layout.starts, rows)):
            self._shards.advise(*self._layout.spans(self._shards, rows)[1:])

    def probe(self) -> None:
        self._shards.warmth.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        starts = self._layout.starts
        self._layout.files.follow((files_of(starts, rows) for rows in order), progress)
