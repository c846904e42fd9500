"""The path or URL that a user passes for a storage -> whether it is a URL, and else the directory."""

from __future__ import annotations

import re
from pathlib import Path


def is_url(text: str) -> bool:
    """True for a URL, False for a directory of this machine."""
    return "://" in text and not text.lower().startswith(("file://", "local://"))


def directory_of(text: str) -> Path:
    """The directory of a path, or of a URL of one as `Path.as_uri` and RFC 8089 write it.

    Raises:
        ValueError: it is a URL of another machine, or looks like a URL but is not one.

    Example:
        >>> directory_of("file:///data/storage").as_posix()
        '/data/storage'
    """
    scheme, _, rest = text.partition(":")
    if scheme.lower() in ("file", "local") and rest.startswith("/"):
        from urllib.request import url2pathname  # 20 ms, with all of HTTP

        host, _, below = rest[2:].partition("/")
        if not rest.startswith("//"):
            return Path(url2pathname(rest)).absolute()
        if host in ("", "localhost"):
            return Path(url2pathname(f"/{below}")).absolute()
        if host == "~":
            return Path(url2pathname(rest[2:])).expanduser().absolute()
        raise ValueError(f"{text!r} names a host, {host!r}; a file of this machine is file:///{rest[2:]}")
    if not text or re.match(r"(file|local):|[A-Za-z][A-Za-z0-9+.-]+:/", text, re.IGNORECASE):
        raise ValueError(
            f"{text!r} is neither a directory nor a URL; a URL has two slashes, as in s3://bucket, or three, "
            "as in file:///home/me"
        )
    return Path(text).expanduser().absolute()
