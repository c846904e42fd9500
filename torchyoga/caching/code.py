"""A function -> a digest of its code, the same in every process and under every version of Python.

Code is compared as a syntax tree of our own spelling.
`ast.dump` differs between versions of Python, and so do bytecode and positions; names of nodes and their
fields that are not empty do not. Lines that no longer hold the function give no digest, because a false
warning is worse than none. A lambda has no name to recognise it by: the file must still compile to its code.
Where several of one line have its names and constants, the columns of its code show which it is.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import random
import time
import tokenize
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..process.digests import hexdigest

__all__ = ["definition_of", "digest_of", "inside_of", "lambdas_at", "undisturbed", "words_of"]

_Parsed = TypeVar("_Parsed")
_UNSEEN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_MOST_WRAPPERS = 100
_MOST_TRIES, _PAUSE = 20, 0.02  # seconds


def digest_of(function: Callable[..., object]) -> str | None:
    """32 hex digits that change if the code of a function or class changes; None without its source.

    They are a digest of its syntax tree, so comments, white space and docstrings do not count; nor do its
    decorators, nor what it calls. For a `functools.partial`, a method or a wrapper it is the function inside
    that counts. A lambda counts as a function does. Code typed at a prompt or passed to `exec` has no source.

    Example:
        >>> from torchyoga.storage import Storage
        >>> len(digest_of(Storage.fetch)), digest_of(len)
        (32, None)
    """
    try:
        inside = inside_of(function)
        is_lambda = isinstance(inside, types.FunctionType) and inside.__code__.co_name == "<lambda>"
        words = _lambda_words(inside.__code__) if is_lambda else "\n".join(words_of(definition_of(inside)))
    # `inspect` raises these where there is no source, and where the source is not that of a function.
    except (OSError, TypeError, ValueError, IndexError, SyntaxError, tokenize.TokenError, RecursionError):
        return None
    return hexdigest(words)


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


def undisturbed(parse: Callable[[], _Parsed]) -> _Parsed:
    """The result of parsing, also while other threads parse."""
    for _ in range(_MOST_TRIES - 1):
        # Python 3.11 counts the depth of trees for all threads at once: python/cpython#106905.
        with contextlib.suppress(SystemError):
            return parse()
        time.sleep(_PAUSE * random.random())
    return parse()


def definition_of(function: Callable[..., object]) -> ast.AST:
    """The syntax tree of a function or class."""
    source = undisturbed(lambda: inspect.getsource(function))  # which parses for a class
    is_indented = source[:1].isspace()
    # A block keeps the lines of long texts unchanged, which textwrap.dedent would not.
    text = "if True:\n" + source if is_indented else source
    body: Any = undisturbed(lambda: ast.parse(text)).body
    (found,) = body[0].body if is_indented else body
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        raise ValueError("a lambda")
    if found.name != function.__name__:
        raise ValueError("the file has changed since it was imported")
    found.decorator_list = []
    return found


def _lambda_words(code: types.CodeType) -> str:
    """The syntax tree of a lambda as text; ValueError if the file does not hold it, or two that may be it."""
    lines, _ = inspect.findsource(code)
    trees, codes = _lambdas("".join(lines))
    if not any(_is_same(one, code) for one in codes):
        raise ValueError("the file has changed since it was imported")
    trees = [tree for tree in trees if tree.lineno == code.co_firstlineno]
    found = {"\n".join(words_of(tree)): tree for tree in trees}
    if len(found) > 1:
        found = {words: tree for words, tree in found.items() if _is_like(tree, code)}
    if len(found) > 1:
        trees = [tree for tree in trees if _place(tree.body) == _place_of(code)]
        found = {"\n".join(words_of(tree)): tree for tree in trees}
    if len(found) != 1:
        raise ValueError("another lambda on the line may be this one")
    return next(iter(found))


def lambdas_at(code: types.CodeType) -> list[ast.Lambda]:
    """The lambdas that begin where this one does; OSError or SyntaxError without a source."""
    lines, _ = inspect.findsource(code)
    return [tree for tree in _lambdas("".join(lines))[0] if tree.lineno == code.co_firstlineno]


@functools.lru_cache(maxsize=8)
def _lambdas(source: str) -> tuple[list[ast.Lambda], list[types.CodeType]]:
    """All lambdas of a file, and what they are compiled to."""
    tree = undisturbed(lambda: ast.parse(source))
    codes = [compile(tree, "<lambdas>", "exec", dont_inherit=True)]
    for code in codes:  # which grows
        codes += _inner(code)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    return found, [code for code in codes if code.co_name == "<lambda>"]


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """True for what two readings of one file make of one lambda."""
    return (
        _is_of_same_names(one, other)
        and (one.co_firstlineno, one.co_code) == (other.co_firstlineno, other.co_code)
        and all(_is_same(*both) for both in zip(_inner(one), _inner(other), strict=True))
    )


def _is_of_same_names(one: types.CodeType, other: types.CodeType) -> bool:
    """True if two codes have the same variables, attributes and constants."""
    names = ("co_name", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    counts = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount")
    return (
        all(getattr(one, name) == getattr(other, name) for name in names + counts)
        and len(one.co_consts) == len(other.co_consts)
        and all(
            type(mine) is type(its)
            and (isinstance(mine, (types.CodeType, frozenset)) or ascii(mine) == ascii(its))
            for mine, its in zip(one.co_consts, other.co_consts, strict=True)
            # Those of inner functions say where they stand, before Python 3.11.
            if not (isinstance(its, str) and "<lambda>." in its)
        )
    )


def _is_like(tree: ast.Lambda, code: types.CodeType) -> bool:
    """True for a lambda with the variables, attributes and constants of this code."""
    # Alone, what it captures would be globals. Its code alone may differ: calls of modules' functions do.
    around = undisturbed(lambda: ast.parse(f"def around({', '.join(code.co_freevars)}): return 0"))
    (function,) = around.body
    assert isinstance(function, ast.FunctionDef)
    function.body = [ast.copy_location(ast.Return(tree), function)]
    (outer,) = _inner(compile(around, "<lambda>", "exec", dont_inherit=True))
    return any(_is_of_same_names(inner, code) for inner in _inner(outer))


def _place(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    """Line and column of where an expression begins and ends."""
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _place_of(code: types.CodeType) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The same of what some code was compiled from; None before Python 3.11, which does not say it."""
    if not hasattr(code, "co_positions"):
        return None
    known = [
        ((line, column), (end, end_column))
        for line, end, column, end_column in code.co_positions()
        if None not in (line, end, column, end_column)
        and end_column  # the beginning of the code has no width
    ]
    return (min(start for start, _ in known), max(end for _, end in known)) if known else None


def words_of(node: object) -> Iterator[str]:
    """A syntax tree as text; empty fields are left out, since versions of Python differ in their fields."""
    if isinstance(node, list):
        node = [item for item in node if not _is_comment(item)]
        yield f"[{len(node)}"
        for item in node:
            yield from words_of(item)
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
                yield from words_of(value)
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
