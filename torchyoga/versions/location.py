"""Where the files of a version are: in a directory, or somewhere from which they can be brought."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import NotFoundError
from ..files.regular import read_regular
from ..files.root import beside
from .manifest import LARGEST_MANIFEST, FileEntry, Manifest, is_data_file

__all__ = ["MANIFEST", "Files", "Folder", "Progress", "is_foreign"]

Ints = npt.NDArray[np.int64]
Progress = Callable[[], int | None]
MANIFEST = "manifest.json"


def is_foreign(name: str) -> bool:
    """True for a name in the folder of a version that torchyoga gives to nothing.

    Hidden files are not meant: systems and file servers leave some, and they are in nobody's way.
    """
    return not (is_data_file(name) or name in (MANIFEST, beside(MANIFEST)) or name.startswith("."))


class Files(Protocol):
    """The files of a version, by their entries in the manifest."""

    @property
    def name(self) -> str:
        """Where they are, for messages."""

    @property
    def is_far(self) -> bool:
        """True if a file has to be brought before it can be opened."""

    @property
    def ahead_bytes(self) -> int | None:
        """How many bytes may be read ahead of what is delivered; None if it does not matter."""

    def manifest(self) -> bytes:
        """The text of the manifest there is now; NotFoundError if there is none."""

    def path(self, entry: FileEntry) -> str:
        """Where a file lies on this machine; brings it if need be."""

    def held(self, entry: FileEntry) -> AbstractContextManager[str]:
        """A path of the file that stays what it is for a while."""

    def is_here(self, entry: FileEntry) -> bool:
        """True if the file lies on this machine, at its path."""

    def forget(self, entry: FileEntry) -> None:
        """Deletes the copy here of a file that was brought, so that it is brought again."""

    def is_checked(self, entry: FileEntry) -> bool:
        """True if this process has compared the whole file with its checksum when it brought it."""

    def begin(self, entries: Iterable[FileEntry]) -> None:
        """Begins to bring files that will be wanted, and returns."""

    def note_use(self, entries: Iterable[FileEntry]) -> None:
        """Files that are open are being read: others shall be deleted first where room is needed."""

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Brings files some time before they are wanted, in place of what was followed before.

        Args:
            entries: of the version.
            order: the number of the file of each row that will be wanted, some at a time.
            progress: how many rows have been given by now; None when that is over.
        """

    def bring_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Brings every file of a version, with a progress bar."""


@dataclass(frozen=True)
class Folder:
    """The files of a version in a directory of this machine."""

    name: str
    is_far = False
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
        """Where a file is."""
        return os.path.join(self.name, entry.name)

    @contextmanager
    def held(self, entry: FileEntry) -> Iterator[str]:
        """Where a file is."""
        yield self.path(entry)

    def is_here(self, entry: FileEntry) -> bool:
        """True if the file is there."""
        return os.path.exists(self.path(entry))

    def forget(self, entry: FileEntry) -> None:
        """What lies here is no copy."""

    def is_checked(self, entry: FileEntry) -> bool:
        """A file that lies here may have changed since."""
        return False

    def begin(self, entries: Iterable[FileEntry]) -> None:
        """Nothing has to be brought."""

    def note_use(self, entries: Iterable[FileEntry]) -> None:
        """Nothing is deleted here."""

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Nothing has to be brought."""

    def bring_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Nothing has to be brought."""
