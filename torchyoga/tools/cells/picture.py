"""A value of a row that is an image -> a small picture of it, with the boxes and the mask of its row."""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...coding.pictures import opened
from ...rows.image_formats import HEAD, format_of
from .text import named_class, shown

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
_BOXES = ("boxes", "bboxes", "bbox")
_MASKS = ("mask", "segmentation", "segmentation_mask")
_CAPTIONS = ("labels", "label", "categories", "category")
_MOST_BOXES, _CAPTION = 200, 24  # boxes, and characters of a caption
_MOST_MASK_PIXELS = 2**25  # of a mask that is decoded
_SMALLEST_CAPTIONED = 160  # pixels of a picture on which captions can be read
_COLOURS = np.array(
    [(230, 74, 60), (40, 140, 240), (245, 190, 30), (50, 180, 100), (190, 90, 220), (0, 190, 200)], np.uint8
)


def thumbnail(
    value: object, column_name: str = "", side: int = SIDE, marks: Marks | None = None
) -> bytes | None:
    """A small picture of a value that is an image: a PNG or JPEG file of at most 96 x 96 pixels.

    Images are arrays and tensors (H, W), (H, W, C) or (C, H, W) with C = 1, 3 or 4, of uint8, uint16, bool or
    floats, which are scaled from the least to the largest value, unless they lie in 0..1 or -1..1; files of
    images, as bytes or uint8 (N,); images of Pillow's. The same value gives the same bytes.

    Args:
        value: anything.
        column_name: where it is from. By a name such as "image" or "mask", tiny arrays and those of other
            ints are images, too.
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


def url_of(value: object, column_name: str, marks: Marks | None) -> str | None:
    """The thumbnail of a value as the URL of itself; None and errors as `thumbnail`."""
    picture = thumbnail(value, column_name, marks=marks)
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
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            return None
        tensor: Any = value.detach().cpu().resolve_conj().resolve_neg()
        is_of_numpy = hasattr(np, str(tensor.dtype).removeprefix("torch."))
        value = (tensor if is_of_numpy or not tensor.is_floating_point() else tensor.float()).numpy()
    if not isinstance(value, np.ndarray):
        return None
    found, kind, itemsize = value, value.dtype.kind, value.dtype.itemsize
    is_usual = kind in "bf" or (kind == "u" and itemsize <= 2)
    if not is_usual and not (is_named and kind in "iu"):
        return None
    if found.ndim == 4 and len(found) and (is_named or (kind == "u" and itemsize == 1)):
        found = found[0]  # of a video
    at = _sides(tuple(found.shape), 1 if is_named else _LEAST_SIDE)
    if at is None:
        return None
    size = found.shape[at[1]], found.shape[at[0]]
    step = max(1, max(size) // (2 * side))
    found = found[tuple(slice(None, None, step if axis in at else 1) for axis in range(found.ndim))]
    pixels: Array = found.transpose(1, 2, 0) if at == (1, 2) else found
    if pixels.ndim == 3:
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]
    return np.ascontiguousarray(pixels), size


def _sides(shape: tuple[int, ...], least: int) -> tuple[int, int] | None:
    """The axes of height and width; None if it is not an image."""
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


class Marks(NamedTuple):
    """The marks of a row.

    Attributes:
        names: of the values that they are from.
        boxes: (n, 4) corners, or a corner and a size, in pixels or as shares of the image.
        are_sizes: boxes may rather be a corner and a size, as COCO has them.
        captions: of the boxes; empty if there are none.
        mask: (H, W) a class for each pixel, 0 for none; None if there is no mask.
    """

    names: frozenset[str]
    boxes: npt.NDArray[np.float64]
    are_sizes: bool
    captions: tuple[str, ...]
    mask: npt.NDArray[Any] | None


def marks_of(values: Sequence[tuple[str, object]], classes: Mapping[str, Sequence[str]]) -> Marks | None:
    """The marks among the values of a row, as `flat` names them; None if there are none.

    Boxes are (n, 4) numbers called `boxes`, `bboxes` or `bbox`, captions as many `labels` beside them, and a
    mask is called `mask` or `segmentation`.

    Example:
        >>> from torchyoga.tools.cells.picture import marks_of
        >>> row = [("boxes", np.array([[1, 2, 8, 9]])), ("labels", [1])]
        >>> found = marks_of(row, {"labels": ["cat", "dog"]})
        >>> found.boxes.tolist(), found.captions
        ([[1.0, 2.0, 8.0, 9.0]], ('dog',))
    """
    boxes, are_sizes, names = np.zeros((0, 4)), False, set[str]()
    captions: tuple[str, ...] = ()
    mask = None
    are_marks = {*_BOXES, *_MASKS, *_CAPTIONS}
    by_name = {name: value for name, value in values if name.rpartition("/")[2].lower() in are_marks}
    for name, value in by_name.items():
        folder, _, last = name.rpartition("/")
        if last.lower() in _MASKS and mask is None:
            mask = _mask_of(value)
            names |= {name} if mask is not None else set()
        elif last.lower() in _BOXES and not len(boxes):
            boxes, are_sizes = _boxes_of(value), last.lower() != "boxes"
            names |= {name} if len(boxes) else set()
            beside = (f"{folder}/{one}" if folder else one for one in _CAPTIONS)
            own = next((one for one in beside if one in by_name), "")
            captions = _captions_of(by_name.get(own), len(boxes), classes.get(own, ()))
    return Marks(frozenset(names), boxes, are_sizes, captions, mask) if names else None


def _boxes_of(value: object) -> npt.NDArray[np.float64]:
    """(n, 4) boxes; none if the value is something else."""
    none = np.zeros((0, 4))
    try:
        found = np.asarray(value[:_MOST_BOXES] if isinstance(value, list) else value, np.float64)
    except Exception:  # a user's rows may hold anything
        return none
    if found.shape == (4,):
        found = found[None]
    are_boxes = found.ndim == 2 and found.shape[1] == 4 and np.isfinite(found).all()
    return found[:_MOST_BOXES] if are_boxes else none


def _captions_of(value: Any, count: int, classes: Sequence[str]) -> tuple[str, ...]:
    """A short text for each box; none if there are not as many values."""
    is_flat = isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 1)
    if not is_flat or len(value) < count:
        return ()
    return tuple(named_class(classes, one) or shown(one, _CAPTION) for one in value[:count])


def _mask_of(value: object) -> npt.NDArray[Any] | None:
    """(H, W) a mask: an array, or the file of an image."""
    try:
        if isinstance(value, (bytes, bytearray)):
            with opened(bytes(value)) as image:
                value = np.asarray(image) if image.width * image.height <= _MOST_MASK_PIXELS else None
        found = np.asarray(value)
    except Exception:  # of any kind: what is forged is read by many small readers
        return None
    found = found[0] if found.ndim == 3 and len(found) == 1 else found
    return found if found.ndim == 2 and found.dtype.kind in "biu" else None


def drawn(image: Image.Image, size: tuple[int, int], marks: Marks) -> Image.Image:
    """A picture with marks on it.

    Args:
        image: the picture.
        size: width and height of the image that it shows, which marks are about.
        marks: those that do not lie within the image are left out.
    """
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageFont

    image = image.convert("RGB")
    if marks.mask is not None and marks.mask.shape == size[::-1]:
        colours = 1 + marks.mask.astype(np.int64) % len(_COLOURS)
        indices = np.where(marks.mask == 0, 0, colours).astype(np.uint8)
        small = np.asarray(Pillow.fromarray(indices).resize(image.size, Pillow.Resampling.NEAREST))
        pixels = np.array(image)
        pixels[small > 0] = pixels[small > 0] // 2 + _COLOURS[small[small > 0] - 1] // 2
        image = Pillow.fromarray(pixels)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default()
    scale = np.array([*image.size, *image.size]) / np.array([*size, *size])
    kinds = {caption: place for place, caption in enumerate(dict.fromkeys(marks.captions))}
    for place, box in enumerate((_corners(marks, size) * scale).tolist()):
        caption = marks.captions[place] if marks.captions else ""
        colour = tuple(_COLOURS[kinds.get(caption, 0) % len(_COLOURS)].tolist())
        pen.rectangle(box, outline=colour, width=max(2, max(image.size) // 150))
        if caption and max(image.size) >= _SMALLEST_CAPTIONED:
            text = caption.encode("ascii", "replace").decode()
            left, top, (*_, wide, high) = box[0], box[1], font.getbbox(text)
            pen.rectangle((left, top, left + wide, top + high), fill=colour)
            pen.text((left, top), text, fill=(0, 0, 0), font=font)
    return image


def _corners(marks: Marks, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """(n, 4) the left, upper, right and lower ends of boxes in pixels; none unless they lie within an image.

    Numbers up to 1 are shares of the image.
    """
    ends = np.array([*size, *size], np.float64)
    boxes = marks.boxes * ends if len(marks.boxes) and marks.boxes.max() <= 1 else marks.boxes
    ways = [boxes, np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])]
    for found in reversed(ways) if marks.are_sizes else ways:
        if (found >= -1).all() and (found <= ends + 1).all() and (found[:, :2] <= found[:, 2:]).all():
            return found
    return boxes[:0]
