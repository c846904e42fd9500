"""How images are decoded: what `yoga.image(...)` is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptError
from ..order.full import as_int
from ..rows.column import Column
from ..rows.data import Data
from ..views.draw import Draw
from .boxes import middle, random_parts
from .decoder import Bytes, Decoded, Decoder, RowError, Run, check_is_bytes, ragged
from .libraries import used_for
from .on_device import decoder_on, part_on, pixels_on, used_on_device
from .pictures import MOST_PIXELS, Header, Pixels, decode, header, resized, turned

__all__ = ["image"]

Ints = npt.NDArray[np.int64]
Crop = Literal["center", "random"]
Layout = Literal["chw", "hwc"]
Mode = Literal["rgb", "gray"]
_MARGIN = 1.5  # a JPEG is scaled down to so many times the size that is wanted: see `image`


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
    device: str | torch.device | None = None,
) -> Decoder:
    """Decodes images: pass it to `DataRef.decoded`.

    JPEG, PNG, WebP, TIFF, GIF, BMP, PPM and PGM, of 8 bits; of 16 bits the upper eight are taken, and of
    animations the first image; floats and shades of 32 bits are an error. In its own size an image comes out
    as Pillow decodes it, bit for bit.

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
        device: "cuda" decodes JPEG images there, a batch at once, by torchcodec or nvImageCodec, then crops
            and resizes them there. Pixels differ from the processor's by a few levels, and `exact` has no
            effect. Batches lie in host memory as ever; pass `device=` to the `DataLoader` too.

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
    if device is not None:
        device = torch.device(device)
        if device.type != "cuda":
            raise ValueError(f"device must be a CUDA device or None, found {str(device)!r}")
        if shape is None:
            raise ValueError("device needs a size: images of unlike shapes make no batch there")
    return _Image(
        shape,
        crop,
        bool(flip),
        layout,
        mode,
        bool(exact),
        bool(orient),
        scale,
        ratio,
        on_error,
        max_pixels,
        None if device is None else str(device),
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
    device: str | None

    @property
    def hint(self) -> str:  # type: ignore[override]
        """What to do about an image that cannot be decoded."""
        is_known = self.on_error == "raise" and self.size is not None
        return "; yoga.image(..., on_error=128) fills such images, and counts them" if is_known else ""

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """True if it draws random numbers."""
        return self.crop == "random" or self.flip

    @property
    def libraries(self) -> list[str]:
        """What decodes, and its version."""
        resizing = [] if self.size is None else [used_for("resizing")]
        there = [] if self.device is None else used_on_device()
        here = [used_for("jpeg"), used_for("png"), used_for("other images"), *resizing]
        return list(dict.fromkeys([*there, *here]))

    def column(self, column: Column) -> Column:
        """A column of pixels."""
        check_is_bytes(column, "image")
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
        if self.device is not None:
            self._decode_there(torch.device(self.device), values, headers, boxes, flips, out, failed)
            return Data(out), failed

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

    def _decode_there(
        self,
        device: torch.device,
        values: Sequence[Bytes],
        headers: Sequence[Header | None],
        boxes: Ints,
        flips: npt.NDArray[np.bool_],
        out: npt.NDArray[np.uint8],
        failed: set[int],
    ) -> None:
        """Decodes to `out` by way of a device."""
        assert self.size is not None
        found = pixels_on(device, decoder_on(device), values, headers, self.mode == "gray")
        parts = torch.zeros(
            (len(values), 1 if self.mode == "gray" else 3, *self.size), dtype=torch.uint8, device=device
        )
        for i, pixels in found.items():
            if isinstance(pixels, CorruptError):
                if self.on_error == "raise":
                    raise RowError(i, str(pixels)) from pixels.__cause__
                failed.add(i)
                continue
            about = headers[i]
            assert about is not None
            part = part_on(pixels, about.turn, boxes[i], self.size)
            parts[i] = part.flip(2) if flips[i] else part
        for i in failed:
            parts[i] = int(self.on_error)
        parts = parts.permute(0, 2, 3, 1) if self.layout == "hwc" else parts
        torch.from_numpy(out).copy_(parts)

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
        return ragged(found, self.column(column)), set()
