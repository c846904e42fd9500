"""What the docs say runs, and where they point there is something."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchyoga

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = ["torchyoga", *(info.name for info in pkgutil.walk_packages(torchyoga.__path__, "torchyoga."))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "docs"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), namespace)


def test_there_are_blocks_to_run() -> None:
    assert sum(len(blocks(page, "python")) for page in PAGES) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_commands_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for code in blocks(page, "sh"):
        for line in code.splitlines():
            assert line.startswith("make ")
            assert line.split()[1] in targets


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str, tmp_path: Path) -> None:
    class Squares(torchyoga.DataRef):
        def __len__(self) -> int:
            return 10

        def take(self, rows: Any) -> list[int]:
            return [int(row) ** 2 for row in rows]

    module = importlib.import_module(name)
    given = {"np": np, "tmp_path": tmp_path, "Squares": Squares, "storage": torchyoga.Storage(tmp_path)}
    result = doctest.testmod(module, extraglobs=given)
    assert result.failed == 0
