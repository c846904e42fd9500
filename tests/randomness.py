"""How far orders are from those of a fair shuffle: statistics in standard deviations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any

import numpy as np

LAGS = (1, 2, 8, 64)
_PLAIN = 64  # from this many rows on, counts over an order are nearly independent
_FEW = 5  # up to this many rows, each of their orders is counted
_PLACES = (0, 1, 2, 3)  # and the middle and the end


class Statistics:
    """Statistics of orders of N rows, each in standard deviations from its expectation.

    - parity: how many orders are odd.
    - step, xor: by how much the row at position i differs from that at i + lag, and in which bits.
    - serial: the correlation of neighbours, and which pairs come at the front.
    - position: which rows come at a position, and whether rows stay near theirs.
    - orders: of a few rows, how often each of all orders comes.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.orders = 0
        self._sums: dict[
            str, list[float]
        ] = {}  # for each number of an order: how many, their sum, the sum of their squares
        self._counts: dict[str, Any] = {}  # counts of what comes, and the expectation of each for one order

    def add(self, orders: Any) -> None:
        """Adds some more orders, (orders, N)."""
        length, orders = self.length, np.asarray(orders, np.int32)
        numbers, mean = np.arange(length), (length - 1) / 2
        self.orders += len(orders)
        some = len(orders) // 4 if length > 1000 else len(orders)  # because it takes long, and shows soon
        self._number("parity", parities(orders[: max(some, 1)]), 0.5)
        squares = ((numbers - mean) ** 2).sum()
        centred = orders - mean
        if length > 2:  # two rows have nothing but a parity
            neighbours = (centred[:, :-1] * centred[:, 1:]).sum(1)
            self._number("serial", neighbours, -squares / length)
            self._number("position", centred @ (numbers - mean), 0)
            self._number("fixed points", (orders == numbers).sum(1), 1)
            self._number(
                "step by 1", (np.abs(np.diff(orders, axis=1)) == 1).sum(1), 2 * (length - 1) / length
            )
            odd = ((orders[:, :-1] ^ orders[:, 1:]) == 1).sum(1)
            self._number("xor by 1", odd, length // 2 * 2 / length)
        if length <= _FEW:
            digits = length ** np.arange(length)
            possible = np.bincount([digits @ order for order in permutations(range(length))])
            found = np.bincount(orders @ digits, minlength=len(possible))
            self._count("orders", found, possible / math.factorial(length))
        for place in {*_PLACES, length // 2, length - 1} & set(range(length)):
            found = np.bincount(orders[:, place], minlength=length)
            self._count(f"position {place}", found, np.full(length, 1 / length))
        if length > 2:
            bins = min(length, 12)
            sizes = np.bincount(numbers * bins // length)
            pairs = (np.outer(sizes, sizes) - np.diag(sizes)) / (length * (length - 1))
            binned = orders[:, :3] * bins // length
            for name, first, second in (("0 and 1", 0, 1), ("1 and 2", 1, 2), ("0 and 2", 0, 2)):
                found = np.bincount(binned[:, first] * bins + binned[:, second], minlength=bins * bins)
                self._count(f"serial {name}", found, pairs.ravel())
        if length >= _PLAIN:
            self._pairs(orders)

    def _pairs(self, orders: Any) -> None:
        length = self.length
        steps = 2 * (length - np.arange(length)) / (length * (length - 1))
        steps[0] = 0
        size = 1 << (length - 1).bit_length()
        numbers = np.arange(length)
        bits = np.array([np.count_nonzero(numbers ^ bits < length) for bits in range(size)])
        bits = bits / (length * (length - 1))
        bits[0] = 0
        for lag in LAGS:
            if lag < length / 2:
                first, second = orders[:, :-lag].ravel(), orders[:, lag:].ravel()
                found = np.bincount(np.abs(first - second), minlength=length)
                self._count(f"step, lag {lag}", found, steps * (length - lag))
                found = np.bincount(first ^ second, minlength=size)
                self._count(f"xor, lag {lag}", found, bits * (length - lag))

    def _number(self, name: str, values: Any, expected: float) -> None:
        apart = np.asarray(values, float) - expected
        found = len(apart), float(apart.sum()), float((apart**2).sum())
        self._sums[name] = [a + b for a, b in zip(self._sums.get(name, (0, 0, 0)), found, strict=True)]

    def _count(self, name: str, found: Any, expected: Any) -> None:
        counts = self._counts.setdefault(name, [np.zeros(len(found), np.int64), expected])
        counts[0] += found

    def deviations(self) -> Iterator[tuple[str, float]]:
        """Each statistic by name, in standard deviations."""
        for name, (count, total, squares) in self._sums.items():
            mean = total / count
            variance = squares / count - mean**2
            if variance > 1e-9:
                yield name, mean / math.sqrt(variance / count)
            elif abs(mean) > 1e-9:
                yield name, math.inf
        for name, (found, expected) in self._counts.items():
            wanted = expected * self.orders
            assert not found[wanted == 0].any(), name
            found, wanted = found[wanted > 0], wanted[wanted > 0]
            cells = (found - wanted) / np.sqrt(wanted)
            yield name, of_chi_square(float((cells**2).sum()), len(cells) - 1)
            # Each single count, if counts are large enough to be normally distributed, and all of them
            # together.
            if len(cells) > 2 and wanted.min() > 100:
                yield f"{name}, one of them", float(np.abs(cells).max()) - math.sqrt(2 * math.log(len(cells)))

    def worst(self) -> tuple[float, str]:
        """The largest of the deviations, and its name."""
        return max((abs(value), name) for name, value in self.deviations())


def parities(orders: Any) -> Any:
    """0 for even orders, 1 for odd ones: whether N minus the number of cycles is odd."""
    length = orders.shape[1]
    least = np.broadcast_to(np.arange(length, dtype=np.int32), orders.shape)  # a row of the cycle of each
    ahead = orders
    for _ in range((length - 1).bit_length()):
        least = np.minimum(least, np.take_along_axis(least, ahead, 1))
        ahead = np.take_along_axis(ahead, ahead, 1)
    cycles = (least == np.arange(length)).sum(1)
    return (length - cycles) % 2


def of_chi_square(found: float, freedom: int) -> float:
    """A chi-square in standard deviations (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * max(freedom, 1))
    return float(((found / max(freedom, 1)) ** (1 / 3) - 1 + spread) / math.sqrt(spread))


def together(orders: Iterable[Any], length: int) -> Statistics:
    """The statistics of orders that are made one by one."""
    found, some, rows = Statistics(length), [], 0
    for order in orders:
        some.append(order)
        rows += length
        if rows >= 2**20:
            found.add(np.stack(some))
            some, rows = [], 0
    if some:
        found.add(np.stack(some))
    return found
