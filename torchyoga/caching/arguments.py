"""A call of a function -> the version that it chooses, and digests of the arguments that do not choose it.

Arguments are compared by digests with a salt that is stored with them.
So a conversion to another version keeps them, and two versions cannot be compared. The digests are not made
by `pickle` or `hash`, which differ between processes, nor by `repr`, which abbreviates.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import inspect
import secrets
import string
import sys
import types
import uuid
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import torch

from ..errors import SchemaError
from ..process.digests import hexdigest
from ..reading.dataref import DataRef
from ..rows import column as leaves
from ..rows.types import Array
from ..versions.manifest import FunctionEntry
from .lineage import captured_by, digest_of

_MOST_DEPTH = 64
_CAPTURED = "captured "  # begins the names of what a function has captured from an enclosing one
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_LAYERS = 100  # of partials and methods
_VALUE = ": value"  # ends the name of the digest of a templated argument's value; without it, of its text

# Their text says everything, the same in every process; that of their subclasses may not.
_AS_TEXT = (decimal.Decimal, fractions.Fraction, uuid.UUID)
_MOMENTS = (datetime.date, datetime.datetime, datetime.time)

_Passed: TypeAlias = tuple[tuple[object, ...], dict[str, object]]  # the arguments of a call


class Function:
    """A function whose arguments choose a version, by the fields of the templates `id` and `version`.

    Args:
        function: anything that can be called.
        id: text with the names of parameters in braces; `{{` and `}}` are braces.
        version: a template like `id`.
        ignore: names of arguments that the rows do not depend on.

    Raises:
        ValueError: a template or `ignore` names something that is not a parameter.

    Example:
        >>> def mnist(root, train=True): ...
        >>> call = Function(mnist, "mnist", "1-{train}", ignore=["root"]).call("/data")
        >>> call.id, call.version, call.names
        ('mnist', '1-True', [])
    """

    def __init__(
        self, function: Callable[..., object], id: str, version: str, ignore: Collection[str]
    ) -> None:
        if isinstance(function, (staticmethod, classmethod)):
            kind = leaves.type_name(type(function))
            raise TypeError(f"cacheable decorates functions, found a {kind}; put @cacheable below @{kind}")
        if not callable(function):
            raise TypeError(f"cacheable decorates functions, found a {leaves.type_name(type(function))}")
        self.name = getattr(function, "__name__", None) or type(function).__name__
        self._written, self._bound = _inside(function)
        self._signature = _signature(self._written)
        # A wrapper may take other arguments than the function inside, and pass it the rest.
        self._outer = _signature(self._written, follow_wrapped=False)
        self._templates = [_parsed("id", id, self), _parsed("version", version, self)]
        self._named = {field for template in self._templates for _, field in template if field}
        if isinstance(ignore, str):
            raise TypeError(
                f"ignore must be names of arguments, such as [{ignore!r}], found the text {ignore!r}"
            )
        self._ignore = frozenset(ignore)
        unknown = sorted(self._ignore - set(self.parameters))
        if unknown and not self._takes_any:
            raise ValueError(f"ignore names {unknown}, but {self.name} has the arguments {self.parameters}")

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters."""
        return list(self._signature.parameters)

    @property
    def _takes_any(self) -> bool:
        return any(found.kind is found.VAR_KEYWORD for found in self._signature.parameters.values())

    def call(self, /, *args: object, **kwargs: object) -> Call:
        """The version that this call chooses.

        Raises:
            TypeError: the function does not take these arguments; or an argument that counts has no digest,
                or no text for its template.
        """
        args, kwargs = _joined(self._bound, args, kwargs)
        bound = self._bind(args, kwargs)
        bound.apply_defaults()
        texts = {name: self._text(name, bound.arguments[name]) for name in self._named}
        id, version = (
            "".join(literal + (texts[field] if field else "") for literal, field in template)
            for template in self._templates
        )
        checked, nameable = {}, set()
        for name, value in self._flat(bound).items():
            if name in self._named:
                # Two calls may make the same text: "a-b" and "c" do with "a" and "b-c", and 1 with "1".
                checked[f"{{{name}}}"] = encoded(texts[name])
                checked[f"{{{name}}}{_VALUE}"] = encoded(value)
            elif name not in self._ignore:
                checked[name] = self._encoded(name, value)
                if name in bound.arguments and _text(value) is not None:
                    nameable.add(name)
        return Call(self, id, version, checked, frozenset(nameable))

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            with contextlib.suppress(TypeError):
                bound = self._outer.bind(*args, **kwargs)
                if self._named <= set(bound.arguments):
                    return bound
            raise TypeError(f"{self.name}: {error}") from None

    @property
    def captured(self) -> dict[str, bytes]:
        """The numbers and texts that it, or a wrapper, captured from an enclosing function, as `encoded`."""
        found: dict[str, bytes] = {}
        function: Callable[..., object] | None = self._written
        for _ in range(_MOST_LAYERS):
            for name, value in captured_by(getattr(function, "__func__", function)):
                if type(value) in _PLAIN and name not in self._ignore:
                    found.setdefault(f"{_CAPTURED}{name}", encoded(value))
            function = getattr(function, "__wrapped__", None)
        return found

    def default(self, name: str) -> bytes | None:
        """The default of a parameter, as `encoded` gives it; None if there is none."""
        parameter = self._signature.parameters.get(name)
        if parameter is None or parameter.kind is parameter.VAR_KEYWORD:
            return None
        value = () if parameter.kind is parameter.VAR_POSITIONAL else parameter.default
        try:
            return None if value is parameter.empty else encoded(value)
        except TypeError:
            return None

    def takes(self, name: str) -> bool:
        """True for an argument that the function still takes, or that is ignored."""
        return name in self._ignore or name in self.parameters or self._takes_any

    def counts(self, name: str) -> bool:
        """True for an argument that the function still takes, and that is to be compared."""
        if name.startswith(("{", _CAPTURED)) or name in self._ignore | self._named:
            return False
        return name in self.parameters or self._takes_any

    def _flat(self, bound: inspect.BoundArguments) -> dict[str, object]:
        """The arguments by name, each of **kwargs by its own."""
        found: dict[str, object] = {}
        parameters = bound.signature.parameters
        for name, value in bound.arguments.items():
            if parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
                found[name] = value
            elif name not in self._ignore:
                found |= {
                    f"**{key}" if key in parameters else key: value[key]
                    for key in value
                    if key not in self._ignore
                }
        return found

    def _encoded(self, name: str, value: object) -> bytes:
        try:
            return encoded(value)
        except TypeError as error:
            raise TypeError(
                f"{self.name}: nothing shows whether a version was made with the same {name!r}: {error}. "
                "Pass what stands for it, such as a name, a number or a dict of settings, and make it inside "
                f"{self.name}; or pass ignore=[{name!r}] if the rows do not depend on it"
            ) from None

    def _text(self, name: str, value: object) -> str:
        text = _text(value)
        if text is None:
            kind = leaves.type_name(type(value))
            raise TypeError(
                f"{self.name}: {{{name}}} in id or version is a {kind}, whose text is not the "
                "same in every process or says only a part of it; pass text or a number that stands for it. "
                "Braces take text, numbers, None, paths, enums, dates, UUIDs, dtypes and devices, and lists "
                "and tuples of them"
            )
        return text


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Attributes:
        function: the function.
        id: the id that it chooses; `version`: the version.
        checked: the arguments, as `encoded` gives them; those in templates by their texts and values.
        nameable: names of other arguments that a template could name.
    """

    function: Function
    id: str
    version: str
    checked: dict[str, bytes]
    nameable: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The names of the arguments that do not choose the version."""
        return [name for name in self.checked if not name.startswith("{")]

    def noted(self, code: str | None) -> FunctionEntry:
        """The record of this call in a version that it makes; `code` is the digest of the function."""
        salt = secrets.token_hex(16)
        every = {**self.checked, **self.function.captured}
        return FunctionEntry(code, salt, {name: salted(salt, name, every[name]) for name in every})

    def captured_differing(self, entry: FunctionEntry) -> list[str]:
        """The captured variables of the function that were different when a version was made."""
        return [
            name.removeprefix(_CAPTURED)
            for name, text in self.function.captured.items()
            if entry.arguments.get(name) not in (None, salted(entry.salt, name, text))
        ]

    def differing(self, entry: FunctionEntry) -> list[str]:
        """The names of arguments that differ from those of the call that made a version.

        An argument that the function did not have then counts as its default.
        """
        # An argument that a template names has two digests.
        return list(dict.fromkeys(_plain_name(name) for name in self._differing(entry)))

    def differing_in_all(self, entry: FunctionEntry) -> list[str]:
        """The names of arguments, and of captured variables, that differ."""
        return self.differing(entry) + self.captured_differing(entry)

    def _differing(self, entry: FunctionEntry) -> list[str]:
        """The names of the digests that differ."""
        found = []
        for name, text in self.checked.items():
            if name in entry.arguments:
                differs = entry.arguments[name] != salted(entry.salt, name, text)
            else:  # the function did not have it then, or a template did not name it
                differs = not name.startswith("{") and text != self.function.default(name)
            if differs:
                found.append(name)
        found += [name for name in entry.arguments if name not in self.checked and self.function.counts(name)]
        return found + (self._gone(entry) if set(self.names) - set(entry.arguments) else [])

    def _gone(self, entry: FunctionEntry) -> list[str]:
        """Recorded arguments that the function no longer takes: some may have been renamed."""
        names = [name for name in entry.arguments if not name.startswith(("{", _CAPTURED))]
        return [name for name in names if name not in self.checked and not self.function.takes(name)]

    def advice(self, entry: FunctionEntry) -> str:
        """Advice about arguments that differ."""
        found = self._differing(entry)
        texts = [_plain_name(name) for name in found if name.startswith("{") and name.endswith("}")]
        values = [_plain_name(name) for name in found if name.startswith("{") and name.endswith(_VALUE)]
        if texts:
            return (
                "Both calls make the same id and version; put another separator between the braces, "
                f"one that {' and '.join(texts)} cannot contain, or choose another version"
            )
        if values:
            return (
                f"{' and '.join(values)} had the same text then, but another type, as 1 and '1' have; pass "
                "the original type, or choose another version"
            )
        names = self.differing(entry)
        if gone := self._gone(entry):
            return (
                f"{self.function.name} took {' and '.join(gone)} then, and does not now; choose another "
                "version, or remove this one"
            )
        nameable = [f"{{{name}}}" for name in names if name in self.nameable]
        named = f"name it in id or version, as {nameable[0]}, or " if nameable else ""
        return f"If the rows depend on it, {named}choose another version; if they do not, pass ignore={names}"


def _plain_name(name: str) -> str:
    """The name of the argument that a digest belongs to."""
    return name.removesuffix(_VALUE).strip("{*}") if name.startswith("{") else name.strip("*")


def encoded(value: object) -> bytes:
    """A value as bytes, equal in all processes and versions of Python, and different for other values.

    1, True, 1.0 and "1" differ; the order of a dict does not count, but that of an OrderedDict does.
    Functions and classes are encoded by their name, a DataRef by its fingerprint, a dataclass by the fields
    that it compares, a namespace or a subclass of dict by its contents.

    Raises:
        TypeError: nothing permanent identifies a value of this type; names the type.
    """
    return _encoded(value, 0)


def _encoded(value: Any, depth: int) -> bytes:
    if depth > _MOST_DEPTH:
        raise TypeError(f"it nests deeper than {_MOST_DEPTH}")

    def inner(values: Iterable[object]) -> list[bytes]:
        return [_encoded(item, depth + 1) for item in values]

    cls = type(value)
    if value is None or cls in (bool, float, complex):
        return _item(cls.__name__, repr(value))
    if cls is int:
        return _item("int", hex(value))
    if cls is str:
        return _item("str", value.encode("utf-8", "surrogatepass"))
    if cls in (bytes, bytearray):
        return _item(cls.__name__, bytes(value))
    if cls in (list, tuple, torch.Size):
        return _item(cls.__name__, *inner(value))
    if cls in (set, frozenset):
        return _item(cls.__name__, *sorted(inner(value)))
    if cls is dict:
        return _item("dict", *sorted(_item("", *inner(pair)) for pair in value.items()))
    if isinstance(value, dict):
        pairs = [_item("", *inner(pair)) for pair in dict.items(value)]
        beside = getattr(value, "__dict__", {})  # some dicts are their own attributes
        return _item(
            "mapping",
            _name(cls),
            _item("", *(pairs if isinstance(value, OrderedDict) else sorted(pairs))),
            *inner([] if beside is value else [dict(beside)]),
        )
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return _item("namespace", _name(cls), *inner([dict(vars(value))]))
    if cls in _AS_TEXT or isinstance(value, (torch.dtype, torch.device, torch.layout, np.dtype)):
        return _item(cls.__name__, str(value))
    if cls is datetime.timedelta:
        return _item("timedelta", *inner((value.days, value.seconds, value.microseconds)))
    if cls in _MOMENTS:
        return _encoded_moment(value)
    if cls in (range, slice):
        return _item(cls.__name__, *inner((value.start, value.stop, value.step)))
    if isinstance(value, PurePath):
        return _item("path", value.as_posix().encode("utf-8", "surrogatepass"))
    if isinstance(value, enum.Flag):
        return _item("enum", _name(cls), hex(value.value))
    if isinstance(value, enum.Enum):
        return _item("enum", _name(cls), value.name)
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        return _encoded_array(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _item("namedtuple", _name(cls), *inner(value))
    if "__dataclass_fields__" in vars(cls):  # not an inherited one: a subclass may have other attributes
        fields = [field.name for field in dataclasses.fields(value) if field.compare]
        return _item("dataclass", _name(cls), *inner((name, getattr(value, name)) for name in fields))
    if isinstance(value, DataRef) and value.fingerprint is not None:
        return _item("DataRef", value.fingerprint)
    if isinstance(value, functools.partial):
        return _item("partial", *inner((value.func, value.args, value.keywords)))
    if isinstance(value, (type, types.FunctionType, type(np.mean))) or (
        isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType)
    ):
        return _item("name", _global_name(value))
    if isinstance(value, (np.ufunc, types.BuiltinFunctionType)):
        name = str(value.__name__)
        for module in (np, torch):  # their functions do not say in which module they are
            if vars(module).get(name) is value:
                return _item("name", f"{module.__name__}:{name}")
    raise TypeError(f"a {leaves.type_name(cls)} has no digest that is the same in every process")


def _encoded_moment(value: datetime.date | datetime.time) -> bytes:
    zone, fold = getattr(value, "tzinfo", None), getattr(value, "fold", 0)
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key is not None:
        value, name = value.replace(tzinfo=None), zone.key  # type: ignore[call-arg]  # it is not a date
    elif zone is None or type(zone) is datetime.timezone:  # whose offset is in the text
        name = ""
    else:
        raise TypeError(f"the offsets of a {leaves.type_name(type(zone))} are unknown")
    return _item(type(value).__name__, value.isoformat(), str(fold), name)


def _encoded_array(value: np.generic | Array | torch.Tensor) -> bytes:
    if type(value) is torch.Tensor:
        value = value.detach()
    try:
        leaf = leaves.encode(value)
    except SchemaError as error:
        raise TypeError(str(error)) from None
    if leaf.array.dtype.char in "gG":
        raise TypeError("bytes of a longdouble are not the same in every process")
    content = hashlib.blake2b(leaf.array.tobytes()).digest()
    return _item(leaf.kind, leaf.dtype, str(leaf.array.shape), content)


def _item(tag: str, *parts: str | bytes) -> bytes:
    """A value as its kind and parts, each after its length, so that no two values make the same bytes."""
    texts = [
        part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in (tag, *parts)
    ]
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)


def _name(value: Callable[..., object]) -> str:
    """Where a function or class is defined, under the name that it has in every process."""
    module, name = str(value.__module__), str(value.__qualname__)
    # A script has another module name in the processes that it starts.
    return f"{'__main__' if module == '__mp_main__' else module}:{name}"


def _global_name(value: Callable[..., object]) -> str:
    """The name, if no other object has it; for one defined in a script, with a digest of its code."""
    if "<" in value.__qualname__:  # <lambda>; <locals>, which may hold any values of the enclosing function
        raise TypeError(
            f"{value.__qualname__} has no name of its own, like everything defined within a function"
        )
    name = _name(value)
    if not name.startswith("__main__:"):
        return name
    code = digest_of(value)
    if code is None:
        raise TypeError(f"{value.__qualname__} of a script or a prompt has no source; put it into a module")
    return f"{name} {code}"


def salted(salt: str, name: str, text: bytes) -> str:
    """The digest of a value, as `encoded` gives it, under a name; 32 hex digits."""
    return hexdigest(_item(salt, name, text))


def _text(value: Any, depth: int = 0) -> str | None:
    """The `str` of a value, if that says everything, the same in every process; else None."""
    cls = type(value)
    if isinstance(value, enum.Flag) or (isinstance(value, enum.Enum) and isinstance(value, (str, int))):
        return _text(value.value, depth)  # how it is printed differs between versions of Python
    if cls in (list, tuple):
        if depth == _MOST_DEPTH:
            return None
        texts = []
        for item in value:
            text = repr(item) if type(item) is str else _text(item, depth + 1)
            if text is None:
                return None
            texts.append(text)
        return f"[{', '.join(texts)}]" if cls is list else f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    # No subclasses, whose __str__ may say anything.
    if value is None or cls in (str, bool, int, float, complex, *_AS_TEXT, datetime.timedelta):
        return str(value)
    if isinstance(value, (PurePath, enum.Enum, torch.dtype, torch.device)):
        return str(value)
    if cls in _MOMENTS or isinstance(value, (np.number, np.bool_, np.str_, np.dtype)):
        with contextlib.suppress(TypeError):
            encoded(value)
            return str(value)
    return None


def _parsed(what: str, template: str, function: Function) -> list[tuple[str, str]]:
    """A template as pairs of text and the parameter that follows it, or ""."""
    if not isinstance(template, str):
        raise ValueError(f"{what} must be a non-empty str, found {template!r}")
    advice = (
        f"{what} {template!r}: braces hold the name of an argument of {function.name}, "
        f"{function.parameters or 'which has none'}; for braces themselves write {{{{ and }}}}"
    )
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{advice} ({error})") from None
    for _, field, spec, conversion in parts:
        if field is not None and (field not in function.parameters or spec or conversion):
            raise ValueError(f"{advice}. Found {field!r}" + (" with a format" if spec or conversion else ""))
    return [(literal, field or "") for literal, field, _, _ in parts]


def _signature(function: Callable[..., object], follow_wrapped: bool = True) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):  # which evaluates annotations, whose names may not exist
            from annotationlib import Format

            return inspect.signature(
                function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
            )
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except ValueError:  # a C function without a signature
        return inspect.signature(lambda *args, **kwargs: None)


def _inside(function: Any) -> tuple[Callable[..., object], list[_Passed]]:
    """The function inside partials and methods, and the arguments they pass to it, innermost first."""
    bound: list[_Passed] = []
    for _ in range(_MOST_LAYERS):
        if isinstance(function, functools.partial):
            bound.insert(0, (function.args, function.keywords))
            function = function.func
        elif inspect.ismethod(function):
            bound.insert(0, ((function.__self__,), {}))
            function = function.__func__
        elif inspect.isroutine(function) or inspect.isclass(function):
            break
        else:
            function = type(function).__call__.__get__(function)  # a method, if Python has it
    return function, bound


def _joined(bound: list[_Passed], args: tuple[object, ...], kwargs: dict[str, object]) -> _Passed:
    """All arguments of a call, including those of partials and methods."""
    placeholder = getattr(functools, "Placeholder", None)  # Python 3.14
    for given, named in reversed(bound):
        left = list(args)
        if placeholder is not None:
            given = tuple(left.pop(0) if item is placeholder and left else item for item in given)
        args, kwargs = (*given, *left), {**named, **kwargs}
    return args, kwargs
