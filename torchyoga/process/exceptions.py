"""Exceptions with notes, which say which row raised them; a worker process sends its own to its parent.

Notes cost nothing where no exception is raised. A worker's exception comes with its notes, of its own type.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from torch._utils import ExceptionWrapper, KeyErrorMessage

_MOST_TEXT = 2000  # of the rows of a batch


class Note(str):
    """A note of ours; it may be added to by code that knows more.

    Attributes:
        row: the row that raised the exception; None if there are several.
        of: what it is a row of.
        call: what raises the exception again, for the reader.
        where: the batch and the epoch, once they are known; nothing of ours is noted after that.
    """

    row: object = None
    of: str = ""
    call: str = ""
    where: str = ""


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception."""
    return list(vars(error).get("__notes__", ()))


def set_notes(error: BaseException, notes: Sequence[str]) -> None:
    """Replaces the notes of an exception, which may refuse to be given an attribute."""
    vars(error).pop("__notes__", None)
    if notes:
        vars(error)["__notes__"] = list(notes)


def add_note(error: BaseException, text: str) -> None:
    """Adds a note, once: an exception may be raised again. Python 3.10 keeps it, and does not show it."""
    notes = notes_of(error)
    if text not in notes:
        set_notes(error, [*notes, text])


def note_row(error: BaseException, row: object, of: str, call: str = "") -> None:
    """Notes that a row raised an exception."""
    note = Note(f"in row {row!r} of {of}{call and f'; {call}'}")
    note.row, note.of, note.call = row, of, call
    notes = notes_of(error)
    rows = [known for known in notes if isinstance(known, Note) and known.row is not None and known.of == of]
    if not any(known.row == row for known in rows):
        set_notes(error, [*(known for known in notes if known not in rows), note])


def note_batch(
    error: BaseException, rows: Sequence[object], of: str, where: str = "", doing: str = ""
) -> None:
    """Notes where rows were made of which one raised an exception: in the note of that row, if there is one.

    Args:
        error: the exception.
        rows: of the batch.
        of: what they are rows of.
        where: the batch and the epoch.
        doing: what was done with them, if not made.
    """
    notes = _of_this_time(notes_of(error), of)
    last = notes[-1] if notes else None
    if isinstance(last, Note) and last.row is not None and where and not doing:
        call = last.call or (f"dataset[{last.row!r}] raises it" if last.of == of else "")
        note = Note(f"in row {last.row!r} of {last.of}{where}{call and f'; {call}'}")
        del notes[-1]
    else:
        which = "row" if len(rows) == 1 else "the rows" if doing else "one of the rows"
        listed = ", ".join(map(repr, rows))
        if len(listed) > _MOST_TEXT:
            listed = f"{listed[:_MOST_TEXT]}... ({len(rows)} rows)"
        note = Note(f"in {doing and f'{doing} '}{which} {listed} of {of}{where}")
    note.of, note.where = of, where
    set_notes(error, [*(known for known in notes if known != note), note])


def _of_this_time(notes: list[str], of: str) -> list[str]:
    """The notes without ours of a time before, when the same exception was raised in another batch."""
    ends = [at for at, note in enumerate(notes, 1) if isinstance(note, Note) and note.where and note.of == of]
    end = ends[-1] if ends else 0
    return [note for at, note in enumerate(notes) if at >= end or not isinstance(note, Note)]


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
