"""transformers.Trainer with our loader."""

from __future__ import annotations

from typing import Any

import torch
from common import RANK, Log, Net, leave, make_loader, task_of
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

TASK = task_of()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, row: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.net(x), y)}


class Training(Trainer):
    lines: Log

    def get_train_dataloader(self) -> Any:
        return make_loader(TASK)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss: Any = super().compute_loss(model, inputs, *args, **kwargs)
        self.lines.step(int(self.state.epoch or 0), inputs["row"], loss.item())
        return loss


class Stop(TrainerCallback):
    def __init__(self, lines: Log) -> None:
        self.lines = lines

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = control.should_save or self.lines.due

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.lines.due:
            leave()


def main() -> None:
    log = Log(TASK, RANK)
    if log.due:
        leave()  # nothing can be saved yet
    arguments = TrainingArguments(
        output_dir=TASK.folder,
        use_cpu=True,
        num_train_epochs=TASK.epochs,
        per_device_train_batch_size=TASK.batch_size,
        gradient_accumulation_steps=TASK.accumulate,
        learning_rate=0.01,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Training(Model(), arguments, train_dataset=make_loader(TASK).dataset, callbacks=[Stop(log)])
    trainer.lines = log
    last = get_last_checkpoint(TASK.folder)  # type: ignore[no-untyped-call]
    trainer.train(resume_from_checkpoint=last if TASK.resume else None)
    log.done()


if __name__ == "__main__":
    main()
