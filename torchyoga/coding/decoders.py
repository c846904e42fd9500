"""How text and sound are decoded, and which decoder a codec asks for."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..errors import SchemaError
from ..rows.block import Data, bounds_of
from ..rows.column import Codec, Column
from ..rows.image_formats import ENDINGS
from ..views.changed import Draw
from .decoder import Bytes, Decoded, Decoder, RowError, Run, check_is_bytes, form_of, ragged
from .images import ArrayDecoder, image
from .libraries import library, used_for
from .sounds import samples_of


def text() -> Decoder:
    """Decodes text and bytes that `zstd` has compressed."""
    return _TextDecoder()


@dataclass(frozen=True)
class _TextDecoder(Decoder):
    @property
    def libraries(self) -> list[str]:
        """The libraries that decode, with their versions."""
        return [used_for("zstd")]

    def column(self, column: Column) -> Column:
        """A column of text or bytes, as it was before."""
        check_is_bytes(column, "text")
        codec = column.meaning.codec
        if codec is None or codec.name != "zstd":
            raise SchemaError(f"column {column.name!r} was not compressed by zstd; leave it as it is")
        kind = "str" if dict(codec.parameters).get("of") == "str" else "bytes"
        return Column(column.name, kind, "|u1", None, 1)

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The text of some rows."""
        assert column.meaning.codec is not None
        decompress = _decompressor(column.meaning.codec)
        found = []
        for value in values:  # some microseconds each: threads would cost more
            try:
                found.append(decompress(value))
            except Exception as error:
                raise RowError(len(found), f"it cannot be decompressed: {error}") from None
        offsets = bounds_of(map(len, found)).astype("<i8", copy=False)
        return Data(np.frombuffer(bytearray().join(found), np.uint8), offsets), set()


_MOST_TEXT = 2**31  # bytes of one value


def _decompressor(codec: Codec) -> Callable[[Bytes], bytes]:
    zstandard = library("zstd")
    dictionary = _dictionary(str(dict(codec.parameters).get("dictionary", "")))
    made = zstandard.ZstdDecompressor(dict_data=dictionary)  # not for several threads at once

    def decompress(value: Bytes) -> bytes:
        size = zstandard.frame_content_size(value)
        if not 0 <= size <= _MOST_TEXT:
            raise ValueError(f"its frame says {size} bytes")
        return bytes(made.decompress(value))

    return decompress


@lru_cache(64)
def _dictionary(encoded: str) -> Any:
    return library("zstd").ZstdCompressionDict(base64.b64decode(encoded)) if encoded else None


def audio(*, dtype: Literal["int16", "float32"] = "int16") -> Decoder:
    """Decodes sound, FLAC, WAV and whatever else libsndfile reads, to samples (N, channels).

    Args:
        dtype: "int16", which are the upper 16 bits of sound of 24; or "float32" from -1 to 1, with all bits.

    Raises:
        ValueError: it is neither.
    """
    if dtype not in ("int16", "float32"):
        raise ValueError(f"dtype must be 'int16' or 'float32', found {dtype!r}")
    return _Audio(dtype)


@dataclass(frozen=True)
class _Audio(Decoder):
    dtype: Literal["int16", "float32"]

    @property
    def libraries(self) -> list[str]:
        """The libraries that decode, with their versions."""
        return [used_for("sound")]

    def column(self, column: Column) -> Column:
        """A column of samples; rows differ in length."""
        check_is_bytes(column, "audio")
        return Column(column.name, "ndarray", "<i2" if self.dtype == "int16" else "<f4", None, 2)

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The samples of some rows."""
        found = run.arrays(lambda value: samples_of(value, self.dtype), values)
        return ragged(found, self.column(column)), set()


def decoder_of(codec: Codec) -> Decoder | None:
    """The decoder of what was encoded; None if there is no such codec here."""
    if form_of(codec):
        return ArrayDecoder(codec)
    if codec.name in ENDINGS or codec.name == "image":
        return image()
    if codec.name == "zstd":
        return text()
    return audio() if codec.name in ("flac", "wav", "audio") else None
