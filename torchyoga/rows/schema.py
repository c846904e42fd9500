"""What a row looks like: names, dtypes and shapes of its leaves, and how they nest.

Note 14. A namedtuple is looked up among loaded modules, never imported.
If its class is not loaded, one with the same fields is made.
"""

from __future__ import annotations

import itertools
import sys
from collections import namedtuple
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from types import ModuleType
from typing import Any, NoReturn
from unicodedata import normalize
from urllib.parse import quote

import numpy as np

from .. import compound  # noqa: F401  # loaded, so that rows of its classes find them
from ..errors import CorruptError, SchemaError
from ..process.lazy import cached_property
from . import leaf as leaves
from .leaf import Leaf
from .types import Json, Row

__all__ = ["Column", "Node", "Schema"]

MAX_COLUMNS = 4096
MAX_DEPTH = 64
MAX_NAME = 400  # bytes; a name is part of an LMDB key, which may hold 511
MAX_NODES = MAX_COLUMNS * MAX_DEPTH


@dataclass(frozen=True)
class Column:
    """One leaf of every row.

    Attributes:
        name: the path to the leaf, such as `image` or `meta/size/0`.
        kind: the type that went in: `ndarray`, `tensor`, `scalar` (NumPy), `int`, `float`, `bool`, `complex`,
            `str`, `bytes`, `none`, `numpy.str`, `numpy.bytes`.
        dtype: a NumPy dtype string such as `<f4`, or the name of a torch dtype for tensors.
        shape: the shape of one row; None for a ragged column, whose rows have any shape.
        ndim: number of dimensions of a row, for a ragged column: exactly 1, or at most this many.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] | None
    ndim: int

    def __post_init__(self) -> None:
        if not leaves.is_valid(self.kind, self.dtype):
            raise ValueError(f"column {self.name!r}: no such kind and dtype: {self.kind!r}, {self.dtype!r}")
        if len(self.name.encode()) > MAX_NAME:
            raise SchemaError(
                f"column {self.name[:40]!r}...: its path is longer than {MAX_NAME} bytes; shorten the keys"
            )
        if self.shape is not None and (len(self.shape) != self.ndim or min(self.shape, default=0) < 0):
            raise ValueError(
                f"column {self.name!r}: the shape {self.shape} does not have {self.ndim} dimensions of at "
                "least 0"
            )
        most = leaves.MOST_DIMENSIONS + self.is_ragged  # ragged rows never lie side by side
        if leaves.is_too_large(self.storage.itemsize, self.shape or ()) or not 0 <= self.ndim <= most:
            raise ValueError(f"column {self.name!r}: rows of shape {self.shape} are too large")
        if self.shape is None and self.ndim == 0:
            raise ValueError(f"column {self.name!r}: a ragged column needs at least 1 dimension")

    @property
    def is_ragged(self) -> bool:
        """True if rows differ in shape or length."""
        return self.shape is None

    @cached_property
    def storage(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the values on disk."""
        return leaves.storage_dtype(self.kind, self.dtype)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row of a fixed column; of one element of a ragged one."""
        size = self.storage.itemsize
        for extent in self.shape or ():
            size *= extent
        return size

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The runs of bytes that a block of this column consists of."""
        if self.shape is not None:
            return ("values",)
        return ("values", "offsets") if self.ndim == 1 else ("values", "offsets", "shapes")

    @cached_property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of an item of each part: of a row, of an element, of the place of a row."""
        return (self.row_bytes, 8, 8 * self.ndim)[: len(self.parts)]

    def __str__(self) -> str:
        if self.kind == "none":
            return f"{self.name}: None"
        shape = f"ragged, {self.ndim}-d" if self.shape is None else "x".join(map(str, self.shape)) or "scalar"
        return f"{self.name}: {self.kind} {self.dtype} [{shape}]"

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        shape = None if self.shape is None else list(self.shape)
        return {"name": self.name, "kind": self.kind, "dtype": self.dtype, "shape": shape, "ndim": self.ndim}


@dataclass(frozen=True)
class Node:
    """A place in the nesting of a row: a leaf, or a container and what it holds."""

    kind: str  # "leaf", "dict", "tuple", "list", "namedtuple"
    keys: tuple[str | int, ...] = ()  # dict keys, or field names
    children: tuple[Node, ...] = ()
    type_name: str = ""  # of a namedtuple: "module:qualname"

    def __reduce__(self) -> tuple[object, ...]:
        # Without what is computed once: a class made here cannot be pickled by name.
        return Node, (self.kind, self.keys, self.children, self.type_name)

    @cached_property
    def row_type(self) -> type[tuple[Row, ...]]:
        """The namedtuple class that went in if its module is loaded, else one like it. Never imports."""
        module, _, qualname = self.type_name.partition(":")
        found: Any = sys.modules.get(module)
        for part in qualname.split("."):
            # Not getattr: a lazy module would import whatever a hostile manifest names.
            found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
        if (
            isinstance(found, type)
            and issubclass(found, tuple)
            and getattr(found, "_fields", None) == self.keys
        ):
            return found
        made: type[tuple[Row, ...]] = _made_alike(qualname.rpartition(".")[2], tuple(map(str, self.keys)))
        return made

    @cached_property
    def num_nodes(self) -> int:
        """This node and all below it."""
        return 1 + sum(child.num_nodes for child in self.children)

    def to_json(self) -> object:
        """Plain data for a manifest."""
        if self.kind == "leaf":
            return "leaf"
        held = [child.to_json() for child in self.children]
        if self.kind in ("tuple", "list"):
            return {self.kind: held}
        pairs = [list(pair) for pair in zip(self.keys, held, strict=True)]
        return {self.kind: pairs, "type": self.type_name} if self.kind == "namedtuple" else {self.kind: pairs}

    @staticmethod
    def from_json(data: object) -> Node:
        """The node that `to_json` described; ValueError or TypeError if it is not one."""
        return Node._from_json(data, 0, itertools.count(1))

    @staticmethod
    def _from_json(data: object, depth: int, numbers: Iterator[int]) -> Node:
        if next(numbers) > MAX_NODES:
            raise ValueError(f"the rows nest more than {MAX_NODES} containers and leaves")
        if data == "leaf":
            return Node("leaf")
        if depth > MAX_DEPTH or not isinstance(data, dict):
            raise ValueError("the nesting of the rows is not described as expected")
        for kind in ("tuple", "list"):
            if kind in data:
                held = tuple(Node._from_json(child, depth + 1, numbers) for child in data[kind])
                return Node(kind, (), held)
        kind = "dict" if "dict" in data else "namedtuple"
        pairs = [(key, Node._from_json(child, depth + 1, numbers)) for key, child in data[kind]]
        keys = tuple(key for key, _ in pairs)
        if not all(type(key) is str or (kind == "dict" and type(key) is int) for key in keys):
            raise ValueError(f"keys of a {kind} must be str or int")
        if len(set(keys)) != len(keys):
            raise ValueError(f"keys of a {kind} repeat")
        type_name = ""
        if kind == "namedtuple":
            type_name = _a(str, data["type"])
            if ":" not in type_name or not _are_fields(keys):
                raise ValueError(
                    f"not the name and the fields of a namedtuple: {type_name!r:.80}, {keys!r:.200}"
                )
        return Node(kind, keys, tuple(child for _, child in pairs), type_name)


def _are_fields(fields: tuple[object, ...]) -> bool:
    """True for what `namedtuple` takes as names of fields or, with `rename=True`, gives to them.

    It runs a line of source with these names in it. Python's compiler normalizes them, so they must be
    names after that: all different, no keywords, and without an underscore in front, as its own have.
    """
    if not all(type(field) is str and field.isidentifier() for field in fields):
        return False
    read = [normalize("NFKC", str(field)) for field in fields]
    return len(set(read)) == len(read) and all(
        name == f"_{i}" or (name.isidentifier() and not iskeyword(name) and name[0] != "_")
        for i, name in enumerate(read)
    )


def _made_alike(name: str, fields: tuple[str, ...]) -> Any:
    make: Any = namedtuple  # typed for literals only
    name = name if name.isidentifier() and not iskeyword(name) else "Row"
    cls: Any = make(name, fields, rename=True)  # which leaves names like `_1` as they are
    # The class cannot be pickled by name, so its rows are pickled as their parts.
    cls.__reduce__ = lambda self: (_remake, (name, fields, tuple(self)))
    return cls


def _remake(name: str, fields: tuple[str, ...], values: tuple[object, ...]) -> Any:
    return _made_alike(name, fields)(*values)


@dataclass(frozen=True)
class Schema:
    """What every row of a dataset looks like: its columns, in order, and how they nest.

    Example:
        >>> schema = Schema.of({"image": np.zeros((8, 8), np.uint8), "label": 3})
        >>> print(schema)
        image: ndarray |u1 [8x8]
        label: int <i8 [scalar]
    """

    tree: Node
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = _leaf_names(self.tree)
        if [column.name for column in self.columns] != names:
            raise ValueError(f"the columns {[c.name for c in self.columns]} are not the leaves {names}")
        if len(set(names)) != len(names):
            raise ValueError("two columns have the same name")
        if self.tree.num_nodes > MAX_NODES:
            raise SchemaError(f"the row nests more than {MAX_NODES} containers; turn long lists into arrays")

    @staticmethod
    def of(row: Row, ragged: Collection[str] = ()) -> Schema:
        """The schema of rows like this one.

        Args:
            row: any nesting of dict, tuple, list and namedtuple over leaves.
            ragged: names of columns whose rows differ in shape; str and bytes always do.

        Raises:
            SchemaError: the row holds something that cannot be kept, named with its path.
        """
        tree, found = split(row)
        names = _leaf_names(tree)
        unknown = set(ragged) - set(names)
        if unknown:
            raise SchemaError(f"ragged={sorted(unknown)} are not columns of the row; its columns are {names}")
        return Schema(
            tree,
            tuple(column_of(name, leaf, name in ragged) for name, leaf in zip(names, found, strict=True)),
        )

    @cached_property
    def num_parts(self) -> int:
        """Parts of all columns."""
        return sum(len(column.parts) for column in self.columns)

    def __str__(self) -> str:
        return "\n".join(map(str, self.columns)) or "rows without leaves"

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
            columns = [
                Column(
                    name=_a(str, column["name"]),
                    kind=_a(str, column["kind"]),
                    dtype=_a(str, column["dtype"]),
                    shape=None
                    if column["shape"] is None
                    else tuple(_a(int, extent) for extent in column["shape"]),
                    ndim=_a(int, column["ndim"]),
                )
                for column in data["columns"]
            ]
            return Schema(Node.from_json(data["tree"]), tuple(columns))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the schema in the manifest is damaged: {error}") from error


def _a(cls: type, value: Row) -> Any:
    if type(value) is not cls:
        raise TypeError(f"expected {cls.__name__}, found {value!r:.80}")
    return value


def column_of(name: str, leaf: Leaf, ragged: bool) -> Column:
    """The column that holds leaves like this one."""
    if ragged or leaves.is_ragged_kind(leaf.kind):
        # A length does not describe a 0-d row, so such a column keeps shapes.
        return Column(name, leaf.kind, leaf.dtype, None, leaf.array.ndim or 2)
    return Column(name, leaf.kind, leaf.dtype, leaf.array.shape, leaf.array.ndim)


def split(row: Row) -> tuple[Node, list[Leaf]]:
    """How a row nests, and its leaves in order.

    Raises:
        SchemaError: something in it cannot be kept, named with its path.
    """
    found: list[Leaf] = []
    return _split(row, (), found), found


def _split(value: Row, path: tuple[str | int, ...], found: list[Leaf]) -> Node:
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
        if len(fields) != len(value) or not _are_fields(fields):
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


def _leaves_like(node: Node, value: Row, path: tuple[str | int, ...], found: list[Leaf]) -> None:
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


def _nests_differently(node: Node, value: Row, path: tuple[str | int, ...]) -> NoReturn:
    expected = f"{node.kind} of {list(node.keys) if node.keys else len(node.children)}"
    found = type(value).__name__
    if isinstance(value, dict):
        found += f" of {list(value)[:20]}"
    elif isinstance(value, (tuple, list)):
        found += f" of {len(value)}"
    advice = "; use an array where the length varies" if found.startswith("list") else ""
    raise SchemaError(f"at {path_name(path)!r}: expected a {expected}, found {found}{advice}")


def path_name(path: tuple[str | int, ...]) -> str:
    """The name of the column at this path; `value` for a row that is a leaf itself."""
    return "/".join(map(_key_name, path)) or "value"


def _key_name(key: str | int) -> str:
    if type(key) is int:
        return str(key)
    name = quote(str(key), safe=" !#$&'()*+,:;=?@[]~", errors="surrogatepass")
    if name.lstrip("-").isdigit() or name in ("", ".", ".."):
        # Kept apart from int keys, and from the names that mean something to a file system or HDF5.
        name = "%" + (f"{ord(name[0]):02X}" + name[1:] if name else "")
    return name


def _leaf_names(tree: Node) -> list[str]:
    return [path_name(path) for path in leaf_paths(tree, ())]


def leaf_paths(node: Node, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each leaf of a tree, in order."""
    if node.kind == "leaf":
        yield path
    for key, child in zip(node.keys or range(len(node.children)), node.children, strict=True):
        yield from leaf_paths(child, (*path, key))
