"""Installs requirements for the Python that runs this: by uv, in seconds, or by pip, where uv cannot.

uv reads no settings of pip's; those that say where packages come from are handed on to it. Its arguments are
pip's.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Settings of pip's, and what uv calls them. Of files and indexes there may be several, in one text.
NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
PINS = Path(__file__).parents[1] / "constraints.txt"  # uv's version, too
WITH_COMMAS = {"UV_FIND_LINKS", "UV_INSECURE_HOST"}  # between several; spaces in the others


def environment_of(listed: str) -> dict[str, str]:
    """What uv's environment needs to follow pip's settings.

    Args:
        listed: what `pip config list` prints.
    """
    # Packages of all indexes count, the certificates are the system's, as pip has them; Python is this one.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in ("global.", "install.", ":env:."):  # a later one counts
        for name, _, value in lines:
            variable = NAMES.get(name.removeprefix(section))
            if name.startswith(section) and variable is not None:
                several = str(ast.literal_eval(value)).split()
                found[variable] = ("," if variable in WITH_COMMAS else " ").join(several)
    if not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"} & found.keys():
        found["UV_TORCH_BACKEND"] = "cpu"  # from PyTorch's own index, on Linux in place of gigabytes of CUDA
    return found


def main(arguments: list[str], run: Callable[..., Any] = subprocess.run) -> int:
    """Installs them; returns the code of whatever did it last.

    Args:
        arguments: as pip takes them.
        run: as `subprocess.run`.
    """
    pip = [sys.executable, "-m", "pip"]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    settings = run([*pip, "config", "list"], capture_output=True, text=True).stdout
    environment = {**environment_of(settings), **os.environ}  # whoever has set uv up is not overruled
    for file in environment.pop("UV_CONSTRAINT", "").split():  # which counts only where no other is named
        uv += ["-c", file]
    quick = [*pip, "install", "--quiet", "--disable-pip-version-check", "-c", str(PINS), "uv"]
    if not run(quick).returncode:
        if not run([*uv, *arguments], env=environment).returncode:
            return 0
        print("uv could not install this; pip tries it, which takes minutes.", flush=True)
    return run([*pip, "install", "--disable-pip-version-check", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
