"""Rows that come as often as their weights say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ...errors import StateError
from ...order.contract import Shuffle
from ...order.full import as_int
from ...order.state import State
from ...order.weighted import MOST_PLACES, WeightedOrder, WeightedStage, whole_ends
from ...reading.dataref import DataRef, ReweightedView
from .arranged import ArrangedRef, warn_if_arranged
from .restaged import begun_before, check_room, place_of, shuffle_of

__all__ = ["Weights", "WeightedRef", "weighted"]

Ints = npt.NDArray[np.int64]
Weights: TypeAlias = Sequence[float] | npt.NDArray[np.generic] | torch.Tensor


def weighted(ref: DataRef, weights: Weights, rows: int | None = None) -> WeightedRef:
    """Rows as often as their weights say: see `DataRef.weighted`."""
    warn_if_arranged(ref, "weighted")
    length = len(ref) if rows is None else as_int("rows", rows, 1, MOST_PLACES)
    if length > MOST_PLACES:
        raise ValueError(f"an epoch of weighted rows has at most {MOST_PLACES} of them; pass rows=")
    return WeightedRef(ref, (WeightedStage(0, _ends(ref, weights)),), length)


def _ends(ref: DataRef, weights: Weights) -> Ints:
    if not len(ref):
        raise ValueError("there are no rows to weigh")
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().cpu()
        # NumPy has no bfloat16.
        found = (weights.float() if weights.dtype == torch.bfloat16 else weights).numpy()
    else:
        found = np.asarray(weights)
    if found.ndim != 1 or len(found) != len(ref):
        raise ValueError(
            f"weighted takes a weight for each of the {len(ref)} rows, found an array of shape {found.shape}"
        )
    return whole_ends(found)


class WeightedRef(ArrangedRef, ReweightedView):
    """Rows of another DataRef, as often as their weights say: what `ref.weighted(weights)` is.

    Args:
        whole: the other DataRef.
        stages: the weights from each place on.
        length: rows of an epoch.
    """

    def __init__(self, whole: DataRef, stages: Sequence[WeightedStage], length: int) -> None:
        super().__init__(whole)
        self._stages = tuple(stages)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def over(self, whole: DataRef) -> DataRef:
        """The same weights of another DataRef."""
        return WeightedRef(whole, self._stages, self._length)

    def order(self, shuffle: Shuffle, reshuffle: bool, window: int, seed: int) -> WeightedOrder:
        """The order of every epoch."""
        files = self.whole.file_starts if shuffle == "block" else None
        return WeightedOrder(self._stages, self._length, seed, shuffle, reshuffle, window, files)

    def reweighted(self, weights: Weights, *, at: Mapping[str, object]) -> WeightedRef:
        """The same rows with other weights from a state on; what came before stays.

        Load the same state into a loader of what this returns.

        Args:
            weights: (N,) numbers, as `DataRef.weighted` takes them.
            at: what `state_dict()` of a loader of this view gave.

        Raises:
            StateError: the state is of other data, or of weights that this view has not had.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(4)}).weighted([1, 1, 1, 1], rows=100)
            >>> loader = yoga.DataLoader(ref, 10, shuffle=True, seed=7)
            >>> batch = next(iter(loader))
            >>> ref = ref.reweighted([0, 0, 0, 1], at=loader.state_dict())
        """
        state = State.from_dict(at)
        place = place_of(state, len(self))
        told = begun_before(place, state.pins.get("stages"))
        stages = [stage for stage in self._stages if stage.start < place]
        if told != [(stage.start, stage.told) for stage in stages]:
            raise StateError(
                "the state was saved with other weights than this view has had up to there; make it with the "
                "same weights, in the same order, as in the program that saved the state"
            )
        found = WeightedStage(place, _ends(self.whole, weights))
        if not stages:
            return WeightedRef(self.whole, [WeightedStage(0, found.ends)], self._length)
        if stages[-1].told == found.told:
            return WeightedRef(self.whole, stages, self._length)
        check_room(len(stages))
        shuffle_of(state)
        return WeightedRef(self.whole, [*stages, found], self._length)

    @property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's; weights are told by states."""
        whole = self.whole.fingerprint
        if whole is None:
            return None
        text = f"{whole} weighted {len(self.whole)} {self._length}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"<{len(self)} weighted rows of {self.whole!r}>"
