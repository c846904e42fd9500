"""The rows of another DataRef, with a column that has one number for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...errors import SchemaError
from ...process.digests import hexdigest
from ...reading.dataref import DataRef
from ...rows.block import Block, Rows
from ...rows.collector import block_of
from ...rows.column import Column
from ...rows.data import Data
from ...rows.node import Node, path_name
from ...rows.projection import Projection
from ...rows.schema import Schema
from ...rows.types import Ints, Row
from ..over import ChangedBlocks, ProjectedRef


class NumberedRef(ChangedBlocks):
    """The rows of another DataRef, and a number: of the source that it is of a mixture.

    Args:
        whole: the other DataRef; its rows are dicts.
        column: the name of the column that is added.
        number: of all rows.
    """

    def __init__(self, whole: DataRef, column: str, number: int) -> None:
        super().__init__(whole, column, number)
        self._column, self._number = column, number
        check_column(whole.schema, column)
        assert whole.schema is not None, "that was checked"
        self._schema = with_column(whole.schema, column)

    def _changed(self, block: Block) -> Block:
        numbers = Data(np.full(block.num_rows, self._number))
        return Block(self._schema, block.num_rows, (*block.data, numbers))

    def _projected(self, of: Projection) -> DataRef:
        """Some columns; of the whole only these are read."""
        assert self.whole.schema is not None, "that was checked"
        own = len(self.whole.schema.columns)
        if own not in of.columns:
            return self.whole._projected(of)
        names = [self.schema.columns[number].name for number in of.columns if number != own]
        if not names or of.columns[-1] != own or of.schema.tree.kind != "dict":
            return ProjectedRef(self, of)
        return self.over(self.whole._projected(Projection.of(self.whole.schema, names)))

    def _pinned(self, whole: str) -> str:
        return hexdigest(f"{whole} numbered {self._number} {self._column}")


def check_column(schema: Schema | None, name: str) -> None:
    """Raises SchemaError if rows have no place for one more column of a name."""
    if schema is None:
        raise SchemaError(
            f"source_column={name!r} needs sources that say what their rows look like; give map a schema"
        )
    if schema.tree.kind != "dict":
        raise SchemaError(f"source_column={name!r} needs rows that are dicts, found a {schema.tree.kind}")
    if name in schema.tree.keys:
        raise SchemaError(f"the sources have a column {name!r} already; give source_column= another name")


def with_column(schema: Schema, name: str) -> Schema:
    """A schema with an int64 column at the end of its outermost dict."""
    tree = schema.tree
    widened = replace(tree, keys=(*tree.keys, name), children=(*tree.children, Node("leaf")))
    column = Column(path_name((name,)), "int", "<i8", (), 0)
    return Schema(widened, (*schema.columns, column), schema.packed)


def with_numbers(rows: Sequence[Row], schema: Schema | None, name: str, numbers: Ints) -> Sequence[Row]:
    """Rows with one more column, of numbers.

    Args:
        rows: (B,)
        schema: what they look like.
        name: of the column.
        numbers: (B,) its values.
    """
    if not len(numbers):
        return rows
    block = block_of(rows, schema)
    return Rows(Block(with_column(block.schema, name), block.num_rows, (*block.data, Data(numbers))))
