"""Where the files of a version are: in a directory, or in a store from which they can be downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from ..errors import NotFoundError
from ..files.regular import read_regular
from ..files.root import beside
from ..rows.types import Ints
from .file_entry import FileEntry, is_data_file
from .listed import LARGEST_LIST
from .manifest import LARGEST_MANIFEST, Manifest
from .names import encoded

Progress = Callable[[], int | None]
MANIFEST = "manifest.json"


def is_foreign(name: str) -> bool:
    """True for a name in the folder of a version that torchyoga never uses.

    Hidden files do not count: systems and file servers leave some, and they do no harm.
    """
    return not (is_data_file(name) or name in (MANIFEST, beside(MANIFEST)) or name.startswith("."))


def list_bytes(files: Files, entry: FileEntry) -> bytes:
    """The bytes of a list of a version; FileNotFoundError or NotFoundError if it is gone."""
    with files.held(entry) as path:
        return read_regular(path, LARGEST_LIST)


class Files(Protocol):
    """The files of a version, by their entries in the manifest."""

    @property
    def name(self) -> str:
        """Where they are, for messages."""

    @property
    def is_remote(self) -> bool:
        """True if a file has to be downloaded before it can be opened."""

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of the delivered rows; None if it does not matter."""

    def manifest(self) -> bytes:
        """The text of the current manifest; NotFoundError if there is none."""

    def path(self, entry: FileEntry) -> str:
        """The path of a file on this machine; downloads it if need be."""

    def held(self, entry: FileEntry) -> AbstractContextManager[str]:
        """A path of the file that stays valid within the `with` statement."""

    def is_here(self, entry: FileEntry) -> bool:
        """True if the file is on this machine, at its path."""

    def forget(self, entry: FileEntry) -> None:
        """Deletes the local copy of a downloaded file, so that it is downloaded again."""

    def is_checked(self, entry: FileEntry) -> bool:
        """True if this process downloaded the file, and compared the whole of it with its checksum."""

    def begin(self, entries: Iterable[FileEntry]) -> None:
        """Begins to download files that will be needed, and returns."""

    def note_use(self, entries: Iterable[FileEntry]) -> None:
        """Records that open files are being read: to make room, others should be deleted first."""

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
class Folder:
    """The files of a version in a directory of this machine.

    Attributes:
        name: the directory.
        shared: the group may write what is made beside the version.
    """

    name: str
    shared: bool = False
    is_remote = False
    ahead_bytes: None = None

    def manifest(self) -> bytes:
        """The text of the manifest."""
        try:
            return read_regular(os.path.join(self.name, MANIFEST), LARGEST_MANIFEST)
        except FileNotFoundError:
            raise NotFoundError(
                f"{self.name} has been removed since this DataRef was made; fetch or build it again"
            ) from None

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

    def forget(self, entry: FileEntry) -> None:
        """Does nothing: the file is not a copy."""

    def is_checked(self, entry: FileEntry) -> bool:
        """False: a local file may have changed since."""
        return False

    def begin(self, entries: Iterable[FileEntry]) -> None:
        """Does nothing: the files are local."""

    def note_use(self, entries: Iterable[FileEntry]) -> None:
        """Does nothing: no files are deleted to make room."""

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Does nothing: the files are local."""

    def download_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Does nothing: the files are local."""
