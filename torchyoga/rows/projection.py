"""Some of the columns of a schema, and what is left of a row."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ..process.digests import hexdigest
from .node import WRAPPERS, Node, outermost, path_name, readable_name, spelled
from .schema import PACK_LENGTHS, Schema, schema_under

if TYPE_CHECKING:
    from .block import Block

Path: TypeAlias = tuple[str | int, ...]


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
        names = spelled(schema.tree, names)
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
        found = _at(schema.tree, (), spelled(schema.tree, [name])[0], 0)
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
        for number, name in enumerate(spelled(self.schema.tree, names)):
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

    def block(self, whole: Block) -> Block:
        """The columns of a block of the whole, over the same memory."""
        return replace(whole, schema=self.schema, data=tuple(whole.data[number] for number in self.columns))


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


def unknown_column(schema: Schema, name: str) -> KeyError:
    """An error that says which columns there are, those with a similar name first."""
    values = [path_name(path) for path, _ in outermost(schema.tree)]
    inside = [column.name for column in schema.columns if "{" not in column.name]  # not of wrappers alone
    names = list(dict.fromkeys(map(readable_name, [*values, *inside])))
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    others = [known for known in names if known not in near][: 20 - len(near)]
    more = len(names) - len(near) - len(others)
    listed = ", ".join(map(repr, [*near, *others])) + (f" and {more} more" if more else "")
    return KeyError(f"there is no column {name!r}; there are {listed or 'none'}")
