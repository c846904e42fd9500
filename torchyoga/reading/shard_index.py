"""Tar shards of this machine -> a DataRef: an index says where the members lie, and rows are read there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, SchemaError
from ..files.regular import open_regular
from ..files.tar_members import Member, members
from ..files.tar_samples import KEY, samples
from ..rows.column import Column
from ..rows.meaning import PLAIN, Codec, Meaning
from ..rows.node import Node, leaf_names
from ..rows.schema import Schema
from ..rows.types import Array
from .file_parts import FileParts, Names, Threads
from .files_ref import FilesRef, Held, content_of
from .left_out import LeftOut, told_of

__all__ = ["FORMATS", "Index", "index_of", "indexed"]

Ints = npt.NDArray[np.int64]
FORMATS = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "tif": "tiff", "tiff": "tiff"}
_MOST_EXTENSIONS = 256
_BUFFER = 4096  # bytes read at once, so that members of less need one read for two headers


@dataclass
class Index:
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


def index_of(path: str) -> Index:
    """The index of a shard, made of its headers."""
    with open(open_regular(path), "rb", _BUFFER) as file:
        found = Index(path, os.fstat(file.fileno()).st_size)

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

        places: dict[str, list[tuple[int, Member]]] = {}
        try:
            for sample in samples((member, member) for member in members(read, found.nbytes)):
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


def indexed(
    indices: Sequence[Index], columns: Sequence[str] | None, left_out: Sequence[LeftOut], threads: Threads
) -> FilesRef:
    """The samples of shards as a DataRef.

    Args:
        indices: of the shards.
        columns: the extensions that become columns; None for all.
        left_out: what is bad.
        threads: read members.

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
        codec = FORMATS.get(name.rpartition(".")[2])
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
    held = Held(
        name=_name(indices),
        schema=schema,
        length=len(keys),
        columns=tuple(flat),
        content=content_of(schema, keys, np.array(counts), *described),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        info=told_of(left_out),
        left_out=tuple(left_out),
    )
    return FilesRef(held)


def _name(indices: Sequence[Index]) -> str:
    first = os.path.basename(indices[0].path)
    return f"tar shard {first!r}" if len(indices) == 1 else f"{len(indices)} tar shards from {first!r} on"
