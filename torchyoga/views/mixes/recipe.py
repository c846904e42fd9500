"""What a mixture is made of, so that it can be made of views of its sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...order.mixing.mixed import Mixture
from ...reading.dataref import DataRef
from .numbered import NumberedRef

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """A mixture taken apart.

    Attributes:
        sources: the DataRefs that are mixed.
        mixture: how.
        column: the name of a column with the number of each row's source, if there is one.
    """

    sources: tuple[DataRef, ...]
    mixture: Mixture
    column: str | None

    def over(self, view: Callable[[DataRef], DataRef]) -> Recipe:
        """The mixture of a view of each source, which sees the numbers of sources as of the mixture."""
        return Recipe(tuple(map(view, self.numbered.sources)), self.mixture, None)

    @property
    def numbered(self) -> Recipe:
        """The same with the numbers of sources in these."""
        if self.column is None:
            return self
        sources = (NumberedRef(ref, self.column, number) for number, ref in enumerate(self.sources))
        return Recipe(tuple(sources), self.mixture, None)
