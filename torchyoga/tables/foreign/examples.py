"""`tf.train.Example` and `SequenceExample` -> columns: messages of many rows, read at once.

Writers lay out such messages in one way, but for the order of features: so all rows are read in step, a field
of each at a time. Whatever else a message may be, such as one with unpacked numbers, unknown fields or a
feature in two parts, is read in Python, written in that way, and then read as the others. The schema is
learned of some messages: which features have one value, or many, and are always there, or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from ...errors import CorruptError, SchemaError
from ...formats.mapped import Memory
from ...process.buffers import address_of, fresh
from ...process.lazy import cached_property
from ...rows.block import Data, bounds_of
from ...rows.column import Column, first_not_text
from ...rows.node import Node
from ...rows.schema import Schema, schema_under
from ...rows.types import Array, Ints, Json
from .messages import BYTES, FLOATS, INTS, KINDS, Feature, Message, message_of, written
from .wire import FIRST, SECOND, Odd, Span, Wire

_PADDING = 16  # bytes before the first message, and behind the last one


class BadExample(CorruptError):
    """One of several messages is damaged, or does not fit the schema.

    Attributes:
        place: says which.
        is_sound: True if it is not damaged.
    """

    def __init__(self, place: int, problem: str, is_sound: bool = False) -> None:
        super().__init__(problem)
        self.place, self.is_sound = place, is_sound

    def of(self, where: str) -> CorruptError | SchemaError:
        """The error for callers, which says where the message is."""
        if self.is_sound:
            return SchemaError(f"{where}: {self}; pass a schema=")
        return CorruptError(f"{where}: {self}")


@dataclass(frozen=True)
class Examples:
    """How messages become rows.

    Attributes:
        schema: of a row, a dict.
        kinds: the field of each of its features.
        lists: those that steps have.
    """

    schema: Schema
    kinds: dict[str, int]
    lists: frozenset[str]

    @cached_property
    def firsts(self) -> list[int]:
        """The first column of each feature."""
        leaves = (child.num_leaves for child in self.schema.tree.children)
        return [*accumulate(leaves, initial=0)][:-1]

    def columns(self, memory: Memory, addresses: Ints, nbytes: Ints, wanted: Sequence[int]) -> list[Data]:
        """Some columns of messages; BadExample if one is damaged, or does not fit.

        Args:
            memory: holds the messages, as `Wire` needs it.
            addresses: (N,) where they begin.
            nbytes: (N,) their sizes.
            wanted: the columns.
        """
        texts = list[bytes]()
        for turn in range(3):
            wire = Wire(memory, addresses, nbytes)
            try:
                return self._columns(wire, wanted)
            except Odd as odd:
                rows = np.arange(len(nbytes)) if turn else np.unique(wire.rows(odd.places))
            texts = texts or memory.texts(addresses, nbytes)
            for row in rows.tolist():
                texts[row] = self._rewritten(row, texts[row])
            memory, addresses, nbytes = placed(texts)
        raise BadExample(int(rows[0]), "it cannot be read")

    def check(self) -> None:
        """Raises SchemaError where a feature cannot be what the schema says."""
        for name, first, node in zip(self.kinds, self.firsts, self.schema.tree.children, strict=True):
            column, kind, most = self.schema.columns[first], self.kinds[name], 1 + (name in self.lists)
            child, depth = node.children[0] if node.kind == "nullable" else node, 0
            while child.kind == "varying":
                child, depth = child.children[0], depth + 1
            is_text, is_array = column.kind in ("bytes", "str"), column.kind in ("ndarray", "tensor")
            if kind == BYTES:
                good = is_text or (is_array and not depth and most == 1)
            else:
                good = column.letter in ("f" if kind == FLOATS else "iub") and not is_text
            good &= child.kind == ("texts" if is_text and depth else "leaf") and depth <= most
            good &= column.ndim <= most or not column.is_ragged
            if not good or (most == 2 and not depth and (is_text or not column.is_ragged)):
                held = f"{'steps of ' * (most - 1)}{KINDS[kind]}"
                raise SchemaError(f"feature {name!r} holds {held}, which cannot be {column}")

    def _rewritten(self, row: int, text: bytes) -> bytes:
        try:
            message = message_of(text)
        except CorruptError as error:
            raise BadExample(
                row, f"it is no Example, or is damaged: {error}; pass raw=True for bytes"
            ) from error
        for name, kind in self.kinds.items():
            some = message.lists.get(name, ()) if name in self.lists else [message.features.get(name)]
            others = [one.kind for one in some if one is not None and one.values and one.kind != kind]
            if others:
                raise BadExample(
                    row, f"feature {name!r} holds {KINDS[others[0]]} where others hold {KINDS[kind]}", True
                )
        return written(message, self.kinds)

    def _columns(self, wire: Wire, wanted: Sequence[int]) -> list[Data]:
        context, rest = wire.optional(wire.messages, FIRST)
        steps, rest = wire.optional(rest, SECOND)
        wire.demand(rest.at == rest.end, wire.messages.at)
        read: dict[int, Data] = {}
        parts = list(zip(self.kinds, self.firsts, self.schema.tree.children, strict=True))
        parts = [p for p in parts if any(0 <= number - p[1] < p[2].num_leaves for number in wanted)]
        for body, in_steps in ((context, False), (steps, True)):
            own = [part for part in parts if (part[0] in self.lists) == in_steps]
            if not own:
                continue
            tags = {name.encode(): self.kinds[name] << 3 | 2 for name, *_ in own}
            for (name, first, node), place in zip(own, wire.entries(body, tags).values(), strict=True):
                columns = self.schema.columns[first : first + node.num_leaves]
                try:
                    data = self._feature(wire, name, node, columns, place)
                except BadExample as error:
                    raise BadExample(error.place, f"feature {name!r} {error}", error.is_sound) from error
                read.update(enumerate(data, first))
        return [read[number] for number in wanted]

    def _feature(
        self, wire: Wire, name: str, node: Node, columns: Sequence[Column], place: Array
    ) -> list[Data]:
        kind, inner, there = self.kinds[name], None, place[0] >= 0
        span = Span(*np.maximum(place[:2], 0))
        if name in self.lists:
            steps, counts = wire.repeated(span)
            values, inner = _values(wire, wire.only(steps, kind << 3 | 2), kind)
        elif ((place[2] >= 0) | ~there).all():  # where the only value lies, or the only run of numbers
            body = Span(np.maximum(place[2], 0), span.end)
            if kind == BYTES:
                values, counts = body if there.all() else body.take(there), there.astype(np.int64)
            else:
                values, counts = _packed(wire, body, kind)
        else:
            values, counts = _values(wire, wire.only(span, kind << 3 | 2), kind)
        if node.kind == "nullable":
            child = node.children[0]
            valid = there & (counts > 0) if _is_one(child, columns[0], kind) else there
            return [*_shaped(wire, child, columns, kind, values, counts, inner, valid), Data(valid)]
        if not there.all():
            raise BadExample(int(there.argmin()), "is missing, which others have", True)
        return _shaped(wire, node, columns, kind, values, counts, inner, there)


def placed(texts: Sequence[bytes]) -> tuple[Memory, Ints, Ints]:
    """Messages in memory, where they begin, and their sizes."""
    data = np.frombuffer(b"".join([bytes(_PADDING), *texts, bytes(_PADDING)]), np.uint8)
    bounds = bounds_of(map(len, texts))
    return Memory([data]), address_of(data) + _PADDING + bounds[:-1], np.diff(bounds)


def _values(wire: Wire, body: Span, kind: int) -> tuple[Array | Span, Ints]:
    """The values in lists, end to end: numbers, or where bytes lie; and (N,) how many each has."""
    if kind != BYTES:
        return _packed(wire, wire.only(body, FIRST), kind)
    there = body.at < body.end
    first = wire.field(body.take(there), FIRST)
    if (first.end == body.end[there]).all():
        return first, there.astype(np.int64)
    return wire.repeated(body)


def _packed(wire: Wire, body: Span, kind: int) -> tuple[Array, Ints]:
    """The numbers in runs, end to end, and (N,) how many each has."""
    if kind == INTS:
        return wire.ints(body)
    wire.demand(body.widths % 4 == 0, body.at)
    return wire.joined(body).view("<f4"), body.widths // 4


def _is_one(node: Node, column: Column, kind: int) -> bool:
    """True if all rows have as many values."""
    return node.kind == "leaf" and (kind == BYTES or not column.is_ragged)


def _shaped(
    wire: Wire,
    node: Node,
    columns: Sequence[Column],
    kind: int,
    values: Array | Span,
    counts: Ints,
    inner: Ints | None,
    valid: Array,
) -> list[Data]:
    """The columns of a feature.

    Args:
        wire: holds the messages.
        node: what it is to be, but for whether it may be None.
        columns: of it.
        kind: its field.
        values: of all rows: numbers, or where bytes lie.
        counts: (N,) how many a row has; or how many steps, with `inner` values each.
        inner: (steps,); None of what has no steps.
        valid: (N,) False for rows where it is None.
    """
    column, bounds = columns[0], bounds_of(counts)
    if _is_one(node, column, kind):
        expected = 1 if kind == BYTES else int(np.prod(column.shape or ()))
        _refuse(valid & (counts != expected), counts, f"where others have {expected}")
        if not isinstance(values, Span):
            return [_spread(_cast(values, column, bounds), column, valid)]
        if not valid.all():
            some, values = values, Span(*np.zeros((2, len(valid)), np.int64))
            values.at[valid], values.end[valid] = some
        return [_bytes(wire, column, values, valid)]
    deep = node.kind == "varying" and node.children[0].kind == "varying"
    if inner is not None and not deep and column.ndim == 1:
        _refuse(inner != 1, inner, "in a step, where others have 1", bounds)
    if inner is not None and column.ndim == 2:
        first = np.append(inner, 0)[bounds[:-1]] * (counts > 0)
        _refuse(inner != first.repeat(counts), inner, "in a step, where others of the row differ", bounds)
        assert not isinstance(values, Span)
        offsets = bounds_of(inner)[bounds]
        return [Data(_cast(values, column, offsets), offsets, np.stack([counts, first], 1))]
    item, lengths = node.children[0] if node.kind == "varying" else node, list[Data]()
    if deep and inner is not None:
        lengths, bounds, item = [Data(inner, bounds)], bounds_of(inner)[bounds], item.children[0]
    if isinstance(values, Span):
        _refuse_no_text(wire, column, values, bounds)
        texts = Data(wire.joined(values), bounds_of(values.widths)[bounds])
        return [texts, Data(values.widths, bounds), *lengths]
    return [Data(_cast(values, column, bounds), bounds), *lengths]


def _row_of(nth: int, bounds: Ints | None) -> int:
    return nth if bounds is None else int(bounds.searchsorted(nth, "right")) - 1


def _refuse(bad: Array, counts: Ints, expected: str, bounds: Ints | None = None) -> None:
    if bad.any():
        nth = int(bad.argmax())
        raise BadExample(_row_of(nth, bounds), f"has {counts[nth]} values {expected}", True)


def _refuse_no_text(wire: Wire, column: Column, span: Span, bounds: Ints | None = None) -> None:
    nth = first_not_text(wire.runs(span).texts()) if column.kind == "str" else None
    if nth is not None:
        raise BadExample(_row_of(nth, bounds), "is not text of UTF-8", True)


def _bytes(wire: Wire, column: Column, span: Span, valid: Array) -> Data:
    """Bytes, text, or arrays that are kept as bytes, one a row."""
    size, widths = column.storage.itemsize, span.widths
    bad = widths % size if column.is_ragged else (widths != column.row_bytes) & valid
    _refuse(bad != 0, widths, f"of a byte, which are no {column}")
    if not column.is_ragged:
        span = span if valid.all() else span.take(valid)
        return _spread(wire.joined(span).view(column.storage), column, valid)
    _refuse_no_text(wire, column, span)
    offsets = bounds_of(widths // size)
    return Data(None, offsets, runs=wire.runs(span), dtype=column.storage, empty=fresh)


def _spread(values: Array, column: Column, valid: Array) -> Data:
    """Values of the rows that have some, in the shape of the column; zeros for the others."""
    read = values.reshape(-1, *(column.shape or ()))
    if len(read) == len(valid):
        return Data(read)
    spread = np.zeros((len(valid), *read.shape[1:]), read.dtype)
    spread[valid] = read
    return Data(spread)


def _cast(values: Array, column: Column, bounds: Ints) -> Array:
    """Numbers as their column has them; BadExample if one does not fit."""
    if values.dtype == column.storage:
        return values
    with np.errstate(over="ignore"):
        cast = values.astype(column.storage)
    bad = cast.astype(values.dtype) != values if column.letter in "iub" else np.zeros(0, bool)
    if bad.any():
        nth = int(bad.argmax())
        raise BadExample(_row_of(nth, bounds), f"is {values[nth]}, which is no {column.dtype}", True)
    return cast


# -- as some messages show them


@dataclass
class _SeenFeature:
    """A feature, as messages show it.

    Attributes:
        kinds: the fields that its values are in; `empty`: those that lists without values are in.
        rows: how many have it; among the features, and of steps.
        counts: numbers of values.
    """

    kinds: set[int] = field(default_factory=set)
    empty: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    rows: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, some: Sequence[Feature], of_steps: bool) -> None:
        """Takes note of it in one message."""
        self.rows[of_steps] += 1
        for one in some:
            (self.kinds if one.values else self.empty).add(one.kind)
            self.counts.add(len(one.values))

    @property
    def kind(self) -> int | None:
        """The field of its values, or of lists without any; None if there is none."""
        return max(self.kinds or self.empty, default=0) or None

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
            inner = Node("varying", (), (item, Node("leaf")))
            node, columns = Node("varying", (), (inner,)), [*items, lengths]
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


@dataclass
class SeenFeatures:
    """Features, as some messages show them.

    Attributes:
        total: how many messages these are.
        features: by their names.
    """

    total: int = 0
    features: dict[str, _SeenFeature] = field(default_factory=dict)

    def add(self, message: Message) -> None:
        """Takes note of one more."""
        self.total += 1
        for name, one in message.features.items():
            self.features.setdefault(name, _SeenFeature()).add([one], False)
        for name, some in message.lists.items():
            self.features.setdefault(name, _SeenFeature()).add(some, True)

    def to_json(self) -> Json:
        """All of it, for `from_json`."""
        seen = {
            name: [*map(sorted, (one.kinds, one.empty, one.counts)), one.rows]
            for name, one in self.features.items()
        }
        return {"total": self.total, "features": seen}

    @staticmethod
    def from_json(data: Json) -> SeenFeatures:
        """The features that `to_json` was called on."""
        features = {
            name: _SeenFeature(set(kinds), set(empty), set(counts), rows)
            for name, (kinds, empty, counts, rows) in data["features"].items()
        }
        return SeenFeatures(data["total"], features)


def learned(shown: SeenFeatures, schema: Schema | None) -> Examples:
    """How messages become rows, as some of them show it.

    Args:
        shown: by some of them.
        schema: what rows are to be, if that is given.

    Raises:
        SchemaError: they differ in the kind of a feature, or it cannot be what the schema says.
    """
    total, seen = shown.total, shown.features
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
        schema = schema_under(tree, (one for _, some in looks for one in some))
    lists = frozenset(name for name in names if name in seen and seen[name].rows[1])
    made = Examples(schema, {}, lists)
    for name, first in zip(names, made.firsts, strict=True):
        column = schema.columns[first]
        usual = BYTES if column.kind in ("bytes", "str") else FLOATS if column.letter == "f" else INTS
        made.kinds[name] = (seen[name].kind if name in seen else None) or usual
    made.check()
    return made
