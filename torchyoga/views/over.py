"""Views of one other DataRef: its rows changed, some of its rows, some of its columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..order.by_file import equal_runs
from ..order.contract import Arrangement, described
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import distinct
from ..process.seeding import seeds_within
from ..reading.contract import are_at_hand, identity, nameless_pin, taken_of, title_of
from ..reading.dataref import DataRef
from ..reading.readahead import Prefetch, Translated
from ..rows.block import Block, Rows
from ..rows.collector import block_of
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints, Json, Row, RowT, Seeds

# The places of some rows of a DataRef, and their numbers.
RowsOf: TypeAlias = tuple[DataRef[Any], Ints, Ints]


def named_rows(ref: DataRef, name: str | None) -> str | None:
    """A name of a DataRef that also names its rows by number: which rows a mixture has depends on its
    weights, and its own name leaves these to states."""
    arrangement = ref._arrangement
    if name is None or arrangement is None:
        return name
    return hexdigest(f"{name} {arrangement.order(0, False, True, 1).pins(0)}")


def keeps_names(of: Projection, schema: Schema) -> bool:
    """True if columns of a schema keep their names in a projection; `zip` may add a prefix."""
    return [schema.columns[number].name for number in of.columns] == [c.name for c in of.schema.columns]


class Over(DataRef[RowT]):
    """Rows that are made of rows of another DataRef: a subclass says only in which way they differ.

    Args:
        whole: the other DataRef.
        how: what else a subclass is made with.

    Attributes:
        whole: the other DataRef.
        view_name: what `_view_pin` calls a view whose rows are not the whole's, in its order.
    """

    view_name: str | None = None

    def __init__(self, whole: DataRef[RowT], *how: Any) -> None:
        self.is_thread_safe = whole.is_thread_safe
        self.whole = whole
        self._how = how

    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers; generators are drawn from as they stand."""
        return self._taken(rows, None) if len(rows) else []

    def _take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[RowT]:
        """The rows of these numbers, made with these seeds."""
        return self._taken(rows, seeds) if len(rows) else []

    @abstractmethod
    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[RowT]:
        """One or more rows (B,); made with seeds, one for each, if there are any."""

    def _title(self) -> str:
        return title_of(self.whole)

    def _at_hand(self) -> bool:
        return are_at_hand([self.whole])

    def over(self, whole: DataRef) -> DataRef:
        """The same view of another DataRef of as many rows."""
        return type(self)(whole, *self._how)

    @abstractmethod
    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's; states know it."""

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's; None if the whole has none."""
        whole = self._named(self.whole.fingerprint)
        return None if whole is None else self._pinned(whole)

    def _named(self, whole: str | None) -> str | None:
        """A name of the whole, for its rows by number if the view takes those."""
        return whole if self._arrangement is not None else named_rows(self.whole, whole)

    @cached_property
    def _view_pin(self) -> str | None:
        """How it is made of the whole; None if the fingerprint says that."""
        if self.view_name is None:
            return self.whole._view_pin
        whole = self._named(identity(self.whole)) or ""
        return described(self.view_name, of=nameless_pin(self, self._pinned(whole)))

    def in_epoch(self, epoch: int) -> DataRef[RowT]:
        """The same view of the whole as it is in an epoch."""
        whole = self.whole.in_epoch(epoch)
        return self if whole is self.whole else self.over(whole)

    @property
    def _keeps_rows(self) -> bool:
        """The whole's."""
        return self.whole._keeps_rows

    @property
    def _is_random(self) -> bool:
        """The whole's."""
        return self.whole._is_random

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row of the whole."""
        return self.whole._row_bytes

    @property
    def schema(self) -> Schema | None:
        """The whole's schema."""
        return self.whole.schema

    @property
    def info(self) -> Json:
        """The whole's info."""
        return self.whole.info


class Rebuilt(Over[RowT]):
    """A view that is pickled as what it is made with, without what it has read and keeps."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.whole, *self._how)


class GatheredView(Rebuilt):
    """A view whose rows are read together with rows of other views that are made alike."""

    @abstractmethod
    def opened(self, parts: Sequence[RowsOf]) -> list[RowsOf] | None:
        """The rows below rows of several views, this is the first; None if these are not made alike.

        Args:
            parts: the rows of the views.

        Returns:
            For each part the DataRef that rows are read from, the places of its rows among all, and these.
        """

    @abstractmethod
    def together(
        self, parts: Sequence[RowsOf], read: Callable[[Iterable[RowsOf], int], Sequence[Row]]
    ) -> Sequence[Row] | None:
        """Rows of several views, at their places, read at once; None if these are not made alike.

        Args:
            parts: the rows of the views.
            read: reads rows of several DataRefs, so many in all.
        """


class ChangedRows(Over[RowT]):
    """The rows of another DataRef, each changed: as many, in the same order."""

    def __len__(self) -> int:
        return len(self.whole)

    def _given(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        """Rows of the whole that are changed with these seeds, if any; each is made with one of its own."""
        own = None if seeds is None or not self.whole._is_random else seeds_within(seeds, 0)
        return taken_of(self.whole, rows, own)

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's, changed alike."""
        return [(self._pinned(name), rows) for name, rows in self.whole._prefixes]

    @property
    def _arrangement(self) -> Arrangement | None:
        """The whole's."""
        return self.whole._arrangement

    @property
    def _recipe(self) -> Any:  # a Recipe, whose file imports this one
        """The whole's, with sources that are changed alike."""
        found = self.whole._recipe
        return None if found is None else found.over(self.over)

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @property
    def _prefetch(self) -> Prefetch | None:
        """The whole's, for rows that are changed after they are read."""
        return self.whole._prefetch


class RowView(Over[RowT]):
    """Some rows of another DataRef, in any order; each is one row of it.

    A subclass says which, by `rows_at`.

    Args:
        whole: the other DataRef.

    Attributes:
        whole: the other DataRef.
    """

    @abstractmethod
    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of `whole` behind rows of this view (B,), each in 0..len - 1."""

    view_name = "view"

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's that have all of its rows, as versions with other columns do: of them the same rows."""
        found = self.whole._prefixes
        return [(self._pinned(name), len(self)) for name, rows in found if rows == len(self.whole)]

    _keeps_rows = Over._keeps_rows

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[RowT]:
        return taken_of(self.whole, self.rows_at(rows), seeds)

    def lengths(self, rows: Ints) -> Ints:
        """The lengths of rows of a ragged column, as `whole` finds them."""
        return self.whole.lengths(self.rows_at(rows))

    def _take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, as `whole` reads them."""
        return self.whole._take_parts(self.rows_at(rows), starts, stops)

    def _projected(self, of: Projection) -> DataRef:
        """The same view of `whole` with these columns."""
        return self.over(self.whole._projected(of))

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """The whole's, for the rows of the view."""
        whole = self.whole._prefetch
        return None if whole is None else Translated(whole, self.rows_at)


class SlicedRef(RowView[RowT]):
    """Some rows of another DataRef: what `ref[start:stop:step]` is."""

    def __init__(self, whole: DataRef[RowT], rows: range) -> None:
        super().__init__(whole, rows)
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole with these numbers in the slice."""
        return self.rows.start + self.rows.step * numbers

    @property
    def file_starts(self) -> Ints:
        """The whole's, as far as the slice goes; equal runs for a slice that goes backwards."""
        if self.rows.step < 0:
            return equal_runs(len(self))
        first = -((self.rows.start - self.whole.file_starts) // self.rows.step)
        return distinct(np.append(np.clip(first, 0, len(self)), [0, len(self)]))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and the slice."""
        return hexdigest(f"{whole} {self.rows.start} {self.rows.stop} {self.rows.step}")

    def _title(self) -> str:
        first, stop, step = self.rows.start, self.rows.stop, self.rows.step
        part = f"{first}:{'' if stop < 0 else stop}" + (f":{step}" if step != 1 else "")
        return f"{super()._title()}[{part}]"


class ChangedBlocks(ChangedRows):
    """The rows of another DataRef, a block of them changed at once. A subclass sets `_schema`."""

    _schema: Schema

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        return Rows(self._changed(block_of(taken_of(self.whole, rows, seeds), self.whole.schema)))

    @abstractmethod
    def _changed(self, block: Block) -> Block:
        """The rows of a block of the whole, changed."""

    @property
    def schema(self) -> Schema:
        """How a row looks."""
        return self._schema


class ProjectedRef(ChangedBlocks):
    """Some columns of another DataRef, which reads them all.

    Args:
        whole: has a schema.
        of: the columns.
    """

    def __init__(self, whole: DataRef, of: Projection) -> None:
        super().__init__(whole, of)
        self.of, self._schema = of, of.schema

    _keeps_rows = Over._keeps_rows

    def _pinned(self, whole: str) -> str:
        return self.of.pinned(whole)

    def _changed(self, block: Block) -> Block:
        return block.projected(self.of)

    def _projected(self, of: Projection) -> DataRef:
        """Some of these columns."""
        return self.whole._projected(self.of.then(of))
