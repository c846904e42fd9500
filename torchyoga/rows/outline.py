"""A schema -> the names, types and shapes of its columns, as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..process.messages import escaped
from .node import Node, Path, path_name, readable_name

if TYPE_CHECKING:
    from .column import Column

_LETTERS = {"i": "int", "u": "uint", "f": "float", "c": "complex", "M": "datetime64", "m": "timedelta64"}
_OF_ARRAYS = ("ndarray", "tensor", "scalar")
_MOST_NAME, _MOST_WORDS = 60, 5
_ONE_LINE, _MOST_LINES = 110, 10


class ShownColumn(NamedTuple):
    """A column as people read it; what may be None, and a list, are one each.

    Attributes:
        name: with the keys of rows as they are.
        type: such as `str`, `ndarray uint8`, `list of int` or `int or None`.
        shape: such as `28x28x3`; empty for a single value.
        column: the name in the schema of the column that has its values; of a container, of the first one.
    """

    name: str
    type: str
    shape: str
    column: str

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _MOST_NAME else f"{self.name[: _MOST_NAME - 3]}..."
        return f"{name}: {self.type}" + (f" {self.shape}" if self.shape else "")


def outline(tree: Node, columns: Sequence[Column]) -> list[ShownColumn]:
    """The columns of rows that nest like this, in order.

    Example:
        >>> schema = yoga.Schema.of({"ids": [1, 2], "box": {"größe": 2}}, ragged=["ids"], nullable=["box"])
        >>> [str(one) for one in outline(schema.tree, schema.columns)]
        ['ids: list of int', 'box: dict or None', 'box/größe: int']
    """
    left = iter(columns)
    found = list(_shown(tree, (), left))
    assert next(left, None) is None, "each column has its place"
    return found


def in_lines(begin: str, columns: Sequence[ShownColumn]) -> str:
    """A title and columns, in angle brackets: on one line if they fit, else on ten at most.

    Example:
        >>> in_lines("a table: 2 rows", yoga.Schema.of({"label": 3, "score": 0.5}).shown)
        '<a table: 2 rows; label: int, score: float>'
    """
    line = f"<{begin}; {', '.join(map(str, columns[:_MOST_LINES]))}>" if columns else f"<{begin}>"
    if not columns or (len(columns) < _MOST_LINES and len(line) <= _ONE_LINE):
        return line
    some = columns if len(columns) < _MOST_LINES else columns[: _MOST_LINES - 2]
    more = [f"and {len(columns) - len(some):,} more columns"] if len(some) < len(columns) else []
    return "\n  ".join([f"<{begin}", *map(str, some), *more]) + ">"


def _shown(node: Node, path: Path, columns: Iterator[Column]) -> Iterator[ShownColumn]:
    if node.kind == "leaf":
        column = next(columns)
        yield _line(path, type_text(column.kind, column.dtype, column.meaning.words), _shape(column), column)
        return
    if node.kind == "texts":  # of the items of a list
        text, _ = next(columns), next(columns)
        yield _line(path, text.kind, "", text)
        return
    if node.kind not in ("nullable", "varying"):
        for step, child in zip(node.steps, node.children, strict=True):
            yield from _shown(child, (*path, *step), columns)
        return
    (inner, *own) = node.children
    held = list(_shown(inner, (*path, *node.steps[0]), columns))
    for _ in own:
        next(columns)
    if not held:
        return
    if inner.kind in ("dict", "tuple", "list", "namedtuple"):
        held.insert(0, ShownColumn(_name(path), inner.kind, "", held[0].column))
    first = held[0]
    if node.kind == "nullable":
        held[0] = first._replace(type=f"{first.type} or None")
    else:
        of = f"({first.type})" if " or " in first.type else first.type
        held[0] = first._replace(name=_name(path), type=f"list of {of}", shape="")
    yield from held


def _line(path: Path, type: str, shape: str, column: Column) -> ShownColumn:
    return ShownColumn(_name(path), type, shape, column.name)


def _name(path: Path) -> str:
    return escaped(readable_name(path_name(path)))


def type_text(kind: str, dtype: str, words: Sequence[str] | None = None) -> str:
    """The kind of a column's values, and the dtype where that does not follow from it.

    Example:
        >>> type_text("ndarray", "<f4"), type_text("int", "<i8"), type_text("scalar", "|i1", ["cat", "dog"])
        ('ndarray float32', 'int', 'scalar int8, codes of cat, dog')
    """
    text = "None" if kind == "none" else f"{kind} {_dtype(dtype)}" if kind in _OF_ARRAYS else kind
    if words is not None:
        more = ", ..." if len(words) > _MOST_WORDS else ""
        text += f", codes of {', '.join(escaped(word[:20]) for word in words[:_MOST_WORDS])}{more}"
    return text


def _dtype(text: str) -> str:
    """A dtype of NumPy by its name, without NumPy; that of torch's is one."""
    letter, size = text[1:2], text[2:]
    if text[:1] not in "<|=" or letter not in _LETTERS:
        return "bool" if text == "|b1" else text.lstrip("<|=")
    if letter in "Mm":
        return f"{_LETTERS[letter]}{size[1:]}"
    return f"{_LETTERS[letter]}{8 * int(size)}" if size.isdigit() else text


def _shape(column: Column) -> str:
    if column.kind == "none":
        return ""
    if column.shape is not None:
        return "x".join(map(str, column.shape))
    return f"ragged, {column.ndim}-d" if column.kind in ("ndarray", "tensor") else ""
