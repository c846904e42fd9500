"""The server of the live view among slow, silent and hostile clients. Real connections on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from commanding import ENVIRONMENT, hears_ctrl_c
from own import Made
from viewing import ask
from waiting import eventually

import torchyoga as yoga

WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(2000)


@pytest.fixture(scope="module")
def shown() -> Iterator[str]:
    # The text is long, so that a page of them is more than sockets hold.
    ready = Made(40, lambda row: {"n": row, "text": "x" * 300_000, "sound": WAV}, row_bytes=8)
    with yoga.view(ready) as found:
        yield found.url


@contextlib.contextmanager
def clients(url: str, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Clients that have connected and sent something, and say no more."""
    port = urlsplit(url).port or 0
    found: list[socket.socket] = []
    try:
        for _ in range(count):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            with contextlib.suppress(ConnectionError):  # it is one too many
                found[-1].sendall(sent)
        yield found
    finally:
        for one in found:
            one.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", b"\x00"])
def test_silent_clients_keep_no_page_from_loading(shown: str, sent: bytes) -> None:
    with clients(shown, 400, sent):
        for _ in range(3):
            assert ask(shown).status == 200
    assert ask(shown).status == 200


def test_clients_without_number_leave_files_to_the_program(shown: str) -> None:
    before = threading.active_count()
    with clients(shown, 700):
        eventually(lambda: threading.active_count() - before >= 400)
        assert threading.active_count() - before <= 512
    eventually(lambda: threading.active_count() == before)
    assert ask(shown).status == 200


def test_clients_that_take_nothing_keep_no_page_from_loading(shown: str) -> None:
    parts = urlsplit(shown)
    sent = f"GET {parts.path}file?row=0&name=text HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    with clients(shown, 80, sent):
        assert ask(shown).status == 200


def test_parts_of_sound_are_sent_as_players_ask(shown: str) -> None:
    whole = ask(f"{shown}file?row=0&name=sound")
    assert (whole.status, whole.body, whole.headers["accept-ranges"]) == (200, WAV, "bytes")
    # The browser's own player is a page that loads its file, and has a style.
    assert whole.headers["content-security-policy"].startswith("default-src 'none'; media-src 'self'")
    for asked, first, stop in (
        ("bytes=5-9", 5, 10),
        ("bytes=2000-", 2000, len(WAV)),
        ("bytes=-7", len(WAV) - 7, len(WAV)),
    ):
        found = ask(f"{shown}file?row=0&name=sound", Range=asked)
        assert (found.status, found.body) == (206, WAV[first:stop])
        assert found.headers["content-range"] == f"bytes {first}-{stop - 1}/{len(WAV)}"
    for asked in ("bytes=9-5", "bytes=-", "bytes=99999-", "rows=1-2", "bytes=1-2,4-5", "bytes=-0"):
        assert ask(f"{shown}file?row=0&name=sound", Range=asked).status == 200


@pytest.mark.rest
def test_the_token_is_on_no_command_line(tmp_path: Path) -> None:
    """A browser that notes its arguments, and what is in the file that it is given."""
    noted, browser = tmp_path / "noted", tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\n"
        "import os, stat, sys, pathlib, urllib.request\n"
        "path = urllib.request.url2pathname(sys.argv[1].removeprefix('file://'))\n"
        "mode = stat.S_IMODE(os.stat(path).st_mode)\n"
        f"part = pathlib.Path({str(noted)!r} + '.part')\n"
        "part.write_text(f'{sys.argv[1:]}\\n{mode:o}\\n{path}\\n' + pathlib.Path(path).read_text())\n"
        f"part.rename({str(noted)!r})\n"
    )
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    storage = yoga.Storage(tmp_path / "storage")
    storage.submit([{"x": 1}], "a", "1", progress=False)
    command = [sys.executable, "-m", "torchyoga", "view", "--storage", storage.url, "--open"]
    run: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hears_ctrl_c}
    environment = {**os.environ, **ENVIRONMENT, "BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, text=True, env=environment, **run) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        until = time.monotonic() + 60
        while not noted.exists() and time.monotonic() < until:
            time.sleep(0.02)
        arguments, mode, path, *page = noted.read_text().splitlines()
        assert ask(url).status == 200
        process.send_signal(2)
        process.communicate()
    token = urlsplit(url).path.strip("/")
    assert len(token) > 20
    assert token not in arguments
    assert mode == "600"
    assert f'content="0; url={url}"' in "\n".join(page)
    assert not os.path.exists(path)
