"""How the values of a column are decoded: what `yoga.image(...)`, `yoga.text()` and `yoga.audio()` are."""

from __future__ import annotations

import base64
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, SchemaError
from ..order.full import as_int
from ..rows.column import Column
from ..rows.data import Data
from ..rows.meaning import Codec
from ..views.draw import Draw
from .boxes import middle, random_parts
from .libraries import library, used_for
from .pictures import MOST_PIXELS, Header, Pixels, decode, decode_exactly, header, resized, turned

__all__ = ["Decoder", "audio", "decoder_of", "image", "text"]

Ints = npt.NDArray[np.int64]
Bytes: TypeAlias = memoryview
Crop = Literal["center", "random"]
Layout = Literal["chw", "hwc"]
Mode = Literal["rgb", "gray"]
Decoded: TypeAlias = "tuple[Data, set[int]]"
_MARGIN = 1.5  # a JPEG is scaled down to so many times the size that is wanted: see `image`


class Run(NamedTuple):
    """What a decoder works with.

    Attributes:
        each: calls a function with 0..count - 1, on threads.
        empty: makes memory for so many bytes.
    """

    each: Callable[[Callable[[int], None], int], None]
    empty: Callable[[int], npt.NDArray[np.uint8]]


class Decoder(ABC):
    """Decodes the values of a column when they are read."""

    is_random: bool = False

    @abstractmethod
    def column(self, column: Column) -> Column:
        """What a column becomes; SchemaError if it cannot be decoded so."""

    @abstractmethod
    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The values of some rows, decoded, and the places of those that could not be, and were filled.

        `run` has threads and memory.
        """

    @property
    @abstractmethod
    def libraries(self) -> list[str]:
        """What decodes, and its version."""


def image(
    size: int | tuple[int, int] | None = None,
    *,
    crop: Crop | None = None,
    flip: bool = False,
    layout: Layout = "hwc",
    mode: Mode = "rgb",
    exact: bool = True,
    orient: bool = True,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    on_error: Literal["raise"] | int = "raise",
    max_pixels: int = MOST_PIXELS,
) -> Decoder:
    """Decodes images: pass it to `DataRef.decoded`.

    JPEG, PNG, WebP, TIFF and whatever else Pillow reads, of 8 bits; of 16 bits the upper eight are taken, and
    of animations the first image. In its own size an image comes out as Pillow decodes it, bit for bit.

    Args:
        size: height and width, or both at once; None for each image's own, so that rows differ in shape.
        crop: "center" keeps the largest middle part that has the shape of `size`, "random" another part each
            epoch, as torchvision's RandomResizedCrop does. None resizes the whole image.
        flip: mirror every other image, at random.
        layout: "hwc" is (H, W, C), "chw" is (C, H, W).
        mode: "rgb" is 3 channels, "gray" is 1.
        exact: False decodes a JPEG that is much larger than `size` in half, a quarter or an eighth of its
            size, which is up to four times as fast, and differs by a level or two on average.
        orient: turn images as cameras noted it (EXIF).
        scale: least and largest share of an image's area, for `crop="random"`.
        ratio: least and largest width for a height of 1, for `crop="random"`.
        on_error: a value for all pixels of an image that cannot be decoded, 0 to 255; they are counted, with
            a warning. By default that is a CorruptError.
        max_pixels: an image whose header says more is an error before it is decoded.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> images = [{"image": np.full((40, 60, 3), n, np.uint8)} for n in range(3)]
        >>> ref = storage.submit(images, "images", "1", codecs={"image": yoga.png()})
        >>> ref.decoded({"image": yoga.image(size=32, crop="random", layout="chw")})[0]["image"].shape
        (3, 32, 32)
    """
    for name, value, allowed in (
        ("crop", crop, (None, *get_args(Crop))),
        ("layout", layout, get_args(Layout)),
        ("mode", mode, get_args(Mode)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, found {value!r}")
    if size is None and crop is not None:
        raise ValueError(f"crop={crop!r} needs a size")
    if size is None:
        shape = None
    else:
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        shape = as_int("size", height, 1, 2**15), as_int("size", width, 1, 2**15)
    for name, (low, high), most in (("scale", scale, 1.0), ("ratio", ratio, 1e3)):
        if not 0 < low <= high <= most:
            raise ValueError(f"{name} must be two rising numbers above 0, up to {most}, found {(low, high)}")
    if on_error != "raise":
        if shape is None:
            raise ValueError("on_error needs a size: a value for all pixels of an image of unknown shape")
        on_error = as_int("on_error", on_error, 0, 255)
    return _Image(
        shape, crop, bool(flip), layout, mode, bool(exact), bool(orient), scale, ratio, on_error, max_pixels
    )


@dataclass(frozen=True)
class _Image(Decoder):
    size: tuple[int, int] | None
    crop: Crop | None
    flip: bool
    layout: Layout
    mode: Mode
    exact: bool
    orient: bool
    scale: tuple[float, float]
    ratio: tuple[float, float]
    on_error: Literal["raise"] | int
    max_pixels: int

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """True if it draws random numbers."""
        return self.crop == "random" or self.flip

    @property
    def libraries(self) -> list[str]:
        """What decodes, and its version."""
        resizing = [] if self.size is None else [used_for("resizing")]
        return list(dict.fromkeys([used_for("jpeg"), used_for("png"), used_for("other images"), *resizing]))

    def column(self, column: Column) -> Column:
        """A column of pixels."""
        _check_is_bytes(column, "image")
        channels = 1 if self.mode == "gray" else 3
        if self.size is None:
            return Column(column.name, "ndarray", "|u1", None, 3)
        shape = (channels, *self.size) if self.layout == "chw" else (*self.size, channels)
        return Column(column.name, "ndarray", "|u1", shape, 3)

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The pixels of some images."""
        if self.size is None:
            return self._in_their_sizes(values, column, draw, run)
        made = self.column(column)
        assert made.shape is not None
        out = run.empty(len(values) * made.row_bytes).reshape(len(values), *made.shape)
        headers, failed = self._headers(values, run)
        boxes = self._boxes(headers, draw)
        flips = self._flips(len(values), draw)

        def one(i: int) -> None:
            found = headers[i]
            if found is None:
                return
            into = out[i] if self.layout == "hwc" and not flips[i] else None
            pixels = self._part(values[i], found, boxes[i], into)
            if pixels is into:
                return
            pixels = pixels[:, ::-1] if flips[i] else pixels
            out[i] = pixels.transpose(2, 0, 1) if self.layout == "chw" else pixels

        run.each(self._guarded(one, failed), len(values))
        for i in failed:
            out[i] = self.on_error
        return Data(out), failed

    def _guarded(self, one: Callable[[int], None], failed: set[int]) -> Callable[[int], None]:
        def guarded(i: int) -> None:
            try:
                one(i)
            except CorruptError:
                if self.on_error == "raise":
                    raise
                failed.add(i)

        return guarded

    def _headers(self, values: Sequence[Bytes], run: Run) -> tuple[list[Header | None], set[int]]:
        found: list[Header | None] = [None] * len(values)
        failed: set[int] = set()

        def look(i: int) -> None:
            found[i] = header(values[i], self.orient, self.max_pixels)

        run.each(self._guarded(look, failed), len(values))
        return found, failed

    def _boxes(self, headers: Sequence[Header | None], draw: Draw | None) -> Ints:
        """(B, 4) the part of each image that is kept, once it is turned."""
        shapes = [(1, 1) if found is None else found.shape for found in headers]
        sizes = np.array(shapes, np.int64).reshape(-1, 2)
        assert self.size is not None
        if self.crop == "random":
            assert draw is not None
            return random_parts(sizes, draw, self.scale, self.ratio)
        if self.crop == "center":
            return middle(sizes, *self.size)
        return np.concatenate([np.zeros_like(sizes), sizes], axis=1)

    def _flips(self, count: int, draw: Draw | None) -> npt.NDArray[np.bool_]:
        if not self.flip or draw is None:
            return np.zeros(count, np.bool_)
        found: npt.NDArray[np.bool_] = draw.random() < 0.5
        return found

    def _part(self, data: Bytes, found: Header, box: Ints, into: Pixels | None) -> Pixels:
        """(H, W, C) the part of an image, in the size that is wanted; `into`, if it was decoded there."""
        assert self.size is not None
        top, left, height, width = box.tolist()
        least = None
        if not self.exact:
            # As many times smaller as leaves the part `_MARGIN` times the size that is wanted.
            share = _MARGIN * max(self.size[0] / height, self.size[1] / width)
            least = tuple(max(1, min(side, round(side * share))) for side in (found.height, found.width))
        is_whole = (top, left, height, width) == (0, 0, *self.size) == (0, 0, *found.shape)
        into = into if is_whole and found.turn == 1 else None
        pixels = turned(decode(data, found, self.mode == "gray", least, into), found.turn)
        if is_whole and pixels.shape[:2] == self.size:
            return pixels
        tall, wide = pixels.shape[:2]
        if (tall, wide) != found.shape:  # it was scaled down
            down, across = tall / found.shape[0], wide / found.shape[1]
            top, left = int(top * down), int(left * across)
            height, width = max(1, round(height * down)), max(1, round(width * across))
        return resized(pixels[top : top + height, left : left + width], *self.size)

    def _in_their_sizes(
        self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run
    ) -> Decoded:
        found: list[npt.NDArray[np.uint8]] = [np.empty((0, 0, 0), np.uint8)] * len(values)
        flips = self._flips(len(values), draw)

        def one(i: int) -> None:
            about = header(values[i], self.orient, self.max_pixels)
            pixels = turned(decode(values[i], about, self.mode == "gray"), about.turn)
            pixels = pixels[:, ::-1] if flips[i] else pixels
            pixels = pixels.transpose(2, 0, 1) if self.layout == "chw" else pixels
            found[i] = np.ascontiguousarray(pixels)

        run.each(one, len(values))
        return _ragged(found, self.column(column)), set()


def text() -> Decoder:
    """Decodes text and bytes that `zstd` has compressed."""
    return _Text()


@dataclass(frozen=True)
class _Text(Decoder):
    @property
    def libraries(self) -> list[str]:
        """What decodes, and its version."""
        return [used_for("zstd")]

    def column(self, column: Column) -> Column:
        """A column of text or bytes, as it was before."""
        _check_is_bytes(column, "text")
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
        offsets = np.cumsum([0, *map(len, found)]).astype("<i8")
        return Data(np.frombuffer(bytearray().join(found), np.uint8), offsets), set()


class RowError(CorruptError):
    """A value that cannot be decoded; `place` is its place in the batch."""

    def __init__(self, place: int, message: str) -> None:
        super().__init__(message)
        self.place = place


_MOST_TEXT = 2**31  # bytes of one value


def _decompressor(codec: Codec) -> Callable[[Bytes], bytes]:
    zstandard = library("zstd")
    encoded = str(dict(codec.parameters).get("dictionary", ""))
    found = _DICTIONARIES.get(encoded)
    if found is None:
        given = zstandard.ZstdCompressionDict(base64.b64decode(encoded)) if encoded else None
        if len(_DICTIONARIES) > 64:
            _DICTIONARIES.clear()
        found = _DICTIONARIES[encoded] = given
    made = zstandard.ZstdDecompressor(dict_data=found)  # not for several threads at once

    def decompress(value: Bytes) -> bytes:
        size = zstandard.frame_content_size(value)
        if not 0 <= size <= _MOST_TEXT:
            raise ValueError(f"its frame says {size} bytes")
        return bytes(made.decompress(value))

    return decompress


_DICTIONARIES: dict[str, Any] = {}


def audio(*, dtype: Literal["int16", "float32"] = "int16") -> Decoder:
    """Decodes sound, FLAC, WAV and whatever else libsndfile reads, to samples (N, channels).

    Args:
        dtype: "int16", or "float32" from -1 to 1.

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
        """What decodes, and its version."""
        return [used_for("sound")]

    def column(self, column: Column) -> Column:
        """A column of samples; rows differ in length."""
        _check_is_bytes(column, "audio")
        return Column(column.name, "ndarray", "<i2" if self.dtype == "int16" else "<f4", None, 2)

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The samples of some rows."""
        found: list[npt.NDArray[Any]] = [np.empty((0, 0), self.column(column).storage)] * len(values)

        def one(i: int) -> None:
            found[i] = _samples(values[i], self.dtype)

        run.each(one, len(values))
        return _ragged(found, self.column(column)), set()


def _samples(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    soundfile = library("sound")
    try:
        if not hasattr(os, "memfd_create"):
            return np.asarray(soundfile.read(io.BytesIO(data), dtype=dtype, always_2d=True)[0])
        # A file, not a file object: of that, each read would take Python's lock.
        descriptor = os.memfd_create("sound")
        try:
            os.write(descriptor, data)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return np.asarray(soundfile.read(descriptor, dtype=dtype, always_2d=True, closefd=False)[0])
        finally:
            os.close(descriptor)
    except (soundfile.LibsndfileError, RuntimeError, OSError) as error:
        raise CorruptError(f"it cannot be read as sound: {error}") from None


@dataclass(frozen=True)
class _Array(Decoder):
    """Gives back arrays and tensors as they were: what `codec` notes of them."""

    codec: Codec

    @property
    def libraries(self) -> list[str]:
        """What decodes, and its version."""
        return [used_for("jpeg" if self.codec.name == "jpeg" else "other images")]

    def column(self, column: Column) -> Column:
        """A column of arrays or tensors; rows may differ in shape."""
        _check_is_bytes(column, "decoded")
        form = dict(self.codec.parameters)
        kind, dtype, ndim = str(form["kind"]), str(form["dtype"]), len(str(form["axes"]))
        return Column(column.name, kind, dtype if kind == "tensor" else np.dtype(dtype).str, None, ndim)

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The arrays of some rows."""
        form, made = dict(self.codec.parameters), self.column(column)
        axes, channels, dtype = str(form["axes"]), int(form["channels"]), str(form["dtype"])
        found: list[npt.NDArray[Any]] = [np.empty(0, made.storage)] * len(values)

        def one(i: int) -> None:
            about = header(values[i], turn=False)
            if self.codec.name == "jpeg":
                pixels: npt.NDArray[Any] = decode(values[i], about, channels == 1)
            else:
                pixels = decode_exactly(values[i], channels, dtype)
            if axes != "hwc":
                pixels = pixels[:, :, 0] if axes == "hw" else pixels.transpose(2, 0, 1)
            found[i] = np.ascontiguousarray(pixels).astype(made.storage, copy=False)

        run.each(one, len(values))
        return _ragged(found, made), set()


_FORM = {"axes", "channels", "dtype", "kind"}


def decoder_of(codec: Codec) -> Decoder | None:
    """What gives back what was encoded; None if there is no such codec here."""
    if codec.name in ("jpeg", "png") and {name for name, _ in codec.parameters} >= _FORM:
        return _Array(codec)
    if codec.name in ("jpeg", "png", "webp", "tiff", "gif", "bmp", "image"):
        return image()
    if codec.name == "zstd":
        return text()
    return audio() if codec.name in ("flac", "wav", "audio") else None


def _ragged(found: Sequence[npt.NDArray[Any]], column: Column) -> Data:
    """Arrays of different shapes as the data of a column."""
    values = [one.reshape(-1) for one in found]
    joined = np.concatenate(values) if values else np.empty(0, column.storage)
    offsets = np.cumsum([0, *map(len, values)]).astype("<i8")
    return Data(joined, offsets, np.array([one.shape for one in found], "<i8").reshape(-1, column.ndim))


def _check_is_bytes(column: Column, what: str) -> None:
    if column.kind != "bytes":
        raise SchemaError(f"{what} decodes bytes, but column {column.name!r} is {column}")
