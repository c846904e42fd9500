"""Tar shards of samples, as webdataset writes them -> rows: bytes by extension, nothing is extracted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..building.sources import RowSource
from ..files.regular import open_regular
from ..files.shard_names import is_remote, shard_names
from ..files.tar_samples import KEY
from ..process.stages import Stage, timed
from ..reading.dataref import DataRef
from ..reading.file_parts import Threads
from ..reading.files_ref import FilesRef
from ..reading.left_out import LeftOut, check_share, refuse_many, warn_of
from ..reading.shard_index import index_of, indexed
from ..rows.block import Rows
from ..rows.schema import Schema
from ..rows.types import Json, Row
from .shard_stream import ShardRows, Shards, parsed

__all__ = ["source_of", "webdataset"]

Ints = npt.NDArray[np.int64]
Parse = Mapping[str, Callable[[bytes], object]]


def webdataset(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    parse: Parse | None = None,
    max_bad: float = 0.01,
    threads: int = 8,
    storage_options: Mapping[str, object] | None = None,
) -> DataRef:
    """The samples of tar shards as a DataRef, or as something to submit to a storage.

    Members in sequence that differ only in their extension are a sample: `0017.jpg` and `0017.cls` become the
    row `{"__key__": "0017", "jpg": bytes, "cls": bytes}`. A member that some samples lack is None there. The
    schema says for decoders what the extensions of images say.

    Shards of this machine that are not compressed are indexed when they are opened, by reading their headers,
    and then are a dataset like any other: rows by number, shuffled, sharded, resumed. Shards behind URLs, and
    those that gzip has compressed, have no numbers: `submit` reads them in order, several at once, and its
    build continues when it was interrupted. Nothing is extracted to a disk, and pickles stay bytes.

    Args:
        urls: paths, or URLs that fsspec knows, with `{0000..0099}`, `{a,b}` or wildcards; a folder for all
            its shards; or a list of such.
        columns: the extensions that become columns, in this order; by default all of them, and those of the
            first sample where shards are read in order.
        parse: functions that make values of bytes, by extension, such as `{"json": json.loads, "cls": int}`;
            `str` decodes UTF-8. Columns cannot be named then: what rows look like is not known.
        max_bad: the share of the samples, and of the shards, that may be bad: samples with links, sparse
            files, names that lead out of the archive or members twice; shards that are cut or damaged, whose
            samples up to there are kept. They are left out; a warning, `ref.left_out` and the info of a
            version name them. A shard that gzip finds damaged at its end was read by then: which of its
            samples are wrong cannot be told, so allow no bad shards where that matters.
        threads: read members, or shards.
        storage_options: for fsspec's filesystems.

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
    if any(is_remote(name) or _is_compressed(name) for name in names):
        return _Streamed(shards)
    indices = pool.map(index_of, names)
    cut = [LeftOut(index.path, f"ends early: {index.problem}") for index in indices if index.problem]
    bad = [left_out for index in indices for left_out in index.left_out]
    total = len(bad) + sum(len(index.keys) for index in indices)
    refuse_many(cut, len(names), share, shards.title, "shards")
    refuse_many(bad, total, share, shards.title, "samples")
    warn_of(cut, len(names), shards.title, "shards")
    warn_of(bad, total, shards.title, "samples")
    found = indexed(indices, shards.columns, cut + bad, pool)
    return _Parsed(found, shards.parse) if shards.parse else found


def source_of(data: object) -> RowSource | None:
    """Shards whose rows have no numbers as a source; None for anything else."""
    return ShardRows(data.shards) if isinstance(data, _Streamed) else None


def _is_compressed(path: str) -> bool:
    with open(open_regular(path), "rb") as file:
        return file.read(2) == b"\x1f\x8b"


class _Parsed(DataRef):
    """Rows of shards after functions of their values.

    Attributes:
        left_out: what is bad and not among the rows.
    """

    def __init__(self, whole: FilesRef, parse: Parse) -> None:
        self.whole, self.parse = whole, parse
        self.left_out = whole.left_out

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers."""
        found = self.whole.take(rows)
        exact = found.exact() if isinstance(found, Rows) else []
        with timed(Stage.TRANSFORM):
            return [parsed(row, self.parse, self.whole.held.name) for row in exact]

    @property
    def file_starts(self) -> Ints:
        """The row at which each shard begins."""
        return self.whole.file_starts

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row before it is parsed."""
        return self.whole.row_bytes

    @property
    def fingerprint(self) -> str:
        """A name for the content."""
        return f"{self.whole.fingerprint} {' '.join(self.parse)}"

    @property
    def info(self) -> Json:
        """The info of the shards."""
        return self.whole.info

    def __repr__(self) -> str:
        return f"{self.whole!r}, parsed: {', '.join(self.parse)}"


class _Streamed(DataRef):
    """Shards whose rows have no numbers."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards

    def __len__(self) -> int:
        self._refuse()

    def take(self, rows: Ints) -> Sequence[Row]:
        """Raises TypeError."""
        self._refuse()

    @property
    def schema(self) -> Schema | None:
        """None: it is not known."""
        return None

    def __iter__(self) -> Iterator[Row]:
        return ShardRows(self.shards).rows(0)

    def __repr__(self) -> str:
        return f"<DataRef {self.shards.title}: rows in order only>"

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{self.shards.title}: shards that are compressed, or not on this machine, can be read in order "
            "only, so their rows have no numbers; submit them to a Storage, and use what that returns"
        )
