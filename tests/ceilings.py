"""How large the house is, in numbers that only fall: `python tests/ceilings.py` lowers those that fell.

A ceiling that has to rise is changed by hand in `ceilings.json`, and the commit says why.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

__all__ = ["CEILINGS", "SLACK", "counts", "lines_of_code", "nodes_by_file", "parsed", "trees"]

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "torchyoga"
CEILINGS = TESTS / "ceilings.json"
SLACK = 50  # how far a count may lie below its ceiling before that has to be lowered
MOST_PARAMETERS, MOST_TEST_LINES = 8, 800


@cache
def parsed(text: str) -> ast.Module:
    """A file as a syntax tree, parsed once for all copies of the package."""
    return ast.parse(text)


@cache
def trees() -> dict[Path, ast.Module]:
    """Every file of the package as a syntax tree."""
    return {path: parsed(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def lines_of_code(text: str, nodes: Sequence[ast.AST]) -> int:
    """Lines that hold more than a comment or a docstring, of a text and the nodes of its tree."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


@cache
def nodes_by_file() -> dict[Path, list[ast.AST]]:
    """All nodes of each file of the package."""
    return {path: list(ast.walk(tree)) for path, tree in trees().items()}


@cache
def _nodes() -> list[ast.AST]:
    return [node for nodes in nodes_by_file().values() for node in nodes]


@cache
def lines_by_file() -> dict[Path, int]:
    """Lines of code of each file of the package."""
    return {
        path: lines_of_code(path.read_text(encoding="utf-8"), nodes)
        for path, nodes in nodes_by_file().items()
    }


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _num_parameters(function: ast.FunctionDef) -> int:
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    return len(names) + len(function.args.kwonlyargs) - (names[:1] in (["self"], ["cls"]))


def _declares(name: str) -> int:
    """How many files declare an alias that stands in `rows.types`."""
    texts = (path.read_text(encoding="utf-8") for path in trees())
    return sum(bool(re.search(rf"^{name}(: TypeAlias)? = ", text, re.MULTILINE)) for text in texts)


def _is_switch(node: ast.AST, ours: set[str], tuples: dict[str, list[str]]) -> bool:
    """True for `type(x) in (A, B)`, where A and B are classes of other files of ours."""
    if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn))):
        return False
    if not (isinstance(node.left, ast.Call) and _dotted(node.left.func) == "type"):
        return False
    group = node.comparators[0]
    names = [_dotted(part) for part in getattr(group, "elts", [])] or tuples.get(_dotted(group), [])
    return len(ours.intersection(names)) > 1


def _num_type_switches() -> int:
    found = 0
    for path, tree in trees().items():
        nodes = nodes_by_file()[path]
        ours = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.level
            for alias in node.names
        }
        tuples = {
            ast.unparse(node.targets[0]): re.findall(r"\w+", ast.unparse(node.value))
            for node in tree.body
            if isinstance(node, ast.Assign)
        }
        found += sum(_is_switch(node, ours, tuples) for node in nodes)
    return found


def _num_registries() -> int:
    """Lists and dicts of functions or classes that begin empty: others fill them, as an arrow nobody sees."""
    return sum(
        isinstance(node, ast.AnnAssign)
        and bool(re.search(r"Callable|type\[", ast.unparse(node.annotation)))
        and node.value is not None
        and ast.unparse(node.value) in ("{}", "[]", "set()", "dict()", "list()")
        for tree in trees().values()
        for node in tree.body
    )


def _num_foreign_writes() -> int:
    """Fields of an iteration that others than itself write."""
    written = [
        ast.unparse(target)
        for node in _nodes()
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in getattr(target, "elts", [target])
    ]
    return sum(bool(re.search(r"\b_?(iteration|begun|look|run)\.\w+$", target)) for target in written)


@cache
def _tests() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))}


def _num_pokes() -> int:
    """Private names that tests read of objects which are not their own."""
    text = "\n".join(_tests().values())
    own = set(re.findall(r"\b(?:def|class|self\.|cls\.) ?(_[a-z]\w*)", text))
    read = re.findall(r"(?<!self)(?<!cls)\.(_(?!_)\w+)", text)
    return sum(name not in own for name in read)


def _num_patches() -> int:
    return sum(len(re.findall(r"patch\.(?:setattr|setitem)\(", text)) for text in _tests().values())


def _docstrings() -> Iterator[str]:
    for node in _nodes():
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""


@cache
def counts() -> dict[str, int]:
    """Every number that has a ceiling, by name."""
    lines: Counter[str] = Counter()
    for path, number in lines_by_file().items():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        lines[f"lines of {room}"] += number
    nodes = _nodes()
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    calls = Counter(_dotted(node.func) for node in nodes if isinstance(node, ast.Call))
    return {
        "lines": sum(lines.values()),
        **dict(sorted(lines.items())),
        "files": len(trees()),
        "files below 40 lines": sum(
            number < 40 for path, number in lines_by_file().items() if not path.name.startswith("__")
        ),
        "class names in several files": sum(many > 1 for many in classes.values()),
        "classes of one name": max(classes.values()),
        "functions with more than 8 parameters": sum(
            _num_parameters(function) > MOST_PARAMETERS for function in functions
        ),
        "files that declare Ints": _declares("Ints"),
        "files that declare Seeds": _declares("Seeds"),
        "calls of cumsum": calls["np.cumsum"],
        "calls of blake2b": calls["hashlib.blake2b"] + calls["blake2b"],
        "names called found": names["found"],
        "docstrings that begin with What": sum(text.startswith("What ") for text in _docstrings()),
        "registries of functions": _num_registries(),
        "type switches over classes of ours": _num_type_switches(),
        "fields of iterations written by others": _num_foreign_writes(),
        "private names read by tests": _num_pokes(),
        "patches in tests": _num_patches(),
        "test files above 800 lines": sum(text.count("\n") > MOST_TEST_LINES for text in _tests().values()),
    }


def lower() -> None:
    """Lowers the ceilings of what has fallen; raises none, but new names get one."""
    before = json.loads(CEILINGS.read_text(encoding="utf-8")) if CEILINGS.exists() else {}
    after = {name: min(number, before.get(name, number)) for name, number in counts().items()}
    CEILINGS.write_text(json.dumps(after, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    lower()
