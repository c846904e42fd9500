"""A process with threads forks, and its children do not wait for these threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from children import started, status_of_child
from waiting import at_once, running

import torchyoga as yoga
from torchyoga.process.lazy import cached_property
from torchyoga.process.threads import renew_in_children

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Half:
    """A property that takes as long as `wait` does."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait
        self.count = 0

    @cached_property
    def value(self) -> int:
        """How often it was computed."""
        self.count += 1
        self._wait()
        return self.count

    def renew(self) -> None:
        self._wait, self.count = bool, 0


def test_a_property_is_computed_once_and_can_be_replaced() -> None:
    half = Half(bool)
    assert (half.value, half.value, half.count) == (1, 1, 1)
    half.__dict__["value"] = 7
    assert half.value == 7
    assert Half.__dict__["value"].__doc__ == "How often it was computed."


def test_children_do_not_wait_for_threads_of_their_parent() -> None:
    """They wait neither for a property of another object nor for locks that are made anew."""
    goes_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert goes_on.wait(300)

    slow = Half(wait)
    renew_in_children(slow)
    others = [Half(bool) for _ in range(4)]

    def all_values() -> None:
        together = threading.Barrier(5)  # threads that run in turn may all get the id of the parent's thread

        def ask(half: Half) -> None:
            together.wait(300)
            assert half.value == 1

        at_once(*(partial(ask, half) for half in (slow, *others)))
        assert [half.value for half in (slow, *others)] == [1] * 5

    with running(lambda: slow.value):
        assert begun.wait(300)
        assert status_of_child(all_values) == 0
        goes_on.set()
    assert slow.value == 1


HOLDER = """
import os, subprocess, sys, time
import torchyoga as yoga
storage, kind = yoga.Storage(sys.argv[1]), sys.argv[2]

class Slow:
    def __len__(self):
        return 100
    def __getitem__(self, number):
        if kind == "a forked child" and os.fork() == 0:
            time.sleep(300)
        if kind == "a command":
            subprocess.Popen(["sleep", "300"])
        os.write(1, b"child\\n")  # at once, though several write
        time.sleep(300)

storage.submit(Slow(), "a", "1", num_workers=2 * (kind == "workers"))
"""


@pytest.mark.parametrize("kind", ["workers", "a forked child", "a command"])
def test_processes_started_by_a_killed_builder_do_not_keep_its_lock(kind: str, tmp_path: Path) -> None:
    """The kernel frees a lock with the last process that has its file open."""
    with started(HOLDER, str(tmp_path), kind) as builder:
        assert builder.stdout.readline() == "child\n"
        builder.kill()
        os.killpg(builder.pid, 0)  # a process of it is still running
        assert len(yoga.Storage(tmp_path, timeout=10).submit([1, 2], "a", "1")) == 2


def test_a_child_asks_for_states_though_a_thread_of_its_parent_was_asking() -> None:
    sampler, held, goes_on = yoga.ResumableSampler(10, seed=1), threading.Event(), threading.Event()

    def ask() -> None:
        with sampler.indices.cursor.lock:
            held.set()
            assert goes_on.wait(300)

    with running(ask):
        assert held.wait(300)
        assert status_of_child(lambda: next(iter(sampler)) and sampler.state_dict()) == 0
        goes_on.set()
