"""Steps that may hang, kill their process or move what they touch -> what they found, in a bounded time.

The doctor tries things in a child process, and ends it with all that it has started.
So the loader, its sampler and every generator of the caller stay as they are, whatever is tried, and a
dataset that hangs or crashes is a finding. On Linux the child is forked, so that it has the dataset as it is;
elsewhere a fork is not safe, and nothing is tried that does not pickle.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

__all__ = ["Step", "Trial", "tried"]

_END_SECONDS = 2.0  # for a child that was killed to be gone
_MOST_TEXT = 300


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


class Trial(NamedTuple):
    """The results of some steps.

    Attributes:
        found: by name of the step.
        errors: by name: what was raised.
        hung: the step that took too long, and ended the trial, and the seconds it was given; or None.
        left: names of steps that were not tried, or not ended.
    """

    found: dict[str, Any]
    errors: dict[str, str]
    hung: tuple[str, float] | None
    left: dict[str, str]


def tried(steps: Sequence[Step], seconds: float) -> Trial:
    """Does steps one after the other in a child process, for no more than some seconds."""
    can_fork = sys.platform.startswith("linux")
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_do, args=(theirs, list(steps), seconds), daemon=False)  # type: ignore[attr-defined]
    trial = Trial({}, {}, None, {})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child.start()
    except Exception as error:  # it does not pickle
        ours.close()
        theirs.close()
        return trial._replace(
            left={step.name: f"no process could be started: {_said(error)}" for step in steps}
        )
    theirs.close()
    try:
        return _heard(ours, steps, seconds, trial)
    finally:
        _end(child)
        ours.close()


def _heard(pipe: Connection, steps: Sequence[Step], seconds: float, trial: Trial) -> Trial:
    """Listens until the child has ended, a step takes too long, or the time is over."""
    limits = {step.name: step.seconds for step in steps}
    deadline, at = time.monotonic() + seconds, ""
    step_ends = deadline
    open_steps = [step.name for step in steps]
    why = "it ended the process that tried it"
    while True:
        now = time.monotonic()
        if not pipe.poll(max(0.0, min(deadline, step_ends) - now)):
            if step_ends <= deadline and at:
                trial = trial._replace(hung=(at, limits[at]))
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


def _do(pipe: Connection, steps: list[Step], seconds: float) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # so that its workers end with it
    with open(os.devnull, "r+") as nowhere:
        for descriptor in (0, 1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    warnings.simplefilter("ignore")
    _calm_threads()
    found: dict[str, Any] = {}
    for step in steps:
        pipe.send_bytes(json.dumps(["begin", step.name, None]).encode())
        try:
            found[step.name] = step.work(found)
            message = ["found", step.name, found[step.name]]
        except BaseException as error:
            message = ["error", step.name, _said(error)]
        pipe.send_bytes(json.dumps(message).encode())
    pipe.close()


def _calm_threads() -> None:
    """A forked child must not wait for threads of its parent: OpenMP's are gone."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _said(error: BaseException) -> str:
    """The last line of an error, as Python prints it."""
    lines = [
        line.strip() for line in "".join(traceback.format_exception_only(type(error), error)).splitlines()
    ]
    kept = [line for line in lines if line]
    # torch puts the traceback of a worker into the message; its last line says what was raised there.
    return (kept[-1] if kept else type(error).__name__)[:_MOST_TEXT]


def _end(child: multiprocessing.process.BaseProcess) -> None:
    if child.pid is not None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(child.pid) == child.pid:
                os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(Exception):
        child.kill()
    child.join(_END_SECONDS)
    with contextlib.suppress(ValueError):  # it waits for a disk that does not answer
        child.close()
