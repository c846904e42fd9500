"""The objects that a dataset holds, each with the attribute that leads to it; bounded in number and time."""

from __future__ import annotations

import dis
import functools
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import NamedTuple

_MOST, _MOST_ITEMS, _DEEPEST = 20_000, 64, 12
_SECONDS = 1.0
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, str(Path(__file__).parents[2]) + os.sep)
# Nothing to look into; loggers renew their locks after a fork.
_LEAVES = (
    *(str, bytes, bytearray, int, float, complex, type(None), range),
    *(type, type(os), type(len), logging.Filterer),
)


class HeldObject(NamedTuple):
    """An object that is held.

    Attributes:
        path: how to get to it, such as `dataset.files['a']`.
        value: the object.
        is_ours: True if an object of torchyoga's holds it: those renew what they hold in each process.
    """

    path: str
    value: object
    is_ours: bool


def walk(dataset: object, with_globals: bool = False, **others: object) -> Iterator[HeldObject]:
    """The object itself, and what its attributes, items and closures hold. Nothing of it is called.

    Args:
        dataset: the object.
        with_globals: True for attributes of classes, and the globals that methods and functions name, too.
        others: objects besides, by what their paths begin with.
    """
    ends = time.monotonic() + _SECONDS
    waiting = deque((HeldObject(name, one, False), 0) for name, one in {"dataset": dataset, **others}.items())
    seen = {id(dataset)}
    for _ in range(_MOST):
        if not waiting or time.monotonic() > ends:
            return
        held, depth = waiting.popleft()
        yield held
        if depth >= _DEEPEST:
            continue
        is_ours = type(held.value).__module__.partition(".")[0] == "torchyoga" or (
            held.is_ours and isinstance(held.value, (list, tuple, dict, set, frozenset))
        )
        parts = [*_parts(held), *(_globals(held.value) if with_globals else ())]
        for path, value in parts:
            if not isinstance(value, _LEAVES) and id(value) not in seen:
                seen.add(id(value))
                waiting.append((HeldObject(path, value, is_ours), depth + 1))


def _parts(held: HeldObject) -> Iterator[tuple[str, object]]:
    """The parts of an object, each with its path; properties are not called."""
    path, value = held.path, held.value
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r:.40}]", item) for key, item in islice(value.items(), _MOST_ITEMS))
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(value[:_MOST_ITEMS]))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{path}{{...}}", item) for item in islice(value, _MOST_ITEMS))
    elif isinstance(value, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            with suppress(ValueError):  # it has no value yet
                yield f"{path}.<{variable}>", cell.cell_contents
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    with suppress(AttributeError):
        for name, part in list(object.__getattribute__(value, "__dict__").items()):
            yield f"{path}.{name}", part
    for kind in type(value).__mro__:
        for name, descriptor in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(descriptor, MemberDescriptorType):
                with suppress(AttributeError):  # it is not set
                    yield f"{path}.{name}", descriptor.__get__(value, kind)


def numbers_of(held: HeldObject) -> list[float]:
    """The length of a container, and the numbers that an object keeps."""
    sizes = [len(held.value)] if isinstance(held.value, (list, dict, set)) else []
    return sizes + [one for _, one in _parts(held) if isinstance(one, (int, float))]


def is_of_library(kind: type) -> bool:
    """True for a class of Python's own or of an installed package."""
    root = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return root in sys.stdlib_module_names or is_library_file(file or "")


def is_library_file(file: str) -> bool:
    """True for a file of Python's own, of an installed package or of torchyoga."""
    return any(part in file for part in ("site-packages", "dist-packages")) or file.startswith(_LIBRARIES)


def _globals(value: object) -> Iterator[tuple[str, object]]:
    """The globals that a function of the user's, or the methods of an object of the user's class, name."""
    functions = [value] if isinstance(value, FunctionType) else []
    kinds = () if functions or is_of_library(type(value)) else type(value).__mro__
    for kind in kinds:
        for name, one in vars(kind).items() if not is_of_library(kind) else ():
            if isinstance(one, (FunctionType, staticmethod, classmethod)):
                one = getattr(one, "__wrapped__", one)
            if isinstance(one, FunctionType):
                functions.append(one)
            elif not hasattr(type(one), "__get__") or hasattr(one, "cache_info"):
                yield f"{kind.__module__}.{kind.__name__}.{name}", one
    for function in (one for one in functions if not is_library_file(one.__code__.co_filename)):
        for name in dict.fromkeys(names_in(function.__code__, only_globals=True)):
            if name in function.__globals__:
                yield f"{function.__module__}.{name}", function.__globals__[name]


def names_in(code: CodeType, only_globals: bool = False) -> Iterator[str]:
    """The globals, and the attributes unless `only_globals`, that code and the functions within it name."""
    loaded = (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
    yield from loaded if only_globals else code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant, only_globals)
