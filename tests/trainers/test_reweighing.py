"""Weights of a mixture that callbacks of trainers change: the code blocks of the docs, in real trainers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchyoga as yoga
from docs import ROOT, blocks

ROWS, BATCH, TOLD = 800, 8, 50  # the callbacks of the docs change weights after 50 steps
LATER = {"web": 0, "code": 1}


def made() -> yoga.DataLoader:
    sources = {
        name: yoga.from_arrays({"x": np.full((90, 2), number, np.float32)})
        for number, name in enumerate(("web", "code"))
    }
    mix = yoga.mix(sources, {"web": 1, "code": 1}, rows=ROWS, source_column="source")
    return yoga.DataLoader(mix, BATCH, shuffle=True, seed=7)


def callback_of(name: str, base: type, **more: Any) -> type:
    """The callback of this name in the docs, as a subclass of what its comment says."""
    code = next(code for code in blocks(ROOT / "docs" / "mixtures.md", "python") if f"class {name}:" in code)
    namespace: dict[str, Any] = {**more}
    exec(code, namespace)
    return type(name, (namespace[name], base), {})


def check(seen: list[Counter[int]]) -> None:
    assert len(seen) == ROWS // BATCH
    before, after = (sum(some, Counter[int]()) for some in (seen[:TOLD], seen[TOLD:]))
    assert abs(before[0] - before[1]) <= 2
    assert after == {1: ROWS - TOLD * BATCH}


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore")
def test_a_callback_of_lightning(tmp_path: Path) -> None:
    """A checkpoint of the step of a change that was written before it is gone on from, too."""
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = nn.Linear(2, 1), list[Counter[int]]()

        def weights(self) -> dict[str, float]:
            return LATER

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.seen.append(Counter(batch["source"].tolist()))
            return self.net(batch["x"]).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Saves(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step in (TOLD, TOLD + 10):
                trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    def train(last: Any = None) -> list[Counter[int]]:
        module = Module()
        quiet: dict[str, Any] = {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            enable_checkpointing=False,
            callbacks=[Saves(), callback_of("Reweigh", lightning.Callback)()],
            default_root_dir=tmp_path,
            **quiet,
        )
        trainer.fit(module, made(), ckpt_path=last)
        return module.seen

    seen = train()
    check(seen)
    for step in (TOLD, TOLD + 10):
        assert train(tmp_path / f"{step}.ckpt") == seen[step:]


@pytest.mark.xdist_group("accelerate")
@pytest.mark.filterwarnings("ignore")
def test_a_callback_of_transformers(tmp_path: Path) -> None:
    from accelerators import forget_accelerators
    from transformers import Trainer, TrainerCallback, TrainingArguments

    seen = list[Counter[int]]()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, source: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.append(Counter(source.tolist()))
            return {"loss": self.net(x).square().mean()}

    class Training(Trainer):
        def get_train_dataloader(self) -> Any:
            return made()

    def train(**last: Any) -> list[Counter[int]]:
        seen.clear()
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            save_steps=30,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            ignore_data_skip=True,
        )
        callback = callback_of("ReweighInTrainer", TrainerCallback, weights_at=lambda step: LATER)
        Training(Model(), arguments, train_dataset=made().dataset, callbacks=[callback()]).train(**last)
        forget_accelerators()
        return list(seen)

    whole = train()
    check(whole)
    for step in (30, 60):
        assert train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}")) == whole[step:]
