"""An HTTP proxy in front of one server, which disturbs requests as ordered.

proxy.py ENDPOINT: prints its port. Then each line of standard input is an order in JSON, answered by a line:
orders are the properties and methods of `servers.Proxy`. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import sys
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

Fault = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
CODES = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
IN_BODY = ("cut body", "flip", "slow")
BLOCK = 1 << 16


class Cut(Exception):
    """The connection to the client ends here, whatever it waits for."""


class Proxy:
    """Reads a request whole, asks the server by a connection of its own, and passes its answer on."""

    def __init__(self, endpoint: str) -> None:
        self.host, self.port = urlsplit(endpoint).hostname, urlsplit(endpoint).port
        self.faults: list[Fault] = []
        self.chances = random.Random(0)
        self.requests: list[dict[str, Any]] = []
        self.clients: set[asyncio.StreamWriter] = set()
        # Holds the port while nothing listens on it, so that no other process takes it.
        self.place = self.socket(0)
        self.server: asyncio.Server | None = None

    def socket(self, port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    async def up(self) -> None:
        if self.server is None:
            bound = self.socket(self.place.getsockname()[1])
            self.server = await asyncio.start_server(self.client, sock=bound, limit=1 << 20)

    async def down(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        for client in list(self.clients):
            client.transport.abort()

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        try:
            while await self.exchange(reader, writer):
                pass
        except (Cut, asyncio.IncompleteReadError, OSError):
            writer.transport.abort()
        finally:
            self.clients.discard(writer)
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request; returns whether the connection can serve another."""
        start, headers = await head(reader)
        method, target, _ = start.decode("latin-1").split(" ")
        path, _, query = target.partition("?")
        seen: dict[str, Any] = {"method": method, "path": unquote(path), "query": query}
        seen |= {"status": None, "received": 0, "sent": 0, "fault": None}
        seen["agent"] = (find(headers, b"user-agent") or b"").decode("latin-1")
        seen["is_signed"] = find(headers, b"authorization") is not None
        seen["has_token"] = find(headers, b"x-amz-security-token") is not None
        self.requests.append(seen)
        fault = self.fault(method, target)
        kind = seen["fault"] = fault["kind"] if fault else None
        if kind == "refuse":
            raise Cut
        if find(headers, b"expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        limit = fault["bytes"] if fault and kind == "cut upload" else None
        body = await self.body(reader, headers, seen, limit)
        if kind == "timeout":
            await reader.read()  # until the client gives up
            raise Cut
        if fault and kind == "status":
            return await self.refusal(writer, fault, seen)
        return await self.forward(start, headers, body, writer, fault, seen)

    def fault(self, method: str, target: str) -> Fault | None:
        """The first fault that matches and is not used up."""
        for fault in self.faults:
            meant = fault["method"] in (None, method) and re.search(fault["path"], unquote(target))
            if not meant or fault["times"] == 0 or (method == "HEAD" and fault["kind"] in IN_BODY):
                continue
            if fault["after"]:
                fault["after"] -= 1
                continue
            fault["met"] = fault.get("met", 0) + 1
            if fault["met"] % fault["every"] or self.chances.random() >= fault["chance"]:
                continue
            if fault["times"] is not None:
                fault["times"] -= 1
            return fault
        return None

    async def body(
        self, reader: asyncio.StreamReader, headers: Headers, seen: dict[str, Any], limit: int | None
    ) -> bytes:
        """The body as it came, in chunks if it was sent in chunks; up to the limit, at which the connection
        is cut."""
        parts = []
        async for part in content(reader, headers):
            parts.append(part)
            seen["received"] += len(part)
            if limit is not None and seen["received"] >= limit:
                raise Cut
        if limit is not None:
            raise Cut
        return b"".join(parts)

    async def refusal(self, writer: asyncio.StreamWriter, fault: Fault, seen: dict[str, Any]) -> bool:
        code = fault["code"] or CODES.get(fault["status"], "InternalError")
        text = f"<Error><Code>{code}</Code><Message>{code}, as told</Message></Error>".encode()
        text = b"" if seen["method"] == "HEAD" else b'<?xml version="1.0" encoding="UTF-8"?>\n' + text
        writer.write(f"HTTP/1.1 {fault['status']} {code}\r\nContent-Type: application/xml\r\n".encode())
        writer.write(f"Retry-After: 1\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        await writer.drain()
        seen |= {"status": fault["status"], "sent": len(text)}
        return True

    async def forward(
        self,
        start: bytes,
        headers: Headers,
        body: bytes,
        client: asyncio.StreamWriter,
        fault: Fault | None,
        seen: dict[str, Any],
    ) -> bool:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            # Some servers do other things under a name that is not their own.
            own = b"%s\r\nHost: %s:%d\r\n" % (start, str(self.host).encode(), self.port)
            writer.write(own + lines(headers, without=(b"expect", b"connection", b"host")))
            writer.write(b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            status, answer = await head(reader)
            if fault and fault["kind"] == "lost reply":
                await reader.read()
                raise Cut
            seen["status"] = int(status.split()[1])
            has_body = seen["method"] != "HEAD" and seen["status"] not in (204, 304)
            is_framed = not has_body or find(answer, b"content-length") is not None
            first = b"HTTP/1.1 %s\r\n" % status.split(b" ", 1)[1]
            ending = b"\r\n" if is_framed else b"Connection: close\r\n\r\n"
            client.write(first + lines(answer, without=(b"connection", b"keep-alive")) + ending)
            await client.drain()
            while has_body and (block := await reader.read(BLOCK)):
                await self.send(client, block, fault, seen)
            return is_framed
        finally:
            writer.transport.abort()

    async def send(
        self, client: asyncio.StreamWriter, block: bytes, fault: Fault | None, seen: dict[str, Any]
    ) -> None:
        kind, sent = (fault["kind"], seen["sent"]) if fault else (None, 0)
        if fault and kind == "flip" and sent <= fault["bytes"] < sent + len(block):
            at = fault["bytes"] - sent
            block = block[:at] + bytes([block[at] ^ 1]) + block[at + 1 :]
        if fault and kind == "cut body":
            block = block[: fault["bytes"] - sent]
        # The bytes of a tenth of a second at a time; without a limit all at once.
        step = max(1, fault["bytes"] // 10) if fault and kind == "slow" else len(block) or 1
        for at in range(0, len(block), step):
            client.write(block[at : at + step])
            await client.drain()
            seen["sent"] += len(block[at : at + step])
            if kind == "slow":
                await asyncio.sleep(0.1)
        if fault and kind == "cut body" and seen["sent"] >= fault["bytes"]:
            # Everything written must arrive: the connection is closed properly, but before the announced
            # length.
            client.close()
            await client.wait_closed()
            raise Cut

    async def obey(self, order: dict[str, Any]) -> Any:
        match order["do"]:
            case "faults":
                self.faults = order["faults"]
            case "requests":
                return self.requests
            case "clear":
                self.requests = []
            case "down":
                await self.down()
            case "up":
                await self.up()
        return None


async def head(reader: asyncio.StreamReader) -> tuple[bytes, Headers]:
    """The first line, and the headers."""
    start, *rest = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    return start, [(name, value.strip()) for name, _, value in (line.partition(b":") for line in rest)]


def find(headers: Headers, name: bytes) -> bytes | None:
    return next((value for found, value in headers if found.lower() == name), None)


def lines(headers: Headers, without: Iterable[bytes]) -> bytes:
    return b"".join(b"%s: %s\r\n" % pair for pair in headers if pair[0].lower() not in without)


async def content(reader: asyncio.StreamReader, headers: Headers) -> Any:
    """Yields the body as it is on the wire."""
    if (find(headers, b"transfer-encoding") or b"").lower() == b"chunked":
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            yield line
            if not size:
                break
            yield await reader.readexactly(size + 2)
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            yield line
        yield line
        return
    left = int(find(headers, b"content-length") or 0)
    while left:
        part = await reader.read(min(left, BLOCK))
        if not part:
            raise Cut
        left -= len(part)
        yield part


async def main() -> None:
    proxy = Proxy(sys.argv[1])
    await proxy.up()
    print(proxy.place.getsockname()[1], flush=True)
    orders = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    while line := await orders.readline():
        print(json.dumps(await proxy.obey(json.loads(line))), flush=True)


asyncio.run(main())
