"""Rows that come in order only: they have no numbers until a storage keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

from ..rows.schema import Schema
from ..rows.types import Ints, Row
from .dataref import DataRef


class StreamedRef(DataRef):
    """Rows in order, to be iterated or submitted.

    Args:
        name: of the dataset, for messages.
        rows: begins to read them, as often as they are wanted; it pickles.
        schema: what a row looks like, if that is known.
        reason: such as "files that are compressed", which can be read in order only.
    """

    def __init__(
        self, name: str, rows: Callable[[], Iterator[Row]], schema: Schema | None, reason: str
    ) -> None:
        self.name, self.rows, self._schema, self._reason = name, rows, schema, reason

    def __len__(self) -> int:
        self._refuse()

    def take(self, rows: Ints) -> NoReturn:
        """Raises TypeError."""
        self._refuse()

    @property
    def schema(self) -> Schema | None:
        """How a row looks, if that is known."""
        return self._schema

    def __iter__(self) -> Iterator[Row]:
        return self.rows()

    def _title(self) -> str:
        return f"DataRef {self.name}"

    def _counted(self) -> str:
        return "rows in order only"

    @property
    def in_order_only(self) -> str:
        """Why rows have no numbers, for messages."""
        return f"{self.name}: {self._reason} can be read in order only, so their rows have no numbers"

    def _refuse(self) -> NoReturn:
        raise TypeError(f"{self.in_order_only}; submit them to a Storage, and use what that returns")
