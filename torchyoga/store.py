"""A local directory of finished versions: stage, publish, list, remove, check; and the writer's lock.

<root>/<id>/<version>/manifest.json          written last: without it there is no version
<root>/<id>/<version>/<build>-00000.mdb      its data files
<root>/.staging/<id>/<version>/              a build under way, or an interrupted one
<root>/.locks/<id>/<version>.lock            held by the builder; the kernel frees it when the builder dies
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import filelock

from .errors import CorruptError, NotFoundError, YogaError
from .manifest import FileEntry, Manifest, digest

__all__ = ["Staging", "Store"]

_log = logging.getLogger("torchyoga")
_MANIFEST = "manifest.json"
_PROGRESS = "progress.json"
_LARGEST_MANIFEST = 256 * 2**20
_NOTICE_SECONDS = 5.0  # how long to wait for another builder in silence


@dataclass(frozen=True)
class Store:
    """The versions under one root directory. Reading takes no locks and writes nothing."""

    root: Path

    def directory(self, id: str, version: str) -> Path:
        """Where a version lies, published or not."""
        return self.root / _encoded("id", id) / _encoded("version", version)

    def manifest(self, id: str, version: str) -> Manifest:
        """The manifest of a published version.

        Raises:
            NotFoundError: it is not published; says which versions are.
            CorruptError: its manifest is damaged.
        """
        found = self.find(id, version)
        if found is None:
            there = self.versions(id)
            what = (
                f"its versions are {there}"
                if there
                else f"the storage holds {[i for i, _ in self.published()][:20] or 'nothing'}"
            )
            raise NotFoundError(
                f"{id!r} has no version {version!r} in {self.root}: {what}. Submit it, or fetch one of these"
            )
        return found

    def find(self, id: str, version: str) -> Manifest | None:
        """The manifest, or None if the version is not published; CorruptError as above."""
        path = self.directory(id, version) / _MANIFEST
        try:
            with open(path, "rb") as file:
                text = file.read(_LARGEST_MANIFEST + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(text) > _LARGEST_MANIFEST:
            raise CorruptError(f"{path} is larger than any manifest; remove the version and build it again")
        try:
            manifest = Manifest.from_bytes(text)
        except CorruptError as error:
            raise CorruptError(f"{path}: {error}; remove the version and build it again") from error
        if (manifest.id, manifest.version) != (id, version):
            raise CorruptError(
                f"{path} belongs to {manifest.id!r} {manifest.version!r}; it was moved here by hand"
            )
        return manifest

    def published(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted."""
        return sorted((id, version) for id in _decoded_names(self.root) for version in self.versions(id))

    def versions(self, id: str) -> list[str]:
        """The published versions of an id, sorted."""
        names = _decoded_names(self.root / _encoded("id", id))
        return sorted(version for version in names if (self.directory(id, version) / _MANIFEST).is_file())

    def remove(self, id: str, version: str) -> None:
        """Removes a version; NotFoundError if there is none. Who has it open keeps it."""
        directory = self.directory(id, version)
        with self.lock(id, version):
            if not (directory / _MANIFEST).is_file():
                self.manifest(id, version)  # says what there is
            (directory / _MANIFEST).unlink()
            shutil.rmtree(directory)
            shutil.rmtree(self._staging(id, version), ignore_errors=True)

    def check_files(self, manifest: Manifest) -> list[str]:
        """What differs between a manifest and its directory, both ways; empty if nothing does."""
        directory = self.directory(manifest.id, manifest.version)
        there = {path.name: path.stat().st_size for path in directory.iterdir()}
        named = {file.name: file.nbytes for file in manifest.files}
        # A publication that was cut off, or readers on Windows, may leave files of another build behind. They
        # are no damage, and the next publication deletes them.
        problems = [
            f"{name} is not named in the manifest"
            for name in sorted(there.keys() - named.keys() - {_MANIFEST, _new(directory / _MANIFEST).name})
            if not manifest.is_of_another_build(name)
        ]
        for name, nbytes in named.items():
            if name not in there:
                problems.append(f"{name} is missing")
            elif there[name] != nbytes:
                problems.append(f"{name} has {there[name]} bytes, the manifest says {nbytes}")
        return problems

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1) -> Iterator[None]:
        """Holds the writer's lock of a version; waits while another process or thread holds it.

        Raises:
            YogaError: it was still held after `timeout` seconds; says by whom. Less than 0 waits as long as
                it takes: the kernel frees the lock of a holder that dies.
        """
        directory = self.root / ".locks" / _encoded("id", id)
        _make_directory(directory)
        path = directory / f"{_encoded('version', version)}.lock"
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
        return self.root / ".staging" / _encoded("id", id) / _encoded("version", version)

    def stage(self, id: str, version: str) -> Staging:
        """A place to build a version in, with what an interrupted build has left there. Hold the lock."""
        path = self._staging(id, version)
        _make_directory(path)
        return Staging(path)

    def publish(self, staging: Staging, manifest: Manifest) -> None:
        """Makes the staged files the version that `manifest` describes. Hold the lock.

        The manifest is replaced in one step: a reader sees the version before or the version after, or none
        if there was none.
        """
        directory = self.directory(manifest.id, manifest.version)
        _make_directory(directory)
        # What may need space comes first, so that a full disk leaves the version as it was.
        _write_new(directory / _MANIFEST, manifest.to_bytes())
        for file in manifest.files:
            os.replace(staging.path / file.name, directory / file.name)
        _sync_directory(directory)
        _replace_synced(directory / _MANIFEST)
        for parent in (directory.parent, self.root):  # they may be new too
            _sync_directory(parent)
        named = {file.name for file in manifest.files} | {_MANIFEST}
        for path in directory.iterdir():
            if path.name not in named:
                # Of the version before, or of a publication that was cut off: nothing names it any more.
                with contextlib.suppress(OSError):
                    path.unlink()
        staging.clear()


@dataclass(frozen=True)
class Staging:
    """The files of a build under way, and the list of those that are finished."""

    path: Path

    def load(self) -> dict[str, Any]:
        """What `save` noted last; empty if nothing is to be continued."""
        try:
            found = json.loads((self.path / _PROGRESS).read_bytes())
            sound = isinstance(found, dict) and found.pop("checksum", None) == digest(found)
            return found if sound else {}
        except (FileNotFoundError, ValueError, RecursionError):
            return {}

    def save(self, progress: dict[str, Any]) -> None:
        """Notes finished, synced files, in one step."""
        _sync_directory(self.path)
        content = {**progress, "checksum": digest(progress)}
        _write_new(self.path / _PROGRESS, json.dumps(content).encode())
        _replace_synced(self.path / _PROGRESS)

    def keep_only(self, files: Sequence[FileEntry]) -> None:
        """Deletes everything but these files and the note."""
        named = {file.name for file in files} | {_PROGRESS}
        for path in self.path.iterdir():
            if path.name not in named:
                path.unlink()

    def free_bytes(self) -> int:
        """Bytes left on this disk."""
        return shutil.disk_usage(self.path).free

    def clear(self) -> None:
        """Deletes the staging directory."""
        shutil.rmtree(self.path, ignore_errors=True)


def _encoded(what: str, text: str) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError(f"{what} must be a non-empty str, found {text!r}")
    try:
        name = quote(text, safe=" !#$&'()+,;=@[]{}~^")
    except UnicodeEncodeError:
        raise ValueError(f"{what} {text!r} is no valid text; leave out the lone surrogates") from None
    if name[0] == "." or name[0] == " ":  # neither "..", nor hidden, nor one of our own directories
        name = f"%{ord(name[0]):02X}" + name[1:]
    if name[-1] in ". ":  # dropped by Windows
        name = name[:-1] + f"%{ord(name[-1]):02X}"
    if len(name) > 240:
        raise ValueError(
            f"{what} is {len(name)} bytes percent-encoded, 240 are allowed; shorten {text[:40]!r}..."
        )
    return name


def _decoded_names(directory: Path) -> list[str]:
    try:
        names = [path.name for path in directory.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [unquote(name) for name in names if _is_encoded(name)]


def _is_encoded(name: str) -> bool:
    """False for what somebody else has put here, and for our own directories."""
    try:
        return _encoded("name", unquote(name)) == name
    except ValueError:
        return False


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write to the storage ({error.strerror}); choose a directory with space that you may "
            "write to",
            str(path),
        ) from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:200]
    except OSError:
        return ""


def _new(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _write_new(path: Path, data: bytes) -> None:
    """Writes what is to replace a file beside it."""
    try:
        with open(_new(path), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _new(path).unlink(missing_ok=True)
        raise


def _replace_synced(path: Path) -> None:
    """Puts what `_write_new` wrote in place, in one step."""
    os.replace(_new(path), path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    if os.name == "nt":
        return  # Windows cannot open directories
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
