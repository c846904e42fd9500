"""Images and text decoded, beside Pillow and beside decoding at full size, in turns; called by run.py.

python benchmarks/decoding.py
"""

from __future__ import annotations

import io
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import interleaved, ratio, verdict
from PIL import Image

import torchyoga as yoga

THREADS = 2
PILLOW, FULL, PLAIN = "Pillow", "in full", "not compressed"
PART = "RandomResizedCrop to 224"


def photograph(number: int, height: int, width: int) -> np.ndarray:
    """Some noise over smooth shades, so that a JPEG of it is as large as one of a photograph."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)


def by_pillow(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)))


def part_by_pillow(file: bytes, box: tuple[int, int, int, int]) -> np.ndarray:
    image = Image.open(io.BytesIO(file)).convert("RGB")
    return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, box))


def boxes(count: int, side: int) -> list[tuple[int, int, int, int]]:
    """Parts as torchvision's RandomResizedCrop draws them."""
    rng = np.random.default_rng(0)
    found = []
    while len(found) < count:
        area, aspect = side * side * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if max(width, height) <= side:
            left, top = (int(rng.integers(0, side - length + 1)) for length in (width, height))
            found.append((left, top, left + width, top + height))
    return found


def measure(repetitions: int = 5) -> list[list[str]]:
    """The table."""
    with tempfile.TemporaryDirectory() as folder:
        storage = yoga.Storage(folder)
        return (
            small_images(storage, repetitions)
            + large_images(storage, repetitions)
            + text(storage, repetitions)
        )


def small_images(storage: yoga.Storage, repetitions: int) -> list[list[str]]:
    """JPEG images of 256 x 256, decoded in full by two threads."""
    rates = small_rates(storage, repetitions)
    what = "JPEG, 256 x 256, 2 threads"
    parts = {PILLOW: rates.pop(f"{PILLOW}, {PART}"), "decoded": rates.pop(PART)}
    return lines(what, rates, PILLOW, {"decoded": 1.8}) + lines(
        f"{what}, {PART}", parts, PILLOW, {"decoded": 1.8}
    )


def small_rates(storage: yoga.Storage, repetitions: int) -> dict[str, list[float]]:
    """Images a second by Pillow, and decoded here: whole, and random parts."""
    rows = [{"image": photograph(n, 256, 256)} for n in range(256)]
    ref = storage.submit(rows, "small", "1", codecs={"image": yoga.codecs.jpeg()}, progress=False)
    files, numbers = [row["image"] for row in ref], np.arange(256)
    view = ref.decoded({"image": yoga.codecs.image(size=256)}, threads=THREADS)
    parts = ref.decoded({"image": yoga.codecs.image(size=224, crop="random")}, threads=THREADS)
    drawn = boxes(256, 256)
    with ThreadPoolExecutor(THREADS) as pool:
        ways = {
            PILLOW: lambda: len(np.stack(list(pool.map(by_pillow, files)))),
            "decoded": lambda: len(view.take(numbers)),
            f"{PILLOW}, {PART}": lambda: len(np.stack(list(pool.map(part_by_pillow, files, drawn)))),
            PART: lambda: len(parts.take(numbers)),
        }
        return interleaved(ways, repetitions)


def large_images(storage: yoga.Storage, repetitions: int) -> list[list[str]]:
    """JPEG images of 1024 x 768, wanted in 224 x 224."""
    rows = [{"image": photograph(n, 768, 1024)} for n in range(48)]
    full = storage.submit(rows, "large", "1", codecs={"image": yoga.codecs.jpeg()}, progress=False)
    short = storage.submit(
        rows, "short", "1", codecs={"image": yoga.codecs.jpeg(short_side=256)}, progress=False
    )
    spec = {"image": yoga.codecs.image(size=224)}
    views = {
        FULL: full.decoded(spec, threads=THREADS),
        "exact=False": full.decoded({"image": yoga.codecs.image(size=224, exact=False)}, threads=THREADS),
        "stored with short_side=256": short.decoded(spec, threads=THREADS),
    }
    numbers = np.arange(48)
    rates = interleaved({name: (lambda v=v: len(v.take(numbers))) for name, v in views.items()}, repetitions)
    return lines("JPEG, 1024 x 768 to 224", rates, FULL, {"stored with short_side=256": 5.0})


def text(storage: yoga.Storage, repetitions: int) -> list[list[str]]:
    """Random rows of text, each compressed by itself."""
    rows = [{"t": f"def function_{n}(x, y):\n    return x * {n % 97} + y\n" * 12} for n in range(20_000)]
    kept = storage.submit(rows, "kept", "1", progress=False)
    packed = storage.submit(rows, "packed", "1", codecs={"t": yoga.codecs.zstd()}, progress=False)
    random = np.random.default_rng(0).permutation(20_000)
    starts = range(0, 20_000, 512)

    def read(ref: yoga.DataRef) -> int:
        return sum(len(ref.take(random[start : start + 512])) for start in starts)

    ways = {PLAIN: lambda: read(kept), "zstd, decoded": lambda: read(packed.decoded())}
    return lines("text, random rows of 600 B", interleaved(ways, repetitions), PLAIN, {})


def lines(what: str, rates: dict[str, list[float]], base: str, goals: dict[str, float]) -> list[list[str]]:
    """A line for each way, beside the one that is compared with."""
    table = []
    for name, found in rates.items():
        share = ratio(found, rates[base])
        goal = verdict(share, goals[name]) if name in goals else ""
        shown = "" if name == base else f"{share:.2f} of {base}"
        table.append([what, name, f"{statistics.median(found):,.0f} rows/s", shown, goal])
    return table


if __name__ == "__main__":
    for row in measure():
        print("  ".join(row))
