"""Files of TFRecord -> rows by number, where they lie: records are found once, and checked when read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import CorruptError, SchemaError
from ...files.checksum import crc32c, crc32c_of_words, masked
from ...files.root import open_regular
from ...formats.items import MappedRuns
from ...formats.mapped import Bytes, Memory
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.numbers import spread
from ...reading.dataref import DataRef
from ...reading.in_place_ref import FileLayout, InPlaceRef, MappedShards, files_of
from ...rows.block import Data, bounds_of
from ...rows.schema import Schema
from ...rows.types import Array, Ints
from ...stores.cache import FileIndex, kept_index
from .examples import BadExample, Examples, SeenFeatures, learned
from .messages import message_of
from .named_files import NamedFiles

_KIND = "tfrecord 2"
_SAMPLE, _FEW = 1000, 32  # records that show what all look like: at most, and at least
_MOST_SAMPLED = 2**28  # bytes of these
_RAW = Schema.of(b"")
_HEAD, _FOOT = 12, 4  # bytes before and after those of a record
_PIECE, _SMALL_PIECE = 2**22, 2**12  # bytes that are read at once, to find records; where these are large


def from_tfrecord(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    schema: Schema | None = None,
    *,
    raw: bool = False,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> DataRef:
    """Files of TFRecord as a DataRef, read where they lie; TensorFlow is not needed.

    Records are found once, by reading all their headers; where they lie is kept in the cache, with 12 bytes
    for each, until a file changes. Files of this machine are mapped, those of a store are downloaded when
    they are needed, or some time before, into a folder of bounded size; and files that gzip or zlib has
    compressed are decompressed into it.

    Args:
        files: a path or URL, which may have wildcards; a folder, for all its files with `tfrec` in their
            names; or a list of these.
        schema: what a row looks like; by default 1,000 records spread over the files show it.
        raw: True for rows that are the bytes of records, whatever these are.
        storage_options: for fsspec's filesystem.
        cache_dir: where indices, and downloaded and decompressed files are kept, as of `Storage`.
        cache_bytes: how many bytes of them are kept.

    Rows are dicts of the features of a `tf.train.Example`, sorted by their names. A feature with one value in
    each sample is an int, a float32 or bytes; one with the same number of values in each is an array of one
    length, and any other is an array of any length. Several bytes are a list. A feature is None in samples
    that lack it. In a `SequenceExample` this holds for features of the context; those of steps are arrays or
    lists with an item for each step. With a `schema`, bytes may become `str` or arrays, and numbers another
    dtype.

    CRC-32Cs of lengths are checked when records are found, those of records before a row is made from them:
    in files of this machine when a process first reads them. That is much faster with google-crc32c, which
    the extra `tfrecord` installs.

    Raises:
        NotFoundError: there is no such file.
        ValueError: files are of this machine and of a store.
        SchemaError: features differ in their kind, or do not fit the schema. When read: a record does not
            fit; the message names file and record.
        CorruptError: a file is cut or damaged; the message names the record. When read: a record is damaged,
            or is not an Example.
        RemoteError: the store cannot be reached.

    Example:
        >>> from torchyoga.files.checksum import crc32c, masked
        >>> def framed(data):
        ...     parts = len(data).to_bytes(8, "little"), data
        ...     return b"".join(part + masked(crc32c()(part)).to_bytes(4, "little") for part in parts)
        >>> _ = (tmp_path / "x.tfrecord").write_bytes(framed(b"one") + framed(b"three"))
        >>> list(from_tfrecord(tmp_path / "x.tfrecord", raw=True, cache_dir=tmp_path / "cache"))
        [b'one', b'three']
    """
    named = NamedFiles.of(files, "*tfrec*", storage_options, cache_dir, cache_bytes)
    is_raw = raw or schema == _RAW
    indices = list(named.indices(_KIND, _index_of))
    bounds = [index.arrays["bounds"] for index in indices]
    starts = bounds_of(len(some) - 1 for some in bounds)
    if not starts[-1]:
        raise SchemaError(f"{named.name}: there are no records")
    whole = np.concatenate(bounds)
    crcs = np.concatenate([index.arrays["crcs"] for index in indices])
    records = _Records(named.name, named.files, starts, _RAW, "", whole, crcs, None)
    examples = None if is_raw else learned(_seen_in(records, named), schema)
    looks = _RAW if examples is None else examples.schema
    content = hexdigest(json.dumps(looks.to_json()), whole.tobytes(), crcs.tobytes())
    return InPlaceRef(replace(records, schema=looks, examples=examples, content=content))


@dataclass(frozen=True, eq=False)
class _Records(FileLayout):
    """Rows that are records.

    Attributes:
        bounds: (rows + files,) where each record begins in its file, and where the last one of each ends.
        crcs: (rows,) their checksums, masked.
        examples: how they become rows; None if rows are their bytes.
    """

    bounds: Ints
    crcs: Array
    examples: Examples | None

    def spans(self, shards: MappedShards, rows: Ints) -> tuple[Memory, Ints, Ints]:
        """Where records lie in memory."""
        files = files_of(self.starts, rows)
        memory, origins = shards.hold(files)
        begins = self.bounds.take(rows + files)
        return memory, origins + begins + _HEAD, self.bounds.take(rows + files + 1) - begins - _HEAD - _FOOT

    def gather(self, shards: MappedShards, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns of records, which are compared with their checksums."""
        memory, addresses, nbytes = self.spans(shards, rows)
        self._compare(memory, addresses, nbytes, rows)
        if self.examples is None:
            runs = MappedRuns(memory, addresses, nbytes)
            return [Data(None, bounds_of(nbytes), runs=runs, dtype=np.dtype("u1"), empty=shards.empty)]
        try:
            return self.examples.columns(memory, addresses, nbytes, columns)
        except BadExample as error:
            raise error.of(self.where(int(rows[error.place]))) from error

    def _compare(self, memory: Memory, addresses: Ints, nbytes: Ints, rows: Ints) -> None:
        """Raises CorruptError unless records fit their checksums; those of files of this machine are compared
        when this process first reads them."""
        checked = self._checked
        if checked is not None:
            new = ~checked.take(rows)
            addresses, nbytes, rows = addresses[new], nbytes[new], rows[new]
        if not len(rows):
            return
        crc, (data, low) = crc32c(), memory.whole
        begins = addresses - low
        pairs = zip(begins.tolist(), (begins + nbytes).tolist(), strict=True)
        crcs = np.fromiter((crc(data[at:end]) for at, end in pairs), np.uint32, len(rows))
        wrong = masked(crcs) != self.crcs.take(rows)
        if wrong.any():
            for number in np.unique(files_of(self.starts, rows[wrong])).tolist():
                self.files.forget(number)  # a copy may be what is damaged
            raise CorruptError(
                f"{self.where(int(rows[wrong.argmax()]))} is damaged: it does not fit its checksum; write "
                "the file again"
            )
        if checked is not None:
            checked[rows] = True

    @cached_property
    def _checked(self) -> Array | None:
        return None if self.files.is_remote else np.zeros(len(self.crcs), bool)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_checked"}

    def sample(self) -> Ints:
        """Records that show what all look like: spread over the files, or those that the last one begins with
        where files have to be downloaded: it still is in the cache."""
        count = len(self.crcs)
        size = min(_SAMPLE, count, max(_FEW, _MOST_SAMPLED * count // (1 + sum(self.files.nbytes))))
        if self.files.is_remote:
            first = int(self.starts[self.starts < count][-1])
            return np.arange(first, min(first + size, count))
        return spread(count, size)


def _seen_in(records: _Records, named: NamedFiles) -> SeenFeatures:
    """The features of some records; of files of a store they are kept, so that none is downloaded again."""
    rows = records.sample()
    if not records.files.is_remote:
        return _seen(records, rows)
    state = named.states[int(files_of(records.starts, rows)[0])]
    of = replace(state, kind=f"features of {_KIND}, {len(rows)}")
    index = kept_index(of, lambda: FileIndex({}, _seen(records, rows).to_json()), named.cache)
    return SeenFeatures.from_json(index.info)


def _seen(records: _Records, rows: Ints) -> SeenFeatures:
    """The features of some records whose bytes are rows; errors say which is damaged."""
    seen, shards = SeenFeatures(), MappedShards(records.files, records.check)
    for row in rows.tolist():
        (data,) = records.gather(shards, np.array([row]), [0])
        try:
            seen.add(message_of(data.texts()[0]))
        except CorruptError as error:
            where = records.where(row)
            raise CorruptError(f"{where} is no Example: {error}; pass raw=True for its bytes") from error
    return seen


# -- the files: a record is its length, the length's CRC-32C, its bytes and theirs, all little-endian


def _index_of(path: str) -> FileIndex:
    """Where the records of a file lie: `bounds` (N + 1,), and their `crcs` (N,)."""
    with open(open_regular(path), "rb", 0) as file:
        size = os.fstat(file.fileno()).st_size

        def read(at: int, count: int) -> Bytes:
            file.seek(at)
            return np.frombuffer(file.read(count), np.uint8)

        bounds, crcs = _walked(read, size, path)
    return FileIndex({"bounds": bounds, "crcs": crcs})


def _walked(read: Callable[[int, int], Bytes], size: int, path: str) -> tuple[Ints, Array]:
    """Where records lie, and their checksums.

    Args:
        read: gives bytes from a place on: so many, unless the file ends there.
        size: of the file.
        path: for messages.
    """
    at, count, wanted = 0, 0, _PIECE
    bounds, crcs = [np.zeros(1, np.int64)], list[Array]()
    length = struct.Struct("<Q").unpack_from
    while at < size:
        begin = max(0, at - _FOOT)
        piece = read(begin, wanted)
        place, last, places = at - begin, len(piece) - _HEAD, list[int]()
        while place <= last:
            places.append(place)
            place += length(piece.data, place)[0] + _HEAD + _FOOT
        begins = np.array(places, np.int64)
        heads = piece[begins[:, None] + np.arange(_HEAD)]
        wrong = masked(crc32c_of_words(heads[:, :8])) != heads[:, 8:].copy().view("<u4")[:, 0]
        if wrong.any():
            nth = int(wrong.argmax())
            what = "it is not of TFRecord, or the" if not at and not nth else "the"
            raise CorruptError(
                f"{path}: {what} length of record {count + nth} at byte {begin + places[nth]} is damaged: it "
                "does not fit its checksum; write the file again"
            )
        end = begin + place
        if not places or end > size:
            nth, last = count + max(0, len(places) - 1), begin + (places[-1] if places else place)
            raise CorruptError(
                f"{path} is cut: record {nth} begins at byte {last} and does not end before byte {size}, "
                f"where the file does; write it again, or cut it at byte {last}"
            )
        feet = begins[begins + begin > 0] - _FOOT  # of the records before
        crcs.append(piece[feet[:, None] + np.arange(_FOOT)].view("<u4")[:, 0])
        bounds.append(np.append(begins[1:], place) + begin)
        wanted = _PIECE if place - places[-1] < _PIECE // 4 else _SMALL_PIECE
        count, at = count + len(places), end
    if size:
        crcs.append(read(size - _FOOT, _FOOT).view("<u4"))
    return np.concatenate(bounds), np.concatenate([np.zeros(0, np.uint32), *crcs])
