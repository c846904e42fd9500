"""Lightning's Trainer."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import lightning.pytorch as lightning
import torch
from common import RANK, WORLD, Log, Net, leave, make_loader, task_of
from torch import nn

from torchyoga.adapters.lightning import KeepGenerators

TASK = task_of()


class Module(lightning.LightningModule):
    def __init__(self, lines: Log) -> None:
        super().__init__()
        self.net, self.lines = Net(), lines

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch["x"]), batch["y"])
        self.lines.step(self.current_epoch, batch["row"], loss.item())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        if not self.trainer.sanity_checking:
            self.lines.evaluated(self.current_epoch, batch["row"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)

    def train_dataloader(self) -> Any:
        return make_loader(TASK)

    def val_dataloader(self) -> Any:
        return make_loader(replace(TASK, remainder="keep"), shuffle=False) if TASK.validate else []


class Stop(lightning.Callback):
    def __init__(self, lines: Log) -> None:
        self.lines = lines

    def stop_if_due(self, trainer: lightning.Trainer) -> None:
        if self.lines.due:
            trainer.save_checkpoint(TASK.checkpoint)
            leave()

    def on_train_start(self, trainer: lightning.Trainer, _: Any) -> None:
        self.stop_if_due(trainer)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.stop_if_due(trainer)


def main() -> None:
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    log = Log(TASK, RANK)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        max_epochs=TASK.epochs,
        accumulate_grad_batches=TASK.accumulate,
        val_check_interval=4 if TASK.validate else None,
        callbacks=[Stop(log), *([KeepGenerators()] if TASK.dropout else [])],
        default_root_dir=TASK.folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(log), ckpt_path=TASK.checkpoint if TASK.resume else None)
    log.done()
    leave()


if __name__ == "__main__":
    main()
