"""What a mixture delivers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import torchyoga as yoga


def listed(rows: list[Any]) -> list[Any]:
    return rows


def batches_of_ranks(
    ref: yoga.DataRef, batch: int, world: int, steps: int | None, state: Any, **more: Any
) -> tuple[list[list[Any]], Any]:
    """The batches of each rank, and the state of all after so many steps from one on."""
    options: dict[str, Any] = {"shuffle": True, "seed": 7, "remainder": "keep", **more}
    found, states = [], []
    for rank in range(world):
        loader = yoga.DataLoader(ref, batch, num_replicas=world, rank=rank, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches = iter(loader)
        found.append(list(itertools.islice(batches, steps)))
        states.append(loader.state_dict())
        del batches
    assert all(one == states[0] for one in states)
    return found, states[0]


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
