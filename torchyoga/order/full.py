"""Position -> row number and back, over all ranks, with integers only.

The shuffle is a keyed bijection, so any position is turned into its row, and back. Up to 4096 rows it is the
order of keyed hashes, kept for the epoch: all orders are equally likely. For more rows no list is made: it is
a Feistel network over the smallest power of two that holds their number, walked along its cycles until it
lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).

The smaller such a network, the less random it is. Two numbers that share a half keep their difference if
every second round adds the same to both. That happens too often, by a factor of some 1 + 2^-(bits of a half *
(rounds / 2 - 2)). With eight rounds over halves of six bits and more, a million orders do not show it.
Version 1 had six rounds for any number of rows: of 128 rows, neighbours came next to each other 5 % too
often. It is kept for epochs that were begun in this version.

Note 11. The order of few rows is a sort, that of many rows is a network.
Networks over a few bits are not fair, and to make them fair takes rounds that many rows do not need. A sort
of 4,096 words takes as long as the first thousand rows of a network, and 64 KB. It is one sort of words with
the hash above and the row below, several times as fast as an argsort.

An order knows which epoch is still in another version.
It also knows which epoch has another number of shards. So callers that ask it for rows need not know, and the
code of version 1 is a number of rounds, its keys, and no exchange of two rows.
"""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

from ..process.lazy import np
from .contract import AnyOrder
from .saved import Pin

if TYPE_CHECKING:
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]
    _Digits: TypeAlias = npt.NDArray[np.unsignedinteger]  # 32 bits wide, or 64
else:
    Positions = Words = _Digits = Any

__all__ = [
    "ORDER_VERSION",
    "Order",
    "are_outside",
    "as_int",
    "checked_rows",
    "keyed_bytes",
    "keyed_words",
    "random_words",
    "within",
    "words_at",
]


ORDER_VERSION = 1  # in every saved state, so another shuffle needs another number
_ROUNDS = 8
_MOST_SORTED = 4096  # rows; sorting them takes as long as the first thousand of a network
_SORTED_BITS = 12  # enough for their numbers
_ODD = (1, 0, 1)
_CHUNK = 65536  # positions computed at once, so that they stay in the processor's cache


def keyed_bytes(size: int, *key: int | str) -> bytes:
    """`size` (at most 64) pseudo-random bytes that depend on every part of the key (BLAKE2b, RFC 7693)."""
    # The number is not a version: proofs in saved states depend on it. A changed algorithm has another key.
    text = "\0".join(f"{type(part).__name__}:{part}" for part in ("torchyoga", 1, *key))
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


@dataclass(frozen=True)
class Order(AnyOrder):
    """The order of the rows in every epoch, over all ranks.

    Args:
        length: number of rows N, up to 2**62.
        seed: any int; together with the epoch it makes the keys.
        shuffle: False for rows 0, 1, 2, ...
        reshuffle: False gives every epoch the order of epoch 0.

    Example:
        >>> order = Order(10, seed=7)
        >>> rows = order.rows(epoch=0, positions=np.arange(10))
        >>> sorted(rows.tolist()) == list(range(10))
        True
        >>> order.positions(epoch=0, rows=rows).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    length: int
    seed: int = 0
    shuffle: bool = True
    reshuffle: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", as_int("length", self.length, low=0, high=2**62))
        object.__setattr__(self, "seed", as_int("seed", self.seed))

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Positions:
        """The rows (int64, shape of `positions`) at these positions of the epoch; past N they wrap around.

        Raises:
            ValueError: a position is below 0.
        """
        found = within(positions, self.length)
        if not self.length or not found.size:
            return found
        return self._turned(epoch, found, forward=True)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Positions:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`."""
        return self._turned(epoch, checked_rows(rows, self.length), forward=False)

    def prefix(self, rows: int) -> Order:
        """This order of the first rows, as it was before others were appended."""
        return replace(self, length=rows)

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return {"shuffle": self.kind}

    def _turned(self, epoch: int, numbers: Positions, forward: bool) -> Positions:
        if not self.shuffle or self.length < 2:
            return numbers
        key = as_int("epoch", epoch) if self.reshuffle else 0
        return _permutation(self.length, self.seed, key).turned(numbers, forward)


def within(positions: npt.ArrayLike, length: int) -> Positions:
    """Positions in 0..N-1: past N they wrap around; ValueError for one below 0."""
    found = np.asarray(positions, np.int64)
    if length and found.size and are_outside(found, length):
        if int(found.min()) < 0:  # a walk from outside might never get inside
            raise ValueError(f"positions must be at least 0, found {int(found.min())}")
        found = found % length
    return found


def checked_rows(rows: npt.ArrayLike, length: int) -> Positions:
    """Rows as int64; ValueError if some are not in 0..N-1."""
    found = np.asarray(rows, np.int64)
    if are_outside(found, length):
        raise ValueError(f"rows must be in 0..{length - 1}, found {int(found.min())}..{int(found.max())}")
    return found


def are_outside(numbers: Positions, length: int) -> bool:
    """True if any of the numbers is not in 0..length-1."""
    return bool(numbers.size) and int(numbers.view(np.uint64).max()) >= length  # numbers below 0 become huge


def as_int(name: str, value: SupportsIndex, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int within the bounds; ValueError otherwise, and for a bool."""
    try:
        if type(value) is not int and isinstance(value, (bool, np.bool_)):  # an int needs no NumPy
            raise TypeError
        number = int(operator.index(value))
    except TypeError:
        raise ValueError(f"{name} must be an int, found {value!r}") from None
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name} must be {bounds}, found {number}")
    return number


def keyed_words(count: int, *key: int | str) -> Words:
    """`count` 64-bit words that depend on every part of the key."""
    some = [keyed_bytes(64, *key, index) for index in range(-(-count // 8))]
    return np.frombuffer(b"".join(some), "<u8")[:count].astype(np.uint64)


def random_words(key: int, count: int) -> Words:
    """`count` random numbers, no two of them the same."""
    return words_at(key, np.arange(1, count + 1))


def words_at(key: int | Words, numbers: Positions) -> Words:
    """A random number for each of these, no two of one key the same.

    It is splitmix64 (Steele, Lea, Flood, 2014).
    """
    found = numbers.astype(np.uint64)
    found *= np.uint64(0x9E3779B97F4A7C15)
    found += np.uint64(key % 2**64) if isinstance(key, int) else key
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(found ^ (found >> np.uint64(31)))


class _Sorted(NamedTuple):
    """A bijection as a list, and its inverse."""

    rows: Positions
    places: Positions

    def turned(self, numbers: Positions, forward: bool) -> Positions:
        """The number at each place, or the place of each number."""
        return np.asarray((self.rows if forward else self.places)[numbers])


class _Network(NamedTuple):
    """A bijection as a Feistel network.

    Attributes:
        length: how many numbers it permutes.
        bits: bits of the network's numbers.
        rounds: what each multiplies by, adds, and multiplies by, in numbers as wide as its words.
        swaps: whether 0 and 1 are exchanged before. All permutations that the rounds alone make are even.
    """

    length: int
    bits: int
    rounds: tuple[tuple[np.unsignedinteger, ...], ...]
    swaps: bool

    def turned(self, numbers: Positions, forward: bool) -> Positions:
        """Each number, permuted, or by the inverse permutation."""
        word = type(self.rounds[0][0])
        flat = np.ascontiguousarray(numbers).reshape(-1)
        out = np.empty(flat.shape, np.int64)
        for start in range(0, flat.size, _CHUNK):
            mixed = flat[start : start + _CHUNK].astype(word)
            if self.swaps and forward:
                mixed[np.flatnonzero(mixed < 2)] ^= word(1)
            mixed = self._mixed(mixed, forward)
            if self.length < 1 << self.bits:
                self._walk(mixed, forward)
            if self.swaps and not forward:
                mixed[np.flatnonzero(mixed < 2)] ^= word(1)
            out[start : start + _CHUNK] = mixed
        return out.reshape(numbers.shape)

    def _walk(self, mixed: _Digits, forward: bool) -> None:
        """Moves what lies outside along its cycle, until it is inside."""
        outside = np.flatnonzero(mixed >= self.length)
        while outside.size:
            again = self._mixed(mixed[outside], forward)
            mixed[outside] = again
            outside = outside[again >= self.length]

    def _mixed(self, values: _Digits, forward: bool) -> _Digits:
        word = values.dtype.type
        width = values.dtype.itemsize * 8
        high, low = self.bits // 2, self.bits - self.bits // 2
        halves: list[_Digits] = [values >> word(low), values & word((1 << low) - 1)]
        kept = word(width - high), word(width - low)
        middle = word(width // 2 - 1)
        hashed, shifted = np.empty_like(values), np.empty_like(values)
        for index in range(len(self.rounds)) if forward else reversed(range(len(self.rounds))):
            multiply, add, remultiply = self.rounds[index]
            target = index % 2
            np.multiply(halves[1 - target], multiply, out=hashed)
            hashed += add
            np.right_shift(hashed, middle, out=shifted)
            hashed ^= shifted
            hashed *= remultiply
            hashed >>= kept[target]
            halves[target] ^= hashed
        halves[0] <<= word(low)
        halves[0] |= halves[1]
        return halves[0]


@lru_cache(maxsize=128)  # a sorted order takes 64 KB at most
def _permutation(length: int, seed: int, epoch: int) -> _Sorted | _Network:
    if length <= _MOST_SORTED:
        return _sorted(length, *keyed_words(1, "sorted", length, seed, epoch).tolist())
    bits = (length - 1).bit_length()
    last, *words = keyed_words(1 + 3 * _ROUNDS, "order 2", length, seed, epoch).tolist()
    keys = np.array(words, np.uint64).reshape(-1, 3) | np.array(_ODD, np.uint64)
    word = np.uint32 if bits <= 32 else np.uint64
    return _Network(length, bits, tuple(map(tuple, keys.astype(word))), last % 2 == 1)


def _sorted(length: int, key: int) -> _Sorted:
    # One sort of words, with a hash above and a number below, is a stable argsort of the hashes, and several
    # times as fast.
    low = np.uint64(_SORTED_BITS)
    numbers = np.arange(length, dtype=np.uint64)
    words = np.sort(random_words(key, length) >> low << low | numbers)
    rows = (words & np.uint64(2**_SORTED_BITS - 1)).astype(np.int64)
    places = np.empty(length, np.int64)
    places[rows] = numbers
    return _Sorted(rows, places)
