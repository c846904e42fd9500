"""Values -> the bytes that are kept of them."""

from __future__ import annotations

import io
import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptError, SchemaError
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..rows.column import Codec
from ..rows.image_formats import format_of
from ..rows.types import Json, Row
from .decoders import rate_of_flac, whole_samples
from .libraries import library, used_for
from .pictures import Header, decode, decode_unchanged, header, is_seen_through, opened, resized, turned

_MOST_CHANNELS = 8  # that FLAC has


@dataclass(frozen=True)
class Encoder(ABC):
    """Encodes the values of a column on their way into a version."""

    name: ClassVar[str]

    @abstractmethod
    def encode(self, value: Row) -> bytes:
        """The bytes of a value.

        Raises:
            SchemaError: it cannot be encoded so.
        """

    def codec(self, value: Row) -> Codec:
        """The note about values such as this one."""
        return Codec(self.name)


def jpeg(quality: int = 90, short_side: int | None = None) -> Encoder:
    """Images as JPEG; a file that is one already is kept as it is, unless it is larger than `short_side`.

    Takes arrays and tensors of uint8, (H, W, 3) or (H, W), tensors (3, H, W), Pillow's images, and image
    files as paths or bytes. A file of 16 bits keeps the upper eight, with a warning at the first one; an
    animation keeps its first image; visible transparency is an error.

    Args:
        quality: 1 to 100.
        short_side: make the shorter side at most so many pixels; the largest gain in reading.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> images = [{"image": np.full((40, 60, 3), n, np.uint8)} for n in range(3)]
        >>> ref = storage.submit(images, "jpegs", "1", codecs={"image": yoga.codecs.jpeg(short_side=20)})
        >>> type(ref[0]["image"]).__name__, ref.decoded()[0]["image"].shape
        ('bytes', (20, 30, 3))
    """
    side = None if short_side is None else as_int("short_side", short_side, 1)
    return _Jpeg(as_int("quality", quality, 1, 100), side)


def png() -> Encoder:
    """Images as PNG, which loses nothing: of 8 or 16 bits, grey, colors, with or without transparency.

    Takes what `jpeg` takes, and arrays of uint16 or bool (H, W), as masks and depths are. A file that is PNG
    already is kept as it is. What PNG cannot hold here is an error: floats, 32 bits, colors of 16 bits, CMYK,
    several images in a file.

    Example:
        >>> masks = [{"mask": np.eye(8, dtype=bool)}]
        >>> ref = storage.submit(masks, "pngs", "1", codecs={"mask": yoga.codecs.png()})
        >>> ref.decoded({"mask": yoga.codecs.image(mode="gray")})[0]["mask"].shape
        (8, 8, 1)
    """
    return _Png()


def zstd(level: int = 3) -> Encoder:
    """Text or bytes, compressed row by row, so that each is read alone.

    Args:
        level: 1 to 22; higher ones are smaller and slower.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> texts = [{"text": "line after line"}] * 3
        >>> ref = storage.submit(texts, "texts", "1", codecs={"text": yoga.codecs.zstd()})
        >>> ref.decoded()[2]
        {'text': 'line after line'}
    """
    return _Zstd(as_int("level", level, 1, 22))


def flac(samplerate: int) -> Encoder:
    """Sound as FLAC, which loses nothing: arrays or tensors of int16, (N,) or (N, channels).

    Sound files, as paths or bytes, are kept as they are if they are FLAC. Other files must have samples of up
    to 24 bits; lossy ones, such as MP3, are kept with 16 bits.

    Args:
        samplerate: samples a second.

    Example:
        >>> sounds = [{"sound": np.arange(800, dtype=np.int16)}]
        >>> ref = storage.submit(sounds, "sounds", "1", codecs={"sound": yoga.codecs.flac(16000)})
        >>> ref.decoded()[0]["sound"].shape
        (800, 1)
    """
    return _Flac(as_int("samplerate", samplerate, 1, 2**20 - 1))


# -- images


def encoder_of(codec: Codec) -> Encoder | None:
    """The encoder of more values as a column has them already; None if its codec is not known here.

    Example:
        >>> from torchyoga.coding.encoders import encoder_of
        >>> pixels = np.zeros((9, 9, 3), np.uint8)
        >>> encoder_of(yoga.codecs.jpeg(80).codec(pixels)) == yoga.codecs.jpeg(80)
        True
    """
    found: Json = dict(codec.parameters)
    if codec.name == "jpeg":
        return _Jpeg(found.get("quality", 90), found.get("short_side"))
    if codec.name == "zstd":
        return _Zstd()
    if codec.name == "flac":
        return _Flac(found["samplerate"])
    return _Png() if codec.name == "png" else None


def _file_of(value: Row) -> bytes | None:
    """The content of a file, if that is what a value is."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, os.PathLike):
        try:
            with open(value, "rb") as file:
                return file.read()
        except OSError as error:
            raise SchemaError(f"the file cannot be read: {error}") from None
    return None


def _form_of(value: Row) -> tuple[tuple[str, str | int], ...]:
    """The note about an array or a tensor, so that it comes back as it was; nothing of other images."""
    if not isinstance(value, (np.ndarray, torch.Tensor)) or value.ndim not in (2, 3):
        return ()
    axes = "hw" if value.ndim == 2 else "chw" if _is_chw(value) else "hwc"
    channels = 1 if value.ndim == 2 else value.shape[0] if axes == "chw" else value.shape[2]
    kind = "tensor" if isinstance(value, torch.Tensor) else "ndarray"
    dtype = str(value.dtype).removeprefix("torch.")
    return ("axes", axes), ("channels", int(channels)), ("dtype", dtype), ("kind", kind)


def _is_chw(value: npt.NDArray[Any] | torch.Tensor) -> bool:
    """True for a tensor with its channels in front, as torch has them."""
    is_chw = value.ndim == 3 and value.shape[0] in (1, 3, 4) and value.shape[2] not in (1, 3, 4)
    return isinstance(value, torch.Tensor) and is_chw


def _pixels_of(value: Row, what: str) -> npt.NDArray[Any]:
    """(H, W) or (H, W, C) the pixels of an array, a tensor or an image of Pillow's."""
    if isinstance(value, torch.Tensor):
        found = value.detach().cpu().numpy()
        found = found.transpose(1, 2, 0) if _is_chw(value) else found
    elif isinstance(value, np.ndarray):
        found = value
    elif any(cls.__module__.partition(".")[0] == "PIL" for cls in type(value).__mro__):
        if value.mode in ("CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa") and what == "png":
            raise SchemaError(
                f"png cannot keep an image of the mode {value.mode}; pass image.convert('RGB'), or 'RGBA'"
            )
        is_clear = "transparency" in value.info and value.mode[0] != "I"  # in one color
        if is_clear or value.mode in ("P", "LA", "PA", "CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa", "RGBX"):
            value = value.convert("RGBA" if is_clear or value.mode[-1] in "Aa" else "RGB")
        found = np.asarray(value)
    else:
        raise SchemaError(
            f"{what} takes arrays, tensors, images of Pillow's, paths and bytes of image files, found a "
            f"{type(value).__name__}"
        )
    if found.ndim not in (2, 3) or (found.ndim == 3 and found.shape[2] not in (1, 3, 4)) or not found.size:
        raise SchemaError(f"{what} takes images (H, W) or (H, W, 3), found shape {found.shape}")
    if found.ndim == 3 and found.shape[2] == 1:
        found = found[:, :, 0]
    return found


@dataclass(frozen=True)
class _Jpeg(Encoder):
    name: ClassVar[str] = "jpeg"
    quality: int = 90
    short_side: int | None = None
    told: dict[str, object] = field(default_factory=dict, repr=False, compare=False)  # what was warned of

    def codec(self, value: Row) -> Codec:
        """The quality is of those that were encoded here."""
        side = () if self.short_side is None else (("short_side", self.short_side),)
        return Codec(self.name, (("quality", self.quality), *side, *_form_of(value)))

    def encode(self, value: Row) -> bytes:
        """A JPEG file."""
        data = _file_of(value)
        if data is not None:
            found = header(data)
            if found.format == "jpeg" and (self.short_side is None or min(found.shape) <= self.short_side):
                return data
            pixels: npt.NDArray[Any] = _opaque_pixels(data, found)
            mine = object()
            if found.bits > 8 and self.told.setdefault("bits", mine) is mine:  # the first of all threads
                warn_user(
                    f"jpeg keeps 8 bits of an image, and a file has {found.bits}; png keeps 16, and no codec "
                    "keeps files as they are"
                )
        else:
            pixels = _pixels_of(value, "jpeg")
        if pixels.dtype != np.uint8:
            raise SchemaError(f"jpeg takes pixels of uint8, found {pixels.dtype}; png keeps uint16 and bool")
        if pixels.ndim == 3 and pixels.shape[2] == 4:
            raise SchemaError("jpeg cannot keep transparency; use png, or image.convert('RGB')")
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        least = min(pixels.shape[:2])
        if self.short_side is not None and least > self.short_side:
            height, width = (max(1, round(side * self.short_side / least)) for side in pixels.shape[:2])
            pixels = resized(pixels, height, width)
        return self._encoded(np.ascontiguousarray(pixels))

    def _encoded(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        is_gray = pixels.shape[2] == 1
        if used_for("jpeg").startswith("simplejpeg"):
            space = "GRAY" if is_gray else "RGB"
            sampling = "Gray" if is_gray else "420"
            return bytes(
                library("jpeg").encode_jpeg(pixels, self.quality, colorspace=space, colorsubsampling=sampling)
            )
        image, out = library("other images").fromarray(pixels[:, :, 0] if is_gray else pixels), io.BytesIO()
        image.save(out, "JPEG", quality=self.quality)
        return out.getvalue()


@dataclass(frozen=True)
class _Png(Encoder):
    name: ClassVar[str] = "png"

    def codec(self, value: Row) -> Codec:
        """The codec that gives back an array as it was."""
        return Codec(self.name, _form_of(value))

    def encode(self, value: Row) -> bytes:
        """A PNG file."""
        data = _file_of(value)
        if data is not None:
            if format_of(data) == "png":
                return data
            pixels: npt.NDArray[Any] = _whole_pixels(data, header(data))
        else:
            pixels = _pixels_of(value, "png")
        if pixels.dtype == np.bool_:
            pixels = pixels.astype(np.uint8) * 255
        if pixels.dtype not in (np.uint8, np.uint16) or (pixels.dtype == np.uint16 and pixels.ndim == 3):
            raise SchemaError(
                f"png takes uint8, and uint16 or bool without colors, found {pixels.dtype} of shape "
                f"{pixels.shape}"
            )
        image, out = library("other images").fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
        image.save(out, "PNG")
        return out.getvalue()


# -- text


@dataclass(frozen=True)
class _Zstd(Encoder):
    name: ClassVar[str] = "zstd"
    level: int = 3

    def codec(self, value: Row) -> Codec:
        """The codec that a reader needs."""
        return Codec(self.name, (("of", "str" if isinstance(value, str) else "bytes"),))

    def encode(self, value: Row) -> bytes:
        """A frame of zstd."""
        return bytes(self._compressor().compress(_text_of(value)))

    def _compressor(self) -> Any:
        """One for each thread: they are not for several at once."""
        made: dict[int, Any] = _OF_THREAD.__dict__.setdefault("made", {})
        if self.level not in made:
            made[self.level] = library("zstd").ZstdCompressor(level=self.level)
        return made[self.level]


_OF_THREAD = threading.local()


def _text_of(value: Row) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise SchemaError(f"zstd takes text and bytes, found a {type(value).__name__}")


# -- sound


@dataclass(frozen=True)
class _Flac(Encoder):
    name: ClassVar[str] = "flac"
    samplerate: int = 16000

    def codec(self, value: Row) -> Codec:
        """The samples a second."""
        return Codec(self.name, (("samplerate", self.samplerate),))

    def encode(self, value: Row) -> bytes:
        """A FLAC file."""
        data = _file_of(value)
        subtype = "PCM_16"
        if data is None:
            found = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
            self._check(found)
        else:
            is_flac = data[:4] == b"fLaC"
            if is_flac:
                rate = rate_of_flac(data)
            else:
                found, rate, subtype = whole_samples(data)
            if rate != self.samplerate:
                raise SchemaError(f"the file has {rate} samples a second, flac was told {self.samplerate}")
            if is_flac:
                return data
        if not found.size or (found.ndim == 2 and found.shape[1] > _MOST_CHANNELS):
            raise SchemaError(
                f"flac takes 1 to {_MOST_CHANNELS} channels of at least one sample, found shape "
                f"{found.shape}; None stands for no sound"
            )
        out = io.BytesIO()
        library("sound").write(out, found, self.samplerate, format="FLAC", subtype=subtype)
        return out.getvalue()

    def _check(self, found: Row) -> None:
        if not (isinstance(found, np.ndarray) and found.dtype == np.int16 and found.ndim in (1, 2)):
            what = (
                f"{found.dtype} of shape {found.shape}" if hasattr(found, "dtype") else type(found).__name__
            )
            raise SchemaError(
                f"flac takes samples of int16, (N,) or (N, channels), found {what}; floats are "
                "(32767 * x.clip(-1, 1)).astype(np.int16)"
            )


def _whole_pixels(data: bytes, found: Header) -> npt.NDArray[Any]:
    """(H, W) or (H, W, C) all that an image file holds, as it is to be seen; uint8 or uint16.

    Args:
        data: the file.
        found: its header.

    Raises:
        CorruptError: it is cut or damaged, or something of it would be lost.
    """
    with opened(data) as image:
        count = getattr(image, "n_frames", 1)
    advice = "keep the file as it is, without a codec, or pass an array"
    if count > 1:
        raise CorruptError(f"it holds {count} images, and all but one would be lost; {advice}")
    if found.bits > 8 and found.channels > 1:
        raise CorruptError(f"its colors have {found.bits} bits each, of which 8 would be kept; {advice}")
    try:
        pixels = turned(decode_unchanged(data, found), found.turn)
    except CorruptError as error:
        raise CorruptError(f"{error}; {advice}") from None
    return np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _opaque_pixels(data: bytes, found: Header) -> npt.NDArray[np.uint8]:
    """(H, W, 3) or (H, W, 1) the pixels of an image file, as they are to be seen, in 8 bits.

    Args:
        data: the file.
        found: its header.

    Raises:
        CorruptError: it is cut or damaged, or something behind it would shine through.
    """
    with opened(data) as image:
        is_gray = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
        if (found.channels == 4 or "transparency" in image.info) and is_seen_through(image):
            raise CorruptError(
                "it has transparency, which jpeg cannot keep; use png, or pass image.convert('RGB')"
            )
    return turned(decode(data, found, is_gray), found.turn)
