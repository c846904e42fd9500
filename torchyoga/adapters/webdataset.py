"""Tar shards of samples, as webdataset writes them -> rows: bytes by extension, nothing is extracted.

An index says where the members lie, so shards are a DataRef that reads them there: on this machine, or in the
cache if they are behind URLs. Shards that gzip has compressed are read in order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ..building.sources import RowSource
from ..files.tar import KEY
from ..process.lazy import cached_property
from ..process.stages import Stage, timed
from ..reading.dataref import DataRef
from ..reading.files_ref import LeftOut, Threads, check_share, told_of
from ..reading.stored_ref import StreamedRef
from ..rows.block import Rows
from ..rows.node import path_name
from ..rows.schema import Projection, Schema
from ..rows.types import Ints, Json, Row, Seeds
from ..tables.foreign.named_files import NamedFiles
from ..tables.foreign.tar_shards import TarIndex, left_out_of, samples_of, tar_indices
from ..views.over import ChangedRows
from .shard_stream import Parse, ShardRows, Shards, is_remote, parsed, shard_names

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
        threads: read shards in order, one each.
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
    options, num_threads, share = dict(storage_options or {}), Threads(threads).count, check_share(max_bad)
    if isinstance(columns, str):
        raise ValueError(f"columns={columns!r} must be a list of extensions")
    names = shard_names(urls, options)
    wanted = None if columns is None else tuple(name for name in columns if name != KEY)
    shards = Shards(names, wanted, dict(parse or {}), share, num_threads, options)
    if not any(map(is_remote, names)):
        named = NamedFiles.at(names, cache_dir, cache_bytes)
        indices = tar_indices(named)
        if not any(index.is_compressed for index in indices):
            return _Samples(shards, *_by_number(named, indices, shards))
    elif all(is_remote(name) and not name.endswith(_COMPRESSED) for name in names):
        return _Behind(shards, cache_dir, cache_bytes)
    return _Streamed(shards)


def source_of(data: object) -> RowSource | None:
    """Shards that are read in order as a source; None for anything else."""
    return ShardRows(data.shards) if isinstance(data, (_Behind, _Streamed)) else None


def _by_number(
    named: NamedFiles, indices: Sequence[TarIndex], shards: Shards
) -> tuple[DataRef, tuple[LeftOut, ...]]:
    """The samples of shards where they lie, and what is bad."""
    left_out = left_out_of(indices, shards.max_bad, shards.title)
    return samples_of(named, indices, shards.columns, shards.title), tuple(left_out)


class _Samples(ChangedRows[Row]):
    """Samples by number, after functions of their values.

    Attributes:
        shards: which they are of.
        whole: the samples before the functions.
        left_out: the shards and samples that are bad, and not among the rows.
    """

    def __init__(self, shards: Shards, whole: DataRef, left_out: tuple[LeftOut, ...]) -> None:
        super().__init__(whole)
        self.shards, self.left_out = shards, left_out

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        taken, parse = self.whole.take(rows), self.shards.parse
        if not parse or not isinstance(taken, Rows):
            return taken
        with timed(Stage.TRANSFORM):
            return [parsed(row, parse, self.shards.title) for row in taken.exact()]

    def over(self, whole: DataRef) -> DataRef:
        """The same functions of the values of other samples."""
        return _Samples(self.shards, whole, self.left_out)

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; members of others are not read unless values are parsed."""
        return super()._projected(of) if self.shards.parse else self.over(self.whole._projected(of))

    @property
    def schema(self) -> Schema | None:
        """How a row looks, if all functions are `int`, `float` or `str`."""
        return self._schema if self.shards.parse else self.whole.schema

    @cached_property
    def _schema(self) -> Schema | None:
        parse, whole = self.shards.parse, self.whole.schema
        if whole is None or any(function not in (int, float, str) for function in parse.values()):
            return None
        empty = {name: function() for name, function in parse.items()}  # type: ignore[call-arg]
        made = {path_name((name,)): Schema.of({name: value}).columns[0] for name, value in empty.items()}
        return Schema(whole.tree, tuple(made.get(column.name, column) for column in whole.columns))

    @property
    def info(self) -> Json:
        """The shards and samples that are left out."""
        return told_of(self.left_out)

    @property
    def _keeps_rows(self) -> bool:
        """True if values are parsed."""
        return bool(self.shards.parse)

    def _pinned(self, whole: str) -> str:
        return f"{whole} {' '.join(self.shards.parse)}" if self.shards.parse else whole

    def _title(self) -> str:
        parse = ", ".join(self.shards.parse)
        return f"DataRef {self.shards.title}{parse and f' parsed: {parse}'}"

    def _counted(self) -> str:
        left_out = f", {len(self.left_out):,} left out" if self.left_out else ""
        return f"{super()._counted()}{left_out}"


class _Behind(_Samples):
    """Samples of shards behind URLs, which are indexed when a row is first asked for by its number.

    A build reads them in order, without an index, and so does an iteration before there is one.
    """

    is_thread_safe = True

    def __init__(
        self, shards: Shards, cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None
    ) -> None:
        self.shards, self._cache = shards, (cache_dir, cache_bytes)

    @cached_property
    def _opened(self) -> tuple[DataRef, tuple[LeftOut, ...]]:
        cache_dir, cache_bytes = self._cache
        named = NamedFiles.of(
            self.shards.names,
            "*.tar",
            storage_options=self.shards.options,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        indices = tar_indices(named)
        for index in indices:
            if index.is_compressed:
                raise TypeError(
                    f"{index.where} is compressed, so it can be read in order only; submit the shards"
                )
        return _by_number(named, indices, self.shards)

    @property
    def whole(self) -> DataRef:  # type: ignore[override]
        """The samples before functions of their values."""
        return self._opened[0]

    @property
    def left_out(self) -> tuple[LeftOut, ...]:  # type: ignore[override]
        """The shards and samples that are bad."""
        return self._opened[1]

    def __iter__(self) -> Iterator[Row]:
        # Once the first row is wanted: `list` asks for the length before, and so for the index.
        yield from super().__iter__() if self._at_hand() else ShardRows(self.shards).rows(0)

    @property
    def info(self) -> Json:
        """The bad shards and samples that are left out, once they are known."""
        return super().info if self._at_hand() else {}

    def _at_hand(self) -> bool:
        return "_opened" in self.__dict__

    def _counted(self) -> str:
        return super()._counted() if self._at_hand() else "not indexed yet"


class _Streamed(StreamedRef):
    """Shards whose rows have no numbers."""

    def __init__(self, shards: Shards) -> None:
        reason = "shards that are compressed, or some behind URLs and some not,"
        super().__init__(shards.title, lambda: ShardRows(shards).rows(0), None, reason)
        self.shards = shards
