"""Tasks on a thread of their own: in turn, few at once, and usable after Ctrl-C at any line."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref

import pytest
from children import status_of_child
from interrupting import interrupted
from waiting import PATIENCE

from torchyoga.process import threads as task_thread
from torchyoga.process.threads import Errand, TaskThread


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_than_some_wait_for_their_turn(most: int) -> None:
    gate, begun, done = threading.Event(), threading.Event(), []
    thread = TaskThread("test", most)

    def first() -> None:
        begun.set()
        gate.wait(PATIENCE)

    thread.add(first)
    assert begun.wait(PATIENCE)
    for number in range(most):
        thread.add(lambda number=number: done.append(number))  # type: ignore[misc]
    late = threading.Timer(0.2, gate.set)
    late.start()
    assert not gate.is_set()  # nothing has waited so far
    thread.add(lambda: done.append(-1))
    assert gate.is_set()
    thread.settle()
    assert done == [*range(most), -1]
    thread.close()
    late.join()


@pytest.mark.parametrize("call", ["add", "settle"])
def test_after_an_error_nothing_runs(call: str) -> None:
    done: list[int] = []
    thread = TaskThread("test", 5)
    gate = threading.Event()
    thread.add(lambda: gate.wait(PATIENCE))
    thread.add(lambda: 1 // 0)
    thread.add(lambda: done.append(1))
    gate.set()
    with pytest.raises(ZeroDivisionError):
        thread.settle()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            thread.add(lambda: done.append(2)) if call == "add" else thread.settle()
    thread.close()
    assert not done


def test_an_error_is_raised_while_a_task_waits_to_be_added() -> None:
    thread = TaskThread("test")
    gate = threading.Event()

    def fails() -> None:
        gate.wait(PATIENCE)
        raise OSError("full")

    thread.add(fails)
    late = threading.Timer(0.1, gate.set)
    late.start()
    thread.add(lambda: None)
    with pytest.raises(OSError, match="full"):
        thread.add(lambda: None)
    thread.close()
    late.join()


def test_a_closed_thread_drops_what_waits_and_is_gone() -> None:
    gate, begun, done = threading.Event(), threading.Event(), []
    thread = TaskThread("test", 2)

    def first() -> None:
        begun.set()
        gate.wait(PATIENCE)
        done.append("first")

    thread.add(first)
    assert begun.wait(PATIENCE)
    thread.add(lambda: done.append("second"))
    threading.Timer(0.1, gate.set).start()
    thread.close()
    assert done == ["first"]
    assert not [each for each in threading.enumerate() if each.name == "torchyoga-test"]
    TaskThread("never begun").close()


@pytest.mark.quick("True")
@pytest.mark.parametrize("fails", [False, True])
def test_a_forgotten_or_closed_thread_keeps_nothing_alive(fails: bool) -> None:
    class Owner:
        def __init__(self) -> None:
            self.thread = TaskThread("forgotten")
            self.thread.add(self.run)

        def run(self) -> None:
            if fails:
                raise ValueError("from a task")

    owner = Owner()
    if fails:
        with pytest.raises(ValueError, match="from a task"):
            owner.thread.settle()
        owner.thread.close()  # an error holds on to the owner until then
    else:
        owner.thread.settle()
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None
    deadline = time.monotonic() + 10
    while any(each.name == "torchyoga-forgotten" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_in_a_forked_child_it_says_that_it_is_gone() -> None:
    thread = TaskThread("test")
    thread.add(lambda: None)
    thread.settle()

    def settle() -> None:
        with pytest.raises(RuntimeError, match="torchyoga-test is gone"):
            thread.settle()

    assert status_of_child(settle) == 0
    thread.close()


@pytest.mark.parametrize("step", ["add", "settle"])
def test_interrupted_at_any_line_it_goes_on(step: str) -> None:
    """The task that was being added may run or not; all others run once, and settle waits for all of them."""
    line, goes_on = 0, True
    while goes_on:
        done: list[int] = []
        thread = TaskThread("test")
        thread.add(lambda: (time.sleep(0.002), done.append(0)))  # noqa: B023
        thread.add(lambda: done.append(1))  # noqa: B023
        call = thread.settle if step == "settle" else lambda: thread.add(lambda: done.append(2))  # noqa: B023
        goes_on = interrupted(call, task_thread.__file__, line)
        thread.settle()
        assert done[:2] == [0, 1]
        assert done[2:] in ([], [2])
        thread.add(lambda: done.append(3))  # noqa: B023
        thread.settle()
        assert done[-1] == 3
        assert len(done) <= 4
        thread.close()
        line += 1
        assert line < 200
    assert line > 3


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_busy", [False, True])
def test_an_errand_is_done_once_by_whoever_comes_first(is_busy: bool, fails: bool) -> None:
    gate, by, begun, done = threading.Event(), list[int](), threading.Event(), list[int]()
    thread = TaskThread("test", 5)
    if is_busy:
        thread.add(lambda: gate.wait(PATIENCE))

    def task() -> None:
        begun.set()
        time.sleep(0.05)
        by.append(threading.get_ident())
        if fails:
            raise OSError("full")

    errand = Errand(thread, task)
    assert is_busy or begun.wait(PATIENCE)
    with pytest.raises(OSError, match="full") if fails else contextlib.nullcontext():
        errand.finish()
    assert [ident == threading.get_ident() for ident in by] == [is_busy]
    gate.set()
    if not fails:
        thread.add(lambda: done.append(1))
        thread.settle()
        assert done == [1]
    assert len(by) == 1
    thread.close()
