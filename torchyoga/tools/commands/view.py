"""`yoga view`: rows in a browser."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from .output import Asked
from .places import id_argument, is_place, opened, placed, shown, storage_command, version_argument

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...storage import Storage


@storage_command("view", id_argument(required=False), version_argument())
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="To listen on; by default any.")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
def command(id: str | None, version: str | None, port: int, is_opened: bool, asked: Asked) -> None:
    """Page through rows in a browser: filter and sort them, open images, sound and texts.

    Without ID it begins with a list of the datasets; ID may be a path or URL of files of another library.
    Prints an address, which only works on this machine and holds a token; Ctrl-C ends it, with exit code 130.

    \b
    Examples:
      yoga view
      yoga view images --open
      yoga view images@prod --json
      yoga view images 1.1 --port 8000 --storage storage
      yoga view s3://bucket/shards
    """
    from ..view.view import opened_in_browser, view

    what: Storage | DataRef
    if id is not None and is_place(asked.storage, id):
        what, id, version = shown(asked.storage, id, version).ref, None, None
    else:
        what = opened(asked.storage)
        id, version = (None, None) if id is None else placed(what, id, version)
    with view(what, id, version, port=port) as server:
        asked.write({"url": server.url}, f"{server.url}\nCtrl-C ends it")
        with opened_in_browser(server.url) if is_opened else nullcontext():
            server.wait()
