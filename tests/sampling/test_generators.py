"""Random generators into JSON and back."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils import check_random_state

from torchyoga.errors import StateError
from torchyoga.sampling.user_sampler import generators_of, put_back, written

KINDS: dict[str, Any] = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "Python": lambda: random.Random(3),
    "NumPy": lambda: np.random.default_rng(3),
    "Mersenne": lambda: np.random.Generator(np.random.MT19937(3)),
    "Philox": lambda: np.random.Generator(np.random.Philox(3)),
    "old": lambda: np.random.RandomState(3),
}


def drawn(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return torch.randn(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(3)]
    return [float(generator.normal()) for _ in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_goes_on_where_it_was(kind: str) -> None:
    generator = KINDS[kind]()
    drawn(generator)  # three, so that one is drawn in advance where they come in pairs
    text = json.dumps(written(generator))
    assert len(text) < 4500
    expected = drawn(generator)
    other = KINDS[kind]()
    put_back(other, json.loads(text))
    assert drawn(other) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_do_not_fit_are_refused(kind: str) -> None:
    generator = KINDS[kind]()
    for other in KINDS:
        if other != kind and {other, kind} != {"Mersenne", "old"}:  # these are one algorithm
            with pytest.raises(StateError, match="does not fit"):
                put_back(generator, written(KINDS[other]()))
    packed = {"dtype": "<u4", "base85": "not that"}
    damaged: Any
    for damaged in (None, {}, {"torch": packed}, {"random": [3, packed, None]}, {"numpy": {"state": packed}}):
        with pytest.raises(StateError, match="does not fit"):
            put_back(generator, damaged)


def test_global_generators_do_not_count_as_a_samplers_own() -> None:
    mine = {name: make() for name, make in KINDS.items()}
    shared = {
        "a": torch.default_generator,
        "b": check_random_state(None),
        "c": random.random.__self__,  # type: ignore[attr-defined]
        "d": random.SystemRandom(),
        "e": 3,
    }
    assert generators_of(SimpleNamespace(**mine, **shared)) == mine
    assert generators_of([1, 2]) == {}
