"""The objects that a dataset holds, each with the attribute that leads to it; bounded in number and time."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import NamedTuple

__all__ = ["HeldObject", "walk"]

_MOST, _MOST_ITEMS, _DEEPEST = 20_000, 64, 12
_SECONDS = 1.0
_LEAVES = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    bool,
    type(None),
    range,
    type,
    ModuleType,
    BuiltinFunctionType,
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


def walk(thing: object, name: str = "dataset") -> Iterator[HeldObject]:
    """The object itself, and what its attributes, items and closures hold. Nothing of it is called."""
    ends = time.monotonic() + _SECONDS
    waiting = deque([(HeldObject(name, thing, False), 0)])
    seen = {id(thing)}
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
        for path, value in _parts(held):
            if not isinstance(value, _LEAVES) and id(value) not in seen:
                seen.add(id(value))
                waiting.append((HeldObject(path, value, is_ours), depth + 1))


def _parts(held: HeldObject) -> Iterator[tuple[str, object]]:
    path, value = held.path, held.value
    if isinstance(value, dict):
        for number, (key, item) in enumerate(list(value.items())):
            if number == _MOST_ITEMS:
                return
            yield f"{path}[{key!r:.40}]", item
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value[:_MOST_ITEMS]):
            yield f"{path}[{number}]", item
    elif isinstance(value, (set, frozenset)):
        for _, item in zip(range(_MOST_ITEMS), list(value), strict=False):
            yield f"{path}{{...}}", item
    elif isinstance(value, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f"{path}.<{variable}>", cell.cell_contents
            except ValueError:  # it has no value yet
                continue
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        for number, item in enumerate(value.args[:_MOST_ITEMS]):
            yield f"{path}.args[{number}]", item
        for key, item in list(value.keywords.items())[:_MOST_ITEMS]:
            yield f"{path}.keywords[{key!r:.40}]", item
    yield from _attributes(path, value)


def _attributes(path: str, value: object) -> Iterator[tuple[str, object]]:
    """The attributes that the object itself keeps; properties are not asked."""
    try:
        kept = object.__getattribute__(value, "__dict__")
    except AttributeError:
        kept = {}
    if isinstance(kept, Mapping):
        for name, part in list(kept.items()):
            yield f"{path}.{name}", part
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            descriptor = kind.__dict__.get(private)
            if isinstance(descriptor, MemberDescriptorType):
                try:
                    yield f"{path}.{name}", descriptor.__get__(value, kind)
                except AttributeError:  # it is not set
                    continue
