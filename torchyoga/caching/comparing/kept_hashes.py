"""The hashes of all rows of a published version, kept beside it: 16 bytes a row, read or made once."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...building.build import BuildOptions
from ...building.sources import BlockSource
from ...errors import CorruptError, NotFoundError
from ...reading.version_ref import VersionRef
from ...rows.block import Block, Rows
from ...rows.data import Data
from ...rows.hashing import HASH, Hashes, row_hashes
from ...rows.schema import Schema
from ...rows.types import Array, Json
from ...stores.contract import Versions
from ...stores.refs import ref_of
from ...versions.manifest import Manifest
from ..keeping import Keeping, Kind
from .blocks import RowBlocks
from .spool import Spool

__all__ = [
    "HASHES",
    "HashReader",
    "check_hashes",
    "hashes_of",
    "kept_hashes",
    "submitted_with_hashes",
    "with_hashes",
]

HASHES = Kind("submit", "the row hashes", "hash", suffix=" hashes")
WORTH_ROWS, WORTH_BYTES = 2**14, 2**24  # of a version: hashes of fewer are made in less time than kept
_NAME = "row"
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
    """The hashes that are kept beside a version; None if there are none."""
    keeping = _keeping(ref)
    return None if keeping is None else keeping.found()


def hashes_of(ref: VersionRef) -> HashReader:
    """The hashes of a version as they are kept; else computed, and kept where that is worth its while and the
    store can be written."""
    keeping = _keeping(ref)
    if keeping is None:
        return _computed(ref, 0, len(ref))
    if len(ref) >= WORTH_ROWS or ref.manifest.nbytes >= WORTH_BYTES:
        return keeping.read_or_made()
    return keeping.found() or keeping.make()


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
    made: HashReader = spool
    if spool.num_rows < len(ref):  # an interrupted build has left the first rows
        whole = _computed(ref, 0, len(ref) - spool.num_rows)
        for start in range(0, spool.num_rows, _STEP):
            whole.append(spool.read(start, min(start + _STEP, spool.num_rows)))
        made = whole
    _Keeping(ref, is_asked=True, made=made).read_or_made()
    return ref


def with_hashes(ref: VersionRef) -> VersionRef:
    """A version, after the hashes of its rows were computed and kept, unless they are kept already."""
    _Keeping(ref, is_asked=True).read_or_made()
    return ref


def check_hashes(store: Versions, id: str, version: str, kept: Manifest) -> None:
    """Computes the hashes of a version again, and compares them with those kept.

    Raises:
        CorruptError: they are others.
        NotFoundError: the version was removed or overwritten meanwhile.
    """
    ref = ref_of(store, store.manifest(id, version))
    if kept.info.get(HASHES.source) != ref.fingerprint:
        return  # of rows that were overwritten since
    reader = _Kept(_checked(store.kept, kept, ref), ref)
    for start, block in _blocks(ref, 0, len(ref)):
        _compare(reader, np.arange(start, start + block.num_rows), block)


class _Keeping(Keeping[HashReader]):
    """Hashes that are read, or made and kept.

    Args:
        ref: the version.
        is_asked: there is a warning if they cannot be kept.
        made: the hashes, if they are made already.
    """

    def __init__(self, ref: VersionRef, is_asked: bool, made: HashReader | None = None) -> None:
        super().__init__(HASHES, ref, _NAME, None, "rebuild")
        self._version = ref
        self._is_asked = is_asked
        self._made = made

    def found(self) -> HashReader | None:
        """Those that are kept."""
        return self._read()

    def make(self) -> HashReader:
        return self._made or _computed(self._version, 0, len(self._version))

    def loaded(self, manifest: Manifest) -> HashReader:
        found = _Kept(_checked(self.place.store, manifest, self._version), self._version)
        length = len(self._version)
        if length and not self._version.location.is_remote:  # else whole files would be downloaded
            some = {0, length - 1, *(secrets.randbelow(length) for _ in range(_LOOKS))}
            rows = np.array(sorted(some), np.int64)
            _compare(found, rows, RowBlocks(self._version, self._version.schema).take(rows))
        return found

    def parts(self, made: HashReader) -> Mapping[str, Array] | BlockSource:
        return _HashedSource(made, len(self._version))

    def info(self, made: HashReader) -> Json:
        return {"hash": HASH}

    def difference(self, manifest: Manifest) -> str | None:
        found = manifest.info.get("hash")
        return None if found == HASH else f"as {found!r:.80}, not as {HASH!r}"

    def warn(self, problem: Exception) -> None:
        if self._is_asked:
            super().warn(problem)
        else:
            _log.info("%s could not be kept: %s", self.place.what, problem)


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


def _keeping(ref: VersionRef) -> _Keeping | None:
    """The keeper of hashes beside a version; None if it does not lie in a store."""
    with contextlib.suppress(ValueError):
        return _Keeping(ref, is_asked=False)
    return None


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
    return ref_of(store, manifest)


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
