"""How images are decoded: what `yoga.codecs.image(...)` is, and arrays that were encoded as images.

Random parts are drawn as torchvision's RandomResizedCrop draws them.
Ten tries of an area and an aspect ratio, and the middle if none fits (Inception: Szegedy et al., 2015). The
numbers are counted, so a row gets the same part in any batch, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from ..process.numbers import as_int
from ..rows.block import Data, bounds_of
from ..rows.column import Codec, Column
from ..rows.types import Ints
from ..views.changed import Draw
from . import pictures
from .decoder import Bytes, Decoded, Decoder, Run, check_is_bytes, form_of, noted_size, of_one_shape, ragged
from .pictures import Header, Pixels

Crop = Literal["center", "random"]
Layout = Literal["chw", "hwc"]
Mode = Literal["rgb", "gray", "rgba", "unchanged"]
_CHANNELS = {"rgb": 3, "gray": 1, "rgba": 4}  # of those modes that say so
_MARGIN = 1.5  # a JPEG is scaled down to so many times the size that is wanted: see `image`
_TRIES = 10
_MOST_AT_ONCE = 2**30  # bytes of images in their own sizes, as their headers say, before they are decoded


def image(
    size: int | tuple[int, int] | None = None,
    *,
    crop: Crop | None = None,
    flip: bool = False,
    layout: Layout = "hwc",
    mode: Mode | None = None,
    exact: bool = True,
    orient: bool = True,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    on_error: Literal["raise"] | int = "raise",
    max_pixels: int = pictures.MOST_PIXELS,
) -> Decoder:
    """Decodes images: pass it to `DataRef.decoded`.

    It reads JPEG, PNG, WebP, TIFF, GIF, BMP, PPM, PGM, AVIF and JPEG 2000; an animation gives its first
    image. Floats and shades of 32 bits are an error. In its own size an image of 8 bits comes out as Pillow
    decodes it, bit for bit.

    Args:
        size: (height, width), or an int for both; None keeps each image's own size, so rows differ in shape.
        crop: "center" keeps the largest middle part that has the shape of `size`, "random" another part each
            epoch, as torchvision's RandomResizedCrop does. None resizes the whole image.
        flip: True mirrors each image with a probability of 1/2.
        layout: "hwc" is (H, W, C), "chw" is (C, H, W).
        mode: "rgb" is 3 channels of 8 bits, "gray" 1, "rgba" 4; they take the upper eight of 16 bits.
            "unchanged" keeps the channels of the files, and 16 bits as uint16: as the column notes them, such
            as one of arrays that `png` encoded, or else as the first image has them; an image of another kind
            is an error. By default "unchanged" if the column notes 16 bits or transparency, else "rgb", with
            a warning at the first image that loses one of these.
        exact: False decodes a JPEG that is much larger than `size` in half, a quarter or an eighth of its
            size, which is up to four times as fast, and differs by a level or two on average.
        orient: True turns images as their EXIF orientation says; TIFF is always turned so.
        scale: least and largest share of an image's area, for `crop="random"`.
        ratio: least and largest ratio of width to height, for `crop="random"`.
        on_error: a value, 0 to 255, for all pixels of an image that cannot be decoded; such images are
            counted, with a warning. "raise", the default, raises CorruptError.
        max_pixels: an image whose header says more is an error before it is decoded.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> images = [{"image": np.full((40, 60, 3), n, np.uint8)} for n in range(3)]
        >>> ref = storage.submit(images, "images", "1", codecs={"image": yoga.codecs.png()})
        >>> ref.decoded({"image": yoga.codecs.image(size=32, crop="random", layout="chw")})[0]["image"].shape
        (3, 32, 32)
    """
    for name, value, allowed in (
        ("crop", crop, (None, *get_args(Crop))),
        ("layout", layout, get_args(Layout)),
        ("mode", mode, (None, *get_args(Mode))),
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
        shape,
        crop,
        bool(flip),
        layout,
        mode or "rgb",
        bool(exact),
        bool(orient),
        scale,
        ratio,
        on_error,
        max_pixels,
        is_chosen=mode is not None,
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
    # Not in the text that fingerprints are made of.
    is_chosen: bool = field(default=True, repr=False)  # the mode, by whoever called or by the column
    kept: tuple[int, str] = field(default=(3, "|u1"), repr=False)  # channels and dtype of "unchanged"

    @property
    def hint(self) -> str:  # type: ignore[override]
        """Advice about an image that cannot be decoded."""
        is_known = self.on_error == "raise" and self.size is not None
        return "; yoga.codecs.image(..., on_error=128) fills such images, and counts them" if is_known else ""

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """True if it draws random numbers."""
        return self.crop == "random" or self.flip

    @property
    def purposes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The purposes of the libraries that decode."""
        return ("jpeg", "other images", *(() if self.size is None else ("resizing",)))

    def learned(self, column: Column, values: Iterable[Bytes]) -> Decoder:
        """With the channels and bits that a column notes, or else the first image that can be read has."""
        check_is_bytes(column, "image")
        noted: dict[str, object] = dict(form_of(column.meaning.codec))
        if noted:
            kept = int(str(noted["channels"])), "<u2" if noted["dtype"] == "uint16" else "|u1"
            if not self.is_chosen and (kept[0] == 4 or kept[1] == "<u2"):
                return replace(self, mode="unchanged", is_chosen=True, kept=kept)
            return replace(self, kept=kept)
        for value in values if self.mode == "unchanged" else ():
            try:
                return replace(self, kept=_form_of(pictures.header(value, False, self.max_pixels)))
            except CorruptError:  # which is for whoever reads that row
                continue
        return self

    def column(self, column: Column) -> Column:
        """A column of pixels."""
        check_is_bytes(column, "image")
        channels, dtype = self._form
        size = self.size or noted_size(column)
        if size is None:
            return Column(column.name, "ndarray", dtype, None, 3)
        shape = (channels, *size) if self.layout == "chw" else (*size, channels)
        return Column(column.name, "ndarray", dtype, shape, 3)

    @property
    def _form(self) -> tuple[int, str]:
        """Channels and dtype of the pixels; "unchanged" ones in their own sizes may differ in channels."""
        channels = _CHANNELS.get(self.mode)
        return self.kept if channels is None else (channels, "|u1")

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The pixels of some images."""
        if self.size is None:
            found = self._in_their_sizes(values, column, draw, run)
            return of_one_shape(found, self.column(column)), set()
        made = self.column(column)
        assert made.shape is not None
        out = run.empty(len(values) * made.row_bytes).view(made.storage).reshape(len(values), *made.shape)
        headers, failed = self._headers(values, run)
        boxes = self._boxes(headers, draw)
        flips = self._flips(len(values), draw)
        lost = self._lost(run)

        def one(i: int) -> None:
            header = headers[i]
            if header is None:
                return
            into = out[i] if self.layout == "hwc" and not flips[i] else None
            pixels = self._part(values[i], header, boxes[i], into, lost and partial(lost, i))
            if pixels is into:
                return
            pixels = pixels[:, ::-1] if flips[i] else pixels
            out[i] = pixels.transpose(2, 0, 1) if self.layout == "chw" else pixels

        run.each(self._guarded(one, failed), len(values))
        for i in failed:
            out[i] = self.on_error
        return Data(out), failed

    def _lost(self, run: Run) -> Callable[[int, str], None] | None:
        """Hears what the pixels of an image lack; None if that is as the caller wants it."""
        tell = run.lost
        if self.is_chosen or tell is None:
            return None
        advice = 'yoga.codecs.image(mode="unchanged") keeps all of it; pass mode="rgb" if this may be lost'
        return lambda i, what: tell(i, f"{what}; {advice}")

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
            found[i] = pictures.header(values[i], self.orient, self.max_pixels)

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
        return draw.random() < 0.5

    def _pixels(
        self,
        data: Bytes,
        found: Header,
        least: tuple[int, int] | None = None,
        into: Pixels | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> npt.NDArray[Any]:
        """(H, W, C) the pixels of an image in the channels and bits of `mode`, as they are stored."""
        if self.mode in ("rgb", "gray"):
            return pictures.decode(data, found, self.mode == "gray", least, into, lost)
        if self.mode == "unchanged":
            is_alike = _form_of(found) == self.kept if self.size else _form_of(found)[1] == self.kept[1]
            if not is_alike:
                raise CorruptError(
                    f"it has {found.channels} channels of {found.bits} bits, unlike the {self.kept[0]} of "
                    f"{np.dtype(self.kept[1])} of its column; mode='rgb', 'rgba' or 'gray' makes images alike"
                )
            return pictures.decode_unchanged(data, found, least, into)
        if found.channels == 4:
            pixels = pictures.decode_unchanged(data, found, least)
            return pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)
        colors = pictures.decode(data, found, False, least)
        return np.pad(colors, ((0, 0), (0, 0), (0, 1)), constant_values=255)

    def _part(
        self, data: Bytes, found: Header, box: Ints, into: Pixels | None, lost: Callable[[str], None] | None
    ) -> npt.NDArray[Any]:
        """(H, W, C) the part of an image, in the size that is wanted; `into`, if it lies there."""
        assert self.size is not None
        top, left, height, width = box.tolist()
        least = None
        if not self.exact:
            # As many times smaller as leaves the part `_MARGIN` times the size that is wanted.
            share = _MARGIN * max(self.size[0] / height, self.size[1] / width)
            tall, wide = (max(1, min(side, round(side * share))) for side in (found.height, found.width))
            least = tall, wide
        is_whole = (top, left, height, width) == (0, 0, *self.size) == (0, 0, *found.shape)
        there = into if is_whole and found.turn == 1 and least is None else None
        pixels = pictures.turned(self._pixels(data, found, least, there, lost), found.turn)
        if is_whole and pixels.shape[:2] == self.size:
            return pixels
        tall, wide = pixels.shape[:2]
        if (tall, wide) != found.shape:  # it was scaled down
            down, across = tall / found.shape[0], wide / found.shape[1]
            top, left = int(top * down), int(left * across)
            height, width = max(1, round(height * down)), max(1, round(width * across))
        return pictures.resized(pixels[top : top + height, left : left + width], *self.size, into)

    def _in_their_sizes(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Data:
        made, lost = self.column(column), self._lost(run)
        flips, headers = self._flips(len(values), draw), self._headers(values, run)[0]
        shapes = np.array([self._shape(about) for about in headers if about], "<i8").reshape(-1, 3)
        offsets = bounds_of(shapes.prod(axis=1)).astype("<i8", copy=False)
        nbytes = int(offsets[-1]) * made.storage.itemsize
        is_large = nbytes > _MOST_AT_ONCE
        out = run.empty(0 if is_large else nbytes).view(made.storage)
        odd: dict[int, npt.NDArray[Any]] = {}  # unlike what its header says

        def span_of(i: int) -> npt.NDArray[Any]:
            return np.reshape(out[offsets[i] : offsets[i + 1]], shapes[i])

        def one(i: int) -> None:
            about, span = headers[i], None if is_large else span_of(i)
            assert about is not None
            into = span if self.layout == "hwc" and not flips[i] and about.turn == 1 else None
            pixels = self._pixels(values[i], about, into=into, lost=lost and partial(lost, i))
            if into is not None and pixels is into:
                return
            pixels = pictures.turned(pixels, about.turn)
            pixels = pixels[:, ::-1] if flips[i] else pixels
            pixels = pixels.transpose(2, 0, 1) if self.layout == "chw" else pixels
            if span is not None and (pixels.shape, pixels.dtype) == (span.shape, span.dtype):
                span[...] = pixels
            else:
                odd[i] = np.ascontiguousarray(pixels)

        run.each(one, len(values))
        if not odd:
            return Data(out, offsets, shapes)
        return ragged([odd[i] if i in odd else span_of(i) for i in range(len(values))], made)

    def _shape(self, found: Header) -> tuple[int, int, int]:
        """Of an image in its own size."""
        channels = _CHANNELS.get(self.mode, found.channels)
        return (channels, *found.shape) if self.layout == "chw" else (*found.shape, channels)


@dataclass(frozen=True)
class ArrayDecoder(Decoder):
    """Decodes arrays and tensors that were encoded as images; they come back as they were."""

    codec: Codec

    @property
    def purposes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The purpose of the library that decodes."""
        return ("jpeg" if self.codec.name == "jpeg" else "other images",)

    def column(self, column: Column) -> Column:
        """A column of arrays or tensors; rows may differ in shape."""
        check_is_bytes(column, "decoded")
        form = dict(self.codec.parameters)
        kind, dtype, axes = str(form["kind"]), str(form["dtype"]), str(form["axes"])
        size, shape = noted_size(column), None
        if size is not None:
            shape = tuple({"h": size[0], "w": size[1], "c": int(form["channels"])}[axis] for axis in axes)
        return Column(column.name, kind, dtype if kind == "tensor" else np.dtype(dtype).str, shape, len(axes))

    def decode(self, values: Sequence[Bytes], column: Column, draw: Draw | None, run: Run) -> Decoded:
        """The arrays of some rows."""
        form, made = dict(self.codec.parameters), self.column(column)
        axes, channels, dtype = str(form["axes"]), int(form["channels"]), str(form["dtype"])

        def one(value: Bytes) -> npt.NDArray[Any]:
            about = pictures.header(value, turn=False)
            if self.codec.name == "jpeg":
                pixels: npt.NDArray[Any] = pictures.decode(value, about, channels == 1)
            else:
                if (about.channels, about.bits > 8) != (channels, dtype == "uint16"):
                    raise CorruptError(
                        f"its pixels are {about.channels} of {about.bits} bits, and the column says "
                        f"{channels} of {dtype}"
                    )
                pixels = pictures.decode_unchanged(value, about)
                pixels = pixels > 127 if dtype == "bool" else pixels
            if axes != "hwc":
                pixels = pixels[:, :, 0] if axes == "hw" else pixels.transpose(2, 0, 1)
            return np.ascontiguousarray(pixels).astype(made.storage, copy=False)

        return of_one_shape(ragged(run.arrays(one, values), made), made), set()


def _form_of(found: Header) -> tuple[int, str]:
    """The channels and the dtype of all that an image has."""
    return found.channels, "<u2" if found.bits > 8 else "|u1"


def middle(sizes: Ints, height: int, width: int | npt.NDArray[np.float64]) -> Ints:
    """(B, 4) top, left, height and width of the largest middle part with the shape of `height` x `width`.

    Args:
        sizes: (B, 2) the heights and widths of images.
        height: of what the part is to become.
        width: of what the part is to become; or (B,) of what each is.

    Example:
        >>> middle(np.array([[100, 300]]), 50, 50).tolist()
        [[0, 100, 100, 100]]
    """
    tall, wide = sizes[:, 0], sizes[:, 1]
    high = np.minimum(tall, np.maximum(1, np.rint(wide * height / width))).astype(np.int64)
    broad = np.minimum(wide, np.maximum(1, np.rint(tall * width / height))).astype(np.int64)
    return np.stack([(tall - high) // 2, (wide - broad) // 2, high, broad], axis=1)


def random_parts(sizes: Ints, draw: Draw, scale: tuple[float, float], ratio: tuple[float, float]) -> Ints:
    """(B, 4) top, left, height and width of random parts.

    Args:
        sizes: (B, 2) the heights and widths of images.
        draw: the random numbers of the rows.
        scale: least and largest share of an image's area.
        ratio: least and largest width for a height of 1.
    """
    count = len(sizes)
    numbers = draw.random((count, _TRIES, 4))
    area = (sizes[:, 0] * sizes[:, 1])[:, None] * (scale[0] + (scale[1] - scale[0]) * numbers[:, :, 0])
    low, high = np.log(ratio)
    aspect = np.exp(low + (high - low) * numbers[:, :, 1])
    wide = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    tall = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (wide > 0) & (tall > 0) & (wide <= sizes[:, 1:]) & (tall <= sizes[:, :1])
    first = fits.argmax(axis=1)
    rows = np.arange(count)
    tall, wide, numbers = tall[rows, first], wide[rows, first], numbers[rows, first]
    top = (numbers[:, 2] * (sizes[:, 0] - tall + 1)).astype(np.int64)
    left = (numbers[:, 3] * (sizes[:, 1] - wide + 1)).astype(np.int64)
    found = np.stack([top, left, tall, wide], axis=1)
    none = ~fits[rows, first]
    if none.any():
        # The middle, cut to the nearest aspect ratio that is allowed.
        aspects = sizes[none, 1] / sizes[none, 0]
        found[none] = middle(sizes[none], 1, np.clip(aspects, *ratio))
    return found
