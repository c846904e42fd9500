"""The rows of any DataRef in blocks, and their hashes as they are kept beside a version.

Kept hashes are a small version of the same id and version in `Versions.hashes`, 16 bytes a row, so that they
are locked, published, checked, downloaded and cleaned as all versions are.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..building.build import BuildOptions, Target
from ..building.sources import BlockSource
from ..errors import CorruptError, NotFoundError, YogaError
from ..process.lazy import later
from ..process.messages import warn_user
from ..reading.dataref import DataRef
from ..reading.stream import in_epoch
from ..reading.version_ref import VersionRef
from ..rows.block import Block, Data, Rows
from ..rows.collector import block_of
from ..rows.comparing import HASH, Hashes, row_hashes
from ..rows.schema import Schema
from ..rows.types import Ints, Json
from ..stores.contract import Versions
from ..stores.refs import ref_of, store_of
from ..stores.transfer import check
from ..versions.manifest import Manifest

if TYPE_CHECKING:
    from . import submission as _submission
else:  # which loads torch
    _submission = later("torchyoga.caching.submission")

_log = logging.getLogger("torchyoga")
Ranges = Sequence[tuple[int, int]]
_BYTES, _ROWS = 2**24, 2**16  # of a block, at most; of one row, if it is larger
_RAGGED_BYTES = 2**10  # of a value, where they are not known
_PATIENCE = 86400.0  # seconds, while another process makes them
_SCHEMA = Schema.of({"hash": np.zeros(2, np.uint64)})
_LOOKS = 8  # rows that are hashed again when kept hashes are read, besides the first and the last


def block_at(ref: DataRef, rows: Ints) -> Block:
    """Some rows of a DataRef with a schema; of a random one those of epoch 0 with seed 0."""
    return block_of(in_epoch(ref, 0, 0).take(rows), ref.schema)


def blocks_within(ref: DataRef, ranges: Ranges) -> Iterator[tuple[int, Block]]:
    """The rows of some ranges, in order: the first row of each block, and the block."""
    nbytes = ref._row_bytes
    if not nbytes and ref.schema is not None:
        columns = ref.schema.columns
        nbytes = sum(_RAGGED_BYTES if column.is_ragged else column.row_bytes for column in columns)
    step = max(1, min(_ROWS, _BYTES // max(1, nbytes)))
    for start, stop in ranges:
        for first in range(start, stop, step):
            yield first, block_at(ref, np.arange(first, min(first + step, stop)))


class KeptHashes:
    """The hashes of all rows of a version, read out of the version that they are kept as.

    Args:
        kept: that version.
        ref: the version whose hashes they are.
    """

    def __init__(self, kept: VersionRef, ref: VersionRef) -> None:
        self._kept = kept
        self._ref = ref

    def read(self, start: int, stop: int) -> Hashes:
        """(N, 2) the hashes of the rows from start to before stop; computed where they are damaged."""
        try:
            return self._stored(np.arange(start, stop))
        except (CorruptError, NotFoundError) as error:
            _log.warning("%r: its kept row hashes are not used: %s", self._ref, error)
            blocks = blocks_within(self._ref, [(start, stop)])
            return np.concatenate([row_hashes(block) for _, block in blocks])

    def _stored(self, rows: Ints) -> Hashes:
        """(N, 2) as they are kept; CorruptError if they are damaged."""
        taken = self._kept.take(rows)
        if not isinstance(taken, Rows):
            return np.empty((0, 2), np.uint64)
        found: Hashes = taken.block.data[0].values
        return found

    def compare(self, rows: Ints, block: Block) -> None:
        """Raises CorruptError unless these rows have the hashes that are kept."""
        wrong = np.flatnonzero((row_hashes(block) != self._stored(rows)).any(axis=1))
        if len(wrong):
            raise CorruptError(f"the hash of row {rows[wrong[0]]} is not that of its values")


def kept_hashes(ref: VersionRef) -> KeptHashes | None:
    """The hashes that are kept beside a version; None if there are none of its rows, or they are damaged."""
    store, version = store_of(ref.location, ref.manifest), ref.manifest
    if store is None:
        return None
    with contextlib.suppress(CorruptError, NotFoundError):
        found = store.hashes.find(version.id, version.version)
        if found is None or any(found.info.get(key) != value for key, value in _info(ref).items()):
            return None
        kept, length = _checked(store, found, ref), len(ref)
        if length and not ref.location.is_remote:  # else whole files would be downloaded
            some = {0, length - 1, *(secrets.randbelow(length) for _ in range(_LOOKS))}
            rows = np.array(sorted(some), np.int64)
            kept.compare(rows, block_at(ref, rows))
        return kept
    return None


def with_hashes(ref: VersionRef, store: Versions) -> VersionRef:
    """A version, after the hashes of its rows were kept beside it in its store; warns if they cannot be."""
    id, version, hashes = ref.manifest.id, ref.manifest.version, store.hashes
    try:
        with hashes.lock(id, version, _PATIENCE):
            if kept_hashes(ref) is None:
                options = BuildOptions(progress=False, info=_info(ref), stats=False)
                hashes.check_place(id, version)
                _submission.submitted(
                    _HashSource(ref), Target(hashes, id, version, hashes.seen(id, version)), options
                )
    except (OSError, YogaError) as error:
        problem = f"the row hashes of {id!r} {version!r} could not be kept: {error}"
        warn_user(f"{problem}; each diff computes them")
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
            reader = _checked(store, kept, ref)
            for start, block in blocks_within(ref, [(0, len(ref))]):
                reader.compare(np.arange(start, start + block.num_rows), block)
        except CorruptError as error:
            raise CorruptError(
                f"the row hashes of {id!r} {version!r} are damaged: {error}. Remove "
                f"{store.hashes.where(id, version)}; `diff` does without them"
            ) from error


def _info(ref: VersionRef) -> Json:
    """What is kept with the hashes of a version: whose they are, and how they are made."""
    return {"hashed_from": ref.fingerprint, "hash": HASH}


class _HashSource(BlockSource):
    """The hashes of a version, to be kept."""

    name = "the row hashes"
    schema = _SCHEMA

    def __init__(self, ref: VersionRef) -> None:
        self.length = len(ref)
        self._ref = ref

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """All hashes."""
        for _, block in blocks_within(self._ref, [(0, len(self._ref))]):
            yield Block(_SCHEMA, block.num_rows, (Data(row_hashes(block)),))


def _checked(store: Versions, manifest: Manifest, ref: VersionRef) -> KeptHashes:
    """The hashes that are kept as a version; CorruptError if they cannot be those of so many rows."""
    if manifest.num_rows != len(ref):
        raise CorruptError(f"there are {manifest.num_rows} hashes of {len(ref)} rows")
    if manifest.num_rows and manifest.schema != _SCHEMA:
        raise CorruptError("it does not hold hashes of rows")
    return KeptHashes(ref_of(store.hashes, manifest), ref)
