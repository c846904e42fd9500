"""An unfinished build: its files, and the list of those that are finished."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import YogaError
from ..files.checksum import crc32_of
from ..files.root import Root
from ..process.digests import json_digest
from ..rows.types import Json
from .file_entry import FileEntry, is_data_file

_PROGRESS = "progress.json"
_LARGEST = 256 * 2**20  # bytes of the progress note


@dataclass(frozen=True)
class Staging:
    """The files of an unfinished build, and the list of those that are finished.

    Foreign files next to them stay.

    Attributes:
        root: their folder.
        replaces: the version that may be replaced, as the store gave it; None if none may.
        is_sent: the files are to be uploaded, and compared with their checksums before that.
    """

    root: Root
    replaces: object = None
    is_sent: bool = False

    @property
    def path(self) -> Path:
        """The folder of the files."""
        return self.root.path

    def load(self) -> Json:
        """The progress that `save` recorded last, with the files added since; empty if there is none.

        Raises:
            CorruptError: something other than a file has the name of the note.
        """
        try:
            text = self.root.read(_PROGRESS, _LARGEST)
        except FileNotFoundError:
            return {}
        first, *lines = text.split(b"\n")
        found = unsealed(first)
        for line in lines:
            added = unsealed(line)
            if "file" not in added or not isinstance(found.get("files"), list):
                break  # the line was being written when the build ended
            found["files"].append(added["file"])
        return found

    def save(self, progress: Json) -> None:
        """Records finished, synced files, in one step."""
        self.root.sync_way()
        self.root.sync()
        self.root.write(_PROGRESS, sealed(progress))

    def add(self, file: Json) -> None:
        """Records one more finished, synced file after those of `save`; each costs the same."""
        self.root.sync()
        with self.root.reopen(_PROGRESS) as note:
            note.write(b"\n" + sealed({"file": file}))
            note.flush()
            os.fsync(note.fileno())

    def new_file(self, name: str) -> str:
        """The path of a new, empty file."""
        self.root.create_anew(name).close()
        return str(self.path / name)

    def crc_of(self, name: str) -> int | None:
        """The CRC-32 of a file that has just been finished; None if it will not be needed."""
        if not self.is_sent:
            return None
        with open(self.path / name, "rb") as file:
            return crc32_of(file)[0]

    def keep_only(self, files: Sequence[FileEntry]) -> None:
        """Deletes files that earlier builds have written, except these and the note."""
        named = {file.name for file in files} | {_PROGRESS}
        for entry in self.root.scan():
            if entry.name not in named and _is_own(entry.name):
                self.root.unlink(entry.name)

    def clear(self) -> None:
        """Deletes files that builds have written, and the folder if it is then empty."""
        with contextlib.suppress(OSError, YogaError):  # behind a link, it is not ours
            for entry in self.root.scan():
                if _is_own(entry.name):
                    self.root.unlink(entry.name)
            self.root.remove_empty()


def _is_own(name: str) -> bool:
    return is_data_file(name) or name.startswith(_PROGRESS)


def sealed(content: Json) -> bytes:
    """A line with its own checksum."""
    return json.dumps({**content, "checksum": json_digest(content)}).encode()


def unsealed(line: bytes) -> Json:
    """The content that `sealed` wrote; empty if it is cut or changed."""
    try:
        found = json.loads(line)
        sound = isinstance(found, dict) and found.pop("checksum", None) == json_digest(found)
        return found if sound else {}
    except (ValueError, RecursionError):
        return {}
