"""Signals that ask a program to save and leave: the program notes them, and its workers outlive them.

A signal to a whole group of processes, as torchrun and Slurm send, reaches workers too. If they died of it,
the program could not finish the step that it is in.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from .messages import warn_user

_POLL = 0.5  # seconds between two looks whether the parent is there
_listening: dict[int, list[Stops]] = {}  # by the number of a signal: the last of them notes it
_before: dict[int, Any] = {}  # by the number of a signal: what it did before any of them listened


class Stops:
    """Notes the first of some signals while it listens.

    Attributes:
        names: of the signals.
        asked: the one that came; 0 if none has.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.asked, self.names, self._process = 0, tuple(names), os.getpid()
        for name in self.names:
            if not (name.startswith("SIG") and name.isalnum()):
                raise ValueError(f"signals takes names such as 'SIGTERM', found {name!r}")

    def listen(self) -> None:
        """Begins to note them. Those that the system does not have are passed over."""
        if not self.names or any(self in listening for listening in _listening.values()):
            return
        if threading.current_thread() is not threading.main_thread():
            warn_user("signals reach the main thread only, and this is another one; none will save")
            return
        for number in filter(None, (getattr(signal, name, None) for name in self.names)):
            _listening.setdefault(int(number), []).append(self)
            if signal.getsignal(number) is not _note:
                _before[number] = signal.signal(number, _note) or signal.SIG_DFL

    def leave(self) -> None:
        """Makes them do what they did before; one that came, and was not answered, does it now."""
        if not signal:  # it is None when the interpreter ends
            return
        for number, listening in _listening.items():
            if self in listening:
                listening[:] = [other for other in listening if other is not self]
                if not listening and signal.getsignal(number) is _note:  # else another has been set
                    signal.signal(number, _before[number])
        if self.asked:
            asked, self.asked = self.asked, 0
            os.kill(os.getpid(), asked)


def _note(number: int, frame: FrameType | None) -> None:
    listening = _listening.get(number)
    if listening and listening[-1]._process == os.getpid():
        listening[-1].asked = listening[-1].asked or number
    else:  # a process that was forked has the handler too, but saves nothing
        signal.signal(number, _before[number])
        os.kill(os.getpid(), number)


def listened() -> tuple[int, ...]:
    """The signals that this process notes."""
    return tuple(sorted(number for number, listening in _listening.items() if listening))


def outlive(numbers: Collection[int]) -> None:
    """In a worker: lets signals pass that its parent answers; it ends when its parent has ended.

    In the parent, `kill_when_terminated` goes with it.
    """
    for number in numbers:
        # SIGTERM still ends the programs that it starts: they do not inherit a function.
        signal.signal(number, _pass if number == signal.SIGTERM else signal.SIG_IGN)
    if numbers:
        threading.Thread(target=_end_with, args=(os.getppid(),), name="torchyoga-parent", daemon=True).start()


def _pass(number: int, frame: FrameType | None) -> None:
    """Lets a signal pass."""


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(_POLL)
    os._exit(1)


def kill_when_terminated(process: BaseProcess, before: Callable[[], object]) -> None:
    """In the parent of a process that outlives SIGTERM: whatever asks it to end, as the program's end does,
    kills it.

    Args:
        process: a child that has started.
        before: called before it is killed.
    """
    popen: Any = process._popen  # type: ignore[attr-defined]
    kill = weakref.WeakMethod(popen.kill)

    def terminate() -> None:
        before()
        if (found := kill()) is not None:
            found()

    popen.terminate = terminate
