"""Block <-> file. One contract for every format; `torchyoga.testing.check_format` tests any implementation of
it.

A format is a module with `SUFFIX`, a `Writer`, and `read_extents`, which says where in a finished file each
run of bytes lies; `gather.py` then reads all formats alike.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ..columns import Block
from ..errors import CorruptError
from ..schema import Schema

__all__ = ["FORMATS", "Extents", "Format", "Writer", "format_named"]

FORMATS = ("lmdb",)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Extents:
    """Where the blocks of one file lie.

    Attributes:
        starts: (blocks + 1,) first row of each block within the file, and the number of rows.
        offsets: (parts, blocks) byte offset in the file of each part of each column, in schema order.
        nbytes: (parts, blocks) its length in bytes.
        crcs: (parts, blocks) CRC-32 of its bytes.
    """

    starts: Ints
    offsets: Ints
    nbytes: Ints
    crcs: Ints

    def check(self, schema: Schema, file_bytes: int, num_rows: int) -> None:
        """Raises CorruptError unless every part lies in the file and has the size its rows need."""
        rows = np.diff(self.starts)
        sound = (
            len(self.starts) >= 1
            and self.starts[0] == 0
            and self.starts[-1] == num_rows
            # Compared, not subtracted: hostile numbers must not wrap around.
            and bool((self.starts[1:] > self.starts[:-1]).all())
            and bool((self.offsets >= 0).all() and (self.nbytes >= 0).all())
            and bool((self.offsets <= file_bytes).all() and (self.nbytes <= file_bytes - self.offsets).all())
        )
        part = 0
        for column in schema.columns:
            needed = {"values": column.row_bytes, "offsets": 8, "shapes": 8 * column.ndim}
            for name in column.parts:
                if name == "values" and column.is_ragged:
                    sound = sound and bool((self.nbytes[part] % column.row_bytes == 0).all())
                else:
                    size = needed[name]
                    sound = sound and (not size or num_rows < 2**62 // size)
                    sound = sound and bool((self.nbytes[part] == (rows + (name == "offsets")) * size).all())
                part += 1
        if not sound:
            raise CorruptError("the index of the file does not fit its rows and its size")


class Writer(Protocol):
    """Writes blocks into one new file."""

    nbytes: int  # of blocks so far

    def write(self, block: Block) -> list[int]:
        """Appends a block; returns the CRC-32 of each part of each column, in schema order.

        Raises:
            OSError: the disk is full.
        """
        ...

    def close(self) -> dict[str, Any]:
        """Syncs the file and returns plain data by which `read_extents` finds the blocks again."""

    def abort(self) -> None:
        """Closes the file, whatever has been written."""


class Format(Protocol):
    """What a module in this folder provides."""

    SUFFIX: str

    def Writer(self, path: str, schema: Schema) -> Writer:
        """A writer of a new file."""

    def read_extents(self, data: npt.NDArray[np.uint8], index: Mapping[str, Any], schema: Schema) -> Extents:
        """Where the blocks lie in the bytes of a file, not yet checked; CorruptError if it cannot be told."""


def format_named(name: str) -> Format:
    """The module of a format.

    Raises:
        ValueError: there is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"format={name!r} is not known; choose one of {list(FORMATS)}")
    return cast(Format, importlib.import_module(f"{__name__}.{name}"))
