"""Warnings name the user's own line."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tqdm import tqdm
from userlines import check_line, line
from waiting import at_once

import torchyoga as yoga
from torchyoga.process.messages import warn_user


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each first iteration warn."""
    monkeypatch.setenv("WORLD_SIZE", "4")


def loop(loader: Any) -> int:
    found = line()
    for batch in loader:
        del batch
    return found


def generated(loader: Any) -> int:
    def batches() -> Iterator[Any]:
        yield from loader

    found = inspect.getsourcelines(batches)[1] + 1
    assert len(list(batches())) == 5
    return found


def with_a_bar(loader: Any) -> int:
    found = line()
    for batch in tqdm(loader, disable=None):
        del batch
    return found


def listed(loader: Any) -> int:
    found = line()
    list(loader)
    return found


def one_by_one(loader: Any) -> int:
    batches, found = iter(loader), line()
    next(batches)
    return found


def in_a_thread(loader: Any) -> int:
    found: list[int] = []
    at_once(lambda: found.append(loop(loader)))
    return found[0]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("way", [loop, generated, with_a_bar, listed, one_by_one, in_a_thread])
def test_a_warning_of_an_iteration_names_the_users_line(way: Callable[[Any], int]) -> None:
    arrays = yoga.from_arrays({"x": torch.arange(10).numpy()})
    for dataset in (list(range(10)), arrays):
        check_line(lambda: way(yoga.DataLoader(dataset, 2)))  # noqa: B023
        check_line(lambda: way(yoga.to_device(yoga.DataLoader(dataset, 2), "cpu")))  # noqa: B023
        sampler = yoga.ResumableSampler(dataset)
        check_line(lambda: way(torch.utils.data.DataLoader(dataset, 2, sampler=sampler)))  # noqa: B023


def test_a_warning_of_a_call_names_the_users_line() -> None:
    def set_epoch() -> int:
        loader = yoga.DataLoader(list(range(4)))
        loader.load_state_dict(loader.state_dict() | {"epoch": 3})
        found = line()
        loader.set_epoch(0)
        return found

    check_line(set_epoch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_a_warning_about_an_argument_names_the_users_line() -> None:
    check_line(
        lambda: loop(yoga.DataLoader(yoga.from_arrays({"x": torch.arange(10).numpy()}), 2, pin_memory=True))
    )


def test_filters_apply_and_each_line_warns_once_as_in_python() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn_user("once")
        warn_user("once")
    assert [warning.category for warning in caught] == [UserWarning] * 2
    with pytest.raises(UserWarning, match="as an error"):
        warn_user("as an error")


def test_without_a_line_of_the_user_the_outermost_line_is_named() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn_user, args=("alone",))
        thread.start()
        thread.join()
    assert [warning.filename for warning in caught] == [threading.__file__]
