"""Facts that a report of a bug needs: torch's own lines, versions of packages, file systems."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from ...process.texts import bytes_text
from .disk import file_system

__all__ = ["environment", "environment_text"]

_PACKAGE = "torchyoga"


def environment(folders: Iterable[str] = ()) -> dict[str, Any]:
    """The facts that a report of a bug needs. It takes some seconds, as torch asks programs for versions.

    Args:
        folders: of storages, whose file systems are named besides those of /dev/shm, of temporary files and
            of this directory.

    Returns:
        Lines of `torch.utils.collect_env` as "torch"; a text for each of "packages" and of "file systems".
    """
    places = dict.fromkeys([*folders, os.getcwd(), tempfile.gettempdir(), "/dev/shm"])
    return {
        "torch": _of_torch(),
        "packages": dict(_packages()),
        "file systems": {place: _room(place) for place in places if os.path.isdir(place)},
    }


def environment_text(seen: dict[str, Any]) -> str:
    """The same in lines, to be pasted into a report."""
    lines = list(seen["torch"])
    for title in ("packages", "file systems"):
        lines += ["", title, *(f"  {name}: {text}" for name, text in seen[title].items())]
    return "\n".join(lines)


def _of_torch() -> list[str]:
    from torch.utils import collect_env

    try:
        text = collect_env.get_pretty_env_info()  # type: ignore[no-untyped-call]
    except Exception as error:  # a program that it asks is broken
        text = f"torch.utils.collect_env failed: {type(error).__name__}: {error}"
    return [line.rstrip() for line in str(text).splitlines()]


def _packages() -> Iterable[tuple[str, str]]:
    """Versions of this package and of those that it needs or may use."""
    names = [_PACKAGE]
    with suppress(metadata.PackageNotFoundError):  # a copy of the sources
        names += [re.split(r"[^\w.-]", one)[0] for one in metadata.requires(_PACKAGE) or []]
    for name in dict.fromkeys(names):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            if name == _PACKAGE:
                yield name, "not installed: run from its sources"


def _room(folder: str) -> str:
    """The file system of a folder, its size and what is free."""
    kind = file_system(os.path.realpath(folder)) or "unknown"
    try:
        room = os.statvfs(Path(folder))
    except (OSError, AttributeError):
        return kind
    whole, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    return f"{kind}, {bytes_text(free, 0)} free of {bytes_text(whole, 0)}"
