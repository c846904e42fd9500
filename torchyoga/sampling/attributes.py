"""Digests of what samplers hold in their attributes, to see whether drawing has changed it.

Nothing is put back: a sampler that counts its epochs by itself would then give the same one again and again.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["digests_of", "that_differ"]

_MOST_ENTRIES = 4096  # of a list or an array; of longer ones, some from all over it


def digests_of(parts: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Digests of the attributes that are numbers, text, arrays or collections of these, by their names.

    Args:
        parts: objects, with what goes before the names of their attributes.
    """
    found = {}
    for path, part in parts:
        for name, value in list(getattr(part, "__dict__", {}).items()):
            text = io.BytesIO()
            try:
                _Values(text).dump(_some_of(value))
            except Exception:  # it is no plain value; code of its own may raise anything
                continue
            if value is not None:  # which may be a cache that is filled later
                found[f"{path}{name}"] = f"{zlib.crc32(text.getbuffer()):08x}"
    return found


def that_differ(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The names of those with other digests, of those in both."""
    return {name for name in now if before.get(name, now[name]) != now[name]}


def _some_of(value: object) -> object:
    if type(value) in (list, tuple, np.ndarray, torch.Tensor) and len(value) > _MOST_ENTRIES:  # type: ignore[arg-type]
        return value[:: len(value) // _MOST_ENTRIES]  # type: ignore[index, arg-type]
    return value


class _Values(pickle.Pickler):
    """Writes plain values, equal ones alike. PicklingError for others, whose writing may run any code."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # it does not matter which of equal objects are the same one

    def reducer_override(self, value: object) -> Any:
        """How to write what is not a builtin value."""
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            return bytes, (value.dtype.str.encode() + value.tobytes(),)
        if isinstance(value, dict | deque):  # and their subclasses
            return list, (list(value.items() if isinstance(value, dict) else value),)
        if value in (bytes, list):  # as they are named above
            return NotImplemented
        raise pickle.PicklingError
