"""Numbers, sizes and shares as people read them."""

from __future__ import annotations

__all__ = ["number", "share", "size"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def number(value: object) -> str:
    """A number in at most ten characters or so; anything else as its text; None as nothing.

    Example:
        >>> from torchyoga.tools.report.words import number
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
        >>> from torchyoga.tools.report.words import share
        >>> share(1, 3), share(1, 10**6), share(5, 5), share(0, 0)
        ('33.3%', '<0.1%', '100%', '0%')
    """
    if not part or not whole:
        return "0%"
    if part == whole:
        return "100%"
    found = 100 * part / whole
    return "<0.1%" if found < 0.1 else ">99.9%" if found > 99.9 else f"{found:.1f}%"


def size(nbytes: int) -> str:
    """A number of bytes.

    Example:
        >>> from torchyoga.tools.report.words import size
        >>> size(999), size(1_500_000), size(20 * 10**9)
        ('999 B', '1.5 MB', '20 GB')
    """
    found, unit = float(nbytes), 0
    while found >= 999.5 and unit < len(_UNITS) - 1:
        found, unit = found / 1000, unit + 1
    return f"{found:.0f} {_UNITS[unit]}" if unit == 0 or found >= 9.95 else f"{found:.1f} {_UNITS[unit]}"
