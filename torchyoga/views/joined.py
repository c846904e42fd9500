"""Rows of one or more DataRefs, chosen and laid end to end, as one DataRef.

Note 17. A view is row numbers.
It turns those that it is asked for into those of the dataset below, a batch at once, and reads nothing.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..order.by_file import equal_runs
from ..order.contract import described, digest
from ..process.buffers import BufferPool
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import distinct
from ..reading.contract import are_at_hand, identity, title_of
from ..reading.dataref import DataRef
from ..reading.readahead import Followed, Prefetch, Translated
from ..reading.version_ref import Versions
from ..rows.block import Rows, bounds_of, interleaved, put_runs
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints, Json, Row, Seeds
from ..versions.location import Progress
from .info import agreed, info_of
from .over import GatheredView, RowsOf, RowView, SlicedRef, named_rows

Piece = range | Ints  # or unsigned integers of 32 bits

_CHUNK = 65536  # rows handled at once, so that a pass over all of them takes no memory
_LONG_RUN = 16  # rows of a file that come one after the other; shorter runs are not worth it


class RowMap:
    """The rows of a view: a range, or a list of rows.

    A list whose rows are equally far apart is kept as a range.

    Args:
        piece: a range, or an int64 array of any order; rows may come more than once.

    Example:
        >>> view = RowMap(np.array([7, 3, 3]))
        >>> view.rows(np.array([2, 0])).tolist()
        [3, 7]
        >>> RowMap(np.array([3, 5, 7])).piece
        range(3, 9, 2)
    """

    def __init__(self, piece: Piece) -> None:
        self.piece = _as_range(piece)

    def __reduce__(self) -> tuple[object, ...]:
        return RowMap, (self.piece,)

    def __len__(self) -> int:
        return len(self.piece)

    def rows(self, numbers: Ints) -> Ints:
        """The rows (B,) behind the view's rows of these numbers (each in 0..len - 1)."""
        piece = self.piece
        if isinstance(piece, range):
            return numbers if piece.start == 0 and piece.step == 1 else piece.start + piece.step * numbers
        return piece.take(numbers).astype(np.int64, copy=False)

    def chosen(self, numbers: Piece) -> RowMap:
        """The map of a view over these rows of this view: still one step."""
        if not isinstance(numbers, range):
            return RowMap(self.rows(numbers))
        if not len(numbers):
            return RowMap(range(0))
        stop = numbers[-1] + numbers.step
        return RowMap(self.piece[numbers.start : stop if stop >= 0 else None : numbers.step])

    def counts(self, starts: Ints) -> Ints:
        """How many of the rows lie in each of the parts (parts + 1,) into which all rows are cut."""
        if isinstance(self.piece, range):
            return np.abs(np.diff(_crossings(self.piece, starts)))
        return np.diff(np.searchsorted(np.sort(self.piece), starts))

    def before(self, bounds: Ints) -> Ints:
        """How many of the rows, which ascend, are below each bound (B,)."""
        if isinstance(self.piece, range):
            return _crossings(self.piece, bounds)
        return np.searchsorted(self.piece, bounds)

    def starts(self, file_starts: Ints) -> Ints:
        """The numbers (runs + 1,) at which a run of rows of one file begins, and the length.

        Args:
            file_starts: (files + 1,) the row at which each file begins, and the number of rows.

        If the rows of the files are mixed, so that hardly two of one file come after each other, files do not
            matter: then the runs have 4096 rows.
        """
        piece = self.piece
        if not len(piece):
            return np.zeros(1, np.int64)
        if isinstance(piece, range):
            low, high = np.searchsorted(file_starts, sorted((piece[0], piece[-1])), side="right")
            begun = distinct(np.append(_crossings(piece, file_starts[low:high]), 0))
        else:
            begun = np.concatenate([*_changes(piece, file_starts)])
        if len(begun) > max(len(file_starts) + 1, len(self) // _LONG_RUN):
            return equal_runs(len(self))
        return np.append(begun, len(self))

    @cached_property
    def pin(self) -> str:
        """A name for the rows and their order: the same for the same rows, in every process."""
        piece = self.piece
        if isinstance(piece, range):
            return hexdigest(f"range {piece.start} {piece.step} {len(piece)};")
        return hexdigest(f"rows {len(piece)};", np.ascontiguousarray(piece, "<i8").data)


def end_to_end(parts: Iterable[Ints], total: int) -> Ints:
    """Numbers of rows, some at a time, as one array: in 32 bits if there are no larger ones among so many."""
    kind = np.uint32 if total <= 2**32 else np.int64
    found: Ints = np.concatenate([np.zeros(0, kind), *(part.astype(kind) for part in parts)])
    return found


def _as_range(piece: Piece) -> Piece:
    """A piece as a range, if it is one; it ends where the next number would be."""
    count = len(piece)
    if isinstance(piece, range):
        if count == 1:
            return range(piece[0], piece[0] + 1)
        return range(piece.start, piece.start + piece.step * count, piece.step)
    if count == 0:
        return range(0)
    first, last = int(piece[0]), int(piece[-1])
    if count == 1:
        return range(first, first + 1)
    step = int(piece[1]) - first
    # Differences of unsigned numbers may wrap, but then the last number is another one.
    if step and last - first == step * (count - 1) and bool((np.diff(piece) == np.diff(piece[:2])).all()):
        return range(first, last + step, step)
    return piece


def _crossings(numbers: range, bounds: Ints) -> Ints:
    """For each bound, how many numbers of a range come before one reaches it, or falls below it."""
    if numbers.step > 0:
        counts = -((numbers.start - bounds) // numbers.step)
    else:
        counts = (numbers.start - bounds) // -numbers.step + 1
    return np.clip(counts, 0, len(numbers))


def _changes(rows: Ints, file_starts: Ints) -> Iterator[Ints]:
    """The places in a list of rows at which the next one is of another file, thousands of rows at a time."""
    last = -1
    for start in range(0, len(rows), _CHUNK):
        files = np.searchsorted(file_starts, rows[start : start + _CHUNK], side="right")
        yield start + np.flatnonzero(np.diff(files, prepend=last))
        last = int(files[-1])


_MOST_NAMED = 3  # sources, in a `repr`


class JoinedRef(DataRef):
    """Rows of some DataRefs, in any order; each batch is read from each of them at once.

    Args:
        sources: the DataRefs that the rows come from.
        rows: the rows, as numbers of the rows of all sources laid end to end.
    """

    def __init__(self, sources: Sequence[DataRef], rows: RowMap) -> None:
        self.is_thread_safe = all(source.is_thread_safe for source in sources)
        self.sources = tuple(sources)
        self.rows = rows
        self._starts = bounds_of(map(len, sources))
        self._pool = BufferPool()
        self._versions = Versions()

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> Json:
        state = {**super().__getstate__(), "_pool": BufferPool(), "_versions": Versions()}
        state.pop("_evenly", None)  # which is of these versions
        return state

    @property
    def _keeps_rows(self) -> bool:
        """True if one of the sources says so."""
        return any(source._keeps_rows for source in self.sources)

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers: `Rows` over one block, if all sources have the same schema."""
        evenly = self._evenly
        found = None if evenly is None else evenly.take(*self._apart(rows))
        return self._at_once(self._of_sources(rows), len(rows)) if found is None else found

    def _apart(self, rows: Ints) -> tuple[Ints, Ints]:
        """The source of each of these rows, and its number there."""
        numbers = self.rows_at(rows)
        source = np.searchsorted(self._starts, numbers, side="right") - 1
        return source, numbers - self._starts[source]

    @cached_property
    def _evenly(self) -> Evenly | None:
        """How the rows of all sources are found at once, if they can be."""
        return Evenly.of(self.sources, self._versions)

    def _take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[Row]:
        """The rows of these numbers, made with these seeds."""
        found = [
            (places, source._take_seeded(wanted, seeds[places]))
            for source, places, wanted in self._of_sources(rows)
        ]
        return self._together(found, len(rows))

    def _at_once(self, parts: Iterable[RowsOf], num_rows: int) -> Sequence[Row]:
        """Rows of some DataRefs, each at its place; those of one, or of packs alike, are read at once."""
        wanted = _grounded(parts)
        first = wanted[0][0] if len(wanted) > 1 else None
        packs = first.together(wanted, self._at_once) if isinstance(first, GatheredView) else None
        if packs is not None:
            return packs
        found = _joined(wanted, num_rows, self._versions) if len(wanted) > 1 else None
        if found is not None:
            return found
        return self._together([(places, ref.take(rows)) for ref, places, rows in wanted], num_rows)

    def _together(self, found: list[tuple[Ints, Sequence[Row]]], num_rows: int) -> Sequence[Row]:
        """Rows of the sources, each at its place."""
        if len(found) == 1:
            return found[0][1]
        blocks = [(places, taken.block) for places, taken in found if isinstance(taken, Rows)]
        if blocks and len(blocks) == len(found):
            schema = blocks[0][1].schema
            if all(block.schema is schema or block.schema == schema for _, block in blocks):
                return Rows(interleaved(blocks, self._pool.empty))
        listed: list[Row] = [None] * num_rows
        for places, taken in found:
            exact = taken.exact() if isinstance(taken, Rows) else taken
            for place, row in zip(places.tolist(), exact, strict=True):
                listed[place] = row
        return listed

    @property
    def _is_random(self) -> bool:
        """True if a source is."""
        return any(source._is_random for source in self.sources)

    def in_epoch(self, epoch: int) -> DataRef:
        """The same rows of the sources as they are in an epoch."""
        sources = [source.in_epoch(epoch) for source in self.sources]
        return self if all(map(operator.is_, sources, self.sources)) else JoinedRef(sources, self.rows)

    def _of_sources(self, rows: Ints) -> Iterator[tuple[DataRef, Ints, Ints]]:
        """For each source that has some of these rows: the places of its rows among them, and their numbers
        in the source."""
        source, numbers = self._apart(rows)
        for index, places in by_source(source):
            yield self.sources[index], places, numbers[places]

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows behind rows of this view (B,), as numbers of the rows of all sources laid end to end."""
        return self.rows.rows(numbers)

    def lengths(self, rows: Ints) -> Ints:
        """The lengths of rows of a ragged column, as the sources find them."""
        found = np.zeros(len(rows), np.int64)
        for source, places, wanted in self._of_sources(rows):
            found[places] = source.lengths(wanted)
        return found

    def _take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, as the sources read them."""
        if not len(rows):
            return self.sources[0]._take_parts(rows, starts, stops)
        sizes = stops - starts
        begins = bounds_of(sizes)[:-1]
        out: Array | None = None
        for source, places, wanted in self._of_sources(rows):
            found = source._take_parts(wanted, starts[places], stops[places])
            if len(places) == len(rows):
                return found
            if out is None:
                out = np.empty(int(sizes.sum()), found.dtype)
            put_runs(out, begins[places], found, sizes[places])
        assert out is not None, "some source has each of the rows"
        return out

    def _projected(self, of: Projection) -> DataRef:
        """The same rows of the sources with these columns."""
        return JoinedRef([source._projected(of) for source in self.sources], self.rows)

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of an average row; 0 if a source does not know."""
        sizes = [source._row_bytes for source in self.sources]
        counts = self._counts().tolist()
        if not all(size for size, count in zip(sizes, counts, strict=True) if count):
            return 0
        return int(sum(map(operator.mul, sizes, counts))) // max(1, len(self))

    def _counts(self) -> Ints:
        """(sources,) how many rows come from each source."""
        return self.rows.counts(self._starts)

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """The prefetches of the sources, each for its own rows, or that of the DataRef which all are rows of;
        None if they have none."""
        evenly = self._evenly
        if evenly is not None and isinstance(evenly.whole, DataRef):
            whole, copy = evenly.whole._prefetch, self._copy()
            return None if whole is None else Translated(whole, lambda rows: evenly.rows(*copy._apart(rows)))
        found = [source._prefetch for source in self.sources]
        if all(prefetch is None for prefetch in found):
            return None
        return _Dealt(self._copy(), found)

    def _copy(self) -> JoinedRef:
        """The same view, for what this one holds, which must not hold it in turn."""
        return JoinedRef(self.sources, self.rows)

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
        return self._pinned([named_rows(source, source.fingerprint) for source in self.sources])

    def _pinned(self, names: Sequence[str | None]) -> str | None:
        if None in names:
            return None
        pairs = zip(names, self.sources, strict=True)
        return hexdigest(*(f"{name} {len(source)}\n" for name, source in pairs), self.rows.pin)

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """Of rows of one source, its versions with other columns, chosen alike."""
        found = self.sources[0]._prefixes if len(self.sources) == 1 else ()
        every = len(self.sources[0])
        return [(self._pinned([name]) or "", len(self)) for name, rows in found if rows == every]

    @cached_property
    def _view_pin(self) -> str | None:
        """How it is made of the sources; None if the fingerprint says that."""
        below = [named_rows(source, identity(source)) for source in self.sources]
        return described("view", of=None if self.fingerprint else digest(*below, self.rows.pin))

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None if the sources differ."""
        schemas = [source.schema for source in self.sources]
        return schemas[0] if all(schema == schemas[0] for schema in schemas) else None

    @property
    def info(self) -> Json:
        """The entries that are the same in the info of all sources."""
        return agreed([info_of(source) for source in self.sources])

    def _title(self) -> str:
        more = len(self.sources) - _MOST_NAMED
        listed = ", ".join(map(title_of, self.sources[:_MOST_NAMED]))
        return f"rows of {listed}" + (f" and {more:,} more" if more > 0 else "")

    def _at_hand(self) -> bool:
        return are_at_hand(self.sources)


def _grounded(parts: Iterable[RowsOf]) -> list[RowsOf]:
    """The same rows, of the DataRefs that views of rows are of: those of one DataRef together."""
    grounds: dict[int, tuple[DataRef, list[Ints], list[Ints]]] = {}
    for source, places, numbers_there in parts:
        ref, rows = source, numbers_there
        # Not subclasses that take rows in a way of their own.
        while isinstance(ref, RowView) and type(ref).take is RowView.take and ref._arrangement is None:
            view: RowView = ref
            ref, rows = view.whole, view.rows_at(rows)
        _, some, numbers = grounds.setdefault(id(ref), (ref, [], []))
        some.append(places)
        numbers.append(rows)
    wanted: list[RowsOf] = []
    for ref, some, numbers in grounds.values():
        places, rows = (np.concatenate(each) if len(each) > 1 else each[0] for each in (some, numbers))
        if len(grounds) == 1:
            given, rows = rows, np.empty_like(rows)
            rows[places] = given
        wanted.append((ref, places, rows))
    return wanted


def _announce(parts: Iterable[RowsOf], values: bool) -> None:
    """Tells all of them which rows are read next."""
    wanted = _grounded(parts)
    first = wanted[0][0] if len(wanted) > 1 else None
    documents = first.opened(wanted) if isinstance(first, GatheredView) else None
    if documents is not None:
        _announce(documents, values)
        return
    for ref, _, rows in wanted:
        prefetch = ref._prefetch
        if prefetch is not None and prefetch.is_cold:
            prefetch.announce(rows, values)


def _joined(wanted: Sequence[RowsOf], num_rows: int, versions: Versions) -> Sequence[Row] | None:
    """Rows of several versions, each at its place; None if one is read by itself, or looks different."""
    numbers = np.empty(num_rows, np.int64)
    for ref, places, rows in wanted:
        first = versions.first_row(ref)
        if first is None:
            return None
        numbers[places] = rows + first
    return versions.take(numbers)


class Evenly(NamedTuple):
    """Sources whose rows are, at equal distances, those of one DataRef, or of versions laid end to end.

    Attributes:
        firsts: (sources,) where the first row of each is.
        steps: (sources,) from one row of it to the next.
        whole: the DataRef, or the versions.
    """

    firsts: Ints
    steps: Ints
    whole: DataRef | Versions

    @staticmethod
    def of(sources: Sequence[DataRef], versions: Versions) -> Evenly | None:
        """None for other sources."""
        spaced = [_spaced(source) for source in sources]
        alone = spaced[0][0] if all(ref is spaced[0][0] for ref, _, _ in spaced) else None
        firsts, whole = [], versions if alone is None else alone
        for ref, first, _ in spaced:
            begin = 0 if alone is not None else versions.first_row(ref)
            if begin is None:
                return None
            firsts.append(begin + first)
        return Evenly(np.array(firsts), np.array([step for _, _, step in spaced]), whole)

    def take(self, source: Ints, rows: Ints) -> Sequence[Row] | None:
        """Rows (B,) of a source each; None while the versions are better read by themselves."""
        return self.whole.take(self.rows(source, rows))

    def rows(self, source: Ints, rows: Ints) -> Ints:
        """The rows of the whole that rows (B,) of a source each are."""
        return self.firsts.take(source) + self.steps.take(source) * rows


def _spaced(ref: DataRef) -> tuple[DataRef, int, int]:
    """What a view is of, the row there that is its first, and how far its rows lie apart."""
    first, step = 0, 1
    while True:
        view: Any = ref
        if type(ref) is SlicedRef:
            ref, rows = view.whole, view.rows
        elif type(ref) is JoinedRef and len(view.sources) == 1 and isinstance(view.rows.piece, range):
            ref, rows = view.sources[0], view.rows.piece
        else:
            return ref, first, step
        first, step = rows.start + rows.step * first, rows.step * step


def by_source(source: Ints) -> Iterator[tuple[int, Ints]]:
    """Each source among these (B,), and its places among them, ascending."""
    small = not len(source) or int(source.max()) < 2**16
    order = np.argsort(source.astype(np.uint16) if small else source, kind="stable")  # 16 bits by radix
    ordered = source[order]
    bounds = np.flatnonzero(np.diff(ordered, prepend=-1, append=-1))
    for index, (low, high) in zip(
        ordered[bounds[:-1]].tolist(), itertools.pairwise(bounds.tolist()), strict=True
    ):
        yield index, order[low:high]


def _of_source(start: int, stop: int, numbers: Ints) -> tuple[Ints, Ints]:
    """Whether each of these rows (B,) is one of start..stop - 1, and those that are, numbered from 0."""
    is_here = (numbers >= start) & (numbers < stop)
    return is_here.astype(np.int64), numbers[is_here] - start


class Prefetches:
    """The prefetches of several sources whose rows have the same numbers, as one."""

    def __init__(self, some: Sequence[Prefetch]) -> None:
        self._some = some

    @property
    def is_cold(self) -> bool:
        """True if one of them is."""
        for prefetch in self._some:  # noqa: SIM110 (any() takes five times as long, and this is asked often)
            if prefetch.is_cold:
                return True
        return False

    @property
    def ahead_bytes(self) -> int | None:
        """The least of theirs; None if none has any."""
        return min((n for prefetch in self._some if (n := prefetch.ahead_bytes) is not None), default=None)

    def announce(self, rows: Ints, values: bool) -> None:
        """Tells each which rows are read next."""
        for prefetch in self._some:
            prefetch.announce(rows, values)

    def probe(self) -> None:
        """Lets each look whether its rows are in memory."""
        for prefetch in self._some:
            prefetch.probe()

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        """Lets each follow the order of an epoch."""
        for prefetch, copy in zip(self._some, self._copies(order), strict=True):
            prefetch.follow(copy, progress)

    def _copies(self, order: Iterable[Ints]) -> Iterator[_InTurn]:
        lock = threading.Lock()  # each source may follow on a thread of its own
        return (_InTurn(copy, lock) for copy in itertools.tee(order, len(self._some)))


class _Dealt(Prefetches):
    """The prefetches of sources that each have some of the rows; None for those whose rows are in memory."""

    def __init__(self, view: JoinedRef, prefetches: Sequence[Prefetch | None]) -> None:
        super().__init__([prefetch for prefetch in prefetches if prefetch is not None])
        self._view = view
        self._prefetches = prefetches

    def announce(self, rows: Ints, values: bool) -> None:
        _announce(self._view._of_sources(rows), values)

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        numbers = (self._view.rows_at(rows) for rows in order)
        if len(self._prefetches) == 1:
            self._some[0].follow(numbers, progress)
            return
        indices = [index for index, prefetch in enumerate(self._prefetches) if prefetch is not None]
        for index, prefetch, copy in zip(indices, self._some, self._copies(numbers), strict=True):
            part = Followed(copy, progress, partial(_of_source, *self._view._starts[index : index + 2]))
            prefetch.follow(part, part.progress)


class _InTurn(Iterator[Ints]):
    """An iterator that several threads take turns with."""

    def __init__(self, found: Iterator[Ints], lock: threading.Lock) -> None:
        self._found = found
        self._lock = lock

    def __next__(self) -> Ints:
        with self._lock:
            return next(self._found)
