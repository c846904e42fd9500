"""Requests to a live view, as a test sends them."""

from __future__ import annotations

import html
import http.client
import re
from typing import NamedTuple
from urllib.parse import urlsplit


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str
    body: bytes


def ask(url: str, method: str = "GET", **headers: str) -> Answered:
    """The answer to a request, sent to exactly this address."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), headers=given)
        found = connection.getresponse()
        body = found.read()
    finally:
        connection.close()
    kept = {name.lower(): value for name, value in found.getheaders()}
    return Answered(found.status, kept, html.unescape(body.decode("utf-8", "replace")), body)


def links(page: Answered, text: str) -> list[str]:
    """Where the links of a page lead that begin with a text."""
    found = re.findall(r'<a [^>]*href="([^"]*)"', page.body.decode())
    return [html.unescape(one) for one in found if one.startswith(text)]
