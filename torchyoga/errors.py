"""One tree of errors: each says what was asked, what was found and what to do.

A class stands for what a handler would do; in brackets stand the builtins that it is, too.

    YogaError                           only a person can help: move away what is in the way
    |-- SchemaError (ValueError)        change the row, or the schema
    |-- StateError (ValueError)         load another state, or make the dataset and the order that it is of
    |-- NotFoundError (KeyError, FileNotFoundError)
    |                                   build it, or ask for one of those that the message lists
    |-- ExistsError (FileExistsError)   fetch what is published, or choose another version
    |-- BusyError (TimeoutError)        wait longer, or stop the process that the message names
    |-- LostError (RuntimeError)        call again, which finds what another has published since
    |-- RemoteError (OSError)           repair the network or the permissions, then call again
    `-- CorruptError (ValueError)       remove the version and build it again, or copy the file again
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

    Raised itself where only a person can help: files or links of others lie where a version is to be, or a
    build waits for itself.
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
    """Others took the work over, or removed its files, for this process counted as dead.

    The call has published and removed nothing.
    """


class CorruptError(YogaError, ValueError):
    """What is on disk is not what was written there: cut, damaged or hostile."""


class RemoteError(YogaError, OSError):
    """A store behind a URL cannot be reached, refuses, or gives wrong answers, after several tries."""


class StateError(YogaError, ValueError):
    """A saved state does not belong to this dataset, seed or iteration."""
