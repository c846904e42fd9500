"""Sources that grow, and what must come of a mixture of them, told by sets of rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torchyoga as yoga


class Rows(yoga.DataRef):
    """Rows (name, number), of a version to which rows were appended for each of `sizes` but the first."""

    def __init__(self, name: str, sizes: Sequence[int]) -> None:
        self.name, self.sizes = name, tuple(sizes)

    def __len__(self) -> int:
        return self.sizes[-1]

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.sizes[-1]}"

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        return [(f"{self.name} {size}", size) for size in self.sizes[:-1]]

    def take(self, rows: Any) -> list[tuple[str, int]]:
        return [(self.name, int(row)) for row in rows]


@dataclass
class Pass:
    """What is still to come of a pass over a source: the oracle, which knows of no order."""

    size: int
    now: int = 0  # rows of the pass
    left: set[int] = field(default_factory=set)
    given: int = 0

    def give(self, row: int) -> None:
        if not self.left:
            self.left, self.now = set(range(self.size)), self.size
        assert row in self.left, f"row {row} came twice in a pass, or before its time"
        self.left.remove(row)
        self.given += 1

    def grow(self, size: int, mode: str) -> None:
        if mode == "now" and self.left:
            self.left |= set(range(self.now, size))
            self.now = size
        self.size = size


class Oracle:
    """All sources of a mixture, and the weights since the last change."""

    def __init__(self, sizes: dict[str, int], weights: dict[str, int], cell: int) -> None:
        self.sources = {name: Pass(size) for name, size in sizes.items()}
        self.cell = cell
        self.change(weights)

    def change(self, weights: dict[str, int]) -> None:
        self.weights, self.since, self.places = weights, Counter[str](), 0

    def give(self, rows: Iterable[tuple[str, int]]) -> None:
        total = sum(self.weights.values())
        for name, row in rows:
            self.sources[name].give(row)
            self.since[name] += 1
            self.places += 1
            for other, weight in self.weights.items():
                off = abs(self.since[other] - self.places * weight / total)
                assert off <= 1.5 + self.cell / 2, f"{other!r} is {off} off its share"

    @property
    def counts(self) -> dict[str, int]:
        return {name: source.given for name, source in self.sources.items()}


def listed(rows: list[Any]) -> list[Any]:
    return rows


def delivered(
    view: Any, state: Any, world: int, batch: int, steps: int, tell: Any = None, **more: Any
) -> tuple[list[tuple[str, int]], Any]:
    """The rows of so many steps of all ranks, in the order of their positions, and the state that all share.

    `tell` is told to each loader behind half of the steps.
    """
    options: dict[str, Any] = {"shuffle": True, "seed": 7, "remainder": "keep", "collate_fn": listed, **more}
    loaders = [
        yoga.DataLoader(view, batch, num_replicas=world, rank=rank, **options) for rank in range(world)
    ]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
    iterators = [iter(loader) for loader in loaders]
    rows: list[tuple[str, int]] = []
    for step in range(steps):
        batches = [next(iterator, []) for iterator in iterators]
        if not any(batches):
            iterators = [iter(loader) for loader in loaders]
            batches = [next(iterator, []) for iterator in iterators]
        places = [(place, rank) for rank in range(world) for place in range(len(batches[rank]))]
        rows += [batches[rank][place] for place, rank in sorted(places)]
        if tell is not None and step == steps // 2:
            tell(loaders, rows)
    states = [loader.state_dict() for loader in loaders]
    assert all(one == states[0] for one in states)
    assert len(json.dumps(states[0])) <= 4096
    return rows, states[0]
