"""What makes a version stale: edits of its function, of what that names in its module, and of its files."""

from __future__ import annotations

import importlib
import itertools
import linecache
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchyoga as yoga
from torchyoga.caching.lineage import own_code_of
from torchyoga.errors import ExistsError

numbers = itertools.count()
MAIN = '''
import collections
import functools
from .helpers import imported
LIMIT = 3
SIZES = [1, 2,
         3]
NAMES = {"a": 1}
Point = collections.namedtuple("Point", "x y")
def plain(value):
    """Doc."""
    return value + LIMIT
def wrapped(function):
    return lambda *args: function(*args)
@wrapped
def decorated(value):
    return value
@functools.lru_cache
def cached(value): return value + _by()
def _by(): return 1
class Base:
    step = 2
    def rows(self): return [self.step]
class Rows(Base):
    """Doc."""
    def made(self):
        return self.rows()
if LIMIT:
    def chosen(): return 1
else:
    def chosen(): return 2
def unused(): return 5
def around(k):
    def inner(v): return v * k
    return lambda v: inner(v)
captured = around(2)
def make():
    unrelated = [unused for unused in range(2)]
    return [plain(1), SIZES, NAMES, decorated(1), cached(2), Rows().made(), chosen(), imported(1),
            Point(1, 2), (lambda v: v + OFFSET)(1), captured(3), len(unrelated)]
'''
FILES = {"__init__": "", "main": MAIN + "OFFSET: int = 4\n", "helpers": "def imported(v): return v * 2\n"}
EDITS = [  # file, text, another text
    ("main", "LIMIT = 3", "LIMIT = 30"),
    ("main", "LIMIT = 3", "LIMIT = 3.0"),
    ("main", "SIZES = [1, 2", "SIZES = [1, 3"),
    ("main", '{"a": 1}', '{"b": 1}'),
    ("main", '"x y"', '"x z"'),
    ("main", "value + LIMIT", "value - LIMIT"),
    ("main", "lambda *args: function(*args)", "lambda *args: -function(*args)"),
    ("main", "def decorated(value):\n    return value", "def decorated(value):\n    return +value"),
    ("main", "value + _by()", "value - _by()"),
    ("main", "def _by(): return 1", "def _by(): return 2"),
    ("main", "step = 2", "step = 3"),
    ("main", "return [self.step]", "return [self.step, 1]"),
    ("main", "class Rows(Base)", "class Rows(Base, object)"),
    ("main", "def chosen(): return 1", "def chosen(): return 3"),
    ("main", "OFFSET: int = 4", "OFFSET: int = 5"),
    ("main", "return v * k", "return v + k"),
    ("main", "lambda v: inner(v)", "lambda v: inner(v + 1)"),
]
NO_EDITS = [
    ("main", "def unused(): return 5", "def unused(): return 6"),
    ("main", "def chosen(): return 2", "def chosen(): return 4"),
    ("main", '    """Doc."""\n', '    """Another."""\n    # and a comment\n'),
    ("main", "SIZES = [1, 2,\n         3]", "SIZES = [\n    1,\n    2,\n    3,\n]"),
    ("main", "value + LIMIT", "(value + LIMIT)  # why"),
    ("main", "class Rows(Base):", "class Rows(Base, ):"),
    ("helpers", "v * 2", "v * 3"),
]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which packages are written."""
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if name.startswith("written_"):
            del sys.modules[name]


def written(folder: Path, edits: dict[str, str]) -> Any:
    """The module `main` of a new package with these files."""
    name = f"written_{next(numbers)}"
    for file, text in {**FILES, **edits}.items():
        path = folder / name / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(f"{name}.main")


def parts(module: Any) -> dict[str, str]:
    found = own_code_of(module.make).parts
    assert found is not None
    return found


def edited(edit: tuple[str, str, str]) -> dict[str, str]:
    file, old, new = edit
    assert old in FILES[file], edit
    return {file: FILES[file].replace(old, new)}


def test_no_edit_is_missed_and_none_is_imagined(package: Path) -> None:
    expected = parts(written(package, {}))
    missed = [edit for edit in EDITS if parts(written(package, edited(edit))) == expected]
    assert not missed
    imagined = [edit for edit in NO_EDITS if parts(written(package, edited(edit))) != expected]
    assert not imagined


def test_formatting_is_no_change(package: Path) -> None:
    """All files as `ruff format` writes them."""
    folder = Path(written(package, {}).__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=60", folder], check=False
    )
    if done.returncode:
        pytest.skip("ruff is not installed")
    after = {name: (folder / f"{name}.py").read_text() for name in FILES}
    assert after != FILES
    assert parts(written(package, after)) == parts(written(package, {}))


def test_what_a_function_names(package: Path) -> None:
    found = parts(written(package, {}))
    assert {"LIMIT", "plain", "Rows", "Base", "_by", "captured function", "captured inner"} <= {*found}
    assert not {"unused", "imported", "functools", "make"} & {*found}


def test_circles_and_code_without_a_source_end(package: Path) -> None:
    text = "def make():\n    return other, missing.x.y\ndef other(): return make(), other\n"
    assert parts(written(package, {"main": text})).keys() == {"other"}
    text += "exec('def hidden(): return 1', globals())\ndef seen(): return hidden()\n"
    assert own_code_of(written(package, {"main": text}).seen).parts is None
    assert own_code_of(len) == own_code_of(object()) == (None, "")  # type: ignore[arg-type]
    assert own_code_of(lambda: parts).source.startswith("lambda")


def test_a_helper_of_a_notebook_that_changed(tmp_path: Path) -> None:
    cell, names = "def helper(): return {}\n", {"__name__": "notebook"}

    def run(number: int, text: str) -> None:
        name = f"<ipython-input-{number}>"
        linecache.cache[name] = (len(text), None, [text], name)
        exec(compile(text, name, "exec"), names)

    run(1, cell.format([1]))
    run(2, "def make(): return helper()\n")
    make: Any = yoga.Storage(tmp_path).cacheable("a", "1", stale="error")(names["make"])  # type: ignore[arg-type]
    assert list(make()) == list(make()) == [1]
    run(3, cell.format([2]))
    with pytest.raises(ExistsError, match="uses other code: helper than"):
        make()


# -- the warning


HELPED = "FACTOR = 2\ndef helper(): return [FACTOR]\ndef make(): return helper()\n"


def test_a_helper_that_changed_is_named_and_shown(package: Path, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    first = written(package, {"main": HELPED})
    assert list(storage.cacheable("a", "1")(first.make)()) == [2]
    other = written(package, {"main": HELPED.replace("[FACTOR]", "[FACTOR, 3]")})
    with pytest.warns(UserWarning, match=r"uses other code: helper than when") as caught:
        assert list(storage.cacheable("a", "1")(other.make)()) == [2]
    assert "-    return [FACTOR]\n+    return [FACTOR, 3]" in str(caught[0].message)
    with pytest.raises(ExistsError, match="uses other code: helper"):
        storage.cacheable("a", "1", stale="error")(other.make)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.cacheable("a", "1", stale="ignore")(other.make)()
        before = storage.fetch("a", "1")
        assert list(storage.cacheable("a", "1", stale="rebuild")(other.make)()) == [2, 3]
        assert list(before) == [2]  # which is open
        build = storage.log("a")[0].build
        assert list(storage.cacheable("a", "1", stale="rebuild")(other.make)()) == [2, 3]
        assert storage.log("a")[0].build == build


def test_a_rebuild_that_fails_keeps_the_version(package: Path, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    storage.cacheable("a", "1")(written(package, {"main": HELPED}).make)()
    broken = written(package, {"main": HELPED.replace("[FACTOR]", "1 / 0")})
    with pytest.raises(ZeroDivisionError):
        storage.cacheable("a", "1", stale="rebuild")(broken.make)()
    assert list(storage.fetch("a", "1")) == [2]
    storage.submit([7], "a", "2")
    with pytest.raises(ExistsError, match="does not say what made it"):
        storage.cacheable("a", "2", stale="rebuild")(broken.make)()


def test_without_a_record_helpers_are_still_compared(package: Path, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    storage.cacheable("a", "1", record=False)(written(package, {"main": HELPED}).make)()
    assert storage.log("a")[0].lineage.function is None
    other = written(package, {"main": HELPED.replace("= 2", "= 3")})
    with pytest.warns(UserWarning, match=r"uses other code: FACTOR than") as caught:
        storage.cacheable("a", "1")(other.make)()
    assert "\n" not in str(caught[0].message)


# -- files


def test_files_count_by_their_contents(package: Path, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    module = written(package, {"main": HELPED})
    raw = Path(module.__file__).parent / "raw"
    (raw / "deep").mkdir(parents=True)
    for name in ("a.png", "b.png", "deep/c.png", "d.txt"):
        (raw / name).write_text(name)
    make = storage.cacheable("a", "1", sources=["raw/**/*.png", str(raw / "d.txt")], stale="error")(
        module.make
    )
    make()
    text = (storage.path / "a" / "1" / "manifest.json").read_text()
    assert "png" not in text
    assert str(tmp_path) not in text

    def refused(match: str) -> None:
        with pytest.raises(ExistsError, match=match):
            make()

    make()
    os.utime(raw / "a.png", (1, 1))
    make()  # the same bytes
    (raw / "a.png").write_text("A.png")
    refused(r"reads other files \(the files 'raw/\*\*/\*\.png' have changed\) than")
    (raw / "a.png").write_text("a.png")
    make()
    (raw / "new.png").write_text("")
    refused("have changed")
    (raw / "new.png").unlink()
    (raw / "deep" / "c.png").unlink()
    refused("have changed")
    (raw / "deep" / "c.png").write_text("deep/c.png")
    (raw / "d.txt").write_text("other")
    refused(r"d\.txt' have changed")
    (raw / "d.txt").unlink()  # a machine without the files
    make()
    with pytest.raises(ExistsError, match="were not among its sources"):
        storage.cacheable("a", "1", sources=["raw/*.png"], stale="error")(module.make)()
    rebuilt = storage.cacheable("a", "1", sources=["raw/*.png"], stale="rebuild")(module.make)
    build = rebuilt().manifest.build  # type: ignore[attr-defined]
    assert rebuilt().manifest.build == build  # type: ignore[attr-defined]


def test_wrong_sources_are_refused(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")

    def make() -> list[int]:
        return [1]

    with pytest.raises(FileNotFoundError, match=r"'none/\*\.png' matches no file"):
        storage.cacheable("a", "1", sources=["none/*.png"])(make)()
    assert storage.list() == []
    with pytest.raises(TypeError, match="must be a list of patterns"):
        storage.cacheable("a", "1", sources="*.png")(make)
    with pytest.raises(ValueError, match="no URLs"):
        storage.cacheable("a", "1", sources=["s3://b/*.png"])(make)
    with pytest.raises(ValueError, match="different patterns"):
        storage.cacheable("a", "1", sources=["*.png", "*.png"])(make)


# -- git


def test_the_commit_and_whether_it_is_dirty(package: Path, tmp_path: Path) -> None:
    module = written(package, {"main": HELPED})
    folder = Path(module.__file__).parent
    lineage = importlib.import_module("torchyoga.caching.lineage")

    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True
        ).stdout

    def found() -> tuple[Any, Any]:
        lineage.commit_of.cache_clear()
        entry = storage.submit(module.make, "a", "1", overwrite=True).manifest.lineage  # type: ignore[attr-defined]
        return entry.get("commit"), entry.get("dirty")

    storage = yoga.Storage(tmp_path / "storage")
    try:
        git("init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    assert found() == (None, None)  # before the first commit
    git("add", "main.py")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert found() == (commit, False)
    (folder / "main.py").write_text(HELPED + "\n")
    assert found() == (commit, True)
    assert storage.log("a")[0].code == commit[:8] + "+"
