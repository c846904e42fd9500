"""Seed, epoch and row -> the random numbers of that row, wherever it is made; the same for batches.

Note 54. Seeds of rows are SplitMix64 from a BLAKE2b key.
They are computed a batch at a time, and the generators are put back once a batch. NumPy is seeded by an int,
because by an array it takes longer than all else together.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from ..reading.dataref import DataRef

__all__ = [
    "ROW_SEEDS_VERSION",
    "OwnGenerators",
    "Seeding",
    "batch_seeds",
    "draws_random_numbers",
    "generators_put_back",
    "row_seeds",
    "sampler_seed",
    "seeder",
    "worker_seed",
]

ROW_SEEDS_VERSION = 2  # part of every saved state: other seeds would be another number

Ints = npt.NDArray[np.int64]
_PLAIN = (
    *(list, tuple, range, dict, str, bytes, bytearray, array.array),
    *(np.ndarray, np.memmap, torch.Tensor, TensorDataset),
)


def draws_random_numbers(dataset: object) -> bool:
    """True for a dataset whose rows may depend on random numbers: any but those that only hold rows.

    Those are a DataRef, a list, a range, an array, a TensorDataset, and torch's Subset, ConcatDataset and
    StackDataset over such. A subclass may do anything, so it is not one of them.
    """
    if type(dataset) is Subset:
        return type(dataset.indices) not in _PLAIN or draws_random_numbers(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return any(map(draws_random_numbers, dataset.datasets))
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return any(map(draws_random_numbers, parts.values() if isinstance(parts, dict) else parts))
    return not (type(dataset) in _PLAIN or isinstance(dataset, DataRef))


def row_seeds(seed: int, epoch: int, rows: Ints) -> list[int]:
    """The seed, in 0..2**63-1, of each of these rows (B,) in an epoch.

    Example:
        >>> row_seeds(7, 0, np.array([0, 1])) == [row_seeds(7, 0, np.array([row]))[0] for row in (0, 1)]
        True
    """
    return _mixed(_key("row", seed, epoch), rows)


def batch_seeds(seed: int, epoch: int, positions: Ints) -> list[int]:
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


def _mixed(key: int, numbers: Ints) -> list[int]:
    """SplitMix64 from a key on, at these places (Steele, Lea and Flood, OOPSLA 2014); 63 bits of each.

    No more, because `torch.tensor(torch.initial_seed())`, which people write, would fail.
    """
    found = numbers.astype(np.uint64)
    found *= np.uint64(0x9E3779B97F4A7C15)
    found += np.uint64(key)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    seeds: list[int] = ((found ^ (found >> np.uint64(31))) >> np.uint64(1)).tolist()
    return seeds


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


class Seeding(NamedTuple):
    """Which parts of a loader are seeded.

    Attributes:
        rows: True if each row is.
        batches: True if the collate function is, for each batch.
        is_here: True if rows are made in the training loop's process, whose own random numbers are kept.
        by_place: True if a row is seeded by its place in the epoch, as it may come more than once.
    """

    rows: bool
    batches: bool
    is_here: bool
    by_place: bool = False

    def of_batches(self, seed: int, epoch: int, positions: list[int]) -> list[int] | None:
        """The seeds of the batches that begin at these positions of an epoch; None if they are not seeded."""
        return batch_seeds(seed, epoch, np.array(positions)) if self.batches else None

    def meanwhile(self) -> AbstractContextManager[None]:
        """A context to make rows and batches in; the generators are put back after it."""
        if self.is_here and (self.rows or self.batches):
            return generators_put_back()
        return contextlib.nullcontext()
