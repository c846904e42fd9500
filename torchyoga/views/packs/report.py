"""The outcome of packing."""

from __future__ import annotations

from dataclasses import dataclass


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
