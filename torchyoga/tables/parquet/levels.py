"""Where nested columns have nulls, by how often a footer counts each definition level.

A value of Parquet's has a definition level: how many of the places above it that may be null, or hold any
number of items, do hold something. So the counts of the levels tell null lists from empty ones, which the
count of nulls does not (https://parquet.apache.org/docs/file-format/nestedencoding/).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...rows.node import ITEMS, Path, path_name
from ...rows.types import Ints
from ..buffers import is_list, storage_type
from .footers import FooterIndex

_MOST_LOOKED_AT = 8  # groups


def nulls_below(name: str, files: Sequence[FooterIndex]) -> dict[str, int] | None:
    """Nulls at each place of a nested field that has some, if all files with it count levels; else None."""
    total: dict[str, int] = {}
    for file in files:
        schema = file.fields.schema
        if name not in schema.names or pa.types.is_null(schema.field(name).type):
            continue
        if not is_nested(schema.field(name).type):
            return None
        counted = [file.levels(column) for column in file.fields.columns_of(name).tolist()]
        known = [levels for levels in counted if levels is not None]
        found = nulls_at(schema.field(name), known) if len(known) == len(counted) else None
        if found is None:
            return None
        for place, count in found.items():
            total[place] = total.get(place, 0) + count
    return total


def some_groups(counts: Ints) -> list[int]:
    """Groups that show where a nested field has nulls.

    For each of its columns these are the first group that has some and the one that has the most; and the one
    in which all of its columns have some, as they do below a null.

    Args:
        counts: (groups, columns) nulls and empty lists in each; below 0 if that is not known.

    Example:
        >>> some_groups(np.array([[0, 0], [2, 0], [5, 1], [0, 9]]))
        [1, 2, 3]
    """
    known = np.where(counts < 0, np.iinfo(np.int64).max, counts)
    found = set()
    for column in [*known.T, known.min(axis=1)]:
        if column.any():
            found |= {int(np.flatnonzero(column)[0]), int(column.argmax())}
    return sorted(found)[:_MOST_LOOKED_AT]


def is_nested(of: pa.DataType) -> bool:
    """True for values that hold others."""
    return bool(pa.types.is_nested(storage_type(of)))


def nulls_at(field: pa.Field, columns: Sequence[Ints]) -> dict[str, int] | None:
    """How many nulls there are at each place of a field that has some; None if the counts do not fit it.

    Args:
        field: Arrow's, as the file's schema says.
        columns: for each of its columns in the file, how often each definition level occurs.

    Example:
        >>> field = pa.field("tags", pa.list_(pa.string()))  # None, [], [None], ["a", "b"]
        >>> nulls_at(field, [np.array([1, 1, 1, 2])])
        {'tags{items}': 1, 'tags': 1}
    """
    found: dict[str, int] = {}
    try:
        left = _count(field, (field.name,), 0, list(columns), found)[0]
    except ValueError:
        return None
    return None if left else found


def _count(
    field: pa.Field, path: Path, level: int, columns: list[Ints], found: dict[str, int]
) -> tuple[list[Ints], Ints]:
    """Counts the nulls at a place and below; gives the columns that come next, and the first of its own."""
    here = level if field.nullable else None
    level += field.nullable
    kind = storage_type(field.type)
    inner: list[tuple[pa.Field, Path]] = []
    if pa.types.is_map(kind):
        level += 1
        inner = [(kind.key_field, (*path, ITEMS, "key")), (kind.item_field, (*path, ITEMS, "value"))]
    elif is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        level += 1
        inner = [(kind.value_field, (*path, ITEMS))]
    elif pa.types.is_struct(kind):
        inner = [(kind.field(i), (*path, kind.field(i).name)) for i in range(kind.num_fields)]
    firsts = []
    for one, below in inner:
        columns, first = _count(one, below, level, columns, found)
        firsts.append(first)
    if not inner:
        if not columns or len(columns[0]) != level + 1:
            raise ValueError("there are other columns, or other levels")
        firsts, columns = columns[:1], columns[1:]
    if here is not None and firsts[0][here]:
        found[path_name(path)] = int(firsts[0][here])
    return columns, firsts[0]
