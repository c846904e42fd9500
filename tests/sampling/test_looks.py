"""A look at a first batch of any sampler: it moves nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from samplers import (
    ROWS,
    ByEpoch,
    Noisy,
    drawn,
    loader_of,
    plain,
    seed_all,
)

import torchyoga as yoga
from torchyoga.errors import StateError


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
