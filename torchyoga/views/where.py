"""A condition on columns -> a selection of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..reading.dataref import Condition, DataRef
from .scan import scan
from .selected import SelectedRef
from .selection import Selection

__all__ = ["base_of", "selected", "where"]

Mask = npt.NDArray[np.bool_]


def where(ref: DataRef, names: str | Sequence[str], condition: Condition) -> SelectedRef:
    """The rows for which a condition on some columns holds; nothing but those columns is read.

    See `DataRef.where`.
    """
    if isinstance(ref, SelectedRef) and type(ref) is SelectedRef:
        # Both conditions at once, so that no row number is looked up twice.
        kept = (ref.rows_at(start + np.flatnonzero(mask)) for start, mask in _masks(ref, names, condition))
        return selected(ref, Selection.of_rows(kept, len(ref.whole)))
    return selected(ref, Selection.of_masks(mask for _, mask in _masks(ref, names, condition)))


def base_of(ref: DataRef) -> DataRef:
    """The DataRef whose rows `where` selects: the one below a selection, else the DataRef itself."""
    return ref.whole if isinstance(ref, SelectedRef) and type(ref) is SelectedRef else ref


def selected(ref: DataRef, selection: Selection) -> SelectedRef:
    """What `where` makes of a DataRef, given which rows of `base_of(ref)` hold."""
    base = base_of(ref)
    splits = ref.splits if base is not ref and isinstance(ref, SelectedRef) else ()
    return SelectedRef(base, selection, splits)


def _masks(ref: DataRef, names: str | Sequence[str], condition: Condition) -> Iterator[tuple[int, Mask]]:
    """The first row of each run of rows, and which of them hold."""
    wanted = [names] if isinstance(names, str) else list(names)
    for start, stop, columns in scan(ref, wanted):
        given: Any = columns[wanted[0]] if isinstance(names, str) else columns
        yield start, _checked(_held(condition, given), start, stop)


def _held(condition: Condition, given: object) -> object:
    """What the condition says of some rows."""
    try:
        return condition(given)
    except ValueError as error:
        if "truth value of an array" not in str(error):
            raise
        raise ValueError(
            "the condition is called with arrays of many rows, which `and`, `or`, `not`, `if` and x < y < z "
            "cannot take; use &, | and ~ with parentheses, as in (x > 3) & (x < 9), and np.where for `if`"
        ) from error


def _checked(found: object, start: int, stop: int) -> Mask:
    if hasattr(found, "mask") and hasattr(found, "filled"):
        found = found.filled(False)  # of NumPy's masked arrays: nothing is known of what is masked
    mask = np.asarray(found)
    if mask.dtype != np.bool_ or mask.shape != (stop - start,):
        raise ValueError(
            f"the condition must return a bool for each row: for rows {start} to {stop - 1} an array of "
            f"shape ({stop - start},); it returned "
            + (f"{mask.dtype} of shape {mask.shape}" if mask.dtype != object else f"{found!r:.100}")
        )
    return mask
