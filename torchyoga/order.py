"""Position -> row number and back: shuffle, shard, offset and remainder, with integers only.

The shuffle is a keyed bijection: a Feistel network over the smallest power of two that holds the length,
walked along its cycles until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
2002). Any position is turned into its row, and back, without making a list.
"""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["MIN_BITS", "ROUNDS", "Order", "Remainder", "Shard", "as_int", "keyed_bytes", "round_keys"]

Remainder = Literal["keep", "drop", "pad"]
Positions = npt.NDArray[np.int64]
RoundKeys = tuple[tuple[int, int, int], ...]  # of each round: multiply by, add, multiply by

ORDER_VERSION = 1  # part of every saved state: another shuffle would be another number
ROUNDS = 6
MIN_BITS = 6  # fewer, and the orders of a handful of rows are not equally likely
_CHUNK = 65536  # positions computed at once, so that they stay in the processor's cache


def keyed_bytes(size: int, *key: int | str) -> bytes:
    """`size` (at most 64) pseudo-random bytes that depend on every part of the key (BLAKE2b, RFC 7693)."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in ("torchyoga", ORDER_VERSION, *key))
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


@dataclass(frozen=True)
class Order:
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
        """The rows (int64, shape of `positions`) at these positions of the epoch; past N they wrap around."""
        found = np.asarray(positions, np.int64)
        if self.length and found.size and int(found.max()) >= self.length:
            found = found % self.length
        if not self.shuffle or self.length < 2:
            return found
        return _walk(found, self.length, self._keys(epoch), forward=True)

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Positions:
        """The positions in 0..N-1 at which these rows come in the epoch: the inverse of `rows`."""
        found = np.asarray(rows, np.int64)
        if found.size and not (int(found.min()) >= 0 and int(found.max()) < self.length):
            raise ValueError(
                f"rows must be in 0..{self.length - 1}, found {int(found.min())}..{int(found.max())}"
            )
        if not self.shuffle or self.length < 2:
            return found
        return _walk(found, self.length, self._keys(epoch), forward=False)

    def dealt(self, num_replicas: int, begun: int | None) -> Order:
        """The same order for so many ranks: it is the same for any."""
        return self

    def resumed(self, epoch: int | None, shards: int | None) -> Order:
        """The same order as an epoch was begun with: it is the same for any number of ranks."""
        return self

    def pins(self, epoch: int) -> dict[str, Any]:
        """What a state says so that it is not continued in another order."""
        return {"shuffle": "once" if self.shuffle and not self.reshuffle else bool(self.shuffle)}

    def _keys(self, epoch: int) -> RoundKeys:
        return round_keys("order", self.seed, epoch if self.reshuffle else 0)


def as_int(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int within the bounds; ValueError otherwise, and for a bool."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an int, found {value!r}") from None
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name} must be {bounds}, found {number}")
    return number


@lru_cache(maxsize=64)
def round_keys(*key: int | str) -> RoundKeys:
    """The keys of a Feistel network, which depend on every part of the key."""
    keys = []
    for index in range(ROUNDS):
        words = np.frombuffer(keyed_bytes(24, *key, index), "<u8").tolist()
        keys.append((words[0] | 1, words[1], words[2] | 1))
    return tuple(keys)


def _walk(values: Positions, length: int, keys: RoundKeys, forward: bool) -> Positions:
    bits = max(MIN_BITS, (length - 1).bit_length())
    word: type[np.unsignedinteger[Any]] = np.uint32 if bits <= 32 else np.uint64
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.shape, np.int64)
    for start in range(0, flat.size, _CHUNK):
        mixed = _feistel(flat[start : start + _CHUNK].astype(word), bits, keys, forward)
        outside = np.flatnonzero(mixed >= length)
        while outside.size:
            again = _feistel(mixed[outside], bits, keys, forward)
            mixed[outside] = again
            outside = outside[again >= length]
        out[start : start + _CHUNK] = mixed
    return out.reshape(values.shape)


def _feistel(values: Any, bits: int, keys: RoundKeys, forward: bool) -> Any:
    word = values.dtype.type
    width = values.dtype.itemsize * 8
    high, low = bits // 2, bits - bits // 2
    halves = [values >> word(low), values & word((1 << low) - 1)]
    hashed, shifted = np.empty_like(values), np.empty_like(values)
    order = range(ROUNDS) if forward else range(ROUNDS - 1, -1, -1)
    for index in order:
        multiply, add, remultiply = (word(key % (1 << width)) for key in keys[index])
        target = index % 2
        np.multiply(halves[1 - target], multiply, out=hashed)
        hashed += add
        np.right_shift(hashed, word(width // 2 - 1), out=shifted)
        hashed ^= shifted
        hashed *= remultiply
        hashed >>= word(width - (high, low)[target])
        halves[target] ^= hashed
    halves[0] <<= word(low)
    halves[0] |= halves[1]
    return halves[0]


@dataclass(frozen=True)
class Shard:
    """Which positions of the global order one rank takes: rank, rank + W, rank + 2W, ... from any start.

    Args:
        num_replicas: number of ranks W.
        rank: this one, in 0..W-1.
        remainder: what happens to a tail that W does not divide: `keep` (every row once, ranks may differ by
            one), `drop` (equal ranks without the tail), `pad` (equal ranks; rows from the front of the epoch
            come again).
        run: positions dealt to a rank at a time, one by default: with batches of `run` rows, the batches of
            all ranks laid end to end are then in the global order.
    """

    num_replicas: int = 1
    rank: int = 0
    remainder: Remainder = "keep"
    run: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_replicas", as_int("num_replicas", self.num_replicas, low=1))
        object.__setattr__(self, "rank", as_int("rank", self.rank, low=0, high=self.num_replicas - 1))
        if self.remainder not in ("keep", "drop", "pad"):
            raise ValueError(f"remainder must be 'keep', 'drop' or 'pad', found {self.remainder!r}")

    def end(self, length: int, start: int = 0) -> int:
        """The global position at which an epoch of `length` rows, continued at `start`, ends on all ranks."""
        left = max(length - start, 0)
        whole, tail = divmod(left, self.num_replicas)
        if self.remainder == "drop":
            left = whole * self.num_replicas
        elif self.remainder == "pad":
            left = (whole + (tail > 0)) * self.num_replicas
        return start + left

    def count(self, length: int, start: int = 0, rank: int | None = None) -> int:
        """How many rows this rank (or `rank`) takes between `start` and the end."""
        first = self.rank if rank is None else rank
        return len(range(start + first, self.end(length, start), self.num_replicas))

    def steps(
        self, length: int, start: int, batch_size: int, drop_last: bool, rank: int | None = None
    ) -> int:
        """How many batches that is; `drop_last` leaves out a shorter last one."""
        rows = self.count(length, start, rank)
        return rows // batch_size if drop_last else -(-rows // batch_size)
