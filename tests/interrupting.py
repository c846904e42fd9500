"""Ctrl-C at each line of a file in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["interrupted"]


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
