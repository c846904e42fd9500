"""Rows changed by functions: one by one, or many at once as arrays, with random numbers that follow the row.

Note 14. Random numbers of batches are counted, not drawn in turn.
A number follows from the seed of its row, the call and its place in the row, so neither the other rows of the
batch nor their order matter. SplitMix64 makes them for all rows at once; a generator for each row would take
some microseconds to make. Normal ones are Box and Muller's (1958), in pairs.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..errors import SchemaError
from ..process.buffers import counts_can_be_trusted, held
from ..process.digests import hexdigest, splitmix
from ..process.exceptions import note_batch, note_row
from ..process.messages import warn_user
from ..process.seeding import drawn_seeds, generators, seeder, seeds_within
from ..process.stages import Stage, timed
from ..reading.contract import known_schema, title_of
from ..reading.dataref import DataRef
from ..reading.instead import advised
from ..reading.readahead import MOST_BATCHES, ReadAhead
from ..rows.block import Block, Data, Rows, exact_rows, joined
from ..rows.collector import block_of
from ..rows.column import Column, Leaf, encode
from ..rows.comparing import equal_blocks
from ..rows.node import VALID, WRAPPERS, Node, leaf_names, outermost, path_name
from ..rows.schema import Projection, Schema, schema_under
from ..rows.types import Array, Ints, Json, Row, RowT, Seeds
from .over import ChangedRows
from .scan import RaggedColumn, as_given, is_text


def name_of(function: Callable[..., object]) -> str:
    """The name of a function."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def check_can_be_sent(function: Callable[..., object]) -> None:
    """Raises TypeError for a function that has no name of its own, if a process is being spawned now.

    Such a process finds functions by their names; other ways to pickle may take these functions, too.
    """
    name = name_of(function)
    if "<" in name and get_spawning_popen() is not None:  # <lambda>, <locals>
        raise TypeError(
            f"{name} cannot be sent to a process that is started by 'spawn' or 'forkserver', because nothing "
            "can be imported under that name; define the function at the top level of a module, or start "
            "the workers with multiprocessing_context='fork'"
        )


@advised
def map(ref: DataRef[RowT], function: Callable[[RowT], Row], schema: Schema | None = None) -> DataRef:
    """The rows, each changed by a function whenever it is read: a transform, or an augmentation.

    A loader seeds `random`, NumPy and torch for each row from (seed, epoch, row), as it does for any dataset
    that is not cached: the result is the same for any number of workers and ranks, and after a resume.
    `DataLoader(..., seed_rows=False)` saves some 7 us a row if no row draws.

    Args:
        function: takes a row and returns another. Worker processes that are spawned need one that can be
            pickled: defined in a module, not a lambda.
        schema: what a changed row looks like, `Schema.of(row)`, so that its columns can be named; without it,
            call `columns`, `where` and the like before `map`.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(3), "y": np.arange(3)})
        >>> [int(row["x"]) for row in ref.map(lambda row: {**row, "x": row["x"] * 10})]
        [0, 10, 20]
    """
    if not callable(function):
        raise TypeError(f"map takes a function of a row, found {function!r:.80}")
    if type(ref) is TransformedRef:  # so that a row is seeded once
        return TransformedRef(ref.whole, (*ref.functions, function), schema)
    return TransformedRef(ref, (function,), schema)


class TransformedRef(ChangedRows):
    """The rows of another DataRef after some functions, one row at a time: what `ref.map(function)` is.

    Args:
        whole: the other DataRef.
        functions: each takes a row and returns one, the first one a row of `whole`.
        schema: what a changed row looks like, if that is known.
    """

    def __init__(
        self, whole: DataRef, functions: Sequence[Callable[[Row], Row]], schema: Schema | None = None
    ) -> None:
        super().__init__(whole, functions, schema)
        self.is_thread_safe = False  # the functions may not be
        self.functions = tuple(functions)
        self._schema = schema

    def __getstate__(self) -> Json:
        for function in self.functions:
            check_can_be_sent(function)
        return super().__getstate__()

    _is_random = True  # the functions may draw random numbers
    _most_batches = 1

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        """The rows of these numbers; with seeds, `random`, NumPy and torch are seeded before each."""
        given = exact_rows(self._given(rows, seeds))
        with timed(Stage.TRANSFORM):
            found: list[Row] = []
            try:
                if seeds is None:
                    found.extend(builtins.map(self._changed, given))
                    return found
                seed_all = seeder()
                for row, seed in zip(given, seeds.tolist(), strict=True):
                    seed_all(seed)
                    found.append(self._changed(row))
            except Exception as error:
                note_row(error, int(rows[len(found)]), title_of(self))
                raise
        return found

    def _changed(self, row: Row) -> Row:
        for function in self.functions:
            changed = function(row)
            if changed is None and row is not None:
                raise SchemaError(
                    f"map({name_of(function)}) returned None for the row {row!r:.200}; return the row, also "
                    "where the function changes it in place, and leave rows out by "
                    "ref.where(column, condition)"
                )
            row = changed
        return row

    @property
    def schema(self) -> Schema | None:
        """How a changed row looks, if that was said."""
        return self._schema

    def _pinned(self, whole: str) -> str:
        return hexdigest(f"{whole} map {' '.join(builtins.map(name_of, self.functions))}")

    def _title(self) -> str:
        return f"{super()._title()} after {', '.join(builtins.map(name_of, self.functions))}"


Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Size: TypeAlias = int | Sequence[int] | None
_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 2**15  # words made at once, which stay in the cache
_MOST = 2**32  # numbers to choose an integer from


class Draw:
    """Random numbers for the rows of a batch; a row gets the same ones whatever rows are beside it.

    The methods are called as those of `numpy.random.Generator`. A size begins with the number of rows B; by
    default it is (B,), one number for each row.

    Args:
        seeds: (B,) the seed of each row.

    Example:
        >>> draw, alone = Draw(np.array([5, 6], np.uint64)), Draw(np.array([6], np.uint64))
        >>> bool(draw.random((2, 3))[1, 2] == alone.random((1, 3))[0, 2])
        True
    """

    def __init__(self, seeds: Words) -> None:
        self._seeds = seeds
        self._calls = 0

    def __len__(self) -> int:
        return len(self._seeds)

    def random(self, size: Size = None) -> Floats:
        """Uniform numbers in [0, 1)."""
        shape, each = self._shape(size)
        return _fractions(self._words(each)).reshape(shape)

    def uniform(self, low: npt.ArrayLike = 0.0, high: npt.ArrayLike = 1.0, size: Size = None) -> Floats:
        """Uniform numbers in [low, high), which are numbers, or arrays that broadcast to the size."""
        found = self.random(size)
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        scaled: Floats = low + (high - low) * found
        return scaled

    def normal(self, loc: npt.ArrayLike = 0.0, scale: npt.ArrayLike = 1.0, size: Size = None) -> Floats:
        """Normal numbers; mean and standard deviation are numbers, or arrays that broadcast to the size."""
        shape, each = self._shape(size)
        pairs = (each + 1) // 2
        words = self._words(2 * pairs)
        radius = _fractions(words[:, :pairs])
        np.subtract(1.0, radius, out=radius)  # in (0, 1], so that it has a logarithm
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle = _fractions(words[:, pairs:])
        angle *= 2 * math.pi
        found = np.empty((len(self), 2 * pairs))
        np.multiply(radius, np.cos(angle), out=found[:, :pairs])
        np.multiply(radius, np.sin(angle), out=found[:, pairs:])
        plain: Floats = found[:, :each].reshape(shape)
        return np.asarray(loc, np.float64) + np.asarray(scale, np.float64) * plain

    def integers(
        self, low: npt.ArrayLike, high: npt.ArrayLike | None = None, size: Size = None, endpoint: bool = False
    ) -> Ints:
        """Integers from `low` on and below `high`, or up to it with `endpoint`; from 0 on without `high`.

        Both are ints, or arrays of ints that broadcast to the size.

        Raises:
            ValueError: there is nothing to choose from, or more than 2**32 integers.
        """
        low, high = (0, low) if high is None else (low, high)
        begin, end = np.asarray(low), np.asarray(high)
        if begin.dtype.kind not in "iu" or end.dtype.kind not in "iu":
            raise TypeError(f"low and high must be ints, found {begin.dtype} and {end.dtype}")
        begin, count = begin.astype(np.int64), end.astype(np.int64) - begin.astype(np.int64) + endpoint
        if (count < 1).any() or (count > _MOST).any():
            raise ValueError(
                f"there must be 1 to 2**32 integers to choose from; found {low!r:.80} to {high!r:.80}"
            )
        shape, each = self._shape(size)
        words, counts = self._words(each).reshape(shape), count.astype(np.uint64)
        # The upper half of a product of 64 bits by 32, without more than 64 bits (D. Lemire, 2019).
        upper = (words >> np.uint64(32)) * counts
        lower = (words & np.uint64(2**32 - 1)) * counts
        found: Ints = ((upper + (lower >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
        return begin + found

    def generators(self) -> list[np.random.Generator]:
        """A generator for each row, for all else, such as permutations; some microseconds each."""
        self._calls += 1
        return [np.random.Generator(np.random.Philox(key=seed)) for seed in self._keys().tolist()]

    def _shape(self, size: Size) -> tuple[tuple[int, ...], int]:
        """The shape of the result, and how many numbers a row gets."""
        count = len(self)
        shape = (count,) if size is None else (size,) if isinstance(size, int) else tuple(size)
        if not shape or shape[0] != count:
            raise ValueError(f"a size must begin with the number of rows, {count}; found {size!r}")
        return shape, math.prod(shape[1:])

    def _keys(self) -> Words:
        return seeds_within(self._seeds, self._calls)

    def _words(self, each: int) -> Words:
        """(B, each) 64 random bits."""
        self._calls += 1
        keys, steps = self._keys()[:, None], np.arange(1, each + 1, dtype=np.uint64) * _STEP
        out = np.empty((len(self), each), np.uint64)
        rows = max(1, _CHUNK // max(1, each))
        for start in range(0, len(self), rows):
            out[start : start + rows] = splitmix(keys[start : start + rows] + steps)
        return out


def _fractions(words: Words) -> Floats:
    """The upper 53 bits of each word, as a number in [0, 1)."""
    found: Floats = (words >> np.uint64(11)).astype(np.float64)
    found *= 2.0**-53
    return found


Function: TypeAlias = Callable[..., Any]
Given: TypeAlias = Array | RaggedColumn
MaskedArray: TypeAlias = np.ma.MaskedArray[Any, Any]
_QUICK = 0.001  # seconds of a call
_MOST_SCHEMAS = 64  # that batches have looked like
_PYTHONS = {"int": "<i8", "float": "<f8", "bool": "|b1", "complex": "<c16"}


class _WithDraw(Protocol):
    """A function of columns that takes random numbers by name."""

    def __call__(self, columns: Any, /, *, draw: Any) -> object: ...


# Columns, by name, to columns; the number of its arguments says which of these a lambda is.
OfColumns: TypeAlias = Callable[[Any], object] | Callable[[Any, Any], object] | _WithDraw


@advised
def map_batches(ref: DataRef, function: OfColumns, threads: bool = False) -> DataRef:
    """The rows, changed by a function of arrays that gets the columns of many rows, whenever they are read.

    Args:
        function: takes a dict of arrays (B, ...) by column, or one array if a row is one value. A ragged
            column is a `yoga.RaggedColumn`, text an array of objects. It returns the columns of the same
            rows: arrays, tensors, lists of text or of arrays, or RaggedColumns. The number of rows differs
            from call to call, so the result for a row must not depend on other rows. If it has a parameter
            named `draw`, it is given random numbers: see `views.changed.Draw`. They follow from (seed, epoch,
            row), so batch size, workers, ranks and resumes do not matter.
        threads: True if a thread of the training loop's process may call it, to read ahead.

    Raises:
        SchemaError: when read: the function returned another number of rows, or columns of other types or
            shapes than for other batches.
        TypeError: it is not known what a row looks like.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(3), "y": np.arange(3)})
        >>> [int(row["x"]) for row in ref.map_batches(lambda c: {**c, "x": c["x"] * 10})]
        [0, 10, 20]
        >>> def noisy(c, draw):
        ...     return {"x": c["x"] + draw.normal(scale=0.1)}
        >>> ref.map_batches(noisy).columns(["x"]).schema.columns[0].dtype
        '<f8'
    """
    return ComputedRef(ref, function, threads)


class ComputedRef(ChangedRows):
    """The rows of another DataRef, many at once through a function: what `ref.map_batches(function)` is.

    Args:
        whole: the other DataRef; it has a schema.
        function: takes the columns of some rows, and `draw` if it has a parameter of that name.
        threads: True if the function may be called by a thread.
        most_rows: that it gets at once; None for as many as are read.

    Raises:
        TypeError: it is not a function; when read: `whole` does not say what its rows look like.
    """

    def __init__(
        self, whole: DataRef, function: Function, threads: bool = False, most_rows: int | None = None
    ) -> None:
        super().__init__(whole, function, threads, most_rows)
        self.function = function
        self.is_thread_safe = threads and whole.is_thread_safe
        self._most_rows = most_rows
        self._draws = _takes_draw(function)
        self._untried: ReadAhead | None = None  # what may read several batches at once, if rows allow it
        self._seen: Schema | None = None  # what the first rows looked like that it was called with

    def __getstate__(self) -> Json:
        check_can_be_sent(self.function)
        return super().__getstate__()

    @property
    def _is_random(self) -> bool:
        """True if the function takes `draw`, or rows of the whole are random."""
        return self._draws or self.whole._is_random

    _most_batches = 1

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Rows:
        own = drawn_seeds(len(rows)) if seeds is None and self._draws else seeds
        block = block_of(self._given(rows, seeds), known_schema(self.whole))
        found, most, started = [], self._most_rows or len(rows), time.perf_counter()
        for start in range(0, len(rows), most):
            some = slice(start, start + most)
            part = block if most >= len(rows) else block.slice(start, min(start + most, len(rows)))
            found.append(self._of_block(rows[some], part, None if own is None else own[some]))
        made = Rows(joined(found))
        if self._untried is not None and len(rows) > 1 and time.perf_counter() - started < _QUICK:
            self._try_several(self._untried, rows, made.block)
        return made

    def _try_several(self, reader: ReadAhead, rows: Ints, made: Block) -> None:
        """Lets the function have several batches at once, if half of these rows are the same alone."""
        self._untried, half = None, len(rows) // 2
        with contextlib.suppress(Exception):  # of a function that takes no other number of rows
            if equal_blocks(self._taken(rows[half:], None).block, made.slice(half, len(rows))):
                reader.most_batches = MOST_BATCHES

    @cached_property
    def _readahead(self) -> ReadAhead | None:
        """The reader of loaders; it reads batch by batch until `_try_several`."""
        found = super()._readahead
        self._untried = None if self._is_random else found
        return found

    def _of_block(self, rows: Ints, block: Block, seeds: Seeds | None) -> Block:
        parts = _parts(block)
        given = {name: as_given(part.node, part.pieces, block.num_rows) for name, part in parts.items()}
        draws = {"draw": Draw(seeds)} if self._draws and seeds is not None else {}
        with timed(Stage.TRANSFORM):
            try:
                # A dict of its own: the function may put other columns into it.
                boxed = [self._called(given[_ITSELF] if _is_single(block) else {**given}, draws)]
            except Exception as error:
                note_batch(error, rows.tolist(), title_of(self))
                raise
        try:
            found = _block_from(boxed, given, parts, block, self._seen or block.schema)
            self._check_alike(found)
        except SchemaError as error:
            raise SchemaError(f"map_batches({name_of(self.function)}) of {_numbered(rows)} {error}") from None
        return found

    def _called(self, columns: object, draws: dict[str, Draw]) -> object:
        """The results of the function; warns, once, if it draws random numbers that nothing here can seed."""
        if self._seen is not None or self._draws:
            return self.function(columns, **draws)
        before = generators()
        returned = self.function(columns, **draws)
        if generators() != before:
            warn_user(
                f"map_batches({name_of(self.function)}) draws from the generators of random, NumPy or torch: "
                "its rows depend on the batch that they are in, and come out otherwise after a resume. Give "
                "it a parameter named draw, whose numbers depend on (seed, epoch, row), or use map"
            )
        return returned

    def _check_alike(self, found: Block) -> None:
        """All batches must look alike, else rows would depend on what is beside them."""
        if self._seen is None:
            self._seen = found.schema
        if found.schema == self._seen:
            return
        for one, other in zip(found.schema.columns, self._seen.columns, strict=False):
            if one != other:
                raise SchemaError(
                    f"returned {one}; for the rows before it was {other}. Every batch must look "
                    "alike; values whose number varies are a list of arrays, or a yoga.RaggedColumn"
                )
        names = [[column.name for column in schema.columns] for schema in (found.schema, self._seen)]
        raise SchemaError(f"returned the columns {names[0]}; for the rows before {names[1]}")

    @property
    def schema(self) -> Schema | None:
        """How a row looks, as the first row shows it; None if there are none."""
        if self._seen is None and len(self):
            # With a seed, since to be looked at moves no generator.
            self._take_seeded(np.zeros(1, np.int64), np.zeros(1, np.uint64))
        return self._seen

    def _pinned(self, whole: str) -> str:
        return hexdigest(f"{whole} map_batches {name_of(self.function)}")

    def _title(self) -> str:
        return f"{super()._title()} through {name_of(self.function)}"

    def _at_hand(self) -> bool:
        return self._seen is not None


def _takes_draw(function: Function) -> bool:
    if not callable(function):
        raise TypeError(f"map_batches takes a function of columns, found {function!r:.80}")
    try:
        return "draw" in inspect.signature(function).parameters
    except ValueError:  # a C function without a signature
        return False


def _numbered(rows: Ints) -> str:
    return f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows, {rows[0]} to {rows[-1]}"


_ITSELF = path_name(())  # the name of a column that is the rows themselves


class _Argument(NamedTuple):
    """A value of a row that functions get: a leaf, or what is in a wrapper."""

    node: Node
    pieces: Sequence[tuple[Column, Data]]


def _parts(block: Block) -> dict[str, _Argument]:
    """By the names that functions know."""
    pieces = zip(block.schema.columns, block.data, strict=True)
    return {name: _Argument(node, [*islice(pieces, node.num_leaves)]) for name, node in _named(block.schema)}


@lru_cache(maxsize=_MOST_SCHEMAS)
def _named(schema: Schema) -> list[tuple[str, Node]]:
    """The names and nodes of the values of a row."""
    return [(path_name(path), node) for path, node in outermost(schema.tree)]


def _is_single(block: Block) -> bool:
    """True if a row is one value, not a container of some."""
    return block.schema.tree.kind in ("leaf", *WRAPPERS)


def _block_from(
    boxed: list[Any], given: Mapping[str, Given], parts: Mapping[str, _Argument], block: Block, like: Schema
) -> Block:
    """The block that a function returned for the columns of a block.

    Args:
        boxed: the one thing that it returned: columns by name, or one column, whose values are the rows. No
            variable refers to it.
        given: what it was given, by name.
        parts: of the block, by name.
        block: the block that was given.
        like: what the rows may look like.

    Raises:
        SchemaError: it is another number of rows, or cannot be kept.
    """
    own, (returned,) = _unshared(boxed), boxed
    known = {} if _is_single(block) else parts
    if not isinstance(returned, Mapping):
        part = None if known else parts.get(_ITSELF)
        kept = _kept(_ITSELF, returned, part, block.num_rows, own)
        return _block(kept.node, [kept], block.num_rows, like)
    made = {}
    for name, value in returned.items():
        if not isinstance(name, str):
            raise SchemaError(f"returned a column named {name!r:.80}; name columns by text")
        part = known.get(name)
        if part is not None and value is given[name] and _is_own(part):
            made[name] = part
        else:
            title = path_name((name,)) if part is None else name
            made[name] = _kept(title, value, part, block.num_rows, own)
    if not made:
        raise SchemaError("returned no columns")
    tree, names = _nested(block.schema, known, made)
    return _block(tree, [made[name] for name in names], block.num_rows, like)


def _block(tree: Node, parts: Sequence[_Argument], num_rows: int, like: Schema) -> Block:
    """The parts, in the order of the tree, as rows; of the schema `like`, if they look so."""
    columns, data = zip(*(piece for part in parts for piece in part.pieces), strict=True)
    # To make a schema takes longer; but that of packs says how they lie, which these rows need not.
    is_like = tree == like.tree and columns == like.columns and not like.packed
    return Block(like if is_like else schema_under(tree, columns), num_rows, data)


def _is_own(part: _Argument) -> bool:
    """True for a column that is given as it lies in the block, so that changes in place are in it, too."""
    column = _column(part)
    if is_text(column) or column.meaning.scale is not None:
        return False
    return part.node.kind == "leaf" and (column.kind != "tensor" or hasattr(np, column.dtype))


def _nested(
    schema: Schema, known: Mapping[str, _Argument], made: Mapping[str, _Argument]
) -> tuple[Node, list[str]]:
    """How the rows nest: known columns as before, new ones at the end of the outermost dict."""
    kept = [name for name in known if name in made]
    if len(kept) == len(known) == len(made) and all(known[name].node == made[name].node for name in kept):
        return schema.tree, kept
    new = [name for name in made if name not in known]
    added = tuple(made[name].node for name in new)
    if not kept:
        return Node("dict", tuple(new), added), new
    tree = _tree(schema, tuple(kept), tuple(made[name].node for name in kept))
    if new and tree.kind != "dict":
        raise SchemaError(
            f"returned the new columns {new}, but the rows are a {tree.kind}, whose values have no "
            f"names; its columns are {list(known)}"
        )
    return replace(tree, keys=(*tree.keys, *new), children=(*tree.children, *added)), [*kept, *new]


@lru_cache(maxsize=_MOST_SCHEMAS)
def _tree(schema: Schema, kept: tuple[str, ...], parts: tuple[Node, ...]) -> Node:
    """The tree of some of the columns, with other parts in their places."""
    # Not as of packs, whose lengths of documents go with any column.
    return _with_parts(Projection.of(Schema(schema.tree, schema.columns), kept).schema.tree, iter(parts))


def _with_parts(node: Node, parts: Iterator[Node]) -> Node:
    """A tree with others in place of its outermost leaves and wrappers."""
    if node.kind == "leaf" or node.kind in WRAPPERS:
        return next(parts)
    return replace(node, children=tuple(_with_parts(child, parts) for child in node.children))


def _kept(
    name: str, value: object, before: _Argument | None, num_rows: int, own: Collection[int]
) -> _Argument:
    """A returned value as a column of this name; of the kind that it had before, where it can be."""
    if isinstance(value, np.ma.MaskedArray):
        return _masked(name, value, before, num_rows)
    is_tensor = isinstance(value, torch.Tensor) or (before is not None and _column(before).kind == "tensor")
    if isinstance(value, np.ndarray) and value.dtype.kind in "US" and value.ndim == 1:
        value = value.tolist()  # text, whose width may differ in the next batch
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        _check_rows(name, len(value), num_rows)
        ragged = _as_ragged(value)
        if ragged is None:
            return _listed(name, value, before)
        is_tensor |= type(value[0]) is torch.Tensor
        value = ragged
    if isinstance(value, RaggedColumn):
        _check_rows(name, len(value), num_rows)
        leaf = _encoded(name, value.values, is_tensor)
        data = Data(leaf.array, value.offsets.astype("<i8", copy=False))
        column = Column(name, leaf.kind, leaf.dtype, None, 1)
        is_list = before is not None and before.node.kind == "varying"
        if is_list and before is not None and _column(before).storage == column.storage:
            return _Argument(before.node, [(_column(before), data)])
        return _Argument(Node("leaf"), [(column, data)])
    if not isinstance(value, (np.ndarray, torch.Tensor)):
        what = "a dict" if isinstance(value, Mapping) else f"{value!r:.80}"
        nested = "; map makes rows that nest" if isinstance(value, Mapping) else ""
        raise SchemaError(
            f"returned {what} as {name!r}; return an array of {num_rows} rows, a tensor, a list or a "
            f"yoga.RaggedColumn{nested}"
        )
    _check_rows(name, len(value) if value.ndim else 1, num_rows if value.ndim else -1)
    leaf = _encoded(name, value, is_tensor, own)
    shape = leaf.array.shape[1:]
    kind, dtype = leaf.kind, leaf.dtype
    if kind == "ndarray" and not shape:
        is_same = before is not None and _PYTHONS.get(_column(before).kind) == leaf.array.dtype.str
        kind = _column(before).kind if is_same and before is not None else "scalar"
    return _Argument(Node("leaf"), [(Column(name, kind, dtype, shape, len(shape)), Data(leaf.array))])


def _column(part: _Argument) -> Column:
    """The column of the values."""
    return part.pieces[0][0]


def _masked(name: str, value: MaskedArray, before: _Argument | None, num_rows: int) -> _Argument:
    """A masked array as a column that may be None."""
    mask: Array = np.ma.getmaskarray(value)
    rows = mask.reshape(len(mask), -1) if mask.ndim else mask.reshape(1, 1)
    if not (rows.all(axis=1) | ~rows.any(axis=1)).all():
        raise SchemaError(f"returned {name!r} with rows that are masked in part; fill them")
    plain = np.where(mask, np.zeros((), value.dtype), value.data)
    (piece,) = _kept(name, plain, before, num_rows, ()).pieces
    valid: Array = np.logical_not(rows.any(axis=1))
    nullable = Node("nullable", (), (Node("leaf"), Node("leaf")))
    return _Argument(nullable, [piece, (Column(f"{name}{VALID}", "bool", "|b1", (), 0), Data(valid))])


def _check_rows(name: str, found: int, num_rows: int) -> None:
    if found != num_rows:
        what = "a single value" if num_rows < 0 else f"{found} rows"
        raise SchemaError(
            f"returned {what} in {name!r}; return as many rows as were given, and in their order"
        )


def _encoded(name: str, value: Array | torch.Tensor, is_tensor: bool, own: Collection[int] = ()) -> Leaf:
    """The values as they are kept; a copy, unless it is one of the view's own."""
    if is_tensor and isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, np.ndarray):
        value = np.asarray(value)  # of a subclass
    try:
        if isinstance(value, torch.Tensor):
            return encode(value.detach().cpu())
        return encode(value[:1])._replace(array=value) if id(value) in own else encode(value)
    except SchemaError as error:
        raise SchemaError(f"returned {name!r}, which cannot be kept: {error}") from None


def _unshared(boxed: list[Any]) -> set[int]:
    """The ids of arrays in what a function returned that need no copy, as nothing else refers to them."""
    if not counts_can_be_trusted() or held(boxed)[0]:
        return set()
    values = boxed[0].values() if type(boxed[0]) is dict else boxed
    found = zip(values, held(values), strict=True)
    return {id(one) for one, is_held in found if not is_held and _is_plain(one)}


def _is_plain(value: object) -> bool:
    """True for an array that has memory of its own, as a block keeps it."""
    return type(value) is np.ndarray and value.base is None and value.flags.carray


def _as_ragged(values: Sequence[Row] | npt.NDArray[np.object_]) -> RaggedColumn | None:
    """A list of arrays of one dimension; None for any other."""
    listed = [value.numpy() if type(value) is torch.Tensor else value for value in values]
    if not listed or not all(isinstance(value, np.ndarray) and value.ndim == 1 for value in listed):
        return None
    if len({value.dtype for value in listed}) > 1:
        return None
    return RaggedColumn(np.concatenate(listed), [len(value) for value in listed])


def _listed(
    name: str, values: Sequence[Row] | npt.NDArray[np.object_], before: _Argument | None
) -> _Argument:
    """Values of any kind, one a row, such as text; of the kind that they had before, if they can be."""
    rows = list(values)
    if before is not None and (before.node.kind in WRAPPERS or is_text(_column(before))):
        names = leaf_names(before.node)
        columns = [replace(piece[0], name=own) for own, piece in zip(names, before.pieces, strict=True)]
        with contextlib.suppress(SchemaError):
            return _parts(block_of(rows, Schema(before.node, tuple(columns))))[_ITSELF]
    try:
        block = block_of(rows)
    except SchemaError as error:
        raise SchemaError(f"returned {name!r}, which cannot be kept: {error}") from None
    if not _is_single(block):
        raise SchemaError(f"returned a list of {type(values[0]).__name__} as {name!r}; return arrays")
    return _parts(block)[_ITSELF]
