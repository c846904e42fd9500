"""States of epochs that rows were appended to."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import product

import pytest
from own import Mapped

from torchyoga.errors import StateError
from torchyoga.loading.loader import DataLoader
from torchyoga.order.contract import BegunOrder
from torchyoga.order.full import Order
from torchyoga.sampling.sampler import ResumableSampler


class Versions(Mapped):
    """A dataset of so many rows, that begins with those of smaller ones."""

    def __init__(self, length: int, *before: int) -> None:
        super().__init__(length)
        self.fingerprint = f"rows {length}"
        self._prefixes = [(f"rows {rows}", rows) for rows in before]


def samplers(data: Versions, world: int, shuffle: object = True) -> list[ResumableSampler]:
    return [ResumableSampler(data, world, rank, shuffle, 7, remainder="keep") for rank in range(world)]


def taken(some: list[ResumableSampler], steps: int | None = None) -> list[int]:
    """The rows of so many steps of all ranks, by position; of the whole epoch by default."""
    iterators, found = [iter(one) for one in some], []
    while steps is None or steps:
        rows = [row for one in iterators if (row := next(one, None)) is not None]
        found += rows
        if not rows:
            break
        steps = None if steps is None else steps - 1
    return found


def saved(some: list[ResumableSampler]) -> Mapping[str, object]:
    state = some[0].state_dict()
    assert len(json.dumps(state)) < 1024
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_row_comes_once_whatever_is_appended(shuffle: bool) -> None:
    for old, more, world in product(range(1, 7), range(1, 5), (1, 2, 3)):
        for steps in range(-(-old // world)):
            some = samplers(Versions(old), world, shuffle)
            whole = taken(samplers(Versions(old), world, shuffle))
            before = taken(some, steps)
            assert before == whole[: len(before)]
            for others in (1, 2, 3):
                then = samplers(Versions(old + more, old), others, shuffle)
                for one in then:
                    one.load_state_dict(saved(some), appended="next")
                middle = taken(then, 1)
                last = samplers(Versions(old + more, old), world, shuffle)
                for one in last:
                    one.load_state_dict(saved(then))
                # One step may have been all that was left of the epoch.
                rest = taken(last) if then[0].state_dict()["position"] else []
                rows = before + middle + rest
                if before:
                    assert rows == whole
                else:
                    assert sorted(rows) == list(range(old + more))
                state = saved(last)
                assert "grown" not in state
                assert state["length"] == old + more
                assert sorted(taken(last)) == list(range(old + more))


def story(number: int) -> None:
    """Trains, appends, resumes and resizes, and checks each epoch's rows."""
    draw = random.Random(number)
    length, world, before = draw.randint(1, 12), draw.randint(1, 3), ()
    some, epoch, seen, until = samplers(Versions(length), world), 0, [], length
    for _ in range(12):
        for row in taken(some, 1):
            seen.append(row)
        state = saved(some)
        if state["epoch"] > epoch:
            assert sorted(seen) == list(range(until)), number
            seen, until, epoch = [], length, state["epoch"]
        appended = None
        if draw.random() < 0.4:
            before, length = (*before, length), length + draw.randint(1, 5)
            appended = "next"
            until = until if state["position"] else length
        some = samplers(Versions(length, *before), draw.randint(1, 3))
        for one in some:
            one.load_state_dict(state, appended=appended)


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.soak)])
def test_stories(count: int) -> None:
    for number in range(count):
        story(number)


def resumed(shuffle: object = True, appended: str | None = None) -> DataLoader:
    """A loader over 30 rows, with a state after 8 of the first 20."""
    loader = DataLoader(Versions(20), 4, shuffle, seed=7)
    batches = iter(loader)
    next(batches), next(batches)
    grown = DataLoader(Versions(30, 20), 4, shuffle, seed=7, appended=appended)
    grown.load_state_dict(loader.state_dict())
    return grown


@pytest.mark.parametrize("shuffle", [True, False, "block"])
def test_the_epoch_under_way_is_finished_and_proved(shuffle: object) -> None:
    loader = resumed(shuffle, "next")
    assert sum(len(batch) for batch in loader) == 12
    assert "each exactly once" in str(loader.prove())


@pytest.mark.parametrize(
    "more", [{"grown": 5}, {"grown": "x"}, {"grown": 2**70}, {"grown": 31}, {"version": 2}]
)
def test_forged_states_are_refused(more: dict[str, object]) -> None:
    loader = resumed(appended="next")
    state = {**loader.state_dict(), **more}
    with pytest.raises(StateError):
        resumed(appended="next").load_state_dict(state)


def test_a_lookup_has_an_inverse() -> None:
    order = BegunOrder(Order(9000, 7), Order(5000, 7), epoch=1)
    for epoch, length in ((0, 9000), (1, 5000), (2, 9000)):
        rows = order.rows(epoch, range(length))
        assert sorted(rows.tolist()) == list(range(length))
        assert order.positions(epoch, rows).tolist() == list(range(length))
