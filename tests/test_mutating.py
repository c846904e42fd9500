"""What `make mutants` changes, which changes it draws, and which tests it runs for each."""

from __future__ import annotations

import ast
from collections import Counter

import mutants
import pytest
from mutations import OPERATORS, mutations

SOURCES = {room: (mutants.ROOT / f"torchyoga/{room}.py").read_text() for room in mutants.ROOMS}
PLAIN = '''
"""Says what it is."""
import os
__all__ = ["found"]

@cached
def found(a: int = 3, *, b: str = "b") -> list[int]:
    """Says what it does."""
    assert a is not None
    _log.warning("not for tests", a)
    if a < 1 and (  # a < b, and so on
        b
    ) not in a:
        raise ValueError(f"{a} is not {b}")
    with lock:
        return [-x for x in a[1:] if x * 2 > max(x, key=len)]
'''


def test_each_mutation_parses_and_changes_its_line_alone() -> None:
    for room in ("versions/location", "order/place"):
        source = SOURCES[room]
        lines = source.splitlines()
        for mutation in mutations(source, f"{room}.py"):
            changed = mutation.applied(source)
            ast.parse(changed)
            assert changed != source
            found = changed.splitlines()
            first, last = mutation.lines[0]
            assert len(found) == len(lines)
            assert found[: first - 1] == lines[: first - 1] or mutation.operator == "decorator"
            assert found[last:] == lines[last:]


def test_each_operator_applies_somewhere() -> None:
    used = Counter(mutation.operator for _, mutation in mutants.chosen(SOURCES, 1000, seed=0))
    assert set(used) == set(OPERATORS)


def test_all_mutations_of_a_few_lines() -> None:
    found = {
        (mutation.operator, mutation.key.partition(" -> ")[2].removeprefix("list[int]: -> "))
        for mutation in mutations(PLAIN, "f.py")
    }
    assert found == {
        ("decorator", "(nothing)"),
        ("constant", 'def found(a: int = 4, *, b: str = "b") -> list[int]:'),
        ("constant", 'def found(a: int = 3, *, b: str = "") -> list[int]:'),
        ("compare", "if a <= 1 and (  # a < b, and so on"),
        ("constant", "if a < 2 and (  # a < b, and so on"),
        ("boolean", "if a < 1 or (  # a < b, and so on"),
        ("condition", "if not (a < 1 and (  # a < b, and so on"),
        ("condition", "if (True"),
        ("condition", "if (False"),
        ("compare", ") in a:"),
        ("statement", "pass"),
        ("with", 'with __import__("contextlib").nullcontext(lock):'),
        ("return", "return None"),
        ("sign", "return [x for x in a[1:] if x * 2 > max(x, key=len)]"),
        ("slice", "return [-x for x in a[:] if x * 2 > max(x, key=len)]"),
        ("constant", "return [-x for x in a[2:] if x * 2 > max(x, key=len)]"),
        ("condition", "return [-x for x in a[1:] if not (x * 2 > max(x, key=len))]"),
        ("condition", "return [-x for x in a[1:] if True]"),
        ("condition", "return [-x for x in a[1:] if False]"),
        ("compare", "return [-x for x in a[1:] if x * 2 >= max(x, key=len)]"),
        ("arithmetic", "return [-x for x in a[1:] if x // 2 > max(x, key=len)]"),
        ("constant", "return [-x for x in a[1:] if x * 3 > max(x, key=len)]"),
        ("extreme", "return [-x for x in a[1:] if x * 2 > min(x, key=len)]"),
        ("keyword", "return [-x for x in a[1:] if x * 2 > max(x, )]"),
    }


def test_a_mutant_keeps_its_name_and_rank_when_other_lines_change() -> None:
    moved = "# a line more\nx = y < 0\n" + PLAIN
    before = [mutation.key for mutation in mutations(PLAIN, "f.py")]
    after = [mutation.key for mutation in mutations(moved, "f.py")]
    assert len(set(before)) == len(before)
    assert [key for key in after if ": x = " not in key] == before
    sample = [m.key for _, m in mutants.chosen({"f": PLAIN}, len(before), seed=7)]
    again = [m.key for _, m in mutants.chosen({"f": moved}, len(after), seed=7)]
    assert [key for key in again if ": x = " not in key] == sample
    assert sample != before
    assert sample != [m.key for _, m in mutants.chosen({"f": PLAIN}, len(before), seed=8)]


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_a_room_has_tests(room: str) -> None:
    files = mutants.files_of(room)
    assert len(set(files)) == len(files)
    assert all((mutants.ROOT / file).is_file() for file in files)


def test_equivalent_mutants_are_listed_with_a_reason() -> None:
    assert mutants.known_equal("# of these\nf.py g: a: b -> a: c\n  It is\n  so.\n") == {
        "f.py g: a: b -> a: c": "It is so."
    }
    assert all(mutants.known_equal(mutants.EQUAL.read_text()).values())
