"""Files of ArrayRecord -> rows by number: bytes, which its own reader finds by their places."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import CorruptError, NotFoundError
from ...files.regular import open_regular
from ...process.digests import json_digest
from ...process.lazy import cached_property
from ...reading.dataref import DataRef
from ...reading.in_place_ref import files_of
from ...reading.library_ref import LibraryRef
from ...rows.data import Data, bounds_of
from ...rows.schema import Schema
from ...rows.types import Ints
from ...stores.address import directory_of, is_url

__all__ = ["from_arrayrecord"]

_OPTIONS = "readahead_buffer_size:0"  # it is read in any order
_BUFFER = 2**15  # bytes of a file that are read at once
_MOST_OPEN = 512  # files of a process


def from_arrayrecord(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> DataRef:
    """The records of ArrayRecord files as a DataRef, read where they lie by `array_record`.

    A row is the bytes of a record; `ref.map(function)` makes a row of anything else of them. Files written
    with `group_size:1` are read fastest: of others a whole group is read for each record.

    Args:
        files: the path of a file, or a list of such, on this machine.

    The DataRef pickles by the paths. `array_record` does not survive a fork, so a `DataLoader` with workers
    reads by threads, or where it needs processes starts these by forkserver; each opens the files anew. In a
    process that was forked otherwise, to read rows is an error.

    Raises:
        NotFoundError: there is no such file.
        CorruptError: it is not one of ArrayRecord, or is damaged. When rows are read: it is damaged there, or
            has changed since; names file and record.
        ValueError: there are no files, or one is behind a URL. When rows are read: this process was forked
            from the one that opened them.
        ImportError: array_record is not installed.
    """
    given = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if not given:
        raise ValueError("from_arrayrecord was given no files")
    paths = []
    for one in given:
        if is_url(os.fspath(one)):
            raise ValueError(f"{os.fspath(one)!r} is a URL; copy it to this machine first")
        paths.append(str(directory_of(os.fspath(one))))
    return LibraryRef(_Records(paths, [_identity(path) for path in paths], None))


def _identity(path: str) -> tuple[int, int]:
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; see that the path is right") from None
    try:
        about = os.fstat(handle)
        return about.st_size, about.st_mtime_ns
    finally:
        os.close(handle)


class _Records:
    """The records of some files: `reading.library_ref.LibraryRows`.

    Args:
        paths: of the files.
        identities: the size of each, and when it was written.
        counts: records of each; None to look.
    """

    prefetch = None
    only_copies = True

    def __init__(
        self, paths: Sequence[str], identities: Sequence[tuple[int, int]], counts: Sequence[int] | None
    ) -> None:
        self._paths, self._identities = paths, identities
        self.name = (
            paths[0] if len(paths) == 1 else f"{len(paths)} files of ArrayRecord, {paths[0]} the first"
        )
        self.schema = Schema.of(b"")
        self.opened_by = os.getpid()
        self._readers: dict[int, Any] = {}
        self._lock = threading.Lock()
        numbers = range(len(paths))
        self._counts = [int(self._reader(n).num_records()) for n in numbers] if counts is None else counts
        self.starts = bounds_of(self._counts)

    def __reduce__(self) -> tuple[object, ...]:
        return _Records, (self._paths, self._identities, self._counts)

    @property
    def row_bytes(self) -> int:
        """Bytes of an average record, as it is compressed."""
        return sum(size for size, _ in self._identities) // max(1, int(self.starts[-1]))

    @cached_property
    def content(self) -> str:
        """A name made of the sizes of the files, and of some records of each."""
        rows = np.unique(np.concatenate([self.starts[:-1], self.starts[1:] - 1]).clip(0))
        rows = rows[rows < self.starts[-1]]
        some = [data.hex() for data in self._read(rows)] if len(rows) else []
        return json_digest([list(map(int, self._counts)), [size for size, _ in self._identities], some])

    def gather(self, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """The bytes of records."""
        records = self._read(rows)
        return [Data(np.frombuffer(bytearray().join(records), np.uint8), bounds_of(map(len, records)))]

    def alone(self, columns: Sequence[int]) -> Callable[[int], tuple[bytes] | None]:
        """The bytes of a record, of a list of one."""
        starts = self.starts.tolist()

        def row(number: int) -> tuple[bytes] | None:
            file = bisect_right(starts, number) - 1
            try:
                (record,) = self._reader(file).read([number - starts[file]])
            except (RuntimeError, ValueError, IndexError):
                return None  # `gather` says why
            return (record,)

        return row

    def _read(self, rows: Ints) -> list[bytes]:
        files, read = files_of(self.starts, rows), [b""] * len(rows)
        order = np.argsort(files, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(files[order])) + 1):
            number = int(files[places[0]])
            local = (rows[places] - self.starts[number]).tolist()
            try:
                records = self._reader(number).read(local)
            except (RuntimeError, ValueError, IndexError) as error:
                raise CorruptError(self._damage(number, local, error)) from error
            for place, record in zip(places.tolist(), records, strict=True):
                read[place] = record
        return read

    def _damage(self, number: int, local: Sequence[int], error: Exception) -> str:
        """Which of some records cannot be read."""
        first = local[0]
        for first in local:
            self._readers.pop(number, None)  # one that has failed once goes on to fail
            try:
                self._reader(number).read([first])
            except (RuntimeError, ValueError, IndexError):
                break
        self._readers.pop(number, None)
        return f"{self._paths[number]}: record {first} cannot be read: {error}; write the file again"

    def _reader(self, number: int) -> Any:
        reader = self._readers.get(number)
        if reader is not None:
            return reader
        path = self._paths[number]
        if _identity(path) != self._identities[number]:
            raise CorruptError(f"{path} has changed since this was opened; open it again")
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError:
            raise ImportError(
                "from_arrayrecord needs array_record; pip install 'torchyoga[arrayrecord]'"
            ) from None
        try:
            reader = ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER)
        except (RuntimeError, ValueError) as error:
            raise CorruptError(f"{path} is not a file of ArrayRecord, or is damaged: {error}") from error
        if not reader.ok():
            raise CorruptError(f"{path} is not a file of ArrayRecord, or its index is damaged")
        with self._lock:
            if len(self._readers) >= _MOST_OPEN:
                self._readers = {}
            self._readers[number] = reader
        return reader
