"""Tar shards of samples, as webdataset writes them -> rows by number, whose values are bytes by extension.

An index says where the members of samples lie; it is made of the headers of a shard, and kept in the cache.
Nothing is extracted.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from ...errors import CorruptError, SchemaError
from ...files.root import open_regular
from ...files.tar import APART, KEY, Member, members, samples
from ...formats.items import MappedRuns
from ...formats.mapped import Memory
from ...process.lazy import cached_property
from ...process.stages import Stage, timed
from ...reading import stored_ref
from ...reading.dataref import DataRef
from ...reading.in_place_ref import FileLayout, InPlaceRef, MappedShards, files_of
from ...reading.stored_ref import LeftOut, Names
from ...rows.block import Data, Rows, bounds_of
from ...rows.column import PLAIN, Codec, Column, Meaning
from ...rows.image_formats import HEAD, begins_as_image
from ...rows.node import Node, path_name
from ...rows.schema import Projection, Schema, schema_under
from ...rows.types import Array, Ints, Json, Row, Seeds
from ...stores.cache import FileIndex
from ...views.over import ChangedRows
from .named_files import NamedFiles

Parse = Mapping[str, Callable[[bytes], object]]
_ENDINGS = "*.t[ag][rz]*"  # .tar, .tgz, .tar.gz, .tar.zst
_BRACES = re.compile(r"\{(\d+\.\.\d+|[^{}]*,[^{}]*)\}")
_MOST_NAMES = 10**6
_FORMATS = {
    **{"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff"},
    **{"avif": "avif", "jp2": "jpeg2000", "j2k": "jpeg2000"},
}
_MOST_EXTENSIONS = 256
_BUFFER = 4096  # bytes read at once, so that members of less need one read for two headers
_KIND = "tar 3"


def webdataset(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    parse: Parse | None = None,
    max_bad: float = 0.01,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """The samples of tar shards as a DataRef, read where they lie.

    Members in sequence that differ only in their extension are a sample: `0017.jpg` and `0017.cls` become the
    row `{"__key__": "0017", "jpg": bytes, "cls": bytes}`. A member that some samples lack is None there. The
    schema tells decoders the formats of images, by their extensions.

    Samples are found once, by reading the headers of all shards; where they lie is kept in the cache, until a
    shard changes. Shards of this machine are mapped, those of a store are downloaded when they are needed, or
    some time before, into a folder of bounded size. Shards that gzip or zstd has compressed are decompressed
    into it. No member is extracted to a file, and pickles stay bytes.

    Args:
        urls: paths, or URLs that fsspec knows, with `{0000..0099}`, `{a,b}` or wildcards; a folder for all
            its shards; or a list of these.
        columns: the extensions that become columns, in this order; by default all of them.
        parse: functions that turn bytes into values, by extension, such as
            `{"json": json.loads, "cls": int}`; `str` decodes UTF-8. With functions other than `int`, `float`
            and `str` the schema is not known, so columns cannot be named or decoded: call such functions at
            the end instead, by `map`.
        max_bad: the share of the samples, and of the shards, that may be bad: samples with links, sparse
            files, names that lead out of the archive or members twice; images without an extension; shards
            that are cut or damaged, whose samples up to there are kept. They are left out; a warning,
            `ref.left_out` and the info of a version name them. Compressed data that is damaged is an error.
        storage_options: for fsspec's filesystem.
        cache_dir: where indices, and downloaded and decompressed shards are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Raises:
        NotFoundError: there is no such shard.
        SchemaError: no sample has one of the columns.
        CorruptError: too much is bad; the message names the first ones. When read: a shard has changed since,
            or `parse` fails; the message names the sample.
        ValueError: a pattern runs a command, `max_bad` is out of range, or shards are of this machine and of
            a store.
        RemoteError: the store cannot be reached.

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
    share = stored_ref.check_share(max_bad)
    if isinstance(columns, str):
        raise ValueError(f"columns={columns!r} must be a list of extensions")
    wanted = None if columns is None else [name for name in columns if name != KEY]
    named = NamedFiles.of(_names(urls), _ENDINGS, storage_options, cache_dir, cache_bytes)
    indices = [
        _of_kept(state.where, kept)
        for state, kept in zip(named.states, named.indices(_KIND, _index_of), strict=True)
    ]
    first = indices[0].where.rpartition("/")[2]
    title = f"tar shard {first!r}" if len(indices) == 1 else f"{len(indices)} tar shards from {first!r} on"
    left_out = _left_out_of(indices, share, title)
    return _Samples(_samples_of(named, indices, wanted, title), dict(parse or {}), title, tuple(left_out))


class _Samples(ChangedRows[Row]):
    """Samples by number, after functions of their values.

    Attributes:
        whole: the samples before the functions.
        left_out: the shards and samples that are bad, and not among the rows.
    """

    def __init__(self, whole: DataRef, parse: Parse, name: str, left_out: tuple[LeftOut, ...]) -> None:
        super().__init__(whole)
        self._parse, self._name, self.left_out = parse, name, left_out

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        taken, parse = self.whole.take(rows), self._parse
        if not parse or not isinstance(taken, Rows):
            return taken
        with timed(Stage.TRANSFORM):
            return [_parsed(row, parse, self._name) for row in taken.exact()]

    def over(self, whole: DataRef) -> DataRef:
        """The same functions of the values of other samples."""
        return _Samples(whole, self._parse, self._name, self.left_out)

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; members of others are not read unless values are parsed."""
        return super()._projected(of) if self._parse else self.over(self.whole._projected(of))

    @property
    def schema(self) -> Schema | None:
        """How a row looks, if all functions are `int`, `float` or `str`."""
        return self._schema if self._parse else self.whole.schema

    @cached_property
    def _schema(self) -> Schema | None:
        parse, whole = self._parse, self.whole.schema
        if whole is None or any(function not in (int, float, str) for function in parse.values()):
            return None
        empty = {name: function() for name, function in parse.items()}  # type: ignore[call-arg]
        made = {path_name((name,)): Schema.of({name: value}).columns[0] for name, value in empty.items()}
        return Schema(whole.tree, tuple(made.get(column.name, column) for column in whole.columns))

    @property
    def info(self) -> Json:
        """The shards and samples that are left out."""
        return stored_ref.info_of_left_out(self.left_out)

    @property
    def _keeps_rows(self) -> bool:
        """True if values are parsed."""
        return bool(self._parse)

    def _pinned(self, whole: str) -> str:
        return f"{whole} {' '.join(self._parse)}" if self._parse else whole

    def _title(self) -> str:
        parse = ", ".join(self._parse)
        return f"DataRef {self._name}{parse and f' parsed: {parse}'}"

    def _counted(self) -> str:
        return stored_ref.counted(super()._counted(), self.left_out)


def _parsed(row: Row, parse: Parse, shard: str) -> Row:
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


# -- names


def _names(urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The paths and URLs that patterns with braces stand for, in their order.

    Raises:
        ValueError: a pattern stands for too many names, or runs a command.

    Example:
        >>> _names("s3://b/{train,test}-{08..10}.tar")[:4]
        ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/test-08.tar']
    """
    names: list[str] = []
    given = [urls] if isinstance(urls, (str, os.PathLike)) else urls
    for pattern in [os.fspath(one) for one in given]:
        if pattern.startswith("pipe:"):
            raise ValueError(
                f"{pattern!r:.200} would run a command, which is not done here; pass files, or URLs "
                "that fsspec knows"
            )
        names += [pattern] if os.path.exists(pattern) else islice(_with_braces(pattern), _MOST_NAMES + 1)
        if len(names) > _MOST_NAMES:
            raise ValueError(f"{pattern!r:.200} stands for more than {_MOST_NAMES} shards")
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
        if len(first) > 18 or len(last) > 18 or int(last) - int(first) > _MOST_NAMES:
            raise ValueError(f"{pattern!r:.200} stands for more than {_MOST_NAMES} shards")
        options = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    for option in options:
        yield from _with_braces(before + option + after)


# -- where members lie


class _TarIndex(NamedTuple):
    """Where the members of a shard lie.

    Attributes:
        where: the path or URL of the shard.
        keys: of the samples.
        parts: for each extension, (2, N) the offsets and sizes of its members; -1 for samples without one.
        left_out: samples that are bad.
        problem: why the shard ends early; empty if it does not.
    """

    where: str
    keys: Sequence[str]
    parts: Mapping[str, Ints]
    left_out: Sequence[LeftOut]
    problem: str


def _of_kept(where: str, kept: FileIndex) -> _TarIndex:
    info, arrays = kept.info, kept.arrays
    text = arrays["text"].tobytes()
    keys = [text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(arrays["ends"].tolist())]
    parts = {extension: arrays[str(number)] for number, extension in enumerate(info["extensions"])}
    name = os.path.basename(where)
    left_out = [LeftOut(f"{name}: {key}", reason) for key, reason in info["left_out"]]
    return _TarIndex(where, keys, parts, left_out, info["problem"])


def _index_of(path: str) -> FileIndex:
    """The index of a shard, made of its headers."""
    with open(open_regular(path), "rb", _BUFFER) as file:
        size = os.fstat(file.fileno()).st_size

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        def is_image(member: Member) -> bool:
            return begins_as_image(read(member.offset, min(member.nbytes, HEAD)))

        keys, left_out, problem = list[str](), list[tuple[str, str]](), ""
        places: dict[str, list[tuple[int, int, int]]] = {}  # number of the sample, offset, size
        try:
            for sample in samples(members(read, size), is_image):
                if sample.problem:
                    left_out.append((sample.key, sample.problem))
                    continue
                if len(places.keys() | sample.parts.keys()) > _MOST_EXTENSIONS:
                    raise CorruptError(f"it has members of more than {_MOST_EXTENSIONS} extensions")
                for extension, member in sample.parts.items():
                    places.setdefault(extension, []).append((len(keys), member.offset, member.nbytes))
                keys.append(sample.key)
        except CorruptError as error:
            problem = str(error)
    names = Names(keys)
    arrays: dict[str, Array] = {"ends": names.ends, "text": np.frombuffer(names.text, np.uint8)}
    for number, listed in enumerate(places.values()):
        numbers, *parts = np.array(listed, np.int64).T
        arrays[str(number)] = np.full((2, len(keys)), -1, np.int64)
        arrays[str(number)][:, numbers] = parts
    info = {"extensions": [*places], "left_out": left_out, "problem": problem}
    return FileIndex(arrays, info)


def _left_out_of(indices: Sequence[_TarIndex], share: float, title: str) -> list[LeftOut]:
    """The bad samples and shards, with a warning; CorruptError if they are more than a share.

    It also warns of samples whose members do not lie together.
    """
    cut = [LeftOut(index.where, f"ends early: {index.problem}") for index in indices if index.problem]
    bad = [left_out for index in indices for left_out in index.left_out]
    total = len(bad) + sum(len(index.keys) for index in indices)
    for some, count, what in ((cut, len(indices), "shards"), (bad, total, "samples")):
        stored_ref.refuse_many(some, count, share, title, what)
    stored_ref.warn_of(cut, len(indices), title, "shards")
    stored_ref.warn_of(bad, total, title, "samples")
    apart = []
    for index in indices:
        for key, count in Counter(index.keys).items() if len({*index.keys}) < len(index.keys) else ():
            apart += [LeftOut(os.path.basename(index.where), f"has {key!r:.100} again")] * (count - 1)
    stored_ref.warn_of(apart, total, title, "samples", APART)
    return cut + bad


def _samples_of(
    named: NamedFiles, indices: Sequence[_TarIndex], columns: Sequence[str] | None, title: str
) -> InPlaceRef:
    """The samples of shards by number.

    Args:
        named: the shards.
        indices: of the shards.
        columns: the extensions that become columns; None for all.
        title: for messages.

    Raises:
        SchemaError: no sample has a column; the message lists those that there are.
    """
    there = [*dict.fromkeys(extension for index in indices for extension in index.parts)]
    names = there if columns is None else [*columns]
    missing = [name for name in names if name not in there]
    if missing:
        raise SchemaError(
            f"no sample has {missing[0]!r}; the samples have {', '.join(there) or 'no members'}"
        )
    counts = [len(index.keys) for index in indices]
    keys = Names(key for index in indices for key in index.keys)
    nodes, looks = [Node("leaf")], [Column(KEY, "str", "|u1", None, 1)]
    parts, sizes = list[Array](), list[Array]()
    for name in names:
        lies = [index.parts.get(name, np.full((2, len(index.keys)), -1, np.int64)) for index in indices]
        places = np.concatenate([np.zeros((2, 0), np.int64), *lies], axis=1)
        codec = _FORMATS.get(name.rpartition(".")[2])
        nodes.append(Node("leaf"))
        looks.append(Column("", "bytes", "|u1", None, 1, Meaning(codec=Codec(codec)) if codec else PLAIN))
        parts.append(places.clip(0))
        sizes.append(places[1])
        is_there = places[1] >= 0
        if not is_there.all():
            nodes[-1] = Node("nullable", (), (Node("leaf"), Node("leaf")))
            looks.append(Column("", "bool", "|b1", (), 0))
            parts.append(is_there)
    tree = Node("dict", (KEY, *names), tuple(nodes))
    schema = schema_under(tree, looks)
    content = stored_ref.content_of(schema, keys, np.array(counts), *sizes)
    return InPlaceRef(_Members(title, named.files, bounds_of(counts), schema, content, keys, tuple(parts)))


@dataclass(frozen=True, eq=False)
class _Members(FileLayout):
    """Rows whose values are members of tar shards.

    Attributes:
        keys: of the samples.
        parts: the columns behind the key: where values lie, (2, N) offsets and sizes, or (N,) whether one is.
    """

    keys: Names
    parts: tuple[Array, ...]
    only_copies = True

    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory, Ints, Ints]:
        """Where the first members of samples lie in memory."""
        memory, origins = shards.hold(files_of(self.starts, rows))
        for part in self.parts:
            if part.ndim == 2:
                return memory, origins + part[0].take(rows), part[1].take(rows)
        return memory, origins, np.zeros(len(rows), np.int64)

    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns; of the members, where they lie."""
        held: tuple[Memory, Ints] | None = None
        gathered = []
        for column in columns:
            part = self.parts[column - 1] if column else None
            if part is None:
                gathered.append(self.keys.column(rows))
            elif part.ndim == 1:
                gathered.append(Data(part.take(rows)))
            else:
                held = held or shards.hold(files_of(self.starts, rows))
                nbytes = part[1].take(rows)
                runs = MappedRuns(held[0], held[1] + part[0].take(rows), nbytes)
                offsets = bounds_of(nbytes)
                gathered.append(Data(None, offsets, runs=runs, dtype=np.dtype("u1"), empty=shards.empty))
        return gathered
