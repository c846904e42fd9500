"""What is known of a dataset besides its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from ..reading.dataref import DataRef
from ..rows.types import Json
from ..versions.info import plain

__all__ = ["agreed", "info_of"]

_ASKED = ("classes", "class_to_idx", "features")  # attributes that scripts read from a dataset


def info_of(dataset: object, left_out: dict[str, str] | None = None) -> Json:
    """Info about a dataset, as JSON data: a DataRef's `info`; `classes`, `class_to_idx`, `features` of any
    other.

    For torch's Subset it is that of the dataset inside; for a ConcatDataset the entries that all its parts
    have in common. Values that JSON cannot express, or that cannot be read, are left out; the reasons are
    added to `left_out`, by name. `features` is the result of its `to_dict`.
    """
    reasons: dict[str, str] = {} if left_out is None else left_out
    if type(dataset) is Subset:
        return info_of(dataset.dataset, reasons)
    if type(dataset) is ConcatDataset:
        return agreed([info_of(part, reasons) for part in dataset.datasets])
    if isinstance(dataset, DataRef):
        return _plain_or_nothing("info", dataset.info, reasons)
    found: Json = {}
    for name in _ASKED:
        try:
            value: Any = getattr(dataset, name, None)
            value = value.to_dict() if name == "features" and hasattr(value, "to_dict") else value
        except Exception as error:  # whatever a user's property raises
            reasons[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        if value is not None and (name != "features" or isinstance(value, Mapping)):
            found |= _plain_or_nothing(name, {name: value}, reasons)
    return _plain_or_nothing("info", found, reasons)


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
