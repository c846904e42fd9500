"""A user's program, read by type checkers: each wrong line is an error, and no other line is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchyoga

PROGRAM = Path(__file__).parent / "program.py"
MARKED = {n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong: " in line}
PACKAGES = Path(torchyoga.__file__).parent.parent


def checked(folder: Path, module: str, *arguments: str) -> str:
    """What a type checker says in a folder."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; it is in the extra 'lint'")
    command = [sys.executable, "-m", module, *arguments]
    environment = dict(os.environ)
    if PACKAGES.name != "site-packages":  # else type checkers find the installed package by themselves
        environment |= {"MYPYPATH": str(PACKAGES), "PYTHONPATH": str(PACKAGES)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, cwd=folder)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return found.stdout


@pytest.mark.rest
def test_mypy_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    options = ("--strict", "--output=json", "--config-file=", f"--cache-dir={tmp_path}")
    found = checked(PROGRAM.parent, "mypy", *options, PROGRAM.name)
    errors = [json.loads(line) for line in found.splitlines() if line.startswith("{")]
    ours = [error for error in errors if Path(error["file"]).name == PROGRAM.name]
    assert {error["line"] for error in ours if error["severity"] == "error"} == MARKED, found


@pytest.mark.rest
def test_pyright_finds_what_is_wrong_and_nothing_else() -> None:
    found = json.loads(
        checked(PROGRAM.parent, "pyright", "--outputjson", "--pythonpath", sys.executable, PROGRAM.name)
    )
    errors = [e for e in found["generalDiagnostics"] if e["severity"] == "error"]
    assert {error["range"]["start"]["line"] + 1 for error in errors} == MARKED, errors
