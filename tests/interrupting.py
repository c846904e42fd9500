"""Which functions are called, and Ctrl-C at each line of a file in turn."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["calls_of", "interrupted"]


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
