"""Rows -> how they nest and their leaves; and the first rows -> their schema.

A column that varies within the first rows is ragged.
So is a list of varying length, and what is None in some of its rows may be None. If a column varies only
later, that is an error which says how to pass a schema: behind the first block, guessing again would mean
writing everything again, and one odd array behind hundreds alike is more likely a fault than a ragged column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, count
from typing import Final, NamedTuple, NoReturn, TypeAlias

from ..errors import SchemaError
from ..process.lazy import np
from . import column as leaves
from . import node as nesting
from .column import Column, Leaf, Meaning
from .node import ITEMS, MAX_COLUMNS, MAX_DEPTH, MAX_NODES, Node, Path, leaf_names, path_name
from .types import Array, Row

_LONG_LIST = 256  # numbers in a list, from which on it is one of varying length


class Blank(NamedTuple):
    """The leaf of a value that is None, until it is known what the column holds.

    Attributes:
        num_items: of a list of varying length; None if it is a row's own value.
    """

    num_items: int | None = None


LeafOrBlank: TypeAlias = "Leaf | Blank"


class _Missing:
    """An item of a list that is None, or in something that is."""


_MISSING: Final = _Missing()


def split(row: Row) -> tuple[Node, list[Leaf]]:
    """How a row nests, with what each leaf is as its `type_name`, and its leaves in order.

    Raises:
        SchemaError: something in it cannot be kept, named with its path.
    """
    found: list[Leaf] = []
    return _split(row, (), found, count(1)), found


def _split(value: Row, path: Path, found: list[Leaf], numbers: Iterator[int]) -> Node:
    if len(path) > MAX_DEPTH or len(found) > MAX_COLUMNS or next(numbers) > MAX_NODES:
        what = f"has more than {MAX_COLUMNS} leaves"
        if len(path) > MAX_DEPTH:
            what = f"is nested more than {MAX_DEPTH} levels deep"
        elif len(found) <= MAX_COLUMNS:
            what = f"nests more than {MAX_NODES} containers and leaves"
        raise SchemaError(f"the row {what}, at {path_name(path[:4])!r}; turn long lists into arrays")
    cls = type(value)
    if cls is dict:
        for key in value:
            if type(key) is not str and type(key) is not int:
                raise SchemaError(f"at {path_name(path)!r}: dict keys must be str or int, found {key!r:.80}")
            if type(key) is int and key.bit_length() > 8 * leaves.MAX_NAME:
                raise SchemaError(
                    f"at {path_name(path)!r}: an int key of {key.bit_length()} bits is too long; shorten it"
                )
        children = tuple(_split(item, (*path, key), found, numbers) for key, item in value.items())
        return Node("dict", tuple(value), children)
    if cls is list and len(value) >= _LONG_LIST and _are_numbers(value):
        found.append(_encoded(value, path, leaves.encode_numbers))
        return Node("varying", (), (Node("leaf", type_name=look_of(found[-1])),))
    if cls is tuple or cls is list:
        children = tuple(_split(item, (*path, i), found, numbers) for i, item in enumerate(value))
        return Node(cls.__name__, (), children)
    fields = getattr(cls, "_fields", None)
    if isinstance(value, tuple) and type(fields) is tuple:
        if len(fields) != len(value) or not nesting.are_fields(fields):
            raise SchemaError(
                f"at {path_name(path)!r}: {cls.__name__} has {len(value)} items and the fields "
                f"{fields!r:.200}; make it of a class that namedtuple() makes"
            )
        pairs = zip(fields, value, strict=True)
        children = tuple(_split(item, (*path, key), found, numbers) for key, item in pairs)
        return Node("namedtuple", fields, children, nesting.type_name_of(cls))
    found.append(_encoded(value, path))
    return Node("leaf", type_name=look_of(found[-1]))


def _are_numbers(items: Sequence[Row]) -> bool:
    return type(items[0]) in leaves.NUMBERS and len(set(map(type, items))) == 1


def _encoded(value: Row, path: Path, encoder: Callable[[Row], Leaf] = leaves.encode) -> Leaf:
    try:
        return encoder(value)
    except SchemaError as error:
        raise SchemaError(f"at {path_name(path)!r}: {error}") from None


def look_of(leaf: Leaf) -> str:
    """The kind, the dtype and the timezone of a leaf, as text."""
    zone = leaf.meaning.timezone
    return f"{leaf.kind} {leaf.dtype}" + (f" in {zone}" if zone else "")


# -- rows that nest as is known


def leaves_like(tree: Node, row: Row) -> list[LeafOrBlank]:
    """The leaves of a row that nests as `tree` does, in the order of the tree.

    Raises:
        SchemaError: it nests differently, or holds something that cannot be kept; named with its path.
    """
    found: list[LeafOrBlank] = []
    _leaves_like(tree, row, (), found)
    return found


def filled(column: Column, found: LeafOrBlank) -> Leaf:
    """A leaf as it is; for a blank one, a leaf of zeros or without elements."""
    if isinstance(found, Leaf):
        return found
    shape = column.shape
    if shape is None:  # a list of arrays has its items along the first axis
        shape = (found.num_items or 0, *(0,) * (column.ndim - 1))
    return Leaf(column.kind, column.dtype, np.zeros(shape, column.storage), column.meaning)


def _leaves_like(node: Node, value: Row, path: Path, found: list[LeafOrBlank]) -> None:
    if node.kind == "leaf":
        found.append(_single(value, path))
    elif node.kind == "nullable":
        if value is None:
            found += [Blank()] * node.children[0].num_leaves
        else:
            _leaves_like(node.children[0], value, path, found)
        found.append(Leaf("bool", "|b1", np.array(value is not None)))
    elif node.kind == "varying":
        if type(value) is not list:
            _nests_differently(node, value, path)
        _items_like(node.children[0], value, (*path, ITEMS), found)
    else:
        for (key, item), child in zip(_parts(node, value, path), node.children, strict=True):
            _leaves_like(child, item, (*path, key), found)


def _single(value: Row, path: Path) -> Leaf:
    """The leaf of a value where no container is expected."""
    if type(value) in (dict, list, tuple) or hasattr(type(value), "_fields"):
        _nests_differently(Node("leaf"), value, path)
    return _encoded(value, path)


def _parts(node: Node, value: Row, path: Path) -> Iterator[tuple[str | int, Row]]:
    """The keys and items of a container; SchemaError if it is not as the node says."""
    cls = type(value)
    if node.kind == "dict":
        if cls is not dict or len(value) != len(node.keys) or any(key not in value for key in node.keys):
            _nests_differently(node, value, path)
        return ((key, value[key]) for key in node.keys)
    if node.kind == "namedtuple":
        if (
            not isinstance(value, tuple)
            or getattr(cls, "_fields", None) != node.keys
            or len(value) != len(node.keys)
            or nesting.type_name_of(cls) != node.type_name
        ):
            _nests_differently(node, value, path)
        return zip(node.keys, value, strict=True)
    if cls.__name__ != node.kind or cls not in (tuple, list) or len(value) != len(node.children):
        _nests_differently(node, value, path)
    return enumerate(value)


def _nests_differently(node: Node, value: Row, path: Path) -> NoReturn:
    found = type(value).__name__
    advice = ""
    if isinstance(value, dict):
        found += f" of {list(value)[:20]}"
    elif isinstance(value, (tuple, list)):
        found += f" of {len(value)}"
        if node.kind == "list":
            advice = f"; where its length varies, {_advice(path, 'ragged')}"
    elif value is None:
        advice = f"; where it may be None, {_advice(path, 'nullable')}"
    raise SchemaError(f"at {path_name(path)!r}: expected a {_said(node)}, found {found}{advice}")


def _advice(path: Path, option: str) -> str:
    return f"pass schema=Schema.of(row, {option}=[{path_name(path)!r}]) of a row that has a value there"


# -- the items of lists of varying length


def _items_like(node: Node, items: Sequence[Row], path: Path, found: list[LeafOrBlank]) -> None:
    """Adds the leaves of all items of a list, one leaf for each column."""
    if node.kind == "leaf":
        found.append(_stacked(items, path))
    elif node.kind == "texts":
        found += _texts(items, path)
    elif node.kind == "nullable":
        are_there = [item is not None and item is not _MISSING for item in items]
        given = [item if there else _MISSING for item, there in zip(items, are_there, strict=True)]
        _items_like(node.children[0], given, path, found)
        found.append(Leaf("bool", "|b1", np.array(are_there, np.bool_)))
    elif node.kind == "varying":
        for item in items:
            if type(item) is not list and item is not _MISSING:
                _nests_differently(node, item, path)
        lengths = [0 if item is _MISSING else len(item) for item in items]
        flat = list(chain.from_iterable(item for item in items if item is not _MISSING))
        _items_like(node.children[0], flat, (*path, ITEMS), found)
        found.append(Leaf("int", "<i8", np.array(lengths, "<i8")))
    else:
        columns: list[list[Row]] = [[] for _ in node.children]
        for item in items:
            parts: Iterable[tuple[str | int, Row]]
            parts = ((0, _MISSING) for _ in columns) if item is _MISSING else _parts(node, item, path)
            for column, (_, part) in zip(columns, parts, strict=True):
                column.append(part)
        for (key,), child, column in zip(node.steps, node.children, columns, strict=True):
            _items_like(child, column, (*path, key), found)


def _stacked(items: Sequence[Row], path: Path) -> LeafOrBlank:
    types = set(map(type, items))
    if len(types) == 1 and types <= leaves.NUMBERS.keys():
        return _encoded(items, path, leaves.encode_numbers)
    found = [None if item is _MISSING else _single(item, path) for item in items]
    there = [leaf for leaf in found if leaf is not None]
    if not there:
        return Blank(len(items))
    first = there[0]
    if leaves.is_ragged_kind(first.kind):
        return first  # which fits no column of arrays
    for leaf in there:
        _check_alike(first, leaf, path)
    if not first.array.size and len(items) > leaves.MOST_EMPTY:
        raise SchemaError(
            f"at {path_name(path)!r}: a list of {len(items)} items without values cannot be kept; keep its "
            "length"
        )
    blank = np.zeros_like(first.array)
    arrays = [blank if leaf is None else leaf.array for leaf in found]
    return Leaf(first.kind, first.dtype, np.stack(arrays), first.meaning)


def _texts(items: Sequence[Row], path: Path) -> list[LeafOrBlank]:
    lengths: list[int] = []
    found: list[Leaf] = []
    for item in items:
        leaf = None if item is _MISSING else _single(item, path)
        if leaf is not None:
            if not leaves.is_ragged_kind(leaf.kind):
                raise SchemaError(f"at {path_name(path)!r}: expected text or bytes, found {look_of(leaf)}")
            if found:
                _check_alike(found[0], leaf, path)
            found.append(leaf)
        lengths.append(0 if leaf is None else len(leaf.array))
    counts = Leaf("int", "<i8", np.array(lengths, "<i8"))
    if not found:
        return [Blank(0), counts]
    joined: Array = np.concatenate([leaf.array for leaf in found])
    return [Leaf(found[0].kind, "|u1", joined), counts]


def _check_alike(first: Leaf, leaf: Leaf, path: Path) -> None:
    """Raises SchemaError unless two items of a list may be in one column."""
    if look_of(first) == look_of(leaf):
        if first.meaning != leaf.meaning:
            raise SchemaError(
                f"at {path_name(path)!r}: a list holds decimals with {first.meaning.scale} and with "
                f"{leaf.meaning.scale} digits behind the point; quantize them"
            )
        if leaves.is_ragged_kind(leaf.kind) or first.array.shape == leaf.array.shape:
            return
        raise SchemaError(
            f"at {path_name(path)!r}: a list holds arrays of shape {first.array.shape} and "
            f"{leaf.array.shape}; keep them as one, by numpy.concatenate, and their lengths as another"
        )
    is_none = "none" in (first.kind, leaf.kind)
    advice = f"; where it may be None, {_advice(path, 'nullable')}" if is_none else ""
    raise SchemaError(f"at {path_name(path)!r}: a list holds {look_of(first)} and {look_of(leaf)}{advice}")


_UNKNOWN = Node("unknown")  # the items of lists that are all empty


class Learner:
    """Copies of the first rows, until it is known what all of them look like."""

    def __init__(self) -> None:
        self._look = _UNKNOWN
        self._rows: list[tuple[Node, list[Leaf]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> int:
        """Takes a copy of a row; returns how many bytes it has.

        Raises:
            SchemaError: no schema fits this row and those before it.
        """
        look, found = split(row)
        self._look = _merged(self._look, look, ())
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
        unused = {*ragged} | {*nullable}
        # What names the items of a list says that it is one of varying length.
        ragged = {*ragged, *(name[: at.start()] for name in unused for at in re.finditer(ITEMS, name))}
        look = _declared(self._look, (), ragged, nullable, unused)
        if unused:
            names = leaf_names(self._rows[0][0])
            option = "nullable" if unused <= {*nullable} else "ragged"
            raise SchemaError(
                f"{option}={sorted(unused)} are not columns of the row; its columns are {names}"
            )
        tree = _settled(look, (), in_list=False)
        found: list[Sequence[LeafOrBlank]] = [
            held if own == look else leaves_like(tree, _row_of(own, iter(held))) for own, held in self._rows
        ]
        named = zip(leaf_names(tree), _in_lists(tree, False), zip(*found, strict=True), strict=True)
        columns = [_column(name, held, in_list or name in ragged) for name, in_list, held in named]
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


def _column(name: str, found: Sequence[LeafOrBlank], in_list: bool) -> Column:
    there = [leaf for leaf in found if isinstance(leaf, Leaf)]
    if not there:
        raise SchemaError(
            f"at {name!r}: all lists are empty, or hold only None, so their type is unknown; pass schema="
            "Schema.of(row) of a row that has a value there"
        )
    first = there[0]
    varies = in_list or any(leaf.array.shape != first.array.shape for leaf in there)
    column = leaves.column_of(name, first, varies)
    if column.is_ragged:
        dims = {leaf.array.ndim for leaf in there}
        ndim = dims.pop() if dims == {1} else max(2, *dims)
        column = replace(column, shape=None, ndim=ndim)
    if first.kind == "decimal":
        column = replace(column, meaning=Meaning(scale=max(leaf.meaning.scale or 0 for leaf in there)))
    return column


def _row_of(tree: Node, found: Iterator[Leaf]) -> Row:
    """The row of its leaves, as it was split."""
    if tree.kind == "leaf":
        leaf = next(found)
        return leaves.decode(leaf.kind, leaf.dtype, leaf.array, leaf.meaning)
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
    """A node, for a message; of a leaf what it is, if that is known."""
    if look.kind == "leaf":
        return look.type_name or "single value"
    if look.kind == "varying":
        return "list"
    of = list(look.keys) if look.keys else len(look.children)
    return f"{look.kind} of {of}"


def _settled(look: Node, path: Path, in_list: bool) -> Node:
    """The tree of a schema, made from the look that all rows have."""
    if look.kind == "unknown":
        raise SchemaError(
            f"at {path_name(path)!r}: all lists in it are empty, so what they hold is unknown; pass schema="
            "Schema.of(row) of a row that has a value there"
        )
    if look.kind == "leaf":
        is_text = in_list and leaves.is_ragged_kind(look.type_name.partition(" ")[0])
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
