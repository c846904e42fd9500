"""How fast the files of a version are read, how much of them is in memory, and what kind of disk it is."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...process.control_group import free_memory
from ...reading.version_ref import VersionColumns, VersionRef
from ...stores.contract import Versions
from ...versions.location import Files
from ...versions.manifest import Manifest
from .diagnosis import Finding
from .walk import walk

__all__ = ["Disk", "disk_findings", "files_in", "newest_files", "read"]

_MOST_BYTES, _PIECE = 256 * 2**20, 2**20
_SLOW = 100e6  # bytes a second
_LEAST_BYTES = 16 * 2**20  # of a version, so that its cache matters
_WARM = 0.9  # of the pages in memory
_COLD = 0.5
_MOST_FILES, _MOST_VERSIONS = 1000, 20
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|ceph|glusterfs|beegfs|9p|afs|orangefs|pvfs2|wekafs"
    r"|fuse\.(?!fuse-overlayfs|ntfs|exfat|lxcfs|snapfuse|squashfuse|portal|gvfsd).*|ocfs2|gfs2?|davfs\d?"
)


class Disk(NamedTuple):
    """Measurements of some files.

    Attributes:
        kind: the type of their file system, such as ext4; "" where it is not known.
        nbytes: of all files.
        in_memory: share of their pages in memory, before anything was read; None if it is not known.
        direct: bytes a second past the page cache; None where that is not possible.
        cached: bytes a second through it.
        memory: bytes that this process could use for them.
    """

    kind: str
    nbytes: int
    in_memory: float | None
    direct: float | None
    cached: float | None
    memory: int | None


def files_in(dataset: object) -> list[str]:
    """The files on this machine of the versions that a dataset reads."""
    found: dict[str, None] = {}
    for _, value, _ in walk(dataset):
        if isinstance(value, (VersionRef, VersionColumns)):
            found |= dict.fromkeys(_files(value.location, value.manifest))
    return [*found][:_MOST_FILES]


def newest_files(store: Versions) -> list[str]:
    """The files on this machine of the largest of some versions of a storage."""
    best: list[str] = []
    most = 0
    for id, version in store.published()[-_MOST_VERSIONS:]:
        with contextlib.suppress(Exception):  # what is damaged is for `check` to say
            manifest = store.manifest(id, version)
            if manifest.nbytes > most:
                best, most = _files(store.files(manifest), manifest), manifest.nbytes
    return best


def _files(location: Files, manifest: Manifest) -> list[str]:
    return [location.path(file) for file in manifest.each_file if location.is_here(file)]


def read(paths: Sequence[str], seconds: float, root: Path = Path("/")) -> dict[str, Any]:
    """Reads up to 256 MiB of files, past the page cache and through it, each for half of the seconds."""
    nbytes = sum(os.path.getsize(path) for path in paths)
    in_memory = _in_memory(paths)
    direct = _speed(paths, seconds / 2, getattr(os, "O_DIRECT", None))
    cached = _speed(paths, seconds / 2, 0)
    kind = file_system(paths[0], root) if paths else ""
    return Disk(kind, nbytes, in_memory, direct, cached, free_memory(root))._asdict()


def disk_findings(
    disk: Disk, where: str, wanted: float | None = None, slow: float = _SLOW
) -> Iterator[Finding]:
    """Findings about a disk.

    Args:
        disk: what was measured.
        where: a file on it, for messages.
        wanted: bytes a second that the loader would read; None if it is not known.
        slow: a disk that reads fewer bytes a second is slow.
    """
    is_warm = disk.in_memory is not None and disk.in_memory >= _WARM
    text = describe(disk)
    if _NETWORK.fullmatch(disk.kind):
        yield Finding(
            "network-disk",
            f"{where} lies on {disk.kind}; {text}",
            "Each page that is not in memory is a request to a server, which many ranks share.",
            "storage.copy(id, version, yoga.Storage('/local/disk'))",
            "maybe",
        )
    is_read = disk.direct is not None and not is_warm and disk.nbytes >= _LEAST_BYTES
    if is_read and (disk.direct or 0.0) < max(slow, wanted or 0.0):
        need = "" if wanted is None else f"; the loader could take {_rate(wanted)}"
        yield Finding(
            "slow-disk",
            f"{text}{need}",
            "The loop waits for the disk in the first epoch, and in all of them if the data are larger "
            "than memory.",
            "keep the storage on a local SSD, or encode large columns (yoga.codecs.jpeg, zstd)",
            "slow",
        )
    fits = disk.memory is None or disk.nbytes <= disk.memory
    if disk.in_memory is not None and disk.in_memory < _COLD and fits and disk.nbytes >= _LEAST_BYTES:
        yield Finding(
            "cold-cache",
            text,
            "The first epoch is read from the disk, in random order with a full shuffle; later ones come "
            "from memory.",
            f"cat {os.path.dirname(where)}/* > /dev/null, before training",
            "maybe",
        )


def describe(disk: Disk) -> str:
    """The measurements, in a line."""
    parts = [f"{disk.nbytes / 1e6:,.0f} MB on {disk.kind or 'a disk'}"]
    if disk.in_memory is not None:
        parts.append(f"{disk.in_memory:.0%} in memory")
    if disk.direct is not None:
        parts.append(f"disk {_rate(disk.direct)}")
    if disk.cached is not None:
        parts.append(f"through the cache {_rate(disk.cached)}")
    return ", ".join(parts)


def file_system(path: str, root: Path = Path("/")) -> str:
    """The type of the file system that a file is on, as /proc/self/mountinfo says; "" if it does not."""
    real, best, kind = os.path.realpath(path), "", ""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        is_in = real == mount or real.startswith(f"{mount.rstrip('/')}/")
        if is_in and len(mount) >= len(best):  # a later mount hides an earlier one
            best, kind = mount, kinds[0]
    return kind


def _rate(speed: float) -> str:
    return f"{speed / 1e6:,.0f} MB/s"


def _speed(paths: Sequence[str], seconds: float, flag: int | None) -> float | None:
    """Bytes a second; None if files cannot be read so, or there is too little to read."""
    if flag is None:
        return None
    buffer = mmap.mmap(-1, _PIECE)  # aligned, as O_DIRECT wants it
    count, start = 0, time.perf_counter()
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | flag)
        except OSError:  # tmpfs has no disk to read from
            return None
        try:
            # Pages that lie apart: reading ahead would be measured otherwise.
            for at in range(0, os.path.getsize(path), _PIECE):
                if count >= _MOST_BYTES or time.perf_counter() - start > seconds:
                    break
                count += os.preadv(descriptor, [buffer], at)
        except OSError:
            return None
        finally:
            os.close(descriptor)
    spent = time.perf_counter() - start
    return count / spent if count >= _PIECE and spent > 0 else None


def _in_memory(paths: Sequence[str]) -> float | None:
    """The share of the files' pages that are in memory. Linux reports it to users who may write them only."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    pages = there = 0
    for path in paths:
        size = os.path.getsize(path)
        if not size or os.geteuid() not in (0, os.stat(path).st_uid):
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            data = np.frombuffer(mapping, np.uint8)
            found = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            if library.mincore(data.ctypes.data, size, found.ctypes.data) == 0:
                pages, there = pages + len(found), there + int((found & 1).sum())
            del data
    return there / pages if pages else None
