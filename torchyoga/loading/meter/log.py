"""A meter into lines of a log."""

from __future__ import annotations

import logging

from .meter import Meter

__all__ = ["Log"]


class Log:
    """Shows a meter as a line of Python's logging.

    Args:
        logger: by default the one named `torchyoga.meter`.
        level: of the lines.

    Example:
        >>> with yoga.metered(DataLoader(list(range(9))), every=3, to=[Log()]) as loader:
        ...     rows = list(loader)
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger("torchyoga.meter")
        self._level = level

    def __call__(self, meter: Meter) -> None:
        """Writes a line."""
        self._logger.log(self._level, "%s", meter)
