"""Any sampler: drawn again after a resume, without a change to other random numbers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from own import Mapped
from samplers import (
    ROWS,
    SAMPLERS,
    ByEpoch,
    ByLength,
    Noisy,
    Tasks,
    drawn,
    endlessly,
    loader_of,
    plain,
    rows_of,
    seed_all,
)
from starts import FRESH_STARTS
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
)
from torchdata.stateful_dataloader.sampler import RandomSampler as TorchdataRandomSampler

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.order.epoch import IterationOptions
from torchyoga.sampling.ranks import Ranks
from torchyoga.sampling.redrawn import RedrawnIndices
from torchyoga.sampling.user_sampler import UserSampler
from torchyoga.testing import assert_rows_equal, check_resume


@pytest.mark.slow("replacement", "subset", "NumPy's old", "Python's")
@pytest.mark.parametrize("name", SAMPLERS)
def test_resumed_from_every_batch_twice_by_small_states(name: str) -> None:
    check_resume(lambda: loader_of(name, seed=3))
    loader = loader_of(name, seed=3)
    next(iter(loader))
    own = ("a generator", "lazily", "NumPy's old", "Python's")
    assert len(json.dumps(loader.state_dict())) < (8192 if name in own else 1024)


@pytest.mark.quick("tasks", "ours within")
@pytest.mark.parametrize("name", SAMPLERS)
def test_stopped_and_continued_with_other_workers(name: str) -> None:
    options: Any = {} if name == "singly" else {"prefetch_factor": 3}
    whole = loader_of(name)
    seed_all()
    expected = [plain(batch) for _ in range(3) for batch in whole]
    own = drawn()
    for workers, stop in ((2, 1), (0, 2), (2, len(expected) // 3)):
        seed_all()
        first = loader_of(name, num_workers=workers, **(options if workers else {}))
        batches = itertools.chain.from_iterable(itertools.repeat(first))
        got = [plain(batch) for batch in itertools.islice(batches, stop)]
        state, numbers = json.loads(json.dumps(first.state_dict())), torch.get_rng_state()
        del batches
        seed_all()
        torch.set_rng_state(numbers)
        second = loader_of(name, num_workers=2 - workers, **({} if workers else options))
        second.load_state_dict(state)
        assert second.state_dict() == state
        got += [plain(batch) for batch in itertools.islice(endlessly(second), len(expected) - stop)]
        assert got == expected
        assert drawn() == own


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sampler_and_the_training_loop_do_not_see_each_others_numbers(workers: int) -> None:
    seed_all()
    still = [plain(batch) for batch in loader_of("tasks", seed=3, num_workers=workers)]
    seed_all()
    expected = [drawn() for _ in range(6)]
    seed_all()
    busy, own = [], []
    for batch in loader_of("tasks", seed=3, num_workers=workers):
        busy.append(plain(batch))
        own.append(drawn())
    assert busy == still
    assert own == expected


def test_without_a_seed_manual_seed_decides_and_each_epoch_draws_one_number() -> None:
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        loader = loader_of("weighted")
        for epoch in range(2):
            order = [plain(batch)[0] for batch in loader]
            orders += [order] * (not epoch)
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        assert torch.rand(()) == torch.rand((), generator=generator)
    assert orders[0] == orders[1] != orders[2]
    assert loader_of("weighted", num_replicas=2, rank=1).state_dict()["seed"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_asked_no_earlier_than_by_torch(workers: int) -> None:
    class Watched(Tasks):
        asked = 0

        def __iter__(self) -> Iterator[list[int]]:
            for batch in super().__iter__():
                self.asked += 1
                yield batch

    mine, torchs = Watched(), Watched()
    data: Any = list(range(ROWS))
    ours = iter(yoga.DataLoader(yoga.from_arrays(np.arange(ROWS)), batch_sampler=mine, num_workers=workers))
    theirs = iter(torch.utils.data.DataLoader(data, batch_sampler=torchs, num_workers=workers))
    for _ in range(3):
        next(ours), next(theirs)
        assert mine.asked <= torchs.asked
    assert mine.asked == torchs.asked


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["weighted", "tasks", "a list", "batches", "by length", "a state"])
def test_a_dataref_is_read_by_batches(name: str, workers: int) -> None:
    data = np.arange(ROWS) * 10
    for dataset in (yoga.from_arrays(data), Subset(yoga.from_arrays(np.arange(50) * 10), range(ROWS))):  # type: ignore[arg-type]
        seed_all()
        found = [batch.tolist() for batch in loader_of(name, dataset, num_workers=workers)]
        seed_all()
        expected = [batch.tolist() for batch in loader_of(name, data.tolist())]
        assert found == expected


def test_any_index_reaches_the_dataset_as_it_is() -> None:
    class SeenAtOnce(Mapped):
        def __getitems__(self, indices: Any) -> Any:
            return [indices]

    keys: Any = [[("a", 1), "b"], [{"support": 3}, None], [np.int32(4), torch.tensor(5)]]
    for workers in (0, 1):
        loader = yoga.DataLoader(
            Mapped(3, lambda index: index),
            batch_sampler=keys,
            num_workers=workers,
            collate_fn=lambda rows: rows,
        )
        found = list(loader)
        assert [list(batch) for batch in found] == keys
        assert type(found[2][0]) is np.int32
        assert type(found[2][1]) is torch.Tensor
        wholes: Any = [{"support": [1], "query": [2]}, (3, 4), np.array([5])]
        loader = yoga.DataLoader(
            SeenAtOnce(3),
            batch_sampler=wholes,
            num_workers=workers,
            collate_fn=lambda rows: rows[0],
            seed_rows=False,
        )
        assert_rows_equal(list(loader), wholes)
        loader = yoga.DataLoader(SeenAtOnce(3), batch_sampler=wholes[:1], collate_fn=lambda rows: rows[0])
        assert list(loader) == wholes[:1]
    lists: Any = [[1, 2], [3]]  # a batch sampler in place of a sampler, for datasets that take lists
    assert (
        list(yoga.DataLoader(Mapped(3, lambda index: index), None, sampler=lists, collate_fn=lambda row: row))
        == lists
    )


def test_a_row_that_comes_again_draws_anew() -> None:
    found = list(yoga.DataLoader(Noisy(), 2, sampler=[7, 7, 7, 7], seed=0))
    numbers = [number for batch in found for number in batch[1].tolist()]
    assert len(set(numbers)) == 4
    ranks = [
        yoga.DataLoader(Noisy(), 2, sampler=[7, 7, 7], seed=0, num_replicas=2, rank=rank) for rank in (0, 1)
    ]
    numbers = [number for loader in ranks for batch in loader for number in batch[1].tolist()]
    assert len(set(numbers)) == 6


@pytest.mark.quick("tasks", "lazily")
@pytest.mark.parametrize("name", ["tasks", "weighted", "a state", "no length", "lazily"])
def test_batches_as_they_are_ready(name: str) -> None:
    def uneven(index: int) -> int:
        time.sleep(0.03 if index % 3 == 0 else 0)
        return int(index)

    data = Mapped(ROWS, uneven)
    seed_all()
    whole = sorted(tuple(batch.tolist()) for batch in loader_of(name, data))
    for stop in (1, 2, 3):
        seed_all()
        options: Any = {"num_workers": 2, "in_order": False, "prefetch_factor": 3}
        loader = loader_of(name, data, **options)
        got = [tuple(batch.tolist()) for batch in itertools.islice(iter(loader), stop)]
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["steps"] == stop
        other = loader_of(name, data)
        other.load_state_dict(state)
        got += [tuple(batch.tolist()) for batch in other]
        assert sorted(got) == whole


def test_batches_that_were_overtaken_come_first_after_a_resume() -> None:
    for name in ("tasks", "a state"):
        whole = [plain(batch) for batch in loader_of(name, seed=3)]
        loader = loader_of(name, seed=3)
        source = loader._indices
        run = source.begin(IterationOptions(in_order=False))
        list(itertools.islice(source.batches(run, None), 4))
        for step in (0, 2, 3):
            run.deliver(step)
        source.cursor.reached(run)
        state = loader.state_dict()
        assert state["left"] == [[1, 2]]
        other = loader_of(name, seed=3, num_workers=1)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert [plain(batch) for batch in other] == [whole[1], *whole[4:]]
        assert other.state_dict()["epoch"] == 1


def test_batches_that_a_trainer_skips_may_be_more_than_the_epoch_before_had() -> None:
    loader = yoga.DataLoader(Noisy(), 2, sampler=ByEpoch(), seed=3)
    assert len(list(loader)) == 3
    rest: Any = iter(loader)
    rest.skip(5)
    assert [plain(batch)[0] for batch in rest] == [[30 % ROWS, 33 % ROWS]]


@pytest.mark.parametrize("name", ["tasks", "lazily", "a state", "torchdata's"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_after_any_batch_later(name: str, workers: int) -> None:
    whole = loader_of(name, seed=3)
    expected = [plain(batch) for _ in range(2) for batch in whole]
    loader = loader_of(name, seed=3, num_workers=workers)
    steps = len(list(loader))
    for step in range(steps + 1):
        other = loader_of(name, seed=3)
        other.load_state_dict(loader.state_after(step))
        found = [plain(batch) for _ in range(2) for batch in other]
        assert found[: len(expected) - step] == expected[step : step + len(found)]
    with pytest.raises(ValueError, match=f"steps must be in 0..{steps}"):
        loader.state_after(steps + 1)


def test_batches_that_fail_are_left_out_and_the_place_is_right(broken: Dataset[int]) -> None:
    batches = [[1, 2], [9, 3], [4, 5], [6, 7]]
    for workers in (0, 2):
        loader = yoga.DataLoader(broken, batch_sampler=batches, num_workers=workers)
        iterator = iter(loader)
        assert next(iterator).tolist() == [1, 2]
        with pytest.raises(RuntimeError, match="row 9 is broken"):
            next(iterator)
        assert next(iterator).tolist() == [4, 5]
        other = yoga.DataLoader(broken, batch_sampler=batches)
        other.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in other] == [batch.tolist() for batch in iterator] == [[6, 7]]


class Failing(Tasks):
    """A sampler that fails once, at its fourth batch, with an error or an interrupt."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind: type[BaseException] | None = kind

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(super().__iter__()):
            if number == 3 and self.kind is not None:
                kind, self.kind = self.kind, None
                raise kind("no such task")  # which nothing keeps, as its traceback keeps the workers
            yield batch


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_fails_ends_no_epoch(error: type[BaseException], workers: int) -> None:
    expected = [plain(batch) for batch in loader_of("tasks", seed=3)]
    loader = yoga.DataLoader(Noisy(), batch_sampler=Failing(error), seed=3, num_workers=workers)
    got: list[Any] = []
    iterator, errors = iter(loader), 0
    while True:
        try:
            got.append(plain(next(iterator)))
        except StopIteration:
            break
        except error:
            errors += 1
            assert loader.state_dict()["steps"] == len(got)
    assert errors == 1
    assert got == expected


def test_epochs_advance_and_set_epoch_reaches_the_sampler() -> None:
    sampler = ByLength()
    loader = yoga.DataLoader(Noisy(), 5, sampler=sampler, seed=3)
    orders = [rows_of(loader) for _ in range(3)]
    assert sampler.epoch == 2
    for epoch in range(3):
        alone = ByLength()
        alone.set_epoch(epoch)
        assert list(alone) == orders[epoch]
    loader.set_epoch(1)
    assert rows_of(loader) == orders[1]
    sampler.set_epoch(0)  # called by trainers, and by loops that know only the sampler
    assert sampler.epoch == 0
    assert rows_of(loader) == orders[0]
    assert loader.state_dict()["epoch"] == 1
    assert copy.deepcopy(sampler).epoch == pickle.loads(pickle.dumps(sampler)).epoch == 0
    copied = copy.deepcopy(sampler)
    copied.set_epoch(7)
    assert (copied.epoch, sampler.epoch, loader.state_dict()["epoch"]) == (7, 0, 1)


class Told(torch.utils.data.BatchSampler):
    """A batch sampler with a generator of its own, that notes the epochs it is told."""

    def __init__(self) -> None:
        super().__init__(range(16), 4, False)
        self.generator, self.told = torch.Generator(), []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        torch.rand(1)

    def __iter__(self) -> Iterator[list[int]]:
        self.generator.manual_seed(12 + self.told[-1])
        for batch in torch.randperm(16, generator=self.generator).reshape(4, 4):
            yield batch.tolist()


def test_set_epoch_of_the_loader_reaches_a_batch_sampler_at_once() -> None:
    sampler = Told()
    loader = yoga.DataLoader(range(16), batch_sampler=sampler, seed=3)
    before = torch.get_rng_state()
    loader.set_epoch(1)
    assert sampler.told == [1]
    assert torch.equal(before, torch.get_rng_state())
    batches = iter(loader)
    got = [next(batches).tolist()]
    assert sampler.told == [1, 1]  # and once more when the epoch begins
    loader.set_epoch(1)  # called late, when it draws from it
    got += [batch.tolist() for batch in batches]
    assert sampler.told == [1, 1]
    loader.set_epoch(5)
    loader.set_epoch(1)
    assert sampler.told[2:] == [5, 1]
    assert [batch.tolist() for batch in loader] == got
    resumed = Told()
    other = yoga.DataLoader(range(16), batch_sampler=resumed, seed=3)
    other.load_state_dict({**loader.state_dict(), "epoch": 4})
    with pytest.warns(UserWarning, match="counts its epochs anew"):
        other.set_epoch(0)
    assert resumed.told == [4]


def test_batches_left_out_are_reported() -> None:
    for name, message in (
        ("tasks", "after 2 of 6 batches .* the other 4 batches are left out"),
        ("no length", "after 2 batches .* the other batches are left out"),
    ):
        loader = loader_of(name, seed=3)
        list(itertools.islice(iter(loader), 2))
        with pytest.warns(UserWarning, match=message):
            next(iter(loader))


def test_lengths() -> None:
    assert len(loader_of("tasks")) == 6
    assert len(loader_of("weighted")) == 5
    assert len(loader_of("subset")) == 4
    assert len(loader_of("singly")) == 7
    with pytest.raises(TypeError):
        len(loader_of("no length"))


def test_an_epoch_of_unknown_length_may_be_over_when_a_state_is_taken() -> None:
    whole = loader_of("no length", seed=3)
    expected = [[plain(batch) for batch in whole] for _ in range(2)]
    loader = loader_of("no length", seed=3)
    list(itertools.islice(iter(loader), 6))
    state = loader.state_dict()
    assert (state["epoch"], state["steps"]) == (0, 6)  # it might go on
    other = loader_of("no length", seed=3)
    other.load_state_dict(state)
    assert [plain(batch) for batch in other] == expected[1]
    other = loader_of("no length", seed=3)
    other.load_state_dict(state)
    other.set_epoch(0)  # it is over, and the trainer counts
    assert list(other) == []
    assert [plain(batch) for batch in other] == expected[1]


def test_lengths_that_vary_and_lengths_that_are_wrong() -> None:
    class Varying(Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(5 + 3 * self.epoch))

    class Lying(Varying):
        said = 2

        def __len__(self) -> int:
            return self.said

    for said in (None, 2, 40):

        def make(said: Any = said) -> Any:
            sampler: Any = Varying() if said is None else Lying()
            sampler.said = said
            return yoga.DataLoader(Noisy(), 2, sampler=sampler, seed=0)

        loader = make()
        assert [len(list(loader)) for _ in range(3)] == [3, 4, 6]
        check_resume(make)


def test_states_of_another_sampler_or_dataset_are_refused() -> None:
    def refused(state: Any, loader: Any, match: str) -> None:
        before = loader.state_dict()
        with pytest.raises(StateError, match=match):
            loader.load_state_dict(state)
        assert loader.state_dict() == before

    loader = loader_of("weighted", seed=3)
    next(iter(loader))
    state = loader.state_dict()
    ours = yoga.DataLoader(Noisy(), 4, True, seed=3)
    refused(state, ours, "the state is of the sampler WeightedRandomSampler")
    refused(ours.state_dict(), loader_of("weighted"), "counts rows of an order of torchyoga's")
    refused(state, loader_of("weighted", batch_size=5), "the state has batch_size 4, but here it is 5")
    refused(state, loader_of("subset"), "the state has sampler 'WeightedRandomSampler'")
    refused(state, loader_of("weighted", num_replicas=2, rank=0), "has num_replicas 1, but here it is 2")
    refused(state, loader_of("weighted", list(range(30))), "the state has length 23, but here it is 30")
    refused(state, loader_of("weighted", seed=4), "the state has seed 3, but here it is 4")
    refs = [yoga.from_arrays(np.arange(ROWS) + k) for k in (0, 1)]
    refused(loader_of("weighted", refs[0]).state_dict(), loader_of("weighted", refs[1]), "fingerprint")
    refused({**state, "steps": -1}, loader_of("weighted"), "steps must be an int")
    refused({**state, "version": 9}, loader_of("weighted"), "version 9")
    refused({**state, "left": [[5, 1]]}, loader_of("weighted"), "left")
    refused({"epoch": 0}, loader_of("weighted"), "expected a state with the keys")
    for damage in ({"generators": [1]}, {"kept": [1]}):
        refused({**state, **damage}, loader_of("weighted"), "generators, kept or indices are damaged")
    refused({**state, "generators": {"generator": {}}}, loader_of("weighted"), "has generators")
    own = {**loader_of("a generator").state_dict(), "steps": 1}
    refused(state | {"sampler": "RandomSampler", "batch_size": 5}, loader_of("a generator"), "has generators")
    cut = {"generators": {"generator": {"torch": {"dtype": "|u1", "base85": "xx"}}}}
    refused(own | cut, loader_of("a generator"), "the state of a generator does not fit")
    refused(own | {"generators": {"generator": {"random": 1}}}, loader_of("a generator"), "does not fit")
    replay = RedrawnIndices(range(ROWS), UserSampler(Tasks(), None, False, True), 3, Ranks(1, 0, None))
    refused(state, replay, "the state has sampler 'WeightedRandomSampler'")
    lenient = loader_of("weighted", batch_size=5)
    lenient.load_state_dict(state, strict=False)
    assert lenient.state_dict()["steps"] == 1


def test_a_sampler_whose_iterator_says_where_it_stands() -> None:
    def loader() -> Any:
        sampler = TorchdataRandomSampler(range(ROWS), generator=torch.Generator().manual_seed(5))
        return yoga.DataLoader(Noisy(), 5, sampler=sampler, seed=3)

    whole = loader()
    expected = [plain(batch) for _ in range(2) for batch in whole]
    for stop in range(8):
        one = loader()
        got = [plain(batch) for batch in itertools.islice(endlessly(one), stop)]
        other = loader()
        other.load_state_dict(pickle.loads(pickle.dumps(one.state_dict())))  # it has tensors
        got += [plain(batch) for batch in itertools.islice(endlessly(other), 10 - stop)]
        assert got == expected


def test_indices_are_drawn_again_if_the_samplers_own_state_has_no_place() -> None:
    class Vague(ByLength):
        def state_dict(self) -> dict[str, int]:
            return {"epoch": self.epoch}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.epoch = state["epoch"]

    check_resume(lambda: yoga.DataLoader(Noisy(), 5, sampler=Vague(), seed=0))


def test_questions_about_rows_that_only_the_sampler_knows_are_refused() -> None:
    loader = loader_of("weighted", seed=3)
    for ask in (loader.prove, loader.receipt, lambda: loader.rows_in_step(0), lambda: loader.position_of(0)):
        with pytest.raises(StateError, match="WeightedRandomSampler decides which come"):
            ask()
    assert "23 rows of a Noisy, WeightedRandomSampler, seed=3" in repr(loader)


def test_an_object_that_is_not_a_sampler_is_refused() -> None:
    sampler: Any
    for sampler in (iter([1, 2]), (i for i in range(3)), map(int, "12"), itertools.count()):
        with pytest.raises(TypeError, match="can be iterated only once"):
            yoga.DataLoader(Noisy(), sampler=sampler)
    with pytest.raises(TypeError, match="must give indices"):
        yoga.DataLoader(Noisy(), sampler=3)
    with pytest.raises(ValueError, match="sampler excludes shuffle"):
        yoga.DataLoader(Noisy(), sampler=[1], shuffle=True)
    with pytest.raises(ValueError, match="batch_sampler excludes"):
        yoga.DataLoader(Noisy(), 2, batch_sampler=[[1]])
    data = yoga.from_arrays(np.arange(9))
    iterator = iter(yoga.DataLoader(data, batch_sampler=[[1], [("a", 2)]]))
    assert next(iterator).tolist() == [1]
    with pytest.raises(TypeError, match="rows are taken by an int"):  # as with torch, the batch has failed
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_between_epochs_a_generator_may_be_seeded_anew() -> None:
    loader, other = loader_of("a generator", seed=3), loader_of("a generator", seed=3)
    list(loader)
    loader.sampler.generator.manual_seed(9)
    other.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in other] == [plain(batch) for batch in loader]


def test_ranks_that_were_awaited_and_did_not_come_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = loader_of("by length", num_replicas=2, rank=0, seed=3).state_dict()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for strict in (True, False):
        loader = loader_of("by length", seed=3)
        loader.load_state_dict(state, strict)  # torch.distributed may still be initialised
        refused = pytest.raises(StateError, match="the state has num_replicas 2, but here it is 1")
        with warnings.catch_warnings(), refused if strict else contextlib.nullcontext():
            warnings.filterwarnings("ignore", "WORLD_SIZE is 2, but torch.distributed is not initialised")
            next(iter(loader))


def test_torchs_own_samplers_become_ours() -> None:
    expected = list(yoga.ResumableSampler(ROWS, 2, 1, seed=5, drop_last=True))
    theirs = DistributedSampler(Noisy(), 2, 1, seed=5, drop_last=True)
    for loader in (
        yoga.DataLoader(Noisy(), 4, sampler=theirs),
        yoga.DataLoader(Noisy(), batch_sampler=BatchSampler(theirs, 4, False)),
    ):
        assert rows_of(loader) == expected
        assert isinstance(loader.sampler, yoga.ResumableSampler)
        assert loader.prove.__self__ is loader
    torch.manual_seed(2)
    shuffled = [plain(batch) for batch in yoga.DataLoader(Noisy(), 4, True)]
    torch.manual_seed(2)
    found = yoga.DataLoader(Noisy(), 4, sampler=RandomSampler(Noisy()))
    assert [plain(batch) for batch in found] == shuffled
    found = yoga.DataLoader(Noisy(), 4, sampler=SequentialSampler(Noisy()), num_replicas=2, rank=0)
    assert rows_of(found) == list(range(0, ROWS, 2))
    assert isinstance(found.sampler, yoga.ResumableSampler)


def test_torchs_distributed_sampler_is_elastic_and_its_set_epoch_followed() -> None:
    def loaders(world: int, size: int) -> Any:
        samplers = [DistributedSampler(Noisy(), world, rank, seed=5) for rank in range(world)]
        return samplers, [yoga.DataLoader(Noisy(), size, sampler=sampler) for sampler in samplers]

    whole = loaders(1, 4)[1][0]
    orders = [rows_of(whole) for _ in range(3)]
    samplers, ranks = loaders(2, 3)
    for sampler in samplers:
        sampler.set_epoch(1)
    iterators = [iter(loader) for loader in ranks]
    got = [[row for _ in range(2) for row in next(iterator)[0].tolist()] for iterator in iterators]
    state = ranks[0].state_dict()
    assert state == ranks[1].state_dict()
    samplers, (later,) = loaders(1, 5)
    later.load_state_dict(state)
    samplers[0].set_epoch(1)
    assert [row for pair in zip(*got, strict=True) for row in pair] + rows_of(later) == orders[1]
    assert later.prove()
    samplers[0].set_epoch(1)  # the epoch has no rows left
    assert rows_of(later) == orders[1]
    fresh = DistributedSampler(Noisy(), 1, 0, seed=5)
    fresh.set_epoch(2)
    loader = yoga.DataLoader(Noisy(), 4, sampler=fresh)
    assert rows_of(loader) == orders[2]


def test_subclasses_are_foreign() -> None:
    class Backwards(DistributedSampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(list(super().__iter__())[::-1])

    class Even(yoga.ResumableSampler):
        def __iter__(self) -> Iterator[int]:
            return (row for row in super().__iter__() if row % 2 == 0)

    loader = yoga.DataLoader(Noisy(), 4, sampler=Backwards(Noisy(), 2, 0))
    assert rows_of(loader) == list(Backwards(Noisy(), 2, 0))
    check_resume(lambda: yoga.DataLoader(Noisy(), 4, sampler=Backwards(Noisy(), 2, 0), seed=1))
    check_resume(lambda: yoga.DataLoader(Noisy(), 4, sampler=Even(ROWS, 1, 0, seed=2), seed=1))


def test_on_several_ranks_torchs_samplers_draw_different_rows_and_others_give_a_warning() -> None:
    orders = [rows_of(loader_of("weighted", num_replicas=2, rank=rank, seed=3)) for rank in (0, 1)]
    assert orders[0] != orders[1]
    with pytest.warns(UserWarning, match="there are 2 ranks, and Tasks does not say that it heeds them"):
        next(iter(loader_of("tasks", num_replicas=2, rank=1)))
    loader = loader_of("a generator", num_replicas=2, rank=1)
    state = loader.state_dict()
    with pytest.raises(StateError, match="the state is of rank 1 alone, this is rank 0"):
        loader_of("a generator", num_replicas=2, rank=0).load_state_dict(state)
    # Where ranks keep nothing of their own, one state is for all of them.
    state = loader_of("by length", num_replicas=2, rank=1, seed=3).state_dict()
    loader_of("by length", num_replicas=2, rank=0, seed=3).load_state_dict(state)
    assert "rank" not in state
    assert "rank" not in loader_of("a generator").state_dict()


def test_a_loader_pickles_and_goes_on() -> None:
    loader = loader_of("tasks", seed=3)
    expected = [plain(batch) for batch in loader_of("tasks", seed=3)]
    iterator = iter(loader)
    got = [plain(next(iterator)) for _ in range(2)]
    other = pickle.loads(pickle.dumps(loader))
    assert other.state_dict() == loader.state_dict()
    other.load_state_dict(other.state_dict())
    assert got + [plain(batch) for batch in other] == expected
    assert [plain(batch) for batch in iterator] == expected[2:]


@pytest.mark.parametrize("method", ["fork", *FRESH_STARTS])
def test_persistent_workers(method: str) -> None:
    workers = 2 if method == "fork" else 1  # the other start methods are slow
    options: Any = {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": method}
    loader, whole = loader_of("tasks", seed=3, **options), loader_of("tasks", seed=3)
    assert [[plain(batch) for batch in loader] for _ in range(2)] == [
        [plain(batch) for batch in whole] for _ in range(2)
    ]


def test_a_dataset_that_grows_is_noticed() -> None:
    rows = list(range(9))
    loader = yoga.DataLoader(rows, 2, sampler=[1, 2, 3])
    list(loader)
    rows.append(9)
    with pytest.raises(ValueError, match="had 9 rows when the loader was made, and has 10 now"):
        list(loader)


LABELS: dict[str, Callable[[Iterable[int]], Any]] = {
    **{"ints": list, "texts": lambda rows: [f"{row:08}" for row in rows], "others": deque},
    "numbers": lambda rows: [*map(np.int64, rows)],
}


class Classes(torch.utils.data.Sampler[int]):
    """Rows of classes in turn; it shuffles a list of its own, as MPerClassSampler does."""

    def __init__(self, kind: str) -> None:
        self.labels = LABELS[kind](range(ROWS))

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        np.random.shuffle(self.labels)
        return iter([int(label) for label in self.labels])


@pytest.mark.quick("ints-*", "others-*")
@pytest.mark.parametrize(("epoch", "taken", "workers"), [(0, 2, 2), (1, 0, 0), (1, 2, 2), (2, 2, 0)])
@pytest.mark.parametrize("kind", LABELS)
def test_a_sampler_that_changes_goes_on_or_warns(kind: str, epoch: int, taken: int, workers: int) -> None:
    loader = yoga.DataLoader(range(ROWS), 4, sampler=Classes(kind), seed=3, num_workers=workers)
    for _ in range(epoch):
        list(loader)
    batches = iter(loader) if taken else None
    assert len(list(itertools.islice(batches or (), taken))) == taken
    state = json.loads(json.dumps(loader.state_dict()))
    loader.peek()
    rest = [batch.tolist() for batch in batches or loader]
    later = yoga.DataLoader(range(ROWS), 4, sampler=Classes(kind), seed=3)
    later.load_state_dict(state)
    assert later.state_dict() == state
    if epoch and taken and kind == "others":
        words = f"Classes has drawn other indices for the first 2 batches of epoch {epoch}"
        with pytest.warns(UserWarning, match=words):
            next(iter(later))
    elif not epoch or kind != "others":
        assert [batch.tolist() for batch in later] == rest
        assert {*map(type, later.sampler.labels)} == {*map(type, loader.sampler.labels)}
        assert kind == "others" or [b.tolist() for b in later] == [b.tolist() for b in loader]
    with pytest.raises(StateError, match="indices are damaged"):
        later.load_state_dict(state | {"indices": "1"})
