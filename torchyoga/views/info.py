"""The info of a dataset: all that is known besides its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..reading.dataref import DataRef
from ..rows.types import Json
from ..versions.lineage import plain
from .recoded import named_alike

Info: TypeAlias = Mapping[str, object] | Collection[str]  # JSON data; names of attributes of the dataset
_ASKED = ("classes", "class_to_idx", "features")  # attributes that scripts read from a dataset


def info_of(dataset: object, left_out: dict[str, str] | None = None) -> Json:
    """Info about a dataset, as JSON data: a DataRef's `info`; `classes`, `class_to_idx`, `features` of any
    other.

    For torch's Subset it is that of the dataset inside; for a ConcatDataset the entries that all its parts
    have in common. Values that JSON cannot express, or that cannot be read, are left out; the reasons are
    added to `left_out`, by name. `features` is the result of its `to_dict`.
    """
    from torch.utils.data import ConcatDataset, Subset

    reasons: dict[str, str] = {} if left_out is None else left_out
    if type(dataset) is Subset:
        return info_of(dataset.dataset, reasons)
    if type(dataset) is ConcatDataset:
        refs = [part for part in dataset.datasets if isinstance(part, DataRef)]
        are_refs = len(refs) == len(dataset.datasets)  # whose codes are alike, as `flattened` has them
        return agreed(
            [info_of(part, reasons) for part in (named_alike(refs) if are_refs else dataset.datasets)]
        )
    if isinstance(dataset, DataRef):
        return _plain_or_nothing("info", dataset.info, reasons)
    found: Json = {}
    for name in _ASKED:
        try:
            value = _attribute(dataset, name, None)
        except Exception as error:  # whatever a user's property raises
            reasons[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        if value is not None and (name != "features" or isinstance(value, Mapping)):
            found |= _plain_or_nothing(name, {name: value}, reasons)
    return _plain_or_nothing("info", found, reasons)


def said_and_asked(info: Info | None) -> tuple[Json, Callable[[object], Json] | None]:
    """The entries of `info=`, and what gives the rest, asked of the dataset of a version; None for nothing.

    Raises:
        TypeError, ValueError: it is something else, or not JSON data; also when the dataset is asked.
        AttributeError: when the dataset is asked: it has no such attribute.

    Example:
        >>> said, asked = said_and_asked(["real"])
        >>> said, asked(5)
        ({}, {'real': 5})
    """
    if isinstance(info, Mapping):
        return plain(info), None
    names = () if info is None else info
    if isinstance(names, str) or not isinstance(names, Collection):
        raise TypeError(f"info is {names!r:.80}; pass a dict of JSON data, or a list of names of attributes")
    plain(dict.fromkeys(names))  # which are text
    return {}, partial(_named, tuple(names)) if names else None


def _named(names: Collection[str], dataset: object) -> Json:
    """Attributes of a dataset; for torch's Subset, of the dataset inside."""
    from torch.utils.data import Subset

    found: Json = {}
    for name in names:
        owner: Any = dataset
        while type(owner) is Subset and not hasattr(owner, name):
            owner = owner.dataset
        advice = f"pass the value itself, info={{{name!r}: ...}}, or name a property that returns JSON data"
        try:
            value = _attribute(owner, name)
        except AttributeError as error:
            fault = "fails to give it" if hasattr(type(owner), name) else "has no such attribute"
            raise AttributeError(
                f"info names {name!r}, but {type(owner).__name__} {fault} ({error}); {advice}"
            ) from error
        try:
            found |= plain({name: value})
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}. You can {advice}") from error
    return found


def _attribute(dataset: object, name: str, *default: None) -> object:
    value: Any = getattr(dataset, name, *default)
    return value.to_dict() if name == "features" and hasattr(value, "to_dict") else value


def _plain_or_nothing(name: str, info: object, reasons: dict[str, str]) -> Json:
    try:
        return plain(info)
    except (TypeError, ValueError) as error:
        reasons[name] = str(error)
        return {}


def agreed(infos: Sequence[Json]) -> Json:
    """The entries that all of them have in common."""
    first, *others = infos or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
