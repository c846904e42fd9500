"""Files that versions share, while others publish and remove versions between any two looks of a deleter."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored import data_files, store_of
from victims import Victim

from torchyoga.errors import NotFoundError, YogaError
from torchyoga.storage import Storage
from torchyoga.stores.sharing import Sharing

pytestmark = pytest.mark.usefixtures("unsynced")
COUNTER = itertools.count()
LOOKS = ("read_manifest", "versions", "places")  # by which a deleter sees what others have done


def rows_of(*numbers: int) -> list[Any]:
    return [{"x": number} for number in numbers]


class Place:
    """A directory or a store with versions of "d": "1", "2" of the same files, and "kin" besides."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder, self.is_store = folder, kind == "memory"
        self.url = f"memory://sharing-{next(COUNTER)}" if self.is_store else str(folder / "storage")
        self.ours, self.others = self.storage("ours"), self.storage("others")
        self.ours.submit(rows_of(0, 1), "d", "1")
        self.ours.append([], "d", "2", after="1", record=False)
        self.store = store_of(self.ours)

    def storage(self, name: str) -> Storage:
        return Storage(self.url, **({"cache_dir": self.folder / name} if self.is_store else {}))  # type: ignore[arg-type]

    def data_files(self) -> list[str]:
        return [name for name in data_files(self.ours, "d") if not name.endswith(".list")]


class Others:
    """Others, who make a version from the newest one and remove that, at some of the looks of a deleter.

    Args:
        place: where they do so.
        names: of their versions, in turn.
        turns: True for the numbers of the looks before which they do so.
    """

    def __init__(self, place: Place, names: Iterator[str], turns: Callable[[int], bool]) -> None:
        self.looks, self.newest, self._are_busy = 0, "2", False
        self._place, self._names, self._turns = place, names, turns
        for name in LOOKS:
            setattr(place.store, name, self._before(getattr(place.store, name)))

    def _before(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*args: Any) -> Any:
            if not self._are_busy:
                self.looks += 1
                self._are_busy = self._turns(self.looks)
                if self._are_busy:
                    self._go_on()
                    self._are_busy = False
            return look(*args)

        return looked

    def _go_on(self) -> None:
        name = next(name for name in self._names if name != self.newest)
        others = self._place.others
        for version in {name, *others.versions("d")} - {"1", "kin", self.newest}:
            self._unless_held(lambda version=version: others.remove("d", version))
        append = partial(others.append, [], "d", name, after=self.newest, record=False)
        if name not in others.versions("d") and self._unless_held(append):
            before, self.newest = self.newest, name
            self._unless_held(lambda: others.remove("d", before))

    def _unless_held(self, call: Callable[[], object]) -> bool:
        """Calls it; False if the deleter, in this very thread, holds the lock that it needs."""
        try:
            call()
        except NotFoundError:
            return True
        except YogaError as error:
            if "by this same call" not in str(error):
                raise
            return False
        return True


DELETERS: dict[str, Callable[[Storage], object]] = {
    "remove": lambda storage: storage.remove("d", "1"),
    "remove_kin": lambda storage: storage.remove("d", "kin"),
    "clean": lambda storage: storage.clean(0),
    "overwrite": lambda storage: (
        storage.submit(rows_of(9), "d", "1", overwrite=True),
        storage.clean(0),  # which a store leaves the files to
    ),
    "convert": lambda storage: (storage.convert("d", "1", format="hdf5"), storage.clean(0)),
    "compact": lambda storage: (storage.convert("d", "1"), storage.clean(0)),
}
KINDS = pytest.mark.parametrize("kind", ["directory", "memory"])
OFTEN, RARELY = ("remove", "remove_kin", "clean"), ("overwrite", "convert", "compact")
EVERY_DELETER = pytest.mark.parametrize(
    "what", [*OFTEN, *(pytest.param(what, marks=pytest.mark.rest) for what in RARELY)]
)


def looks_of(kind: str, what: str, folder: Path, names: Iterator[str], turns: Callable[[int], bool]) -> int:
    """Lets a deleter work while others go on; returns how often it has looked. No version may be damaged, and
    no file that nobody names may stay for good."""
    place = Place(kind, folder)
    if what == "remove_kin":
        place.ours.append([], "d", "kin", after="1", record=False)
    if what in ("remove_kin", "clean"):
        Sharing(place.store, "d").remove_one("1", -1, None)
    others = Others(place, names, turns)
    DELETERS[what](place.ours)
    looks, others._are_busy = others.looks, True
    fresh = place.storage("fresh")
    for version in fresh.versions("d"):
        fresh.check("d", version)
    assert list(fresh.fetch("d", others.newest)) == rows_of(0, 1)
    for version in fresh.versions("d"):
        fresh.remove("d", version)
    fresh.clean(0)
    assert place.data_files() == []
    return looks


def fresh_names() -> Iterator[str]:
    return map(str, itertools.count(3))


def names_in_turn() -> Iterator[str]:
    return itertools.cycle(["3", "2"])


@pytest.mark.quick("remove-directory", "remove_kin-memory", "clean-memory")
@KINDS
@EVERY_DELETER
def test_nothing_is_lost_if_others_go_on_at_any_look(kind: str, what: str, tmp_path: Path) -> None:
    for number in itertools.count(1):
        if looks_of(kind, what, tmp_path / str(number), fresh_names(), number.__eq__) < number:
            assert number > 2
            break


@pytest.mark.rest
@KINDS
@EVERY_DELETER
@pytest.mark.parametrize("names", [fresh_names, names_in_turn])
def test_nothing_is_lost_if_others_go_on_at_every_look(
    kind: str, what: str, names: Callable[[], Iterator[str]], tmp_path: Path
) -> None:
    """A deleter that never sees the same twice ends, and `clean` deletes the files later."""
    looks_of(kind, what, tmp_path, names(), lambda _: True)


STOPPED: dict[str, Callable[[Storage, str], object]] = {
    "remove": lambda storage, version: storage.remove("d", version),
    "clean": lambda storage, version: (store_of(storage).remove("d", version), storage.clean(0)),
    "overwrite": lambda storage, version: storage.submit(rows_of(9), "d", version, overwrite=True),
    "compact": lambda storage, version: storage.convert("d", version),
}


class Counts:
    """How often the manifest of each version is read, and how often all are listed."""

    def __init__(self, place: Place) -> None:
        self.reads, self.listings = Counter[str](), 0
        store: Any = place.store
        read, places = store.read_manifest, store.places

        def counted(id: str, version: str) -> Any:
            self.reads[version] += 1
            return read(id, version)

        def listed(id: str) -> Any:
            self.listings += 1
            return places(id)

        store.read_manifest, store.places = counted, listed

    def check(self, listings: int) -> None:
        """Each manifest was read once, and there were at most so many listings, since the last call."""
        assert set(self.reads.values()) == {1}
        assert self.listings <= listings
        self.reads, self.listings = Counter(), 0


@KINDS
def test_a_sweep_reads_each_manifest_once(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    for number in range(3, 13):
        place.ours.append(rows_of(number), "d", f"{number}", after=f"{number - 1}", record=False)
    counts = Counts(place)
    place.ours.remove("d", "2")
    counts.check(3)
    assert place.ours.clean(0, keep_last=2, id="d", dry_run=True).keys() >= {"d/1", "d/9"}
    counts.check(3)
    place.ours.clean(0, keep_last=2, id="d")
    counts.check(8)
    assert place.ours.versions("d") == ["10", "11", "12"]
    place.ours.clean(0)
    counts.check(3)
    assert len(place.ours.log("d", limit=1)) == 1
    place.storage("fresh").check("d", "12")


@pytest.mark.quick("memory")
@KINDS
def test_many_versions_with_files_of_their_own_go_in_one_sweep(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    time.sleep(1)  # versions know their second alone, and within one a child counts as the newest
    place.store.most_locks = 10  # not 64, which would take many versions
    for number in range(16):
        place.ours.submit(rows_of(number), "d", f"v{number:02}", record=False)
    counts = Counts(place)
    gone = place.ours.clean(0, keep_last=2, id="d")
    assert [*gone] == sorted(f"d/{version}" for version in ["1", "2", *(f"v{n:02}" for n in range(14))])
    counts.check(10)
    assert len(place.data_files()) == 2


@pytest.mark.rest
@KINDS
def test_what_little_a_version_of_a_long_history_has_goes_later(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyoga.stores.sharing._MANY", 16)  # versions; else it takes many
    place = Place(kind, tmp_path)
    for number in range(3, 28):
        place.ours.append(rows_of(number), "d", f"{number}", after=f"{number - 1}", record=False)
    place.ours.submit({"x": np.arange(250_000)}, "d", "large", record=False)
    files, counts = len(place.data_files()), Counts(place)
    for which in ("2", "14", "27"):
        counts.reads.clear()
        place.ours.remove("d", which)
        assert len(counts.reads) <= 6
    assert len(place.data_files()) == files
    place.ours.remove("d", "large")  # which is worth it
    assert len(place.data_files()) == files - 1
    place.ours.clean(0)
    assert len(place.data_files()) == files - 2  # others have those of the rest
    for version in place.ours.versions("d")[::4]:
        place.ours.check("d", version)
    assert place.ours.fetch("d", latest=True)[-1]["x"] == 26


@pytest.mark.quick("*-memory")
@KINDS
@pytest.mark.parametrize("what", OFTEN)
def test_nothing_is_lost_if_a_listing_misses_what_comes_and_goes(
    kind: str, what: str, tmp_path: Path
) -> None:
    """It takes a while: pages of a store, or parts of a large folder."""
    for number in itertools.count(1):
        place = Place(kind, tmp_path / str(number))
        place.ours.append([], "d", "kin", after="1", record=False)
        if what == "clean":
            Sharing(place.store, "d").remove_one("1", -1, None)
        listings, places = itertools.count(1), place.store.places

        def torn(id: str, *, place: Place = place, listings: Any = listings, places: Any = places) -> Any:
            if next(listings) != number:  # noqa: B023
                return places(id)
            place.others.append([], "d", "3", after="2", record=False)
            place.others.remove("d", "2")
            return {version: found for version, found in places(id).items() if version != "3"}

        place.store.places = torn  # type: ignore[method-assign]
        DELETERS[what](place.ours)
        place.storage("fresh").check("d", "3" if next(listings) > number else "2")
        if next(listings) < number:
            break


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("what", STOPPED)
def test_a_deleter_that_is_stopped_at_random_instants_loses_nothing(what: str, tmp_path: Path) -> None:
    """Each file that it looks at is named by the newest version, and by no other."""
    base, chance = Storage(tmp_path / "base"), random.Random(0)
    base.submit(rows_of(1), "d", "1")
    for number in range(2, 13):
        base.append(rows_of(number) if number < 12 else [], "d", f"{number}", after=f"{number - 1}")
    for run in range(20):
        shutil.copytree(tmp_path / "base", folder := tmp_path / f"{run}")
        storage = Storage(folder)

        def delete(storage: Storage = storage) -> None:
            for version in range(11, 0, -1):
                STOPPED[what](storage, f"{version}")

        def go_on(storage: Storage = storage) -> None:
            for number in range(12, 42):
                storage.append([], "d", f"{number + 1}", after=f"{number}", record=False)
                storage.remove("d", f"{number}")

        deleter, others = Victim(delete), Victim(go_on)
        while not deleter.has_ended and not others.has_ended:
            deleter.stop_for(chance.random() * 0.3)
            time.sleep(chance.random() * 0.01)
        assert deleter.end()
        assert others.end()
        for version in storage.versions("d"):
            storage.check("d", version)
        shutil.rmtree(folder)
