"""The road out: a dataset as rows by number."""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, NotFoundError
from ..order.by_file import Locality, Shuffle, equal_runs
from ..order.options import OrderOptions
from ..order.shard import Shard
from ..process.lazy import cached_property
from ..rows.block import Block, Data, Rows
from ..rows.schema import Schema
from ..versions.location import Files, Folder, Progress
from ..versions.manifest import Manifest
from .readahead import Lookahead
from .reader import Reader
from .stream import Stream

__all__ = ["ColumnsRef", "DataRef", "SlicedRef", "VersionRef"]

Ints = npt.NDArray[np.int64]
_LOOKS = 10  # at a version that others convert again and again
_TEXT = 100  # bytes of a ragged value, where nobody knows


class _Told:
    """An attribute that a DataRef has if its `info` says it, and that a subclass may set."""

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


class DataRef(ABC):
    """A map-style dataset: give it a row number, or many, and it gives the rows.

    Subclass it over data of your own with `__len__` and `take`, and it streams, shuffles, shards and resumes.

    Example:
        >>> class Squares(DataRef):
        ...     def __len__(self):
        ...         return 10
        ...     def take(self, rows):
        ...         return [int(row) ** 2 for row in rows]
        >>> Squares()[3], Squares()[[1, -1]], list(Squares()[7:])
        (9, [1, 81], [49, 64, 81])
    """

    is_thread_safe = False  # True lets a loader call `take` from a thread of its own while you call it, too

    _expected: Lookahead | None = None

    # What scripts ask a dataset for.
    classes: Any = _Told()
    class_to_idx: Any = _Told()
    features: Any = _Told()

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows N."""

    @abstractmethod
    def take(self, rows: Ints) -> Sequence[Any]:
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
    def info(self) -> dict[str, Any]:
        """What is known of the dataset beside its rows, as JSON data; a copy, `{}` if nothing is.

        `classes`, `class_to_idx` and `features`, where it has them, are attributes too.
        """
        return {}

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows: what a block shuffle heeds.

        Without files these are runs of 4096 rows.
        """
        return equal_runs(len(self))

    def __getitem__(self, index: Any) -> Any:
        """A row; a list of rows for a list of numbers; a view of some rows, a DataRef too, for a slice.

        Raises:
            IndexError: there is no such row.
        """
        if isinstance(index, slice):
            return SlicedRef(self, range(len(self))[index])
        if np.ndim(index) == 0:
            return _exact(self.take(self._numbers([index])))[0]
        return _exact(self.take(self._numbers(index)))

    def __getitems__(self, indices: Any) -> Sequence[Any]:
        """The rows of a batch, for torch's DataLoader; `default_collate` makes them tensors in one go."""
        if self._expected is not None and type(indices) is list:
            found = self._expected.rows(indices)
            if found is not None:
                return found
        return self.take(self._numbers(indices))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row; 0 if that is not known."""
        return 0

    @property
    def is_cold(self) -> bool:
        """True as long as rows come from disk, so that announcing them is worth its cost."""
        return False

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of what is delivered; None if it does not matter."""
        return None

    def announce(self, rows: Ints, values: bool) -> None:  # noqa: B027
        """Is told of rows that will be taken, before that: see `Reader.announce`. Does nothing by default."""

    def probe(self) -> None:  # noqa: B027
        """Is to find out anew whether it `is_cold`. Does nothing by default."""

    def foresee(self, order: Iterable[Ints], progress: Progress) -> None:  # noqa: B027
        """Is told of the order in which an iteration will take rows, lazily. Does nothing by default.

        Args:
            order: row numbers, some at a time.
            progress: how many rows the iteration has given by now; None when it is over.
        """

    def expect(self, wanted: list[int], numbers: Ints) -> None:
        """A sampler tells what it will hand out next, as ints and as an array: it can be read ahead."""
        self._expected = Lookahead(self, wanted, numbers)

    def approach(self, start: int, stop: int) -> None:
        """A sampler is about to hand out these places of what it has told: other processes may read them."""
        if self._expected is not None:
            self._expected.approach(start, stop)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_expected"}

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), 256):
            yield from _exact(self.take(np.arange(start, min(start + 256, len(self)))))

    def _numbers(self, indices: Any) -> Ints:
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
        # Unsigned, a negative number is a huge one: one pass tells that nothing needs a closer look.
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
    ) -> Stream:
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


def _exact(rows: Sequence[Any]) -> list[Any]:
    return rows.exact() if isinstance(rows, Rows) else list(rows)


class SlicedRef(DataRef):
    """Some rows of another DataRef: what `ref[start:stop:step]` is."""

    def __init__(self, whole: DataRef, rows: range) -> None:
        self.is_thread_safe = whole.is_thread_safe
        self.whole = whole
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Ints) -> Sequence[Any]:
        """The rows of these numbers within the slice."""
        return self.whole.take(self.rows.start + self.rows.step * rows)

    @property
    def row_bytes(self) -> int:
        """Of the whole."""
        return self.whole.row_bytes

    @property
    def ahead_bytes(self) -> int | None:
        """Of the whole."""
        return self.whole.ahead_bytes

    @property
    def is_cold(self) -> bool:
        """Of the whole."""
        return self.whole.is_cold

    def announce(self, rows: Ints, values: bool) -> None:
        """Tells the whole of them."""
        self.whole.announce(self.rows.start + self.rows.step * rows, values)

    def probe(self) -> None:
        """Passed on to the whole."""
        self.whole.probe()

    def foresee(self, order: Iterable[Ints], progress: Progress) -> None:
        """Tells the whole of it."""
        self.whole.foresee((self.rows.start + self.rows.step * rows for rows in order), progress)

    @property
    def file_starts(self) -> Ints:
        """Of the whole, as far as the slice goes; equal runs for a slice that goes backwards."""
        if self.rows.step < 0:
            return super().file_starts
        first = -((self.rows.start - self.whole.file_starts) // self.rows.step)
        return np.unique(np.append(np.clip(first, 0, len(self)), [0, len(self)]))

    @property
    def fingerprint(self) -> str | None:
        """Of the whole and the slice."""
        if self.whole.fingerprint is None:
            return None
        text = f"{self.whole.fingerprint} {self.rows.start} {self.rows.stop} {self.rows.step}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def schema(self) -> Schema | None:
        """Of the whole."""
        return self.whole.schema

    @property
    def info(self) -> dict[str, Any]:
        """Of the whole."""
        return self.whole.info

    def __repr__(self) -> str:
        return f"{self.whole!r}[{self.rows.start}:{self.rows.stop}:{self.rows.step}]"


class ColumnsRef(DataRef):
    """Rows over columns that lie where they always were, such as arrays in memory or in a file of any format.

    Args:
        name: what this is, for people.
        schema: what a row looks like.
        length: number of rows N.
        columns: for each column of the schema, a function of row numbers (B,) that gives those rows.
        remade: a function and its arguments that make this DataRef anew, by which it pickles.
    """

    is_thread_safe = True

    def __init__(
        self,
        name: str,
        schema: Schema,
        length: int,
        columns: Sequence[Callable[[Ints], Data]],
        remade: tuple[Callable[..., Any], tuple[Any, ...]],
    ) -> None:
        self._name = name
        self._schema = schema
        self._length = length
        self._columns = columns
        self._remade = remade

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Ints) -> Sequence[Any]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        if not len(rows):
            return []
        return Rows(Block(self._schema, len(rows), tuple(column(rows) for column in self._columns)))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, as far as its schema tells."""
        return sum(column.row_bytes if not column.is_ragged else _TEXT for column in self._schema.columns)

    @property
    def schema(self) -> Schema:
        """What a row looks like."""
        return self._schema

    @cached_property
    def fingerprint(self) -> str:
        """A name for the content, told by its look, its length and 64 rows spread over it."""
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

    def __reduce__(self) -> Any:
        return self._remade


class VersionRef(DataRef):
    """A published version. Pickles by its path, and survives fork, spawn, forkserver and threads."""

    is_thread_safe = True

    def __init__(self, where: str | Files, manifest: Manifest, verify: bool = True) -> None:
        self.where: Files = Folder(where) if isinstance(where, str) else where
        self.manifest = manifest
        self._verify = verify
        self._reader: Reader | None = None

    def __len__(self) -> int:
        return self.manifest.num_rows

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows."""
        return self.manifest.file_starts

    def take(self, rows: Ints) -> Sequence[Any]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        return Rows(self.open().take(rows)) if len(rows) else []

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, as it is stored."""
        return self.manifest.nbytes // max(1, len(self))

    @property
    def ahead_bytes(self) -> int | None:
        """A share of what the cache of a store keeps, if that is bounded."""
        return self.where.ahead_bytes

    @property
    def is_cold(self) -> bool:
        """True as long as rows come from disk, as far as this process has seen."""
        return len(self) > 0 and self.open().is_cold

    def announce(self, rows: Ints, values: bool) -> None:
        """Asks the kernel to have these rows ready; see `Reader.announce`."""
        self.open().announce(rows, values)

    def probe(self) -> None:
        """Finds out anew, by the next announcement, whether rows come from disk."""
        if len(self):
            self.open().probe()

    def foresee(self, order: Iterable[Ints], progress: Progress) -> None:
        """Brings the files of a version in a store ahead of time, in the order of these rows."""
        if self.where.is_far and len(self):
            starts = self.manifest.file_starts
            files = (np.searchsorted(starts, rows, side="right") - 1 for rows in order)
            self.where.follow(self.manifest.files, files, progress)

    def download(self, progress: bool | None = None) -> None:
        """Brings all files of a version in a store now, with a progress bar.

        Raises:
            ValueError: they are more than the cache may keep.
            RemoteError: the store cannot be reached.
        """
        self.where.bring_all(self.manifest, progress)

    def open(self) -> Reader:
        """Maps the files, unless that has been done in this process; whoever has them open keeps them."""
        if self._reader is None:
            assert self.manifest.schema is not None, "only an empty dataset has no schema"
            for left in reversed(range(_LOOKS)):
                reader = Reader(self.where, self.manifest.schema, self.manifest.files, self._verify)
                try:
                    reader.map_all()
                    break
                except CorruptError:
                    # Damaged; or overwritten, removed or converted since, perhaps more than once?
                    found = _reopened(self.where, self.manifest.fingerprint, self._verify).manifest
                    if found.build == self.manifest.build or not left:
                        raise
                    self.manifest = found
            self._reader = reader
        return self._reader

    @property
    def fingerprint(self) -> str:
        """A name for the content; the same for the same rows, wherever and however they are kept."""
        return self.manifest.fingerprint

    @property
    def schema(self) -> Schema | None:
        """What a row looks like; None for a version without rows."""
        return self.manifest.schema

    @property
    def info(self) -> dict[str, Any]:
        """What was kept with the version."""
        return copy.deepcopy(self.manifest.info)

    def __repr__(self) -> str:
        m = self.manifest
        columns = ", ".join(map(str, m.schema.columns)) if m.schema else "no rows"
        return f"<DataRef {m.id!r} {m.version!r}: {len(self)} rows, {m.nbytes / 1e6:.1f} MB; {columns}>"

    def __reduce__(self) -> Any:
        return _reopened, (self.where, self.manifest.fingerprint, self._verify)


def _reopened(where: Files, fingerprint: str, verify: bool) -> VersionRef:
    manifest = Manifest.from_bytes(where.manifest())
    if manifest.fingerprint != fingerprint:  # converted to another format, it has the same
        raise NotFoundError(f"{where.name} has been overwritten since this DataRef was made; fetch it again")
    return VersionRef(where, manifest, verify)
