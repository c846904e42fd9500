"""The hashes of all rows of a published version, kept beside it: 16 bytes a row, read or made once.

They are a small version of the same id and version in `Versions.hashes`, so that they are locked, published,
checked, downloaded and cleaned as all versions are.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ...building.build import BuildOptions
from ...building.sources import BlockSource
from ...errors import CorruptError, NotFoundError, YogaError
from ...process.lazy import later
from ...process.warned import warn_user
from ...reading.version_ref import VersionRef
from ...rows.block import Block, Rows
from ...rows.data import Data
from ...rows.hashing import HASH, Hashes, row_hashes
from ...rows.schema import Schema
from ...rows.types import Json
from ...stores.checking import check
from ...stores.contract import Versions
from ...stores.refs import ref_of, store_of
from ...versions.manifest import Manifest
from .blocks import RowBlocks
from .spool import Spool

if TYPE_CHECKING:
    from .. import submission as _submission
else:  # it loads torch, which a check does without
    _submission = later("torchyoga.caching.submission")

__all__ = [
    "HashReader",
    "check_hashes",
    "hashes_of",
    "kept_hashes",
    "submitted_with_hashes",
    "with_hashes",
]

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
