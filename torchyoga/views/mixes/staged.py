"""Rows of which more and more may come: a curriculum."""

from __future__ import annotations

from collections.abc import Sequence

from ...order.contract import Shuffle
from ...order.curriculum import OpenStage, StagedOrder
from ...order.full import as_int
from ...order.saved import described
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...reading.dataref import DataRef, identity, nameless_pin
from .arranged import ArrangedRef, warn_if_arranged
from .weighing import fraction

__all__ = ["StagedRef", "staged"]

_MOST, _MOST_STAGES = 2**60, 4096


def staged(ref: DataRef, stages: Sequence[tuple[int, float]], rows: int | None = None) -> StagedRef:
    """The first rows at first, later more: see `DataRef.staged`."""
    warn_if_arranged(ref, "staged")
    if not len(ref):
        raise ValueError("there are no rows to begin with")
    length = len(ref) if rows is None else as_int("rows", rows, 1, _MOST)
    found: list[OpenStage] = []
    for number, stage in enumerate(stages):
        try:
            start, share = stage
        except (TypeError, ValueError):
            raise ValueError(
                f"stages are pairs of a position and a share, such as (50_000, 0.5); found {stage!r:.80}"
            ) from None
        opened = fraction(share, f"stage {number}")
        if not 0 < opened <= 1:
            raise ValueError(f"the share of stage {number} must be above 0 and at most 1, found {share!r}")
        low = found[-1].start + 1 if found else 0
        begin = as_int(f"the position of stage {number}", start, low, _MOST if found else 0)
        found.append(OpenStage(begin, -(-len(ref) * opened.numerator // opened.denominator)))
    if not found or len(found) > _MOST_STAGES:
        raise ValueError(f"give 1 to {_MOST_STAGES} stages, found {len(found)}")
    return StagedRef(ref, found, length)


class StagedRef(ArrangedRef):
    """Rows of another DataRef, of which more and more may come: what `ref.staged(stages)` is.

    Args:
        whole: the other DataRef.
        stages: how many of its first rows may come from each place on.
        length: rows of an epoch.
    """

    def __init__(self, whole: DataRef, stages: Sequence[OpenStage], length: int) -> None:
        super().__init__(whole, stages, length)
        self._stages = tuple(stages)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def order(self, shuffle: Shuffle, reshuffle: bool, window: int, seed: int) -> StagedOrder:
        """The order of every epoch."""
        files = self.whole.file_starts if shuffle == "block" else None
        return StagedOrder(
            self._stages, len(self.whole), self._length, seed, shuffle, reshuffle, window, files
        )

    @cached_property
    def view_pin(self) -> str | None:
        """How many rows an epoch has; stages are told by states besides."""
        return described("staged", rows=self._length, of=nameless_pin(self, identity(self.whole)))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's."""
        return hexdigest(f"{whole} staged {len(self.whole)} {self._length}")

    def _title(self) -> str:
        told = ", ".join(f"{stage.rows} from {stage.start} on" for stage in self._stages[:8])
        return f"{super()._title()} in stages: {told}"
