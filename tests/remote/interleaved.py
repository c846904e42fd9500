"""Machines that share a store, run as a model: every order of their steps, and faults at each.

A machine is a thread that runs the real code. It stops before every request to the store and wherever it
would wait for time to pass, and goes on when a schedule says so; the clock is a number that moves once no
machine can do anything else. So a run is a list of choices, and runs are repeated with other choices until
every state has been seen. Two ways to the same state are followed once: what a machine does next depends only
on the answers that it got and the times that it read.

A fault is a choice, too:

crash       the machine is gone
lost        a request is carried out, and its answer does not arrive
cut         neither this request nor any other gets through, for longer than a lease
cut after   likewise, but this request is carried out
away        a cut for ever
pause       the whole machine stands still for longer than a lease
slow        what it works at does, and it shows signs of life
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future
from functools import cache
from hashlib import md5
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from torchyoga.stores.kinds import S3
from torchyoga.stores.objects import Objects

ALL_FAULTS = frozenset({"crash", "lost", "cut", "cut after", "away", "pause", "slow"})
# Before a read, these have the same effect as before the next request.
_OF_WRITES = frozenset({"crash", "lost", "cut", "cut after", "away"})
_WHEN_ARRIVED = frozenset({"crash", "cut", "away", "pause", "slow"})
_MOST_STEPS = 3000
_FOREVER = float("inf")


class Gone(BaseException):
    """Ends a thread whose machine has crashed, or whose run is over."""


class Broken(AssertionError):
    """A property of the protocol does not hold; says after which steps."""


class Precondition(Exception):
    """S3's answer to a condition that does not hold."""

    def __init__(self) -> None:
        self.response = {"Error": {"Code": "PreconditionFailed"}}


class Stored(NamedTuple):
    """An object of the store."""

    data: bytes
    written: float | None


class Machine:
    """A machine, on which one thread works, and another may show signs of life."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.is_dead = False
        self.still_until = 0.0
        self.cut_until = 0.0
        self.faults: list[str] = []
        self.struck: list[str] = []  # the requests before which it may stop
        self.outcome: Any = None
        self.is_inside = False  # True between taking the lease and giving it up
        self.first_tag: str | None = None  # names of the objects that were there when it first looked


def _shut() -> Any:
    """A lock that is held; the scheduler releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Task:
    def __init__(self, machine: Machine, is_main: bool, work: Callable[[], None]) -> None:
        self.machine = machine
        self.is_main = is_main
        self.work = work
        self.gate = _shut()
        self.past = 0  # the answers that it got so far
        self.drawn = 0  # tokens
        self.label = ""
        self.writes = False
        self.act: Callable[[], Any] | None = None  # its request; None while it waits
        self.is_ready: Callable[[], bool] = lambda: False
        self.until = _FOREVER
        self.slow_until = 0.0
        self.arrived = 0  # the number of moves after which it came to where it is
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.has_left = _shut()

    def note(self, what: object) -> None:
        self.past = hash((self.past, what))


class World:
    """One run: machines, a store and a clock.

    Args:
        prefix: the choices to begin with; then the first one each time.
        known: states seen, where the run may end.
        num_faults: at most, over all machines.
        kinds: of faults.
        num_turns: how often a machine that could go on may be interrupted; infinity for every order.
        still: seconds that `cut` and `pause` last; `slow` twice as long.
        clock: seconds that the store's clock is ahead of the world's; None for a store without one.
        patience: seconds after which a machine that has not ended counts as waiting for ever.
        is_deaf: the store ignores conditions of replacements.
    """

    choose: Callable[[int, int], int] | None = None  # of so many actions, steps before faults; else by prefix

    def __init__(
        self,
        prefix: tuple[int, ...],
        known: set[int],
        num_faults: int,
        kinds: Collection[str],
        num_turns: float,
        still: float,
        clock: float | None,
        patience: float,
        is_deaf: bool = False,
    ) -> None:
        self.objects: dict[str, Stored] = {}
        self.now = 0.0
        self.machines: list[Machine] = []
        self.events: list[tuple[str, ...]] = []  # changes of manifests
        self.steps: list[str] = []
        self.others: list[tuple[int, ...]] = []  # choices that were not made
        self.broken: str | None = None
        self.is_over = False
        self.is_deaf = is_deaf
        self.acting: Machine  # the machine whose request is being carried out
        self.watch: Callable[[str, Machine, str, Stored | None, Stored | None], None] = lambda *_: None
        self._prefix = prefix
        self._known = known
        self._faults = num_faults
        self._kinds = kinds
        self._turns = num_turns
        self._still = still
        self._clock = clock
        self._patience = patience
        self._tasks: list[_Task] = []
        self._moves = 0  # requests and faults
        self._last: _Task | None = None  # machines that have made a request
        self._choices: list[int] = []
        self._ended = _shut()

    # -- called by the code of the machines

    def add(self, name: str, work: Callable[[Machine], Any]) -> None:
        """A machine, and what it does."""
        machine = Machine(name, len(self.machines) + 1)

        def main() -> None:
            machine.outcome = work(machine)

        self.machines.append(machine)
        self._add(_Task(machine, True, main))

    def _add(self, task: _Task) -> None:
        self._tasks.append(task)
        task.label, task.is_ready = "begins", lambda: True
        (_IDLE.pop() if _IDLE else _Worker()).take(self, task)

    def perform(self, task: _Task) -> None:
        """Does what the thread of a task does."""
        task.gate.acquire()
        if self.is_over or task.machine.is_dead:
            return
        try:
            task.work()
        except Gone:
            return
        except BaseException as error:
            self.fail(f"{task.machine.name} ended with {type(error).__name__}: {error}")
        task.is_done = True
        task.note("done")
        self._hand_on()

    def request(self, label: str, writes: bool, act: Callable[[], Any], data: object = None) -> Any:
        """The answer of the store, once it is this machine's turn."""
        task = self._here()
        task.label, task.writes, task.act = label, writes, act
        task.note((label, data))
        self._pass(task)
        if task.error is not None:
            raise task.error
        return task.result

    def here(self) -> Machine:
        """The machine that calls this."""
        machine: Machine = _LOCAL.task.machine
        return machine

    def wait(self, seconds: float | None, is_ready: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass, at most until `is_ready` returns True; returns whether it does."""
        task = self._here()
        task.label, task.act, task.is_ready = "waits", None, is_ready
        task.until = _FOREVER if seconds is None else self.now + max(0.0, seconds)
        self._pass(task)
        found = is_ready()
        task.note(found)
        return found

    def time(self) -> float:
        """Seconds by the clock of a machine; each has begun at another time."""
        task = self._here()
        task.note(self.now)
        return self.now + 1000.0 * task.machine.number

    def token(self) -> str:
        """16 hexadecimal digits that are new in this run."""
        task = self._here()
        task.drawn += 1
        return f"{task.machine.number:07x}{int(task.is_main)}{task.drawn:08x}"

    def start(self, work: Callable[[], None]) -> Callable[[], bool]:
        """Starts another thread of this machine; returns a function that says whether it has ended."""
        task = _Task(self._here().machine, False, work)
        self._add(task)
        return lambda: task.is_done

    def written(self) -> float | None:
        """The time of the store's clock; like S3's, in whole seconds."""
        return None if self._clock is None else float(int(self.now + self._clock))

    def put(self, how: str, name: str, data: bytes) -> None:
        """Puts an object, in the middle of a request."""
        machine, before = self.acting, self.objects.get(name)
        self.objects[name] = Stored(data, self.written())
        self.watch(how, machine, name, before, self.objects[name])

    def drop(self, name: str) -> None:
        """Removes an object, in the middle of a request."""
        before = self.objects.pop(name, None)
        self.watch("delete", self.acting, name, before, None)

    def fail(self, why: str) -> None:
        """Records that a property does not hold, and ends the run."""
        self.broken = self.broken or why

    def _here(self) -> _Task:
        task: _Task = _LOCAL.task
        if self.is_over or task.machine.is_dead:
            raise Gone
        return task

    # -- the schedule

    def run(self) -> None:
        """Runs until all machines have ended, or a known state is reached."""
        self._hand_on()
        self._ended.acquire()
        self.is_over = True
        for task in self._tasks:
            if task.gate.locked():
                task.gate.release()
        for task in self._tasks:
            assert task.has_left.acquire(timeout=60), "a thread of the model hangs"

    def _pass(self, task: _Task) -> None:
        task.arrived = self._moves
        following = self._next()
        if following is not task:
            (self._ended if following is None else following.gate).release()
            task.gate.acquire()
        if self.is_over or task.machine.is_dead:
            raise Gone

    def _hand_on(self) -> None:
        following = self._next()
        (self._ended if following is None else following.gate).release()

    def _next(self) -> _Task | None:
        """The machine that goes on; None if the run is over."""
        while self.broken is None:
            mains = [task for task in self._tasks if task.is_main]
            if all(task.is_done or task.machine.is_dead for task in mains):
                return None
            actions = self._actions()
            if not actions:
                times = [time for task in self._living() for time in self._times(task) if time > self.now]
                waiting = ", ".join(task.machine.name for task in self._living() if task.is_main)
                if min(times, default=_FOREVER) > self._patience:
                    self.fail(f"{waiting} wait(s) without end")
                    return None
                self.now = min(times)
                continue
            if len(self._choices) >= len(self._prefix) and len(actions) > 1:
                state = self._state()
                if state in self._known:
                    return None
                self._known.add(state)
                self.others += [(*self._choices, other) for other in range(1, len(actions))]
            at = len(self._choices)
            chosen = self._prefix[at] if at < len(self._prefix) else 0
            if self.choose is not None:
                chosen = self.choose(sum(kind == "step" for kind, _ in actions), len(actions))
            self._choices.append(chosen)
            kind, task = actions[chosen]
            self.steps.append(
                f"{self.now:7.1f} {task.machine.name}{'' if task.is_main else ' (life)'}: {task.label}"
                f"{'' if kind == 'step' else f' -- {kind}'}"
            )
            self._moves += task.act is not None
            self._turns -= actions[0][1] is self._last is not task
            if len(self.steps) > _MOST_STEPS:
                self.fail("this takes steps without end")
            elif self._done(kind, task):
                return task
        return None

    def _living(self) -> list[_Task]:
        return [task for task in self._tasks if not task.is_done and not task.machine.is_dead]

    def _times(self, task: _Task) -> tuple[float, ...]:
        later = max(task.machine.still_until, task.slow_until)
        return (later,) if later > self.now else ((task.until,) if task.act is None else ())

    def _actions(self) -> list[tuple[str, _Task]]:
        able = []
        for task in self._living():
            if max(task.machine.still_until, task.slow_until) > self.now:
                continue
            if task.act is not None or task.until <= self.now or task.is_ready():
                able.append(task)
        waiting = [task for task in able if task.act is None]
        if waiting:  # nothing shows that they go on before their next request
            return [("step", waiting[0])]
        able.sort(key=lambda task: task is not self._last)
        if self._turns <= 0 and self._last in able:
            able = [self._last]
        actions = [("step", task) for task in able]
        if self._faults:
            actions += [
                (kind, task) for task in able for kind in sorted(self._kinds) if self._may(kind, task)
            ]
        return actions

    def _may(self, kind: str, task: _Task) -> bool:
        """True if a fault here has another effect than the same one at another step."""
        if task.machine.cut_until > self.now or (kind == "slow" and not task.is_main):
            return False
        if kind in _OF_WRITES | {"slow"} and not task.writes:
            return False
        return kind not in _WHEN_ARRIVED or task.arrived == self._moves

    def _done(self, kind: str, task: _Task) -> bool:
        """Lets a fault happen; True if the task goes on at once."""
        machine = task.machine
        if kind != "step":
            self._faults -= 1
            machine.faults.append(kind)
            machine.struck.append(task.label)
        until = self.now + self._still
        if kind == "crash":
            machine.is_dead = True
            return False
        if kind == "pause":
            machine.still_until = until
            return False
        if kind == "slow":
            task.slow_until = self.now + 2 * self._still
            return False
        if task.act is None:
            return True
        self._last = task
        task.result = task.error = None
        is_reached = machine.cut_until <= self.now and kind not in ("cut", "away")
        if kind in ("cut", "cut after", "away"):
            machine.cut_until = _FOREVER if kind == "away" else until
        self.acting = machine
        if is_reached:
            try:
                task.result = task.act()
            except Exception as error:
                task.error = error
        if not is_reached or kind in ("lost", "cut after"):
            task.result, task.error = None, ConnectionError("no answer")
        task.act, task.until, task.is_ready = None, _FOREVER, lambda: False
        task.note((repr(task.result), repr(task.error)))
        return True

    def _state(self) -> int:
        tasks = tuple(
            (task.past, task.label, task.act is None, task.until, task.slow_until, task.is_done)
            for task in self._tasks
        )
        machines = tuple(
            (
                machine.is_dead,
                machine.still_until,
                machine.cut_until,
                machine.is_inside,
                *machine.faults,
                *machine.struck,
            )
            for machine in self.machines
        )
        objects = frozenset(self.objects.items())
        return hash((self.now, self._faults, self._turns, tasks, machines, objects, tuple(self.events)))


class _Local(threading.local):
    world: World | None = None
    task: Any = None


class _Worker:
    """A thread that performs one task after the other, because it would take long to start thousands."""

    def __init__(self) -> None:
        self._gate = _shut()
        self._taken: tuple[World, _Task]
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def take(self, world: World, task: _Task) -> None:
        self._taken = world, task
        self._gate.release()

    def _work(self) -> None:
        while True:
            self._gate.acquire()
            _LOCAL.world, _LOCAL.task = world, task = self._taken
            world.perform(task)
            _IDLE.append(self)
            task.has_left.release()


_LOCAL = _Local()
_IDLE: list[_Worker] = []


def current() -> World:
    """The world of the machine that calls this."""
    assert _LOCAL.world is not None, "this is for threads of the model"
    return _LOCAL.world


def explored(
    make: Callable[[tuple[int, ...], set[int]], World], check: Callable[[World], None], most: int
) -> int:
    """Runs all schedules; returns the number of runs.

    Args:
        make: a world that begins with these choices, and ends at states known already.
        check: checks a world whose run is over; calls its `fail`.
        most: runs; if they are not enough, there is an error.

    Raises:
        Broken: says what is wrong, and after which steps.
    """
    known: set[int] = set()
    left: list[tuple[int, ...]] = [()]
    for count in range(most):
        if not left:
            return count
        world = make(left.pop(), known)
        _run(world, check)
        left += world.others
    raise AssertionError(f"{most} runs were not enough; {len(left)} are left")


def drawn(
    make: Callable[[tuple[int, ...], set[int]], World],
    check: Callable[[World], None],
    chance: random.Random,
    faults: float,
) -> None:
    """Runs one schedule that is drawn, with this share of faults, as long as there may be some; else as
    `explored`."""

    def choose(num_steps: int, num_actions: int) -> int:
        if num_actions > num_steps and chance.random() < faults:
            return chance.randrange(num_steps, num_actions)
        return 0 if chance.random() < stay else chance.randrange(num_steps)

    stay = chance.choice([0.5, 0.9, 0.97, 0.99])  # others do much, or little, between two steps of a machine
    world = make((), set())
    world.choose = choose
    _run(world, check)


def _run(world: World, check: Callable[[World], None]) -> None:
    world.run()
    check(world)
    if world.broken is not None:
        steps = "\n".join(world.steps)
        raise Broken(f"{world.broken}\n\nafter these steps:\n{steps}\n\nthe choices are {world._choices}")


# -- the model, as the code sees it


CLOCK = SimpleNamespace(  # in the place of `time`
    monotonic=lambda: current().time(),
    monotonic_ns=lambda: int(1e9 * current().time()),
    sleep=lambda seconds: current().wait(seconds),
    ctime=lambda: "long ago",
)
TOKENS = SimpleNamespace(token_hex=lambda nbytes: current().token())  # in the place of `secrets`
CHANCE = SimpleNamespace(uniform=lambda low, high: high, random=lambda: 1.0)  # in the place of `random`


class Event:
    """An event without a lock, because only one thread runs at a time."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        return current().wait(seconds, lambda: self._is_set)


def begun(name: str, work: Callable[[], None], *, stop: Callable[[], object]) -> SimpleNamespace:
    """In the place of `begin_thread`: another thread of the machine."""
    is_done = current().start(work)
    return SimpleNamespace(join=lambda seconds: current().wait(seconds, is_done))


class AtOnce(Executor):
    """In the place of a pool of threads: calls what is submitted at once, one after the other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *items: Any, **kwargs: Any) -> Iterator[Any]:
        return iter([*map(function, *items)])


def tag_of(data: bytes) -> str:
    """An ETag."""
    return md5(data).hexdigest()


@cache
def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Bucket:
    """A filesystem of fsspec's kind, as s3fs is one, over the objects of the world."""

    async_impl = False

    def __init__(self, world: World) -> None:
        self._world = world

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path

    @staticmethod
    def split_path(path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def _got(self, path: str) -> Stored:
        try:
            return self._world.objects[path.partition("/")[2]]
        except KeyError:
            raise FileNotFoundError(path) from None

    def _info(self, name: str, found: Stored) -> dict[str, Any]:
        size, tag = len(found.data), tag_of(found.data)
        return {"Key": name, "Size": size, "size": size, "LastModified": found.written, "ETag": tag}

    def call_s3(self, method: str, **asked: Any) -> Any:
        if method == "delete_object":
            return self._delete(asked["Key"], asked["IfMatch"])
        assert method == "list_objects_v2"
        prefix = asked["Prefix"]

        def act() -> Any:
            found = sorted(self._world.objects.items())
            return {"Contents": [self._info(*item) for item in found if item[0].startswith(prefix)]}

        return self._world.request(f"list {prefix}", False, act)

    def _delete(self, name: str, tag: str | None) -> None:
        def act() -> None:
            found = self._got(f"b/{name}")
            if tag is not None and tag_of(found.data) != tag:
                raise Precondition
            self._world.drop(name)

        self._world.request(f"delete {name}", True, act)

    def info(self, path: str) -> Any:
        return self._world.request(
            f"look at {path[2:]}", False, lambda: self._info(path[2:], self._got(path))
        )

    def cat_file(self, path: str, start: int, end: int) -> Any:
        return self._world.request(f"read {path[2:]}", False, lambda: self._got(path).data[start:end])

    def pipe_file(
        self, path: str, data: bytes, mode: str = "overwrite", IfMatch: str | None = None, chunksize: int = 0
    ) -> None:
        name = path[2:]

        def act() -> None:
            found = self._world.objects.get(name)
            if mode == "create" and found is not None:
                raise FileExistsError(path)
            how = "create" if mode == "create" else "write"
            if IfMatch is not None:
                how = "replace"
                if not self._world.is_deaf and (found is None or tag_of(found.data) != IfMatch):
                    raise Precondition
            self._world.put(how, name, data)

        verb = "create" if mode == "create" else "write" if IfMatch is None else "replace"
        if IfMatch is not None and self._world.is_deaf:
            self._world.acting = _LOCAL.task.machine
            act()  # together with the comparison before it: between the two, docs/remote.md promises nothing
        else:
            self._world.request(f"{verb} {name}", True, act, data)

    def put_file(self, path: str, there: str) -> None:
        data = _content(path)
        self._world.request(f"upload {there[2:]}", True, lambda: self._world.put("upload", there[2:], data))

    def rm_file(self, path: str) -> None:
        self._delete(path[2:], None)


class Modelled(Objects):
    """The real one, over the model's store."""

    def __init__(self, world: World, folder: str = "b") -> None:
        super().__init__(f"s3://{folder}")
        self._world = world
        self._filesystem = S3(Bucket(world)), folder

    def at(self, folder: str) -> Modelled:
        return Modelled(self._world, f"{self._filesystem[1]}/{folder}")

    def read_tagged(self, name: str, limit: int) -> tuple[bytes, str | None]:
        data, tag = super().read_tagged(name, limit)
        machine: Machine = _LOCAL.task.machine
        machine.first_tag = machine.first_tag or tag
        return data, tag


@contextlib.contextmanager
def modelled() -> Iterator[None]:
    """Replaces time, threads and chance of the code that works with stores by those of the model."""
    with pytest.MonkeyPatch.context() as patch:
        events = SimpleNamespace(Event=Event)
        for room, replaced in {
            "lease": {"time": CLOCK, "threading": events, "begin_thread": begun, "secrets": TOKENS},
            "remote": {"secrets": TOKENS, "ThreadPoolExecutor": AtOnce},
            "objects": {"secrets": TOKENS, "ThreadPoolExecutor": AtOnce},
            "retry": {"time": CLOCK, "random": CHANCE},
        }.items():
            for name, model in replaced.items():
                patch.setattr(f"torchyoga.stores.{room}.{name}", model)
        yield
