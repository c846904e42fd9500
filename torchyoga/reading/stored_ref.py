"""Rows that are stored as columns, wherever that is: what is known of them before one is read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ..rows.block import Block, Rows
from ..rows.schema import Schema
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
