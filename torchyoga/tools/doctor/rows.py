"""Rows of a dataset, with digests to compare them by, and the number of one that raises an error."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from itertools import islice
from types import FunctionType
from typing import Any, TypeGuard

import numpy as np
import torch

from .patient import Patient

_MOST_LEAVES, _DEEPEST = 256, 8
_SAID = re.compile(r"\(made as row (.+)\)$", re.MULTILINE)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), datetime.date, datetime.timedelta, list, tuple)


def made(dataset: Any, row: Any) -> object:
    """A row of a dataset with row numbers, as a collate_fn gets it; several for a list of numbers."""
    if not hasattr(dataset, "__getitems__") or isinstance(row, (list, tuple)):
        return dataset[row]
    rows = dataset.__getitems__([row])
    return rows[0] if isinstance(rows, list) and rows else rows


def rows_of(patient: Patient, most: int) -> Iterator[object]:
    """Some rows from all over the dataset, or the first ones of a stream."""
    if patient.is_iterable:
        return islice(iter(patient.dataset), most)
    return (made(patient.dataset, key) for key in patient.keys(most))


def leaves(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """The values that a row or a batch is made of, each with the path to it."""
    parts: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        parts = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        parts = [(f"{path}.{name}" if path else name, one) for name, one in value._asdict().items()]
    elif isinstance(value, (list, tuple)) and not _is_numbers(value):
        parts = [(f"{path}[{number}]", one) for number, one in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f"{path}.{name}" if path else name, one) for name, one in vars(value).items()]
    if not parts or depth == _DEEPEST:
        yield path, value
        return
    for inner, one in parts[:_MOST_LEAVES]:
        yield from leaves(one, inner, depth + 1)


def _is_numbers(value: list[object] | tuple[object, ...]) -> bool:
    return len(value) > 8 and all(isinstance(one, (int, float)) for one in value)


def digest(value: object) -> str | None:
    """A digest of a row, or of a generator's state; None if a part of it is of an unknown kind."""
    found = hashlib.blake2b(digest_size=8)
    for path, leaf in leaves(value):
        data = _bytes_of(leaf)
        if data is None:
            return None
        found.update(f"{path}:{type(leaf).__name__}{getattr(leaf, 'shape', '')}:".encode())
        found.update(data)
    return found.hexdigest()


def _bytes_of(leaf: object) -> bytes | None:
    if is_dense(leaf):
        return bytes(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
        return repr(leaf.tolist()).encode()
    if isinstance(leaf, (np.ndarray, np.generic)) or type(leaf).__module__.startswith("PIL."):
        data: bytes = leaf.tobytes()  # type: ignore[attr-defined]
        return data
    is_plain = isinstance(leaf, _PLAIN) or (isinstance(leaf, Mapping) and not leaf)
    return repr(leaf).encode() if is_plain else None


def is_dense(value: object) -> TypeGuard[torch.Tensor]:
    """True for a tensor whose values lie in the memory of this machine."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"


class Digest:
    """A `collate_fn` that gives the digest of a row."""

    def __call__(self, batch: Any) -> str | None:
        """The digest of the only row of a batch."""
        return digest(batch if isinstance(batch, list) else [batch])


def row_said(text: str) -> str | None:
    """The row that an error's text says was being made, as it is written in Python; None if it says none."""
    found = _SAID.findall(text)
    return found[-1] if found else None


def name_rows(dataset: object) -> None:
    """Lets errors that rows of a dataset raise note the row, in this process and those that it forks."""
    kind: Any = type(dataset)
    for name in ("__getitem__", "__getitems__"):
        method = getattr(kind, name, None)
        if isinstance(method, FunctionType):  # not of a list, say
            setattr(kind, name, _noting(method, dataset))


def _noting(function: Callable[..., Any], dataset: object) -> Callable[[Any, Any], Any]:
    """A method of rows that notes in an error which row was being made."""

    @wraps(function)
    def noting(self: Any, rows: Any) -> Any:
        try:
            return function(self, rows)
        except Exception as raised:
            error: Any = raised
            row = rows[0] if isinstance(rows, (list, tuple)) and len(rows) == 1 else rows
            if self is dataset and not isinstance(row, (list, tuple)):
                with suppress(Exception):  # Python 3.10, or an error that keeps no attributes
                    error.add_note(f"(made as row {int(row) if isinstance(row, np.integer) else row!r})")
            raise

    return noting
