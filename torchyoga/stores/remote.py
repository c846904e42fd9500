"""Finished versions behind a URL: built on this machine, published there once, read from anywhere.

<url>/<id>/<version>/manifest.json           created last, if there is none: without it there is no version
<url>/<id>/<version>/<build>-00000.mdb       its data files
<url>/.builds/<id>/<version>/                what many builders agree on; see `building.board`
<url>/.leases/<id>/<version>/00000001.json   which process builds it; see `lease`

Note 18. The manifest is created, never overwritten blindly.
The builder that creates it first has published. Which version may be replaced is settled before anything is
built: its build and tag come down to here, and the store compares the tag in the step that replaces it.

Note 18. Reading back shows whether an answer or a race was lost.
A manifest holds its build's token, a claim its holder's. HTTP clients repeat a request by themselves, and get
the answer that the object that they have just created exists already.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from ..errors import CorruptError, ExistsError, LostError, NotFoundError, RemoteError, YogaError
from ..files.checksum import crc32_of
from ..files.root import beside
from ..process.lazy import later
from ..process.messages import log
from ..versions.file_entry import FileEntry, Listed, is_data_file
from ..versions.lineage import sendable
from ..versions.location import MANIFEST, Folder, Staging, list_bytes
from ..versions.manifest import LARGEST_MANIFEST, Manifest, Outline
from ..versions.names import decoded, encoded, folder_of, natural
from .cache import Cache
from .contract import LocalPaths, Seen, Shown, Store, Sweep, nearest, opening, sealed
from .kinds import ObjectInfo
from .lease import Lease
from .local import LocalStore, transfer_bar
from .objects import Objects
from .sharing import Sharing

if TYPE_CHECKING:
    from . import downloads as _reading
else:  # it loads NumPy, which a look at manifests does without
    _reading = later("torchyoga.stores.downloads")


S = TypeVar("S")
T = TypeVar("T")
_READERS = 16  # of manifests at once
_UPLOADS = 4  # files at once
_PUTS = 5  # tries to publish a version whose files others delete meanwhile
_FOREVER = 2.0**31  # seconds
_PART_SECONDS = 3600.0  # in which the builder of a part writes something
_MANIFESTS = (MANIFEST, beside(MANIFEST))
_OF_LEASES = re.compile(r"[0-9]{8}\.json|clock-[0-9a-f]{16}")


class RemoteStore(Store):
    """The versions under a URL. Reading takes no locks and writes nothing there.

    Args:
        remote: the store.
        cache: where this machine keeps the files that it has read and those that it builds.
        lease_seconds: a builder that gives no sign of life for this long counts as dead.
    """

    def __init__(self, remote: Objects, cache: Cache, lease_seconds: float = 60.0) -> None:
        self._remote = remote
        self._cache = cache
        self._lease_seconds = lease_seconds
        key = blake2b(remote.url.encode(), digest_size=8).hexdigest()
        self._local = LocalStore(cache.root.at(f"building/{key}"))
        self._leases: dict[tuple[str, str], Lease] = {}
        self._has_warned = False

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteStore, (self._remote, self._cache, self._lease_seconds)

    @property
    def name(self) -> str:
        """The URL."""
        return self._remote.url

    @property
    def file_bytes(self) -> int:  # type: ignore[override]
        """As many as suit this cache."""
        return self._cache.file_bytes

    def where(self, id: str, version: str) -> str:
        """The URL of a version."""
        return self._remote.where(folder_of(id, version))

    # -- reading

    def read_manifest(self, id: str, version: str) -> bytes | None:
        """The text of a manifest; RemoteError if the store cannot be reached."""
        try:
            return self._remote.read(f"{folder_of(id, version)}/{MANIFEST}", LARGEST_MANIFEST)
        except FileNotFoundError:
            return None

    def files(self, manifest: Manifest) -> _reading.VersionDownloads:
        """The files of a version, downloaded when they are needed."""
        return self._downloads(manifest, self._cache)

    def _downloads(self, manifest: Manifest, cache: Cache) -> _reading.VersionDownloads:
        folder = folder_of(manifest.id, manifest.version)
        groups = [replace(group, files=Listed()) for group in manifest.column_groups]
        return _reading.VersionDownloads(self._remote, folder, cache, groups)

    @contextlib.contextmanager
    def fresh(self, manifest: Manifest) -> Iterator[_reading.VersionDownloads]:
        """The files of a version, downloaded again one by one."""
        with self._cache.scratch() as scratch:
            yield self._downloads(manifest, scratch)

    def notes(self, folder: str) -> Objects:
        """The objects in a folder behind the URL."""
        return self._remote.at(folder)

    def published(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted, 1.9 before 1.10; costs a listing of the whole store."""
        names = (name.split("/") for name in self._remote.find())
        pairs = [
            (decoded(parts[0]), decoded(parts[1]))
            for parts in names
            if len(parts) == 3 and parts[2] == MANIFEST
        ]
        known = [(id, version) for id, version in pairs if id is not None and version is not None]
        return sorted(known, key=lambda pair: (pair[0], natural(pair[1])))

    def versions(self, id: str) -> list[str]:
        """The published versions of an id, sorted, 1.9 before 1.10."""
        return sorted(self.places(id), key=natural)

    def ids_like(self, id: str) -> list[str]:
        """Ids, the most similar first; costs few requests, however many there are."""
        names = (decoded(name) for name in self._remote.folders())
        return nearest(id, (name for name in names if name is not None))

    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """The files next to a manifest, except hidden ones; one request each where a store does not list."""
        folder = folder_of(manifest.id, manifest.version)
        found: dict[str, ObjectInfo | None] = {**self._remote.find(folder)}
        for entry in manifest.own_files:
            if entry.name not in found or found[entry.name].nbytes is None:  # type: ignore[union-attr]
                found[entry.name] = self._remote.find_one(f"{folder}/{entry.name}")
        known = {entry.name: entry.nbytes for entry in manifest.own_files}
        return {
            name: known.get(name, 0) if one.nbytes is None else one.nbytes
            for name, one in found.items()
            if one is not None and name not in _MANIFESTS and not name.startswith(".")
        }

    def each(self, items: Iterable[S], call: Callable[[S], T]) -> Iterator[T]:
        """Results of `call` for each item, in order; several at once."""
        return _in_turn(items, call, _READERS, "torchyoga manifests")

    # -- writing

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1, deletes: bool = False) -> Iterator[None]:
        """Holds the lock of this machine, and the lease in the store."""
        self._remote.refuse_read_only()
        self._cache.make("building")  # its error says what to do if that is not allowed
        folder = f".leases/{folder_of(id, version)}"
        what = f"building {id!r} {version!r} in {self.name}"
        patience = timeout if timeout >= 0 else _FOREVER
        with (
            self._local.lock(id, version, timeout),
            Lease(self._remote, folder, what, self._lease_seconds, patience, deletes=deletes) as lease,
        ):
            self._leases[id, version] = lease
            self._warn_of_weak_stores()
            try:
                yield
            finally:
                del self._leases[id, version]

    def check_place(self, id: str, version: str) -> None:
        """Raises YogaError if the place of a version holds something that torchyoga has not written."""
        self.refuse_foreign(id, version, self._remote.find(folder_of(id, version)))

    def seen(self, id: str, version: str) -> Seen | None:
        """The version published now."""
        try:
            text, tag = self._remote.read_tagged(f"{folder_of(id, version)}/{MANIFEST}", LARGEST_MANIFEST)
        except FileNotFoundError:
            return None
        try:
            return Seen(Manifest.from_bytes(text).build, tag)
        except CorruptError:
            return Seen(None, tag)

    def stage(self, id: str, version: str, replaces: Seen | None = None) -> Staging:
        """A place on this machine; an interrupted build is continued only here."""
        return replace(self._local.stage(id, version), replaces=replaces, is_sent=True)

    def publish(self, staging: Staging, manifest: Manifest, progress: bool | None = None) -> Manifest:
        """Uploads the files, then creates the manifest."""
        assert staging.replaces is None or isinstance(staging.replaces, Seen)
        published = self.receive(manifest, Folder(str(staging.path)).held, staging.replaces, progress)
        files = self.files(published)
        # Files that were built here need not be downloaded.
        for built, file in zip(manifest.own_files, published.own_files, strict=True):
            with contextlib.suppress(OSError, YogaError):
                self._cache.adopt(files.key(file), f"{staging.root.within}/{built.name}")
        staging.clear()
        return published.located(partial(list_bytes, files))

    def scratch(self, attempt: str) -> Staging:
        """A place on this machine."""
        self._remote.refuse_read_only()
        self._cache.make("building")
        return replace(self._local.scratch(attempt), is_sent=True)

    def place(
        self, staging: Staging, id: str, version: str, files: Sequence[FileEntry]
    ) -> Sequence[FileEntry]:
        """Uploads the files."""
        folder, held = folder_of(id, version), Folder(str(staging.path)).held
        found = []
        for file in files:
            with held(file) as path:
                found.append(replace(file, crc=_crc_of(path, file)))
                self._remote.upload(path, f"{folder}/{file.name}")
        return found

    def commit(self, manifest: Manifest, replaces: Seen | None) -> None:
        """Creates the manifest."""
        id, version = manifest.id, manifest.version
        lease = self._leases[id, version]
        manifest = replace(manifest, lineage=sendable(manifest.lineage))
        self._create(manifest, replaces)
        if (lease.may_be_deleted or lease.is_another_deleting()) and self.missing(manifest):
            raise LostError(
                f"files of {id!r} {version!r} were removed from {self.name} while it was published, by clean "
                "or by remove; submit it again with overwrite=True when no process does that"
            )

    def receive(
        self,
        manifest: Manifest,
        held: LocalPaths,
        replaces: Seen | None = None,
        progress: bool | None = None,
        tries: int = _PUTS,
    ) -> Manifest:
        """Uploads the files; those that an interrupted copy has already uploaded are kept."""
        id, version = manifest.id, manifest.version
        manifest = replace(manifest, lineage=sendable(manifest.lineage))
        sealed(manifest)
        opened, lease = opening(manifest, held), self._leases[id, version]
        build = secrets.token_hex(8) if lease.may_be_deleted else manifest.build
        named = manifest.renamed(build) if lease.may_be_deleted else manifest
        folder = folder_of(id, version)
        present = self._remote.find(folder)
        self.refuse_foreign(id, version, present)
        with transfer_bar(manifest, f"uploading to {self.name}", progress) as bar:

            def upload(pair: tuple[FileEntry, FileEntry]) -> tuple[str, int]:
                entry, name = pair[0], pair[1].name
                with opened(entry) as path:
                    crc, there = _crc_of(path, entry), present.get(name)
                    if there is None or there.nbytes != entry.nbytes:  # no other build uses its name
                        self._remote.upload(path, f"{folder}/{name}")
                bar.update(entry.nbytes)
                return name, crc

            pairs = zip(manifest.own_files, named.own_files, strict=True)
            crcs = dict(_in_turn(pairs, upload, _UPLOADS, "torchyoga upload"))
        published = named.with_own(lambda file: replace(file, crc=crcs[file.name]))
        self._create(published, replaces)
        if lease.is_another_deleting() or self.missing(published):
            return self._put_again(manifest, held, published, progress, tries - 1)
        return published

    def _create(self, published: Manifest, replaces: Seen | None) -> None:
        """Creates a manifest; NotFoundError if a version whose files it shares goes meanwhile."""
        text, lease = sealed(published), self._leases[published.id, published.version]
        if lease.is_another_deleting():
            lease.check()
        self.refuse_unshared(published)
        self._write_manifest(published.id, published.version, text, replaces)
        try:
            # Whoever removes the parent from now on sees this manifest before any file is deleted.
            self.refuse_unshared(published)
        except NotFoundError:
            seen = self.seen(published.id, published.version)
            if seen is not None and seen.build == published.build:
                name = f"{folder_of(published.id, published.version)}/{MANIFEST}"
                self._remote.delete_seen(name, seen.tag)
            raise

    def _write_manifest(self, id: str, version: str, text: bytes, replaces: Seen | None) -> None:
        """Creates the manifest, in place of the one that was seen and of no other; else ExistsError."""
        name = f"{folder_of(id, version)}/{MANIFEST}"
        if replaces is None:
            is_written = self._remote.create(name, text)
        else:
            is_written = self._remote.replace(
                name, text, replaces.tag, lambda: self.seen(id, version) == replaces
            )
        if not is_written:
            raise ExistsError(
                f"{id!r} {version!r} was published in {self.name} by another builder meanwhile; fetch that"
            )

    def _put_again(
        self, manifest: Manifest, held: LocalPaths, published: Manifest, progress: bool | None, tries: int
    ) -> Manifest:
        """Publishes a version once more if others, for which its builder counted as dead, delete its files.

        A process that claims the work after the publication sees its manifest, and spares them. The manifest
        is not taken back, because the version that it has replaced would be lost.
        """
        id, version = manifest.id, manifest.version
        lease = self._leases[id, version]
        with lease.again() as last:
            seen = self.seen(id, version)
            if seen is None or seen.build != published.build:
                return published  # it was removed or replaced since
            if last.deleter <= lease.number and not self.missing(published):
                return published
            if not tries:
                raise LostError(
                    f"files of {id!r} {version!r} were removed from {self.name} each time it was published, "
                    "by clean or by remove; submit it again with overwrite=True when no process does that"
                )
            log.warning(
                "%s: files were removed while it was published; sending them again", self.where(id, version)
            )
            self._leases[id, version] = last
            try:
                return self.receive(manifest, held, seen, progress, tries)
            finally:
                self._leases[id, version] = lease

    def places(self, id: str) -> dict[str, Shown]:
        """The manifests of an id; where the store does not list tags, each look has to read them again."""
        found = {}
        for name, one in self._remote.find(encoded("id", id)).items():
            folder, _, file = name.rpartition("/")
            if file == MANIFEST and (version := decoded(folder)):
                found[version] = Shown(True, one.tag, one.written)
        return found

    def unpublish(self, id: str, version: str, known: Outline | None) -> list[str]:
        """Deletes the manifest, and what interrupted builds have left on this machine."""
        folder, lease = folder_of(id, version), self._leases[id, version]
        names = self._remote.find(folder)
        seen = self.seen(id, version)
        if seen is None:
            self.manifest(id, version)  # its error lists what is published
            seen = self.seen(id, version)  # it was published just now
        self.refuse_foreign(id, version, names, has_manifest=known is not None)
        lease.check()  # a builder that takes over from now on uses other names than those listed
        # Files that another builder is about to publish stay.
        ours = f"{seen.build}-" if seen is not None and seen.build is not None else ""
        # Files of a build by many do not begin with its name.
        named = set() if known is None else {file.name for file in known.files}
        if seen is not None:
            self._remote.delete_seen(f"{folder}/{MANIFEST}", seen.tag)
        self._remote.delete(f"{folder}/{name}" for name in _MANIFESTS[1:] if name in names)
        self._local.stage(id, version).clear()
        return [name for name in names if is_data_file(name) and (name.startswith(ours) or name in named)]

    def delete(self, id: str, version: str, names: Sequence[str]) -> list[str]:
        """Deletes the files."""
        self._remote.delete(f"{folder_of(id, version)}/{name}" for name in names)
        return list(names)

    def now(self) -> float:
        """The time of the store's clock."""
        now = self._remote.now()
        if now is None:
            raise RemoteError(f"{self.name} does not say when files were written; remove old files by hand")
        return now

    def clean(
        self,
        grace: float,
        id: str | None = None,
        dry_run: bool = False,
        sweep: Callable[[str], Sweep] | None = None,
    ) -> dict[str, int]:
        """Removes files that builds have left, and files that were replaced, unless a build is running."""
        now = self.now()
        before = now - grace
        folders: dict[str, dict[str, ObjectInfo]] = {}
        notes: dict[str, ObjectInfo] = {}
        for name, one in self._remote.find().items():
            folder, _, file = name.rpartition("/")
            folders.setdefault(folder, {})[file] = one
            if name.startswith(".builds/"):
                notes[name.removeprefix(".builds/")] = one
        found, planned = self.clean_plans(notes, before, id, dry_run)
        old: dict[str, dict[str, dict[str, int]]] = {}
        for folder, names in folders.items():
            outer, _, inner = folder.partition("/")
            if folder not in planned and (of := decoded(outer)) and (version := decoded(inner)):
                if id in (None, of):
                    old.setdefault(of, {})[version] = _forgotten(names, before)
            elif outer == ".leases" and id is None and not dry_run:
                # A holder would have given a sign of life since.
                silent = _old_claims(names, min(before, now - self._lease_seconds - 1))
                self._remote.delete(f"{folder}/{name}" for name in silent)
                found |= {f"{folder}/{name}": 0 for name in silent}
        for of, files in old.items():
            forgotten = partial(self._forgotten, of, before=before)
            found |= (sweep(of) if sweep else Sharing(self, of).clean)(files, forgotten, dry_run)
        if id is None:
            # Parts of builds that go on may be built here.
            found |= self._local.clean(max(grace, _PART_SECONDS) if planned else grace, None, dry_run)
        return dict(sorted(found.items()))

    def _forgotten(self, id: str, version: str, before: float) -> dict[str, int]:
        """Files that may go from the folder of a version, whose lease is held."""
        found = _forgotten(self._remote.find(folder_of(id, version)), before)
        self._leases[id, version].check()  # a builder that takes over from now on uses other names
        return found

    def _warn_of_weak_stores(self) -> None:
        if not self._remote.is_conditional and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s cannot create a file only if it does not exist: two machines that build one version at "
                "the same moment may both publish it, and the later one wins",
                self.name,
            )


def _in_turn(items: Iterable[S], call: Callable[[S], T], at_once: int, name: str) -> Iterator[T]:
    """The results of `call` for each item, in order; the calls are made by some threads of this name."""
    left = iter(items)  # some at a time: a forged note may be said to be one of a hundred million
    with ThreadPoolExecutor(at_once, thread_name_prefix=name) as pool:
        while some := [*islice(left, 64 * at_once)]:
            yield from pool.map(call, some)


def _crc_of(path: str, entry: FileEntry) -> int:
    """The CRC-32 of a file on this machine; CorruptError if it is not that of its entry."""
    with open(path, "rb") as file:
        crc, _ = crc32_of(file)
    if entry.crc not in (None, crc):
        raise CorruptError(f"{path} is damaged: its CRC-32 is {crc:08x}, not {entry.crc:08x}")
    return crc


def _forgotten(names: dict[str, ObjectInfo], before: float) -> dict[str, int]:
    """Old files next to a version, which its manifest may name, and their bytes."""
    if MANIFEST in names and not _is_before(names[MANIFEST], before):
        return {}  # readers that have the manifest before this one may still be reading
    data = {name: one for name, one in names.items() if is_data_file(name)}
    return {name: one.nbytes or 0 for name, one in data.items() if _is_before(one, before)}


def _old_claims(names: dict[str, ObjectInfo], before: float) -> list[str]:
    """The claims of a lease that may go, if none was written since a time; the last one stays, so that no
    other builder gets its number."""
    claims = {name: one for name, one in names.items() if _OF_LEASES.fullmatch(name)}
    last = max((name for name in claims if not name.startswith("clock")), default="")
    is_silent = all(_is_before(one, before) for one in claims.values())
    return [name for name in claims if is_silent and name != last]


def _is_before(found: ObjectInfo, time: float) -> bool:
    return found.written is not None and found.written < time
