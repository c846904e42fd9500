"""Tar shards -> where the members of their samples lie, and rows of shards behind URLs by number.

An index is made of the headers of a shard, once, and kept in the cache.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...errors import CorruptError, SchemaError
from ...files.regular import open_regular
from ...files.tar_members import Member, members
from ...files.tar_samples import APART, KEY, samples
from ...formats.mapped.gather import Bytes, Memory
from ...formats.mapped.items import MappedRuns
from ...reading.dataref import DataRef
from ...reading.file_parts import Names
from ...reading.files_ref import content_of
from ...reading.in_place_ref import InPlaceRef, files_of
from ...reading.left_out import LeftOut, refuse_many, warn_of
from ...reading.shards import MappedShards, ShardFiles
from ...rows.column import Column
from ...rows.data import Data, bounds_of
from ...rows.image_formats import HEAD, begins_as_image
from ...rows.meaning import PLAIN, Codec, Meaning
from ...rows.node import Node, leaf_names
from ...rows.schema import Schema
from ...rows.types import Array, Ints
from ...stores.kept_index import FileIndex, IndexOf, cache_of, kept_index
from .named_files import NamedFiles

__all__ = ["TarColumns", "TarIndex", "check_left_out", "columns_of", "kept_of", "samples_behind"]

_FORMATS = {
    **{"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff"},
    **{"avif": "avif", "jp2": "jpeg2000", "j2k": "jpeg2000"},
}
_MOST_EXTENSIONS = 256
_BUFFER = 4096  # bytes read at once, so that members of less need one read for two headers
_KIND = "tar 1"


@dataclass
class TarIndex:
    """Where the members of a shard lie.

    Attributes:
        path: of the shard; `nbytes`: its size.
        keys: of the samples.
        parts: for each extension, the offsets and sizes of its members; -1 for samples without one.
        left_out: samples that are bad.
        problem: why the shard ends early; empty if it does not.
        is_compressed: whether gzip has compressed it; nothing else is known then.
    """

    path: str
    nbytes: int
    keys: list[str] = field(default_factory=list)
    parts: dict[str, tuple[Ints, Ints]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    problem: str = ""
    is_compressed: bool = False

    def to_kept(self) -> FileIndex:
        """As it is kept in a cache."""
        keys = Names(self.keys)
        arrays: dict[str, Array] = {"ends": keys.ends, "text": np.frombuffer(keys.text, np.uint8)}
        for number, pair in enumerate(self.parts.values()):
            arrays[str(number)] = np.stack(pair)
        about = {"extensions": [*self.parts], "left_out": [[*one] for one in self.left_out]}
        return FileIndex(arrays, {**about, "problem": self.problem, "is_compressed": self.is_compressed})

    @staticmethod
    def of_kept(of: IndexOf, kept: FileIndex) -> TarIndex:
        """The index that `to_kept` has kept of a shard."""
        info, text = kept.info, kept.arrays["text"].tobytes()
        ends = kept.arrays["ends"].tolist()
        keys = [text[start:stop].decode("utf-8", "surrogatepass") for start, stop in pairwise(ends)]
        parts = {name: tuple(kept.arrays[str(n)]) for n, name in enumerate(info["extensions"])}
        name = os.path.basename(of.where)
        # The file that was read is one of the cache.
        left_out = [LeftOut(f"{name}: {whole.partition(': ')[2]}", why) for whole, why in info["left_out"]]
        return TarIndex(of.where, of.nbytes, keys, parts, left_out, info["problem"], info["is_compressed"])


def kept_of(path: str, cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None) -> TarIndex:
    """The index of a shard of this machine, as a cache has kept it, or made now."""
    of, cache = IndexOf.file(path, _KIND), cache_of(cache_dir, cache_bytes)
    return TarIndex.of_kept(of, kept_index(of, lambda: _index_of(path).to_kept(), cache))


def _index_of(path: str) -> TarIndex:
    """The index of a shard, made of its headers."""
    with open(open_regular(path), "rb", _BUFFER) as file:
        index = TarIndex(path, os.fstat(file.fileno()).st_size)

        if file.read(2) == b"\x1f\x8b":
            index.is_compressed = True
            return index

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        def is_image(member: Member) -> bool:
            return begins_as_image(read(member.offset, min(member.nbytes, HEAD)))

        places: dict[str, list[tuple[int, Member]]] = {}
        try:
            pairs = ((member, member) for member in members(read, index.nbytes))
            for sample in samples(pairs, is_image):
                if sample.problem:
                    index.left_out.append(LeftOut(f"{os.path.basename(path)}: {sample.key}", sample.problem))
                    continue
                for extension, member in sample.parts.items():
                    places.setdefault(extension, []).append((len(index.keys), member))
                if len(places) > _MOST_EXTENSIONS:
                    raise CorruptError(f"it has members of more than {_MOST_EXTENSIONS} extensions")
                index.keys.append(sample.key)
        except CorruptError as error:
            index.problem = str(error)
    for extension, listed in places.items():
        offsets, sizes = np.full((2, len(index.keys)), -1, np.int64)
        numbers = [number for number, _ in listed if number < len(index.keys)]
        offsets[numbers] = [member.offset for _, member in listed[: len(numbers)]]
        sizes[numbers] = [member.nbytes for _, member in listed[: len(numbers)]]
        index.parts[extension] = offsets, sizes
    return index


class TarColumns(NamedTuple):
    """The columns of the samples of some shards.

    Attributes:
        schema: of a row.
        keys: of the samples.
        parts: the columns behind the key: where values lie, (2, N) offsets and sizes, or (N,) whether one is.
        starts: (shards + 1,) the sample at which each shard begins.
        content: a name for the content.
    """

    schema: Schema
    keys: Names
    parts: tuple[Array, ...]
    starts: Ints
    content: str


def columns_of(indices: Sequence[TarIndex], columns: Sequence[str] | None) -> TarColumns:
    """The columns of shards.

    Args:
        indices: of the shards.
        columns: the extensions that become columns; None for all.

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
    kinds, flat = [(Node("leaf"), [("str", "|u1", True, PLAIN)])], list[Array]([])
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
        parts = np.stack((offsets.clip(0), nbytes.clip(0)))
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
    content = content_of(schema, keys, np.array(counts), *described)
    return TarColumns(schema, keys, tuple(flat), bounds_of(counts), content)


def check_left_out(indices: Sequence[TarIndex], share: float, title: str) -> list[LeftOut]:
    """The bad samples and shards, with a warning; CorruptError if they are more than a share.

    It also warns of samples whose members do not lie together.
    """
    cut = [LeftOut(index.path, f"ends early: {index.problem}") for index in indices if index.problem]
    bad = [left_out for index in indices for left_out in index.left_out]
    total = len(bad) + sum(len(index.keys) for index in indices)
    refuse_many(cut, len(indices), share, title, "shards")
    refuse_many(bad, total, share, title, "samples")
    warn_of(cut, len(indices), title, "shards")
    warn_of(bad, total, title, "samples")
    apart = []
    for index in indices:
        for key, count in Counter(index.keys).items() if len({*index.keys}) < len(index.keys) else ():
            apart += [LeftOut(os.path.basename(index.path), f"has {key!r:.100} again")] * (count - 1)
    warn_of(apart, total, title, "samples", APART)
    return cut + bad


def samples_behind(
    urls: Sequence[str],
    columns: Sequence[str] | None,
    share: float,
    title: str,
    options: Mapping[str, object],
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
) -> tuple[DataRef, list[LeftOut]]:
    """The samples of shards behind URLs by number, and what is bad; each shard comes through the cache.

    Raises:
        NotFoundError: a shard is not there.
        TypeError: one is compressed.
        CorruptError: more than a share is bad.
        RemoteError: a store cannot be reached.
    """
    named = NamedFiles.of(
        urls, "*.tar", storage_options=options, cache_dir=cache_dir, cache_bytes=cache_bytes
    )
    kept = named.indices(_KIND, lambda path: _index_of(path).to_kept())
    indices = list(map(TarIndex.of_kept, named.states, kept))
    compressed = [index.path for index in indices if index.is_compressed]
    if compressed:
        raise TypeError(f"{compressed[0]} is compressed, so it can be read in order only; submit the shards")
    left_out = check_left_out(indices, share, title)
    return InPlaceRef(_Members(title, named.files, *columns_of(indices, columns))), left_out


@dataclass(frozen=True, eq=False)
class _Members:
    """Rows whose values are members of tar shards: a `reading.in_place_ref.FileLayout`.

    Attributes:
        name: for messages.
        files: the shards.
        schema, keys, parts, starts, content: as of `TarColumns`.
    """

    name: str
    files: ShardFiles
    schema: Schema
    keys: Names
    parts: tuple[Array, ...]
    starts: Ints
    content: str
    only_copies = True

    def check(self, number: int, data: Bytes) -> None:
        """Takes any bytes: the shard is that of the index, or it would not be in the cache."""

    def reach(self, shards: MappedShards, rows: Ints) -> tuple[Ints, Ints]:
        """Where the first members of samples lie in memory."""
        _, origins = shards.hold(files_of(self.starts, rows))
        for part in self.parts:
            if part.ndim == 2:
                return origins + part[0].take(rows), part[1].take(rows)
        return origins, np.zeros(len(rows), np.int64)

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

    def alone(self, shards: MappedShards, columns: Sequence[int]) -> None:
        """None: most time goes into the bytes."""
