"""Any value of a row -> a short line of plain text; a code -> the name that it stands for."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from ...process.messages import short
from ...rows.column import Column
from ...rows.schema import Schema

if TYPE_CHECKING:
    import torch

_LABELS = frozenset({"label", "labels", "target", "targets", "class", "y", "fine_label", "coarse_label"})
MOST_CHARACTERS = 120
_MOST_ITEMS, _MOST_DEPTH, _MOST_BITS = 6, 3, 512
_MOST_DIGITS = 10  # of a float that is shown as Python writes it


def is_label(name: str) -> bool:
    """True if a column of this name usually holds classes."""
    return name.rpartition("/")[2].lower() in _LABELS


def plain_name(name: str) -> str:
    """The name of a column as rows have it; in a schema all but ASCII is quoted."""
    return unquote(name, errors="surrogatepass")


def class_names(column: Column, info: Mapping[str, object]) -> Sequence[str]:
    """The names of the classes that a column of integers holds: name i is that of code i; empty if unknown.

    They are the words that the schema keeps with the column; or, of a column such as `label`, those of
    `info["classes"]`.

    Example:
        >>> from torchyoga.tools.cells.text import class_names
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
    named = {plain_name(one.name): class_names(one, info) for one in columns}
    return {name: names for name, names in named.items() if names}


def named_class(names: Sequence[str], value: object) -> str:
    """The name of the class that a code stands for, in short; "" if there is none.

    Example:
        >>> from torchyoga.tools.cells.text import named_class
        >>> named_class(["cat", "dog"], np.int64(1)), named_class(["cat", "dog"], 2), named_class([], 0)
        ('dog', '', '')
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    is_code = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return shown(names[int(value)], 40) if is_code and 0 <= int(value) < len(names) else ""  # type: ignore[call-overload]


def shown(value: object, most: int = MOST_CHARACTERS) -> str:
    """A value of a row as a short line of plain text; nothing in it can hide or turn what stands beside it.

    Args:
        value: anything; of arrays and tensors it is dtype, shape and the first values, of bytes their number
            and the first ones. Dates and times are ISO 8601.
        most: characters, at most, but for the mark of what was cut.

    Example:
        >>> from torchyoga.tools.cells.text import shown
        >>> shown(np.arange(12, dtype=np.uint8).reshape(3, 4)), shown({"label": 3, "box": (0.5, 1.0)})
        ('uint8 (3, 4): 0 1 2 3 4 5 …', '{label: 3, box: (0.5, 1.0)}')
    """
    return short(_shown(value, most, 0), most)


def _shown(value: Any, most: int, depth: int) -> str:
    if isinstance(value, str):
        return value if len(value) <= most else value[: most + 1]
    if value is None or isinstance(value, (bool, np.bool_)):
        return str(value)
    if isinstance(value, int):
        bits = value.bit_length()
        return str(value) if bits <= _MOST_BITS else f"an int of {bits:,} bits"
    if isinstance(value, (float, np.floating)):
        text = str(float(value))
        return text if len(text) <= _MOST_DIGITS else f"{value:.6g}"
    if isinstance(value, (complex, np.complexfloating)):
        return f"{complex(value):.6g}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value[:16]), len(value))
    torch = sys.modules.get("torch")
    try:
        if isinstance(value, np.ndarray):
            return _of_array(value, most, depth)
        if torch is not None and isinstance(value, torch.Tensor):
            return _of_tensor(value)
        if isinstance(value, np.datetime64):
            return str(value).removesuffix(".000000")
        if isinstance(value, (np.generic, Decimal, timedelta)):
            return str(value)
        if isinstance(value, (date, clock)):
            return value.isoformat()
        if depth == _MOST_DEPTH and isinstance(value, (Mapping, list, tuple)):
            return f"{type(value).__name__} of {len(value):,}"
        if isinstance(value, Mapping):
            return f"{{{_items(value.items(), len(value), most, depth)}}}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = list(zip(value._fields, value, strict=False))
            return f"{type(value).__name__}({_items(items, len(items), most, depth)})"
        if isinstance(value, (list, tuple)):
            begin, end = "[]" if isinstance(value, list) else "()"
            return f"{begin}{_items(((None, one) for one in value), len(value), most, depth)}{end}"
        return repr(value)[: most + 1]
    except Exception:  # of any kind: the value is a user's own, and its text is only looked at
        return f"<{type(value).__name__}>"


def _items(items: Iterable[tuple[object, object]], count: int, most: int, depth: int) -> str:
    texts = []
    for number, (name, value) in enumerate(items):
        if number == _MOST_ITEMS:
            texts.append(f"… {count:,} in all")
            break
        text = short(_shown(value, most, depth + 1), most)
        texts.append(text if name is None else f"{short(str(name), most)}: {text}")
    return ", ".join(texts)


def _of_bytes(first: bytes, size: int) -> str:
    return f"{size:,} bytes" + (f": {first.hex(' ')}{' …' if size > len(first) else ''}" if size else "")


def _of_array(array: np.ndarray[Any, Any], most: int, depth: int) -> str:
    if not array.ndim:
        return _shown(array.item() if array.dtype.kind not in "mM" else array[()], most, depth)
    values = [_shown(v, most, depth + 1) for v in array.flat[:_MOST_ITEMS]]
    return _of_values(str(array.dtype), array.shape, values)


def _of_tensor(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    first = tensor.detach()
    for _ in range(first.ndim - 1):  # by slices, since reshape might copy all of it
        first = first[0] if len(first) else first.reshape(-1)[:0]
    if not first.ndim:
        return f"{name}: {shown(first.tolist())}"
    return _of_values(name, tuple(tensor.shape), [shown(v) for v in first[:_MOST_ITEMS].tolist()])


def _of_values(name: str, shape: tuple[int, ...], values: list[str]) -> str:
    dots = " …" if math.prod(shape) > len(values) else ""
    return f"{name} {shape}" + (f": {' '.join(values)}{dots}" if values else "")
