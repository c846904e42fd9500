"""A meter into a progress bar."""

from __future__ import annotations

from typing import TextIO

from ...process.bar import TqdmBar
from .meter import Meter

__all__ = ["ProgressBar"]


class ProgressBar:
    """Shows a meter behind a progress bar, by tqdm.

    Args:
        total: batches of the epoch; None if they are not known, or `len(loader)`.
        file: where it is shown; by default on stderr.

    Example:
        >>> import io
        >>> bar = ProgressBar(total=9, file=io.StringIO())
        >>> with yoga.metered(DataLoader(list(range(9))), every=3, to=[bar]) as loader:
        ...     rows = list(loader)
    """

    def __init__(self, total: int | None = None, file: TextIO | None = None) -> None:
        self._total, self._file = total, file
        self._bar: TqdmBar | None = None

    def __enter__(self) -> ProgressBar:
        self._bar = TqdmBar(total=self._total, unit="batch", file=self._file)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, meter: Meter) -> None:
        """Moves the bar."""
        bar = self._bar
        if bar is None:
            return
        count = meter.epoch.batches
        if count < bar.n:  # the next epoch
            bar.reset(self._total)
        last = meter.last
        stage = max(last.stages, key=lambda name: last.stages[name])
        bar.set_postfix_str(f"waited {last.share:.0%}, {stage}", refresh=False)
        bar.update(count - bar.n)
