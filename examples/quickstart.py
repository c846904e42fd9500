"""Cache a slow dataset once, train, be killed in mid-epoch, and resume exactly with another number of
workers.

    python examples/quickstart.py

The real handwritten digits of scikit-learn, kept as PNG bytes that Pillow decodes for every row, are cached;
a small network is trained on them; a process that trains the same network is killed with SIGKILL and
continued by another with more workers; the losses of both together equal those of the uninterrupted run, bit
for bit.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import torchyoga as yoga

EPOCHS, BATCH_SIZE, SEED = 3, 32, 7
STOP_AFTER = 80  # batches: in the middle of the second epoch


class PngDigits(torch.utils.data.Dataset[dict[str, Any]]):
    """1,797 digits as PNG files in memory: every row is decoded and enlarged when it is asked for."""

    def __init__(self) -> None:
        digits = load_digits()
        self.labels = digits.target.tolist()
        self.files = [_png(image) for image in (digits.images * 15).astype(np.uint8)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = Image.open(io.BytesIO(self.files[index])).resize((32, 32), Image.Resampling.BICUBIC)
        return {"image": torch.from_numpy(np.array(image, np.float32) / 255), "label": self.labels[index]}


def _png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def cached_digits(root: str) -> yoga.DataRef:
    """The digits, decoded once; every later call, in any process, reads them from the cache."""
    storage = yoga.Storage(root)

    @storage.cacheable("digits", "1.0", progress=True)
    def digits() -> PngDigits:
        return PngDigits()

    return digits()


def train(root: str, workers: int, log: Path, stop_after: int | None = None) -> float:
    """Trains to the last epoch's end, from a checkpoint if there is one; returns seconds to the first batch.

    Appends a line (step, loss) to `log` after each step. With `stop_after` it saves a checkpoint after that
    many batches, prints the loader's state, and waits there to be killed.
    """
    loader = yoga.DataLoader(
        cached_digits(root), batch_size=BATCH_SIZE, shuffle=True, seed=SEED, num_workers=workers
    )
    torch.set_num_threads(1)  # the last bits of sums depend on how many threads share the work
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    step, checkpoint = 0, log.with_suffix(".pt")
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    started, first_batch = time.perf_counter(), 0.0
    while loader.epoch < EPOCHS:
        for batch in loader:
            first_batch = first_batch or time.perf_counter() - started
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            step += 1
            with log.open("a") as file:
                file.write(f"{step} {loss.item().hex()}\n")
            if step == stop_after:
                data, weights = loader.state_dict(), model.state_dict()
                rng = torch.get_rng_state()
                torch.save(
                    {
                        "data": data,
                        "model": weights,
                        "optimizer": optimizer.state_dict(),
                        "rng": rng,
                        "step": step,
                    },
                    checkpoint,
                )
                print(json.dumps(data), flush=True)
                sys.stdin.read()  # until it is killed, or the process that kills it is gone
    return first_batch


def _rows_per_second(loader: Any) -> float:
    started = time.perf_counter()
    rows = sum(len(batch["label"]) for batch in loader)
    return rows / (time.perf_counter() - started)


def _losses(log: Path) -> dict[int, str]:
    return dict((int(step), loss) for step, loss in map(str.split, log.read_text().splitlines()))


def main() -> None:
    """The whole story in a few lines."""
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/storage"
        print("1. Cache a slow dataset: 1,797 digits as PNG files, decoded and enlarged by Pillow")
        started = time.perf_counter()
        ref = cached_digits(root)
        built = time.perf_counter() - started
        print(f"   {ref}\n   built in {built:.2f} s")
        before = _rows_per_second(
            torch.utils.data.DataLoader(PngDigits(), batch_size=BATCH_SIZE, shuffle=True)
        )
        cached = yoga.DataLoader(ref, batch_size=BATCH_SIZE, shuffle=True)
        after = max(_rows_per_second(cached) for _ in range(3))
        print(f"   rows per second: {before:,.0f} before, {after:,.0f} cached ({after / before:.0f} times)")

        print(f"2. Train {EPOCHS} epochs without a break, with 1 worker process")
        whole = Path(folder) / "whole.log"
        train(root, workers=1, log=whole)
        losses = list(_losses(whole).values())
        print(f"   {len(losses)} steps, last loss {float.fromhex(losses[-1]):.4f}")

        print(f"3. Train the same again, and kill the process in its second epoch (step {STOP_AFTER})")
        broken = Path(folder) / "broken.log"
        command = [sys.executable, __file__, "--train", root, str(broken)]
        victim = subprocess.Popen(
            [*command, "--workers", "0", "--stop-after", str(STOP_AFTER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None
        state = victim.stdout.readline().decode().strip()
        victim.kill()
        victim.communicate()
        print(f"   killed; the loader's state was {state}")

        print("4. Resume in a new process, with 2 workers instead of 0")
        output = subprocess.run([*command, "--workers", "2"], check=True, capture_output=True, text=True)
        print(f"   first batch {float(output.stdout):.3f} s after resuming, worker start included")

        same = _losses(whole) == _losses(broken)
        verdict = "equal, bit for bit" if same else "NOT EQUAL"
        print(f"5. All {len(_losses(broken))} losses of the killed and resumed run: {verdict}")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", nargs=2, metavar=("ROOT", "LOG"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--stop-after", type=int)
    arguments = parser.parse_args()
    if arguments.train:
        root_, log_ = arguments.train
        seconds = train(root_, arguments.workers, Path(log_), arguments.stop_after)
        print(seconds)
    else:
        main()
