"""Pages of the live view about rows: orders, layouts, columns."""

from __future__ import annotations

import datetime as dt
import html
import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from own import Made, Own
from PIL import Image
from viewing import Answered, ask, links

import torchyoga as yoga
from torchyoga.tools.view import shelf
from torchyoga.tools.view.filter import Filter
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
    wide = {f"c{n:03}": np.arange(20) + n for n in range(450)}
    storage.submit({**wide, "名 <b>": np.arange(20)}, "wide", "1.0", progress=False)
    storage.submit([{"x": 1}], "one", "1.0", progress=False)
    return storage


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
        "2024-02-28T00:00:00",
        "share of dog",
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


def test_each_bar_and_each_class_is_a_link_to_its_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    rows = [
        {"score": float(x), "n": int(10 * x), "label": n % 3, "the side": ("a b", 'c"d')[n % 2], "new": n > 5}
        for n, x in enumerate(draw.normal(size=40))
    ]
    storage = yoga.Storage(tmp_path)
    storage.submit(rows, "d", "1", info={"classes": ["cat", "dog", "eel"]}, progress=False)
    found: dict[str, int] = {"bar": 0, "value": 0}
    with yoga.view(storage) as shown:
        text = ask(shown.url + "rows?id=d&version=1").body.decode()
        bars = re.findall(r'<a href="([^"]+)" tabindex="-1" aria-label="[^"]*: ([\d,]+)"', text)
        values = re.findall(r'<li><a href="([^"]+)"><bdi>.*?</meter> (\d+)%', text)
        for kind, link, wanted in [
            *(("bar", link, int(count)) for link, count in bars),
            *(("value", link, round(int(percent) * 40 / 100)) for link, percent in values),
        ]:
            page = ask(shown.url + html.unescape(link)).body.decode()
            assert f">{wanted} row{'s' * (wanted != 1)} found; looked at 40 of 40" in page, (link, wanted)
            found[kind] += wanted
    assert found == {"bar": 2 * 40, "value": 3 * 40}


def test_contains_alone_looks_in_every_text(tmp_path: Path) -> None:
    rows = [
        {"a": "one cat", "b": None, "n": 1},
        {"a": "two", "b": "A CAT", "n": 2},
        {"a": "x", "b": "y", "n": 3},
    ]
    ref = yoga.Storage(tmp_path).submit(rows, "d", "1", progress=False)
    for text, wanted in (("contains cat", [0, 1]), ("not contains cat", [2]), ("n > 1 and contains t", [1])):
        assert Filter.of(text, ref.schema).first(ref)[0].tolist() == wanted, text
    with pytest.raises(ValueError, match="no column of texts"):
        Filter.of("contains cat", yoga.from_arrays({"n": np.arange(3)}).schema)


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
    assert re.findall(r"<bdi>(left|right)</bdi></a> <meter value=\"([\d.]+)\"", text) == [
        ("left", "0.75"),
        ("right", "0.25"),
    ]
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


def test_orders_of_many_rows_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_MOST_PLACES", 25)
    opened = shelf.OpenRef(yoga.from_arrays({"a": np.arange(10)}))
    assert [opened.sorted("a", order)[0] for order in (False, True, False)] == [{"a": 0}, {"a": 9}, {"a": 0}]
    assert opened._order_by.cache_info().maxsize == 2


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


def test_images_are_laid_out_in_a_grid(shown: str) -> None:
    table = ask(f"{shown}{PETS}&where=label+%3D+1")
    (grid,) = [one for one in links(table, "rows?") if "layout=grid" in one]
    page = ask(shown + grid)
    pictures = re.compile(r'<img src="(data:image/[^"]*)"')
    assert pictures.findall(page.text) == pictures.findall(table.text)
    assert len(links(page, "row?")) == 50
    assert 'title="label"><bdi>1 dog</bdi>' in page.text
    assert "layout=grid" in next(one for one in links(page, "rows?") if "start=" in one)
    (back,) = [one for one in links(page, "rows?") if "layout=" not in one and "where=" in one]
    assert "Table of rows" in ask(shown + back).text
    assert "layout=" not in ask(f"{shown}rows?id=one&version=1.0").text


class Forged:
    """A value that fails wherever it is looked at."""

    def __array__(self, *_: object) -> Any:
        raise RuntimeError("cannot be an array")


def test_boxes_and_masks_are_drawn_on_their_image(tmp_path: Path) -> None:
    """In thumbnails and in full; an image without them is sent as it is."""
    image, mask = np.zeros((40, 60, 3), np.uint8), np.zeros((40, 60), np.uint8)
    mask[20:30, 5:15] = 1
    row = {"image": image, "boxes": np.array([[30, 5, 50, 35]]), "labels": np.array([1]), "mask": mask}
    rows = [row, {**row, "boxes": np.array([[30, 5, 90, 35]]), "mask": mask[:-1]}]  # beyond the image
    schema = yoga.Schema.of(row, ragged=["mask"])
    storage = yoga.Storage(tmp_path)
    storage.submit(rows, "d", "1", schema=schema, info={"classes": CLASSES}, progress=False)
    with yoga.view(storage) as shown:
        for number, is_marked in ((0, True), (1, False)):
            page = ask(f"{shown.url}row?id=d&version=1&row={number}")
            (source,) = re.findall(r'<img src="([^"]*name=image[^"]*)"', page.text)
            for side in ("", "&side=192"):
                found = Image.open(io.BytesIO(ask(shown.url + source + side).body)).convert("RGB")
                pixels = np.asarray(found.resize((60, 40), Image.Resampling.NEAREST))
                assert bool(pixels[7:34, 30].any(axis=1).all()) is is_marked
                assert bool(pixels[22:28, 7:13].all(axis=(0, 1)).any()) is is_marked
                assert not pixels[:3, :20].any()
            plain = ask(f"{shown.url}file?id=d&version=1&row={number}&name=image")
            assert not np.asarray(Image.open(io.BytesIO(plain.body))).any()


@pytest.mark.parametrize("beside", [{"labels": [[1], [1, 2]]}, {"boxes": Forged()}, {"labels": {"a": 1}}])
def test_marks_that_are_something_else_are_left_out(beside: dict[str, Any]) -> None:
    row = {"image": np.zeros((40, 60, 3), np.uint8), "boxes": [[30, 5, 50, 35], [1, 1, 9, 9]], **beside}
    with yoga.view(Own([row])) as shown:
        assert ask(shown.url + "rows?layout=grid").status == 200
        assert ask(shown.url + "row?row=0").status == 200


def test_the_first_of_many_columns(shown: str, storage: yoga.Storage) -> None:
    page = ask(f"{shown}rows?id=wide&version=1.0")
    assert "The first 200 of 451 columns" in page.text
    assert "Histogram of c199" in page.text
    assert "c200" not in page.text
    row = ask(f"{shown}row?id=wide&version=1.0&row=3")
    assert "名 <b>" in row.text
    assert b"<b>" not in row.body
    assert "453" in ask(f"{shown}file?id=wide&version=1.0&row=19&name=c434").text
    assert "19" in ask(f"{shown}file?id=wide&version=1.0&row=19&name={quote('名 <b>')}").text
    with yoga.view(storage.fetch("wide", "1.0").columns(["c434"])) as found:
        assert "Histogram of c434" in ask(found.url).text


def test_columns_of_tuples_keep_their_numbers() -> None:
    tuples = Made(
        4, lambda row: tuple(range(row, row + 300)), yoga.Schema.of(tuple(range(300))), row_bytes=2400
    )
    with yoga.view(tuples) as found:
        assert "<bdi>199</bdi></a>" in ask(found.url).text
        assert ask(f"{found.url}file?row=3&name=250").text.count("253") == 1


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


def test_rows_that_one_thread_may_read_are_read_by_one_at_once() -> None:
    inside = threading.Semaphore(1)

    def alone(row: dict[str, int]) -> dict[str, int]:
        assert inside.acquire(blocking=False), "another thread reads rows"
        time.sleep(0.001)
        inside.release()
        return row

    ref = yoga.from_arrays({"x": np.arange(99)}).map(alone)
    assert not ref.is_thread_safe
    with yoga.view(ref) as shown, ThreadPoolExecutor(6) as pool:
        asked = [f"{shown.url}rows?start={start}&where=x+%3E+{start}" for start in range(0, 60, 10)]
        assert [page.status for page in pool.map(ask, asked)] == [200] * 6
