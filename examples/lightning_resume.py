"""Lightning's Trainer, killed in mid-epoch and continued with `ckpt_path`: the same losses, bit for bit.

    python examples/lightning_resume.py

Nothing in it is about resuming: the Trainer saves and loads the state of a loader that has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn

import torchyoga as yoga

STOP_AFTER = 70  # batches: in the middle of the second epoch


class Digits(lightning.LightningModule):
    """A small network, which records its losses and may end the process."""

    def __init__(self, losses: Path, stop_after: int | None) -> None:
        super().__init__()
        torch.set_num_threads(1)  # the last bits of sums depend on how many threads share the work
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.losses, self.stop_after = losses, stop_after

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        if self.global_step == self.stop_after:
            os.kill(os.getpid(), 9)
        loss = nn.functional.cross_entropy(self.layers(batch["image"]), batch["label"])
        with self.losses.open("a") as file:
            file.write(f"{self.global_step} {loss.item().hex()}\n")
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
        wrong = self.layers(batch["image"]).argmax(1) != batch["label"]
        self.log("error", wrong.float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def train(folder: Path, stop_after: int | None) -> None:
    """One process; continues from the folder's checkpoint if there is one."""
    digits = load_digits()
    data = yoga.from_arrays({"image": (digits.images / 16).astype("float32"), "label": digits.target})
    checkpoint = folder / "last.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        val_check_interval=20,
        callbacks=[ModelCheckpoint(folder, save_last=True, every_n_train_steps=10)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Digits(folder / "losses.txt", stop_after),
        yoga.DataLoader(data[:1500], batch_size=32, shuffle=True, seed=7),
        yoga.DataLoader(data[1500:], batch_size=99, remainder="keep"),
        ckpt_path=checkpoint if checkpoint.exists() else None,
    )


def losses_of(folder: Path, *stops: int | None) -> dict[str, str]:
    """The loss of each step of processes that train one after the other; a step that came twice, the last."""
    folder.mkdir()
    for stop in stops:
        command = [sys.executable, __file__, str(folder), *([str(stop)] if stop else [])]
        ended = subprocess.run(command).returncode
        assert ended == (-9 if stop else 0), ended
    return dict(line.split() for line in (folder / "losses.txt").read_text().splitlines())


def main() -> None:
    """Compares the losses of a run that is killed with those of one that is not."""
    with tempfile.TemporaryDirectory() as name:
        whole = losses_of(Path(name) / "whole", None)
        stopped = losses_of(Path(name) / "stopped", STOP_AFTER + 4, None)
        assert len(whole) == 3 * 47
        assert stopped == whole
        print(f"killed and continued at step {STOP_AFTER}: all {len(whole)} losses are equal")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        main()
