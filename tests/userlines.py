"""Warnings that name the user's own line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable


def line() -> int:
    """The number of the caller's next line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + 1


def check_line(work: Callable[[], int], about: str = "") -> None:
    """Checks that the only warning about it names the file of `work` and the line that `work` returns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = work()
    ours = [(warning.filename, warning.lineno) for warning in caught if about in str(warning.message)]
    assert ours == [(inspect.getfile(work), expected)]
