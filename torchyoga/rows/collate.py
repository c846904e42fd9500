"""Rows of a block -> tensors: what default_collate gives, and batches of ragged rows.

`default_collate` finds the block through the type of the first row.
It does so by torch's own table of collate functions; a collate function of the user's sees ordinary rows.

No tensor holds times, decimals or None. Times become counts of their unit and decimals floats, wherever they
are; None is an error that names the column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice, starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from ..errors import SchemaError
from ..process.copies import ALONE_ELEMENTS, undivided
from . import block as blocks
from .block import Block, Data, RowPack, Rows
from .collector import block_of
from .column import ENCODE, PLAIN, TEXT_KINDS, Column
from .learning import split
from .node import VALID, WRAPPERS, Node, Path, path_name, readable_name
from .schema import PACK_LENGTHS, Schema
from .types import Array, Batch, Ints, Row

_TORCH_TYPES = {"|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8"}
_TORCH_TYPES |= {"<f2", "<f4", "<f8", "<c8", "<c16"}
_TENSOR_KINDS = ("ndarray", "scalar", "tensor", "int", "float", "bool", "complex")


def _collate_rows(batch: Sequence[Row], *, collate_fn_map: object = None) -> Batch:
    """The batch that `default_collate` gives for rows, made from their block without taking it apart."""
    if not isinstance(batch, Rows):
        # The rows were picked out of their batch; they are ordinary rows then.
        plain = [blocks.plain_row(row) for row in batch]
        if type(batch[0]) is not RowPack:
            return stacked(plain)
        batch = Rows(block_of(plain, batch[0].schema))
    if batch.block.schema.packed:
        return _flat(batch.block, [(0, len(batch))])[0]
    return _nested(batch.block, _Way(partial(_collate_column, num_rows=len(batch)), _stacked_lists))


def _collate_values(batch: Sequence[Row], *, collate_fn_map: object = None) -> Batch:
    """The batch of values that torch alone refuses: times and decimals, of a DataRef or of any dataset."""
    if isinstance(batch, Rows):
        return _collate_rows(batch)
    if len(types := {type(value).__name__ for value in batch}) > 1:
        raise TypeError(f"default_collate: values of {', '.join(sorted(types))} make no tensor together")
    try:
        return _collate_rows(Rows(block_of(batch)))
    except SchemaError as error:
        raise TypeError(f"default_collate: {error}") from error


def stacked(
    batch: Batch, found: str = "the rows differ in shape", functions: Mapping[Any, Any] | None = None
) -> Batch:
    """The values as `default_collate` gives them.

    Args:
        batch: rows, or values of a column.
        found: what to say of them where torch says that they do not fit together.
        functions: what collates values of each type; None for `default_collate`'s.
    """
    if functions is None:
        functions = default_collate_fn_map
        if functions[torch.Tensor] is collate_tensor_fn:  # no other was registered
            functions = {**functions, torch.Tensor: _stacked_tensors}
    try:
        return collate(batch, collate_fn_map=functions)  # type: ignore[arg-type]
    except RuntimeError as error:
        is_ours = _HINT in str(error)
        if is_ours or type(error) is not RuntimeError or not any(part in str(error) for part in _OF_TORCH):
            raise
        raise RuntimeError(
            f"{found}, and default_collate stacks only rows of one shape; {_HINT}, or your own function: "
            f"{error}"
        ) from error


def _stacked_tensors(
    batch: list[torch.Tensor] | tuple[torch.Tensor, ...], *, collate_fn_map: Any = None
) -> torch.Tensor:
    """The tensors as one, as torch stacks them, but without a team of threads: see `process.copies`."""
    first = batch[0]
    is_divided = not first.is_nested and first.numel() >= ALONE_ELEMENTS and torch.get_num_threads() > 1
    with undivided() if is_divided else contextlib.nullcontext():
        found: torch.Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return found


_HINT = "pass collate_fn=torchyoga.padded() or torchyoga.jagged to the loader"
# In a worker process torch stacks into memory of the first row's size times the rows.
_OF_TORCH = ("to be equal size", "be of equal size", "not resizable")


class _Wrapped(NamedTuple):
    """A wrapper in the tree of a block, with its columns."""

    node: Node
    path: Path
    pieces: list[tuple[Column, Data]]
    num_rows: int

    @property
    def values(self) -> list[Row]:
        """The values that went in, times and decimals as numbers."""
        return blocks.node_values(self.node, starmap(_as_numbers, self.pieces), self.num_rows)


class _Way(NamedTuple):
    """Columns and lists of varying length in a batch; the bool says whether they lie in a dict."""

    of_column: Callable[[Column, Data, bool], Batch]
    of_list: Callable[[_Wrapped, bool], Batch]


def _nested(block: Block, way: _Way) -> Batch:
    """The nesting of the rows over what becomes of each column, or of what is in a wrapper."""
    pieces = zip(block.schema.columns, block.data, strict=True)
    return _of_node(block.schema.tree, (), pieces, block.num_rows, True, way)


def _of_node(
    node: Node, path: Path, pieces: Iterator[tuple[Column, Data]], num_rows: int, in_dict: bool, way: _Way
) -> Batch:
    if node.kind == "leaf":
        return way.of_column(*_as_numbers(*next(pieces)), in_dict)
    if node.kind in WRAPPERS:
        found = _Wrapped(node, path, list(islice(pieces, node.num_leaves)), num_rows)
        return way.of_list(found, in_dict) if node.kind == "varying" else _of_nullable(found, in_dict, way)
    children = [
        _of_node(child, (*path, *step), pieces, num_rows, node.kind == "dict", way)
        for step, child in zip(node.steps, node.children, strict=True)
    ]
    return _container(node, children)


def _container(node: Node, children: list[Batch]) -> Batch:
    """The batch of a container over those of its children: a list for a tuple, too."""
    if node.kind == "dict":
        return dict(zip(node.keys, children, strict=True))
    return tuple.__new__(node.row_type, children) if node.kind == "namedtuple" else children


def _as_numbers(column: Column, data: Data) -> tuple[Column, Data]:
    """A column as tensors hold it: times and timedeltas are counts of their unit, decimals are floats."""
    if column.kind not in ("time", "decimal") and column.storage.kind not in "mM":
        return column, data
    scale = column.meaning.scale
    values = data.values.astype(np.int64, copy=False) if scale is None else data.values / 10**scale
    return _number_column(column), Data(values, data.offsets, data.shapes)


@lru_cache(maxsize=256)
def _number_column(column: Column) -> Column:
    """The column of the numbers that times, timedeltas or decimals become."""
    kind, dtype = ("int", "<i8") if column.meaning.scale is None else ("float", "<f8")
    return replace(column, kind="ndarray" if column.kind == "ndarray" else kind, dtype=dtype, meaning=PLAIN)


def _of_nullable(found: _Wrapped, in_dict: bool, way: _Way) -> Batch:
    """Values of a batch some of which may be None."""
    child, (column, _), valid = found.node.children[0], found.pieces[0], found.pieces[-1][1].values
    if child.kind == "leaf" and column.kind in TEXT_KINDS:
        return found.values if in_dict else tuple(found.values)  # as in `_collate_column`
    if not valid.all():
        name = path_name(found.path)
        raise TypeError(
            f"column {name!r} is None in {int((~valid).sum())} of these {len(valid)} rows, which no tensor "
            f"can hold; {_filled(name, column) + ', ' if child.kind == 'leaf' else ''}"
            f"ref.masked([{name!r}]) gives a mask besides"
        )
    return _of_node(child, found.path, iter(found.pieces), found.num_rows, in_dict, way)


def _filled(name: str, column: Column) -> str:
    """The advice to put values in the place of None."""
    value = "..." if column.storage.kind in "mM" or column.kind in ("time", "decimal") else "0"
    return f"ref.filled({{{name!r}: {value}}}) puts a value in its place"


def _stacked_lists(found: _Wrapped, in_dict: bool) -> Batch:
    """The batch that default_collate gives for lists, which must have one length."""
    _refuse_none(found)
    listed = found.values if in_dict else tuple(found.values)  # as in `_collate_column`
    text_or_none = {**default_collate_fn_map, type(None): lambda values, **_: values}
    return stacked(listed, f"the lists in {path_name(found.path)!r} differ in length", text_or_none)


def _refuse_none(found: _Wrapped) -> None:
    """Raises TypeError, naming the column, where lists hold None; text may be None."""
    texts = {column.name for column, _ in found.pieces if column.kind in TEXT_KINDS}
    child, before = found.node.children[0], found.pieces[0][0]
    for column, data in found.pieces:
        name = column.name.removesuffix(VALID)
        has_none = name != column.name and name not in texts and not data.values.all()
        if (column.kind == "none" and data.part("shapes")[:, 0].any()) or (
            has_none and before.kind == "none"
        ):
            raise _always_none(before if has_none else column)
        if has_none:
            is_flat = child.kind == "nullable" and child.children[0].kind == "leaf"
            name = readable_name(name)
            advice = _filled(name, before) if is_flat else "ref.map puts values in its place"
            raise TypeError(
                f"column {name!r} has None in {int((~data.values).sum())} of the {len(data.values)} items of "
                f"its lists, which no tensor can hold; {advice}"
            )
        before = column


def _always_none(column: Column) -> TypeError:
    return TypeError(
        f"column {readable_name(column.name)!r} is always None, which no tensor can hold; leave it out by "
        "ref.columns([...])"
    )


def _collate_column(column: Column, data: Data, in_dict: bool, num_rows: int) -> Batch:
    if column.kind == "none":
        raise _always_none(column)
    shape = _shape_of_all(column, data) if column.is_ragged else data.values.shape[1:]
    if shape is not None and column.kind in _TENSOR_KINDS and column.storage.str in _TORCH_TYPES:
        return _tensor(data.values.reshape(num_rows, *shape), _bits_dtype(column))
    listed = blocks.leaf_values(column, data, num_rows)
    # Inside a tuple default_collate passes on the tuples that zip() makes, inside a dict lists.
    batch: Batch = listed if in_dict else tuple(listed)
    return stacked(batch, f"column {column.name!r} is ragged")


def _shape_of_all(column: Column, data: Data) -> tuple[int, ...] | None:
    """The shape of ragged arrays that happen to be of one; None if they are not."""
    if column.kind not in ("ndarray", "tensor"):
        return None
    shapes = np.diff(data.part("offsets"))[:, None] if data.shapes is None else data.shapes
    is_one = bool((shapes == shapes[0]).all())
    return tuple(n for n in shapes[0].tolist() if n >= 0) if is_one else None  # -1 where others have more


class _Piece(NamedTuple):
    """A column of packs, to be cut into batches.

    Attributes:
        values: of all packs.
        of: what it has a value for: "tokens", "documents" or "packs".
    """

    values: Batch
    of: str

    def cut(self, start: int, stop: int) -> Batch:
        """The values start..stop-1."""
        if not isinstance(self.values, Jagged):
            return self.values[start:stop]
        offsets = self.values.offsets[start : stop + 1]
        return Jagged(self.values.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _flat(block: Block, bounds: Sequence[tuple[int, int]]) -> list[Batch]:
    """Batches of packs: the tokens of all documents end to end, and what is known of each document.

    They have `cu_seqlens`, where each document begins, `max_seqlen`, and `packs`, the number of the first
    document of each pack. Of packs of one width these are for the tokens of all, end to end, and what a pack
    is filled up with is one more document at its end; such batches keep the lengths of documents.
    """
    schema = block.schema
    by_token = frozenset(schema.packed)
    tree = _nested(block, _Way(partial(_flat_column, by_token), _flat_list))
    number = [column.name for column in schema.columns].index(PACK_LENGTHS)
    lengths, packs = block.data[number].values, block.data[number].part("offsets")
    ends = blocks.bounds_of(lengths)
    width = max(
        (column.shape[0] for column in schema.columns if column.shape and column.name in by_token), default=0
    )
    found = []
    for start, stop in bounds:
        first, last = packs[[start, stop]].tolist()
        own = ends[first : last + 1] - ends[first]
        cuts = {"packs": (start, stop), "documents": (first, last)}
        cuts["tokens"] = tuple(ends[[first, last]].tolist())
        batch = _cut(tree, cuts)
        if width:
            own = _filled_ends(own, packs[start : stop + 1] - first, width)
        else:
            del batch[PACK_LENGTHS]
            if "document_ids" in batch:  # of all packs
                batch["document_ids"] = torch.from_numpy(np.repeat(np.arange(last - first), np.diff(own)))
        if int(own[-1]) > _MOST_TOKENS:
            raise ValueError(
                f"a batch of {stop - start} packs holds {int(own[-1])} tokens, more than int32 counts, "
                "which cu_seqlens are of; take fewer packs at once"
            )
        batch["cu_seqlens"] = torch.from_numpy(own.astype(np.int32))
        batch["max_seqlen"] = int((own[1:] - own[:-1]).max(initial=0))
        batch["packs"] = torch.from_numpy(packs[start : stop + 1] - first)
        found.append(_of_transformers(batch) if schema.layout else batch)
    return found


_TRANSFORMERS = {name: name for name in ("input_ids", "labels", "position_ids")}
_TRANSFORMERS["document_ids"] = "seq_idx"


def _of_transformers(batch: dict[str, Batch]) -> dict[str, Batch]:
    """A flat batch of packs by the names, and in the shapes, that models of transformers take."""
    found: dict[str, Batch] = {}
    for name, own in _TRANSFORMERS.items():
        if name in batch:
            values = batch[name] if name != "document_ids" else batch[name].int()
            found[own] = values if values.ndim > 1 else values[None]
    if "document_ids" in batch:
        for end in "qk":
            found[f"cu_seq_lens_{end}"], found[f"max_length_{end}"] = batch["cu_seqlens"], batch["max_seqlen"]
    return found


_MOST_TOKENS = 2**31 - 1


def _filled_ends(ends: Ints, packs: Ints, width: int) -> Ints:
    """Where documents begin in packs of one width, and what fills these up.

    Args:
        ends: (S + 1,) where documents begin that lie end to end.
        packs: (B + 1,) the first document of each pack.
        width: tokens of a pack.
    """
    missing = width - np.diff(ends[packs])
    before = np.repeat(blocks.bounds_of(missing)[:-1], np.diff(packs))
    tails = np.flatnonzero(missing)
    fills = (tails + 1) * width - missing[tails]
    count = len(packs) - 1
    return np.sort(np.concatenate([ends[:-1] + before, fills, [count * width]]))


def _cut(node: Batch, cuts: Mapping[str, tuple[int, ...]]) -> Batch:
    """The nesting of a batch over its part of each column."""
    if type(node) is _Piece:
        start, stop = cuts[node.of]
        return node.cut(start, stop)
    if type(node) is dict:
        return {key: _cut(value, cuts) for key, value in node.items()}
    parts = [_cut(value, cuts) for value in node]
    return parts if type(node) is list else tuple.__new__(type(node), parts)


def _flat_column(by_token: frozenset[str], column: Column, data: Data, in_dict: bool) -> _Piece:
    """The values of all documents end to end, or one for each document."""
    values = data.values
    of = "packs"
    if column.is_ragged:
        of = "tokens" if column.name in by_token and column.name != PACK_LENGTHS else "documents"
    if data.shapes is not None:  # of documents that all have one shape
        values = values.reshape(-1, *data.shapes[0, 1:].tolist())
    alike = _alike(column, values.shape[1:])
    return _Piece(_collate_column(alike, Data(values), in_dict, len(values)), of)


def _flat_list(found: _Wrapped, in_dict: bool) -> _Piece:
    """The values of each document, if they are no numbers: a list; `Jagged` for rows of numbers."""
    column, data = _as_numbers(*found.pieces[0])
    child = found.node.children[0]
    if data.shapes is None and column.storage.str in _TORCH_TYPES:
        values = _tensor(data.values, _bits_dtype(column))
        if child.kind == "leaf":
            return _Piece(values, "documents")
        if child.kind == "varying" and child.children[0].kind == "leaf":
            offsets = blocks.bounds_of(found.pieces[1][1].values)
            return _Piece(Jagged(values, torch.from_numpy(offsets)), "documents")
    listed = [value for values in found.values for value in values]
    return _Piece(listed if in_dict else tuple(listed), "documents")


@lru_cache(maxsize=256)
def _alike(column: Column, shape: tuple[int, ...]) -> Column:
    """The column of rows of one shape."""
    is_array = column.kind == "ndarray" and not shape
    return replace(column, kind="scalar" if is_array else column.kind, shape=shape, ndim=len(shape))


def _bits_dtype(column: Column) -> torch.dtype | None:
    """The dtype of tensors that NumPy may only know as bits; None for other values."""
    return getattr(torch, column.dtype) if column.kind == "tensor" else None


def _tensor(values: Array, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if dtype is None or tensor.dtype == dtype else tensor.view(dtype)


# torch's own extension point: an exact type here comes before everything else default_collate would do.
default_collate_fn_map.update(dict.fromkeys((*blocks.ROW_TYPES, blocks.row_tensor()), _collate_rows))
for _type in (*ENCODE, np.datetime64, np.timedelta64, complex):
    default_collate_fn_map.setdefault(_type, _collate_values)


class Collation:
    """The batch that default_collate makes of rows of a block, without asking it where no value needs it."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._is_simple = schema.tree.is_plain and all(
            not column.is_ragged and column.kind in _TENSOR_KINDS and column.storage.str in _TORCH_TYPES
            for column in schema.columns
        )
        self._dtypes = list(map(_bits_dtype, schema.columns))
        leaves = all(child.kind == "leaf" for child in schema.tree.children)
        self._keys = schema.tree.keys if schema.tree.kind == "dict" and leaves else None

    def batches(self, block: Block, bounds: Sequence[tuple[int, int]]) -> list[Batch]:
        """A batch of the rows between each two bounds."""
        if self.schema.packed:
            return _flat(block, bounds)
        if not self._is_simple:
            whole = len(bounds) == 1
            return [_collate_rows(Rows(block if whole else block.slice(*ends))) for ends in bounds]
        columns = list(zip([data.values for data in block.data], self._dtypes, strict=True))
        found = []
        for start, stop in bounds:
            tensors = [_tensor(values[start:stop], dtype) for values, dtype in columns]
            if self._keys is not None:
                found.append(dict(zip(self._keys, tensors, strict=True)))
            else:
                found.append(_over(self.schema.tree, iter(tensors)))
        return found


def _over(node: Node, leaves: Iterator[torch.Tensor]) -> Batch:
    """The nesting of the rows over a tensor for each leaf."""
    if node.kind == "leaf":
        return next(leaves)
    return _container(node, [_over(child, leaves) for child in node.children])


class Jagged(NamedTuple):
    """A batch of B rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`.

    As `torch.nested.nested_tensor_from_jagged(values, offsets)` takes them.
    """

    values: torch.Tensor  # (elements of all rows,)
    offsets: torch.Tensor  # (B + 1,) int64


class Padded(NamedTuple):
    """A batch of B rows of different lengths, filled up to the longest."""

    values: torch.Tensor  # (B, longest)
    lengths: torch.Tensor  # (B,) int64


def jagged(rows: Sequence[Row]) -> Batch:
    """A collate function: each ragged column comes as `Jagged`, the others as default_collate gives them.

    Text and bytes are lists, and so are rows of more than one dimension in a ragged column.

    Args:
        rows: a batch, of a DataRef or of any dataset.

    Example:
        >>> batch = jagged([{"tokens": np.arange(3)}, {"tokens": np.arange(2)}])
        >>> batch["tokens"].values.tolist(), batch["tokens"].offsets.tolist()
        ([0, 1, 2, 0, 1], [0, 3, 5])
    """

    def leaf(column: Column, data: Data) -> Batch:
        return Jagged(_tensor(data.values, _bits_dtype(column)), torch.from_numpy(data.part("offsets")))

    return _collate_ragged(rows, leaf)


def padded(
    padding: float = 0, multiple_of: int = 1, width: int | None = None
) -> Callable[[Sequence[Row]], Batch]:
    """A collate function: each ragged column comes as `Padded`, the others as default_collate gives them.

    Text and bytes are lists, and so are rows of more than one dimension in a ragged column.

    Args:
        padding: the value that rows are filled up with; a batch whose columns cannot hold it is a ValueError.
        multiple_of: rows are filled up to a multiple of this number, such as 8, which some kernels want.
        width: the width of every batch, for `torch.compile`; a longer row is a ValueError.

    Example:
        >>> batch = padded(-1)([{"tokens": np.arange(3)}, {"tokens": np.arange(2)}])
        >>> batch["tokens"].values.tolist(), batch["tokens"].lengths.tolist()
        ([[0, 1, 2], [0, 1, -1]], [3, 2])
    """
    if isinstance(padding, (list, tuple)):  # of rows: the function itself was given to a loader
        raise TypeError("padded takes the value to fill rows up with, found rows; pass collate_fn=padded(0)")
    return Padding(padding, multiple_of, width)


def is_ours(collate: object) -> bool:
    """True for a collate function that may run in any thread, is as fast as reading and draws no numbers."""
    return isinstance(collate, Padding) or id(collate) in map(id, (default_collate, default_convert, jagged))


class Padding:
    """A collate function that crosses to worker processes."""

    def __init__(self, padding: float, multiple_of: int = 1, width: int | None = None) -> None:
        self.padding, self.multiple_of, self.width = padding, multiple_of, width
        for name, value in (("multiple_of", multiple_of), ("width", 1 if width is None else width)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an int of at least 1, found {value!r}")

    def __call__(self, rows: Sequence[Row]) -> Batch:
        """The batch."""
        return _collate_ragged(rows, self._leaf)

    def _leaf(self, column: Column, data: Data) -> Batch:
        lengths = np.diff(data.part("offsets"))
        longest = int(lengths.max(initial=0))
        if self.width is not None and longest > self.width:
            raise ValueError(
                f"a row of column {column.name!r} has {longest} values, more than width={self.width}; make "
                "it wider, or cut rows first: ref.map, ref.windows"
            )
        width = self.width or -(-longest // self.multiple_of) * self.multiple_of
        values = data.padded(width, fill_value(column, self.padding))
        return Padded(_tensor(values, _bits_dtype(column)), torch.from_numpy(lengths))


def fill_value(column: Column, padding: float, said: str = "padding=") -> Batch:
    """The padding as a value of the column, as it is stored; `said` is how the caller was given it.

    Raises:
        ValueError: the column cannot hold it.
    """
    dtype = _bits_dtype(column) or _torch_dtype(column)
    try:
        value = torch.tensor(padding, dtype=dtype)
        fits = dtype.is_floating_point or dtype.is_complex or value.item() == padding
    except (RuntimeError, OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"{said}{padding!r} is not a value of column {column.name!r}, which is of {dtype}")
    return value.view(_torch_dtype(column)).numpy()[()]  # its bits, where NumPy has no such type


def _torch_dtype(column: Column) -> torch.dtype:
    """The torch dtype that the column is stored as."""
    return torch.from_numpy(np.empty(0, column.storage)).dtype


def _collate_ragged(rows: Sequence[Row], leaf: Callable[[Column, Data], Batch]) -> Batch:
    block = rows.block if isinstance(rows, Rows) else _block_of(rows)

    def collated(column: Column, data: Data, in_dict: bool) -> Batch:
        if column.is_ragged and column.kind in ("ndarray", "tensor") and column.storage.str in _TORCH_TYPES:
            if data.shapes is None:
                return leaf(column, data)
            return [torch.as_tensor(row) for row in blocks.leaf_values(column, data, block.num_rows)]
        return _collate_column(column, data, in_dict, block.num_rows)

    def listed(found: _Wrapped, in_dict: bool) -> Batch:
        column, data = _as_numbers(*found.pieces[0])
        item = found.node.children[0]
        item = item.children[0] if item.kind == "nullable" else item
        is_flat = data.shapes is None and column.storage.str in _TORCH_TYPES
        if item.kind != "leaf" or not (is_flat or column.kind == "none"):
            return found.values
        _refuse_none(found)
        return leaf(column, data) if is_flat else found.values

    return _nested(block, _Way(collated, listed))


def _block_of(rows: Sequence[Row]) -> Block:
    """Rows of any dataset as a block.

    Arrays of one dimension are ragged, even if all are equally long, and so are lists of numbers in dicts.
    """
    if not rows:
        raise ValueError("a batch of no rows cannot be collated")
    plain = [blocks.plain_row(row) for row in rows]
    lists = list(_lists_of_numbers(split(plain[0])[0], plain[0], ()))
    try:
        found = block_of(plain, Schema.of(plain[0], ragged=lists) if lists else None)
    except SchemaError:  # some rows have something else there
        if not lists:
            raise
        found = block_of(plain)
    columns = tuple(
        replace(column, shape=None)
        if column.kind in ("ndarray", "tensor") and column.shape is not None and column.ndim == 1
        else column
        for column in found.schema.columns
    )
    if columns == found.schema.columns:
        return found
    return block_of(plain, Schema(found.schema.tree, columns))


def _lists_of_numbers(tree: Node, row: Row, path: Path) -> Iterator[str]:
    """The names of the lists of numbers in a row that are values of dicts."""
    if tree.kind != "dict":
        return
    for key, child in zip(tree.keys, tree.children, strict=True):
        value = row[key]
        if child.kind == "list" and value and {*map(type, value)} <= {int, float, *ENCODE}:
            yield path_name((*path, key))
        yield from _lists_of_numbers(child, value, (*path, key))
