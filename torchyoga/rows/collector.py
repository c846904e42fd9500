"""Rows, one after the other, into a block: their schema is learned from the first ones.

Values of the types that a schema says are taken by functions made for it.
Each value is compared with what its column holds, and kept as a number or as bytes; arrays are made once, of
a whole block. Any row that is not as expected goes the long way, which converts it or says what is wrong.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ..errors import SchemaError
from ..process.lazy import torch
from ..process.numbers import spread
from .block import Block, Data, Rows, bounds_of
from .column import NUMBERS, Column, Leaf, Meaning, as_text, encode, letter_of
from .learning import Blank, Learner, filled, leaves_like, look_of
from .node import Node
from .schema import Schema
from .types import Array, Ints, Row

# Keeps a value and returns its bytes; or keeps nothing and returns -1.
Put: TypeAlias = Callable[[Row], int]
_NUMBERS = {"int", "float", "bool", "complex", "scalar"}
_WORTH_NO_COPY = 2**16  # bytes
_SAMPLED, _LONGEST_RUN = 64, 2**20  # rows
_SHAPES_SHOWN = 256  # rows after which a dataset has shown which arrays differ in shape
_PYTHON_TYPES = {kind: cls for cls, (kind, _) in NUMBERS.items()}


class Collector:
    """Gathers rows into a block; learns the schema from the first rows unless it is given.

    `meanings` says, when it is learned, what the values of columns stand for.

    A column is ragged if the rows of the first block differ in shape; with `settles`, if the first 256 rows
    do, so that one odd array among many alike is an error. With `converts`, values of other types than the
    schema's are taken where they fit without loss. A caller that is interrupted, as by Ctrl-C, may still
    take the rows that are whole, and add no more.
    """

    def __init__(
        self,
        schema: Schema | None = None,
        meanings: Callable[[], Mapping[str, Meaning]] | None = None,
        settles: bool = False,
        converts: bool = False,
    ) -> None:
        self.schema = schema
        self._meanings = meanings
        self._settles, self._converts = settles, converts
        self.nbytes = 0
        self._first = Learner()  # of the rows before there is a schema
        self._fit = schema  # what the columns hold: until the first block, the schema of the rows so far
        self._columns = [*map(_Values, schema.columns)] if schema else []
        self._count = 0  # of rows in the columns; what they hold beyond that is of a row that did not fit
        self._row_type: type | None = None  # of rows that can be taken apart quickly
        self._puts: list[tuple[str | int, Put]] = []

    def __len__(self) -> int:
        return self._count + len(self._first)

    def add(self, row: Row, number: int) -> None:
        """Takes a copy of a row.

        Raises:
            SchemaError: it does not fit; names the row by `number`, the column, what was expected and found.
        """
        if type(row) is self._row_type and self._add_quickly(row):
            return
        try:
            if self._fit is None:
                self._learn(row)
                return
            found = self._fitting(self._fit, row)
        except SchemaError as error:
            is_settled = self._settles and len(self) >= _SHAPES_SHOWN and isinstance(error, _OtherShape)
            if self.schema is None and self._fit is not None and not is_settled:  # it shows something new
                self._unlearn()
                self.add(row, number)
                return
            raise SchemaError(f"row {number} does not fit: {error}") from None
        self.nbytes += sum(leaf.array.nbytes for leaf in found) + 8 * len(found)
        for values, leaf in zip(self._columns, found, strict=True):
            values.keep(leaf, self._count)
        self._count += 1
        self._prepare(row)

    def _fitting(self, schema: Schema, row: Row) -> list[Leaf]:
        """The leaves of a row as the columns hold them; SchemaError if it does not fit."""
        if self._converts:
            row = nested_as(schema.tree, row)
        leaves = map(filled, schema.columns, leaves_like(schema.tree, row))
        if self._converts:
            leaves = map(fitted_leaf, schema.columns, leaves)
        return list(map(_fitted, schema.columns, leaves))

    def _learn(self, row: Row) -> None:
        """Takes a row of which nothing is known; now and then, tries to know all of them."""
        self.nbytes += self._first.add(row)
        if len(self._first).bit_count() == 1:
            with contextlib.suppress(SchemaError):  # as where all lists are empty so far
                self._know()

    def _know(self) -> None:
        """From now on rows are taken as the schema of the rows so far says; SchemaError if they have none."""
        tree, learned, first = self._first.learned()
        schema = Schema(tree, learned)
        columns = [*map(_Values, schema.columns)]
        for place, leaves in enumerate(first):
            for values, leaf in zip(columns, leaves, strict=True):
                values.keep(_fitted(values.column, leaf), place)
        # In this order: until there is a schema, the rows are taken from the beginning again.
        self._columns, self._count = columns, len(first)
        self._fit = schema
        self._first = Learner()

    def _unlearn(self) -> None:
        """The opposite of `_know`."""
        first = Learner()
        for row in Rows(self._joined()).exact():
            first.add(row)
        self._row_type = None
        self._first = first
        self._fit = None
        self._columns, self._count = [], 0

    def _prepare(self, row: Row) -> None:
        """From now on rows of this row's type are taken quickly, unless they nest more deeply."""
        assert self._fit is not None
        tree = self._fit.tree
        if self._row_type is not None or tree.kind not in ("dict", "list", "tuple", "namedtuple"):
            return
        if self._converts and any(column.meaning.words is not None for column in self._fit.columns):
            return  # numbers that are no codes are refused
        keys: Sequence[str | int] = tree.keys if tree.kind == "dict" else range(len(tree.children))
        puts, columns = [], iter(self._columns)
        for key, child in zip(keys, tree.children, strict=True):
            put = _put_of(child, [next(columns) for _ in range(child.num_leaves)])
            if put is None:
                return
            puts.append((key, put))
        if puts:
            self._puts, self._row_type = puts, type(row)

    def _add_quickly(self, row: Row) -> bool:
        """Takes a row if all its values are as expected."""
        if len(row) != len(self._puts):
            return False
        nbytes = 8 * len(self._puts)
        try:
            for key, put in self._puts:
                found = put(row[key])
                if found < 0:
                    break
                nbytes += found
            else:
                self._count += 1
                self.nbytes += nbytes
                return True
        except (KeyError, SchemaError):
            pass  # the long way says what is wrong
        self._forget_rest()
        return False

    def _forget_rest(self) -> None:
        for values in self._columns:
            values.cut(self._count)

    def take(self) -> Block:
        """The block of all rows added since the last call; at least one."""
        if self._fit is None:
            self._know()
        if self.schema is None or self._meanings is not None:
            self._fit = self.schema = self._meant()
            self._meanings = None
        block = self._joined()
        # First the count: interrupted between two columns, the collector still has rows that are whole.
        self._count = self.nbytes = 0
        self._forget_rest()
        return block

    def _meant(self) -> Schema:
        """The schema that was learned, with what the values of columns stand for."""
        assert self._fit is not None
        known = {} if self._meanings is None else self._meanings()
        columns = (replace(one, meaning=known.get(one.name, one.meaning)) for one in self._fit.columns)
        return Schema(self._fit.tree, tuple(columns))

    def _joined(self) -> Block:
        assert self._fit is not None
        self._forget_rest()  # of a row at which the program was interrupted
        return Block(self._fit, self._count, tuple(values.joined() for values in self._columns))


class _Values:
    """The values of a column in the making.

    Attributes:
        items: numbers as they are, all else as bytes.
        shapes: of each, where the column keeps them.
        put: keeps a copy of a value that is exactly of the type, dtype and shape of the column.
    """

    def __init__(self, column: Column) -> None:
        self.column = column
        self._are_numbers = column.kind in _NUMBERS and column.shape == ()
        self.items: list[Row] = []
        self.shapes: list[tuple[int, ...]] | None = [] if column.shape is None and column.ndim > 1 else None
        self.put = self._putter()

    def keep(self, leaf: Leaf, place: int) -> None:
        """Puts a leaf that fits into this place, the next one."""
        self.cut(place)
        self.items.append(self.item_of(leaf))
        if self.shapes is not None:
            self.shapes.append(leaf.array.shape)

    def item_of(self, leaf: Leaf) -> Row:
        """The item that stands for a leaf."""
        return leaf.array[()] if self._are_numbers else _bytes_of(leaf.array)

    def cut(self, count: int) -> None:
        """Leaves the first `count` values."""
        del self.items[count:]
        if self.shapes is not None:
            del self.shapes[count:]

    def joined(self) -> Data:
        """All values as one array."""
        column, items = self.column, self.items
        storage, count = column.storage, len(items)
        if self._are_numbers:
            values: Array = np.array(items, storage)
        else:
            joined = np.frombuffer(bytearray().join(items), np.uint8)
            values = joined.view(storage) if joined.size else np.empty(0, storage)
        if column.shape is not None:
            return Data(values.reshape(count, *column.shape))
        offsets = bounds_of(map(len, items)).astype("<i8", copy=False)
        offsets //= storage.itemsize
        return Data(values, offsets, self._shape_table())

    def _shape_table(self) -> Array | None:
        if self.shapes is None:
            return None
        table = np.full((len(self.shapes), self.column.ndim), -1, "<i8")
        for row, shape in zip(table, self.shapes, strict=True):
            row[: len(shape)] = shape
        return table

    # -- the quick ways

    def _putter(self) -> Put:
        kind, is_fixed = self.column.kind, self.column.shape is not None
        if kind in _PYTHON_TYPES and is_fixed:
            return self._putter_of_numbers(_PYTHON_TYPES[kind], self.column.storage.itemsize)
        if kind == "ndarray" and (is_fixed or self.column.ndim == 1):
            return self._putter_of_arrays()
        if kind == "bytes":
            return self._put_bytes
        if kind == "str":
            return self._put_text
        return self._put_slowly

    def _putter_of_numbers(self, wanted: type, nbytes: int) -> Put:
        items = self.items

        def put(value: Row) -> int:
            if type(value) is not wanted:
                return -1
            items.append(value)
            return nbytes

        def put_int(value: Row) -> int:
            if type(value) is not int or not -(2**63) <= value < 2**63:
                return -1
            items.append(value)
            return 8

        return put_int if wanted is int else put

    def putter_of_lists(self) -> Put:
        """Keeps a list of Python numbers."""
        items, storage = self.items, self.column.storage
        wanted = {_PYTHON_TYPES.get(self.column.kind)}
        code = {"int": "q", "float": "d"}.get(self.column.kind) if storage.isnative else None

        def put(value: Row) -> int:
            if type(value) is not list or not wanted.issuperset(map(type, value)):
                return -1
            try:
                # Much quicker than NumPy for a few numbers.
                data = array(code, value).tobytes() if code else np.array(value, storage).tobytes()
            except OverflowError:
                return -1
            items.append(data)
            return len(data)

        return put

    def _putter_of_arrays(self) -> Put:
        items, dtype, shape = self.items, self.column.storage, self.column.shape

        def put(value: Row) -> int:
            if type(value) is not np.ndarray or value.dtype != dtype:
                return -1
            if value.shape != shape if shape is not None else value.ndim != 1:
                return -1
            data = value.tobytes()
            items.append(data)
            return len(data)

        return put

    def _put_bytes(self, value: Row) -> int:
        if type(value) is not bytes:
            return -1
        self.items.append(value)
        return len(value)

    def _put_text(self, value: Row) -> int:
        if type(value) is not str:
            return -1
        data = value.encode("utf-8", "surrogatepass")
        self.items.append(data)
        return len(data)

    def _put_slowly(self, value: Row) -> int:
        """Keeps a value by its leaf; none that cannot be kept, or that does not fit."""
        try:
            leaf = _fitted(self.column, encode(value))
        except SchemaError:
            return -1
        self.keep(leaf, len(self.items))
        return leaf.array.nbytes


def _bytes_of(array: Array) -> bytes | memoryview:
    """The bytes of an array that nobody else changes; copied only if that takes no time."""
    return array.tobytes() if array.nbytes < _WORTH_NO_COPY else array.reshape(-1).view(np.uint8).data


def _put_of(node: Node, columns: Sequence[_Values]) -> Put | None:
    """Keeps what lies at a place of a row; None if that has no quick way."""
    if node.kind == "leaf":
        return columns[0].put
    if node.kind == "nullable":
        put = _put_of(node.children[0], columns[:-1])
        return None if put is None else _put_nullable(put, columns[:-1], columns[-1])
    if node.kind == "varying" and node.children[0].kind == "leaf" and columns[0].column.ndim == 1:
        return columns[0].putter_of_lists()
    return None


def _put_nullable(put: Put, columns: Sequence[_Values], valid: _Values) -> Put:
    note = valid.items.append
    blanks: list[tuple[Callable[[Any], None], object]] = []  # what keeps them, and what is kept for None
    for values in columns:
        leaf = filled(values.column, Blank())
        blanks.append((values.items.append, values.item_of(leaf)))
        if values.shapes is not None:
            blanks.append((values.shapes.append, leaf.array.shape))

    def put_nullable(value: Row) -> int:
        if value is not None:
            found = put(value)
            if found >= 0:
                note(True)
            return found
        for keep, blank in blanks:
            keep(blank)
        note(False)
        return 0

    return put_nullable


def _fitted(column: Column, leaf: Leaf) -> Leaf:
    """The leaf as its column holds it; SchemaError if it does not."""
    _check_fits(column, leaf)
    if leaf.meaning == column.meaning or leaf.kind != "decimal":
        return leaf
    scale, own = column.meaning.scale or 0, leaf.meaning.scale or 0
    if own > scale:
        raise SchemaError(
            f"column {column.name!r}: expected at most {scale} digits behind the point, found {own}; pass a "
            "schema of a row that has them"
        )
    if leaf.array.size and int(np.abs(leaf.array).max()) * 10 ** (scale - own) >= 2**63:
        raise SchemaError(
            f"column {column.name!r}: with {scale} digits behind the point a decimal has too many; keep it "
            "as str"
        )
    return leaf._replace(array=leaf.array * 10 ** (scale - own))


def _check_fits(column: Column, leaf: Leaf) -> None:
    shape, ndim = leaf.array.shape, leaf.array.ndim
    zone = column.meaning.timezone
    if (leaf.kind, leaf.dtype, leaf.meaning.timezone) != (column.kind, column.dtype, zone):
        expected = f"{column.kind} {column.dtype}" + (f" in {zone}" if zone else "")
        advice = ""
        if "none" in (leaf.kind, column.kind):
            advice = f"; if it may be None, pass schema=Schema.of(row, nullable=[{column.name!r}])"
            advice += "" if leaf.kind == "none" else " of a row that has a value there"
        elif leaf.kind == column.kind == "datetime":
            advice = "; bring all to one timezone, .astimezone(datetime.timezone.utc)"
        _refuse(column.name, expected, look_of(leaf) + advice)
    if column.shape is not None and shape != column.shape:
        if column.kind in ("ndarray", "tensor"):
            raise _OtherShape(
                f"column {column.name!r}: expected shape {column.shape}, found shape {shape}; if its shape "
                f"varies, pass schema=Schema.of(row, ragged=[{column.name!r}])"
            )
        _refuse(column.name, f"shape {column.shape}", f"shape {shape}")
    if column.shape is None and (ndim != 1 if column.ndim == 1 else ndim > column.ndim):
        expected = "1 dimension" if column.ndim == 1 else f"at most {column.ndim} dimensions"
        _refuse(column.name, expected, f"shape {shape}")


class _OtherShape(SchemaError):
    """An array or a tensor of another shape than those before it."""


def _refuse(name: str, expected: str, found: str) -> None:
    raise SchemaError(f"column {name!r}: expected {expected}, found {found}")


def block_of(rows: Sequence[Row], schema: Schema | None = None) -> Block:
    """Rows as a block, with `schema` or the one that they show.

    Raises:
        SchemaError: a row does not fit; the message gives its index.
    """
    if isinstance(rows, Rows):
        return rows.block
    collector = Collector(schema)
    for number, row in enumerate(rows):
        collector.add(row, number)
    return collector.take()


def spans(
    length: int, nbytes: int, block: Callable[[Ints], Block], start: int = 0
) -> Iterator[tuple[int, int]]:
    """The first row of each run of about so many bytes, and the one behind its last; `start` is the first.

    Args:
        length: rows in all; some that are spread over them show how many make a run.
        nbytes: of a run.
        block: takes rows of these numbers.
        start: where to begin.
    """
    if not length:
        return
    some = spread(length, _SAMPLED)
    row_bytes = max(1.0, block(some).nbytes / len(some))
    step = min(max(1, int(nbytes / row_bytes)), _LONGEST_RUN)
    for first in range(start, length, step):
        yield first, min(first + step, length)


_TEXTS = (frozenset({"str", "numpy.str"}), frozenset({"bytes", "numpy.bytes"}))
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # a value fits no type of a lower one
_NO_NUMBERS = frozenset({"none", "time", "decimal"}).union(*_TEXTS)


def fitted_leaf(column: Column, leaf: Leaf) -> Leaf:
    """A leaf as its column holds it, if that loses nothing: an int as a float, an array as a tensor, the name
    of a code as the code. A leaf that has no place in such a column comes back as it is.

    Raises:
        SchemaError: something would be lost; says what to do.

    Example:
        >>> from torchyoga.rows.column import Column
        >>> fitted_leaf(Column("x", "scalar", "<f4", (), 0), encode(5))[:3]
        ('scalar', '<f4', array(5., dtype=float32))
    """
    words = column.meaning.words
    if words is not None and leaf.kind in _TEXTS[0]:
        leaf = encode(_code_of(column.name, words, as_text(leaf.array.tobytes())))
    elif words is not None:
        _check_codes(column.name, words, leaf)
    if (leaf.kind, leaf.dtype) == (column.kind, column.dtype):
        return leaf
    if any({leaf.kind, column.kind} <= alike for alike in _TEXTS):
        return leaf._replace(kind=column.kind)
    letters = [letter_of(one.kind, one.dtype) for one in (leaf, column)]
    if any(one.kind in _NO_NUMBERS for one in (leaf, column)):
        return leaf
    are_times = letters[0] == letters[1] and letters[0] in "mM"
    if not are_times and not {*letters} <= _RANKS.keys():
        return leaf
    made = None
    if are_times or _RANKS[letters[0]] <= _RANKS[letters[1]]:
        made = _without_loss(leaf, column)
    if made is None:
        value = f" {leaf.array.item()!r:.40}" if leaf.array.size == 1 else ""
        to = column.dtype if column.kind == "tensor" else column.storage
        raise SchemaError(
            f"column {column.name!r}: expected {column.kind} {column.dtype}, found {look_of(leaf)}{value}, "
            f"which does not fit without loss; if that does not matter, convert the new rows to {to} before"
        )
    return Leaf(column.kind, column.dtype, made, leaf.meaning)


def _code_of(name: str, words: tuple[str, ...], word: str) -> int:
    """The code of a name; SchemaError if it has none."""
    if word not in words:
        raise SchemaError(
            f"column {name!r}: {word!r:.80} is none of its {len(words)} names, {', '.join(words)[:200]}; "
            "pass codes with names, which may be new: dictionary_encode() of pyarrow, a Categorical of "
            "pandas, a ClassLabel"
        )
    return words.index(word)


def _check_codes(name: str, words: tuple[str, ...], leaf: Leaf) -> None:
    """Raises SchemaError if numbers are no codes of these names."""
    letter, codes = letter_of(leaf.kind, leaf.dtype), leaf.array
    most = max(1, len(words)) - 1  # without names, all values are None, kept as 0
    if letter == "b" or (letter in "iu" and codes.size and not 0 <= codes.min() <= codes.max() <= most):
        raise SchemaError(
            f"column {name!r}: expected codes of its {len(words)} names, 0 to {most}, found "
            f"{codes.tolist()!r:.80}; pass the names, or codes with names, which may be new"
        )


def _without_loss(leaf: Leaf, column: Column) -> Array | None:
    """The values of a leaf in the dtype of a column; None if others would come back."""
    given = _numbers(leaf)
    with np.errstate(all="ignore"):  # what overflows does not come back
        if column.kind == "tensor":
            found = encode(torch.from_numpy(given).to(getattr(torch, column.dtype)))
        else:
            found = Leaf(column.kind, column.dtype, given.astype(column.storage))
        made = _numbers(found)
        if given.dtype.kind in "iu" and letter_of(column.kind, column.dtype) in "fc":
            about = (
                torch.finfo(getattr(torch, column.dtype)) if column.kind == "tensor" else np.finfo(made.dtype)
            )
            most = int(2 / about.eps)  # up to here a float has every whole number
            is_same = not given.size or (int(given.min()) >= -most and int(given.max()) <= most)
        else:
            back = (made.real if given.dtype.kind in "bf" else made).astype(given.dtype)
            is_same = bool(((back == given) | ((back != back) & (given != given))).all())
            if made.dtype.kind in "iu" and given.dtype.kind in "iu":
                is_same = is_same and bool(((made < 0) == (given < 0)).all())
    return found.array if is_same else None


def _numbers(leaf: Leaf) -> Array:
    """The values of a leaf as NumPy has them: of floats that it lacks, as float64."""
    if letter_of(leaf.kind, leaf.dtype) == "f" and leaf.array.dtype.kind == "u":
        return torch.from_numpy(leaf.array).view(getattr(torch, leaf.dtype)).double().numpy()
    return leaf.array.astype(leaf.array.dtype.newbyteorder("="), copy=False)


def nested_as(node: Node, value: Row) -> Row:
    """A row in the containers that `node` says, if it has as many values: a list, a tuple and an array of one
    shape hold the same.

    Example:
        >>> nested_as(Node("list", (), (Node("leaf"), Node("leaf"))), np.array([1, 2]))
        [1, 2]
    """
    if node.kind == "nullable":
        return None if value is None else nested_as(node.children[0], value)
    if node.kind == "leaf":
        return _array(value) if type(value) in (list, tuple) else value
    if node.kind == "dict":
        is_like = type(value) is dict and value.keys() == set(node.keys)
        pairs = zip(node.keys, node.children, strict=True)
        return {key: nested_as(child, value[key]) for key, child in pairs} if is_like else value
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim:
        value = value.tolist()
    if type(value) not in (list, tuple) or (node.kind != "varying" and len(value) != len(node.children)):
        return value
    if node.kind == "varying":
        return [nested_as(node.children[0], item) for item in value]
    found = [nested_as(child, item) for child, item in zip(node.children, value, strict=True)]
    if node.kind == "namedtuple":
        return value if type(value) is list else tuple.__new__(node.row_type, found)
    return found if node.kind == "list" else tuple(found)


def _array(items: Row) -> Row:
    """A list of numbers, or of lists of them, as an array; else as it is."""
    try:
        found = np.asarray(items)
    except ValueError:  # lists of different lengths
        return items
    return found if found.dtype.kind in "biufc" else items
