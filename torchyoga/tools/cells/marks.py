"""The values of a row that say what is where in its image -> boxes and a mask drawn on its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...coding.pictures import opened
from .text import named_class, shown

if TYPE_CHECKING:
    from PIL import Image

_BOXES = ("boxes", "bboxes", "bbox")
_MASKS = ("mask", "segmentation", "segmentation_mask")
_CAPTIONS = ("labels", "label", "categories", "category")
_MOST_BOXES, _CAPTION = 200, 24  # boxes, and characters of a caption
_MOST_PIXELS = 2**25  # of a mask that is decoded
_SMALLEST_CAPTIONED = 160  # pixels of a picture on which captions can be read
_COLOURS = np.array(
    [(230, 74, 60), (40, 140, 240), (245, 190, 30), (50, 180, 100), (190, 90, 220), (0, 190, 200)], np.uint8
)


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


def is_mark(name: str) -> bool:
    """True for the name of a value that may be a mark, or a caption."""
    return name.rpartition("/")[2].lower() in (*_BOXES, *_MASKS, *_CAPTIONS)


def marks_of(values: Sequence[tuple[str, object]], classes: Mapping[str, Sequence[str]]) -> Marks | None:
    """The marks among the values of a row, as `flat` names them; None if there are none.

    Boxes are (n, 4) numbers called `boxes`, `bboxes` or `bbox`, captions as many `labels` beside them, and a
    mask is called `mask` or `segmentation`.

    Example:
        >>> from torchyoga.tools.cells.marks import marks_of
        >>> row = [("boxes", np.array([[1, 2, 8, 9]])), ("labels", [1])]
        >>> found = marks_of(row, {"labels": ["cat", "dog"]})
        >>> found.boxes.tolist(), found.captions
        ([[1.0, 2.0, 8.0, 9.0]], ('dog',))
    """
    boxes, are_sizes, names = np.zeros((0, 4)), False, set[str]()
    captions: tuple[str, ...] = ()
    mask = None
    by_name = {name: value for name, value in values if is_mark(name)}
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
    except (TypeError, ValueError, OverflowError):
        return none
    if found.shape == (4,):
        found = found[None]
    return (
        found[:_MOST_BOXES] if found.ndim == 2 and found.shape[1] == 4 and np.isfinite(found).all() else none
    )


def _captions_of(value: Any, count: int, classes: Sequence[str]) -> tuple[str, ...]:
    """As many short texts as there are boxes; none if there are not as many values."""
    if not isinstance(value, (list, np.ndarray)) or np.ndim(value) != 1 or len(value) < count:
        return ()
    return tuple(named_class(classes, one) or shown(one, _CAPTION) for one in value[:count])


def _mask_of(value: object) -> npt.NDArray[Any] | None:
    """(H, W) a mask: an array, or the file of an image."""
    try:
        if isinstance(value, (bytes, bytearray)):
            with opened(bytes(value)) as image:
                value = np.asarray(image) if image.width * image.height <= _MOST_PIXELS else None
        found = np.asarray(value)
    except Exception:  # of any kind: what is forged is read by many small readers
        return None
    found = found[0] if found.ndim == 3 and len(found) == 1 else found
    return found if found.ndim == 2 and found.dtype.kind in "biu" else None


def drawn(image: Image.Image, size: tuple[int, int], marks: Marks) -> Image.Image:
    """A picture with marks on it.

    Args:
        image: the picture; `size`: width and height of the image that it shows, which marks are about.
        size: see `image`.
        marks: those that do not lie within the image are left out.
    """
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageFont

    image = image.convert("RGB")
    if marks.mask is not None and marks.mask.shape == size[::-1]:
        indices = np.where(marks.mask == 0, 0, 1 + marks.mask.astype(np.int64) % len(_COLOURS)).astype(
            np.uint8
        )
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
