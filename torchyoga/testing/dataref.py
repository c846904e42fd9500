"""A DataRef and a loader that can be stopped, against their contracts."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import getitem
from typing import Protocol

import numpy as np

from ..errors import SchemaError
from ..process.numbers import spread
from ..reading.dataref import DataRef
from ..rows.block import Rows, exact_rows
from ..rows.collector import Collector
from ..rows.types import Batch, Ints, Json, Row
from .rows import PATIENCE, assert_rows_equal, compare_rows, expect, expect_raised, run_all


class ResumableLoader(Protocol):
    """A loader for `check_resume`: it iterates one epoch at a time, and has a state."""

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> object:
        """The place that is reached, JSON-able."""

    def load_state_dict(self, state: Json, /) -> object:
        """Continues from a place."""


def check_resume(make_loader: Callable[[], ResumableLoader], most_stops: int | None = None) -> None:
    """Checks that a loader can be stopped after every batch and continued, and then once more.

    The batches before and after the stops are compared with an uninterrupted run, bit for bit, into the next
    epoch.

    Args:
        make_loader: makes a new loader (anything that iterates one epoch at a time, with `state_dict` and
            `load_state_dict`) of the same dataset, with the same seed or none; it may choose another number
            of workers each time.
        most_stops: at most this many first stops, spread over the epoch, for slow loaders; all by default.
    """
    whole = make_loader()
    start = whole.state_dict()  # holds the seed, even if none was given
    first, following = list(whole), list(whole)
    stops = range(len(first) + 1)
    if most_stops is not None:
        stops = range(0, len(first) + 1, max(1, len(first) // most_stops))
    for stop in stops:
        got, state = _deliver(make_loader(), start, stop)
        for second in range(len(first) - stop + 1) if most_stops is None else (1, len(first) - stop):
            more, again = _deliver(make_loader(), state, second)
            rest, _ = _deliver(make_loader(), again, None)
            # Stopped exactly at the end, the continuation is the next epoch.
            expected = first + following if stop == len(first) or stop + second >= len(first) else first
            found = got + more + rest
            where = f"stopped after {stop} and again after {second} batches"
            _compare(found, expected[: len(found)], where)
            if len(found) < len(first):
                raise AssertionError(f"{where}: only {len(found)} of {len(first)} batches were delivered")


def _deliver(loader: ResumableLoader, state: object, count: int | None) -> tuple[list[Batch], object]:
    loader.load_state_dict(json.loads(json.dumps(state)))
    got = list(itertools.islice(iter(loader), count))
    return got, loader.state_dict()


def _compare(found: Iterable[Batch], expected: Iterable[Batch], where: str) -> None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = (list(x) if isinstance(x, Rows) else x for x in (a, b))
        assert_rows_equal(a, b, f"{where}: batch {i}")


def check_dataref(ref: DataRef[Row], most_rows: int = 200) -> None:
    """Checks that a DataRef keeps its contract, so that it can be streamed, shuffled, sharded, resumed and
    cached.

    Args:
        ref: the dataset, or a view of one.
        most_rows: at most this many of its rows, spread over it, are read; some of them several times.

    Example:
        >>> check_dataref(Squares())
    """
    length = len(ref)
    expect(type(length) is int and length >= 0, f"len is {length!r}, expected an int of at least 0")
    numbers = spread(length, most_rows)
    kept = exact_rows(_taken(ref, numbers.copy(), "take")) if length else []
    expected = dict(zip(numbers.tolist(), copy.deepcopy(kept), strict=True))
    _check_take(ref, expected)
    _check_indices(ref, expected)
    _check_slices(ref, expected)
    _check_properties(ref, expected)
    _check_copy(ref, expected)
    _check_read_ahead(ref, expected)
    for number, row in zip(expected, kept, strict=True):
        assert_rows_equal(row, expected[number], f"row {number}, after others were taken")
    if ref.is_thread_safe:
        _check_threads(ref, expected)


def _taken(ref: DataRef[Row], rows: Ints, how: str) -> Sequence[Row]:
    try:
        return ref.take(rows)
    except ValueError as error:  # as of a take that gives another number of rows
        raise AssertionError(f"{how}: {error}") from error


def _check_take(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    numbers = np.array([*expected], np.int64)
    shuffled = np.random.default_rng(0).permutation(numbers)
    orders = {
        "take": numbers,
        "take, last row first": numbers[::-1],
        "take, shuffled": shuffled,
        "take, with repeated rows": np.repeat(shuffled[:20], 2),
        "take of one row": numbers[-1:],
        "take of nothing": numbers[:0],
    }
    for how, order in orders.items():
        given = order.copy()
        compare_rows(_taken(ref, given, how), order.tolist(), expected, how)
        expect(np.array_equal(given, order), f"{how} changed the array of row numbers that was passed")


def _check_indices(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    length, numbers = len(ref), [*expected]
    for number in numbers[:20] + numbers[-1:]:
        for index in (number, number - length, np.int64(number)):
            try:
                row = ref[index]
            except IndexError as error:
                raise AssertionError(f"ref[{index!r}] of {length} rows: {error!r}") from error
            assert_rows_equal(row, expected[number], f"ref[{index!r}]")
        compare_rows(ref.__getitems__([number]), [number], expected, f"a batch of row {number}")
    some = numbers[::-3]
    compare_rows(ref[some], some, expected, "a list of indices")
    compare_rows(ref[[number - length for number in some]], some, expected, "a list of negative indices")
    compare_rows(ref[np.array(some, np.int32)], some, expected, "an array of indices")
    for index in (length, -length - 1, [length], [-length - 1]):
        otherwise = f"ref[{index}] raised no IndexError, but there are {length} rows"
        expect_raised(IndexError, otherwise, partial(getitem, ref, index))
    for number, row in enumerate(itertools.islice(ref, 300)):
        if number in expected:
            assert_rows_equal(row, expected[number], f"row {number} of the iteration")
    if length <= 300:
        expect(sum(1 for _ in ref) == length, f"the iteration gives another number of rows than {length}")


def _check_slices(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    length = len(ref)
    cuts = (slice(None), slice(length // 3, -1), slice(None, None, -1), slice(1, None, 3), slice(5, 2))
    for cut in cuts:
        part, rows = ref[cut], range(length)[cut]
        expect(len(part) == len(rows), f"{cut}: found {len(part)} rows, expected {len(rows)}")
        known = [i for i in range(len(rows)) if rows[i] in expected] if len(rows) <= 10**6 else [0]
        known = [i for i in known[:50] if rows[i] in expected]
        compare_rows(part.take(np.array(known, np.int64)), [rows[i] for i in known], expected, str(cut))


def _check_properties(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    length, starts = len(ref), ref.file_starts
    expect(
        isinstance(starts, np.ndarray)
        and starts.dtype == np.int64
        and starts.ndim == 1
        and len(starts) > 0
        and starts[0] == 0
        and starts[-1] == length
        and bool((np.diff(starts) >= 0).all()),
        f"file_starts is {starts!r:.200}, expected int64 from 0 to {length}, and sorted",
    )
    expect(ref._row_bytes >= 0, f"row_bytes is {ref._row_bytes}, expected at least 0")
    first = ref.fingerprint
    expect(first is None or isinstance(first, str), f"fingerprint is {first!r}, expected a str or None")
    expect(first == ref.fingerprint, f"fingerprint is {first!r}, and then {ref.fingerprint!r}")
    before = json.dumps(ref.info)
    ref.info["changed"] = True
    expect(json.dumps(ref.info) == before, "info is not a copy: it changes with what the caller does to it")
    if ref.schema is not None:
        collector = Collector(ref.schema)
        for number, row in expected.items():
            try:
                collector.add(row, number)
            except SchemaError as error:
                raise AssertionError(f"the rows are not as schema says: {error}") from error


def _check_copy(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    try:
        again = pickle.loads(pickle.dumps(ref))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise AssertionError(f"it cannot be pickled, as worker processes need: {error}") from error
    expect(len(again) == len(ref), f"pickled, it has {len(again)} rows, and {len(ref)} before")
    compare_rows(again.take(np.array([*expected], np.int64)), [*expected], expected, "pickled")
    for name in ("fingerprint", "schema", "info", "_row_bytes", "is_thread_safe"):
        found, before = getattr(again, name), getattr(ref, name)
        expect(found == before, f"pickled, its {name} is {found!r:.200}, and {before!r:.200} before")
    expect(np.array_equal(again.file_starts, ref.file_starts), "pickled, it has other file_starts")


def _check_read_ahead(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    """Rows that were announced are the same as without, whatever is read instead."""
    readahead = ref._readahead
    if readahead is None:
        return
    numbers = np.random.default_rng(1).permutation(np.array([*expected], np.int64))
    order = numbers.tolist()
    expect(readahead is ref._readahead, "readahead is another object each time, so it never reads ahead")
    handed = [number for some in readahead.handed_out(order, numbers) for number in some]
    expect(handed == order, "readahead hands out other rows than those of the sampler")
    for start in range(0, len(order), 7):
        batch = order[start : start + 7]
        if start % 3 == 1:  # others are asked for than those that were announced
            compare_rows(ref.__getitems__(batch[::-1]), batch[::-1], expected, "rows not announced")
        compare_rows(ref.__getitems__(batch), batch, expected, "rows read ahead")
    windows = [numbers[start : start + 7] for start in range(0, len(numbers), 7)]
    announced = [rows.tolist() for rows in readahead.announced(iter(windows))]
    expect(announced == [rows.tolist() for rows in windows], "readahead announces other windows than given")
    delivered = iter(range(len(order) + 1))
    readahead.follow(iter(windows), lambda: next(delivered, None))
    readahead.follow(iter(()), lambda: None)
    compare_rows(ref.take(numbers), order, expected, "rows that were announced")


def _check_threads(ref: DataRef[Row], expected: dict[int, Row]) -> None:
    numbers = np.array([*expected], np.int64)
    failures: list[BaseException] = []
    begin = threading.Barrier(4)

    def read(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            begin.wait(PATIENCE)
            for _ in range(8):
                order = rng.permutation(numbers)[:50]
                compare_rows(ref.take(order), order.tolist(), expected, "is_thread_safe, in four threads")
        except BaseException as failure:
            failures.append(failure)

    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads take turns within a row, not after many rows
    try:
        run_all([threading.Thread(target=read, args=(seed,), daemon=True) for seed in range(4)])
    finally:
        sys.setswitchinterval(switch_interval)
    if failures:
        raise AssertionError(f"is_thread_safe, but in four threads: {failures[0]}") from failures[0]
