"""Cases that are left to `make test-rest`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import quick


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
