"""Small texts in a folder of a store, each created once: what many processes agree on without a server.

Note 105. Who creates a name first has decided.
A directory gives a finished file its name by a link, and a store creates an object only if there is none; so
a note is never seen half written, and of many that are written under one name the first one stays. Where a
file system has no links, a note may be cut: its reader takes what is no JSON for no note.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from ..files.root import Root

__all__ = ["FolderNotes", "Notes"]

_FORGOTTEN = 3600.0  # seconds that writing a note never takes
_DELETIONS = 8  # at once
_HIDDEN = ".new-"  # begins the name of a file that is being written
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class Notes(ABC):
    """Texts under names such as `7.json`, below one folder."""

    @abstractmethod
    def where(self, name: str) -> str:
        """The path or URL of a note, for messages."""

    @abstractmethod
    def create(self, name: str, text: bytes) -> bool:
        """Writes a note; False if another one has the name.

        Pass a text that no other writer would write: this shows whether a reply or a race was lost.

        Raises:
            OSError, RemoteError: it cannot be written.
        """

    @abstractmethod
    def write(self, name: str, text: bytes) -> None:
        """Writes a note, in place of any other of that name."""

    @abstractmethod
    def read(self, name: str, limit: int) -> bytes | None:
        """The text of a note; None if there is none if it has more than `limit` bytes."""

    @abstractmethod
    def names(self) -> dict[str, float | None]:
        """The notes below the folder, at any depth, and when each was written, in seconds since 1970 by the
        store's clock, None where it has none; costs one listing."""

    @abstractmethod
    def now(self) -> float | None:
        """The time of the store's clock; None if it has none."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Deletes notes; a missing one is not an error."""


class FolderNotes(Notes):
    """Notes in a directory.

    Args:
        root: the folder; made when something is first written.
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    def where(self, name: str) -> str:
        """The path of a note."""
        return str(self._root.path / name)

    def create(self, name: str, text: bytes) -> bool:
        """Writes a note, in one step where the file system has links."""
        folder = name.rpartition("/")[0]
        self._root.make(folder)
        new = f"{folder}/{_HIDDEN}{secrets.token_hex(8)}".lstrip("/")
        try:
            self._fill(new, text)
            try:
                self._root.link(new, name)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                try:
                    self._fill(name, text)
                except FileExistsError:
                    return False
            self._root.sync(folder)
            return True
        finally:
            with contextlib.suppress(OSError):
                self._root.unlink(new)

    def _fill(self, name: str, text: bytes) -> None:
        with self._root.create(name) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def write(self, name: str, text: bytes) -> None:
        """Replaces a note in one step."""
        folder = name.rpartition("/")[0]
        self._root.make(folder)
        new = f"{folder}/{_HIDDEN}{secrets.token_hex(8)}".lstrip("/")
        try:
            self._fill(new, text)
            self._root.move(new, name)
        finally:
            with contextlib.suppress(OSError):
                self._root.unlink(new)

    def read(self, name: str, limit: int) -> bytes | None:
        """The text of a note."""
        try:
            return self._root.read(name, limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self) -> dict[str, float | None]:
        """The notes, and when each was written."""
        return dict(self._below(""))

    def _below(self, folder: str) -> Iterable[tuple[str, float]]:
        for entry in self._root.scan(folder):
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_folder:
                yield from self._below(name)
            elif entry.is_file and not entry.name.startswith(_HIDDEN):
                yield name, entry.written

    def now(self) -> float | None:
        """The time of the file system's clock, which need not be this machine's."""
        name = f"{_HIDDEN}{secrets.token_hex(8)}"
        self._root.make()
        self._root.create(name).close()
        try:
            found = self._root.find(name)
            return time.time() if found is None else found.written
        finally:
            self._root.unlink(name)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes notes, and folders that are then empty."""
        names = list(names)
        with ThreadPoolExecutor(_DELETIONS, "torchyoga notes") as pool:
            deque(pool.map(self._root.unlink, names), maxlen=0)
        folders = {name.rpartition("/")[0] for name in names}
        for folder in {"", *folders}:  # what killed writers have left
            for entry in self._root.scan(folder):
                if entry.name.startswith(_HIDDEN) and entry.written < time.time() - _FORGOTTEN:
                    self._root.unlink(f"{folder}/{entry.name}".lstrip("/"))
        for folder in sorted({up for below in folders for up in _upwards(below)}, reverse=True):
            self._root.rmdir(folder)
        with contextlib.suppress(OSError):
            self._root.remove_empty()


def _upwards(folder: str) -> Iterable[str]:
    """A folder, and those above it."""
    parts = folder.split("/") if folder else []
    return ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
