"""A function that may hang, kill its process or move what it touches -> what came of it, in a bounded time.

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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NamedTuple

from .patient import row_said
from .walk import is_library_file

ENDED = "it ended the process that tried it"
BUSY = 0.2  # share of the CPUs: if other processes take as much, seconds say little
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # a second
_END_SECONDS = 2.0  # for a child that was killed to be gone
_MOST_TEXT = 300
_LOOK_SECONDS, _IDLE = 0.5, 0.2  # of a look at processes, and the share of it for which idle ones run
_FUTEX = {"x86_64": "202", "aarch64": "98"}  # the system call that waits for a lock
_FUTEX_PRIVATE = 128  # of its operation: not for other processes
_OF_FRAME, _RAISED = re.compile(r'File ".+", line \d+'), re.compile(r"[A-Za-z_][\w.]*(: |$)")
_FRAME = re.compile(r'  File "(.+?)", line (\d+) in (\S+)')


class Hang(NamedTuple):
    """What the processes of a trial did when its time was over.

    Attributes:
        seconds: that time.
        is_idle: True if they did nothing.
        is_locked: True if, besides, all threads of one of them waited, without a limit, for locks that no
            other process can open.
        is_busy: other processes took much of the CPUs.
        ran: seconds of CPU time that they took, in all of that time.
        at: in words, the line of the user's code that one of them was at; "" if there is none.
        is_twice: a fresh process did not end, either.
    """

    seconds: float
    is_idle: bool = False
    is_locked: bool = False
    is_busy: bool = False
    ran: float = 0.0
    at: str = ""
    is_twice: bool = False


class Outcome(NamedTuple):
    """The result of a trial: a value, or why there is none.

    Attributes:
        value: what the function returned.
        error: what it raised, in a line, or `ENDED`; "" if neither.
        hang: it took too long.
        left: why it was not tried; "" if it was.
    """

    value: Any = None
    error: str = ""
    hang: Hang | None = None
    left: str = ""

    @property
    def problem(self) -> str:
        """The reason why there is no value; "" if the function returned."""
        hung = f"it did not end in {self.hang.seconds:.0f} s" if self.hang is not None else ""
        return self.left or self.error or hung


def tried(work: Callable[[], object], seconds: float) -> Outcome:
    """Calls a function, which returns what JSON has, in a child process for no more than some seconds."""
    can_fork = sys.platform.startswith("linux")
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as stacks, contextlib.closing(ours):
        child = context.Process(  # type: ignore[attr-defined]
            target=_do, args=(theirs, work, stacks if can_fork else None), daemon=False
        )
        try:
            with warnings.catch_warnings(), contextlib.closing(theirs):
                warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
                child.start()
        except Exception as error:  # it does not pickle
            return Outcome(left=f"no process could be started: {_said(error)}")
        try:
            if ours.poll(seconds):
                return Outcome(*json.loads(ours.recv_bytes()))
            hang = Hang(seconds)
            if can_fork and child.pid is not None:
                hang = _looked_at(hang, child.pid, stacks)
            if ours.poll():  # it has ended meanwhile
                hang = hang._replace(is_idle=False, is_locked=False)
            return Outcome(hang=hang)
        except (EOFError, OSError):
            return Outcome(error=ENDED)
        finally:
            _end(child)


def _do(pipe: Connection, work: Callable[[], object], stacks: IO[bytes] | None) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # so that its workers end with it
    if stacks is not None:
        faulthandler.register(signal.SIGUSR2, stacks, all_threads=True, chain=False)
    with open(os.devnull, "r+") as nowhere:
        for descriptor in (0, 1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    warnings.simplefilter("ignore")
    if "torch" in sys.modules:  # OpenMP's threads are gone: nothing may wait for them
        sys.modules["torch"].set_num_threads(1)
    try:
        message: list[object] = [work(), ""]
    except BaseException as error:
        message = [None, _said(error)]
    pipe.send_bytes(json.dumps(message).encode())
    pipe.close()


def _said(error: BaseException) -> str:
    """An error in a line, as Python prints it."""
    text = "".join(traceback.format_exception_only(type(error), error))
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    # torch puts the traceback of a worker into the message: what was raised there comes behind its frames.
    frames = [number for number, line in enumerate(kept) if _OF_FRAME.match(line)]
    if frames and "Original Traceback" in text:
        kept = [line for line in kept[frames[-1] + 1 :] if _RAISED.match(line)] or kept[-1:]
    row = row_said(text)
    return (kept[0] if kept else type(error).__name__)[:_MOST_TEXT] + (f" (made as row {row})" if row else "")


def _end(child: multiprocessing.process.BaseProcess) -> None:
    """Ends all processes of a trial; for some time, since one may just have started another."""
    ends = time.monotonic() + _END_SECONDS
    while time.monotonic() < ends:
        others = []
        for pid in _of_session(child.pid or 0):
            with contextlib.suppress(OSError):
                # Python's tracker of semaphores and shared memory deletes what they left, and ends by itself.
                if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    others.append(pid)
                    os.kill(pid, signal.SIGKILL)
        if not others:
            break
    with contextlib.suppress(Exception):  # it waits for a disk that does not answer
        child.kill()
        child.join(_END_SECONDS)
        child.close()


def _of_session(session: int) -> dict[int, list[str]]:
    """The processes that a trial has started, and the fields of /proc/[pid]/stat behind their names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(path.parent.name)] = fields
    return found


def cpu_seconds(session: int) -> float:
    """Seconds of CPU time that a trial took."""
    return sum(sum(map(int, fields[11:15])) for fields in _of_session(session).values()) / _TICKS


def _of_threads(pid: int, name: str) -> list[str]:
    """The text of a file in /proc of each thread of a process."""
    texts = []
    for path in Path(f"/proc/{pid}/task").glob(f"*/{name}"):
        with contextlib.suppress(OSError):  # it has ended
            texts.append(path.read_text())
    return texts


def running_seconds(session: int) -> float:
    """Seconds for which the threads of a trial ran, or wanted to and waited for a CPU."""
    texts = [text.split() for pid in _of_session(session) for text in _of_threads(pid, "schedstat")]
    return sum(int(one[0]) + int(one[1]) for one in texts) / 1e9


def _wants_a_cpu(session: int) -> bool:
    """True if a thread of a trial runs, or waits for a CPU."""
    texts = [text for pid in _of_session(session) for text in _of_threads(pid, "stat")]
    return any(text.rpartition(")")[2].split()[0] == "R" for text in texts)


def seconds_of_all() -> float:
    """Seconds of CPU time that all processes, and other machines on this one, took of this process's CPUs."""
    with contextlib.suppress(OSError):
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ticks = sum(sum(map(int, (*some[1:4], *some[6:9]))) for some in lines if some and some[0] in mine)
        return float(ticks / _TICKS)
    return 0.0


class Others:
    """How much of the CPUs other processes than those of a trial take, from now on."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._then = time.monotonic(), self._seconds()

    def _seconds(self) -> float:
        return seconds_of_all() - cpu_seconds(self._session)

    @property
    def share(self) -> float:
        """Their share in 0..1."""
        began, seconds = self._then
        passed = time.monotonic() - began
        return min(1.0, max(0.0, self._seconds() - seconds) / passed / len(os.sched_getaffinity(0)))


def _looked_at(hang: Hang, session: int, stacks: IO[bytes]) -> Hang:
    """The hang, with what the processes of the trial do: whether they wait, and where."""
    others, before, waited = Others(session), running_seconds(session), _wants_a_cpu(session)
    time.sleep(_LOOK_SECONDS)
    is_busy, ran = others.share >= BUSY, cpu_seconds(session)
    is_starved = waited and _wants_a_cpu(session)  # the kernel counts a wait when it ends
    is_idle = running_seconds(session) - before <= _IDLE * _LOOK_SECONDS and not is_starved
    pids = [*_of_session(session)]
    is_locked = is_idle and any(map(_waits_for_locks, pids))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)
            time.sleep(0.02)  # so that their stacks come one after the other
    time.sleep(0.1)
    stacks.seek(0)
    at = _users_line(stacks.read().decode(errors="replace"))
    return hang._replace(is_idle=is_idle, is_locked=is_locked, is_busy=is_busy, ran=ran, at=at)


def _waits_for_locks(pid: int) -> bool:
    """True if each thread of a process waits, without a limit, for a lock of this process alone.

    Then no thread is left that could open one of them.
    """
    calls = [text.split() for text in _of_threads(pid, "syscall")]  # each its number and arguments
    futex = _FUTEX.get(os.uname().machine)
    are_locks = all(
        len(call) > 4 and call[0] == futex and int(call[2], 16) & _FUTEX_PRIVATE for call in calls
    )
    return bool(calls) and are_locks and all(int(call[4], 16) == 0 for call in calls)


def _users_line(text: str) -> str:
    """The innermost line of code of no package that a process was at, of those that a trial had called."""
    for stack in text.split("most recent call first"):
        for file, line, function in _FRAME.findall(stack):
            if file == __file__:  # what comes then called the doctor
                break
            if os.path.exists(file) and not is_library_file(file):
                return f"; it was at {os.path.basename(file)}:{line}, {function}"
    return ""
