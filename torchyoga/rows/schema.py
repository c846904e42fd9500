"""How a row looks: its columns, in order, how they nest, and some of them only; as people read them, too."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import CorruptError, SchemaError
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.messages import escaped, in_columns
from . import node as nesting
from .column import Column, is_ragged_kind
from .learning import Learner
from .node import MAX_COLUMNS, WRAPPERS, Node, Path, path_name
from .types import Json, Row

_LETTERS = {"i": "int", "u": "uint", "f": "float", "c": "complex", "M": "datetime64", "m": "timedelta64"}
_OF_ARRAYS = ("ndarray", "tensor", "scalar")
_MOST_NAME, _MOST_WORDS, _TABLE_LINES = 60, 5, 60
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
        text = type_text(column.kind, column.dtype, column.meaning.words)
        yield ShownColumn(_name(path), text, _shape(column), column.name)
        return
    if node.kind == "texts":  # of the items of a list
        column, _ = next(columns), next(columns)
        yield ShownColumn(_name(path), column.kind, "", column.name)
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


def _name(path: Path) -> str:
    return escaped(nesting.readable_name(path_name(path)))


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
    """The name of a NumPy dtype, found without NumPy; a torch dtype is a name already."""
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


@dataclass(frozen=True)
class Schema:
    """How every row of a dataset looks: its columns, in order, and how they nest.

    Attributes:
        tree: how the columns nest.
        columns: in order.
        packed: of rows that are packs of documents, the columns that have a value for each token, and
            `PACK_LENGTHS`, the tokens of each document; all others have a value for each document. It is not
            written to manifests.
        layout: of packs, "transformers" if their batches are what its models take; else "".

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
        names = [column.name for column in self.columns]
        leaves = map(path_name, nesting.leaf_paths(self.tree))  # one by one: forged ones may be very long
        if self.tree.num_leaves != len(names) or any(a != b for a, b in zip(names, leaves, strict=True)):
            raise ValueError(f"the columns {names!r:.200} are not the leaves of the tree")
        if len(set(names)) != len(names):
            # As where all of a row may be None, and also what a key `value` has.
            raise SchemaError("two columns have the same name; call none of the keys 'value'")
        _check_wrappers(self.tree, iter(self.columns), 0)

    @staticmethod
    def of(row: Row, ragged: Collection[str] = (), nullable: Collection[str] = ()) -> Schema:
        """The schema of rows like this one.

        Args:
            row: any nesting of dict, tuple, list and namedtuple over leaves.
            ragged: names of columns whose rows differ in shape, and of lists whose length varies; str and
                bytes always do.
            nullable: names of columns, dicts and lists that may be None in other rows, and have a value in
                this one. `ids{items}` names the items of the list `ids`, and `boxes{items}/label` a column of
                such items.

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
        rows = [(one.name[:_MOST_NAME], one.type, one.shape) for one in shown[:_TABLE_LINES]]
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
    named = zip(columns, nesting.leaf_names(tree), strict=True)
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


@dataclass(frozen=True)
class Projection:
    """Some columns of a schema.

    Attributes:
        schema: of a row that holds these columns only.
        columns: their numbers in the schema that they are taken from; ascending, but for those `ordered`.

    Example:
        >>> schema = Schema.of({"image": 1, "meta": {"x": 2, "y": 3}})
        >>> print(Projection.of(schema, ["meta/y"]).schema.exact)
        meta/y: int <i8 [scalar]
        >>> print(Projection.at(schema, "meta").schema.exact)
        x: int <i8 [scalar]
        y: int <i8 [scalar]
    """

    schema: Schema
    columns: tuple[int, ...]

    @staticmethod
    def of(schema: Schema, names: Sequence[str]) -> Projection:
        """These columns, nested as they are; a name may be that of a container, for all that is in it.

        Keys of rows may be written as they are, where the schema has escapes. Of packs, the lengths of the
        documents are always among them.

        Raises:
            KeyError: the schema has no such column.
            ValueError: there are no names, or a column is named twice.
        """
        if not names or len(set(names)) < len(names):
            raise ValueError(f"name one or more columns, each once; found {list(names)!r:.200}")
        columns: list[int] = []
        names = nesting.spelled(schema.tree, names)
        left = {*names, PACK_LENGTHS} if schema.packed else set(names)
        tree = _pruned(schema.tree, (), left, itertools.count(), columns, False)
        for name in left:
            raise unknown_column(schema, name)
        if tree is None:  # all that is named is in lists, and empty
            raise unknown_column(schema, names[0])
        return Projection(_schema(schema, tree, columns), tuple(columns))

    @staticmethod
    def at(schema: Schema, name: str) -> Projection:
        """The content of one place of a row: a column, or what a container holds, without what is around it.

        Raises:
            KeyError: there is no such place.
        """
        found = _at(schema.tree, (), nesting.spelled(schema.tree, [name])[0], 0)
        if found is None:
            raise unknown_column(schema, name)
        tree, columns = found
        return Projection(_schema(schema, tree, columns), tuple(columns))

    @staticmethod
    def of_keys(schema: Schema, keys: Collection[str | int]) -> Projection:
        """The columns that rows which are dicts hold under some of their keys."""
        columns: list[int] = []
        first, kept = 0, []
        for key, child in zip(schema.tree.keys, schema.tree.children, strict=True):
            if key in keys:
                kept.append((key, child))
                columns += range(first, first + child.num_leaves)
            first += child.num_leaves
        tree = Node("dict", tuple(key for key, _ in kept), tuple(child for _, child in kept))
        return Projection(_schema(schema, tree, columns), tuple(columns))

    def ordered(self, names: Sequence[str]) -> Projection:
        """The same columns, those of a dict in the order in which they are named.

        Example:
            >>> of = Projection.of(Schema.of({"image": 1, "label": 2}), ["label", "image"])
            >>> of.schema.tree.keys, of.ordered(["label", "image"]).schema.tree.keys
            (('image', 'label'), ('label', 'image'))
        """
        places: dict[str, int] = {}
        for number, name in enumerate(nesting.spelled(self.schema.tree, names)):
            for end in [at for at, letter in enumerate(name) if letter in "/{"] + [len(name)]:
                places.setdefault(name[:end], number)
        return self._arranged(lambda path, _: places.get(path_name(path), len(names)))

    def _arranged(self, place: Callable[[Path, Sequence[int]], int]) -> Projection:
        """The same columns, the children of dicts by where their paths, or their columns, belong."""
        tree, order = _arranged(self.schema.tree, (), list(range(len(self.columns))), place)
        if order == sorted(order):
            return self
        columns = tuple(self.schema.columns[number] for number in order)
        schema = replace(self.schema, tree=tree, columns=columns)
        return Projection(schema, tuple(self.columns[number] for number in order))

    @property
    def in_schema_order(self) -> Projection:
        """The same columns in the order of the schema that they are taken from."""
        return self._arranged(lambda _, places: min((self.columns[n] for n in places), default=0))

    def then(self, further: Projection) -> Projection:
        """This projection, and a further one of what is left, as one."""
        return Projection(further.schema, tuple(self.columns[number] for number in further.columns))

    def pinned(self, fingerprint: str) -> str:
        """The fingerprint of rows cut down to these columns, in any order."""
        of = self.in_schema_order
        return hexdigest(json.dumps([fingerprint, "columns", of.columns, of.schema.to_json()]))


def _schema(whole: Schema, tree: Node, columns: Sequence[int]) -> Schema:
    """The columns of these numbers, named after their places in a tree."""
    found = schema_under(tree, (whole.columns[number] for number in columns))
    kept = {column.name for column in found.columns}
    packed = tuple(name for name in whole.packed if name in kept) if tree.kind == "dict" else ()
    return replace(found, packed=packed, layout=whole.layout) if PACK_LENGTHS in packed else found


def _pruned(
    node: Node, path: Path, names: set[str], numbers: Iterator[int], columns: list[int], is_in: bool
) -> Node | None:
    """The rest of a node; takes away the names that it finds, adds the numbers of the columns kept."""
    if path or node.kind == "leaf" or node.kind in WRAPPERS:
        is_in |= path_name(path) in names
        names.discard(path_name(path))
    if node.kind == "leaf":
        number = next(numbers)
        if is_in:
            columns.append(number)
        return node if is_in else None
    if node.kind in WRAPPERS:
        held = _pruned(node.children[0], (*path, *node.steps[0]), names, numbers, columns, is_in)
        own = [next(numbers) for _ in node.children[1:]]
        if held is None or _holds_nothing(node, held):
            return None
        columns += own
        return replace(node, children=(held, *node.children[1:]))
    found = [
        (key, _pruned(child, (*path, key), names, numbers, columns, is_in)) for key, child in _children(node)
    ]
    kept = [(key, child) for key, child in found if child is not None]
    if not kept:
        return node if is_in and not found else None
    keys = tuple(key for key, _ in kept) if node.keys else ()
    return replace(node, keys=keys, children=tuple(child for _, child in kept))


def _arranged(
    node: Node, path: Path, columns: list[int], place: Callable[[Path, Sequence[int]], int]
) -> tuple[Node, list[int]]:
    """A node whose dicts have their children by their places, and its columns in that order."""
    parts: list[tuple[int, str | int | None, Node, list[int]]] = []
    first = 0
    for step, key, child in zip(
        node.steps, node.keys or [None] * len(node.children), node.children, strict=True
    ):
        own = columns[first : first + child.num_leaves]
        first += child.num_leaves
        at = place((*path, *step), own) if node.kind == "dict" else 0
        parts.append((at, key, *_arranged(child, (*path, *step), own, place)))
    if not parts:
        return node, columns
    parts.sort(key=lambda part: part[0])
    keys = tuple(key for _, key, _, _ in parts if key is not None)
    children = tuple(child for _, _, child, _ in parts)
    return replace(node, keys=keys, children=children), [n for _, _, _, own in parts for n in own]


def _at(node: Node, path: Path, name: str, first: int) -> tuple[Node, list[int]] | None:
    """The node of this name below a node, in the wrappers that are around it, and its columns.

    Args:
        node: where to look.
        path: its path.
        name: what to look for.
        first: the number of the node's first column.
    """
    if (path or node.kind == "leaf" or node.kind in WRAPPERS) and path_name(path) == name:
        return node, list(range(first, first + node.num_leaves))
    if node.kind in WRAPPERS:
        found = _at(node.children[0], (*path, *node.steps[0]), name, first)
        if found is None or _holds_nothing(node, found[0]):
            return None
        inside, columns = found
        if node.kind == inside.kind == "nullable":
            return found  # which is None wherever what is around it is None
        own = range(first + node.children[0].num_leaves, first + node.num_leaves)
        return replace(node, children=(inside, *node.children[1:])), [*columns, *own]
    for key, child in _children(node):
        found = _at(child, (*path, key), name, first)
        if found is not None:
            return found
        first += child.num_leaves
    return None


def _holds_nothing(node: Node, item: Node) -> bool:
    """True for a list whose items have no leaves: no column would say how long it is."""
    return node.kind == "varying" and not item.num_leaves


def _children(node: Node) -> Iterator[tuple[str | int, Node]]:
    return zip(node.keys or range(len(node.children)), node.children, strict=True)


def of_one_length(columns: Sequence[Column], name: str) -> str:
    """A column, or how to declare it if its lists all have one length, and so are several columns."""
    if len(columns) < 2:
        return str(columns[0])
    return (
        f"{len(columns)} columns, as all lists have that length; where others may come, pass "
        f"schema=yoga.Schema.of(row, ragged=[{name!r}]) to submit"
    )


def unknown_column(schema: Schema, name: str) -> KeyError:
    """An error that says which columns there are, those with a similar name first."""
    values = [path_name(path) for path, _ in nesting.outermost(schema.tree)]
    inside = [column.name for column in schema.columns if "{" not in column.name]  # not of wrappers alone
    names = list(dict.fromkeys(map(nesting.readable_name, [*values, *inside])))
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    others = [known for known in names if known not in near][: 20 - len(near)]
    more = len(names) - len(near) - len(others)
    listed = ", ".join(map(repr, [*near, *others])) + (f" and {more} more" if more else "")
    wrap = "" if schema.tree.kind == "dict" else f"; to name what rows are, pass dicts: {{{name!r}: row}}"
    return KeyError(f"there is no column {name!r}; there are {listed or 'none'}{wrap}")
