"""Sources that grow, and what must come of a mixture of them, told by sets of rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from mixtures import Loaders, agreed, in_order
from own import Made

from torchyoga.order.epoch import IterationOptions
from torchyoga.order.options import OrderOptions
from torchyoga.order.place import Shard, positions

_MOST_STEPS = 10  # of a job of cursors


class Rows(Made):
    """Rows (name, number), of a version to which rows were appended for each of `sizes` but the first.

    They lie in files of `in_file` rows, if that is given.
    """

    def __init__(self, name: str, sizes: Sequence[int], in_file: int | None = None) -> None:
        super().__init__(sizes[-1], partial(_pair, name), None, f"{name} {sizes[-1]}")
        self.name, self.sizes, self.in_file = name, tuple(sizes), in_file

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        return [(f"{self.name} {size}", size) for size in self.sizes[:-1]]

    @property
    def file_starts(self) -> Any:
        if self.in_file is None:
            return super().file_starts
        return np.array([*range(0, len(self), self.in_file), len(self)])


def _pair(name: str, row: int) -> tuple[str, int]:
    return name, row


@dataclass
class Pass:
    """What is still to come of a pass over a source: the oracle, which knows of no order."""

    size: int
    now: int = 0  # rows of the pass
    left: set[int] = field(default_factory=set)
    given: int = 0
    passes: int = 0  # that were begun

    def give(self, row: int) -> None:
        if not self.left:
            self.left, self.now = set(range(self.size)), self.size
            self.passes += 1
        assert row in self.left, f"row {row} came twice in a pass, or before its time"
        self.left.remove(row)
        self.given += 1

    def grow(self, size: int) -> None:
        self.size = size  # of the passes that begin later


class Oracle:
    """All sources of a mixture, and the weights since the last change."""

    def __init__(self, sizes: dict[str, int], weights: dict[str, int], cell: int) -> None:
        self.sources = {name: Pass(size) for name, size in sizes.items()}
        self.cell, self.given = cell, 0
        self.change(weights)

    def change(self, weights: dict[str, int]) -> None:
        self.weights, self.since, self.places = weights, Counter[str](), 0
        self.to_come: list[tuple[int, dict[str, int]]] = []

    def plan(self, stages: list[tuple[int, dict[str, int]]]) -> None:
        """The weights that begin at places that are still to come."""
        self.to_come = stages

    def give(self, rows: Iterable[tuple[str, int]]) -> None:
        for name, row in rows:
            total = sum(self.weights.values())
            self.sources[name].give(row)
            self.since[name] += 1
            self.places += 1
            for other, weight in self.weights.items():
                off = abs(self.since[other] - self.places * weight / total)
                assert off <= 1.5 + self.cell / 2, f"{other!r} is {off} off its share"
            self.given += 1
            if self.to_come and self.to_come[0][0] == self.given:
                (_, weights), *later = self.to_come
                self.change(weights)
                self.plan(later)

    @property
    def passes(self) -> dict[str, float]:
        return {
            name: source.passes - (len(source.left) / source.now if source.now else 0)
            for name, source in self.sources.items()
        }

    @property
    def counts(self) -> dict[str, int]:
        return {name: source.given for name, source in self.sources.items()}


class Cursors:
    """The same by arithmetic alone, for many stories."""

    def __init__(
        self, view: Any, state: Any, world: int, batch: int, shuffle: Any = True, appended: Any = None
    ) -> None:
        self.view, self.batch = view, batch
        options = [
            OrderOptions(shuffle, 7, window=2, shard=Shard(world, rank, "keep"), appended=appended)
            for rank in range(world)
        ]
        self.cursors = [some.cursor_of(view) for some in options]
        if state is not None:
            told = json.loads(json.dumps(state))
            for cursor in self.cursors:
                cursor.load_state_dict(told)
        self.begin()

    def begin(self) -> None:
        self.runs = [cursor.iteration(IterationOptions(self.batch)) for cursor in self.cursors]
        for cursor, run in zip(self.cursors, self.runs, strict=True):
            cursor.begun(run)
        self.read()

    def read(self) -> None:
        """Reads the next steps of all ranks, by the order of one: states say that they have the same."""
        self.rows, places = [], []
        for run in self.runs:
            length = run.length
            stop = min(run.shard.count(length, run.start.position), _MOST_STEPS * self.batch)
            places.append(positions(run.start, run.shard, length, 0, stop))
        run = self.runs[len(places[0]) % len(self.runs)]
        numbers = self.cursors[0].order.rows(run.start.epoch, np.concatenate(places))
        rows = list(self.view.take(numbers))
        for some in places:
            self.rows.append(rows[: len(some)])
            del rows[: len(some)]

    def step(self) -> list[tuple[str, int]]:
        if not any(run.taken < run.num_steps for run in self.runs):
            for cursor, run in zip(self.cursors, self.runs, strict=True):
                cursor.finished(run)
            self.begin()
        batches = []
        for cursor, run, rows in zip(self.cursors, self.runs, self.rows, strict=True):
            batches.append(rows[run.taken * self.batch : (run.taken + 1) * self.batch])
            if batches[-1]:
                run.deliver(run.taken)
                cursor.reached(run)
            else:
                cursor.finished(run)
        return in_order(batches)

    @property
    def state(self) -> Any:
        return agreed(self.cursors)


def delivered(
    view: Any, state: Any, world: int, batch: int, steps: int, **more: Any
) -> tuple[list[tuple[str, int]], Any]:
    """The rows of so many steps of all ranks, in the order of their positions, and the state of all."""
    job = Loaders(view, state, world, batch, **more)
    rows = [row for _ in range(steps) for row in job.step()]
    assert len(json.dumps(job.state)) <= 40_000
    return rows, job.state


def tell(story: Callable[[int, Any], Any], seeds: Iterable[int], job: Any, length: int = 6) -> None:
    """Tells stories of runs, which train and change in turn; an error names its seed."""
    for seed in seeds:
        try:
            told = story(seed, job)
            for _ in range(length):
                told.train()
                told.change()
        except Exception as error:
            raise AssertionError(f"story {seed}: {error!r}") from error
