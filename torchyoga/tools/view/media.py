"""A value of a row that is an image or sound -> a file that browsers show or play."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...coding.pictures import format_of, opened
from ..cells.picture import thumbnail

__all__ = ["Media", "media_of"]

_OF_BROWSERS = ("jpeg", "png", "gif", "webp", "bmp")
_MOST_BYTES, _MOST_PIXELS = 2**26, 2**27
_SIDE = 4096  # pixels of images that are not of those formats, at most
_SMALL = 448  # pixels to which tiny images are enlarged


@dataclass(frozen=True)
class Media:
    """A file for browsers.

    Attributes:
        type: the media type; `data`: the file.
        width, height: of an image, in pixels; 0 of sound.
    """

    type: str
    data: bytes
    width: int = 0
    height: int = 0

    @property
    def is_image(self) -> bool:
        """True if it is an image, and not sound."""
        return self.type.startswith("image/")

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height on a page, where tiny images are enlarged by a whole number."""
        times = max(1, _SMALL // max(1, self.width, self.height))
        return self.width * times, self.height * times


def media_of(value: object, column_name: str = "") -> Media | None:
    """The file of a value: of what is a file already, that file.

    Returns:
        None if it is neither image nor sound, or damaged, or too large.

    Raises:
        ImportError: it is an image, and Pillow is not installed.
    """
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8:
        data = value.tobytes() if value.nbytes <= _MOST_BYTES else b""
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value) if len(value) <= _MOST_BYTES else b""
    else:
        data = b""
    sound = _type_of_sound(data[:16])
    if sound is not None:
        return Media(sound, data)
    format = format_of(data[:16])
    if format in _OF_BROWSERS:
        size = _size_of(data)
        return None if size is None else Media(f"image/{format}", data, *size)
    png = thumbnail(value, column_name, _SIDE)
    if png is None:
        return None
    # Where every PNG file has them.
    return Media("image/png", png, int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big"))


def _size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height of an image that can be decoded to its end."""
    try:
        with opened(data) as image:
            width, height = image.size
            if not 0 < width * height <= _MOST_PIXELS:
                return None
            image.load()
    except ImportError:
        raise ImportError("images need Pillow; pip install 'torchyoga[report]'") from None
    except Exception:  # of any kind: what is forged is read by many small readers
        return None
    return width, height


def _type_of_sound(begin: bytes) -> str | None:
    if begin.startswith(b"fLaC"):
        return "audio/flac"
    if begin.startswith(b"OggS"):
        return "audio/ogg"
    if begin.startswith(b"RIFF") and begin[8:12] == b"WAVE":
        return "audio/wav"
    return "audio/mpeg" if begin.startswith(b"ID3") else None
