"""A set of numbers that finds the next one."""

from __future__ import annotations

__all__ = ["Rooms"]

_BITS = 10  # of a word: Python finds the lowest bit of so few in a tenth of a microsecond
_LAST = (1 << _BITS) - 1


class Rooms:
    """Some of the numbers 0..size-1, as bits of words, and words of which words are not 0.

    Each act takes a step for every 10 bits of a number, as in a tree of van Emde Boas (FOCS, 1975).

    Args:
        size: one more than the largest number.

    Example:
        >>> rooms = Rooms(5000)
        >>> rooms.add(7)
        >>> rooms.add(4000)
        >>> rooms.next(0), rooms.next(8), rooms.next(4001)
        (7, 4000, None)
    """

    def __init__(self, size: int) -> None:
        levels = max(1, -(-(size - 1).bit_length() // _BITS))
        self._levels: list[dict[int, int]] = [{} for _ in range(levels)]

    def add(self, number: int) -> None:
        """Puts a number in."""
        for words in self._levels:
            word, bit = number >> _BITS, 1 << (number & _LAST)
            before = words.get(word, 0)
            words[word] = before | bit
            if before:
                return
            number = word

    def remove(self, number: int) -> None:
        """Takes out a number that is in it."""
        for words in self._levels:
            word = number >> _BITS
            left = words[word] ^ (1 << (number & _LAST))
            if left:
                words[word] = left
                return
            del words[word]
            number = word

    def next(self, number: int) -> int | None:
        """The smallest number in it that is at least this; None if there is none."""
        for level, words in enumerate(self._levels):
            found = words.get(number >> _BITS, 0) >> (number & _LAST)
            if found:
                number += _lowest(found)
                for below in reversed(self._levels[:level]):
                    number = number << _BITS | _lowest(below[number])
                return number
            number = (number >> _BITS) + 1
        return None


def _lowest(word: int) -> int:
    return (word & -word).bit_length() - 1
