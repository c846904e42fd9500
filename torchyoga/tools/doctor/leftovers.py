"""Remains of interrupted builds in a storage: part builds, plans, locks, leases, files of no version."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...stores.contract import Versions
from ...stores.local import Store
from .diagnosis import Finding

__all__ = ["leftover_findings", "leftovers"]

_SILENT = 60.0  # seconds: a holder of a lease would have given a sign of life
_FORGOTTEN = 3600.0  # seconds: a build whose holder cannot be seen would have written something
_MOST_NAMED, _MOST_LOCKS = 5, 1000
_CLAIM = re.compile(r"(.+)/([0-9]{8})\.json")
_LARGEST = 4096
Left = dict[str, Any]


def leftovers(store: Versions, forgotten: float = _FORGOTTEN) -> list[Left]:
    """Everything that is left, each with its kind, name, bytes and age in seconds. It only looks."""
    return [*_of_builds(store, forgotten), *_leases(store)]


def leftover_findings(seen: Iterable[Left], where: str) -> list[Finding]:
    """One finding for each kind of what is left."""
    by_kind: dict[str, list[Left]] = {}
    for one in seen:
        by_kind.setdefault(one["kind"], []).append(one)
    return [_finding(kind, some, where) for kind, some in by_kind.items()]


def _finding(kind: str, some: list[Left], where: str) -> Finding:
    who = [f" (of {one['holder']})" if one.get("holder") else "" for one in some]
    names = ", ".join(f"{one['name']}{of}" for one, of in zip(some[:_MOST_NAMED], who, strict=False))
    more = f" and {len(some) - _MOST_NAMED} more" if len(some) > _MOST_NAMED else ""
    ages = [one["age"] for one in some if one["age"] is not None]
    age = f", untouched for {age_text(min(ages))} or longer" if ages else ""
    nbytes = sum(one["bytes"] for one in some)
    grace = int(min(ages)) if ages else 0
    clean = f"yoga gc --storage {shlex.quote(where)} --grace {grace} --yes"
    whys = {
        "interrupted-build": (
            "A builder has ended before it could publish. Its files take space, and there is no version.",
            f"submit it again, which goes on from there; or {clean}",
        ),
        "forgotten-files": ("No version names them; they only take space.", clean),
        "stale-lock": (
            "Its holder has ended and left no version. The kernel has freed it, so no process waits for it.",
            clean,
        ),
        "stale-lease": (
            "Its holder shows no sign of life: the next builder waits for a while before it takes over.",
            "submit the version again: it takes over after lease_seconds (60 by default)",
        ),
    }
    why, change = whys[kind]
    return Finding(kind, f"in {where}: {names}{more}; {nbytes / 1e6:,.1f} MB{age}", why, change, "maybe")


def age_text(seconds: float) -> str:
    """Some seconds, in the unit that suits them."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _of_builds(store: Versions, forgotten: float) -> Iterable[Left]:
    """Part builds, plans and files of no version, unless a process is at work on them."""
    sizes, locks = _cleanable(store), _held_locks()
    for name, nbytes in sorted(sizes.items()):
        age = _age(store, name)
        kind = "interrupted-build" if name.split("/")[0].startswith(".") else "forgotten-files"
        if _is_locked(store, name, locks):
            continue
        holder = _holder(store, name)
        # Of another machine's locks this one knows nothing.
        is_here = locks is not None and f" on {socket.gethostname()}, " in holder
        if is_here and name.startswith(".staging/"):
            is_left = True
        else:
            is_left = name in _cleanable(store, forgotten) if age is None else age >= forgotten
        if is_left:
            yield {"kind": kind, "name": name, "bytes": nbytes, "age": age, "holder": holder}
    yield from _locks(store, locks, {name for name in sizes if name.startswith(".staging/")}, forgotten)


def _cleanable(store: Versions, grace: float = 0.0) -> dict[str, int]:
    """Everything that `clean` would remove, by name, and its bytes; no lock is taken to find out."""
    sizes: dict[str, int] = {}
    # Of plans `clean` takes the lock, so they are listed here; while there are some, files may be theirs.
    if not isinstance(store, Store) or not any(store.root.glob(".builds/*/*")):
        store.clean(grace, None, sizes)
        return sizes
    for pattern in (".staging/*/*", ".parts/*", ".builds/*/*"):
        for path in store.root.glob(pattern):
            inside = [inner.stat().st_size for inner in path.rglob("*") if inner.is_file()]
            if inside:
                sizes[path.relative_to(store.root).as_posix()] = sum(inside)
    return sizes


def _locks(
    store: Versions, locks: set[tuple[int, int]] | None, builds: set[str], forgotten: float
) -> Iterable[Left]:
    """Old locks that no process holds, of versions that are not there; builds name their own."""
    if not isinstance(store, Store) or locks is None:
        return
    folder = store.root / ".locks"
    for number, path in enumerate(sorted(folder.glob("*/*.lock"))):
        if number == _MOST_LOCKS:
            return
        name = path.relative_to(folder).with_suffix("").as_posix()
        holder = path.with_suffix(".holder")
        if f".staging/{name}" in builds or (store.root / name).is_dir() or not holder.exists():
            continue
        with contextlib.suppress(OSError):
            about, used = path.stat(), holder.stat().st_mtime
            if time.time() - used >= forgotten and _place(about) not in locks:
                yield {
                    "kind": "stale-lock",
                    "name": f".locks/{name}.lock",
                    "bytes": 0,
                    "age": time.time() - used,
                    "holder": _text(holder),
                }


def _is_locked(store: Versions, name: str, locks: set[tuple[int, int]] | None) -> bool:
    """True if a process of this machine holds the writer's lock of what lies under a name."""
    if not isinstance(store, Store) or not locks:
        return False
    with contextlib.suppress(OSError):
        about = _lock_of(store, name).stat()
        return _place(about) in locks
    return False


def _place(about: os.stat_result) -> tuple[int, int]:
    """Device and inode, as `_held_locks` has them."""
    return os.major(about.st_dev) << 20 | os.minor(about.st_dev), about.st_ino


def _lock_of(store: Store, name: str) -> Path:
    id, version = [*name.removeprefix(".staging/").removeprefix(".builds/").split("/"), "", ""][:2]
    return store.root / ".locks" / id / f"{version}.lock"


def _holder(store: Versions, name: str) -> str:
    return _text(_lock_of(store, name).with_suffix(".holder")) if isinstance(store, Store) else ""


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(200).decode(errors="replace")
    except OSError:
        return ""


def _held_locks() -> set[tuple[int, int]] | None:
    """The files that processes of this machine hold locks on, by device and inode; None if unknown."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    found = set()
    for line in lines:
        match = re.search(r" ([0-9a-f]+):([0-9a-f]+):(\d+) ", line)
        if match is not None:
            found.add((int(match[1], 16) << 20 | int(match[2], 16), int(match[3])))
    return found


def _age(store: Versions, name: str) -> float | None:
    """Seconds since anything under a name was written; None behind a URL."""
    if not isinstance(store, Store):
        return None
    path = store.root / name
    newest = 0.0
    with contextlib.suppress(OSError):
        newest = path.stat().st_mtime
        for number, inner in enumerate(path.rglob("*") if path.is_dir() else ()):
            if number == 1000:
                break
            newest = max(newest, inner.stat().st_mtime)
    return max(0.0, time.time() - newest) if newest else None


def _leases(store: Versions) -> Iterable[Left]:
    """Claims behind a URL that were not given up, and show no sign of life."""
    if isinstance(store, Store):
        return
    notes = store.notes(".leases")
    now, names = notes.now(), notes.names()
    last: dict[str, str] = {}
    for name in sorted(names):
        match = _CLAIM.fullmatch(name)
        if match is not None:
            last[match[1]] = name
    for folder, name in sorted(last.items()):
        written = names[name]
        age = None if now is None or written is None else now - written
        if age is None or age < _SILENT:
            continue
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            claim = json.loads(notes.read(name, _LARGEST) or b"{}")
            if claim.get("given_up") is False:
                holder = str(claim.get("holder", ""))[:200]
                yield {
                    "kind": "stale-lease",
                    "name": f".leases/{folder}",
                    "bytes": 0,
                    "age": age,
                    "holder": holder,
                }
