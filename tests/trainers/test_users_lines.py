"""Warnings name the user's own line under trainers, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerators import forget_accelerators
from userlines import check_line, line

import torchyoga as yoga


@pytest.mark.xdist_group("accelerate")
class TestAccelerate:
    @pytest.fixture
    def accelerator(self) -> Iterator[Any]:
        from accelerate import Accelerator

        yield Accelerator(cpu=True)
        forget_accelerators()

    @pytest.mark.parametrize(
        ("way", "about"),
        [
            ("prepared", "WORLD_SIZE is 4"),
            ("accelerate's own", "huggingface/accelerate#4195"),
            ("skipped", "finds its place by skipping batches"),
        ],
    )
    def test_a_loop(self, way: str, about: str, accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from accelerate import skip_first_batches

        def loop() -> int:
            rows = list(range(10))
            torchs = torch.utils.data.DataLoader(rows, 2, sampler=yoga.ResumableSampler(rows))
            loader: Any = accelerator.prepare(torchs if "own" in way else yoga.DataLoader(rows, 2))
            if way == "prepared":
                monkeypatch.setenv("WORLD_SIZE", "4")
            if way == "skipped":
                loader = skip_first_batches(loader, 2)
            found = line()
            for batch in loader:
                del batch
            return found

        check_line(loop, about)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
@pytest.mark.xdist_group("lightning")
def test_lightnings_fit(tmp_path: Path) -> None:
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch["x"][:, None]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit() -> int:
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        arrays = yoga.from_arrays({"x": np.arange(10, dtype=np.float32)})
        module, loader = Module(), yoga.DataLoader(arrays, 2, pin_memory=True)
        found = line()
        trainer.fit(module, loader)
        return found

    check_line(fit, "there is no accelerator")
