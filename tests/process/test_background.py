"""Results come in order, each with its own error; the thread works ahead up to a bound, and ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from children import status_of_child
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE, eventually, running

from torchyoga.process.threads import Ahead, Task

AWAY = 0.002  # long enough that a thread is worthwhile


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "torchyoga-ahead"]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=12),
    st.integers(0, 5),
    st.integers(0, 2),
)
def test_results_come_in_order_however_slow_the_consumer_is(
    plan: list[tuple[int, bool, bool]], most: int, num_threads: int
) -> None:
    def tasks() -> Iterator[Task[int]]:
        for number, (size, fails, _) in enumerate(plan):

            def run(number: int = number, fails: bool = fails) -> int:
                if fails:
                    raise KeyError(number)
                return number

            yield Task(run, size)

    ahead = Ahead(tasks(), most, num_threads)
    for number, (_, fails, slow) in enumerate(plan):
        if slow:
            time.sleep(AWAY)
        if fails:
            with pytest.raises(KeyError) as raised:
                next(ahead)
            assert raised.value.args == (number,)
        else:
            assert next(ahead) == number
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(ahead)


def test_the_thread_works_ahead_as_far_as_it_may_and_no_further() -> None:
    taken: list[int] = []
    begun: list[int] = []

    def tasks() -> Iterator[Task[None]]:
        for i in range(50):
            taken.append(i)
            yield Task(lambda i=i: begun.append(i), 2)

    ahead = Ahead(tasks(), 4)
    for _ in range(5):
        next(ahead)
        time.sleep(5 * AWAY)
    eventually(lambda: len(begun) == 7)  # two tasks of two batches
    time.sleep(0.1)
    assert taken == sorted(begun) == list(range(7))


def test_without_a_pause_the_thread_does_not_work_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleNamespace(perf_counter=lambda: 1.0)  # because a machine may pause by itself
    monkeypatch.setattr("torchyoga.process.threads.time", stopped)
    before = len(threads())
    ahead = Ahead((Task(lambda i=i: i, 1) for i in range(1000)), 4)
    assert list(ahead) == list(range(1000))
    assert len(threads()) <= before


def test_a_consumer_of_threads_that_were_asked_for_helps_them_instead_of_waiting() -> None:
    made_here = threading.Event()

    def tasks() -> Iterator[Task[bool]]:
        yield Task(lambda: True, 1)
        while True:
            yield Task(one, 1)

    def one() -> bool:
        if threading.current_thread() is threading.main_thread():
            made_here.set()
        return made_here.wait(PATIENCE)

    ahead = Ahead(tasks(), 4, 1)
    assert all(next(ahead) for _ in range(8))
    assert made_here.is_set()


@pytest.mark.parametrize("size", [1, 15])
def test_a_thread_and_the_consumer_work_at_once_also_where_a_task_makes_many_batches(size: int) -> None:
    both = threading.Barrier(2)  # broken if they work one after the other
    tasks = [Task(lambda: 0, size), *[Task(lambda: both.wait(30), size)] * 2]
    assert sorted(Ahead(iter(tasks), 4, 1)) == [0, 0, 1]


def test_an_interruption_of_the_consumer_while_it_helps_is_raised_at_once() -> None:
    is_under_way, may_end = threading.Event(), threading.Event()

    def one() -> None:
        if threading.current_thread() is threading.main_thread():
            assert is_under_way.wait(PATIENCE)
            raise KeyboardInterrupt
        is_under_way.set()
        may_end.wait(PATIENCE)

    ahead = Ahead((Task(one if i else lambda: None, 1) for i in range(100)), 50, 1)
    next(ahead)
    assert is_under_way.wait(PATIENCE)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(ahead)
        assert not may_end.is_set()
    finally:
        may_end.set()


def started(most: int = 4) -> Ahead[Any]:
    """An `Ahead` whose thread runs."""

    def endless() -> Iterator[Task[int]]:
        while True:
            yield Task(lambda: 1, 1)

    ahead = Ahead(endless(), most)
    for _ in range(4):
        next(ahead)
        time.sleep(5 * AWAY)
    assert threads()
    return ahead


def test_no_thread_begins_where_the_loop_only_waits_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    eventually(lambda: not threads())
    monkeypatch.setattr("torchyoga.process.threads.cpu_delay", time.perf_counter)  # all of the time
    for _ in Ahead((Task(lambda: 1, 1) for _ in range(20)), 4):
        time.sleep(5 * AWAY)
        assert not threads()


def test_dropping_an_iterator_ends_its_thread() -> None:
    gc.collect()
    eventually(lambda: not threads())
    ahead = started()
    del ahead
    eventually(lambda: not threads())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_thread_ends_also_where_an_interruption_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchyoga.process.threads._SharedResults.stop", interrupted)
    before = set(threads())
    ahead = Ahead((Task(lambda: 0, 1) for _ in range(100)), 1, 2)
    assert next(ahead) == 0
    own = set(threads()) - before
    assert len(own) == 2
    del ahead
    gc.collect()
    eventually(lambda: not own.intersection(threads()))


def test_an_error_of_the_task_iterator_arrives_and_ends_the_results() -> None:
    def tasks() -> Iterator[Task[int]]:
        yield Task(lambda: 1, 1)
        raise OSError("no more numbers")

    ahead = Ahead(tasks(), 2)
    assert next(ahead) == 1
    with pytest.raises(OSError, match="no more numbers"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_meanwhile_ends(tmp_path: Any) -> None:
    left = [started(100)]
    entered, leave = threading.Event(), threading.Event()

    def hold(shared: Any) -> None:
        with shared.changed:
            entered.set()
            leave.wait(300)

    with running(partial(hold, left[0]._shared)):
        assert entered.wait(300)
        assert status_of_child(left.clear) == 0
        leave.set()
    assert next(left[0]) == 1


def test_what_a_thread_made_is_freed_before_the_interpreter_ends() -> None:
    code = """
import time
from torchyoga.process.threads import Ahead, Task

class Slow:
    def __del__(self):
        time.sleep(0.2)
        print("freed", flush=True)

ahead = Ahead((Task(Slow, 1) for _ in range(100)), 3, 1)
next(ahead)
while len(ahead._shared.tickets) < 3:
    time.sleep(0.01)
del ahead
time.sleep(0.1)
print("the end")
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert finished.stdout.split("\n") == ["freed", "the end", *["freed"] * 3, ""]
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_consumer_goes_on_alone_once_its_threads_were_stopped() -> None:
    ahead = Ahead((Task(lambda i=i: i, 1) for i in range(30)), 4, 2)
    assert next(ahead) == 0
    ahead._shared.stop()
    assert list(ahead) == list(range(1, 30))
