"""Damage to files: a changed bit, and manifests that are forged with the right checksum."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torchyoga.errors import CorruptError
from torchyoga.process.digests import hexdigest
from torchyoga.rows.schema import Schema
from torchyoga.versions.columns import fingerprint_of
from torchyoga.versions.file_entry import FileEntry


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
    checksum = hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")))  # NaN, too
    return json.dumps({**content, "checksum": checksum}).encode()


def sealed(content: dict[str, Any]) -> bytes:
    """A manifest of any content, with its checksum, and with its fingerprint if it can have one."""
    with contextlib.suppress(CorruptError, ValueError, TypeError, KeyError, AttributeError):
        files = [FileEntry.from_json(file) for file in content["files"]]
        content = {**content, "fingerprint": fingerprint_of(Schema.from_json(content["schema"]), files)}
    return resealed(content)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in some JSON, the empty one first."""
    yield path
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from places(content[key], (*path, key))
