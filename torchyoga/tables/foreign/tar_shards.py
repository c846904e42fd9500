"""Tar shards -> where the members of their samples lie, and rows by number, gathered from there.

An index is made of the headers of a shard, once, and kept in the cache.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...errors import CorruptError, SchemaError
from ...files.root import open_regular
from ...files.tar import APART, KEY, Member, members, samples
from ...formats.items import MappedRuns
from ...formats.mapped import Memory
from ...reading.files_ref import LeftOut, Names, content_of, refuse_many, warn_of
from ...reading.in_place_ref import FileLayout, InPlaceRef, MappedShards, files_of
from ...rows.block import Data, bounds_of
from ...rows.column import PLAIN, Codec, Column, Meaning
from ...rows.image_formats import HEAD, begins_as_image
from ...rows.node import Node
from ...rows.schema import schema_under
from ...rows.types import Array, Ints
from ...stores.cache import FileIndex
from .named_files import NamedFiles

_FORMATS = {
    **{"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff"},
    **{"avif": "avif", "jp2": "jpeg2000", "j2k": "jpeg2000"},
}
_MOST_EXTENSIONS = 256
_BUFFER = 4096  # bytes read at once, so that members of less need one read for two headers
_KIND = "tar 2"


class TarIndex(NamedTuple):
    """Where the members of a shard lie.

    Attributes:
        where: the path or URL of the shard.
        keys: of the samples.
        parts: for each extension, (2, N) the offsets and sizes of its members; -1 for samples without one.
        left_out: samples that are bad.
        problem: why the shard ends early; empty if it does not.
        is_compressed: whether gzip has compressed it; nothing else is known then.
    """

    where: str
    keys: Sequence[str]
    parts: Mapping[str, Ints]
    left_out: Sequence[LeftOut]
    problem: str
    is_compressed: bool


def tar_indices(named: NamedFiles) -> list[TarIndex]:
    """The index of each shard, as the cache has it, or as made now."""
    return [
        _of_kept(state.where, kept)
        for state, kept in zip(named.states, named.indices(_KIND, _index_of), strict=True)
    ]


def _of_kept(where: str, kept: FileIndex) -> TarIndex:
    info, arrays = kept.info, kept.arrays
    if info["is_compressed"]:
        return TarIndex(where, (), {}, (), "", True)
    text = arrays["text"].tobytes()
    keys = [text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(arrays["ends"].tolist())]
    parts = {extension: arrays[str(number)] for number, extension in enumerate(info["extensions"])}
    name = os.path.basename(where)
    left_out = [LeftOut(f"{name}: {key}", reason) for key, reason in info["left_out"]]
    return TarIndex(where, keys, parts, left_out, info["problem"], False)


def _index_of(path: str) -> FileIndex:
    """The index of a shard, made of its headers."""
    with open(open_regular(path), "rb", _BUFFER) as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(2) == b"\x1f\x8b":
            return FileIndex({}, {"is_compressed": True})

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        def is_image(member: Member) -> bool:
            return begins_as_image(read(member.offset, min(member.nbytes, HEAD)))

        keys, left_out, problem = list[str](), list[tuple[str, str]](), ""
        places: dict[str, list[tuple[int, int, int]]] = {}  # number of the sample, offset, size
        try:
            for sample in samples(((member, member) for member in members(read, size)), is_image):
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
    info = {"extensions": [*places], "left_out": left_out, "problem": problem, "is_compressed": False}
    return FileIndex(arrays, info)


def left_out_of(indices: Sequence[TarIndex], share: float, title: str) -> list[LeftOut]:
    """The bad samples and shards, with a warning; CorruptError if they are more than a share.

    It also warns of samples whose members do not lie together.
    """
    cut = [LeftOut(index.where, f"ends early: {index.problem}") for index in indices if index.problem]
    bad = [left_out for index in indices for left_out in index.left_out]
    total = len(bad) + sum(len(index.keys) for index in indices)
    for some, count, what in ((cut, len(indices), "shards"), (bad, total, "samples")):
        refuse_many(some, count, share, title, what)
    warn_of(cut, len(indices), title, "shards")
    warn_of(bad, total, title, "samples")
    apart = []
    for index in indices:
        for key, count in Counter(index.keys).items() if len({*index.keys}) < len(index.keys) else ():
            apart += [LeftOut(os.path.basename(index.where), f"has {key!r:.100} again")] * (count - 1)
    warn_of(apart, total, title, "samples", APART)
    return cut + bad


def samples_of(
    named: NamedFiles, indices: Sequence[TarIndex], columns: Sequence[str] | None, title: str
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
    content = content_of(schema, keys, np.array(counts), *sizes)
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

    @property
    def only_copies(self) -> bool:
        """True."""
        return True

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
