"""Rows that come as often as their weights say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ...errors import StateError
from ...order.change import check_shuffle, place_of, where_of
from ...order.contract import Shuffle, described
from ...order.state import State
from ...order.weighted import MOST_PLACES, WeightedOrder, WeightedStage, whole_ends
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.numbers import as_int
from ...reading.contract import identity, nameless_pin
from ...reading.dataref import DataRef
from ...rows.types import Ints, Numbers, RowT
from .arranged import ArrangedRef, warn_if_arranged

Weights: TypeAlias = Sequence[float] | npt.NDArray[np.generic] | Numbers


def weighted(ref: DataRef[RowT], weights: Weights, rows: int | None = None) -> ArrangedRef[RowT]:
    """Rows as often as their weights say: of `rows` places each row gets the whole number below or above
    its share, in every epoch.

    torch's WeightedRandomSampler draws each place by itself, so that counts vary, up to 2**24 rows, in
    one process. This is exact, resumes, and is dealt to ranks like any other order.

    Args:
        weights: (N,) numbers of at least 0; they need not sum to 1.
        rows: of an epoch; as many as there are by default.

    Raises:
        ValueError: a weight is negative, NaN or infinite, all are 0, or there are more or fewer.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(3)}).weighted([1, 0, 2], rows=6)
        >>> sorted(int(row["x"]) for row in ref.stream(shuffle=True))
        [0, 0, 2, 2, 2, 2]
    """
    warn_if_arranged(ref, "weighted")
    length = len(ref) if rows is None else as_int("rows", rows, 1, MOST_PLACES)
    if length > MOST_PLACES:
        raise ValueError(f"an epoch of weighted rows has at most {MOST_PLACES} of them; pass rows=")
    return WeightedRef(ref, (WeightedStage.of(0, _ends(ref, weights)),), length)


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


class WeightedRef(ArrangedRef):
    """Rows of another DataRef, as often as their weights say: what `ref.weighted(weights)` is.

    Args:
        whole: the other DataRef.
        stages: the weights from each place on.
        length: rows of an epoch.
    """

    def __init__(self, whole: DataRef, stages: Sequence[WeightedStage], length: int) -> None:
        super().__init__(whole, stages, length)
        self._stages = tuple(stages)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> WeightedOrder:
        """The order of every epoch."""
        files = self.whole.file_starts if shuffle == "block" else None
        stages = self._stages
        if not (shuffle and reshuffle):  # every epoch is the same
            stages = (stages[-1]._replace(start=0),)
        return WeightedOrder(stages, self._length, seed, shuffle, reshuffle, window, files)

    def reweighted(
        self, weights: Weights, *, at: Mapping[str, object], over: DataRef | None = None
    ) -> WeightedRef:
        """The same rows with other weights from a state on; what came before stays.

        Load the same state into a loader of what this returns, which goes on from there, and from later
        states. What came before it no longer knows: a loader that shuffles raises ValueError without it when
        it reads, or peeks.

        Args:
            weights: (N,) numbers, as `DataRef.weighted` takes them.
            at: what `state_dict()` of a loader of this view gave.
            over: a version of the dataset to which rows were appended, which come from there on.

        Raises:
            StateError: the state is of other data, or of weights that this view has not had.
            ValueError: `over` does not begin with these rows.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(4)}).weighted([1, 1, 1, 1], rows=100)
            >>> loader = yoga.DataLoader(ref, 10, shuffle=True, seed=7)
            >>> batch = next(iter(loader))
            >>> ref = ref.reweighted([0, 0, 0, 1], at=loader.state_dict())
        """
        state, whole = State.from_dict(at), self.whole if over is None else over
        is_other = over is not None and identity(over) != identity(self.whole)
        if is_other and (self.whole.fingerprint, len(self.whole)) not in whole._prefixes:
            raise ValueError(
                f"over= is a version that storage.append(...) made of these {len(self.whole)} rows, so "
                f"that row numbers stay what they are; found {len(whole)} rows of other data"
            )
        return WeightedRef(whole, self._restaged(_ends(whole, weights), state), self._length)

    def _restaged(self, ends: Ints, state: State) -> list[WeightedStage]:
        """The weights that a state needs to go on, and others from its place on."""
        place = place_of(state, len(self))
        if place < self._stages[0].start or not state.has_come_by(
            self.order(0, True, True, 1).pins(0)["stages"]
        ):
            raise StateError(
                f"the state, at {where_of(state)}, was saved with other weights than this view has had up to "
                "there; make it with the same weights, in the same order, as in the program that saved the "
                "state"
            )
        stages = [stage for stage in self._stages if stage.start < place]
        found = WeightedStage.of(place, ends)
        if stages and stages[-1].told == found.told:
            found = stages.pop()._replace(ends=found.ends)
        elif place:
            check_shuffle(state)
        after = [later.start for later in [*stages, found][1:]]
        # Of weights that are over, only sums are needed, and only as long as the epoch lasts.
        stages = [
            stage.spent if end <= state.first else stage for stage, end in zip(stages, after, strict=True)
        ]
        over = sum(end < state.first // len(self) * len(self) for end in after)
        return [*stages[over:], found]

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's, as often as their weights say."""
        return [(self._pinned(name, rows), self._length) for name, rows in self.whole._prefixes]

    @cached_property
    def _view_pin(self) -> str | None:
        """How many rows an epoch has; weights are told by states besides."""
        return described("weighted", rows=self._length, of=nameless_pin(self, identity(self.whole)))

    def _pinned(self, whole: str, rows: int | None = None) -> str:
        """A name for the content, made of one for the whole's, or for its first rows."""
        return hexdigest(f"{whole} weighted {len(self.whole) if rows is None else rows} {self._length}")

    def _title(self) -> str:
        return f"weighted rows of {super()._title()}"
