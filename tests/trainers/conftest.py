"""Collects the result of each test of the matrix, for docs/trainers.md; what several tests ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matrix
import pytest
import torch
from accelerators import forget_accelerators

_found: dict[tuple[str, str], list[tuple[str, str]]] = {}


@pytest.fixture
def accelerator() -> Iterator[Any]:
    from accelerate import Accelerator

    yield Accelerator(cpu=True, gradient_accumulation_steps=2)
    forget_accelerators()


@pytest.fixture
def module() -> Any:
    """A module of Lightning that notes the batches that it gets."""
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[Any] = []
            self.validated: list[Any] = []

        def validation_step(self, batch: Any, _: int) -> None:
            self.validated.append(batch)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.validated.append(batch)

        def training_step(self, batch: Any, _: int) -> Any:
            self.seen.append(batch)
            some = batch[0] if isinstance(batch, list) else batch
            return self.layer(some.float()[:, None]).sum()

        def predict_step(self, batch: Any, _: int) -> Any:
            return batch

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    return Module()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cell(trainer, column, says): the cell of the matrix that a test fills"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    marker = item.get_closest_marker("cell")
    if marker is not None and (report.when == "call" or report.failed):
        report.user_properties.append(("cell", [*marker.args, marker.kwargs.get("says", "yes")]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == "cell":
            trainer, column, says = value
            _found.setdefault((trainer, column), []).append((report.outcome, says))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the results, unless this process is one of several test processes, or tested only a part."""
    config = session.config
    is_whole = not config.option.keyword and all(Path(argument).is_dir() for argument in config.args)
    if not hasattr(config, "workerinput") and is_whole and _found:
        matrix.keep(_found)
