"""A process with threads forks, and its children do not wait for them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
from children import status_of_child

from torchyoga import forks
from torchyoga.cached import cached_property
from torchyoga.forks import no_fork, renew_in_children

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Half:
    """A property that takes as long as it is told."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait
        self.count = 0

    @cached_property
    def value(self) -> int:
        """How often it was computed."""
        self.count += 1
        self._wait()
        return self.count

    def _renew(self) -> None:
        self._wait = bool


def test_a_property_is_computed_once_and_can_be_replaced() -> None:
    half = Half(bool)
    assert (half.value, half.value, half.count) == (1, 1, 1)
    half.__dict__["value"] = 7
    assert half.value == 7
    assert Half.__dict__["value"].__doc__ == "How often it was computed."


def test_children_do_not_wait_for_threads_of_their_parent() -> None:
    """Neither for a property of another object, nor for locks that are made anew."""
    goes_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert goes_on.wait(60)

    slow = Half(wait)
    renew_in_children(slow)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert begun.wait(60)
    others = [Half(bool) for _ in range(4)]

    def all_values() -> None:
        threads = [threading.Thread(target=getattr, args=(half, "value")) for half in (slow, *others)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [half.value for half in others] == [1] * 4

    assert status_of_child(all_values) == 0
    goes_on.set()
    thread.join(60)
    assert slow.value == 1


def held_for(seconds: float, done: list[bool]) -> threading.Thread:
    """A thread that holds off forks; returns once it does."""
    begun = threading.Event()

    def hold() -> None:
        with no_fork():
            begun.set()
            time.sleep(seconds)
            done.append(True)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(20)
    return thread


def check_free(done: list[bool]) -> None:
    """Another thread may hold off forks now, and what was to be done before is done."""
    assert done == [True]
    thread = held_for(0, [])
    thread.join(60)
    assert not thread.is_alive()


def test_a_fork_waits_for_what_must_not_be_cut_through() -> None:
    done: list[bool] = []
    thread = held_for(0.5, done)
    assert status_of_child(lambda: check_free(done)) == 0
    thread.join(60)
    assert status_of_child(lambda: check_free(done)) == 0
    check_free(done)


def test_a_fork_waits_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_PATIENCE", 0.1)
    done: list[bool] = []
    thread = held_for(2, done)
    assert status_of_child(lambda: check_free([*done, True])) == 0
    assert not done
    thread.join(60)
    check_free(done)


def test_a_process_may_fork_within() -> None:
    with no_fork():
        assert status_of_child(lambda: check_free([True])) == 0
    check_free([True])
