"""Notes on exceptions, which say which row raised them; they cost nothing where no exception is raised."""

from __future__ import annotations

from collections.abc import Sequence

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
