"""Encoded columns of another DataRef, decoded when they are read."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptError, SchemaError
from ..order.contract import Arrangement
from ..order.full import as_int
from ..process.buffers import BufferPool
from ..process.cpus import num_cpus
from ..process.lazy import cached_property
from ..process.seeding import seeds_within
from ..process.stages import Stage, timed
from ..process.warned import warn_user
from ..reading.dataref import DataRef
from ..reading.readahead import ReadAhead
from ..rows.block import Block, Rows
from ..rows.collector import block_of
from ..rows.data import Data
from ..rows.node import outermost, path_name
from ..rows.projection import Projection, unknown_column
from ..rows.schema import Schema
from ..rows.types import Json, Row
from ..rows.values import leaf_values
from ..views.draw import Draw
from .decoder import Decoder, RowError, Run
from .decoders import decoder_of

__all__ = ["DecodedRef", "decoded"]

Ints = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]
_PARTS = 4  # of the rows, for each thread, so that none waits long for the others


def decoded(ref: DataRef, decoders: Mapping[str, Decoder] | None, threads: int | None) -> DataRef:
    """The rows of a DataRef with some columns decoded; see `DataRef.decoded`."""
    schema = ref.schema
    if schema is None:
        if not len(ref):
            return ref
        raise TypeError(f"{ref!r} does not say what its rows look like: its schema is None")
    if threads is not None:
        threads = as_int("threads", threads, 1, 1024)
    if decoders is None:
        found = {
            column.name: decoder_of(column.meaning.codec)
            for column in schema.columns
            if column.meaning.codec is not None
        }
        decoders = {name: one for name, one in found.items() if one is not None}
        if not decoders:
            raise ValueError(
                "no column has a codec that is known here; name columns, as in "
                "decoded({'image': yoga.image()})"
            )
    names = [column.name for column in schema.columns]
    for name, decoder in decoders.items():
        if name not in names:
            raise unknown_column(schema, name)
        if not isinstance(decoder, Decoder):
            raise TypeError(
                f"decoded({{{name!r}: ...}}) takes yoga.image(), text() or audio(), found {decoder!r:.80}"
            )
    return DecodedRef(ref, {names.index(name): decoder for name, decoder in decoders.items()}, threads)


class DecodedRef(DataRef):
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
        self.whole = whole
        self.is_thread_safe = whole.is_thread_safe
        self.num_failed = 0
        self._decoders = dict(decoders)
        self._threads = threads
        columns = [
            self._decoders[n].column(column) if n in self._decoders else column
            for n, column in enumerate(schema.columns)
        ]
        self._schema = Schema(schema.tree, tuple(columns))
        self._valid = _valid_columns(schema, self._decoders)
        self._pool = BufferPool()

    def __reduce__(self) -> tuple[object, ...]:
        return DecodedRef, (self.whole, self._decoders, self._threads)

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def is_random(self) -> bool:
        """True if parts or mirrors are chosen at random, or the rows of the whole are random."""
        return self.whole.is_random or any(decoder.is_random for decoder in self._decoders.values())

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows`; torch's generator gives the seeds of what is random."""
        if not len(rows):
            return []
        is_random = any(decoder.is_random for decoder in self._decoders.values())
        seeds = torch.randint(2**63 - 1, (len(rows),)).numpy().view(np.uint64) if is_random else None
        return self._decoded(rows, self.whole.take(rows), seeds)

    def take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[Row]:
        """The rows of these numbers, as `Rows`, made with these seeds."""
        if not len(rows):
            return []
        whole = self.whole
        given = whole.take_seeded(rows, seeds_within(seeds, 0)) if whole.is_random else whole.take(rows)
        return self._decoded(rows, given, seeds)

    def _decoded(self, rows: Ints, given: Sequence[Row], seeds: Seeds | None) -> Rows:
        with timed(Stage.DECODE):
            return self._made(rows, given, seeds)

    def _made(self, rows: Ints, given: Sequence[Row], seeds: Seeds | None) -> Rows:
        schema = self.whole.schema
        assert schema is not None
        block = block_of(given, schema)
        data = list(block.data)
        for number, decoder in self._decoders.items():
            column = schema.columns[number]
            own = None if seeds is None else seeds_within(seeds, number + 1)
            values, numbers, valid = _values(data[number]), rows, None
            if number in self._valid:
                valid = block.data[self._valid[number]].values
                values, numbers = [values[i] for i in np.flatnonzero(valid)], rows[valid]
                own = None if own is None else own[valid]
            try:
                draw = None if own is None else Draw(own)
                data[number], failed = decoder.decode(values, column, draw, Run(self._each, self._pool.empty))
            except RowError as error:
                place = error.place if valid is None else int(np.flatnonzero(valid)[error.place])
                row = f"row {int(numbers[error.place])}{_path_of(block, place)}"
                raise CorruptError(
                    f"{row}, column {column.name!r}: {error}{decoder.hint}"
                ) from error.__cause__
            if valid is not None:
                data[number] = _spread(data[number], valid)
            if failed:
                self._note(numbers[sorted(failed)], column.name)
        return Rows(Block(self._schema, block.num_rows, tuple(data)))

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
            threads = 1 if in_worker else num_cpus()
        if threads == 1 or count == 1:
            _run(function, 0, count)
            return
        bounds = np.linspace(0, count, min(count, threads * _PARTS) + 1).astype(np.int64).tolist()
        pool = _pool(threads)
        parts = [pool.submit(_run, function, start, stop) for start, stop in itertools.pairwise(bounds)]
        try:
            for part in parts:
                part.result()
        finally:
            for part in parts:  # what they write to must not be used again before
                part.cancel()
            wait(parts)

    def in_epoch(self, epoch: int) -> DataRef:
        """The rows of the whole as it is in an epoch, decoded."""
        whole = self.whole.in_epoch(epoch)
        return self if whole is self.whole else DecodedRef(whole, self._decoders, self._threads)

    def projected(self, of: Projection) -> DataRef:
        """Some columns; the others are neither read nor decoded."""
        schema = self.whole.schema
        assert schema is not None
        whole = self.whole.projected(Projection(projected_schema(schema, of), of.columns))
        decoders = {place: self._decoders[n] for place, n in enumerate(of.columns) if n in self._decoders}
        return DecodedRef(whole, decoders, self._threads) if decoders else whole

    @property
    def arrangement(self) -> Arrangement | None:
        """The whole's: the rows are the same."""
        return self.whole.arrangement

    @property
    def libraries(self) -> list[str]:
        """What decodes, and its version."""
        own = [name for one in self._decoders.values() for name in one.libraries if name]
        return list(dict.fromkeys([*own, *self.whole.libraries]))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row of the whole, which is read."""
        return self.whole.row_bytes

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """What makes rows of the whole ready; None if the whole has none."""
        whole = self.whole.readahead
        return None if whole is None else ReadAhead(self.row_bytes, whole.prefetch, most_batches=1)

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's and of how it is decoded."""
        whole = self.whole.fingerprint
        return None if whole is None else self._pinned(whole)

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's: each row is made of one of its rows."""
        return [(self._pinned(name), rows) for name, rows in self.whole.prefixes]

    def _pinned(self, whole: str) -> str:
        text = f"{whole} decoded {sorted((number, repr(one)) for number, one in self._decoders.items())}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def schema(self) -> Schema:
        """What a row looks like."""
        return self._schema

    @property
    def info(self) -> Json:
        """The whole's info."""
        return self.whole.info

    def __repr__(self) -> str:
        names = [self._schema.columns[number].name for number in self._decoders]
        return f"{self.whole!r} with {', '.join(names)} decoded"


def _valid_columns(schema: Schema, numbers: Collection[int]) -> dict[int, int]:
    """The columns that say where others, of these numbers, are not None.

    Raises:
        SchemaError: a column is one of lists.
    """
    found, first = {}, 0
    for path, node in outermost(schema.tree):
        own = [number for number in numbers if first <= number < first + node.num_leaves]
        if own and node.kind == "nullable" and node.children[0].kind == "leaf":
            found[first] = first + 1
        elif own and node.kind != "leaf":
            raise SchemaError(f"{path_name(path)!r} holds lists, whose items cannot be decoded; use map")
        first += node.num_leaves
    return found


def _path_of(block: Block, place: int) -> str:
    """What a column named "path" says of a row, for messages."""
    for column, data in zip(block.schema.columns, block.data, strict=True):
        if column.name == "path" and column.kind == "str":
            (path,) = leaf_values(column, data.slice(place, place + 1), 1)
            return f" ({path!s:.200})"
    return ""


def _spread(data: Data, valid: npt.NDArray[np.bool_]) -> Data:
    """Decoded values in the rows that have one, and zeros or nothing in the others."""
    if data.offsets is None:
        values = np.zeros((len(valid), *data.values.shape[1:]), data.values.dtype)
        values[valid] = data.values
        return Data(values)
    lengths = np.zeros(len(valid), "<i8")
    lengths[valid] = np.diff(data.offsets)
    offsets = np.append(0, np.cumsum(lengths)).astype("<i8")
    if data.shapes is None:
        return Data(data.values, offsets)
    shapes = np.zeros((len(valid), data.shapes.shape[1]), "<i8")
    shapes[valid] = data.shapes
    return Data(data.values, offsets, shapes)


def projected_schema(schema: Schema, of: Projection) -> Schema:
    """The schema that a projection leaves, with the columns as they are in another schema of that form."""
    columns = (
        replace(schema.columns[number], name=kept.name)
        for number, kept in zip(of.columns, of.schema.columns, strict=True)
    )
    return Schema(of.schema.tree, tuple(columns))


def _values(data: Data) -> list[memoryview]:
    """The bytes of each row, where they lie."""
    assert data.offsets is not None
    run: memoryview = np.ascontiguousarray(data.values).data.cast("B")
    ends = data.offsets.tolist()
    return [run[start:stop] for start, stop in itertools.pairwise(ends)]


def _run(function: Callable[[int], None], start: int, stop: int) -> None:
    for i in range(start, stop):
        try:
            function(i)
        except CorruptError as error:
            raise RowError(i, str(error)) from error.__cause__


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked child has none of its parent's."""
    key = os.getpid(), threads
    if key not in _pools:
        for other in [other for other in _pools if other[0] != key[0]]:
            del _pools[other]
        _pools[key] = ThreadPoolExecutor(threads, "torchyoga-decode")
    return _pools[key]
