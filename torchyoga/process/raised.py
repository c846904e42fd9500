"""An exception of a worker process, to be raised in its parent with its notes, of its own type."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper, KeyErrorMessage

from .exceptions import notes_of, set_notes


class Raised(ExceptionWrapper):
    """An exception that torch's iterators raise again in the training loop's process.

    As in torch, it is made anew of a message, with the worker's traceback. Where its class takes something
    else, the worker's own exception comes, with that message as its cause, or else a RuntimeError.
    """

    def __init__(self, error: Exception, where: str) -> None:
        self.notes = notes_of(error)
        set_notes(error, [])  # else they were in the traceback's text as well
        try:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        except Exception:  # such as of a property `__notes__`
            lines = traceback.format_tb(error.__traceback__)
            trace = "".join([*lines, f"{type(error).__name__}: {text_of(error)}\n"])
        self.message = f"Caught {type(error).__name__} {where}.\nOriginal {trace}"
        # Bytes can be sent, whatever the class is, and if its module is unknown to the parent.
        self.cls, self.own, self.text = _pickled(type(error)), _pickled(error), text_of(error)

    def reraise(self) -> None:
        """Raises it."""
        found = self._made()
        set_notes(found, self.notes)
        try:
            raise found
        finally:
            del found  # through the traceback, a cycle would keep whatever has asked for it, and its workers

    def _made(self) -> Exception:
        message = self.message
        made = _error_of(lambda: _of_message(pickle.loads(self.cls), message))
        if made is not None and message in text_of(made):
            return made
        cause, own = RuntimeError(message), _error_of(lambda: pickle.loads(self.own))
        if own is None or text_of(own) != self.text:
            return cause
        BaseException.__setattr__(own, "__cause__", cause)  # its class may refuse
        return own


def torch_can_raise(error: Exception) -> bool:
    """True if torch, too, can make an exception of this class anew of a message."""
    try:
        wrapper = ExceptionWrapper((type(error), error, error.__traceback__))  # type: ignore[no-untyped-call]
        wrapper.reraise()  # type: ignore[no-untyped-call]
    except Exception as made:
        if type(made) is not type(error):
            return False
        return wrapper.exc_msg in text_of(made) and bool(_pickled(type(error)))
    return False


def text_of(error: Exception) -> str:
    """What an exception says."""
    try:
        return str(error)
    except Exception:
        return "an exception whose __str__ raises another one"


def _of_message(cls: Callable[..., Exception], message: str) -> Exception:
    return cls(KeyErrorMessage(message) if cls is KeyError else message)


def _error_of(make: Callable[[], Any]) -> Exception | None:
    """What is made, if that is an exception."""
    try:
        made = make()
    except Exception:
        return None
    return made if isinstance(made, Exception) else None


def _pickled(item: object) -> bytes:
    """Empty if it cannot be pickled."""
    try:
        return pickle.dumps(item)
    except Exception:
        return b""
