"""Which part of an image is kept: for a batch at once, random parts by counted numbers.

Note 96. Random parts are drawn as torchvision's RandomResizedCrop draws them.
Ten tries of an area and an aspect ratio, and the middle if none fits (Inception: Szegedy et al., 2015). The
numbers are counted, so a row gets the same part in any batch, in any process.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..views.draw import Draw

__all__ = ["middle", "random_parts"]

Ints = npt.NDArray[np.int64]
_TRIES = 10


def middle(sizes: Ints, height: int, width: int) -> Ints:
    """(B, 4) top, left, height and width of the largest middle part with the shape of `height` x `width`.

    Args:
        sizes: (B, 2) the heights and widths of images.
        height: of what the part is to become.
        width: of what the part is to become.

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
        found[none] = _in_range(sizes[none], ratio)
    return found


def _in_range(sizes: Ints, ratio: tuple[float, float]) -> Ints:
    """The middle, cut to the nearest aspect ratio that is allowed."""
    aspect = sizes[:, 1] / sizes[:, 0]
    found = np.stack([np.zeros(len(sizes), np.int64)] * 2 + [sizes[:, 0], sizes[:, 1]], axis=1)
    narrow, broad = aspect < ratio[0], aspect > ratio[1]
    found[narrow, 2] = np.maximum(1, np.rint(sizes[narrow, 1] / ratio[0]))
    found[broad, 3] = np.maximum(1, np.rint(sizes[broad, 0] * ratio[1]))
    found[:, 0] = (sizes[:, 0] - found[:, 2]) // 2
    found[:, 1] = (sizes[:, 1] - found[:, 3]) // 2
    return found
