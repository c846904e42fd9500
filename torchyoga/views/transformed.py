"""The rows of another DataRef, each changed by functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..order.contract import Arrangement
from ..process.lazy import cached_property
from ..process.seeding import seeder, seeds_within
from ..process.stages import Stage, timed
from ..reading.dataref import DataRef
from ..reading.readahead import ReadAhead
from ..rows.block import Rows
from ..rows.schema import Schema
from ..rows.types import Json, Row
from .functions import check_can_be_sent, name_of

__all__ = ["TransformedRef"]

Ints = npt.NDArray[np.int64]
Seeds = npt.NDArray[np.uint64]


class TransformedRef(DataRef):
    """The rows of another DataRef after some functions, one row at a time: what `ref.map(function)` is.

    Args:
        whole: the other DataRef.
        functions: each takes a row and returns one, the first one a row of `whole`.
        schema: what a changed row looks like, if that is known.
    """

    def __init__(
        self, whole: DataRef, functions: Sequence[Callable[[Row], Row]], schema: Schema | None = None
    ) -> None:
        self.whole = whole
        self.functions = tuple(functions)
        self._schema = schema

    def __getstate__(self) -> Json:
        for function in self.functions:
            check_can_be_sent(function)
        return super().__getstate__()

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def is_random(self) -> bool:
        """True: the functions may draw random numbers."""
        return True

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, with random numbers as the generators give them."""
        if not len(rows):
            return []
        given = self.whole.take(rows)
        with timed(Stage.TRANSFORM):
            return list(map(self._changed, _exact(given)))

    def take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[Row]:
        """The rows of these numbers; `random`, NumPy and torch are seeded before each."""
        if not len(rows):
            return []
        whole = self.whole
        given = whole.take_seeded(rows, seeds_within(seeds, 0)) if whole.is_random else whole.take(rows)
        seed_all, found = seeder(), []
        with timed(Stage.TRANSFORM):
            for row, seed in zip(_exact(given), seeds.tolist(), strict=True):
                seed_all(seed)
                found.append(self._changed(row))
        return found

    def _changed(self, row: Row) -> Row:
        for function in self.functions:
            row = function(row)
        return row

    def in_epoch(self, epoch: int) -> DataRef:
        """The rows of the whole as it is in an epoch, changed."""
        whole = self.whole.in_epoch(epoch)
        return self if whole is self.whole else TransformedRef(whole, self.functions, self._schema)

    @property
    def arrangement(self) -> Arrangement | None:
        """The whole's: the rows are the same."""
        return self.whole.arrangement

    @property
    def schema(self) -> Schema | None:
        """What a changed row looks like, if that was said."""
        return self._schema

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row of the whole, which is read."""
        return self.whole.row_bytes

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """What makes rows of the whole ready; None if the whole has none."""
        whole = self.whole.readahead
        return None if whole is None else ReadAhead(self.row_bytes, whole.prefetch, most_batches=1)

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's and the names of the functions."""
        whole = self.whole.fingerprint
        return None if whole is None else self._pinned(whole)

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's: each row is made of one of its rows."""
        return [(self._pinned(name), rows) for name, rows in self.whole.prefixes]

    def _pinned(self, whole: str) -> str:
        text = f"{whole} map {' '.join(map(name_of, self.functions))}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def info(self) -> Json:
        """The whole's info."""
        return self.whole.info

    def __repr__(self) -> str:
        return f"{self.whole!r} after {', '.join(map(name_of, self.functions))}"


def _exact(rows: Sequence[Row]) -> list[Row]:
    return rows.exact() if isinstance(rows, Rows) else list(rows)
