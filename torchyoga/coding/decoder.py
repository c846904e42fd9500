"""The contract of all decoders of columns, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, SchemaError
from ..rows.block import Data, bounds_of
from ..rows.column import Codec, Column
from ..views.changed import Draw
from .libraries import used_for

Bytes: TypeAlias = memoryview
Decoded: TypeAlias = "tuple[Data, set[int]]"


class Run(NamedTuple):
    """The things that a decoder works with.

    Attributes:
        each: calls a function with 0..count - 1, on threads.
        empty: makes memory for so many bytes.
        lost: is called with the place of a value, and what of it is left out though nobody asked for that;
            None once there was a warning.
    """

    each: Callable[[Callable[[int], None], int], None]
    empty: Callable[[int], npt.NDArray[np.uint8]]
    lost: Callable[[int, str], None] | None = None

    def arrays(
        self, function: Callable[[Bytes], npt.NDArray[Any]], values: Sequence[Bytes]
    ) -> list[npt.NDArray[Any]]:
        """The results of a function of each value, on threads."""
        found: list[npt.NDArray[Any]] = [np.empty(0)] * len(values)

        def one(i: int) -> None:
            found[i] = function(values[i])

        self.each(one, len(values))
        return found


class Decoder(ABC):
    """Decodes the values of a column when they are read."""

    purposes: tuple[str, ...] = ()  # of the libraries that decode
    is_random: bool = False
    hint: str = ""  # what to do about a value that cannot be decoded, for messages

    def learned(self, column: Column, values: Iterable[Bytes]) -> Decoder:
        """This decoder, after it has seen what a column says, and its first values if it wants to."""
        return self

    @abstractmethod
    def column(self, column: Column) -> Column:
        """The column that a column becomes; SchemaError if it cannot be decoded so."""

    @abstractmethod
    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The values of some rows, decoded, and the places of those that could not be, and were filled.

        `run` has threads and memory.
        """

    @property
    def libraries(self) -> list[str]:
        """The libraries that decode, with their versions."""
        return [used_for(purpose) for purpose in self.purposes]


_FORM = {"axes", "channels", "dtype", "kind"}


def form_of(codec: Codec | None) -> tuple[tuple[str, str | int | float | bool], ...]:
    """The note of a codec about arrays, so that they come back as they were; () if it is of files."""
    if codec is None or codec.name not in ("jpeg", "png"):
        return ()
    found = tuple((name, value) for name, value in codec.parameters if name in _FORM)
    return found if len(found) == len(_FORM) else ()


class RowError(CorruptError):
    """A value that cannot be decoded; `place` is its place in the batch."""

    def __init__(self, place: int, message: str) -> None:
        super().__init__(message)
        self.place = place


def ragged(found: Sequence[npt.NDArray[Any]], column: Column) -> Data:
    """Arrays of different shapes as the data of a column."""
    values = [one.reshape(-1) for one in found]
    joined = np.concatenate(values) if values else np.empty(0, column.storage)
    offsets = bounds_of(map(len, values)).astype("<i8", copy=False)
    return Data(joined, offsets, np.array([one.shape for one in found], "<i8").reshape(-1, column.ndim))


def noted_size(column: Column) -> tuple[int, int] | None:
    """The height and the width of all images of an encoded column, if its codec notes them."""
    noted = dict(column.meaning.codec.parameters) if column.meaning.codec is not None else {}
    return (int(noted["height"]), int(noted["width"])) if {"height", "width"} <= noted.keys() else None


def of_one_shape(data: Data, column: Column) -> Data:
    """Ragged arrays as the data of a column that may say their shape; RowError if one has another shape."""
    if column.shape is None:
        return data
    shapes = data.part("shapes")
    others = np.flatnonzero((shapes != column.shape).any(axis=1))
    if len(others):
        found = tuple(shapes[others[0]].tolist())
        raise RowError(
            int(others[0]),
            f"its shape is {found}, and the column's codec says {column.shape}; yoga.codecs.image(size=...) "
            "makes images alike",
        )
    return Data(data.values.reshape(len(shapes), *column.shape))


def check_is_bytes(column: Column, what: str) -> None:
    """Raises SchemaError for a column of something else; `what` is the decoder's name."""
    if column.kind != "bytes":
        raise SchemaError(f"{what} decodes bytes, but column {column.name!r} is {column}")
