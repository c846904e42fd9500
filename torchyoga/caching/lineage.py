"""Whatever makes a version -> its lineage (code, commit, packages, user, time), and digests of code.

Nothing that may be secret is recorded.
No environment variable, no argument, no path and no remote of git; the source text and the host stay in
directories of this machine. See docs/caching.md.

Code is compared as a syntax tree of our own spelling, the same under every version of Python.
`ast.dump` differs between versions of Python, and so do bytecode and positions; names of nodes and their
fields that are not empty do not. Lines that no longer hold the function give no digest, because a false
warning is worse than none.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import os
import platform
import random
import socket
import subprocess
import symtable
import sys
import textwrap
import time
import tokenize
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ..process.digests import hexdigest
from ..rows.types import Json
from ..stores.history import check_message, user_name
from ..versions.lineage import MOST_SOURCE

_GIT_SECONDS = 2.0
_LIBRARIES = ("torch", "numpy", "builtins", "torchyoga", "tensorflow", "keras", "datasets", "pandas")
# By functions and classes, whose code stays as it was imported.
_known: weakref.WeakKeyDictionary[Any, tuple[str, str, set[str]]] = weakref.WeakKeyDictionary()
_Parsed = TypeVar("_Parsed")
_UNSEEN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_MOST_WRAPPERS, _MOST_PARTS = 100, 500
_MOST_TRIES, _PAUSE = 20, 0.02  # seconds
# What `inspect` and the parser raise where there is no source, or not that of a function.
_NO_SOURCE = (OSError, TypeError, ValueError, IndexError, SyntaxError, tokenize.TokenError, RecursionError)


def check_record(record: object, message: object) -> None:
    """Raises ValueError or TypeError unless these are `record` and `message` of a build."""
    if type(record) is not bool:
        raise ValueError(f"record must be True or False, found {record!r:.80}")
    check_message(message)
    if message is not None and not record:
        raise ValueError("message is a part of what record=False leaves out; pass one of them")


def lineage_of(made_by: object, record: bool, message: str | None = None) -> Callable[[float], Json]:
    """A function that makes the lineage of a version from the seconds that it took.

    Args:
        made_by: the function that makes the rows, or the data that gives them.
        record: False for an empty lineage.
        message: what the user says about it.

    Raises:
        ValueError, TypeError: `record` or `message` is something else.

    Example:
        >>> found = lineage_of([1, 2], record=True, message="two rows")(0.5)
        >>> found["message"], found["seconds"], "function" in found
        ('two rows', 0.5, False)
    """
    check_record(record, message)
    return functools.partial(_lineage, _code_of(made_by), record, message)


def _code_of(made_by: object) -> Callable[..., object] | None:
    """The function or class whose code makes the rows; None if that is a library's."""
    if inspect.isroutine(made_by) or isinstance(made_by, (type, functools.partial)):
        return made_by
    if made_by is None:
        return None
    found = type(made_by)
    return None if found.__module__.partition(".")[0] in _LIBRARIES else found


def _lineage(
    function: Callable[..., object] | None, record: bool, message: str | None, seconds: float
) -> Json:
    if not record:
        return {}
    own = OwnCode(None, "") if function is None else own_code_of(function)
    inside = None if function is None else inside_of(function)
    module = getattr(inside, "__module__", None) or "__main__"
    found: Json = {
        "function": None if inside is None else f"{module}.{getattr(inside, '__qualname__', '?')}"[:300],
        "code": None if function is None else _digest_of_all(function, own),
        "packages": _packages(),
        "user": user_name(),
        "host": socket.gethostname()[:300],
        "seconds": round(seconds, 3),
        "message": message,
        "source": own.source.encode(errors="backslashreplace").decode(),
        **commit_of(_folder_of(module)),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _digest_of_all(function: Callable[..., object], own: OwnCode) -> str | None:
    code = digest_of(function)
    if code is None:
        return None
    text = "\n".join([code, *(f"{name} {digest}" for name, digest in sorted((own.parts or {}).items()))])
    return hexdigest(text.encode(errors="backslashreplace"))


def _packages() -> dict[str, str]:
    """Versions of Python and of what every dataset needs, by name."""
    own = getattr(sys.modules.get(__name__.partition(".")[0]), "__version__", None)
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}
    return {**found, "torchyoga": own} if isinstance(own, str) else found


def _folder_of(module: str) -> str | None:
    """The folder of the file of a module, else of the program; None if there is none."""
    for name in (module, "__main__"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and os.path.isfile(file):
            return os.path.dirname(os.path.abspath(file))
    return None


@functools.lru_cache(maxsize=64)  # the code that runs is that of the first look
def commit_of(folder: str | None) -> Json:
    """The git commit of a folder, and whether files that it tracks have changed; empty without git."""
    if folder is None:
        return {}
    command = ["git", "-c", "core.fsmonitor=false", "-C", folder, "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(
            [*command, "--untracked-files=no", "--ignore-submodules"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    lines = done.stdout.decode(errors="replace").splitlines()
    commits = [line.rpartition(" ")[2] for line in lines if line.startswith("# branch.oid ")]
    if len(commits) != 1 or not set(commits[0]) <= set("0123456789abcdef"):  # before the first commit
        return {}
    return {"commit": commits[0], "dirty": any(not line.startswith("#") for line in lines)}


def digest_of(function: Callable[..., object]) -> str | None:
    """32 hex digits that change if the code of a function or class changes; None without its source.

    They are a digest of its syntax tree, so comments, white space and docstrings do not count; nor do its
    decorators, nor what it calls. For a `functools.partial`, a method or a wrapper it is the function inside
    that counts. A lambda counts as a function does, unless its line has another one like it. Code typed at a
    prompt or passed to `exec` has no source.

    Example:
        >>> from torchyoga.storage import Storage
        >>> len(digest_of(Storage.fetch)), digest_of(len)
        (32, None)
    """
    try:
        return _digest(_tree_of(inside_of(function)))
    except _NO_SOURCE:
        return None


class OwnCode(NamedTuple):
    """The code of a function, and of its own module.

    Attributes:
        parts: a digest of each function, class and constant of the module that the function names, or that
            these name in turn, by name; None if one of them has no source.
        source: the source of the function and of these, without comments, 64 KiB at most.
    """

    parts: dict[str, str] | None
    source: str


def own_code_of(function: Callable[..., object]) -> OwnCode:
    """The code of a function or class, and of its own module; empty if it has no source.

    Functions and classes are those that the names are bound to now; of anything else it is the expression
    that the module assigns to the name that counts, since a list may grow while the program runs.

    Example:
        >>> found = own_code_of(digest_of)
        >>> found.source.startswith("def digest_of"), "inside_of" in found.parts, "ast" in found.parts
        (True, True, False)
    """
    first = inside_of(function)
    names, bound = _names_of_module(first)
    waiting: deque[tuple[str, object]] = deque([("", first)])
    seen: set[object] = {id(first)}
    parts: dict[str, str] = {}
    sources, left = list[str](), MOST_SOURCE
    while waiting and len(parts) < _MOST_PARTS:
        part, value = waiting.popleft()
        try:
            digest, text, named = _read(value, bound.get(part))
        except _NO_SOURCE:
            return OwnCode(None, "\n\n\n".join(sources))
        if part:
            parts[part] = digest
        left -= len(text.encode(errors="replace")) + 3
        sources += [text] * (left >= 0)
        captured = {f"captured {name}": one for name, one in captured_by(value)}
        for name, one in [*captured.items(), *((name, names.get(name)) for name in sorted(named))]:
            inside = inside_of(one) if callable(one) else None
            is_own = isinstance(inside, (types.FunctionType, type)) and inside.__module__ == first.__module__
            found = inside if is_own else bound.get(name)
            if found is not None and id(found) not in seen:
                seen.add(id(found))
                waiting.append((name, found))
    return OwnCode(parts, "\n\n\n".join(sources))


def _names_of_module(function: Any) -> tuple[Mapping[str, object], dict[str, ast.stmt]]:
    """The names of a function's module: what they are bound to now, and the statements that bind them."""
    module = sys.modules.get(getattr(function, "__module__", None) or "__main__")
    names = getattr(function, "__globals__", None) or getattr(module, "__dict__", {})
    bound: dict[str, ast.stmt] = {}
    with contextlib.suppress(*_NO_SOURCE):
        file = inspect.getfile(function)
        linecache.checkcache(file)
        for statement in _parsed("".join(linecache.getlines(file))).body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound[statement.name] = statement
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                stored = (node for target in targets for node in ast.walk(target))
                bound |= {node.id: statement for node in stored if isinstance(node, ast.Name)}
    return names, bound


def _read(value: Any, statement: ast.stmt | None) -> tuple[str, str, set[str]]:
    """A digest of a function, class or statement, its text, and the names that it looks up in its module.

    Args:
        value: the function, class or statement.
        statement: what counts if a class has no source, as a namedtuple has none.
    """
    if value not in _known:
        try:
            tree = value if isinstance(value, ast.stmt) else _tree_of(value)
        except _NO_SOURCE:
            if statement is None:
                raise
            tree = statement
        text = ast.unparse(tree)
        _known[value] = _digest(tree), text, _named_in(text, value)
    return _known[value]


def captured_by(value: object) -> Iterator[tuple[str, object]]:
    """The variables of enclosing functions that a function uses, and their values."""
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing has been assigned yet
                yield name, cell.cell_contents


def _named_in(text: str, value: object) -> set[str]:
    """The names that some code looks up in its module."""
    if isinstance(value, types.FunctionType) and value.__code__.co_freevars:
        # Else these would be names of the module.
        text = f"def around({', '.join(value.__code__.co_freevars)}):\n{textwrap.indent(text, ' ')}"
    tables = [symtable.symtable(text, "<code>", "exec")]
    for table in tables:  # which grows
        tables += table.get_children()
    return {one.get_name() for table in tables for one in table.get_symbols() if one.is_global()}


def inside_of(function: Callable[..., object]) -> Callable[..., object]:
    """The function or class as the user wrote it, without wrappers."""
    for _ in range(_MOST_WRAPPERS):
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            break
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


def _undisturbed(parse: Callable[[], _Parsed]) -> _Parsed:
    """The result of parsing, also while other threads parse."""
    for _ in range(_MOST_TRIES - 1):
        # Python 3.11 counts the depth of trees for all threads at once: python/cpython#106905.
        with contextlib.suppress(SystemError):
            return parse()
        time.sleep(_PAUSE * random.random())
    return parse()


def _tree_of(function: Any) -> ast.AST:
    """The syntax tree of a function, class or lambda; raises one of `_NO_SOURCE` if there is none."""
    if isinstance(function, types.FunctionType) and function.__code__.co_name == "<lambda>":
        return _lambda_of(function.__code__)
    source = _undisturbed(lambda: inspect.getsource(function))  # which parses for a class
    is_indented = source[:1].isspace()
    # A block keeps the lines of long texts unchanged, which textwrap.dedent would not.
    text = "if True:\n" + source if is_indented else source
    body: Any = _undisturbed(lambda: ast.parse(text)).body
    (found,) = body[0].body if is_indented else body
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        raise ValueError("not a definition")
    if found.name != function.__name__:
        raise ValueError("the file has changed since it was imported")
    found.decorator_list = []
    return found


def _lambda_of(code: types.CodeType) -> ast.Lambda:
    """The syntax tree of a lambda; ValueError if its line has no lambda of these arguments, or two."""
    count = code.co_argcount + code.co_kwonlyargcount
    trees = [
        node
        for node in ast.walk(_parsed("".join(inspect.findsource(code)[0])))
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        == [*code.co_varnames[:count]]
    ]
    if len({*map(_digest, trees)}) != 1:
        raise ValueError("the file has changed, or another lambda of the line may be this one")
    return trees[0]


@functools.lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    """The syntax tree of a file."""
    return _undisturbed(lambda: ast.parse(source))


def _digest(tree: ast.AST) -> str:
    return hexdigest("\n".join(_words_of(tree)))


def _words_of(node: object) -> Iterator[str]:
    """A syntax tree as text; empty fields are left out, since versions of Python differ in their fields."""
    if isinstance(node, list):
        node = [item for item in node if not _is_comment(item)]
        yield f"[{len(node)}"
        for item in node:
            yield from _words_of(item)
    elif not isinstance(node, ast.AST):
        yield f"{type(node).__name__} {hex(node) if type(node) is int else ascii(node)}"
    else:
        yield type(node).__name__
        for name in sorted(set(node._fields) - _UNSEEN):
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                value = [item for item in value if not _is_comment(item)]
            elif isinstance(node, ast.JoinedStr):
                value = _joined(value)
            elif isinstance(node, ast.Delete):  # formatters leave out brackets
                value = [one for target in value for one in getattr(target, "elts", [target])]
            if isinstance(node, ast.Constant) or (value is not None and value != []):
                yield name
                yield from _words_of(value)
        yield "."


def _is_comment(node: object) -> bool:
    """True for a text that stands alone, as below an attribute, which does nothing."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, (str, bytes))
    )


def _joined(parts: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string, joined: where its text is cut differs between versions of Python."""
    found: list[ast.expr] = []
    for part in parts:
        if not isinstance(part, ast.Constant):
            found.append(part)
        elif found and isinstance(found[-1], ast.Constant):
            found[-1] = ast.Constant(str(found[-1].value) + str(part.value))
        elif part.value:
            found.append(part)
    return found
