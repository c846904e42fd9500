"""Images decoded on a CUDA device: by torchcodec or by nvImageCodec, whichever loads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from ..errors import CorruptError
from .libraries import library, used_for
from .pictures import Header, decode, is_whole_jpeg

__all__ = ["BatchDecoder", "decoder_on", "part_on", "pixels_on", "used_on_device"]

Ints = npt.NDArray[np.int64]
Bytes = memoryview


class BatchDecoder(Protocol):
    """Decodes the files of JPEG images at once."""

    def __call__(self, values: Sequence[Bytes], is_gray: bool) -> list[torch.Tensor | None]:
        """(C, H, W) uint8 the pixels of each, on the device and not turned; None where there is none."""


@lru_cache(8)
def decoder_on(device: torch.device) -> BatchDecoder:
    """What decodes on a device.

    Raises:
        RuntimeError: no such device is here.
        SchemaError: no library for it is here.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"image(device={str(device)!r}) needs a CUDA device, and torch finds none here; leave device out "
            "to decode on the processor"
        )
    found = library("jpeg on cuda")
    return ByTorchCodec(device, found) if hasattr(found, "decode_jpeg") else ByNvImageCodec(device, found)


class ByTorchCodec:
    """Decodes by torchcodec, which hands a batch to nvJPEG.

    Args:
        device: where to.
        decoders: the module `torchcodec.decoders`.
    """

    def __init__(self, device: torch.device, decoders: Any) -> None:
        self._device = device
        self._decode = decoders.decode_jpeg

    def __call__(self, values: Sequence[Bytes], is_gray: bool) -> list[torch.Tensor | None]:
        """See `BatchDecoder`."""
        files = [torch.from_numpy(np.frombuffer(value, np.uint8).copy()) for value in values]
        mode = "GRAY" if is_gray else "RGB"
        try:
            return list(self._decode(files, mode=mode, device=self._device))
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
        return [self._one(file, mode) for file in files]  # of a batch, it does not say which one failed

    def _one(self, file: torch.Tensor, mode: str) -> torch.Tensor | None:
        try:
            found: torch.Tensor = self._decode(file, mode=mode, device=self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None
        return found


class ByNvImageCodec:
    """Decodes by nvImageCodec.

    Args:
        device: where to.
        codec: the module `nvidia.nvimgcodec`.
    """

    def __init__(self, device: torch.device, codec: Any) -> None:
        self._device = device
        self._codec = codec
        if device.type == "cuda":
            number = torch.cuda.current_device() if device.index is None else device.index
            self._decoder = codec.Decoder(device_id=number)
        else:
            backends = [codec.Backend(codec.BackendKind.CPU_ONLY)]
            self._decoder = codec.Decoder(device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=backends)

    def __call__(self, values: Sequence[Bytes], is_gray: bool) -> list[torch.Tensor | None]:
        """See `BatchDecoder`."""
        codec = self._codec
        spec = codec.ColorSpec.GRAY if is_gray else codec.ColorSpec.SRGB
        params = codec.DecodeParams(apply_exif_orientation=False, color_spec=spec)
        files = [codec.CodeStream(np.frombuffer(value, np.uint8)) for value in values]
        stream = 0
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device).cuda_stream
        found = self._decoder.decode(files, params=params, cuda_stream=stream)
        return [None if image is None else self._tensor(image).permute(2, 0, 1) for image in found]

    def _tensor(self, image: Any) -> torch.Tensor:
        if image.buffer_kind == self._codec.ImageBufferKind.STRIDED_HOST:
            image = np.asarray(image)
        return torch.as_tensor(image, device=self._device)


def pixels_on(
    device: torch.device,
    batch: BatchDecoder,
    values: Sequence[Bytes],
    headers: Sequence[Header | None],
    is_gray: bool,
) -> dict[int, torch.Tensor | CorruptError]:
    """The pixels of images by their place, (C, H, W) on a device and not turned, or why there are none.

    What is no plain JPEG, or is cut, is decoded on the processor.

    Args:
        device: where to.
        batch: what decodes there.
        values: the files of images.
        headers: what their headers say; None to leave one out.
        is_gray: grey instead of colors.
    """
    found: dict[int, torch.Tensor | CorruptError] = {}
    plain = [
        i
        for i, header in enumerate(headers)
        if header is not None and header.format == "jpeg" and header.is_plain and is_whole_jpeg(values[i])
    ]
    if plain:
        for i, pixels in zip(plain, batch([values[i] for i in plain], is_gray), strict=True):
            if pixels is not None:
                found[i] = pixels
    for i, header in enumerate(headers):
        if header is not None and i not in found:
            try:
                pixels = torch.from_numpy(np.ascontiguousarray(decode(values[i], header, is_gray)))
                found[i] = pixels.to(device).permute(2, 0, 1)
            except CorruptError as error:
                found[i] = error
    return found


def part_on(pixels: torch.Tensor, turn: int, box: Ints, size: tuple[int, int]) -> torch.Tensor:
    """(C, H, W) uint8 a part of an image in another size, linear and antialiased.

    Args:
        pixels: (C, H, W) uint8, as they are stored.
        turn: an orientation of EXIF.
        box: (4,) top, left, height and width of the part, once the image is turned.
        size: height and width of what is wanted.
    """
    if turn >= 5:
        pixels = pixels.transpose(1, 2)
    across = [axis for axis, turns in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if turn in turns]
    pixels = pixels.flip(across) if across else pixels
    top, left, height, width = box.tolist()
    part = pixels[:, top : top + height, left : left + width]
    if (height, width) == size:
        return part
    scaled = interpolate(part[None].float(), size, mode="bilinear", antialias=True)
    return scaled[0].round().clamp(0, 255).byte()


def used_on_device() -> list[str]:
    """What decodes and resizes on a device, and its version."""
    return [used_for("jpeg on cuda"), f"torch {torch.__version__}"]
