"""Which libraries for images, sound and text are here, and which of them is used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..errors import SchemaError

# By what they are for, the best first: its module, its package, and the extra that installs it.
KNOWN = {
    "jpeg": (("simplejpeg", "simplejpeg"), ("imagecodecs", "imagecodecs"), ("PIL", "pillow")),
    "jpeg on cuda": (("torchcodec.decoders", "torchcodec"),),
    "png": (("imagecodecs", "imagecodecs"), ("cv2", "opencv-python-headless"), ("PIL", "pillow")),
    "other images": (("PIL", "pillow"),),
    "resizing": (("cv2", "opencv-python-headless"), ("PIL", "pillow")),
    "sound": (("soundfile", "soundfile"),),
    "zstd": (("zstandard", "zstandard"),),
}
_EXTRAS = {"sound": "audio", "zstd": "zstd"}
_SAME = {
    "opencv-python-headless": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")
}


@lru_cache(None)
def here_for(purpose: str) -> tuple[str, ...]:
    """The libraries for a purpose that are here, with their versions, the best first."""
    found = []
    for module, package in KNOWN[purpose]:
        if _loads(module) if purpose == "jpeg on cuda" else _is_here(module):
            found.append(f"{module} {_version(package)}")
    return tuple(found)


def _is_here(module: str) -> bool:
    """True if a module can be found, without loading it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # another thread is loading OpenCV, which has no spec meanwhile
        return True


def _loads(module: str) -> bool:
    """True if a module that decodes on CUDA can be loaded: one is often there and cannot be."""
    if not torch.cuda.is_available():
        return False
    try:
        return hasattr(importlib.import_module(module), "decode_jpeg")
    except Exception:  # of any kind: a library that is missing, or of another version of torch
        return False


def _version(package: str) -> str:
    for name in (package, *_SAME.get(package, ())):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def used_for(purpose: str) -> str:
    """The library that is used, and its version; "" if there is none."""
    return next(iter(here_for(purpose)), "")


def library(purpose: str, names: Sequence[str] = ()) -> Any:
    """The best library for a purpose, loaded, or the best of some.

    Raises:
        SchemaError: none is here; says which extra installs one.
    """
    for found in here_for(purpose):
        module = found.partition(" ")[0]
        if not names or module in names:
            return importlib.import_module("PIL.Image" if module == "PIL" else module)
    if purpose == "jpeg on cuda":
        raise SchemaError(
            "no torchcodec that decodes images can be loaded; pip install one of the same CUDA as torch"
        )
    extra = _EXTRAS.get(purpose, "images")
    raise SchemaError(f"no library for {purpose} is installed; pip install 'torchyoga[{extra}]'")


class Codecs(dict[str, list[str]]):
    """The libraries that are here by what they are for, the one that is used first."""

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:{width}}  {', '.join(found) or '-'}" for name, found in self.items())

    __repr__ = __str__


def available() -> Codecs:
    """The libraries that are here for images, sound and text; the first of each is used.

    Example:
        >>> sorted(yoga.codecs.available())
        ['jpeg', 'jpeg on cuda', 'other images', 'png', 'resizing', 'sound', 'zstd']
    """
    return Codecs({purpose: list(here_for(purpose)) for purpose in KNOWN})
