"""Names for content, made of its bytes."""

from __future__ import annotations

import hashlib
import json


def hexdigest(*parts: str | bytes | memoryview, size: int = 16) -> str:
    """Hex digits (BLAKE2b, RFC 7693) of texts and memory end to end; nothing is put between them.

    Args:
        parts: what is named.
        size: bytes of the name, with two digits each.

    Example:
        >>> hexdigest("rows ", b"1") == hexdigest("rows 1"), len(hexdigest())
        (True, 32)
    """
    found = hashlib.blake2b(digest_size=size)
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
    return found.hexdigest()


def word_of(data: bytes) -> int:
    """64 bits of a digest of bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def json_digest(content: object) -> str:
    """`hexdigest` of plain data, whatever the order of its keys; ValueError for NaN or infinity."""
    return hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False))
