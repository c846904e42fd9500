"""The first rows -> their schema.

A column that varies within the first rows is ragged.
So is a list of varying length, and what is None in some of its rows may be None. If a column varies only
later, that is an error which says how to pass a schema: behind the first block, guessing again would mean
writing everything again, and one odd array behind hundreds alike is more likely a fault than a ragged column.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from ..errors import SchemaError
from .column import Column, column_of
from .encoding import Found, filled, leaves_like, split
from .leaf import Leaf, decode, is_ragged_kind
from .meaning import Meaning
from .node import ITEMS, Node, Path, leaf_paths, path_name
from .types import Row

_UNKNOWN = Node("unknown")  # the items of lists that are all empty


class Learner:
    """Copies of the first rows, until it is known what all of them look like."""

    def __init__(self) -> None:
        self._look: Node | None = None
        self._rows: list[tuple[Node, list[Leaf]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> int:
        """Takes a copy of a row; returns how many bytes it has.

        Raises:
            SchemaError: no schema fits this row and those before it.
        """
        look, found = split(row)
        self._look = look if self._look is None else _merged(self._look, look, ())
        self._rows.append((look, found))
        return sum(leaf.array.nbytes for leaf in found) + 8 * len(found)

    def learned(
        self, ragged: Collection[str] = (), nullable: Collection[str] = ()
    ) -> tuple[Node, tuple[Column, ...], list[list[Leaf]]]:
        """How the rows, at least one, nest; their columns; and the leaves of each.

        Args:
            ragged: as in `Schema.of`.
            nullable: as in `Schema.of`.
        """
        assert self._look is not None
        unused = {*ragged} | {*nullable}
        # What names the items of a list says that it is one of varying length.
        ragged = {*ragged, *(name[: at.start()] for name in unused for at in re.finditer(ITEMS, name))}
        look = _declared(self._look, (), ragged, nullable, unused)
        if unused:
            names = [path_name(path) for path in leaf_paths(self._rows[0][0])]
            option = "nullable" if unused <= {*nullable} else "ragged"
            raise SchemaError(
                f"{option}={sorted(unused)} are not columns of the row; its columns are {names}"
            )
        tree = _settled(look, (), in_list=False)
        found: list[Sequence[Found]] = [
            leaves if own == look else leaves_like(tree, _row_of(own, iter(leaves)))
            for own, leaves in self._rows
        ]
        columns = [
            _column(path_name(path), column, in_list or path_name(path) in ragged)
            for path, in_list, column in zip(
                leaf_paths(tree), _in_lists(tree, False), zip(*found, strict=True), strict=True
            )
        ]
        return (
            tree,
            tuple(columns),
            [[filled(column, leaf) for column, leaf in zip(columns, row, strict=True)] for row in found],
        )


def _in_lists(node: Node, in_list: bool) -> Iterator[bool]:
    if node.kind == "leaf":
        yield in_list
    for child in node.children:
        yield from _in_lists(child, in_list or node.kind == "varying")


def _column(name: str, found: Sequence[Found], in_list: bool) -> Column:
    there = [leaf for leaf in found if isinstance(leaf, Leaf)]
    if not there:
        raise SchemaError(
            f"at {name!r}: all lists are empty, or hold only None, so their type is unknown; pass schema="
            "Schema.of(row) of a row that has a value there"
        )
    first = there[0]
    varies = in_list or any(leaf.array.shape != first.array.shape for leaf in there)
    column = column_of(name, first, varies)
    if column.is_ragged:
        dims = {leaf.array.ndim for leaf in there}
        ndim = dims.pop() if dims == {1} else max(2, *dims, 2)
        column = replace(column, shape=None, ndim=ndim)
    if first.kind == "decimal":
        column = replace(column, meaning=Meaning(scale=max(leaf.meaning.scale or 0 for leaf in there)))
    return column


def _row_of(tree: Node, found: Iterator[Leaf]) -> Row:
    """The row of its leaves, as it was split."""
    if tree.kind == "leaf":
        leaf = next(found)
        return decode(leaf.kind, leaf.dtype, leaf.array, leaf.meaning)
    if tree.kind == "varying":
        return next(found).array.tolist()
    children = [_row_of(child, found) for child in tree.children]
    if tree.kind == "dict":
        return dict(zip(tree.keys, children, strict=True))
    if tree.kind == "list":
        return children
    return tuple.__new__(tree.row_type if tree.kind == "namedtuple" else tuple, children)


# -- what rows look like, together


def _is_none(look: Node) -> bool:
    return look.kind == "leaf" and look.type_name.startswith("none ")


def _merged(one: Node, other: Node, path: Path) -> Node:
    """A node that both may look like; SchemaError if there is none."""
    if one == other or other.kind == "unknown":
        return one
    if one.kind == "unknown":
        return other
    if _is_none(one) or _is_none(other):
        value = other if _is_none(one) else one
        return value if value.kind == "nullable" else Node("nullable", (), (value,))
    if "nullable" in (one.kind, other.kind):
        held = [look.children[0] if look.kind == "nullable" else look for look in (one, other)]
        return Node("nullable", (), (_merged(held[0], held[1], path),))
    kinds = {one.kind, other.kind}
    if kinds <= {"list", "varying"}:
        if kinds == {"list"} and len(one.children) == len(other.children):
            return _each(one, other, path)
        return _list_of((*one.children, *other.children), path)
    if kinds == {"dict"} and set(one.keys) == set(other.keys):
        by_key = dict(zip(other.keys, other.children, strict=True))
        other = replace(other, children=tuple(by_key[key] for key in one.keys))
        return _each(one, other, path)
    is_tuple = kinds in ({"tuple"}, {"namedtuple"}) and len(one.children) == len(other.children)
    if is_tuple and (one.keys, one.type_name) == (other.keys, other.type_name):
        return _each(one, other, path)
    if one.kind == other.kind == "leaf":
        raise SchemaError(f"column {path_name(path)!r}: expected {one.type_name}, found {other.type_name}")
    raise SchemaError(f"at {path_name(path)!r}: expected a {_said(one)}, found {_said(other)}")


def _list_of(items: Sequence[Node], path: Path) -> Node:
    """A list of varying length of what these may look like."""
    return Node("varying", (), (reduce(lambda one, other: _merged(one, other, path), items, _UNKNOWN),))


def _declared(
    look: Node, path: Path, ragged: Collection[str], nullable: Collection[str], unused: set[str]
) -> Node:
    """The look of rows, as names of columns say it; takes away the names that it finds."""
    name = path_name(path)
    is_named = bool(path) or look.kind in ("leaf", "list", "varying")
    if is_named and name in ragged and look.kind in ("leaf", "list", "varying"):
        unused.discard(name)
        if look.kind == "list":
            look = _list_of(look.children, path)
    if look.kind == "list" and path and ITEMS in path:  # lists in lists have a length each
        look = _list_of(look.children, path)
    keys: Iterable[str | int | None] = look.keys or range(len(look.children))
    if look.kind in ("varying", "nullable"):
        keys = [ITEMS if look.kind == "varying" else None]
    children = tuple(
        _declared(child, path if key is None else (*path, key), ragged, nullable, unused)
        for key, child in zip(keys, look.children, strict=True)
    )
    look = replace(look, children=children)
    if look.kind == "nullable" and children[0].kind == "nullable":  # both have the name
        return children[0]
    if (is_named or look.kind == "nullable") and name in nullable:
        unused.discard(name)
        if _is_none(look):
            raise SchemaError(f"column {name!r} is None in this row; pass a row that has a value there")
        if look.kind != "nullable":
            look = Node("nullable", (), (look,))
    return look


def _each(one: Node, other: Node, path: Path) -> Node:
    keys = one.keys or range(len(one.children))
    pairs = zip(keys, one.children, other.children, strict=True)
    return replace(one, children=tuple(_merged(a, b, (*path, key)) for key, a, b in pairs))


def _said(look: Node) -> str:
    if look.kind == "leaf":
        return look.type_name
    if look.kind == "varying":
        return "list"
    of = list(look.keys) if look.keys else len(look.children)
    return f"{look.kind} of {of}"


def _settled(look: Node, path: Path, in_list: bool) -> Node:
    """The nodes of what all rows look like."""
    if look.kind == "unknown":
        raise SchemaError(
            f"at {path_name(path)!r}: all lists in it are empty, so what they hold is unknown; pass schema="
            "Schema.of(row) of a row that has a value there"
        )
    if look.kind == "leaf":
        is_text = in_list and is_ragged_kind(look.type_name.partition(" ")[0])
        return Node("texts", (), (Node("leaf"), Node("leaf"))) if is_text else Node("leaf")
    if look.kind == "nullable":
        return Node("nullable", (), (_settled(look.children[0], path, in_list), Node("leaf")))
    if look.kind == "list" and in_list:
        # Lists in lists have a length each, as far as is known.
        return _settled(_list_of(look.children, path), path, in_list)
    if look.kind == "varying":
        item_node = _settled(look.children[0], path, True)
        if not item_node.num_leaves:
            raise SchemaError(f"at {path_name(path)!r}: lists of what holds nothing cannot be kept")
        return Node("varying", (), (item_node, Node("leaf")) if in_list else (item_node,))
    keys = look.keys or range(len(look.children))
    children = tuple(
        _settled(child, (*path, key), in_list) for key, child in zip(keys, look.children, strict=True)
    )
    return replace(look, children=children)
