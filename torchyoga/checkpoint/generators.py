"""The random generators of Python, NumPy, torch and devices in this process: where they are, also as JSON."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..process.messages import warn_user
from ..process.seeding import sampler_seed, seeder
from ..sampling.ranks import Processes
from ..sampling.user_sampler import check_place

_DEVICES = ("cuda", "xpu")  # modules of torch that have a generator for each device
_HAS_MPS = torch.backends.mps.is_available()
_SETTERS: Any = {"python": random.setstate, "numpy": np.random.set_state, "torch": torch.set_rng_state}
_SETTERS |= {"mps": torch.mps.set_rng_state} if _HAS_MPS else {}


def taken() -> dict[str, Any]:
    """Where they all are, by name; those of devices that are not in use are left out. Takes 50 us."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    for name in _DEVICES:
        module = getattr(torch, name)
        if module.is_initialized():
            states[name] = module.get_rng_state_all()
    if _HAS_MPS:
        states["mps"] = torch.mps.get_rng_state()
    return states


def put_back(states: Mapping[str, Any]) -> None:
    """Makes all that are in `states` go on from there; devices that this process lacks are passed over."""
    for name in _SETTERS.keys() & states.keys():
        _SETTERS[name](states[name])
    for name in _DEVICES:
        module = getattr(torch, name)
        if module.is_available():
            for device, state in enumerate(states.get(name, ())[: module.device_count()]):
                module.set_rng_state(state, device)


def as_json(states: Mapping[str, Any]) -> dict[str, Any]:
    """States that `taken` gave, as JSON: numbers in lists, and those of torch as text."""
    return {name: _listed(state) for name, state in states.items()}


def from_json(states: Mapping[str, Any] | None) -> dict[str, Any]:
    """States for `put_back`, from those that `as_json` gave; empty for None. They are tried; nothing moves.

    Raises:
        ValueError: the generators of this process do not take them.
    """
    now = taken()
    try:
        found = _found(states or {})
        put_back(found)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    finally:
        put_back(now)
    return found


def _found(states: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, state in states.items():
        if name == "python":
            found[name] = tuple(tuple(part) if isinstance(part, list) else part for part in state)
        elif name == "numpy":
            found[name] = _arrays(state, state["bit_generator"])
        else:
            found[name] = _tensor(state) if isinstance(state, str) else [_tensor(one) for one in state]
    return found


def seed_all(seed: int) -> None:
    """Makes all of them begin with a seed, in 0..2**63-1."""
    torch.manual_seed(seed)
    seeder()(seed)


def seed_anew(ranks: Processes, saved_ranks: int, seed: int, step: int) -> None:
    """Makes them begin with what follows from a seed, a step and the rank, which other ranks had saved."""
    seed_all(sampler_seed(seed, step, ranks.rank))
    if ranks.rank == 0:
        warn_user(
            f"saved by {saved_ranks} ranks, continued by {ranks.size}: rows are exact, random numbers of the "
            "model are others than they would have been"
        )


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_listed(part) for part in value]
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes().hex()
    return value.tolist() if isinstance(value, np.ndarray) else value


def _arrays(value: Any, kind: str) -> Any:
    """A state as NumPy takes it: lists are arrays of 32 bits for a Mersenne twister, else of 64."""
    if isinstance(value, dict):
        check_place(value)
        return {name: _arrays(part, kind) for name, part in value.items()}
    words = np.uint32 if kind == "MT19937" else np.uint64
    return np.array(value, words) if isinstance(value, list) else value
