"""The page and the examples that need trainers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import TRAINER_EXAMPLES, TRAINER_MODULES, TRAINER_PAGES, blocks, run_blocks, run_examples, run_here

# Each runs where other tests have imported what it imports.
GROUPS = {"ddp_resume": "ddp", "lightning_resume": "lightning", "accelerate_resume": "accelerate"}


@pytest.mark.parametrize("page", TRAINER_PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.xdist_group("page")
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks(page, "python")) > 8
    run_blocks(page)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(GROUPS[name])) for name in TRAINER_EXAMPLES]
)
@pytest.mark.filterwarnings("ignore")
def test_an_example_runs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    run_here(name)
    assert re.search(TRAINER_EXAMPLES[name], capfd.readouterr().out)


@pytest.mark.parametrize("name", TRAINER_MODULES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.xdist_group("lightning")
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(name, tmp_path)
