"""Blocks into finished, listed files, on a thread, while the caller makes the next ones.

Note 83. The caller decides where a file ends; the thread does as it is asked.
So all that is learned while rows are read stays on one thread, and all that belongs to a file on the other.
At most three blocks are in memory: one being made, one that waits, one being written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..files.checksum import combine_crc32, crc32
from ..formats.contract import Writer, format_named
from ..process.task_thread import TaskThread
from ..rows.block import Block
from ..rows.schema import Schema
from ..rows.stats.statistics import TableStatistics
from ..versions.manifest import FileEntry
from ..versions.staging import Staging

__all__ = ["Output"]


class Output:
    """The files of a build.

    Attributes:
        files: those that are finished, and complete after `settle`.
        schema: of the rows in files; None before the first block is written.
        stats: statistics of all rows in files, complete after `settle`; None if they are not wanted, or
            before the first block is written.
    """

    def __init__(
        self,
        staging: Staging,
        token: str,
        format: str,
        compression: str | None,
        finished: Callable[[Schema, list[FileEntry]], None],
        files: list[FileEntry],
        schema: Schema | None,
        counted: TableStatistics | bool = False,
        first_row: int = 0,
    ) -> None:
        """Files named after `token`, behind `files`, which have this schema, if there are any; `finished` is
        called after each, on the thread. `counted` are statistics of the rows in `files`, to which those of
        others are added; True for new ones, False for none. `first_row` is the number that the first row has
        in the version, of which this may be a part."""
        self.files = files
        self.schema = schema
        self.stats = counted if isinstance(counted, TableStatistics) else None
        self._is_counted = counted is not False
        self._next_row = first_row + sum(file.rows for file in files)
        self._staging, self._token = staging, token
        self._format, self._compression = format, compression
        self._module = format_named(format, compression)
        self._finished = finished
        self._thread = TaskThread("writer")
        self._writer: Writer | None = None
        self._checks: list[_Check] = []
        self._rows = 0

    def write(self, block: Block, ends_file: bool) -> None:
        """Writes a block, later, and then finishes the file; errors of earlier ones are raised here.

        Raises:
            OSError: the disk is full or cannot be written.
            SchemaError: the format cannot hold such rows.
        """
        self._thread.add(partial(self._write, block, ends_file))

    def finish(self) -> None:
        """Finishes the file and waits; errors as `write`."""
        self._thread.add(self._finish_file)
        self._thread.settle()

    def settle(self) -> None:
        """Waits until everything is written; errors as `write`."""
        self._thread.settle()

    def close(self) -> None:
        """Ends the thread, and abandons a file that is not finished."""
        self._thread.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    # -- on the thread

    def _write(self, block: Block, ends_file: bool) -> None:
        schema = self.schema = self.schema or block.schema
        if self._writer is None:
            self._writer = self._module.Writer(
                self._staging.new_file(self._name()), schema, self._compression
            )
            self._checks = [_Check() for column in schema.columns for _ in column.parts]
            self._rows = 0
        crcs = self._writer.write(block)
        parts = [data.part(p) for c, data in zip(schema.columns, block.data, strict=True) for p in c.parts]
        names = [p for column in schema.columns for p in column.parts]
        for check, name, array, crc in zip(self._checks, names, parts, crcs, strict=True):
            if name == "offsets":  # offsets depend on where blocks end; lengths do not
                array = np.diff(array)
                crc = crc32(array.tobytes())
            check.add(array.nbytes, crc)
        self._rows += block.num_rows
        if self._is_counted:
            self.stats = self.stats or TableStatistics(schema)
            self.stats.add(block, self._next_row)
        self._next_row += block.num_rows
        if ends_file:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._writer is None or self.schema is None:
            return
        writer, self._writer = self._writer, None
        index = writer.close()
        name = self._name()
        entry = FileEntry(
            name=name,
            format=self._format,
            rows=self._rows,
            nbytes=(self._staging.path / name).stat().st_size,
            index=index,
            checks=tuple((check.nbytes, check.crc) for check in self._checks),
            crc=self._staging.crc_of(name),
        )
        self.files.append(entry)
        self._finished(self.schema, self.files)

    def _name(self) -> str:
        """The name of the file being written."""
        return f"{self._token}-{len(self.files):05d}{self._module.SUFFIX}"


class _Check:
    """CRC-32 and size of all bytes of one part of a column in a file."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.crc = 0

    def add(self, nbytes: int, crc: int) -> None:
        self.crc = combine_crc32(self.crc, crc, nbytes)
        self.nbytes += nbytes
