"""Rows -> how they nest, and their leaves."""

from __future__ import annotations

from typing import NoReturn

from ..errors import SchemaError
from . import leaf as leaves
from .column import MAX_NAME
from .leaf import Leaf
from .node import MAX_COLUMNS, MAX_DEPTH, Node, Path, are_fields, path_name
from .types import Row

__all__ = ["leaves_like", "split"]


def split(row: Row) -> tuple[Node, list[Leaf]]:
    """How a row nests, and its leaves in order.

    Raises:
        SchemaError: something in it cannot be kept, named with its path.
    """
    found: list[Leaf] = []
    return _split(row, (), found), found


def _split(value: Row, path: Path, found: list[Leaf]) -> Node:
    if len(path) > MAX_DEPTH or len(found) > MAX_COLUMNS:
        what = (
            f"nests deeper than {MAX_DEPTH}"
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
        return Node("namedtuple", fields, children, f"{cls.__module__}:{cls.__qualname__}")
    try:
        found.append(leaves.encode(value))
    except SchemaError as error:
        raise SchemaError(f"at {path_name(path)!r}: {error}") from None
    return Node("leaf")


def leaves_like(tree: Node, row: Row) -> list[Leaf]:
    """The leaves of a row that nests as `tree` does, in the order of the tree.

    Raises:
        SchemaError: it nests differently, or holds something that cannot be kept; named with its path.
    """
    found: list[Leaf] = []
    _leaves_like(tree, row, (), found)
    return found


def _leaves_like(node: Node, value: Row, path: Path, found: list[Leaf]) -> None:
    if node.kind == "leaf":
        try:
            found.append(leaves.encode(value))
        except SchemaError as error:
            raise SchemaError(f"at {path_name(path)!r}: {error}") from None
        return
    cls = type(value)
    if node.kind == "dict":
        if cls is not dict or len(value) != len(node.keys) or any(key not in value for key in node.keys):
            _nests_differently(node, value, path)
        for key, child in zip(node.keys, node.children, strict=True):
            _leaves_like(child, value[key], (*path, key), found)
        return
    if node.kind == "namedtuple":
        if (
            not isinstance(value, tuple)
            or getattr(cls, "_fields", None) != node.keys
            or len(value) != len(node.keys)
            or f"{cls.__module__}:{cls.__qualname__}" != node.type_name
        ):
            _nests_differently(node, value, path)
    elif cls.__name__ != node.kind or cls not in (tuple, list) or len(value) != len(node.children):
        _nests_differently(node, value, path)
    for key, child, item in zip(node.keys or range(len(value)), node.children, value, strict=True):
        _leaves_like(child, item, (*path, key), found)


def _nests_differently(node: Node, value: Row, path: Path) -> NoReturn:
    expected = f"{node.kind} of {list(node.keys) if node.keys else len(node.children)}"
    found = type(value).__name__
    if isinstance(value, dict):
        found += f" of {list(value)[:20]}"
    elif isinstance(value, (tuple, list)):
        found += f" of {len(value)}"
    advice = "; use an array where the length varies" if found.startswith("list") else ""
    raise SchemaError(f"at {path_name(path)!r}: expected a {expected}, found {found}{advice}")
