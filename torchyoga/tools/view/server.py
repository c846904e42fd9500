"""Connections -> answers, for the browser of one user on this machine.

Other users of the machine cannot read the data.
The server listens on 127.0.0.1 only, which every user of the machine reaches, and so do pages of the web that
the user opens. So each address begins with a random token; the Host header must be this server's, which a
name of another server that leads here (DNS rebinding) is not; a request that a browser says another site has
caused is refused unless it opens a page; and no answer may be read, framed or run anything by others.

Requests only read, and none holds the server for long.
One thread hears all clients at once, so one that says nothing takes a place in a list and no thread; if the
list is full, the one that has been silent longest is disconnected. A request that is complete gets a thread;
If none is free, the client that is slowest to take its answer is disconnected. A connection has one request.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from ...process.threads import begin_thread
from ..report.page import policy_of
from .answer import HTML, Answer, Refused, parameters
from .pages import STYLE, Pages

__all__ = ["Server"]

_MOST_SILENT, _MOST_THREADS, _MOST_WORKING, _MOST_DOWNLOADS = 256, 64, 4, 4
_SPARE_FILES = 32
_SECONDS_TO_ASK, _SECONDS_TO_TAKE, _SECONDS_TO_WAIT = 10.0, 60.0, 60.0
_SECONDS_WITHOUT_PROGRESS = 1.0  # after which a client gives way to others
_MOST_BYTES = 32 * 2**10  # of a request
_AT_ONCE = 2**16  # bytes sent
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


class _Client(NamedTuple):
    """A client that has not asked yet: what it has sent, and until when it may."""

    heard: bytearray
    until: float


class Server:
    """Answers requests about some pages.

    Args:
        pages: what it answers with.
        port: to listen on; 0 for any that is free.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self._listener = _listener(port)
        self.pages = pages
        self.token = secrets.token_urlsafe(24)
        self.working = threading.BoundedSemaphore(_MOST_WORKING)
        self.downloads = threading.BoundedSemaphore(_MOST_DOWNLOADS)
        self._silent: dict[socket.socket, _Client] = {}  # in the order in which they came
        self._most_silent = _MOST_SILENT
        self._complete: deque[tuple[socket.socket, bytes]] = deque()
        self._free = threading.BoundedSemaphore(_MOST_THREADS)
        self._taking: dict[socket.socket, float] = {}  # clients, and when they last took something
        self._lock = threading.Lock()
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self.port = int(self._listener.getsockname()[1])
        for one in (self._woken, self._waker, self._listener):
            one.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    @property
    def url(self) -> str:
        """The address of the first page, with the token."""
        return f"http://{_ADDRESS}:{self.port}/{self.token}/"

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which a browser may call this server."""
        return frozenset({f"{_ADDRESS}:{self.port}", f"localhost:{self.port}"})

    def close(self) -> None:
        """Ends `serve`; answers that are being sent are sent."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it will wake anyway, or has ended
            self._waker.send(b".")

    def serve(self) -> None:
        """Hears clients and starts threads that answer them, until `close` is called."""
        try:
            while not self._is_closed:
                for key, _ in self._selector.select(0.05 if self._complete else 1.0):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        with suppress(OSError):
                            self._woken.recv(_AT_ONCE)
                    elif key.fileobj in self._silent:  # and has not just been dropped for another one
                        self._hear(key.fileobj)
                now = time.monotonic()
                for client in [one for one, known in self._silent.items() if known.until < now]:
                    self._forget(client, is_closed=True)
                self._answer_complete()
        finally:
            for client in [*self._silent]:
                self._forget(client, is_closed=True)
            for client, _ in self._complete:
                client.close()
            self._selector.close()
            for one in (self._listener, self._woken, self._waker):
                one.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        except OSError:  # such as too many open files, of which answers need some, too
            self._most_silent = max(1, len(self._silent) - _SPARE_FILES)
            self._drop_silent()
            time.sleep(0.01)  # the client waits, and the next look finds it
            return
        self._drop_silent()
        client.setblocking(False)
        self._silent[client] = _Client(bytearray(), time.monotonic() + _SECONDS_TO_ASK)
        self._selector.register(client, selectors.EVENT_READ)

    def _drop_silent(self) -> None:
        """Makes room for one more."""
        while len(self._silent) >= self._most_silent:
            self._forget(next(iter(self._silent)), is_closed=True)

    def _forget(self, client: socket.socket, is_closed: bool) -> None:
        del self._silent[client]
        self._selector.unregister(client)
        if is_closed:
            client.close()

    def _hear(self, client: Any) -> None:
        heard = self._silent[client].heard
        try:
            part = client.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        heard += part
        is_whole = b"\r\n\r\n" in heard or b"\n\n" in heard or len(heard) > _MOST_BYTES
        if is_whole or not part:
            self._forget(client, is_closed=not is_whole)
        if is_whole:
            self._complete.append((client, bytes(heard)))

    def _answer_complete(self) -> None:
        while self._complete:
            if not self._free.acquire(blocking=False):
                self._drop_slow()
                return
            client, head = self._complete.popleft()
            with self._lock:
                self._taking[client] = time.monotonic() + _SECONDS_TO_WAIT  # until its answer is made
            try:
                begin_thread("torchyoga answer", self._answer, client, head, stop=self.close)
            except RuntimeError:  # no thread can be started
                self._done(client)

    def _drop_slow(self) -> None:
        with self._lock:
            client = min(self._taking, key=self._taking.__getitem__, default=None)
            if client is not None and time.monotonic() - self._taking[client] > _SECONDS_WITHOUT_PROGRESS:
                with suppress(OSError):  # it has just gone
                    client.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, head: bytes) -> None:
        try:
            with suppress(OSError):  # the client has gone, or takes too long
                client.settimeout(_SECONDS_TO_TAKE)
                _Handler(client, head, self)
                client.shutdown(socket.SHUT_WR)
        finally:
            self._done(client)

    def _done(self, client: socket.socket) -> None:
        with self._lock:
            del self._taking[client]
            client.close()
        self._free.release()
        self._wake()

    def send(self, client: socket.socket, data: bytes) -> None:
        """Sends bytes, and notes that the client takes them; OSError if it does not."""
        view = memoryview(data)
        for start in range(0, len(view), _AT_ONCE):
            with self._lock:
                self._taking[client] = time.monotonic()
            client.sendall(view[start : start + _AT_ONCE])
        with self._lock:
            self._taking[client] = time.monotonic() + _SECONDS_TO_WAIT  # until there is more


def _listener(port: int) -> socket.socket:
    """A socket that listens on this machine, without a look-up of its name, which may take long."""
    listener = socket.socket()
    try:
        if os.name == "posix":  # elsewhere it would let others listen on the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_ADDRESS, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"port {port} cannot be listened on: {error.strerror}; choose another, or 0 for any",
        ) from None
    return listener


class _ClientStream(io.RawIOBase):
    """A stream to a client."""

    def __init__(self, server: Server, client: socket.socket) -> None:
        self._server, self._client = server, client

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Sends all of it."""
        self._server.send(self._client, data)
        return len(data)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, which has been heard."""

    server: Any
    server_version, sys_version = "torchyoga", ""
    protocol_version = "HTTP/1.1"

    def __init__(self, client: socket.socket, head: bytes, server: Server) -> None:
        self._head = head
        super().__init__(client, (_ADDRESS, 0), server)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Reads what was heard."""
        self.connection = self.request
        self.rfile = io.BytesIO(self._head)
        self.wfile = _ClientStream(self.server, self.connection)  # type: ignore[assignment]

    def finish(self) -> None:
        """Nothing is left to be sent."""

    def handle_one_request(self) -> None:
        """Answers it."""
        if len(self._head) > _MOST_BYTES:
            self.request_version, self.requestline, self.command = self.protocol_version, "", ""
            self._plain(431, "the request is too long")
            self._drain()
        else:
            super().handle_one_request()
        self.close_connection = True

    def _drain(self) -> None:
        """Takes some of what is still sent, or the client would not see the answer."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            until = time.monotonic() + 1.0
            while (seconds := until - time.monotonic()) > 0:
                self.connection.settimeout(seconds)
                if not self.connection.recv(_AT_ONCE):
                    return

    def do_GET(self) -> None:
        """A page or a file."""
        try:
            answer = self._answer()
        except Refused as error:
            self._plain(error.status, str(error))
            return
        self._send(answer)

    def _refused(self) -> None:
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
                return self.server.pages.refused(error)  # type: ignore[no-any-return]
            return self.server.pages.answer(page, values)  # type: ignore[no-any-return]
        finally:
            self.server.working.release()

    def _page_name(self) -> str:
        """The page that is asked for, after host, origin and token have been checked.

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
        try:
            status = HTTPStatus(code)
        except ValueError:
            status = HTTPStatus.BAD_REQUEST
        self._plain(status.value, status.phrase)

    def _send(self, answer: Answer) -> None:
        if answer.parts is None:
            self._send_whole(answer)
        elif self.server.downloads.acquire(blocking=False):
            try:
                self._send_parts(answer, answer.parts)
            finally:
                self.server.downloads.release()
        else:
            self._plain(503, "several downloads are running; try again when one has ended")

    def _send_whole(self, answer: Answer) -> None:
        body, headers = answer.body, {}
        status = answer.status
        if answer.is_media and status == 200:
            headers["Accept-Ranges"] = "bytes"
            asked = _range_of(self.headers.get("Range", ""), len(body))
            if asked is not None:
                status, body = 206, answer.body[asked.start : asked.stop]
                headers["Content-Range"] = f"bytes {asked.start}-{asked.stop - 1}/{len(answer.body)}"
        self._send_head(answer, status, {"Content-Length": str(len(body)), **headers})
        self.wfile.write(body)

    def _send_parts(self, answer: Answer, parts: Any) -> None:
        """A download: if it fails half-way, the connection ends without an end, and the browser says so."""
        is_chunked = self.request_version >= "HTTP/1.1"
        self._send_head(answer, answer.status, {"Transfer-Encoding": "chunked"} if is_chunked else {})
        try:
            for part in itertools.chain([answer.body], parts):
                self._send_part(part, is_chunked)
        except Exception:  # of any kind: the data may be a user's own
            return
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send_part(self, part: bytes, is_chunked: bool) -> None:
        if part:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)

    def _send_head(self, answer: Answer, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", answer.type)
        self.send_header("Connection", "close")
        if status == 405:
            self.send_header("Allow", "GET")
        if answer.file_name:
            self.send_header("Content-Disposition", f'attachment; filename="{answer.file_name}"')
        is_sound = answer.type.startswith("audio/")
        policy = _POLICY if answer.type == HTML else _OF_SOUND if is_sound else _OF_FILES
        for name, value in {**headers, **_HEADERS, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        self.end_headers()

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
