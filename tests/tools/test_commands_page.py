"""What docs/commands.md shows is what the commands print."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
from commanding import by_ada, run, timeless

from docs import ROOT
from torchyoga.tools.commands.group import COMMANDS

PAGE = ROOT / "docs" / "commands.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown(text: str) -> str:
    """A page, or what it says, without what differs from one machine to the next."""
    text = timeless(text).replace(str(Path.cwd()), "/home/ada")
    return re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)


def sizeless(text: str) -> str:
    """A page without sizes of files, which depend on pages of memory and on libraries."""
    return re.sub(r" +[\d.]+ kB", " 9 kB", text)


def page_with_what_is_printed(page: str) -> str:
    """The page, with what its commands print now."""
    names: dict[str, object] = {"__name__": "page"}
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            exec(compile(text, "commands.md", "exec"), names)

    def again(block: re.Match[str]) -> str:
        if block[1] == "python":
            return block[0]
        lines = []
        for part in re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]:
            line = part.splitlines()[0]
            found = run(*shlex.split(line)[1:])
            assert found.exit_code in (0, 1), (line, found.output)
            lines.append(f"$ {line}\n{shown(found.stdout)}")
        return f"```console\n{''.join(lines)}```"

    return BLOCK.sub(again, page)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_shows_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    monkeypatch.delenv("TORCHYOGA_STORAGE", raising=False)
    with by_ada():
        found = page_with_what_is_printed(text)
    assert sizeless(found) == sizeless(text)


def test_the_site_has_the_help_of_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "extensions")
    text = importlib.import_module("commands").text()
    for name in COMMANDS:
        assert re.search(rf"^## {name}\n\n```text\nUsage: yoga {name} ", text, re.MULTILINE), name
