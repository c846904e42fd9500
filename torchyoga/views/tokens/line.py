"""Tokens in a line -> the documents that they are of, and back: documents as stored, or shuffled by block.

Documents are shuffled in two steps, blocks of 4,096, then documents within each.
So an epoch needs the sum of the lengths of each block, in their order, and no list of all documents. The
order within a block is made when a token of it is first wanted, and kept: 16 bytes for each document.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ...order.full import Order
from ...process.digests import keyed_words, random_words
from ...process.numbers import distinct
from ...rows.data import bounds_of, numbered_within
from ...rows.types import Ints

_BLOCK_BITS = 12
_STEPS = 6
_BLOCK = 1 << _BLOCK_BITS  # documents that are shuffled among each other


class Pieces(NamedTuple):
    """The pieces of documents that runs of tokens consist of, run after run.

    Attributes:
        counts: (B,) pieces of each run.
        documents: (P,) the number of each piece's document.
        starts: (P,) the first token of each, within its document.
        stops: (P,) the token after its last.
    """

    counts: Ints
    documents: Ints
    starts: Ints
    stops: Ints


class Line(Protocol):
    """All documents, none of them empty, laid end to end."""

    def places(self, positions: Ints, last: Ints) -> tuple[Ints, Ints]:
        """For runs of tokens (B,) from a position to a last one: the places of the first and last document.

        What `starts` and `documents` say is known from the one to the other.
        """

    def starts(self, places: Ints) -> Ints:
        """The positions (P,) at which the documents at these places begin."""

    def documents(self, places: Ints) -> Ints:
        """The documents (P,) at these places."""


def cut(line: Line, positions: Ints, size: int) -> Pieces:
    """The pieces of the runs of `size` tokens that begin at these positions (B,).

    Example:
        >>> cut(Stored(np.array([0, 3, 8, 9])), np.array([1, 6]), 3)[1:]
        (array([0, 1, 1, 2]), array([1, 0, 3, 0]), array([3, 1, 5, 1]))
    """
    ends = positions + size
    first, last = line.places(positions, ends - 1)
    counts = last - first + 1
    if int(counts.max(initial=1)) == 1:
        begins = line.starts(first)
        return Pieces(counts, line.documents(first), positions - begins, ends - begins)
    places = np.repeat(first, counts) + numbered_within(counts)
    begins, following = line.starts(places), line.starts(places + 1)
    starts = np.maximum(np.repeat(positions, counts) - begins, 0)
    stops = np.minimum(np.repeat(ends, counts), following) - begins
    return Pieces(counts, line.documents(places), starts, stops)


class Stored:
    """Documents as they are stored.

    Args:
        ends: (D + 1,) the position at which each document begins, and the number of tokens.
    """

    def __init__(self, ends: Ints) -> None:
        self._ends = ends

    def places(self, positions: Ints, last: Ints) -> tuple[Ints, Ints]:
        """The documents that runs of tokens begin and end in."""
        first = np.searchsorted(self._ends, positions, "right") - 1
        found = first
        for _ in range(_STEPS):  # a few documents further, which is faster than another search
            is_beyond = self._ends[found + 1] <= last
            if not is_beyond.any():
                return first, found
            found = found + is_beyond
        return first, np.searchsorted(self._ends, last, "right") - 1

    def starts(self, places: Ints) -> Ints:
        """The positions at which documents begin."""
        return self._ends[places]

    def documents(self, places: Ints) -> Ints:
        """The places themselves."""
        return places


class Shuffled:
    """Documents in an order that follows from a seed and an epoch.

    Args:
        ends: (D + 1,) where each document begins as stored, and the number of tokens.
        seed: any int.
        epoch: its number.

    Example:
        >>> line = Shuffled(np.array([0, 3, 8, 9]), seed=7, epoch=0)
        >>> first, last = line.places(np.arange(9), np.arange(9))
        >>> sorted(line.documents(first).tolist())
        [0, 0, 0, 1, 1, 1, 1, 1, 2]
    """

    def __init__(self, ends: Ints, seed: int, epoch: int) -> None:
        self._ends = ends
        self._key = seed, epoch
        count = len(ends) - 1
        bounds = np.append(np.arange(0, count, _BLOCK), count)
        # Another seed than that of an order of as many rows, or blocks would follow it.
        (word,) = keyed_words(1, "blocks of documents", seed).tolist()
        self._order = Order(len(bounds) - 1, word)
        self._blocks = blocks = self._order.rows(epoch, np.arange(len(bounds) - 1))
        self._block_places = bounds_of(np.diff(bounds)[blocks])  # where they begin, in documents
        self._block_starts = bounds_of(np.diff(ends[bounds])[blocks])  # in tokens
        self._is_known = np.zeros(len(blocks), np.bool_)
        # Of the blocks that are known; pages cost nothing before.
        self._starts = np.empty(count + 1, np.int64)
        self._documents = np.empty(count, np.int64)
        self._starts[self._block_places] = self._block_starts

    def places(self, positions: Ints, last: Ints) -> tuple[Ints, Ints]:
        """The places of the documents that runs of tokens begin and end in."""
        one = np.searchsorted(self._block_starts, positions, "right") - 1
        other = np.searchsorted(self._block_starts, last, "right") - 1
        counts = other - one + 1
        self._know(np.repeat(one, counts) + numbered_within(counts))
        return self._found(positions, one), self._found(last, other)

    def starts(self, places: Ints) -> Ints:
        """The positions at which the documents at these places begin."""
        return self._starts[places]

    def documents(self, places: Ints) -> Ints:
        """The documents at these places."""
        return self._documents[places]

    def _know(self, slots: Ints) -> None:
        """Makes the order within the blocks that come there."""
        for slot in distinct(slots[~self._is_known[slots]]).tolist():
            first, stop = self._block_places[slot : slot + 2].tolist()
            block = int(self._blocks[slot])
            (word,) = keyed_words(1, "documents", *self._key, block).tolist()
            own = np.argsort(random_words(word, stop - first), kind="stable") + (block << _BLOCK_BITS)
            lengths = self._ends[own + 1] - self._ends[own]
            # Threads that do so at the same time write the same.
            self._documents[first:stop] = own
            self._starts[first + 1 : stop + 1] = self._block_starts[slot] + np.cumsum(lengths)
            self._is_known[slot] = True

    def _found(self, positions: Ints, slots: Ints) -> Ints:
        """The place of the document in which each position lies, whose block is known."""
        place = self._block_places[slots]
        ends = self._block_places[slots + 1] - 1
        for bit in reversed(range(_BLOCK_BITS)):
            ahead = np.minimum(place + (1 << bit), ends)
            place = np.where(self._starts[ahead] <= positions, ahead, place)
        return place
