"""A DataRef over columns that stay where they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..process.lazy import cached_property
from ..rows.block import Block, Rows
from ..rows.data import Data
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Row
from .dataref import DataRef

__all__ = ["ColumnsRef"]

Ints = npt.NDArray[np.int64]
_TEXT = 100  # bytes of a ragged value, where they are not known


class ColumnsRef(DataRef):
    """Rows over columns that stay where they are, such as arrays in memory or in a file of any format.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
        columns: for each column of the schema, a function of row numbers (B,) that gives those rows.
        remade: a function and its arguments that make this DataRef anew, for pickling.
    """

    is_thread_safe = True

    def __init__(
        self,
        name: str,
        schema: Schema,
        length: int,
        columns: Sequence[Callable[[Ints], Data]],
        remade: tuple[Callable[..., DataRef], tuple[object, ...]],
    ) -> None:
        self._name = name
        self._schema = schema
        self._length = length
        self._columns = columns
        self._remade = remade

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        if not len(rows):
            return []
        return Rows(Block(self._schema, len(rows), tuple(column(rows) for column in self._columns)))

    def projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; the others are not touched."""
        columns = [self._columns[number] for number in of.columns]
        return ColumnsRef(self._name, of.schema, self._length, columns, (_projected, (*self._remade, of)))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, as far as its schema says."""
        return sum(column.row_bytes if not column.is_ragged else _TEXT for column in self._schema.columns)

    @property
    def schema(self) -> Schema:
        """What a row looks like."""
        return self._schema

    @cached_property
    def fingerprint(self) -> str:
        """A name for the content, made of its schema, its length and 64 rows spread over it."""
        found = hashlib.blake2b(f"{len(self)} {json.dumps(self._schema.to_json())}".encode(), digest_size=16)
        rows = np.unique(np.linspace(0, len(self) - 1, min(64, len(self))).astype(np.int64))
        if len(rows):
            for column, take in zip(self._schema.columns, self._columns, strict=True):
                data = take(rows)
                for part in column.parts:
                    found.update(np.ascontiguousarray(data.part(part)).tobytes())
        return found.hexdigest()

    def __repr__(self) -> str:
        return f"<DataRef {self._name}: {len(self)} rows; {', '.join(map(str, self._schema.columns))}>"

    def __reduce__(self) -> tuple[object, ...]:
        return self._remade


def _projected(remake: Callable[..., DataRef], arguments: tuple[object, ...], of: Projection) -> DataRef:
    return remake(*arguments).projected(of)
