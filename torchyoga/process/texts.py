"""Numbers, sizes, shares and tables -> text that people read."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_JOINERS = "\u200c\u200d"  # Persian and emoji are not the same without them


def bytes_text(nbytes: int, decimals: int = 1) -> str:
    """A number of bytes in the unit that suits it; below ten with so many decimals.

    Example:
        >>> from torchyoga.process.texts import bytes_text
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
        >>> from torchyoga.process.texts import short
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
        >>> from torchyoga.process.texts import in_columns
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
        >>> from torchyoga.process.texts import width_of
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


def count_of(number: int, what: str, several: str | None = None) -> str:
    """A number of things, in words that fit it.

    Example:
        >>> from torchyoga.process.texts import count_of
        >>> count_of(1, "file"), count_of(1200, "file"), count_of(2, "entry", "entries")
        ('1 file', '1,200 files', '2 entries')
    """
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def number(value: object) -> str:
    """A number in at most ten characters or so; anything else as its text; None as nothing.

    Example:
        >>> from torchyoga.process.texts import number
        >>> number(1234567), number(2 / 3), number(1e-9), number(None)
        ('1,234,567', '0.6667', '1e-09', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.4g}"
    return f"{value:,}" if abs(value) < 10**15 else f"{value:.4g}" if abs(value) < 10**300 else "huge"


def share(part: int, whole: int) -> str:
    """A part of a whole in percent.

    Example:
        >>> from torchyoga.process.texts import share
        >>> share(1, 3), share(1, 10**6), share(5, 5), share(0, 0)
        ('33.3%', '<0.1%', '100%', '0%')
    """
    if not part or not whole:
        return "0%"
    if part == whole:
        return "100%"
    found = 100 * part / whole
    return "<0.1%" if found < 0.1 else ">99.9%" if found > 99.9 else f"{found:.1f}%"
