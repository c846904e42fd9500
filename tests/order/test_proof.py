"""Exactly once: whatever is lost or comes twice is reported."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data
from cursors import Held, cursor
from cursors import start as started
from hypothesis import given
from hypothesis import strategies as st
from own import Mapped

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.order.cursor import Cursor
from torchyoga.order.epoch import Iteration
from torchyoga.order.place import Place, Shard, taken
from torchyoga.order.proof import PRIME, prove, weight, weight_of_share, weight_until


def one_by_one(positions: Any) -> int:
    return sum(weight(5, 1, [range(i, i + 1)]) for i in positions) % PRIME


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40), st.integers(1, 9)), max_size=4))
def test_the_hash_of_a_series_is_the_sum_over_its_positions(found: list[tuple[int, int, int]]) -> None:
    ranges = [range(start, start + extent, step) for start, extent, step in found]
    assert weight(5, 1, ranges) == one_by_one(i for some in ranges for i in some)


def test_the_hash_of_a_share_is_the_sum_over_its_rows() -> None:
    for length, world, run in itertools.product((0, 7, 12, 13), (1, 2, 3), (1, 2, 4)):
        for remainder, start in itertools.product(("keep", "drop", "pad"), (0, 5)):
            for rank in range(world):
                shard, place = Shard(world, rank, remainder, run), Place(1, start)  # type: ignore[arg-type]
                for rows in range(shard.count(length, start) + 1):
                    positions = [i for some in taken(place, shard, length, 0, rows) for i in some]
                    assert weight_of_share(5, place, shard, length, rows) == one_by_one(positions)
    left = Place(1, 4, (range(1, 2), range(3, 5)))
    assert weight_until(5, left) == one_by_one([0, 2, 5, 6])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.lists(st.integers(0, 9), max_size=12))
def test_different_multisets_have_different_hashes(some: list[int], others: list[int]) -> None:
    assert (one_by_one(some) == one_by_one(others)) == (sorted(some) == sorted(others))


def test_different_epochs_and_seeds_have_different_hashes() -> None:
    weights = {weight(seed, epoch, [range(10)]) for seed in range(5) for epoch in range(5)}
    assert len(weights) == 25


def test_steps_after_which_weights_repeat() -> None:
    assert weight(5, 1, [range(0, PRIME, PRIME - 1)]) == one_by_one([0, PRIME - 1]) == 2


def test_it_costs_the_same_for_any_number_of_rows() -> None:
    started = time.process_time()
    for _ in range(100):
        weight(1, 0, [range(7, 10**15, 64)])
    assert time.process_time() - started < 1  # a sum over them would not end


# -- by hand, over ranks

LENGTH = 23


def loader(rank: int = 0, world: int = 1, **options: Any) -> yoga.DataLoader:
    options = {"remainder": "keep", **options}
    return yoga.DataLoader(range(LENGTH), 3, True, seed=7, num_replicas=world, rank=rank, **options)


def delivered(loader: Any, steps: int | None = None) -> Any:
    for _ in itertools.islice(loader, steps):
        pass
    return json.loads(json.dumps(loader.receipt()))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
def test_the_proof_holds_after_every_step(world: int, remainder: str) -> None:
    for steps in range(-(-LENGTH // (3 * world)) + 1):
        proof = prove(
            [delivered(loader(r, world, remainder=remainder), steps) for r in reversed(range(world))]
        )
        assert proof, str(proof)
        assert proof.rows >= min(3 * world * steps, LENGTH // world * world)
    assert (proof.epoch, proof.length) == (0, LENGTH)
    assert (proof.rows - LENGTH) in {"keep": [0], "drop": [0, -1, -2], "pad": [0, 1, 2]}[remainder]
    extra = proof.rows - LENGTH
    assert (proof.filled_up, proof.dropped, proof.is_exact) == (max(extra, 0), max(-extra, 0), not extra)
    how = "each exactly once" if not extra else f"filled up by {extra}" if extra > 0 else f"{-extra} left out"
    assert f"{min(proof.rows, LENGTH)} of 23 rows delivered since it began, each" in str(proof)
    assert how in str(proof)


def twins() -> list[Any]:
    return [delivered(loader()), delivered(loader())]


def renamed(receipts: list[Any]) -> list[Any]:
    """The receipts, claiming to be of different ranks."""
    return [{**found, "rank": r, "num_replicas": len(receipts)} for r, found in enumerate(receipts)]


def at_other_places() -> list[Any]:
    state = [loader(r, 2) for r in range(2)]
    for r, one in enumerate(state):
        delivered(one, 1 + r)
    resumed = [loader(r, 2) for r in range(2)]
    for one, before in zip(resumed, state, strict=True):
        one.load_state_dict(before.state_dict())
    return [delivered(one) for one in resumed]


@pytest.mark.parametrize(
    "make",
    [
        lambda: renamed(twins()),
        lambda: renamed([delivered(loader(0, 2)), delivered(loader(0, 2))]),
        lambda: renamed([delivered(loader(0, 3)), delivered(loader(1, 3))]),
        lambda: [delivered(loader(0, 2), 2), delivered(loader(1, 2), 3)],
        lambda: [delivered(loader(0, 2)), delivered(loader(1, 2), 3)],
        lambda: [delivered(loader(0, 2, remainder="pad")), delivered(loader(1, 2, start_offset=1))],
        at_other_places,
    ],
)
def test_rows_that_are_lost_or_come_twice_are_reported(make: Callable[[], list[Any]]) -> None:
    proof = prove(make())
    assert not proof
    assert "some came twice" in str(proof) or "different numbers of batches" in str(proof)


def broken(row: int) -> int:
    if row == 9:
        raise RuntimeError("row 9 is broken")
    return row


BROKEN = Mapped(LENGTH, broken)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_failed_and_was_left_out_is_reported_even_after_a_resume(workers: int) -> None:
    for in_order in {True, not workers}:
        failing = yoga.DataLoader(
            BROKEN, 3, True, seed=7, num_workers=workers, in_order=in_order, remainder="keep"
        )
        batches = iter(failing)
        seen, more = 0, True
        while more:
            try:
                seen += len(next(batches))
            except RuntimeError as error:
                if "row 9" not in str(error):
                    raise
            except StopIteration:
                more = False
            if failing.receipt()["rows"] > 15 and not failing.state_dict()["epoch"]:
                state = failing.state_dict()
        assert seen == LENGTH - 3
        assert not failing.prove()
        if not in_order:  # after a state from before it failed it may still come
            continue
        resumed = loader()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        for _ in resumed:
            pass
        assert not resumed.prove()
        assert len(list(resumed)) == 8
        assert resumed.prove()  # another epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_a_last_batch_that_failed_is_reported_too(workers: int) -> None:
    rows = [row for row in range(LENGTH) if row != 9] + [9]
    order = yoga.ResumableSampler(LENGTH, shuffle=False)
    failing = yoga.DataLoader(torch.utils.data.Subset(BROKEN, rows), 4, sampler=order, num_workers=workers)
    batches = iter(failing)
    assert sum(len(next(batches)) for _ in range(5)) == 20
    with pytest.raises(RuntimeError, match="row 9"):
        next(batches)
    state = failing.state_dict()
    assert (state["epoch"], state["position"]) == (0, 20)
    assert failing.prove().rows == 20
    assert list(batches) == []  # asking for the next batch leaves it out
    assert failing.state_dict()["epoch"] == 1
    assert not failing.prove()


def test_a_rank_without_a_batch_has_a_receipt_too() -> None:
    for length, options in ((2, {}), (7, {"drop_last": True})):
        ranks = [
            yoga.DataLoader(range(length), 3, num_replicas=3, rank=r, remainder="keep", **options)
            for r in range(3)
        ]
        for _ in range(2):
            rows = sum(len(batch) for rank in ranks for batch in rank)
            proof = prove([rank.receipt() for rank in ranks])
            assert proof, str(proof)
            assert proof.rows == rows
    # Resumed when there are fewer rows left than ranks.
    state = {**loader().state_dict(), "position": LENGTH - 1, "proof": None}
    ranks = [loader(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert prove([delivered(rank) for rank in ranks]).rows == LENGTH


def test_samplers_and_streams_have_receipts_too(tmp_path: Any) -> None:
    ref = yoga.Storage(tmp_path).submit(list(range(LENGTH)), "rows", "1", progress=False)
    for steps in (1, 5, 11):
        samplers = [yoga.ResumableSampler(LENGTH, seed=0, num_replicas=2, rank=r) for r in (0, 1)]
        streams = [ref.stream(num_shards=2, shard_rank=r) for r in (0, 1)]
        for ranks in (samplers, streams):
            for rank in ranks:
                assert len(list(itertools.islice(rank, steps))) == steps
            proof = prove([rank.receipt() for rank in ranks])
            assert proof
            assert proof.rows == 2 * steps


def test_a_value_that_is_not_a_receipt_is_refused() -> None:
    good = [delivered(loader(r, 2), 2) for r in (0, 1)]
    assert prove(good)
    for bad, message in (
        ([], "no receipts"),
        (good[:1], r"expected the receipts of ranks 0 to 1, one of each, found those of \[0\]"),
        ([good[0], good[0]], r"found those of \[0, 0\]"),
        ([good[0], {**good[1], "epoch": 1}], "has epoch 1, .*; take them on all ranks after the same step"),
        ([good[0], {**good[1], "seed": 6}], "has seed 6, rank 0's has 7; give all the same seed="),
        ([good[0], {**good[1], "fingerprint": "f"}], "has fingerprint 'f', rank 0's has None"),
        ([good[0], {**good[1], "length": LENGTH + 1}], "has length 24, rank 0's has 23"),
        ([good[0], {**good[1], "version": 2}], "has version 2, rank 0's has 1"),
        ([good[0], {**good[1], "shuffle": False}], "has shuffle False, rank 0's has True"),
        ([good[0], {**good[1], "num_replicas": 3}], "has num_replicas 3, rank 0's has 2"),
        ([good[0], {**good[1], "rows": "3"}], "damaged"),
        ([good[0], {**good[1], "weight": "-1"}], "damaged"),
        ([good[0], {**good[1], "weight": f"{PRIME:x}"}], "damaged"),
        ([good[0], {**good[1], "coming": [[1]]}], "damaged"),
        ([good[0], {}], "damaged"),
        ([good[0], loader().state_dict()], "damaged"),
    ):
        with pytest.raises(StateError, match=message):
            prove(bad)


@pytest.mark.parametrize(
    "change",
    [
        *({"num_replicas": 2**31}, {"num_replicas": 10**30}, {"seed": [1]}, {"seed": 10**5000}),
        *({"seed": 2**4096}, {"shuffle": [True]}, {"fingerprint": ["f"]}, {"files": {}}, {"epoch": {}}),
        *({"length": "10"}, {"rows": 10**30}, {"coming": [[0, 10**30]]}, {"left_out": [1]}, {"again": True}),
    ],
)
def test_forged_receipts_are_refused(change: Any) -> None:
    with pytest.raises(StateError):
        prove([{**delivered(loader(0, 1), 2), **change}])
    for other in ({"seed": 2**4096 - 1}, {"rows": 2**62, "coming": [[0, 2**62]] * 2}):  # but a receipt
        assert not prove([{**delivered(loader(0, 1), 2), **other}])


class Beside:
    """One of several iterators over a cursor; `came` has what it delivered."""

    def __init__(self, one: Cursor) -> None:
        self.cursor, self.made, self.holder = one, one.num_begun, Held()
        self.run: Iteration | None = None
        self.came: list[tuple[int, int]] = []

    def next(self) -> None:
        if self.run is None:
            self.run = started(self.cursor, 1, self.holder, made=self.made)
        if self.run.taken == self.run.num_steps:
            if not self.run.is_over:
                self.cursor.finished(self.run)
            return
        self.came.append((self.run.start.epoch, self.run.taken))
        self.run.advance()
        self.cursor.moved(self.run)


def story(seed: int) -> None:
    """Iterators beside each other, and epochs that are set back."""
    chance, one = random.Random(seed), cursor(4)
    iterators = [Beside(one)]
    for _ in range(chance.randint(4, 30)):
        act = chance.choice(["iter", "set_epoch", "receipt", *["next"] * 6])
        if act == "iter" and len(iterators) < 3:
            iterators.append(Beside(one))
        elif act == "set_epoch":
            one.set_epoch(chance.randint(0, 1))
        elif act == "receipt":
            one.receipt()
        else:
            chance.choice(iterators).next()
        proof = prove([one.receipt()])
        # One that has delivered a single batch may have been a look.
        surely, perhaps = (
            Counter(place for some in iterators if len(some.came) > least for place in some.came)
            for least in (1, 0)
        )
        assert not proof or not any(n > 1 for (at, _), n in surely.items() if at == proof.epoch), seed
        assert proof or any(n > 1 for (epoch, _), n in perhaps.items() if epoch == proof.epoch), seed


def test_of_iterators_beside_each_other_and_epochs_that_are_set_back_only_what_came_is_said() -> None:
    for seed in range(300):
        story(seed)
