"""The live view: what it shows, whom it answers, and how it ends. Real connections on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from coding.decoders import file_of
from commanding import ENVIRONMENT, hears_ctrl_c, run
from own import Made
from viewing import ask, links
from waiting import eventually

import torchyoga as yoga
from torchyoga.tools.view import shelf as rows_room
from torchyoga.tools.view.filter import Filter

HOSTILE = "</script><img src=x onerror=alert(1)>\u202egpj"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> yoga.Storage:
    folder = tmp_path_factory.mktemp("view")
    storage = yoga.Storage(folder)
    file = file_of(np.full((20, 30, 3), 200, np.uint8))
    rows = [
        {
            "image": np.full((28, 28), n % 256, np.uint8),
            "jpeg": file if n % 2 else b"no image",
            "label": n % 10,
            "text": f"row {n}",
            "score": n / 1000 if n % 7 else float("nan"),
        }
        for n in range(1000)
    ]
    storage.submit(rows[:990], "pets", "1.0", progress=False)
    storage.append(rows[990:], "pets", "1.1", after="1.0", progress=False)
    storage.tag("pets", "prod", "1.0")
    storage.submit([{HOSTILE: HOSTILE}], HOSTILE, "1.0", progress=False)
    storage.submit([], "none", "1.0", progress=False)
    return storage


def test_from_the_list_to_a_value(shown: str) -> None:
    start = ask(shown)
    assert (start.status, start.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "3 datasets" in start.text
    (of_pets,) = [link for link in links(start, "versions?") if "pets" in link]
    versions = ask(shown + of_pets)
    assert "1.1" in versions.text
    rows = ask(shown + "rows?id=pets&version=1.1")
    assert "Rows 0 to 49 of 1,000." in rows.text
    assert rows.text.count("<img ") == 50 + 25  # the arrays, and every second file
    row = ask(shown + links(rows, "row?")[2])
    assert "Row 1" in row.text
    assert "30 \N{MULTIPLICATION SIGN} 20 pixels, image/jpeg" in row.text
    last = ask(shown + links(rows, "rows?")[-1])
    assert "Rows 950 to 999 of 1,000." in last.text


def test_an_image_is_opened_as_it_is(shown: str, storage: yoga.Storage) -> None:
    found = ask(shown + "file?id=pets&version=1.0&row=1&name=jpeg")
    assert found.headers["content-type"] == "image/jpeg"
    assert found.body == storage.fetch("pets", "1.0")[1]["jpeg"]
    assert found.headers["content-security-policy"] == "default-src 'none'; sandbox"
    none = ask(shown + "file?id=pets&version=1.0&row=0&name=jpeg&side=192")
    assert none.status == 404
    assert "is not an image" in none.text
    text = ask(shown + "file?id=pets&version=1.0&row=0&name=jpeg")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text.endswith("no image")


@pytest.mark.parametrize(
    ("page", "status", "said"),
    [
        ("rows?id=none&version=1.0", 200, "There are no rows."),
        (
            "rows?id=pets&version=1.1&where=label+%3D+'Ankle+boot'",
            200,
            "'label' holds whole numbers, which cannot be compared with 'Ankle boot'",
        ),
        ("rows?id=pets&version=9", 404, "pets"),
        ("rows?id=dogs&version=1.0", 404, "dogs"),
        ("rows?id=pets&version=1.0&start=990", 404, "there is no row 990: there are 990"),
        ("rows?id=pets&version=1.0&start=-1", 400, "a number from 0 on"),
        ("rows?id=pets&version=1.0&start=9999999999999999999", 400, "at most 18 digits"),
        ("row?id=pets&version=1.0&row=999999999999999999", 404, "there is no row"),
        ("row?id=pets&version=1.0", 400, "row must be a number"),
        ("file?id=pets&version=1.0&row=0&name=99", 404, "99"),
        ("file?id=pets&version=1.0&row=0", 400, "names no name"),
        ("nothing", 404, "no such page"),
        ("../../etc/passwd", 404, "no such page"),
        ("rows?id=..%2F..%2Fetc&version=1", 404, "etc"),
        ("rows?" + "&".join(f"a{n}=1" for n in range(99)), 400, "not one of this server"),
    ],
)
def test_what_is_not_there_is_said(shown: str, page: str, status: int, said: str) -> None:
    found = ask(shown + page)
    assert found.status == status
    assert said in found.text
    assert "Traceback" not in found.text


def test_hostile_names_are_text(shown: str) -> None:
    start = ask(shown)
    for page in (start, ask(shown + next(one for one in links(start, "rows?") if "script" in one))):
        assert b"</script><img" not in page.body
        # Only a hidden field of a form, which nobody sees, has it as it is.
        assert "\u202e" not in re.sub(r'<input type="hidden"[^>]*>', "", page.body.decode())
        assert "</script><img src=x onerror=alert(1)>\\u202egpj" in page.text


def test_whom_it_answers(shown: str) -> None:
    """Requests without the token, of other sites, or by another name of this machine are turned away."""
    parts = urlsplit(shown)
    there, token = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    assert ask(f"{there}/").status == 403
    assert ask(f"{there}/{token[:-1]}/").status == 403
    assert ask(f"{there}/{token}").status == 403
    for page in ("rows?id=pets&version=1.0", "file?id=pets&version=1.0&row=1&name=jpeg"):
        assert ask(f"{there}/{page}").status == ask(f"{there}/wrong/{page}").status == 403
        assert ask(shown + page, Host="evil.example:80").status == 421
        assert ask(shown + page, Origin="http://evil.example").status == 403
    assert ask(shown, Host=f"localhost:{parts.port}").status == 200
    assert (
        ask(shown, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image").status
        == 403
    )
    assert ask(shown, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        found = ask(shown, method)
        assert (found.status, found.headers["allow"]) == (405, "GET")
    for found in (ask(shown), ask(f"{there}/")):
        assert token not in found.headers.get("location", "")
        assert found.headers["referrer-policy"] == "no-referrer"
        assert found.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert "unsafe" not in found.headers["content-security-policy"]


def test_it_listens_on_this_machine_only(shown: str) -> None:
    assert urlsplit(shown).hostname == "127.0.0.1"
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own, urlsplit(shown).port or 0), timeout=5)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"\x00\xff\x00\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(9999)) + b"\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_a_short_answer(shown: str, sent: bytes) -> None:
    parts = urlsplit(shown)
    with socket.create_connection(("127.0.0.1", parts.port or 0), timeout=20) as client:
        try:
            client.sendall(sent)
        except ConnectionError:
            return  # it has hung up already
        answer = b"".join(iter(lambda: _received(client), b""))
    assert len(answer) < 1000
    assert parts.path.strip("/").encode() not in answer
    assert ask(shown).status == 200


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(2**16)
    except ConnectionError:
        return b""


def test_thousands_of_columns() -> None:
    wide = Made(
        5,
        lambda _: {f"c{n:05}": float("nan") if n % 2 else b"\xff\xd8\xff broken" for n in range(3000)},
        row_bytes=100,
    )
    with yoga.view(wide) as shown:
        rows = ask(shown.url)
        assert rows.status == 200
        assert "The first 200 of 3,000 columns" in rows.text
        assert len(rows.body) < 600_000
        row = ask(shown.url + links(rows, "row?")[0])
        assert row.status == 200
        assert "The first 500 of 3,000 values" in row.text


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError, "RuntimeError"), (ValueError, "ValueError"), (yoga.errors.CorruptError, "It is damaged")],
)
def test_a_dataset_that_fails_is_a_page(error: type[Exception], said: str) -> None:
    def failing(row: int) -> dict[str, int]:
        if row == 9:  # not one of the first, which are looked at for images
            raise error("<b>the disk is gone</b>")
        return {"x": row}

    with yoga.view(Made(10, failing, row_bytes=8)) as shown:
        found = ask(shown.url)
    assert found.status == 500
    assert f"{said}: <b>the disk is gone</b>" in found.text
    assert b"<b>the disk" not in found.body


def test_a_filter_looks_at_rows_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def row(number: int) -> dict[str, int]:
        read.append(number)
        return {"n": number}

    ref = Made(10_000_000, row, yoga.Schema.of({"n": 1}), row_bytes=8)
    found, looked = Filter.of("n = -1", ref.schema).first(ref, 5, 50, seconds=0)
    assert not len(found)
    assert 5 < looked == 5 + len(read) < 20_000
    monkeypatch.setattr(rows_room, "_MOST_SECONDS", 0)
    with yoga.view(ref) as shown:
        page = ask(shown.url + "rows?where=n+%3D+-1")
        assert "There may be more further on." in page.text
        assert links(page, "rows?")


def test_closing_ends_its_threads_and_its_port(storage: yoga.Storage) -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    shown = yoga.view(storage)
    port = urlsplit(shown.url).port
    with pytest.raises(OSError, match="in use"):
        yoga.view(storage, port=port or 0)
    ask(shown.url)
    shown.close()
    eventually(lambda: set(threading.enumerate()) <= before)
    yoga.view(storage, port=port or 0).close()


def test_arguments(storage: yoga.Storage) -> None:
    with pytest.raises(TypeError, match="found list"):
        yoga.view([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="port"):
        yoga.view(storage, port=70000)


@pytest.mark.rest
def test_the_command_ends_with_ctrl_c(storage: yoga.Storage) -> None:
    command = [sys.executable, "-m", "torchyoga", "view", "pets@prod", "--storage", storage.url, "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hears_ctrl_c}
    environment = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            text = process.stdout.readline()
            while "}" not in text:
                text += process.stdout.readline()
            url = json.loads(text)["url"]
            assert "Rows 0 to 49 of 990." in ask(url).text
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert len(urlsplit(url).path.split("/")[1]) > 20


def test_the_command_says_what_is_wrong(storage: yoga.Storage, shown: str) -> None:
    port = str(urlsplit(shown).port)
    for arguments, said in (
        (("dogs", "-s", storage.url), "there is no dataset 'dogs'"),
        (("-s", "nowhere"), "nowhere"),
        ((storage.url, "-s", storage.url), "or a storage with --storage"),
        (("-s", storage.url, "--port", port), port),
        (("-s", storage.url, "--port", "70000"), "70000"),
    ):
        found = run("view", *arguments)
        assert found.exit_code == 2, found.output
        assert said in found.stderr
        assert len(found.stderr.strip().splitlines()) <= 4


# -- slow, silent and hostile clients


WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(2000)


@pytest.fixture(scope="module")
def sounding() -> Iterator[str]:
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
def test_silent_clients_keep_no_page_from_loading(sounding: str, sent: bytes) -> None:
    with clients(sounding, 400, sent):
        for _ in range(3):
            assert ask(sounding).status == 200
    assert ask(sounding).status == 200


def test_clients_without_number_leave_files_to_the_program(sounding: str) -> None:
    before = {*threading.enumerate()}  # of which some may end meanwhile
    with clients(sounding, 700):
        eventually(lambda: len({*threading.enumerate()} - before) >= 400)
        assert len({*threading.enumerate()} - before) <= 512
    eventually(lambda: not {*threading.enumerate()} - before)
    assert ask(sounding).status == 200


def test_clients_that_take_nothing_keep_no_page_from_loading(sounding: str) -> None:
    parts = urlsplit(sounding)
    sent = f"GET {parts.path}file?row=0&name=text HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    with clients(sounding, 80, sent):
        assert ask(sounding).status == 200


def test_parts_of_sound_are_sent_as_players_ask(sounding: str) -> None:
    whole = ask(f"{sounding}file?row=0&name=sound")
    assert (whole.status, whole.body, whole.headers["accept-ranges"]) == (200, WAV, "bytes")
    # The browser's own player is a page that loads its file, and has a style.
    assert whole.headers["content-security-policy"].startswith("default-src 'none'; media-src 'self'")
    for asked, first, stop in (
        ("bytes=5-9", 5, 10),
        ("bytes=2000-", 2000, len(WAV)),
        ("bytes=-7", len(WAV) - 7, len(WAV)),
    ):
        found = ask(f"{sounding}file?row=0&name=sound", Range=asked)
        assert (found.status, found.body) == (206, WAV[first:stop])
        assert found.headers["content-range"] == f"bytes {first}-{stop - 1}/{len(WAV)}"
    for asked in ("bytes=9-5", "bytes=-", "bytes=99999-", "rows=1-2", "bytes=1-2,4-5", "bytes=-0"):
        assert ask(f"{sounding}file?row=0&name=sound", Range=asked).status == 200
