"""The columns of a block for a user's function, and what it returned as a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..errors import SchemaError
from ..rows.block import Block
from ..rows.collector import block_of
from ..rows.column import Column
from ..rows.data import Data
from ..rows.leaf import Leaf, encode
from ..rows.node import Node, path_name
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Row
from .ragged import RaggedColumn
from .scan import array_of, is_of_lengths, is_text, plain

__all__ = ["block_from", "columns_of"]

Given: TypeAlias = Array | RaggedColumn
_PYTHONS = {"int": "<i8", "float": "<f8", "bool": "|b1", "complex": "<c16"}


def columns_of(block: Block) -> dict[str, Given] | Given:
    """The columns of a block by name; the column itself, where a row is one value."""
    found = {
        column.name: _given(column, data, block.num_rows)
        for column, data in zip(block.schema.columns, block.data, strict=True)
    }
    return found[path_name(())] if block.schema.tree.kind == "leaf" else found


def _given(column: Column, data: Data, num_rows: int) -> Given:
    if is_of_lengths(column):
        return RaggedColumn(plain(column, data.values), np.diff(data.part("offsets")))
    return array_of(column, data, num_rows)


def block_from(returned: object, given: Mapping[str, Given] | Given, block: Block, where: str) -> Block:
    """What a function returned for the columns of a block.

    Args:
        returned: columns by name, or one column, whose values are the rows.
        given: what it was given.
        block: the block that was given.
        where: what was called, for messages.

    Raises:
        SchemaError: it is another number of rows, or cannot be kept.
    """
    if not isinstance(returned, Mapping):
        before = block.schema.columns[0] if block.schema.tree.kind == "leaf" else None
        column, data = _kept(path_name(()), returned, before, block.num_rows, where)
        return Block(Schema(Node("leaf"), (column,)), block.num_rows, (data,))
    known = {column.name: number for number, column in enumerate(block.schema.columns)}
    if block.schema.tree.kind == "leaf":
        known = {}
    made: dict[str, tuple[Column, Data]] = {}
    for name, value in returned.items():
        if not isinstance(name, str):
            raise SchemaError(f"{where} returned a column named {name!r:.80}; name columns by text")
        if name not in known:
            made[name] = _kept(path_name((name,)), value, None, block.num_rows, where)
            continue
        column, data = block.schema.columns[known[name]], block.data[known[name]]
        is_given = isinstance(given, Mapping) and value is given[name] and _is_own(column)
        made[name] = (column, data) if is_given else _kept(name, value, column, block.num_rows, where)
    if not made:
        raise SchemaError(f"{where} returned no columns")
    tree, names = _nested(block.schema, known, list(made), where)
    return Block(
        Schema(tree, tuple(made[name][0] for name in names)),
        block.num_rows,
        tuple(made[name][1] for name in names),
    )


def _is_own(column: Column) -> bool:
    """True for a column that is given as it lies in the block, so that changes in place are in it, too."""
    return not is_text(column) and (column.kind != "tensor" or hasattr(np, column.dtype))


def _nested(schema: Schema, known: Mapping[str, int], names: list[str], where: str) -> tuple[Node, list[str]]:
    """How the rows nest: known columns as before, new ones at the end of the outermost dict."""
    kept = [name for name in known if name in names]
    new = [name for name in names if name not in known]
    if not kept:
        return Node("dict", tuple(new), (Node("leaf"),) * len(new)), new
    tree = Projection.of(schema, kept).schema.tree
    if new and tree.kind != "dict":
        raise SchemaError(
            f"{where} returned the new columns {new}, but the rows are a {tree.kind}, whose values have no "
            f"names; its columns are {list(known)}"
        )
    nested = replace(tree, keys=(*tree.keys, *new), children=(*tree.children, *(Node("leaf"),) * len(new)))
    return nested, [*kept, *new]


def _kept(name: str, value: object, before: Column | None, num_rows: int, where: str) -> tuple[Column, Data]:
    """A returned value as a column of this name; of the kind that it had before, where it can be."""
    is_tensor = isinstance(value, torch.Tensor) or (before is not None and before.kind == "tensor")
    if isinstance(value, np.ndarray) and value.dtype.kind in "US" and value.ndim == 1:
        value = value.tolist()  # text, whose width may differ in the next batch
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        _check_rows(name, len(value), num_rows, where)
        ragged = _as_ragged(value)
        if ragged is None:
            return _listed(name, value, where)
        is_tensor |= type(value[0]) is torch.Tensor
        value = ragged
    if isinstance(value, RaggedColumn):
        _check_rows(name, len(value), num_rows, where)
        leaf = _encoded(name, value.values, is_tensor, where)
        return (
            Column(name, leaf.kind, leaf.dtype, None, 1),
            Data(leaf.array, value.offsets.astype("<i8", copy=False)),
        )
    if not isinstance(value, (np.ndarray, torch.Tensor)):
        raise SchemaError(
            f"{where} returned {value!r:.80} as {name!r}; return an array of {num_rows} rows, a tensor, a "
            "list or a yoga.RaggedColumn"
        )
    _check_rows(name, len(value) if value.ndim else 1, num_rows if value.ndim else -1, where)
    leaf = _encoded(name, value, is_tensor, where)
    shape = leaf.array.shape[1:]
    kind, dtype = leaf.kind, leaf.dtype
    if kind == "ndarray" and not shape:
        is_same = before is not None and _PYTHONS.get(before.kind) == leaf.array.dtype.str
        kind = before.kind if is_same and before is not None else "scalar"
    return Column(name, kind, dtype, shape, len(shape)), Data(leaf.array)


def _check_rows(name: str, found: int, num_rows: int, where: str) -> None:
    if found != num_rows:
        what = "a single value" if num_rows < 0 else f"{found} rows"
        raise SchemaError(
            f"{where} returned {what} in {name!r}; return as many rows as were given, and in their order"
        )


def _encoded(name: str, value: Array | torch.Tensor, is_tensor: bool, where: str) -> Leaf:
    """The values as they are kept."""
    if is_tensor and isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, np.ndarray):
        value = np.asarray(value)  # of a subclass
    try:
        return encode(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    except SchemaError as error:
        raise SchemaError(f"{where} returned {name!r}, which cannot be kept: {error}") from None


def _as_ragged(values: Sequence[Row] | npt.NDArray[np.object_]) -> RaggedColumn | None:
    """A list of arrays of one dimension; None for any other."""
    listed = [value.numpy() if type(value) is torch.Tensor else value for value in values]
    if not listed or not all(isinstance(value, np.ndarray) and value.ndim == 1 for value in listed):
        return None
    if len({value.dtype for value in listed}) > 1:
        return None
    return RaggedColumn(np.concatenate(listed), [len(value) for value in listed])


def _listed(name: str, values: Sequence[Row] | npt.NDArray[np.object_], where: str) -> tuple[Column, Data]:
    """Values of any kind, one for each row, such as text."""
    try:
        block = block_of(list(values))
    except SchemaError as error:
        raise SchemaError(f"{where} returned {name!r}, which cannot be kept: {error}") from None
    if block.schema.tree.kind != "leaf":
        raise SchemaError(f"{where} returned a list of {type(values[0]).__name__} as {name!r}; return arrays")
    return replace(block.schema.columns[0], name=name), block.data[0]
