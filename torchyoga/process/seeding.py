"""Seed, epoch and row -> the random numbers of that row, wherever it is made; the same for batches.

Note 14. Seeds of rows are SplitMix64 from a BLAKE2b key.
They are computed a batch at a time, and the generators are put back once a batch. NumPy is seeded by an int,
because by an array it takes longer than all else together. While rows are made, NumPy draws from another
generator: to exchange it takes a fiftieth of the time of taking its state and setting it. The states of the
two Mersenne twisters are compared, and that of `random` is kept, as bytes where they lie: through its own
methods that takes 20 us a batch, a third of the time of a batch of small rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import random
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .buffers import Ints, Seeds
from .digests import splitmix, word_of, words_at
from .lazy import torch
from .threads import renew_in_children

_STEP, _WORD = np.uint64(0x9E3779B97F4A7C15), 2**64 - 1
_FEW = 12  # numbers that are mixed in less time by themselves than as an array
_TWISTER = struct.Struct("=I624I")  # of `random`: its position and its words; NumPy's has them the other way
_AT = object.__basicsize__  # where they lie in a `random.Random` of CPython, if `_are_there`


def row_seeds(seed: int, epoch: int, rows: Ints) -> Seeds:
    """(B,) the seed, in 0..2**63-1, of each of these rows in an epoch.

    Example:
        >>> row_seeds(7, 0, np.array([0, 1])).tolist() == [
        ...     int(row_seeds(7, 0, np.array([row]))[0]) for row in (0, 1)
        ... ]
        True
    """
    return _mixed(_key("row", seed, epoch), rows)


def seeds_within(seeds: Seeds, place: int | Ints) -> Seeds:
    """Seeds, in 0..2**63-1, for what is made within rows that have seeds: others for each place from 0 on.

    Example:
        >>> seeds_within(np.array([5, 6], np.uint64), 0).tolist() != [5, 6]
        True
    """
    found = splitmix(seeds ^ splitmix(np.atleast_1d(place).astype(np.uint64) + _STEP))
    found >>= np.uint64(1)
    return found


def drawn_seeds(count: int) -> Seeds:
    """Seeds (B,), in 0..2**63-1, that torch's global generator draws."""
    return torch.randint(2**63 - 1, (count,)).numpy().view(np.uint64)


def batch_seeds(seed: int, epoch: int, positions: Ints) -> Seeds:
    """The seed, in 0..2**63-1, of each batch that begins at one of these positions (B,) of an epoch."""
    return _mixed(_key("batch", seed, epoch), positions)


def worker_seed(seed: int, epoch: int) -> int:
    """The seed from which torch derives the first seeds of an epoch's worker processes, in 0..2**63-1."""
    return _key("workers", seed, epoch) >> 1


def sampler_seed(seed: int, epoch: int, rank: int = 0) -> int:
    """The seed that a foreign sampler draws from in an epoch, in 0..2**63-1; other ones for ranks apart."""
    return _key(f"sampler {rank}", seed, epoch) >> 1


def unmoved_seed(generator: torch.Generator | None = None) -> int:
    """A seed in 0..2**63-1 from where a generator stands, torch's global one by default; it stays there.

    Example:
        >>> generator = torch.Generator().manual_seed(5)
        >>> unmoved_seed(generator) == unmoved_seed(generator)
        True
    """
    state = (torch.default_generator if generator is None else generator).get_state()
    return word_of(state.numpy().tobytes()) >> 1


@lru_cache(maxsize=64)
def _key(kind: str, seed: int, epoch: int) -> int:
    return word_of(f"torchyoga {kind} {seed} {epoch}".encode())


def _mixed(key: int, numbers: Ints) -> Seeds:
    """SplitMix64 from a key on, at these places; 63 bits of each.

    No more, because `torch.tensor(torch.initial_seed())`, which people write, would fail.
    """
    if len(numbers) > _FEW:
        found = words_at(key, numbers)
        found >>= np.uint64(1)
        return found
    few = []
    for number in numbers.tolist():
        word = number * int(_STEP) + key & _WORD
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
        few.append((word ^ word >> 31) >> 1)
    return np.array(few, np.uint64)


KINDS = ("python", "numpy", "torch")  # of generators that all code shares: `random`, NumPy's and torch's


def seeder(kinds: Sequence[str] = KINDS) -> Callable[[int], object]:
    """A function that seeds `random`, NumPy and torch, or some of them, whatever generators they have now.

    torch and NumPy get different halves of the seed: with the same generator they would give the same bits.
    """
    seed_torch = torch.default_generator.manual_seed  # of rows made on a CPU; `torch.manual_seed` asks more
    seeders: list[Callable[[int], object]] = [random.seed, _numpy_seeder(), seed_torch]
    found = [seed_one for kind, seed_one in zip(KINDS, seeders, strict=True) if kind in kinds]

    def seed_each(seed: int) -> None:
        for seed_one in found:
            seed_one(seed)

    return found[0] if len(found) == 1 else seed_each


def _numpy_seeder() -> Callable[[int], object]:
    kind: type[np.random.BitGenerator] = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
    if kind is np.random.MT19937:
        return lambda seed: np.random.seed(seed >> 31)

    def seed_other(seed: int) -> None:
        # `np.random.seed` refuses a generator that a user has put in place, and that must stay.
        np.random.set_state({**kind(seed >> 31).state, "has_gauss": 0, "gauss": 0.0})

    return seed_other


class GeneratorsPutBack:
    """A context to seed `random`, NumPy and torch in, and to draw from: they are put back as they were.

    Within it NumPy holds no normal number ready, unless its generator is not a Mersenne twister. Contexts of
    several threads may end in any order: one that ends before a later one leaves to it what it has kept.
    """

    __slots__ = ("_bits", "_numpy", "_python", "_spare", "_torch", "thread")

    def __enter__(self) -> None:
        with _entered.lock:
            self._python, self._torch = _python_state(), torch.default_generator.get_state()
            self._bits = bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
            self._spare: np.random.BitGenerator | None = None
            self._numpy: Any = None
            if type(bits) is np.random.MT19937:
                self._numpy = _state_with_normal(bits)  # to exchange generators forgets the number
                self._spare = _spares.pop() if _spares else np.random.MT19937(0)
                np.random.set_bit_generator(self._spare)  # type: ignore[attr-defined]
            else:
                self._numpy = np.random.get_state(legacy=False)
            self.thread = threading.get_ident()
            _entered.contexts.append(self)

    def __exit__(self, *_: object) -> None:
        with _entered.lock:
            self.leave()

    def leave(self) -> None:
        """Ends the context; hold the lock."""
        contexts = _entered.contexts
        at = contexts.index(self)
        del contexts[at]
        if at < len(contexts):
            later = contexts[at]
            later._bits, later._numpy = self._bits, self._numpy
            later._python, later._torch = self._python, self._torch
        else:
            self._put_back()
        if self._spare is not None and np.random.get_bit_generator() is not self._spare:  # type: ignore[attr-defined]
            _spares.append(self._spare)  # what others have put in its place is theirs

    def _put_back(self) -> None:
        np.random.set_bit_generator(self._bits)  # type: ignore[attr-defined]
        if self._numpy is not None:
            np.random.set_state(self._numpy)
        if _WORDS is not None:  # `random.setstate` takes 10 us
            words, _python.gauss_next = self._python  # type: ignore[attr-defined]
            _WORDS.raw = words  # not by `ctypes.memmove`, during which other threads may draw
        else:
            random.setstate(self._python[0])
        torch.default_generator.set_state(self._torch)


class _Entered:
    """Contexts that have not ended, of all threads, in the order in which they began."""

    def __init__(self) -> None:
        self.contexts: list[GeneratorsPutBack] = []
        self.renew()

    def renew(self) -> None:
        self.lock = threading.Lock()  # while one begins or ends
        # In a forked child the other threads' never end.
        for context in [one for one in self.contexts if one.thread != threading.get_ident()]:
            context.leave()


_entered = _Entered()
renew_in_children(_entered)
_spares: list[np.random.BitGenerator] = []  # that NumPy draws from within a context, one for each of them
_without_normal: list[object] = [None, b""]  # NumPy's generator and its state, when it held no number last


def _state_with_normal(bits: np.random.MT19937) -> dict[str, object] | None:
    """NumPy's whole state, if it holds a normal number ready; else None."""
    words = _words_of(bits)
    if _without_normal == [bits, words]:
        return None
    state: dict[str, object] = np.random.get_state(legacy=False)
    if state["has_gauss"]:
        return state
    _without_normal[:] = bits, words
    return None


def _words_of(bits: np.random.MT19937) -> bytes:
    return ctypes.string_at(bits.ctypes.state_address, _TWISTER.size)


def _are_there() -> bool:
    """True if the state of `random` lies where it is looked for."""
    if sys.implementation.name != "cpython" or random.Random.__basicsize__ < _AT + _TWISTER.size:
        return False
    one = random.Random(5)
    one.random()
    position, *key = _TWISTER.unpack(ctypes.string_at(id(one) + _AT, _TWISTER.size))
    return one.getstate() == (3, (*key, position), None)


_python: random.Random = random.random.__self__  # type: ignore[attr-defined]
_WORDS = (ctypes.c_char * _TWISTER.size).from_address(id(_python) + _AT) if _are_there() else None


def _python_state() -> tuple[Any, object]:
    if _WORDS is not None:
        return _WORDS.raw, _python.gauss_next  # type: ignore[attr-defined]
    return random.getstate(), None


def where(kinds: Sequence[str] = KINDS) -> list[object]:
    """Where generators are, within `GeneratorsPutBack` and `torch_noted`: another place if one was used."""
    return [_WHERE[kind]() for kind in kinds]


def _numpy_state() -> object:
    """As long as it holds no normal number ready."""
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
    return _words_of(bits) if type(bits) is np.random.MT19937 else repr(np.random.get_state(legacy=False))


def _torch_state() -> object:
    return torch.default_generator.get_state().numpy().tobytes(), torch_noted.count


_WHERE = {"python": _python_state, "numpy": _numpy_state, "torch": _torch_state}


class _Asking:
    """A context that counts calls such as `torch.initial_seed()`, which move nothing, by any thread.

    It stands in for torch's generator where these functions look for it, as a function could be imported by
    name before it is replaced. Contexts may end in any order.

    Attributes:
        count: how often torch's generator was asked for anything.
    """

    def __init__(self) -> None:
        self.count = 0
        self.renew()
        renew_in_children(self)

    def __enter__(self) -> None:
        with self._lock:
            self._within.append(threading.get_ident())
            torch.random.default_generator = self  # type: ignore[attr-defined,assignment]

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within.remove(threading.get_ident())
            if not self._within:
                torch.random.default_generator = torch.default_generator  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        self.count += 1
        return getattr(torch.default_generator, name)

    def renew(self) -> None:
        self._lock = threading.Lock()
        # In a forked child the other threads' contexts never end.
        before, mine = vars(self).get("_within", []), threading.get_ident()
        self._within = [thread for thread in before if thread == mine]
        if before and not self._within:
            torch.random.default_generator = torch.default_generator  # type: ignore[attr-defined]


torch_noted = _Asking()


def generators() -> tuple[object, ...]:
    """Where `random`, NumPy and torch are, to find out whether something drew from them."""
    numpy = pickle.dumps(np.random.get_state(legacy=False))  # of any of NumPy's generators
    return random.getstate(), numpy, torch.default_generator.get_state().numpy().tobytes()


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
        with GeneratorsPutBack():
            np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
            try:
                if self._states is None:
                    seeder()(self._seed)
                else:
                    random.setstate(self._states[0])
                    torch.default_generator.set_state(self._states[1])
                yield
            finally:
                self._states = random.getstate(), torch.default_generator.get_state()
