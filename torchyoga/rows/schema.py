"""How a row looks: its columns, and how they nest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..errors import CorruptError, SchemaError
from ..process.lazy import cached_property
from ..process.texts import in_columns
from .column import Column
from .leaf import is_ragged_kind
from .learning import Learner
from .node import MAX_COLUMNS, MAX_NODES, Node, leaf_names
from .outline import ShownColumn, outline
from .types import Json, Row

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
