"""Encoded columns of another DataRef, decoded when they are read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptError, SchemaError
from ..process.buffers import BufferPool
from ..process.control_group import usable_cpus
from ..process.digests import hexdigest
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..process.seeding import drawn_seeds, seeds_within
from ..process.stages import Stage, timed
from ..reading.contract import known_schema
from ..reading.dataref import DataRef
from ..reading.stream import in_epoch
from ..rows.block import Block, Data, Rows, bounds_of, leaf_values
from ..rows.collector import block_of
from ..rows.column import Column
from ..rows.node import WRAPPERS, Node
from ..rows.schema import Projection, Schema, schema_under, unknown_column
from ..rows.types import Ints, Row, Seeds
from ..views.changed import Draw
from ..views.over import ChangedRows, Over, Rebuilt, RowView
from ..views.windows import WindowsRef
from .decoder import Bytes, Decoder, RowError, Run
from .decoders import decoder_of

_PARTS = 4  # of the rows, for each thread, so that none waits long for the others
_MOST_LOOKED = 1024  # rows that are read to find a value from which a decoder learns


def decoded(ref: DataRef, decoders: Mapping[str, Decoder] | None, threads: int | None) -> DataRef:
    """The rows of a DataRef with some columns decoded; see `DataRef.decoded`."""
    schema = known_schema(ref)
    if schema is None:
        return ref
    if _stacks_encoded(ref):
        return ref.over(decoded(ref.whole, decoders, threads))
    if threads is not None:
        threads = as_int("threads", threads, 1, 1024)
    if decoders is None:
        known = {
            column.name: decoder_of(column.meaning.codec)
            for column in schema.columns
            if column.meaning.codec is not None
        }
        decoders = {name: one for name, one in known.items() if one is not None}
        if not decoders:
            raise ValueError(
                "no column has a codec that is known here; name columns, as in "
                "decoded({'image': yoga.codecs.image()})"
            )
    names = [column.name for column in schema.columns]
    learned = {}
    for name, decoder in decoders.items():
        if name not in names:
            raise unknown_column(schema, name)
        if not isinstance(decoder, Decoder):
            raise TypeError(
                f"decoded({{{name!r}: ...}}) takes yoga.codecs.image(), text() or audio(), found "
                f"{decoder!r:.80}"
            )
        number = names.index(name)
        learned[number] = decoder.learned(schema.columns[number], _first_values(ref, schema, number))
    return DecodedRef(ref, learned, threads)


def _stacks_encoded(ref: DataRef) -> TypeGuard[Over]:
    """True for windows, or some of them, whose rows can only be stacked once they are decoded."""
    below = ref
    while isinstance(below, RowView):
        below = below.whole
    return isinstance(below, WindowsRef) and bool(below.encoded)


class DecodedRef(ChangedRows, Rebuilt):
    """The rows of another DataRef with some columns decoded: what `ref.decoded(...)` is.

    Args:
        whole: the other DataRef; it has a schema.
        decoders: by the number of a column.
        threads: how many decode; None for one a core, and one in worker processes.

    Attributes:
        whole: the other DataRef.
        num_failed: values that could not be decoded, and were filled, by this process.
    """

    def __init__(self, whole: DataRef, decoders: Mapping[int, Decoder], threads: int | None = None) -> None:
        schema = whole.schema
        assert schema is not None
        super().__init__(whole, decoders, threads)
        self.num_failed = 0
        self._before = schema
        self._decoders = dict(decoders)
        self._threads = threads
        made = [
            self._decoders[n].column(column) if n in self._decoders else column
            for n, column in enumerate(schema.columns)
        ]
        tree, self._places = _decoded_tree(schema.tree, self._decoders)
        self._items = {number for number, place in self._places.items() if place.is_item}
        # The columns of the whole that are left: not the lengths of what becomes arrays.
        self._numbers = [number for number in range(len(made)) if number - 1 not in self._items]
        columns = [_of_items(made[n]) if n in self._items else made[n] for n in self._numbers]
        self._schema = Schema(tree, tuple(columns))
        self._told: set[int] = set()  # columns of which it was said that something is lost
        self._pool = BufferPool()

    @property
    def _is_random(self) -> bool:
        """True if parts or mirrors are chosen at random, or the rows of the whole are random."""
        return self.whole._is_random or any(decoder.is_random for decoder in self._decoders.values())

    _most_batches = 1

    def over(self, whole: DataRef) -> DataRef:
        """The rows of another DataRef, decoded."""
        made = DecodedRef(whole, self._decoders, self._threads)
        made._told = self._told
        return made

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        is_random = any(decoder.is_random for decoder in self._decoders.values())
        own = drawn_seeds(len(rows)) if seeds is None and is_random else seeds
        given = self._given(rows, seeds)
        with timed(Stage.DECODE):
            return self._made(rows, given, own)

    def _made(self, rows: Ints, given: Sequence[Row], seeds: Seeds | None) -> Sequence[Row]:
        block = block_of(given, self._before)
        data = list(block.data)
        for number, decoder in self._decoders.items():
            column, place = self._before.columns[number], self._places[number]
            held = _held(block, number, place)
            own = None
            if seeds is not None:
                own = seeds_within(seeds, number + 1)[held.rows]
                own = seeds_within(own, held.nth) if place.is_item else own
            lost: list[tuple[int, str]] = []
            tell = None if number in self._told else lambda i, what, lost=lost: lost.append((i, what))
            try:
                draw = None if own is None else Draw(own)
                run = Run(self._each, self._pool.empty, tell)
                found, failed = decoder.decode(held.values, column, draw, run)
            except RowError as error:
                row = _row_of(block, rows, int(held.rows[error.place]))
                raise CorruptError(
                    f"{row}, column {column.name!r}: {error}{decoder.hint}"
                ) from error.__cause__
            if place.is_item:
                arrays = leaf_values(decoder.column(column), found, len(held.values))
                found = _objects(arrays, held.valid, block.data[number + 1].part("offsets"))
            elif held.valid is not None:
                found = _spread(found, held.valid)
            data[number] = found
            if failed:
                self._note(rows[held.rows[sorted(failed)]], column.name)
            if lost:
                self._told.add(number)
                at, what = min(lost)
                warn_user(f"{_row_of(block, rows, int(held.rows[at]))}, column {column.name!r}: {what}")
        kept = tuple(data[number] for number in self._numbers)
        if not self._items:
            return Rows(Block(self._schema, block.num_rows, kept))
        # Arrays of a list may differ in shape, which no column holds: rows of Python's objects.
        columns = [
            replace(column, kind="int", dtype="<i8", ndim=1) if number in self._items else column
            for number, column in zip(self._numbers, self._schema.columns, strict=True)
        ]
        return Rows(Block(Schema(self._schema.tree, tuple(columns)), block.num_rows, kept)).exact()

    def _note(self, rows: Ints, name: str) -> None:
        """Counts rows that were filled, and warns at the first, and whenever there are ten times as many."""
        before = self.num_failed
        self.num_failed += len(rows)
        if len(str(self.num_failed)) > len(str(before)) or not before:
            warn_user(
                f"{self.num_failed} values could not be decoded so far, and were filled: column {name!r}, "
                f"row {rows[0]}"
            )

    def _each(self, function: Callable[[int], None], count: int) -> None:
        """Calls a function with 0..count-1, on threads; RowError for the first that fails."""
        threads = self._threads
        if threads is None:
            in_worker = torch.utils.data.get_worker_info() is not None
            threads = 1 if in_worker else usable_cpus()
        if threads == 1 or count == 1:
            _run(function, 0, count)
            return
        bounds = np.linspace(0, count, min(count, threads * _PARTS) + 1).astype(np.int64).tolist()
        pool = _pool(os.getpid(), threads)
        parts = [pool.submit(_run, function, start, stop) for start, stop in itertools.pairwise(bounds)]
        try:
            for part in parts:
                part.result()
        finally:
            for part in parts:  # what they write to must not be used again before
                part.cancel()
            wait(parts)

    def _projected(self, of: Projection) -> DataRef:
        """Some columns; the others are neither read nor decoded."""
        numbers: list[int] = []
        tree = self._whole_tree(of.schema.tree, (self._numbers[n] for n in of.columns), numbers)
        own = schema_under(tree, (self._before.columns[number] for number in numbers))
        whole = self.whole._projected(Projection(own, tuple(numbers)))
        decoders = {place: self._decoders[n] for place, n in enumerate(numbers) if n in self._decoders}
        return DecodedRef(whole, decoders, self._threads) if decoders else whole

    def _whole_tree(self, node: Node, given: Iterator[int], numbers: list[int]) -> Node:
        """A part of the tree as it is in the whole; adds the numbers of its columns there."""
        if node.kind != "leaf":
            children = tuple(self._whole_tree(child, given, numbers) for child in node.children)
            return replace(node, children=children)
        number = next(given)
        numbers.append(number)
        if number not in self._items:
            return node
        numbers.append(number + 1)
        return Node("texts", (), (node, node))

    @property
    def _libraries(self) -> list[str]:
        """The libraries that decode, with their versions."""
        own = [name for one in self._decoders.values() for name in one.libraries if name]
        return list(dict.fromkeys([*own, *self.whole._libraries]))

    def _pinned(self, whole: str) -> str:
        told = sorted((number, repr(one)) for number, one in self._decoders.items())
        return hexdigest(f"{whole} decoded {told}")

    @property
    def schema(self) -> Schema:
        """How a row looks."""
        return self._schema

    def _title(self) -> str:
        return f"{super()._title()} decoded"


class _Place(NamedTuple):
    """Where a column lies.

    Attributes:
        valid: the columns that say where its values, or the items of its lists, are not None.
        is_item: True in lists, where the next column has the lengths of its items.
    """

    valid: tuple[int, ...]
    is_item: bool


def _decoded_tree(
    node: Node, numbers: Collection[int], first: int = 0, valid: tuple[int, ...] = ()
) -> tuple[Node, dict[int, _Place]]:
    """A tree in which values are arrays that were texts in lists, and where those of these numbers lie."""
    if node.kind in ("leaf", "texts"):
        if first not in numbers:
            return node, {}
        return Node("leaf"), {first: _Place(valid, node.kind == "texts")}
    if node.kind == "varying":
        valid = ()  # nothing is in a list that is None
    elif node.kind == "nullable":
        valid = (*valid, first + node.children[0].num_leaves)
    found: dict[int, _Place] = {}
    children = []
    for place, child in enumerate(node.children):
        if not place or node.kind not in WRAPPERS:
            made, inner = _decoded_tree(child, numbers, first, valid)
            found.update(inner)
            child, first = made, first + child.num_leaves
        children.append(child)
    return replace(node, children=tuple(children)), found


def _of_items(column: Column) -> Column:
    """A column of what was decoded, for the items of lists."""
    if column.kind not in ("ndarray", "tensor"):
        raise SchemaError(
            f"{column.name!r} holds lists, whose items cannot be decoded to {column.kind}; use map"
        )
    return replace(column, shape=None, ndim=1 + column.ndim)


class _ValuesThere(NamedTuple):
    """The values of a column of bytes that are not None.

    Attributes:
        values: where they lie.
        rows: of each, the row of the block; `nth`: in lists, its place among the items of that row.
        valid: which they are, of all that the column has; None for all of them.
    """

    values: list[Bytes]
    rows: Ints
    nth: Ints
    valid: npt.NDArray[np.bool_] | None


def _held(block: Block, number: int, place: _Place) -> _ValuesThere:
    data = block.data[number]
    run: memoryview = np.ascontiguousarray(data.values).data.cast("B")
    if place.is_item:
        lengths = block.data[number + 1]
        counts = np.diff(lengths.part("offsets"))
        rows = np.repeat(np.arange(block.num_rows), counts)
        nth = np.arange(len(rows)) - np.repeat(lengths.part("offsets")[:-1], counts)
        ends: list[int] = list(accumulate(lengths.values.tolist(), initial=0))
    else:
        rows = nth = np.arange(block.num_rows)
        ends = data.part("offsets").tolist()
    values = [run[start:stop] for start, stop in itertools.pairwise(ends)]
    if not place.valid:
        return _ValuesThere(values, rows, nth, None)
    valid = np.logical_and.reduce([block.data[one].values for one in place.valid])
    there = np.flatnonzero(valid)
    return _ValuesThere([values[i] for i in there], rows[there], nth[there], valid)


def _objects(arrays: Sequence[Row], valid: npt.NDArray[np.bool_] | None, offsets: Ints) -> Data:
    """The items of lists, as they are; None where they are not valid."""
    objects = np.full(len(arrays) if valid is None else len(valid), None, object)
    places = range(len(arrays)) if valid is None else np.flatnonzero(valid).tolist()
    for place, array in zip(places, arrays, strict=True):
        objects[place] = array
    return Data(objects, offsets)


def _first_values(ref: DataRef, schema: Schema, number: int) -> Iterator[Bytes]:
    """The first values of a column of bytes, read one row at a time."""
    place = _decoded_tree(schema.tree, {number})[1][number]
    source = in_epoch(ref, 0, 0)
    for row in range(min(len(ref), _MOST_LOOKED)):
        yield from _held(block_of(source.take(np.array([row])), schema), number, place).values


def _row_of(block: Block, rows: Ints, place: int) -> str:
    """The number of a row, and the words of its column named "path", for messages."""
    row = f"row {int(rows[place])}"
    for column, data in zip(block.schema.columns, block.data, strict=True):
        if column.name == "path" and column.kind == "str":
            (path,) = leaf_values(column, data.slice(place, place + 1), 1)
            row += f" ({path!s:.200})"
    return row


def _spread(data: Data, valid: npt.NDArray[np.bool_]) -> Data:
    """Decoded values in the rows that have one, and zeros or nothing in the others."""
    if data.offsets is None:
        values = np.zeros((len(valid), *data.values.shape[1:]), data.values.dtype)
        values[valid] = data.values
        return Data(values)
    lengths = np.zeros(len(valid), "<i8")
    lengths[valid] = np.diff(data.offsets)
    offsets = bounds_of(lengths).astype("<i8", copy=False)
    if data.shapes is None:
        return Data(data.values, offsets)
    shapes = np.zeros((len(valid), data.shapes.shape[1]), "<i8")
    shapes[valid] = data.shapes
    return Data(data.values, offsets, shapes)


def _run(function: Callable[[int], None], start: int, stop: int) -> None:
    for i in range(start, stop):
        try:
            function(i)
        except CorruptError as error:
            raise RowError(i, str(error)) from error.__cause__


@lru_cache(8)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of a process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(threads, "torchyoga-decode")
