"""Plain data -> a line of JSON with its own checksum, and back."""

from __future__ import annotations

import json

from ..rows.types import Json
from .manifest import digest

__all__ = ["sealed", "unsealed"]


def sealed(content: Json) -> bytes:
    """A line with its own checksum."""
    return json.dumps({**content, "checksum": digest(content)}).encode()


def unsealed(line: bytes) -> Json:
    """The content that `sealed` wrote; empty if it is cut or changed."""
    try:
        found = json.loads(line)
        sound = isinstance(found, dict) and found.pop("checksum", None) == digest(found)
        return found if sound else {}
    except (ValueError, RecursionError):
        return {}
