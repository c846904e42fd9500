"""Epoch and index -> a batch of NumPy arrays, for trainers that ask for batches by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError
from ..order.contract import AnyOrder
from ..order.place import Place, Shard, positions
from ..reading.contract import Contract
from ..reading.stream import in_epoch
from ..rows.block import Block, Data
from ..rows.collate import fill_value
from ..rows.collector import block_of
from ..rows.column import Column
from ..rows.node import WRAPPERS, Node, Path, outermost, path_name
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Batch

_NUMBERS = ("int", "float", "bool", "complex", "scalar")
_ROWS_TO_LEARN = 64
_ROWS_AT_ONCE = 8192  # computing an order costs half a millisecond, however few rows are asked for


def sample_of(source: Contract) -> Block:
    """The first rows of a source as a block: it shows what all look like.

    Raises:
        ValueError: there are no rows.
    """
    if not len(source):
        raise ValueError("the dataset is empty, so no batch can be known; pass one with at least a row")
    return block_of(source.take(np.arange(min(_ROWS_TO_LEARN, len(source)))))


def with_arrays(schema: Schema) -> Schema:
    """The same columns, in which lists of numbers are arrays of one dimension."""
    columns = {column.name: column for column in schema.columns}

    def changed(node: Node, path: Path) -> Node:
        if node.kind == "varying" and node.children[0].kind == "leaf":
            column = columns[path_name(path)]
            if column.ndim == 1 and column.kind in _NUMBERS:
                columns[column.name] = replace(column, kind="ndarray")
            if column.ndim == 1 and column.kind in (*_NUMBERS, "ndarray", "tensor"):
                return node.children[0]
        if node.kind in WRAPPERS:
            return node
        pairs = zip(node.children, node.steps, strict=True)
        return replace(node, children=tuple(changed(child, (*path, *step)) for child, step in pairs))

    return Schema(changed(schema.tree, ()), tuple(columns.values()))


def refuse_wrapped(tree: Node, path: Path, where: str) -> None:
    """Raises SchemaError, which says what to do, if some values may be None, or are lists of no numbers."""
    for own, node in outermost(tree, path):
        name = path_name(own)
        if node.kind == "nullable":
            raise SchemaError(
                f"column {name!r} may be None, which {where} does not have; pass "
                f"ref.filled({{{name!r}: ...}}) or ref.masked([{name!r}]) instead of ref"
            )
        if node.kind == "varying":
            raise SchemaError(
                f"column {name!r} holds lists of text, lists, dicts or None, which {where} does not have; "
                "make arrays of them by ref.map(...), or leave the column out by ref.columns([...])"
            )


class NumberedBatches:
    """The batches of every epoch, by number: nothing in it moves, and it pickles.

    Args:
        source: gives rows by number.
        order: the order of all rows in every epoch; `shard`: which of them are this rank's.
        batch_size: rows of a batch B.
        drop_last: leave out a shorter last batch.
        fields: keys of rows that are dicts, which become a tuple in this order; None keeps the nesting.
        padding: what ragged rows are filled up with.

    Raises:
        SchemaError: a column cannot be an array of numbers; names it.
    """

    def __init__(
        self,
        source: Contract,
        order: AnyOrder,
        shard: Shard,
        batch_size: int,
        drop_last: bool,
        fields: Sequence[str | int] | None,
        padding: float | None,
    ) -> None:
        self._source, self.order, self._shard = source, order, shard
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._padding = padding
        self._known: tuple[tuple[Place, int] | None, npt.NDArray[np.int64]] = None, np.empty(0, np.int64)
        self._rows_schema: Schema = source.schema or sample_of(source).schema
        self._fields = _known(fields, with_arrays(self._rows_schema))
        if self._fields is None:
            self._of = Projection(self._rows_schema, tuple(range(len(self._rows_schema.columns))))
        else:
            self._of = Projection.of_keys(self._rows_schema, self._fields)
        self.schema = with_arrays(self._of.schema)
        refuse_wrapped(self.schema.tree, (), "Keras")
        for column in self.schema.columns:
            _check(column, padding)

    def ordered(self, order: AnyOrder) -> NumberedBatches:
        """These batches in another order."""
        found = copy(self)
        found.order, found._known = order, (None, np.empty(0, np.int64))
        return found

    def steps(self, start: Place) -> int:
        """How many batches an epoch has from `start` on."""
        return self._shard.steps(self.order.length, start.position, self.batch_size, self.drop_last)

    def batch(self, start: Place, index: int) -> Batch:
        """Batch `index` of those from `start` on: a dict or a tuple, as rows nest; lists become tuples."""
        source = in_epoch(self._source, start.epoch, self.order.seed)
        block = block_of(source.take(self._rows(start, index)), self._rows_schema).projected(self._of)
        columns = zip(self.schema.columns, block.data, strict=True)
        arrays = [_array(column, data, self._padding) for column, data in columns]
        whole = nested(self.schema.tree, iter(arrays))
        if self._fields is not None:
            return tuple(whole[key] for key in self._fields)
        if self.schema.tree.kind == "leaf":
            return (whole,)
        return whole if self.schema.tree.kind == "dict" else tuple(whole)

    def _rows(self, start: Place, index: int) -> npt.NDArray[np.int64]:
        """The rows of a batch; its neighbours' are computed with them, and kept until others are."""
        together = max(1, _ROWS_AT_ONCE // self.batch_size)
        key = start, index // together
        known, rows = self._known
        if known != key:
            first = key[1] * together * self.batch_size
            count = self._shard.count(self.order.length, start.position)
            last = min(first + together * self.batch_size, count)
            wanted = positions(start, self._shard, self.order.length, first, last)
            rows = self.order.rows(start.epoch, wanted)
            self._known = key, rows
        place = index % together * self.batch_size
        return rows[place : place + self.batch_size]


def _known(fields: Sequence[str | int] | None, schema: Schema) -> tuple[str | int, ...] | None:
    if fields is None:
        return None
    keys = schema.tree.keys if schema.tree.kind == "dict" else ()
    if isinstance(fields, str) or not fields or not set(fields) <= set(keys):
        has = f"dicts with the keys {list(keys)}" if keys else f"not dicts, but {schema.tree.kind}"
        raise ValueError(f"fields={fields!r} must be keys of the rows, as a tuple; these rows are {has}")
    return tuple(fields)


def _check(column: Column, padding: float | None) -> None:
    if column.kind != "none" and (
        column.kind.removeprefix("numpy.") in ("str", "bytes", "time", "decimal")
        or column.storage.kind in "SUMm"
    ):
        raise SchemaError(
            f"column {column.name!r} is not an array of numbers but {column.kind} {column.dtype}; leave it "
            "out with fields=, or cache what it is encoded to"
        )
    if not column.is_ragged:
        return
    if column.ndim > 1:
        raise SchemaError(
            f"column {column.name!r} has rows of different shapes, which no array holds; leave it out with "
            "fields="
        )
    if padding is None:
        raise SchemaError(
            f"column {column.name!r} has rows of different lengths; pass padding= to fill them up"
        )
    fill_value(column, padding)


def _array(column: Column, data: Data, padding: float | None) -> Array | None:
    if column.kind == "none":
        return None
    if column.is_ragged:
        lengths = np.diff(data.part("offsets"))
        assert padding is not None
        values = data.padded(int(lengths.max(initial=0)), fill_value(column, padding))
    else:
        values = data.values
    return as_numpy(column, values)


def as_numpy(column: Column, values: Array) -> Array:
    """The values of a column for other frameworks: in this machine's byte order, bits as numbers."""
    if column.kind == "tensor" and column.dtype != column.storage.name:
        import ml_dtypes  # comes with Keras; NumPy itself has no such numbers

        return values.view(getattr(ml_dtypes, column.dtype))
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def nested(node: Node, leaves: Iterator[Batch]) -> Batch:
    """Leaves nested as a row is; lists become tuples, because frameworks take a list for one tensor."""
    if node.kind == "leaf":
        return next(leaves)
    children = [nested(child, leaves) for child in node.children]
    if node.kind == "dict":
        return dict(zip(node.keys, children, strict=True))
    return tuple.__new__(node.row_type if node.kind == "namedtuple" else tuple, children)
