"""Writes golden states, and the rows that must follow each.

The file is written once for each version of the order. `opened` and `rows_of` serve the tests as well.

In tests: python -m golden.states
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from infiles import InFiles

import torchyoga as yoga

FILE = Path(__file__).parent / "states.json"


def view(name: str) -> yoga.DataRef:
    """A view that decides which of its rows come when."""
    plain = yoga.from_arrays({"x": np.arange(100), "y": np.arange(100) % 3 // 2})
    if name == "mix":
        few = yoga.from_arrays({"x": np.arange(1000, 1040), "y": np.zeros(40, int)})
        return yoga.mix({"many": plain, "few": few}, {"many": 2, "few": 1}, rows=70, cell=16)
    if name == "balanced":
        return plain.balanced("y", batch=9)
    assert name == "weighted"
    return plain.weighted(np.arange(100) % 7, rows=90)


class Slow:
    """Rows, some of which take long."""

    def __init__(self, length: int, slow: set[int]) -> None:
        self.length, self.slow = length, slow

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> int:
        time.sleep(0.3 * (row in self.slow))
        return row


def opened(case: dict[str, Any], world: int, rank: int, **options: Any) -> Any:
    """The loader, sampler or stream of a case, as one rank of `world`."""
    sizes = case["files"]
    options = {**case["options"], **options}
    rows = view(case["view"]) if "view" in case else InFiles(sizes)
    if case["kind"] == "stream":
        return rows.stream(shard_rank=rank, num_shards=world, **options)
    options |= {"num_replicas": world, "rank": rank}
    data = options.pop("data", None) or (range(sizes[0]) if len(sizes) == 1 else rows)
    return (yoga.ResumableSampler if case["kind"] == "sampler" else yoga.DataLoader)(data, **options)


def rows_of(source: Any, steps: int | None = None) -> list[int]:
    """The rows of the iteration that begins now, or of its first batches (rows, if it gives rows)."""
    found: Iterator[Any] = itertools.islice(source, steps)
    if isinstance(source, yoga.DataLoader):
        return [row for batch in found for row in (batch["x"] if isinstance(batch, dict) else batch).tolist()]
    return [int(row["x"]) if isinstance(row, dict) else row for row in found]


def saved(case: dict[str, Any], world: int, steps: int, epoch: int, resumes: list[Any]) -> dict[str, Any]:
    """A case with the states after some steps of an epoch, and the rows that follow."""
    ranks = []
    for rank in range(world):
        more: dict[str, Any] = {}
        if case.get("uneven"):
            order = yoga.ResumableSampler(sum(case["files"]), seed=case["options"]["seed"])
            slow = set(order.rows_at(range(case["uneven"]), epoch).tolist())
            more = {"data": Slow(sum(case["files"]), slow), "num_workers": 2, "in_order": False}
        ranks.append(opened(case, world, rank, **more))
    for source in ranks:
        source.set_epoch(epoch)
    before = [rows_of(source, steps) for source in ranks]
    states = [json.loads(json.dumps(source.state_dict())) for source in ranks]
    if all(state == states[0] for state in states):
        states = states[:1]
    if case.get("uneven"):
        assert all(state["left"] for state in states)
    after = []
    for options in resumes:
        others = [
            opened(case, options["world"], rank, **options["options"]) for rank in range(options["world"])
        ]
        for rank, source in enumerate(others):
            source.load_state_dict(states[rank % len(states)])
        after.append({**options, "rows": [rows_of(source) for source in others]})
    return {**case, "epoch": epoch, "states": states, "before": before, "after": after}


def resumed(world: int, **options: Any) -> dict[str, Any]:
    """A resume on `world` ranks, with these options."""
    return {"world": world, "options": options}


def case(name: str, kind: str, files: list[int], **options: Any) -> dict[str, Any]:
    """The description of what a case opens."""
    return {"name": name, "kind": kind, "files": files, "options": options}


def cases() -> Iterator[dict[str, Any]]:
    """Cases of every kind of order and of state."""
    few = [4, 7, 0, 5, 1, 6]
    full = case("full shuffle", "loader", [61], shuffle=True, seed=7, batch_size=4, remainder="keep")
    yield saved(full, 1, 5, 0, [resumed(1), resumed(3, batch_size=2), resumed(2, remainder="pad")])
    full = case("several ranks", "loader", [300], shuffle=True, seed=-5, batch_size=7, remainder="pad")
    yield saved(full, 4, 6, 3, [resumed(4), resumed(5), resumed(1, remainder="keep")])
    full = case("drop", "loader", [50], shuffle=True, seed=2**70, batch_size=3, remainder="drop")
    yield saved(full, 3, 2, 1, [resumed(3), resumed(2, drop_last=True)])
    ordered = case("not shuffled", "loader", [23], shuffle=False, seed=0, batch_size=2, remainder="keep")
    yield saved(ordered, 2, 3, 2, [resumed(2), resumed(1)])
    long = case("many rows", "sampler", [5000], seed=3, remainder="keep", start_offset=4900)
    yield saved(long, 2, 20, 0, [resumed(2), resumed(3)])
    long = case("a billion rows", "sampler", [10**9], seed=0, remainder="keep", start_offset=10**9 - 60)
    yield saved(long, 2, 10, 0, [resumed(1)])
    long = case("a trillion rows", "sampler", [10**12], seed=1, remainder="keep", start_offset=10**12 - 60)
    yield saved(long, 1, 20, 0, [resumed(4)])
    yield saved(case("sampler", "sampler", [31], seed=1), 2, 5, 2, [resumed(2), resumed(1)])
    stream = case("stream", "stream", [40], shuffle=True, shuffle_seed=777)
    yield saved(stream, 2, 6, 1, [resumed(2), resumed(3)])
    once = {"shuffle": True, "shuffle_seed": 9, "skip_shuffle_at_epoch_end": True}
    yield saved(case("once", "stream", [33], **once), 1, 10, 4, [resumed(1), resumed(2)])
    block = {"shuffle": "block", "shuffle_window": 2}
    blocks = case("block", "loader", few, **block, seed=5, batch_size=3, remainder="keep")
    yield saved(blocks, 2, 2, 1, [resumed(2), resumed(3), resumed(1, batch_size=5)])
    yield saved(case("block once", "stream", few, **{**once, **block}), 2, 4, 3, [resumed(2), resumed(1)])
    large = {"shuffle": "block", "shuffle_window": 4, "seed": -1, "remainder": "keep"}
    files = [4096, 300, 70_000, 64, 1000]
    yield saved(
        case("large files", "sampler", files, **large, start_offset=75_400),
        2,
        10,
        0,
        [resumed(2), resumed(1)],
    )
    shards = {"seed": 11, "batch_size": 2, "remainder": "keep", "locality": "shard"}
    for name, kind in (("block", "block"), ("full", True), ("ordered", False)):
        own = case(f"shards, {name}", "loader", few, shuffle=kind, shuffle_window=3, **shards)
        yield saved(own, 3, 2, 1, [resumed(3), resumed(2), resumed(1, batch_size=3)])
    padded = {**shards, "remainder": "pad"}
    yield saved(
        case("shards, padded", "loader", few, shuffle=True, **padded), 2, 3, 0, [resumed(2), resumed(4)]
    )
    uneven = {"shuffle": True, "seed": 3, "batch_size": 4, "remainder": "keep"}
    early = {**case("early batches", "loader", [61], **uneven), "uneven": 4}
    yield saved(early, 1, 3, 0, [resumed(1), resumed(2), resumed(3, batch_size=2)])


def cases_of_views() -> Iterator[dict[str, Any]]:
    """Cases of views that decide which rows come, with and without a shuffle, within late epochs."""
    options = {"seed": 7, "batch_size": 4, "remainder": "keep"}
    for name in ("mix", "balanced", "weighted"):
        for kind in (False, True, "block"):
            found = {**case(f"{name}, {kind}", "loader", [], shuffle=kind, **options), "view": name}
            yield saved(found, 1, 9, 2, [resumed(1), resumed(2, batch_size=3)])
        found = {**case(f"{name} of two ranks", "loader", [], shuffle=False, **options), "view": name}
        yield saved(found, 2, 4, 3, [resumed(2), resumed(1)])
        stream = case(f"stream of {name}", "stream", [], shuffle=False, skip_shuffle_at_epoch_end=True)
        yield saved({**stream, "view": name}, 1, 25, 3, [resumed(1), resumed(2)])


if __name__ == "__main__":
    if FILE.exists():
        raise SystemExit(f"{FILE.name} is there: states of a version of the order are written once")
    lines = ",\n".join(json.dumps(found) for found in (*cases(), *cases_of_views()))
    FILE.write_text(f"[\n{lines}\n]\n")
