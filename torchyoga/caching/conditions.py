"""A condition -> a record of its code, its defaults and what it captures; and what differs from a record."""

from __future__ import annotations

import secrets
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..versions.manifest import FunctionEntry
from .arguments import encoded, inside, salted
from .code import digest_of

__all__ = ["differing", "recorded"]

_Function: TypeAlias = Callable[..., object]
_NAME = "name"  # of the digest of the function's own name


def recorded(condition: _Function) -> FunctionEntry:
    """The record of a condition; what has no digest, such as an object of a user's class, is left out.

    Example:
        >>> below = lambda k: lambda y: y < k
        >>> differing(recorded(below(5)), below(6)), differing(recorded(below(5)), below(5))
        (['captured k'], [])
    """
    salt = secrets.token_hex(16)
    values = _values(condition, frozenset())
    digests = {name: salted(salt, name, value) for name, value in values.items()}
    return FunctionEntry(digest_of(condition), salt, digests)


def differing(entry: FunctionEntry, condition: _Function) -> list[str]:
    """What of a condition differs from a record: "code", "default low", "captured low", "argument 0"."""
    code, values = digest_of(condition), _values(condition, frozenset())
    found = ["code"] if None not in (code, entry.code) and code != entry.code else []
    for name in sorted({*values, *entry.arguments}):
        if name == _NAME and None not in (code, entry.code):
            continue  # a function may move
        now = salted(entry.salt, name, values[name]) if name in values else None
        if now != entry.arguments.get(name):
            found.append(name)
    return found


def _values(function: _Function, within: frozenset[int]) -> dict[str, bytes]:
    """Everything besides its code that a function depends on, as `encoded` gives it."""
    found = {name: _encoded(value, within | {id(function)}) for name, value in _parts(function)}
    return {name: value for name, value in found.items() if value is not None}


def _parts(function: _Function) -> Iterator[tuple[str, object]]:
    yield _NAME, function  # of one without source, such as NumPy's, it is all that is known
    written, bound = inside(function)
    for layer, (args, named) in enumerate(bound):
        more = f" of layer {layer}" if layer else ""
        yield from ((f"argument {number}{more}", value) for number, value in enumerate(args))
        yield from ((f"argument {name}{more}", value) for name, value in named.items())
    if isinstance(written, types.FunctionType):
        code, defaults = written.__code__, written.__defaults__ or ()
        last = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        named_defaults: Mapping[str, object] = written.__kwdefaults__ or {}
        yield from ((f"default {name}", value) for name, value in zip(last, defaults, strict=True))
        yield from ((f"default {name}", value) for name, value in named_defaults.items())
        for name, cell in zip(code.co_freevars, written.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing has been assigned yet
                continue
            yield f"captured {name}", value


def _encoded(value: object, within: frozenset[int]) -> bytes | None:
    try:
        return encoded(value)
    except TypeError:
        pass
    # A lambda, or a function within a function, has no name, but a code; one may capture itself.
    if not isinstance(value, types.FunctionType) or id(value) in within:
        return None
    code = digest_of(value)
    return None if code is None else encoded([code, _values(value, within)])
