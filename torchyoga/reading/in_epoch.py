"""A source as an iteration reads it in one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol

from ..process.seeding import GeneratorsPutBack, row_seeds
from ..rows.types import Ints, RowT
from .readahead import ReadAhead

__all__ = ["RandomAccess", "in_epoch"]


class RandomAccess(Protocol[RowT]):
    """The source of a stream. It may have more of what a DataRef has, such as a `_readahead`."""

    @property
    def fingerprint(self) -> str | None:
        """A name for the content, or None."""

    def __len__(self) -> int: ...

    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers, in this order."""


def in_epoch(source: RandomAccess[RowT], epoch: int, seed: int) -> RandomAccess[RowT]:
    """A source as it is in an epoch; rows made with random numbers get those of (seed, epoch, row)."""
    bound: Any = source.in_epoch(epoch) if hasattr(source, "in_epoch") else source
    return _Seeded(bound, epoch, seed) if getattr(bound, "_is_random", False) else bound


class _Seeded(Generic[RowT]):
    """A random DataRef whose rows follow from the seed and the epoch."""

    def __init__(self, source: Any, epoch: int, seed: int) -> None:
        self._source = source
        self._epoch, self._seed = epoch, seed

    def __len__(self) -> int:
        return len(self._source)

    @property
    def fingerprint(self) -> str | None:
        """The source's."""
        found: str | None = self._source.fingerprint
        return found

    @property
    def _readahead(self) -> ReadAhead | None:
        """The source's."""
        found: ReadAhead | None = self._source._readahead
        return found

    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers; all generators are put back after it."""
        with GeneratorsPutBack():
            found: Sequence[RowT] = self._source._take_seeded(rows, row_seeds(self._seed, self._epoch, rows))
        return found
