"""Weights that a user gives -> exact fractions."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np

__all__ = ["fraction", "fractions_of"]

_MOST_SCALED = 2**53  # of weights that a temperature has changed


def fraction(weight: object, name: object) -> Fraction:
    """A weight as an exact fraction: a float is the decimal number that it is written as, 0.1 is 1/10.

    A tensor or an array without dimensions is its number.

    Raises:
        ValueError: it is negative, NaN or infinite, or no number.
    """
    found: Fraction | None = None
    if getattr(weight, "shape", None) == () and hasattr(weight, "item"):
        weight = weight.item()
    if isinstance(weight, float) and math.isfinite(weight):
        found = Fraction.from_decimal(Decimal(repr(weight)))
    elif isinstance(weight, numbers.Rational) and not isinstance(weight, bool):
        found = Fraction(int(weight.numerator), int(weight.denominator))
    if found is None or found.numerator < 0:
        raise ValueError(f"the weight of {name!r} must be a number of at least 0, found {weight!r:.80}")
    return found


def fractions_of(
    weights: object, names: Sequence[str], sizes: Sequence[int], temperature: float
) -> list[Fraction]:
    """The weight of each source.

    Args:
        weights: a mapping with each of the names, or "size" for the number of rows of each.
        names: of the sources.
        sizes: their numbers of rows.
        temperature: the weights are raised to the power of 1 / temperature.

    Raises:
        ValueError: a weight is negative or no number, all are 0, or the names are others.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, numbers.Real) or not temperature > 0:
        raise ValueError(f"temperature must be a number above 0, found {temperature!r}")
    if isinstance(weights, str):
        if weights != "size":
            raise ValueError(
                f'weights must be a dict of a number for each source, or "size", found {weights!r}'
            )
        found = list(map(Fraction, sizes))
    elif isinstance(weights, Mapping):
        known = set(names)
        unknown, missing = [n for n in weights if n not in known], [n for n in names if n not in weights]
        if unknown or missing:
            told = [f"there is no {unknown[:20]}"] * bool(unknown)
            told += [f"without a weight are {missing[:20]}"] * bool(missing)
            raise ValueError(
                f"weights must name each source once: the sources are {list(names)[:100]}, {', '.join(told)}"
                ". Give each of them a number, 0 to leave it out; a new source is mixed first, by yoga.mix"
            )
        found = [fraction(weights[name], name) for name in names]
    else:
        found = []
    if not found:
        raise ValueError(
            f'weights must be a dict of a number for each source, or "size", found {weights!r:.80}'
        )
    if not any(found):
        raise ValueError("all weights are 0; give at least one source a weight above 0")
    if temperature == 1:
        return found
    temperature = float(temperature) if isinstance(temperature, np.generic) else temperature
    # Relative to the largest, so that nothing overflows.
    most = max(found)
    scaled = [float(weight / most) ** (1 / temperature) for weight in found]
    return [
        Fraction(max(1, round(value * _MOST_SCALED)), _MOST_SCALED) if weight else Fraction(0)
        for value, weight in zip(scaled, found, strict=True)
    ]
