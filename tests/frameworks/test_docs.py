"""Pages, docstrings and programs in examples/ that need TensorFlow or Keras."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import (
    FRAMEWORK_EXAMPLES,
    FRAMEWORK_MODULES,
    FRAMEWORK_PAGES,
    blocks,
    run_blocks,
    run_examples,
    run_program,
)


@pytest.mark.parametrize("page", FRAMEWORK_PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks(page, "python")) > 5
    run_blocks(page)


@pytest.mark.parametrize("name", FRAMEWORK_MODULES)
def test_examples_in_docstrings(name: str, tmp_path: Path) -> None:
    run_examples(name, tmp_path)


@pytest.mark.parametrize("name", FRAMEWORK_EXAMPLES)
def test_an_example_runs(name: str) -> None:
    run_program(name, "-W", "error::UserWarning", KERAS_BACKEND=FRAMEWORK_EXAMPLES[name])
