"""Things that may lie where a file should be."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def make_socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)  # its name may have only a hundred characters
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


OTHERS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": make_socket,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


def remove(path: Path) -> None:
    path.rmdir() if path.is_dir() else path.unlink()
