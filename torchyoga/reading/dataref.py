"""A dataset as rows by number."""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, NotFoundError
from ..mapped.marks import Marks
from ..order.by_file import Locality, Shuffle, equal_runs
from ..order.options import OrderOptions
from ..order.shard import Shard
from ..process.distinct import distinct
from ..process.lazy import cached_property
from ..rows.block import Block, Data, Rows
from ..rows.schema import Schema
from ..rows.types import Json, Row
from ..versions.location import Files, Folder, Progress
from ..versions.manifest import Manifest
from .readahead import Prefetch, ReadAhead
from .reader import Reader
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    RowT = TypeVar("RowT", covariant=True, default=Row)
else:
    from typing import TypeVar

    RowT = TypeVar("RowT", covariant=True)  # a default is for type checkers; Python knows it from 3.13 on

__all__ = ["ColumnsRef", "DataRef", "SlicedRef", "VersionRef"]

Ints = npt.NDArray[np.int64]
_LOOKS = 10  # attempts, at a version that others keep converting
_TEXT = 100  # bytes of a ragged value, where they are not known


class _Numbers(Protocol):
    """Row numbers: an array, or a tensor."""

    def __len__(self) -> int: ...

    def tolist(self) -> Any:
        """The numbers as a list."""


class _Told:
    """An attribute that a DataRef has if its `info` holds it, and that a subclass may set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, ref: DataRef | None, owner: type | None = None) -> Any:
        if ref is None:
            return self
        info = ref.info
        if self._name not in info:
            raise AttributeError(
                f"this {type(ref).__name__} has no {self._name}: its info says {sorted(info) or 'nothing'}"
            )
        return info[self._name]


class DataRef(ABC, Generic[RowT]):
    """A map-style dataset: give it a row number, or many, and it gives the rows.

    Subclass it over data of your own with `__len__` and `take`, and it streams, shuffles, shards and resumes.
    A type checker knows what a row is if the subclass says so, as in `DataRef[int]`.

    Example:
        >>> class Squares(DataRef[int]):
        ...     def __len__(self):
        ...         return 10
        ...     def take(self, rows):
        ...         return [int(row) ** 2 for row in rows]
        >>> Squares()[3], Squares()[[1, -1]], list(Squares()[7:])
        (9, [1, 81], [49, 64, 81])
    """

    is_thread_safe = False  # True lets a loader call `take` from a thread of its own while you call it, too

    # What scripts ask a dataset for.
    classes: Any = _Told()
    class_to_idx: Any = _Told()
    features: Any = _Told()

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows N."""

    @abstractmethod
    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers (int64, each in 0..N-1), in this order."""

    @property
    def fingerprint(self) -> str | None:
        """A name for the content, by which a saved state knows its dataset; None if there is none."""
        return None

    @property
    def schema(self) -> Schema | None:
        """What a row looks like; None if that is not known, or there are no rows."""
        return None

    @property
    def info(self) -> Json:
        """What is known of the dataset besides its rows, as JSON data; a copy, `{}` if nothing is.

        `classes`, `class_to_idx` and `features`, where it has them, are attributes too.
        """
        return {}

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows: what a block shuffle heeds.

        Without files these are runs of 4096 rows.
        """
        return equal_runs(len(self))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, so that several small batches are read at once; 0 if that is not known."""
        return 0

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """What reads rows ahead for loaders and samplers; None if the size of a row is not known."""
        return ReadAhead(self.row_bytes) if self.row_bytes else None

    @overload
    def __getitem__(self, index: slice) -> DataRef[RowT]: ...

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> RowT: ...

    @overload
    def __getitem__(self, index: Sequence[int] | _Numbers) -> list[RowT]: ...

    def __getitem__(self, index: Any) -> DataRef[RowT] | RowT | list[RowT]:
        """A row; a list of rows for a list of numbers; a view of some rows, a DataRef too, for a slice.

        Raises:
            IndexError: there is no such row.
        """
        if isinstance(index, slice):
            return SlicedRef(self, range(len(self))[index])
        if np.ndim(index) == 0:
            return _exact(self.take(self._numbers([index])))[0]
        return _exact(self.take(self._numbers(index)))

    def __getitems__(self, indices: Sequence[int] | _Numbers) -> Sequence[RowT]:
        """The rows of a batch, for torch's DataLoader; `default_collate` makes them tensors in one go."""
        readahead = self.readahead
        if readahead is not None and type(indices) is list:
            rows = readahead.rows(indices, self.take)
            if rows is not None:
                return rows
        return self.take(self._numbers(indices))

    def __getstate__(self) -> Json:
        # What is read ahead is this process's, and a copy's rows may be others.
        return {key: value for key, value in self.__dict__.items() if key != "readahead"}

    def __iter__(self) -> Iterator[RowT]:
        for start in range(0, len(self), 256):
            yield from _exact(self.take(np.arange(start, min(start + 256, len(self)))))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} rows>"

    def _numbers(self, indices: Sequence[int] | _Numbers) -> Ints:
        found = np.asarray(indices)
        if (
            found.dtype == np.bool_
            or not (np.issubdtype(found.dtype, np.integer) or not found.size)
            or found.ndim != 1
        ):
            raise TypeError(f"rows are taken by an int, a list of ints or a slice, found {indices!r:.100}")
        numbers = found.astype(np.int64, copy=False)
        if not len(numbers):
            return numbers
        length = len(self)
        # Unsigned, a negative number is a huge one: one pass shows that nothing needs a closer look.
        if int(numbers.view(np.uint64).max()) < length:
            return numbers
        low, high = int(numbers.min()), int(numbers.max())
        if low < -length or high >= length:
            raise IndexError(f"row {high if high >= length else low} of a dataset of {length} rows")
        return numbers % length

    def stream(
        self,
        start_offset: int = 0,
        shuffle: Shuffle = False,
        shuffle_seed: int = 0,
        shard_rank: int = 0,
        num_shards: int = 1,
        skip_shuffle_at_epoch_end: bool = False,
        drop_shard_remainder: bool = False,
        shuffle_window: int = 8,
        locality: Locality = "global",
    ) -> Stream[RowT]:
        """The sequential layer: rows in order, an epoch per iteration, resumable after any row.

        Args:
            start_offset: rows of the whole dataset, over all shards, that the first iteration leaves out;
                more than the dataset has means later epochs.
            shuffle: a full shuffle, anew each epoch; the same as `ResumableSampler(self, seed=shuffle_seed)`
                gives. "block" mixes a few files at a time: see docs/shuffle.md.
            shuffle_seed: any int.
            shard_rank: which shard this is, in 0..num_shards-1.
            num_shards: shard r takes positions r, r + num_shards, ... of the global order.
            skip_shuffle_at_epoch_end: every epoch comes in the order of the first.
            drop_shard_remainder: leave out the tail that the shards do not divide; else some have one row
                more.
            shuffle_window: with shuffle="block", files mixed with each other at once.
            locality: "shard" gives each shard files of its own, see `ResumableSampler`.

        Raises:
            ValueError: an argument is out of range.

        Example:
            >>> list(Squares().stream(start_offset=7))
            [49, 64, 81]
        """
        shard = Shard(num_shards, shard_rank, "drop" if drop_shard_remainder else "keep")
        reshuffle = not skip_shuffle_at_epoch_end
        options = OrderOptions(
            shuffle, shuffle_seed, reshuffle, shuffle_window, locality, shard, start_offset
        )
        return Stream(self, options)


def _exact(rows: Sequence[RowT]) -> list[RowT]:
    return rows.exact() if isinstance(rows, Rows) else list(rows)


class SlicedRef(DataRef[RowT]):
    """Some rows of another DataRef: what `ref[start:stop:step]` is."""

    def __init__(self, whole: DataRef[RowT], rows: range) -> None:
        self.is_thread_safe = whole.is_thread_safe
        self.whole = whole
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers within the slice."""
        return self.whole.take(self.rows.start + self.rows.step * rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row of the whole."""
        return self.whole.row_bytes

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """The whole's, for the rows of the slice; None if the whole has none."""
        whole = self.whole.readahead
        if whole is None or whole.prefetch is None:
            return super().readahead
        return ReadAhead(self.row_bytes, _SlicePrefetch(whole.prefetch, self.rows))

    @property
    def file_starts(self) -> Ints:
        """The whole's, as far as the slice goes; equal runs for a slice that goes backwards."""
        if self.rows.step < 0:
            return super().file_starts
        first = -((self.rows.start - self.whole.file_starts) // self.rows.step)
        return distinct(np.append(np.clip(first, 0, len(self)), [0, len(self)]))

    @property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's and the slice."""
        if self.whole.fingerprint is None:
            return None
        text = f"{self.whole.fingerprint} {self.rows.start} {self.rows.stop} {self.rows.step}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def schema(self) -> Schema | None:
        """The whole's schema."""
        return self.whole.schema

    @property
    def info(self) -> Json:
        """The whole's info."""
        return self.whole.info

    def __repr__(self) -> str:
        return f"{self.whole!r}[{self.rows.start}:{self.rows.stop}:{self.rows.step}]"


class _SlicePrefetch:
    """Makes rows of a slice ready by their numbers in the whole."""

    def __init__(self, whole: Prefetch, rows: range) -> None:
        self._whole = whole
        self._start, self._step = rows.start, rows.step

    @property
    def is_cold(self) -> bool:
        return self._whole.is_cold

    @property
    def ahead_bytes(self) -> int | None:
        return self._whole.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        self._whole.announce(self._start + self._step * rows, values)

    def probe(self) -> None:
        self._whole.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        self._whole.follow((self._start + self._step * rows for rows in order), progress)


class ColumnsRef(DataRef):
    """Rows over columns that stay where they are, such as arrays in memory or in a file of any format.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
        columns: for each column of the schema, a function of row numbers (B,) that gives those rows.
        remade: a function and its arguments that make this DataRef anew, for pickling.
    """

    is_thread_safe = True

    def __init__(
        self,
        name: str,
        schema: Schema,
        length: int,
        columns: Sequence[Callable[[Ints], Data]],
        remade: tuple[Callable[..., DataRef], tuple[object, ...]],
    ) -> None:
        self._name = name
        self._schema = schema
        self._length = length
        self._columns = columns
        self._remade = remade

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        if not len(rows):
            return []
        return Rows(Block(self._schema, len(rows), tuple(column(rows) for column in self._columns)))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, as far as its schema says."""
        return sum(column.row_bytes if not column.is_ragged else _TEXT for column in self._schema.columns)

    @property
    def schema(self) -> Schema:
        """What a row looks like."""
        return self._schema

    @cached_property
    def fingerprint(self) -> str:
        """A name for the content, made of its schema, its length and 64 rows spread over it."""
        found = hashlib.blake2b(f"{len(self)} {json.dumps(self._schema.to_json())}".encode(), digest_size=16)
        rows = np.unique(np.linspace(0, len(self) - 1, min(64, len(self))).astype(np.int64))
        if len(rows):
            for column, take in zip(self._schema.columns, self._columns, strict=True):
                data = take(rows)
                for part in column.parts:
                    found.update(np.ascontiguousarray(data.part(part)).tobytes())
        return found.hexdigest()

    def __repr__(self) -> str:
        return f"<DataRef {self._name}: {len(self)} rows; {', '.join(map(str, self._schema.columns))}>"

    def __reduce__(self) -> tuple[object, ...]:
        return self._remade


class VersionRef(DataRef):
    """A published version. Pickles by its path, and survives fork, spawn, forkserver and threads."""

    is_thread_safe = True

    def __init__(
        self, where: str | Files, manifest: Manifest, verify: bool = True, marks: Marks | None = None
    ) -> None:
        self._version = _Version(Folder(where) if isinstance(where, str) else where, manifest, verify, marks)

    @property
    def where(self) -> Files:
        """Where the files lie."""
        return self._version.where

    @property
    def manifest(self) -> Manifest:
        """What the version consists of."""
        return self._version.manifest

    def __len__(self) -> int:
        return self.manifest.num_rows

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows."""
        return self.manifest.file_starts

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        return Rows(self.open().take(rows)) if len(rows) else []

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, as it is stored."""
        return self.manifest.nbytes // max(1, len(self))

    @cached_property
    def readahead(self) -> ReadAhead:
        """What reads pages and downloads files before their rows are taken."""
        return ReadAhead(self.row_bytes, self._version)

    def download(self, progress: bool | None = None) -> None:
        """Downloads all files of a version in a store now, with a progress bar.

        Raises:
            ValueError: they are more than the cache may keep.
            RemoteError: the store cannot be reached.
        """
        self.where.download_all(self.manifest, progress)

    def open(self) -> Reader:
        """Maps the files, unless this process has done so; readers that have them open keep them."""
        return self._version.open()

    @property
    def fingerprint(self) -> str:
        """A name for the content; the same for the same rows, wherever and however they are kept."""
        return self.manifest.fingerprint

    @property
    def schema(self) -> Schema | None:
        """What a row looks like; None for a version without rows."""
        return self.manifest.schema

    @property
    def info(self) -> Json:
        """What was kept with the version."""
        return copy.deepcopy(self.manifest.info)

    def __repr__(self) -> str:
        m = self.manifest
        columns = ", ".join(map(str, m.schema.columns)) if m.schema else "no rows"
        return f"<DataRef {m.id!r} {m.version!r}: {len(self)} rows, {m.nbytes / 1e6:.1f} MB; {columns}>"

    def __reduce__(self) -> tuple[object, ...]:
        version = self._version
        marks = version.marks if version.marks.can_be_passed() else None
        return _reopened, (self.where, self.manifest.fingerprint, version.verify, marks)


class _Version:
    """The files of a version, opened when a row is first wanted; makes its rows ready, too.

    A VersionRef and its `ReadAhead` share it, so that neither holds the other.
    """

    def __init__(self, where: Files, manifest: Manifest, verify: bool, marks: Marks | None = None) -> None:
        self.where = where
        self.manifest = manifest
        self.verify = verify
        # Made now: processes that are forked before the first row is read share it, too.
        self.marks = self._new_marks()
        if marks is not None and marks.nbytes == self.marks.nbytes:  # else it was converted since
            self.marks = marks
        self._reader: Reader | None = None

    def _new_marks(self) -> Marks:
        return Marks(tuple(file.nbytes for file in self.manifest.files) if self.verify else ())

    def open(self) -> Reader:
        """The reader of this process."""
        if self._reader is None:
            assert self.manifest.schema is not None, "only an empty dataset has no schema"
            for left in reversed(range(_LOOKS)):
                reader = Reader(
                    self.where, self.manifest.schema, self.manifest.files, self.verify, marks=self.marks
                )
                try:
                    reader.map_all()
                    break
                except CorruptError:
                    # Damaged; or overwritten, removed or converted since, perhaps more than once?
                    now = _manifest_of(self.where, self.manifest.fingerprint)
                    if now.build == self.manifest.build or not left:
                        raise
                    self.manifest = now
                    self.marks = self._new_marks()
            self._reader = reader
        return self._reader

    @property
    def is_cold(self) -> bool:
        return self.manifest.num_rows > 0 and self.open().is_cold

    @property
    def ahead_bytes(self) -> int | None:
        return self.where.ahead_bytes

    def announce(self, rows: Ints, values: bool) -> None:
        self.open().announce(rows, values)

    def probe(self) -> None:
        if self.manifest.num_rows:
            self.open().probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        if self.where.is_remote and self.manifest.num_rows:
            starts = self.manifest.file_starts
            files = (np.searchsorted(starts, rows, side="right") - 1 for rows in order)
            self.where.follow(self.manifest.files, files, progress)


def _reopened(where: Files, fingerprint: str, verify: bool, marks: Marks | None) -> VersionRef:
    return VersionRef(where, _manifest_of(where, fingerprint), verify, marks)


def _manifest_of(where: Files, fingerprint: str) -> Manifest:
    """The present manifest; NotFoundError if it is of other rows."""
    manifest = Manifest.from_bytes(where.manifest())
    if manifest.fingerprint != fingerprint:  # converted to another format, it has the same
        raise NotFoundError(f"{where.name} has been overwritten since this DataRef was made; fetch it again")
    return manifest
