"""Builds by many: what two workers gain, beside what two bare processes gain, and publishing 1,000 parts.

Called by run.py. Workers start cold, so their imports count.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torchyoga as yoga

ROWS, ROUNDS = 6000, 8000  # a row takes a few milliseconds of one processor
PARTS = 1000
GAIN, PUBLISHING = 0.9, 2.0  # of the bare gain; seconds


class Costly:
    """Rows that take time to compute, as decoded videos or tokenised documents do."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, object]:
        if not 0 <= number < ROWS:
            raise IndexError(number)
        return {"number": number, "digest": row(number)}


def row(number: int) -> bytes:
    """One row's work."""
    return hashlib.pbkdf2_hmac("sha256", number.to_bytes(8, "little"), b"salt", ROUNDS)


def bare(bounds: tuple[int, int]) -> int:
    """The same work without anything else."""
    return sum(len(row(number)) for number in range(*bounds))


def two_bare() -> None:
    """Two processes, half of the rows each."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(bare, [(0, ROWS // 2), (ROWS // 2, ROWS)]))


def seconds(call: Callable[[], object]) -> float:
    """What one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(repetitions: int = 3) -> list[list[str]]:
    """The table."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from parted import Planned

    found: dict[str, list[float]] = {"bare 1": [], "bare 2": [], "build 1": [], "build 2": [], "publish": []}
    with tempfile.TemporaryDirectory() as name:
        storage = yoga.Storage(Path(name) / "storage")
        for number in range(repetitions):
            found["bare 1"].append(seconds(lambda: bare((0, ROWS))))
            found["build 1"].append(
                seconds(lambda n=number: storage.submit(Costly(), "one", str(n), progress=False))
            )
            found["bare 2"].append(seconds(two_bare))
            with ProcessPoolExecutor(2, get_context("spawn")) as pool:
                found["build 2"].append(
                    seconds(
                        lambda n=number, pool=pool: storage.submit(
                            Costly(), "two", str(n), executor=pool, progress=False
                        )
                    )
                )
            plan = Planned(storage, list(range(2 * PARTS)), "parts", str(number), parts=PARTS)
            for part in plan.missing:
                plan.build(part)
            found["publish"].append(seconds(plan.publish))
    took = {name: statistics.median(times) for name, times in found.items()}
    plain, ours = took["bare 1"] / took["bare 2"], took["build 1"] / took["build 2"]
    verdict = "reached" if ours >= GAIN * plain else "MISSED"
    quick = "reached" if took["publish"] <= PUBLISHING else "MISSED"
    return [
        ["by many", "two bare processes", f"{took['bare 2']:.1f} s", f"{plain:.2f}x of one", ""],
        [
            "by many",
            "executor= of two processes",
            f"{took['build 2']:.1f} s",
            f"{ours:.2f}x of one",
            f"{verdict} ({GAIN:g} of the bare gain: {ours / plain:.2f})",
        ],
        [
            "by many",
            f"publishing {PARTS:,} parts",
            f"{took['publish']:.2f} s",
            "",
            f"{quick} ({PUBLISHING:g} s)",
        ],
    ]


if __name__ == "__main__":
    for line in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        print("  ".join(line))
