"""`yoga view`: rows in a browser."""

from __future__ import annotations

from contextlib import nullcontext

import click

from .output import Asked
from .places import id_argument, opened, placed, storage_command, version_argument

__all__ = ["command"]


@storage_command("view", id_argument(required=False), version_argument())
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="To listen on; by default any.")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
def command(id: str | None, version: str | None, port: int, is_opened: bool, asked: Asked) -> None:
    """Page through rows in a browser: filter, sort and download them, open images, sound and texts.

    Without ID it begins with a list of the datasets. Prints an address, which only works on this machine and
    holds a token; Ctrl-C ends it, with exit code 130.

    \b
    Examples:
      yoga view
      yoga view images --open
      yoga view images@prod --json
      yoga view images 1.1 --port 8000 --storage storage
    """
    from ..view.view import opened_in_browser, view

    found = opened(asked.storage)
    if id is not None:
        id, version = placed(found, id, version)
    with view(found, id, version, port=port) as shown:
        text = f"{shown.url}\nCtrl-C ends it"
        asked.write({"url": shown.url}, text)
        with opened_in_browser(shown.url) if is_opened else nullcontext():
            shown.wait()
