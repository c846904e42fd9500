"""One leaf of every row: its name, and the dtype and shape of its values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import SchemaError
from ..process.lazy import cached_property, np
from .leaf import (
    Leaf,
    is_ragged_kind,
    is_too_large,
    is_valid,
    item_bytes,
    letter_of,
    most_dimensions,
    storage_dtype,
)
from .meaning import PLAIN, Meaning, exactly
from .times import MOST_DIGITS
from .types import Json

MAX_NAME = 400  # bytes; a name is part of an LMDB key, which may hold 511


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
        meaning: what its values stand for, beyond their dtype.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...] | None
    ndim: int
    meaning: Meaning = PLAIN

    def __post_init__(self) -> None:
        if not is_valid(self.kind, self.dtype):
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
        most = most_dimensions(self.ndim) + self.is_ragged  # ragged rows never lie side by side
        if is_too_large(self._item_bytes, self.shape or ()) or not 0 <= self.ndim <= most:
            raise ValueError(f"column {self.name!r}: rows of shape {self.shape} are too large")
        if (self.kind == "decimal") != (self.meaning.scale is not None) or not 0 <= (
            self.meaning.scale or 0
        ) <= MOST_DIGITS:
            raise ValueError(f"column {self.name!r}: decimals need a scale of 0 to {MOST_DIGITS}")
        if self.meaning.words is not None and self.letter not in "iu":
            raise ValueError(f"column {self.name!r}: only integers are codes of words")
        if self.shape is None and self.ndim == 0:
            raise ValueError(f"column {self.name!r}: a ragged column needs at least 1 dimension")

    @property
    def is_ragged(self) -> bool:
        """True if rows differ in shape or length."""
        return self.shape is None

    @cached_property
    def storage(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the values on disk."""
        return storage_dtype(self.kind, self.dtype)

    @property
    def letter(self) -> str:
        """NumPy's letter for its values, such as "i"; "f" for all floats, also those kept as their bits."""
        return letter_of(self.kind, self.dtype)

    @property
    def _item_bytes(self) -> int:
        return item_bytes(self.kind, self.dtype)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row of a fixed column; of one element of a ragged one."""
        size = self._item_bytes
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
        words = self.meaning.words
        meant = (
            "" if words is None else f", codes of {', '.join(words[:5])}{', ...' if len(words) > 5 else ''}"
        )
        return f"{self.name}: {self.kind} {self.dtype} [{shape}]{meant}"

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        shape = None if self.shape is None else list(self.shape)
        found = {"name": self.name, "kind": self.kind, "dtype": self.dtype, "shape": shape, "ndim": self.ndim}
        return {**found, "meaning": self.meaning.to_json()} if self.meaning else found

    @staticmethod
    def from_json(data: Json) -> Column:
        """The column that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        return Column(
            name=exactly(str, data["name"]),
            kind=exactly(str, data["kind"]),
            dtype=exactly(str, data["dtype"]),
            shape=None if data["shape"] is None else tuple(exactly(int, extent) for extent in data["shape"]),
            ndim=exactly(int, data["ndim"]),
            meaning=Meaning.from_json(data.get("meaning", {})),
        )


def column_of(name: str, leaf: Leaf, ragged: bool) -> Column:
    """The column that holds leaves like this one."""
    if ragged or is_ragged_kind(leaf.kind):
        # A length does not describe a 0-d row, so such a column keeps shapes.
        return Column(name, leaf.kind, leaf.dtype, None, leaf.array.ndim or 2, leaf.meaning)
    return Column(name, leaf.kind, leaf.dtype, leaf.array.shape, leaf.array.ndim, leaf.meaning)


def stacked(column: Column, count: int | None = None) -> Column:
    """The column of several rows of a column, of any number if `count` is None: tensors, or else arrays.

    Rows of unknown shape, as images in their own size, must have one shape, which shows when they are read.
    """
    is_kept = column.shape is None or column.kind == "tensor"
    kind, dtype = (column.kind, column.dtype) if is_kept else ("ndarray", column.storage.str)
    shape = None if column.shape is None or count is None else (count, *column.shape)
    return replace(column, kind=kind, dtype=dtype, shape=shape, ndim=column.ndim + 1)
