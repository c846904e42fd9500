"""Machines that build, copy, remove, read and clean a few versions of one store at once, while one of them is
killed, stopped or cut off; then all answers that they got, and what is left, must be explainable."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  # once, not in every child
import s3fs  # noqa: F401
from crews import Act, Hand
from explained import Deed, are_explained
from known import (
    FILE_ROWS,
    SCHEMA,
    KnownRows,
    files_like,
    generation_in,
    objects_beside_versions,
    submit_known,
    survey,
)
from servers import S3, Fault, Proxy
from smallfiles import make_files_of
from stored import short_waits
from waiting import eventually

import torchyoga as yoga
from torchyoga.errors import NotFoundError
from torchyoga.stores import retry

__all__ = ["Storm"]

LEASE = 1  # seconds, as short as possible
DEAD = 2 * LEASE + 1.5  # seconds after which a builder counts as dead; stores count whole seconds
TARGETS = [("a", "1"), ("b c", "2")]
MACHINES = 3
PATIENCE = 90  # seconds that one act may take, faults and all
WAIT = 60  # seconds to wait for builds of others: more than all faults of a round take
DELETERS = ["remove", "clean"]
WRITERS = ["submit", "cacheable", "overwrite", "copy", "convert", *DELETERS]
ACTS = [*WRITERS, *WRITERS, "copy", "clean", "read", "read", "check", "fetch out"]
_UNKNOWN = {"touches": 300, "requests": 40, "changes": 8, "manifests": 2, "seconds": 0.5}


@dataclass(frozen=True)
class Harm:
    """A fault of a machine at one step.

    Attributes:
        kind: "kill", "pause", "cut" (off the store) or "cut all".
        seconds: how long; infinity is until the others have finished.
        at: the step; `of`: of which steps, see `Hand.order`; None for so many seconds after the begin.
        is_ambush: the others begin when this one has stopped.
    """

    kind: str
    seconds: float
    at: float
    of: str | None
    is_ambush: bool = False


@dataclass
class Task:
    """An operation of a machine, and its outcome."""

    machine: int
    act: str
    target: tuple[str, str]
    generation: int
    delay: float
    harm: Harm | None = None
    begin: float = 0.0
    end: float = math.inf
    answer: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        outcome = self.answer.get("result", f"{self.answer.get('error')}: {self.answer.get('message')}")
        outcome = outcome if self.answer else "unknown"
        span = f"{self.begin:.2f}..{self.end:.2f}"
        what = f"{self.act} {self.target} {self.generation}"
        return f"  machine {self.machine} {span} {what}: {outcome}; {self.harm}"


class Storm:
    """A store, the machines that use it, and a witness that has no faults.

    Args:
        folder: an empty one.
        s3: the server.
        proxies: one for each machine, through which it reaches the server.
        url: the storage, empty.
        format: the format of builds.
        seed: decides the operations and faults, not how the machines take turns.
    """

    def __init__(self, folder: Path, s3: S3, proxies: list[Proxy], url: str, format: str, seed: int) -> None:
        make_files_of(FILE_ROWS)
        self._folder, self._proxies, self._url, self._format, self._seed = folder, proxies, url, format, seed
        self._chance = random.Random(seed)
        self._generation = 0
        self._extents: dict[str, dict[str, float]] = {}  # how many steps and seconds each act takes
        self._origin = yoga.Storage(folder / "origin", format)
        for id, version in TARGETS:
            submit_known(self._origin, id, version, 0)
        self._hands = [self._hand(number) for number in range(len(proxies))]
        self._witness = Hand("witness", partial(self._acts, "witness", s3), folder / "witness.log", PATIENCE)
        self.known: dict[tuple[str, str], int | None] = dict.fromkeys(TARGETS)

    def _hand(self, number: int) -> Hand:
        name = f"machine-{number}"
        begin = partial(self._acts, name, self._proxies[number])
        return Hand(name, begin, self._folder / f"{name}.log", PATIENCE)

    def end(self) -> None:
        """Ends all machines."""
        for hand in (*self._hands, self._witness):
            hand.end()

    # -- operations of machines

    def _acts(self, name: str, server: S3) -> Mapping[str, Act]:
        short_waits(0.05)
        cache = self._folder / name
        storage = yoga.Storage(
            self._url,
            self._format,
            storage_options=server.storage_options,
            cache_dir=cache,
            timeout=WAIT,
            lease_seconds=LEASE,
        )

        def submit(id: str, version: str, generation: int, overwrite: bool = False) -> int | None:
            return generation_of(submit_known(storage, id, version, generation, overwrite), id, version)

        def generation_of(ref: yoga.DataRef, id: str, version: str) -> int | None:
            try:
                return generation_in(ref, id, version)
            except NotFoundError:  # replaced since, and cleaned
                return None

        def cacheable(id: str, version: str, generation: int) -> int | None:
            made = storage.cacheable(id, version, stale="ignore", schema=SCHEMA, progress=False)(
                lambda: KnownRows(id, version, generation)
            )
            return generation_of(made(), id, version)

        def copy(id: str, version: str, generation: int) -> int | None:
            return generation_of(
                self._origin.copy(id, version, storage, overwrite=True, progress=False), id, version
            )

        def convert(id: str, version: str, generation: int) -> int | None:
            format = ["lmdb", "hdf5"][generation % 2]
            return generation_of(storage.convert(id, version, format=format, progress=False), id, version)

        def read(id: str, version: str, generation: int) -> int | None:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                fresh = yoga.Storage(
                    self._url, storage_options=server.storage_options, cache_dir=folder, lease_seconds=LEASE
                )
                return generation_in(fresh.fetch(id, version), id, version)

        def fetch_out(id: str, version: str, generation: int) -> int | None:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                out = yoga.Storage(folder, self._format)
                return generation_in(storage.copy(id, version, out, progress=False), id, version)

        return {
            "submit": submit,
            "overwrite": partial(submit, overwrite=True),
            "cacheable": cacheable,
            "copy": copy,
            "convert": convert,
            "remove": lambda id, version, generation: storage.remove(id, version),
            "clean": lambda id, version, generation: storage.clean(0),
            "read": read,
            "check": lambda id, version, generation: storage.check(id, version),
            "fetch out": fetch_out,
            "look": lambda: survey(storage),
            "clean up": lambda: storage.clean(0),
            "left": lambda: _left(storage, cache),
            "be patient": lambda tries: setattr(retry, "_TRIES", tries),
        }

    # -- rounds

    def rage(self, number: int) -> None:
        """One round; AssertionError, with all operations, if anything is wrong."""
        tasks = self._plan()
        before = dict(self.known)
        for proxy in self._proxies:
            # Fewer times than a download is tried.
            places = [self._chance.randrange(16_000) for _ in range(2)]
            proxy.faults = [Fault("flip", r"\.(mdb|h5)", "GET", times=1, bytes=place) for place in places]
        try:
            self._play(tasks)
            for hand in self._hands:
                assert hand.is_dead or not hand.is_busy
            self._judge(tasks)
        except Exception as error:
            listed = "\n".join(map(str, sorted(tasks, key=lambda task: task.begin)))
            raise AssertionError(
                f"seed {self._seed}, round {number}: {error}\nbefore: {before}\n{listed}"
            ) from error

    def _plan(self) -> list[Task]:
        chance = self._chance
        targets = TARGETS if chance.random() < 0.3 else [chance.choice(TARGETS)]
        tasks = []
        for machine in range(chance.choice([2, 3, 3])):
            for _ in range(chance.choice([1, 2, 2, 3])):
                self._generation += 1
                delay = chance.choice([0.0, 0.0, chance.random() / 2])
                task = Task(machine, chance.choice(ACTS), chance.choice(targets), self._generation, delay)
                tasks.append(task)
        if chance.random() < 0.6:
            first = next(task for task in tasks if task.machine == 0)
            is_there = self.known[first.target] is not None
            possible = (
                ["overwrite", "copy", "convert", *DELETERS] if is_there else ["submit", "cacheable", "copy"]
            )
            first.act, first.delay = chance.choice(possible), 0.0
            first.harm = self._harm(first.act, is_ambush=True)
            for task in tasks:
                if task.machine:
                    task.act, task.target = chance.choice([*WRITERS, *possible, *possible]), first.target
            return tasks
        for task in chance.sample(tasks, chance.choice([1, 1, 2])):
            task.harm = self._harm(task.act)
        return tasks

    def _harm(self, act: str, is_ambush: bool = False) -> Harm:
        chance = self._chance
        known = self._extents.get(act, _UNKNOWN)
        if is_ambush:
            of = chance.choice(["changes", "manifests"])
            return Harm("pause", math.inf, chance.randint(1, int(known[of])), of, True)
        kind = chance.choice(["kill", "pause", "pause", "cut", "cut all"])
        seconds = chance.choice([0.3, 0.8, DEAD, chance.uniform(1.0, DEAD)])
        of = chance.choice(["touches", "requests", "requests", "changes", None])
        if of is None:
            return Harm(kind, seconds, chance.random() * known["seconds"], None)
        return Harm(kind, seconds, chance.randint(1, int(known[of])), of)

    def _play(self, tasks: list[Task]) -> None:
        for number, hand in enumerate(self._hands):
            if hand.is_dead:
                hand.end()
                hand = self._hands[number] = self._hand(number)
            hand.do("be patient", self._chance.choice([3, 6, 6]), timeout=PATIENCE)
        start = time.monotonic()
        waiting = {number: [task for task in tasks if task.machine == number] for number in range(MACHINES)}
        free = dict.fromkeys(waiting, start)  # since when each is idle
        doing: dict[int, Task] = {}
        later: list[tuple[float, int, str]] = []  # when, to which machine, what
        while doing or any(waiting.values()):
            now = time.monotonic()
            assert now - start < PATIENCE, f"{[str(task) for task in doing.values()]} hang"
            for number, hand in enumerate(self._hands):
                task = doing.get(number)
                if task is None:
                    if number and self._lies_in_wait(tasks, doing):
                        continue
                    if waiting[number] and now >= free[number] + waiting[number][0].delay:
                        task = doing[number] = waiting[number].pop(0)
                        self._begin(hand, task, start, later)
                    continue
                was_stopped = hand.is_stopped
                answer = hand.poll()
                if answer is not None:
                    task.answer, task.end = answer, time.monotonic() - start
                    if task.harm is None:
                        steps = {kind: max(2, count) for kind, count in answer["steps"].items()}
                        self._extents[task.act] = {**steps, "seconds": task.end - task.begin}
                    del doing[number]
                    free[number] = time.monotonic()
                elif hand.is_dead:
                    assert task.harm is not None, f"{hand.name} has died by itself, or hangs: {task}"
                    assert task.harm.kind == "kill", f"{hand.name} has died by itself, or hangs: {task}"
                    waiting[number].clear()
                    del doing[number]
                elif hand.is_stopped and not was_stopped:
                    self._stopped(number, task, later)
            others_are_done = all(
                self._hands[number].is_stopped if number in doing else not waiting[number]
                for number in waiting
            )
            for moment in list(later):
                when, number, what = moment
                if time.monotonic() >= when or (when == math.inf and others_are_done):
                    later.remove(moment)
                    self._happen(number, what, doing.get(number), later)
            time.sleep(0.003)
        for _, number, what in sorted(later):
            if what in ("up", "go on"):
                self._happen(number, what, None, [])
        for hand in self._hands:
            hand.poll()

    def _lies_in_wait(self, tasks: list[Task], doing: dict[int, Task]) -> bool:
        """True until the first machine has stopped, if the others wait for that."""
        first = next(task for task in tasks if task.machine == 0)
        is_over = bool(first.answer) or (doing.get(0) is first and self._hands[0].is_stopped)
        return first.harm is not None and first.harm.is_ambush and not is_over

    def _begin(self, hand: Hand, task: Task, start: float, later: list[tuple[float, int, str]]) -> None:
        number = {"kill": signal.SIGKILL}.get(task.harm.kind if task.harm else "", signal.SIGSTOP)
        order: dict[str, Any] = {}
        if task.harm is not None and task.harm.of is not None:
            order = {"signal": int(number), "at": task.harm.at, "of": task.harm.of}
        task.begin = time.monotonic() - start
        hand.order(task.act, *task.target, task.generation, **order)
        if task.harm is not None and task.harm.of is None:
            later.append((time.monotonic() + task.harm.at, task.machine, task.harm.kind))

    def _stopped(self, number: int, task: Task, later: list[tuple[float, int, str]]) -> None:
        """A machine has stopped at its step."""
        assert task.harm is not None
        if task.harm.kind == "pause":
            later.append((time.monotonic() + task.harm.seconds, number, "go on"))
        elif task.harm.kind in ("cut", "cut all"):
            self._happen(number, task.harm.kind, task, later)
            self._hands[number].signal(signal.SIGCONT)

    def _happen(self, number: int, what: str, task: Task | None, later: list[tuple[float, int, str]]) -> None:
        hand = self._hands[number]
        if what == "go on":
            hand.signal(signal.SIGCONT)
        elif what == "up":
            self._proxies[number].up()
        elif task is None or task.harm is None or not hand.is_busy:
            return  # it was over before that
        elif what == "kill":
            hand.signal(signal.SIGKILL)
        elif what == "pause":
            hand.signal(signal.SIGSTOP)
        else:
            for other in range(MACHINES) if what == "cut all" else [number]:
                self._proxies[other].down()
                later.append((time.monotonic() + task.harm.seconds, other, "up"))

    # -- whether the answers can be explained

    def _judge(self, tasks: list[Task]) -> None:
        is_cut = any(task.harm and "cut" in task.harm.kind for task in tasks)
        for task in tasks:
            if task.begin == 0.0 and not task.answer:
                continue
            error, message = task.answer.get("error"), task.answer.get("message", "")
            assert error != "", f"{task.act} failed with what is no YogaError"
            assert error != "CorruptError", "something is damaged"
            assert error != "RemoteError" or is_cut, "the store was there all the time"
            assert "still held by" not in message, "a lease was not taken over"
            assert "were removed from" not in message, "files were removed each time"
        found = {(id, version): generation for id, version, generation in self._look()}
        assert found.keys() <= set(TARGETS)
        for target in TARGETS:
            deeds = [_deed(task) for task in tasks if task.target == target and task.begin]
            before, after = self.known[target], found.get(target)
            assert are_explained(deeds, before, after), (
                f"no order of what was done to {target} leads from {before} to {after}"
            )
            self.known[target] = after

    def _look(self) -> Any:
        return self._witness.do("look", timeout=PATIENCE)

    def calm(self) -> None:
        """Cleans up, and checks that nothing is left but the versions and the last claims."""
        for number, hand in enumerate(self._hands):
            if hand.is_dead:
                hand.end()
                self._hands[number] = self._hand(number)

        def is_clean() -> bool:
            for hand in (self._witness, *self._hands):
                hand.do("clean up", timeout=PATIENCE)
            return not any(hand.do("left", timeout=PATIENCE) for hand in (self._witness, *self._hands))

        try:
            eventually(is_clean, timeout=30)
        except AssertionError as error:
            raise AssertionError(
                f"seed {self._seed}: left are {self._witness.do('left', timeout=90)}"
            ) from error
        found = {(id, version): generation for id, version, generation in self._look()}
        assert found == {key: value for key, value in self.known.items() if value is not None}


def _deed(task: Task) -> Deed:
    """The effect of a task on its version, as far as its machine knows."""
    end = task.end
    if not task.answer or task.answer.get("error") in ("RemoteError", "NotFoundError"):
        end = math.inf  # it may have happened, or not, or may happen later
    return Deed(task.begin, end, partial(_after, task))


def _after(task: Task, state: Any) -> Iterable[Any]:
    act, answer, new = task.act, task.answer, task.generation
    if act == "copy":
        new = 0
    if act in ("clean",):
        return [state]
    error = answer.get("error")
    is_open = not answer or error in ("RemoteError", "NotFoundError")
    if act in ("read", "check", "fetch out"):
        if error is not None or not answer:
            return [state]
        seen = answer["result"]
        return [state] if state is not None and seen in (None, state) else []
    if is_open:
        then = {"remove": None, "convert": state, "submit": new if state is None else state}
        then["cacheable"] = then["submit"]
        return {state, then.get(act, new)}
    if error is not None:
        is_refused = act == "submit" and error == "ExistsError"
        return [] if is_refused and state is None else [state]
    seen = answer["result"]
    if act == "remove":
        return [None]  # if two remove a version at the same time, both have removed it
    if act == "submit":
        return [new] if state is None and seen in (None, new) else []
    if act == "cacheable":
        then = new if state is None else state
        return [then] if seen in (None, then) else []
    if act == "convert":
        return [state] if state is not None and seen in (None, state) else []
    return [new] if seen in (None, new) else []


def _left(storage: yoga.Storage, cache: Path) -> list[str]:
    """Files other than versions and the last claims."""
    names = objects_beside_versions(storage)
    last: dict[str, str] = {}
    for name in sorted(names):
        folder = name.rpartition("/")[0]
        if folder.startswith(".leases/"):
            last[folder] = name
    names -= set(last.values())
    here = files_like(cache, "building/*/.staging/**/*", "checking/**/*")
    with contextlib.suppress(FileNotFoundError):
        here += [f"parts/{path.name}" for path in (cache / "parts").iterdir() if "-" in path.name]
    return sorted([*names, *here])
