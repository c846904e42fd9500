"""The progress of work into a bar on a terminal, which no other process can block."""

from __future__ import annotations

import sys


class Bar:
    """A progress bar that is not shown, and what any bar can do."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

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
        return Bar()
    from .bar import TqdmBar  # tqdm takes time to load

    return TqdmBar(total=total, desc=what, unit=unit, **more)
