"""Signals that ask a program to save and leave, and what they did before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ..process.warned import warn_user

__all__ = ["Stops"]


class Stops:
    """Notes the first of some signals while it listens; a second one does what it did before.

    Attributes:
        asked: the signal that came; 0 if none has.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.asked = 0
        self._names = tuple(names)
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        for name in self._names:
            if not (name.startswith("SIG") and name.isalnum()):
                raise ValueError(f"signals takes names such as 'SIGTERM', found {name!r}")

    @property
    def listens(self) -> bool:
        """True if there is any to listen for."""
        return bool(self._names)

    def listen(self) -> None:
        """Begins to note them. Those that the system does not have are passed over."""
        if self._before or not self._names:
            return
        if threading.current_thread() is not threading.main_thread():
            warn_user("signals reach the main thread only, and this is another one; none will save")
            self._names = ()
            return
        for name in self._names:
            number = getattr(signal, name, None)
            if number is not None:
                self._before[int(number)] = signal.signal(number, self._note)

    def leave(self) -> None:
        """Makes them do what they did before."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:  # else somebody else's has come since
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        # A process that was forked, such as a worker, has the handler too, but saves nothing.
        if self.asked or os.getpid() != self._process:
            before = self._before.get(number)
            signal.signal(number, signal.SIG_DFL if before is None else before)
            os.kill(os.getpid(), number)
        else:
            self.asked = number
