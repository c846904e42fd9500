"""The digest of a function's code: the same for the same code, wherever it stands."""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import linecache
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchyoga.caching.lineage import digest_of, own_code_of

PLAIN = """
def made(count, start=0):
    rows = [start + n for n in range(count)]
    return rows
"""
SAME = {
    "comments": PLAIN.replace("def", "# before\ndef").replace("):\n", "):  # beside\n    # inside\n\n")
    + "    # after\n",
    "globals": "SIZE = 3" + PLAIN,
    "docstring": PLAIN.replace("):\n", '):\n    """Says what it does."""\n'),
    "layout": """
import os


def made(
    count,
    start = 0,
):
        rows = [(start + n)
                for n in range(count)]; return rows
""",
    "decorated": """
import functools

def doubled(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args) * 2
    return inner

@doubled
@functools.lru_cache(maxsize=3)"""
    + PLAIN,
    "partial": "import functools\n"
    + PLAIN.replace("made", "written")
    + "made = functools.partial(written, 3)",
    "nested": "def outer():" + textwrap.indent(PLAIN, "    ") + "    return made\nmade = outer()",
}
RETURNS = (
    "yield from rows|return f'{rows}'|return f'{rows!r}'|return f'{rows:>9}'|return f'{rows} '|"
    "return '{rows}'|return rows[:1]|return rows[1:]|return rows[1]|return {**rows, 1: 2}|return -1|"
    rf"return {{1: 2, **rows}}|return 1e400|return {'9' * 4000}|return '\ud800'"
)
STARTS = "start=0.0|start=False|start='0'|start=b'0'|start=None|*, start=0"
OTHERS = [
    PLAIN,
    *(PLAIN.replace("return rows", other) for other in RETURNS.split("|")),
    *(PLAIN.replace("start=0", other) for other in STARTS.split("|")),
    PLAIN.replace("count)]", "count + 1)]"),
    PLAIN.replace("rows =", "rows = 0 if not count else"),
    PLAIN.replace("def made", "async def made"),
    PLAIN.replace("count", "number"),
    PLAIN.replace("count,", "count: int,"),
    PLAIN.replace("):", ") -> list:"),
]
RICH = '''
async def made(a, /, b: int = 1, *c, d=-2.5, **e) -> "list[int]":
    """Docstring."""
    async with a as f, b: pass
    g = lambda x, *y: (x, *y, {**e, 1: 2j}, {1, 2}, [i for i in a if i])
    k = (b"\\x00", "é\\ud800", ..., None, True)
    ours = [i async for i in a if i]
    text = f"a{a!r:>{b}}b" "c" f"" f"{c=}" f"{d:}"
    try:
        del g[1:2, ::3]
    except (ValueError, TypeError) as error:
        raise error from None
    match a:
        case {"x": [1, *_], **_rest} | made(b=2, c=_rest) as whole if (n := whole): return n
        case _: global h
    while a < b <= c: await a; break
    else: assert a, "no"
    @property
    def inner(self):
        "A docstring, too."
        return (yield)
'''
numbers = itertools.count()


def loaded(folder: Path, text: str) -> Any:
    """The module of this text."""
    path = folder / f"module_{next(numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SAME)
def test_changes_that_do_not_count(name: str, tmp_path: Path) -> None:
    expected = PLAIN.replace("made", "written") if name == "partial" else PLAIN
    one, other = loaded(tmp_path, expected), loaded(tmp_path, SAME[name])
    found = digest_of(other.made)
    assert found is not None
    assert found == digest_of(getattr(one, "written" if name == "partial" else "made"))


def test_every_change_of_code_counts(tmp_path: Path) -> None:
    found = [digest_of(loaded(tmp_path, text).made) for text in OTHERS]
    assert None not in found
    assert len(set(found)) == len(OTHERS)


def test_a_digest_is_pinned(tmp_path: Path) -> None:
    """It stands in manifests, and must stay the same under later versions of Python."""
    assert digest_of(loaded(tmp_path, PLAIN).made) == "ebac407b000509874fec4660a1f756e1"
    assert (
        digest_of(loaded(tmp_path, "class made:\n    def rows(self): pass").made)
        == "0be28d312809221914965a0d5ddc912a"
    )
    assert digest_of(loaded(tmp_path, RICH).made) == "13d568feab8ff8c27154286e887b5a26"


class Folder:
    def rows(self) -> Any:
        """A text whose lines stand further left than the code."""
        return """
left"""

    @classmethod
    def made(cls) -> Any:
        return cls

    @staticmethod
    def given() -> int:
        return 3

    def __call__(self) -> int:
        return 4


def test_methods_classes_and_callable_objects() -> None:
    folder = Folder()
    given: list[tuple[Any, Any]] = [
        (folder.rows, Folder.rows),
        (Folder.made, folder.made),
        (Folder.given, folder.given),
        (folder, Folder.__call__),
        (functools.partial(folder.rows, 1), Folder.rows),
    ]
    found = [digest_of(one) for one, _ in given]
    assert found == [digest_of(other) for _, other in given]
    assert None not in found
    assert len(set(found)) == 4
    assert digest_of(Folder) not in (None, *found)


def test_without_a_source_there_is_no_digest() -> None:
    made: dict[str, Any] = {}
    exec("def made(): return 1", made)
    made["lambda"] = eval("lambda: 1")
    exec("class Class:\n    def made(self): return 1", made)
    hidden = [made["lambda"], made["made"], made["Class"], made["Class"]().made]
    for function in (*hidden, len, "".join, int, max):
        assert digest_of(function) is None, function
    for odd in (functools.partial(len), functools.partial(made["lambda"]), object(), itertools.count(), None):
        assert digest_of(odd) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "now"),
    [
        (PLAIN, "\ndef other():\n    return 1\n" + PLAIN),
        ("made = lambda y: y < 3", "other = lambda: 44\n\nmade = lambda y: y < 3"),
    ],
    ids=["function", "lambda"],
)
def test_a_file_that_has_changed_since_gives_no_digest(text: str, now: str, tmp_path: Path) -> None:
    module = loaded(tmp_path, text)
    before = digest_of(module.made)
    assert before is not None
    path = Path(module.__file__)
    path.write_text(now)
    os.utime(path, (1, 1))
    assert digest_of(module.made) is None
    path.write_text("x = 1")
    os.utime(path, (2, 2))
    assert digest_of(module.made) is None
    path.unlink()
    assert digest_of(module.made) in (None, before)


def test_code_nested_deeper_than_python_can_follow_has_no_digest(tmp_path: Path) -> None:
    text = PLAIN.replace("return rows", "return " + " + ".join(["1"] * 800))
    module = loaded(tmp_path, text)
    assert digest_of(module.made) != digest_of(loaded(tmp_path, PLAIN).made)


# -- lambdas


def test_lambdas_of_one_line_are_told_apart_by_their_arguments(tmp_path: Path) -> None:
    text = """
LIMIT = 3
one, other = lambda y: y < 3, lambda y: y < 4
two, three = lambda y: y < 3, lambda y, z: y < z
same, equal = lambda y: y < 3, lambda y: y < 3
def within(k):
    return lambda y: lambda z, v=1, *a, w: z < k
four = within(2)
five = four(1)
class Class:
    nine = lambda self: self.__hidden
"""
    made = loaded(tmp_path, text)
    assert digest_of(made.one) is digest_of(made.other) is None
    assert digest_of(made.same) == digest_of(made.equal) == digest_of(made.two)
    found = [digest_of(one) for one in (made.two, made.three, made.four, made.five, made.Class.nine)]
    assert None not in found
    assert len({*found}) == len(found)
    again = loaded(tmp_path, text.replace("LIMIT", "\n\nLIMIT").replace(", lambda", ",  lambda"))
    assert [digest_of(again.two), digest_of(again.three)] == found[:2]


def test_the_layout_of_a_lambda_does_not_count(tmp_path: Path) -> None:
    one = loaded(tmp_path, "made = lambda y: (y < 3) & (y > 1)")
    other = loaded(tmp_path, "made = (\n    lambda y: (y<3)   # low\n    & (\n y > 1)\n)\n")
    different = loaded(tmp_path, "made = lambda y: (y < 4) & (y > 1)")
    assert digest_of(one.made) == digest_of(other.made) == digest_of(functools.partial(one.made))
    assert digest_of(different.made) not in (None, digest_of(one.made))


def test_a_lambda_of_a_notebook_has_a_digest() -> None:
    text, name = "made = lambda y: y < 3\n", "<ipython-input-1>"
    linecache.cache[name] = (len(text), None, [text], name)
    made: dict[str, Any] = {}
    exec(compile(text, name, "exec"), made)
    assert digest_of(made["made"]) == digest_of(lambda y: y < 3)


@pytest.mark.parametrize("read", [digest_of, lambda function: own_code_of(function).source])
@pytest.mark.parametrize("text", [PLAIN, "class made: pass", "made = lambda y: y < 44"])
def test_trees_that_other_threads_disturb_are_read_again(
    read: Callable[[Any], str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, parse, failed = read(loaded(tmp_path, text).made), ast.parse, []

    def disturbed(source: str, *others: Any, **settings: Any) -> ast.Module:
        failed.append(source)
        if failed.count(source) <= 3:
            raise SystemError("AST constructor recursion depth mismatch (before=30, after=24)")
        return parse(source, *others, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", disturbed)
        assert read(loaded(tmp_path, f"{text}\n# {tmp_path}").made) == expected
    assert len(failed) >= 4
