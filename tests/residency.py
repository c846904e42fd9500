"""Files that lie on the disk alone, and which of their pages the kernel has in memory."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from torchyoga.formats.mapped import PAGE

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks Linux which files and pages are in memory"
)


def resident(data: np.ndarray) -> np.ndarray:
    """Which pages of a mapping are in the page cache."""
    library = ctypes.CDLL(None, use_errno=True)
    found = np.zeros(-(-data.nbytes // PAGE), np.uint8)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    assert library.mincore(data.ctypes.data, data.nbytes, found.ctypes.data) == 0
    return (found & 1).astype(bool)


def mapped_files(folder: Path) -> set[str]:
    """The files of a folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {path for line in lines if (path := line.split(maxsplit=5)[-1]).startswith(f"{folder}/")}


def on_disk(path: Path) -> None:
    """Lets the kernel forget the pages of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
