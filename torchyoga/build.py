"""The rows of a source into a published version: blocks, files, manifest.

Door: `build`. Never sees orders or frameworks.

Note 5. An interrupted build continues, if its source is map-style.
A file is finished and listed at least every 2 s, or a tenth of the time so far. The next build compares the
files' checksums, and some rows with the source: those at the files' ends, and one drawn at random from each
stretch. If the source has changed, the build starts over; see docs/builds.md.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .errors import CorruptError, RemoteError, SchemaError
from .files.checksum import combine_crc32, crc32
from .formats.contract import Writer, format_named
from .process.progress import Bar, progress_bar
from .reading.reader import Reader
from .rows.block import Block, Rows, equal_blocks
from .rows.collector import Collector
from .rows.schema import Schema
from .rows.types import Json, Row
from .stores.contract import Seen, Versions
from .versions.manifest import FileEntry, FunctionEntry, Manifest, fingerprint_of, is_token
from .versions.staging import Staging

__all__ = ["BlockSource", "BuildOptions", "RowSource", "Source", "build"]

_log = logging.getLogger("torchyoga")
_FILE_SECONDS, _FILE_SHARE = 2.0, 0.1  # an interruption costs 2 s of work, or a tenth of all so far
_LOOKS = 20  # at the clock and the progress bar, in the time that an interruption may cost
_ROWS_TO_LEARN = 64  # with fewer, a slow source has not shown yet which columns vary
_BLOCK_ROWS = 65536  # at most, however small the rows
_NOTICE_BYTES = 2**30  # a source without a known end is logged at this size, and whenever it has doubled
_ROWS_TO_COMPARE, _SHARE_TO_COMPARE = 32, 0.1  # at most, of the rows kept by an interrupted build


class RowSource(ABC):
    """Rows from anywhere; an adapter turns a dataset into one.

    Attributes:
        length: number of rows, or None if that is not known before the end.
        seekable: True if `rows(start)` can begin anywhere at no cost, so that a build can be continued.
        name: what the source is, for messages.
    """

    length: int | None = None
    seekable: bool = False
    name: str = "the source"

    @abstractmethod
    def rows(self, start: int) -> Iterator[Row]:
        """The rows from number `start` on; `start` is 0 unless `seekable`."""

    def row(self, number: int) -> Row:
        """One row; only called if the source is `seekable`."""
        return next(iter(self.rows(number)))


class BlockSource(ABC):
    """Rows that come in arrays, many at once, and are stored without looking at each.

    Attributes:
        length: number of rows, or None if that is not known before the end.
        schema: the schema of every row.
        name: what the source is, for messages.
    """

    length: int | None
    schema: Schema
    name: str = "the arrays"

    @abstractmethod
    def blocks(self, nbytes: int) -> Iterator[Block]:
        """All rows, in order, in blocks of about `nbytes` bytes."""


Source = RowSource | BlockSource


@dataclass(frozen=True)
class BuildOptions:
    """How to build.

    Attributes:
        format: the file format; `compression`: one that the format has.
        schema: the schema of the rows; None to learn it from the first block.
        max_rows: more rows than this are an error; this catches a source without an end.
        progress: show a progress bar; None to show it on a terminal only.
        block_bytes: rows are gathered into blocks of about this size; `file_bytes`: blocks into files.
        info: kept with the version.
        function: the function that makes the rows, if there is one; an interrupted build by other code is not
            continued.
        differing: takes the recorded function of an interrupted build, and returns the arguments that
            differed; if there are any, the build is not continued. None if there are no arguments.
        before_publishing: called when all rows have been read; an exception from it ends the build.
    """

    format: str = "lmdb"
    compression: str | None = None
    schema: Schema | None = None
    max_rows: int | None = None
    progress: bool | None = None
    block_bytes: int = 4 * 2**20
    file_bytes: int = 2**30
    info: Json = field(default_factory=dict)
    function: FunctionEntry | None = None
    differing: Callable[[FunctionEntry], Sequence[str]] | None = None
    before_publishing: Callable[[], None] | None = None


def build(
    source: Source,
    store: Versions,
    id: str,
    version: str,
    options: BuildOptions,
    replaces: Seen | None = None,
) -> Manifest:
    """Reads `source` to its end and publishes it. Hold the store's lock of this version.

    Raises:
        SchemaError: a row does not fit. Nothing is published.
        ValueError: there are more than `max_rows` rows. Nothing is published.
        OSError: the disk is full or cannot be written. Nothing is published.
    """
    if options.max_rows is not None and source.length is not None and source.length > options.max_rows:
        raise ValueError(
            f"{source.name} has {source.length} rows, more than max_rows={options.max_rows}; raise max_rows"
        )
    if isinstance(source, BlockSource) and options.schema not in (None, source.schema):
        raise SchemaError(
            f"schema= says\n{options.schema}\nbut {source.name} hold\n{source.schema}\n"
            "Leave schema out, or convert the arrays"
        )
    staging = store.stage(id, version, replaces)
    task = _Build(source, staging, options)
    try:
        task.run()
        if options.before_publishing is not None:
            options.before_publishing()
        manifest = Manifest(
            id=id,
            version=version,
            build=task.token,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            schema=task.schema,
            fingerprint=fingerprint_of(task.schema, task.files),
            files=tuple(task.files),
            info=options.info,
            function=options.function,
        )
        manifest = store.publish(staging, manifest, options.progress)
    except BaseException as error:
        # If the source failed, a store could not be reached, the user interrupted, or a warning was an error,
        # the rows so far are kept for the next try. If a row does not fit or the disk is full, something
        # must change first.
        of_itself = not isinstance(error, Exception) or isinstance(error, (RemoteError, Warning))
        may_go_on = task.source_broke or of_itself
        if task.seekable and may_go_on:
            task.save()
        else:
            task.abort()
        raise
    return manifest


class _Build:
    def __init__(self, source: Source, staging: Staging, options: BuildOptions) -> None:
        self.source = source
        self.staging = staging
        self.options = options
        self.schema = options.schema
        self.files: list[FileEntry] = []
        self.token = secrets.token_hex(8)
        self.rows_done = self.nbytes = 0
        self.source_broke = False
        self._writing, self._learned = False, True
        self.seekable = isinstance(source, RowSource) and source.seekable
        self._format = format_named(options.format, options.compression)
        self._collector = Collector(self.schema)
        self._writer: Writer | None = None
        self._checks: list[_Check] = []
        self._file_rows = 0
        self._noticed = _NOTICE_BYTES
        self._noted: Json | None = None  # of the build, where its files are listed
        self._started = self._file_started = time.monotonic()

    def run(self) -> None:
        self._continue()
        source = self.source
        with progress_bar(
            self.options.progress, source.length, source.name, " rows", initial=self.rows_done
        ) as bar:
            blocks = (
                self._blocks_of_rows(bar)
                if isinstance(self.source, RowSource)
                else self._blocks_of_arrays(bar)
            )
            for block in blocks:
                self._write(block)
        self._finish_file()
        if self.schema is None and isinstance(self.source, BlockSource):
            self.schema = self.source.schema

    def save(self) -> None:
        """Writes and lists the rows read so far, so that the next build continues behind them."""
        try:
            # If a write was interrupted, it is unknown how much of a block the file and the counts hold.
            if not self._writing:
                # The rows so far may be too few to show which columns vary.
                self._learned = self.schema is not None
                if len(self._collector):
                    self._write(self._collector.take())
                self._finish_file()
        except OSError as error:
            _log.warning("%s: the rows since the last finished file are lost: %s", self.source.name, error)
        self._abandon_file()

    def abort(self) -> None:
        """Deletes everything that the build has written."""
        self._abandon_file()
        self.staging.clear()

    def _abandon_file(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    # -- rows -> blocks

    def _blocks_of_rows(self, bar: Bar) -> Iterator[Block]:
        assert isinstance(self.source, RowSource)
        collector, block_bytes = self._collector, self.options.block_bytes
        shown = number = self.rows_done + len(collector)
        next_look = 0.0
        for row in self._asked(partial(self.source.rows, number)):
            collector.add(row, number)
            number += 1
            self._check_bound(number)
            is_full = collector.nbytes >= block_bytes or len(collector) >= _BLOCK_ROWS
            now = time.monotonic()
            if now >= next_look:  # not at every row: a look takes as long as a quick row
                next_look = now + _FILE_SECONDS / _LOOKS
                bar.update(number - shown)
                shown = number
                learned = self.schema is not None or len(collector) >= _ROWS_TO_LEARN
                is_full = is_full or (learned and self._file_is_old())
            if is_full:
                yield collector.take()
                self._notice(number)
        bar.update(number - shown)
        if len(collector):
            yield collector.take()
        if self.seekable and number != self.source.length:
            raise ValueError(
                f"{self.source.name} gave {number} rows, but its length is {self.source.length}; "
                "correct its __len__ or __getitems__"
            )

    def _asked(self, ask: Callable[[], Iterable[Row]]) -> Iterator[Row]:
        """Rows of the source; marks its errors, to distinguish them from all others."""
        try:
            yield from ask()
        except Exception:
            self.source_broke = True
            raise

    def _check_bound(self, num_rows: int) -> None:
        limit = self.options.max_rows
        if limit is not None and num_rows > limit:
            raise ValueError(
                f"{self.source.name} has more than max_rows={limit} rows, perhaps without an end; raise "
                "max_rows, or bound it, as itertools.islice does. Nothing was published"
            )

    def _notice(self, num_rows: int) -> None:
        if self.source.length is not None or self.nbytes < self._noticed:
            return
        self._noticed *= 2
        _log.warning(
            "%s: %d rows and %.1f GB so far, no end known, %.1f GB of disk left; max_rows would bound it",
            self.source.name,
            num_rows,
            self.nbytes / 1e9,
            self.staging.free_bytes() / 1e9,
        )

    def _blocks_of_arrays(self, bar: Bar) -> Iterator[Block]:
        assert isinstance(self.source, BlockSource)
        number = 0
        for block in self.source.blocks(self.options.block_bytes):
            number += block.num_rows
            self._check_bound(number)
            yield block
            self._notice(number)
            bar.update(block.num_rows)

    # -- blocks -> files

    def _write(self, block: Block) -> None:
        self._writing = True
        self.schema = self.schema or block.schema
        if self._writer is None:
            name = f"{self.token}-{len(self.files):05d}{self._format.SUFFIX}"
            self._writer = self._format.Writer(
                self.staging.new_file(name), self.schema, self.options.compression
            )
            self._checks = [_Check() for column in self.schema.columns for _ in column.parts]
            self._file_rows = 0
            self._file_started = time.monotonic()
        crcs = self._writer.write(block)
        parts = [
            data.part(p) for c, data in zip(self.schema.columns, block.data, strict=True) for p in c.parts
        ]
        names = [p for column in self.schema.columns for p in column.parts]
        for check, name, array, crc in zip(self._checks, names, parts, crcs, strict=True):
            if name == "offsets":  # offsets depend on where blocks end; lengths do not
                array = np.diff(array)
                crc = crc32(array.tobytes())
            check.add(array.nbytes, crc)
        self._file_rows += block.num_rows
        self.rows_done += block.num_rows
        self.nbytes += block.nbytes
        self._writing = False
        if self._writer.nbytes >= self.options.file_bytes or self._file_is_old():
            self._finish_file()

    def _file_is_old(self) -> bool:
        now = time.monotonic()
        allowed = max(_FILE_SECONDS, _FILE_SHARE * (now - self._started))
        return self.seekable and now - self._file_started > allowed

    def _finish_file(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        index = writer.close()
        name = f"{self.token}-{len(self.files):05d}{self._format.SUFFIX}"
        entry = FileEntry(
            name=name,
            format=self.options.format,
            rows=self._file_rows,
            nbytes=(self.staging.path / name).stat().st_size,
            index=index,
            checks=tuple((check.nbytes, check.crc) for check in self._checks),
            crc=self.staging.crc_of(name),
        )
        self.files.append(entry)
        self._file_started = time.monotonic()
        if self.seekable and self.schema is not None:
            self._note(entry, self.schema)

    def _note(self, entry: FileEntry, schema: Schema) -> None:
        """Records one more finished file."""
        build = {
            "token": self.token,
            "source": self._signature(),
            "function": self.options.function.to_json() if self.options.function else None,
            "learned": self._learned,
            "schema": schema.to_json(),
        }
        # None until the note is written: nothing could be added after half a line.
        noted, self._noted = self._noted, None
        if noted == build:
            self.staging.add(entry.to_json())
        else:
            self.staging.save({**build, "files": [file.to_json() for file in self.files]})
        self._noted = build

    # -- an interrupted build

    def _signature(self) -> list[object]:
        options = self.options
        schema = options.schema.to_json() if options.schema else None
        return [
            self.source.name,
            self.source.length,
            options.format,
            options.compression,
            schema,
            options.function.code if options.function else None,
        ]

    def _continue(self) -> None:
        found = self.staging.load() if self.seekable else {}
        try:
            if found:
                self._take_over(found)
        except (
            CorruptError,
            SchemaError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OSError,
        ) as error:
            if self.source_broke:
                raise
            _log.warning(
                "%s: starting over, the interrupted build cannot be continued: %s", self.source.name, error
            )
        self.staging.keep_only(self.files)

    def _take_over(self, found: Json) -> None:
        schema = Schema.from_json(found["schema"])
        files = [FileEntry.from_json(file) for file in found["files"]]
        if not is_token(found["token"]):
            raise ValueError("its record is not from torchyoga")
        self._compare_functions(found.get("function"))
        if sum(file.rows for file in files) > (self.source.length or 0):
            raise ValueError("it has more rows than the source")
        if found["source"] != self._signature():
            raise ValueError("it had another source, other code or other options")
        reader = Reader(str(self.staging.path), schema, files)
        damaged = reader.verify_all()
        if damaged:
            raise CorruptError(damaged[0])
        self._compare(reader)
        if found["learned"]:
            self.schema, self.files, self.token = schema, files, found["token"]
            self.rows_done = reader.num_rows
            self._collector = Collector(schema)
        else:
            for number, row in enumerate(Rows(reader.take(np.arange(reader.num_rows))).exact()):
                self._collector.add(row, number)
        _log.info("%s: continuing an interrupted build at row %d", self.source.name, reader.num_rows)

    def _compare_functions(self, noted: Json | None) -> None:
        """Raises ValueError if the kept rows were made with arguments other than the current ones."""
        made, function = None if noted is None else FunctionEntry.from_json(noted), self.options.function
        if made is None and function is not None:
            raise ValueError("it has no record of a function and its arguments")
        if made is not None and function is None:
            raise ValueError("it was made by a function, with arguments that are unknown now")
        if made is not None and self.options.differing is not None:
            names = self.options.differing(made)
            if names:
                raise ValueError(f"it was made with another {' and another '.join(names)}")

    def _compare(self, reader: Reader) -> None:
        """Raises ValueError if some of the kept rows differ from what the source gives now."""
        numbers = sorted({*_ends(reader.files), *_drawn(reader.num_rows)})
        found = self._read(numbers, reader.schema)
        kept = reader.take(np.array(numbers, np.int64))
        for place, number in enumerate(numbers):
            if equal_blocks(found, kept, [place]):
                continue
            first, second = (self._read([number], reader.schema) for _ in range(2))
            raise ValueError(
                f"row {number} of the source has changed"
                if equal_blocks(first, second, [0])
                else f"row {number} of the source differs each time it is read, as if augmented at random; a "
                "build of such rows always starts over, so cache them before they are augmented"
            )

    def _read(self, numbers: list[int], schema: Schema) -> Block:
        """These rows of the source."""
        assert isinstance(self.source, RowSource)
        collector = Collector(schema)
        for number, row in zip(numbers, self._asked(partial(map, self.source.row, numbers)), strict=True):
            collector.add(row, number)
        return collector.take()


def _ends(files: Sequence[FileEntry]) -> list[int]:
    """The first and the last row of some of the files."""
    stops = np.cumsum([file.rows for file in files])
    found: list[int] = sorted({0, *stops[:-1].tolist(), *(stops - 1).tolist()})
    return found[:: max(1, len(files) // 8)]


def _drawn(num_rows: int) -> list[int]:
    """One row from each of some equal stretches; different ones each time, so that no change stays hidden."""
    count = min(_ROWS_TO_COMPARE, max(1, int(_SHARE_TO_COMPARE * num_rows)))
    bounds = [num_rows * i // count for i in range(count + 1)]
    return [start + secrets.randbelow(stop - start) for start, stop in itertools.pairwise(bounds)]


class _Check:
    """CRC-32 and size of all bytes of one part of a column in a file."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.crc = 0

    def add(self, nbytes: int, crc: int) -> None:
        self.crc = combine_crc32(self.crc, crc, nbytes)
        self.nbytes += nbytes
