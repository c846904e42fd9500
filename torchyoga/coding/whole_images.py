"""The bytes of an image file -> all that it holds, or an error that names what would be lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from .pictures import Header, decode, opened, turned

__all__ = ["opaque_pixels", "whole_pixels"]

_AS_THEY_ARE = ("1", "L", "RGB", "RGBA")
_PALETTE_OR_ALPHA = ("LA", "P", "PA")
_BITS_PER_SAMPLE = 258  # a tag of TIFF


def whole_pixels(data: bytes, found: Header) -> npt.NDArray[Any]:
    """(H, W) or (H, W, C) all that an image file holds, as it is to be seen; bool, uint8 or uint16.

    Args:
        data: the file.
        found: its header.

    Raises:
        CorruptError: it is cut or damaged, or something of it would be lost.
    """
    with opened(data) as image:
        try:
            lost = _lost_of(image)
            if not lost:
                image.load()
                pixels = _pixels_of(image)
                turn = 1 if image.format == "TIFF" else found.turn  # which Pillow has turned
        except Exception as error:  # of any kind: what is forged is read by many small readers
            raise CorruptError(f"it cannot be decoded: {error}") from None
    if lost:
        raise CorruptError(f"{lost}; keep the file as it is, without a codec, or pass an array")
    if pixels.ndim == 2:
        return np.ascontiguousarray(turned(pixels[:, :, None], turn)[:, :, 0])
    return np.ascontiguousarray(turned(pixels, turn))


def _lost_of(image: Any) -> str:
    """What arrays of 8 or 16 bits, grey or RGB with or without transparency, could not hold of an image."""
    count = getattr(image, "n_frames", 1)
    if count > 1:
        return f"it holds {count} images, and all but one would be lost"
    if image.mode not in (*_AS_THEY_ARE, *_PALETTE_OR_ALPHA) and not _is_wide(image):
        return f"its pixels are of the mode {image.mode}, and would be lost in part"
    if max(_bits_of(image)) > 8 and not _is_wide(image):
        return f"its colors have {max(_bits_of(image))} bits each, of which 8 would be kept"
    return ""


def _is_wide(image: Any) -> bool:
    """True for shades of grey of 16 bits."""
    return bool(image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"))


def _bits_of(image: Any) -> tuple[int, ...]:
    """The bits of each sample, as far as a header says more than the mode."""
    if image.format == "TIFF":
        found = image.tag_v2.get(_BITS_PER_SAMPLE, 1)
        return found if isinstance(found, tuple) else (found,)
    if image.format == "PPM" and image.tile and image.tile[0][0].startswith("ppm"):
        most = image.tile[0][3]
        return (int(most[-1] if isinstance(most, tuple) else most).bit_length(),)
    return (8,)


def _pixels_of(image: Any) -> npt.NDArray[Any]:
    if _is_wide(image):
        return np.asarray(image).astype(np.uint16)
    if image.mode in ("LA", "PA") or "transparency" in image.info:
        return np.asarray(image.convert("RGBA"))
    return np.asarray(image.convert("RGB") if image.mode == "P" else image)


def opaque_pixels(data: bytes, found: Header) -> npt.NDArray[np.uint8]:
    """(H, W, 3) or (H, W) the pixels of an image file, as they are to be seen, in 8 bits.

    Args:
        data: the file.
        found: its header.

    Raises:
        CorruptError: it is cut or damaged, or something behind it would shine through.
    """
    with opened(data) as image:
        try:
            is_gray = image.mode in ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
            if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
                image.load()
                shown = image.convert("RGBA").getchannel("A").getextrema()[0] < 255
            else:
                shown = False
        except Exception as error:  # of any kind, as above
            raise CorruptError(f"it cannot be decoded: {error}") from None
    if shown:
        raise CorruptError(
            "it has transparency, which jpeg cannot keep; use png, or pass image.convert('RGB')"
        )
    pixels = turned(decode(data, found, is_gray), found.turn)
    return pixels[:, :, 0] if is_gray else pixels
