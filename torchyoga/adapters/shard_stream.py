"""Tar shards behind URLs, or compressed -> rows in order: some shards are read ahead, each by a thread.

The names of shards are patterns: braces, wildcards, folders, and URLs that fsspec knows.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import io
import os
import queue
import re
import threading
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..building.sources import PlacedSource
from ..errors import CorruptError, NotFoundError, SchemaError
from ..files.root import open_regular
from ..files.tar import APART, KEY, Member, TarSample, divided, members, samples
from ..process.digests import hexdigest
from ..process.threads import begin_thread
from ..reading.files_ref import LeftOut, refuse_many, told_of, warn_of
from ..rows.image_formats import HEAD, begins_as_image
from ..rows.types import Json, Row

Parse = Mapping[str, Callable[[bytes], object]]
_PIECE_BYTES, _PIECE_SAMPLES, _PIECES = 2**21, 256, 4  # read ahead of a shard: four pieces of 2 MiB
_SKIPPED = 2**20  # bytes at once
_LARGEST = 2**30  # bytes of a member that is read as a stream
_SURE = 1000  # samples, before which a share of bad ones says little
_PATIENCE = 1.0  # seconds between two checks that the other thread is alive
_ENDINGS = (".tar", ".tar.gz", ".tgz")
_BRACES = re.compile(r"\{(\d+\.\.\d+|[^{}]*,[^{}]*)\}")
_MOST = 10**6


class Shards(NamedTuple):
    """Which shards to read, and how.

    Attributes:
        names: paths and URLs.
        columns: the extensions that become columns; None for those of the first sample.
        parse: functions of bytes, by extension.
        max_bad: the share of samples, and of shards, that may be bad.
        threads: shards read at once.
        options: for fsspec's filesystems.
    """

    names: Sequence[str]
    columns: Sequence[str] | None
    parse: Parse
    max_bad: float
    threads: int
    options: Mapping[str, object]

    @property
    def title(self) -> str:
        """A name for all of them, for messages."""
        first = self.names[0].rpartition("/")[2]
        return (
            f"tar shard {first!r}"
            if len(self.names) == 1
            else f"{len(self.names)} tar shards from {first!r} on"
        )


class ShardRows(PlacedSource):
    """The samples of shards, shard after shard; a build continues in the shard that it had reached."""

    def __init__(self, shards: Shards) -> None:
        self.name = shards.title
        about = repr((*shards.names, shards.columns, sorted(shards.parse)))
        self.fingerprint = hexdigest(about.encode("utf-8", "surrogatepass"))
        self._shards = shards
        self._begun: list[tuple[int, Json]] = []  # the first row of each shard, and what was known there
        self._left_out: list[LeftOut] = []

    @property
    def found(self) -> Json:
        """Samples that are left out, for the info of a version."""
        return told_of(self._left_out)

    def rows(self, start: int) -> Iterator[Row]:
        """All rows."""
        return self.rows_at({"shard": 0, "bad": [], "seen": 0, "columns": None, "skip": 0}, 0)

    def place(self, number: int) -> Json:
        """The shard that holds row `number`, and how many rows of it come before."""
        index = bisect_right(self._begun, number, key=lambda pair: pair[0]) - 1
        first, known = self._begun[index]
        del self._begun[:index]
        return {**known, "skip": number - first}

    def rows_at(self, place: Json, number: int) -> Iterator[Row]:
        """The rows from a place on. The rows before it in its shard are read again, and left out."""
        shards, skip = self._shards, int(place["skip"])
        self._left_out = left_out = [LeftOut(*pair) for pair in place["bad"]]
        seen, columns = int(place["seen"]), place["columns"] or shards.columns
        apart: list[LeftOut] = []
        number -= skip
        self._begun = begun = list[tuple[int, Json]]([])  # anew, whatever was read before
        first = int(place["shard"])
        with contextlib.closing(_read_ahead(shards, first)) as read:
            for shard, (name, found) in enumerate(read, first):
                bad = [[*pair] for pair in left_out]
                known = {"shard": shard, "bad": bad, "seen": seen, "columns": columns}
                begun.append((number, known))
                keys = set[str]()
                for sample in found:
                    if isinstance(sample, LeftOut):
                        left_out.append(sample)
                        continue
                    seen += 1
                    if sample.problem:
                        left_out.append(LeftOut(f"{name}: {sample.key}", sample.problem))
                        if len(left_out) > shards.max_bad * max(seen, _SURE):
                            refuse_many(left_out, seen, shards.max_bad, self.name, "samples")
                        continue
                    if columns is None:
                        columns = known["columns"] = [*sample.parts]
                    number += 1
                    if sample.key in keys:
                        apart.append(LeftOut(name, f"has {sample.key!r:.100} again"))
                    keys.add(sample.key)
                    if skip:
                        skip -= 1
                        continue
                    yield self._row(sample, columns, name)
        whole = {*shards.names}
        for cut, total, what in ((True, len(whole), "shards"), (False, seen, "samples")):
            some = [bad for bad in left_out if (bad.name in whole) == cut]
            refuse_many(some, total, shards.max_bad, self.name, what)
            warn_of(some, total, self.name, what)
        warn_of(apart, seen, self.name, "samples", APART)

    def _row(self, sample: TarSample[bytes], columns: Sequence[str], shard: str) -> Row:
        more = [name for name in sample.parts if name not in columns]
        if more and self._shards.columns is None:
            raise SchemaError(
                f"{shard}: the sample {sample.key!r:.100} has {more[0]!r:.80}, which the first sample lacks; "
                f"name the columns, as in columns={[*columns, *more]!r:.200}; or, if other members of the "
                "sample came before, write them one after the other"
            )
        row: Row = {KEY: sample.key, **{name: sample.parts.get(name) for name in columns}}
        return parsed(row, self._shards.parse, shard)


def parsed(row: Row, parse: Parse, shard: str) -> Row:
    """A row, with what functions make of its values; in place.

    Raises:
        CorruptError: a function failed; names the sample and the column.
    """
    for name, function in parse.items():
        value = row.get(name)
        if value is None:
            continue
        try:
            row[name] = function(value, "utf-8") if function is str and name != KEY else function(value)
        except Exception as error:
            raise CorruptError(
                f"{shard}: parse[{name!r}] failed for the sample {row[KEY]!r:.100}, on {value[:40]!r}: "
                f"{error!r}"
            ) from error
    return row


# -- the threads


def _read_ahead(
    shards: Shards, first: int
) -> Generator[tuple[str, Iterator[TarSample[bytes] | LeftOut]], None, None]:
    """The shards from one on, each with its samples; the next ones are read meanwhile, each by a thread."""
    names = shards.names[first:]
    readers = deque[_Reader]()
    try:
        for number, name in enumerate(names):
            for other in names[number + len(readers) : number + shards.threads]:
                readers.append(_Reader(other, shards))
            yield name, readers[0].samples()
            readers.popleft()
    finally:
        for reader in readers:
            reader.close()


class _Reader:
    """The samples of one shard, read by a thread, some ahead."""

    def __init__(self, name: str, shards: Shards) -> None:
        # At last comes an error, or None.
        self._read: queue.Queue[list[TarSample[bytes] | LeftOut] | BaseException | None] = queue.Queue(
            _PIECES
        )
        self._is_over = threading.Event()
        self._thread = begin_thread("torchyoga-shard", self._run, name, shards, stop=self.close)

    def samples(self) -> Iterator[TarSample[bytes] | LeftOut]:
        """All samples; at the end of a shard that ends early, why it does.

        Raises:
            OSError: the shard cannot be read.
        """
        while True:
            try:
                piece = self._read.get(timeout=_PATIENCE)
            except queue.Empty:
                if not self._thread.is_alive() and self._read.empty():
                    raise RuntimeError("the thread that reads a shard is gone; begin again") from None
                continue
            if piece is None:
                return
            if isinstance(piece, BaseException):
                raise piece
            yield from piece

    def close(self) -> None:
        """Ends the thread after its current read."""
        self._is_over.set()
        with contextlib.suppress(queue.Empty):  # it may wait for room
            self._read.get_nowait()

    def _run(self, name: str, shards: Shards) -> None:
        piece, nbytes = list[TarSample[bytes] | LeftOut](), 0
        end: BaseException | None = None
        try:
            with _opened(name, shards.options) as file:
                for sample in _Forward(file).samples(shards.columns):
                    piece.append(sample)
                    nbytes += sum(map(len, sample.parts.values()))
                    if nbytes > _PIECE_BYTES or len(piece) >= _PIECE_SAMPLES:
                        if not self._put(piece):
                            return
                        piece, nbytes = [], 0
        # What gzip finds wrong lies before the place where it sees it, at the latest at the end.
        except (gzip.BadGzipFile, zlib.error) as error:
            why = f"ends early or is damaged, so samples kept of it may be wrong: {error}"
            piece.append(LeftOut(name, why))
        except (CorruptError, EOFError) as error:
            piece.append(LeftOut(name, f"ends early: {error}"))
        except BaseException as error:
            end = error
        if self._put(piece):
            self._put(end)

    def _put(self, piece: list[TarSample[bytes] | LeftOut] | BaseException | None) -> bool:
        while not self._is_over.is_set():
            try:
                self._read.put(piece, timeout=_PATIENCE)
                return True
            except queue.Full:
                continue
        return False


# -- bytes


def _opened(name: str, options: Mapping[str, object]) -> IO[bytes]:
    if not is_remote(name):
        return open(open_regular(name), "rb", _SKIPPED)
    import fsspec  # only where it is needed: it takes a while to load

    file: IO[bytes] = fsspec.open(name, "rb", **options).open()
    return file


class _Forward:
    """A file that is read once, from its beginning to its end; decompressed if it is gzip's."""

    def __init__(self, file: IO[bytes]) -> None:
        raw = io.BufferedReader(_Connection(file), _SKIPPED)
        is_packed = raw.peek(2)[:2] == b"\x1f\x8b"
        self._file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if is_packed else raw
        self._at = 0

    def samples(self, columns: Sequence[str] | None) -> Iterator[TarSample[bytes]]:
        """The samples, with the bytes of these columns."""
        wanted = None if columns is None else {*columns}
        pairs = ((member, self._of(member, wanted)) for member in members(self._read))
        yield from samples(pairs, begins_as_image)

    def _of(self, member: Member, wanted: set[str] | None) -> bytes:
        extension = divided(member.name)[1]
        if member.problem or (wanted is not None and extension and extension not in wanted):
            return b""
        if not extension:  # in no sample, unless it should have been
            return self._read(member.offset, min(member.nbytes, HEAD))
        if member.nbytes > _LARGEST:
            raise CorruptError(
                f"its member {member.name!r:.200} has {member.nbytes} bytes, too many for a stream"
            )
        body = self._read(member.offset, member.nbytes)
        if len(body) < member.nbytes:
            raise CorruptError(
                f"it is cut: its member {member.name!r:.200} has {len(body)} of {member.nbytes} bytes"
            )
        return body

    def _read(self, at: int, count: int) -> bytes:
        while self._at < at:
            if not self._some(min(_SKIPPED, at - self._at)):
                return b""
        parts: list[bytes] = []
        while count and (some := self._some(count)):
            parts.append(some)
            count -= len(some)
        return b"".join(parts)

    def _some(self, count: int) -> bytes:
        piece = self._file.read(min(count, _SKIPPED)) or b""
        self._at += len(piece)
        return piece


class _Connection(io.RawIOBase):
    """A file whose connection may break off: EOFError would mean that gzip has found its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._file.read(len(buffer))
        except EOFError as error:
            raise OSError(f"the connection has ended early: {error}") from error
        buffer[: len(piece)] = piece
        return len(piece)


def is_remote(name: str) -> bool:
    """True for a URL, False for a path of this machine."""
    return "://" in name


def shard_names(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: Mapping[str, object]
) -> list[str]:
    """The paths and URLs that patterns stand for: in their order, and those of a wildcard sorted.

    Args:
        urls: paths or URLs, with `{0000..0099}`, `{train,more}`, `*`, `?` and `[...]`; or folders.
        options: for fsspec's filesystems.

    Raises:
        NotFoundError: nothing is there under one of these names.
        ValueError: a pattern stands for too many names, or runs a command.

    Example:
        >>> [name for name in _with_braces("s3://b/{train,test}-{08..10}.tar")][:4]
        ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/test-08.tar']
    """
    patterns = [urls] if isinstance(urls, (str, os.PathLike)) else [*urls]
    names: list[str] = []
    for pattern in [os.fspath(pattern) for pattern in patterns]:
        if pattern.startswith("pipe:"):
            raise ValueError(
                f"{pattern!r:.200} would run a command, which is not done here; pass files, or URLs "
                "that fsspec knows"
            )
        for name in [pattern] if os.path.exists(pattern) else _with_braces(pattern):
            names += _remote(name, options) if is_remote(name) else _local(name)
            if len(names) > _MOST:
                raise ValueError(f"{pattern!r:.200} stands for more than {_MOST} shards")
    if not names:
        raise NotFoundError("there are no shards; pass paths or URLs of tar files")
    return names


def _with_braces(pattern: str) -> Iterator[str]:
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    before, inside, after = pattern[: match.start()], match[1], pattern[match.end() :]
    if "," in inside:
        options: Iterator[str] = iter(inside.split(","))
    else:
        first, last = inside.split("..")
        if len(first) > 18 or len(last) > 18 or int(last) - int(first) > _MOST:
            raise ValueError(f"{pattern!r:.200} stands for more than {_MOST} shards")
        options = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    for option in options:
        yield from _with_braces(before + option + after)


def _local(name: str) -> list[str]:
    path = os.path.abspath(Path(name.removeprefix("file://")).expanduser())
    if os.path.isdir(path):
        inside = sorted(entry for entry in os.listdir(path) if entry.endswith(_ENDINGS) and entry[0] != ".")
        paths = [os.path.join(path, entry) for entry in inside]
    else:
        paths = [path] if os.path.exists(path) else sorted(glob.glob(path))
    if not paths:
        raise NotFoundError(f"there is no shard {path}; pass the path of a tar file, a folder or a pattern")
    return paths


def _remote(name: str, options: Mapping[str, object]) -> list[str]:
    if name.startswith("file://"):
        return _local(name)
    if glob.has_magic(name.partition("://")[2].partition("?")[0]) and not name.startswith("http"):
        import fsspec  # only where it is needed: it takes a while to load

        filesystem, path = fsspec.core.url_to_fs(name, **options)
        urls = [str(filesystem.unstrip_protocol(path)) for path in sorted(filesystem.glob(path))]
        if not urls:
            raise NotFoundError(f"there is no shard {name}; pass the URL of a tar file, or a pattern")
        return urls
    return [name]
