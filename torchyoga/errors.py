"""One tree of errors: each says what was asked, what was found and what to do.

A class stands for what a handler would do; the builtins in brackets are its other parents.

    YogaError                           only a person can help: move away what is in the way
    |-- SchemaError (ValueError)        change the row, or the schema
    |-- StateError (ValueError)         load another state, or make the dataset and order it belongs to
    |-- NotFoundError (KeyError, FileNotFoundError)
    |                                   build it, or ask for one of those that the message lists
    |-- ExistsError (FileExistsError)   fetch the published version, or choose another one
    |-- BusyError (TimeoutError)        wait longer, or stop the process that the message names
    |-- LostError (RuntimeError)        call again: it finds what another process has published
    |-- RemoteError (OSError)           repair the network or the permissions, then call again
    |-- CorruptError (ValueError)       remove the version and build it again, or copy the file again
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CorruptError",
    "ExistsError",
    "LostError",
    "NotFoundError",
    "RemoteError",
    "SchemaError",
    "StateError",
    "YogaError",
]


class YogaError(Exception):
    """The root of every error that torchyoga raises itself.

    This class itself is raised where only a person can help: foreign files or links lie where a version is to
        be written, or a build waits for itself.
    """


class SchemaError(YogaError, ValueError):
    """A row, or a value inside it, is of a kind that cannot be stored, or differs from the rows before it."""


class NotFoundError(YogaError, KeyError, FileNotFoundError):
    """The version does not exist, or has been overwritten or removed since it was fetched."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return str(self.args[0]) if self.args else ""


class ExistsError(YogaError, FileExistsError):
    """That version is published already, and published versions never change."""


class BusyError(YogaError, TimeoutError):
    """Another process or thread held a lock, a lease or a file for too long; says which one."""


class LostError(YogaError, RuntimeError):
    """Another process took the work over, or removed its files, because this one counted as dead.

    The call has published and removed nothing.
    """


class CorruptError(YogaError, ValueError):
    """Files hold something else than was written to them: cut, damaged or hostile."""


class RemoteError(YogaError, OSError):
    """A store behind a URL cannot be reached, refuses, or gives wrong answers, after several tries."""


class StateError(YogaError, ValueError):
    """A saved state does not belong to this dataset, seed or iteration."""
