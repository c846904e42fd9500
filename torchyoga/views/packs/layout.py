"""What the rows of packs are made of: the columns of the documents, end to end or one for each.

Values of a pack lie where one gather of its documents has put them.
The documents of a batch of packs are read at once, so the tokens of all packs lie end to end already: a pack
is a run of them, and what `cu_seqlens` says are the offsets of the documents. Only pieces of rows are copied.

Positions and labels take more memory than the tokens, so they are made of one batch at a time, in memory that
the processor has in its cache.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from ...process.numbers import as_int
from ...rows.block import Block, Data, bounds_of, numbered_within
from ...rows.collate import fill_value
from ...rows.column import Column, stacked
from ...rows.node import WRAPPERS, Node, outermost, path_name
from ...rows.schema import PACK_LENGTHS, Projection, Schema, schema_under
from ...rows.types import Array, Ints
from .plan import Documents

_LONG = 600  # tokens of a document, on average, from which a copy of a list of numbers is faster than sums
_MOST_COUNTED = 2**20
_counted = [np.arange(2**13)]  # the positions of a document


class Made:
    """Numbers of 8 bytes for each token of packs.

    Args:
        lengths: (S,) tokens of each document.
        bounds: (N + 1,) where the documents of each pack begin.
        write: writes the numbers of all tokens into an array, given this.
        tokens: of each pack, if the numbers are made of them.

    Attributes:
        ends: (S + 1,) where the tokens of each document begin.
        nbytes: (N,) of each pack.
    """

    def __init__(
        self, lengths: Ints, bounds: Ints, write: Callable[[Made, Ints], None], tokens: Data | None = None
    ) -> None:
        self.lengths, self._bounds, self._write, self.tokens = lengths, bounds, write, tokens
        self.ends = bounds_of(lengths)
        self.nbytes = 8 * np.diff(self.ends[bounds])

    def slice(self, start: int, stop: int) -> Made:
        """The numbers of the packs start..stop-1."""
        bounds = self._bounds[start : stop + 1]
        tokens = None if self.tokens is None else self.tokens.slice(start, stop)
        return Made(self.lengths[bounds[0] : bounds[-1]], bounds - bounds[0], self._write, tokens)

    def copy(self, out: Array, starts: Iterable[int] | None = None) -> None:
        """Writes the numbers of each pack into `out` where `starts` says; end to end by default."""
        if starts is None:
            self._write(self, out.view(np.int64))
            return
        for to, numbers in zip(starts, self._each(), strict=True):
            out[to : to + numbers.nbytes] = numbers.view(np.uint8)

    def texts(self) -> list[bytes]:
        """The bytes of each pack."""
        return [numbers.tobytes() for numbers in self._each()]

    def _each(self) -> list[Ints]:
        made = np.empty(int(self.ends[-1]), np.int64)
        self._write(self, made)
        return [made[start:stop] for start, stop in pairwise(self.ends[self._bounds].tolist())]


def write_positions(first: int, made: Made, out: Ints) -> None:
    """Writes the position of each token in its document, counted from `first`."""
    longest = int(made.lengths.max(initial=0)) + first
    if longest <= _MOST_COUNTED and len(out) >= _LONG * len(made.lengths):
        source, target = _counted_to(longest).view(np.uint8).data, out.view(np.uint8).data
        for start, stop in pairwise((8 * made.ends).tolist()):
            target[start:stop] = source[8 * first : 8 * first + stop - start]
        return
    lengths = made.lengths[made.lengths > 0]
    out.fill(1)
    out[:1] = first
    out[np.cumsum(lengths[:-1])] = 1 - lengths[:-1]  # back to the first position
    np.cumsum(out, out=out)


def _counted_to(count: int) -> Ints:
    """At least the numbers 0 to count - 1; those that were asked for are kept."""
    found = _counted[0]
    if len(found) < count:  # not looked up again: another thread may have kept fewer meanwhile
        found = _counted[0] = np.arange(2 * count)
    return found


def write_tokens(made: Made, out: Ints) -> None:
    """Writes the tokens, as numbers of 8 bytes."""
    assert made.tokens is not None
    out[...] = made.tokens.values


def write_labels(ignored: int, shifted: bool, made: Made, out: Ints) -> None:
    """Writes the tokens, but the first of each document is ignored.

    If they are shifted, it is the token that follows each, and the last of each document is ignored.
    """
    assert made.tokens is not None
    values, some = made.tokens.values, made.lengths > 0
    if shifted:
        out[:-1] = values[1:]
        out[made.ends[1:][some] - 1] = ignored
    else:
        out[...] = values
        out[made.ends[:-1][some]] = ignored


LabelKind: TypeAlias = Literal["same", "shifted"]  # labels as the tokens, or each that of the next token
PackNames: TypeAlias = Literal["transformers"]  # whose models' names the columns of packs have

_TEXTS = {"str", "bytes", "numpy.str", "numpy.bytes"}
_IN_BATCHES = ("cu_seqlens", "max_seqlen", "packs", "document_ids")
_BY_TOKEN = ("tokens", "input_ids", "position_ids", "document_ids", "labels")
_MOST_WIDTH = 2**24
_LEAF = Node("leaf")


class PackSource(NamedTuple):
    """Where a column of a pack comes from.

    Attributes:
        way: "tokens", the values of all documents end to end; "values", one for each document; "items", what
            each document has several of; "counts", how many that are; "none"; or the name of a column that is
            made here.
        column: the number of a column of the other DataRef; -1 for most that are made here.
    """

    way: str
    column: int


@dataclass(frozen=True)
class Layout:
    """What the rows of packs are made of.

    Attributes:
        schema: of such a row.
        sources: where each of its columns comes from.
        measure: the number of the column that says how many tokens a document has.
        first_position: the position of a document's first token.
        ignored: the label that a document has too many.
        width: how many tokens every pack is filled up to; None if they are not.
        fills: by the name of a column of tokens, what it is filled up with.
        shifted: True if the label of a token is the one that follows it.
    """

    schema: Schema
    sources: tuple[PackSource, ...]
    measure: int
    first_position: int = 0
    ignored: int = -100
    width: int | None = None
    fills: tuple[tuple[str, float], ...] = ()
    shifted: bool = False

    @staticmethod
    def of(
        schema: Schema,
        along: Sequence[str],
        *,
        labels: str | Mapping[str, str] | None = None,
        ignored: int = -100,
        first_position: int = 0,
        documents: bool = False,
        in_pieces: bool = False,
        padding: tuple[int, float | Mapping[str, float]] | None = None,
        names: PackNames | None = None,
    ) -> Layout:
        """The rows of `DataRef.packed`, over rows of a schema.

        Args:
            schema: of the rows that are packed: dicts.
            along: the columns with a value for each token, the measured one first.
            labels: how labels are made, and of which column, see `DataRef.packed`; None for none.
            ignored: the label that a document has too many.
            first_position: the position of a document's first token.
            documents: True for `document_ids` in any case, and not in filled packs alone.
            in_pieces: True if documents may be pieces of rows.
            padding: how many tokens every pack is filled up to, and with what: of the measured column, or by
                the name of the column. None if packs are not filled up.
            names: "transformers" for nothing but `input_ids` of the measured column, and what goes with them.

        Raises:
            KeyError: there is no such column.
            TypeError: the rows are not dicts.
            ValueError: a column is of a name that packs have themselves, or cannot be in a pack.
        """
        ignored = as_int("ignore_index", ignored, -(2**63), 2**63 - 1)
        first_position = as_int("first_position", first_position, 0, 2**31 - 1)
        width, fill = padding or (None, None)
        if width is not None:
            as_int("the width of padded packs", width, 1, _MOST_WIDTH)
        asked = labels
        if labels is None and names is not None:
            asked = "labels" if "labels" in along else "same"
        labels, shifted = _labels_of(asked, along[0])
        if shifted and names is not None:
            raise ValueError(
                f'labels={asked!r}: models of transformers shift labels themselves; use "same", or a column'
            )
        if labels is not None and labels not in along:
            raise _unknown_labels(labels, () if isinstance(asked, Mapping) else get_args(LabelKind), along)
        for what, name in (("labels", labels), ("input_ids", None if names is None else along[0])):
            own = None if name is None else Projection.at(schema, name).schema.columns[0]
            if own is not None and not _are_whole(own):
                raise ValueError(
                    f"{what}={name!r} are int64, but the column holds {own.dtype}; take whole numbers"
                )
        made_of = {"labels": labels or ""}
        if names is None:
            added = ["position_ids", *(["labels"] * (labels is not None))]
            added += ["document_ids"] * (documents or bool(width))
            added += ["rows", PACK_LENGTHS, *(["begins"] * in_pieces)]
            _check_names(schema, {*added, *_IN_BATCHES} - ({"labels"} if labels == "labels" else set()))
            tree, found = _packed_tree(schema, along, labels)
        else:
            made_of["input_ids"] = along[0]
            added = ["input_ids", "labels", "position_ids", *(["document_ids"] * documents), PACK_LENGTHS]
            tree, found = Node("dict", (), ()), []
        numbers = {path_name(path): first for path, _, first in places(schema)}
        found += [_made(name, numbers.get(made_of.get(name, ""), -1)) for name in added]
        keys, children = (*tree.keys, *added), (*tree.children, *[_LEAF] * len(added))
        tree = replace(tree, keys=keys, children=children)
        columns = list(schema_under(tree, (column for _, column in found)).columns)
        fills: tuple[tuple[str, float], ...] = ()
        if width is not None:
            some = [n for n, (source, _) in enumerate(found) if source.way in _BY_TOKEN]
            measured = along[0] if names is None else "input_ids"
            fills = _fills([columns[n] for n in some], measured, fill, ignored, first_position)
            for n in some:
                columns[n] = replace(columns[n], shape=(width,))
        by_token = [
            column.name for (source, _), column in zip(found, columns, strict=True) if source.way in _BY_TOKEN
        ]
        whole = Schema(tree, tuple(columns), (*by_token, PACK_LENGTHS), names or "")
        sources = tuple(source for source, _ in found)
        return Layout(whole, sources, numbers[along[0]], first_position, ignored, width, fills, shifted)

    def projected(self, of: Projection) -> Layout:
        """Some columns of these rows, which may get other names."""
        pairs = zip(of.columns, of.schema.columns, strict=True)
        names = {self.schema.columns[number].name: column.name for number, column in pairs}
        fills = tuple((names.get(name, name), value) for name, value in self.fills)
        sources = tuple(self.sources[number] for number in of.columns)
        return replace(self, schema=of.schema, sources=sources, fills=fills)

    @property
    def pin(self) -> str:
        """A name for how rows are made: the same in every process."""
        more = [self.measure, self.first_position, self.ignored, self.width, self.fills, self.shifted]
        return json.dumps([self.sources, self.schema.to_json(), self.schema.packed, *more])

    def block(
        self,
        given: Block,
        numbers: Mapping[int, int],
        documents: Documents,
        most: int | None,
        empty: Callable[[int], Array],
    ) -> Block:
        """The packs of some documents.

        Args:
            given: the rows of the documents, with some of their columns.
            numbers: by the number of a column, its number in `given`.
            documents: of the packs.
            most: if what a document costs are its tokens, of how many its row may have had more; None if no
                row was cut. Else -1.
            empty: makes memory for so many bytes.

        Raises:
            ValueError: the rows are not those that were packed.
        """
        cut = _CutTokens.of(given.data[numbers[self.measure]], documents, most, self._name(self.measure))
        bounds = documents.bounds
        tokens: dict[int, Data] = {}  # of two columns, labels and what they are made of

        def tokens_of(number: int) -> Data:
            if number not in tokens:
                place = numbers[number]
                tokens[number] = cut.tokens(given.data[place], given.schema.columns[place].name)
            return tokens[number]

        def made_of(source: PackSource) -> Data:
            if source.way == "tokens":
                return tokens_of(source.column)
            if source.way == "document_ids":
                return Data(cut.numbers, cut.ends[bounds])
            if source.way in ("labels", "input_ids"):
                write: Callable[[Made, Ints], None] = write_tokens
                if source.way == "labels":
                    write = partial(write_labels, self.ignored, self.shifted)
                made = Made(cut.lengths, bounds, write, tokens_of(source.column))
            else:
                made = Made(cut.lengths, bounds, partial(write_positions, self.first_position))
            return Data(None, cut.ends[bounds], runs=made, dtype=np.dtype(np.int64), empty=empty)

        data = []
        for source, column in zip(self.sources, self.schema.columns, strict=True):
            if source.way in _BY_TOKEN:
                found = made_of(source)
                data.append(found if self.width is None else self._filled(column, found))
            elif source.way == "rows":
                data.append(Data(documents.rows, bounds))
            elif source.way == PACK_LENGTHS:
                data.append(Data(cut.lengths, bounds))
            elif source.way == "begins":
                begins = documents.begins
                data.append(Data(np.zeros_like(cut.lengths) if begins is None else begins, bounds))
            else:
                data.append(_gathered(source.way, given.data[numbers[source.column]], column, documents))
        return Block(self.schema, len(bounds) - 1, tuple(data))

    def _name(self, number: int) -> str:
        """The name of a column of tokens, for messages."""
        names = {
            source: column.name for source, column in zip(self.sources, self.schema.columns, strict=True)
        }
        return names.get(PackSource("tokens", number), "the measured column")

    def _filled(self, column: Column, tokens: Data) -> Data:
        """Packs that are filled up to one width."""
        assert self.width is not None
        return Data(tokens.padded(self.width, fill_value(column, dict(self.fills)[column.name])))

    @property
    def wanted(self) -> list[int]:
        """The numbers of the columns that are read, ascending."""
        return sorted({self.measure, *(source.column for source in self.sources if source.column >= 0)})


def _labels_of(labels: str | Mapping[str, str] | None, measured: str) -> tuple[str | None, bool]:
    """The column that labels are made of, and whether each is that of the token that follows."""
    asked = {measured: labels} if labels in get_args(LabelKind) else labels
    if asked is None or isinstance(asked, str):
        return asked, False
    kinds = list(asked.values()) if isinstance(asked, Mapping) else []
    if len(kinds) != 1 or kinds[0] not in get_args(LabelKind):
        raise ValueError(
            'labels must be "same", "shifted", a column, or a dict such as {"labels": "shifted"}; found '
            f"{labels!r:.100}"
        )
    return next(iter(asked)), kinds[0] == "shifted"


def _unknown_labels(found: str, kinds: Sequence[str], along: Sequence[str]) -> ValueError:
    """An error that says what labels may be made of, similar names first."""
    known = [*kinds, *along]
    near = difflib.get_close_matches(found, known, len(known), 0.5)
    listed = ", ".join(f'"{name}"' for name in dict.fromkeys([*near, *known]))
    what = f'one of {listed}: "same" as the tokens, or a column' if kinds else f"a column of {listed},"
    return ValueError(f"labels={found!r:.100} must be {what} with a value for each token")


def sequences(schema: Schema) -> list[str]:
    """The columns that may have a value for each token: ragged ones of numbers, and lists of numbers."""
    return [path_name(path) for path, node, first in places(schema) if are_tokens(schema, node, first)]


def are_tokens(schema: Schema, node: Node, first: int) -> bool:
    """True for a value of a row that is a sequence of numbers, given its first column."""
    column = schema.columns[first]
    is_one = node.kind == "leaf" or (node.kind == "varying" and node.children[0].kind == "leaf")
    is_number = column.kind not in (*_TEXTS, "none", "decimal") and column.storage.kind in "biufc"
    return is_one and column.is_ragged and column.ndim == 1 and is_number


def _are_whole(column: Column) -> bool:
    """True for numbers that int64 can hold."""
    is_known = column.kind != "tensor" or hasattr(np, column.dtype)
    return is_known and np.can_cast(column.storage, np.int64)


class _CutTokens(NamedTuple):
    """The tokens of S documents among those of their rows.

    Attributes:
        lengths: (S,) tokens of each document.
        ends: (S + 1,) where each begins, all being end to end.
        offsets: (S + 1,) where each row begins.
        taken: (T,) which tokens of the rows they are; None if they are all.
        documents: the documents.
    """

    lengths: Ints
    ends: Ints
    offsets: Ints
    taken: Ints | None
    documents: Documents

    @staticmethod
    def of(measured: Data, documents: Documents, most: int | None, name: str) -> _CutTokens:
        offsets = measured.part("offsets")
        held, lengths, begins = np.diff(offsets), documents.costs, documents.begins
        if begins is None and (most == -1 or np.array_equal(held, lengths)):
            return _CutTokens(held, offsets, offsets, None, documents)
        left = held if begins is None else held - begins
        ends = bounds_of(lengths)
        others = np.flatnonzero((left < lengths) | ((left > lengths) & (lengths != most)))
        if len(others):
            raise ValueError(
                f"row {int(documents.rows[others[0]])} has {int(held[others[0]])} tokens in {name!r}, not as "
                "many as when it was packed: rows that are packed must not change in length"
            )
        starts = offsets[:-1] if begins is None else offsets[:-1] + begins
        taken = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
        return _CutTokens(lengths, ends, offsets, taken, documents)

    def tokens(self, data: Data, name: str) -> Data:
        """The values of a column of tokens, of each pack."""
        offsets = data.part("offsets")
        if not np.array_equal(offsets, self.offsets):
            found, expected = np.diff(offsets), np.diff(self.offsets)
            wrong = int(np.flatnonzero(found != expected)[0])
            raise ValueError(
                f"row {int(self.documents.rows[wrong])} has {int(found[wrong])} values in {name!r}, but "
                f"{int(expected[wrong])} tokens; say which columns have a value for each token by along=[...]"
            )
        if self.taken is None:
            return data.joined(self.documents.bounds)
        return Data(data.values[self.taken], self.ends[self.documents.bounds])

    @property
    def numbers(self) -> Ints:
        """(T,) the number of each token's document in its pack."""
        return np.repeat(numbered_within(np.diff(self.documents.bounds)), self.lengths)


def _gathered(way: str, data: Data, column: Column, documents: Documents) -> Data:
    """The values of each document, of each pack."""
    bounds = documents.bounds
    if way == "none":
        return Data(data.values[: len(bounds) - 1])
    if way == "counts":
        return Data(_counts(data), bounds)
    if way == "values":
        shape = data.values.shape[1:]
        if not shape:
            return Data(data.values, bounds)
        shapes = np.empty((len(bounds) - 1, 1 + len(shape)), "<i8")
        shapes[:, 0], shapes[:, 1:] = np.diff(bounds), shape
        return Data(data.values.reshape(-1), bounds * int(np.prod(shape)), shapes)
    offsets = data.part("offsets")
    if data.shapes is None:
        return data.joined(bounds)
    # Arrays of items: of all documents of a pack they must be of one shape.
    each = data.shapes
    firsts = bounds[:-1] + np.array(
        [int(np.argmax(each[start:stop, 0] > 0)) for start, stop in itertools.pairwise(bounds.tolist())]
    )
    shapes = each[firsts].copy()
    alike = (each[:, 1:] == np.repeat(shapes[:, 1:], np.diff(bounds), axis=0)).all(1) | (each[:, 0] == 0)
    if not alike.all():
        raise ValueError(
            f"the items of {column.name.partition('{')[0]!r} differ in shape, in row "
            f"{int(documents.rows[~alike][0])}; leave the column out by .columns([...]) before"
        )
    shapes[:, 0] = np.add.reduceat(each[:, 0], bounds[:-1])
    return Data(data.values, offsets[bounds], shapes)


def _counts(data: Data) -> Ints:
    """How many items each document has."""
    return np.diff(data.part("offsets")) if data.shapes is None else np.ascontiguousarray(data.shapes[:, 0])


# -- the schema of packs

_Found: TypeAlias = tuple[PackSource, Column]


def places(schema: Schema) -> Iterator[tuple[tuple[str | int, ...], Node, int]]:
    """The values that a row is made of: path, node, number of the first column."""
    first = 0
    for path, node in outermost(schema.tree):
        yield path, node, first
        first += node.num_leaves


def _check_names(schema: Schema, taken: Container[str]) -> None:
    tree = schema.tree
    if tree.kind != "dict" or not all(isinstance(key, str) for key in tree.keys):
        raise TypeError(f"packed takes rows that are dicts with names, found rows of {tree.kind}")
    for key in tree.keys:
        if key in taken:
            raise ValueError(
                f"the rows have a column {key!r}, which packs have of their own; leave it out by "
                ".columns([...]) before, or give it another name by map_batches"
            )


def _made(name: str, column: int) -> _Found:
    return PackSource(name, column), Column(name, "ndarray", "<i8", None, 1)


def _packed_tree(schema: Schema, along: Sequence[str], labels: str | None) -> tuple[Node, list[_Found]]:
    """The tree of a pack without what is made here, and where its columns come from."""
    found: list[_Found] = []
    columns = iter(enumerate(schema.columns))

    def packed(node: Node, path: tuple[str | int, ...]) -> Node:
        if node.kind != "leaf" and node.kind not in WRAPPERS:
            kept = [
                (key, packed(child, (*path, *step)))
                for key, step, child in zip(
                    node.keys or range(len(node.children)), node.steps, node.children, strict=True
                )
                if not (not path and key == labels == "labels" and _skipped(child))
            ]
            keys = tuple(key for key, _ in kept) if node.keys else ()
            return replace(node, keys=keys, children=tuple(child for _, child in kept))
        if path_name(path) not in along:
            return _of_documents(node, columns, found)
        number, column = next(columns)
        if not are_tokens(schema, node, number):
            raise ValueError(
                f"{path_name(path)!r} has no value for each token: it must be a ragged column of numbers, or "
                f"a list of them; it is {column}"
            )
        kind, dtype = ("tensor", column.dtype) if column.kind == "tensor" else ("ndarray", column.storage.str)
        found.append((PackSource("tokens", number), Column(column.name, kind, dtype, None, 1)))
        return _LEAF

    def _skipped(child: Node) -> bool:
        """Passes over the columns of a child: labels are made of it, under its own name."""
        for _ in range(child.num_leaves):
            next(columns)
        return True

    known = {path_name(path) for path, _ in outermost(schema.tree)}
    for name in along:
        if name not in known:
            Projection.at(schema, name)  # which says what there is
            raise ValueError(f"{name!r} is no single value of a row, so it has no value for each token")
    return packed(schema.tree, ()), found


def _of_documents(node: Node, columns: Iterator[tuple[int, Column]], found: list[_Found]) -> Node:
    """The node for what several documents have of a leaf or wrapper."""
    if node.kind == "leaf":
        number, column = next(columns)
        if column.kind == "none":
            found.append((PackSource("none", number), column))
            return node
        if column.shape is not None and column.kind != "decimal":
            found.append((PackSource("values", number), stacked(column)))
            return _LEAF
        return Node("varying", (), (_item(node, iter([(number, column)]), found, 0),))
    return Node("varying", (), (_item(node, columns, found, 0),))


def _item(node: Node, columns: Iterator[tuple[int, Column]], found: list[_Found], depth: int) -> Node:
    """The node for an item of a list of varying length.

    Args:
        node: of a row, or `depth` lists below it.
        columns: its columns, and those that follow.
        found: to which the columns of packs are added.
        depth: how many lists it is in.
    """
    if node.kind == "leaf":
        number, column = next(columns)
        if depth:
            found.append((PackSource("items", number), column))
            return node
        if not column.is_ragged:
            found.append((PackSource("values", number), _in_list(column)))
            return node
        if column.ndim > 1:
            raise ValueError(
                f"rows of {column.name!r} differ in shape, so they can be neither stacked nor end to end; "
                "leave the column out by .columns([...]) before"
            )
        found += [
            (PackSource("items", number), _in_list(column)),
            (PackSource("counts", number), _lengths_column()),
        ]
        kind = "texts" if column.kind in _TEXTS else "varying"
        return Node(kind, (), (_LEAF, _LEAF))
    if node.kind == "varying":
        start = len(found)
        item = _item(node.children[0], columns, found, depth + 1)
        if depth:
            number, column = next(columns)
            found.append((PackSource("items", number), column))
        else:
            counter = _counter(node.children[0], start, found)
            found.append((PackSource("counts", counter), _lengths_column()))
        return Node("varying", (), (item, _LEAF))
    if node.kind in ("nullable", "texts"):
        child = _item(node.children[0], columns, found, depth)
        number, column = next(columns)
        way = "items" if depth else "values"
        found.append((PackSource(way, number), column if depth else _in_list(column)))
        return Node(node.kind, (), (child, _LEAF))
    children = tuple(_item(child, columns, found, depth) for child in node.children)
    return replace(node, children=children)


def _counter(item: Node, start: int, found: list[_Found]) -> int:
    """The number of a column that has one entry for each item, of those found from `start` on."""
    if item.kind in ("texts", "nullable", "varying"):
        # The last column of a wrapper: a length, or whether it is there, of each item.
        return found[start + item.num_leaves - 1][0].column
    for child in item.children:
        if child.num_leaves:
            return _counter(child, start, found)
        start += child.num_leaves
    return found[start][0].column


def _in_list(column: Column) -> Column:
    """A column of items; arrays of numbers that differ in length become lists of these numbers."""
    if column.shape is not None:
        return replace(column, shape=None, ndim=column.ndim + 1)
    if column.kind in ("ndarray", "tensor"):
        return replace(column, kind="scalar", dtype=column.storage.str)
    return column


def _lengths_column() -> Column:
    return Column("lengths", "int", "<i8", None, 1)


def _fills(
    columns: Sequence[Column],
    measure: str,
    fill: float | Mapping[str, float] | None,
    ignored: int,
    first_position: int,
) -> tuple[tuple[str, float], ...]:
    """The number that each column of tokens is filled up with.

    Raises:
        KeyError: there is no such column.
        ValueError: a column cannot hold its value.
    """
    found: dict[str, float] = {column.name: 0 for column in columns}
    made = {"labels": ignored, "document_ids": -1, "position_ids": max(0, first_position - 1)}
    given = fill if isinstance(fill, Mapping) else {measure: fill or 0}
    for name in given:
        if name not in found:
            raise KeyError(f"padded={{{name!r}: ...}} names no column of tokens; there are {list(found)}")
    found |= {name: value for name, value in made.items() if name in found} | dict(given)
    for column in columns:
        fill_value(column, found[column.name])
    # NumPy's own numbers are no JSON, of which fingerprints are made.
    return tuple((name, np.asarray(value).item()) for name, value in found.items())
