"""Rounds of a deleter that is stopped again and again beside a window that rolls on; a crowd that appends.

Run as a program, which has no threads of a store's client and can therefore fork. Its arguments: the folder
of `tests`, one of `stop_rolling` and `append_at_once`, and what that takes, in JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [sys.argv[1]]

from victims import Victim  # noqa: E402

import torchyoga as yoga  # noqa: E402
from torchyoga.errors import LostError  # noqa: E402

LEASE = 3.0
BASE, VERSIONS = 8, 22  # those that are there at first, and those that are appended after them
COUNT = itertools.count()


def rows_of(numbers: range) -> list[Any]:
    return [{"x": number} for number in numbers]


class Place:
    """A new and empty storage, which each process opens for itself, as on a machine of its own."""

    def __init__(self, folder: Path, url: str | None, options: dict[str, Any] | None) -> None:
        self._folder = folder / str(next(COUNT))
        self._url, self._options = url and f"{url}/{self._folder.name}", options
        # Once, not in each of its forks; what it makes in no store.
        yoga.Storage(folder / "loaded").submit(rows_of(range(1)), "d", f"{next(COUNT)}", progress=False)

    def storage(self, name: str) -> yoga.Storage:
        if self._url is None:
            return yoga.Storage(self._folder)
        return yoga.Storage(
            self._url,
            storage_options=self._options,
            cache_dir=self._folder / name,
            lease_seconds=LEASE,
        )


class Rolling:
    """A history of versions "1", "2", ...: with each one comes the end of that before, if its number is even.

    Args:
        place: where it is.
        chance: draws which versions have a row more than the one before; the others share all files.
    """

    def __init__(self, place: Place, chance: random.Random) -> None:
        self.place = place
        grows = [1, 1] + [int(chance.random() < 0.7) for _ in range(BASE + VERSIONS - 1)]
        self.lengths = [0, *itertools.accumulate(grows[1:])]  # by version

    def begin(self) -> None:
        storage = self.place.storage("first")
        storage.submit(rows_of(range(1)), "d", "1", progress=False)
        for number in range(2, BASE + 1):
            self._append(storage, number)

    def _append(self, storage: yoga.Storage, number: int) -> None:
        new = rows_of(range(self.lengths[number - 1], self.lengths[number]))
        storage.append(new, "d", f"{number}", after=f"{number - 1}", record=False, progress=False)

    def go_on(self) -> None:
        storage = self.place.storage("rolling")
        for number in range(BASE + 1, BASE + VERSIONS + 1):
            self._append(storage, number)
            if number % 2:
                storage.remove("d", f"{number - 1}")

    def delete(self, what: str, is_over: Callable[[], bool], seed: float) -> list[str]:
        """Deletes until it is over; returns the errors of a process that was taken over while it stood still.

        Versions with an odd number are its own, except the newest one, so there is no other error.
        """
        storage, chance, errors = self.place.storage("deleter"), random.Random(seed), []
        while not is_over():
            try:
                if what == "clean":
                    storage.clean(0, keep_last=2 if chance.random() < 0.5 else None, id="d")
                    continue
                numbers = sorted(map(int, storage.versions("d")))
                own = [number for number in numbers[:-1] if number % 2]
                if own:
                    storage.remove("d", f"{chance.choice(own)}")
            except LostError as error:
                errors.append(str(error))
        return errors

    def check(self) -> list[int]:
        """Fails if a version is not what it must be; returns those that there are."""
        storage = self.place.storage("fresh")
        numbers = sorted(map(int, storage.versions("d")))
        for number in numbers:
            storage.check("d", f"{number}")
            assert list(storage.fetch("d", f"{number}")) == rows_of(range(self.lengths[number])), number
        assert numbers[-1] == BASE + VERSIONS, numbers
        assert storage.fetch("d", latest=True).manifest.version == f"{numbers[-1]}"
        return numbers


def stop_rolling(
    folder: str, url: str | None, options: dict[str, Any] | None, what: str, seed: int, rounds: int
) -> None:
    """Rounds from a seed on, each with the next one; prints it, so that one that failed can be run again."""
    stops = takeovers = 0
    for number in range(seed, seed + rounds):
        started, chance = time.monotonic(), random.Random(number)
        print(f"{what} seed {number}", end=" ", flush=True)
        place = Place(Path(folder), url, options)
        rolling, over = Rolling(place, chance), Path(folder, f"over-{number}")
        Victim(rolling.begin).end()
        delete = partial(rolling.delete, what, over.exists, chance.random())
        deleter = Victim(delete)
        others = Victim(rolling.go_on)
        own = 0
        # Now and then for so long that others take over what it holds.
        long = {chance.randrange(40)} if url is not None and chance.random() < 0.5 else set()
        while not others.has_ended:
            time.sleep(10 ** chance.uniform(-4, -1.5))
            if deleter.has_ended:
                break
            deleter.stop_for(2 * LEASE if own in long else 10 ** chance.uniform(-3.5, -0.8))
            own += 1
        over.touch()
        others.end()
        ended = deleter.end()
        assert ended is not None
        assert url is not None or not ended[1], ended[1]  # the kernel takes no lock away
        left = Victim(rolling.check).end()
        assert left is not None
        stops, takeovers = stops + own, takeovers + len(ended[1])
        print(f"{own} stops, {len(ended[1])} taken over, {len(left[1])} versions left, "
              f"{time.monotonic() - started:.1f} s", flush=True)  # fmt: skip
    print(f"{rounds} rounds, {stops} stops, {takeovers} taken over")


def append_at_once(
    folder: str, url: str | None, options: dict[str, Any] | None, processes: int, each: int
) -> None:
    """Processes that append a row again and again: every row is there once, and all versions are in line."""
    place, count = Place(Path(folder), url, options), processes * each

    def begin() -> None:
        place.storage("first").submit(rows_of(range(count, count + 1)), "d", "0", progress=False)

    def append(process: int) -> list[float]:
        storage, took = place.storage(f"process-{process}"), []
        for number in range(process * each, (process + 1) * each):
            started = time.monotonic()
            storage.append(rows_of(range(number, number + 1)), "d", record=False, progress=False)
            took.append(time.monotonic() - started)
        return took

    def check() -> None:
        storage = place.storage("fresh")
        versions = storage.versions("d")
        assert len(versions) == count + 1, len(versions)
        whole = storage.fetch("d", latest=True)
        assert sorted(row["x"] for row in whole) == list(range(count + 1))
        newest = whole.manifest
        line = [*(parent.version for parent in newest.parents), newest.version]
        assert sorted(line) == sorted(versions)
        assert {entry.version: entry.rows for entry in storage.log("d")} == {
            version: length for length, version in enumerate(line, 1)
        }
        for length in range(len(line), 0, -max(1, len(line) // 100)):
            manifest = storage.fetch("d", line[length - 1], verify=False).manifest
            assert [parent.version for parent in manifest.parents] == line[: length - 1]
        for version in line[-1 :: -max(1, len(line) // 20)]:
            storage.check("d", version)

    Victim(begin).end()
    started = time.monotonic()
    crowd = [Victim(lambda process=process: append(process)) for process in range(processes)]
    took = []
    while not all(one.has_ended for one in crowd):
        time.sleep(0.05)
    print(f"{count} appends in {time.monotonic() - started:.1f} s", flush=True)
    for one in crowd:
        ended = one.end()
        assert ended is not None
        took += ended[1]
    took.sort()
    print(f"one took {took[0]:.2f} to {took[-1]:.2f} s, half of them up to {took[len(took) // 2]:.2f} s")
    started = time.monotonic()
    Victim(check).end()
    print(f"checked in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    {"stop_rolling": stop_rolling, "append_at_once": append_at_once}[sys.argv[2]](**json.loads(sys.argv[3]))
