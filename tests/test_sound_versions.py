"""What tests rely on: versions are sound, cases are left to `make test-rest`, a forked program ends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quick
from children import run_program
from sound import check_stored, check_versions, versions_under

import torchyoga
from torchyoga.stores.objects import Objects


@pytest.mark.damages("to see that it is found")
def test_every_version_that_a_test_has_left_is_found(tmp_path: Path) -> None:
    for name in ("one", "two/below"):
        torchyoga.Storage(tmp_path / name).submit([1, 2], "a/b", "1")
    (tmp_path / "one" / "mine").mkdir()
    (tmp_path / "one" / "mine" / "manifest.json").write_text("{}")
    found = sorted(versions_under(tmp_path))
    assert found == [("a/b", "1", tmp_path / "one"), ("a/b", "1", tmp_path / "two" / "below")]
    next((tmp_path / "one").rglob("*.mdb")).unlink()
    with pytest.raises(pytest.fail.Exception, match=r"damaged version, and is not marked.* is missing"):
        check_versions(tmp_path)


def test_every_version_that_a_test_has_left_in_a_store_is_found(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    for prefix in ("", "/two/below"):
        torchyoga.Storage(url + prefix, cache_dir=tmp_path / "cache").submit([1, 2], "a/b", "1")
    check_stored(url, {}, tmp_path / "checks")
    remote = Objects(f"{url}/two/below")
    (name,) = (name for name in remote.find() if name.endswith(".mdb"))
    remote.delete([name])
    with pytest.raises(pytest.fail.Exception, match=r"damaged version, and is not marked.* is missing"):
        check_stored(url, {}, tmp_path / "checks")


class Item:
    """A test that was collected."""

    def __init__(self, case: str, mark: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = f"tests/a/test_b.py::test_c[{case}]", [mark]

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark)

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark.mark for mark in self.marks if mark.name == name)


def rest(cases: list[str], mark: pytest.MarkDecorator, is_whole: bool = True) -> list[str]:
    """The cases that are left to the rest, of a test that has this mark."""
    items: list[Any] = [Item(case, mark) for case in cases]
    quick.leave_to_the_rest(items, is_whole)
    return [case for case, item in zip(cases, items, strict=True) if list(item.iter_markers("rest"))]


def test_cases_are_marked_by_pattern() -> None:
    cases = ["x-1", "x-2", "y-1", "z"]
    assert rest(cases, pytest.mark.quick("x-*")) == ["y-1", "z"]
    assert rest(cases, pytest.mark.quick("x-2", "z")) == ["x-1", "y-1"]
    assert rest(cases, pytest.mark.slow("x-*")) == ["x-1", "x-2"]


@pytest.mark.parametrize("name", ["quick", "slow"])
def test_a_pattern_without_a_case_is_an_error_once_all_are_collected(name: str) -> None:
    mark = getattr(pytest.mark, name)("x", "gone")
    with pytest.raises(pytest.UsageError, match=r"exists: tests/a/test_b.py::test_c\[gone\]"):
        rest(["x"], mark)
    assert rest(["x"], mark, is_whole=False) == ([] if name == "quick" else ["x"])


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no rows')", 1, "no rows\n"),
        ("raise KeyError('no rows')", 1, "KeyError: 'no rows'\n"),
    ],
)
def test_it_ends_like_an_interpreter(ending: str, code: int, said: str) -> None:
    ended = run_program(f"import sys\nprint(sys.argv[1:], __name__)\n{ending}", "a", "b c")
    assert (ended.returncode, ended.stdout) == (code, "['a', 'b c'] __main__\n")
    assert ended.stderr.endswith(said)
    assert bool(ended.stderr) == bool(said)
