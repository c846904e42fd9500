"""Small texts behind a URL, each created once, as `notes` describes them."""

from __future__ import annotations

from collections.abc import Iterable

from .notes import Notes
from .objects import Remote


class RemoteNotes(Notes):
    """Notes behind a URL.

    Args:
        remote: the folder.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def where(self, name: str) -> str:
        """The URL of a note."""
        return self._remote.where(name)

    def create(self, name: str, text: bytes) -> bool:
        """Writes a note, in one step where the store can."""
        try:
            self._remote.create(name, text)
        except FileExistsError:
            return False
        return True

    def write(self, name: str, text: bytes) -> None:
        """Replaces a note."""
        self._remote.write(name, text)

    def read(self, name: str, limit: int) -> bytes | None:
        """The text of a note."""
        try:
            return self._remote.read(name, limit)
        except FileNotFoundError:
            return None

    def names(self) -> dict[str, float | None]:
        """The notes, and when each was written."""
        return {name: found.written for name, found in self._remote.find().items()}

    def now(self) -> float | None:
        """The time of the store's clock."""
        return self._remote.now()

    def delete(self, names: Iterable[str]) -> None:
        """Deletes notes."""
        self._remote.delete(names)
