"""How a row looks: its columns, how they nest, and both as people read them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import CorruptError, SchemaError
from ..process.lazy import cached_property
from ..process.messages import escaped, in_columns
from .column import Column, is_ragged_kind
from .learning import Learner
from .node import MAX_COLUMNS, MAX_NODES, Node, Path, leaf_names, path_name, readable_name
from .types import Json, Row

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


PACK_LENGTHS = "lengths"
_TABLE_LINES, _TABLE_NAME = 60, 60


@dataclass(frozen=True)
class Schema:
    """How every row of a dataset looks: its columns, in order, and how they nest.

    Attributes:
        tree: how the columns nest.
        columns: in order.
        packed: of rows that are packs of documents, the columns that have a value for each token, and
            `PACK_LENGTHS`, the tokens of each document; all others have a value for each document. It is not
            written to manifests.
        layout: of such packs, "transformers" if their batches are what its models take; else "".

    Example:
        >>> schema = Schema.of({"image": np.zeros((8, 8), np.uint8), "label": 3})
        >>> print(schema)
        column  type           shape
        image   ndarray uint8  8x8
        label   int
    """

    tree: Node
    columns: tuple[Column, ...]
    packed: tuple[str, ...] = field(default=(), compare=False)  # a manifest's schema is equal
    layout: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        names = leaf_names(self.tree)
        if [column.name for column in self.columns] != names:
            raise ValueError(f"the columns {[c.name for c in self.columns]} are not the leaves {names}")
        if len(set(names)) != len(names):
            # As where all of a row may be None, and also what a key `value` has.
            raise SchemaError("two columns have the same name; call none of the keys 'value'")
        _check_wrappers(self.tree, iter(self.columns), 0)
        if self.tree.num_nodes > MAX_NODES:
            raise SchemaError(f"the row nests more than {MAX_NODES} containers; turn long lists into arrays")

    @staticmethod
    def of(row: Row, ragged: Collection[str] = (), nullable: Collection[str] = ()) -> Schema:
        """The schema of rows like this one.

        Args:
            row: any nesting of dict, tuple, list and namedtuple over leaves.
            ragged: names of columns whose rows differ in shape, and of lists whose length varies; str and
                bytes always do.
            nullable: names of columns, dicts and lists that may be None in other rows; here they are not. The
                items of a list `ids` are `ids{items}`, what is in them `boxes{items}/label`.

        Raises:
            SchemaError: the row holds something that cannot be kept, named with its path.

        Example:
            >>> print(Schema.of({"ids": [1, 2], "age": 40}, ragged=["ids"], nullable=["age"]))
            column  type         shape
            ids     list of int
            age     int or None
        """
        learner = Learner()
        learner.add(row)
        tree, columns, _ = learner.learned(ragged, nullable)
        return Schema(tree, columns)

    @property
    def is_sequence(self) -> bool:
        """True if a row is one run of elements of any number: an array of one dimension, a list, text."""
        tree = self.tree.children[0] if self.tree.kind == "varying" else self.tree
        return tree.kind == "leaf" and self.columns[0].is_ragged

    @cached_property
    def num_parts(self) -> int:
        """Parts of all columns."""
        return sum(len(column.parts) for column in self.columns)

    @property
    def shown(self) -> tuple[ShownColumn, ...]:
        """The columns as people read them: what may be None, and a list, are one each."""
        return tuple(outline(self.tree, self.columns))

    @property
    def exact(self) -> str:
        """Each column as it is stored, on a line of its own."""
        return "\n".join(map(str, self.columns)) or "rows without columns"

    def __repr__(self) -> str:
        """A table of the columns."""
        shown = self.shown
        if not shown:
            return "rows without columns"
        rows = [(one.name[:_TABLE_NAME], one.type, one.shape) for one in shown[:_TABLE_LINES]]
        more = len(shown) - len(rows)
        lines = in_columns([("column", "type", "shape"), *rows], ())
        return "\n".join([*lines, *([f"and {more:,} more columns"] if more else [])])

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        return {"tree": self.tree.to_json(), "columns": [column.to_json() for column in self.columns]}

    @staticmethod
    def from_json(data: Json) -> Schema:
        """The schema that `to_json` described.

        Raises:
            CorruptError: it does not describe a schema.
        """
        try:
            if len(data["columns"]) > 2 * MAX_COLUMNS:
                raise ValueError(f"it has {len(data['columns'])} columns, {MAX_COLUMNS} are allowed")
            columns = list(map(Column.from_json, data["columns"]))
            return Schema(Node.from_json(data["tree"]), tuple(columns))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the schema in the manifest is damaged: {error}") from error


def schema_under(tree: Node, columns: Iterable[Column]) -> Schema:
    """The schema of columns that get their names from their places in a tree."""
    named = zip(columns, leaf_names(tree), strict=True)
    return Schema(tree, tuple(replace(column, name=name) for column, name in named))


def _check_wrappers(node: Node, columns: Iterator[Column], depth: int, is_text: bool = False) -> None:
    """Raises ValueError unless columns are such as their places need; takes the columns of a node.

    Args:
        node: of the tree.
        columns: its columns, and those of what follows.
        depth: how many lists of varying length it is in.
        is_text: whether it is the text of a list's items.
    """
    if node.kind == "leaf":
        _check_place(next(columns), depth > 0, is_text)
        return
    in_list = depth > 0
    is_sound = node.kind != "varying" or (len(node.children) == 1 + in_list and node.children[0].num_leaves)
    if not is_sound or (node.kind == "texts" and not in_list):
        raise ValueError(f"a {node.kind} does not hold what it should where it is")
    kept = {"nullable": ("bool", "|b1"), "varying": ("int", "<i8"), "texts": ("int", "<i8")}.get(node.kind)
    for number, child in enumerate(node.children):
        if kept is None or not number:
            _check_wrappers(child, columns, depth + (node.kind == "varying"), node.kind == "texts")
            continue
        column = next(columns)
        if (column.kind, column.dtype, column.ndim, column.is_ragged) != (*kept, int(in_list), in_list):
            raise ValueError(f"column {column.name!r} does not hold what a {node.kind} needs")


def _check_place(column: Column, in_list: bool, is_text: bool) -> None:
    """Raises ValueError unless a column can be read where it is."""
    if in_list and not column.is_ragged:
        raise ValueError(f"column {column.name!r} is in a list of varying length, and is not ragged")
    if is_ragged_kind(column.kind):
        sound = is_text == in_list and column.is_ragged and column.ndim == 1
    elif column.kind in ("ndarray", "tensor", "none"):
        sound = not is_text
    else:  # a single value
        sound = not is_text and (column.ndim == 1 if in_list else column.shape == ())
    if not sound:
        raise ValueError(f"column {column.name!r} of {column.kind} cannot have the shape {column.shape} here")
