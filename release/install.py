"""Installs requirements for the Python that runs this: by uv, in seconds, or by pip.

pip installs where its settings name indexes or folders of packages. There uv takes a release from the first
index that has it, whatever wheels lie there; pip compares the wheels of all indexes
and takes the one for this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"  # uv's version, too
# Settings of pip's that say where packages come from, or how they are reached: uv reads none of them.
SOURCES = {
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "constraint",
    "cert",
    "client-cert",
    "proxy",
}
# PyTorch comes from its own index, on Linux in place of gigabytes of CUDA; Python is the one that runs this.
UV = {"UV_TORCH_BACKEND": "cpu", "UV_PYTHON_DOWNLOADS": "never"}


def has_sources(listed: str) -> bool:
    """Whether pip's settings say where packages come from.

    Args:
        listed: what `pip config list` prints: lines such as `global.index-url='https://...'`.
    """
    return any(line.partition("=")[0].rpartition(".")[2] in SOURCES for line in listed.splitlines())


def main(arguments: list[str], run: Callable[..., Any] = subprocess.run) -> int:
    """Installs them; returns the exit code of uv or pip, whichever ran last.

    Args:
        arguments: as pip takes them.
        run: as `subprocess.run`.
    """
    pip = [sys.executable, "-m", "pip"]
    install = [*pip, "install", "--disable-pip-version-check"]
    if not has_sources(run([*pip, "config", "list"], capture_output=True, text=True).stdout):
        uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
        if not run([*install, "--quiet", "-c", str(PINS), "uv"]).returncode:
            if not run([*uv, *arguments], env={**UV, **os.environ}).returncode:
                return 0
            print("uv could not install this; pip tries it, which takes minutes.", flush=True)
    return run([*install, *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
