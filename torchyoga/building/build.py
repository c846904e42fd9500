"""A source to its end, and what then happens: published, kept for the next try, or deleted.

The caller decides where a file ends; the thread does as it is asked.
So all that is learned while rows are read stays on one thread, and all that belongs to a file on the other.
At most three blocks are in memory: one being made, one that waits, one being written.

A file is finished and listed at least every 2 s, or after a tenth of the time so far.
No more is lost by an interruption, and a long build does not end in thousands of files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import CorruptError, RemoteError, SchemaError, YogaError
from ..files.checksum import combine_crc32, crc32
from ..formats.contract import Writer, format_named
from ..process.exceptions import Note, note_row, notes_of
from ..process.messages import Bar, escaped, log, progress_bar
from ..process.threads import Errand, TaskThread
from ..reading.counting import counted_in
from ..rows.block import Block, Rows
from ..rows.collector import Collector
from ..rows.schema import Schema
from ..rows.statistics import TableStatistics
from ..rows.types import Json
from ..stores.contract import Seen, Store
from ..versions.columns import fingerprint_of
from ..versions.file_entry import FileEntry, Listed
from ..versions.lineage import Parent, plain
from ..versions.location import Staging
from ..versions.manifest import FunctionEntry, Manifest
from .record import KeptRows, Record
from .sources import BlockSource, PlacedSource, RowSource, SeekableBlocks, Source

T = TypeVar("T")
_FILE_SECONDS, _FILE_SHARE = 2.0, 0.1  # an interruption costs 2 s of work, or a tenth of all so far
_LOOKS = 20  # at the clock and the progress bar, in the time that an interruption may cost
_ROWS_TO_LEARN = 64  # with fewer, a slow source has not shown yet which columns vary
_BLOCK_ROWS = 65536  # at most, however small the rows


@dataclass(frozen=True)
class Target:
    """Where a version is to be published.

    Attributes:
        store: the versions of a directory or a store.
        id: which dataset; `version`: which version of it.
        replaces: the version that may be replaced; None if none may.
    """

    store: Store
    id: str
    version: str
    replaces: Seen | None = None

    def __str__(self) -> str:
        return f"{self.id!r} {self.version!r}"


@dataclass(frozen=True)
class BuildOptions:
    """How to build.

    Attributes:
        format: the file format; `compression`: one that the format has.
        schema: the schema of the rows; None to learn it from the first block.
        converts: values of other types than the schema's are taken where they fit it without loss.
        max_rows: more rows than this are an error; this catches a source without an end.
        progress: show a progress bar; None to show it on a terminal only.
        block_bytes: rows are gathered into blocks of about this size; `file_bytes`: blocks into files.
        info: kept with the version; `asked`: makes of the dataset what else is kept.
        function: the function that makes the rows, if there is one; an interrupted build by other code is not
            continued.
        differing: takes the recorded function of an interrupted build, and returns the arguments that
            differed; if there are any, the build is not continued. None if there are no arguments.
        encode: makes of a dataset one with values decoded that are encoded already, and what encodes a
            source of that; None to keep values as they are.
        parents: versions that this one is made from, the direct one last.
        lineage: makes the lineage of the version, from the seconds that the build took.
        each_block: called with each block of rows, as they are stored, while it is written; those that an
            interrupted build has left are not among them.
        publishing: takes the manifest of what was built, and gives the one to publish, within a `with`
            statement.
        before_publishing: called when all rows have been read; an exception from it ends the build.
        stats: keep statistics of columns with the version.
        num_workers: processes that read rows by number.
    """

    format: str = "lmdb"
    compression: str | None = None
    schema: Schema | None = None
    max_rows: int | None = None
    progress: bool | None = None
    block_bytes: int = 4 * 2**20
    file_bytes: int = 2**30
    info: Json = field(default_factory=dict)
    asked: Callable[[object], Json] | None = None
    function: FunctionEntry | None = None
    differing: Callable[[FunctionEntry], Sequence[str]] | None = None
    encode: Callable[[object], tuple[object, Callable[[Source], Source]]] | None = None
    each_block: Callable[[Block], None] | None = None
    before_publishing: Callable[[], None] | None = None
    stats: bool = True
    converts: bool = False
    parents: Sequence[Parent] = ()
    lineage: Callable[[float], Json] | None = None
    publishing: Callable[[Manifest], AbstractContextManager[Manifest]] = contextlib.nullcontext
    num_workers: int = 0

    def refuse_more_rows(self, name: str, count: int) -> None:
        """Raises ValueError if a source of this name has more rows than `max_rows`."""
        if self.max_rows is not None and count > self.max_rows:
            raise ValueError(f"{name} has {count} rows, more than max_rows={self.max_rows}; raise max_rows")

    def difference_from(self, made: FunctionEntry | None) -> str | None:
        """Why rows that were made by a recorded function are not those of `function`; None if they are."""
        if made is None and self.function is not None:
            return "it has no record of a function and its arguments"
        if made is not None and self.function is None:
            return "it was made by a function, with arguments that are unknown now"
        names = self.differing(made) if made is not None and self.differing is not None else []
        return f"it was made with another {' and another '.join(names)}" if names else None


def build(source: Source, target: Target, options: BuildOptions) -> Manifest:
    """Reads `source` to its end and publishes it. Hold the store's lock of this version.

    Raises:
        SchemaError: a row does not fit. Nothing is published.
        ValueError: there are more than `max_rows` rows. Nothing is published.
        OSError: the disk is full or cannot be written. Nothing is published.
    """
    options.refuse_more_rows(source.name, source.length or 0)
    schema = options.schema
    if isinstance(source, BlockSource) and schema is not None and schema != source.schema:
        raise SchemaError(
            f"schema= says\n{schema.exact}\nbut {source.name} hold\n{source.schema.exact}\n"
            "Leave schema out, or convert the arrays"
        )
    started = time.monotonic()
    store, id, version = target.store, target.id, target.version
    staging, process = store.stage(id, version, target.replaces), os.getpid()
    task = _Build(source, staging, options)
    try:
        made = task.run(named=f"{escaped(id)} {escaped(version)}")
        if options.before_publishing is not None:
            options.before_publishing()
        manifest = Manifest(
            id=id,
            version=version,
            build=made.token,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            schema=made.schema,
            fingerprint=fingerprint_of(made.schema, made.files),
            files=Listed(made.files),
            info=info_with(options.info, source.found if isinstance(source, RowSource) else {}, source.name),
            function=options.function,
            stats={} if made.stats is None else made.stats.published(),
            parents=Listed(options.parents),
            lineage=options.lineage(time.monotonic() - started) if options.lineage is not None else {},
        )
        with options.publishing(manifest) as grown:
            grown = grown.in_lists(staging.root.write)
            manifest = store.publish(staging, grown, options.progress)
    except BaseException as error:
        if os.getpid() != process:
            raise  # a child that the source has forked: the files are its parent's
        # If the source failed, a store could not be reached, the user interrupted, or a warning was an error,
        # the rows so far are kept for the next try. If a row does not fit or the disk is full, something
        # must change first.
        of_itself = not isinstance(error, Exception) or isinstance(error, (RemoteError, Warning))
        may_go_on = task.source_broke or of_itself
        if task.can_continue and may_go_on:
            task.save()
        else:
            task.abort()
        raise
    task.close()
    return manifest


class Written(NamedTuple):
    """The files that a build has made.

    Attributes:
        token: the beginning of their names.
        files: all of them.
        schema: of the rows; None if there were none and none was given.
        stats: statistics of the columns; None if they are not wanted, or there were no rows.
    """

    token: str
    files: tuple[FileEntry, ...]
    schema: Schema | None
    stats: TableStatistics | None


def written(source: Source, staging: Staging, options: BuildOptions, first: int = 0) -> Written:
    """Reads `source` to its end into files, and publishes nothing.

    Args:
        source: gives the rows; it must not be one whose build can be continued.
        staging: an empty place for the files.
        options: how to build.
        first: the number of the first row, for messages.

    Raises:
        SchemaError, ValueError, OSError: as `build`. The files are deleted.
    """
    task = _Build(source, staging, options)
    try:
        made = task.run(first)
    except BaseException:
        task.abort()
        raise
    task.close()
    return made


def info_with(given: Json, found: Json, name: str) -> Json:
    """The info that was given to be kept with a version, and what its source has found besides."""
    if not found:
        return given
    try:
        return plain({**found, **given})
    except ValueError as error:  # together they are too long
        log.warning("%s: the info of the version does not keep %s: %s", name, [*found], error)
        return given


class _Build:
    def __init__(self, source: Source, staging: Staging, options: BuildOptions) -> None:
        self.source = source
        self.options = options
        self.token = secrets.token_hex(8)
        self.source_broke = False
        self._staging = staging
        self._record: Record | None = None
        self._place: Json | None = None  # where a PlacedSource continues
        self._given = options.schema or (source.schema if isinstance(source, RowSource) else None)
        pin = source.pin if isinstance(source, RowSource) else None
        if isinstance(source, (PlacedSource, SeekableBlocks)) or (
            isinstance(source, RowSource) and source.seekable
        ):
            schema = self._given.to_json() if self._given else None
            like: list[object] = [options.format, options.compression, schema]
            like += [] if pin is None else [pin]
            self._record = Record(staging, source, like, options.function, options.difference_from)
        self._meanings = (lambda: source.meanings) if isinstance(source, RowSource) else None
        self._collector = Collector(self._given, self._meanings, True, options.converts)
        self._output: _OutputFiles | None = None
        self._learned = True
        self._file_bytes = 0  # of the blocks in the current file
        self._started = self._file_started = 0.0

    @property
    def can_continue(self) -> bool:
        """True if the next build can go on where this one ends."""
        return self._record is not None

    def run(self, first: int = 0, named: str | None = None) -> Written:
        """Reads the source to its end; its first row has this number. A progress bar shows the name."""
        done = self._begin(first) + first
        self._started = self._file_started = time.monotonic()  # to check what was kept is not part of a file
        source = self.source
        with progress_bar(
            self.options.progress, source.length, named or source.name, " rows", initial=done
        ) as bar:
            blocks = (
                self._blocks_of_rows(source, done, bar)
                if isinstance(source, RowSource)
                else self._blocks_of_arrays(source, done, bar)
            )
            for block in blocks:
                self._hand_over(block)
        output = self._output
        assert output is not None
        output.finish()
        own = source.schema if isinstance(source, BlockSource) else None
        schema = output.schema or self._collector.schema or own
        return Written(self.token, tuple(output.files), schema, output.stats)

    def save(self) -> None:
        """Writes and lists the rows read so far, so that the next build continues behind them."""
        output = self._output
        if output is None:
            return
        try:
            output.settle()
            # The rows so far may be too few to show which columns vary.
            self._learned = output.schema is not None
            if len(self._collector):
                output.write(self._collector.take(), ends_file=True)
            output.finish()
        except Exception as error:  # not in place of what has ended the build
            log.warning("%s: the rows since the last finished file are lost: %s", self.source.name, error)
        finally:
            output.close()
            with contextlib.suppress(OSError, YogaError):  # part of a file could fill the disk until then
                self._staging.keep_only(output.files)

    def close(self) -> None:
        """Ends what runs beside the build."""
        if self._output is not None:
            self._output.close()

    def abort(self) -> None:
        """Deletes everything that the build has written."""
        self.close()
        self._staging.clear()

    # -- an interrupted build

    def _begin(self, first: int) -> int:
        """The number of rows that an interrupted build has left; after this, there is an output."""
        left, done = _Resumed(), 0
        found = self._staging.load() if self._record else {}
        try:
            if self._record is not None and found:
                kept, stats = self._record.kept(found, self._asked), None
                if self.options.stats and kept.learned and kept.reader.num_rows:
                    stats = counted_in(kept.reader)  # first: if it fails, nothing was taken over
                files, done = self._take_over(kept), kept.reader.num_rows
                left = _Resumed(files, kept.reader.schema if files else None, stats)
        except (CorruptError, SchemaError, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            if self.source_broke:
                raise
            log.warning(
                "%s: starting over, the interrupted build cannot be continued: %s", self.source.name, error
            )
        self._staging.keep_only(left.files)
        self._output = _OutputFiles(self._staging, self.token, self.options, self._note, left, first)
        return done

    def _take_over(self, kept: KeptRows) -> tuple[FileEntry, ...]:
        """Continues behind the kept rows; returns the files that stay."""
        files: tuple[FileEntry, ...] = ()
        self._place = kept.place
        if kept.learned:
            files, self.token = tuple(kept.reader.files), kept.token
            self._collector = Collector(kept.reader.schema, converts=self.options.converts)
        else:
            collector = Collector(self._given, self._meanings, True, self.options.converts)
            for number, row in enumerate(Rows(kept.reader.take(np.arange(kept.reader.num_rows))).exact()):
                collector.add(row, number)
            self._collector = collector
        log.info("%s: continuing an interrupted build at row %d", self.source.name, kept.reader.num_rows)
        return files

    def _note(self, schema: Schema, files: Sequence[FileEntry]) -> None:
        if self._record is not None:
            self._record.note(self.token, schema, self._learned, files)

    # -- rows -> blocks

    def _blocks_of_rows(self, source: RowSource, done: int, bar: Bar) -> Iterator[Block]:
        collector, block_bytes = self._collector, self.options.block_bytes
        shown = taken = number = done
        next_look = 0.0
        rows = partial(source.rows, number)
        if isinstance(source, PlacedSource) and self._place is not None:
            rows = partial(source.rows_at, self._place, number)

        def note(error: Exception) -> None:
            if not any(isinstance(known, Note) for known in notes_of(error)):
                note_row(error, number, source.name)

        for row in self._asked(rows, note):
            collector.add(row, number)
            number += 1
            self._check_bound(number)
            is_full = collector.nbytes >= block_bytes or number - taken >= _BLOCK_ROWS
            now = time.monotonic()
            if now >= next_look:  # not at every row: a look takes as long as a quick row
                next_look = now + _FILE_SECONDS / _LOOKS
                bar.update(number - shown)
                shown = number
                learned = collector.schema is not None or len(collector) >= _ROWS_TO_LEARN
                is_full = is_full or (learned and self._file_is_old())
            if is_full:
                yield collector.take()
                taken = number
        bar.update(number - shown)
        if len(collector):
            yield collector.take()
        if source.seekable and number != source.length:
            raise ValueError(
                f"{source.name} gave {number} rows, but its length is {source.length}; "
                "correct its __len__ or __getitems__"
            )

    def _asked(
        self, ask: Callable[[], Iterable[T]], note: Callable[[Exception], None] | None = None
    ) -> Iterator[T]:
        """Rows or blocks of the source; marks its errors, to distinguish them from all others."""
        try:
            yield from ask()
        except Exception as error:
            self.source_broke = True
            if note is not None:
                note(error)
            raise

    def _check_bound(self, num_rows: int) -> None:
        limit = self.options.max_rows
        if limit is not None and num_rows > limit:
            raise ValueError(
                f"{self.source.name} has more than max_rows={limit} rows, perhaps without an end; raise "
                "max_rows, or bound it, as itertools.islice does. Nothing was published"
            )

    def _blocks_of_arrays(self, source: BlockSource, done: int, bar: Bar) -> Iterator[Block]:
        number, nbytes = done, self.options.block_bytes
        ask = partial(source.blocks, nbytes)
        if isinstance(source, SeekableBlocks):
            ask = partial(source.blocks_from, done, nbytes)
        for block in self._asked(ask):
            number += block.num_rows
            self._check_bound(number)
            yield block
            bar.update(block.num_rows)

    # -- blocks -> files

    def _hand_over(self, block: Block) -> None:
        assert self._output is not None
        self._file_bytes += block.nbytes
        ends_file = self._file_bytes >= self.options.file_bytes or self._file_is_old()
        self._output.write(block, ends_file)
        if self.options.each_block is not None:  # while the thread writes it
            self.options.each_block(block)
        if ends_file:
            self._file_bytes, self._file_started = 0, time.monotonic()

    def _file_is_old(self) -> bool:
        now = time.monotonic()
        allowed = max(_FILE_SECONDS, _FILE_SHARE * (now - self._started))
        return self.can_continue and now - self._file_started > allowed


class _Resumed(NamedTuple):
    """Finished work of an interrupted build, which this one goes on from.

    Attributes:
        files: finished files; `schema`: of the rows in them, if there are any.
        stats: statistics of these rows; None if there are none, or they are not wanted.
    """

    files: tuple[FileEntry, ...] = ()
    schema: Schema | None = None
    stats: TableStatistics | None = None


class _OutputFiles:
    """The files of a build: blocks are written on a thread, while the caller makes the next ones.

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
        options: BuildOptions,
        finished: Callable[[Schema, list[FileEntry]], None],
        left: _Resumed,
        first_row: int,
    ) -> None:
        """Files named after `token`, behind those that are `left`; `finished` is called after each, on the
        thread. `first_row` is the number that the first row has in the version, of which this may be a
        part."""
        self.files = list(left.files)
        self.schema, self.stats = left.schema, left.stats
        self._next_row = first_row + sum(file.rows for file in left.files)
        self._staging, self._token, self._options = staging, token, options
        self._module = format_named(options.format, options.compression)
        self._finished = finished
        self._thread, self._counting = TaskThread("writer"), TaskThread("statistics", 2)
        self._writer: Writer | None = None
        self._checks: list[tuple[int, int]] = []  # bytes and CRC-32 of each part of a column in the file
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
        self._counting.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    # -- on the thread

    def _write(self, block: Block, ends_file: bool) -> None:
        schema = self.schema = self.schema or block.schema
        if self._writer is None:
            self._writer = self._module.Writer(
                self._staging.new_file(self._name()), schema, self._options.compression
            )
            self._checks = [(0, 0) for column in schema.columns for _ in column.parts]
            self._rows = 0
        counting = None
        if self._options.stats:  # while the block is written: both release Python's lock
            counting = Errand(self._counting, partial(self._count, schema, block, self._next_row))
        crcs = self._writer.write(block)
        parts = [data.part(p) for c, data in zip(schema.columns, block.data, strict=True) for p in c.parts]
        names = [p for column in schema.columns for p in column.parts]
        for place, (name, array, crc) in enumerate(zip(names, parts, crcs, strict=True)):
            if name == "offsets":  # offsets depend on where blocks end; lengths do not
                array = np.diff(array)
                crc = crc32(array.tobytes())
            nbytes, before = self._checks[place]
            self._checks[place] = nbytes + array.nbytes, combine_crc32(before, crc, array.nbytes)
        self._rows += block.num_rows
        self._next_row += block.num_rows
        if counting is not None:
            counting.finish()
        if ends_file:
            self._finish_file()

    def _count(self, schema: Schema, block: Block, first: int) -> None:
        self.stats = self.stats or TableStatistics(schema)
        self.stats.add(block, first)

    def _finish_file(self) -> None:
        if self._writer is None or self.schema is None:
            return
        writer, self._writer = self._writer, None
        index = writer.close()
        name = self._name()
        entry = FileEntry(
            name=name,
            format=self._options.format,
            rows=self._rows,
            nbytes=(self._staging.path / name).stat().st_size,
            index=index,
            checks=tuple(self._checks),
            crc=self._staging.crc_of(name),
        )
        self.files.append(entry)
        self._finished(self.schema, self.files)

    def _name(self) -> str:
        """The name of the file being written."""
        return f"{self._token}-{len(self.files):05d}{self._module.SUFFIX}"
