"""What a mixture delivers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torchyoga as yoga


def listed(rows: list[Any]) -> list[Any]:
    return rows


class Loaders:
    """Ranks that train in step, each with a loader, from a state on."""

    def __init__(self, view: Any, state: Any, world: int, batch: int, **more: Any) -> None:
        options = {"shuffle": True, "seed": 7, "remainder": "keep", "collate_fn": listed, **more}
        self.loaders = [
            yoga.DataLoader(view, batch, num_replicas=world, rank=rank, **options) for rank in range(world)
        ]
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(json.loads(json.dumps(state)))
        self.iterators = [iter(loader) for loader in self.loaders]

    def step(self) -> list[tuple[str, int]]:
        """The rows of the next step of all ranks, in the order of their positions."""
        batches = [next(iterator, []) for iterator in self.iterators]
        if not any(batches):
            self.iterators = [iter(loader) for loader in self.loaders]
            batches = [next(iterator, []) for iterator in self.iterators]
        return in_order(batches)

    @property
    def state(self) -> Any:
        return agreed(self.loaders)


def in_order(batches: list[list[Any]]) -> list[Any]:
    """The rows of one batch of each rank in the order of their positions."""
    places = [(place, rank) for rank, rows in enumerate(batches) for place in range(len(rows))]
    return [batches[rank][place] for place, rank in sorted(places)]


def agreed(ranks: Sequence[Any]) -> Any:
    """The state that all ranks have."""
    states = [rank.state_dict() for rank in ranks]
    assert all(one == states[0] for one in states), states
    return states[0]


def batches_of_ranks(
    ref: yoga.DataRef, batch: int, world: int, steps: int | None, state: Any, **more: Any
) -> tuple[list[list[Any]], Any]:
    """The batches of each rank, and the state of all after so many steps from one on."""
    job = Loaders(ref, state, world, batch, **{"collate_fn": None, **more})
    return [list(itertools.islice(batches, steps)) for batches in job.iterators], job.state


def delivered(
    ref: yoga.DataRef,
    steps: int | None = None,
    state: Any = None,
    world: int = 1,
    batch: int = 8,
    **more: Any,
) -> tuple[list[Any], Any]:
    """The rows of all ranks, and the state after so many steps."""
    ranks, state = batches_of_ranks(ref, batch, world, steps, state, **{"collate_fn": listed, **more})
    return [row for batches in ranks for rows in batches for row in rows], state


def ids(rows: list[Any]) -> list[int]:
    return [int(row["id"]) for row in rows]


def shares(rows: list[Any]) -> Counter[int]:
    return Counter(number // 1000 for number in ids(rows))
