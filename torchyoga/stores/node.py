"""The manifest of a version, sent once to a node: kept in its cache, with its tag in the store.

Note 139. A manifest that was kept is taken only if the store says that it is the same.
That is a request without a body. Of processes that ask at the same time, one asks the store, while the others
wait for the lock; they take what it has found if it began to ask after they did. So two requests serve
all, and none sees anything older than what was there when it began.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

from ..errors import BusyError, YogaError
from .cache import Cache

__all__ = ["Read", "read_by_node"]

# The tag that is known -> the bytes, None if they are the same, and their tag, None if there is none.
Read = Callable[[str | None], tuple[bytes | None, str | None]]
_WAIT = 30.0  # seconds for another process that asks
_LONGEST_LINE = 4096  # bytes


def read_by_node(cache: Cache, name: str, limit: int, read: Read) -> bytes | None:
    """What a store has under a name, sent only if this node does not have the same.

    Args:
        cache: where it is kept; if that cannot be, it is read anyway.
        name: of what is read, in all stores.
        limit: bytes that it may have.
        read: asks the store; FileNotFoundError is passed on.
    """
    key = f"{blake2b(name.encode(), digest_size=16).hexdigest()}.json"
    began = time.monotonic()
    asked: list[bytes | None] = []
    failed: list[Exception] = []
    try:
        with cache.noting(key, _WAIT):
            known = _Kept.of(cache.noted(key, limit + _LONGEST_LINE))
            if known is not None and known.machine == _machine() and began <= known.asked <= time.monotonic():
                return known.text
            asks = time.monotonic()
            try:
                text, tag = read(None if known is None else known.tag)
            except Exception as error:
                failed.append(error)
                raise
            if text is None:
                assert known is not None, "only what is known can be the same"
                text, tag = known.text, known.tag
            asked.append(text)
            cache.note(key, _Kept(text, tag, _machine(), asks).line() + text)
            return text
    except (OSError, YogaError, BusyError):
        if failed:
            raise failed[0] from failed[0].__cause__
        # The cache cannot be written, or its lock is held for too long.
        if asked:
            return asked[0]
    return read(None)[0]


class _Kept:
    """A text, the tag that the store gave it, and when and where the store was asked for it."""

    def __init__(self, text: bytes, tag: str | None, machine: str, asked: float) -> None:
        self.text, self.tag, self.machine, self.asked = text, tag, machine, asked

    @classmethod
    def of(cls, data: bytes | None) -> _Kept | None:
        """None if it is damaged."""
        line, _, text = (data or b"").partition(b"\n")
        try:
            found = json.loads(line)
            tag, digest = found["tag"], found["digest"]
            machine, asked = str(found["machine"]), float(found["asked"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if digest != _digest(text) or not isinstance(tag, (str, type(None))):
            return None
        return cls(text, tag, machine, asked)

    def line(self) -> bytes:
        found = {
            "tag": self.tag,
            "digest": _digest(self.text),
            "machine": self.machine,
            "asked": self.asked,
        }
        return json.dumps(found).encode() + b"\n"


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _machine() -> str:
    """This machine since it was started: its monotonic clock begins with it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return f"{socket.gethostname()} {os.name} {round(time.time() - time.monotonic(), -1):.0f}"
