"""Tar shards of samples, as webdataset writes them -> rows: bytes by extension, nothing is extracted.

An index says where the members lie, so shards are a DataRef that reads them there: on this machine, or in the
cache if they are behind URLs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ..building.sources import RowSource
from ..files.tar_samples import KEY
from ..process.lazy import cached_property
from ..process.stages import Stage, timed
from ..reading.dataref import DataRef
from ..reading.file_parts import FileParts, Names, Threads
from ..reading.files_ref import FilesRef, HeldFiles
from ..reading.left_out import LeftOut, check_share, told_of
from ..reading.readahead import ReadAhead
from ..reading.streamed import StreamedRef
from ..rows.block import Rows
from ..rows.node import path_name
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Json, Row
from ..tables.foreign.tar_shards import TarIndex, check_left_out, columns_of, kept_of, samples_behind
from .shard_stream import ShardRows, Shards, is_remote, parsed, shard_names

__all__ = ["source_of", "webdataset"]

Parse = Mapping[str, Callable[[bytes], object]]
_COMPRESSED = (".gz", ".tgz")


def webdataset(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    parse: Parse | None = None,
    max_bad: float = 0.01,
    threads: int = 8,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """The samples of tar shards as a DataRef, or as something to submit to a storage.

    Members in sequence that differ only in their extension are a sample: `0017.jpg` and `0017.cls` become the
    row `{"__key__": "0017", "jpg": bytes, "cls": bytes}`. A member that some samples lack is None there. The
    schema says for decoders what the extensions of images say.

    Shards of this machine that are not compressed are indexed when they are opened, by reading their headers
    once, and then are a dataset like any other: rows by number, shuffled, sharded, resumed. So are those
    behind URLs: they come through a folder of bounded size, and their index, for which each is downloaded
    once, is made when a row is first asked for by its number. Indices are kept there. Shards that gzip has
    compressed have no numbers. `submit` reads those, and shards behind URLs, in order, several at once, and
    its build goes on when it was interrupted. Nothing is extracted to a disk, and pickles stay bytes.

    Args:
        urls: paths, or URLs that fsspec knows, with `{0000..0099}`, `{a,b}` or wildcards; a folder for all
            its shards; or a list of such.
        columns: the extensions that become columns, in this order; by default all of them, and those of the
            first sample where shards are read in order.
        parse: functions that make values of bytes, by extension, such as `{"json": json.loads, "cls": int}`;
            `str` decodes UTF-8. With others than `int`, `float` and `str` columns cannot be named or decoded:
            what rows look like is not known. Make the others at the end then, by `map`.
        max_bad: the share of the samples, and of the shards, that may be bad: samples with links, sparse
            files, names that lead out of the archive or members twice; images without an extension; shards
            that are cut or damaged, whose samples up to there are kept. They are left out; a warning,
            `ref.left_out` and the info of a version name them. A shard that gzip finds damaged at its end was
            read by then: which of its samples are wrong cannot be told, so allow no bad shards where that
            matters.
        threads: read members, or shards.
        storage_options: for fsspec's filesystems.
        cache_dir: where indices, and shards behind URLs, are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Raises:
        NotFoundError: there is no such shard.
        SchemaError: no sample has one of the columns.
        CorruptError: too much is bad; names the first ones. When read: a shard has changed since, or `parse`
            fails; names the sample.
        ValueError: a pattern runs a command, or `max_bad` or `threads` is out of range.

    Example:
        >>> import io, tarfile
        >>> with tarfile.open(tmp_path / "digits-0.tar", "w") as shard:
        ...     for number in range(3):
        ...         for name, data in (("png", b"an image"), ("cls", b"%d" % number)):
        ...             member = tarfile.TarInfo(f"{number:04}.{name}")
        ...             member.size = len(data)
        ...             shard.addfile(member, io.BytesIO(data))
        >>> webdataset(tmp_path / "digits-{0..0}.tar", parse={"cls": int})[2]
        {'__key__': '0002', 'png': b'an image', 'cls': 2}
    """
    options, pool, share = dict(storage_options or {}), Threads(threads), check_share(max_bad)
    if isinstance(columns, str):
        raise ValueError(f"columns={columns!r} must be a list of extensions")
    names = shard_names(urls, options)
    wanted = None if columns is None else tuple(name for name in columns if name != KEY)
    shards = Shards(names, wanted, dict(parse or {}), share, threads, options)
    known = partial(kept_of, cache_dir=cache_dir, cache_bytes=cache_bytes)
    indices = [] if any(map(is_remote, names)) else pool.map(known, names)
    if not indices and all(is_remote(name) and not name.endswith(_COMPRESSED) for name in names):
        return _Behind(shards, cache_dir, cache_bytes)
    if not indices or any(index.is_compressed for index in indices):
        return _Streamed(shards)
    left_out = check_left_out(indices, share, shards.title)
    ref = _indexed(indices, shards, left_out, pool)
    return _Parsed(ref, shards.parse, ref.left_out, shards.title) if shards.parse else ref


def source_of(data: object) -> RowSource | None:
    """Shards whose rows have no numbers as a source; None for anything else."""
    return ShardRows(data.shards) if isinstance(data, (_Behind, _Streamed)) else None


class _Parsed(DataRef):
    """Rows of shards after functions of their values.

    Attributes:
        left_out: what is bad and not among the rows.
    """

    def __init__(self, whole: DataRef, parse: Parse, left_out: Sequence[LeftOut], name: str) -> None:
        self.whole, self.parse, self.left_out, self._name = whole, parse, tuple(left_out), name
        self._schema = _schema_of(whole.schema, parse)

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers."""
        taken = self.whole.take(rows)
        exact = taken.exact() if isinstance(taken, Rows) else []
        with timed(Stage.TRANSFORM):
            return [parsed(row, self.parse, self._name) for row in exact]

    @property
    def schema(self) -> Schema | None:
        """How a row looks, if all functions are `int`, `float` or `str`."""
        return self._schema

    @property
    def file_starts(self) -> Ints:
        """The row at which each shard begins."""
        return self.whole.file_starts

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row before it is parsed."""
        return self.whole._row_bytes

    @property
    def fingerprint(self) -> str:
        """A name for the content."""
        return f"{self.whole.fingerprint} {' '.join(self.parse)}"

    @property
    def info(self) -> Json:
        """The info of the shards."""
        return self.whole.info

    def _title(self) -> str:
        return f"{self.whole._title()} parsed: {', '.join(self.parse)}"


def _schema_of(whole: Schema | None, parse: Parse) -> Schema | None:
    """How rows look after functions of which it is plain what they make; None after others."""
    if whole is None or any(function not in (int, float, str) for function in parse.values()):
        return None
    made = {path_name((name,)): Schema.of({name: function()}).columns[0] for name, function in parse.items()}  # type: ignore[call-arg]
    return Schema(whole.tree, tuple(made.get(column.name, column) for column in whole.columns))


class _Streamed(StreamedRef):
    """Shards whose rows have no numbers."""

    def __init__(self, shards: Shards) -> None:
        reason = "shards that are compressed, or some behind URLs and some not,"
        super().__init__(shards.title, lambda: ShardRows(shards).rows(0), None, reason)
        self.shards = shards


class _Behind(DataRef):
    """Shards behind URLs, which are indexed when their rows are first asked for by number.

    A build, and who iterates over them before, reads them in order, without an index.
    """

    is_thread_safe = True

    def __init__(
        self, shards: Shards, cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None
    ) -> None:
        self.shards, self._cache = shards, (cache_dir, cache_bytes)

    @cached_property
    def _samples(self) -> tuple[DataRef, tuple[LeftOut, ...]]:
        of = self.shards
        ref, left_out = samples_behind(of.names, of.columns, of.max_bad, of.title, of.options, *self._cache)
        return (_Parsed(ref, of.parse, left_out, of.title) if of.parse else ref), tuple(left_out)

    @property
    def _whole(self) -> DataRef:
        """The samples by number."""
        return self._samples[0]

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The shards and samples that are bad, and not among the rows."""
        return self._samples[1]

    def __len__(self) -> int:
        return len(self._whole)

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers."""
        return self._whole.take(rows)

    def __iter__(self) -> Iterator[Row]:
        # Once the first row is wanted: `list` asks for the length before, and so for the index.
        yield from super().__iter__() if self._at_hand() else ShardRows(self.shards).rows(0)

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns."""
        return self._whole._projected(of)

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None if values are parsed by other functions than `int`, `float` and `str`."""
        return self._whole.schema

    @property
    def info(self) -> Json:
        """The bad shards and samples that are left out, once they are known."""
        return told_of(self.left_out) if self._at_hand() else {}

    @property
    def file_starts(self) -> Ints:
        """The row at which each shard begins."""
        return self._whole.file_starts

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row."""
        return self._whole._row_bytes

    @property
    def fingerprint(self) -> str | None:
        """A name for the content."""
        return self._whole.fingerprint

    @property
    def _keeps_rows(self) -> bool:
        """True if values are parsed; else each batch is gathered anew."""
        return bool(self.shards.parse)

    @cached_property
    def _readahead(self) -> ReadAhead | None:
        """Downloads shards before their rows are taken."""
        return self._whole._readahead

    def _title(self) -> str:
        return f"DataRef {self.shards.title}"

    def _at_hand(self) -> bool:
        return "_samples" in self.__dict__

    def _counted(self) -> str:
        return super()._counted() if self._at_hand() else "not indexed yet"


def _indexed(
    indices: Sequence[TarIndex], shards: Shards, left_out: Sequence[LeftOut], threads: Threads
) -> FilesRef:
    """The samples of shards of this machine as a DataRef.

    Args:
        indices: of the shards.
        shards: which they are, and the extensions that become columns.
        left_out: what is bad.
        threads: read members.

    Raises:
        SchemaError: no sample has a column; the message lists those that there are.
    """
    of = columns_of(indices, shards.columns)
    paths = Names(index.path for index in indices)
    sizes = np.array([index.nbytes for index in indices], np.int64)
    files = np.repeat(np.arange(len(indices)), np.diff(of.starts))
    columns: list[Array | Names | FileParts] = [of.keys]
    for part in of.parts:
        is_there = part.ndim == 1
        columns.append(part if is_there else FileParts("", paths, sizes, files, part[0], part[1], threads))
    held = HeldFiles(
        name=shards.title,
        schema=of.schema,
        length=len(of.keys),
        columns=tuple(columns),
        content=of.content,
        starts=of.starts,
        info=told_of(left_out),
        left_out=tuple(left_out),
    )
    return FilesRef(held)
