"""The progress of work into a bar on a terminal, which no other process can block."""

from __future__ import annotations

import sys
from typing import Protocol

__all__ = ["Bar", "progress_bar"]


class Bar(Protocol):
    """A progress bar."""

    def __enter__(self) -> Bar: ...

    def __exit__(self, *error: object) -> None: ...

    def update(self, count: int = 1) -> object:
        """Adds `count` to the progress."""


def progress_bar(shown: bool | None, total: int | None, what: str, unit: str, **more: object) -> Bar:
    """A context manager with `update(count)`.

    Args:
        shown: None shows it on a terminal only.
        total: the count at the end; None if it is unknown.
        what: names the work.
        unit: of the count.
        more: arguments for tqdm.
    """
    if shown is None:
        shown = sys.stderr is not None and sys.stderr.isatty()
    if not shown:
        return _Nothing()
    from .bar import TqdmBar  # tqdm takes time to load

    return TqdmBar(total=total, desc=what, unit=unit, **more)


class _Nothing:
    """A bar that is not shown."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        """Does nothing."""
