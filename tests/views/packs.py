"""Rows that packs are made of: tokens and columns of every other kind."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from mixtures import batches_of_ranks
from own import Own

import torchyoga as yoga

LENGTHS = [*np.random.default_rng(0).integers(1, 12, 57).tolist(), 0, 16, 0]


def row_of(number: int) -> dict[str, Any]:
    length = LENGTHS[number]
    return {
        "ids": np.arange(length, dtype=np.int32) + 100 * number,
        "mask": np.arange(length) % 3 == 0,
        "label": number,
        "text": f"text {number}",
        "boxes": np.arange(number % 4),
        "meta": {"vector": np.full((2, 3), number, np.float32), "name": b"n" * number},
    }


ROWS = [row_of(number) for number in range(len(LENGTHS))]


SCHEMA = yoga.Schema.of(ROWS[0], ragged=["ids", "mask", "boxes"])


def tokens_of(lengths: list[int]) -> yoga.DataRef:
    """Rows of so many tokens, all different."""
    ends = np.cumsum([0, *lengths]).tolist()
    rows = [{"ids": np.arange(start, stop)} for start, stop in itertools.pairwise(ends)]
    return Own(rows, yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]))


def texts_of(folder: Path, lengths: list[int]) -> yoga.DataRef:
    rows = [{"ids": np.arange(length)} for length in lengths]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    return yoga.Storage(folder).submit(rows, "texts", "1", schema=schema, progress=False)


def batches_of(
    ref: yoga.DataRef,
    world: int = 1,
    steps: int | None = None,
    state: Any = None,
    batch: int = 1,
    **more: Any,
) -> tuple[Any, Any]:
    """The batches of all ranks, one round of ranks after the other, and the state after them."""
    of_ranks, state = batches_of_ranks(ref, batch, world, steps, state, **more)
    rounds = itertools.zip_longest(*of_ranks)
    return [batch for one in rounds for batch in one if batch is not None], state
