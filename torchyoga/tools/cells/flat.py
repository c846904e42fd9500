"""A row of any nesting -> its values, each with a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...rows.node import Node, Path, path_name

Values = list[tuple[str, object]]  # of a row, by name
_MOST_DEPTH, _MOST_CELLS = 4, 16_384
_MOST_ITEMS = 1000  # of a list, that are counted


def flat(row: object) -> Values:
    """The values of a row by name, as the columns of a schema are named.

    Example:
        >>> from torchyoga.tools.cells.flat import flat
        >>> flat({"label": 3, "box": (0, 9)}), flat(7)
        ([('label', 3), ('box/0', 0), ('box/1', 9)], [('value', 7)])
    """
    found: Values = []
    _add(row, "", 0, found)
    return found


def _add(value: object, path: str, depth: int, found: Values) -> None:
    items: Iterable[tuple[object, object]] | None = None
    if depth < _MOST_DEPTH and len(found) < _MOST_CELLS:
        if isinstance(value, Mapping):
            items = value.items()
        elif isinstance(value, tuple):
            items = zip(getattr(value, "_fields", range(len(value))), value, strict=False)
    if items is None:
        found.append((path or "value", value))
        return
    for name, item in items:
        _add(item, f"{path}/{name}" if path else str(name), depth + 1, found)


def flat_names(node: Node, path: Path = ()) -> Iterator[str]:
    """The names of the values that `flat` finds in rows of a schema's tree, as the schema writes them.

    A dict that may be None is one of them here; in rows that have it, each of its values is.

    Example:
        >>> from torchyoga.tools.cells.flat import flat_names
        >>> list(flat_names(yoga.Schema.of({"label": 3, "box": (0, 9)}).tree))
        ['label', 'box/0', 'box/1']
    """
    if node.kind not in ("dict", "tuple", "namedtuple") or len(path) >= _MOST_DEPTH:
        yield path_name(path)
        return
    for step, child in zip(node.steps, node.children, strict=True):
        yield from flat_names(child, (*path, *step))


def bytes_of(value: object) -> int:
    """About how many bytes a value has."""
    found = getattr(value, "nbytes", None)
    if isinstance(found, int):
        return found
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value[:_MOST_ITEMS]))
    return len(value) if isinstance(value, (str, bytes)) else 8
