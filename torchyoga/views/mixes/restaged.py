"""A state of a dataset with weights -> where other weights may begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...errors import StateError
from ...order.contract import Shuffle, check_epoch
from ...order.full import GOING_ON
from ...order.mixed import MixOrder, MixStage, Mixture
from ...order.proportions import Proportions
from ...order.stages import parsed, short
from ...order.state import State

__all__ = ["place_of", "restaged", "shuffle_of"]

# The orders of a mixture, made for (shuffle, reshuffle, window, seed).
Orders: TypeAlias = Callable[[Mixture], Callable[[Shuffle, bool, int, int], MixOrder]]


def place_of(state: State, length: int) -> int:
    """The place, over all epochs, behind all that was delivered up to a state.

    Raises:
        StateError: it is of another number of rows, of an epoch that is not counted, or of one rank of
            several whose batches came in any order. Of which data it is, loaders check: it may be of a view
            that has these rows.
    """
    if state.length != length:
        raise StateError(
            f"the state has length {state.length}, but here it is {length}: it is of another dataset"
        )
    try:
        check_epoch(state.epoch, state.length)
    except ValueError as error:
        raise StateError(f"the state is damaged: {error}; pass what state_dict() gave") from error
    is_within = bool(state.left) or 0 < state.position < state.length
    if is_within and state.share is not None and state.share.num_replicas > 1:
        raise StateError(
            f"the state is of rank {state.share.rank} of {state.share.num_replicas}, whose batches came in "
            "any order, and does not say where the others are, so each would begin the weights at another "
            "place; reweight at a state saved with in_order=True, or at the end of an epoch"
        )
    # Rows that came early are behind the place; those left out there keep their weights.
    return state.place


def shuffle_of(state: State, *, goes_on: bool) -> tuple[Shuffle, int]:
    """How a state's rows were shuffled, and the window.

    Args:
        state: of a loader.
        goes_on: without a shuffle, too, an epoch goes on where the one before it ended.

    Raises:
        StateError: every epoch is the same, or this one was begun like all others, by an earlier version; so
            nothing can change within.
    """
    kind, window = state.pins.get("shuffle"), state.pins.get("window")
    if kind is not True and kind != "block" and not (goes_on and kind is False):
        raise StateError(
            f"the state has shuffle={kind!r}, with which every epoch is the same, so that nothing can change "
            "within; shuffle, or make another view when the epoch is over"
        )
    if kind is False and state.version < GOING_ON and 0 < state.position < state.length:
        raise StateError(
            f"the state is of an earlier version, which began epoch {state.epoch} with the first rows again, "
            "so nothing can change within; finish the epoch without other weights, and reweight at its end"
        )
    return "block" if kind == "block" else bool(kind), window if isinstance(window, int) else 8


def restaged(mixture: Mixture, orders: Orders, weights: tuple[int, ...], state: State) -> Mixture:
    """A mixture with the stages that a state needs to go on, and other weights from its place on.

    Args:
        mixture: what the state is of.
        orders: what makes the orders of a mixture.
        weights: whole numbers, of each source.
        state: of a loader.

    Raises:
        StateError: the state does not tell its weights, its stages do not follow from each other, or nothing
            can change within it.
    """
    place = place_of(state, mixture.rows)
    try:
        past, told = parsed(state.pins.get("stages"))
        stages = [_told(mixture, weights, start, text) for start, text in told if start <= place]
        for stage in stages:
            Proportions(stage.weights)  # raises if they are no weights
        if not stages or stages[0].start > state.first:
            raise ValueError("damaged stages")
    except ValueError as error:
        raise StateError(
            f"the state does not say which weights there have been ({error}); pass what state_dict() of a "
            "loader of this dataset gave"
        ) from error
    _check_counts(mixture, orders, past, stages, state)
    before = replace(mixture, stages=tuple(stages), past=past).since(state.first)
    last = stages[-1]
    if last.weights == weights:
        return before
    shuffle, window = shuffle_of(state, goes_on=True) if place else (True, 8)
    if last.start == place:  # nothing has come by these
        return replace(before, stages=(*before.stages[:-1], last._replace(weights=weights)))
    counts = orders(before)(shuffle, True, window, state.seed).consumed(place)
    return replace(before, stages=(*before.stages, MixStage(place, weights, counts))).since(state.first)


def _told(mixture: Mixture, weights: tuple[int, ...], start: int, text: str) -> MixStage:
    """The stage that a state tells; the first may be told by a digest of weights that are given here."""
    if start or not text.startswith("#"):
        return MixStage.of_told(start, text, len(mixture.lengths))
    for given in (mixture.stages[0].weights, weights):
        stage = MixStage(0, given, (0,) * len(given))
        if short(stage.told) == text:
            return stage
    raise StateError(
        "the state is of other weights than this was made with, and does not list them, as they are many; "
        "make it with those that it had at the beginning"
    )


def _check_counts(
    mixture: Mixture, orders: Orders, past: str, stages: Sequence[MixStage], state: State
) -> None:
    """Raises StateError if a stage begins with other counts of rows than those before it give."""
    for number, stage in enumerate(stages):
        # The mixture's own stages may have begun under another seed.
        if not number or stage in mixture.stages:
            continue
        shuffle, window = shuffle_of(state, goes_on=True)
        before = replace(mixture, stages=tuple(stages[:number]), past=past)
        expected = orders(before)(shuffle, True, window, state.seed).consumed(stage.start)
        if stage.counts != expected:
            raise StateError(
                f"the state says that up to place {stage.start} the sources had given {stage.counts} rows, "
                f"but by its weights and its seed they gave {expected}; pass what state_dict() of a loader "
                "of this dataset gave, or reweight the mixture that has these stages"
            )
