"""Damage to files: a changed bit, and manifests that are forged with the right checksum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torchyoga.process.digests import json_digest


def flip(path: Path, place: int | bytes, behind: int = 0) -> None:
    """Changes a bit of a file: of the byte there, or so many bytes behind the start of these bytes."""
    data = bytearray(path.read_bytes())
    data[(place if isinstance(place, int) else data.index(place)) + behind] ^= 1
    path.write_bytes(data)


def flipped(data: bytes, bits: Iterable[int]) -> Iterator[bytes]:
    """The bytes with another one of these bits changed each time."""
    for bit in bits:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def resealed(content: dict[str, Any]) -> bytes:
    """A manifest of this content, with its checksum."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    return json.dumps({**content, "checksum": json_digest(content)}).encode()
