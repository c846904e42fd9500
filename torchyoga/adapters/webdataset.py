"""Tar shards of samples, as webdataset writes them -> rows: bytes by extension, nothing is extracted.

Of shards on this machine an index says where the members lie, so they are a DataRef that reads them there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..building.sources import RowSource
from ..errors import CorruptError, SchemaError
from ..files.regular import open_regular
from ..files.tar_members import Member, members
from ..files.tar_samples import KEY, samples
from ..process.stages import Stage, timed
from ..reading.dataref import DataRef, title_of
from ..reading.file_parts import FileParts, Names, Threads
from ..reading.files_ref import FilesRef, HeldFiles, content_of
from ..reading.left_out import LeftOut, check_share, refuse_many, told_of, warn_of
from ..reading.streamed import StreamedRef
from ..rows.block import Rows
from ..rows.column import Column
from ..rows.data import bounds_of
from ..rows.image_formats import HEAD, begins_as_image
from ..rows.meaning import PLAIN, Codec, Meaning
from ..rows.node import Node, leaf_names
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Json, Row
from .shard_stream import ShardRows, Shards, is_remote, parsed, shard_names

__all__ = ["source_of", "webdataset"]

Parse = Mapping[str, Callable[[bytes], object]]
_FORMATS = {
    **{"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff"},
    **{"avif": "avif", "jp2": "jpeg2000", "j2k": "jpeg2000"},
}
_MOST_EXTENSIONS = 256
_BUFFER = 4096  # bytes read at once, so that members of less need one read for two headers


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
            files, names that lead out of the archive or members twice; images without an extension; shards
            that are cut or damaged, whose samples up to there are kept. They are left out; a warning,
            `ref.left_out` and the info of a version name them. A shard that gzip finds damaged at its end was
            read by then: which of its samples are wrong cannot be told, so allow no bad shards where that
            matters.
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
    indices = pool.map(_index_of, names)
    cut = [LeftOut(index.path, f"ends early: {index.problem}") for index in indices if index.problem]
    bad = [left_out for index in indices for left_out in index.left_out]
    total = len(bad) + sum(len(index.keys) for index in indices)
    refuse_many(cut, len(names), share, shards.title, "shards")
    refuse_many(bad, total, share, shards.title, "samples")
    warn_of(cut, len(names), shards.title, "shards")
    warn_of(bad, total, shards.title, "samples")
    found = _indexed(indices, shards, cut + bad, pool)
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

    def _title(self) -> str:
        return f"{title_of(self.whole)} parsed: {', '.join(self.parse)}"


class _Streamed(StreamedRef):
    """Shards whose rows have no numbers."""

    def __init__(self, shards: Shards) -> None:
        reason = "shards that are compressed, or not on this machine,"
        super().__init__(shards.title, lambda: ShardRows(shards).rows(0), None, reason)
        self.shards = shards


@dataclass
class _Index:
    """Where the members of a shard lie.

    Attributes:
        path: of the shard; `nbytes`: its size.
        keys: of the samples.
        parts: for each extension, the offsets and sizes of its members; -1 for samples without one.
        left_out: samples that are bad.
        problem: why the shard ends early; empty if it does not.
    """

    path: str
    nbytes: int
    keys: list[str] = field(default_factory=list)
    parts: dict[str, tuple[Ints, Ints]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    problem: str = ""


def _index_of(path: str) -> _Index:
    """The index of a shard, made of its headers."""
    with open(open_regular(path), "rb", _BUFFER) as file:
        found = _Index(path, os.fstat(file.fileno()).st_size)

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        def is_image(member: Member) -> bool:
            return begins_as_image(read(member.offset, min(member.nbytes, HEAD)))

        places: dict[str, list[tuple[int, Member]]] = {}
        try:
            pairs = ((member, member) for member in members(read, found.nbytes))
            for sample in samples(pairs, is_image):
                if sample.problem:
                    found.left_out.append(LeftOut(f"{os.path.basename(path)}: {sample.key}", sample.problem))
                    continue
                for extension, member in sample.parts.items():
                    places.setdefault(extension, []).append((len(found.keys), member))
                if len(places) > _MOST_EXTENSIONS:
                    raise CorruptError(f"it has members of more than {_MOST_EXTENSIONS} extensions")
                found.keys.append(sample.key)
        except CorruptError as error:
            found.problem = str(error)
    for extension, listed in places.items():
        offsets, sizes = np.full((2, len(found.keys)), -1, np.int64)
        numbers = [number for number, _ in listed if number < len(found.keys)]
        offsets[numbers] = [member.offset for _, member in listed[: len(numbers)]]
        sizes[numbers] = [member.nbytes for _, member in listed[: len(numbers)]]
        found.parts[extension] = offsets, sizes
    return found


def _indexed(
    indices: Sequence[_Index], shards: Shards, left_out: Sequence[LeftOut], threads: Threads
) -> FilesRef:
    """The samples of shards as a DataRef.

    Args:
        indices: of the shards.
        shards: which they are, and the extensions that become columns.
        left_out: what is bad.
        threads: read members.

    Raises:
        SchemaError: no sample has a column; the message lists those that there are.
    """
    there = [*dict.fromkeys(extension for index in indices for extension in index.parts)]
    names = there if shards.columns is None else [*shards.columns]
    missing = [name for name in names if name not in there]
    if missing:
        raise SchemaError(
            f"no sample has {missing[0]!r}; the samples have {', '.join(there) or 'no members'}"
        )
    counts = [len(index.keys) for index in indices]
    paths = Names(index.path for index in indices)
    sizes = np.array([index.nbytes for index in indices], np.int64)
    files = np.repeat(np.arange(len(indices)), counts)
    keys = Names(key for index in indices for key in index.keys)
    kinds, flat = [(Node("leaf"), [("str", "|u1", True, PLAIN)])], list[Array | Names | FileParts]([keys])
    described = list[Array]([])
    for name in names:
        pairs = [
            index.parts.get(name, (np.full(count, -1, np.int64),) * 2)
            for index, count in zip(indices, counts, strict=True)
        ]
        offsets, nbytes = (
            np.concatenate([np.zeros(0, np.int64), *some]) for some in zip(*pairs, strict=True)
        )
        is_there = nbytes >= 0
        described.append(nbytes)
        codec = _FORMATS.get(name.rpartition(".")[2])
        meaning = Meaning(codec=Codec(codec)) if codec else PLAIN
        parts = FileParts("", paths, sizes, files, offsets.clip(0), nbytes.clip(0), threads)
        if is_there.all():
            kinds.append((Node("leaf"), [("bytes", "|u1", True, meaning)]))
            flat.append(parts)
        else:
            node = Node("nullable", (), (Node("leaf"), Node("leaf")))
            kinds.append((node, [("bytes", "|u1", True, meaning), ("bool", "|b1", False, PLAIN)]))
            flat += [parts, is_there]
    tree = Node("dict", (KEY, *names), tuple(node for node, _ in kinds))
    leaves = [leaf for _, some in kinds for leaf in some]
    schema = Schema(
        tree,
        tuple(
            Column(name, kind, dtype, None if is_ragged else (), int(is_ragged), meaning)
            for name, (kind, dtype, is_ragged, meaning) in zip(leaf_names(tree), leaves, strict=True)
        ),
    )
    held = HeldFiles(
        name=shards.title,
        schema=schema,
        length=len(keys),
        columns=tuple(flat),
        content=content_of(schema, keys, np.array(counts), *described),
        starts=bounds_of(counts),
        info=told_of(left_out),
        left_out=tuple(left_out),
    )
    return FilesRef(held)
