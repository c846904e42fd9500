"""The random generators of this process as JSON, and back: of Python, NumPy, torch and devices."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..process.seeding import sampler_seed, seeder
from ..process.warned import warn_user
from .processes import Processes

__all__ = ["put_back", "seed_all", "seed_anew", "taken"]

_DEVICES = ("cuda", "xpu")  # modules of torch that have a generator for each device


def taken() -> dict[str, Any]:
    """Where they all are, by name; those of devices that are not in use are left out."""
    version, words, normal = random.getstate()
    states: dict[str, Any] = {
        "python": [version, list(words), normal],
        "numpy": _listed(np.random.get_state(legacy=False)),
        "torch": _text(torch.get_rng_state()),
    }
    for name in _DEVICES:
        if (module := _in_use(name)) is not None:
            states[name] = [_text(state) for state in module.get_rng_state_all()]
    if torch.backends.mps.is_available():
        states["mps"] = _text(torch.mps.get_rng_state())
    return states


def put_back(states: Mapping[str, Any]) -> None:
    """Makes all that are in `states` go on from there; devices that this process lacks are passed over."""
    if "python" in states:
        version, words, normal = states["python"]
        random.setstate((version, tuple(words), normal))
    if "numpy" in states:
        np.random.set_state(_arrays(states["numpy"], states["numpy"]["bit_generator"]))
    if "torch" in states:
        torch.set_rng_state(_state(states["torch"]))
    for name in _DEVICES:
        module = getattr(torch, name)
        if module.is_available():
            for device, text in enumerate(states.get(name, ())[: module.device_count()]):
                module.set_rng_state(_state(text), device)
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(_state(states["mps"]))


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


def _in_use(name: str) -> Any:
    module = getattr(torch, name)
    return module if module.is_available() and module.is_initialized() else None


def _text(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _arrays(value: Any, kind: str) -> Any:
    """What NumPy takes: lists are arrays of 32 bits for a Mersenne twister, else of 64."""
    if isinstance(value, dict):
        return {name: _arrays(part, kind) for name, part in value.items()}
    words = np.uint32 if kind == "MT19937" else np.uint64
    return np.array(value, words) if isinstance(value, list) else value
