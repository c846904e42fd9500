"""The pages and docstrings whose examples need TensorFlow or Keras, and the programs in examples/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs import FRAMEWORK_MODULES, FRAMEWORK_PAGES, ROOT, blocks, run_blocks, run_examples

EXAMPLES = {
    "keras_from_tfdata": "tensorflow",
    "torch_from_keras_sequence": "torch",
    "custom_dataref": "torch",
}


@pytest.mark.parametrize("page", FRAMEWORK_PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks(page, "python")) > 5
    run_blocks(page)


@pytest.mark.parametrize("name", FRAMEWORK_MODULES)
def test_examples_in_docstrings(name: str, tmp_path: Path) -> None:
    run_examples(name, tmp_path)


def test_all_examples_are_here() -> None:
    assert set(EXAMPLES) | {"quickstart"} == {path.stem for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    command = [sys.executable, "-W", "error::UserWarning", str(ROOT / "examples" / f"{name}.py")]
    environment = {**os.environ, "KERAS_BACKEND": EXAMPLES[name]}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stdout + told.stderr[-3000:]
