"""Datasets that change while they are in use: they are reported, and what only seems to change is not."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loops import loader, rows
from own import Mapped

import torchyoga as yoga


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


class Pairs(torch.utils.data.Dataset[Any]):
    """Pairs that are drawn before each epoch."""

    def __init__(self, draw: Callable[[int], list[int]]) -> None:
        self.draw, self.cache, self.alpha = draw, [None] * 40, torch.tensor(0.5)
        self.paths, self.losses = [f"/{random.random()}"] * 40, torch.rand(40)

    def ng_sample(self, epoch: int) -> None:
        self.pairs = [(7, other) for other in self.draw(epoch)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        self.cache[row], self.losses[row] = row, random.random()  # type: ignore[call-overload]
        return torch.tensor(self.pairs[row]) + torch.randint(10, ())


class Told(Pairs):
    def set_epoch(self, epoch: int) -> None:
        self.ng_sample(epoch)


def _drawn_by_numpy(_: int) -> list[int]:
    return np.random.randint(1000, size=40).tolist()


def _drawn_by_random(_: int) -> list[int]:
    return [random.randrange(1000) for _ in range(40)]


def _drawn_for(epoch: int) -> list[int]:
    return np.random.default_rng((7, epoch)).integers(1000, size=40).tolist()


def _trained(dataset: Any, state: Any = None, epochs: int = 3, most: int = 8) -> Any:
    one = loader(dataset, 5, shuffle=True, seed=3)
    if state is not None:
        one.load_state_dict(json.loads(json.dumps(state)))
        assert one.state_dict() == state
    for epoch in range(one.epoch, epochs):
        dataset.ng_sample(epoch)
        for step, _ in enumerate(one):
            if step == most:
                return one.state_dict()
        torch.rand(1)  # validation
    return one.state_dict()


@pytest.mark.parametrize("draw", [_drawn_by_numpy, _drawn_by_random])
def test_rows_that_are_drawn_anew_are_reported(draw: Any) -> None:
    expected = (
        r"pairs of the dataset changed between epochs 0 and 1, .* rows may be others after a resume.*Ignore"
    )
    with pytest.warns(UserWarning, match=expected):
        _trained(Pairs(draw))
    state = _trained(Told(draw), epochs=2)  # its rows belong to an epoch
    _trained(Pairs(draw), state, 2)  # saved between epochs
    state = _trained(Pairs(draw), most=3)
    with pytest.warns(UserWarning, match="when the state was saved, pairs of the dataset held other numbers"):
        _trained(Pairs(draw), state)


def test_rows_that_persistent_workers_do_not_see_are_reported() -> None:
    dataset = Pairs(_drawn_for)
    one = loader(dataset, 5, seed=3, num_workers=1, persistent_workers=True)
    dataset.ng_sample(0)
    rows(one)
    dataset.ng_sample(1)
    with pytest.warns(
        UserWarning, match="pairs of the dataset changed between epochs 0 and 1, but persistent"
    ):
        rows(one)
    subset = torch.utils.data.Subset(yoga.from_arrays(np.arange(40)), list(range(20)))
    one = loader(subset, 5, num_workers=1, persistent_workers=True)  # a thread, which sees them
    rows(one)
    subset.indices = list(range(20, 40))
    assert rows(one) == subset.indices


def test_rows_that_follow_from_the_epoch_are_not_reported() -> None:
    _trained(Pairs(_drawn_for))
    for most in (0, 3):
        state = _trained(Pairs(_drawn_for), most=most)
        assert list(state["drawn"]) == ["pairs"]
        _trained(Pairs(_drawn_for), state)


def test_what_counts_the_rows_that_are_read_is_not_reported() -> None:
    class Counting(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.times_read, self.last_read = [0] * 40, np.arange(40)

        def __len__(self) -> int:
            return 40

        def __getitem__(self, row: int) -> int:
            self.times_read[row] += 1
            self.last_read[row] = self.last_read.max() + 1
            return row

    dataset = Counting()
    one = loader(dataset, 5, shuffle=True, seed=3)
    for _ in range(3):
        assert len(rows(one)) == 40
        for row in range(40):
            dataset[row]  # for a plot
        random.random()
    rows(itertools.islice(one, 2))
    one.load_state_dict(one.state_dict())
    rows(one)


def test_a_split_that_was_drawn_anew_is_reported() -> None:
    def split() -> yoga.DataLoader:
        return loader(torch.utils.data.random_split(Mapped(40), [30, 10])[0], 5, shuffle=True, seed=3)

    one = split()
    rows(itertools.islice(one, 2))
    state = one.state_dict()
    rows(split())
    other = split()
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match="when the state was saved, indices of the dataset held other"):
        rows(other)
    other.load_state_dict(state, strict=False)
    rows(other)
