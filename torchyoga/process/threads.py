"""Threads: they end before the interpreter does, and a forked child has none of its parent.

As it ends, Python stops each daemon thread where that next wants the interpreter lock. Within C++, as where a
tensor is freed, this aborts the process. So our threads are asked to end, and waited for, before.

Ctrl-C at any point leaves a `TaskThread` usable, so that an interrupted build can write what it has: the
caller, who may be interrupted between a step and its count, counts nothing and holds no lock. The queues are
C code and need none.

`Ahead` makes results in order: threads work ahead while the consumer is busy elsewhere, and a result that
none has begun is made by the thread that needs it. A thread that was not asked for is started only if it can
save time, from half a millisecond between two results on: in a loop that does nothing else it would cost more
than it saves. Threads that were asked for always work, and the consumer helps them instead of waiting.

Note 16. A forked child waits for no lock or thread of its parent.
Everything with locks or threads makes them again in each child. Cached properties take no lock: see `lazy`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from .control_group import cpu_delay


class Forkable(Protocol):
    """An object with locks or threads of its own."""

    def renew(self) -> None:
        """Makes new ones, in a child whose only thread is the one that forked."""


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()
_PID = os.getpid()


def renew_in_children(thing: Forkable) -> None:
    """Renews an object in each forked child, as long as the object lives."""
    _alive.add(thing)


def in_forked_child() -> bool:
    """True in a child of a fork, which has none of the threads of libraries."""
    return os.getpid() != _PID


def _renew_all() -> None:
    for thing in list(_alive):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


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
        self._shared, self._most = _Shared(), most
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
        self._begun, self._is_done = threading.Lock(), False
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
        self._task = _done  # the thread may still have to look at it


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


T = TypeVar("T")
_WORTH_A_THREAD = 0.5e-3  # seconds between two results; with less, two threads would only hinder each other


def _on_a_core() -> float:
    """Seconds, but for those in which this thread wanted a core and had none. To ask takes 10 us."""
    return time.perf_counter() - cpu_delay()


class Task(NamedTuple, Generic[T]):
    """Work to do, and the number of batches that it makes."""

    run: Callable[[], T]
    size: int


class _Ticket(Generic[T]):
    """A task that a thread has begun."""

    result: T  # once it was run, unless it raised an error

    def __init__(self, task: Task[T]) -> None:
        self.task, self.is_done = task, False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.task.run()
        except BaseException as error:
            self.error = error
        self.task = Task(_done, self.task.size)


def _done() -> NoReturn:
    """Replaces the work of a task that is done."""
    raise AssertionError


class _SharedResults(Generic[T]):
    """The state that threads share with the consumer of results; it has no reference to the consumer."""

    def __init__(self, tasks: Iterator[Task[T]], most: int, num_threads: int) -> None:
        self.tasks = tasks
        self.most, self.num_threads = most, max(1, num_threads)
        # One of each thread, one of the consumer, which helps, and one that is done: else they wait in turn.
        self._least = max(self.num_threads, min(most, num_threads + 2)) if num_threads else 1
        self.tickets: deque[_Ticket[T]] = deque()  # in order
        self.is_wanted = self.is_over = self.is_stopped = False
        self.threads: list[threading.Thread] = []
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes new locks, in a forked child, which has no threads of its parent."""
        self.beginning = threading.Lock()  # held while the next task is found
        self.changed = threading.Condition()

    def begin(self, only_if_none: bool) -> _Ticket[T] | None:
        """The next task, which the caller must run; None if there is none, or another one is running."""
        with self.beginning:
            if self.is_over or (only_if_none and self.tickets):
                return None
            try:
                ticket = _Ticket(next(self.tasks))
            except StopIteration:
                self.is_over = True
                return None
            except BaseException as error:
                ticket = _Ticket[T](Task(_done, 1))
                ticket.error, self.is_over = error, True
            with self.changed:
                self.tickets.append(ticket)
            return ticket

    def has_room(self) -> bool:
        """True if a task may be done ahead."""
        sizes = [ticket.task.size for ticket in tuple(self.tickets)]
        return len(sizes) < self._least or sum(sizes) < self.most

    def stop(self) -> None:
        """Ends each thread after its current task; the consumer may go on alone."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


def _work(shared: _SharedResults[T], consumer: Callable[[], object]) -> None:
    while True:
        with shared.changed:
            while not (shared.is_over or shared.is_stopped or (shared.is_wanted and shared.has_room())):
                shared.changed.wait(_LOOK_EVERY)
                shared.is_stopped |= consumer() is None  # Ctrl-C may have come while that was to be said
            if shared.is_over or shared.is_stopped:
                return
        ticket = shared.begin(only_if_none=False)
        if ticket is None:
            continue
        if ticket.error is None:
            ticket.run()
        with shared.changed:
            ticket.is_done = True
            shared.changed.notify_all()


class Ahead(Iterator[T]):
    """The results of tasks, in order; an exception is raised in the place of its task's result.

    Results are made when they are needed. If the consumer takes longer between two of them, a thread makes
    the next ones meanwhile, `most` batches at most; or so do `num_threads`, if there are to be some, one task
    each at least, however long it takes, and two more of up to `most` tasks. They end with the iterator, or
    the process; a forked child must make a new iterator.
    """

    def __init__(self, tasks: Iterator[Task[T]], most: int, num_threads: int = 0) -> None:
        self._shared = _SharedResults(tasks, most, num_threads)
        self._helps = num_threads > 0
        self._worth = 0.0 if num_threads else _WORTH_A_THREAD
        # What this thread made while it helped: no other keeps it, for an error leads to this iterator.
        self._own: dict[_Ticket[T], _Ticket[T]] = {}
        self._clock: Callable[[], float] = time.perf_counter
        # When it returned; seconds until the next call: the last ones, and those of most calls.
        self._returned = self._last = self._away = 0.0
        weakref.finalize(self, self._shared.stop).atexit = False

    def __next__(self) -> T:
        if self._returned:
            before, self._last = self._last, self._clock() - self._returned
            # The shorter of two: in the other, this thread may only have waited for a core.
            self._away += 0.3 * (min(before, self._last) - self._away)
        try:
            return self._result()
        finally:
            # Which of two long ones it was is looked at, until a thread has begun.
            is_short = self._last < self._worth or bool(self._shared.threads)
            self._clock = time.perf_counter if is_short else _on_a_core
            self._returned = self._clock()

    def _result(self) -> T:
        """The next result, made here unless a thread has begun it."""
        shared = self._shared
        ticket = None if shared.tickets else shared.begin(only_if_none=True)
        if ticket is None:
            if self._helps:
                self._help()
            ticket = self._awaited()
        else:
            if not shared.threads and self._away >= self._worth and shared.most > 0:
                self._start()
            if ticket.error is None:
                ticket.run()
        with shared.changed:
            shared.tickets.remove(ticket)
            shared.is_wanted = self._away >= self._worth
            if shared.is_wanted:
                shared.changed.notify_all()
        ticket = self._own.pop(ticket, ticket)
        if ticket.error is None:
            return ticket.result
        error, ticket.error = ticket.error, None
        try:
            raise error
        finally:
            del error  # through its traceback it would hold itself, and this iterator

    def _help(self) -> None:
        """Makes results that come later, as long as the next one is not done."""
        shared = self._shared
        while shared.tickets and not shared.tickets[0].is_done and shared.has_room():
            ticket = shared.begin(only_if_none=False)
            if ticket is None:
                return
            own = _Ticket(ticket.task)
            if ticket.error is None:
                own.run()
                self._own[ticket], ticket.task = own, own.task
            ticket.is_done = True  # no thread waits for it
            if own.error is not None and not isinstance(own.error, Exception):
                raise own.error  # such as a KeyboardInterrupt, which is this thread's

    def _awaited(self) -> _Ticket[T]:
        """The first running task, once it is done."""
        shared = self._shared
        with shared.changed:
            if not shared.tickets:
                raise StopIteration
            ticket = shared.tickets[0]
            while not ticket.is_done:
                shared.changed.wait(_LOOK_EVERY)
                if not ticket.is_done and not any(thread.is_alive() for thread in shared.threads):
                    raise RuntimeError("the thread that reads ahead is gone; make a new iterator")
            return ticket

    def _start(self) -> None:
        shared = self._shared
        shared.is_wanted = True
        with contextlib.suppress(RuntimeError):  # the system refuses another thread: this one goes on alone
            for _ in range(shared.num_threads):
                thread = begin_thread("torchyoga-ahead", _work, shared, weakref.ref(self), stop=shared.stop)
                shared.threads.append(thread)
