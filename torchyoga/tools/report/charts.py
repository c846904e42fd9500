"""Counts and points -> paths of SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["bars", "points", "segments"]


def bars(counts: Sequence[int], width: float, height: float) -> str:
    """A path of one bar for each count, upwards; what is not 0 can be seen.

    Example:
        >>> from torchyoga.tools.report.charts import bars
        >>> bars([0, 1, 2], 30, 10)
        'M10 10v-5h9v5zM20 10v-10h9v10z'
    """
    most, step = max(counts, default=0), width / max(1, len(counts))
    wide = step * 0.9 if step > 2 else step
    found = []
    for place, count in enumerate(counts):
        if count:
            high = _short(max(1.0, height * count / most))
            found.append(f"M{_short(place * step)} {_short(height)}v-{high}h{_short(wide)}v{high}z")
    return "".join(found)


def points(places: Iterable[tuple[float, float]]) -> str:
    """A path of dots, for a stroke with round ends."""
    return "".join(f"M{_short(x)} {_short(y)}h0" for x, y in places)


def segments(sizes: Sequence[int], width: float, height: float) -> str:
    """A path of boxes side by side, each as wide as its share."""
    whole, at, found = sum(sizes) or 1, 0, []
    for part in sizes:
        x = width * at / whole
        wide = max(0.4, width * part / whole - 0.6)
        found.append(f"M{_short(x)} 0h{_short(wide)}v{_short(height)}h-{_short(wide)}z")
        at += part
    return "".join(found)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
