"""Users' generators of random numbers into JSON, and back."""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch

from ..errors import StateError
from ..rows.types import Array, Json

__all__ = ["Generator", "generators_of", "put_back", "written"]

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random

_MOST_BYTES = 2**16  # of a generator's state


def generators_of(owner: object) -> dict[str, Generator]:
    """The generators that are attributes of an object, by name; those that all code shares are left out."""
    shared = (torch.default_generator, np.random.mtrand._rand, random.random.__self__)  # type: ignore[attr-defined]
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return {
        name: value
        for name, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, kinds)
        and not isinstance(value, random.SystemRandom)
        and not any(value is one for one in shared)
    }


def written(generator: Generator) -> Json:
    """The state of a generator, JSON-able: torch's takes 4 KB, Python's and a RandomState 3, others less."""
    if isinstance(generator, torch.Generator):
        return {"torch": _packed(generator.get_state().numpy())}
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"random": [version, _packed(np.array(words, np.uint32)), gauss]}
    return {"numpy": _tree(_numpy_state(generator))}


def put_back(generator: Generator, found: Json) -> None:
    """Gives a generator the state that `written` returned.

    Raises:
        StateError: it is damaged, or of another kind of generator.
    """
    try:
        if isinstance(generator, torch.Generator):
            generator.set_state(torch.from_numpy(_unpacked(found["torch"]).copy()))
        elif isinstance(generator, random.Random):
            version, words, gauss = found["random"]
            generator.setstate((version, tuple(_unpacked(words).tolist()), gauss))
        else:
            state = _untree(found["numpy"])
            if not isinstance(state, dict):
                raise TypeError
            if isinstance(generator, np.random.RandomState):
                generator.set_state(state)
            else:
                generator.bit_generator.state = state
    except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
        kinds = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise StateError(
            f"the state of a generator does not fit: it is of {kinds}, the sampler has a "
            f"{type(generator).__module__}.{type(generator).__name__} here; give the sampler the kind of "
            "generator that it was saved with"
        ) from error


def _numpy_state(generator: np.random.Generator | np.random.RandomState) -> Mapping[str, object]:
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _tree(value: object) -> object:
    if isinstance(value, dict):
        return {name: _tree(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _packed(value)
    return value.item() if isinstance(value, np.generic) else value


def _untree(value: object) -> object:
    if isinstance(value, dict):
        return _unpacked(value) if "base85" in value else {name: _untree(one) for name, one in value.items()}
    return value


def _packed(array: Array) -> dict[str, str]:
    return {
        "dtype": array.dtype.str,
        "base85": base64.b85encode(zlib.compress(array.tobytes())).decode("ascii"),
    }


def _unpacked(found: Mapping[str, str]) -> Array:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b85decode(found["base85"]), _MOST_BYTES)
    return np.frombuffer(data, np.dtype(found["dtype"]))
