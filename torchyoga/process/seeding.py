"""Seed, epoch and row -> the random numbers of that row, wherever it is made; the same for batches.

Note 54. Seeds of rows are SplitMix64 from a BLAKE2b key.
They are computed a batch at a time, and the generators are put back once a batch. NumPy is seeded by an int,
because by an array it takes longer than all else together.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "ROW_SEEDS_VERSION",
    "OwnGenerators",
    "batch_seeds",
    "generators",
    "generators_put_back",
    "row_seeds",
    "sampler_seed",
    "seeder",
    "seeds_within",
    "splitmix",
    "worker_seed",
]

ROW_SEEDS_VERSION = 2  # part of every saved state: other seeds would be another number

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)


def row_seeds(seed: int, epoch: int, rows: Ints) -> Words:
    """(B,) the seed, in 0..2**63-1, of each of these rows in an epoch.

    Example:
        >>> row_seeds(7, 0, np.array([0, 1])).tolist() == [
        ...     int(row_seeds(7, 0, np.array([row]))[0]) for row in (0, 1)
        ... ]
        True
    """
    return _mixed(_key("row", seed, epoch), rows)


def seeds_within(seeds: Words, place: int | Ints) -> Words:
    """Seeds, in 0..2**63-1, for what is made within rows that have seeds: others for each place from 0 on.

    Example:
        >>> seeds_within(np.array([5, 6], np.uint64), 0).tolist() != [5, 6]
        True
    """
    found = splitmix(seeds ^ splitmix(np.atleast_1d(place).astype(np.uint64) + _STEP))
    found >>= np.uint64(1)
    return found


def batch_seeds(seed: int, epoch: int, positions: Ints) -> Words:
    """The seed, in 0..2**63-1, of each batch that begins at one of these positions (B,) of an epoch."""
    return _mixed(_key("batch", seed, epoch), positions)


def worker_seed(seed: int, epoch: int) -> int:
    """What torch derives the first seeds of an epoch's worker processes from, in 0..2**63-1."""
    return _key("workers", seed, epoch) >> 1


def sampler_seed(seed: int, epoch: int, rank: int = 0) -> int:
    """What a foreign sampler draws from in an epoch, in 0..2**63-1; for ranks that are to draw apart."""
    return _key(f"sampler {rank}", seed, epoch) >> 1


@lru_cache(maxsize=64)
def _key(kind: str, seed: int, epoch: int) -> int:
    text = f"torchyoga {ROW_SEEDS_VERSION} {kind} {seed} {epoch}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(key: int, numbers: Ints) -> Words:
    """SplitMix64 from a key on, at these places; 63 bits of each.

    No more, because `torch.tensor(torch.initial_seed())`, which people write, would fail.
    """
    found = splitmix(numbers.astype(np.uint64) * _STEP + np.uint64(key))
    found >>= np.uint64(1)
    return found


def splitmix(words: Words) -> Words:
    """A permutation of 64-bit words: the last step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    found: Words = words ^ (words >> np.uint64(30))
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found


def seeder() -> Callable[[int], None]:
    """A function that seeds `random`, NumPy and torch, whatever generators they have now.

    torch and NumPy get different halves of the seed: with the same generator they would give the same bits.
    """
    seed_python, seed_numpy = random.seed, _numpy_seeder()
    seed_torch = torch.default_generator.manual_seed  # of rows made on a CPU; `torch.manual_seed` asks more

    def seed_all(seed: int) -> None:
        seed_python(seed)
        seed_numpy(seed >> 31)
        seed_torch(seed)

    return seed_all


def _numpy_seeder() -> Callable[[int], object]:
    kind: type[np.random.BitGenerator] = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
    if kind is np.random.MT19937:
        return np.random.seed

    def seed_other(seed: int) -> None:
        # `np.random.seed` refuses a generator that a user has put in place, and that must stay.
        np.random.set_state({**kind(seed).state, "has_gauss": 0, "gauss": 0.0})

    return seed_other


@contextlib.contextmanager
def generators_put_back() -> Iterator[None]:
    """Lets `random`, NumPy and torch be seeded and drawn from, and puts them back as they were."""
    states = random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])


def generators() -> tuple[object, ...]:
    """Where `random`, NumPy and torch are, to find out whether something drew from them."""
    numpy = np.random.get_state(legacy=True)
    return (
        random.getstate(),
        *((part.tobytes() if isinstance(part, np.ndarray) else part) for part in numpy),
        torch.default_generator.get_state().numpy().tobytes(),
    )


class OwnGenerators:
    """The `random`, NumPy and torch generators of one iteration, which draws now and then between others.

    Args:
        seed: the seed of all three, in 0..2**63-1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numpy = np.random.MT19937(0)
        # Of the other two, once they were in place.
        self._states: tuple[tuple[object, ...], torch.Tensor] | None = None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Makes them what all code draws from meanwhile; those of before are put back after it."""
        states = random.getstate(), torch.default_generator.get_state()
        # NumPy's is exchanged as it is, at a fifth of the cost of its state. But that forgets a number which
        # it had drawn in advance.
        bits, numpy_state = np.random.get_bit_generator(), np.random.get_state(legacy=False)  # type: ignore[attr-defined]
        try:
            np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
            if self._states is None:
                seeder()(self._seed)
            else:
                self._set(*self._states)
            yield
        finally:
            self._states = random.getstate(), torch.default_generator.get_state()
            self._set(*states)
            np.random.set_bit_generator(bits)  # type: ignore[attr-defined]
            if numpy_state["has_gauss"]:
                np.random.set_state(numpy_state)

    @staticmethod
    def _set(python: tuple[object, ...], torchs: torch.Tensor) -> None:
        random.setstate(python)
        torch.default_generator.set_state(torchs)
