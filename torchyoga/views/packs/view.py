"""Packs as a DataRef, and the outcome of packing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias

from ...reading.dataref import DataRef
from ...rows.types import Ints
from ..over import Over

# The places of some rows of a DataRef, and their numbers.
RowsOf: TypeAlias = tuple[DataRef[Any], Ints, Ints]


class PackView(Over):
    """Packs of rows of another DataRef: what `ref.packed(...)` is."""

    @abstractmethod
    def report(self) -> PackReport:
        """The outcome of packing: how many packs, how full they are, what was left out."""

    @abstractmethod
    def members(self, packs: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The rows (S,) of the other DataRef in these packs, and where those of each begin (B + 1,)."""

    @abstractmethod
    def packs_of(self, rows: Sequence[int] | Ints) -> Ints:
        """The packs (B,) that these rows of the other DataRef are in; -1 for those that are in none."""

    def opened(self, parts: Sequence[RowsOf]) -> list[RowsOf] | None:
        """The rows of packs of several DataRefs, this is the first; None if these are not made alike.

        Args:
            parts: the packs.

        Returns:
            For each part the DataRef that rows are read from, the places of its rows among all, and these.
        """
        return None

    def together(
        self, parts: Sequence[RowsOf], read: Callable[[Iterable[RowsOf], int], Sequence[Any]]
    ) -> Sequence[Any] | None:
        """Packs of several DataRefs, at their places; None if these are not made alike, see `opened`.

        Args:
            parts: the packs.
            read: reads rows of several DataRefs, so many in all.
        """
        return None

    @abstractmethod
    def in_epoch(self, epoch: int) -> PackView:
        """The same packs with the rows that they hold in an epoch."""


@dataclass(frozen=True)
class PackReport:
    """The outcome of packing rows: what `packed.report()` returns.

    Attributes:
        packs: how many there are.
        rows: rows that are in packs.
        documents: rows and pieces of rows that are in packs.
        tokens: what all documents cost, of the first budget.
        budget: what a pack may cost, of the first budget.
        most: documents of the pack that holds most of them.
        dropped: rows over the budget that are in no pack.
        cut: tokens over the budget that are in no pack.
        split: rows that were cut into pieces.
        empty: rows of length 0, which are in no pack.

    Example:
        >>> print(PackReport(packs=10, rows=40, documents=40, tokens=1000, budget=101, most=7))
        10 packs of up to 101 tokens: 40 rows, 4.0 a pack, 7 at most; 1000 tokens, 0.99 % padding
    """

    packs: int
    rows: int
    documents: int
    tokens: int
    budget: int
    most: int
    dropped: int = 0
    cut: int = 0
    split: int = 0
    empty: int = 0

    @property
    def padding(self) -> float:
        """The share of the budgets of all packs that is not used, 0 to 1."""
        room = self.packs * self.budget
        return 1 - self.tokens / room if room else 0.0

    @property
    def mean(self) -> float:
        """Documents of a pack on average."""
        return self.documents / max(1, self.packs)

    def __str__(self) -> str:
        found = (
            f"{self.packs} packs of up to {self.budget} tokens: {self.rows} rows, {self.mean:.1f} a pack, "
            f"{self.most} at most; {self.tokens} tokens, {100 * self.padding:.2g} % padding"
        )
        more = {
            f"{self.split} rows split into {self.documents - self.rows + self.split} pieces": self.split,
            f"{self.cut} tokens cut off": self.cut,
            f"{self.dropped} rows dropped": self.dropped,
            f"{self.empty} rows of length 0 left out": self.empty,
        }
        return "; ".join([found, *(text for text, count in more.items() if count)])
