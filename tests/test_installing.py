"""`make` installs by uv, which takes packages from where pip does, and by pip, where uv cannot."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
INSTALL = runpy.run_path(str(ROOT / "release" / "install.py"))
LISTED = """\
:env:.find-links='/wheels'
global.constraint='/etc/pins.txt'
global.extra-index-url='file:///one/simple file:///other/simple'
global.find-links='/not/this\\n/nor/this'
install.timeout='9'
user.name='nobody'
"""


def test_uv_follows_what_pip_was_told() -> None:
    found = INSTALL["environment_of"](LISTED)
    assert found["UV_FIND_LINKS"] == "/wheels"  # of the environment, which counts before files
    assert found["UV_INDEX"] == "file:///one/simple file:///other/simple"
    assert (found["UV_CONSTRAINT"], found["UV_HTTP_TIMEOUT"]) == ("/etc/pins.txt", "9")
    assert "UV_TORCH_BACKEND" not in found
    assert not [name for name in found if name.endswith("NAME")]
    two = INSTALL["environment_of"]("global.find-links='/a\\n/b'")
    assert two["UV_FIND_LINKS"] == "/a,/b"
    assert INSTALL["environment_of"]("")["UV_TORCH_BACKEND"] == "cpu"


@pytest.mark.parametrize(("failing", "last"), [(None, "uv"), ("uv pip", "pip"), ("--quiet", "pip")])
def test_pip_installs_what_uv_cannot(
    failing: str | None, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[str], Any]] = []

    def run(command: list[str], env: Any = None, **options: Any) -> SimpleNamespace:
        asked.append((command, env))
        return SimpleNamespace(stdout=LISTED, returncode=failing is not None and failing in " ".join(command))

    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    assert INSTALL["main"](["-c", "constraints.txt", "-e", ".[demo]"], run) == 0
    command, environment = asked[-1]
    assert command[:3] == [sys.executable, "-m", last]
    assert command[-4:] == ["-c", "constraints.txt", "-e", ".[demo]"]
    if last == "uv":
        assert environment["UV_FIND_LINKS"] == "/mine"
        assert command[command.index("/etc/pins.txt") - 1] == "-c"
    assert ("minutes" in capsys.readouterr().out) == (failing == "uv pip")


def test_every_environment_of_make_is_made_so() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"-m pip install .*", makefile.split("dist-check:")[0]) == []
    assert makefile.count("release/install.py ") == 3
    assert "EXTRAS_$(DOCS_STAMP) := demo,bench,docs\n" in makefile  # no TensorFlow
