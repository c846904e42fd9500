"""Small texts in a folder of a store, each created once: what many processes agree on without a server.

Note 10. Who creates a name first has decided.
A directory gives a finished file its name by a link, and a store creates an object only if there is none; so
a note is never seen half written, and of many that are written under one name the first one stays. Where a
file system has no links, a note may be cut: its reader takes what is no JSON for no note.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from ..files.root import Entry, Root

_TRIES = 20  # to write a note beside processes that clean up
_DELETIONS = 8  # at once
_HIDDEN = ".new-"  # begins the name of a file that is being written
_AT_WORK = re.compile(r"here/[0-9a-f]{16}-([0-9]{1,5})\.json")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def at_work(seconds: float) -> str:
    """The name of a note that a builder by many writes again within some seconds, as long as it lives."""
    return f"here/{secrets.token_hex(8)}-{int(seconds)}.json"


def are_at_work(names: Mapping[str, float | None], now: float) -> bool:
    """True if one of the notes of a build was written so lately that its builder counts as alive."""
    ages = ((_AT_WORK.fullmatch(name), written) for name, written in names.items() if written is not None)
    return any(abs(now - written) <= int(match[1]) + 1 for match, written in ages if match)


class Notes:
    """Notes in a directory: texts under names such as `7.json`, by the verbs of `Objects`.

    Args:
        root: the folder; made when something is first written.
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    def where(self, name: str) -> str:
        """The path of a note."""
        return str(self._root.path / name)

    def create(self, name: str, text: bytes) -> bool:
        """Writes a note, in one step where the file system has links; False if another one has the name.

        Pass a text that no other writer would write: this shows whether a race was lost.
        """
        return self._written(name, text, self._link)

    def write(self, name: str, text: bytes) -> None:
        """Writes a note, in place of any other of that name, in one step."""
        self._written(name, text, self._move)

    def _written(self, name: str, text: bytes, put: Callable[[str, str, bytes], bool]) -> bool:
        """Writes a text beside a note, and puts it in the note's place."""
        folder = name.rpartition("/")[0]
        for left in reversed(range(_TRIES)):
            new = f"{folder}/{_HIDDEN}{secrets.token_hex(8)}".lstrip("/")
            try:
                self._root.make(folder)
                self._root.fill(new, text)
                return put(new, name, text)
            except FileNotFoundError:  # `clean` took it for one that a killed writer has left
                if not left:
                    raise
            finally:
                with contextlib.suppress(OSError):
                    self._root.unlink(new)
        raise AssertionError("the last try returns or raises")

    def _move(self, new: str, name: str, text: bytes) -> bool:
        self._root.move(new, name)
        return True

    def _link(self, new: str, name: str, text: bytes) -> bool:
        try:
            self._root.link(new, name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                self._root.fill(name, text)
            except FileExistsError:
                return False
        self._root.sync(name.rpartition("/")[0])
        return True

    def read(self, name: str, limit: int) -> bytes:
        """The text of a note.

        Raises:
            FileNotFoundError: there is none.
            CorruptError: it has more than `limit` bytes.
        """
        return self._root.read(name, limit)

    def find(self) -> dict[str, Entry]:
        """The notes below the folder, at any depth, by their names within it."""
        return {name: one for name, one in self._below("") if not one.name.startswith(_HIDDEN)}

    def _below(self, folder: str) -> Iterable[tuple[str, Entry]]:
        for entry in self._root.scan(folder):
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_folder:
                yield from self._below(name)
            elif entry.is_file:
                yield name, entry

    def unfinished(self, before: float) -> dict[str, int]:
        """The names and bytes of files that were being written before a time, and may have been left by
        killed writers."""
        return {
            name: one.nbytes
            for name, one in self._below("")
            if one.name.startswith(_HIDDEN) and one.written < before
        }

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
        """Deletes notes, and folders that are then empty; a missing note is not an error."""
        names = list(names)
        with ThreadPoolExecutor(_DELETIONS, "torchyoga notes") as pool:
            deque(pool.map(self._root.unlink, names), maxlen=0)
        folders = {name.rpartition("/")[0] for name in names}
        for folder in sorted({up for below in folders for up in _upwards(below)}, reverse=True):
            self._root.rmdir(folder)
        with contextlib.suppress(OSError):
            self._root.remove_empty()


def _upwards(folder: str) -> Iterable[str]:
    """A folder, and those above it."""
    parts = folder.split("/") if folder else []
    return ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
