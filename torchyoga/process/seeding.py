"""Seed, epoch and row -> the random numbers of that row, wherever it is made; the same for batches.

Note 14. Seeds of rows are SplitMix64 from a BLAKE2b key.
They are computed a batch at a time, and the generators are put back once a batch. NumPy is seeded by an int,
because by an array it takes longer than all else together. While it is seeded, NumPy draws from another
generator: to exchange it takes a fiftieth of the time of taking its state and setting it. States are taken
only of generators that have moved since they were taken last. To find that out, the states of the three
Mersenne twisters are compared as bytes where they lie, which takes half a microsecond: by the methods that
give them it would take longer than to make a batch of small rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from .buffers import Ints, Seeds
from .digests import splitmix, word_of, words_at
from .lazy import torch
from .threads import renew_in_children

_STEP, _WORD = np.uint64(0x9E3779B97F4A7C15), 2**64 - 1
_FEW = 12  # numbers that are mixed in less time by themselves than as an array
_Twister = ctypes.c_char * 2500  # its words and its position, as they lie in memory
# Of torch's: seed, words left, seeded, position, words, whether a float and a double that is normal is held.
_TORCHS = struct.Struct("=QiB3xI624I8xB11xB")
Place: TypeAlias = tuple[Any, tuple[Any, bytes], tuple[bytes, int]]  # where generators are, see `where`


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
    few, step = [], int(_STEP)
    for number in numbers.tolist():
        word = number * step + key & _WORD
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
        few.append((word ^ word >> 31) >> 1)
    return np.array(few, np.uint64)


KINDS = ("python", "numpy", "torch")  # of generators that all code shares: `random`, NumPy's and torch's


def seeder(kinds: Sequence[str] = KINDS) -> Callable[[int], object]:
    """A function that seeds `random`, NumPy and torch, or some of them, whatever generators they have now.

    torch and NumPy get different halves of the seed: with the same generator they would give the same bits.
    """
    # Of rows made on a CPU: `torch.manual_seed` asks more.
    seeders: dict[str, Any] = {"python": random.seed, "torch": torch.default_generator.manual_seed}
    found = [_numpy_seeder() if kind == "numpy" else seeders[kind] for kind in kinds]

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

    Args:
        kinds: the generators that are to be seeded within it, of `KINDS`.
        notes: calls such as `torch.initial_seed()` use torch's generator, though they do not move it.

    Attributes:
        strayed: after the end, True if a generator that is not of these kinds was used.
    """

    __slots__ = ("_kept", "_kinds", "_notes", "_place", "_spare", "strayed", "thread")

    def __init__(self, kinds: Sequence[str] = KINDS, notes: bool = False) -> None:
        self._kinds, self._notes, self.strayed = kinds, notes, False

    def __enter__(self) -> None:
        try:
            with _entered.lock:
                self._enter()
        except BaseException:  # such as Ctrl-C in the midst of it
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            with _entered.lock:
                self.leave()
        finally:
            if self in _entered.contexts:
                self.__exit__()

    def _enter(self) -> None:
        kept, self._spare = _entered.kept, None
        if kept[0] != (place := where()) or kept[1]["has_gauss"]:
            kept = _entered.kept = _kept(kept, place)
        self._kept, self._place, self.thread = kept, kept[0], threading.get_ident()
        _entered.contexts.append(self)
        if type(self._place[1][0]) is np.random.MT19937:
            if kept[1]["has_gauss"] or "numpy" in self._kinds:
                self._spare = _spares.pop() if _spares else np.random.MT19937(0)
            # The same one, too, forgets a normal number, which the place does not show.
            np.random.set_bit_generator(self._spare or self._place[1][0])  # type: ignore[attr-defined]
            self._place = where() if self._spare else self._place
        if self._notes:
            torch.random.default_generator = torch_noted  # type: ignore[attr-defined,assignment]

    def leave(self) -> None:
        """Ends the context, if it has not ended; hold the lock."""
        contexts = _entered.contexts
        if self not in contexts:
            return
        at, kept, now = contexts.index(self), self._kept, where()
        has_moved = now != kept[0]
        self.strayed = has_moved and not set(used(self._place, now)) <= set(self._kinds)
        if at + 1 < len(contexts):
            contexts[at + 1]._kept = kept
        elif has_moved or kept[1]["has_gauss"]:
            _put_back(kept, now)
        if self._notes and (len(contexts) == 1 or not any(one._notes for one in contexts if one is not self)):
            torch.random.default_generator = torch.default_generator  # type: ignore[attr-defined]
        del contexts[at]
        if self._spare is not None and np.random.get_bit_generator() is not self._spare:  # type: ignore[attr-defined]
            _spares.append(self._spare)  # what others have put in its place is theirs


class _Entered:
    """Contexts that have not ended, of all threads, in the order in which they began."""

    def __init__(self) -> None:
        self.contexts: list[GeneratorsPutBack] = []
        self.kept: Any = (None, None, None), {}, None  # by the one that began last
        self.renew()

    def renew(self) -> None:
        self.lock = threading.Lock()  # while one begins or ends
        # In a forked child the other threads' never end.
        for context in [one for one in self.contexts if one.thread != threading.get_ident()]:
            context.leave()


_entered = _Entered()
renew_in_children(_entered)
_spares: list[np.random.BitGenerator] = []  # that NumPy draws from within a context, one for each of them


def _kept(last: Any, place: Place) -> tuple[Place, dict[str, Any], Any]:
    """Where the generators are, and states of NumPy and torch; one that has not moved is not asked again."""
    before, numpys, torchs = last
    if before[1] != place[1] or numpys["has_gauss"]:  # of which a twister's place says nothing
        numpys = np.random.get_state(legacy=False)
    if before[2] != place[2]:
        torchs = torch.default_generator.get_state()
    # Another thread may draw meanwhile.
    return (place, numpys, torchs) if where() == place else _kept(last, where())


def _put_back(kept: tuple[Place, dict[str, Any], Any], now: Place) -> None:
    place, numpys, torchs = kept
    if now[0] != place[0]:
        if _PYTHONS is None:
            random.setstate(place[0])
        else:  # not by `ctypes.memmove`, during which other threads may draw; `random.setstate` takes 10 us
            _PYTHONS.raw, _python.gauss_next = place[0]  # type: ignore[attr-defined]
    if now[1] != place[1] or numpys["has_gauss"]:
        np.random.set_bit_generator(place[1][0])  # type: ignore[attr-defined]
        if numpys["has_gauss"] or where()[1] != place[1]:
            np.random.set_state(numpys)
    if now[2] != place[2]:
        torch.default_generator.set_state(torchs)


def where() -> Place:
    """Where `random`, NumPy and torch are: another place if one was used, or if torch was asked.

    A place has the whole states, but for a normal number that a Mersenne twister of NumPy's holds ready.
    """
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is np.random.MT19937:
        numpys = _Twister.from_address(bits.ctypes.state_address).raw
    else:
        numpys = pickle.dumps(np.random.get_state(legacy=False))
    pythons = random.getstate() if _PYTHONS is None else (_PYTHONS.raw, _python.gauss_next)  # type: ignore[attr-defined]
    view = _torch_view()
    torchs = torch.default_generator.get_state().numpy().tobytes() if view is None else view.raw
    return pythons, (bits, numpys), (torchs, torch_noted.count)


def used(before: Place, after: Place) -> list[str]:
    """The generators, of `KINDS`, that are at another place."""
    return [kind for kind, one, two in zip(KINDS, before, after, strict=True) if one != two]


def _python_view() -> Any:
    """The state of `random` as it lies in memory; None if it does not lie where it is looked for."""
    at, one = object.__basicsize__, random.Random(5)
    if sys.implementation.name != "cpython" or type(_python).__basicsize__ < at + ctypes.sizeof(_Twister):
        return None
    one.random()
    position, *key = struct.unpack("=I624I", _Twister.from_address(id(one) + at).raw)
    return _Twister.from_address(id(_python) + at) if one.getstate() == (3, (*key, position), None) else None


_python: random.Random = random.random.__self__  # type: ignore[attr-defined]
_PYTHONS = _python_view()


@cache
def _torch_view() -> Any:
    """The state of torch's generator as it lies in memory; None if it does not lie where it is looked for.

    It is read only if all that `get_state` says lies there, whichever normal numbers are held ready: what is
    read lies between bytes of the state, so within its object, which lives as long as torch.
    """
    with contextlib.suppress(Exception):
        generators, state = [torch.default_generator], torch.Generator("cpu").manual_seed(5).get_state()
        for held in ((0, 0), (1, 0), (0, 1)):
            state.numpy()[[5040, 5052]] = held  # whether a double and a float is
            generators.append(torch.Generator("cpu").set_state(state))
        words = state.numpy()[24:5016].view(np.uint64).astype(np.uint32).tobytes()
        at = _copied(generators[1], 0, 128 + _TORCHS.size).index(words) - 20
        if all(_lies_at(at, one) for one in generators):
            address = torch.default_generator._cdata + at  # type: ignore[attr-defined]
            return (ctypes.c_char * _TORCHS.size).from_address(address)
    return None


def _lies_at(at: int, generator: torch.Generator) -> bool:
    *most, has_float, has_double = _TORCHS.unpack(_copied(generator, at, _TORCHS.size))
    given = struct.unpack("=QiiQ624Q24xi8xB3x", generator.get_state().numpy().tobytes())
    return (*most, has_double, has_float) == given


def _copied(generator: Any, at: int, size: int) -> bytes:
    """Bytes from a place of a generator on, as the kernel copies them: an error where there is no memory."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, generator._cdata + at)


class _Asking:
    """Stands in for torch's generator where functions such as `torch.initial_seed()` look for it.

    These are not replaced themselves, as they could be imported by name before.

    Attributes:
        count: how often torch's generator was asked for anything.
    """

    count = 0

    def __getattr__(self, name: str) -> object:
        self.count += 1
        return getattr(torch.default_generator, name)


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
        self._seed, self._numpy = seed, np.random.MT19937(0)
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
