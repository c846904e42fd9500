"""The hashes of the rows of a dataset: computed from blocks, dealt to parts, kept beside a version.

Equal rows are dealt to the same part by the first bits of their hashes, whichever dataset they are of, so
each part is compared by itself and memory is bounded. A chunk is sorted by part and written as one run, so
there is one temporary file, however many parts there are.

Kept hashes are a small version of the same id and version in `Versions.hashes`, 16 bytes a row, so that they
are locked, published, checked, downloaded and cleaned as all versions are.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ..building.build import BuildOptions
from ..building.sources import BlockSource
from ..errors import CorruptError, NotFoundError, SchemaError, YogaError
from ..process.lazy import later
from ..process.messages import warn_user
from ..process.numbers import spread
from ..reading.dataref import DataRef
from ..reading.stream import in_epoch
from ..reading.version_ref import VersionRef
from ..rows.block import Block, Rows
from ..rows.collector import Collector, block_of
from ..rows.data import Data, bounds_of
from ..rows.hashing import HASH, Hashes, row_hashes
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Json
from ..stores.checking import check
from ..stores.contract import Versions
from ..stores.refs import ref_of, store_of
from ..versions.manifest import Manifest

if TYPE_CHECKING:
    from . import submission as _submission
else:
    _submission = later("torchyoga.caching.submission")

Ranges = Sequence[tuple[int, int]]
_BYTES, _ROWS = 2**24, 2**16  # of a block, at most; of one row, if it is larger
_RAGGED_BYTES = 2**10  # of a value, where they are not known
_SAMPLE = 256  # rows that show what all look like, where the DataRef does not say it


def known_schema(ref: DataRef, like: Schema | None = None) -> Schema | None:
    """The schema of the rows; of a DataRef that does not say it, as some rows show; None without rows.

    Args:
        ref: any DataRef.
        like: a schema that is taken if these rows fit it.

    Raises:
        SchemaError: rows hold something that cannot be kept, or are not alike.
    """
    if ref.schema is not None or not len(ref):
        return ref.schema
    numbers = spread(len(ref), _SAMPLE)
    rows = in_epoch(ref, 0, 0).take(numbers)
    for schema in (like, None):
        collector = Collector(schema)
        try:
            for number, row in zip(numbers.tolist(), rows, strict=True):
                collector.add(row, number)
            return collector.take().schema
        except SchemaError:
            if schema is None:
                raise
    return None


@dataclass(frozen=True)
class RowBlocks:
    """The rows of a DataRef, as blocks; those of a random one are those of epoch 0 with seed 0.

    Attributes:
        ref: any DataRef.
        schema: what `known_schema` gave of it; None without rows.
        of: the columns wanted, of the schema; None for all.
    """

    ref: DataRef
    schema: Schema | None
    of: Projection | None = None

    def take(self, rows: Ints) -> Block:
        """The rows of these numbers; at least one."""
        ref, of = self.ref, self.of
        if of is not None and ref.schema is not None:
            ref, of = ref._projected(of), None
        schema = ref.schema or self.schema
        try:
            found = block_of(in_epoch(ref, 0, 0).take(rows), schema)
        except SchemaError as error:
            if ref.schema is not None:
                raise
            raise SchemaError(
                f"of {len(rows)} rows from {rows[0]} on, {error}. This DataRef does not say what its rows "
                "look like, and some of them show something else: submit it first, or pass schema= to map"
            ) from None
        return found if of is None else of.block(found)

    def within(self, ranges: Ranges) -> Iterator[tuple[int, Block]]:
        """The rows of some ranges, in order: the first row of each block, and the block."""
        for first, rows in self._cut(ranges):
            yield first, self.take(rows)

    def _cut(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Ints]]:
        step = max(1, min(_ROWS, _BYTES // max(1, self._row_bytes())))
        for start, stop in ranges:
            for first in range(start, stop, step):
                yield first, np.arange(first, min(first + step, stop))

    def _row_bytes(self) -> int:
        known = self.ref._row_bytes
        if known or self.schema is None:
            return known
        return sum(_RAGGED_BYTES if column.is_ragged else column.row_bytes for column in self.schema.columns)


PART_ROWS = 2**21  # of both datasets in a part, about: unless a row occurs more often than that
MEMORY_BYTES = 2**26  # that a spool keeps in memory; more goes to a temporary file
_MOST_BITS = 16


class Spool:
    """Words of rows, appended and read again.

    Args:
        width: words of 64 bits of each row.
    """

    def __init__(self, width: int) -> None:
        self.num_rows = 0
        self._width = width
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  # closed with the spool
        weakref.finalize(self, self._file.close)

    def append(self, words: Array) -> None:
        """Adds rows (N, width) of uint64.

        Raises:
            OSError: the disk is full.
        """
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(words, np.uint64).data.cast("B") if words.size else b"")
        self.num_rows += len(words)

    def read(self, start: int, stop: int) -> Hashes:
        """(N, width) the rows from start to before stop."""
        step = 8 * self._width
        self._file.seek(start * step)
        found = np.frombuffer(self._file.read((stop - start) * step), np.uint64)
        return found.reshape(-1, self._width)


class Parts:
    """Rows of a dataset, dealt to parts by the first bits of the first of their words.

    Args:
        width: words of each row.
        num_rows: of all datasets that are compared, about; it says how many parts there are.
    """

    def __init__(self, width: int, num_rows: int) -> None:
        self._bits = min(_MOST_BITS, max(0, (num_rows - 1) // PART_ROWS).bit_length())
        self._width = width
        self._spool = Spool(width)
        self._runs: list[npt.NDArray[np.int64]] = []  # of each chunk, where its rows of each part begin

    def __len__(self) -> int:
        return 1 << self._bits

    def __iter__(self) -> Iterator[Hashes]:
        """The rows of each part (N, width), in the order in which they were added."""
        for part in range(len(self)):
            found = [self._spool.read(*run[part : part + 2].tolist()) for run in self._runs]
            yield np.concatenate(found) if found else np.empty((0, self._width), np.uint64)

    def append(self, words: Hashes) -> None:
        """Adds rows (N, width).

        Raises:
            OSError: the disk is full.
        """
        first = self._spool.num_rows
        if not self._bits:
            self._spool.append(words)
            self._runs.append(np.array([first, first + len(words)]))
            return
        part = (words[:, 0] >> np.uint64(64 - self._bits)).astype(np.uint16)
        self._spool.append(words[np.argsort(part, kind="stable")])
        counts = np.bincount(part, minlength=len(self))
        self._runs.append(first + bounds_of(counts))


WORTH_ROWS, WORTH_BYTES = 2**14, 2**24  # of a version: hashes of fewer are made in less time than kept
_PATIENCE = 86400.0  # seconds, while another process makes them
_SCHEMA = Schema.of({"hash": np.zeros(2, np.uint64)})
_STEP = 2**18  # hashes read at once
_LOOKS = 8  # rows that are hashed again when kept hashes are read, besides the first and the last
_log = logging.getLogger("torchyoga")


class HashReader(Protocol):
    """The hashes of all rows of a version."""

    def read(self, start: int, stop: int) -> Hashes:
        """(N, 2) those of the rows from start to before stop."""


class _Kept:
    """Hashes out of the version that they are kept as; those that are damaged are computed."""

    def __init__(self, kept: VersionRef, ref: VersionRef) -> None:
        self._kept = kept
        self._ref = ref

    def read(self, start: int, stop: int) -> Hashes:
        try:
            return self.stored(start, stop)
        except (CorruptError, NotFoundError) as error:
            _log.warning("%r: its kept row hashes are not used: %s", self._ref, error)
            return np.concatenate([row_hashes(block) for _, block in _blocks(self._ref, start, stop)])

    def stored(self, start: int, stop: int) -> Hashes:
        """(N, 2) as they are kept; CorruptError if they are damaged."""
        rows = self._kept.take(np.arange(start, stop))
        if not isinstance(rows, Rows):
            return np.empty((0, 2), np.uint64)
        found: Hashes = rows.block.data[0].values
        return found


def kept_hashes(ref: VersionRef) -> HashReader | None:
    """The hashes that are kept beside a version; None if there are none of its rows, or they are damaged."""
    store, version = store_of(ref.location, ref.manifest), ref.manifest
    with contextlib.suppress(CorruptError, NotFoundError):
        found = store.hashes.find(version.id, version.version) if store is not None else None
        if store is None or found is None or any(found.info.get(k) != v for k, v in _info(ref).items()):
            return None
        reader, length = _Kept(_checked(store, found, ref), ref), len(ref)
        if length and not ref.location.is_remote:  # else whole files would be downloaded
            some = {0, length - 1, *(secrets.randbelow(length) for _ in range(_LOOKS))}
            rows = np.array(sorted(some), np.int64)
            _compare(reader, rows, RowBlocks(ref, ref.schema).take(rows))
        return reader
    return None


def hashes_of(ref: VersionRef) -> HashReader:
    """The hashes of a version as they are kept; else computed, and kept where that is worth its while and the
    store can be written."""
    if len(ref) >= WORTH_ROWS or ref.manifest.nbytes >= WORTH_BYTES:
        return _read_or_made(ref, lambda: _computed(ref, 0, len(ref)), is_asked=False)
    return kept_hashes(ref) or _computed(ref, 0, len(ref))


def submitted_with_hashes(submit: Callable[[BuildOptions], VersionRef], options: BuildOptions) -> VersionRef:
    """A version that is built with these options, with the hashes of its rows beside it.

    Args:
        submit: builds it and publishes it.
        options: how to build.
    """
    spool = Spool(2)

    def add(block: Block) -> None:
        spool.append(row_hashes(block))

    ref = submit(replace(options, each_block=add))
    made = spool
    if spool.num_rows < len(ref):  # an interrupted build has left the first rows
        made = _computed(ref, 0, len(ref) - spool.num_rows)
        for start in range(0, spool.num_rows, _STEP):
            made.append(spool.read(start, min(start + _STEP, spool.num_rows)))
    _read_or_made(ref, lambda: made, is_asked=True)
    return ref


def with_hashes(ref: VersionRef) -> VersionRef:
    """A version, after the hashes of its rows were computed and kept, unless they are kept already."""
    _read_or_made(ref, lambda: _computed(ref, 0, len(ref)), is_asked=True)
    return ref


def check_hashes(store: Versions, id: str, version: str) -> None:
    """Computes the hashes that are kept beside a version again, and compares them.

    Raises:
        CorruptError: they are damaged, or are not those of the rows.
    """
    with contextlib.suppress(NotFoundError):  # there are none, or they were removed meanwhile
        try:
            check(store.hashes, id, version)
            ref, kept = ref_of(store, store.manifest(id, version)), store.hashes.manifest(id, version)
            if kept.info.get("hashed_from") != ref.fingerprint:
                return  # of rows that were overwritten since
            reader = _Kept(_checked(store, kept, ref), ref)
            for start, block in _blocks(ref, 0, len(ref)):
                _compare(reader, np.arange(start, start + block.num_rows), block)
        except CorruptError as error:
            raise CorruptError(
                f"the row hashes of {id!r} {version!r} are damaged: {error}. Remove "
                f"{store.hashes.where(id, version)}; `diff` makes them again"
            ) from error


def _read_or_made(ref: VersionRef, make: Callable[[], HashReader], is_asked: bool) -> HashReader:
    """The hashes that are kept; else they are made and kept, once by all processes that may write.

    Args:
        ref: the version.
        make: makes them.
        is_asked: there is a warning if they cannot be kept.
    """
    found, store = kept_hashes(ref), store_of(ref.location, ref.manifest)
    if found is not None or store is None:
        return found or make()
    id, version, hashes = ref.manifest.id, ref.manifest.version, store.hashes  # which knows its leases
    made: HashReader | None = None
    try:
        with hashes.lock(id, version, _PATIENCE):
            found = kept_hashes(ref)
            if found is not None:
                return found
            seen = hashes.seen(id, version)
            made = make()
            now = store.find(id, version)
            if now is None or now.fingerprint != ref.fingerprint:
                raise NotFoundError("it has been overwritten or removed since this DataRef was made")
            options = BuildOptions(progress=False, info=_info(ref), stats=False)
            hashes.check_place(id, version)
            _submission.submitted(_HashedSource(made, len(ref)), hashes, id, version, options, replaces=seen)
    except (OSError, YogaError) as error:
        made = made or make()
        problem = f"the row hashes of {id!r} {version!r} could not be kept: {error}"
        if is_asked:
            warn_user(f"{problem}; the next diff computes them again")
        else:
            _log.info("%s", problem)
    return made


def _info(ref: VersionRef) -> Json:
    """What is kept with the hashes of a version: whose they are, and how they are made."""
    return {"hashed_from": ref.fingerprint, "hash": HASH}


class _HashedSource(BlockSource):
    """Hashes as they are kept."""

    name = "the row hashes"
    schema = _SCHEMA

    def __init__(self, made: HashReader, length: int) -> None:
        self.length = length
        self._made = made

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """All hashes."""
        assert self.length is not None
        step = max(1, nbytes // 16)
        for start in range(0, self.length, step):
            found = self._made.read(start, min(start + step, self.length))
            yield Block(_SCHEMA, len(found), (Data(found),))


def _computed(ref: VersionRef, start: int, stop: int) -> Spool:
    found = Spool(2)
    for _, block in _blocks(ref, start, stop):
        found.append(row_hashes(block))
    return found


def _blocks(ref: VersionRef, start: int, stop: int) -> Iterator[tuple[int, Block]]:
    return RowBlocks(ref, ref.schema).within([(start, stop)])


def _checked(store: Versions, manifest: Manifest, ref: VersionRef) -> VersionRef:
    """The version that hashes are kept as; CorruptError if they cannot be those of so many rows."""
    if manifest.num_rows != len(ref):
        raise CorruptError(f"there are {manifest.num_rows} hashes of {len(ref)} rows")
    if manifest.num_rows and manifest.schema != _SCHEMA:
        raise CorruptError("it does not hold hashes of rows")
    return ref_of(store.hashes, manifest)


def _compare(reader: _Kept, rows: npt.NDArray[np.int64], block: Block) -> None:
    """Raises CorruptError unless these are the hashes of these rows, which ascend."""
    computed = row_hashes(block)
    if len(rows) == rows[-1] - rows[0] + 1:
        kept = reader.stored(int(rows[0]), int(rows[-1]) + 1)
    else:
        kept = np.concatenate([reader.stored(row, row + 1) for row in rows.tolist()])
    wrong = np.flatnonzero((computed != kept).any(axis=1))
    if len(wrong):
        raise CorruptError(f"the hash of row {rows[wrong[0]]} is not that of its values")
