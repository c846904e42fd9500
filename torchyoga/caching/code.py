"""A function -> a digest of its code, the same in every process and under every version of Python.

Note 60. Code is compared as a syntax tree of our own spelling.
`ast.dump` differs between versions of Python, and so do bytecode and positions; names of nodes and their
fields that are not empty do not. Lines that no longer hold the function give no digest, because a false
warning is worse than none.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import tokenize
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["digest_of"]

_UNSEEN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_MOST_WRAPPERS = 100


def digest_of(function: Callable[..., object]) -> str | None:
    """32 hex digits that change if the code of a function or class changes; None without its source.

    They are a digest of its syntax tree, so comments, white space and docstrings do not count; nor do its
    decorators, nor what it calls. For a `functools.partial`, a method or a wrapper it is the function inside
    that counts. A lambda has no lines of its own, and code typed at a prompt or passed to `exec` has none.

    Example:
        >>> from torchyoga.storage import Storage
        >>> len(digest_of(Storage.fetch)), digest_of(lambda: 1)
        (32, None)
    """
    try:
        words = "\n".join(_words(_definition(_inside(function))))
    # `inspect` raises these where there is no source, and where the source is not that of a function.
    except (OSError, TypeError, ValueError, IndexError, SyntaxError, tokenize.TokenError, RecursionError):
        return None
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


def _inside(function: Callable[..., object]) -> Callable[..., object]:
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


def _definition(function: Callable[..., object]) -> ast.AST:
    """The syntax tree of a function or class."""
    source = inspect.getsource(function)
    is_indented = source[:1].isspace()
    # A block keeps the lines of long texts unchanged, which textwrap.dedent would not.
    (found,) = ast.parse("if True:\n" + source).body[0].body if is_indented else ast.parse(source).body  # type: ignore[attr-defined]
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        raise ValueError("a lambda")
    if found.name != function.__name__:
        raise ValueError("the file has changed since it was imported")
    found.decorator_list = []
    return found


def _words(node: object) -> Iterator[str]:
    """A syntax tree as text; empty fields are left out, since versions of Python differ in their fields."""
    if isinstance(node, list):
        yield f"[{len(node)}"
        for item in node:
            yield from _words(item)
    elif not isinstance(node, ast.AST):
        yield f"{type(node).__name__} {hex(node) if type(node) is int else ascii(node)}"
    else:
        yield type(node).__name__
        for name in sorted(set(node._fields) - _UNSEEN):
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                value = value[ast.get_docstring(node, clean=False) is not None :]
            elif isinstance(node, ast.JoinedStr):
                value = _joined(value)
            if isinstance(node, ast.Constant) or (value is not None and value != []):
                yield name
                yield from _words(value)
        yield "."


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
