"""Writing so that whatever stops it leaves what was there before, or what came after."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["beside", "make_directory", "replace_synced", "sync_directory", "sync_file", "write_new"]


def make_directory(path: Path) -> None:
    """Makes a directory of a storage and those above it; OSError says what to do if that is not allowed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write to the storage ({error.strerror}); choose a directory with space that you may "
            "write to",
            str(path),
        ) from error


def beside(path: Path) -> Path:
    """Where what is to replace a file is written first."""
    return path.with_name(path.name + ".new")


def write_new(path: Path, data: bytes) -> None:
    """Writes what is to replace a file beside it."""
    try:
        with open(beside(path), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        beside(path).unlink(missing_ok=True)
        raise


def replace_synced(path: Path) -> None:
    """Puts what `write_new` wrote in place, in one step."""
    os.replace(beside(path), path)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Returns when the file is on the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Returns when the names in the directory are on the disk."""
    if os.name == "nt":
        return  # Windows cannot open directories
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
