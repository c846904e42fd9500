"""Threads that end before the interpreter does, and tasks on a thread of their own.

As it ends, Python stops each daemon thread where that next wants the interpreter's lock. Within C++, as where
a tensor is freed, this aborts the process. So our threads are asked to end, and waited for, before.

Ctrl-C at any point leaves a `TaskThread` usable, so that an interrupted build can write what it has: the
caller, who may be interrupted between a step and its count, counts nothing and holds no lock. The queues are
C code and need none.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

_PATIENCE = 10.0  # seconds for all threads: one that waits for a silent store may take longer
_begun: dict[threading.Thread, weakref.WeakMethod[Callable[[], object]]] = {}


def begin_thread(
    name: str, work: Callable[..., object], *args: object, stop: Callable[[], object]
) -> threading.Thread:
    """A daemon thread that has begun; it is asked to end, and waited for, when the interpreter ends.

    Args:
        name: of the thread.
        work: is called by the thread.
        *args: its arguments.
        stop: a method that asks the thread to end after what it has in hand. Its object is held by the thread
            alone, so that what a thread frees is freed before it ends.

    Raises:
        RuntimeError: the system allows no more threads.
    """
    for other in tuple(_begun):
        if other.ident is not None and not other.is_alive():
            _begun.pop(other, None)
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    _begun[thread] = weakref.WeakMethod(stop)
    try:
        thread.start()
    except RuntimeError:
        del _begun[thread]
        raise
    return thread


@atexit.register
def _end_all() -> None:
    """Ends the threads, and those that they begin meanwhile."""
    until = time.monotonic() + _PATIENCE
    while alive := [thread for thread in tuple(_begun) if thread.is_alive()]:
        for thread in alive:
            if (stop := _begun[thread]()) is not None:
                stop()
        for thread in alive:
            thread.join(max(0.0, until - time.monotonic()))
        if time.monotonic() >= until:
            return


_Task: TypeAlias = Callable[[], object]
_Mark: TypeAlias = "queue.SimpleQueue[None]"
_LOOK_EVERY = 1.0  # seconds between two checks that the thread is still alive


@dataclass(eq=False)
class _Shared:
    """The state that the thread shares with the object that is its handle; it has no reference to that."""

    tasks: queue.SimpleQueue[_Task | _Mark | None] = field(default_factory=queue.SimpleQueue)
    begun: _Mark = field(default_factory=queue.SimpleQueue)  # a mark for each task
    error: BaseException | None = None
    is_over: bool = False

    def end(self) -> None:
        """Ends the thread after its current task."""
        self.is_over = True
        self.tasks.put(None)


class TaskThread:
    """Runs tasks one after the other on a daemon thread.

    After a task has failed none is run; each later call raises its error. It is used by one thread, not in
    forked children.

    Example:
        >>> done = []
        >>> thread = TaskThread("example")
        >>> thread.add(lambda: done.append(1))
        >>> thread.settle()
        >>> done
        [1]
        >>> thread.close()
    """

    def __init__(self, name: str, most: int = 1) -> None:
        """A thread for tasks, of which `most` may wait for their turn."""
        self._shared = _Shared()
        self._most = most
        weakref.finalize(self, self._shared.end).atexit = False
        # Begun here: an interrupt within leaves nothing that could be started twice.
        self._thread = begin_thread(f"torchyoga-{name}", _run, self._shared, stop=self._shared.end)

    def add(self, task: Callable[[], object]) -> None:
        """Runs a task when those added before are done; waits while too many wait for their turn."""
        self._check()
        shared = self._shared
        while shared.tasks.qsize() >= self._most:
            self._wait(shared.begun)
            self._check()
        shared.tasks.put(task)

    def settle(self) -> None:
        """Waits until all tasks are done."""
        done: _Mark = queue.SimpleQueue()
        self._shared.tasks.put(done)
        while not self._wait(done):
            continue
        self._check()

    def close(self) -> None:
        """Ends the thread after its current task, and forgets errors."""
        self._shared.end()
        self._thread.join()
        self._shared.error = None  # its traceback leads to the tasks' owner, and from there to this thread

    def _wait(self, mark: _Mark) -> bool:
        """True once there is a mark; False after some time without."""
        try:
            mark.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            if not self._thread.is_alive():
                raise RuntimeError(f"the thread {self._thread.name} is gone; begin anew") from None
            return False
        return True

    def _check(self) -> None:
        if self._shared.error is not None:
            raise self._shared.error


class Errand:
    """A task that is done by a thread, or by the one that wants it done, if the thread has not begun it.

    On busy processors a thread may wake up later than the task takes.
    """

    def __init__(self, thread: TaskThread, task: _Task) -> None:
        self._thread, self._task = thread, task
        self._begun = threading.Lock()
        self._is_done = False
        thread.add(self._run)

    def _run(self) -> None:
        if self._begun.acquire(blocking=False):
            self._task()
            self._is_done = True

    def finish(self) -> None:
        """Returns when it is done; an error of it is raised here."""
        self._run()
        if not self._is_done:
            self._thread.settle()
        self._task = _nothing  # the thread may still have to look at it


def _nothing() -> None:
    """Replaces what is done, whose memory is not needed any more."""


def _run(shared: _Shared) -> None:
    while (task := shared.tasks.get()) is not None:
        if isinstance(task, queue.SimpleQueue):
            task.put(None)
            continue
        shared.begun.put(None)
        if shared.error is None and not shared.is_over:
            try:
                task()
            except BaseException as error:
                shared.error = error
        del task  # its memory is not needed while the thread waits
