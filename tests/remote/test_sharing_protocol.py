"""Machines that publish versions which share files, and machines that delete: every order of their steps.

As in `test_protocol`, the machines run the real code, over a store or over a directory. What must hold at
each step: a version whose publisher was told that it is there has all of its files.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interleaved import ALL_FAULTS, Machine, Modelled, Stored, World, current, drawn, explored, modelled
from stored import over
from test_protocol import EVERY, LEASE, PATIENCE, over_remote, simplify

from torchyoga import Storage
from torchyoga.adapters.sources import dataset_and_source
from torchyoga.errors import BusyError, ExistsError, LostError, NotFoundError, RemoteError, YogaError
from torchyoga.files.root import Entry, Root
from torchyoga.stores.cache import Cache
from torchyoga.stores.local import LocalStore
from torchyoga.stores.remote import RemoteStore
from torchyoga.versions.file_entry import FileEntry, Listed
from torchyoga.versions.manifest import Manifest

Act = Callable[["Machines", Storage], object]
STILL = 1.5 * LEASE
OLD = 1e6  # seconds since all files were written, by the clock of a directory


# -- a directory, as the code sees it


class Way:
    """In the place of `Path`: a file or a folder of the world, whose key ends with "/"."""

    def __init__(self, name: str) -> None:
        self.key = name
        self.name = name.rpartition("/")[2]

    def __truediv__(self, name: str | os.PathLike[str]) -> Way:
        return Way("/".join(filter(None, (self.key, str(name)))))

    def __str__(self) -> str:
        return self.key

    __fspath__ = __str__

    def is_file(self) -> bool:
        return _asked("look at", self.key, lambda objects: self.key in objects)

    def is_dir(self) -> bool:
        return True  # what `iterdir` gives

    def iterdir(self) -> Iterator[Way]:
        return iter([self / name.rstrip("/") for name in _listed(self.key) if name.endswith("/")])

    def stat(self) -> SimpleNamespace:
        return Os.stat(self.key)


class Os:
    """In the place of `os`. Each time is one that no other file or folder has."""

    path, getpid = os.path, os.getpid

    @staticmethod
    def stat(path: str | Way) -> SimpleNamespace:
        key = str(path)

        def look(objects: dict[str, Stored]) -> SimpleNamespace:
            found = objects.get(key) or objects.get(f"{key}/")
            if found is None:
                raise FileNotFoundError(key)
            time, size = found.written, len(found.data)
            return SimpleNamespace(
                st_mtime=0.0, st_mtime_ns=time, st_ctime_ns=time, st_ino=time, st_size=size
            )

        return _asked("stat", key, look)

    @staticmethod
    @contextlib.contextmanager
    def scandir(path: Way) -> Iterator[list[SimpleNamespace]]:
        names = [name.rstrip("/") for name in _listed(path.key)]
        yield [SimpleNamespace(name=name, path=f"{path.key}/{name}") for name in names]


TIMES = SimpleNamespace(time=lambda: OLD)  # in the place of `time`


def _asked(verb: str, key: str, look: Callable[[dict[str, Stored]], Any], writes: bool = False) -> Any:
    world = current()
    return world.request(f"{verb} {key}", writes, lambda: look(world.objects))


def _names_in(objects: dict[str, Stored], folder: str) -> list[str]:
    """The names in a folder, those of folders with "/"; FileNotFoundError if there is none."""
    prefix = f"{folder}/" if folder else ""
    if prefix and prefix not in objects:
        raise FileNotFoundError(folder)
    below = (key.removeprefix(prefix) for key in objects if key.startswith(prefix) and key[0] != "\0")
    return sorted(name for name in below if name and "/" not in name[:-1])


def _listed(folder: str) -> list[str]:
    return _asked("list", folder, lambda objects: _names_in(objects, folder))


def read(path: Way, limit: int) -> bytes:
    """In the place of `read_regular`."""
    return _asked("read", path.key, lambda objects: _of(objects, path.key).data)


def _of(objects: dict[str, Stored], key: str) -> Stored:
    if key not in objects:
        raise FileNotFoundError(key)
    return objects[key]


class Folders(Root):
    """A root whose files and folders are objects of the world; each call is one step."""

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.within, name)))

    def _changed(self, verb: str, name: str, change: Callable[[dict[str, Stored], float], Any]) -> Any:
        world, key = current(), self._key(name)
        stamp = int(world.token(), 16)

        def act(objects: dict[str, Stored]) -> Any:
            before = {*objects}
            found = change(objects, stamp)
            for other in before ^ {*objects}:  # when something was made or deleted in it
                folder = f"{other.rstrip('/').rpartition('/')[0]}/"
                if folder in objects:
                    objects[folder] = Stored(b"", stamp)
            world.watch(verb, world.acting, key, None, None)
            return found

        return _asked(verb, key, act, writes=True)

    def scan(self, name: str = "") -> list[Entry]:
        folder = self._key(name)

        def look(objects: dict[str, Stored]) -> list[Entry]:
            with contextlib.suppress(FileNotFoundError):
                names = _names_in(objects, folder)
                return [Entry(n.rstrip("/"), n[-1] != "/", n[-1] == "/", 1, 0.0) for n in names]
            return []

        return _asked("scan", folder, look)

    def find(self, name: str) -> Entry | None:
        found = {entry.name: entry for entry in self.scan(name.rpartition("/")[0])}
        return found.get(name.rpartition("/")[2])

    def read(self, name: str, limit: int) -> bytes:
        return read(Way(self._key(name)), limit)

    def make(self, name: str = "") -> None:
        parts = self._key(name).split("/")

        def change(objects: dict[str, Stored], stamp: float) -> None:
            for depth in range(1, len(parts) + 1):
                objects.setdefault("/".join(parts[:depth]) + "/", Stored(b"", stamp))

        self._changed("make", name, change)

    def fill(self, name: str, data: bytes) -> None:
        key = self._key(name)

        def change(objects: dict[str, Stored], stamp: float) -> None:
            _of(objects, f"{key.rpartition('/')[0]}/")
            if key in objects:
                raise FileExistsError(key)
            objects[key] = Stored(data, stamp)

        self._changed("fill", name, change)

    def move(self, name: str, to: str) -> None:
        def change(objects: dict[str, Stored], stamp: float) -> None:
            found = _of(objects, self._key(name))
            _of(objects, f"{self._key(to).rpartition('/')[0]}/")
            objects[self._key(to)] = Stored(found.data, stamp)
            del objects[self._key(name)]

        self._changed("move", name, change)

    def sync(self, name: str = "") -> None: ...

    def sync_way(self) -> None: ...

    def unlink(self, name: str) -> bool:
        key = self._key(name)
        return self._changed("unlink", name, lambda objects, _: objects.pop(key, None) is not None)

    def rmdir(self, name: str) -> bool:
        key = self._key(name)

        def change(objects: dict[str, Stored], stamp: float) -> bool:
            is_empty = f"{key}/" in objects and not _names_in(objects, key)
            return is_empty and objects.pop(f"{key}/", None) is not None

        return self._changed("rmdir", name, change)


class Directory(LocalStore):
    """The real one, over folders of the world, and with locks that the end of a machine frees."""

    def __init__(self) -> None:
        super().__init__(Folders(Way("")))  # type: ignore[arg-type]

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1, deletes: bool = False) -> Iterator[None]:
        world, key = current(), f"\0 {id} {version}"
        mine = Stored(bytes([world.here().number]), None)

        def is_free() -> bool:
            held = world.objects.get(key)
            return held is None or world.machines[held.data[0] - 1].is_dead

        def take(objects: dict[str, Stored]) -> bool:
            if objects.get(key) == mine:
                raise YogaError("by this same call")
            if is_free():
                objects[key] = mine
            return objects[key] == mine

        while not _asked("lock", key, take, writes=True):
            if timeout == 0:
                raise BusyError("held")
            world.wait(None, is_free)
        try:
            yield
        finally:
            if world.objects.get(key) == mine:
                del world.objects[key]


# -- machines


def _source_of(data: Any, *more: Any) -> Any:
    """Of what is fetched to be converted there is no source, as nothing is read."""
    return (data, None) if isinstance(data, SimpleNamespace) else dataset_and_source(data, *more)


class Machines:
    """Versions "1" and "2" of the same file in a store or a directory, and what machines do with them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, kind: str = "store") -> None:
        self.is_store = kind == "store"
        old = Storage(folder / "old")
        both: list[Any] = [old.submit([0], "a", "1"), old.append([], "a", "2", after="1", record=False)]
        self._old = {ref.manifest.build for ref in both}
        found = (folder / "old" / "a").rglob("*.*")
        self._objects = {str(p.relative_to(folder / "old")): Stored(p.read_bytes(), 0.0) for p in found}
        if not self.is_store:
            self._objects |= {name: Stored(b"", 0.0) for name in ("a/", "a/1/", "a/2/")}
        other: Any = Storage(folder / "other").submit([7], "a", "1")
        self._new = {True: (both[0].manifest, folder / "old" / "a" / "1")}  # with the rows that were there
        self._new[False] = other.manifest, folder / "other" / "a" / "1"
        self._cache = Cache(folder / "cache", None, False)
        self._storage = Storage("s3://b", cache_dir=folder, lease_seconds=LEASE)
        self.world: World
        as_ref: Any = lambda _, found, *__, **___: SimpleNamespace(manifest=found)  # noqa: E731
        for name, model in {
            "caching.grown.build": self._grown,
            "caching.grown.dataset_and_source": _source_of,
            "caching.grown.ref_of": as_ref,
            "caching.many.build": partial(self._built, False),
            "caching.many.ref_of": as_ref,
            "stores.refs.ref_of": as_ref,
            "stores.remote.sealed": lambda manifest: manifest.to_bytes(),
            "stores.remote.opening": lambda _, held: held,
            "stores.local.sealed": lambda manifest, _: manifest.to_bytes(),
            "stores.local.os": Os,
            "stores.local.time": TIMES,
            "stores.local.read_regular": read,
        }.items():
            if not self.is_store or not name.startswith("stores.local."):
                patch.setattr(f"torchyoga.{name}", model)
        simplify(patch, STILL)

    def _grown(self, source: object, target: Any, options: Any) -> Any:
        """In the place of a build of what is appended, as there is nothing to build, or of converted rows."""
        if options.publishing is contextlib.nullcontext:
            return self._built(True, source, target, options)
        new = Manifest(target.id, target.version, self.world.token(), "2026-01-01T00:00:00Z", None, "")
        with options.publishing(new) as grown:
            return self._published(target.store, grown, None, None)

    def _built(self, is_same: bool, source: object, target: Any, options: Any) -> Manifest:
        """In the place of a build of the same or of other rows, whose file exists already."""
        manifest, folder = self._new[is_same]
        named = replace(manifest, version=target.version, parents=Listed(options.parents))
        return self._published(target.store, named.renamed(self.world.token()), target.replaces, folder)

    def _published(
        self, store: RemoteStore | Directory, new: Manifest, replaces: Any, folder: Path | None
    ) -> Manifest:
        def path_of(entry: FileEntry) -> Path:
            assert folder is not None, "nothing is sent"
            return folder / f"{self._token_in(folder)}{entry.name[16:]}"

        if isinstance(store, RemoteStore):
            held: Any = lambda entry: contextlib.nullcontext(str(path_of(entry)))  # noqa: E731
            return store.receive(new, held, replaces, progress=False)
        staging = store.stage(new.id, new.version)
        for entry in new.own_files:
            staging.root.fill(entry.name, path_of(entry).read_bytes())
        return store.publish(staging, new)

    def _token_in(self, folder: Path) -> str:
        return next(name[:16] for name in os.listdir(folder) if not name.startswith("manifest"))

    def _work(self, act: Act, machine: Machine) -> str:
        own = over_remote(self._storage, Modelled(self.world), self._cache)
        if not self.is_store:
            over(Directory(), own)
        try:
            act(self, own)
            return "done"
        except (NotFoundError, ExistsError, LostError, BusyError, RemoteError) as error:
            return type(error).__name__

    def told(self, ref: Any) -> None:
        """Its publisher was told that it is there."""
        self.world.events.append(("told", ref.manifest.build))

    def whole(self, *_: object) -> None:
        """Fails the run if a version has lost a file."""
        objects = self.world.objects
        told = self._old | {build for _, build in self.world.events}
        for name, found in objects.items():
            if name.endswith("/manifest.json"):
                manifest, version = Manifest.from_bytes(found.data), name.split("/")[1]
                is_whole = all(f"a/{f.of or version}/{f.name}" in objects for f in manifest.files)
                if manifest.build in told and not is_whole:
                    self.world.fail(f"version {version} has lost a file")

    def _made(
        self,
        acts: tuple[str, ...],
        num_faults: int,
        num_turns: float,
        prefix: tuple[int, ...],
        known: set[int],
    ) -> World:
        # A directory has no requests that are lost; a pause is what any order of the steps has.
        faults = ALL_FAULTS if self.is_store else {"crash"}
        self.world = world = World(prefix, known, num_faults, faults, num_turns, STILL, 86400.0, PATIENCE)
        gone = {"a/1/manifest.json"} if "clean" in acts else set()
        world.objects.update({k: v for k, v in self._objects.items() if k not in gone})
        world.watch = self.whole
        for number, act in enumerate(acts):
            world.add(f"{number} {act}", partial(self._work, ACTS[act]))
        return world

    def explore(self, *acts: str, num_faults: int, num_turns: float) -> set[str]:
        """Runs all orders of their steps; returns how they have ended."""
        outcomes = set()

        def check(world: World) -> None:
            self.whole()
            if all(machine.outcome is not None or machine.is_dead for machine in world.machines):
                outcomes.add(" ".join(str(machine.outcome or "dead") for machine in world.machines))

        with modelled():
            self.runs = explored(partial(self._made, acts, num_faults, num_turns), check, 1_000_000)
        return outcomes

    def draw(self, *acts: str, num_faults: int, seed: int) -> None:
        """Runs one order of their steps."""
        with modelled():
            make = partial(self._made, acts, num_faults, EVERY)
            drawn(make, lambda _: self.whole(), random.Random(seed), 0.05)


def append(machines: Machines, storage: Storage, version: str = "3", after: str = "2") -> None:
    machines.told(storage.append([], "a", version, after=after, record=False))


def go_on(machines: Machines, storage: Storage) -> None:
    """Makes a version from the newest one, and removes that."""
    append(machines, storage)
    storage.remove("a", "2")


def overwrite(version: str, machines: Machines, storage: Storage) -> None:
    machines.told(storage.submit([7], "a", version, overwrite=True))


def compact(version: str, machines: Machines, storage: Storage) -> None:
    machines.told(storage.convert("a", version))


ACTS: dict[str, Act] = {
    "go_on": go_on,
    "append": append,
    "overwrite": partial(overwrite, "1"),  # other rows, in whose folder lies the file that "2" shares
    "overwrite_parent": partial(overwrite, "2"),  # in place of those from which others make versions
    "compact": partial(compact, "1"),  # the same rows in another file, beside that which "2" shares
    "compact_parent": partial(compact, "2"),  # a file of its own for the one that others make theirs from
    "remove": lambda _, storage: storage.remove("a", "1"),
    "remove_parent": lambda _, storage: storage.remove("a", "2"),
    "clean": lambda _, storage: storage.clean(0),  # after version "1" has been removed
    # All versions but the newest, and the one that it was made from.
    "sweep": lambda _, storage: storage.clean(0, keep_last=1, id="a"),
}
PAIRS = list(itertools.combinations_with_replacement(ACTS, 2))
ACTS |= {
    "go_on_twice": lambda machines, storage: (
        go_on(machines, storage),
        append(machines, storage, "4", "3"),
        storage.remove("a", "3"),
    ),
    "append_later": lambda machines, storage: (
        machines.world.wait(STILL / 2),
        append(machines, storage, "4", "3"),  # from one that another machine makes
    ),
    "remove_both": lambda _, storage: (storage.remove("a", "1"), storage.remove("a", "2")),
}
FEW = ("go_on", "remove"), ("overwrite", "append"), ("compact_parent", "append"), ("compact", "remove_parent")
KINDS = pytest.mark.parametrize("kind", ["store", "directory"])


def names_of(value: object) -> str:
    return "-".join(value) if isinstance(value, tuple) else str(value)


@KINDS
@pytest.mark.parametrize(
    ("acts", "num_faults", "num_turns"),
    [
        *((acts, 0, 1) for acts in FEW),
        (("go_on", "remove"), 0, 2),
        (("go_on", "remove"), 1, 0),
        (("go_on", "sweep"), 0, 2),
        *(pytest.param(acts, 0, EVERY, marks=pytest.mark.soak) for acts in PAIRS),
        *(pytest.param(acts, 1, 1, marks=pytest.mark.soak) for acts in PAIRS),
        pytest.param(("go_on_twice", "remove"), 0, 4, marks=pytest.mark.soak),
        pytest.param(("go_on_twice", "sweep"), 0, 2, marks=pytest.mark.soak),
        pytest.param(("go_on", "remove"), 1, 2, marks=pytest.mark.soak),
        pytest.param(("go_on_twice", "clean"), 0, EVERY, marks=pytest.mark.soak),
        pytest.param(("append", "remove_both"), 0, EVERY, marks=pytest.mark.soak),
        pytest.param(("append", "remove_both"), 1, 1, marks=pytest.mark.soak),
        pytest.param(("append", "append_later", "remove_both"), 1, 0, marks=pytest.mark.soak),
        pytest.param(("append", "remove_parent", "remove"), 1, 0, marks=pytest.mark.soak),
    ],
    ids=names_of,
)
def test_no_version_loses_a_file_in_any_order_of_the_steps(
    kind: str,
    acts: tuple[str, ...],
    num_faults: int,
    num_turns: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = Machines(tmp_path, monkeypatch, kind).explore(
        *acts, num_faults=num_faults, num_turns=num_turns
    )
    assert any("done" in outcome for outcome in outcomes)
    assert acts not in FEW or " ".join(["done"] * len(acts)) in outcomes
    assert num_faults or all("dead" not in outcome for outcome in outcomes)


@KINDS
@pytest.mark.parametrize("examples", [100, pytest.param(20_000, marks=pytest.mark.soak)])
def test_four_machines_in_orders_that_are_drawn(
    kind: str, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines(tmp_path, monkeypatch, kind)

    @settings(max_examples=examples, deadline=None, database=None)
    @given(
        st.lists(st.sampled_from([*ACTS]), min_size=4, max_size=4), st.integers(0, 2), st.integers(0, 2**64)
    )
    def run(acts: list[str], num_faults: int, seed: int) -> None:
        machines.draw(*acts, num_faults=num_faults, seed=seed)

    run()
