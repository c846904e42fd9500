"""Which libraries for images, sound and text are here, and which of them is used."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..errors import SchemaError

# By what they are for, the best first: its module, its package, and the extra that installs it.
KNOWN = {
    "jpeg": (("simplejpeg", "simplejpeg"), ("PIL", "pillow")),
    "other images": (("PIL", "pillow"),),
    "resizing": (("cv2", "opencv-python-headless"), ("PIL", "pillow")),
    "sound": (("soundfile", "soundfile"),),
    "zstd": (("zstandard", "zstandard"),),
}
_EXTRAS = {"sound": "audio", "zstd": "zstd"}
_SAME = {
    "opencv-python-headless": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")
}


@cache
def used_for(purpose: str) -> str:
    """The best library for a purpose that is here, and its version; "" if there is none."""
    here = (f"{module} {_version(package)}" for module, package in KNOWN[purpose] if _is_here(module))
    return next(here, "")


def _is_here(module: str) -> bool:
    """True if a module can be found, without loading it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # another thread is loading OpenCV, which has no spec meanwhile
        return True


def _version(package: str) -> str:
    for name in (package, *_SAME.get(package, ())):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def library(purpose: str) -> Any:
    """The best library for a purpose, loaded.

    Raises:
        SchemaError: none is here; says which extra installs one.
    """
    if found := used_for(purpose):
        module = found.partition(" ")[0]
        return importlib.import_module("PIL.Image" if module == "PIL" else module)
    extra = _EXTRAS.get(purpose, "images")
    raise SchemaError(f"no library for {purpose} is installed; pip install 'torchyoga[{extra}]'")
