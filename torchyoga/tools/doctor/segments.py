"""Shared memory of this user that no process has open any more."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from .finding import Finding
from .leftovers import age_text

__all__ = ["Segment", "orphaned", "orphans"]

_OLD = 60.0  # seconds; a younger one may be about to be opened
_KNOWN = re.compile(r"torch_(\d+)_\S+|(?:sem\.)?(?:psm_|mp-|loky-(\d+)-|pym-(\d+)-)\S+|sem\.mp-\S+|wnsm_\S+")
_MOST_NAMED, _MOST = 5, 10_000


class Segment(NamedTuple):
    """Shared memory with a name.

    Attributes:
        name: of its file.
        nbytes: that it takes.
        age: seconds since it was written.
    """

    name: str
    nbytes: int
    age: float


def orphans(folder: str = "/dev/shm", old: float = _OLD) -> list[Segment]:
    """Segments of this user, made by Python, that no process that can be seen has open or mapped.

    Args:
        folder: where the system keeps shared memory.
        old: seconds; younger ones count only if their name says that their maker has ended.
    """
    found: list[Segment] = []
    if not hasattr(os, "getuid") or not os.path.isdir("/proc/self/map_files"):
        return found
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        candidates = [
            entry for _, entry in zip(range(_MOST), entries, strict=False) if _KNOWN.fullmatch(entry.name)
        ]
        used = _used(folder) if candidates else set()
        for entry in candidates:
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                age = time.time() - about.st_mtime
                is_of_dead = _maker_has_ended(entry.name)
                if about.st_uid != os.getuid() or entry.name in used or is_of_dead is False:
                    continue
                if is_of_dead or age >= old:
                    found.append(Segment(entry.name, about.st_blocks * 512, max(0.0, age)))
    return sorted(found)


def orphaned(segments: list[Any], folder: str = "/dev/shm") -> list[Finding]:
    """A finding that names them all by a command."""
    if not segments:
        return []
    found = [Segment(*one) for one in segments]
    patterns = [*dict.fromkeys(_pattern(one.name) for one in found)]
    named = " ".join(f"{folder}/{one}" for one in patterns[:_MOST_NAMED])
    more = f"; then look again, for {len(patterns) - _MOST_NAMED} more" if len(patterns) > _MOST_NAMED else ""
    oldest = max(one.age for one in found)
    return [
        Finding(
            "orphaned-shm",
            f"{len(found)} in {folder}, {sum(one.nbytes for one in found) / 1e6:,.1f} MB, "
            f"up to {age_text(oldest)} old, that no process that can be seen has open",
            "Memory that a killed process has left is taken until it is deleted or the machine starts again.",
            f"rm {named}{more}",
            "note",
        )
    ]


def _pattern(name: str) -> str:
    """All that a process has made, if it has ended, as its name says."""
    made_by = re.match(r"(torch_\d+_|sem\.loky-\d+-|pym-\d+-)", name)
    return name if made_by is None else f"{made_by[1]}*"


def _maker_has_ended(name: str) -> bool | None:
    """True or False if the name says which process made it, else None."""
    match = _KNOWN.fullmatch(name)
    pid = next((int(one) for one in match.groups() if one), None) if match is not None else None
    if pid is None:
        return None
    return not os.path.exists(f"/proc/{pid}")


def _used(folder: str) -> set[str]:
    """Names in a folder that processes have open or mapped, as far as this user may see."""
    found: set[str] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, _, path = line.partition(f"{folder}/")
                if path:
                    found.add(path.removesuffix(" (deleted)"))
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    path = os.readlink(descriptor)
                    if path.startswith(f"{folder}/"):
                        found.add(path.removeprefix(f"{folder}/").removesuffix(" (deleted)"))
    return found
