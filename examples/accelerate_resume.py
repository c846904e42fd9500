"""Accelerate on two processes: stopped in mid-epoch, continued by `load_state`, and evaluated row by row.

    python examples/accelerate_resume.py

`prepare` returns the same loader, and `save_state` saves its place. On other machines you would call

    accelerate launch examples/accelerate_resume.py /path/to/folder
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn

import torchyoga as yoga

EPOCHS, STOP_AFTER = 2, 61  # batches: in the second epoch, where gradients have been applied


def train(folder: Path, stop_after: int | None) -> None:
    """One process; continues from the folder's checkpoint if there is one."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    digits = load_digits()
    data = yoga.from_arrays({"image": (digits.images / 16).astype("float32"), "label": digits.target})
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer, loader, test = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters()),
        yoga.DataLoader(data[:1500], batch_size=16, shuffle=True, seed=7),
        yoga.DataLoader(data[1500:], batch_size=16),
    )
    if (folder / "checkpoint").exists():
        accelerator.load_state(str(folder / "checkpoint"))

    losses, step = folder / f"losses-{accelerator.process_index}.txt", 0
    while loader.epoch < EPOCHS:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            with losses.open("a") as file:
                file.write(loss.item().hex() + "\n")
            step += 1
            if step == stop_after:
                accelerator.save_state(str(folder / "checkpoint"))
                accelerator.wait_for_everyone()
                os._exit(0)

    right = rows = 0
    for batch in test:
        guess = model(batch["image"]).argmax(1)
        guess, label = accelerator.gather_for_metrics((guess, batch["label"]))
        right, rows = right + int((guess == label).sum()), rows + len(label)
    accelerator.print(f"{right} of {rows} right; {test.prove()}", flush=True)
    assert rows == 297  # each once
    accelerator.end_training()
    # At once: when DDP is taken apart after its group, torch 2.13 may hang or abort (pytorch #190489).
    os._exit(0)


def losses_of(folder: Path, *stops: int | None) -> list[str]:
    """The losses of both processes; they are started anew for each stop."""
    folder.mkdir()
    for stop in stops:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=2",
            __file__,
        ]
        command += [str(folder), *([str(stop)] if stop else [])]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return [(folder / f"losses-{rank}.txt").read_text() for rank in (0, 1)]


def main() -> None:
    """Compares the losses of a run that is stopped with those of one that is not."""
    with tempfile.TemporaryDirectory() as name:
        whole = losses_of(Path(name) / "whole", None)
        stopped = losses_of(Path(name) / "stopped", STOP_AFTER, None)
        assert stopped == whole
        print(
            f"stopped after {STOP_AFTER} batches and continued: all {len(whole[0].split())} losses are equal"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        main()
