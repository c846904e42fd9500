"""How a row nests: dicts, tuples, lists and namedtuples over its leaves.

Note 3. A namedtuple is looked up among loaded modules, never imported.
If its class is not loaded, one with the same fields is made.

What may be None, and lists whose lengths vary, are nodes of their own.
Whether a value is there, and how long a list is, are columns like all others: formats, readers and views
that do not look at values know nothing of them. Their names end with a word in braces, which no key has.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from keyword import iskeyword
from types import ModuleType
from typing import Any, TypeAlias
from unicodedata import normalize
from urllib.parse import quote, unquote

from ..process.lazy import cached_property
from .column import exactly
from .types import Row

MAX_COLUMNS = 4096
MAX_DEPTH = 64
MAX_NODES = MAX_COLUMNS * MAX_DEPTH
WRAPPERS = ("nullable", "varying", "texts")
_UNNAMED = ("tuple", "list", *WRAPPERS)
Path: TypeAlias = tuple[str | int, ...]


class Mark(str):
    """A part of a path that is not a key, and is written as no key is."""

    __slots__ = ()


VALID, LENGTHS, ITEMS = Mark("{valid}"), Mark("{lengths}"), Mark("{items}")


@dataclass(frozen=True)
class Node:
    """A place in the nesting of a row: a leaf, a container and what it holds, or a wrapper.

    There are three wrappers:

    - `nullable` (child, leaf): what `child` is, or None where the bool of the leaf is False; all that lies
      below it is 0 or empty then.
    - `varying` (item): a list whose length varies. Each column below holds, for a row, what its items have,
      one after the other, so it is ragged. `varying` (item, leaf), where it is an item of another: the leaf
      holds the lengths.
    - `texts` (leaf, leaf), an item of `varying`: text or bytes, one after the other, and their lengths.
    """

    kind: str  # "leaf", "dict", "tuple", "list", "namedtuple", "nullable", "varying", "texts"
    keys: tuple[str | int, ...] = ()  # dict keys, or field names
    children: tuple[Node, ...] = ()
    type_name: str = ""  # of a namedtuple "module:qualname"; of a leaf, while a schema is learned, what it is

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
    def num_leaves(self) -> int:
        """Leaves of this node and of all below it."""
        return sum(child.num_leaves for child in self.children) if self.kind != "leaf" else 1

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of this node and of all below it."""
        return frozenset({self.kind}).union(*(child.kinds for child in self.children))

    @cached_property
    def is_plain(self) -> bool:
        """True if neither this node nor any below it is a wrapper: each leaf is one value of a row."""
        return self.kinds.isdisjoint(WRAPPERS)

    @cached_property
    def steps(self) -> tuple[Path, ...]:
        """The steps that lead to each child, at the end of a path."""
        if self.kind == "nullable":
            return (), (VALID,)
        if self.kind == "texts":
            return (), (LENGTHS,)
        if self.kind == "varying":
            is_alone = len(self.children) == 1 and self.children[0].kind in ("leaf", "texts", "varying")
            return ((() if is_alone else (ITEMS,)), (LENGTHS,))[: len(self.children)]
        return tuple((key,) for key in self.keys or range(len(self.children)))

    def to_json(self) -> object:
        """Plain data for a manifest."""
        if self.kind == "leaf":
            return "leaf"
        held = [child.to_json() for child in self.children]
        if self.kind in _UNNAMED:
            return {self.kind: held}
        pairs = [list(pair) for pair in zip(self.keys, held, strict=True)]
        return {self.kind: pairs, "type": self.type_name} if self.kind == "namedtuple" else {self.kind: pairs}

    @staticmethod
    def from_json(data: object) -> Node:
        """The node that `to_json` described; ValueError or TypeError if it is not one."""
        return Node._from_json(data, 0, count(1))

    @staticmethod
    def _from_json(data: object, depth: int, numbers: Iterator[int]) -> Node:
        if next(numbers) > MAX_NODES:
            raise ValueError(f"the rows nest more than {MAX_NODES} containers and leaves")
        if data == "leaf":
            return Node("leaf")
        if depth > MAX_DEPTH or not isinstance(data, dict):
            raise ValueError("the nesting of the rows is not described as expected")
        for kind in _UNNAMED:
            if kind in data:
                held = tuple(Node._from_json(child, depth + 1, numbers) for child in data[kind])
                found = Node(kind, (), held)
                if kind in WRAPPERS and not _is_wrapper(found):
                    raise ValueError(f"a {kind} does not hold what it should")
                return found
        kind = "dict" if "dict" in data else "namedtuple"
        pairs = [(key, Node._from_json(child, depth + 1, numbers)) for key, child in data[kind]]
        keys = tuple(key for key, _ in pairs)
        if not all(type(key) is str or (kind == "dict" and type(key) is int) for key in keys):
            raise ValueError(f"keys of a {kind} must be str or int")
        if len(set(keys)) != len(keys):
            raise ValueError(f"keys of a {kind} repeat")
        type_name = ""
        if kind == "namedtuple":
            type_name = exactly(str, data["type"])
            if ":" not in type_name or not are_fields(keys):
                raise ValueError(
                    f"not the name and the fields of a namedtuple: {type_name!r:.80}, {keys!r:.200}"
                )
        return Node(kind, keys, tuple(child for _, child in pairs), type_name)


def _is_wrapper(node: Node) -> bool:
    """True if a wrapper has the children that it must have."""
    kinds = [child.kind for child in node.children]
    if node.kind == "varying":
        return len(kinds) in (1, 2) and kinds[1:] in ([], ["leaf"])
    if node.kind == "texts":
        return kinds == ["leaf", "leaf"]
    return len(kinds) == 2 and kinds[1] == "leaf" and kinds[0] != "nullable"


def are_fields(fields: tuple[object, ...]) -> bool:
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


def type_name_of(cls: type) -> str:
    """The name that a manifest has for the class of a namedtuple."""
    return f"{cls.__module__}:{cls.__qualname__}"


def path_name(path: Path) -> str:
    """The name of the column at this path; `value` for a row that is a leaf itself."""
    found = ""
    for step in path:
        # Not after a slash: in HDF5, where columns are datasets, none may lie in another.
        found = f"{found or 'value'}{step}" if type(step) is Mark else f"{found}/{_key_name(step)}"
    return found.removeprefix("/") or "value"


def _key_name(key: str | int) -> str:
    if type(key) is int:
        return str(key)
    name = quote(str(key), safe=" !#$&'()*+,:;=?@[]~", errors="surrogatepass")
    if name.lstrip("-").isdigit() or name in ("", ".", ".."):
        # Kept apart from int keys, and from the names that mean something to a file system or HDF5.
        name = "%" + (f"{ord(name[0]):02X}" + name[1:] if name else "")
    return name


def readable_name(name: str) -> str:
    """The name of a column with the keys of rows as they are, and without the words in braces.

    Example:
        >>> from torchyoga.rows.node import readable_name
        >>> readable_name("%E5%90%8D"), readable_name("boxes{items}/label"), readable_name("age{valid}")
        ('名', 'boxes/label', 'age')
    """
    for mark in (VALID, LENGTHS, ITEMS):
        name = name.replace(mark, "")
    keys = ("" if key == "%" else unquote(key, errors="surrogatepass") for key in name.split("/"))
    return "/".join(keys)


def spelled(tree: Node, names: Sequence[str]) -> list[str]:
    """Names of columns and containers as the schema has them; they may be given with keys as they are.

    A name that fits none of them, or several, is left as it is.
    """
    keys = frozenset(tree.keys)
    if all(name in keys and _key_name(name) == name for name in names):
        return [*names]
    known: dict[str, set[str]] = {}
    paths = {path[:end]: None for path in leaf_paths(tree) for end in range(1, len(path) + 1)}
    own = dict.fromkeys(path_name(path) for path in paths if type(path[-1]) is not Mark)
    for name in own:
        known.setdefault(readable_name(name), set()).add(name)
    return [
        next(iter(known[name])) if name not in own and len(known.get(name, ())) == 1 else name
        for name in names
    ]


def outermost(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """The outermost leaves and wrappers of a tree, in order: the values that a row is made of."""
    if node.kind == "leaf" or node.kind in WRAPPERS:
        yield path, node
        return
    for step, child in zip(node.steps, node.children, strict=True):
        yield from outermost(child, (*path, *step))


def leaf_names(tree: Node) -> list[str]:
    """The name of the column of each leaf of a tree, in order."""
    return [path_name(path) for path in leaf_paths(tree, ())]


def leaf_paths(node: Node, path: Path = ()) -> Iterator[Path]:
    """The path of each leaf of a tree, in order."""
    if node.kind == "leaf":
        yield path
    for step, child in zip(node.steps, node.children, strict=True):
        yield from leaf_paths(child, (*path, *step))
