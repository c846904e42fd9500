"""One tree of errors: each says what was asked, what was found and what to do."""

from __future__ import annotations

__all__ = [
    "CorruptError",
    "ExistsError",
    "NotFoundError",
    "RemoteError",
    "SchemaError",
    "StateError",
    "YogaError",
]


class YogaError(Exception):
    """The root of every error that torchyoga raises itself."""


class SchemaError(YogaError, ValueError):
    """A row, or a value inside it, is of a kind that cannot be stored, or differs from the rows before it."""


class NotFoundError(YogaError, KeyError, FileNotFoundError):
    """The version does not exist, or has been overwritten or removed since it was fetched."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return str(self.args[0]) if self.args else ""


class ExistsError(YogaError, FileExistsError):
    """That version is published already, and published versions never change."""


class CorruptError(YogaError, ValueError):
    """What is on disk is not what was written there: cut, damaged or hostile."""


class RemoteError(YogaError, OSError):
    """A store behind a URL cannot be reached, refuses, or gives wrong answers, after several tries."""


class StateError(YogaError, ValueError):
    """A saved state does not belong to this dataset, seed or iteration."""
