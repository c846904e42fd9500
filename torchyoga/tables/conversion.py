"""What Parquet's columns become: the columns of our blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from ..rows.block import Block
from ..rows.schema import Schema
from .simple import Conversion as ArrowConversion

__all__ = ["Conversion", "Nulls", "Options"]

Nulls = object


class Conversion(Protocol):
    """Turns tables of one Arrow schema into blocks of one of ours."""

    schema: Schema

    def block(self, table: pa.Table, where: str) -> Block:
        """The rows of a table; `where` they lie, for messages."""


@dataclass(frozen=True)
class Options:
    """How Arrow's columns are converted; see `from_parquet`."""

    nulls: Nulls = "nullable"
    words: bool = False

    def conversion(self, fields: pa.Schema, nulls: Sequence[int | None]) -> Conversion:
        """The conversion of these fields, of which so many values are null."""
        return ArrowConversion(fields)
