"""A program in a process without the features that only Linux or POSIX has, as torchyoga would find them on
another system.

Run by test_platforms.py as `python tests/elsewhere.py <system> <folder>`. Other libraries are imported first,
with all that they need here, because they have their own ways to support other systems. Workers that are
started import this file as well, so they lack the same features.
"""

from __future__ import annotations

import builtins
import concurrent.futures.process
import ctypes
import errno
import multiprocessing.popen_spawn_posix
import multiprocessing.synchronize
import multiprocessing.util
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import fsspec.implementations.memory
import h5py
import lmdb
import numpy as np
import torch.utils.data
import tqdm

LIBRARIES = (filelock, fsspec, h5py, lmdb, multiprocessing, concurrent.futures, random, tempfile, torch, tqdm)
# macOS forks and opens folders; it has no anonymous memory files, no /proc and no descriptors of processes.
LINUX = ("memfd_create", "MFD_CLOEXEC", "pidfd_open", "posix_fallocate", "sched_getaffinity", "O_PATH")
POSIX = (
    *("fork", "forkpty", "register_at_fork", "major", "minor", "makedev", "statvfs", "fstatvfs", "sendfile"),
    *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "posix_fadvise", "pread", "pwrite"),
    *("getuid", "geteuid", "getgid", "getegid", "chown", "lchown", "fchown", "fchmod", "mkfifo", "mknod"),
)
MODULES = ("resource", "fcntl", "pwd", "grp", "termios", "syslog")


def take_away(system: str) -> None:
    """Deletes the features of a system from this process, which has not imported torchyoga yet."""
    assert "torchyoga" not in sys.modules
    _leave_whole_to_others()
    _take_proc_away()
    for name in LINUX:
        _delete(os, name)
    if system == "no-linux":
        os.supports_follow_symlinks.discard(os.link)  # some systems have no fork
        return
    for name in POSIX:
        _delete(os, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        supported.clear()
    loaded = ctypes.CDLL

    def without_libc(name: str | None, *args: Any, **kwargs: Any) -> ctypes.CDLL:
        if name is None:
            raise TypeError("a name is needed")  # as on Windows
        return loaded(name, *args, **kwargs)

    ctypes.CDLL = without_libc  # type: ignore[assignment,misc]
    made = os.open

    def without_folders(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return made(path, flags, mode)

    os.open = without_folders


def _leave_whole_to_others() -> None:
    """Gives libraries that are imported already a copy of `os` with everything in it."""
    whole = ModuleType("os")
    whole.__dict__.update(os.__dict__)
    for module in list(sys.modules.values()):
        if module.__name__ != __name__ and vars(module).get("os") is os:
            module.__dict__["os"] = whole


def _delete(module: Any, name: str) -> None:
    if hasattr(module, name):
        delattr(module, name)


def _take_proc_away() -> None:
    opened, listed = builtins.open, os.listdir

    def refuse(path: object) -> None:
        if isinstance(path, str) and path.startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def without_proc(file: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(file)
        return opened(file, *args, **kwargs)

    def listed_without_proc(path: Any = ".") -> Any:
        refuse(path)
        return listed(path)

    builtins.open, os.listdir = without_proc, listed_without_proc


def rows(num_rows: int) -> list[dict[str, Any]]:
    """Rows with numbers, text and a ragged column."""
    return [
        {"x": np.full(300, i, np.int32), "text": "x" * (i % 7), "ragged": np.arange(i % 5), "label": i}
        for i in range(num_rows)
    ]


def story(folder: Path) -> None:
    """Submits, fetches, shuffles, stops, resumes, overwrites, removes, caches, publishes in a store."""
    import torchyoga as yoga
    from torchyoga.formats import mapped
    from torchyoga.loading.shared_memory import Ring

    assert Ring.made(2) is None
    assert not (mapped.can_advise and sys.argv[1] == "no-posix")
    data = rows(200)
    for kind in ("lmdb", "hdf5"):
        storage = yoga.Storage(folder / kind, format=kind)
        storage.submit(data, "digits", "1.0")
        ref = storage.fetch("digits", "1.0")
        assert [row["label"] for row in ref] == list(range(200))
        assert all((ref[i]["x"] == i).all() and len(ref[i]["ragged"]) == i % 5 for i in range(0, 200, 13))
        for shuffle in (True, "block"):
            resume(ref, shuffle, num_workers=2 if shuffle is True and kind == "lmdb" else 0)
        storage.check("digits", "1.0")
        storage.submit(data[:50], "digits", "1.0", overwrite=True)
        assert len(storage.fetch("digits", "1.0")) == 50
        assert [row["label"] for row in ref[-3:]] == [197, 198, 199]  # opened before
        storage.remove("digits", "1.0")
        assert storage.list() == []

    storage = yoga.Storage(folder / "shared", shared=True)
    made: list[int] = []

    @storage.cacheable("cached", "1")
    def cached() -> list[dict[str, Any]]:
        made.append(1)
        return data

    assert len(cached()) == len(cached()) == 200
    assert made == [1]
    remote = yoga.Storage("memory://bucket/data", cache_dir=folder / "cache", cache_bytes=10**6)
    copy = storage.copy("cached", "1", to=remote)
    resume(copy, "block")
    remote.clean(0)


def resume(ref: Any, shuffle: bool | str, num_workers: int = 0) -> None:
    """An epoch in two parts, the second perhaps read by workers, has the rows of an epoch in one part, in
    order."""
    import torchyoga as yoga

    def loader(**more: Any) -> Any:
        return yoga.DataLoader(ref, batch_size=16, shuffle=shuffle, seed=7, collate_fn=yoga.jagged, **more)

    whole = labels(loader())
    assert sorted(whole) == list(range(200))
    first = loader()
    batches = iter(first)
    begun = labels(next(batches) for _ in range(3))
    started = {"num_workers": num_workers, "multiprocessing_context": "spawn"} if num_workers else {}
    second = loader(**started)
    second.load_state_dict(first.state_dict())
    assert begun + labels(second) == whole


def labels(batches: Iterable[dict[str, Any]]) -> list[int]:
    """The labels of batches; checks that all have texts and ragged rows as well."""
    return [int(label) for batch in batches for label in batch["label"]]


if __name__ in ("__main__", "__mp_main__"):
    take_away(sys.argv[1])
if __name__ == "__main__":
    story(Path(sys.argv[2]))
    print(f"all is well, {sys.argv[1]}")
