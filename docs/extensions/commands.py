"""A page with the help of every command, as `yoga COMMAND --help` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from outside import GENERATED, write

from torchyoga.tools.commands.group import COMMANDS, command

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def text() -> str:
    """The page."""
    group = click.Context(command, info_name="yoga", **command.context_settings)
    parts = ["# All commands", "", "```text", command.get_help(group), "```"]
    for name in COMMANDS:
        found = command.get_command(group, name)
        assert found is not None
        context = click.Context(found, info_name=name, parent=group)
        parts += ["", f"## {name}", "", "```text", found.get_help(context), "```"]
    return "\n".join(parts) + "\n"


def _write(app: Sphinx) -> None:
    del app
    write(GENERATED / "commands" / "index.md", text())


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the page before pages are looked for."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True}
