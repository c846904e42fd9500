"""What a mixture delivers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import torchyoga as yoga


def listed(rows: list[Any]) -> list[Any]:
    return rows


def delivered(
    ref: yoga.DataRef,
    steps: int | None = None,
    state: Any = None,
    world: int = 1,
    batch: int = 8,
    **more: Any,
) -> tuple[list[Any], Any]:
    """The rows of all ranks, and the state after so many steps."""
    options: dict[str, Any] = {"shuffle": True, "seed": 7, "remainder": "keep", "collate_fn": listed, **more}
    found, states = [], []
    for rank in range(world):
        loader = yoga.DataLoader(ref, batch, num_replicas=world, rank=rank, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches = iter(loader)
        found += [row for rows in itertools.islice(batches, steps) for row in rows]
        states.append(loader.state_dict())
        del batches
    assert all(one == states[0] for one in states)
    return found, states[0]


def ids(rows: list[Any]) -> list[int]:
    return [int(row["id"]) for row in rows]


def shares(rows: list[Any]) -> Counter[int]:
    return Counter(number // 1000 for number in ids(rows))
