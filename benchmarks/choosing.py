"""`num_workers="auto"` beside fixed numbers of workers: an epoch of 200 batches in twelve programs.

    python benchmarks/choosing.py [--programs tiny-rows,two-loaders]        (about six minutes)

Ways take turns; figures are medians, and the ratio is that of auto to the fastest fixed number.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

import torchyoga as yoga

BATCHES = 200
GOAL = 1.1  # times the seconds of the best fixed number


class Rows(torch.utils.data.Dataset[Any]):
    """Rows that a function makes of their numbers."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> Any:
        return self.make(row)


def computed(seconds: float, row: int) -> torch.Tensor:
    """A row that takes so many seconds of a CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))
    return torch.tensor([row])


def waited(seconds: float, row: int) -> torch.Tensor:
    time.sleep(seconds)
    return torch.tensor([row])


def augmented(image: torch.Tensor, row: int) -> torch.Tensor:
    top, left = torch.randint(0, 32, (2,)).tolist()
    part = image[:, top : top + 224, left : left + 224].float() / 255
    return torch.flip(part, (2,)) if torch.rand(()) < 0.5 else part


def decoded(jpeg: bytes, row: int) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(jpeg)).convert("RGB")))


def unpickled(pickled: bytes, row: int) -> torch.Tensor:
    return torch.from_numpy(pickle.loads(pickled)["image"])


def jpeg(side: int) -> bytes:
    found, noise = (
        io.BytesIO(),
        np.random.default_rng(0).integers(0, 255, (side // 8, side // 8, 3), np.uint8),
    )
    Image.fromarray(noise).resize((side, side)).save(found, "JPEG", quality=90)
    return found.getvalue()


def model(seconds: float, batch: Any) -> None:
    """The step of a loop that computes for so many seconds."""
    end = time.perf_counter() + seconds
    one = torch.ones(200, 200)
    while time.perf_counter() < end:
        one @ one


@contextlib.contextmanager
def hogs(number: int) -> Iterator[None]:
    """Processes of plain Python that compute."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@contextlib.contextmanager
def on_cpus(number: int) -> Iterator[None]:
    """This process and its workers use so many CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def epochs(
    rows: Callable[[int], Any],
    num_workers: Any,
    size: int = 8,
    count: int = 1,
    step: float = 0.0,
    **more: Any,
) -> None:
    """Epochs of a loader over rows, `BATCHES` in all."""
    loader = yoga.DataLoader(Rows(rows, size * BATCHES // count), size, num_workers=num_workers, **more)
    for _ in range(count):
        for batch in loader:
            if step:
                model(step, batch)


def two_loaders(rows: Callable[[int], Any], num_workers: Any) -> None:
    loaders = [
        yoga.DataLoader(Rows(rows, 4 * BATCHES), 8, shuffle=True, num_workers=num_workers) for _ in range(2)
    ]
    for _ in zip(*loaders, strict=True):
        model(0.002, None)


def programs() -> dict[str, tuple[Callable[[Any], None], Callable[[], Any]]]:
    """By name: a function of `num_workers`, and what is done around it."""
    slow, of = functools.partial(computed, 0.002), functools.partial
    image = torch.randint(0, 255, (3, 256, 256), dtype=torch.uint8)
    big = pickle.dumps({"image": np.zeros(500_000, np.uint8), "words": [str(n) for n in range(5000)]})
    nothing = contextlib.nullcontext
    return {
        "tiny-rows": (of(epochs, of(computed, 0.0)), nothing),
        "slow-rows": (of(epochs, slow), nothing),
        "jpeg": (of(epochs, of(decoded, jpeg(256))), nothing),
        "big-pickles": (of(epochs, of(unpickled, big)), nothing),
        "slow-model": (of(epochs, of(computed, 0.001), step=0.02), nothing),
        "short-epochs": (of(epochs, of(computed, 0.001), count=10), nothing),
        "rows-that-wait": (of(epochs, of(waited, 0.002)), nothing),
        "two-loaders": (of(two_loaders, slow), nothing),
        "beside-others": (of(epochs, slow), of(hogs, 2)),
        "batch-1": (of(epochs, slow, size=1), nothing),
        "augmentations": (of(epochs, of(augmented, image), shuffle=True), nothing),
        "one-cpu": (of(epochs, slow), of(on_cpus, 1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    wanted = arguments.programs.split(",") if arguments.programs else [*programs()]
    torch.set_num_threads(1)
    for name in wanted:
        run, around = programs()[name]
        ways: list[Any] = [0, 1, 2, "auto"]
        if name == "rows-that-wait":
            ways.insert(3, 8)
        found: dict[Any, list[float]] = {way: [] for way in ways}
        with around():
            for _ in range(arguments.repetitions):
                for way in ways:
                    begun = time.perf_counter()
                    run(way)
                    found[way].append(time.perf_counter() - begun)
        seconds = {way: statistics.median(some) for way, some in found.items()}
        auto = seconds.pop("auto")
        best = min(seconds, key=lambda way: seconds[way])
        said = "reached" if auto <= GOAL * seconds[best] else f"MISSED ({GOAL:g})"
        fixed = ", ".join(f"{way}: {taken:.2f} s" for way, taken in seconds.items())
        print(
            f"{name:16} {fixed}; auto {auto:.2f} s, {auto / seconds[best]:.2f} of {best}: {said}", flush=True
        )


if __name__ == "__main__":
    main()
