"""Samplers of users: the indices that they draw, their generators, and looks at a first batch."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from samplers import ROWS, ByEpoch, Noisy, drawn, loader_of, plain, seed_all
from sklearn.utils import check_random_state

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.order.place import Place
from torchyoga.process.seeding import OwnGenerators
from torchyoga.sampling.user_sampler import END, Drawing, UserSampler, generators_of, put_back, written


class Drawn:
    """A sampler that draws each index when it is asked for."""

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(1000, ())) for _ in range(7))


class Itself:
    """A sampler that is its own iterator."""

    def __iter__(self) -> Any:
        self.number = 0
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number > 5:
            raise StopIteration
        return self.number


def drawing_of(sampler: Any, size: int | None = 2, drop_last: bool = False) -> Drawing:
    found = Drawing(UserSampler(sampler, size, drop_last, False), 0, None, partial(OwnGenerators, 3))
    found.open()
    return found


def all_of(drawing: Drawing) -> list[Any]:
    found: list[Any] = []
    while (batch := drawing.batch(len(found))) is not END:
        found.append(batch)
    return found


def kept_of(batches: list[Any]) -> list[int]:
    """The numbers of those that something else holds, too."""
    return [number for number in range(len(batches)) if sys.getrefcount(batches[number]) > 2]


def test_batches_are_kept_until_they_are_delivered_and_drawn_again_if_asked_for() -> None:
    drawing = drawing_of(Drawn())
    whole = all_of(drawing)
    assert [len(batch) for batch in whole] == [2, 2, 2, 1]
    assert [drawing.batch(number) for number in (2, 0, 3)] == [whole[2], whole[0], whole[3]]
    drawing.forget(Place(0, 2, (range(1, 2),)))  # 0 and 2 have been delivered
    assert kept_of(whole) == [1, 3]
    drawing.forget(Place(0, 4))
    assert kept_of(whole) == []
    assert drawing.batch(4) is END
    drawing.forget(Place(0, 0))
    assert drawing.batch(1) == whole[1]
    assert all_of(drawing_of(Drawn(), drop_last=True)) == whole[:3]
    assert sum(whole, []) == all_of(drawing_of(Drawn(), None))


def test_a_sampler_that_is_its_own_iterator() -> None:
    assert all_of(drawing_of(Itself())) == [[1, 2], [3, 4], [5]]
    assert drawing_of(Itself()).is_of_one_iterator
    assert not drawing_of(Drawn()).is_of_one_iterator


# -- random generators into JSON and back


KINDS: dict[str, Any] = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "Python": lambda: random.Random(3),
    "NumPy": lambda: np.random.default_rng(3),
    "Mersenne": lambda: np.random.Generator(np.random.MT19937(3)),
    "Philox": lambda: np.random.Generator(np.random.Philox(3)),
    "old": lambda: np.random.RandomState(3),
}


def drawn_by(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return torch.randn(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(3)]
    return [float(generator.normal()) for _ in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_goes_on_where_it_was(kind: str) -> None:
    generator = KINDS[kind]()
    drawn_by(generator)  # three, so that one is drawn_by in advance where they come in pairs
    text = json.dumps(written(generator))
    assert len(text) < 4500
    expected = drawn_by(generator)
    other = KINDS[kind]()
    put_back(other, json.loads(text))
    assert drawn_by(other) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_do_not_fit_are_refused(kind: str) -> None:
    generator = KINDS[kind]()
    for other in KINDS:
        if other != kind and {other, kind} != {"Mersenne", "old"}:  # these are one algorithm
            with pytest.raises(StateError, match="does not fit"):
                put_back(generator, written(KINDS[other]()))
    packed = {"dtype": "<u4", "base85": "not that"}
    damaged: Any
    for damaged in (None, {}, {"torch": packed}, {"random": [3, packed, None]}, {"numpy": {"state": packed}}):
        with pytest.raises(StateError, match="does not fit"):
            put_back(generator, damaged)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, {"state": {"pos": pos}}) for kind in ("Mersenne", "old") for pos in (-1, 625, "0")),
        *(("old", {"state": {"key": key}}) for key in ([], {"dtype": "<u4", "base85": ""})),
        ("old", {"state": {"key": {"dtype": "<M8[s/0]", "base85": ""}}}),  # at which NumPy ends the process
        *(("Philox", {"buffer_pos": pos}) for pos in (-1, 2**70)),
        *(("NumPy", {"state": {"state": word}}) for word in (-1, 2**200)),
    ],
)
def test_forged_states_are_refused(kind: str, change: Any) -> None:
    generator = KINDS[kind]()
    state = written(generator)["numpy"]
    for name, value in change.items():
        state[name] = {**state[name], **value} if name == "state" else value
    with pytest.raises(StateError, match="does not fit"):
        put_back(generator, {"numpy": state})


def test_global_generators_do_not_count_as_a_samplers_own() -> None:
    mine = {name: make() for name, make in KINDS.items()}
    shared = {
        "a": torch.default_generator,
        "b": check_random_state(None),
        "c": random.random.__self__,  # type: ignore[attr-defined]
        "d": random.SystemRandom(),
        "e": 3,
    }
    assert generators_of(SimpleNamespace(**mine, **shared)) == mine
    assert generators_of([1, 2]) == {}


# -- looks at a first batch move nothing


@pytest.mark.parametrize("name", ["tasks", "weighted"])
def test_a_batch_of_a_dataref_is_looked_at_before_any_came(name: str) -> None:
    ref = yoga.from_arrays({"row": np.arange(ROWS)})
    loader = loader_of(name, ref, seed=3, collate_fn=None)
    assert loader.peek()["row"].tolist() == next(iter(loader))["row"].tolist()


@pytest.mark.parametrize("name", ["tasks", "weighted", "lazily", "a state", "by length", "torchdata's"])
def test_a_look_at_a_batch_moves_nothing(name: str) -> None:
    whole = loader_of(name, seed=3)
    expected = [plain(batch) for _ in range(2) for batch in whole]
    loader = loader_of(name, seed=3)
    seed_all()
    assert plain(loader.peek()) == plain(loader.peek()) == expected[0]
    assert drawn() == (seed_all(), drawn())[1]  # type: ignore[func-returns-value]
    next(iter(loader))  # PyTorch's tutorial does so for the size of a batch
    loader.set_epoch(0)
    assert [plain(batch) for _ in range(2) for batch in loader] == expected
    state = loader.state_dict()
    loader = loader_of(name, seed=3)
    loader.load_state_dict(state)
    assert plain(loader.peek()) == plain(next(iter(loader)))
    half = loader_of(name, seed=3)
    iterator = iter(half)
    got = [plain(next(iterator)), plain(next(iterator))]
    half.load_state_dict(half.state_dict())
    assert plain(half.peek()) == expected[2]
    with pytest.raises(StateError, match="iter"):
        next(iterator)
    assert got + [plain(batch) for batch in half] == expected[: len(expected) // 2]


def test_a_look_while_an_iteration_is_under_way() -> None:
    expected = [plain(batch) for _ in range(2) for batch in loader_of("lazily", seed=3)][:4]
    loader = loader_of("lazily", seed=3)
    iterator = iter(loader)
    got = [plain(next(iterator)), plain(next(iterator))]
    loader.peek()
    assert got + [plain(batch) for batch in iterator] == expected
    loader = loader_of("a state", seed=3)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(StateError, match="Stateful keeps its place itself"):
        loader.peek()


def test_after_a_look_the_sampler_is_told_its_epoch_again() -> None:
    expected = [plain(batch) for batch in yoga.DataLoader(Noisy(), 2, sampler=ByEpoch(), seed=3)]
    loader = yoga.DataLoader(Noisy(), 2, sampler=ByEpoch(), seed=3)
    iterator = iter(loader)
    got = [plain(next(iterator)), plain(next(iterator))]
    assert plain(loader.peek())[0] == [0, 3]  # of the next epoch
    assert got + [plain(batch) for batch in iterator] == expected


def test_a_look_after_a_loop_that_was_left_warns_of_nothing() -> None:
    loader = loader_of("weighted", seed=3)
    assert len(list(itertools.islice(loader, 2))) == 2
    loader.peek()
    with pytest.warns(UserWarning, match="left after 2 of 5 batches of epoch 0"):
        next(iter(loader))
