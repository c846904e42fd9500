"""A storage or a dataset -> a server that shows it in a browser of one user on this machine: `view`.

Other users of the machine cannot read the data.
The server listens on 127.0.0.1 only, which every user of the machine reaches, and so do pages of the web that
the user opens. So each address begins with a random token; the Host header must be this server's, which a
name of another server that leads here (DNS rebinding) is not; a request that a browser says another site has
caused is refused unless it opens a page; and no answer may be read, framed or run anything by others.

Requests only read. A connection has a thread and one request; a client that is silent for ten seconds is
given up.
"""

from __future__ import annotations

import html
import os
import re
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from ...process.numbers import as_int
from ...process.threads import begin_thread
from ...reading.dataref import DataRef
from ...storage import Storage
from ..report.page import policy_of
from .answer import HTML, TEXT, Answer, Refused
from .pages import STYLE, Pages
from .shelf import Shelf

_MOST_WORKING = 4  # requests that are answered at once
_MOST_OPEN = 512  # connections: the program that shows pages needs files, too
_SECONDS_TO_ASK, _SECONDS_TO_TAKE = 10.0, 60.0
_ADDRESS = "127.0.0.1"
_POLICY = policy_of(STYLE, "'self' data:", "'self'", "; media-src 'self'; frame-ancestors 'none'")
_OF_FILES = "default-src 'none'; sandbox"
# A browser's own player is a page around the sound, which loads it from where it lies and has a style.
_OF_SOUND = "default-src 'none'; media-src 'self'; style-src 'unsafe-inline'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class View:
    """A server that shows rows in a browser, until it is closed or the process ends.

    Attributes:
        url: the address to open; it holds a token, so anyone who has it can look.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.url = server.url
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


def view(shown: Storage | DataRef | str | os.PathLike[str], *, port: int = 0) -> View:
    """Starts a server, for this machine only, that pages through rows in a browser; returns at once.

    It shows statistics of columns, filters and sorts rows, and shows images, sound and texts in full. It only
    reads. The address holds a random token, without which nothing is answered. See docs/measure.md.

    Args:
        shown: a storage, its directory or URL; or a version or any other DataRef.
        port: to listen on; 0 for any that is free.

    Raises:
        TypeError: `shown` is none of these.
        ValueError: the port is out of range.
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
    return View(Server(Pages(Shelf(shown)), port))


class Server(ThreadingHTTPServer):
    """Answers requests about some pages.

    Args:
        pages: what it answers with.
        port: to listen on; 0 for any that is free.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads, request_queue_size = True, 512
    allow_reuse_address, allow_reuse_port = os.name == "posix", False  # elsewhere others could listen, too

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.pages, self.token = pages, secrets.token_urlsafe(24)
        self.working = threading.BoundedSemaphore(_MOST_WORKING)
        self._open = threading.BoundedSemaphore(_MOST_OPEN)
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            why = f"port {port} cannot be listened on: {error.strerror}; choose another, or 0 for any"
            raise OSError(error.errno, why) from None
        host = f"{_ADDRESS}:{self.server_address[1]}"
        self.url = f"http://{host}/{self.token}/"
        self.hosts = {host, f"localhost:{self.server_address[1]}"}  # by which a browser may call it

    server_bind = TCPServer.server_bind  # HTTPServer's looks up its name, which may take long

    def serve(self) -> None:
        """Answers until `close` is called."""
        with self:
            self.serve_forever(0.1)

    close = ThreadingHTTPServer.shutdown  # answers that are being sent are sent

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """False for clients beyond those that may be connected at once."""
        return self._open.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports errors, but not those of clients that go away or take too long."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Any
    server_version, sys_version, protocol_version = "torchyoga", "", "HTTP/1.1"
    timeout = _SECONDS_TO_ASK

    def _asked(self) -> None:
        self.connection.settimeout(_SECONDS_TO_TAKE)
        try:
            page = self._page_name()
            if self.command != "GET":
                raise Refused(405, "this server only shows; ask it by GET")
            answer = self._answer(page)
        except Refused as error:
            self._plain(error.status, str(error))
        else:
            self._send(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _asked

    def _page_name(self) -> str:
        """The page that is asked for; Refused unless a browser asks that was given the address."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise Refused(421, "this server has another address")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        is_opened = self.headers.get("Sec-Fetch-Mode") == "navigate" and (
            self.headers.get("Sec-Fetch-Dest", "document") == "document"
        )
        own = {f"http://{host}" for host in self.server.hosts}
        is_foreign = origin is not None and origin.lower() not in own
        if is_foreign or (site in ("cross-site", "same-site") and not is_opened):
            raise Refused(403, "this server answers no other site")
        token, slash, page = self.path.partition("?")[0].removeprefix("/").partition("/")
        given = token.encode("utf-8", "surrogateescape")
        if not (secrets.compare_digest(given, self.server.token.encode()) and slash):
            raise Refused(403, "open the address that the program has printed: it holds a token")
        return page

    def _answer(self, page: str) -> Answer:
        if not self.server.working.acquire(timeout=_SECONDS_TO_TAKE):
            raise Refused(503, "too much is asked for at once; try again")
        try:
            pages: Pages = self.server.pages
            return pages.answer(page, self.path.partition("?")[2])
        finally:
            self.server.working.release()

    def _plain(self, status: int, text: str) -> None:
        self._send(Answer(status, TEXT, f"{text}\n".encode()))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Says what is wrong with the request itself, without repeating any of it."""
        self._plain(code, HTTPStatus(code).phrase)

    def _send(self, answer: Answer) -> None:
        status, body, headers = answer.status, answer.body, {"Content-Type": answer.type}
        if answer.type.startswith(("image/", "audio/")) and status == 200:  # browsers ask for parts of it
            headers["Accept-Ranges"] = "bytes"
            asked = _range_of(self.headers.get("Range", ""), len(body))
            if asked is not None:
                status, body = 206, body[asked.start : asked.stop]
                headers["Content-Range"] = f"bytes {asked.start}-{asked.stop - 1}/{len(answer.body)}"
        elif status == 405:
            headers["Allow"] = "GET"
        of_file = _OF_SOUND if answer.type.startswith("audio/") else _OF_FILES
        headers["Content-Security-Policy"] = _POLICY if answer.type == HTML else of_file
        headers |= {"Content-Length": str(len(body)), "Connection": "close"}
        self.send_response_only(status)
        for name, value in {**headers, **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: addresses hold the token."""


def _range_of(text: str, size: int) -> range | None:
    """The bytes that a header asks for; None for all of them, which any server may send."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or match[1] == match[2] == "":
        return None
    start = int(match[1]) if match[1] else max(0, size - int(match[2]))
    stop = min(size, int(match[2]) + 1 if match[1] and match[2] else size)
    return range(start, stop) if start < stop else None
