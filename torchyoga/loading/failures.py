"""Faults of one batch of many: errors that do not end an iteration."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["STOPPED", "BatchError", "Failure", "TakenOverError", "is_late"]

STOPPED = "a row or batch could not be made: StopIteration was raised"


class BatchError(Exception):
    """An error raised while a batch was made; the batches after it come nevertheless."""

    def __init__(self, error: Exception) -> None:
        if isinstance(error, StopIteration):  # would end the loop
            cause, error = error, RuntimeError(STOPPED)
            error.__cause__ = cause
        self.error = error


class Failure(NamedTuple):
    """The stand-in of a batch that could not be read."""

    error: Exception


class TakenOverError(RuntimeError):
    """Another iterator uses the workers."""


def is_late(error: BaseException) -> bool:
    """True if torch has waited for a batch as long as `timeout` says, or another iterator has the workers."""
    return isinstance(error, TakenOverError) or (
        isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out")
    )
