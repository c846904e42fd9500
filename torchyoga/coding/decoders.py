"""How text and sound are decoded, and which decoder a codec asks for.

Files of sound that are cut, or of which something would be lost, are errors.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, SchemaError
from ..rows.block import Data, bounds_of
from ..rows.column import Codec, Column
from ..rows.image_formats import ENDINGS
from ..views.changed import Draw
from .decoder import Bytes, Decoded, Decoder, RowError, Run, check_is_bytes, form_of, ragged
from .images import ArrayDecoder, image
from .libraries import library

T = TypeVar("T")
# The size of a chunk that was begun before its size was known: programs write this or more.
_STREAMED = 0x7FFF0000
_CHUNKS: dict[bytes, tuple[bytes, Literal["little", "big"]]] = {
    b"RIFF": (b"data", "little"),
    b"FORM": (b"SSND", "big"),
}
_MOST_CHUNKS = 1000
_FLAC_RATE = 18  # where 20 bits of the first block of a FLAC file are the samples a second
_MOST_A_BYTE = 2**13  # samples of silence that a byte of FLAC may stand for: 65,535 take 9 or more
_MOST_TEXT = 2**31  # bytes of one value
_TOO_WIDE = {"PCM_32", "FLOAT", "DOUBLE"}


def whole_samples(data: bytes | memoryview) -> tuple[npt.NDArray[Any], int, str]:
    """(N, channels) the samples of a sound file, with all their bits; samples a second; and the kind of FLAC
    that keeps them.

    Raises:
        CorruptError: it is cut or damaged, or FLAC cannot hold its samples.
    """

    def read(file: Any) -> tuple[npt.NDArray[Any], int, str]:
        if file.subtype in _TOO_WIDE:
            raise CorruptError(
                f"its samples are {file.subtype}, of which FLAC would lose a part; keep the file as it is, "
                "without a codec, or pass an array of int16"
            )
        is_wide = file.subtype == "PCM_24"
        samples = file.read(dtype="int32" if is_wide else "int16", always_2d=True)
        return np.asarray(samples), int(file.samplerate), "PCM_24" if is_wide else "PCM_16"

    return _read(data, read)


def rate_of_flac(data: bytes) -> int:
    """The samples a second that a FLAC file says; 0 if it does not."""
    return int.from_bytes(data[_FLAC_RATE : _FLAC_RATE + 3], "big") >> 4


def _read(data: bytes | memoryview, read: Callable[[Any], T]) -> T:
    whole, soundfile = _not_cut(data), library("sound")

    def checked(file: Any) -> T:
        with file:
            _refuse_length(file, len(whole))
            return read(file)

    try:
        if not hasattr(os, "memfd_create"):
            return checked(soundfile.SoundFile(io.BytesIO(whole)))
        # A file, not a file object: of that, each read would take Python's lock.
        descriptor = os.memfd_create("sound")
        try:
            os.write(descriptor, whole)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return checked(soundfile.SoundFile(descriptor, closefd=False))
        finally:
            os.close(descriptor)
    except (soundfile.LibsndfileError, RuntimeError, OSError, ValueError, MemoryError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"it cannot be read as sound: {error}") from None


def _refuse_length(file: Any, nbytes: int) -> None:
    """Raises CorruptError if a header says a length that cannot be: memory is made for it at once."""
    if file.format == "FLAC" and not 0 <= file.frames <= nbytes * _MOST_A_BYTE:
        raise CorruptError(
            f"its header says {file.frames} samples, in {nbytes} bytes; a stream does not note how many it "
            "has: write it anew, as `flac` and ffmpeg do into a file"
        )


def _not_cut(data: bytes | memoryview) -> bytes | memoryview:
    """A sound file; of a WAV file that was streamed to its end, one that says how long it is.

    Raises:
        CorruptError: a WAV or AIFF file has fewer samples than it says; libsndfile gives what is there.
    """
    kind = _CHUNKS.get(bytes(data[:4]))
    if kind is None:
        return data
    name, order = kind
    at = 12
    for _ in range(_MOST_CHUNKS):
        head = bytes(data[at : at + 8])
        if len(head) < 8:
            return data
        size = int.from_bytes(head[4:], order)
        if head[:4] == name:
            there = len(data) - at - 8
            if there < size < _STREAMED:
                raise CorruptError(f"it is cut: its samples take {size} bytes, and there are {there}")
            is_stream = bytes(data[4:8]) in (bytes(4), b"\xff" * 4)
            if size or not there or not is_stream:
                return data
            return bytes(data[: at + 4]) + there.to_bytes(4, order) + bytes(data[at + 8 :])
        at += 8 + size + size % 2
    return data


def text() -> Decoder:
    """Decodes text and bytes that `zstd` has compressed."""
    return _TextDecoder()


@dataclass(frozen=True)
class _TextDecoder(Decoder):
    purposes = ("zstd",)

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
        zstandard = library("zstd")
        decompressor = zstandard.ZstdDecompressor()  # not for several threads at once
        found = []
        for value in values:  # some microseconds each: threads would cost more
            try:
                size = zstandard.frame_content_size(value)
                if not 0 <= size <= _MOST_TEXT:
                    raise ValueError(f"its frame says {size} bytes")
                found.append(decompressor.decompress(value))
            except Exception as error:
                raise RowError(len(found), f"it cannot be decompressed: {error}") from None
        offsets = bounds_of(map(len, found)).astype("<i8", copy=False)
        return Data(np.frombuffer(bytearray().join(found), np.uint8), offsets), set()


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
    purposes = ("sound",)

    def column(self, column: Column) -> Column:
        """A column of samples; rows differ in length."""
        check_is_bytes(column, "audio")
        return Column(column.name, "ndarray", "<i2" if self.dtype == "int16" else "<f4", None, 2)

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The samples of some rows."""

        def read(file: Any) -> npt.NDArray[Any]:
            return np.asarray(file.read(dtype=self.dtype, always_2d=True))

        return ragged(run.arrays(lambda value: _read(value, read), values), self.column(column)), set()


def decoder_of(codec: Codec) -> Decoder | None:
    """The decoder of what was encoded; None if there is no such codec here."""
    if form_of(codec):
        return ArrayDecoder(codec)
    if codec.name in ENDINGS or codec.name == "image":
        return image()
    if codec.name == "zstd":
        return text()
    return audio() if codec.name in ("flac", "wav", "audio") else None
