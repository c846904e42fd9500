"""Machines that publish versions which share files, and machines that delete, in every order of their steps.

As in `test_protocol`, the machines run the real code. What must hold at each step: a version whose publisher
was told that it is there has all of its files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interleaved import ALL_FAULTS, Machine, Modelled, Stored, World, explored, modelled
from test_protocol import EVERY, LEASE, PATIENCE, over_mirror, simplify

from torchyoga import Keep, Storage
from torchyoga.errors import BusyError, LostError, NotFoundError, RemoteError
from torchyoga.stores.cache import Cache
from torchyoga.stores.mirror import Mirror
from torchyoga.versions.manifest import Manifest

Act = Callable[["Machines", Storage], object]
STILL = 1.5 * LEASE


class Machines:
    """Versions "1" and "2" of the same file in a store, and what machines do with them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        old = Storage(folder / "old")
        old.submit([0], "a", "1")
        old.append([], "a", "2", after="1", record=False)
        found = (folder / "old" / "a").rglob("*.*")
        self._objects = {str(p.relative_to(folder / "old")): Stored(p.read_bytes(), 0.0) for p in found}
        self._cache = Cache(folder / "cache", None, False)
        self._storage = Storage("s3://b", cache_dir=folder, lease_seconds=LEASE)
        self.world: World
        patch.setattr("torchyoga.caching.appended.build", self._published)
        patch.setattr("torchyoga.caching.appended.ref_of", lambda _, found: SimpleNamespace(manifest=found))
        simplify(patch, STILL)

    def _published(self, source: object, store: Mirror, id: str, version: str, options: Any) -> Manifest:
        """In the place of a build, as there is nothing to build."""
        new = Manifest(id, version, self.world.token(), "2026-01-01T00:00:00Z", None, "")
        with options.publishing(new) as grown:
            return store.receive(grown, lambda entry: pytest.fail("nothing is sent"), None, progress=False)

    def _work(self, act: Act, machine: Machine) -> str:
        storage = over_mirror(self._storage, Modelled(self.world), self._cache)
        try:
            act(self, storage)
            return "done"
        except (NotFoundError, LostError, BusyError, RemoteError) as error:
            return type(error).__name__

    def whole(self, *_: object) -> None:
        """Fails the run if a version has lost a file."""
        objects = self.world.objects
        for _, version in (("told", "1"), ("told", "2"), *self.world.events):
            if there := objects.get(f"a/{version}/manifest.json"):
                files = Manifest.from_bytes(there.data).files
                if not all(f"a/{file.of or version}/{file.name}" in objects for file in files):
                    self.world.fail(f"version {version} has lost a file")

    def explore(self, *acts: Act, num_faults: int, num_turns: float) -> set[str]:
        """Runs all orders of their steps; returns how they have ended."""
        outcomes = set()

        def made(prefix: tuple[int, ...], known: set[int]) -> World:
            self.world = world = World(
                prefix, known, num_faults, ALL_FAULTS, num_turns, STILL, 86400.0, PATIENCE
            )
            gone = {"a/1/manifest.json"} if {*acts} & {clean} else set()
            world.objects.update({k: v for k, v in self._objects.items() if k not in gone})
            world.watch = self.whole
            for number, act in enumerate(acts):
                world.add(f"{number} {act.__name__}", partial(self._work, act))
            return world

        def check(world: World) -> None:
            self.whole()
            if all(machine.outcome is not None or machine.is_dead for machine in world.machines):
                outcomes.add(" ".join(str(machine.outcome or "dead") for machine in world.machines))

        with modelled():
            explored(made, check, 100_000)
        return outcomes


def go_on(machines: Machines, storage: Storage) -> None:
    """Makes a version from the newest one, and removes that."""
    append(machines, storage)
    remove_parent(machines, storage)


def go_on_twice(machines: Machines, storage: Storage) -> None:
    """The same twice."""
    go_on(machines, storage)
    append(machines, storage, "4", "3")
    storage.remove("a", "3")


def append(machines: Machines, storage: Storage, version: str = "3", after: str = "2") -> None:
    storage.append([], "a", version, after=after, record=False)
    machines.world.events.append(("told", version))


def append_later(machines: Machines, storage: Storage) -> None:
    """Makes a version from one that another machine makes."""
    machines.world.wait(STILL / 2)
    append(machines, storage, "4", "3")


def remove_parent(machines: Machines, storage: Storage) -> None:
    storage.remove("a", "2")


def remove_both(machines: Machines, storage: Storage) -> None:
    storage.remove("a", "1")
    storage.remove("a", "2")


def remove(machines: Machines, storage: Storage) -> None:
    storage.remove("a", "1")


def clean(machines: Machines, storage: Storage) -> None:
    """Cleans up after version "1" has been removed."""
    storage.clean(0)


def sweep(machines: Machines, storage: Storage) -> None:
    """Removes all versions but the newest, and the one that it was made from, in one sweep."""
    storage.clean(0, keep=Keep(last=1), id="a")


@pytest.mark.parametrize(
    ("acts", "num_faults", "num_turns"),
    [
        ((go_on, remove), 0, EVERY),
        ((go_on, remove), 1, 0),
        ((go_on, sweep), 0, 2),
        pytest.param((go_on, sweep), 0, EVERY, marks=pytest.mark.soak),
        pytest.param((go_on, sweep), 1, 1, marks=pytest.mark.soak),
        pytest.param((go_on_twice, sweep), 0, 2, marks=pytest.mark.soak),
        pytest.param((sweep, sweep), 1, 1, marks=pytest.mark.soak),
        pytest.param((go_on, clean), 1, 1, marks=pytest.mark.soak),
        pytest.param((go_on, remove), 1, 2, marks=pytest.mark.soak),
        pytest.param((go_on_twice, clean), 0, EVERY, marks=pytest.mark.soak),
        pytest.param((append, remove_both), 1, 1, marks=pytest.mark.soak),
        pytest.param((append, append_later, remove_both), 1, 0, marks=pytest.mark.soak),
        pytest.param((append, remove_parent, remove), 1, 0, marks=pytest.mark.soak),
    ],
    ids=lambda value: "-".join(act.__name__ for act in value) if isinstance(value, tuple) else str(value),
)
def test_no_version_loses_a_file_in_any_order_of_the_steps(
    acts: tuple[Act, ...], num_faults: int, num_turns: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = Machines(tmp_path, monkeypatch).explore(*acts, num_faults=num_faults, num_turns=num_turns)
    assert " ".join(["done"] * len(acts)) in outcomes
    assert num_faults or all("dead" not in outcome for outcome in outcomes)
