"""Rows of datasets that others have written: what DataRefs of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..process.lazy import cached_property
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Ints, Numbers, Row
from .dataref import DataRef

__all__ = ["ForeignRef", "ForeignRows"]


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

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        return self._with(of if self._of is None else self._of.then(of))

    @abstractmethod
    def _with(self, of: Projection) -> DataRef:
        """The same rows with these columns of all."""

    @property
    def _keeps_rows(self) -> bool:
        """False: each batch is gathered anew."""
        return False

    @property
    def _only_copies(self) -> bool:
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
