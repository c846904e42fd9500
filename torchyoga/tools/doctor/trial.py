"""Steps that may hang, kill their process or move what they touch -> what they found, in a bounded time.

The doctor tries things in a child process, and ends it with all that it has started.
So the loader, its sampler and every generator of the caller stay as they are, whatever is tried, and a
dataset that hangs or crashes is a finding. On Linux the child is forked, so that it has the dataset as it is;
elsewhere a fork is not safe, and nothing is tried that does not pickle.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NamedTuple

from .culprit import row_said
from .walk import is_library_file

__all__ = ["ENDED", "Hang", "Step", "Trial", "cpu_seconds", "running_seconds", "tried"]

ENDED = "it ended the process that tried it"
_END_TIMES = 20
_END_SECONDS = 2.0  # for a child that was killed to be gone
_MOST_TEXT = 300
_LOOK_SECONDS, _LOOKS = 0.5, 10  # for how long processes are looked at, and how often
_IDLE = 0.2  # of that time, and of those looks, in which idle ones may run
_FUTEX = {"x86_64": "202", "aarch64": "98"}  # the system call that waits for a lock
_FUTEX_PRIVATE = 128  # of its operation: not for other processes
_OF_FRAME, _RAISED = re.compile(r'File ".+", line \d+'), re.compile(r"[A-Za-z_][\w.]*(: |$)")
_FRAME = re.compile(r'  File "(.+?)", line (\d+) in (\S+)')


class Step(NamedTuple):
    """Something to try.

    Attributes:
        name: of what it looks at.
        work: finds it out; returns what JSON has. It may take what the steps before it have found.
        seconds: more than it should take.
    """

    name: str
    work: Callable[[dict[str, Any]], object]
    seconds: float


class Hang(NamedTuple):
    """A step that took too long.

    Attributes:
        step: its name.
        seconds: that it was given.
        is_idle: True if its processes did nothing at its end.
        is_locked: True if, besides, all threads of one of them waited, without a limit, for locks that no
            other process can open.
        where: the line of the user's code that one of them was at; "" if there is none.
    """

    step: str
    seconds: float
    is_idle: bool
    is_locked: bool
    where: str


class Trial(NamedTuple):
    """The results of some steps.

    Attributes:
        found: by name of the step.
        errors: by name: what was raised.
        hung: the step that took too long, and ended the trial; or None.
        left: names of steps that were not tried, or not ended.
    """

    found: dict[str, Any]
    errors: dict[str, str]
    hung: Hang | None
    left: dict[str, str]


def tried(steps: Sequence[Step], seconds: float, seen: Mapping[str, Any] | None = None) -> Trial:
    """Does steps one after the other in a child process, for no more than some seconds.

    Args:
        steps: what to do.
        seconds: for all of them.
        seen: what steps before them have seen.
    """
    can_fork = sys.platform.startswith("linux")
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    arguments = (theirs, list(steps), dict(seen or {}), stacks if can_fork else None)
    child = context.Process(target=_do, args=arguments, daemon=False)  # type: ignore[attr-defined]
    trial = Trial({}, {}, None, {})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child.start()
    except Exception as error:  # it does not pickle
        ours.close()
        theirs.close()
        stacks.close()
        return trial._replace(
            left={step.name: f"no process could be started: {_said(error)}" for step in steps}
        )
    theirs.close()
    try:
        trial = _heard(ours, steps, seconds, trial)
        if trial.hung is not None and can_fork and child.pid is not None:
            hang = _looked_at(trial.hung, child.pid, stacks)
            if ours.poll():  # the step has ended meanwhile
                hang = hang._replace(is_idle=False, is_locked=False)
            trial = trial._replace(hung=hang)
        return trial
    finally:
        _end(child)
        ours.close()
        stacks.close()


def _heard(pipe: Connection, steps: Sequence[Step], seconds: float, trial: Trial) -> Trial:
    """Listens until the child has ended, a step takes too long, or the time is over."""
    limits = {step.name: step.seconds for step in steps}
    deadline, at = time.monotonic() + seconds, ""
    step_ends = deadline
    open_steps = [step.name for step in steps]
    why = ENDED
    while True:
        now = time.monotonic()
        if not pipe.poll(max(0.0, min(deadline, step_ends) - now)):
            if step_ends <= deadline and at:
                trial = trial._replace(hung=Hang(at, limits[at], False, False, ""))
                why = f"it took more than {limits[at]:.0f} s"
            else:
                why = f"the {seconds:.0f} s were over"
            break
        try:
            kind, name, value = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            break
        if kind == "begin":
            at, step_ends = name, time.monotonic() + limits[name]
            continue
        open_steps.remove(name)
        at, step_ends = "", deadline
        (trial.errors if kind == "error" else trial.found)[name] = value
        if not open_steps:
            break
    left = {name: f"{at} did not end" for name in open_steps}
    return trial._replace(left=left | ({at: why} if at else dict.fromkeys(open_steps, why)))


def _looked_at(hang: Hang, session: int, stacks: IO[bytes]) -> Hang:
    """Whether the processes of a trial wait, and where."""
    before, could_run = cpu_seconds(session), 0
    for _ in range(_LOOKS):
        time.sleep(_LOOK_SECONDS / _LOOKS)
        could_run += _can_run(session)
    spent = cpu_seconds(session) - before
    is_idle = spent <= _IDLE * _LOOK_SECONDS and could_run <= _IDLE * _LOOKS
    is_locked = is_idle and any(map(_waits_for_locks, _of_session(session)))
    for pid in _of_session(session):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)
            time.sleep(0.02)  # so that their stacks come one after the other
    time.sleep(0.1)
    stacks.seek(0)
    return hang._replace(
        is_idle=is_idle, is_locked=is_locked, where=_users_line(stacks.read().decode(errors="replace"))
    )


def _of_session(session: int) -> dict[int, list[str]]:
    """The processes that a trial has started, and the fields of /proc/[pid]/stat behind their names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(path.parent.name)] = fields
    return found


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def cpu_seconds(session: int) -> float:
    """Seconds of CPU time that the processes of a trial have taken, and those that they waited for."""
    ticks = sum(sum(map(int, fields[11:15])) for fields in _of_session(session).values())
    return ticks / os.sysconf("SC_CLK_TCK")


def running_seconds(session: int) -> float:
    """Seconds for which the threads of a trial ran, or wanted to and waited for a CPU."""
    total = 0
    for pid in _of_session(session):
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it has ended
                total += sum(map(int, path.read_text().split()[:2]))
    return total / 1e9


def _can_run(session: int) -> bool:
    """True if a thread of a trial computes, or waits for a CPU only."""
    for pid in _of_session(session):
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                if path.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
    return False


def _waits_for_locks(pid: int) -> bool:
    """True if each thread of a process waits, without a limit, for a lock of this process alone.

    Then no thread is left that could open one of them.
    """
    try:
        calls = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/syscall")]
    except OSError:
        return False
    return bool(calls) and all(map(_is_for_ever, calls))


def _is_for_ever(call: list[str]) -> bool:
    """True for a wait for a lock in memory that is not shared; the number of the call and its arguments."""
    if len(call) < 5 or call[0] != _FUTEX.get(os.uname().machine):
        return False
    operation, limit = int(call[2], 16), int(call[4], 16)
    return bool(operation & _FUTEX_PRIVATE) and limit == 0


def _users_line(text: str) -> str:
    """The innermost line of code of no package that a process was at, of those that a step had called."""
    for stack in text.split("most recent call first"):
        for file, line, function in _FRAME.findall(stack):
            if file == __file__:  # what comes then called the doctor
                break
            if os.path.exists(file) and not is_library_file(file):
                return f"{os.path.basename(file)}:{line}, {function}"
    return ""


def _do(pipe: Connection, steps: list[Step], seen: dict[str, Any], stacks: IO[bytes] | None) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # so that its workers end with it
    if stacks is not None:
        faulthandler.register(signal.SIGUSR2, stacks, all_threads=True, chain=False)
    with open(os.devnull, "r+") as nowhere:
        for descriptor in (0, 1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    warnings.simplefilter("ignore")
    _calm_threads()
    _allow_pools()
    for step in steps:
        pipe.send_bytes(json.dumps(["begin", step.name, None]).encode())
        try:
            seen[step.name] = step.work(seen)
            message = ["found", step.name, seen[step.name]]
        except BaseException as error:
            message = ["error", step.name, _said(error)]
        pipe.send_bytes(json.dumps(message).encode())
    pipe.close()


def _calm_threads() -> None:
    """A forked child must not wait for threads of its parent: OpenMP's are gone."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _allow_pools() -> None:
    """A program that is examined as it ends has closed all pools of threads: a child may use its own."""
    pools = sys.modules.get("concurrent.futures.thread")
    if pools is not None:
        vars(pools)["_shutdown"] = False


def _said(error: BaseException) -> str:
    """An error in a line, as Python prints it."""
    lines = [
        line.strip() for line in "".join(traceback.format_exception_only(type(error), error)).splitlines()
    ]
    kept = [line for line in lines if line]
    # torch puts the traceback of a worker into the message: what was raised there comes behind its frames.
    frames = [number for number, line in enumerate(kept) if _OF_FRAME.match(line)]
    if frames and "Original Traceback" in "".join(kept):
        kept = [line for line in kept[frames[-1] + 1 :] if _RAISED.match(line)] or kept[-1:]
    row = row_said("\n".join(lines))
    return (kept[0] if kept else type(error).__name__)[:_MOST_TEXT] + (f" (made as row {row})" if row else "")


def _end(child: multiprocessing.process.BaseProcess) -> None:
    for _ in range(_END_TIMES if child.pid is not None else 0):  # it may just have started one more
        # Python's tracker of semaphores and shared memory ends by itself, once it has deleted what they left.
        others = [pid for pid in _of_session(child.pid or 0) if not _is_tracker(pid)]
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not others:
            break
    with contextlib.suppress(Exception):
        child.kill()
    child.join(_END_SECONDS)
    with contextlib.suppress(ValueError):  # it waits for a disk that does not answer
        child.close()
