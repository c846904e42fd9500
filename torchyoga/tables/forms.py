"""Arrow arrays -> columns: one form for each way in which values are kept.

Inside lists, a form is given the bounds of rows among the items.
So lists in lists, and structs in them, need no code of their own: what is fixed in a row becomes ragged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import NotFoundError, SchemaError
from ..rows.block import Data, bounds_of
from ..rows.column import PLAIN, Column, Meaning
from ..rows.node import Node
from ..rows.types import Array, Ints
from .buffers import lists_of, runs_of, tensors_of

Bools = npt.NDArray[np.bool_]
Read: TypeAlias = "Callable[[pa.Array], Array]"
_LEAF = Node("leaf")


class Form(ABC):
    """How the values of one Arrow type are kept."""

    @property
    def node(self) -> Node:
        """How a value nests: a leaf, unless it holds others."""
        return _LEAF

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The columns of its leaves, in order; they have no names yet."""

    @abstractmethod
    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The data of each of the columns.

        Args:
            array: (M,) values.
            present: (M,) False where a value is not there, whatever the array says; it is 0 or empty then.
                None if all are.
            bounds: (N + 1,) for each row, the first of its values; None if each value is a row.
        """


def _column(kind: str, dtype: str, shape: tuple[int, ...], is_deep: bool, meaning: Meaning = PLAIN) -> Column:
    """A column without a name; ragged along a first dimension of its own, if it is in a list."""
    if is_deep:
        return Column("", kind, dtype, None, 1 + len(shape), meaning)
    return Column("", kind, dtype, shape, len(shape), meaning)


@dataclass(frozen=True)
class Held(Form):
    """Values of another form that may be null, or may not.

    Args:
        child: the other form.
        place: the name of the place, for messages.
        prepare: what the array goes through first.
        is_nullable: True if values may be null.
        is_deep: True inside a list.
        is_free: True if `prepare` leaves the values where they lie.
    """

    child: Form
    place: str
    prepare: Callable[[pa.Array], pa.Array]
    is_nullable: bool
    is_deep: bool
    is_free: bool

    @cached_property
    def node(self) -> Node:
        """The child's node, or one that may be None."""
        return Node("nullable", (), (self.child.node, _LEAF)) if self.is_nullable else self.child.node

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The child's columns, and the one that says where there is a value."""
        mask = (_column("bool", "|b1", (), self.is_deep),) if self.is_nullable else ()
        return (*self.child.columns, *mask)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The data of the child, and where there is a value."""
        array = self.prepare(array)
        if array.null_count:
            valid = np.asarray(array.is_valid())
            valid = valid if present is None else valid & present
            missing = len(valid) - int(valid.sum()) if present is None else int((present & ~valid).sum())
            if missing and not self.is_nullable:
                raise SchemaError(
                    f"column {self.place!r} has {missing} nulls among {len(array)} values, and none were "
                    f"expected; name it in nulls=, as in nulls=[{self.place!r}]"
                )
            present = valid
        yield from self.child.data(array, None if present is None or present.all() else present, bounds)
        if self.is_nullable:
            yield Data(np.ones(len(array), np.bool_) if present is None else present, bounds)


@dataclass(frozen=True)
class Numbers(Form):
    """Values of a fixed size: numbers, times, and arrays of them.

    Args:
        kind, dtype, meaning: of the column.
        shape: of one value.
        read: makes an array (M, ...) of an Arrow array.
        is_deep: True inside a list.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    meaning: Meaning
    read: Read
    is_deep: bool

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One."""
        return (_column(self.kind, self.dtype, self.shape, self.is_deep, self.meaning),)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The values, over the array's memory if they lie there as they are kept."""
        values = self.read(array).reshape(len(array), *self.shape)
        if present is not None:
            values = values.copy()
            values[~present] = np.zeros((), values.dtype)
        if bounds is None or not self.shape:
            yield Data(values, bounds)
            return
        extents = np.empty((len(bounds) - 1, 1 + len(self.shape)), "<i8")
        extents[:, 0], extents[:, 1:] = np.diff(bounds), self.shape
        yield Data(values.reshape(-1), bounds * math.prod(self.shape), extents)


@dataclass(frozen=True)
class Tensors(Form):
    """Arrays of several dimensions whose first one varies, as lists of lists of one length.

    Args:
        dtype: of their values.
        shape: of what lies along the first dimension.
        read: makes an array (values,) of the innermost Arrow array.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Read

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One."""
        return (_column("ndarray", self.dtype, self.shape, True),)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The values of each row."""
        assert bounds is None, "inside lists they are lists"
        offsets, inner = _some_lists(array, present)
        values = tensors_of(inner, self.shape, self.read)
        extents = np.empty((len(array), 1 + len(self.shape)), "<i8")
        extents[:, 0], extents[:, 1:] = np.diff(offsets), self.shape
        yield Data(values, offsets * math.prod(self.shape), extents)


@dataclass(frozen=True)
class Texts(Form):
    """Text or bytes.

    Args:
        kind: `str` or `bytes`.
        is_deep: True inside a list.
        meaning: says how the bytes are encoded, if they are.
    """

    kind: str
    is_deep: bool
    meaning: Meaning = PLAIN

    @property
    def node(self) -> Node:
        """A leaf; one with the lengths of the texts besides, inside a list."""
        return Node("texts", (), (_LEAF, _LEAF)) if self.is_deep else _LEAF

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One for the texts, and one for the lengths."""
        text = Column("", self.kind, "|u1", None, 1, self.meaning)
        return (text, _column("int", "<i8", (), True)) if self.is_deep else (text,)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The texts, over the array's memory, and their lengths."""
        offsets, values = runs_of(array)
        if present is not None:
            lengths = np.diff(offsets)
            if lengths[~present].any():
                values = values[np.repeat(present, lengths)]
                offsets = bounds_of(lengths * present)
        if bounds is None:
            yield Data(values, offsets)
        else:
            yield Data(values, offsets[bounds])
            yield Data(np.diff(offsets), bounds)


@dataclass(frozen=True)
class Encoded(Form):
    """Images, recordings and other files: their bytes, read from the file where only its path is kept.

    Args:
        texts: the form of the bytes.
        place: the name of the place, for messages.
    """

    texts: Texts
    place: str

    @property
    def node(self) -> Node:
        """The node of the bytes."""
        return self.texts.node

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the bytes."""
        return self.texts.columns

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The bytes; files are read."""
        held = array.field("bytes")
        if held.null_count:
            pairs = zip(held.to_pylist(), array.field("path").to_pylist(), strict=True)
            there = [True] * len(held) if present is None else present.tolist()
            read = [
                self._bytes(*pair) if is_there else b"" for pair, is_there in zip(pairs, there, strict=True)
            ]
            held = pa.array(read, pa.large_binary())
        return self.texts.data(held, present, bounds)

    def _bytes(self, held: bytes | None, path: str | None) -> bytes:
        if held is not None:
            return held
        if path is None:
            raise SchemaError(f"column {self.place!r} has neither bytes nor a path for a value; leave it out")
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise NotFoundError(f"column {self.place!r}: the file {path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Empty(Form):
    """Values that are all null."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """One, of None."""
        return (Column("", "none", "|u1", (0,), 1),)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """An empty array for each row."""
        yield Data(np.empty((len(array), 0), np.uint8))


@dataclass(frozen=True)
class Lists(Form):
    """Lists of varying length.

    Args:
        item: the form of what is in them.
        is_array: True if each is a NumPy array, False if it is a list.
        is_deep: True inside another list.
    """

    item: Form
    is_array: bool
    is_deep: bool

    @cached_property
    def node(self) -> Node:
        """A leaf, or a list; one with its lengths besides, inside another list."""
        if self.is_array:
            return _LEAF
        return Node("varying", (), (self.item.node, _LEAF) if self.is_deep else (self.item.node,))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the items, and one for the lengths."""
        lengths = (_column("int", "<i8", (), True),) if self.is_deep else ()
        return (*self.item.columns, *lengths)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The data of the items, and the lengths."""
        offsets, items = _some_lists(array, present)
        yield from self.item.data(items, None, offsets if bounds is None else offsets[bounds])
        if self.is_deep:
            yield Data(np.diff(offsets), bounds)


def _some_lists(array: pa.Array, present: Bools | None) -> tuple[Ints, pa.Array]:
    """The bounds of lists among their items, and the items; lists that are not present are empty."""
    offsets, items = lists_of(array)
    if present is not None:
        lengths = np.diff(offsets)
        if lengths[~present].any():
            items = items.filter(pa.array(np.repeat(present, lengths)))
            offsets = bounds_of(lengths * present)
    return offsets, items


@dataclass(frozen=True)
class Structs(Form):
    """Values with named fields.

    Args:
        keys: the names.
        fields: the form of each.
    """

    keys: tuple[str, ...]
    fields: tuple[Form, ...]

    @cached_property
    def node(self) -> Node:
        """A dict."""
        return Node("dict", self.keys, tuple(field.node for field in self.fields))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all fields."""
        return tuple(column for field in self.fields for column in field.columns)

    def data(self, array: pa.Array, present: Bools | None, bounds: Ints | None) -> Iterator[Data]:
        """The data of the fields."""
        return self.of_fields([array.field(i) for i in range(len(self.fields))], present, bounds)

    def of_fields(
        self, arrays: Sequence[pa.Array], present: Bools | None = None, bounds: Ints | None = None
    ) -> Iterator[Data]:
        """The data of the fields, given the array of each."""
        for field, array in zip(self.fields, arrays, strict=True):
            yield from field.data(array, present, bounds)
