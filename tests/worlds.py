"""Storages in which builds, conversions, copies, overwrites, removals and cleanings are killed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from known import Bystanders, files_like, objects_beside_versions, submit_known, survey, unexpected
from stored import objects_of
from victims import Killer, done_by_a_child
from waiting import eventually

import torchyoga as yoga

IDS, VERSIONS = ["a", "b c"], ["1", "2"]
TARGETS = [(id, version) for id in IDS for version in VERSIONS]
# A build has up to 4 files, a note, and temporary files of the note and the manifest; for each version, at
# most one unfinished and one replaced build are left.
MOST_LEFT = 2 * 7 * len(TARGETS)


class World(ABC):
    """A storage, its known content, and operations on it.

    Args:
        folder: an empty one.
        storage: whose builders are killed.
        chance: decides everything.
    """

    def __init__(self, folder: Path, storage: yoga.Storage, chance: random.Random) -> None:
        self.storage = storage
        self.origin = yoga.Storage(folder / "origin", storage.format)
        self.known: dict[tuple[str, str], int] = {}
        self._chance, self._killer = chance, Killer(chance)
        self._num_generations = 0
        for id, version in TARGETS:
            submit_known(self.origin, id, version, 0)

    @abstractmethod
    def ask(self, question: Callable[[], Any]) -> Any:
        """The answer to a question: plain data."""

    @abstractmethod
    def left(self) -> list[str]:
        """Files other than versions and locks, for `ask`; AssertionError if a foreign file is gone."""

    def kill_one(self) -> bool:
        """Does something in a child that may be killed, and checks everything; returns whether the child was
        killed."""
        act, do, target, after = self._plan()
        died = self._killer.strike(act, do)
        there = self.look()
        found = there.get(target)
        expected = (self.known.get(target), after) if died else (after,)
        assert found in expected, f"{act} of {target}, killed: {died}; found {found}, not one of {expected}"
        self.known.pop(target, None)
        if found is not None:
            self.known[target] = found
        assert there == self.known
        return died

    def _plan(self) -> tuple[str, Callable[[], object], tuple[str, str], int | None]:
        """An operation that is possible now: its name, the function, its version, and the generation
        afterwards."""
        chance, storage = self._chance, self.storage
        acts = ["submit", "submit", "copy", "clean"] + ["convert", "remove"] * bool(self.known)
        act = chance.choice(acts)
        target = chance.choice(sorted(self.known) if act in ("convert", "remove") else TARGETS)
        id, version = target
        before = self.known.get(target)
        if act == "remove":
            return act, partial(storage.remove, id, version), target, None
        if act == "clean":
            return act, partial(storage.clean, 0), target, before
        if act == "convert":
            format, compression = chance.choice([("lmdb", None), ("hdf5", None), ("hdf5", "gzip")])
            kept = {"format": format, "compression": compression, "progress": False}
            return act, partial(storage.convert, id, version, **kept), target, before
        if act == "copy":
            return (
                act,
                partial(self.origin.copy, id, version, storage, overwrite=True, progress=False),
                target,
                0,
            )
        # Sometimes the same rows again, so that an interrupted build is continued.
        if chance.random() < 0.5 or not self._num_generations:
            self._num_generations += 1
        generation = self._num_generations
        do = partial(submit_known, storage, id, version, generation, True)
        return "submit" if before is None else "overwrite", do, target, generation

    def look(self) -> dict[tuple[str, str], int]:
        """The generations of all published versions, each of them checked."""
        versions, left = self.ask(lambda: (survey(self.storage), self.left()))
        assert len(left) <= MOST_LEFT, left
        return {(id, version): generation for id, version, generation in versions}

    def clean(self) -> None:
        """Deletes everything that was left."""

        def is_clean() -> bool:
            self.ask(lambda: self.storage.clean(0))
            return not self.ask(self.left)

        eventually(is_clean, timeout=30)  # files leased by a builder that has just died are kept
        assert self.look() == self.known


class DirectoryWorld(World):
    """A storage in a directory, among foreign files."""

    def __init__(self, folder: Path, format: str, chance: random.Random) -> None:
        super().__init__(folder, yoga.Storage(folder / "storage", format, timeout=30), chance)
        self.bystanders = Bystanders(folder / "storage", folder / "outside", IDS)

    def ask(self, question: Callable[[], Any]) -> Any:
        return question()

    def left(self) -> list[str]:
        self.bystanders.check()
        return unexpected(self.storage, self.bystanders)


class StoreWorld(World):
    """A storage in a store behind a URL. This process itself never calls the store, so that it can fork."""

    def __init__(self, folder: Path, format: str, chance: random.Random, url: str, options: Any) -> None:
        self._cache = folder / "cache"
        storage = yoga.Storage(
            url, format, storage_options=options, cache_dir=self._cache, timeout=60, lease_seconds=1
        )
        super().__init__(folder, storage, chance)
        self._bystanders = [
            f"{place}notes.txt" for place in ("", "a/", ".leases/", ".leases/a/", "else/where/")
        ]
        self.ask(self._put_bystanders)

    def _put_bystanders(self) -> None:
        for name in self._bystanders:
            objects_of(self.storage).write(name, b"a foreign file")

    def ask(self, question: Callable[[], Any]) -> Any:
        return done_by_a_child(question)

    def left(self) -> list[str]:
        names = objects_beside_versions(self.storage)
        assert names >= set(self._bystanders), f"{set(self._bystanders) - names} is gone"
        names -= set(self._bystanders)
        building = files_like(self._cache, "building/*/.staging/**/*")
        return sorted([*(name for name in names if not name.startswith(".leases/")), *building])


def kill_many(world: World, kills: int) -> None:
    """Kills `kills` times, and cleans up now and then.

    Raises:
        AssertionError: anything is not as it should be.
    """
    killed = 0
    for attempt in range(20 * kills):
        try:
            killed += world.kill_one()
            if attempt % 25 == 24 or killed == kills:
                world.clean()
        except Exception as error:
            raise AssertionError(f"attempt {attempt}: {error}") from error
        if killed == kills:
            return
    raise AssertionError(f"only {killed} of {kills} have died")
