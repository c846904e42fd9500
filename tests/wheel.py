"""Shows that the built wheel is whole, in an environment that holds nothing else: `make dist-check`.

Run by the Python of that environment: python tests/wheel.py dist/torchyoga-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import torchyoga
from docs import ROOT, run_blocks


def check_contents(wheel: Path) -> None:
    """The wheel holds each file of the package and its licence, and no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "torchyoga").rglob("*.py")}
    info = f"torchyoga-{torchyoga.__version__}.dist-info"
    licences = {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"}
    templates = (path for path in (ROOT / "torchyoga").rglob("templates/*") if path.is_file())
    data = {"torchyoga/py.typed", *(path.relative_to(ROOT).as_posix() for path in templates)}
    missing = (package | licences | data) - names
    assert not missing, f"{wheel} lacks {sorted(missing)}"
    others = {name for name in names if not name.startswith(f"{info}/")} - package - data
    assert not others, f"{wheel} should hold nothing else: {sorted(others)}"


def check_installed() -> None:
    """The wheel's package is the one imported, and states its licence."""
    assert Path(torchyoga.__file__).is_relative_to(sys.prefix), torchyoga.__file__
    assert metadata("torchyoga")["License-Expression"] == "Apache-2.0"


if __name__ == "__main__":
    check_contents(Path(sys.argv[1]))
    check_installed()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_blocks(ROOT / "README.md")
        os.chdir(ROOT)  # Windows does not delete a folder that a process is in
    print(f"{sys.argv[1]} is whole, and the README's blocks run with it")
