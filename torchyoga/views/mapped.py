"""Rows of one or more DataRefs, chosen and laid end to end, as one DataRef, as in torch's subsets.

Note 53. torch's subsets become row numbers, in one step however they are nested.
So a batch is one read of each source. The parts of the subsets are compared when an epoch begins, because
people change `subset.indices`; a list of the same ints is compared by identity, at 5 ns for each row.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset

from ..process.buffers import BufferPool
from ..process.distinct import distinct
from ..process.lazy import cached_property
from ..reading.dataref import DataRef, SlicedRef
from ..reading.readahead import Prefetch, ReadAhead
from ..rows.block import Rows, interleaved
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Json, Row
from ..versions.info import plain
from ..versions.location import Progress
from .row_map import RowMap

__all__ = ["MappedRef", "flattened", "info_of"]

Ints = npt.NDArray[np.int64]
_ASKED = ("classes", "class_to_idx", "features")  # attributes that scripts read from a dataset


class MappedRef(DataRef):
    """Rows of some DataRefs, in any order; each batch is read from each of them at once.

    Args:
        sources: the DataRefs that the rows come from.
        rows: the rows, as numbers of the rows of all sources laid end to end.
    """

    def __init__(self, sources: Sequence[DataRef], rows: RowMap) -> None:
        self.is_thread_safe = all(source.is_thread_safe for source in sources)
        self.sources = tuple(sources)
        self.rows = rows
        self._starts = np.cumsum([0, *map(len, sources)], dtype=np.int64)
        self._pool = BufferPool()

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> Json:
        return {**super().__getstate__(), "_pool": BufferPool()}

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers: `Rows` over one block, if all sources have the same schema."""
        found = [(places, source.take(wanted)) for source, places, wanted in self._of_sources(rows)]
        if len(found) == 1:
            return found[0][1]
        blocks = [(places, taken.block) for places, taken in found if isinstance(taken, Rows)]
        if blocks and len(blocks) == len(found):
            schema = blocks[0][1].schema
            if all(block.schema is schema or block.schema == schema for _, block in blocks):
                return Rows(interleaved(blocks, self._pool.empty))
        listed: list[Row] = [None] * len(rows)
        for places, taken in found:
            exact = taken.exact() if isinstance(taken, Rows) else taken
            for place, row in zip(places.tolist(), exact, strict=True):
                listed[place] = row
        return listed

    def _of_sources(self, rows: Ints) -> Iterator[tuple[DataRef, Ints, Ints]]:
        """For each source that has some of these rows: the places of its rows among them, and their numbers
        in the source."""
        for index, places, wanted in _dealt(self.rows.rows(rows), self._starts):
            yield self.sources[index], places, wanted

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows behind rows of this view (B,), as numbers of the rows of all sources laid end to end."""
        return self.rows.rows(numbers)

    def places_of(self, rows: Ints) -> Ints:
        """Where such rows (B,) come in this view, for the first time; -1 for those that do not."""
        return self.rows.places(rows)

    def lengths(self, rows: Ints) -> Ints:
        """The lengths of rows of a ragged column, as the sources find them."""
        found = np.zeros(len(rows), np.int64)
        for source, places, wanted in self._of_sources(rows):
            found[places] = source.lengths(wanted)
        return found

    def projected(self, of: Projection) -> DataRef:
        """The same rows of the sources with these columns."""
        return MappedRef([source.projected(of) for source in self.sources], self.rows)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of an average row; 0 if a source does not know."""
        sizes = [source.row_bytes for source in self.sources]
        counts = self.rows.counts(self._starts).tolist()
        if not all(size for size, count in zip(sizes, counts, strict=True) if count):
            return 0
        return int(sum(map(operator.mul, sizes, counts))) // max(1, len(self))

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """A ReadAhead over those of the sources, each for its own rows; None if they have none."""
        ahead = [source.readahead for source in self.sources]
        prefetches = [None if one is None else one.prefetch for one in ahead]
        if all(prefetch is None for prefetch in prefetches):
            return super().readahead
        return ReadAhead(self.row_bytes, _Prefetches(self.rows, self._starts, prefetches))

    @property
    def file_starts(self) -> Ints:
        """Where runs of rows of one file begin; runs of 4096 rows if the rows of files are mixed."""
        starts = [source.file_starts for source in self.sources]
        before = self._starts.tolist()
        joined = distinct(
            np.concatenate([found + start for found, start in zip(starts, before, strict=False)])
        )
        return self.rows.starts(joined)

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the names of the sources and the row numbers; None if a source has
        none."""
        found = hashlib.blake2b(digest_size=16)
        for source in self.sources:
            fingerprint = source.fingerprint
            if fingerprint is None:
                return None
            found.update(f"{fingerprint} {len(source)}\n".encode())
        found.update(self.rows.pin.encode())
        return found.hexdigest()

    @property
    def schema(self) -> Schema | None:
        """What a row looks like; None if the sources differ."""
        schemas = [source.schema for source in self.sources]
        return schemas[0] if all(schema == schemas[0] for schema in schemas) else None

    @property
    def info(self) -> Json:
        """The entries that are the same in the info of all sources."""
        return _agreed([info_of(source) for source in self.sources])

    def __repr__(self) -> str:
        return f"<DataRef: {len(self)} rows of {', '.join(map(repr, self.sources))}>"


def _dealt(numbers: Ints, starts: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """For each source that has some of these rows: its index, the places of its rows among them, their
    numbers in it.

    Args:
        numbers: row numbers in all sources laid end to end.
        starts: (sources + 1,) the number of each source's first row, and that of all rows.
    """
    if len(starts) == 2:
        yield 0, np.arange(len(numbers)), numbers
        return
    which = np.searchsorted(starts, numbers, side="right") - 1
    for index in distinct(which).tolist():
        places = np.flatnonzero(which == index)
        yield index, places, numbers[places] - starts[index]


class _Prefetches:
    """The prefetches of several sources, as one; None for sources whose rows are in memory."""

    def __init__(self, rows: RowMap, starts: Ints, prefetches: Sequence[Prefetch | None]) -> None:
        self._rows = rows
        self._starts = starts
        self._prefetches = prefetches
        self._some = [prefetch for prefetch in prefetches if prefetch is not None]

    @property
    def is_cold(self) -> bool:
        for prefetch in self._some:  # noqa: SIM110 (any() takes five times as long, and this is asked often)
            if prefetch.is_cold:
                return True
        return False

    @property
    def ahead_bytes(self) -> int | None:
        return min((n for prefetch in self._some if (n := prefetch.ahead_bytes) is not None), default=None)

    def announce(self, rows: Ints, values: bool) -> None:
        for index, _, wanted in _dealt(self._rows.rows(rows), self._starts):
            prefetch = self._prefetches[index]
            if prefetch is not None:
                prefetch.announce(wanted, values)

    def probe(self) -> None:
        for prefetch in self._some:
            prefetch.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        numbers = (self._rows.rows(rows) for rows in order)
        if len(self._prefetches) == 1:
            self._some[0].follow(numbers, progress)
            return
        lock = threading.Lock()  # each source may follow on a thread of its own
        copies = itertools.tee(numbers, len(self._some))
        indices = [index for index, prefetch in enumerate(self._prefetches) if prefetch is not None]
        for index, prefetch, copy in zip(indices, self._some, copies, strict=True):
            start, stop = self._starts[index : index + 2].tolist()
            part = _Part(_InTurn(copy, lock), start, stop, progress)
            prefetch.follow(part, part.progress)


class _InTurn(Iterator[Ints]):
    """An iterator that several threads take turns with."""

    def __init__(self, found: Iterator[Ints], lock: threading.Lock) -> None:
        self._found = found
        self._lock = lock

    def __next__(self) -> Ints:
        with self._lock:
            return next(self._found)


class _Part:
    """The rows start..stop-1 of an order, numbered from 0, and how many of them have been delivered."""

    def __init__(self, order: Iterable[Ints], start: int, stop: int, progress: Progress) -> None:
        self._order = order
        self._start, self._stop = start, stop
        self._progress = progress
        self._given = 0  # rows delivered before the places kept
        self._places: deque[Ints] = deque()  # places in the whole order

    def __iter__(self) -> Iterator[Ints]:
        before = 0
        for numbers in self._order:
            inside = np.flatnonzero((numbers >= self._start) & (numbers < self._stop))
            if len(inside):
                self._places.append(inside + before)
                yield numbers[inside] - self._start
            before += len(numbers)

    def progress(self) -> int | None:
        """How many rows of the part have been delivered; None when the iteration is over."""
        reached = self._progress()
        if reached is None:
            return None
        while self._places and self._places[0][-1] < reached:
            self._given += len(self._places.popleft())
        return self._given + (int(np.searchsorted(self._places[0], reached)) if self._places else 0)


def flattened(dataset: object) -> DataRef | None:
    """A dataset as one DataRef: a DataRef itself, or torch's Subset and ConcatDataset over DataRefs.

    `random_split` returns Subsets. They may be nested. The rows are then read by blocks, and not one after
    the other. The result is None for anything else: for a subclass, which may make rows in its own way, and
    for indices that are not plain numbers of existing rows, because torch decides what they give.

    Example:
        >>> from torch.utils.data import ConcatDataset, Subset
        >>> list(flattened(Subset(ConcatDataset([Squares(), Squares()[5:]]), [14, 0, -6])))
        [81, 0, 81]
    """
    if isinstance(dataset, DataRef):
        return dataset
    if type(dataset) not in (Subset, ConcatDataset):
        return None
    made_of = _made_of(dataset)
    if made_of is None:
        return None
    known = _known.get(dataset)
    if known is not None and _are_same(known[0], made_of):
        return known[1]
    found = _flattened(dataset)
    _known[dataset] = [_kept(part) for part in made_of], found
    return found


def info_of(dataset: object, left_out: dict[str, str] | None = None) -> Json:
    """Info about a dataset, as JSON data: a DataRef's `info`; `classes`, `class_to_idx`, `features` of any
    other.

    For torch's Subset it is that of the dataset inside; for a ConcatDataset the entries that all its parts
    have in common. Values that JSON cannot express, or that cannot be read, are left out; the reasons are
    added to `left_out`, by name. `features` is the result of its `to_dict`.
    """
    reasons: dict[str, str] = {} if left_out is None else left_out
    if type(dataset) is Subset:
        return info_of(dataset.dataset, reasons)
    if type(dataset) is ConcatDataset:
        return _agreed([info_of(part, reasons) for part in dataset.datasets])
    if isinstance(dataset, DataRef):
        return _plain_or_nothing("info", dataset.info, reasons)
    found: Json = {}
    for name in _ASKED:
        try:
            value: Any = getattr(dataset, name, None)
            value = value.to_dict() if name == "features" and hasattr(value, "to_dict") else value
        except Exception as error:  # whatever a user's property raises
            reasons[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        if value is not None and (name != "features" or isinstance(value, Mapping)):
            found |= _plain_or_nothing(name, {name: value}, reasons)
    return _plain_or_nothing("info", found, reasons)


def _plain_or_nothing(name: str, info: object, reasons: dict[str, str]) -> Json:
    try:
        return plain(info)
    except (TypeError, ValueError) as error:
        reasons[name] = str(error)
        return {}


def _agreed(infos: Sequence[Json]) -> Json:
    """The entries that all of them have in common."""
    first, *others = infos or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


# The DataRef made of a dataset, and the parts it was made of: indices are costly to read, and may change.
_known: weakref.WeakKeyDictionary[object, tuple[list[object], DataRef | None]] = weakref.WeakKeyDictionary()


def _made_of(dataset: object) -> list[object] | None:
    """Everything that decides which rows a dataset has; None if it is not made of DataRefs alone."""
    if type(dataset) is Subset:
        inner = _made_of(dataset.dataset)
        return None if inner is None else [dataset.indices, *inner]
    if type(dataset) is ConcatDataset:
        found: list[object] = [tuple(dataset.cumulative_sizes), len(dataset.datasets)]
        for part in dataset.datasets:
            inner = _made_of(part)
            if inner is None:
                return None
            found += inner
        return found
    return [dataset, len(dataset)] if isinstance(dataset, DataRef) and _is_taken(dataset) else None


def _is_taken(ref: DataRef) -> bool:
    """True if every way to ask for rows gives those of `take`."""
    kind = type(ref)
    return kind.__getitem__ is DataRef.__getitem__ and kind.__getitems__ is DataRef.__getitems__


def _kept(part: object) -> object:
    """A part as it is now, even if it changes later."""
    if isinstance(part, (list, np.ndarray)):
        return part.copy()  # the numbers of a list are not copied, so comparing them is quick
    return part.clone() if isinstance(part, torch.Tensor) else part


def _are_same(kept: list[object], now: list[object]) -> bool:
    return len(kept) == len(now) and all(map(_is_same, kept, now))


def _is_same(kept: object, now: object) -> bool:
    if type(kept) is not type(now):
        return False
    if isinstance(kept, np.ndarray) and isinstance(now, np.ndarray):
        return kept.dtype == now.dtype and np.array_equal(kept, now)
    if isinstance(kept, torch.Tensor) and isinstance(now, torch.Tensor):
        return kept.dtype == now.dtype and torch.equal(kept, now)
    return kept == now if isinstance(now, (list, tuple, range, int)) else kept is now


def _flattened(dataset: object) -> DataRef | None:
    """The result of `flattened`, made anew."""
    sources: dict[int, tuple[DataRef, int]] = {}  # by identity: the source, and where its rows begin
    rows = _row_map(dataset, sources)
    if rows is None:
        return None
    found = [source for source, _ in sources.values()]
    found = [source for source in found if len(source)] or found[:1]  # those without rows have no schema
    if len(found) == 1 and len(rows.pieces) < 2:
        (source,) = found
        piece = rows.pieces[0] if rows.pieces else range(0)
        if isinstance(piece, range):
            return source if piece == range(len(source)) else SlicedRef(source, piece)
    return MappedRef(found, rows)


def _row_map(dataset: object, sources: dict[int, tuple[DataRef, int]]) -> RowMap | None:
    """The rows of a dataset in those of all sources end to end; None if it has no plain row numbers.

    Sources that are not in it yet are added.
    """
    if type(dataset) is Subset:
        whole = _row_map(dataset.dataset, sources)
        numbers = _numbers(dataset.indices, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None or numbers is None else whole.chosen(numbers)
    if type(dataset) is ConcatDataset:
        parts = [_row_map(part, sources) for part in dataset.datasets]
        ends = np.cumsum([len(part) for part in parts if part is not None]).tolist()
        if ends != dataset.cumulative_sizes:
            return None
        return RowMap([piece for part in parts if part is not None for piece in part.pieces])
    if type(dataset) is SlicedRef:
        whole = _row_map(dataset.whole, sources)
        return None if whole is None else whole.chosen(dataset.rows)
    assert isinstance(dataset, DataRef)  # everything that comes here is made of DataRefs
    if id(dataset) not in sources:
        sources[id(dataset)] = dataset, sum(len(source) for source, _ in sources.values())
    start = sources[id(dataset)][1]
    return RowMap([range(start, start + len(dataset))])


def _numbers(indices: Any, length: int) -> range | Ints | None:
    """Indices as row numbers, those from the end counted from the front; None if they are anything else."""
    if type(indices) is range:
        low, high = (min(indices[0], indices[-1]), max(indices[0], indices[-1])) if indices else (0, -1)
        if low >= 0:
            return indices if high < length else None
    if type(indices) in (list, tuple) and not all(map(_is_number, set(map(type, indices)))):
        return None
    if type(indices) not in (list, tuple, range, np.ndarray, torch.Tensor):
        return None
    try:
        found = np.asarray(indices.cpu() if type(indices) is torch.Tensor else indices)
    except (OverflowError, ValueError):
        return None
    if not found.size and found.ndim == 1:
        return range(0)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        return None
    if int(found.min()) < -length or int(found.max()) >= length:
        return None
    numbers = found.astype(np.int64)  # a copy: the argument may change
    return np.where(numbers < 0, numbers + length, numbers) if int(numbers.min()) < 0 else numbers


def _is_number(kind: type) -> bool:
    return kind is int or issubclass(kind, np.integer)
