"""A folder, and the states that it may have after a power cut.

Everything that was synced is on the disk: the content of a file by a sync of the file, the names in a folder
by a sync of the folder. Any part of everything after that may be lost, in whatever order it was done. Only a
name that passed from one file to another always belongs to one of the two, as the system promises.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import pytest

T = TypeVar("T")
Tree = dict[str, bytes | None]  # by path: the content of each file; None for a folder
_CHANGES = ("rename", "replace", "link", "unlink", "remove", "rmdir", "mkdir")
_PAGE = 4096


class Cut:
    """What is, or may be, on the disk at a moment.

    Args:
        top: the number of the folder.
        names: for each folder, by number: the files that each name has stood for, oldest first; None is no
            file.
        contents: for each file, likewise; the first one is on the disk.
        before: the operation that was about to begin.
    """

    def __init__(
        self,
        top: int,
        names: dict[int, dict[str, list[int | None]]],
        contents: dict[int, list[bytes]],
        before: str,
    ) -> None:
        self.before = before
        self._top = top
        self._names = names
        self._contents = contents

    def trees(self, most: int, ignored: Sequence[str] = ()) -> Iterator[Tree]:
        """The states that are possible, each once: all, or about `most` cases if there are more.

        Args:
            most: cases.
            ignored: names that are left out, and all below them.
        """
        found = list(islice(self._every(ignored), most + 1))
        if len(found) > most:
            found = list(self._some(most, ignored))
        seen = set()
        for tree in found:
            key = frozenset(tree.items())
            if key not in seen:
                seen.add(key)
                yield tree

    def _every(self, ignored: Sequence[str]) -> Iterator[Tree]:
        """All choices, counted like an odometer: the last one turns first."""
        turned: list[int] = []
        while True:
            sizes: list[int] = []

            def choose(values: Sequence[T], sizes: list[int] = sizes) -> T:
                sizes.append(len(values))
                if len(sizes) > len(turned):
                    turned.append(0)
                return values[turned[len(sizes) - 1]]

            yield self._tree(choose, ignored)
            del turned[len(sizes) :]
            while turned and turned[-1] == sizes[len(turned) - 1] - 1:
                turned.pop()
            if not turned:
                return
            turned[-1] += 1

    def _some(self, most: int, ignored: Sequence[str]) -> Iterator[Tree]:
        """Everything old, everything new, everything new but one thing, and random choices."""
        yield self._tree(lambda values: values[0], ignored)
        for lost in range(most):
            place = -1

            def choose(values: Sequence[T], lost: int = lost) -> T:
                nonlocal place
                place += 1
                return values[0 if place == lost else -1]

            yield self._tree(choose, ignored)
            if place < lost:
                break
        for seed in range(most):
            yield self._tree(random.Random(seed).choice, ignored)

    def _tree(self, choose: Callable[[Sequence[Any]], Any], ignored: Sequence[str]) -> Tree:
        found: Tree = {}

        def walk(folder: int, path: str) -> None:
            for name, values in sorted(self._names[folder].items()):
                if name in ignored:
                    continue
                number = choose(values) if len(values) > 1 else values[0]
                if number in self._names:
                    found[f"{path}{name}"] = None
                    walk(number, f"{path}{name}/")
                elif number is not None:
                    torn = self._torn(number)
                    found[f"{path}{name}"] = choose(torn) if len(torn) > 1 else torn[0]

        walk(self._top, "")
        return found

    def _torn(self, file: int) -> list[bytes]:
        """The contents that a file may have: the first is on the disk, the last was written."""
        values = self._contents[file]
        new = values[-1]
        if len(values) == 1:
            return values
        middle = (len(new) // 2 + _PAGE - 1) // _PAGE * _PAGE
        torn = [
            bytes(len(new)),
            new[:middle],
            bytes(middle) + new[middle:],
            new[:middle].ljust(len(new), b"\0"),
        ]
        return [*values[:-1], *torn, new]


class Recorder:
    """Records what is done to a folder, and when it was synced.

    Attributes:
        cuts: the moments before each sync, when most may be lost, and the end.
    """

    def __init__(self, top: Path) -> None:
        self.cuts: list[Cut] = []
        self._path = top
        self._top = os.stat(top).st_ino
        self._names: dict[int, dict[str, list[int | None]]] = {}
        self._contents: dict[int, list[bytes]] = {}
        self._paths: dict[int, str] = {}
        self._handles: list[int] = []  # while a file is open, no other one gets its number
        self.look()
        for number in [*self._names, *self._contents]:
            self._settle(number)

    def cut(self, before: str) -> Cut:
        """The states that are possible if the power is cut now."""
        self.look()
        names = {number: {name: [*v] for name, v in found.items()} for number, found in self._names.items()}
        return Cut(self._top, names, {number: [*v] for number, v in self._contents.items()}, before)

    def synced(self, status: os.stat_result) -> None:
        """Called when a file or folder was synced."""
        self.look()
        path = self._paths.get(status.st_ino)
        if path is not None:
            self.cuts.append(self.cut(f"sync {path}"))
            self._settle(status.st_ino)

    def close(self) -> None:
        """Ends the recording."""
        for handle in self._handles:
            os.close(handle)

    def _settle(self, number: int) -> None:
        if number in self._contents:
            self._contents[number] = self._contents[number][-1:]
        else:
            found = self._names[number]
            self._names[number] = {name: v[-1:] for name, v in found.items() if v[-1] is not None}

    def look(self) -> None:
        """Notes what the folder holds: before something is changed, and when something was synced."""
        folders = [(self._path, self._top)]
        for path, number in folders:
            self._meet(path, number)
            there = {}
            for entry in os.scandir(path):
                there[entry.name] = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    folders.append((path / entry.name, entry.inode()))
                else:
                    self._meet(path / entry.name, entry.inode())
                    content = (path / entry.name).read_bytes()
                    known = self._contents.setdefault(entry.inode(), [b""])
                    if known[-1] != content:
                        known.append(content)
            names = self._names.setdefault(number, {})
            for name in names.keys() | there.keys():
                stands_for = names.setdefault(name, [None])
                if stands_for[-1] != there.get(name):
                    stands_for.append(there.get(name))

    def _meet(self, path: Path, number: int) -> None:
        if number not in self._paths:
            self._handles.append(os.open(path, os.O_RDONLY))
        self._paths[number] = path.relative_to(self._path).as_posix()


class _Env:
    """LMDB's environment, which syncs without Python noticing.

    It syncs the file if `force` is passed, or if it was not opened without sync.
    """

    def __init__(self, recorder: Recorder, env: Any, syncs: bool) -> None:
        self._recorder = recorder
        self._env = env
        self._syncs = syncs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def sync(self, force: bool = False) -> None:
        self._env.sync(force)
        if force or self._syncs:
            self._recorder.synced(os.stat(self._env.path()))


def recorded(top: Path, act: Callable[[], object]) -> Recorder:
    """Records what `act` does to a folder; an error of `act` is raised."""
    recorder = Recorder(top)
    syncs = {"fsync": os.fsync, "fdatasync": getattr(os, "fdatasync", os.fsync)}
    changes = {name: getattr(os, name) for name in _CHANGES}
    open_env = lmdb.open

    def watch_sync(name: str) -> Callable[[Any], None]:
        def sync(handle: Any) -> None:
            syncs[name](handle)
            recorder.synced(os.fstat(handle if isinstance(handle, int) else handle.fileno()))

        return sync

    def watch_change(name: str) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            recorder.look()
            return changes[name](*args, **kwargs)

        return change

    def open_watched(path: str, *args: Any, **kwargs: Any) -> Any:
        return _Env(recorder, open_env(path, *args, **kwargs), kwargs.get("sync", True))

    watched = {name: watch_sync(name) for name in syncs} | {name: watch_change(name) for name in changes}
    with pytest.MonkeyPatch.context() as patch:
        for name, watch in watched.items():
            patch.setattr(os, name, watch, raising=False)
        patch.setattr(lmdb, "open", open_watched)
        try:
            act()
            recorder.cuts.append(recorder.cut("the end"))
        finally:
            recorder.close()
    return recorder


def lay_out(tree: Tree, folder: Path) -> None:
    """Writes such a state to a folder."""
    folder.mkdir()
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
