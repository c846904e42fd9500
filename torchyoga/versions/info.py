"""The info that a user gives about a dataset -> plain JSON data, of bounded size."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from ..process.lazy import np
from ..rows.types import Array, Json

MOST_BYTES = 2**20  # as JSON
MOST_DEPTH = 32
_PLAIN = {str, int, float, bool}


def plain(info: object) -> Json:
    """A copy of `info` as it comes back from JSON: tuples and arrays are lists, subclasses of
    numbers and NumPy's scalars are numbers.

    Raises:
        TypeError: it is not a dict with text as keys, or holds something that JSON does not have; says where.
        ValueError: it nests too deep or is too long; or it has a number or a text that JSON cannot express.

    Example:
        >>> plain({"classes": ("cat", "dog"), "mean": 0.5})
        {'classes': ['cat', 'dog'], 'mean': 0.5}
    """
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a dict, found a {type(info).__name__}")
    copied = _PlainCopy().of(info, "info", 0)
    assert isinstance(copied, dict)
    return copied


class _PlainCopy:
    """Makes one copy, and counts its size."""

    def __init__(self) -> None:
        self._left = MOST_BYTES

    def of(self, value: object, where: str, depth: int) -> object:
        """The copy of a value, at a place with this name."""
        if depth > MOST_DEPTH:
            raise ValueError(f"info nests deeper than {MOST_DEPTH}, at {where:.80}; make it flatter")
        self._pay(2, where)
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(
                        f"{where} has the key {key!r:.80}, but keys of JSON are text; use str({key!r:.80})"
                    )
            return {
                self._scalar(key, where): self.of(item, f"{where}[{key!r:.40}]", depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.of(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        if value is None or type(value) in _PLAIN:  # so that plain data does not need NumPy
            return self._scalar(value, where)
        if isinstance(value, np.ndarray):
            return self.of(self._listed(value, where), where, depth + 1)
        if isinstance(value, (np.bool_, np.integer, np.floating)) and not isinstance(value, np.timedelta64):
            value = value.item()
        return self._scalar(value, where)

    def _listed(self, array: Array, where: str) -> object:
        if array.dtype.kind in "mMV":  # as lists, some times would be numbers
            raise TypeError(
                f"{where} is an array of {array.dtype}, which JSON does not have; keep it as text"
            )
        nbytes = 2 * math.prod(max(1, extent) for extent in array.shape)
        if nbytes > self._left:  # before a list is made of it
            self._pay(nbytes, where)
        return array.tolist()

    def _scalar(self, value: object, where: str) -> object:
        if isinstance(value, str):
            value = str.__str__(value)
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{where} is not valid text; leave out the lone surrogates") from None
        elif isinstance(value, int) and not isinstance(value, bool):
            value = int(value)
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"{where} is an int that does not fit 64 bits; keep it as text")
        elif isinstance(value, float):
            value = float(value)
            if not math.isfinite(value):
                raise ValueError(f"{where} is {value}, which JSON does not have; use None or text")
        elif value is not None and not isinstance(value, bool):
            raise TypeError(
                f"{where} is a {type(value).__name__}, which JSON does not have; info holds dict, list, str, "
                "int, float, bool, None and arrays of them: for a tensor pass .tolist()"
            )
        self._pay(len(json.dumps(value)), where)
        return value

    def _pay(self, nbytes: int, where: str) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise ValueError(
                f"info is longer than {MOST_BYTES} bytes of JSON, at {where:.80}; keep large data as a "
                "dataset"
            )
