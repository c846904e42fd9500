"""How rows of features look, as some messages show it: with one value, or many; always there, or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...errors import SchemaError
from ...rows.column import Column
from ...rows.node import Node, leaf_names
from ...rows.schema import Schema
from .examples import Examples
from .messages import BYTES, FLOATS, INTS, KINDS, Feature, Message

__all__ = ["learned"]


class _SeenFeature:
    """A feature, as messages show it.

    Attributes:
        kinds: the fields that its values are in; `empty`: those that lists without values are in.
        rows: how many have it; among the features, and of steps.
        counts: numbers of values.
    """

    def __init__(self) -> None:
        self.kinds, self.empty, self.counts = set[int](), {0}, set[int]()
        self.rows = [0, 0]

    def add(self, some: Sequence[Feature], of_steps: bool) -> None:
        """Takes note of it in one message."""
        self.rows[of_steps] += 1
        for one in some:
            (self.kinds if one.values else self.empty).add(one.kind)
            self.counts.add(len(one.values))

    @property
    def kind(self) -> int | None:
        """The field of its values, or of lists without any; None if there is none."""
        return max(self.kinds or self.empty) or None

    def looks(self, total: int) -> tuple[Node, list[Column]]:
        """A part of a schema, if it was to be in so many messages."""
        kind, counts, of_steps = self.kind or BYTES, self.counts, bool(self.rows[1])
        dtype, one = {BYTES: ("|u1", "bytes"), FLOATS: ("<f4", "scalar"), INTS: ("<i8", "int")}[kind]
        lengths, is_missing = _column("int", "<i8", None, 1), sum(self.rows) < total
        if kind == BYTES:
            item, items = Node("texts", (), (Node("leaf"),) * 2), [_column(one, dtype, None, 1), lengths]
        else:
            item, items = Node("leaf"), [_column(one, dtype, None, 1)]
        node, columns = Node("leaf"), [_column("ndarray", dtype, None, 1)]
        if of_steps and len(counts) > 1:
            node, columns = (
                Node("varying", (), (Node("varying", (), (item, Node("leaf"))),)),
                [*items, lengths],
            )
        elif not of_steps and counts <= {0, 1} and (1 in counts or kind == BYTES):
            columns = [_column(one, dtype, None, 1) if kind == BYTES else _column(one, dtype, ())]
            is_missing = is_missing or 0 in counts
        elif kind == BYTES:
            node, columns = Node("varying", (), (item,)), items
        elif of_steps and counts - {1}:
            columns = [_column("ndarray", dtype, None, 2)]
        elif not of_steps and len(counts) == 1 and 0 not in counts:
            columns = [_column("ndarray", dtype, tuple(counts))]
        if is_missing:
            return Node("nullable", (), (node, Node("leaf"))), [*columns, _column("bool", "|b1", ())]
        return node, columns


def _column(kind: str, dtype: str, shape: tuple[int, ...] | None, ndim: int = 0) -> Column:
    return Column("value", kind, dtype, shape, ndim if shape is None else len(shape))


def learned(samples: Iterable[Message], schema: Schema | None) -> Examples:
    """How messages become rows, as some of them show it.

    Args:
        samples: some of them.
        schema: what rows are to be, if that is given.

    Raises:
        SchemaError: they differ in the kind of a feature, or it cannot be what the schema says.
    """
    total, seen = 0, dict[str, _SeenFeature]()
    for message in samples:
        total += 1
        for name, one in message.features.items():
            seen.setdefault(name, _SeenFeature()).add([one], False)
        for name, some in message.lists.items():
            seen.setdefault(name, _SeenFeature()).add(some, True)
    if schema is not None and schema.tree.kind != "dict":
        raise SchemaError("rows are dicts of features; pass a schema= of a dict, or raw=True for bytes")
    names = sorted(seen) if schema is None else [str(key) for key in schema.tree.keys]
    for name in names:
        if name in seen and (len(seen[name].kinds) > 1 or all(seen[name].rows)):
            kinds = [KINDS[kind] for kind in sorted(seen[name].kinds)] + ["steps"] * all(seen[name].rows)
            raise SchemaError(f"feature {name!r} holds {' and '.join(kinds)}; pass a schema= without it")
    if schema is None:
        looks = [seen[name].looks(total) for name in names]
        tree = Node("dict", tuple(names), tuple(node for node, _ in looks))
        columns = zip((one for _, some in looks for one in some), leaf_names(tree), strict=True)
        schema = Schema(tree, tuple(replace(column, name=name) for column, name in columns))
    lists = frozenset(name for name in names if name in seen and seen[name].rows[1])
    made = Examples(schema, {}, lists)
    for name, first in zip(names, made.firsts, strict=True):
        column = schema.columns[first]
        usual = BYTES if column.kind in ("bytes", "str") else FLOATS if column.letter == "f" else INTS
        made.kinds[name] = (seen[name].kind if name in seen else None) or usual
    made.check()
    return made
