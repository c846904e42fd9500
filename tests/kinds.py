"""Rows of every kind that torch collates or refuses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch


class Pair(NamedTuple):
    image: Any
    label: Any


N = 6
KINDS: dict[str, list[Any]] = {
    "tuple": [(np.full(3, i), i) for i in range(N)],
    "list": [[np.float32(i), float(i), i % 2 == 0] for i in range(N)],
    "dict": [{"a": torch.full((2, 2), i), "b": str(i), "c": b"%d" % i} for i in range(N)],
    "namedtuple": [Pair(np.full((2, 2), i, np.uint8), i) for i in range(N)],
    "nested": [{"a": [(i, {"b": Pair(i, str(i))})], 3: (torch.tensor(i),)} for i in range(N)],
    "array": [np.full((2, 3), i, np.float16) for i in range(N)],
    "tensor": [torch.full((2,), i, dtype=torch.bfloat16) for i in range(N)],
    "0-d tensor": [torch.tensor(i) for i in range(N)],
    "int": list(range(N)),
    "float": [i / 3 for i in range(N)],
    "bool": [i % 2 == 0 for i in range(N)],
    "str": [str(i) for i in range(N)],
    "bytes": [b"%d" % i for i in range(N)],
    "numpy scalar": [np.int16(i) for i in range(N)],
    "unsigned": [(np.full(2, i, np.uint16), np.full(2, i, np.uint32)) for i in range(N)],
    "empty array": [(np.zeros((0, 2)), i) for i in range(N)],
    "complex": [np.full(2, i + 1j) for i in range(N)],
    "ragged": [(np.arange(i), i) for i in range(N)],
    "ragged, equal in a batch": [torch.arange(i // 3 + 1) for i in range(N)],
    "ragged, 2-d": [{"x": torch.ones(i, 2)} for i in range(N)],
    "none": [(i, None) for i in range(N)],
    "python complex": [(i, complex(i)) for i in range(N)],
    "dates": [(np.array(["2020-01-01"], "M8[D]"), i) for i in range(N)],
    "big-endian": [(np.full(2, i, ">i4"), i) for i in range(N)],
    "leafless": [{"a": (), "b": i} for i in range(N)],
    "text array": [(np.array(["ab"]), i) for i in range(N)],
}


def outcome(make: Any) -> Any:
    """What a function returns, or the class of its error."""
    try:
        return make()
    except Exception as error:
        return type(error)
