"""Rows -> how they nest, and their leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, NoReturn, TypeAlias

from ..errors import SchemaError
from ..process.lazy import np
from .column import MAX_NAME, Column
from .leaf import MOST_EMPTY, NUMBERS, Leaf, encode, encode_numbers, is_ragged_kind
from .node import ITEMS, MAX_COLUMNS, MAX_DEPTH, Node, Path, are_fields, path_name, type_name_of
from .types import Array, Row

_LONG_LIST = 256  # numbers in a list, from which on it is one of varying length


class Blank(NamedTuple):
    """The leaf of a value that is None, until it is known what the column holds.

    Attributes:
        num_items: of a list of varying length; None if it is a row's own value.
    """

    num_items: int | None = None


Found: TypeAlias = "Leaf | Blank"


class _Missing:
    """An item of a list that is None, or in something that is."""


_MISSING: Final = _Missing()


def split(row: Row) -> tuple[Node, list[Leaf]]:
    """How a row nests, with what each leaf is as its `type_name`, and its leaves in order.

    Raises:
        SchemaError: something in it cannot be kept, named with its path.
    """
    found: list[Leaf] = []
    return _split(row, (), found), found


def _split(value: Row, path: Path, found: list[Leaf]) -> Node:
    if len(path) > MAX_DEPTH or len(found) > MAX_COLUMNS:
        what = (
            f"is nested more than {MAX_DEPTH} levels deep"
            if len(path) > MAX_DEPTH
            else f"has more than {MAX_COLUMNS} leaves"
        )
        raise SchemaError(f"the row {what}, at {path_name(path[:4])!r}; turn long lists into arrays")
    cls = type(value)
    if cls is dict:
        for key in value:
            if type(key) is not str and type(key) is not int:
                raise SchemaError(f"at {path_name(path)!r}: dict keys must be str or int, found {key!r:.80}")
            if type(key) is int and key.bit_length() > 8 * MAX_NAME:
                raise SchemaError(
                    f"at {path_name(path)!r}: an int key of {key.bit_length()} bits is too long; shorten it"
                )
        children = tuple(_split(item, (*path, key), found) for key, item in value.items())
        return Node("dict", tuple(value), children)
    if cls is list and len(value) >= _LONG_LIST and _are_numbers(value):
        found.append(_numbers(value, path))
        return Node("varying", (), (Node("leaf", type_name=look_of(found[-1])),))
    if cls is tuple or cls is list:
        return Node(cls.__name__, (), tuple(_split(item, (*path, i), found) for i, item in enumerate(value)))
    fields = getattr(cls, "_fields", None)
    if isinstance(value, tuple) and type(fields) is tuple:
        if len(fields) != len(value) or not are_fields(fields):
            raise SchemaError(
                f"at {path_name(path)!r}: {cls.__name__} has {len(value)} items and the fields "
                f"{fields!r:.200}; make it of a class that namedtuple() makes"
            )
        children = tuple(_split(item, (*path, key), found) for key, item in zip(fields, value, strict=True))
        return Node("namedtuple", fields, children, type_name_of(cls))
    found.append(_encoded(value, path))
    return Node("leaf", type_name=look_of(found[-1]))


def _are_numbers(items: Sequence[Row]) -> bool:
    return type(items[0]) in NUMBERS and len(set(map(type, items))) == 1


def _encoded(value: Row, path: Path) -> Leaf:
    try:
        return encode(value)
    except SchemaError as error:
        raise SchemaError(f"at {path_name(path)!r}: {error}") from None


def _numbers(items: Sequence[Row], path: Path) -> Leaf:
    try:
        return encode_numbers(items, type(items[0]))
    except SchemaError as error:
        raise SchemaError(f"at {path_name(path)!r}: {error}") from None


def look_of(leaf: Leaf) -> str:
    """The marks of a leaf's column, beyond its shape."""
    zone = leaf.meaning.timezone
    return f"{leaf.kind} {leaf.dtype}" + (f" in {zone}" if zone else "")


# -- rows that nest as is known


def leaves_like(tree: Node, row: Row) -> list[Found]:
    """The leaves of a row that nests as `tree` does, in the order of the tree.

    Raises:
        SchemaError: it nests differently, or holds something that cannot be kept; named with its path.
    """
    found: list[Found] = []
    _leaves_like(tree, row, (), found)
    return found


def filled(column: Column, found: Found) -> Leaf:
    """A leaf as it is; zeros, or nothing, for one that is blank."""
    if isinstance(found, Leaf):
        return found
    shape = column.shape
    if shape is None:  # a list of arrays has its items along the first axis
        shape = (found.num_items or 0, *(0,) * (column.ndim - 1))
    return Leaf(column.kind, column.dtype, np.zeros(shape, column.storage), column.meaning)


def _leaves_like(node: Node, value: Row, path: Path, found: list[Found]) -> None:
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
            or type_name_of(cls) != node.type_name
        ):
            _nests_differently(node, value, path)
        return zip(node.keys, value, strict=True)
    if cls.__name__ != node.kind or cls not in (tuple, list) or len(value) != len(node.children):
        _nests_differently(node, value, path)
    return enumerate(value)


def _nests_differently(node: Node, value: Row, path: Path) -> NoReturn:
    of: object = list(node.keys) if node.keys else len(node.children)
    expected = {"varying": "list", "leaf": "single value"}.get(node.kind, f"{node.kind} of {of}")
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
    raise SchemaError(f"at {path_name(path)!r}: expected a {expected}, found {found}{advice}")


def _advice(path: Path, option: str) -> str:
    return f"pass schema=Schema.of(row, {option}=[{path_name(path)!r}]) of a row that has a value there"


# -- the items of lists of varying length


def _items_like(node: Node, items: Sequence[Row], path: Path, found: list[Found]) -> None:
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


def _stacked(items: Sequence[Row], path: Path) -> Found:
    types = set(map(type, items))
    if len(types) == 1 and types <= NUMBERS.keys():
        return _numbers(items, path)
    found = [None if item is _MISSING else _single(item, path) for item in items]
    there = [leaf for leaf in found if leaf is not None]
    if not there:
        return Blank(len(items))
    first = there[0]
    for leaf in there:
        _check_alike(first, leaf, path)
    if not first.array.size and len(items) > MOST_EMPTY:
        raise SchemaError(
            f"at {path_name(path)!r}: a list of {len(items)} items without values cannot be kept; keep its "
            "length"
        )
    blank = np.zeros_like(first.array)
    arrays = [blank if leaf is None else leaf.array for leaf in found]
    return Leaf(first.kind, first.dtype, np.stack(arrays), first.meaning)


def _texts(items: Sequence[Row], path: Path) -> list[Found]:
    lengths: list[int] = []
    found: list[Leaf] = []
    for item in items:
        leaf = None if item is _MISSING else _single(item, path)
        if leaf is not None:
            if not is_ragged_kind(leaf.kind):
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
        if is_ragged_kind(leaf.kind) or first.array.shape == leaf.array.shape:
            return
        raise SchemaError(
            f"at {path_name(path)!r}: a list holds arrays of shape {first.array.shape} and "
            f"{leaf.array.shape}; keep them as one, by numpy.concatenate, and their lengths as another"
        )
    is_none = "none" in (first.kind, leaf.kind)
    advice = f"; where it may be None, {_advice(path, 'nullable')}" if is_none else ""
    raise SchemaError(f"at {path_name(path)!r}: a list holds {look_of(first)} and {look_of(leaf)}{advice}")
