"""Parquet's columns -> the columns of our blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from ...rows.block import Block
from ...rows.schema import Schema
from ..arrow import Decimals, plan_of

__all__ = ["Conversion", "Options"]


class Conversion(Protocol):
    """Turns tables of one Arrow schema into blocks of one of ours."""

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""

    def block(self, table: pa.Table, where: str) -> Block:
        """The rows of a table; `where` they lie, for messages.

        Raises:
            SchemaError: there are nulls, or words, where none are expected.
            CorruptError: values contradict their type.
        """


@dataclass(frozen=True)
class Options:
    """How Arrow's columns are converted.

    Attributes:
        nulls: the places that may be null, and how many are, as far as is known.
        words: what the codes of dictionaries stand for.
        decimals: what becomes of decimals of more than 18 digits.
        are_codes: True if dictionaries of words become codes, False if they become text.
        int96_unit: of times of 96 bits: "s", "ms", "us" or "ns".
    """

    nulls: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    decimals: Decimals = "error"
    are_codes: bool = True
    int96_unit: str = "ns"

    def conversion(self, fields: pa.Schema) -> Conversion:
        """The conversion of these fields."""
        return plan_of(fields, self.nulls, self.words, self.decimals)
