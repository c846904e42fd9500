"""Warnings name the user's own line under trainers, too."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerators import forget_accelerators

import torchyoga as yoga


def line() -> int:
    """The number of the caller's next line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + 1


def check(work: Callable[[], int], about: str) -> None:
    """Checks that the only warning about it names this file and the line that `work` returns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = work()
    ours = [warning for warning in caught if about in str(warning.message)]
    assert [(warning.filename, warning.lineno) for warning in ours] == [(__file__, expected)]


@pytest.mark.xdist_group("accelerate")
class TestAccelerate:
    @pytest.fixture
    def accelerator(self) -> Iterator[Any]:
        from accelerate import Accelerator

        yield Accelerator(cpu=True)
        forget_accelerators()

    def test_a_loop_over_a_prepared_loader(self, accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def loop() -> int:
            prepared = accelerator.prepare(yoga.DataLoader(list(range(10)), 2))
            monkeypatch.setenv("WORLD_SIZE", "4")
            found = line()
            for batch in prepared:
                del batch
            return found

        check(loop, "WORLD_SIZE is 4")

    def test_a_loop_over_accelerates_own_loader(self, accelerator: Any) -> None:
        def loop() -> int:
            sampler = yoga.ResumableSampler(list(range(10)))
            prepared = accelerator.prepare(torch.utils.data.DataLoader(list(range(10)), 2, sampler=sampler))
            found = line()
            for batch in prepared:
                del batch
            return found

        check(loop, "huggingface/accelerate#4195")

    def test_skipped_batches(self, accelerator: Any) -> None:
        from accelerate import skip_first_batches

        def loop() -> int:
            prepared = accelerator.prepare(yoga.DataLoader(list(range(10)), 2))
            found = line()
            for batch in skip_first_batches(prepared, 2):
                del batch
            return found

        check(loop, "finds its place by skipping batches")


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

    check(fit, "there is no accelerator")
