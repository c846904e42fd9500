"""An exception of a worker process, to be raised in its parent with its notes, of its own type."""

from __future__ import annotations

import contextlib
import pickle

from torch._utils import ExceptionWrapper

from .noted import notes_of

__all__ = ["Raised"]


class Raised(ExceptionWrapper):
    """An exception that torch's iterators raise again in the training loop's process.

    torch makes it anew from a message, with the worker's traceback. Where a type takes something else, the
    exception itself is sent, too.
    """

    def __init__(self, error: Exception, where: str) -> None:
        self.notes = notes_of(error)
        vars(error).pop("__notes__", None)  # else they were in the traceback's text as well
        super().__init__((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
        self.own = b""
        with contextlib.suppress(Exception):
            self.own = pickle.dumps(error)

    def reraise(self) -> None:
        """Raises it."""
        try:
            super().reraise()  # type: ignore[no-untyped-call]
        except Exception as error:
            found = self._of_its_type(error)
        if self.notes:
            found.__notes__ = self.notes  # type: ignore[attr-defined,unused-ignore]
        try:
            raise found
        finally:
            del found  # through the traceback, a cycle would keep whatever has asked for it, and its workers

    def _of_its_type(self, made: Exception) -> Exception:
        """What torch has made; or the worker's own, with that as its cause, if the types differ."""
        made = made.with_traceback(None)  # torch's frame refers to it
        if type(made) is self.exc_type or not self.own:
            return made
        try:
            own: Exception = pickle.loads(self.own)
        except Exception:
            return made
        made.__context__, own.__cause__ = None, made
        return own
