"""Cases that are left to `make test-rest`."""

from __future__ import annotations

from typing import Any

import pytest
import quick

FILE, TEST = "tests/a/test_b.py", "test_c"


class Item:
    """A test that was collected."""

    def __init__(self, case: str) -> None:
        self.nodeid = f"{FILE}::{TEST}[{case}]" if case else f"{FILE}::{TEST}"
        self.marks: list[str] = []

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark.name)


def rest(cases: list[str], where: str, tests: dict[str, tuple[str, ...]], is_whole: bool = True) -> list[str]:
    """The cases that are left to the rest, if so many are named in `only` or `but`."""
    items: list[Any] = [Item(case) for case in cases]
    named: dict[str, Any] = {"only": {}, "but": {}, where: {"a/test_b.py": tests}}
    quick.leave_to_the_rest(items, is_whole, **named)
    return [case for case, item in zip(cases, items, strict=True) if item.marks == ["rest"]]


@pytest.mark.parametrize(
    ("where", "patterns", "expected"),
    [
        ("only", ("x-*",), ["y-1", "z"]),
        ("only", ("x-2", "z"), ["x-1", "y-1"]),
        ("only", (), ["x-1", "x-2", "y-1", "z"]),
        ("but", ("x-*",), ["x-1", "x-2"]),
    ],
)
def test_cases_are_marked_by_pattern(where: str, patterns: tuple[str, ...], expected: list[str]) -> None:
    assert rest(["x-1", "x-2", "y-1", "z"], where, {TEST: patterns}) == expected


@pytest.mark.parametrize("where", ["only", "but"])
def test_a_pattern_without_a_case_is_an_error_once_all_are_collected(where: str) -> None:
    tests = {TEST: ("x", "gone"), "lost": ("y",)}
    with pytest.raises(
        pytest.UsageError, match=r"exist: a/test_b.py::lost\[y\], a/test_b.py::test_c\[gone\]"
    ):
        rest(["x"], where, tests)
    assert rest(["x"], where, tests, is_whole=False) == ([] if where == "only" else ["x"])
