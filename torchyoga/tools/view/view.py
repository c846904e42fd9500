"""A storage or a dataset -> a server that shows it in a browser: `view`."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...process.numbers import as_int
from ...process.threads import begin_thread
from ...reading.dataref import DataRef
from ...storage import Storage
from .answer import link
from .pages import Pages
from .server import Server
from .shelf import Shelf


class View:
    """A server that shows rows in a browser, until it is closed or the process ends.

    Attributes:
        url: the address to open; it holds a token, so anyone who has it can look.
    """

    def __init__(self, server: Server, page: str) -> None:
        self._server = server
        self.url = server.url + page
        self._thread = begin_thread("torchyoga view", server.serve, stop=server.close)

    def wait(self) -> None:
        """Returns once it is closed; Ctrl-C ends it, as a KeyboardInterrupt."""
        while self._thread.is_alive():  # a join without a limit would not see Ctrl-C on Windows
            self._thread.join(0.5)

    def close(self) -> None:
        """Ends it; connections end with what they are being sent."""
        self._server.close()
        self._thread.join()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"View({self.url!r})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        return f'<a href="{url}" target="_blank" rel="noopener noreferrer">{url}</a>'


def view(
    shown: Storage | DataRef | str | os.PathLike[str],
    id: str | None = None,
    version: str | None = None,
    *,
    port: int = 0,
) -> View:
    """Starts a server, for this machine only, that pages through rows in a browser; returns at once.

    It shows statistics of columns, filters and sorts rows, and shows images, sound and texts in full. It only
    reads. The address holds a random token, without which nothing is answered. See docs/look.md.

    Args:
        shown: a storage, its directory or URL; or a version or any other DataRef.
        id: the dataset to begin with; without it pages begin with a list.
        version: of it.
        port: to listen on; 0 for any that is free.

    Raises:
        NotFoundError: there is no such id or version; names those there are.
        CorruptError: that version is damaged.
        TypeError: `shown` is neither.
        ValueError: an argument is out of range.
        OSError: the port is taken.

    Example:
        >>> ref = storage.submit([{"x": n} for n in range(99)], "viewed", "1.0")
        >>> with yoga.view(ref) as shown:
        ...     shown.url.startswith("http://127.0.0.1:")
        True
    """
    port = as_int("port", port, 0, 65535)
    if isinstance(shown, (str, os.PathLike)):
        shown = Storage(shown)
    if not isinstance(shown, (Storage, DataRef)):
        raise TypeError(
            f"view takes a Storage, its directory or URL, or a DataRef, found {type(shown).__name__}; "
            "wrap data of your own with from_arrays or storage.submit"
        )
    if isinstance(shown, DataRef) and (id is not None or version is not None):
        raise ValueError("id and version are for a storage, and this is a dataset already; leave them out")
    if version is not None and id is None:
        raise ValueError(f"version={version!r} needs the id that it is of")
    page, shelf = "", Shelf(shown)
    if isinstance(shown, Storage) and id is not None:
        if version is None:
            shown.log(id, 1)  # names other ids, if there is none
            page = link("versions", id=id)
        else:
            shelf.opened(id, version)
            page = link("rows", id=id, version=version)
    return View(Server(Pages(shelf), port), page)


@contextmanager
def opened_in_browser(url: str) -> Iterator[None]:
    """Opens an address in a browser without naming it on a command line, which all users can read.

    The browser is given a file that leads there, which only this user can read; it is deleted at the end.
    """
    handle, name = tempfile.mkstemp(".html", "torchyoga-view-")  # of mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as page:
            escaped = html.escape(url)
            page.write(
                '<!doctype html><html lang="en"><meta charset="utf-8">'
                '<meta name="referrer" content="no-referrer">'
                f'<title>torchyoga</title><meta http-equiv="refresh" content="0; url={escaped}">'
                f'<p><a href="{escaped}">Open the view</a></p></html>\n'
            )
        webbrowser.open(Path(name).as_uri())
        yield
    finally:
        with suppress(OSError):
            os.unlink(name)
