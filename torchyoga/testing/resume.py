"""A loader against an uninterrupted run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ..rows.block import Rows
from ..rows.types import Batch, Json
from .rows import assert_rows_equal

__all__ = ["check_resume"]


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
