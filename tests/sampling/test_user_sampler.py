"""The indices of an epoch as a foreign sampler draws them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from torchyoga.order.place import Place
from torchyoga.process.seeding import OwnGenerators
from torchyoga.sampling.user_sampler import END, Drawing, UserSampler


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
