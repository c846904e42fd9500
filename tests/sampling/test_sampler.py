"""Samplers: drop-in, resumable, elastic."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from infiles import InFiles
from own import Announced, Filed
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from torchyoga import ResumableBatchSampler, ResumableSampler, prove
from torchyoga.errors import StateError


def interleaved(ranks: list[list[int]]) -> list[int]:
    """The global order, from the rows that each rank got."""
    return [row for step in itertools.zip_longest(*ranks) for row in step if row is not None]


def test_it_counts_as_torchs_distributed_sampler_does() -> None:
    for length, world in itertools.product(range(1, 13), range(1, 6)):
        for drop_last in (False, True):
            for rank in range(world):
                torchs: Any = DistributedSampler(range(length), world, rank, False, drop_last=drop_last)  # type: ignore[arg-type]
                ours = ResumableSampler(
                    length, num_replicas=world, rank=rank, drop_last=drop_last, shuffle=False
                )
                assert isinstance(ours, DistributedSampler)
                for name in ("num_replicas", "rank", "seed", "shuffle", "drop_last", "epoch"):
                    assert getattr(ours, name) == getattr(torchs, name)
                if not drop_last or length >= world:  # torch counts 1 too many for fewer rows than ranks
                    assert len(list(ours)) == len(ours) == len(torchs)
                    assert (ours.num_samples, ours.total_size) == (torchs.num_samples, torchs.total_size)


def test_a_number_of_rows_is_any_int_or_a_length() -> None:
    expected = list(ResumableSampler(10, seed=7))
    for rows in (np.int64(10), range(10), [0] * 10, np.zeros(10), torch.zeros(10)):
        assert list(ResumableSampler(rows, seed=7)) == expected  # type: ignore[arg-type]
    for wrong in (True, 1.5, None, -1):
        with pytest.raises(ValueError, match="dataset_or_length must be"):
            ResumableSampler(wrong)  # type: ignore[arg-type]


ORDERS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": "block", "shuffle_window": 2},
    {"shuffle": "block", "shuffle_window": 2, "locality": "shard"},
    {"shuffle": True, "locality": "shard"},
    {"shuffle": False, "locality": "shard"},
]


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("options", ORDERS)
def test_stopped_anywhere_and_continued_by_other_ranks_whatever_the_shuffle(
    options: Any, remainder: Any
) -> None:
    def part(
        world: int, state: Any, steps: int | None, size: int, policy: Any = remainder
    ) -> tuple[Any, list[int]]:
        """Some batches on all ranks: the state, equal on all, and the rows in global order."""
        ranks = [
            ResumableSampler(InFiles(), seed=2, num_replicas=world, rank=rank, remainder=policy, **options)
            for rank in range(world)
        ]
        rows = []
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
            made = itertools.islice(ResumableBatchSampler(sampler, size), steps)
            rows.append([row for batch in made for row in batch])
        states = [sampler.state_dict() for sampler in ranks]
        assert all(found == states[0] for found in states)
        proof = prove([sampler.receipt() for sampler in ranks])
        assert proof, str(proof)
        return states[0], interleaved(rows)

    for first, second, third in ((1, 3, 2), (3, 2, 4), (4, 1, 3)):
        for steps in range(23 // (3 * first)):
            state, begun = part(first, None, steps, 3)
            state, more = part(second, state, 1, 2)
            if state["epoch"]:
                continue  # nothing is left of this epoch
            _, rest = part(third, state, None, 4)
            # An epoch keeps the shards with which its first row was delivered.
            _, whole = part(first if steps else second, None, None, 3, "keep")
            got = begun + more + rest
            assert got[:23] == whole[: len(got)]
            if remainder == "keep":
                assert len(got) == 23
            else:
                assert abs(len(got) - 23) < third


def test_ranks_of_different_orders_are_told_apart() -> None:
    def two(first: Any, second: Any, **options: Any) -> list[ResumableSampler]:
        return [
            ResumableSampler(InFiles(), 2, rank, **{**options, **some}, seed=0)
            for rank, some in enumerate((first, second))
        ]

    for ranks, message in (
        (two({"shuffle_window": 2}, {"shuffle_window": 3}, shuffle="block"), "window"),
        (two({"locality": "shard"}, {}), "files"),
        (two({"shuffle": "block"}, {}), "shuffle"),
    ):
        receipts = []
        for sampler in ranks:
            next(iter(sampler))
            receipts.append(sampler.receipt())
        with pytest.raises(StateError, match=f"has {message}"):
            prove(receipts)


@pytest.mark.parametrize("options", ORDERS)
def test_positions_are_found_whatever_the_shuffle(options: Any) -> None:
    sampler = ResumableSampler(InFiles(), seed=4, num_replicas=2, rank=1, **options)
    rows = sampler.rows_at(range(23), epoch=5)
    assert [sampler.position_of(row, epoch=5) for row in rows.tolist()] == list(range(23))
    assert list(itertools.islice(sampler, 4)) == sampler.rows_at(range(1, 9, 2), epoch=0).tolist()
    assert bool(sampler.shuffle) == bool(options["shuffle"])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_of_several_iterators_the_one_that_moved_last_defines_the_state(moves: list[int]) -> None:
    sampler = ResumableSampler(100, seed=4)
    iterators: list[Any] = [iter(sampler) for _ in range(3)]
    for which in moves:
        next(iterators[which])
    assert sampler.state_dict() == iterators[moves[-1]].state_dict()


@pytest.mark.parametrize("length", [10, 5000])  # handed out at once, and some at a time
def test_an_iterator_from_before_a_load_raises(length: int) -> None:
    sampler = ResumableSampler(length, seed=1)
    iterator = iter(sampler)
    next(iterator)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(StateError, match=r"call iter\(\) again"):
        list(iterator)
    with pytest.raises(StateError, match="no iteration of this sampler has begun since"):
        sampler.state_after(0, 1)


def test_the_state_after_so_many_steps_is_that_of_a_loop_that_stopped_there() -> None:
    fresh = ResumableSampler(60, seed=7, num_replicas=2, rank=1)
    state = {**fresh.state_dict(), "position": 12, "steps": 3, "proof": None}
    for loaded, (size, drop_last) in itertools.product((False, True), ((4, False), (4, True), (7, False))):

        def opened(loaded: bool = loaded) -> ResumableSampler:
            sampler = ResumableSampler(60, seed=7, num_replicas=2, rank=1)
            if loaded:
                sampler.load_state_dict(state)
            return sampler

        sampler = opened()
        iterator = iter(sampler)
        handed = [next(iterator) for _ in range(18)]
        most = 18 // size if drop_last else -(-18 // size)
        for steps in range(most):
            stopped = ResumableBatchSampler(opened(), size, drop_last)
            batches = iter(stopped)
            rows = [row for _ in range(steps) for row in next(batches)]
            assert rows == handed[: len(rows)]
            assert sampler.state_after(steps, size, drop_last) == stopped.state_dict()
        for wrong in (-1, most + 1):
            with pytest.raises(ValueError, match=rf"steps must be in 0\.\.{most}, .* found {wrong}"):
                sampler.state_after(wrong, size, drop_last)
        with pytest.raises(ValueError, match="batch_size must be at least 1, found 0"):
            sampler.state_after(0, 0)
        # An epoch that is named late is the same iteration; another one is not.
        sampler.set_epoch(0)
        assert sampler.state_after(most - 1, size)["epoch"] == 0
        sampler.set_epoch(3)
        with pytest.raises(StateError, match="no iteration of this sampler has begun since"):
            sampler.state_after(0, size)


def test_a_shorter_last_batch_is_a_step_unless_it_is_dropped() -> None:
    sampler = ResumableSampler(10, seed=7)
    assert len(list(sampler)) == 10
    assert sampler.state_after(3, batch_size=4)["epoch"] == 1
    with pytest.raises(ValueError, match=r"steps must be in 0\.\.2, .* found 3"):
        sampler.state_after(3, batch_size=4, drop_last=True)


def test_in_a_job_of_several_processes_the_seed_is_the_same_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ResumableSampler(10)
    sampler.state_dict()  # this draws one, before the process knows of the others
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="WORLD_SIZE is 2"):
        assert list(sampler) == list(ResumableSampler(10, num_replicas=1, rank=0))
    assert sampler.seed == 0


def test_a_sampler_says_what_it_is() -> None:
    sampler = ResumableSampler(InFiles(), 2, 1, "block", 4, locality="shard", remainder="keep")
    assert repr(sampler) == (
        "ResumableSampler(23 rows of a InFiles, shuffle='block', locality='shard', seed=4, rank 1 of 2, "
        "remainder='keep', at epoch 0, position 0)"
    )
    assert "(10 rows, shuffle=True, seed=1, " in repr(ResumableSampler(10, seed=1))
    data = list(range(5))
    assert ResumableSampler(data).data_source is data


def test_of_two_iterators_the_end_that_is_heard_of_last_counts() -> None:
    sampler = ResumableSampler(10, seed=1)
    first, second = iter(sampler), iter(sampler)
    next(first)
    for _ in range(10):
        next(second)
    assert len(list(first)) == 9
    assert sampler.epoch == 1
    assert list(second) == []
    assert sampler.epoch == 2


def test_the_state_of_an_iterator_is_its_own() -> None:
    sampler = ResumableSampler(20, seed=1)
    batches = ResumableBatchSampler(sampler, 4)
    first, second, unused = iter(batches), iter(batches), iter(batches)
    for iterator in (first, first, second):
        next(iterator)
    places = [(one.state_dict()["epoch"], one.state_dict()["position"]) for one in (first, second, unused)]  # type: ignore[attr-defined]
    assert places == [(0, 8), (1, 4), (1, 4)]
    rows: Any = iter(sampler)
    for _ in range(3):
        next(rows)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 5, "position": 10, "proof": None})
    assert (rows.state_dict()["epoch"], rows.state_dict()["position"]) == (2, 3)


def test_the_state_of_an_iterator_changes_nothing() -> None:
    for taken, batched in itertools.product((False, True), repeat=2):
        sampler = ResumableSampler(10, seed=1)
        iterator: Any = iter(ResumableBatchSampler(sampler, 1) if batched else sampler)
        next(iterator)
        if taken:
            assert iterator.state_dict()["position"] == 1
        del iterator
        sampler.indices.cursor.settle()
        assert sampler.indices.cursor.begin() == (0, 0, ())


def test_a_state_of_another_seed_is_refused_by_an_iterator_too() -> None:
    iterator: Any = iter(ResumableSampler(10, seed=1))
    with pytest.raises(StateError, match="the state has seed 2, but here it is 1"):
        iterator.load_state_dict(ResumableSampler(10, seed=2).state_dict())


def test_the_most_batches_of_an_epoch_are_those_of_any_that_comes() -> None:
    indices = ResumableSampler(40, seed=1).indices
    state = {**indices.state_dict(), "position": 20, "steps": 20, "proof": None}
    assert indices.most_steps(4, False, None) == 10
    assert indices.most_steps(4, False, state) == 20 + 5
    assert indices.state_dict()["position"] == 0


def test_one_process_alone_is_not_all_ranks() -> None:
    assert ResumableSampler(10, seed=1).prove()
    assert ResumableSampler(10, num_replicas=1, rank=0, seed=1).prove()
    with pytest.raises(
        StateError,
        match=r"expected the receipts of ranks 0 to 1, one of each, found those of \[1\].*receipt\(\)",
    ):
        ResumableSampler(10, num_replicas=2, rank=1, seed=1).prove()


class Followed(Announced, Filed):
    """Notes which rows are to be downloaded, and how far the iteration is."""

    is_cold, ahead_bytes, _row_bytes = False, None, 8  # type: ignore[assignment]


def test_what_a_sampler_hands_out_is_followed_and_read_ahead() -> None:
    ref = Followed(range(23), None, 5)
    sampler = ResumableSampler(ref, seed=1)
    iterator = iter(sampler)
    handed = [next(iterator) for _ in range(5)]
    ((order, progress),) = ref.announced
    assert progress() == 5
    assert list(itertools.chain(*order)) == sampler.rows_at(range(23), 0).tolist()
    assert ref.__getitems__(handed) == handed
    handed = [next(iterator) for _ in range(5)]
    assert ref.__getitems__(handed) == handed
    assert list(map(len, ref.calls)) == [23]  # what was handed out later had been read already
    del iterator, sampler
    gc.collect()
    assert progress() is None


def test_even_batches_say_whether_ranks_have_as_many_rows() -> None:
    for remainder, is_even in (("pad", True), ("drop", True), ("keep", False)):
        sampler = ResumableSampler(7, 2, 1, seed=1, remainder=remainder)  # type: ignore[arg-type]
        batches = ResumableBatchSampler(sampler, 2)
        assert batches.even_batches is is_even
        batches.even_batches = False
        assert (sampler.remainder, batches.even_batches) == ("keep", False)
        assert sum(map(len, batches)) == 3
        batches.even_batches = True
        assert (sampler.remainder, batches.even_batches) == ("drop" if remainder == "drop" else "pad", True)


def test_an_iterator_takes_a_state_until_it_has_begun() -> None:
    sampler = ResumableSampler(10, seed=1)
    state = {**sampler.state_dict(), "position": 6}
    iterator: Any = iter(sampler)
    iterator.load_state_dict(state)
    assert list(iterator) == list(ResumableSampler(10, seed=1))[6:]
    begun: Any = iter(sampler)
    next(begun)
    with pytest.raises(StateError, match="has begun already"):
        begun.load_state_dict(state)


def test_the_rows_of_a_step_are_those_its_ranks_got() -> None:
    ranks = []
    for rank in range(2):
        sampler = ResumableSampler(21, seed=4, num_replicas=2, rank=rank)
        batches = ResumableBatchSampler(sampler, 4)
        ranks.append(list(batches))
        assert len(ranks[-1]) == len(batches)
    for step, rows in enumerate(zip(*ranks, strict=True)):
        assert batches.rows_in_step(step, epoch=0).tolist() == interleaved(list(rows))
    with pytest.raises(ValueError, match=r"step must be in 0\.\.2"):
        batches.rows_in_step(3)


def test_a_sampler_pickles_with_its_place() -> None:
    sampler = ResumableSampler(10, seed=1)
    rows = list(itertools.islice(sampler, 4))
    other = pickle.loads(pickle.dumps(sampler))
    assert other.state_dict() == sampler.state_dict()
    fresh = ResumableSampler(10, seed=1)
    fresh.load_state_dict(other.state_dict())
    assert rows + list(fresh) == list(ResumableSampler(10, seed=1))


@pytest.mark.quick("*-0", "True-2")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_torchdatas_stateful_loader_resumes_it(workers: int, batched: bool) -> None:
    def loader() -> StatefulDataLoader:
        sampler = ResumableSampler(40, seed=8)
        if batched:
            return StatefulDataLoader(
                range(40),  # type: ignore[arg-type]
                batch_sampler=ResumableBatchSampler(sampler, 4),
                num_workers=workers,
            )
        return StatefulDataLoader(range(40), batch_size=4, sampler=sampler, num_workers=workers)  # type: ignore[arg-type]

    fresh = loader()
    whole = [batch.tolist() for batch in fresh]
    following = [batch.tolist() for batch in fresh]
    assert whole != following
    for stop in (1, 6, None):  # and after the loop over an epoch
        first = loader()
        iterator = iter(first)
        got = [batch.tolist() for batch in itertools.islice(iterator, stop)]
        second = loader()
        second.load_state_dict(first.state_dict())
        if stop is not None:
            got += [batch.tolist() for batch in second]
        assert got == whole
        assert [batch.tolist() for batch in second] == following


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_replicas": 2}, "give both num_replicas and rank, or neither"),
        ({"rank": 1}, "give both num_replicas and rank, or neither"),
        ({"num_replicas": 2, "rank": 2}, r"rank must be in 0\.\.1, found 2"),
        ({"num_replicas": 0, "rank": 0}, "num_replicas must be at least 1"),
        ({"start_offset": -1}, "start_offset must be at least 0"),
        ({"remainder": "some"}, "remainder must be"),
        ({"seed": 1.5}, "seed must be an int, found 1.5"),
        ({"shuffle": "full"}, "shuffle must be True, False or 'block', found 'full'"),
        ({"shuffle_window": 5000}, r"shuffle_window must be in 1\.\.1024, found 5000"),
        ({"locality": "rank"}, "locality must be 'global' or 'shard', found 'rank'"),
        ({"num_replicas": 2, "rank": True}, "rank must be an int, found True"),
        ({"num_replicas": True, "rank": 0}, "num_replicas must be an int, found True"),
        ({"num_replicas": 2, "rank": np.True_}, "rank must be an int, found"),
        ({"seed": True}, "seed must be an int, found True"),
        ({"shuffle": 3}, "shuffle must be True, False or 'block', found 3"),
    ],
)
def test_bad_arguments_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResumableSampler(10, **arguments)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("length", [8, 40])  # the workers may be ahead by the whole epoch
def test_a_look_through_torchs_loader_takes_nothing_though_its_worker_is_ahead(
    length: int, batched: bool
) -> None:
    sampler = ResumableSampler(length, seed=1)
    order: Any = {"batch_sampler": ResumableBatchSampler(sampler, 4)} if batched else {"sampler": sampler}
    loader: Any = torch.utils.data.DataLoader(range(length), num_workers=1, **order)  # type: ignore[arg-type]
    next(iter(loader))
    found = [row for batch in loader for row in batch.tolist()]
    assert found == list(ResumableSampler(length, seed=1))


def test_a_foreign_sampler_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, found 0"):
        ResumableBatchSampler(ResumableSampler(3), 0)
    with pytest.raises(ValueError, match="must be a ResumableSampler, found RandomSampler"):
        ResumableBatchSampler(torch.utils.data.RandomSampler(range(3)), 2)  # type: ignore[arg-type]


def test_no_rows_are_an_epoch_without_any() -> None:
    for dataset in (0, []):
        sampler = ResumableSampler(dataset)
        assert (len(sampler), list(sampler)) == (0, [])
