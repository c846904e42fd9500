"""A local directory of finished versions: stage, publish, list, remove, check; and the writer's lock.

<root>/<id>/<version>/manifest.json          written last: without it there is no version
<root>/<id>/<version>/<build>-00000.mdb      its data files
<root>/.staging/<id>/<version>/              a build under way, or an interrupted one
<root>/.parts/<attempt>/                     a part of a build by many, under way or interrupted
<root>/.builds/<id>/<version>/               what those builders agree on; see `building.board`
<root>/.locks/<id>/<version>.lock            held by the builder; the kernel frees it when the builder dies

Note 7. The manifest is the commit.
Data files carry the token of their build in their names, so an overwrite puts new files beside the old ones
and replaces the manifest in one step. Readers that have the old version open keep it.

Note 9. Builders hold a file lock, readers hold none.
The kernel frees the lock of a builder that dies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import filelock

from ..errors import BusyError, CorruptError, ExistsError, YogaError
from ..files.root import FULL, Entry, Root, beside, read_regular
from ..process.messages import Bar, log, progress_bar
from ..versions.file_entry import FileEntry, is_data_file, is_token
from ..versions.location import MANIFEST, Folder, Staging, list_bytes
from ..versions.manifest import LARGEST_MANIFEST, Manifest, Outline, is_like_manifest
from ..versions.names import decoded, encoded, folder_of, natural
from .contract import LocalPaths, Notes, Seen, Shown, Store, Sweep, sealed
from .sharing import Sharing

_NOTICE_SECONDS = 5.0  # how long to wait for another builder without a message
_COPY_BYTES = 2**20
_HELD: set[tuple[int, int, str]] = set()  # locks: process, thread and path


def _most_files() -> int:
    """How many files a process may have open, as far as a sweep has use for them."""
    with contextlib.suppress(ImportError):  # no POSIX
        import resource

        return min(2**14, resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**63)  # infinite is -1
    return 2**8


class LocalStore(Store):
    """The versions under one root directory. Reading takes no locks and writes nothing.

    Links below the root are followed for reading; nothing is written or deleted through them.

    Args:
        root: the directory; a `Root` if users other than its owner may write, or may not read.
    """

    most_locks = _most_files() // 4  # each is an open file

    def __init__(self, root: Path | Root) -> None:
        self._root = root if isinstance(root, Root) else Root(root)

    @property
    def root(self) -> Path:
        """The directory."""
        return self._root.path

    def directory(self, id: str, version: str) -> Path:
        """The directory of a version, published or not."""
        return self.root / folder_of(id, version)

    @property
    def name(self) -> str:
        """The root directory."""
        return str(self.root)

    def where(self, id: str, version: str) -> str:
        """The directory of a version."""
        return str(self.directory(id, version))

    def files(self, manifest: Manifest) -> Folder:
        """The directory of a version."""
        return Folder(self.where(manifest.id, manifest.version), self._root.shared)

    def notes(self, folder: str) -> Notes:
        """The notes in a folder below the root."""
        return Notes(self._root.at(folder))

    @contextlib.contextmanager
    def fresh(self, manifest: Manifest) -> Iterator[Folder]:
        """The directory of a version."""
        yield self.files(manifest)

    def read_manifest(self, id: str, version: str) -> bytes | None:
        """The text of a manifest."""
        path = self.directory(id, version) / MANIFEST
        try:
            return read_regular(path, LARGEST_MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def published(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted, 1.9 before 1.10."""
        return [(id, version) for id in sorted(_decoded_names(self.root)) for version in self.versions(id)]

    def versions(self, id: str) -> list[str]:
        """The published versions of an id, sorted, 1.9 before 1.10."""
        names = _decoded_names(self.root / encoded("id", id))
        known = (version for version in names if (self.directory(id, version) / MANIFEST).is_file())
        return sorted(known, key=natural)

    def places(self, id: str) -> dict[str, Shown]:
        """The folders of an id, and that of all.

        Without a manifest the stamp is when a file was last made or deleted there.
        """
        outer = self.root / encoded("id", id)
        try:
            found = {"": Shown(False, os.stat(outer).st_mtime_ns)}  # no version has this name
            with os.scandir(outer) as entries:
                folders = {version: entry.path for entry in entries if (version := decoded(entry.name))}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        for version, folder in folders.items():
            try:
                status = os.stat(f"{folder}/{MANIFEST}")
                times = status.st_mtime_ns, status.st_ctime_ns
                found[version] = Shown(True, (status.st_ino, status.st_size, *times), status.st_mtime)
            except (FileNotFoundError, NotADirectoryError):
                found[version] = Shown(False, object())
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found[version] = Shown(False, os.stat(folder).st_mtime_ns)
        return found

    def unpublish(self, id: str, version: str, known: Outline | None) -> list[str]:
        """Deletes the manifest, and what interrupted builds have left."""
        folder = folder_of(id, version)
        if known is None and not (self.root / folder / MANIFEST).is_file():
            self.manifest(id, version)  # its error lists what is published
        self.check_place(id, version, known is not None)
        self._root.unlink(f"{folder}/{MANIFEST}")  # from now on there is no version
        self._root.sync(folder)  # so it cannot reappear without its files
        Staging(self._root.at(f".staging/{folder}")).clear()
        return [entry.name for entry in self._root.scan(folder) if _is_own(entry)]

    def delete(self, id: str, version: str, names: Sequence[str]) -> list[str]:
        """Deletes the files, and the folders that are then empty."""
        folder = folder_of(id, version)
        if names:  # first the manifest that does not name them has to be on the disk
            with contextlib.suppress(FileNotFoundError):  # another process has deleted them, and the folder
                self._root.sync(folder)
        deleted = [name for name in names if self._root.unlink(f"{folder}/{name}")]
        self._root.at(folder).remove_empty()
        return deleted

    def check_place(self, id: str, version: str, has_manifest: bool = False) -> None:
        """Raises YogaError if what lies in the place of a version is not ours, or is behind a link."""
        folder = folder_of(id, version)
        names = [e.name if e.is_file else f"{e.name}/" for e in self._root.scan(folder)]
        new = beside(MANIFEST)
        is_ours = new not in names or is_like_manifest(self._root.read(f"{folder}/{new}", LARGEST_MANIFEST))
        self.refuse_foreign(id, version, names, [] if is_ours else [new], has_manifest)

    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """The names and bytes of files next to the manifest of a version, except hidden files."""
        found = {}
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.where(manifest.id, manifest.version)) as names,
        ):
            for entry in names:
                if entry.name not in (MANIFEST, beside(MANIFEST)) and not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        found[entry.name] = size_of(entry)
        return found

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1, deletes: bool = False) -> Iterator[None]:
        """Holds the writer's lock, which the kernel frees when its holder dies.

        Raises:
            BusyError: another still held it after `timeout` seconds.
            YogaError: this very call holds it.
        """
        name = f".locks/{folder_of(id, version)}"
        here = os.getpid(), threading.get_ident(), str(self.root / name)
        if here in _HELD:
            raise YogaError(
                f"{id!r} {version!r} is being built by this same call, which would wait for itself; choose "
                "another id or version for what the call builds meanwhile"
            )
        path = self._root.in_folder(f"{name}.lock", self._root.touch)
        lock = filelock.FileLock(path, self._root.file_mode, thread_local=False)
        started, notice = time.monotonic(), _NOTICE_SECONDS
        while True:
            left = timeout - (time.monotonic() - started) if timeout >= 0 else notice
            try:
                with self._root.naming_errors(f"{name}.lock", is_any=True):
                    lock.acquire(timeout=max(0.0, min(left, notice)), poll_interval=0.02)
                break
            except filelock.Timeout:
                waited = time.monotonic() - started
                holder = self._holder_of(f"{name}.holder") or "another process"
                if 0 <= timeout <= waited:
                    raise BusyError(
                        f"{id!r} {version!r} is still being built by {holder} after {waited:.0f} s; "
                        "wait longer, or stop that process"
                    ) from None
                log.warning("waiting for %s, which builds %r %r (%.0f s so far)", holder, id, version, waited)
                notice = min(2 * notice, 60.0)
        _HELD.add(here)
        try:
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}"
            # A full disk must not prevent `remove`.
            with contextlib.suppress(OSError, YogaError), self._root.recreate(f"{name}.holder") as file:
                file.write(holder.encode())
            yield
        finally:
            _HELD.discard(here)
            lock.release()

    def _holder_of(self, name: str) -> str:
        try:
            return self._root.read(name, 10_000).decode(errors="replace")[:200]
        except (OSError, YogaError):
            return ""

    def seen(self, id: str, version: str) -> Seen | None:
        """The version published now; while the lock is held it stays so."""
        try:
            found = self.find(id, version)
        except CorruptError:
            return Seen(None)
        return None if found is None else Seen(found.build)

    def stage(self, id: str, version: str, replaces: Seen | None = None) -> Staging:
        """A place to build a version in, with the files that an interrupted build has left. Hold the lock."""
        staging = Staging(self._root.at(f".staging/{folder_of(id, version)}"))
        staging.root.make()
        return staging

    def publish(self, staging: Staging, manifest: Manifest, progress: bool | None = None) -> Manifest:
        """Moves the staged files into place.

        The manifest is replaced in one step: a reader sees the version before or the version after, or none
        if there was none.
        """
        folder = folder_of(manifest.id, manifest.version)
        text = sealed(manifest, Folder(str(staging.path)).held)
        self._publish(manifest, text, f".staging/{folder}")
        staging.clear()
        return manifest.located(partial(list_bytes, self.files(manifest)))

    def _publish(self, manifest: Manifest, text: bytes, staged: str | None = None) -> None:
        """Moves the files from the folder in which they are staged, if they are, then writes the manifest."""
        folder = folder_of(manifest.id, manifest.version)
        self._root.make(folder)
        self.check_place(manifest.id, manifest.version)
        self.refuse_unshared(manifest)
        # What may need space comes first, so that a full disk leaves the version as it was.
        self._root.prepare(f"{folder}/{MANIFEST}", text)
        for file in manifest.own_files if staged is not None else ():
            self._root.move(f"{staged}/{file.name}", f"{folder}/{file.name}")
        self._root.sync(folder)
        self._root.commit(f"{folder}/{MANIFEST}")
        self._root.at(folder).sync_way()  # the folder may be new, too
        # Files of the version before, or of an interrupted publication: no manifest names them any more.
        with contextlib.suppress(OSError):
            own = {file.name for file in manifest.own_files} | {MANIFEST}
            names = [entry.name for entry in self._root.scan(folder) if _is_own(entry)]
            left = Sharing(self, manifest.id).unnamed(name for name in names if name not in own)
            self.delete(manifest.id, manifest.version, sorted(left))

    def scratch(self, attempt: str) -> Staging:
        """A folder in that of all parts."""
        staging = Staging(self._root.at(f".parts/{attempt}"))
        staging.root.make()
        return staging

    def place(
        self, staging: Staging, id: str, version: str, files: Sequence[FileEntry]
    ) -> Sequence[FileEntry]:
        """Moves the files into the folder of the version."""
        folder = folder_of(id, version)
        self._root.make(folder)
        for file in files:
            self._root.move(f"{staging.root.within}/{file.name}", f"{folder}/{file.name}")
        self._root.sync(folder)
        return files

    def commit(self, manifest: Manifest, replaces: Seen | None) -> None:
        """Writes the manifest in one step."""
        if self.seen(manifest.id, manifest.version) not in (None, replaces):
            raise ExistsError(f"{manifest.id!r} {manifest.version!r} was published meanwhile; fetch that")
        self._publish(manifest, sealed(manifest))

    def receive(
        self, manifest: Manifest, held: LocalPaths, replaces: Seen | None = None, progress: bool | None = None
    ) -> Manifest:
        """Copies the files; those that an interrupted copy has already copied are kept."""
        staging = self.stage(manifest.id, manifest.version)
        staging.keep_only(manifest.own_files)
        arrived = {entry.name: entry.nbytes for entry in staging.root.scan()}
        try:
            with transfer_bar(manifest, f"copying to {self.name}", progress) as bar:
                for entry in manifest.own_files:
                    if arrived.get(entry.name) != entry.nbytes:
                        self._copy(staging.root, entry, held)
                    bar.update(entry.nbytes)
            return self.publish(staging, manifest)
        except OSError as error:
            if error.errno not in FULL:
                raise
            staging.clear()  # something must change before this can go on
            raise OSError(
                error.errno,
                f"copying failed ({error.strerror or error}); free some space and try again",
                self.name,
            ) from error

    def _copy(self, to: Root, entry: FileEntry, held: LocalPaths) -> None:
        part = f"{entry.name.partition('.')[0]}.part"
        try:
            with held(entry) as path, open(path, "rb") as source, to.recreate(part) as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
                target.flush()
                os.fsync(target.fileno())
            to.move(part, entry.name)
        except BaseException:
            with contextlib.suppress(OSError):
                to.unlink(part)
            raise

    def now(self) -> float:
        """The time of this machine."""
        return time.time()

    def clean(
        self,
        grace: float,
        id: str | None = None,
        dry_run: bool = False,
        sweep: Callable[[str], Sweep] | None = None,
    ) -> dict[str, int]:
        """Removes abandoned builds, and files that were left next to a version."""
        before = time.time() - grace
        found: dict[str, int] = {}
        for of, version in self._folders(".staging"):
            name = f".staging/{folder_of(of, version)}"
            if id in (None, of) and self._is_forgotten(name, before):
                held = contextlib.nullcontext() if dry_run else self.lock(of, version, timeout=0)
                with contextlib.suppress(YogaError), held:
                    if self._is_forgotten(name, before):
                        found |= self._cleared(name, dry_run)
        with contextlib.suppress(YogaError, PermissionError):
            removed, living = self.clean_plans(self.notes(".builds").find(), before, id, dry_run)
            found |= removed
            # Whose part it is that is being built shows nowhere.
            for entry in self._listed(".parts") if id is None and not living else []:
                name = f".parts/{entry.name}"
                if entry.is_folder and is_token(entry.name) and self._is_forgotten(name, before):
                    found |= self._cleared(name, dry_run)
        found |= self._clean_notes(before, id, dry_run)
        for of in dict.fromkeys(of for of, _ in self._folders("") if id in (None, of)):
            with contextlib.suppress(YogaError, PermissionError):
                forgotten = partial(self._forgotten, of, before=before)
                old = {version: forgotten(version) for version in self._versions_in("", of)}
                found |= (sweep(of) if sweep else Sharing(self, of).clean)(old, forgotten, dry_run)
        return dict(sorted(found.items()))

    def _cleared(self, name: str, dry_run: bool) -> dict[str, int]:
        """Removes an unfinished build, unless it is a dry run; returns its name and its bytes."""
        nbytes = sum(entry.nbytes for entry in self._root.scan(name))
        if not dry_run:
            Staging(self._root.at(name)).clear()
        return {name: nbytes}

    def _clean_notes(self, before: float, id: str | None, dry_run: bool) -> dict[str, int]:
        """Removes what killed writers of notes have left; returns the names and their bytes."""
        found: dict[str, int] = {}
        for kind in (".tags", ".builds"):
            folder = kind if id is None else f"{kind}/{encoded('id', id)}"
            with contextlib.suppress(YogaError, PermissionError):
                notes = self.notes(folder)
                left = notes.unfinished(before)
                if not dry_run:
                    notes.delete(left)
                found |= {f"{folder}/{name}": nbytes for name, nbytes in left.items()}
        return found

    def _folders(self, base: str) -> list[tuple[str, str]]:
        """Ids and versions whose folders lie below a folder and are not links."""
        ids = [decoded(outer.name) for outer in self._listed(base) if outer.is_folder]
        return [(id, version) for id in ids if id is not None for version in self._versions_in(base, id)]

    def _versions_in(self, base: str, id: str) -> list[str]:
        """The versions whose folders lie below that of an id, in a folder, and are not links."""
        inner = self._listed(f"{base}/{encoded('id', id)}".lstrip("/"))
        names = [decoded(entry.name) for entry in inner if entry.is_folder]
        return [version for version in names if version is not None]

    def _listed(self, name: str) -> list[Entry]:
        """The entries of a folder; empty if it lies behind a link, or may not be read."""
        try:
            return self._root.scan(name)
        except (YogaError, PermissionError):
            return []

    def _is_forgotten(self, name: str, before: float) -> bool:
        """True if nothing in the folder of a build was written since a time."""
        folder = self._root.find(name)
        entries = [] if folder is None else [folder, *self._root.scan(name)]
        return bool(entries) and all(entry.written < before for entry in entries)

    def _forgotten(self, id: str, version: str, before: float) -> dict[str, int]:
        """Our old files in the folder of a version except its manifest, and their bytes; none if a build by
        many goes on."""
        with contextlib.suppress(YogaError, PermissionError):
            plan = self._root.find(f".builds/{folder_of(id, version)}/plan.json")
            if plan is None:  # else no manifest names its parts yet
                return {
                    entry.name: entry.nbytes
                    for entry in self._root.scan(folder_of(id, version))
                    if _is_own(entry) and entry.name != MANIFEST and entry.written < before
                }
        return {}


def transfer_bar(manifest: Manifest, what: str, progress: bool | None) -> Bar:
    """A progress bar over the bytes of a version; None shows it on a terminal only."""
    return progress_bar(progress, manifest.nbytes, what, "B", unit_scale=True)


def _decoded_names(directory: Path) -> list[str]:
    try:
        names = [path.name for path in directory.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return [found for name in names if (found := decoded(name)) is not None]


def size_of(entry: os.DirEntry[str]) -> int:
    """The bytes of a file, or of a link that leads nowhere."""
    try:
        return entry.stat().st_size
    except OSError:
        return entry.stat(follow_symlinks=False).st_size


def _is_own(entry: Entry) -> bool:
    return entry.is_file and (is_data_file(entry.name) or entry.name in (MANIFEST, beside(MANIFEST)))
