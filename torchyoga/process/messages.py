"""What people see: numbers and tables as text, warnings at their own line, the log, and progress bars.

Note 16. Processes share no locks except locks on files, which the kernel frees.
All forked processes share the lock of the bars of tqdm. A process that is killed while it holds that lock
leaves all others waiting for ever; hidden bars take it, too.
"""

from __future__ import annotations

import logging
import sys
import threading
import unicodedata
import warnings
from collections.abc import Collection, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

from .threads import renew_in_children

log = logging.getLogger("torchyoga")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_JOINERS = "\u200c\u200d"  # Persian and emoji are not the same without them


def bytes_text(nbytes: int, decimals: int = 1) -> str:
    """A number of bytes in the unit that suits it; below ten with so many decimals.

    Example:
        >>> from torchyoga.process.messages import bytes_text
        >>> bytes_text(999), bytes_text(1_500_000), bytes_text(20 * 10**9), bytes_text(1_500_000, 0)
        ('999 B', '1.5 MB', '20 GB', '2 MB')
    """
    size, unit = float(nbytes), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.{decimals if unit and size < 9.95 else 0}f} {_UNITS[unit]}"


def escaped(text: str) -> str:
    """A text on one line, with escapes for all that cannot be seen or changes how the rest is shown.

    Example:
        >>> print(escaped("one" + chr(27) + "[31m two" + chr(10)))
        one\\x1b[31m two\\n
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    is_seen = character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"
    return character if is_seen else character.encode("unicode_escape").decode()


def short(text: str, most: int = 60) -> str:
    """A text as `escaped` shows it, in so many characters; a mark stands for what was cut.

    Example:
        >>> from torchyoga.process.messages import short
        >>> short("one" + chr(27) + "[31m two"), short("x" * 100, most=10)
        ('one\\\\x1b[31m two', 'xxxxxxxxxx…')
    """
    found = ""
    for character in text[: most + 1]:
        seen = _escaped(character)
        if len(found) + len(seen) > most:
            return found.rstrip() + "…"
        found += seen
    return found


def in_columns(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """The lines of a table, each column as wide as it must be; those numbered in `right` are aligned right.

    Example:
        >>> from torchyoga.process.messages import in_columns
        >>> in_columns([("name", "rows"), ("a", "10")], right=[1])
        ['name  rows', 'a       10']
    """
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]

    def padded(number: int, text: str) -> str:
        room = " " * (widths[number] - width_of(text))
        return room + text if number in right else text + room

    return ["  ".join(padded(number, text) for number, text in enumerate(row)).rstrip() for row in rows]


def width_of(text: str) -> int:
    """Columns of a terminal that a text takes.

    Example:
        >>> from torchyoga.process.messages import width_of
        >>> width_of("name"), width_of("名")
        (4, 2)
    """
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def count_of(number: int, what: str) -> str:
    """A number of things, in words that fit it.

    Example:
        >>> from torchyoga.process.messages import count_of
        >>> count_of(1, "file"), count_of(1200, "file")
        ('1 file', '1,200 files')
    """
    return f"{number:,} {what if number == 1 else what + 's'}"


def number(value: object) -> str:
    """A number in at most ten characters or so; anything else as its text; None as nothing.

    Example:
        >>> from torchyoga.process.messages import number
        >>> number(1234567), number(2 / 3), number(1e-9), number(None)
        ('1,234,567', '0.6667', '1e-09', '')
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.4g}"
    return f"{value:,}" if abs(value) < 10**15 else f"{value:.4g}" if abs(value) < 10**300 else "huge"


def share(part: int, whole: int) -> str:
    """A part of a whole in percent.

    Example:
        >>> from torchyoga.process.messages import share
        >>> share(1, 3), share(1, 10**6), share(5, 5), share(0, 0)
        ('33.3%', '<0.1%', '100%', '0%')
    """
    if not part or not whole:
        return "0%"
    if part == whole:
        return "100%"
    found = 100 * part / whole
    return "<0.1%" if found < 0.1 else ">99.9%" if found > 99.9 else f"{found:.1f}%"


# By the first part of a module's name; those of the standard library only call functions passed to them.
_OTHERS = {
    *("accelerate", "concurrent", "contextlib", "functools", "keras", "lightning", "lightning_fabric"),
    *("lightning_utilities", "pytorch_lightning", "tensorflow", "threading", "torch", "torchdata"),
    *("torchyoga", "tqdm", "transformers"),
}
_MOST_FRAMES = 1000


def warn_user(message: str) -> None:
    """Warns as `warnings.warn` does, about the innermost line that is neither ours nor a trainer's.

    In a thread where every line is ours or a trainer's, it is about the outermost one.
    """
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if _module(frame).partition(".")[0] not in _OTHERS or frame.f_back is None:
            break
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        _module(frame) or "<string>",
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class Bar:
    """A progress bar that is not shown, and what any bar can do."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> object:
        """Adds `count` to the progress."""


def progress_bar(shown: bool | None, total: int | None, what: str, unit: str, **more: object) -> Bar:
    """A context manager with `update(count)`.

    Args:
        shown: None shows it on a terminal only.
        total: the count at the end; None if it is unknown.
        what: names the work.
        unit: of the count.
        more: arguments for tqdm.
    """
    if shown is None:
        shown = sys.stderr is not None and sys.stderr.isatty()
    if not shown:
        return Bar()
    found: Bar = _bars()(total=total, desc=what, unit=unit, **more)
    return found


@lru_cache(None)
def _bars() -> Any:
    """The class of tqdm's bars whose lock belongs to its process."""
    from tqdm import tqdm  # which takes time to load

    class TqdmBar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # its thread takes the lock, too

        @classmethod
        def renew(cls) -> None:
            cls.set_lock(threading.RLock())

    TqdmBar.renew()
    renew_in_children(TqdmBar)
    return TqdmBar
