"""What training loops do with a loader besides taking one batch after another."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import typing
from typing import Any

import numpy as np
import pytest
import torch
from starts import FRESH_STARTS
from torch.utils.data import DistributedSampler, SequentialSampler
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga.errors import StateError


def loader(data: Any = 20, size: int = 2, **options: Any) -> yoga.DataLoader:
    return yoga.DataLoader(range(data) if isinstance(data, int) else data, size, **options)


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.tolist()]


def resumed(state: Any, data: Any = 20, size: int = 2, **options: Any) -> list[int]:
    one = loader(data, size, **options)
    one.load_state_dict(json.loads(json.dumps(state)))
    return rows(one)


# -- peeks


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_tutorials_peek_before_set_epoch_loses_nothing(workers: int, sampled: bool) -> None:
    def made() -> tuple[Any, Any]:
        if not sampled:
            one = loader(shuffle=True, seed=3, num_workers=workers)
            return one, one
        sampler = yoga.ResumableSampler(20, seed=3)
        return torch.utils.data.DataLoader(range(20), 2, sampler=sampler, num_workers=workers), sampler

    batches, place = made()
    first = rows(itertools.islice(batches, 6))
    state = place.state_after(6) if not sampled else place.state_after(6, 2)
    batches, place = made()
    place.load_state_dict(state)
    rest = []
    for epoch in range(2):
        assert len(next(iter(batches))) == 2  # PyTorch's DDP tutorial looks at the size of a batch
        place.set_epoch(epoch)
        rest.append(rows(batches))
    assert sorted(first + rest[0]) == list(range(20))
    assert sorted(rest[1]) == list(range(20))
    proof = yoga.prove([place.receipt()])
    assert proof


def test_a_peek_before_a_plain_loop_loses_nothing() -> None:
    whole = rows(loader(shuffle=True, seed=3))
    for hold in (False, True):
        one = loader(shuffle=True, seed=3)
        held = iter(one)
        next(held)
        if not hold:
            del held
        assert rows(one) == whole
        assert "again: 2 rows" in str(one.prove())
    one = loader(shuffle=True, seed=3)
    pairs = list(zip(one, one, strict=True))  # used at once they are two epochs
    assert rows(a for a, _ in pairs) == whole
    assert rows(b for _, b in pairs) != whole


@pytest.mark.parametrize("size", [2, None])
def test_peek_moves_nothing(size: int | None) -> None:
    class Noisy(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index, torch.randint(1000, ()), random.randrange(1000)])

    for data in (Noisy(), range(20)):
        one = loader(data, size, shuffle=True, seed=3)  # type: ignore[arg-type]
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        before = one.state_dict()
        looked = [one.peek() for _ in range(2)]
        assert one.state_dict() == before
        assert torch.equal(states[0], torch.get_rng_state())
        assert (states[1], states[2]) == (random.getstate(), np.random.get_state()[1].tolist())
        batches = iter(one)
        first = next(batches)
        assert all(torch.equal(torch.as_tensor(found), torch.as_tensor(first)) for found in looked)
        coming = one.peek()
        assert torch.equal(
            torch.as_tensor(coming), torch.as_tensor(next(iter(loader(data, size, shuffle=True, seed=3))))
        )  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epoch 0 has no batch from position 0 on"):
        loader(0).peek()


def test_peek_whatever_the_workers() -> None:
    for options in ({"num_workers": 2, "in_order": False}, {"num_workers": 2, "persistent_workers": True}):
        assert (
            loader(shuffle=True, seed=3, **options).peek().tolist()
            == loader(shuffle=True, seed=3).peek().tolist()
        )


def test_a_look_at_a_validation_set_does_not_count_as_loss() -> None:
    one = loader()
    for _ in range(3):
        assert rows(one) == list(range(20))
        next(iter(one))
    assert "left out" not in str(one.prove())


def test_torchs_random_state_may_be_restored_after_the_loaders() -> None:
    def noise() -> float:
        return float(torch.rand(1))

    torch.manual_seed(1)
    one = loader(shuffle=True)
    batches = iter(one)
    whole = [(next(batches).tolist(), noise()) for _ in range(4)]
    state, random_state = one.state_dict(), torch.get_rng_state()
    whole += [(batch.tolist(), noise()) for batch in batches]
    torch.manual_seed(99)
    later = loader(shuffle=True)
    later.load_state_dict(state)
    torch.set_rng_state(random_state)
    assert [(batch.tolist(), noise()) for batch in later] == whole[4:]


def test_rows_left_out_are_named_once() -> None:
    one = loader(shuffle=True, seed=3)
    for _ in itertools.islice(one, 3):
        pass
    with pytest.warns(
        UserWarning, match="left after 6 of 20 rows of epoch 0; .* the other 14 rows are left out"
    ):
        assert len(rows(one)) == 20
    for _ in itertools.islice(one, 3):
        pass
    assert len(rows(one)) == 20
    assert "left out: 28 rows of epochs that were left early, up to 2" in str(one.prove())


# -- consumers that hold batches back


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "in_order": False}])
def test_a_prefetchers_batch_is_not_lost(options: Any) -> None:
    one = loader(40, shuffle=True, seed=3, **options)
    trained, states = [], []
    held = None
    for batch in one:
        if held is not None:
            trained.append(held.tolist())
            states.append(one.state_after(len(trained)))
        held = batch
    for steps, state in enumerate(states, start=1):
        assert one.state_after(steps) == state  # at any later time
        assert sorted(sum(trained[:steps], []) + resumed(state, 40, shuffle=True, seed=3)) == list(range(40))
    state = one.state_after(20)
    assert (state["epoch"], state["position"]) == (1, 0)
    with pytest.raises(ValueError, match=r"steps must be in 0\.\.20, the batches that this iteration"):
        one.state_after(21)
    rows(one)
    assert one.state_after(3)["epoch"] == 1
    one.load_state_dict(state)
    with pytest.raises(StateError, match="state was loaded after"):
        one.state_after(3)
    with pytest.raises(StateError, match="no iteration of this loader has begun"):
        loader().state_after(0)


def test_torchs_loader_with_workers_warns_of_rows_that_are_not_delivered_yet() -> None:
    sampler = yoga.ResumableSampler(1000, seed=3)
    batches = iter(torch.utils.data.DataLoader(range(1000), 10, sampler=sampler, num_workers=2))
    trained = rows(itertools.islice(batches, 7))
    with pytest.warns(UserWarning, match=r"sampler\.state_after\(steps, batch_size\)"):
        state = sampler.state_dict()
    assert state["position"] > 70
    assert sampler.state_dict() == state  # warned once
    state = sampler.state_after(7, 10)
    assert (state["position"], state["steps"]) == (70, 7)
    rest = yoga.ResumableSampler(1000, seed=3)
    rest.load_state_dict(state)
    assert sorted(trained + list(rest)) == list(range(1000))
    rows(batches)
    assert sampler.state_after(7, 10) == state
    assert sampler.state_after(100, 10)["epoch"] == sampler.state_dict()["epoch"] == 1
    with pytest.raises(ValueError, match=r"steps must be in 0\.\.100"):
        sampler.state_after(101, 10)


def test_an_older_iterator_raises_after_a_load() -> None:
    sampler = yoga.ResumableSampler(100_000, seed=3)
    iterator = iter(sampler)
    list(itertools.islice(iterator, 100))
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(StateError, match="a state was loaded after this iterator had begun"):
        next(iterator)


# -- batches that are late, and interrupts


class Flag:
    """A flag that all processes see, and that a killed process cannot break."""

    def __init__(self) -> None:
        self._memory = torch.zeros(1).share_memory_()

    def set(self) -> None:
        self._memory.fill_(1)

    def is_set(self) -> bool:
        return bool(self._memory)

    def wait(self) -> None:
        eventually(self.is_set)


class Slow(torch.utils.data.Dataset[Any]):
    """A dataset whose row 12 waits for a flag, and is counted."""

    def __init__(self, flag: Flag) -> None:
        self.flag, self.count = flag, torch.zeros(1).share_memory_()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 12:
            self.count += 1
            self.flag.wait()
        return index


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (4, {}),
        (4, {"persistent_workers": True}),
        (4, {"in_order": False}),
        (None, {}),
        (None, {"persistent_workers": True}),
    ],
)
def test_a_late_batch_is_not_lost(size: int | None, options: Any) -> None:
    flag = Flag()
    data = Slow(flag)
    one = loader(data, size, num_workers=1, timeout=1, **options)  # type: ignore[arg-type]
    found: list[int] = []
    batches, late = iter(one), 0
    while len(found) < 40:
        try:
            batch = next(batches)
        except RuntimeError as error:
            assert "timed out" in str(error)  # noqa: PT017
            late += 1
            flag.set()
            continue
        found += [batch] if size is None else batch.tolist()
        state = one.state_dict()
        if len(found) == 20:
            middle = state
    assert late
    assert data.count == 1  # its worker goes on: begun anew, a row slower than `timeout` would never come
    assert sorted(found) == list(range(40))
    assert next(batches, None) is None
    assert one.prove()
    assert sorted(found[:20] + resumed(middle, 40, 4)) == list(range(40))


class Blocking(torch.utils.data.Dataset[Any]):
    """A dataset whose rows from 16 on wait for a flag."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index >= 16:
            self.flag.wait()
        return index


def test_interrupts_while_persistent_workers_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    flag = Flag()
    one = loader(Blocking(flag), 4, num_workers=2, persistent_workers=True)
    batches = iter(one)
    found = rows(itertools.islice(batches, 3))
    one.load_state_dict(one.state_dict())

    def interrupted() -> None:
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        timer.join()

    batches = iter(one)
    interrupted()  # torch waits here for its workers to begin anew
    found += next(batches).tolist()
    interrupted()
    flag.set()
    found += rows(batches)
    assert found == list(range(40))
    assert one.prove()
    assert rows(one) == list(range(40))


class Killed(torch.utils.data.Dataset[Any]):
    """A dataset whose worker is killed at row 12, once."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 12 and not self.flag.is_set():
            self.flag.set()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_a_worker_that_was_killed_come_from_others(persistent: bool) -> None:
    flag = Flag()
    one = loader(Killed(flag), 4, num_workers=2, persistent_workers=persistent)
    found, batches = [], iter(one)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):  # noqa: PT012
        while True:
            found += next(batches).tolist()
    assert one.state_dict()["position"] == len(found)
    found += rows(batches)
    assert found == list(range(40))
    assert one.prove()


class Ending(torch.utils.data.Dataset[Any]):
    """A dataset whose row 5 raises StopIteration."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise StopIteration
        return index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [2, None])
def test_a_row_that_raises_stop_iteration_does_not_end_the_epoch(workers: int, size: int | None) -> None:
    one = loader(Ending(), size, num_workers=workers)  # type: ignore[arg-type]
    batches, found = iter(one), []
    with pytest.raises(RuntimeError, match="StopIteration"):  # noqa: PT012
        while True:
            batch = next(batches)
            found += [batch] if size is None else batch.tolist()
    found += [row for batch in batches for row in ([batch] if size is None else batch.tolist())]
    assert found == [row for row in range(12) if row not in ((5,) if size is None else (4, 5))]
    assert not one.prove()


# -- in place of torch's


def _in_another_process(one: yoga.DataLoader, results: Any) -> None:
    results.put(rows(one))


@pytest.mark.parametrize("method", FRESH_STARTS)
def test_a_loader_goes_to_another_process(method: str) -> None:
    context = multiprocessing.get_context(method)
    results = context.Queue()
    one = loader(shuffle=True, seed=3, num_workers=1, persistent_workers=True)
    rows(one)
    process = context.Process(target=_in_another_process, args=(one, results))
    process.start()
    assert results.get(timeout=PATIENCE) == rows(one)
    process.join(PATIENCE)
    assert process.exitcode == 0


def test_a_generator_of_the_users_gives_the_seed_and_is_left_alone() -> None:
    expected = torch.Generator().manual_seed(5)
    torch.empty((), dtype=torch.int64).random_(generator=expected)
    for workers in (0, 2):
        generator = torch.Generator().manual_seed(5)
        one = loader(shuffle=True, generator=generator, num_workers=workers)
        first = rows(one)
        assert torch.equal(generator.get_state(), expected.get_state())
        assert first == rows(loader(shuffle=True, generator=torch.Generator().manual_seed(5)))
        assert first != rows(loader(shuffle=True, generator=torch.Generator().manual_seed(6)))
        assert one.generator is generator
        rows(one)
        assert torch.equal(generator.get_state(), expected.get_state())


def test_arguments_are_in_torchs_order() -> None:
    data = list(range(10))
    ours = yoga.DataLoader(data, 3, True, None, None, 0, None, False, True, 0, None, None, None)
    torchs = torch.utils.data.DataLoader(data, 3, True, None, None, 0, None, False, True, 0, None, None, None)
    for name in ("batch_size", "drop_last", "num_workers", "timeout", "worker_init_fn", "generator"):
        assert getattr(ours, name) == getattr(torchs, name)
    assert len(ours) == len(torchs) == 3
    hints = typing.get_type_hints(_annotated)
    assert typing.get_origin(hints["batches"]) is yoga.DataLoader
    theirs = DistributedSampler(range(10), 2, 1, False, 4, True)
    sampler = yoga.ResumableSampler(range(10), 2, 1, False, 4, True)
    assert (sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed) == (2, 1, False, 4)
    assert sampler.drop_last
    assert list(sampler) == list(theirs)


def _annotated(batches: yoga.DataLoader[torch.Tensor]) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": 3}, "shuffle must be True, False or 'block', found 3"),
        ({"sampler": SequentialSampler(range(20)), "shuffle": True}, "sampler excludes shuffle"),
        ({"num_replicas": True, "rank": 0}, "num_replicas must be an int, found True"),
        ({"num_replicas": 2, "rank": np.True_}, "rank must be an int, found"),
        ({"seed": True}, "seed must be an int, found True"),
    ],
)
def test_arguments_that_mean_something_else_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**arguments)


# -- the seed


def test_torchs_global_seed_decides() -> None:
    orders = set()
    for seed in range(5):
        torch.manual_seed(seed)
        first = rows(loader(shuffle=True))
        torch.manual_seed(seed)
        assert rows(loader(shuffle=True)) == first
        torch.manual_seed(seed)
        assert rows(yoga.DataLoader(range(20), 2, sampler=yoga.ResumableSampler(20))) == first
        orders.add(tuple(first))
    assert len(orders) == 5


def test_one_number_is_drawn_also_in_a_run_that_is_resumed() -> None:
    class Drawing(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return int(torch.randint(1000, ()))

    for data, shuffle in ((range(20), True), (Drawing(), False)):
        torch.manual_seed(1)
        torch.empty((), dtype=torch.int64).random_()
        expected = torch.rand(3)
        torch.manual_seed(1)
        one = loader(data, shuffle=shuffle)
        len(one), repr(one), iter(one)
        assert "seed=None" in repr(one)
        whole = rows(one)
        assert f"seed={one.state_dict()['seed']}" in repr(one)
        assert torch.equal(torch.rand(3), expected)
        torch.manual_seed(1)
        one = loader(data, shuffle=shuffle)
        first = rows(itertools.islice(one, 4))
        state = json.loads(json.dumps(one.state_dict()))
        torch.manual_seed(1)
        later = loader(data, shuffle=shuffle, num_workers=2)
        later.load_state_dict(state)
        assert later.state_dict() == state
        assert first + rows(later) == whole
        assert torch.equal(torch.rand(3), expected)
    # Nothing depends on it: nothing is drawn.
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    rows(loader())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("ask", ["state_dict", "rows_at", "position_of"])
def test_asking_for_the_order_fixes_the_seed(ask: str) -> None:
    sampler = yoga.ResumableSampler(20)
    assert sampler.seed is None
    answer = {"rows_at": lambda: sampler.rows_at(range(20)), "position_of": lambda: sampler.position_of(3)}
    found = answer.get(ask, sampler.state_dict)()
    seed = sampler.seed
    assert seed is not None
    order = list(sampler)
    assert sampler.seed == seed
    if ask != "state_dict":
        assert found.tolist() == order if ask == "rows_at" else found == order.index(3)


def test_a_state_of_another_given_seed_is_refused() -> None:
    one = loader(shuffle=True, seed=3)
    rows(itertools.islice(one, 2))
    with pytest.raises(StateError, match="the state has seed 3, but here it is 4"):
        loader(shuffle=True, seed=4).load_state_dict(one.state_dict())
    assert len(resumed(one.state_dict(), shuffle=True)) == 16


@pytest.mark.parametrize(
    ("environment", "several"), [({}, False), ({"WORLD_SIZE": "1"}, False), ({"WORLD_SIZE": "2"}, True)]
)
def test_in_a_job_of_several_processes_the_seed_is_zero(
    environment: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    sampler = yoga.ResumableSampler(20, 2, 1)
    assert (sampler.state_dict()["seed"] == 0) is several
    assert torch.equal(before, torch.get_rng_state()) is several


# -- datasets that change


def test_a_dataset_that_grows_or_shrinks_is_reported() -> None:
    for change in (lambda data: data.append(20), lambda data: data.pop()):
        for workers in (0, 2):
            data = list(range(20))
            one = loader(data, shuffle=True, seed=3, num_workers=workers)
            assert sorted(rows(one)) == list(range(20))
            change(data)
            with pytest.raises(ValueError, match=f"the dataset had 20 rows .* and has {len(data)} now"):
                next(iter(one))
            other = loader(data, shuffle=True, seed=3, num_workers=workers)
            other.load_state_dict(one.state_dict(), strict=False)
            assert len(rows(other)) == len(data)


# -- row seeds have a version


def test_a_state_of_other_row_seeds_is_reported_once() -> None:
    class Drawing(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return int(torch.randint(1000, ()))

    one = loader(Drawing(), shuffle=True, seed=3)
    rows(itertools.islice(one, 2))
    state = one.state_dict()
    assert state["row_seeds"] == 2
    one.load_state_dict(state)
    with pytest.warns(UserWarning, match="the state's row seeds are of version 1"):
        one.load_state_dict({**state, "row_seeds": 1})
    one.load_state_dict({**state, "row_seeds": 1})
    assert "row_seeds" not in loader(shuffle=True).state_dict()
