"""A few ratios, compared with those kept in kept.json: what `make bench-quick` does.

python benchmarks/quick.py           fails only if one has halved, twice
python benchmarks/quick.py --keep    keeps the ratios that are found now
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoding
import numpy as np
import remote
import torch.utils.data
from common import interleaved, ratio
from epochs import LIMIT, OURS, UNVERIFIED, Kind, Rates, measured, share, write

import torchyoga as yoga

KEPT = Path(__file__).with_name("kept.json")
STEP = 0.005  # seconds of a training step
QUICK = [
    Kind("784 B", 150_000, 256, 784),
    Kind("12 KiB", 10_000, 256, 12_288),
    Kind("JPEG bytes, 21 KiB", 5_000, 64, is_text=True),
    Kind("tokens, ragged", 60_000, 256),
]
STEPPED = [
    Kind("784 B", 30_000, 256, 784),
    Kind("12 KiB", 10_000, 256, 12_288),
    Kind("64 KiB", 4_000, 64, 65_536),
    Kind("196 KiB", 1_250, 32, 200_704),
    Kind("JPEG bytes, 21 KiB", 5_000, 64, is_text=True),
    Kind("tokens, ragged", 30_000, 256),
]


def quick() -> dict[str, float]:
    """A few ratios, in about a minute."""
    found = {}
    for kind in QUICK:
        with tempfile.TemporaryDirectory() as name:
            write(kind, Path(name))
            rates: Rates = {way: [] for way in (OURS, UNVERIFIED, LIMIT)}
            for _ in range(5):
                for way in rates:
                    first, *later = in_fork(kind, Path(name), way)
                    rates[way].append((first, statistics.median(later)))
        found[f"{kind.name}: first / first unverified"] = share(rates, OURS, UNVERIFIED, 0)
        found[f"{kind.name}: first / by hand"] = share(rates, OURS, LIMIT, 0)
        found[f"{kind.name}: later / by hand"] = share(rates, OURS, LIMIT, 1)
    return found | stepped(3) | own_datasets() | pictures() | small_objects() | beside_others()


class Own(torch.utils.data.Dataset[Any]):
    """A user's own dataset, whose rows cost nothing and draw nothing."""

    def __len__(self) -> int:
        return 4_096

    def __getitem__(self, number: int) -> int:
        return number


def stepped(repetitions: int) -> dict[str, float]:
    """First epochs of a training loop whose steps leave the processor alone, beside later ones; goal 0.91."""
    found = {}
    for kind in STEPPED:
        with tempfile.TemporaryDirectory() as name:
            write(kind, Path(name))
            pairs = [in_fork(kind, Path(name), OURS, STEP)[:2] for _ in range(repetitions)]
        found[f"{kind.name}, steps of 5 ms: first / later"] = statistics.median(
            first / later for first, later in pairs
        )
    return found


def own_datasets() -> dict[str, float]:
    """Batches a second in the main process, beside torch's loader."""
    found = {}
    for batch in (1, 32):
        ways: dict[str, Callable[[], int]] = {
            name: lambda cls=cls, batch=batch: sum(1 for _ in cls(Own(), batch))  # type: ignore[misc]
            for name, cls in (("ours", yoga.DataLoader), ("torch", torch.utils.data.DataLoader))
        }
        rates = interleaved(ways, 5)
        found[f"own dataset, batch {batch}: of torch"] = ratio(rates["ours"], rates["torch"])
    return found


def pictures() -> dict[str, float]:
    """JPEG of 256 x 256, decoded by two threads, beside Pillow by two."""
    with tempfile.TemporaryDirectory() as name:
        rates = decoding.small_rates(yoga.Storage(name), 5)
    parts = rates[decoding.PART], rates[f"{decoding.PILLOW}, {decoding.PART}"]
    return {
        "JPEG, decoded: of Pillow": ratio(rates["decoded"], rates[decoding.PILLOW]),
        "JPEG, random parts: of Pillow": ratio(*parts),
    }


def small_objects() -> dict[str, float]:
    """Objects of 64 KiB from a server on this machine, for each second of CPU here, beside s3fs."""
    rows, seconds = 200, {"ours": list[float](), "s3fs": list[float]()}
    # In memory: after many deletions ext4 takes 0.5 ms of CPU to make a file, whoever makes it.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as name, remote.server() as options:
        store = remote.Store(Path(name), options)
        data = {"x": np.random.default_rng(0).integers(0, 256, (rows, 2**16), np.uint8)}
        remote.publish(store.storage(Path(name) / "writer"), data, 2**16)
        keys = store.objects()
        for number in range(5):
            into = Path(name) / f"s3fs{number}"
            began = time.process_time()
            remote.bare(options).get(keys, [str(into / str(i)) for i in range(len(keys))])
            seconds["s3fs"].append(time.process_time() - began)
            began = time.process_time()
            store.storage(Path(name) / f"cache{number}").fetch("images", "1", download=True)
            seconds["ours"].append(time.process_time() - began)
    return {"S3, 64 KiB, by CPU: of s3fs": ratio(seconds["s3fs"][1:], seconds["ours"][1:])}


def beside_others() -> dict[str, float]:
    """Later epochs beside two processes that compute."""
    command = [sys.executable, str(Path(__file__).with_name("busy.py")), "--quick"]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def in_fork(kind: Kind, folder: Path, way: str, step: float = 0.0) -> list[float]:
    """`measured` in a forked child, which has imported all but opened nothing."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(False)
    child = context.Process(target=lambda: theirs.send(measured(kind, folder, way, step)))
    child.start()
    theirs.close()
    found: list[float] = ours.recv()
    child.join(60)
    return found


def compare() -> None:
    """Ends with 1 if a ratio is less than half of the kept one, twice."""
    kept = json.loads(KEPT.read_text())
    missed = {name for name, value in kept.items()}
    for _ in range(2):
        found = quick()
        for name, value in found.items():
            verdict = "less than half" if value < kept[name] / 2 else "as kept"
            print(f"{name:45} {value:6.2f}, kept {kept[name]:6.2f}: {verdict}")
        missed &= {name for name, value in found.items() if value < kept[name] / 2}
        if not missed:
            return
    sys.exit(f"half as fast as it was, in two runs of five: {', '.join(sorted(missed))}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    if parser.parse_args().keep:
        KEPT.write_text(json.dumps({k: round(v, 2) for k, v in quick().items()}, indent=1) + "\n")
    else:
        compare()


if __name__ == "__main__":
    main()
