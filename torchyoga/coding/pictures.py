"""The bytes of an image file <-> its pixels."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, SchemaError
from ..rows.image_formats import format_of
from .libraries import library, used_for

Pixels = npt.NDArray[np.uint8]  # (H, W, 3), or (H, W, 1) if grey
MOST_PIXELS = 2**28
_OPTIONAL = {"avif": "avif", "jpeg2000": "jpg_2000", "webp": "webp"}  # as Pillow's `features` names them
_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 258  # a tag of TIFF
_NOTES = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")  # chunks of PNG that may hold EXIF
_MOST_SEGMENTS, _MOST_CHUNKS = 64, 4096
_IMAGE_MARKERS = frozenset({*range(0xC0, 0xC4), 0xDA, 0xD9})  # behind which nothing is noted


class Header(NamedTuple):
    """The header of an image file."""

    format: str
    height: int  # as it is decoded, before it is turned
    width: int
    turn: int  # of EXIF: 1 as decoded, as TIFF always is: Pillow turns it; 5 to 8 exchange height and width
    is_plain: bool  # a JPEG of grey or YCbCr, as every decoder knows it
    channels: int = 3  # 1 if grey, 4 with transparency
    bits: int = 8  # of a sample

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width once it is turned."""
        return (self.width, self.height) if self.turn >= 5 else (self.height, self.width)


def header(data: bytes | memoryview, turn: bool = True, most_pixels: int = MOST_PIXELS) -> Header:
    """The header of an image file; nothing is decoded.

    Args:
        data: the file.
        turn: look for the orientation that cameras note.
        most_pixels: how many pixels it may have.

    Raises:
        CorruptError: it is not the file of an image, is cut, or has more pixels.
    """
    format = format_of(data)
    if format is None:
        raise CorruptError(f"it begins with {bytes(data[:8])!r}, which no known image format does")
    may_be_turned = turn and format != "tiff" and (format != "jpeg" or _has_exif(data))
    if format == "jpeg" and not may_be_turned and used_for("jpeg").startswith("simplejpeg"):
        try:
            height, width, space, _ = library("jpeg").decode_jpeg_header(data)
        except ValueError:  # it is strict: Pillow says whether it can be read, and why not
            pass
        else:
            _refuse_more(width, height, most_pixels)
            is_gray = space in ("Gray", "GRAY")
            return Header(format, height, width, 1, is_gray or space == "YCbCr", 1 if is_gray else 3)
    with opened(data) as image:
        width, height = image.size
        _refuse_more(width, height, most_pixels)  # before more of it is read
        is_plain = image.mode in ("L", "RGB")
        channels, bits = _samples_of(image, format, data)
        if format == "png" and may_be_turned and _has_late_notes(data):
            image.load()
        try:
            # Of PNG, Pillow's own method decodes the pixels to come to what is noted behind them.
            exif = library("other images").Image.getexif(image) if may_be_turned else {}
            found = exif.get(_ORIENTATION, 1)
        except Exception as error:  # of any kind
            raise CorruptError(f"its EXIF data cannot be read: {error}") from None
    found = found if found in range(1, 9) else 1
    return Header(format, height, width, found, is_plain, channels, bits)


def _refuse_more(width: int, height: int, most_pixels: int) -> None:
    if height * width > most_pixels:
        raise CorruptError(
            f"its header says {width} x {height} pixels, max_pixels={most_pixels}; if it is meant to be that "
            "large, raise max_pixels"
        )


def _samples_of(image: Any, format: str, data: bytes | memoryview) -> tuple[int, int]:
    """How many channels an image of Pillow's has in its file, and how many bits a sample has there."""
    is_gray = image.mode in ("1", "L", "F") or image.mode.startswith("I")
    channels = 1 if is_gray else 3
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or (
        "transparency" in image.info and not image.mode.startswith("I")
    ):
        channels = 4
    bits = {"I": 16 if format == "ppm" else 32, "F": 32}.get(
        image.mode, 16 if image.mode.startswith("I") else 8
    )
    if format == "png":
        bits = max(8, data[24])  # Pillow reads colors of 16 as 8
    elif format == "tiff":
        tag = image.tag_v2.get(_BITS_PER_SAMPLE, 1)
        bits = max(8, *(tag if isinstance(tag, tuple) else (tag,)))
    elif format == "ppm" and image.tile and image.tile[0][0].startswith("ppm"):
        most = image.tile[0][3]
        bits = max(8, int(most[-1] if isinstance(most, tuple) else most).bit_length())
    elif format == "jpeg2000":
        size = bytes(data).partition(b"\xff\x4f\xff\x51")[2]
        bits = max(8, (size[38] & 0x7F) + 1)  # of the first channel
    elif format == "avif":
        about = bytes(data).partition(b"av1C")[2]
        flags = about[2] if about else 0
        bits = (12 if flags & 0x20 else 10) if flags & 0x40 else 8
    return channels, bits


def _has_late_notes(data: bytes | memoryview) -> bool:
    """True if a PNG has chunks behind its pixels in which cameras may note something."""
    at, is_behind = 8, False
    for _ in range(_MOST_CHUNKS):
        begin = bytes(data[at : at + 8])
        if len(begin) < 8:
            return False
        is_behind |= begin[4:] == b"IDAT"
        if is_behind and begin[4:] in _NOTES:
            return True
        at += 12 + int.from_bytes(begin[:4], "big")
    return True


def _has_exif(data: bytes | memoryview) -> bool:
    """True if a JPEG has what cameras note: looked for segment by segment, as searching takes longer."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        begin = bytes(data[at : at + 10])
        if len(begin) < 10:
            return False
        if begin[0] != 0xFF or begin[1] == 0:  # stray bytes, which some readers skip
            return True
        if begin[1] == 0xFF:  # one that fills, as may be before any marker
            at += 1
            continue
        if begin[1] in _IMAGE_MARKERS:
            return False
        if begin[1] == 0xE1 and begin[4:] == b"Exif\x00\x00":
            return True
        at += 2 + int.from_bytes(begin[2:4], "big")
    return True


@contextlib.contextmanager
def opened(data: bytes | memoryview) -> Iterator[Any]:
    """An image of Pillow's; only its header has been read, and its size is for the caller to check.

    Whatever fails within becomes a CorruptError: what is forged is read by many small readers.
    """
    pillow, format = library("other images"), format_of(data) or ""
    pillow.preinit()
    if format.upper() not in pillow.OPEN:
        pillow.init()
    try:
        # Not by Pillow's `open`, whose limit of pixels is one for the whole process.
        image = pillow.OPEN[format.upper()][0](io.BytesIO(data), "")
    except (SyntaxError, LookupError, TypeError, struct.error):  # what other readers of Pillow's may take
        raise CorruptError(f"it cannot be read as an image: {_unknown(format)}") from None
    except Exception as error:  # of any kind
        raise CorruptError(f"it cannot be read as an image: {error}") from None
    with image:
        try:
            yield image
        except CorruptError:
            raise
        except Exception as error:
            raise CorruptError(f"it cannot be decoded: {error}") from None


def _unknown(format: str) -> str:
    """Why Pillow does not know an image that begins as one of a format does."""
    from PIL import features

    feature = _OPTIONAL.get(format)
    if feature is not None and not features.check(feature):
        return f"this Pillow ({used_for('other images')}) lacks what decodes {format}; install a newer one"
    return f"it begins as {format} does, and is cut or damaged"


def decode(
    data: bytes | memoryview,
    found: Header,
    is_gray: bool,
    least: tuple[int, int] | None = None,
    into: Pixels | None = None,
    lost: Callable[[str], None] | None = None,
) -> Pixels:
    """(H, W, 3) the pixels of an image file, or (H, W, 1) if grey, as they are stored: not turned.

    Args:
        data: the file.
        found: its header.
        is_gray: grey instead of colors.
        least: of a JPEG, the least height and width that it may be scaled down to while it is decoded.
        into: memory for the pixels, which some decoders write to if there is no `least`; then it is what is
            returned.
        lost: hears what of the image these pixels lack.

    Raises:
        CorruptError: it is cut or damaged.
    """
    if found.format == "jpeg" and found.is_plain:
        pixels = _decode_jpeg(data, is_gray, least, into)
        if pixels is not None:
            return pixels
    return _decode_by_pillow(data, found, is_gray, lost)


def _decode_jpeg(
    data: bytes | memoryview, is_gray: bool, least: tuple[int, int] | None, into: Pixels | None
) -> Pixels | None:
    if not used_for("jpeg").startswith("simplejpeg"):
        return None
    height, width = least or (0, 0)
    jpeg = library("jpeg")
    try:
        pixels: Pixels = jpeg.decode_jpeg(
            data, colorspace="GRAY" if is_gray else "RGB", min_height=height, min_width=width, buffer=into
        )
    except ValueError as error:
        try:
            jpeg.decode_jpeg_header(data)
        except ValueError:  # which refuses more than what cannot be decoded
            return None
        raise CorruptError(f"it cannot be decoded: {error}") from None
    return pixels if into is None else into


def decode_unchanged(
    data: bytes | memoryview, found: Header, least: tuple[int, int] | None = None, into: Pixels | None = None
) -> npt.NDArray[Any]:
    """(H, W, C) the pixels of an image file with all its channels and bits, as they are stored: not turned.

    They are uint8 or uint16; palettes become colors, and grey with transparency becomes colors with it.

    Args:
        data: the file.
        found: its header.
        least: see `decode`.
        into: see `decode`.

    Raises:
        CorruptError: it is cut or damaged, or has other pixels than these.
        SchemaError: what decodes them is not installed.
    """
    if found.format == "jpeg" and found.is_plain:
        return decode(data, found, found.channels == 1, least, into)
    if found.bits > 8 and found.channels > 1:
        return _wide_colors(data, found)
    with opened(data) as image:
        image.load()
        if _is_wide(image):
            pixels = np.asarray(image).astype(np.uint16)
        elif image.mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
            pixels = np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[found.channels]))
        else:
            raise ValueError(f"its pixels are of the mode {image.mode}, and would be lost in part")
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _wide_colors(data: bytes | memoryview, found: Header) -> npt.NDArray[np.uint16]:
    """(H, W, 3) or (H, W, 4) colors of more than 8 bits each, of which Pillow would keep 8."""
    if not used_for("resizing").startswith("cv2"):
        raise SchemaError(
            f"an image has colors of {found.bits} bits each, of which Pillow keeps 8; pip install "
            "opencv-python-headless, or pass mode='rgb' for the upper 8"
        )
    cv2 = library("resizing")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise CorruptError("it cannot be decoded: it is cut or damaged, or OpenCV does not know its format")
    if pixels.dtype != np.uint16 or pixels.shape[2:] != (found.channels,):
        raise CorruptError(f"its colors have {found.bits} bits each, of which 8 would be kept")
    order = [2, 1, 0, 3][: found.channels]
    return np.ascontiguousarray(pixels[:, :, order])


def _is_wide(image: Any) -> bool:
    """True for shades of grey of 16 bits."""
    return bool(image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PPM", "PNG")))


def is_seen_through(image: Any) -> bool:
    """True if something behind an image of Pillow's, once it is loaded, would be seen."""
    return bool(image.convert("RGBA").getchannel("A").getextrema()[0] < 255)


def _decode_by_pillow(
    data: bytes | memoryview, found: Header, is_gray: bool, lost: Callable[[str], None] | None
) -> Pixels:
    with opened(data) as image:
        image.load()
        loss = ""
        if found.bits > 8:
            loss = f"its pixels have {found.bits} bits a channel, of which 8 are kept"
        elif lost is not None and found.channels == 4 and is_seen_through(image):
            loss = "it is transparent in part, and its pixels are not"
        if _is_wide(image):
            shades = (np.asarray(image) >> 8).astype(np.uint8)  # the upper eight bits, as of colors
            pixels = shades if is_gray else np.repeat(shades[:, :, None], 3, axis=2)
        elif image.mode in ("I", "F"):
            raise ValueError(
                f"its pixels are {'floats' if image.mode == 'F' else 'of 32 bits'}, and nothing says "
                "what is black and white in them; store arrays instead of the file"
            )
        else:
            image.info.pop("transparency", None)  # of which Pillow would warn where it leaves it out
            pixels = np.array(image.convert("L" if is_gray else "RGB"))
    if loss and lost is not None:
        lost(loss)
    return pixels[:, :, None] if is_gray else pixels


def turned(pixels: npt.NDArray[Any], turn: int) -> npt.NDArray[Any]:
    """Pixels as they are to be seen, for an orientation of EXIF."""
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1] if turn in (4, 8) else pixels[::-1, ::-1]
    elif turn in (2, 6):
        pixels = pixels[:, ::-1]
    return pixels


def resized(
    pixels: npt.NDArray[Any], height: int, width: int, into: Pixels | None = None
) -> npt.NDArray[Any]:
    """Pixels in another size: by area if a side becomes less than half as long, else linear.

    Down to a half, linear interpolation still looks at every pixel, and takes a fifth of the time. If they
    come to lie in `into`, that is what is returned.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if used_for("resizing").startswith("cv2"):
        cv2 = library("resizing")
        is_small = 2 * height < pixels.shape[0] or 2 * width < pixels.shape[1]
        way = cv2.INTER_AREA if is_small else cv2.INTER_LINEAR
        shape = height, width, pixels.shape[2]
        if into is not None and into.shape == shape and into.dtype == pixels.dtype and shape[2] > 1:
            cv2.resize(pixels, (width, height), dst=into, interpolation=way)
            return into
        found: npt.NDArray[Any] = cv2.resize(pixels, (width, height), interpolation=way)
        return found[:, :, None] if found.ndim == 2 else found
    pillow = library("resizing")
    if pixels.dtype != np.uint8 or pixels.shape[2] == 1:  # of which Pillow knows single channels only
        shades = [_shades_resized(pillow, pixels[:, :, c], height, width) for c in range(pixels.shape[2])]
        return np.stack(shades, axis=2)
    image = pillow.fromarray(np.ascontiguousarray(pixels))
    return np.array(image.resize((width, height), pillow.Resampling.BILINEAR), np.uint8)


def _shades_resized(pillow: Any, shades: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    given = shades if shades.dtype == np.uint8 else shades.astype(np.float32)
    image = pillow.fromarray(np.ascontiguousarray(given))
    found = np.array(image.resize((width, height), pillow.Resampling.BILINEAR))
    return found if shades.dtype == np.uint8 else np.rint(found).astype(shades.dtype)
