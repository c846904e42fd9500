"""The bytes of an image file <-> its pixels."""

from __future__ import annotations

import io
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from .libraries import library, used_for

__all__ = [
    "MOST_PIXELS",
    "Header",
    "Pixels",
    "decode",
    "decode_exactly",
    "format_of",
    "header",
    "is_whole_jpeg",
    "opened",
    "resized",
    "turned",
]

Pixels = npt.NDArray[np.uint8]  # (H, W, 3), or (H, W, 1) if grey
MOST_PIXELS = 2**28
_SIGNS = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
    (b"II+\x00", "tiff"),
    (b"MM\x00+", "tiff"),
)
_OF_PILLOW = {
    "ppm": "PPM",
    "jpeg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "tiff": "TIFF",
    "webp": "WEBP",
}
_ORIENTATION = 0x0112
_MOST_SEGMENTS = 64
_IMAGE_MARKERS = frozenset({*range(0xC0, 0xC4), 0xDA, 0xD9})  # behind which nothing is noted
_ENDING = 1024  # bytes in which the end of a JPEG is marked; cameras write a little more behind it


class Header(NamedTuple):
    """What the header of an image file says."""

    format: str
    height: int  # as it is stored, before it is turned
    width: int
    turn: int  # of EXIF: 1 as stored; 5 to 8 exchange height and width
    is_plain: bool  # a JPEG of grey or YCbCr, as every decoder knows it

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width once it is turned."""
        return (self.width, self.height) if self.turn >= 5 else (self.height, self.width)


def format_of(data: bytes | memoryview) -> str | None:
    """The format that the first bytes of a file show: "jpeg", "png", "webp", "tiff", "gif", "bmp", "ppm" or
    None."""
    begin = bytes(data[:16])
    for sign, name in _SIGNS:
        if begin.startswith(sign):
            return name
    if begin[:1] == b"P" and begin[1:2] in b"123456" and begin[2:3] in (b" ", b"\t", b"\r", b"\n", b"#"):
        return "ppm"  # of colors, grey or bits
    return "webp" if begin[:4] == b"RIFF" and begin[8:12] == b"WEBP" else None


def header(data: bytes | memoryview, turn: bool = True, most_pixels: int = MOST_PIXELS) -> Header:
    """What the header of an image file says; nothing is decoded.

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
    return _header(data, format, turn, most_pixels)


def _refuse_more(width: int, height: int, most_pixels: int) -> None:
    if height * width > most_pixels:
        raise CorruptError(
            f"its header says {width} x {height} pixels, max_pixels={most_pixels}; if it is meant to be that "
            "large, raise max_pixels"
        )


def _header(data: bytes | memoryview, format: str, turn: bool, most_pixels: int) -> Header:
    may_be_turned = turn and (format != "jpeg" or _has_exif(data))
    if format == "jpeg" and not may_be_turned and used_for("jpeg").startswith("simplejpeg"):
        try:
            height, width, space, _ = library("jpeg").decode_jpeg_header(data)
        except ValueError:  # it is strict: Pillow says whether it can be read, and why not
            pass
        else:
            _refuse_more(width, height, most_pixels)
            return Header(format, height, width, 1, space in ("YCbCr", "Gray", "GRAY"))
    with opened(data) as image:
        width, height = image.size
        _refuse_more(
            width, height, most_pixels
        )  # before EXIF is read: of PNG, Pillow decodes it all for that
        is_plain = image.mode in ("L", "RGB")
        try:
            if _turn_of(image) >= 5:
                width, height = height, width
            found = image.getexif().get(_ORIENTATION, 1) if may_be_turned else 1
        except Exception as error:  # of any kind, as above
            raise CorruptError(f"its EXIF data cannot be read: {error}") from None
    found = found if found in range(1, 9) else 1
    return Header(format, height, width, found, is_plain)


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


def is_whole_jpeg(data: bytes | memoryview) -> bool:
    """True if a JPEG has its end: of what is cut, some decoders make up the rest."""
    return b"\xff\xd9" in bytes(data[-_ENDING:])


def _turn_of(image: Any) -> int:
    """How Pillow turns an image while it loads it, which it does with TIFF files; 1 if not at all."""
    found = image.getexif().get(_ORIENTATION, 1) if image.format == "TIFF" else 1
    return found if found in range(1, 9) else 1


def opened(data: bytes | memoryview) -> Any:
    """An image of Pillow's; only its header has been read, and its size is for the caller to check."""
    pillow = library("other images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # the caller compares sizes
            try:
                return pillow.open(io.BytesIO(data))
            except pillow.DecompressionBombError:  # Pillow's own limit is one for the whole process
                pillow.init()
                return pillow.OPEN[_OF_PILLOW[format_of(data) or ""]][0](io.BytesIO(data), "")
    except Exception as error:  # of any kind: what is forged is read by many small readers
        said = "Pillow does not know it" if "BytesIO" in str(error) else error
        raise CorruptError(f"it cannot be read as an image: {said}") from None


def decode(
    data: bytes | memoryview,
    found: Header,
    is_gray: bool,
    least: tuple[int, int] | None = None,
    into: Pixels | None = None,
) -> Pixels:
    """(H, W, 3) the pixels of an image file, or (H, W, 1) if grey, as they are stored: not turned.

    Args:
        data: the file.
        found: its header.
        is_gray: grey instead of colors.
        least: of a JPEG, the least height and width that it may be scaled down to while it is decoded.
        into: memory for the pixels, which some decoders write to; then it is what is returned.

    Raises:
        CorruptError: it is cut or damaged.
    """
    if found.format == "jpeg" and found.is_plain:
        pixels = _decode_jpeg(data, is_gray, least, into)
        if pixels is not None:
            return pixels
    if found.format == "png" and found.is_plain and not is_gray:
        pixels = _decode_png(data)
        if pixels is not None:
            return pixels
    return _decode_by_pillow(data, is_gray)


def _decode_jpeg(
    data: bytes | memoryview, is_gray: bool, least: tuple[int, int] | None, into: Pixels | None
) -> Pixels | None:
    name = used_for("jpeg").partition(" ")[0]
    if name == "simplejpeg":
        height, width = least or (0, 0)
        jpeg = library("jpeg")
        try:
            pixels: Pixels = jpeg.decode_jpeg(
                data,
                colorspace="GRAY" if is_gray else "RGB",
                min_height=height,
                min_width=width,
                buffer=into if least is None else None,
            )
        except ValueError as error:
            try:
                jpeg.decode_jpeg_header(data)
            except ValueError:  # which refuses more than what cannot be decoded
                return None
            raise CorruptError(f"it cannot be decoded: {error}") from None
        return pixels if into is None or least is not None else into
    if is_gray or name == "PIL":
        return None
    if name == "cv2":
        cv2 = library("jpeg")
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        return None if decoded is None else np.ascontiguousarray(decoded[:, :, ::-1])  # Pillow says why
    if not is_whole_jpeg(data):  # of what is cut, it would decode the beginning
        return None
    decoded = library("jpeg").jpeg8_decode(bytes(data), outcolorspace="rgb")
    return np.asarray(decoded)


def _decode_png(data: bytes | memoryview) -> Pixels | None:
    if not used_for("png").startswith("imagecodecs"):
        return None
    try:
        decoded: Pixels = library("png").png_decode(bytes(data))
    except Exception:  # Pillow says why
        return None
    is_color = decoded.dtype == np.uint8 and decoded.ndim == 3 and decoded.shape[2] == 3
    return decoded if is_color else None


def decode_exactly(data: bytes | memoryview, channels: int, dtype: str) -> npt.NDArray[Any]:
    """(H, W, C) the pixels of a PNG file as they were before they were encoded.

    Args:
        data: the file.
        channels: 1, 3 or 4.
        dtype: "uint8", "uint16" or "bool".

    Raises:
        CorruptError: it is cut or damaged, or has other pixels.
    """
    with opened(data) as image:
        try:
            image.load()
            is_wide = image.mode.startswith("I;16")
            if is_wide is not (dtype == "uint16"):
                raise ValueError(f"its pixels are {image.mode}, not {dtype}")
            mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
            pixels = np.array(image if is_wide else image.convert(mode))
        except Exception as error:  # of any kind, as above
            raise CorruptError(f"it cannot be decoded: {error}") from None
    pixels = pixels > 127 if dtype == "bool" else pixels.astype(dtype)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _decode_by_pillow(data: bytes | memoryview, is_gray: bool) -> Pixels:
    with opened(data) as image:
        try:
            turn = _turn_of(image)
            image.load()
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PPM", "PNG")):
                shades = (np.asarray(image) >> 8).astype(np.uint8)  # the upper eight bits, as of colors
                pixels = shades if is_gray else np.repeat(shades[:, :, None], 3, axis=2)
            elif image.mode in ("I", "F"):
                raise ValueError(
                    f"its pixels are {'floats' if image.mode == 'F' else 'of 32 bits'}, and nothing says "
                    "what is black and white in them; store arrays instead of the file"
                )
            else:
                pixels = np.array(image.convert("L" if is_gray else "RGB"))
        except Exception as error:  # of any kind, as above
            raise CorruptError(f"it cannot be decoded: {error}") from None
    pixels = pixels[:, :, None] if is_gray else pixels
    return turned(pixels, {6: 8, 8: 6}.get(turn, turn))  # back to how they are stored


def turned(pixels: Pixels, turn: int) -> Pixels:
    """Pixels as they are to be seen, for an orientation of EXIF."""
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1] if turn in (4, 8) else pixels[::-1, ::-1]
    elif turn in (2, 6):
        pixels = pixels[:, ::-1]
    return pixels


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Pixels in another size: by area if a side becomes less than half as long, else linear.

    Down to a half, linear interpolation still looks at every pixel, and takes a fifth of the time.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if used_for("resizing").startswith("cv2"):
        cv2 = library("resizing")
        is_small = 2 * height < pixels.shape[0] or 2 * width < pixels.shape[1]
        way = cv2.INTER_AREA if is_small else cv2.INTER_LINEAR
        found: Pixels = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=way)
        return found[:, :, None] if found.ndim == 2 else found
    pillow = library("resizing")
    is_gray = pixels.shape[2] == 1
    image = pillow.fromarray(np.ascontiguousarray(pixels[:, :, 0] if is_gray else pixels))
    found = np.array(image.resize((width, height), pillow.Resampling.BILINEAR), np.uint8)
    return found[:, :, None] if is_gray else found
