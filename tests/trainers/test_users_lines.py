"""Warnings name the user's own line under trainers, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerators import quiet_trainer
from userlines import check_line, line

import torchyoga as yoga


@pytest.mark.xdist_group("accelerate")
class TestAccelerate:
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
def test_lightnings_fit(module: Any, tmp_path: Path) -> None:
    def fit() -> int:
        trainer = quiet_trainer(max_epochs=1, devices=1, default_root_dir=tmp_path)
        loader = yoga.DataLoader(yoga.from_arrays(np.arange(10)), 2, pin_memory=True)
        found = line()
        trainer.fit(module, loader)
        return found

    check_line(fit, "there is no accelerator")
