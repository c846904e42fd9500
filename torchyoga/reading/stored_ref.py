"""Rows that are stored elsewhere as columns, wherever these are."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import spread
from ..rows.block import Block, Data, Rows
from ..rows.schema import Projection, Schema
from ..rows.types import Ints, Row
from .dataref import DataRef


class StoredRef(DataRef):
    """Rows that are stored as columns; a subclass says how a block of them is gathered.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
    """

    is_thread_safe = True

    def __init__(self, name: str, schema: Schema, length: int) -> None:
        self._name, self._schema, self._length = name, schema, length

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        return Rows(self._block(rows)) if len(rows) else []

    @abstractmethod
    def _block(self, rows: Ints) -> Block:
        """The rows of these numbers (B,), at least one."""

    @property
    def schema(self) -> Schema:
        """How a row looks."""
        return self._schema

    def _title(self) -> str:
        return f"DataRef {self._name}"


_TEXT = 100  # bytes of a ragged value, where they are not known


class ColumnsRef(StoredRef):
    """Rows over columns that stay where they are, such as arrays in memory or in a file of any format.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
        columns: for each column of the schema, a function of row numbers (B,) that gives those rows.
        remade: a function and its arguments that make this DataRef anew, for pickling.
        has_runs: whether the functions take a slice of rows, too, and give these without a copy.
    """

    def __init__(
        self,
        name: str,
        schema: Schema,
        length: int,
        columns: Sequence[Callable[[Ints | slice], Data]] | Sequence[Callable[[Ints], Data]],
        remade: tuple[Callable[..., DataRef], tuple[object, ...]],
        has_runs: bool = False,
    ) -> None:
        super().__init__(name, schema, length)
        self._columns = columns
        self._remade = remade
        self._has_runs = has_runs
        self._of: tuple[ColumnsRef, Projection] | None = None  # what it is made of, if it is projected

    @property
    def _keeps_rows(self) -> bool:
        """False: each batch is gathered anew."""
        return False

    @property
    def _only_copies(self) -> bool:
        """True for arrays; other columns may have to be decoded."""
        return self._has_runs

    def _block(self, rows: Ints) -> Block:
        return Block(self._schema, len(rows), tuple(column(rows) for column in self._columns))

    def run(self, start: int, stop: int) -> Block:
        """The rows start..stop-1, over the memory where they lie if they do: nobody may write into it."""
        rows: Any = slice(start, stop) if self._has_runs else np.arange(start, stop)
        return Block(self._schema, stop - start, tuple(column(rows) for column in self._columns))

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; the others are not touched."""
        if self._of is not None:
            whole, first = self._of
            return whole._projected(first.then(of))
        columns = [self._columns[number] for number in of.columns]
        remade = projected_again, (*self._remade, of)
        found = ColumnsRef(self._name, of.schema, self._length, columns, remade, self._has_runs)
        found._of = self, of
        return found

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row, as far as its schema says."""
        return sum(column.row_bytes if not column.is_ragged else _TEXT for column in self._schema.columns)

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of its schema, its length and 64 rows spread over it."""
        if self._of is not None:
            whole, of = self._of
            if of.in_schema_order is not of:  # the content is the same
                return whole._projected(of.in_schema_order).fingerprint
        parts: list[str | bytes] = [f"{len(self)} {json.dumps(self._schema.to_json())}"]
        rows = spread(len(self), 64)
        if len(rows):
            for column, take in zip(self._schema.columns, self._columns, strict=True):
                data = take(rows)
                parts += [np.ascontiguousarray(data.part(part)).tobytes() for part in column.parts]
        return hexdigest(*parts)

    def __reduce__(self) -> tuple[object, ...]:
        return self._remade


def projected_again(remake: Callable[..., DataRef], arguments: tuple[object, ...], of: Projection) -> DataRef:
    """Some columns of a DataRef that a function makes anew, for pickling."""
    return remake(*arguments)._projected(of)
