"""The row that raised an error: its number goes with the error, also out of a worker that was forked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

__all__ = ["noted", "row_said", "rows_named"]

_SAID = re.compile(r"\(made as row (.+)\)$", re.MULTILINE)


def noted(error: Exception, row: object) -> None:
    """Notes in an error which row was being made."""
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"(made as row {int(row) if isinstance(row, np.integer) else row!r})")


def row_said(text: str) -> str | None:
    """The row that an error's text says was being made, as it is written in Python; None if it says none."""
    found = _SAID.findall(text)
    return found[-1] if found else None


@contextmanager
def rows_named(dataset: object) -> Iterator[None]:
    """A context in which errors that rows of a dataset raise note the row."""
    kind: Any = type(dataset)
    there = getattr(kind, "__getitem__", None)
    if not isinstance(there, FunctionType):  # a list, say
        yield
        return

    def named(self: Any, row: Any) -> Any:
        try:
            return there(self, row)
        except Exception as error:
            if self is dataset and not isinstance(row, (list, tuple)):
                noted(error, row)
            raise

    own = "__getitem__" in vars(kind)
    kind.__getitem__ = named
    try:
        yield
    finally:
        if own:
            kind.__getitem__ = there
        else:
            del kind.__getitem__
