"""Digests of content, and pseudo-random words of keys, the same on every machine.

BLAKE2b (RFC 7693) makes digests and a few words; SplitMix64 makes many words.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from .lazy import np

if TYPE_CHECKING:
    from .buffers import Ints
    from .buffers import Seeds as Words


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


def keyed_bytes(size: int, *key: int | str) -> bytes:
    """`size` (at most 64) bytes that depend on every part of the key (BLAKE2b, RFC 7693)."""
    # The 1 is not a version: proofs in saved states depend on it. A changed algorithm has another key.
    text = "\0".join(f"{type(part).__name__}:{part}" for part in ("torchyoga", 1, *key))
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def keyed_words(count: int, *key: int | str) -> Words:
    """`count` 64-bit words that depend on every part of the key."""
    some = [keyed_bytes(64, *key, index) for index in range(-(-count // 8))]
    return np.frombuffer(b"".join(some), "<u8")[:count].astype(np.uint64)


def random_words(key: int, count: int) -> Words:
    """`count` random words, no two of them the same."""
    return words_at(key, np.arange(1, count + 1))


def words_at(key: int | Words, numbers: Ints) -> Words:
    """A word for each number, no two the same under one key (SplitMix64: Steele, Lea, Flood, OOPSLA 2014)."""
    found = numbers.astype(np.uint64)
    found *= np.uint64(0x9E3779B97F4A7C15)
    found += np.uint64(key % 2**64) if isinstance(key, int) else key
    return splitmix(found)


def splitmix(words: Words) -> Words:
    """A permutation of 64-bit words: the last step of SplitMix64."""
    found: Words = words ^ (words >> np.uint64(30))
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found
