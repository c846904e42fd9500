"""Loaders of a few rows, the rows that they give, and the memory that they share with their workers."""

from __future__ import annotations

import json
from typing import Any

import torchyoga as yoga


def loader(data: Any = 20, size: int = 2, **options: Any) -> yoga.DataLoader:
    return yoga.DataLoader(range(data) if isinstance(data, int) else data, size, **options)


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.tolist()]


def resumed(state: Any, data: Any = 20, size: int = 2, **options: Any) -> list[int]:
    one = loader(data, size, **options)
    one.load_state_dict(json.loads(json.dumps(state)))
    return rows(one)


def ring_of(loader: Any) -> Any:
    """The memory in which batches of the iteration under way come, of a loader or its iterator."""
    return loader._pipeline.plan.ring


def idle_ring(loader: yoga.DataLoader) -> Any:
    """The memory that a loader keeps for its next iteration."""
    return loader._pipeline.workers.idle_ring
