"""Which functions are called, and Ctrl-C at each line of a file in turn."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def calls_of(*functions: Callable[..., Any]) -> Iterator[list[dict[str, Any]]]:
    """A list that gets the arguments of each call of these functions, here and in threads to come."""
    codes, found = {function.__code__ for function in functions}, list[dict[str, Any]]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes:
            found.append({**frame.f_locals})

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield found
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def pressed(call: Callable[[], object], after: float = 1) -> bool:
    """True if Ctrl-C interrupts a call that takes longer than so many seconds.

    It is pressed again where nothing comes of it: Python drops what is raised in a finalizer, and the garbage
    collector may be in one.
    """
    is_over = threading.Event()

    def press() -> None:
        while not is_over.wait(after):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        thread.start()
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        is_over.set()
        thread.join()


def interrupted(call: Callable[[], object], file: str | None, line: int) -> bool:
    """True if a call was interrupted at the n-th line of a file; False if it executes fewer of them."""
    left, caught = line, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        caught = True
    finally:
        sys.settrace(before)
    return caught
