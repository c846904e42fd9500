"""A value of a row that is an image -> a small picture of it, as the bytes of a file."""

from __future__ import annotations

import base64
import io
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...coding.pictures import opened
from ...rows.image_formats import HEAD, format_of
from .marks import Marks, drawn

if TYPE_CHECKING:
    from PIL import Image

SIDE = 96  # pixels of a thumbnail, at most
_SMALL = 3072  # bytes up to which a picture without loss is good enough
_LEAST_SIDE = 8  # of an array whose name does not say that it is an image: others hold boxes, poses, ...
_MOST_PIXELS, _MOST_PIXELS_OF_JPEG = 2**25, 2**27  # of which JPEG are scaled down while they are decoded
_CHANNELS = (1, 3, 4)
_NAMES = re.compile(
    r"(?:^|[^a-z])(images?|imgs?|picture|photo|pixels?|mask|depth|frames?|rgba?|gr[ae]y|camera|png|jpe?g)(?:$|[^a-z])"
)
Array = npt.NDArray[Any]


def thumbnail(
    value: object, column_name: str = "", side: int = SIDE, marks: Marks | None = None
) -> bytes | None:
    """A small picture of a value that is an image: a PNG or JPEG file of at most 96 x 96 pixels.

    Images are arrays and tensors (H, W), (H, W, C) or (C, H, W) with C = 1, 3 or 4, of uint8, uint16, bool or
    floats, which are scaled from the least to the largest value, unless they lie in 0..1 or -1..1; files of
    images, as bytes or uint8 (N,); images of Pillow's. The same value gives the same bytes.

    Args:
        value: anything.
        column_name: where it is from. A name such as "image" or "mask" tells tiny images and those of other
            ints from arrays of numbers.
        side: pixels of its longer side, at most. Larger pictures than thumbnails are without loss.
        marks: of its row, which are drawn on it; on a mask only its own colours.

    Returns:
        None if it is not an image, or damaged, or too large to be decoded for this.

    Raises:
        ImportError: it is an image, and Pillow is not installed.

    Example:
        >>> from torchyoga.tools.cells.picture import media_type, thumbnail
        >>> small = thumbnail(np.zeros((480, 640, 3), np.uint8))
        >>> media_type(small), thumbnail(np.arange(3))
        ('image/png', None)
    """
    if marks is not None and column_name in marks.names:
        marks = marks._replace(boxes=marks.boxes[:0])
    if begin := file_bytes(value, HEAD):
        return _of_file(file_bytes(value), side, marks) if format_of(begin) else None
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(value, pillow.Image):
        return _of_image(value, side, marks)
    found = _pixels_of(value, _NAMES.search(column_name.lower()) is not None, side)
    if found is None:
        return None
    pixels, size = found
    return _encoded(_pillow().fromarray(_small(pixels)), side, size, marks)


def file_bytes(value: object, most: int | None = None) -> bytes:
    """The first bytes of a value that may be a file: bytes, or uint8 (N,); of others none."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8:
        return value[:most].tobytes()
    return bytes(value[:most]) if isinstance(value, (bytes, bytearray, memoryview)) else b""


def media_type(picture: bytes) -> str:
    """The media type of what `thumbnail` returns."""
    return "image/png" if picture.startswith(b"\x89PNG") else "image/jpeg"


def url_of(picture: bytes | None) -> str | None:
    """A picture as the URL of itself."""
    if picture is None:
        return None
    return f"data:{media_type(picture)};base64,{base64.b64encode(picture).decode()}"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("thumbnails need Pillow; pip install 'torchyoga[report]'") from None
    return Image


def _pixels_of(value: object, is_named: bool, side: int) -> tuple[Array, tuple[int, int]] | None:
    """(H, W) or (H, W, C), at most twice as large as wanted, and its own width and height; None if it is not
    an image."""
    torch = sys.modules.get("torch")
    found: Any
    if isinstance(value, np.ndarray):
        found, kind, itemsize = value, value.dtype.kind, value.dtype.itemsize
    elif torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        found, itemsize = value.detach(), value.element_size()
        kind = "f" if value.is_floating_point() else "c" if value.is_complex() else "u"
        if value.dtype is torch.bool or value.dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
            kind = "b" if value.dtype is torch.bool else "i"
    else:
        return None
    is_usual = kind in "bf" or (kind == "u" and itemsize <= 2)
    if not is_usual and not (is_named and kind in "iu"):
        return None
    if found.ndim == 4 and len(found) and (is_named or (kind == "u" and itemsize == 1)):
        found = found[0]  # of a video
    at = _sides(tuple(found.shape), 1 if is_named else _LEAST_SIDE)
    if at is None or getattr(found, "is_meta", False):
        return None
    size = found.shape[at[1]], found.shape[at[0]]
    step = max(1, max(size) // (2 * side))
    found = found[tuple(slice(None, None, step if axis in at else 1) for axis in range(found.ndim))]
    if not isinstance(found, np.ndarray):
        found = found.cpu()
        found = (found.double() if kind == "f" else found).numpy()
    pixels: Array = found.transpose(1, 2, 0) if at == (1, 2) else found
    if pixels.ndim == 3:
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]
    return np.ascontiguousarray(pixels), size


def _sides(shape: tuple[int, ...], least: int) -> tuple[int, int] | None:
    """Which axes are height and width."""
    if len(shape) == 2 and min(shape) >= least:
        return 0, 1
    if len(shape) != 3:
        return None
    if shape[2] in _CHANNELS and min(shape[:2]) >= least:
        return 0, 1
    return (1, 2) if shape[0] in _CHANNELS and min(shape[1:]) >= least else None


def _small(pixels: Array) -> npt.NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return np.where(pixels, 255, 0).astype(np.uint8)
    values = pixels.astype(np.float64)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    if pixels.dtype.kind == "f" and low >= -1 and high <= 1:
        low, high = (-1.0, 1.0) if low < 0 else (0.0, 1.0)
    span = high / 2 - low / 2  # halves, since the largest floats lie further apart than floats reach
    if not span:
        return np.full(values.shape, 0 if not len(known) else 127, np.uint8)
    shades: npt.NDArray[np.float64] = np.rint((np.clip(values, low, high) / 2 - low / 2) / span * 255)
    return np.nan_to_num(shades).astype(np.uint8)


def _of_file(data: bytes, side: int, marks: Marks | None) -> bytes | None:
    _pillow()
    try:
        with opened(data) as image:
            return _of_image(image, side, marks)
    except Exception:  # of any kind: what is forged is read by many small readers
        return None


def _of_image(image: Image.Image, side: int, marks: Marks | None) -> bytes | None:
    from PIL import ImageOps

    width, height = image.size
    is_jpeg = image.format == "JPEG"
    if width * height > (_MOST_PIXELS_OF_JPEG if is_jpeg else _MOST_PIXELS):
        return None
    if is_jpeg:
        image.draft("RGB", (side, side))
    if image.mode.startswith(("I", "F")):  # whose black and white follow from the values
        image = _pillow().fromarray(_small(np.asarray(image)))
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    image = image.convert("RGBA" if has_alpha else "L" if image.mode in ("1", "L") else "RGB")
    image.thumbnail((side, side))
    turned = _pillow().fromarray(np.asarray(ImageOps.exif_transpose(image)))  # without profile and notes
    is_upright = (width > height) == (turned.width > turned.height)
    return _encoded(turned, side, (width, height) if is_upright else (height, width), marks)


def _encoded(image: Image.Image, side: int, size: tuple[int, int], marks: Marks | None) -> bytes:
    """The file of a picture of an image of some width and height, with marks on it."""
    image.thumbnail((side, side))
    if marks is not None:
        image = drawn(image, size, marks)
    if side > SIDE:
        return _saved(image, "PNG", compress_level=1)
    lossless = _saved(image, "PNG", compress_level=9)
    if len(lossless) <= _SMALL or image.mode == "RGBA":
        return lossless
    return min(lossless, _saved(image, "JPEG", quality=80), key=len)


def _saved(image: Image.Image, format: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()
