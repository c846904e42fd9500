"""Two datasets -> the rows of one that occur in the other, as a test set leaks into training: `overlap`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import SchemaError
from ...reading.dataref import DataRef
from ...rows.hashing import Hashes, alike, values_of
from ...rows.projection import Projection
from ...rows.schema import Schema
from ...rows.types import Ints
from .blocks import known_schema
from .matching import Side, dealt, grouped

__all__ = ["Overlap", "overlap"]

_EXAMPLES = 5  # rows in the text
_NONE = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, eq=False)
class Overlap:
    """Rows of a test set that occur in a training set, too: what `yoga.overlap` gives.

    Attributes:
        rows: (K, 2) numbers of a row of the training set, the first one of its like, and of the row of the
            test set that equals it, in order of the latter; each row of the test set at most once.
        columns: the names of the values that were compared.
        left_out: the names of those that both have, but that cannot be compared, since their types or shapes
            differ.
        lengths: rows of the training set and of the test set.
    """

    rows: Ints
    columns: tuple[str, ...]
    left_out: tuple[str, ...]
    lengths: tuple[int, int]

    @property
    def share(self) -> float:
        """The share of the rows of the test set that occur in the training set, 0 to 1."""
        return len(self.rows) / max(1, self.lengths[1])

    def __str__(self) -> str:
        train, test = self.lengths
        lines = [
            f"{len(self.rows):,} of {test:,} rows of the test set ({self.share:.2%}) are among the {train:,} "
            f"of the training set, compared by {', '.join(self.columns) or 'nothing'}"
        ]
        if self.left_out:
            lines.append(f"not compared, since types or shapes differ: {', '.join(self.left_out)}")
        lines += [
            f"test row {theirs} is training row {mine}" for mine, theirs in self.rows[:_EXAMPLES].tolist()
        ]
        if len(self.rows) > _EXAMPLES:
            lines.append(f"and {len(self.rows) - _EXAMPLES:,} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Overlap: {str(self).splitlines()[0]}>"


def overlap(train: DataRef, test: DataRef, columns: Sequence[str] | None = None) -> Overlap:
    """Which rows of a test set occur in a training set, too.

    Rows are compared by hashes of 128 bits, which are read where they are kept, as `diff` says. A row that is
    the same but for its label is found if `columns` names what counts, such as the image. What was cropped,
    encoded or scaled otherwise is another row.

    Args:
        train: any DataRef; rows of one that is random are those of epoch 0 with seed 0.
        test: another one.
        columns: names of the columns that are compared; by default all that both have, if their types and
            shapes agree.

    Raises:
        KeyError: a dataset has no such column.
        SchemaError: a column is of another type or shape in the other dataset; or they have none in common.
        NotFoundError: a version was overwritten before it was read.

    Example:
        >>> train = yoga.from_arrays({"image": np.array([10, 20, 30]), "label": np.array([0, 1, 0])})
        >>> test = yoga.from_arrays({"image": np.array([20, 40]), "label": np.array([0, 1])})
        >>> len(yoga.overlap(train, test).rows)
        0
        >>> found = yoga.overlap(train, test, columns=["image"])
        >>> found.rows, found.share
        (array([[1, 0]]), 0.5)
        >>> print(found)
        1 of 2 rows of the test set (50.00%) are among the 3 of the training set, compared by image
        test row 0 is training row 1
    """
    for ref in (train, test):
        if not isinstance(ref, DataRef):
            raise TypeError(
                f"overlap compares DataRefs, found a {type(ref).__name__}; fetch or submit it first"
            )
    if isinstance(columns, str):
        raise TypeError(f"columns are named by a list, as in columns=[{columns!r}]")
    first = known_schema(train, test.schema)
    second = known_schema(test, first)
    lengths = len(train), len(test)
    if first is None or second is None:
        return Overlap(_NONE, tuple(columns or ()), (), lengths)
    names, left_out = _compared(first, second, columns)
    sides = [
        Side(ref, schema, names, (), [(0, len(ref))] if len(ref) else [])
        for ref, schema in ((train, first), (test, second))
    ]
    rows = np.concatenate([_NONE, *(_pairs(mine, theirs) for mine, theirs in dealt(*sides))])
    return Overlap(rows[np.argsort(rows[:, 1])], tuple(names), tuple(left_out), lengths)


def _compared(
    train: Schema, test: Schema, columns: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
    """The names of what is compared, and of what cannot be."""
    if columns is not None:
        one, other = Projection.of(train, columns).schema, Projection.of(test, columns).schema
        if alike(one, other) != sorted(values_of(one)) or values_of(one).keys() != values_of(other).keys():
            raise SchemaError(
                f"the training set has\n{one}\nbut the test set\n{other}\nwhich are never equal; convert one "
                "of them, or name other columns"
            )
        return list(columns), []
    names = alike(train, test)
    both = values_of(train).keys() & values_of(test).keys()
    if not names and values_of(train):
        raise SchemaError(
            f"the training set has\n{train}\nbut the test set\n{test}\nso there is no column to compare; "
            "convert one of them"
        )
    return names, sorted(both - set(names))


def _pairs(train: Hashes, test: Hashes) -> Ints:
    """Pairs of equal rows (K, 2) of a part."""
    order, starts, olds = grouped(train[:, :2], test[:, :2])
    news = np.where(olds > 0, np.diff(starts) - olds, 0)
    first = np.repeat(order[starts[:-1]], news)
    group = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    is_test = (order >= len(train)) & (olds[group] > 0)
    rows = [train[first, 2], test[order[is_test] - len(train), 2]]
    return np.stack(rows, axis=1).astype(np.int64)
