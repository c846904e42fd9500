"""Where the files of a version are: in a directory, in a store, or in a build that is not finished."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ..errors import NotFoundError, YogaError
from ..files.checksum import crc32_of
from ..files.root import Root, beside, read_regular
from ..process.digests import json_digest
from ..rows.types import Ints, Json
from .file_entry import LARGEST_LIST, FileEntry, is_data_file
from .manifest import LARGEST_MANIFEST, Manifest
from .names import encoded

Progress = Callable[[], int | None]
KeyT = TypeVar("KeyT", contravariant=True)
MANIFEST = "manifest.json"


def is_foreign(name: str) -> bool:
    """True for a name in the folder of a version that torchyoga never uses.

    Hidden files do not count: systems and file servers leave some, and they do no harm.
    """
    return not (is_data_file(name) or name in (MANIFEST, beside(MANIFEST)) or name.startswith("."))


def gone(name: str) -> NotFoundError:
    """The error for a version, or its files, that are not there any more."""
    return NotFoundError(f"{name} has been removed since this DataRef was made; fetch or build it again")


def list_bytes(files: Files, entry: FileEntry) -> bytes:
    """The bytes of a list of a version; FileNotFoundError or NotFoundError if it is gone."""
    with files.held(entry) as path:
        return read_regular(path, LARGEST_LIST)


class Origin(Protocol[KeyT]):
    """Where files come from, each known by a key."""

    @property
    def name(self) -> str:
        """Where they are, for messages."""

    @property
    def is_remote(self) -> bool:
        """True if a file has to be downloaded, or decompressed, before it can be opened."""

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of the delivered rows; None if it does not matter."""

    def path(self, key: KeyT, /) -> str:
        """The path of a file on this machine; waits until it is downloaded."""

    def is_here(self, key: KeyT, /) -> bool:
        """True if the file is on this machine, so that `path` need not wait."""

    def forget(self, key: KeyT, /) -> None:
        """Deletes the local copy of a downloaded file, so that it is downloaded again."""

    def begin(self, keys: Iterable[KeyT], /) -> None:
        """Begins to download files that will be needed, and returns."""

    def note_use(self, keys: Iterable[KeyT], /) -> None:
        """Records that open files are being read: to make room, others should be deleted first."""


class OnThisMachine:
    """What files of this machine share, of which none is a copy."""

    is_remote = False
    ahead_bytes: None = None

    def forget(self, key: object) -> None:
        """Does nothing: the file is not a copy."""

    def begin(self, keys: Iterable[object]) -> None:
        """Does nothing: the files are local."""

    def note_use(self, keys: Iterable[object]) -> None:
        """Does nothing: no files are deleted to make room."""


class Files(Origin[FileEntry], Protocol):
    """The files of a version, by their entries in the manifest."""

    def manifest(self) -> bytes:
        """The text of the current manifest; NotFoundError if there is none."""

    def held(self, entry: FileEntry) -> AbstractContextManager[str]:
        """A path of the file that stays valid within the `with` statement."""

    def is_checked(self, entry: FileEntry) -> bool:
        """True if this process downloaded the file, and compared the whole of it with its checksum."""

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files some time before they are needed, in place of an order that was followed before.

        Args:
            entries: the files of the version.
            order: for each row that will be read, the number of its file; some rows at a time.
            progress: returns how many rows have been delivered by now; None at the end.
        """

    def download_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Downloads every file of a version, with a progress bar."""


@dataclass(frozen=True)
class Folder(OnThisMachine):
    """The files of a version in a directory of this machine.

    Attributes:
        name: the directory.
        shared: the group may write what is made beside the version.
    """

    name: str
    shared: bool = False

    def manifest(self) -> bytes:
        """The text of the manifest."""
        try:
            return read_regular(os.path.join(self.name, MANIFEST), LARGEST_MANIFEST)
        except FileNotFoundError:
            raise gone(self.name) from None

    def path(self, entry: FileEntry) -> str:
        """The path of a file."""
        if entry.of is None:
            return os.path.join(self.name, entry.name)
        return os.path.join(os.path.dirname(self.name), encoded("version", entry.of), entry.name)

    @contextmanager
    def held(self, entry: FileEntry) -> Iterator[str]:
        """The path of a file."""
        yield self.path(entry)

    def is_here(self, entry: FileEntry) -> bool:
        """True if the file exists."""
        return os.path.exists(self.path(entry))

    def is_checked(self, entry: FileEntry) -> bool:
        """False: a local file may have changed since."""
        return False

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Does nothing: the files are local."""

    def download_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Does nothing: the files are local."""


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
        self.root.recreate(name).close()
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
        with suppress(OSError, YogaError):  # behind a link, it is not ours
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
