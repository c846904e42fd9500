"""Where tests put the bytes that they read from stores."""

from __future__ import annotations


class Kept:
    """A sink in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    @property
    def at(self) -> int:
        return len(self.data)

    def add(self, piece: bytes) -> None:
        self.data += piece

    def restart(self) -> None:
        self.data.clear()
