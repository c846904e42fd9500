"""Builds, conversions, copies, overwrites, removals and cleanings, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from known import SCHEMA, Bystanders, KnownRows, generation_of, unexpected
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga import build, storage as storages
from torchyoga.build import BuildOptions
from torchyoga.formats import FORMATS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

KILLS, KILLS_IN_ALL = 15, 400  # of each format
IDS, VERSIONS = ["a", "b c"], ["1", "2"]
# What a process does to the world outside of it, as far as Python is told.
TOUCHES = ("open", "os.", "shutil.", "socket.", "fcntl.", "mmap.")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every version has 2 to 4 files, each of which is noted when it is finished."""
    monkeypatch.setattr(build, "_BLOCK_ROWS", 16)
    monkeypatch.setattr(storages, "BuildOptions", partial(BuildOptions, file_bytes=1))


class Victim:
    """A forked child that does something until it is done, or killed."""

    def __init__(self, act: Callable[[], object], touches: int | None) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _be_a_victim(act, touches, write)
        os.close(write)
        self._read = read

    def kill_after(self, seconds: float) -> None:
        """SIGKILL, unless it has ended by then."""
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own

    def end(self) -> tuple[bool, int]:
        """Whether it has died early; else how often it has touched the world.

        Raises:
            AssertionError: it has failed.
            TimeoutError: it hangs.
        """
        end = time.monotonic() + PATIENCE
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError("the child hangs")
            time.sleep(0.001)
        with os.fdopen(self._read) as pipe:
            told = pipe.read()
        code = os.waitstatus_to_exitcode(ended[1])
        if code == -signal.SIGKILL:
            return True, 0
        assert code == 0, f"the child ended with {code}:\n{told}"
        return False, int(told)


def _be_a_victim(act: Callable[[], object], touches: int | None, pipe: int) -> None:
    done = 0

    def watch(event: str, _: tuple[Any, ...]) -> None:
        nonlocal done
        if event.startswith(TOUCHES):
            done += 1
            if done == touches:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(watch)
        act()
        os.write(pipe, str(done).encode())
        os._exit(0)
    except BaseException:
        os.write(pipe, traceback.format_exc().encode()[-60_000:])
    finally:
        os._exit(1)


class World:
    """A storage, what is known to be in it, and what may be done to it."""

    def __init__(self, folder: Path, format: str, chance: random.Random) -> None:
        self.chance, self.format = chance, format
        self.storage = yoga.Storage(folder / "storage", format, timeout=30)
        self.origin = yoga.Storage(folder / "origin", format)
        self.bystanders = Bystanders(folder / "storage", folder / "outside", IDS)
        self.known: dict[tuple[str, str], int] = {}
        self.num_generations = 0
        for id in IDS:
            for version in VERSIONS:
                self.origin.submit(KnownRows(id, version, 0), id, version, schema=SCHEMA, progress=False)
        # How often each act touches the world and how long it takes, as far as is known.
        self.extents: dict[str, tuple[int, float]] = {}

    def plan(self) -> tuple[str, Callable[[], object], tuple[str, str], int | None]:
        """Something that can be done now: its name, how, to which version, and its generation afterwards."""
        chance, storage = self.chance, self.storage
        acts = ["submit", "submit", "clean"] + ["overwrite", "convert", "remove", "copy"] * bool(self.known)
        act = chance.choice(acts)
        pairs = [(id, version) for id in IDS for version in VERSIONS]
        target = chance.choice(sorted(self.known) if act in ("convert", "remove") else pairs)
        id, version = target
        before = self.known.get(target)
        if act == "remove":
            return act, partial(storage.remove, id, version), target, None
        if act == "clean":
            return act, partial(storage.clean, 0), target, before
        if act == "convert":
            other = chance.choice([("lmdb", None), ("hdf5", None), ("hdf5", "gzip")])
            do = partial(storage.convert, id, version, format=other[0], compression=other[1], progress=False)
            return act, do, target, before
        if act == "copy":
            do = partial(self.origin.copy, id, version, storage, overwrite=True, progress=False)
            return act, do, target, 0
        # Now and then the same rows again, so that an interrupted build is continued.
        if chance.random() < 0.5 or not self.num_generations:
            self.num_generations += 1
        rows = KnownRows(id, version, self.num_generations)
        do = partial(storage.submit, rows, id, version, True, schema=SCHEMA, progress=False)
        return "submit" if before is None else "overwrite", do, target, rows.generation

    def moment(self, act: str) -> tuple[int | None, float | None]:
        """When to kill: before a touch of the world, or after some seconds."""
        touches, seconds = self.extents.get(act, (0, 0.0))
        if not touches:
            return None, None
        if self.chance.random() < 0.5:
            return self.chance.randint(1, touches), None
        return None, self.chance.random() * seconds

    def kill_one(self) -> bool:
        """Does something, kills whoever does it, and looks at everything; whether it came to that."""
        act, do, target, after = self.plan()
        touches, seconds = self.moment(act)
        started = time.monotonic()
        victim = Victim(do, touches)
        if seconds is not None:
            victim.kill_after(seconds)
        died, done = victim.end()
        if not died:
            self.extents[act] = (done, time.monotonic() - started)
        found = generation_of(self.storage, *target)
        expected = (self.known.get(target), after) if died else (after,)
        assert found in expected, f"{act} of {target}, killed: {died}: {found}, not {expected}"
        self.known.pop(target, None)
        if found is not None:
            self.known[target] = found
        self.look()
        return died

    def look(self) -> None:
        """Compares all that is there with all that is known."""
        assert self.storage.list() == sorted(self.known)
        for target, generation in self.known.items():
            assert generation_of(self.storage, *target) == generation
            self.storage.check(*target)
        self.bystanders.check()
        # A build is of up to 4 files, a note, and what replaces the note and the manifest; of each version, at
        # most one under way and one that was replaced are left.
        left = unexpected(self.storage, self.bystanders)
        assert len(left) <= 2 * 7 * len(IDS) * len(VERSIONS), left

    def clean(self) -> None:
        """Nothing is left of all that was killed."""
        self.storage.clean(0)
        assert unexpected(self.storage, self.bystanders) == []
        self.look()


def kill_many(folder: Path, format: str, kills: int, seed: int) -> None:
    world, killed = World(folder, format, random.Random(seed)), 0
    for attempt in range(20 * kills):
        try:
            killed += world.kill_one()
            if attempt % 25 == 24:
                world.clean()
        except Exception as error:
            raise AssertionError(f"seed {seed}, attempt {attempt}: {error}") from error
        if killed == kills:
            break
    assert killed == kills
    world.clean()


@pytest.mark.parametrize("format", FORMATS)
def test_kills(format: str, tmp_path: Path) -> None:
    kill_many(tmp_path, format, KILLS, seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("format", FORMATS)
def test_many_kills(format: str, tmp_path: Path) -> None:
    kill_many(tmp_path, format, KILLS_IN_ALL, seed=random.randrange(2**32))
