"""A column of codes -> the name that each code stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import numpy as np

from ...rows.column import Column
from ...rows.schema import Schema
from .text import shown

__all__ = ["class_names", "classes_of", "is_label", "named_class"]

_LABELS = frozenset({"label", "labels", "target", "targets", "class", "y", "fine_label", "coarse_label"})


def is_label(name: str) -> bool:
    """True if a column of this name usually holds classes."""
    return name.rpartition("/")[2].lower() in _LABELS


def class_names(column: Column, info: Mapping[str, object]) -> Sequence[str]:
    """The names of the classes that a column of integers holds: name i is that of code i; empty if unknown.

    They are the words that the schema keeps with the column; or, of a column such as `label`, those of
    `info["classes"]`.

    Example:
        >>> from torchyoga.tools.cells.classes import class_names
        >>> class_names(yoga.Schema.of({"label": 3}).columns[0], {"classes": ["cat", "dog"]})
        ['cat', 'dog']
    """
    if column.letter not in "iu" or column.kind in ("time", "decimal"):
        return ()
    if column.meaning.words is not None:
        return column.meaning.words
    names = info.get("classes") if is_label(column.name) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return names


def classes_of(schema: Schema | None, info: Mapping[str, object]) -> dict[str, Sequence[str]]:
    """The names of classes of each column that has some, by its name in rows; in a schema they are quoted."""
    columns = () if schema is None else schema.columns
    named = {unquote(one.name, errors="surrogateescape"): class_names(one, info) for one in columns}
    return {name: names for name, names in named.items() if names}


def named_class(names: Sequence[str], value: object) -> str:
    """The name of the class that a code stands for, in short; "" if there is none.

    Example:
        >>> from torchyoga.tools.cells.classes import named_class
        >>> named_class(["cat", "dog"], np.int64(1)), named_class(["cat", "dog"], 2), named_class([], 0)
        ('dog', '', '')
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    is_code = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return shown(names[int(value)], 40) if is_code and 0 <= int(value) < len(names) else ""  # type: ignore[call-overload]
