"""The random generators of Python, NumPy, torch and devices in this process: where they are, also as JSON."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..process.messages import warn_user
from ..process.seeding import sampler_seed, seeder
from ..sampling.ranks import Processes
from ..sampling.user_sampler import STATE_ERRORS, state_as_json, state_of

_DEVICES = ("cuda", "xpu")  # modules of torch that have a generator for each device
_HAS_MPS = torch.backends.mps.is_available()
_SETTERS: dict[str, Callable[[Any], object]] = {
    "python": random.setstate,
    "numpy": lambda state: np.random.set_state({**state}),  # of a tuple it would not look at the place
    "torch": lambda state: torch.set_rng_state(torch.from_numpy(state)),
}
if _HAS_MPS:
    _SETTERS["mps"] = lambda state: torch.mps.set_rng_state(torch.from_numpy(state))


def taken() -> dict[str, Any]:
    """Where they all are, by name; those of devices that are not in use are left out. Takes 50 us."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state().numpy(),
    }
    for name in _DEVICES:
        module = getattr(torch, name)
        if module.is_initialized():
            states[name] = {str(n): state.numpy() for n, state in enumerate(module.get_rng_state_all())}
    if _HAS_MPS:
        states["mps"] = torch.mps.get_rng_state().numpy()
    return states


def put_back(states: Mapping[str, Any]) -> None:
    """Makes all that are in `states` go on from there; devices that this process lacks are passed over."""
    for name in _SETTERS.keys() & states.keys():
        _SETTERS[name](states[name])
    for name in _DEVICES:
        module = getattr(torch, name)
        for device, state in states.get(name, {}).items() if module.is_available() else ():
            if int(device) < module.device_count():
                module.set_rng_state(torch.from_numpy(state), int(device))


def as_json(states: Mapping[str, Any]) -> dict[str, Any]:
    """States that `taken` gave, as JSON."""
    return {name: state_as_json(state) for name, state in states.items()}


def from_json(states: Mapping[str, Any] | None) -> dict[str, Any]:
    """States for `put_back`, from those that `as_json` gave; empty for None. They are tried; nothing moves.

    Raises:
        ValueError: the generators of this process do not take them.
    """
    now = taken()
    try:
        found: dict[str, Any] = state_of(states or {})
        put_back(found)
    except STATE_ERRORS as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    finally:
        put_back(now)
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
