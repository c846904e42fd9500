"""Two or three machines, in every order of their steps, with faults at each: all required properties hold.

`interleaved` says how this works. The machines run `Storage`, `RemoteStore`, `Lease` and `Objects` as they
are; only the builds exist already, a file for each builder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interleaved import ALL_FAULTS, Machine, Modelled, Stored, World, current, explored, modelled, tag_of
from stored import over, short_waits

from torchyoga import Storage
from torchyoga.errors import ExistsError, LostError, NotFoundError, RemoteError
from torchyoga.stores import lease
from torchyoga.stores.cache import Cache
from torchyoga.stores.lease import Lease
from torchyoga.stores.remote import RemoteStore
from torchyoga.versions.file_entry import FileEntry
from torchyoga.versions.manifest import Manifest

LEASE = 4.0
EVERY = float("inf")
MANIFEST = "a/1/manifest.json"
PATIENCE = 60 * LEASE  # more than faults, and waiting for dead machines, can take together
Act = Callable[["Protocol", Storage], Any]


class Watched(Lease):
    """Tells the model which machine holds the lease."""

    def __enter__(self) -> Lease:
        super().__enter__()
        Protocol.now.entered()
        return self

    def __exit__(self, *error: object) -> None:
        Protocol.now.left()
        super().__exit__(*error)


NOTHING = SimpleNamespace(  # the machine's own folder, which no other process uses
    lock=lambda *_: contextlib.nullcontext(),
    stage=lambda *_: SimpleNamespace(clear=lambda: None),
    clean=lambda *_: {},
)


def simplify(patch: pytest.MonkeyPatch, still: float) -> None:
    """Leaves out what these worlds do not know, and work that takes long if it is done a thousand times."""
    replaced: list[tuple[object, str, object]] = [
        (lease, "_FIRST_POLL", LEASE / 4),  # as often as signs of life
        # Parts of messages besides the requested names.
        (RemoteStore, "ids_like", lambda *_: ["b"]),
        (Manifest, "from_bytes", staticmethod(cache(Manifest.from_bytes))),
        (logging.getLogger("torchyoga"), "disabled", True),
    ]
    for where, name, model in replaced:
        patch.setattr(where, name, model)
    short_waits(still / 4, patch=patch.setattr)  # the third try comes after a cut


def _ref_of(_: object, found: Manifest, *__: object, **___: object) -> SimpleNamespace:
    return SimpleNamespace(manifest=found)


def over_remote(storage: Storage, remote: Modelled, there: Cache) -> Storage:
    """That storage, for one machine of the world."""
    store = RemoteStore(remote, there, LEASE)
    store._local = NOTHING  # type: ignore[assignment]
    return over(store, copy(storage))


class Protocol:
    """The operations of machines, and the properties that must hold."""

    now: Protocol  # the instance whose runs are in progress

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, still: float) -> None:
        self._folder = folder
        self._still = still
        self._built: dict[str, tuple[Manifest, Path]] = {}
        for number, name in enumerate(("old", "first", "second", "third")):
            found = Storage(folder / name).submit([number], "a", "1")
            self._built[name] = found.manifest, folder / name / "a" / "1"  # type: ignore[attr-defined]
        self._names = {manifest.fingerprint: name for name, (manifest, _) in self._built.items()}
        self._caches = {name: Cache(folder / f"cache-{name}", None, False) for name in self._built}
        self._texts: dict[tuple[Any, ...], bytes] = {}
        self._storage = Storage("s3://b", cache_dir=folder, lease_seconds=LEASE)
        self._world: World
        Protocol.now = self
        simplify(patch, still)
        for name, model in {
            "caching.many.build": self._build,
            "caching.many.ref_of": _ref_of,
            "stores.refs.ref_of": _ref_of,
            "stores.remote.Lease": Watched,
            "stores.remote.opening": lambda manifest, held: held,
            "stores.remote.sealed": self._sealed,
        }.items():
            patch.setattr(f"torchyoga.{name}", model)

    def _sealed(self, manifest: Manifest) -> bytes:
        key = manifest.build, *(file.crc for file in manifest.files)
        if key not in self._texts:
            self._texts[key] = manifest.to_bytes()
        return self._texts[key]

    # -- machines

    def _build(self, source: Any, target: Any, options: Any) -> Any:
        manifest, path = self._built[self._machine().name]

        @contextlib.contextmanager
        def held(entry: FileEntry) -> Iterator[str]:
            yield str(path / entry.name)

        return target.store.receive(manifest, held, target.replaces, progress=False)

    def _machine(self) -> Machine:
        return self._world.here()

    def _work(self, act: Act, machine: Machine) -> str:
        storage = over_remote(self._storage, remote := Modelled(self._world), self._caches[machine.name])
        try:
            found = act(self, storage)
            told = "done" if found is None else self._names[found.manifest.fingerprint]
        except (ExistsError, NotFoundError, RemoteError) as error:
            told = type(error).__name__
        except LostError as error:
            told = "LostError"
            if not re.search("were removed from|was taken over by", str(error)):
                raise
        if not remote.is_conditional:
            self._world.fail(f"{machine.name} believes that the store creates unconditionally")
        self._world.events.append(("told", machine.name, told))
        return told

    # -- properties that must hold at every step

    def entered(self) -> None:
        machine = self._machine()
        machine.is_inside = True
        if any(label.startswith("create .leases/a/") for label in machine.struck):
            return  # nothing keeps a machine from stalling between its last look and its claim
        for other in self._world.machines:
            is_well = not other.is_dead and not {*other.faults} - {"slow", "lost"}
            if other is not machine and other.is_inside and is_well:
                self._world.fail(
                    f"{machine.name} has the lease, and {other.name}, which is alive, has it too"
                )

    def left(self) -> None:
        self._machine().is_inside = False

    def _watch(
        self, how: str, machine: Machine, name: str, before: Stored | None, after: Stored | None
    ) -> None:
        world = self._world
        if name.startswith(".leases/a/") and before is not None and after is not None:
            is_last = name == max(other for other in world.objects if other.startswith(".leases/a/"))
            if is_last and _holder(before) != _holder(after):
                world.fail(f"{machine.name} writes to the claim of another")
        if name != MANIFEST:
            return
        was, is_ = self._name(before), self._name(after)
        if how == "delete":
            world.events.append(("removed" if was != machine.name else "taken back", machine.name, was))
            if was != machine.name and machine.name not in self._removers:
                world.fail(f"{machine.name} removes the manifest of {was}")
        elif how == "replace":
            world.events.append(("replaced", machine.name, was))
            is_its_own = was == machine.name  # which is sent again
            if before is None or not (is_its_own or tag_of(before.data) == machine.first_tag):
                world.fail(f"{machine.name} replaces {was}, which is not what it has seen")
        elif how == "create":
            world.events.append(("created", machine.name, is_))
        else:
            world.fail(f"{machine.name} puts a manifest without a condition")

    def _name(self, manifest: Stored | None) -> str:
        return "nothing" if manifest is None else self._names[Manifest.from_bytes(manifest.data).fingerprint]

    # -- properties that must hold in the end

    def _check(self, world: World) -> None:
        there = world.objects.get(MANIFEST)
        published = self._name(there)
        if there is not None:
            files = [f"a/1/{file.name}" for file in Manifest.from_bytes(there.data).files]
            publisher = [machine for machine in world.machines if machine.name == published]
            is_torn = not world.objects.keys() >= {*files}
            has_ended = all(machine.outcome is not None for machine in world.machines)
            if (
                is_torn
                and has_ended
                and not any({"crash", "away"} & {*machine.faults} for machine in publisher)
            ):
                world.fail(f"the version of {published} has lost its files")
        if world.now > self._begin + LEASE / 2 and not any(machine.faults for machine in world.machines):
            world.fail("no machine stalled, and it took long")
        for machine in world.machines:
            if machine.outcome in ("ExistsError", "LostError") and published == machine.name:
                world.fail(f"{machine.name} was told {machine.outcome}, and has published its version")
            if machine.outcome != machine.name:
                continue
            puts = [
                event
                for event in world.events
                if event[:2] in (("created", machine.name), ("replaced", machine.name))
            ]
            gone = [
                event
                for event in world.events
                if event[0] in ("removed", "replaced") and event[2] == machine.name
            ]
            if not puts:
                world.fail(f"{machine.name} was told that its version is published, and it never was")
            elif published != machine.name and not gone:
                world.fail(f"{machine.name} was told that its version is published, and it is gone")
        if all(machine.outcome is not None or machine.is_dead for machine in world.machines):
            self.outcomes.add(" ".join(str(machine.outcome or "dead") for machine in world.machines))

    # -- runs

    def explore(self, case: Case) -> set[str]:
        """Runs all orders of a case's operations; returns how they have ended."""
        self.outcomes: set[str] = set()
        objects: dict[str, Stored] = {}
        machines = dict(zip(["first", "second", "third"], case.acts, strict=False))
        self._removers = [name for name, act in machines.items() if act == "remove"]
        self._begin = self._still if {"clean", "replacing"} & {*case.acts} else 0.0
        with modelled():
            if case.acts[0] == "overwrite":
                before = replace(case, num_faults=0, kinds=())
                world = self._made(before, objects, {"old": "submit"}, (), set())
                world.run()
                assert world.machines[0].outcome == "old", world.broken
                objects = {name: found for name, found in world.objects.items() if name.startswith("a/")}
            explored(partial(self._made, case, objects, machines), self._check, 100_000)
        return self.outcomes

    def _made(
        self,
        case: Case,
        objects: dict[str, Stored],
        machines: dict[str, str],
        prefix: tuple[int, ...],
        known: set[int],
    ) -> World:
        faults = case.num_faults, case.kinds, case.num_turns, self._still
        self._world = world = World(prefix, known, *faults, case.clock, PATIENCE, case.is_deaf)
        world.objects.update(objects)
        world.watch = self._watch
        for name, act in machines.items():
            world.add(name, partial(self._work, ACTS[act]))
        return world


def _holder(claim: Stored) -> str:
    return str(json.loads(claim.data)["beat"]).partition("-")[0]


def submit(protocol: Protocol, storage: Storage, overwrite: bool = False) -> Any:
    return storage.submit([1], "a", "1", overwrite=overwrite)


def clean(protocol: Protocol, storage: Storage) -> Any:
    """Cleans once a builder that has stalled counts as dead."""
    current().wait(protocol._still)
    storage.clean(0)


def replacing(protocol: Protocol, storage: Storage) -> Any:
    """Cleans, and then builds."""
    clean(protocol, storage)
    return submit(protocol, storage, overwrite=True)


ACTS: dict[str, Act] = {
    "submit": submit,
    "overwrite": partial(submit, overwrite=True),
    "cacheable": lambda _, storage: storage.cacheable("a", "1", stale="ignore")(lambda: [1])(),
    "remove": lambda _, storage: storage.remove("a", "1"),
    "clean": clean,
    "replacing": replacing,
}


@dataclass(frozen=True)
class Case:
    """Machines, and their faults."""

    acts: tuple[str, ...]
    num_faults: int
    num_turns: float = EVERY
    clock: float | None = 86400.0
    is_deaf: bool = False
    kinds: tuple[str, ...] = tuple(sorted(ALL_FAULTS))

    def __str__(self) -> str:
        acts = "-".join(self.acts)
        return f"{acts}-{self.num_faults}-{self.num_turns}-{self.clock}{'-deaf' * self.is_deaf}"

    def explore(self, folder: Path, patch: pytest.MonkeyPatch) -> set[str]:
        # A waiter that sees no sign of life for a lease takes the holder for dead; `clean`, which asks the
        # store, whose clock shows whole seconds, a second later. A machine that stalled goes on just then.
        still = LEASE * (1.5 if {"clean", "replacing"} & {*self.acts} else 1.25)
        return Protocol(folder, patch, still).explore(self)


@pytest.mark.parametrize(
    ("case", "outcomes"),
    [
        (Case(("submit", "submit"), 0), "first ExistsError, ExistsError second"),
        (Case(("cacheable", "cacheable"), 0), "first first, second second"),
        (Case(("submit", "cacheable"), 0), "first first, ExistsError second"),
        (Case(("overwrite", "overwrite"), 0), "first second"),
        (Case(("submit", "remove"), 0), "first done, first NotFoundError"),
        (Case(("overwrite", "remove"), 0), "first done"),
    ],
    ids=str,
)
def test_every_order_of_the_steps(
    case: Case, outcomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.explore(tmp_path, monkeypatch) == {*outcomes.split(", ")}


@pytest.mark.parametrize(
    ("case", "outcomes"),
    [
        (Case(("submit", "submit"), 1, 0), "first ExistsError, dead second, RemoteError second"),
        (Case(("submit", "submit"), 1, 0, None), "first ExistsError, dead second"),
        (Case(("cacheable", "cacheable"), 1, 0, -86400.0), "first first, dead second"),
        (Case(("overwrite", "overwrite"), 1, 0), "first second, ExistsError second"),
        (Case(("overwrite", "overwrite"), 1, 0, is_deaf=True), "first second, ExistsError second"),
        (Case(("submit", "remove"), 1, 0, kinds=("crash", "pause")), "first done, dead NotFoundError"),
        (Case(("overwrite", "remove"), 1, 0), "first done, ExistsError done"),
        (Case(("submit", "clean"), 1, 1), "first done, dead done"),
        (Case(("overwrite", "clean"), 1, 1), "first done, dead done"),
        (Case(("submit", "replacing"), 1, 0), "first second, dead second"),
    ],
    ids=str,
)
def test_one_fault_at_any_step(
    case: Case, outcomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that could go on are interrupted a few times only; more often in the last test."""
    assert case.explore(tmp_path, monkeypatch) >= {*outcomes.split(", ")}


@pytest.mark.soak
@pytest.mark.parametrize(
    "case",
    [
        *(Case((act, act), 1, 2) for act in ("submit", "cacheable", "overwrite")),
        *(Case((act, "remove"), 1, 2) for act in ("submit", "overwrite")),
        *(Case((act, "clean"), 1) for act in ("submit", "cacheable", "overwrite")),
        Case(("submit", "replacing"), 1, 2),
        Case(("submit", "submit"), 2, 0),
        Case(("submit", "submit"), 2, 1, kinds=("pause", "slow")),
        Case(("submit", "remove"), 1, 1),
        Case(("submit", "submit"), 2, 0, None),
        Case(("overwrite", "overwrite"), 2, 0),
        Case(("submit", "remove"), 2, 0),
        Case(("submit", "replacing"), 2, 0),
        Case(("submit", "clean", "overwrite"), 1, 0),
        Case(("overwrite", "remove", "cacheable"), 1, 0),
    ],
    ids=str,
)
def test_more_machines_and_more_faults(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(case.explore(tmp_path, monkeypatch)) > 1
