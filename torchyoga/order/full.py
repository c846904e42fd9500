"""The full shuffle, a keyed bijection: any position is turned into its row, and back, without a list.

Up to 4,096 numbers it is a sort by keyed hashes, so that all permutations are equally likely. For more
numbers it is a Feistel network over the smallest power of two that holds N, applied again to what falls
outside 0..N-1 until it falls inside (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002).

Note 11. The order of few rows is a sort, that of many rows is a network.
In a network, two numbers that share a half keep their difference if every second round adds the same to both.
That happens too often, by a factor of some 1 + 2^-(bits of a half * (rounds / 2 - 2)). With eight rounds over
halves of six bits or more, a million orders do not show it; smaller networks would need more rounds, which
large ones do not. To sort 4,096 words takes as long as the first thousand numbers of a network, and 64 KB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..process.digests import keyed_words, random_words
from ..process.lazy import np
from ..process.numbers import as_int
from ..rows.types import Ints
from .contract import AnyOrder, Pin, checked_rows, within

if TYPE_CHECKING:
    import numpy.typing as npt

_Words: TypeAlias = "npt.NDArray[np.unsignedinteger]"  # 32 bits wide, or 64

_MOST_SORTED, _SORTED_BITS = 4096, 12
_ROUNDS = 8
_ODD = (1, 0, 1)  # which keys of a round must be odd: those that multiply
_CHUNK = 65536  # numbers turned at once
_AT_ONCE = 16384  # numbers mixed at once, so that they stay in the processor's cache; and of a table of all


@lru_cache(maxsize=128)  # a sorted one takes 64 KB at most
def bijection(length: int, seed: int, epoch: int) -> _Sorted | _Network:
    """The shuffle of 0..length-1 for a seed and an epoch.

    Example:
        >>> found = bijection(10_000, seed=7, epoch=0)
        >>> images = found.turned(np.arange(3), forward=True)
        >>> found.turned(images, forward=False).tolist()
        [0, 1, 2]
    """
    if length <= _MOST_SORTED:
        return _sorted(length, *keyed_words(1, "sorted", length, seed, epoch).tolist())
    bits = (length - 1).bit_length()
    last, *words = keyed_words(1 + 3 * _ROUNDS, "order 2", length, seed, epoch).tolist()
    keys = np.array(words, np.uint64).reshape(-1, 3) | np.array(_ODD, np.uint64)
    rounds = [tuple(key) for key in keys.astype(np.uint32 if bits <= 32 else np.uint64)]
    return _Network(length, bits, rounds, is_odd=last % 2 == 1)


class _Sorted(NamedTuple):
    """A bijection as a list of images, and the list of the inverse."""

    images: Ints
    inverse: Ints

    def turned(self, numbers: Ints, forward: bool) -> Ints:
        """The image of each number, or the number of each image."""
        return np.asarray((self.images if forward else self.inverse)[numbers])


def _sorted(length: int, key: int) -> _Sorted:
    # One sort of words with a hash above and a number below is a stable argsort of the hashes, several times
    # as fast.
    low = np.uint64(_SORTED_BITS)
    numbers = np.arange(length, dtype=np.uint64)
    words = np.sort(random_words(key, length) >> low << low | numbers)
    images = (words & np.uint64(2**_SORTED_BITS - 1)).astype(np.int64)
    inverse = np.empty(length, np.int64)
    inverse[images] = numbers
    return _Sorted(images, inverse)


class _Network(NamedTuple):
    """A bijection as a Feistel network that walks along its cycles.

    Attributes:
        length: how many numbers it permutes.
        bits: of the network's numbers; 2**bits is at least `length`.
        rounds: of each, the odd word that its hash multiplies by, the word that it adds, and the odd word
            that it multiplies by at last; all as wide as the numbers that are turned.
        is_odd: whether 0 and 1 are exchanged first. The rounds alone only make even permutations.
    """

    length: int
    bits: int
    rounds: list[tuple[np.unsignedinteger, ...]]
    is_odd: bool

    def turned(self, numbers: Ints, forward: bool) -> Ints:
        """The image of each number, or the number of each image: the network, applied until it is inside."""
        word = type(self.rounds[0][0])
        flat = np.ascontiguousarray(numbers).reshape(-1)
        out = np.empty(flat.shape, np.int64)
        mix: Callable[[_Words], _Words] = partial(self._mixed, forward=forward)
        if self.length <= flat.size <= _AT_ONCE:  # a walk of few numbers takes as long as one of many
            mix = mix(np.arange(1 << self.bits, dtype=word)).take
        for start in range(0, flat.size, _CHUNK):
            words = flat[start : start + _CHUNK].astype(word)
            if self.is_odd and forward:
                words[np.flatnonzero(words < 2)] ^= word(1)
            words = mix(words)
            outside = np.flatnonzero(words >= self.length)
            while outside.size:
                again = mix(words[outside])
                words[outside] = again
                outside = outside[again >= self.length]
            if self.is_odd and not forward:
                words[np.flatnonzero(words < 2)] ^= word(1)
            out[start : start + _CHUNK] = words
        return out.reshape(numbers.shape)

    def _mixed(self, words: _Words, forward: bool) -> _Words:
        """All rounds: each adds a hash of one half to the other half; backwards they undo themselves."""
        if len(words) > _AT_ONCE:
            some = range(0, len(words), _AT_ONCE)
            return np.concatenate([self._mixed(words[start : start + _AT_ONCE], forward) for start in some])
        word, width = words.dtype.type, words.dtype.itemsize * 8
        sizes = self.bits // 2, self.bits - self.bits // 2  # of the high half and of the low one
        middle, highest = word(width // 2 - 1), [word(width - size) for size in sizes]
        halves: list[_Words] = [words >> word(sizes[1]), words & word((1 << sizes[1]) - 1)]
        hashed, shifted = np.empty_like(words), np.empty_like(words)
        for number in range(_ROUNDS) if forward else reversed(range(_ROUNDS)):
            multiply, add, remultiply = self.rounds[number]
            target = number % 2
            np.multiply(halves[1 - target], multiply, out=hashed)
            hashed += add
            hashed ^= np.right_shift(hashed, middle, out=shifted)
            hashed *= remultiply
            hashed >>= highest[target]
            halves[target] ^= hashed
        halves[0] <<= word(sizes[1])
        halves[0] |= halves[1]
        return halves[0]


ORDER_VERSION = 1  # in every saved state, so another shuffle needs another number


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

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows (int64, shape of `positions`) at these positions of the epoch; past N they wrap around.

        Raises:
            ValueError: a position is below 0.
        """
        return self._turned(epoch, within(positions, self.length), forward=True)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`."""
        return self._turned(epoch, checked_rows(rows, self.length), forward=False)

    def prefix(self, rows: int) -> Order:
        """This order of the first rows, as it was before others were appended."""
        return replace(self, length=rows)

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        return {"shuffle": self.kind}

    def _turned(self, epoch: int, numbers: Ints, forward: bool) -> Ints:
        if not self.shuffle or self.length < 2:
            return numbers
        key = as_int("epoch", epoch) if self.reshuffle else 0
        return bijection(self.length, self.seed, key).turned(numbers, forward)
