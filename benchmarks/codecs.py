"""Images and text decoded, beside Pillow and beside decoding at full size; each round takes turns.

python benchmarks/codecs.py
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import verdict
from PIL import Image

import torchyoga as yoga

THREADS, REPETITIONS = 2, 5


def photograph(number: int, height: int, width: int) -> np.ndarray:
    """Some noise over smooth shades, so that a JPEG of it is as large as one of a photograph."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)


def by_pillow(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)))


def medians(count: int, ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Rows per second of each way, in rounds in which all take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(REPETITIONS + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if repetition:
                found[name].append(count / (time.perf_counter() - started))
    return found


def line(what: str, found: dict[str, list[float]], one: str, other: str, goal: float) -> str:
    share = statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))
    rates = ", ".join(f"{name} {statistics.median(rates):,.0f}/s" for name, rates in found.items())
    return f"{what}: {rates}: {share:.2f} times; {verdict(share, goal)}"


def main() -> None:
    storage = yoga.Storage(tempfile.mkdtemp())
    small = [{"image": photograph(n, 256, 256)} for n in range(256)]
    ref = storage.submit(small, "small", "1", codecs={"image": yoga.jpeg()}, progress=False)
    files, numbers = [row["image"] for row in ref], np.arange(256)
    view = ref.decoded({"image": yoga.image(size=256)}, threads=THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        ways = {
            "decoded": lambda: view.take(numbers),
            "Pillow": lambda: np.stack(list(pool.map(by_pillow, files))),
        }
        print(line("256 x 256 JPEG", medians(256, ways), "decoded", "Pillow", 1.8))
    large = [{"image": photograph(n, 768, 1024)} for n in range(48)]
    full = storage.submit(large, "large", "1", codecs={"image": yoga.jpeg()}, progress=False)
    short = storage.submit(large, "short", "1", codecs={"image": yoga.jpeg(short_side=256)}, progress=False)
    spec = {"image": yoga.image(size=224)}
    near = {"image": yoga.image(size=224, exact=False)}
    some = np.arange(48)
    views = {
        "full": full.decoded(spec, threads=THREADS),
        "not exact": full.decoded(near, threads=THREADS),
        "stored short side": short.decoded(spec, threads=THREADS),
    }
    found = medians(48, {name: (lambda v=v: v.take(some)) for name, v in views.items()})
    print(line("1024 x 768 to 224", found, "stored short side", "full", 5.0))
    texts = [{"t": f"def function_{n}(x, y):\n    return x * {n % 97} + y\n" * 12} for n in range(20_000)]
    text = storage.submit(texts, "text", "1", codecs={"t": yoga.zstd(dictionary=True)}, progress=False)
    plain = text.decoded()
    random = np.random.default_rng(0).permutation(20_000)
    starts = range(0, 20_000, 512)
    found = medians(20_000, {"zstd": lambda: [plain.take(random[i : i + 512]) for i in starts]})
    print(f"zstd with a dictionary, random rows: {statistics.median(found['zstd']):,.0f}/s; goal 100,000")


if __name__ == "__main__":
    main()
