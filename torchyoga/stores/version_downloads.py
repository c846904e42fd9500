"""The files of a version in a store, downloaded into the cache."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ..errors import CorruptError, NotFoundError, RemoteError
from ..formats.contract import FORMATS, format_named
from ..process.digests import hexdigest
from ..reading.reader import Reader
from ..rows.types import Ints
from ..versions.columns import ColumnGroup
from ..versions.file_entry import FileEntry
from ..versions.location import MANIFEST, Progress, list_bytes
from ..versions.manifest import LARGEST_MANIFEST, Manifest
from ..versions.names import encoded
from .cache import Cache
from .downloads import Downloads
from .kinds import Found
from .local import transfer_bar
from .objects import Remote


class VersionDownloads(Downloads[FileEntry]):
    """The files of one version, in a folder of a store.

    Pickles by the URL; see `Remote` for its options.

    Args:
        remote: the store.
        folder: the folder of the version in the store.
        cache: where the files are kept on this machine.
        groups: of columns, without their files, to check files without a checksum of their own.
        lease_seconds: as in `Mirror`, for what is kept beside the version.

    Attributes:
        lease_seconds: as passed.
    """

    def __init__(
        self,
        remote: Remote,
        folder: str,
        cache: Cache,
        groups: Sequence[ColumnGroup],
        lease_seconds: float = 60.0,
    ) -> None:
        self._groups = groups
        self._folder = folder
        self.lease_seconds = lease_seconds
        self._keys: dict[int, tuple[FileEntry, str]] = {}  # the key of each entry, which is needed often
        self._listed: dict[str, dict[str, Found]] = {}
        super().__init__(remote, cache)

    def renew(self) -> None:
        """Forgets the threads, and the files that they were to download."""
        self._listing = threading.Lock()
        super().renew()

    def __reduce__(self) -> tuple[object, ...]:
        return VersionDownloads, (self.remote, self._folder, self.cache, self._groups, self.lease_seconds)

    @property
    def name(self) -> str:
        """The URL of the version."""
        return self.remote.where(self._folder)

    def manifest(self) -> bytes:
        """The text of the current manifest."""
        try:
            return self.remote.read(f"{self._folder}/{MANIFEST}", LARGEST_MANIFEST)
        except FileNotFoundError:
            raise NotFoundError(
                f"{self.name} has been removed since this DataRef was made; fetch or build it again"
            ) from None

    def key(self, entry: FileEntry) -> str:
        """The name of a file in the cache: no other file of any store has the same."""
        known = self._keys.get(id(entry))
        if known is None or known[0] is not entry:
            # Of a file that versions share, the name is the same in each of them.
            where = self.remote.where(self._folder_of(entry))
            what = f"{where}/{json.dumps(entry.whole.to_json(), sort_keys=True)}"
            hashed = hexdigest(what)
            known = self._keys[id(entry)] = entry, f"{hashed}{Path(entry.name).suffix}"
        return known[1]

    def _folder_of(self, entry: FileEntry) -> str:
        if entry.of is None:
            return self._folder
        return f"{self._folder.rpartition('/')[0]}/{encoded('version', entry.of)}"

    def _name_of(self, entry: FileEntry) -> str:
        return f"{self._folder_of(entry)}/{entry.name}"

    def _size(self, entry: FileEntry) -> int:
        return entry.nbytes

    def follow(self, entries: Sequence[FileEntry], order: Iterable[Ints], progress: Progress) -> None:
        """Downloads files ahead of time, on a thread, as far as the cache has space."""
        self._download_ahead(entries, order, progress)

    def _load(self, entries: Sequence[FileEntry]) -> None:
        for name in {entry.format for entry in entries} & set(FORMATS):
            format_named(name)

    def download_all(self, manifest: Manifest, progress: bool | None) -> None:
        """Downloads every file of a version; ValueError if the cache cannot keep them all."""
        limit = self.cache.limit
        if limit is not None and manifest.nbytes > limit:
            raise ValueError(
                f"{self.name} has {manifest.nbytes} bytes, but the cache keeps cache_bytes={limit}; set at "
                "least that, or leave download=True out"
            )
        with transfer_bar(manifest, f"downloading {self.name}", progress) as bar:
            self.begin(manifest.each_file)
            for entry in manifest.each_file:
                self.path(entry)
                bar.update(entry.nbytes)
        missing = [entry for entry in manifest.each_file if not self.is_here(entry)]
        if missing:
            raise OSError(
                errno.ENOSPC,
                f"{len(missing)} of {len(manifest.each_file)} files of {self.name} had to be deleted again "
                "to make room; make room there, or choose another cache_dir",
                str(self.cache.folder),
            )

    def _is_summed(self, entry: FileEntry) -> bool:
        return entry.crc is not None

    def _arrived(self, entry: FileEntry, crc: int, path: Path) -> str | None:
        if entry.crc is not None:
            return None if crc == entry.crc else f"its CRC-32 is {crc:08x}, the manifest says {entry.crc:08x}"
        # Uploaded by other tools: its blocks have checksums.
        group = next(group for group in self._groups if group.number == entry.group)
        found = Reader.of_file(str(path), group, entry.whole).verify_all()
        return found[0] if found else None

    def _check_size(self, entry: FileEntry) -> None:
        folder, name = self._folder_of(entry), self._name_of(entry)
        listed = self._files_in_store(folder)
        if not listed and self.remote.protocol in ("s3", "s3a"):
            return  # it lists nothing; what it answers to the download says as much
        found = listed.get(entry.name) or self.remote.find_one(name)
        if found is None:
            self._raise_what_happened(entry)
        elif found.nbytes not in (None, entry.nbytes):
            raise self.remote.other_size(name, found, entry.nbytes)

    def _files_in_store(self, folder: str) -> dict[str, Found]:
        """The files in a folder of the store: one request for all rather than one for each."""
        with self._listing:
            files = self._listed.get(folder)
            if files is None:
                try:
                    files = self.remote.find(folder)
                except RemoteError:
                    files = {}  # permission to read does not include permission to list
                self._listed[folder] = files
            return files

    def _raise_what_happened(self, entry: FileEntry) -> None:
        now = Manifest.from_bytes(self.manifest()).located(partial(list_bytes, self))
        if entry.name in {file.name for file in (*now.lists, *now.files)}:
            whose = "its manifest" if entry.of is None else f"the manifest of {self.name}"
            raise CorruptError(
                f"{self.where(entry)} is missing though {whose} names it; remove the version and publish it "
                "again"
            )
        raise NotFoundError(f"{self.name} has been overwritten since this DataRef was made; fetch it again")
