"""A view against its laws: what any DataRef over another one has to do."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import StateError
from ..loading.loader import DataLoader
from ..order.contract import Saved, Shuffle
from ..process.lazy import cached_property
from ..process.seeding import GeneratorsPutBack, row_seeds
from ..reading.dataref import DataRef
from ..reading.readahead import Prefetch
from ..rows.block import exact_rows, plain_row
from ..rows.node import path_name
from ..rows.schema import Schema
from ..rows.types import Ints, Json, Row
from ..sampling.sampler import ResumableSampler
from ..versions.location import Progress
from .dataref import check_dataref
from .rows import assert_rows_equal, compare_rows, expect, expect_raised

_RANKS, _BATCHES = (1, 2, 3, 7), (1, 4, 64)
_STOPS = 5  # parts of an epoch
_MOST_LOOKED_AT = 10_000  # rows of a base of 10**9, while a view of it is made
_MOST_MEMORY = 2**24  # bytes, meanwhile
_ROW_BYTES = 24  # that a view may keep for a row
_SEED = 7
_ROWS_LOOKED_AT = 20


def check_view(
    make: Callable[[DataRef], DataRef],
    base: DataRef,
    expected: Sequence[Row] | None = None,
    *,
    most_bytes: int = 4096,
    workers: int = 0,
    huge: DataRef | None = None,
    reads_ahead: bool = True,
) -> None:
    """Checks that a view of a DataRef streams, shuffles, shards, resumes and reads ahead like the whole.

    Args:
        make: makes the view of any DataRef whose rows look like those of `base`; two calls make equal views.
        base: what the view is of; some hundred rows at most, for each is read many times.
        expected: the rows of the view; None if only its laws are to be checked. Rows that are made with
            random numbers are compared with those of an iteration with the same seed.
        most_bytes: what the view may add to the pickled base, besides 24 bytes for each row.
        workers: processes that read the view, too.
        huge: a DataRef of 10**9 rows, of which the view must be made without a look at more than 10,000.
        reads_ahead: False for a view that does not tell its base which rows will be wanted: that costs speed.

    Raises:
        AssertionError: a law does not hold; says which.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(9)})
        >>> check_view(lambda base: base[::2], ref, [ref[n] for n in range(0, 9, 2)])
    """
    view = make(base)
    if expected is not None:
        expect(len(view) == len(expected), f"the view has {len(view)} rows, expected {len(expected)}")
        if not view._is_random:
            numbers = np.random.default_rng(0).integers(0, max(1, len(view)), 2 * len(view))
            compare_rows(view.take(numbers), numbers.tolist(), dict(enumerate(expected)), "the view")
    check_dataref(_Fixed(view) if view._is_random else view)
    _check_equal(view, make(base), base)
    _check_small(view, base, most_bytes)
    if not view._is_random:
        _check_projected_twice(view)
    if reads_ahead:
        _check_announced(make, base)
    _check_epochs(view)
    if len(view):
        _check_stories(view, workers)
        _check_states(view)
    if huge is not None:
        _check_huge(make, huge)


class _Like(DataRef):
    """A DataRef that has the rows of another one."""

    def __init__(self, whole: DataRef) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def schema(self) -> Schema | None:
        """The schema of the whole."""
        return self.whole.schema

    @property
    def file_starts(self) -> Ints:
        """The file starts of the whole."""
        return self.whole.file_starts


class _Fixed(_Like):
    """A random DataRef as it is in epoch 0 with seed 0."""

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers."""
        with GeneratorsPutBack():
            return self.whole.in_epoch(0)._take_seeded(rows, row_seeds(0, 0, rows))

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the whole."""
        return self.whole.fingerprint

    @property
    def info(self) -> Json:
        """The info of the whole."""
        return self.whole.info

    @property
    def _row_bytes(self) -> int:
        """The bytes of a row of the whole."""
        return self.whole._row_bytes


def _check_equal(view: DataRef, again: DataRef, base: DataRef) -> None:
    expect(view.fingerprint == again.fingerprint, "two equal views have different fingerprints")
    expect(np.array_equal(view.file_starts, again.file_starts), "two equal views have other file_starts")
    if base.fingerprint is None:
        expect(view.fingerprint is None, "the base has no fingerprint, but the view has one")


def _check_small(view: DataRef, base: DataRef, most_bytes: int) -> None:
    found = len(pickle.dumps(view)) - len(pickle.dumps(base))
    most = most_bytes + _ROW_BYTES * max(len(view), len(base))
    expect(found <= most, f"pickled, the view takes {found} bytes more than its base; at most {most} may be")


def _check_projected_twice(view: DataRef) -> None:
    """Some columns of some columns are those of the rows: their numbers are counted within the first."""
    schema = view.schema
    keys = () if schema is None or schema.tree.kind != "dict" else schema.tree.keys
    if (
        len(keys) < 2
        or not len(view)
        or not all(isinstance(key, str) and path_name((key,)) == key for key in keys)
    ):
        return
    numbers = np.arange(min(_ROWS_LOOKED_AT, len(view)))
    rows = exact_rows(view.take(numbers))
    first, last = str(keys[0]), str(keys[-1])
    some = view.columns([str(key) for key in keys[1:]][::-1])
    cases: dict[str, tuple[DataRef, list[Row]]] = {
        f"columns({keys[1:]!r}).columns([{last!r}])": (
            some.columns([last]),
            [{last: row[last]} for row in rows],
        ),
        f"columns({keys[1:]!r})[{last!r}]": (some[last], [row[last] for row in rows]),
        f"columns({[last, first]!r})": (
            view.columns([last, first]),
            [{last: row[last], first: row[first]} for row in rows],
        ),
        f"columns({[last, first]!r}).columns({[first, last]!r})": (
            view.columns([last, first]).columns([first, last]),
            [{first: row[first], last: row[last]} for row in rows],
        ),
    }
    for what, (ref, expected) in cases.items():
        given = exact_rows(ref.take(numbers))
        if schema is not None and schema.packed and isinstance(given[0], dict):  # which keep lengths, too
            given = [{key: row[key] for key in one} for row, one in zip(given, expected, strict=True)]
        compare_rows(given, numbers.tolist(), dict(enumerate(expected)), what)


class _Recorded(_Like):
    """A DataRef that records which of its rows are taken and announced.

    Attributes:
        taken, announced, followed: numbers of rows.
    """

    def __init__(self, whole: DataRef) -> None:
        super().__init__(whole)
        self.taken: set[int] = set()
        self.announced: set[int] = set()
        self.followed: set[int] = set()

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers."""
        self.taken.update(rows.tolist())
        return self.whole.take(rows)

    @cached_property
    def _prefetch(self) -> Prefetch:
        """Records rows instead of making them ready."""
        return _Recording(self)


class _Recording:
    is_cold = True
    ahead_bytes = None

    def __init__(self, found: _Recorded) -> None:
        self._found = found

    def announce(self, rows: Ints, values: bool) -> None:
        self._found.announced.update(rows.tolist())

    def probe(self) -> None:
        """Finds nothing out."""

    def follow(self, order: Iterable[Ints], progress: Progress) -> None:
        for rows in order:
            self._found.followed.update(rows.tolist())


def _check_announced(make: Callable[[DataRef], DataRef], base: DataRef) -> None:
    recorded = _Recorded(base)
    view = make(recorded)
    some = np.random.default_rng(2).permutation(len(view))[:40]
    recorded.taken.clear()
    rows = view.in_epoch(0)._take_seeded(some, row_seeds(0, 0, some)) if view._is_random else view.take(some)
    exact_rows(rows)
    ahead = view._readahead
    if not recorded.taken:
        return
    expect(ahead is not None and ahead.prefetch is not None, "rows of the base are not read ahead")
    assert ahead is not None
    assert ahead.prefetch is not None
    ahead.prefetch.announce(some, False)
    left = recorded.taken - recorded.announced
    expect(not left, f"rows of the base that were taken, but not announced: {sorted(left)[:20]}")
    ahead.prefetch.follow(iter([some[:20], some[20:]]), lambda: None)
    left = recorded.taken - recorded.followed
    expect(not left, f"rows of the base that were taken, but not downloaded ahead: {sorted(left)[:20]}")


def _check_epochs(view: DataRef) -> None:
    one, other = view.in_epoch(1), view.in_epoch(1)
    expect(len(one) == len(other) == len(view), "in another epoch the view has another number of rows")
    numbers = np.arange(min(50, len(view)))
    seeds = row_seeds(_SEED, 1, numbers)
    with GeneratorsPutBack():
        found, again = (exact_rows(ref._take_seeded(numbers, seeds)) for ref in (one, other))
    compare_rows(found, numbers.tolist(), dict(enumerate(again)), "in_epoch(1) twice")


def _listed(rows: list[Row]) -> list[Row]:
    """A batch as plain rows."""
    return list(map(plain_row, rows))


def _delivered(
    view: DataRef,
    batch: int,
    world: int,
    shuffle: Shuffle,
    state: Saved | None,
    stop: int | None,
    workers: int = 0,
) -> tuple[list[tuple[int, Row]], Saved]:
    """Numbers and rows that all ranks deliver in so many steps, or to the end of the epoch; and the state."""
    found: list[tuple[int, Row]] = []
    after: Saved = {}
    for rank in range(world):
        options: Any = {
            "shuffle": shuffle,
            "seed": _SEED,
            "num_replicas": world,
            "rank": rank,
            "remainder": "keep",
        }
        loader: DataLoader[list[Row]] = DataLoader(
            view, batch, num_workers=workers, collate_fn=_listed, **options
        )
        sampler = ResumableSampler(view, **options)
        if state is not None:
            loader.load_state_dict(state)
            sampler.load_state_dict(state)
        batches = iter(loader)
        rows = [row for some in itertools.islice(batches, stop) for row in some]
        found += zip(sampler, rows, strict=False)
        after = after or loader.state_dict()
        del batches
    return found, after


def _check_stories(view: DataRef, workers: int) -> None:
    """Each row once, and the same row, under any ranks and batches, whenever it is stopped and continued."""
    length = len(view)
    shuffles: tuple[Shuffle, ...] = (True, "block", False)
    whole: dict[Shuffle, dict[int, Row]] = {}
    for shuffle in shuffles:
        whole[shuffle] = dict(_delivered(view, 5, 1, shuffle, None, None)[0])
        expect(len(whole[shuffle]) == length, f"an epoch has {len(whole[shuffle])} rows of {length}")
        is_plain = view._arrangement is None
        expect(not is_plain or set(whole[shuffle]) == set(range(length)), "an epoch has other rows")
    stories = list(itertools.product(_RANKS, _BATCHES))
    for number, (world, batch) in enumerate(stories):
        others, size = stories[(7 * number + 5) % len(stories)]
        shuffle = shuffles[number % len(shuffles)]
        fewest = length // world // batch  # of steps that all ranks have
        stop = fewest * (number % _STOPS) // _STOPS
        before, state = _delivered(view, batch, world, shuffle, None, stop)
        where = f"shuffle={shuffle!r}, {stop} batches of {batch} on {world} ranks, then {size} on {others}"
        found = before + _delivered(view, size, others, shuffle, state, None)[0] if stop < fewest else before
        if stop >= fewest:
            found = _delivered(view, batch, world, shuffle, None, None)[0]
        numbers = sorted(number for number, _ in found)
        expect(numbers == sorted(whole[shuffle]), f"{where}: not each row once, but {numbers[:100]}")
        for place, row in found:
            assert_rows_equal(row, whole[shuffle][place], f"{where}: row {place}")
    if workers:
        for place, row in _delivered(view, 4, 1, True, None, None, workers)[0]:
            assert_rows_equal(row, whole[True][place], f"{workers} workers: row {place}")


def _check_states(view: DataRef) -> None:
    if len(view) < 2:
        return
    state = DataLoader(view, 1, seed=_SEED).state_dict()
    for name, other in {"view[:-1]": view[:-1], "view[::-1]": view[::-1]}.items():
        load = partial(DataLoader(other, 1, seed=_SEED).load_state_dict, state)
        expect_raised(StateError, f"a state of the view can be loaded for {name}", load)


class _Counted(_Like):
    """A DataRef that counts the rows that are taken."""

    def __init__(self, whole: DataRef) -> None:
        super().__init__(whole)
        self.num_taken = 0

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers."""
        self.num_taken += len(rows)
        return self.whole.take(rows)


def _check_huge(make: Callable[[DataRef], DataRef], huge: DataRef) -> None:
    counted = _Counted(huge)
    tracemalloc.start()
    try:
        view = make(counted)
        exact_rows(view.take(np.array([0, len(view) - 1])))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    expect(
        counted.num_taken <= _MOST_LOOKED_AT and most < _MOST_MEMORY,
        f"to make the view of {len(huge)} rows and take two, {counted.num_taken} rows were taken and {most} "
        "bytes of memory",
    )
