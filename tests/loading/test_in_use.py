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
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from interrupting import pressed
from loops import loader, resumed, rows
from own import Mapped
from torch.utils.data import DistributedSampler
from waiting import PATIENCE, at_once, eventually, running, switching_often

import torchyoga as yoga
from torchyoga.errors import StateError

# -- peeks


@pytest.mark.quick("*-0", "True-2")
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


IN_ANY_ORDER = {"num_workers": 2, "in_order": False}


@pytest.mark.parametrize("options", [{}, IN_ANY_ORDER, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("size", [2, None])
def test_peek_moves_nothing(size: int | None, options: Any) -> None:
    def noisy(index: int) -> Any:
        return torch.tensor([index, torch.randint(1000, ()), random.randrange(1000)])

    for data in (Mapped(20, noisy), range(20)):
        made = partial(loader, data, size, shuffle=True, seed=3)  # type: ignore[arg-type]
        first, one = next(iter(made())), made(**(options if size else {}))
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        before = one.state_dict()
        looked = [one.peek() for _ in range(2)]
        assert one.state_dict() == before
        assert torch.equal(states[0], torch.get_rng_state())
        assert (states[1], states[2]) == (random.getstate(), np.random.get_state()[1].tolist())
        batches = iter(one)
        next(batches)
        looked.append(one.peek())  # also while they go on
        assert all(torch.equal(torch.as_tensor(found), torch.as_tensor(first)) for found in looked)
    with pytest.raises(ValueError, match=r"epoch 0 has no batch from position 0 on.*pass drop_last=False"):
        loader(0).peek()


def test_a_loop_over_first_batches_is_warned_that_they_are_the_same() -> None:
    one = loader(shuffle=True, seed=3)
    first = [next(iter(one)).tolist() for _ in range(5)]
    with pytest.warns(UserWarning, match=r"last 5 iterations .* begins epoch 0 at position 0, .*set_epoch"):
        first.append(next(iter(one)).tolist())
    assert first == first[:1] * 6
    for _ in range(4):
        assert next(iter(one)).tolist() == first[0]  # warned once
    one, plain = loader(shuffle=True, seed=3), loader()
    batches = []
    for epoch in range(7):
        assert next(iter(plain)).tolist() == [0, 1]  # as it would be anyhow
        one.set_epoch(epoch)
        batches += [next(iter(one)).tolist() for _ in range(2)]
    assert batches[::2] == batches[1::2]
    assert len({tuple(batch) for batch in batches}) == 7
    for _ in range(7):
        rows(one)
        next(iter(one))
    weighted = torch.utils.data.WeightedRandomSampler(torch.ones(20), 20)
    one = loader(sampler=weighted, seed=3)
    for _ in range(5):
        next(iter(one))
    with pytest.warns(UserWarning, match="last 5 iterations"):
        next(iter(one))


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


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, IN_ANY_ORDER])
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


@pytest.mark.slow("4-options1", "None-options4")
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
    flag, count = Flag(), torch.zeros(1).share_memory_()

    def slow(index: int) -> int:
        if index == 12:
            count.add_(1)
            flag.wait()
        return index

    one = loader(Mapped(40, slow), size, num_workers=1, timeout=1, **options)  # type: ignore[arg-type]
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
    assert count == 1  # its worker goes on: begun anew, a row slower than `timeout` would never come
    assert sorted(found) == list(range(40))
    assert next(batches, None) is None
    assert one.prove()
    assert sorted(found[:20] + resumed(middle, 40, 4)) == list(range(40))


def blocking(flag: Flag) -> Mapped:
    """A dataset whose rows from 16 on wait for a flag."""

    def row(index: int) -> int:
        if index >= 16:
            flag.wait()
        return index

    return Mapped(40, row)


def test_interrupts_while_persistent_workers_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    flag = Flag()
    one = loader(blocking(flag), 4, num_workers=2, persistent_workers=True)
    batches = iter(one)
    found = rows(itertools.islice(batches, 3))
    one.load_state_dict(one.state_dict())

    batches = iter(one)
    assert pressed(lambda: next(batches))  # torch waits here for its workers to begin anew
    found += next(batches).tolist()
    assert pressed(lambda: next(batches))
    flag.set()
    found += rows(batches)
    assert found == list(range(40))
    assert one.prove()
    assert rows(one) == list(range(40))


def test_an_interrupt_while_workers_end_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = Flag()
    one = loader(blocking(flag), 4, num_workers=1)
    batches = iter(one)
    found = rows(itertools.islice(batches, 4))
    assert pressed(lambda: next(batches))
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", PATIENCE)
    assert pressed(lambda: next(batches))  # the worker is in a row still, and waited for
    flag.set()
    found += rows(batches)
    assert found == list(range(40))
    assert one.prove()


@pytest.mark.quick("True")
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_a_worker_that_was_killed_come_from_others(persistent: bool) -> None:
    flag = Flag()

    def killed(index: int) -> int:
        if index == 12 and not flag.is_set():
            flag.set()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    one = loader(Mapped(40, killed), 4, num_workers=2, persistent_workers=persistent)
    found, batches = [], iter(one)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):  # noqa: PT012
        while True:
            found += next(batches).tolist()
    assert one.state_dict()["position"] == len(found)
    found += rows(batches)
    assert found == list(range(40))
    assert one.prove()


def ending(index: int) -> int:
    if index == 5:
        raise StopIteration
    return index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [2, None])
def test_a_row_that_raises_stop_iteration_does_not_end_the_epoch(workers: int, size: int | None) -> None:
    one = loader(Mapped(12, ending), size, num_workers=workers)  # type: ignore[arg-type]
    batches, found = iter(one), []
    with pytest.raises(RuntimeError, match="StopIteration"):  # noqa: PT012
        while True:
            batch = next(batches)
            found += [batch] if size is None else batch.tolist()
    found += [row for batch in batches for row in ([batch] if size is None else batch.tolist())]
    assert found == [row for row in range(12) if row not in ((5,) if size is None else (4, 5))]
    assert not one.prove()


# -- threads that ask


def _asked(kind: str) -> Any:
    weights = torch.ones(64)
    made = {
        "loader": lambda: loader(64, 4, shuffle=True, seed=3),
        "ref": lambda: loader(yoga.from_arrays({"x": np.arange(64)}), 4, shuffle=True, seed=3),
        "as they are ready": lambda: loader(
            64, 4, shuffle=True, seed=3, num_workers=1, persistent_workers=True, in_order=False
        ),
        "foreign": lambda: loader(64, 4, sampler=torch.utils.data.WeightedRandomSampler(weights, 64), seed=3),
        "sampler": lambda: yoga.ResumableSampler(64, seed=3),
        "batch sampler": lambda: yoga.ResumableBatchSampler(yoga.ResumableSampler(64, seed=3), 4),
    }
    return made[kind]()


@pytest.mark.quick("loader", "ref", "*sampler")
@pytest.mark.parametrize(
    "kind", ["loader", "ref", "as they are ready", "foreign", "sampler", "batch sampler"]
)
def test_a_thread_that_asks_without_a_pause_changes_nothing(kind: str) -> None:
    one, epochs = _asked(kind), 20 if kind == "as they are ready" else 150
    ended = threading.Event()

    def ask() -> None:
        before = (0, 0)
        while not ended.is_set():
            state = one.state_dict()
            place = state["epoch"], state.get("position", state["steps"])
            assert place >= before
            before = place
            if kind == "foreign":
                continue
            assert kind == "sampler" or place[1] == 4 * state["steps"]
            proof = one.prove()
            assert proof, str(proof)

    with switching_often(), running(ask):
        try:
            for _ in range(epochs):
                for _ in one:
                    pass
        finally:
            ended.set()
    assert one.state_dict()["epoch"] == epochs


# -- in place of torch's


def _in_another_process(one: yoga.DataLoader, results: Any) -> None:
    results.put(rows(one))


@pytest.mark.rest
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
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


def test_a_generator_of_the_users_gives_the_seed() -> None:
    plain = torch.Generator().manual_seed(5)
    for _ in range(3):
        torch.empty((), dtype=torch.int64).random_(generator=plain)
    expected = torch.rand(3, generator=plain)
    for workers in (0, 2):
        generator = torch.Generator().manual_seed(5)
        one = loader(shuffle=True, generator=generator, num_workers=workers)
        first = rows(one)
        assert first == rows(loader(shuffle=True, generator=torch.Generator().manual_seed(5)))
        assert first != rows(loader(shuffle=True, generator=torch.Generator().manual_seed(6)))
        assert first != rows(loader(shuffle=True, generator=generator))  # as torch's, two loaders differ
        assert one.generator is generator
        rows(one)
        assert torch.equal(torch.rand(3, generator=generator), expected)


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


# -- the seed


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("data", "shuffle"),
    [(range(20), True), (Mapped(20, lambda _: int(torch.randint(1000, ()))), False)],
    ids=["order", "rows"],
)
def test_each_order_draws_one_number_of_torchs_however_a_run_begins(data: Any, shuffle: bool) -> None:
    def numbers(drawn: int) -> list[float]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(drawn * shuffle):  # where rows alone need a seed, none
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        return torch.rand(3, generator=generator).tolist()

    torch.manual_seed(1)
    one = loader(data, shuffle=shuffle)
    len(one), repr(one), iter(one)
    assert "seed=None" in repr(one)
    whole = rows(one)
    assert f"seed={one.state_dict()['seed']}" in repr(one)
    assert torch.rand(3).tolist() == numbers(1)
    torch.manual_seed(1)
    rows(one)
    assert torch.rand(3).tolist() == numbers(1)
    torch.manual_seed(1)
    one = loader(data, shuffle=shuffle)
    first = rows(itertools.islice(one, 4))
    state = json.loads(json.dumps(one.state_dict()))
    torch.manual_seed(1)
    later = loader(data, shuffle=shuffle, num_workers=2)
    later.load_state_dict(state)
    assert later.state_dict() == state
    assert first + rows(later) == whole
    assert torch.rand(3).tolist() == numbers(0)  # it went on
    torch.manual_seed(1)
    rows(later), rows(later)
    assert torch.rand(3).tolist() == numbers(2)
    torch.manual_seed(1)
    rows(loader(data, shuffle=shuffle, seed=5))
    assert torch.rand(3).tolist() == numbers(0)


def test_loaders_of_several_threads_have_seeds_of_their_own_and_no_number_comes_twice() -> None:
    torch.manual_seed(1)
    drawn: list[list[int]] = [[], [], []]

    def draw(found: list[int]) -> None:
        for _ in range(3000):
            found.append(int(torch.empty((), dtype=torch.int64).random_().item()))

    def make(found: list[int]) -> None:
        for _ in range(600):
            found.append(loader(shuffle=True).state_dict()["seed"])  # type: ignore[arg-type]

    at_once(*map(partial, (draw, make, make), drawn))
    together = [number for found in drawn for number in found]
    assert len(together) == len(set(together)) == 4200


@pytest.mark.parametrize("ask", ["state_dict", "rows_at", "position_of"])
def test_asking_for_the_order_fixes_the_seed(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # alone in its job: it is drawn, not 0 as for several
    sampler = yoga.ResumableSampler(20)
    assert sampler.seed is None
    answer = {"rows_at": lambda: sampler.rows_at(range(20)), "position_of": lambda: sampler.position_of(3)}
    found = answer.get(ask, sampler.state_dict)()
    seed = sampler.seed
    assert seed
    order = list(sampler)
    assert sampler.seed == seed
    if ask != "state_dict":
        assert found.tolist() == order if ask == "rows_at" else found == order.index(3)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_gets_a_list(workers: int) -> None:
    """As torch's loader gives it: collators of transformers ask for one."""
    ref = yoga.from_arrays({"x": np.arange(10)})
    for given in yoga.DataLoader(ref, 4, collate_fn=_itself, num_workers=workers):
        assert type(given) is list
    batch = next(iter(yoga.DataLoader(ref, 4, collate_fn=torch.utils.data.default_collate)))
    assert batch["x"].tolist() == [0, 1, 2, 3]


def _itself(rows: Any) -> Any:
    return rows


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_workers_that_let_sigterm_pass_end_when_they_are_terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyoga.process.stops._listening", {int(signal.SIGTERM): ["a program"]})
    batches = iter(yoga.DataLoader(list(range(100)), num_workers=1))
    next(batches)
    (worker,) = batches._started._fetched._workers
    os.kill(worker.pid, signal.SIGTERM)
    assert next(batches).tolist() == [1]
    worker.terminate()
    worker.join(20)
    assert worker.exitcode == -signal.SIGKILL
