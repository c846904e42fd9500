"""A storage for commands, and ways to run them: in this process, as a program, on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result

import torchyoga as yoga
from torchyoga.tools.commands.group import command

IMAGES = [
    {"id": i, "image": np.full((4, 4), i, np.uint8), "label": i % 3, "text": f"text {i}"} for i in range(20)
]
# So that a program finds this package, and writes as it does in a shell.
ENVIRONMENT = {"PYTHONPATH": str(Path(yoga.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
ROW = {"id": 90, "image": [[1] * 4] * 4, "label": 2, "text": "from JSON"}


def made(folder: Path) -> yoga.Storage:
    """A storage with two versions of `images`, made by ada, and files to append, in a folder."""
    with by_ada():
        return _made(folder)


@contextmanager
def by_ada() -> Iterator[None]:
    """What is built is by the user ada, and of no commit."""
    with (
        patch.dict(os.environ, {"LOGNAME": "ada", "GIT_DIR": "/nowhere"}),
        # This process may have asked git before.
        patch("torchyoga.caching.lineage.commit_of", lambda folder: {}),
    ):
        yield


def _made(folder: Path) -> yoga.Storage:
    storage = yoga.Storage(folder / "storage")
    storage.submit(IMAGES, "images", "1.0", message="crawl of May", progress=False)
    rows = [{**row, "id": row["id"] + 20} for row in IMAGES[:3]]
    storage.append(rows, "images", "1.1", after="1.0", message="crawl of June", progress=False)
    storage.tag("images", "prod", "1.0")
    storage.submit([{"x": 1.5}, {"x": float("nan")}], "numbers", "1", progress=False)
    columns = {"id": np.arange(40, 42), "label": np.array([0, 1])}
    with h5py.File(folder / "more.h5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "id": 91}) + "\n")
    return storage


def run(*arguments: str, **environment: str) -> Result:
    """What a command prints in this process, in the current folder."""
    # Before click 8.2 a runner mixes the outputs, unless it is told not to.
    apart = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart).invoke(command, arguments, prog_name="yoga", env=environment)


def said(*arguments: str, code: int = 0) -> str:
    """The output of a command that ends with this exit code, and its error if that is not 0."""
    found = run(*arguments)
    assert found.exit_code == code, (found.output, found.exception)
    return found.stdout + found.stderr


def parsed(*arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints; only such that other programs read."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    found = run(*arguments, "--json")
    assert found.exit_code == code, (found.output, found.exception)
    return json.loads(found.stdout, parse_constant=refuse)


def hears_ctrl_c() -> None:
    """For a process that begins: shells let what runs in the background ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def timeless(text: str) -> str:
    """A text with the same moment each time."""
    return re.sub(r"20\d\d-\d\d-\d\d([ T])\d\d:\d\d(:\d\d)?", _moment, text)


def _moment(found: re.Match[str]) -> str:
    return f"2026-11-23{found[1]}12:00" + (":00" if found[2] else "")


def entry_point(folder: Path) -> Path:
    """The program `yoga`, as pip installs it."""
    path = folder / "yoga"
    lines = [f"#!{sys.executable}", "from torchyoga.tools.commands.group import main", "main()"]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def process(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that has ended."""
    found = {**os.environ, **ENVIRONMENT, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=found)


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, show: Callable[[], None]) -> str:
    """What is shown on a terminal of this width."""
    above, below = pty.openpty()
    fcntl.ioctl(below, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(above, 4096):
                parts.append(part)
        except OSError:  # the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(below, "w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
            show()
    finally:
        reader.join(60)
        os.close(above)
    text = b"".join(parts).decode().replace("\r\n", "\n")
    return re.sub(r"\x1b\[[01]m", "", text)  # the titles are bold
