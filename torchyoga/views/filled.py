"""Values, or masks, in place of None."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..errors import SchemaError
from ..process.digests import hexdigest
from ..reading.contract import known_schema
from ..reading.dataref import DataRef
from ..rows.block import Block, Data, bounds_of
from ..rows.collate import fill_value
from ..rows.collector import block_of
from ..rows.column import Column
from ..rows.node import Node, Path, path_name
from ..rows.schema import Schema, schema_under, unknown_column
from ..rows.types import Array
from .over import ChangedBlocks

_LEAF = Node("leaf")
_FLOATS = 2**1023  # ints below it become floats


class _Origin(NamedTuple):
    """Where a column comes from.

    Attributes:
        number: of the column in the whole.
        valid: of the column that says where it is not None, if what is None gets a value.
        fill: that value, as it is stored, (1, ...); None if what is None stays 0 or empty.
    """

    number: int
    valid: int | None = None
    fill: Data | None = None


def filled(ref: DataRef, values: Mapping[str, object]) -> DataRef:
    """The same rows with values in place of None, so that the columns become tensors in batches.

    Args:
        values: a value for each column, by name, of the column's own type, such as [] for a list.

    Raises:
        KeyError: there is no such column.
        ValueError: a column cannot hold its value.

    Example:
        >>> ref = storage.submit([{"age": 40}, {"age": None}], "ages", "1")
        >>> [row["age"] for row in ref.filled({"age": -1})]
        [40, -1]
    """
    if not isinstance(values, Mapping) or not values:
        raise TypeError(
            f"filled takes a value for each of some columns, {{'label': -1}}, found {values!r:.80}"
        )
    return _changed(ref, dict(values), ())


def masked(ref: DataRef, names: Sequence[str] | None = None) -> DataRef:
    """The same rows with 0 or an empty value in place of None, and a column of bools that says which rows
    have one.

    Args:
        names: columns of rows that are dicts, by default all that may be None; the bools of "age" are
            "age_is_valid".

    Raises:
        KeyError: there is no such column.
        ValueError: there is a column of that name already.

    Example:
        >>> ref = storage.submit([{"age": 40}, {"age": None}], "more-ages", "1")
        >>> list(ref.masked())
        [{'age': 40, 'age_is_valid': True}, {'age': 0, 'age_is_valid': False}]
    """
    if isinstance(names, str):
        raise TypeError(f"columns are named by a list, as in masked([{names!r}])")
    return _changed(ref, {}, None if names is None else list(names))


def _changed(ref: DataRef, values: dict[str, object], masks: Collection[str] | None) -> DataRef:
    schema = known_schema(ref)
    if schema is None:
        return ref  # of a version without rows nothing is known
    plan = _Filling(schema, values, masks)
    return FilledRef(ref, plan.schema, plan.parts, [values, None if masks is None else sorted(masks)])


class _Filling:
    """The change of each column.

    Args:
        schema: of the rows.
        values: in place of None, by name.
        masks: names of columns that get a mask besides; None for all that may be None.
    """

    def __init__(self, schema: Schema, values: Mapping[str, object], masks: Collection[str] | None) -> None:
        self._whole = schema
        self._values = values
        self._masks = masks
        self._left = {*values, *(masks or ())}
        self.parts: list[_Origin] = []
        tree = self._visited(schema.tree, (), 0)
        for name in self._left:
            raise unknown_column(schema, name)
        columns = (schema.columns[part.number] for part in self.parts)
        # Packs stay packs.
        self.schema = replace(schema_under(tree, columns), packed=schema.packed, layout=schema.layout)

    def _visited(self, node: Node, path: Path, first: int) -> Node:
        """A node as it becomes; adds its columns. `first` is the number of the first of them."""
        name = path_name(path)
        if path or node.kind not in ("dict", "list", "tuple", "namedtuple"):
            self._left.discard(name)
        if node.kind == "leaf":
            self.parts.append(_Origin(first))
            return node
        if node.kind == "nullable" and name in self._values:
            return self._filled(node, name, first)
        item = node.children[0] if node.kind == "varying" else node
        if node.kind == "varying" and item.kind == "nullable" and name in self._values:
            found = self._filled(item, name, first)
            self.parts += [_Origin(first + item.num_leaves)] * (len(node.children) - 1)
            return replace(node, children=(found, *node.children[1:]))
        masks: list[tuple[str, int]] = []
        children = []
        for step, key, child in zip(
            node.steps, node.keys or range(len(node.children)), node.children, strict=True
        ):
            if node.kind == "dict" and child.kind == "nullable" and self._is_masked((*path, *step)):
                self._left.discard(path_name((*path, *step)))
                masks.append((self._mask_name(node, key, path), first + child.num_leaves - 1))
                children.append(self._visited(child.children[0], (*path, *step), first))
            else:
                children.append(self._visited(child, (*path, *step), first))
            first += child.num_leaves
        if node.kind == "nullable" and self._masks is not None and name in self._masks:
            raise ValueError(f"{name!r} has no name of its own in a dict, so its mask has none; use filled")
        self.parts += [_Origin(number) for _, number in masks]
        keys = (*node.keys, *(mask for mask, _ in masks)) if masks else node.keys
        return replace(node, keys=keys, children=(*children, *(_LEAF for _ in masks)))

    def _is_masked(self, path: Path) -> bool:
        name = path_name(path)
        return name not in self._values and (self._masks is None or name in self._masks)

    def _mask_name(self, node: Node, key: str | int, path: Path) -> str:
        name = f"{key}_is_valid"
        if name in node.keys:
            raise ValueError(
                f"the mask of {path_name((*path, key))!r} is called {name!r}, and there is such a column "
                "already; leave one of the two out, by columns(...)"
            )
        return name

    def _in_list(self, first: int) -> bool:
        """True if the bools of a value that may be None, whose column is this, are those of lists' items."""
        return self._whole.columns[first + 1].is_ragged

    def _filled(self, node: Node, name: str, first: int) -> Node:
        """A node that may be None, when it has a value instead."""
        child = node.children[0]
        column = self._whole.columns[first]
        if child.kind == "texts" or (child.kind == "leaf" and column.ndim != 1 and self._in_list(first)):
            raise ValueError(f"{name!r} holds lists of text or arrays, whose items are not filled; use map")
        valid = first + child.num_leaves
        found: tuple[Data, ...]
        if child.kind == "leaf":
            found = (_stored(column, name, self._values[name], self._whole.columns[valid]),)
        elif self._whole.columns[valid].is_ragged:
            raise ValueError(
                f"{name!r} holds lists, dicts or tuples within lists, which are not filled; use map"
            )
        else:
            found = _row(child, self._whole.columns[first:valid], name, self._values[name])
        self.parts += [_Origin(first + nth, valid, fill) for nth, fill in enumerate(found)]
        return child


def _stored(column: Column, name: str, value: object, valid: Column) -> Data:
    """A value as a row of a column, or as an item if `valid`'s are; ValueError if it cannot be one."""
    words = column.meaning.words
    if words is not None and isinstance(value, str):
        if value not in words:
            raise ValueError(f"{value!r} is not one of the words of {name!r}: {', '.join(words)[:200]}")
        value = words.index(value)
    if column.kind == "float" and type(value) is not bool and isinstance(value, (int, np.integer)):
        value = value if abs(int(value)) >= _FLOATS or float(value) != value else float(value)
    if column.shape is not None and column.kind in ("ndarray", "scalar", "tensor"):
        if column.storage.kind in "mM":
            kept: Array = np.array(value, column.storage)
        else:
            kept = np.asarray(fill_value(replace(column, name=name), value, ""))  # type: ignore[arg-type]
        return Data(np.broadcast_to(kept, (1, *column.shape)))
    if not valid.is_ragged:
        if column.kind == "ndarray" and isinstance(value, (list, tuple)):
            value = _array(value, name, column)
        return _row(_LEAF, [column], name, value)[0]
    # the items of lists
    if column.kind == "scalar" and column.storage.kind not in "mM":
        value = fill_value(replace(column, name=name), value, "")  # type: ignore[arg-type]
    return _row(Node("varying", (), (_LEAF,)), [column], name, [value])[0]


def _array(values: Sequence[object], name: str, column: Column) -> Array:
    """A list of numbers as an array of a column's dtype."""
    given = np.asarray(values)
    if not given.size and given.ndim == column.ndim:
        return np.empty(given.shape, column.storage)
    found = given.astype(column.storage) if given.dtype.kind in "bif" else None
    if found is None or not np.array_equal(found, given):
        raise ValueError(f"filled({{{name!r}: {values!r:.80}}}): expected numbers of {column.dtype}")
    return found


def _row(tree: Node, columns: Sequence[Column], name: str, value: object) -> tuple[Data, ...]:
    """A value as a row of some columns; ValueError if it cannot be one."""
    schema = schema_under(tree, columns)
    try:
        return block_of([value], schema).data
    except SchemaError as error:
        what = str(error).partition("column 'value': ")[2] or str(error)
        raise ValueError(f"filled({{{name!r}: {value!r:.80}}}): {what}") from None


class FilledRef(ChangedBlocks):
    """The rows of another DataRef, in which something is no longer None.

    Args:
        whole: the other DataRef.
        schema: what its rows become.
        parts: where each column comes from.
        name: what is done, as plain data.
    """

    def __init__(self, whole: DataRef, schema: Schema, parts: Sequence[_Origin], name: object) -> None:
        super().__init__(whole, schema, parts, name)
        self._schema = schema
        self._parts = parts
        self._name = name

    def _changed(self, block: Block) -> Block:
        return Block(self._schema, block.num_rows, tuple(_part(block, part) for part in self._parts))

    def _pinned(self, whole: str) -> str:
        return hexdigest(json.dumps([whole, "filled", self._name, self._schema.to_json()], default=repr))

    def _title(self) -> str:
        return f"{super()._title()} without None"


def _part(block: Block, part: _Origin) -> Data:
    data = block.data[part.number]
    if part.valid is None or part.fill is None:
        return data
    valid = block.data[part.valid].values
    if valid.all():
        return data
    are_items = block.data[part.valid].offsets is not None  # of lists, one after the other
    if data.offsets is None or are_items:
        values = data.values.copy()
        values[~valid] = part.fill.values[0]
        return Data(values, data.offsets, data.shapes)
    lengths = np.where(valid, np.diff(data.offsets), len(part.fill.values))
    offsets = bounds_of(lengths).astype("<i8", copy=False)
    values = np.empty(int(offsets[-1]), data.dtype)
    of_filled = np.repeat(~valid, lengths)
    values[of_filled] = np.tile(part.fill.values, int((~valid).sum()))
    values[~of_filled] = data.values  # what is None has no values
    if data.shapes is None or part.fill.shapes is None:
        return Data(values, offsets)
    return Data(values, offsets, np.where(valid[:, None], data.shapes, part.fill.shapes))
