"""Files of tokens, end to end, as trainers of language models write them -> documents, in place.

A row is a run of one file.
The pointers of Megatron's index are the sums of its lengths; whatever else it says is damage. Of a plain file
of tokens nothing is known but its size.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...errors import CorruptError, NotFoundError
from ...files.root import open_regular
from ...formats.items import MappedRuns
from ...formats.mapped import Memory
from ...process.digests import hexdigest
from ...reading.dataref import DataRef
from ...reading.in_place_ref import FileLayout, InPlaceRef, MappedShards, files_of
from ...rows.block import Data, bounds_of
from ...rows.schema import Schema
from ...rows.types import Ints
from ...stores.address import directory_of, is_url
from ...stores.cache import FileIndex, IndexOf, cache_of
from ...stores.downloads import ShardDownloads, StoredShard
from ...stores.objects import Objects
from ..npy_header import LONGEST_HEADER, npy_header
from .named_files import NamedFiles, state_of

_MAGIC, _HEADER = b"MMIDIDX\x00\x00", 34  # bytes of the header, the magic among them
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of a file, for a name of its content
_MOST_INDEX = 2**33  # bytes, behind a URL
_PART = 2**26  # bytes of a file behind a URL that are downloaded at once
_LOOK = 2**22  # tokens among which ends are looked for at once


@dataclass(frozen=True, eq=False)
class _TokenRuns(FileLayout):
    """Rows that are runs of tokens, which lie end to end in each file.

    Attributes:
        dtype: of a token.
        offset: bytes before the first token of each file.
        bounds: (rows + 1,) tokens before each row, in all files.
    """

    dtype: str
    offset: int
    bounds: Ints
    only_copies = True

    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """The tokens of rows, which are copied when they are wanted."""
        dtype = np.dtype(self.dtype)
        memory, addresses, nbytes = self.spans(shards, rows)
        offsets = bounds_of(nbytes // dtype.itemsize)
        if memory is None:
            return [Data(np.empty(0, dtype), offsets)]
        runs = MappedRuns(memory, addresses, nbytes)
        return [Data(None, offsets, runs=runs, dtype=dtype, empty=shards.empty)]

    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory | None, Ints, Ints]:
        """Where rows lie, and their bytes; no memory if they are all empty."""
        first = self.bounds.take(rows)
        nbytes = (self.bounds.take(rows + 1) - first) * self._size
        if not nbytes.any():
            return None, np.zeros(len(rows), np.int64), nbytes
        files = files_of(self.starts, rows)
        files[nbytes == 0] = files[int(nbytes.argmax())]  # an empty row may lie anywhere, also in no file
        memory, origins = shards.hold(files)
        before = self.bounds.take(self.starts.take(files))
        return memory, origins + self.offset + (first - before) * self._size, nbytes

    @property
    def _size(self) -> int:
        return np.dtype(self.dtype).itemsize


def from_tokens(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dtype: npt.DTypeLike,
    *,
    end: int | None = None,
    offset: int = 0,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """Files of tokens, such as nanoGPT's `train.bin`, as a DataRef, where they lie.

    Files of this machine are mapped, those of a store are downloaded when they are needed, or some time
    before, each as a whole, into a folder of bounded size.

    Args:
        files: a path or URL, which may have wildcards; a folder, for all its files that end with `.bin`; or a
            list of these. Files hold nothing but tokens, or they are called `.npy` and begin with NumPy's
            header, which is checked and passed over.
        dtype: of a token, such as "uint16".
        end: the token that ends a document. Without it each file is one row, to be cut by `token_windows`.
            With it each document is a row, which ends with that token; the files are read once to find the
            ends, which are kept in the cache.
        offset: bytes at the beginning of each file that are not tokens: 1024 in files of llm.c.
        storage_options: for fsspec's filesystem.
        cache_dir: where downloaded files are kept, as of `Storage`, and the ends of documents.
        cache_bytes: how many bytes of them are kept.

    Rows are dicts, `{"tokens": array}`. Such files have no checksums: damaged tokens go unnoticed.

    Raises:
        NotFoundError: there is no such file.
        CorruptError: the size of a file is not one of whole tokens, or not the one in its header. When read:
            a file has changed since.
        ValueError: `dtype` is not one of numbers in the byte order of this machine, or not that of a `.npy`
            file; `end` is not a value of it; `offset` is below 0, or given for `.npy` files.
        RemoteError: the store cannot be reached.

    Example:
        >>> np.array([5, 6, 0, 7, 0, 8], np.uint16).tofile(tmp_path / "train.bin")
        >>> [row["tokens"].tolist() for row in from_tokens(tmp_path / "train.bin", "uint16", end=0)]
        [[5, 6, 0], [7, 0], [8]]
        >>> windows = from_tokens(tmp_path / "train.bin", "uint16").token_windows("tokens", 3)
        >>> windows[1]["tokens"].tolist()
        [7, 0, 8]
    """
    kind = np.dtype(dtype)
    if kind.kind not in "iuf":
        raise ValueError(f"dtype={dtype!r} is not one of tokens; pass one such as 'uint16'")
    if not kind.isnative:
        raise ValueError(
            f"dtype={dtype!r} has the byte order of other machines, in which torch has no tensors; write "
            f"the tokens as {kind.newbyteorder('=')}"
        )
    if end is not None and not (kind.kind in "iu" and np.iinfo(kind).min <= end <= np.iinfo(kind).max):
        raise ValueError(f"end={end!r} is not a value of {kind}")
    if offset < 0:
        raise ValueError(f"offset={offset} must be at least 0")
    named = NamedFiles.of(files, "*.bin", storage_options, cache_dir, cache_bytes, unpack=False)
    offset = _after_headers(named, kind, offset)
    for state in named.states:
        if state.nbytes < offset or (state.nbytes - offset) % kind.itemsize:
            raise CorruptError(
                f"{state.where} has {state.nbytes} bytes: after {offset}, that is no whole number of tokens "
                f"of {kind}; pass the dtype and the offset with which it was written"
            )
    counts = [(state.nbytes - offset) // kind.itemsize for state in named.states]
    if end is None:
        ends = [np.full(min(count, 1), count, np.int64) for count in counts]
    else:
        make = partial(_ends_in, dtype=kind, offset=offset, end=end)
        indices = named.indices(f"ends of tokens 1, {kind.str} {offset} {end}", make)
        ends = [index.arrays["ends"] for index in indices]
    bounds = np.concatenate([[0], *(e + b for e, b in zip(ends, bounds_of(counts), strict=False))])
    starts = bounds_of(map(len, ends))
    return _opened(named, kind.str, offset, starts, bounds.astype(np.int64, copy=False))


def _after_headers(named: NamedFiles, dtype: np.dtype[Any], offset: int) -> int:
    """Bytes before the first token of each file: `offset`, or the bytes of the headers of `.npy` files."""
    places = [state.where for state in named.states]
    are_npy = [place.endswith(".npy") for place in places]
    if not any(are_npy):
        return offset
    if offset or not all(are_npy):
        raise ValueError(
            f"{places[are_npy.index(True)]} has NumPy's header, which neither offset={offset} nor files of "
            "other endings go with; leave offset out, make a DataRef of each kind of files, and concat them"
        )
    starts = set()
    for number, state in enumerate(named.states):
        parsed = npy_header(named.head(number, LONGEST_HEADER))
        if parsed is None:
            raise CorruptError(f"{state.where} is not a .npy file of numbers; write it again by numpy.save")
        start, (found, _, shape) = parsed
        if found != dtype or len(shape) != 1:
            raise ValueError(
                f"{state.where} has an array of {found} {shape}, where tokens of {dtype} in one dimension "
                "were asked for; pass its dtype, or save the array flat, numpy.save(path, array.reshape(-1))"
            )
        if start + shape[0] * dtype.itemsize != state.nbytes:
            raise CorruptError(
                f"{state.where} has {state.nbytes} bytes, where its header of {start} bytes says {shape[0]} "
                f"tokens of {dtype}; it was cut or has changed, write it again"
            )
        starts.add(start)
    if len(starts) > 1:
        raise ValueError(
            f"{named.name} have headers of {sorted(starts)} bytes; make a DataRef of each kind of files, "
            "and concat them"
        )
    return starts.pop()


def _ends_in(path: str, dtype: np.dtype[Any], offset: int, end: int) -> FileIndex:
    """`ends` (documents,): how many tokens of a file come before the end of each document."""
    count = (_size_of(path) - offset) // dtype.itemsize
    if not count:
        return FileIndex({"ends": np.empty(0, np.int64)})
    tokens = np.memmap(path, dtype, "r", offset, (count,))
    steps = range(0, count, _LOOK)
    ends = np.concatenate([np.flatnonzero(tokens[step : step + _LOOK] == end) + (step + 1) for step in steps])
    return FileIndex({"ends": ends if len(ends) and ends[-1] == count else np.append(ends, count)})


def from_megatron(
    prefix: str | os.PathLike[str],
    *,
    documents: bool = False,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """A dataset that Megatron has written, `prefix.bin` and `prefix.idx`, as a DataRef, where it lies.

    Files of this machine are mapped. Of those behind a URL the index is read, and the tokens are downloaded
    when they are needed, or some time before, in parts of 64 MB, into a folder of bounded size.

    Args:
        prefix: the path or URL of both files without `.bin` and `.idx`; either of them will do, too.
        documents: True makes a row of each document, which may be of several sequences; by default each
            sequence is a row.
        storage_options: for fsspec's filesystem.
        cache_dir: where downloaded parts are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Rows are dicts, `{"tokens": array}`, of the dtype that the index names. Lengths and pointers are checked
    against each other and the size of the tokens; which sequences make a document, and the tokens themselves,
    have no checksum.

    Raises:
        NotFoundError: there is no such dataset.
        CorruptError: it is not an index of Megatron's, it is damaged, or the tokens have another size than it
            says. When read: they have changed since.
        ValueError: the dataset is multimodal: its sequences have modes, which rows of tokens do not.
        RemoteError: the store cannot be reached.

    Example:
        >>> lengths = np.array([2, 3], "<i4")
        >>> np.arange(5, dtype="<u2").tofile(tmp_path / "corpus.bin")
        >>> header = b"MMIDIDX" + bytes(2) + np.array([1], "<u8").tobytes() + bytes([8])
        >>> tables = [np.array([2, 2], "<u8"), lengths, np.array([0, 4], "<i8"), np.array([0, 2], "<i8")]
        >>> _ = (tmp_path / "corpus.idx").write_bytes(header + b"".join(part.tobytes() for part in tables))
        >>> [row["tokens"].tolist() for row in from_megatron(tmp_path / "corpus")]
        [[0, 1], [2, 3, 4]]
    """
    path = os.fspath(prefix)
    path = path[:-4] if path.endswith((".bin", ".idx")) else path
    if not is_url(path):
        where = str(directory_of(path))
        size, nbytes = _size_of(f"{where}.bin"), _size_of(f"{where}.idx")
        with open(open_regular(f"{where}.idx"), "rb") as file:
            dtype, bounds = _index_of(file, nbytes, where, size, documents)
        named = NamedFiles.of(f"{where}.bin", "", None, cache_dir, cache_bytes, unpack=False)
        return _opened(named, dtype, 0, np.array([0, len(bounds) - 1]), bounds)
    folder, _, name = path.rpartition("/")
    store, cache = Objects(folder, storage_options), cache_of(cache_dir, cache_bytes)
    tokens, index = _found(store, f"{name}.bin"), _found(store, f"{name}.idx")
    read = BytesIO(store.read(f"{name}.idx", min(index.nbytes, _MOST_INDEX)))
    dtype, bounds = _index_of(read, index.nbytes, store.where(name), tokens.nbytes, documents)
    starts, parts = _parts(f"{name}.bin", tokens, bounds, np.dtype(dtype).itemsize)
    named = NamedFiles(ShardDownloads(store, parts, cache), (tokens,), cache)
    return _opened(named, dtype, 0, starts, bounds)


def _parts(name: str, about: IndexOf, bounds: Ints, itemsize: int) -> tuple[Ints, list[StoredShard]]:
    """The first row of each part of a file, and the number of rows; and the parts, which have whole rows."""
    cuts = np.unique(bounds.searchsorted(np.arange(0, bounds[-1] + 1, _PART // itemsize)))
    starts = np.unique(np.append(cuts[cuts < len(bounds) - 1], [0, len(bounds) - 1]))
    edges = (bounds[starts] * itemsize).tolist()
    return starts, [
        StoredShard(name, stop - start, stop - start, tag=about.tag, begin=start, whole=about.nbytes)
        for start, stop in pairwise(edges)
    ]


def _index_of(file: BinaryIO, nbytes: int, where: str, size: int, documents: bool) -> tuple[str, Ints]:
    """The dtype that an index says, and (N + 1,) how many tokens come before each row and after the last.

    Args:
        file: the index.
        nbytes: its size.
        where: its path or URL, without `.idx`.
        size: of the file of tokens.
        documents: True if rows are documents, False if they are sequences.
    """
    path, head = f"{where}.idx", file.read(_HEADER)
    if len(head) < _HEADER or head[:9] != _MAGIC:
        raise CorruptError(f"{path} is not an index of Megatron's: it begins with {head[:9]!r}")
    version, code, sequences, marks = struct.unpack("<QBQQ", head[9:])
    if version != 1 or code not in _DTYPES:
        raise CorruptError(f"{path} says version {version} and dtype {code}; only 1, and 1 to 8, are known")
    expected = _HEADER + 12 * sequences + 8 * marks
    if nbytes == expected + sequences and sequences:
        raise ValueError(
            f"{path} is multimodal: each of its {sequences} sequences has a mode, which rows of "
            "tokens have not; write the sequences of each mode as a dataset of its own"
        )
    if nbytes != expected:
        raise CorruptError(
            f"{path} has {nbytes} bytes where {sequences} sequences and {marks} marks of documents take "
            f"{expected}; write it again"
        )
    lengths, pointers = (np.frombuffer(file.read(n * sequences), f"<i{n}") for n in (4, 8))
    ends = np.frombuffer(file.read(8 * marks), "<i8")
    itemsize = np.dtype(_DTYPES[code]).itemsize
    bounds = bounds_of(lengths)
    wrong = np.flatnonzero((lengths < 0) | (pointers != bounds[:-1] * itemsize))
    if len(wrong):
        row = int(wrong[0])
        raise CorruptError(
            f"{path}: sequence {row} of {lengths[row]} tokens begins at byte {pointers[row]}, where "
            f"those before it end at {bounds[row] * itemsize}; write the index again"
        )
    if int(bounds[-1]) * itemsize != size:
        raise CorruptError(
            f"{path} has {bounds[-1]} tokens of {itemsize} bytes, but {where}.bin has {size} bytes; one "
            "of them was cut, or is of another dataset"
        )
    if not marks or ends[0] != 0 or ends[-1] != sequences or (np.diff(ends) < 0).any():
        raise CorruptError(f"{path}: its documents are not those of {sequences} sequences; write it again")
    return _DTYPES[code], bounds[ends] if documents else bounds


def _opened(named: NamedFiles, dtype: str, offset: int, starts: Ints, bounds: Ints) -> DataRef:
    content: list[bytes | str] = [dtype, bounds.tobytes()]
    if named.files.is_remote:
        content += [f"{state.where} {state.nbytes} {state.tag}" for state in named.states]
    else:
        for state in named.states:
            with open(open_regular(state.where), "rb") as file:
                for at in sorted({int(place) for place in np.linspace(offset, state.nbytes, _SAMPLES)}):
                    file.seek(at)
                    content.append(file.read(_SAMPLE_BYTES))
    schema = Schema.of({"tokens": np.zeros(1, dtype)}, ragged=["tokens"])
    runs = named.name, named.files, starts, schema, hexdigest(*content), dtype, offset, bounds
    return InPlaceRef(_TokenRuns(*runs))


def _found(store: Objects, name: str) -> IndexOf:
    about = store.find_one(name)
    if about is None:
        raise NotFoundError(f"there is no file {store.where(name)}; see that the URL is right")
    return state_of(store, name, about)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; see that the path is right") from None
