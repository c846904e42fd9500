"""A disk so small that tests can fill it, and a disk that is slow."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A small file system; made by `small_disk`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, left: int) -> None:
        """Fills the disk until `left` bytes are free, in whole pages."""
        self._ballast.unlink(missing_ok=True)
        free = os.statvfs(self.path)
        with open(self._ballast, "wb") as file:
            file.write(bytes(max(0, free.f_bavail * free.f_frsize - left)))

    def make_room(self) -> None:
        """Deletes the file that `fill` has written."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, nbytes: int) -> Iterator[SmallDisk]:
    """A disk of `nbytes` bytes, mounted at an empty folder; skips the test if this user may not mount one."""
    path.mkdir(exist_ok=True)
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=60)


@contextlib.contextmanager
def slow_disk(path: Path, nbytes_per_second: int) -> Iterator[None]:
    """The disk of a folder reads so slowly for this process; skips the test where that cannot be had."""
    groups, device = Path("/sys/fs/cgroup/blkio"), os.stat(path).st_dev
    mine = groups / f"tests-{os.getpid()}"
    try:
        mine.mkdir()
    except OSError as error:
        pytest.skip(f"needs control groups for disks, of version 1, that this user may make: {error}")
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {nbytes_per_second}"
        try:
            (mine / "blkio.throttle.read_bps_device").write_text(limit)
        except OSError as error:
            pytest.skip(f"{path} does not lie on a disk that can be made slow: {error}")
        (mine / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (groups / "cgroup.procs").write_text(str(os.getpid()))
        mine.rmdir()
