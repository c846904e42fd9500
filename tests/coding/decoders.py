"""Files of images, and some of the libraries that decode, in place of all that are installed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image

from torchyoga.coding import libraries


def file_of(image: Any, format: str = "JPEG", **options: Any) -> bytes:
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


@contextmanager
def only(purpose: str, module: str) -> Iterator[None]:
    """One library alone is known for a purpose."""
    forget, known = libraries.used_for.cache_clear, libraries.KNOWN
    found = tuple(one for one in known[purpose] if one[0] == module) or ((module, "none"),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(known, purpose, found)
        forget()
        yield
    forget()
