"""Pages of the live view about rows: orders, layouts, columns, downloads, differences of versions."""

from __future__ import annotations

import csv
import datetime as dt
import http.client
import io
import json
import re
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import numpy.typing as npt
import pytest
from own import Made
from PIL import Image
from viewing import Answered, ask, links

import torchyoga as yoga
from torchyoga.tools.view.shelf import Shelf

CLASSES = ["cat", "dog", "eel"]
START = dt.datetime(2024, 2, 28, tzinfo=dt.timezone.utc)
HOSTILE = '"><script>alert(1)</script>\u202egpj,=1+1\n'


def _row(n: int) -> dict[str, Any]:
    return {
        "image": np.full((16, 16), n % 256, np.uint8),
        "label": n % 3,
        "score": float("nan") if n % 10 == 9 else (n * 7 % 300) / 4,
        "when": START + dt.timedelta(hours=n),
        "name": f"n{n:03}" if n else HOSTILE,
        "box": (n, -n),
        "maybe": None if n % 4 == 0 else n,
        "data": bytes([n % 256, 255]),
        "id": n,
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> yoga.Storage:
    storage = yoga.Storage(tmp_path_factory.mktemp("pages"))
    schema = yoga.Schema.of(_row(1), nullable=["maybe"])
    given: dict[str, Any] = {"schema": schema, "info": {"classes": CLASSES}, "progress": False}
    rows = [_row(n) for n in range(300)]
    storage.submit(rows, "pets", "1.0", **given)
    changed = [{**row, "label": 2} if row["id"] in (7, 70) else row for row in rows if row["id"] != 9]
    storage.submit([*changed, _row(1000)], "pets", "1.1", **given)
    wide = {f"c{n:03}": np.arange(20) + n for n in range(450)}
    storage.submit({**wide, "名 <b>": np.arange(20)}, "wide", "1.0", progress=False)
    storage.submit([{"x": 1}], "one", "1.0", progress=False)
    return storage


@pytest.fixture(scope="module")
def shown(storage: yoga.Storage) -> Iterator[str]:
    with yoga.view(storage) as found:
        yield found.url


def numbers(page: Answered) -> list[int]:
    """The numbers of the rows of a table."""
    found = re.findall(r'<th scope="row" class="n"><a[^>]*>([0-9,]+)</a>', page.body.decode())
    return [int(one.replace(",", "")) for one in found]


PETS = "rows?id=pets&version=1.0"


def test_heads_of_columns_say_what_is_in_them(shown: str) -> None:
    page = ask(shown + PETS)
    assert "Statistics of all 300 rows, made when the version was built." in page.text
    for said in (
        "Histogram of score: 270 values, from 0 to 74.75",
        "30 NaN",
        "75 nulls",
        "3 distinct, most 0 cat (33.3%)",
        "2024-02-28T00:00:00",
        "lengths of data: 300 rows",
    ):
        assert said in page.text
    assert "2024-02-28T01:00:00+00:00" in page.text
    assert "datetime.datetime" not in page.text
    assert "1 dog" in page.text
    assert "1 dog" not in ask(shown + "rows?id=one&version=1.0").text


def test_heads_of_data_without_kept_statistics() -> None:
    with yoga.view(yoga.from_arrays({"x": np.arange(50), "y": np.ones(50)})) as found:
        page = ask(found.url)
    assert "Statistics of all 50 rows, counted for this page." in page.text
    assert "Histogram of x: 50 values, from 0 to 49" in page.text


def test_text_of_few_values_lists_and_none_among_numbers_are_shown_as_what_they_are(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    rows = [
        {"side": "left" if n % 4 else "right", "tokens": np.arange(n % 7 + 1), "age": n if n % 2 else None}
        for n in range(120)
    ]
    schema = yoga.Schema.of(rows[1], ragged=["tokens"], nullable=["age"])
    storage.submit(rows, "d", "1", schema=schema, progress=False)
    with yoga.view(storage) as found:
        page = ask(found.url + "rows?id=d&version=1")
    text = page.body.decode()
    assert "left (75.0%) · right (25.0%)" in page.text
    assert "lengths of side" not in text
    assert "lengths of tokens: 120 rows" in text
    assert "Histogram of tokens" not in text
    assert re.search(r'<th scope="col" class="head n">\s*<a[^>]*><bdi>age</bdi>', text)
    assert '<td class="n"><bdi>None</bdi></td>' in text
    table = text.index('aria-label="Table of rows"')
    assert (
        text.index('aria-label="Pages of rows, above them"')
        < table
        < text.index('aria-label="Pages of rows"')
    )
    box = re.search(r'<div class="([^"]*)" role="region" aria-label="Table of rows"', text)
    assert box is not None
    assert (
        "free" not in box[1].split()
    )  # a box that scrolls, so that its head, which is sticky, stays in sight
    assert "tall" in box[1].split()


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("sort=score", [0, 43, 86]),
        ("sort=score&order=descending", [257, 214, 171]),
        ("sort=name&order=descending", [299, 298, 297]),
        ("sort=when", [0, 1, 2]),
        ("sort=label&where=id+%3E+10", [12, 15, 18]),
        ("sort=label&order=descending&where=maybe+%3D+none", [8, 20, 32]),
        ("sort=maybe", [1, 2, 3]),
        ("sort=box%2F1&start=3", [296, 295, 294]),
    ],
)
def test_rows_are_sorted(shown: str, query: str, first: list[int]) -> None:
    page = ask(f"{shown}{PETS}&{query}")
    assert page.status == 200
    assert numbers(page)[:3] == first
    assert f"Row {first[0]}" in ask(shown + links(page, "row?")[0]).text
    assert "Sorted by" in page.text


def test_a_click_sorts_and_pages_keep_the_order(shown: str) -> None:
    page = ask(shown + PETS)
    for order, first in ((None, 0), ("ascending", 0), ("descending", 257), (None, 0)):
        assert numbers(page)[0] == first
        heads = re.findall(r'<th scope="col"[^>]*aria-sort="(\w+)"', page.body.decode())
        assert heads == ([] if order is None else [order])
        (link,) = re.findall(r'<th scope="col"[^>]*>\s*<a href="([^"]*)"><bdi>score', page.body.decode())
        if order == "descending":
            following = ask(shown + next(one for one in links(page, "rows?") if "start=50" in one))
            assert len({*numbers(page), *numbers(following)}) == 100
        page = ask(shown + link.replace("&amp;", "&"))


@pytest.mark.parametrize(
    "name", ["image", "data", "nothing", "box", "__import__('os')", "maybe{valid}", HOSTILE]
)
def test_what_cannot_be_sorted_by_is_said(shown: str, name: str) -> None:
    page = ask(f"{shown}{PETS}&sort={quote(name)}")
    assert page.status == 400
    assert "to sort by" in page.text
    assert b"<script>" not in page.body


def test_random_rows_are_drawn_anew(shown: str) -> None:
    page = ask(shown + PETS)
    seen = []
    for _ in range(3):
        page = ask(shown + next(one for one in links(page, "rows?") if "draw=" in one))
        assert "50 of 300 rows, drawn at random." in page.text
        assert numbers(page) == sorted({*numbers(page)})
        seen.append(tuple(numbers(page)))
    assert len({*seen}) == 3
    again = f"{shown}{PETS}&draw=5"
    assert numbers(ask(again)) == numbers(ask(again))
    found = ask(f"{shown}{PETS}&draw=5&where=label+%3D+1")
    assert {n % 3 for n in numbers(found)} == {1}
    assert ask(f"{shown}{PETS}&draw=x").status == 400


@pytest.mark.parametrize(
    ("size", "count", "side"), [("small", 120, 96), ("medium", 60, 192), ("large", 24, 384)]
)
def test_images_are_laid_out_in_a_grid(shown: str, size: str, count: int, side: int) -> None:
    page = ask(f"{shown}{PETS}&size={size}&where=label+%3D+1")
    assert page.text.count("<img ") == min(count, 100)
    assert 'title="label"><bdi>dog</bdi>' in page.text
    (first, *_) = re.findall(r'<img src="([^"]*)"', page.text)
    small = ask(shown + first)
    assert small.headers["content-type"] in ("image/png", "image/jpeg")
    assert max(Image.open(io.BytesIO(small.body)).size) <= side
    assert f"size={size}" in next(one for one in links(page, "rows?") if "start=" in one or "label" in one)


def test_grids_that_are_none(shown: str) -> None:
    assert "found 'huge'" in ask(f"{shown}{PETS}&size=huge").text
    assert ask(f"{shown}file?id=pets&version=1.0&row=0&name=image&size=9999").status == 400
    assert "'label' holds no images; image do" in ask(f"{shown}{PETS}&size=small&image=label").text
    assert ask(f"{shown}rows?id=one&version=1.0&size=small").status == 404


def test_columns_beyond_the_first_page(shown: str) -> None:
    wide = f"{shown}rows?id=wide&version=1.0"
    page = ask(wide)
    assert "Columns 0 to 199 of 451." in page.text
    page = ask(shown + next(one for one in links(page, "rows?") if "first=200" in one))
    assert "Columns 200 to 399 of 451." in page.text
    assert "Histogram of c200" in page.text
    assert "Histogram of c199" not in page.text
    assert "Columns 400 to 450 of 451." in ask(f"{wide}&first=400").text
    for sought, first in (("c317", 317), ("C31", 310), ("名", 450)):
        assert f"Columns {first} to" in ask(f"{wide}&find={quote(sought)}").text
    assert ask(f"{wide}&find=nothing").status == 404
    assert ask(f"{wide}&first=451").status == 404
    assert ask(f"{wide}&first=-1").status == 400
    row = ask(f"{shown}row?id=wide&version=1.0&row=3")
    assert "名 <b>" in row.text
    assert b"<b>" not in row.body
    assert "453" in ask(f"{shown}value?id=wide&version=1.0&row=19&name=c434").text
    assert "19" in ask(f"{shown}value?id=wide&version=1.0&row=19&name={quote('名 <b>')}").text


def test_columns_of_tuples_keep_their_numbers() -> None:
    tuples = Made(
        4, lambda row: tuple(range(row, row + 300)), yoga.Schema.of(tuple(range(300))), row_bytes=2400
    )
    with yoga.view(tuples) as found:
        page = ask(f"{found.url}rows?first=200")
        assert "<bdi>250</bdi></a>" in page.text
        assert ask(f"{found.url}value?row=3&name=250").text.count("253") == 1


def test_a_manifest_is_parsed_once_and_changes_are_seen(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit([{"x": 1}], "a", "1", progress=False)
    shelf = Shelf(storage)
    first = shelf.opened("a", "1")
    assert shelf.opened("a", "1") is first
    storage.submit([{"x": 2}], "a", "1", overwrite=True, progress=False)
    second = shelf.opened("a", "1")
    assert second is not first
    assert int(second.ref[0]["x"]) == 2
    storage.remove("a", "1")
    with pytest.raises(yoga.errors.NotFoundError):
        shelf.opened("a", "1")


# -- downloads


def down(shown: str, kind: str, more: str = "") -> Answered:
    return ask(f"{shown}download?id=pets&version=1.0&format={kind}{more}")


def test_downloads_have_all_that_is_in_rows(shown: str, storage: yoga.Storage) -> None:
    found = down(shown, "json")
    assert found.headers["content-disposition"] == 'attachment; filename="pets-1.0.json"'
    assert found.headers["transfer-encoding"] == "chunked"
    rows = json.loads(found.body)
    assert len(rows) == 300
    assert rows[0]["name"] == HOSTILE
    assert rows[9]["score"] == "NaN"
    assert rows[3] | {"image": 0} == {
        "image": 0,
        "label": 0,
        "score": 5.25,
        "when": "2024-02-28T03:00:00+00:00",
        "name": "n003",
        "box": [3, -3],
        "maybe": 3,
        "data": "A/8=",
        "id": 3,
    }
    assert rows[3]["image"] == [[3] * 16] * 16
    table = list(csv.DictReader(io.StringIO(down(shown, "csv").body.decode(), newline="")))
    assert [row["id"] for row in table] == [str(n) for n in range(300)]
    assert table[0]["name"] == HOSTILE
    assert table[3] | {"image": ""} == {
        "image": "",
        "label": "0",
        "score": "5.25",
        "when": "2024-02-28T03:00:00+00:00",
        "name": "n003",
        "box/0": "3",
        "box/1": "-3",
        "maybe": "3",
        "data": "A/8=",
        "id": "3",
    }
    assert table[0]["maybe"] == ""


def test_a_parquet_download_is_the_dataset(shown: str, storage: yoga.Storage, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    found = down(shown, "parquet", "&where=label+%3D+dog&sort=score&order=descending")
    path = tmp_path / "found.parquet"
    path.write_bytes(found.body)
    ref = yoga.from_parquet(path)
    wanted = (
        storage.fetch("pets", "1.0")
        .where("label", lambda label: label == 1)
        .order_by("score", descending=True)
    )
    assert [int(row["id"]) for row in ref] == [int(row["id"]) for row in wanted]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_downloads_are_of_the_rows_that_are_found(shown: str, kind: str) -> None:
    found = down(shown, kind, "&where=label+in+(dog,+2)+and+id+%3C+9&sort=id&order=descending")
    ids = (
        [row["id"] for row in json.loads(found.body)]
        if kind == "json"
        else [int(row["id"]) for row in csv.DictReader(io.StringIO(found.text, newline=""))]
    )
    assert ids == [8, 7, 5, 4, 2, 1]
    none = down(shown, kind, "&where=id+%3E+999")
    assert json.loads(none.body) == [] if kind == "json" else len(none.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ("&format=exe", 400, "found 'exe'"),
        ("", 400, "csv, json, parquet"),
        ("&format=csv&where=label+%3D+Ankle+boot", 400, "cannot be compared"),
        ("&format=csv&sort=image", 400, "to sort by"),
        ("&format=json&where=" + "(" * 900, 400, "parentheses"),
    ],
)
def test_downloads_that_are_none(shown: str, more: str, status: int, said: str) -> None:
    found = ask(f"{shown}download?id=pets&version=1.0{more}")
    assert (found.status, said in found.text) == (status, True)
    assert "content-disposition" not in found.headers


def test_names_of_downloads_are_plain(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    odd = '../"\r\nX: y'
    storage.submit([{"x": 1}], odd, "1", progress=False)
    with yoga.view(storage) as found:
        page = ask(f"{found.url}download?id={quote(odd, safe='')}&version=1&format=csv")
    assert page.headers["content-disposition"] == 'attachment; filename="X_y-1.csv"'
    assert "x" not in page.headers


class Breaking(yoga.DataRef[Any]):
    """Rows of which one far away cannot be read; it counts those that are held at once."""

    schema = None
    row_bytes = 2**16

    def __init__(self, bad: int) -> None:
        self.bad, self.most = bad, 0

    def __len__(self) -> int:
        return 3000

    def take(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        self.most = max(self.most, len(rows))
        if self.bad in rows.tolist():
            raise RuntimeError("the disk is gone")
        return [{"n": int(row), "text": "x" * 2**16} for row in rows]


def test_a_download_that_fails_half_way_does_not_look_whole() -> None:
    with yoga.view(Breaking(2500)) as found:
        with pytest.raises(http.client.IncompleteRead):
            ask(f"{found.url}download?format=json")
        assert ask(found.url).status == 200
    with yoga.view(Breaking(0)) as found:
        page = ask(f"{found.url}download?format=json")
        assert (page.status, "the disk is gone" in page.text) == (500, True)


def test_downloads_hold_little_at_once() -> None:
    """The client takes nothing, so the server makes no more than sockets hold."""
    ref = Breaking(-1)
    with yoga.view(ref) as found:
        parts = urlsplit(found.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        connection.request("GET", f"{parts.path}download?format=json")
        answer = connection.getresponse()
        size = sum(len(part) for part in iter(lambda: answer.read(2**20), b""))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        connection.close()
    assert size > 3000 * 2**16
    assert ref.most * ref.row_bytes <= 2**23
    assert (after - before) * 1024 < size / 2


# -- differences


def test_differences_by_key(shown: str) -> None:
    page = ask(f"{shown}diff?id=pets&old=1.0&new=1.1&key=id")
    assert "300 rows -> 300 rows: 1 added, 1 removed, 2 changed, 297 unchanged." in page.text
    text = re.sub(r"(<[^>]*>|\s)+", " ", page.body.decode())
    assert "before: 1 dog after: 2 eel" in text
    (added,) = [one for one in links(page, "row?") if "version=1.1&row=299" in one]
    assert "1000" in ask(shown + added).text
    assert any("version=1.0&row=9" in one for one in links(page, "row?"))


def test_differences_of_whole_rows_and_none(shown: str) -> None:
    page = ask(f"{shown}diff?id=pets&old=1.0&new=1.1")
    assert "3 added, 3 removed, 297 unchanged" in page.text
    same = ask(f"{shown}diff?id=pets&old=1.0&new=1.0")
    assert "Both have the same columns and the same rows." in same.text
    versions = ask(f"{shown}versions?id=pets")
    assert '<form action="diff"' in versions.text


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("old=1.0&new=9", 404, "9"),
        ("old=1.0", 400, "names no new"),
        ("old=1.0&new=1.1&key=nothing", 400, "no column 'nothing'"),
        ("old=1.0&new=1.1&key=label", 400, "label"),
        ("old=..%2F..&new=1.1", 404, ".."),
        ("old=1.0&new=1.1&key=id&changed=x", 400, "a number from 0 on"),
        ("old=1.0&new=1.1&key=id&changed=999999", 200, "changed"),
    ],
)
def test_differences_that_are_none(shown: str, query: str, status: int, said: str) -> None:
    page = ask(f"{shown}diff?id=pets&{query}")
    assert (page.status, said in page.text) == (status, True)
    assert "Traceback" not in page.text


def test_differences_write_nothing(tmp_path: Path) -> None:
    """A comparison would else keep the hashes of rows of large versions beside them."""
    storage = yoga.Storage(tmp_path)
    for version in ("1", "2"):
        storage.submit({"x": np.arange(20_000) + int(version)}, "a", version, progress=False)
    before = sorted(tmp_path.rglob("*"))
    with yoga.view(storage) as found:
        until = time.monotonic() + 60
        page = ask(f"{found.url}diff?id=a&old=1&new=2")
        while "being compared" in page.text and time.monotonic() < until:
            assert 'http-equiv="refresh"' in page.text
            page = ask(f"{found.url}diff?id=a&old=1&new=2")
    assert "1 added, 1 removed" in page.text
    assert sorted(tmp_path.rglob("*")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "torchyoga diff"]
