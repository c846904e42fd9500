"""Values that are images: pixels as Pillow holds them, and lists of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...errors import CorruptError, SchemaError
from ...rows.data import bounds_of
from ...rows.schema import Schema
from .records import ArrayGroup, DecodedValue, ValuePart

_MODES = {"1": 1, "L": 1, "P": 1, "I": 1, "F": 1, "I;16": 1, "LA": 2, "PA": 2, "La": 2}
_MODES |= {"RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "RGBX": 4, "RGBa": 4, "CMYK": 4}
_MODE_DTYPES = {"1": "|b1", "I": "<i4", "F": "<f4", "I;16": "<u2"}
_LISTS = Schema.of([b""], ragged=["value"])


def pixels(part: ValuePart) -> Iterator[ArrayGroup]:
    """The heads of Pillow's images: width, height, the mode and its length."""
    heads = part.head(np.arange(len(part.addresses)), 0, 12, "<u4").astype(np.int64)
    for length in np.unique(heads[:, 2]).tolist():
        own = np.flatnonzero(heads[:, 2] == length)
        if not 0 < length < 16:
            raise CorruptError(f"an image whose mode has {length} letters; write the file again")
        modes = [bytes(letters) for letters in part.head(own, 12, length, "u1")]
        for mode in sorted(set(modes)):
            text = mode.decode("latin-1")
            if text not in _MODES or text == "1":
                raise SchemaError(f"an image of mode {text!r}; write images as png, or leave the column out")
            places = own[[mode == other for other in modes]]
            shapes = np.stack([heads[places, 1], heads[places, 0]], 1)
            if _MODES[text] > 1:
                shapes = np.append(shapes, np.full((len(places), 1), _MODES[text]), 1)
            yield ArrayGroup(places, _MODE_DTYPES.get(text, "|u1"), 12 + length, shapes)


def images(before: int) -> DecodedValue:
    """Lists of files of images, after so many bytes that mean nothing."""
    return DecodedValue(_LISTS, _Images(before))


@dataclass(frozen=True)
class _Images:
    """Files of images: how many, their sizes, and these.

    Attributes:
        before: bytes that mean nothing.
    """

    before: int

    def __call__(self, data: bytes) -> list[bytes]:
        start = self.before + 4
        count = int.from_bytes(data[self.before : start], "little")
        if start + 4 * count > len(data):
            raise ValueError(f"a list that says {count} images has {len(data)} bytes")
        ends = bounds_of(np.frombuffer(data, "<u4", count, start)) + start + 4 * count
        if int(ends[-1]) != len(data):
            raise ValueError(f"a list of images that take {ends[-1]} bytes has {len(data)}")
        return [data[a:b] for a, b in pairwise(ends.tolist())]
