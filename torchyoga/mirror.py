"""Finished versions behind a URL: built on this machine, published there once, read from anywhere.

<url>/<id>/<version>/manifest.json           created last, if it is not there: without it there is no version
<url>/<id>/<version>/<build>-00000.mdb       its data files
<url>/.leases/<id>/<version>/00000001.json   who builds it; see `lease`
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .cache import Cache
from .checksum import crc32_of
from .downloads import Downloads
from .errors import CorruptError, ExistsError, RemoteError, YogaError
from .files import MANIFEST, Folder
from .lease import Lease
from .manifest import LARGEST_MANIFEST, FileEntry, Manifest, is_data_file
from .names import decoded, encoded
from .remote import Found, Remote
from .staging import Staging
from .store import Store, transfer_bar
from .versions import Held, Versions, opening, sealed

__all__ = ["Mirror"]

_log = logging.getLogger("torchyoga")
_UPLOADS = 4  # files at once
_FOREVER = 2.0**31  # seconds


class Mirror(Versions):
    """The versions under a URL. Reading takes no locks and writes nothing there.

    Args:
        remote: the store.
        cache: where this machine keeps what it has read and what it builds.
        lease_seconds: a builder without a sign of life for so long counts as dead.
    """

    def __init__(self, remote: Remote, cache: Cache, lease_seconds: float) -> None:
        self._remote = remote
        self._cache = cache
        self._lease_seconds = lease_seconds
        key = blake2b(remote.url.encode(), digest_size=8).hexdigest()
        self._local = Store(cache.folder / "building" / key)
        self._leases: dict[tuple[str, str], Lease] = {}
        self._has_warned = False

    @property
    def name(self) -> str:
        """The URL."""
        return self._remote.url

    def where(self, id: str, version: str) -> str:
        """The URL of a version."""
        return self._remote.where(self._folder(id, version))

    def _folder(self, id: str, version: str) -> str:
        return f"{encoded('id', id)}/{encoded('version', version)}"

    # -- reading

    def read_manifest(self, id: str, version: str) -> bytes | None:
        """The text of a manifest; RemoteError if the store cannot be reached."""
        try:
            return self._remote.read(f"{self._folder(id, version)}/{MANIFEST}", LARGEST_MANIFEST)
        except FileNotFoundError:
            return None

    def files(self, manifest: Manifest) -> Downloads:
        """The files of a version, brought when they are wanted."""
        return Downloads(
            self._remote, self._folder(manifest.id, manifest.version), self._cache, manifest.schema
        )

    @contextlib.contextmanager
    def fresh(self, manifest: Manifest) -> Iterator[Downloads]:
        """The files of a version, downloaded again one by one."""
        with self._scratch() as scratch:
            folder = self._folder(manifest.id, manifest.version)
            yield Downloads(self._remote, folder, Cache(scratch, limit=0), manifest.schema)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        self._cache.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="checking-", dir=self._cache.folder) as scratch:
            yield Path(scratch)

    def published(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted; costs one listing of everything."""
        found = (name.split("/") for name in self._remote.find())
        pairs = [
            (decoded(parts[0]), decoded(parts[1]))
            for parts in found
            if len(parts) == 3 and parts[2] == MANIFEST
        ]
        return sorted((id, version) for id, version in pairs if id is not None and version is not None)

    def versions(self, id: str) -> list[str]:
        """The published versions of an id, sorted."""
        found = (name.split("/") for name in self._remote.find(encoded("id", id)))
        versions = [decoded(parts[0]) for parts in found if len(parts) == 2 and parts[1] == MANIFEST]
        return sorted(version for version in versions if version is not None)

    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """What lies beside a manifest; a store that does not list is asked for each file."""
        folder = self._folder(manifest.id, manifest.version)
        found: dict[str, Found | None] = {**self._remote.find(folder)}
        for entry in manifest.files:
            if entry.name not in found or found[entry.name].nbytes is None:  # type: ignore[union-attr]
                found[entry.name] = self._remote.find_one(f"{folder}/{entry.name}")
        known = {entry.name: entry.nbytes for entry in manifest.files}
        return {
            name: known.get(name, 0) if there.nbytes is None else there.nbytes
            for name, there in found.items()
            if there is not None and name != MANIFEST
        }

    # -- writing

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1) -> Iterator[None]:
        """Holds the lock of this machine, and the lease in the store."""
        self._remote.refuse_read_only()
        folder = f".leases/{self._folder(id, version)}"
        what = f"building {id!r} {version!r} in {self.name}"
        patience = timeout if timeout >= 0 else _FOREVER
        with (
            self._local.lock(id, version, timeout),
            Lease(self._remote, folder, what, self._lease_seconds, patience) as lease,
        ):
            self._leases[id, version] = lease
            self._warn_of_weak_stores()
            try:
                yield
            finally:
                del self._leases[id, version]

    def stage(self, id: str, version: str) -> Staging:
        """A place on this machine; an interrupted build is continued only here."""
        found = self.find(id, version)
        return replace(self._local.stage(id, version), replaces=None if found is None else found.build)

    def publish(self, staging: Staging, manifest: Manifest, progress: bool | None = None) -> Manifest:
        """Uploads the files, then creates the manifest."""
        published = self._put(manifest, Folder(str(staging.path)).held, staging.replaces, progress)
        files = self.files(published)
        for file in published.files:  # what was built here need not be downloaded
            with contextlib.suppress(OSError):
                self._cache.adopt(files.key(file), staging.path / file.name)
        staging.clear()
        return published

    def receive(self, manifest: Manifest, held: Held, progress: bool | None = None) -> Manifest:
        """Uploads the files; those that an interrupted copy has brought already are kept."""
        found = self.find(manifest.id, manifest.version)
        return self._put(manifest, held, None if found is None else found.build, progress)

    def _put(
        self,
        manifest: Manifest,
        held: Held,
        replaces: str | None,
        progress: bool | None,
    ) -> Manifest:
        id, version = manifest.id, manifest.version
        sealed(manifest)
        held = opening(manifest, held)
        folder = self._folder(id, version)
        there = self._remote.find(folder)
        with transfer_bar(manifest, f"uploading to {self.name}", progress) as bar:
            entries = tuple(self._uploaded(folder, manifest.files, held, there, bar))
        published = replace(manifest, files=entries)
        name, text = f"{folder}/{MANIFEST}", sealed(published)
        try:
            if replaces is None:
                self._remote.create(name, text)
            else:
                self._leases[id, version].check()
                self._refuse_other(id, version, replaces)
                self._remote.write(name, text)
        except FileExistsError as error:
            raise ExistsError(
                f"{id!r} {version!r} was published in {self.name} by another in the meantime; fetch that"
            ) from error
        return published

    def _refuse_other(self, id: str, version: str, expected: str) -> None:
        found = self.find(id, version)
        if found is not None and found.build != expected:
            raise FileExistsError(self.where(id, version))

    def _uploaded(
        self, folder: str, files: Sequence[FileEntry], held: Held, there: dict[str, Found], bar: Any
    ) -> Iterator[FileEntry]:
        """Uploads the files, some at once; gives the entry of each with its CRC-32."""
        pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="torchyoga upload")
        waiting: deque[Future[FileEntry]] = deque()
        try:
            for entry in files:
                waiting.append(pool.submit(self._upload, folder, entry, held, there, bar))
                if len(waiting) >= 2 * _UPLOADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _upload(
        self, folder: str, entry: FileEntry, held: Held, there: dict[str, Found], bar: Any
    ) -> FileEntry:
        with held(entry) as path:
            with open(path, "rb") as file:
                crc, _ = crc32_of(file)
            if entry.crc not in (None, crc):
                raise CorruptError(f"{path} is damaged: its CRC-32 is {crc:08x}, not {entry.crc:08x}")
            found = there.get(entry.name)
            if found is None or found.nbytes != entry.nbytes:  # its name is that build's alone
                self._remote.upload(path, f"{folder}/{entry.name}")
        bar.update(entry.nbytes)
        return replace(entry, crc=crc)

    def remove(self, id: str, version: str, timeout: float = -1) -> None:
        """Removes a version; what is in caches stays, who wants more of it hears that it was removed."""
        with self.lock(id, version, timeout):
            folder = self._folder(id, version)
            names = self._remote.find(folder)
            if MANIFEST not in names:
                self.manifest(id, version)  # says what there is
            self._leases[id, version].check()
            self._remote.delete([f"{folder}/{MANIFEST}"])
            self._remote.delete(f"{folder}/{name}" for name in names if name != MANIFEST)
            shutil.rmtree(self._local.stage(id, version).path, ignore_errors=True)

    def clean(self, grace: float) -> list[str]:
        """Removes what builds and uploads have left, or what was replaced, unless one is under way."""
        now = self._remote.now()
        if now is None:
            raise RemoteError(
                f"{self.name} does not say when files were written; remove what is left by hand"
            )
        before = now - grace
        folders: dict[str, dict[str, Found]] = {}
        for name, there in self._remote.find().items():
            folder, _, file = name.rpartition("/")
            folders.setdefault(folder, {})[file] = there
        alive = {
            folder
            for folder in folders
            if folder.startswith(".leases/")
            and Lease.is_alive(self._remote, folder, self._lease_seconds, now)
        }
        removed = []
        for folder, names in folders.items():
            if folder.split("/")[0] == ".leases" and folder not in alive:
                removed += [f"{folder}/{name}" for name, there in names.items() if _is_before(there, before)]
        self._remote.delete(removed)
        for folder, names in folders.items():
            if f".leases/{folder}" not in alive and self._forgotten(folder, names, before):
                removed += self._clean_version(folder, before)
        return sorted(removed + self._remote.abort_uploads(before) + self._local.clean(grace))

    def _clean_version(self, folder: str, before: float) -> list[str]:
        """Looks again, while nobody builds the version, and removes what is forgotten in its folder."""
        id, _, version = folder.partition("/")
        try:
            with self.lock(str(decoded(id)), str(decoded(version)), timeout=0):
                removed = self._forgotten(folder, self._remote.find(folder), before)
                self._remote.delete(removed)
                return removed
        except RemoteError:
            raise
        except YogaError:
            return []  # somebody has begun to build it

    def _forgotten(self, folder: str, names: dict[str, Found], before: float) -> list[str]:
        """Files in the folder of a version that its manifest does not name, if both are old enough."""
        parts = [decoded(part) for part in folder.split("/")]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return []
        needed: set[str] = set()
        if MANIFEST in names:
            manifest = self.find(parts[0], parts[1])
            if manifest is None or not _is_before(names[MANIFEST], before):
                return []  # whoever has the manifest before this one may still be reading
            needed = {file.name for file in manifest.files}
        return [
            f"{folder}/{name}"
            for name, there in names.items()
            if is_data_file(name) and name not in needed and _is_before(there, before)
        ]

    def _warn_of_weak_stores(self) -> None:
        if not self._remote.is_conditional and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s cannot create a file only if it is not there: two machines that build one version at "
                "the same moment may both publish it, and the later one wins",
                self.name,
            )


def _is_before(found: Found, time: float) -> bool:
    return found.written is not None and found.written < time
