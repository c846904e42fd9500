"""A local directory of finished versions: stage, publish, list, remove, check; and the writer's lock.

<root>/<id>/<version>/manifest.json          written last: without it there is no version
<root>/<id>/<version>/<build>-00000.mdb      its data files
<root>/.staging/<id>/<version>/              a build under way, or an interrupted one
<root>/.locks/<id>/<version>.lock            held by the builder; the kernel frees it when the builder dies
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from .durable import beside, make_directory, replace_synced, sync_directory, sync_file, write_new
from .errors import CorruptError, YogaError
from .files import MANIFEST, Folder
from .manifest import LARGEST_MANIFEST, Manifest, is_data_file
from .names import decoded, encoded
from .progress import progress_bar
from .staging import Staging
from .versions import Held, Versions

__all__ = ["Store", "transfer_bar"]

_log = logging.getLogger("torchyoga")
_NOTICE_SECONDS = 5.0  # how long to wait for another builder in silence


@dataclass(frozen=True)
class Store(Versions):
    """The versions under one root directory. Reading takes no locks and writes nothing."""

    root: Path

    def directory(self, id: str, version: str) -> Path:
        """Where a version lies, published or not."""
        return self.root / encoded("id", id) / encoded("version", version)

    @property
    def name(self) -> str:
        """The root directory."""
        return str(self.root)

    def where(self, id: str, version: str) -> str:
        """The directory of a version."""
        return str(self.directory(id, version))

    def files(self, manifest: Manifest) -> Folder:
        """The directory of a version."""
        return Folder(self.where(manifest.id, manifest.version))

    @contextlib.contextmanager
    def fresh(self, manifest: Manifest) -> Iterator[Folder]:
        """The directory of a version."""
        yield self.files(manifest)

    def read_manifest(self, id: str, version: str) -> bytes | None:
        """The text of a manifest."""
        path = self.directory(id, version) / MANIFEST
        try:
            with open(path, "rb") as file:
                text = file.read(LARGEST_MANIFEST + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(text) > LARGEST_MANIFEST:
            raise CorruptError(f"{path} is larger than any manifest; remove the version and build it again")
        return text

    def published(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted."""
        return sorted((id, version) for id in _decoded_names(self.root) for version in self.versions(id))

    def versions(self, id: str) -> list[str]:
        """The published versions of an id, sorted."""
        names = _decoded_names(self.root / encoded("id", id))
        return sorted(version for version in names if (self.directory(id, version) / MANIFEST).is_file())

    def remove(self, id: str, version: str, timeout: float = -1) -> None:
        """Removes a version; who has it open keeps it."""
        directory = self.directory(id, version)
        with self.lock(id, version, timeout):
            if not (directory / MANIFEST).is_file():
                self.manifest(id, version)  # says what there is
            (directory / MANIFEST).unlink()
            shutil.rmtree(directory)
            shutil.rmtree(self._staging(id, version), ignore_errors=True)

    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """What lies in the directory of a version beside its manifest."""
        directory = self.directory(manifest.id, manifest.version)
        own = {MANIFEST, beside(directory / MANIFEST).name}
        return {path.name: path.stat().st_size for path in directory.iterdir() if path.name not in own}

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1) -> Iterator[None]:
        """Holds the writer's lock, which the kernel frees when its holder dies."""
        directory = self.root / ".locks" / encoded("id", id)
        make_directory(directory)
        path = directory / f"{encoded('version', version)}.lock"
        lock = filelock.FileLock(path, thread_local=False)
        started, notice = time.monotonic(), _NOTICE_SECONDS
        while True:
            left = timeout - (time.monotonic() - started) if timeout >= 0 else notice
            try:
                lock.acquire(timeout=max(0.0, min(left, notice)), poll_interval=0.02)
                break
            except filelock.Timeout:
                waited = time.monotonic() - started
                holder = _read_text(path.with_suffix(".holder")) or "another process"
                if 0 <= timeout <= waited:
                    raise YogaError(
                        f"{id!r} {version!r} is still being built by {holder} after {waited:.0f} s; "
                        "wait longer, or stop that process"
                    ) from None
                _log.warning(
                    "waiting for %s, which builds %r %r (%.0f s so far)", holder, id, version, waited
                )
                notice = min(2 * notice, 60.0)
        try:
            with contextlib.suppress(OSError):  # a full disk must not prevent `remove`
                path.with_suffix(".holder").write_text(
                    f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}"
                )
            yield
        finally:
            lock.release()

    def _staging(self, id: str, version: str) -> Path:
        return self.root / ".staging" / encoded("id", id) / encoded("version", version)

    def stage(self, id: str, version: str) -> Staging:
        """A place to build a version in, with what an interrupted build has left there. Hold the lock."""
        path = self._staging(id, version)
        make_directory(path)
        return Staging(path)

    def publish(self, staging: Staging, manifest: Manifest, progress: bool | None = None) -> Manifest:
        """Moves the staged files in place.

        The manifest is replaced in one step: a reader sees the version before or the version after, or none
        if there was none.
        """
        directory = self.directory(manifest.id, manifest.version)
        make_directory(directory)
        # What may need space comes first, so that a full disk leaves the version as it was.
        write_new(directory / MANIFEST, manifest.to_bytes())
        for file in manifest.files:
            os.replace(staging.path / file.name, directory / file.name)
        sync_directory(directory)
        replace_synced(directory / MANIFEST)
        for parent in (directory.parent, self.root):  # they may be new too
            sync_directory(parent)
        named = {file.name for file in manifest.files} | {MANIFEST}
        for path in directory.iterdir():
            if path.name not in named:
                # Of the version before, or of a publication that was cut off: nothing names it any more.
                with contextlib.suppress(OSError):
                    path.unlink()
        staging.clear()
        return manifest

    def receive(self, manifest: Manifest, held: Held, progress: bool | None = None) -> Manifest:
        """Copies the files; those that an interrupted copy has brought already are kept."""
        staging = self.stage(manifest.id, manifest.version)
        staging.keep_only(manifest.files)
        with transfer_bar(manifest, f"copying to {self.name}", progress) as bar:
            for entry in manifest.files:
                target = staging.path / entry.name
                if not target.exists() or target.stat().st_size != entry.nbytes:
                    part = target.with_suffix(".part")
                    with held(entry) as path:
                        shutil.copyfile(path, part)
                    sync_file(part)
                    part.replace(target)
                bar.update(entry.nbytes)
        return self.publish(staging, manifest)

    def clean(self, grace: float) -> list[str]:
        """Removes builds that nobody went on with, and files that were left beside a version."""
        before, removed = time.time() - grace, []
        for id in _decoded_names(self.root / ".staging"):
            for version in _decoded_names(self.root / ".staging" / encoded("id", id)):
                path = self._staging(id, version)
                with contextlib.suppress(YogaError), self.lock(id, version, timeout=0):
                    if _last_change(path) < before:
                        shutil.rmtree(path, ignore_errors=True)
                        removed.append(str(path.relative_to(self.root)))
        for id in _decoded_names(self.root):
            for version in _decoded_names(self.root / encoded("id", id)):
                with contextlib.suppress(YogaError), self.lock(id, version, timeout=0):
                    removed += self._clean_version(id, version, before)
        return sorted(removed)

    def _clean_version(self, id: str, version: str, before: float) -> list[str]:
        manifest, removed = self.find(id, version), []
        for path in self.directory(id, version).iterdir():
            is_named = manifest is not None and path.name in {
                MANIFEST,
                *(file.name for file in manifest.files),
            }
            is_ours = is_data_file(path.name) or path == beside(path.with_name(MANIFEST))
            if is_ours and not is_named and path.stat().st_mtime < before:
                path.unlink()
                removed.append(str(path.relative_to(self.root)))
        return removed


def transfer_bar(manifest: Manifest, what: str, progress: bool | None) -> Any:
    """A progress bar over the bytes of a version; None shows it on a terminal only."""
    return progress_bar(progress, manifest.nbytes, what, "B", unit_scale=True)


def _decoded_names(directory: Path) -> list[str]:
    try:
        names = [path.name for path in directory.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [found for name in names if (found := decoded(name)) is not None]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:200]
    except OSError:
        return ""


def _last_change(path: Path) -> float:
    """When something in a directory was last written."""
    return max([path.stat().st_mtime, *(child.stat().st_mtime for child in path.iterdir())])
