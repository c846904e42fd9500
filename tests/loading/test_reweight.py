"""Weights that a loader is told while it runs: from the next batch on, on every rank, with its workers."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.sampling.ranks import check_same

SIZES = {"web": 90, "code": 30, "math": 7}
WEIGHTS = {"web": 5, "code": 3, "math": 2}
KINDS: dict[str, dict[str, Any]] = {
    "here": {},
    "nothing read ahead": {"prefetch_factor": 0},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent processes": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "single rows": {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"},
}


def mixed(rows: int = 200) -> Any:
    sources = {
        name: yoga.from_arrays({"id": 1000 * number + np.arange(size)})
        for number, (name, size) in enumerate(SIZES.items())
    }
    return yoga.mix(sources, WEIGHTS, rows=rows, source_column="source", cell=10)


def loader(mix: Any, batch: int = 10, **more: Any) -> Any:
    return yoga.DataLoader(
        mix, **{"batch_size": batch, "shuffle": True, "seed": 7, "remainder": "keep", **more}
    )


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_next_batch_has_the_weights(kind: str) -> None:
    mix = mixed()
    own = loader(mix, **KINDS[kind])
    size = own.batch_size or 1
    batches = iter(own)
    found: list[list[int]] = []
    states = {}
    for step in range(200 // size):
        found.append(np.atleast_1d(next(batches)["id"]).tolist())
        if step == 80 // size:
            own.reweight({"web": 0, "code": 1, "math": 1})
            states[step + 1] = own.state_dict()
        if step == 120 // size:
            own.reweight({"web": 1, "code": 0, "math": 0})
            states[step + 1] = own.state_dict()
    assert next(batches, None) is None
    rows = list(itertools.chain.from_iterable(found))
    first, second = (step * size for step in states)
    shares = [Counter(row // 1000 for row in part) for part in (rows[first:second], rows[second:])]
    assert abs(shares[0][1] - shares[0][2]) <= 1
    assert not shares[0][0]
    assert shares[1] == {0: 200 - second}
    # Nothing is lost or repeated in a pass, the first rows are those of the weights before, and it is proved.
    assert rows[:first] == [int(n) for batch in loader(mix) for n in batch["id"]][:first]
    for number, size_of in enumerate(SIZES.values()):
        counts = Counter(row for row in rows if row // 1000 == number)
        assert max(counts.values()) - min([counts[1000 * number + n] for n in range(size_of)]) <= 1
    assert own.prove()
    assert own.state_dict()["epoch"] == 1
    # Each state goes on in a loader that was told nothing, with other ranks; and takes this one back.
    for step, state in states.items():
        saved = json.loads(json.dumps(state))
        ranks = [loader(mix, 3, num_replicas=2, rank=rank) for rank in range(2)]
        for rank in ranks:
            rank.load_state_dict(saved)
        later = [int(n) for rank in ranks for batch in rank for n in batch["id"]]
        own.load_state_dict(saved)
        again = np.atleast_1d(next(iter(own))["id"]).tolist()
        if step == max(states):
            assert sorted(later) == sorted(rows[step * size :])
        assert again == found[step]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_workers_stay_alive(persistent: bool) -> None:
    mix = mixed().map(lambda row: {**row, "pid": os.getpid()})
    options = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": persistent}
    own = loader(mix, **options)
    made: list[set[int]] = [set(), set()]
    batches = iter(own)
    for step, batch in enumerate(batches):
        made[step >= 6].update(batch["pid"].tolist())
        if step % 3 == 2:
            own.reweight({"web": 1, "code": step, "math": 1})
    assert made[0] == made[1]
    assert len(made[0]) == 2


def test_a_change_between_epochs_and_one_before_the_first() -> None:
    own = loader(mixed(60))
    own.reweight({"web": 0, "code": 0, "math": 1})
    assert {int(n) for batch in own for n in batch["source"]} == {2}
    own.reweight({"web": 1, "code": 0, "math": 0})
    state = own.state_dict()
    assert {int(n) for batch in own for n in batch["source"]} == {0}
    other = loader(mixed(60))
    other.load_state_dict(state)
    assert {int(n) for batch in other for n in batch["source"]} == {0}
    even = yoga.from_arrays({"label": np.arange(60) % 3}).balanced("label", batch=10)
    own = loader(even)
    batches = iter(own)
    next(batches)
    own.reweight({0: 1, 1: 0, 2: 1})
    assert {int(n) for batch in batches for n in batch["label"]} == {0, 2}
    state = own.state_dict()
    other = loader(even)
    other.load_state_dict(state)
    assert {int(n) for batch in other for n in batch["label"]} == {0, 2}


def test_states_of_some_batches_before_are_known_after_a_change() -> None:
    own = loader(mixed())
    batches = iter(own)
    for _ in range(5):
        next(batches)
    before = own.state_dict()
    own.reweight({"web": 0, "code": 1, "math": 1})
    next(batches)
    held = own.state_after(5)
    assert held["position"] == before["position"] == 50
    other = loader(mixed())
    other.load_state_dict(held)
    assert {int(n) for batch in other for n in batch["source"]} == {1, 2}
    # Far behind many changes nothing is known any more, and it says so.
    for step in range(12):
        next(batches)
        own.reweight({"web": 1, "code": 1 + step, "math": 1})
    with pytest.raises(ValueError, match=r"position 20 of epoch 0 lies before place .*weights are known"):
        own.state_after(2)


def test_a_rank_that_was_told_otherwise_is_found() -> None:
    ranks = [loader(mixed(), num_replicas=2, rank=rank) for rank in range(2)]
    messages = []
    for rank, own in enumerate(ranks):
        batches = iter(own)
        next(batches)
        own.reweight({"web": 1, "code": 1 + rank, "math": 1})
        state = own.state_dict()
        messages.append({**state, "rank": rank, "num_replicas": 2})
    with pytest.raises(StateError, match=r"process 1 has stages .*process 0 has .*load the same state"):
        check_same(messages, False)


@pytest.mark.parametrize("kind", ["here", "processes"])
@pytest.mark.parametrize("is_saved_first", [True, False])
def test_a_run_that_asks_again_when_it_begins_is_as_one_that_was_not_stopped(
    kind: str, is_saved_first: bool
) -> None:
    """Whether a checkpoint is written before the weights of its step are told or after it."""

    def train(state: Any, until: int) -> tuple[list[list[int]], Any]:
        own = loader(mixed(), **KINDS[kind])
        if state is not None:
            own.load_state_dict(json.loads(json.dumps(state)))
        step, found, saved = own.state_dict()["position"] // 10, [], None

        def ask() -> None:
            if step and step % 5 == 0:
                own.reweight({"web": step % 3, "code": 1, "math": step % 2})

        ask()
        for batch in own:
            step += 1
            found.append(batch["id"].tolist())
            saved = own.state_dict() if is_saved_first else None
            ask()
            saved = saved or own.state_dict()
            if step == until:
                break
        return found, saved

    whole, _ = train(None, 20)
    for stopped in (4, 5, 6, 10, 15):
        first, state = train(None, stopped)
        assert first + train(state, 20)[0] == whole


def test_weights_that_it_has_change_nothing() -> None:
    own = loader(mixed(), num_workers=2)
    batches = iter(own)
    next(batches)
    own.reweight({"web": 1, "code": 1, "math": 1})
    state = own.state_dict()
    changes = own._indices.cursor.num_changes
    own.reweight({"web": 2, "code": 2, "math": 2})
    next(batches)
    own.reweight({"web": 1, "code": 1, "math": 1})
    assert own._indices.cursor.num_changes == changes
    assert own.state_dict()["stages"] == state["stages"]


def test_a_loader_of_stages_goes_on_with_what_it_was_told() -> None:
    """The weights that it is told take the place of those to come, even if they are those of now."""
    first, then = {"web": 1, "code": 0, "math": 0}, {"web": 0, "code": 1, "math": 0}
    course = mixed().staged([(0, first), (100, then)])
    for told, sources in ((first, {0}), (WEIGHTS, {0, 1, 2})):
        own, again = loader(course), loader(course)
        batches = iter(own)
        next(batches)
        own.reweight(told)
        again.load_state_dict(json.loads(json.dumps(own.state_dict())))
        rest = [batch["source"].tolist() for batch in batches]
        assert {source for some in rest for source in some} == sources
        assert [batch["source"].tolist() for batch in again] == rest


def _told_otherwise(rank: int, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        own, alone = loader(mixed()), loader(mixed(), 20, num_replicas=1, rank=0)
        batches, all_batches = iter(own), iter(alone)
        for step in range(1, 6):
            rows = next(batches)["id"]
            of_ranks = [torch.empty_like(rows) for _ in range(2)]
            dist.all_gather(of_ranks, rows)
            assert torch.stack(of_ranks, 1).flatten().tolist() == next(all_batches)["id"].tolist()
            found = torch.tensor([float((rows < 1000 * n).sum()) for n in (1, 2, 3)])
            dist.all_reduce(found)  # of which weights follow: all ranks tell the same
            for some in (own, alone):
                some.reweight(dict(zip(SIZES, (found + step).tolist(), strict=True)))
            own.check_ranks()
        own.reweight({"web": 1, "code": 1 + rank, "math": 1})
        next(batches)
        with pytest.raises(StateError, match=r"process 1 has stages .*,.*process 0 has "):
            own.check_ranks()
    finally:
        dist.destroy_process_group()


@pytest.mark.rest
def test_processes_find_the_one_that_was_told_otherwise(tmp_path: Path) -> None:
    started = {"nprocs": 2, "start_method": "forkserver"}  # torch is imported there
    torch.multiprocessing.start_processes(_told_otherwise, (str(tmp_path / "store"),), **started)


def test_what_cannot_be_told() -> None:
    with pytest.raises(TypeError, match="no weights that a loader can be told"):
        loader(yoga.from_arrays({"x": np.arange(9)})).reweight({"a": 1})
    own = loader(mixed())
    batches = iter(own)
    first = next(batches)["id"].tolist()
    for weights, message in (
        ({"web": 1, "code": 1}, r"without a weight are \['math'\]"),
        ({**WEIGHTS, "x": 1}, r"there is no \['x'\]"),
        (dict.fromkeys(WEIGHTS, 0), "all weights are 0"),
        ({**WEIGHTS, "math": float("nan")}, "the weight of 'math' must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            own.reweight(weights)
    plain = [batch["id"].tolist() for batch in loader(mixed())]
    assert [first, *(batch["id"].tolist() for batch in batches)] == plain
    data = yoga.from_arrays({"x": np.arange(90)})
    few = yoga.mix({"a": data[:9], "b": data}, {"a": 1, "b": 9}, rows=20, epochs=1)
    with pytest.raises(ValueError, match=r"reads the 9 rows of 'a' .* times, and epochs= allows 1"):
        loader(few).reweight({"a": 1, "b": 0})


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("kind", ["mixture", "weights of rows"])
def test_the_last_rows_fill_up_all_ranks_after_a_resume(kind: str, world: int) -> None:
    """With `remainder="pad"`: the rows that come again are the same whether a run was stopped or not."""
    view: Any = mixed(103)
    later: Any = {"web": 1, "code": 1, "math": 1}
    if kind == "weights of rows":
        data = yoga.from_arrays({"id": np.arange(40)})
        view, later = data.weighted(np.arange(40) + 1, rows=103), np.arange(40)[::-1] + 1
    ranks = [loader(view, 2, num_replicas=world, rank=rank, remainder="pad") for rank in range(world)]
    found: list[list[list[int]]] = []
    states = []
    iterators = [iter(rank) for rank in ranks]
    for step in itertools.count():
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            break
        found.append([batch["id"].tolist() for batch in batches])
        if step == 2:
            for rank in ranks:
                rank.reweight(later)
        states.append(json.loads(json.dumps(ranks[0].state_dict())))
    assert batches == [None] * world
    for step in range(2, len(found) - 1):
        made = view.reweighted(later, at=states[2]) if kind == "weights of rows" else view
        again = [loader(made, 2, num_replicas=world, rank=rank, remainder="pad") for rank in range(world)]
        for rank in again:
            rank.load_state_dict(states[step])
        rest = [[batch["id"].tolist() for batch in rank] for rank in again]
        assert list(map(list, zip(*rest, strict=True))) == found[step + 1 :]
