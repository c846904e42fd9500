"""A storage or a dataset -> a server that shows it.

Other users of the machine cannot read the data.
The server listens on 127.0.0.1 only, which every user of the machine reaches, and so do pages of the web that
the user opens. So each address begins with a random token; the Host header must be this server's, which a
name of somebody else's that leads here (DNS rebinding) is not; a request that a browser says another site has
caused is refused unless it opens a page; and no answer may be read, framed or run anything by others.
Requests only read. A client has some seconds and bytes to say what it wants, one that is silent gives way to
others, and a connection carries one request, so that none holds the server for long.
"""

from __future__ import annotations

import html
import io
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from ...order.full import as_int
from ...reading.dataref import DataRef
from ...storage import Storage
from ..report.page import policy_of
from .pages import HTML, MOST_COLUMNS, STYLE, Answer, Pages, Refused, link, parameters
from .shelf import Shelf

__all__ = ["View", "view"]

_MOST_THREADS, _MOST_WORKING = 64, 4
_SECONDS_TO_ASK, _SECONDS_TO_TAKE, _SECONDS_TO_WAIT = 10.0, 60.0, 60.0
_SILENT = 1.0  # seconds after which a client that has not asked gives way to others
_MOST_BYTES = 32 * 2**10  # of a request
_ADDRESS = "127.0.0.1"
_POLICY = policy_of(STYLE, "'self' data:", "'self'", "; media-src 'self'; frame-ancestors 'none'")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class View:
    """A server that shows rows in a browser, until it is closed or the process ends.

    Attributes:
        url: the address to open; it holds a token, so whoever has it can look.
    """

    def __init__(self, server: _Server, page: str) -> None:
        self._server = server
        self.url = server.url + page
        self._thread = threading.Thread(target=server.serve_forever, name="torchyoga view", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns once it is closed; Ctrl-C ends it, as a KeyboardInterrupt."""
        while self._thread.is_alive():  # a join without a limit would not see Ctrl-C on Windows
            self._thread.join(0.5)

    def close(self) -> None:
        """Ends it; connections end with what they are being sent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    It filters rows by a column and shows images, sound and texts in full. It only reads. The address holds a
    random token, without which nothing is answered. See docs/view.md.

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
    page = ""
    if isinstance(shown, Storage) and id is not None:
        if version is None:
            shown.log(id, 1)  # names other ids, if there is none
            page = link("versions", id=id)
        else:
            shown.fetch(id, version)
            page = link("rows", id=id, version=version)
    return View(_Server(Pages(Shelf(shown, MOST_COLUMNS)), port), page)


class _TooLong(OSError):
    """A request of more bytes than any of ours has."""


class _Bounded(io.RawIOBase):
    """The bytes that a client sends, up to a number of bytes, until a moment."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = time.monotonic() + _SECONDS_TO_ASK
        self._left = _MOST_BYTES

    def readable(self) -> bool:
        """Of course."""
        return True

    def readinto(self, into: Any) -> int:
        """Some bytes; TimeoutError if they come too late."""
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the request came too slowly")
        if self._left <= 0:
            raise _TooLong("the request is too long")
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(memoryview(into)[: self._left])
        self._left -= count
        return count


class _Server(ThreadingHTTPServer):
    """Answers requests about some pages.

    Args:
        pages: what it answers with.
        port: to listen on; 0 for any that is free.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = False
    request_queue_size = 256

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.pages = pages
        self.token = secrets.token_urlsafe(24)
        self.working = threading.BoundedSemaphore(_MOST_WORKING)
        self._free = threading.BoundedSemaphore(_MOST_THREADS)
        self._asking: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((_ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the first page, with the token."""
        return f"http://{_ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which a browser may call this server."""
        return frozenset({f"{_ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"})

    def server_bind(self) -> None:
        """Without a look-up of the machine's name, which may take long."""
        if os.name == "posix":  # elsewhere it would let others listen on the same port
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind(self.server_address)
        except OSError as error:
            port = self.server_address[1]
            raise OSError(
                error.errno,
                f"port {port} cannot be listened on: {error.strerror}; choose another, or 0 for any",
            ) from None
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _ADDRESS, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, once one is free: who stays silent gives way."""
        until = time.monotonic() + _SECONDS_TO_WAIT
        while not self._free.acquire(timeout=0.1):
            self._drop_silent()
            if time.monotonic() > until:
                self.shutdown_request(request)
                return
        with self._lock:
            self._asking[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.heard(request)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._free.release()

    def heard(self, request: socket.socket) -> None:
        """Notes that a client has said what it wants."""
        with self._lock:
            self._asking.pop(request, None)

    def _drop_silent(self) -> None:
        with self._lock:
            if not self._asking:
                return
            oldest = min(self._asking, key=self._asking.__getitem__)
            if time.monotonic() - self._asking[oldest] < _SILENT:
                return
            del self._asking[oldest]
            with suppress(OSError):  # it has just gone
                oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no news."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Server
    server_version, sys_version = "torchyoga", ""

    def setup(self) -> None:
        """Reads no more, and no longer, than a request takes."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Bounded(self.connection))

    def handle_one_request(self) -> None:
        """Reads a request and answers it."""
        try:
            super().handle_one_request()
        except _TooLong:
            self.request_version, self.requestline, self.command = self.protocol_version, "", ""
            self._plain(431, "the request is too long")
            self._drain()
        self.close_connection = True

    def _drain(self) -> None:
        """Takes some of what is still sent, or the client would not see the answer."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            for _ in range(64):
                if not self.connection.recv(2**16):
                    return

    def do_GET(self) -> None:
        """A page or a file."""
        self.server.heard(self.connection)
        try:
            answer = self._answer()
        except Refused as error:
            self._plain(error.status, str(error))
            return
        self._send(answer)

    def _refused(self) -> None:
        self.server.heard(self.connection)
        try:
            self._page_name()
        except Refused as error:
            self._plain(error.status, str(error))
        else:
            self._plain(405, "this server only shows; ask it by GET")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refused

    def _answer(self) -> Answer:
        page = self._page_name()
        if not self.server.working.acquire(timeout=_SECONDS_TO_WAIT):
            raise Refused(503, "too much is asked for at once; try again")
        try:
            try:
                values = parameters(self.path.partition("?")[2])
            except Refused as error:
                return self.server.pages.refused(error)
            return self.server.pages.answer(page, values)
        finally:
            self.server.working.release()

    def _page_name(self) -> str:
        """The page that is asked for, by somebody who may.

        Raises:
            Refused: the request is not one of a browser that was given the address.
        """
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise Refused(421, "this server has another address")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        if origin is not None and origin.lower() not in {f"http://{host}" for host in self.server.hosts}:
            raise Refused(403, "this server answers no other site")
        is_opened = self.headers.get("Sec-Fetch-Mode") == "navigate" and (
            self.headers.get("Sec-Fetch-Dest", "document") == "document"
        )
        if site in ("cross-site", "same-site") and not is_opened:
            raise Refused(403, "this server answers no other site")
        path = self.path.partition("?")[0]
        token, slash, page = path.removeprefix("/").partition("/")
        given, wanted = token.encode("utf-8", "surrogateescape"), self.server.token.encode()
        if not (secrets.compare_digest(given, wanted) and path.startswith("/") and slash):
            raise Refused(403, "open the address that the program has printed: it holds a token")
        return page

    def _plain(self, status: int, text: str) -> None:
        self._send(Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode()))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Says what is wrong with the request itself, without repeating any of it."""
        self.server.heard(self.connection)
        try:
            status = HTTPStatus(code)
        except ValueError:
            status = HTTPStatus.BAD_REQUEST
        self._plain(status.value, status.phrase)

    def _send(self, answer: Answer) -> None:
        with suppress(OSError):  # the client has gone, or takes too long
            self.connection.settimeout(_SECONDS_TO_TAKE)
            self.send_response_only(answer.status)
            self.send_header("Content-Type", answer.type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Connection", "close")
            if answer.status == 405:
                self.send_header("Allow", "GET")
            is_page = answer.type == HTML
            policy = _POLICY if is_page else "default-src 'none'; sandbox"
            for name, value in {**_HEADERS, "Content-Security-Policy": policy}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: addresses hold the token."""
