"""The report page: what it shows, of hostile data, too."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from children import run_program
from click.testing import CliRunner
from commanding import process
from own import Made

import torchyoga as yoga
from docs import ROOT, blocks
from torchyoga.errors import CorruptError
from torchyoga.rows.types import Row
from torchyoga.tools.commands.group import command
from torchyoga.tools.report import page as page_room
from torchyoga.tools.report.page import LARGEST_PAGE

HOSTILE = "</script></style><img src=x onerror=alert(1)><script>alert(1)</script>{{ 7 * 7 }}\u202e\ud800"
SECTIONS = ["overview", "columns", "rows"]


class Seen(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._tag = ""
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self._tag != "style":
            self.words.append(data)

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.attributes if found == name]


def seen(ref: yoga.DataRef, path: Path, **options: object) -> Seen:
    found = yoga.report(ref, path / "report.html", **options)  # type: ignore[arg-type]
    assert [one.name for one in path.iterdir() if one.suffix == ".part"] == []
    assert found.stat().st_size < LARGEST_PAGE
    page = Seen(found.read_text(encoding="utf-8"))
    check_harmless(page)
    return page


def check_harmless(page: Seen) -> None:
    assert not {"script", "iframe", "object", "embed", "link", "form", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert all(re.match(r"data:image/(png|jpeg);base64,", url) for url in page.all("src"))
    assert all(url.startswith("#") for url in page.all("href"))


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


def rows_of(count: int = 200) -> list[Row]:
    return [
        {
            "image": np.full((9, 9), n, np.uint8),
            "label": n % 3,
            "text": "word " * (n % 7),
            "score": float("nan") if n == 5 else n / 7,
        }
        for n in range(count)
    ]


@pytest.fixture
def ref(storage: yoga.Storage) -> yoga.DataRef:
    info = {"classes": ["cat", "dog", "eel"]}
    return storage.submit(rows_of(), "pets", "1.0", message="first", info=info)


def test_a_page_has_every_section(ref: yoga.DataRef, tmp_path: Path) -> None:
    page = seen(ref, tmp_path)
    ids = page.all("id")
    assert [name for name in ids if not name.endswith("-title")] == ["main", *SECTIONS]
    assert {url[1:] for url in page.all("href")} == {*SECTIONS, "main"}
    for words in [
        "pets 1.0", "200 rows", "score: 1 values are NaN (0.5%)", "text: 29 rows are empty", "0 cat", "1 dog",
        "first", "64 rows, drawn at random",
        "Statistics of all 200 rows, made when the version was built", "1 file (lmdb)",
    ]:  # fmt: skip
        assert words in page.text, words
    assert page.text.count("1 dog") > 10  # in rows, too
    assert page.tags.count("img") == 64
    assert all(re.match(r"image of row \d+: uint8 \(9, 9\)", text) for text in page.all("alt"))
    labels = " ".join(page.all("aria-label"))
    assert "Histogram of label: 200 values, from 0 to 2" in labels
    assert "Histogram of lengths of text: 200 rows, from 0 to 30" in labels


def test_dates_are_iso(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    when = [dt.datetime(2024, 2, 28, 12, n, tzinfo=dt.timezone.utc) for n in range(30)]
    kinds = pa.array(["cat", "Ankle boot"] * 15).dictionary_encode()
    table = pa.table({"when": when, "kind": kinds, "none": [""] * 30})
    page = seen(yoga.from_arrow(table, words=True), tmp_path)
    for said in ("2024-02-28T12:29:00", "2024-02-28T12:07:00", "Ankle boot", "the same, (empty)"):
        assert said in page.text
    assert ".000000" not in page.text


@pytest.mark.rest
def test_the_same_version_gives_the_same_bytes(ref: yoga.DataRef, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{n}.html" for n in range(3))
    yoga.report(ref, first)
    code = "import sys, torchyoga as yoga; r = yoga.Storage(sys.argv[1]).fetch('pets', '1.0'); "
    code += "yoga.report(r, sys.argv[2])"
    assert not process(sys.executable, "-c", code, str(tmp_path / "storage"), str(second)).returncode
    assert first.read_bytes() == second.read_bytes()
    yoga.report(ref, third, seed=1)
    assert first.read_bytes() != third.read_bytes()


def test_the_policy_allows_this_sheet_of_styles_only(ref: yoga.DataRef, tmp_path: Path) -> None:
    text = yoga.report(ref, tmp_path / "r.html").read_text(encoding="utf-8")
    (css,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    (policy,) = (value for value in Seen(text).all("content") if "default-src" in value)
    assert policy.split("; ")[:3] == ["default-src 'none'", "img-src data:", f"style-src 'sha256-{digest}'"]


def test_hostile_data_is_text(storage: yoga.Storage, tmp_path: Path) -> None:
    names = [HOSTILE[:-1], "سلام عالم", "a\"b'&<"]
    rows = [
        {
            names[0]: HOSTILE,
            names[1]: "سلام عالم",
            names[2]: [float("nan"), float("inf"), -1e308][n % 3],
            "image": np.array([[n]], np.uint8),
            "depth": np.full((20, 30), n * 900, np.uint16),
            "file": b"\x89PNG\r\n\x1a\n" + bytes(9),
            "label": HOSTILE[:60],
        }
        for n in range(40)
    ]
    ref = storage.submit(rows, HOSTILE[:-2], "1", info={"<b>": [HOSTILE[:-1]]}, message=HOSTILE[:-2])
    page = seen(ref, tmp_path, title=HOSTILE)
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "49" not in page.text.split("{{")[0]
    assert "{{ 7 * 7 }}\\u202e" in page.text
    assert "سلام عالم" in page.text
    assert "%D8" not in page.text  # as its name is quoted in the schema
    assert "\u202e" not in page.text
    assert page.tags.count("img") == 80  # of 1 pixel, and of 16 bits; the bytes are none


def test_a_page_that_would_be_too_large_shows_less(
    ref: yoga.DataRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = yoga.report(ref, tmp_path / "whole.html").stat().st_size
    monkeypatch.setattr(page_room, "LARGEST_PAGE", whole - 1)
    less = yoga.report(ref, tmp_path / "less.html")
    assert less.stat().st_size < whole
    assert Seen(less.read_text(encoding="utf-8")).tags.count("img") == 32


@pytest.mark.rest
def test_many_columns(storage: yoga.Storage, tmp_path: Path) -> None:
    mark = "'"  # which takes five bytes in a page
    quotes = [{f"c{n:04}{mark * 250}": f"{mark * 90}{row % 9}" for n in range(900)} for row in range(70)]
    page = seen(storage.submit(quotes, "wide", "1"), tmp_path)
    assert "The first 200 of 900 columns are shown" in page.text
    assert "c0199" in page.text
    assert "c0200" not in page.text
    wide = Made(100, lambda row: {f"c{n:05}": n * row for n in range(10_000)})  # which no version may have
    page = seen(wide, tmp_path)
    assert "The first 40 of 10,000 columns." in page.text
    assert "statistics cannot be made: " in page.text


def test_an_empty_version_and_one_without_statistics(storage: yoga.Storage, tmp_path: Path) -> None:
    page = seen(storage.submit([], "empty", "1"), tmp_path)
    assert "There are no rows." in page.text
    ref = storage.submit(rows_of(), "plain", "1", stats=False)
    assert "Statistics of all 200 rows, counted for this page." in seen(ref, tmp_path).text
    one = seen(ref[:1], tmp_path)
    assert "1 row · 4 columns" in one.text
    assert "1 row, drawn at random." in one.text
    many = yoga.from_arrays({"x": np.arange(10**6)})
    page = seen(many, tmp_path)
    assert "Statistics of 10,000 rows, drawn at random from 1,000,000" in page.text


@pytest.mark.damages("flips bits of what reports read")
def test_damage_is_an_error_that_says_so(ref: yoga.DataRef, storage: yoga.Storage, tmp_path: Path) -> None:
    (file,) = (tmp_path / "storage").rglob("*.mdb")
    data = bytearray(file.read_bytes())
    data[8192:] = bytes(len(data) - 8192)
    file.write_bytes(data)
    damaged = yoga.Storage(tmp_path / "storage").fetch("pets", "1.0")
    page = tmp_path / "kept.html"
    page.write_text("old")
    with pytest.raises(CorruptError):
        yoga.report(damaged, page)
    assert page.read_text() == "old"


def test_of_large_rows_few_are_read(tmp_path: Path) -> None:
    read: list[int] = []

    def row(number: int) -> Row:
        read.append(number)
        return {"image": np.zeros((10_000, 10_000), np.uint8)}

    large = Made(1000, row, row_bytes=10**8)
    assert "2 rows and not 64, because they are large." in seen(large, tmp_path).text
    assert len(read) <= 8


def test_a_page_of_a_store_says_that_rows_are_from_few_files(tmp_path: Path) -> None:
    remote = yoga.Storage("memory://reported", cache_dir=tmp_path / "cache")
    remote.submit(rows_of(), "pets", "1.0")
    fresh = yoga.Storage("memory://reported", cache_dir=tmp_path / "other").fetch("pets", "1.0")
    assert "from few files, so that little is downloaded" in seen(fresh, tmp_path).text


def test_a_page_of_a_store_downloads_few_files(tmp_path: Path, files_of: Callable[[int], None]) -> None:
    files_of(80)
    rows = [{"x": n} for n in range(8000)]
    yoga.Storage("memory://far", cache_dir=tmp_path / "a").submit(rows, "far", "1", stats=False)

    def fetched(cache: str) -> yoga.DataRef:
        return yoga.Storage("memory://far", cache_dir=tmp_path / cache).fetch("far", "1")

    for number, make in enumerate(
        [lambda r: r, lambda r: r[10:], lambda r: yoga.mix({"a": r, "b": r[500:]})]
    ):
        page = seen(make(fetched(f"cache{number}")), tmp_path)
        assert "so that little is downloaded" in page.text
        assert "Statistics of the first 1,000 rows" in page.text
        files = list((tmp_path / f"cache{number}").rglob("*.mdb"))
        assert 1 <= len(files) <= 40, len(files)  # of 100


def test_what_is_wrongly_used(ref: yoga.DataRef, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="report takes a DataRef, found list"):
        yoga.report([1], tmp_path / "r.html")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        yoga.report(ref, tmp_path / "missing" / "r.html")
    assert not (tmp_path / "r.html").exists()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        yoga.report(ref, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_versions_that_share_files(storage: yoga.Storage, tmp_path: Path) -> None:
    storage.submit(rows_of(), "grown", "1")
    ref = storage.append(rows_of(7), "grown", "2", after="1")
    page = seen(ref, tmp_path)
    assert "1 of them shared with other versions" in page.text


@pytest.mark.rest
def test_without_pillow_a_page_says_so(ref: yoga.DataRef, tmp_path: Path) -> None:
    code = "import sys; sys.modules['PIL'] = None; import torchyoga as yoga; "
    code += "yoga.report(yoga.Storage(sys.argv[1]).fetch('pets', '1.0'), sys.argv[2])"
    page = tmp_path / "r.html"
    assert not run_program(code, str(tmp_path / "storage"), str(page)).returncode
    assert "Images are not shown: thumbnails need Pillow; pip install" in page.read_text(encoding="utf-8")


def test_the_page_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHYOGA_STORAGE", raising=False)
    page = ROOT / "docs" / "measure.md"
    (code,) = [code for code in blocks(page, "python") if "yoga.report(" in code]
    exec(compile(code, str(page), "exec"), {"__name__": "page"})
    (block,) = [block for block in blocks(page, "console") if "yoga report" in block]
    line, printed = block.split("\n", 1)
    done = CliRunner().invoke(command, line.split()[2:])
    assert done.exit_code == 0, done.output
    assert re.sub(r"\d+ kB", "kB", done.output) == re.sub(r"\d+ kB", "kB", printed)


def test_the_command(ref: yoga.DataRef, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ["-s", str(tmp_path / "storage"), "-o", str(page)]
    done = CliRunner().invoke(command, ["report", "pets", "--json", *options])
    assert json.loads(done.output) == {
        "id": "pets", "version": "1.0", "path": str(page), "bytes": page.stat().st_size,
    }  # fmt: skip
    done = CliRunner().invoke(command, ["report", "pets", "--seed", "3", *options])
    assert page.read_bytes() == yoga.report(ref, tmp_path / "same.html", seed=3).read_bytes()
    done = CliRunner().invoke(command, ["report", "pests", *options])
    assert done.exit_code == 2
