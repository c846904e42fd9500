"""The house only gets smaller, and names that messages and pages mention are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ceilings
import pytest
import surface

import torchyoga

ROOT = ceilings.TESTS.parent
KEPT: dict[str, int] = json.loads(ceilings.CEILINGS.read_text(encoding="utf-8"))
# What a page may name besides the public names: modules that programs import, and what a program calls.
MODULES = {"adapters", "compat", "testing", "views"}


def test_every_count_has_a_ceiling() -> None:
    assert KEPT.keys() == ceilings.counts().keys(), "run `python tests/ceilings.py`"


@pytest.mark.parametrize("name", KEPT)
def test_nothing_rises_above_its_ceiling(name: str) -> None:
    number = ceilings.counts()[name]
    assert number <= KEPT[name], f"{name}: {number}, the ceiling is {KEPT[name]}; move walls, add no shed"
    assert number >= KEPT[name] - ceilings.SLACK, f"{name} fell to {number}: run `python tests/ceilings.py`"


def texts() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    return [page for page in pages if "_build" not in page.parts] + list(ceilings.trees())


def test_every_name_that_is_mentioned_exists() -> None:
    missing = {
        (path.name, name)
        for path in texts()
        for name in re.findall(r"(?<![\w/.-])yoga\.([A-Za-z]\w*)", path.read_text(encoding="utf-8"))
        if name not in MODULES and not hasattr(torchyoga, name)
    }
    assert not missing


def test_the_public_surface_is_the_one_that_was_agreed_on() -> None:
    agreed = surface.SURFACE.read_text(encoding="utf-8")
    assert surface.surface() == agreed, "if that is meant: python tests/surface.py"
