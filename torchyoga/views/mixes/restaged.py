"""A state of a dataset with weights -> where other weights may begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...errors import StateError
from ...order.contract import Shuffle, check_epoch
from ...order.mixed import MixOrder, Mixture, Stage
from ...order.proportions import Proportions
from ...order.saved import Pin
from ...order.stages import MOST_STAGES, parsed
from ...order.state import State

__all__ = ["begun_before", "check_room", "place_of", "restaged", "shuffle_of"]

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
    return state.epoch * state.length + state.position + sum(map(len, state.left))


def begun_before(place: int, stages: Pin) -> list[tuple[int, str]]:
    """The stages of a state that began before a place.

    Raises:
        StateError: it tells none.
    """
    try:
        return [stage for stage in parsed(stages) if stage[0] < place]
    except ValueError as error:
        raise _no_stages(error) from error


def _no_stages(error: ValueError) -> StateError:
    """The error for a state that does not tell its weights."""
    return StateError(
        f"the state does not say which weights there have been ({error}); pass what state_dict() of a loader "
        "of this dataset gave"
    )


def check_room(num_stages: int) -> None:
    """Raises ValueError if weights have changed as often as a state can tell."""
    if num_stages >= MOST_STAGES:
        raise ValueError(
            f"the weights have changed {num_stages - 1} times, and a state tells no more; begin a new "
            "mixture when the epoch is over"
        )


def shuffle_of(state: State) -> tuple[Shuffle, int]:
    """How a state's rows were shuffled, and the window.

    Raises:
        StateError: every epoch is the same, so that nothing can change within.
    """
    kind, window = state.pins.get("shuffle"), state.pins.get("window")
    if kind is not True and kind != "block":
        raise StateError(
            f"the state has shuffle={kind!r}, with which every epoch is the same, so that nothing can change "
            "within; shuffle, or make another view when the epoch is over"
        )
    return "block" if kind == "block" else True, window if isinstance(window, int) else 8


def restaged(mixture: Mixture, orders: Orders, weights: tuple[int, ...], state: State, place: int) -> Mixture:
    """A mixture with the stages that a state tells, and other weights from its place on.

    Args:
        mixture: what the state is of.
        orders: what makes the orders of a mixture.
        weights: whole numbers, of each source.
        state: of a loader.
        place: the place behind all that was delivered.

    Raises:
        StateError: the state does not tell its weights, its stages do not follow from each other, or nothing
            can change within it.
    """
    num_sources = len(mixture.lengths)
    told = begun_before(place, state.pins.get("stages"))
    try:
        stages = [Stage.of_told(start, text, num_sources) for start, text in told]
        for stage in stages:
            Proportions(stage.weights)  # raises if they are no weights
    except ValueError as error:
        raise _no_stages(error) from error
    _check_counts(mixture, orders, stages, state)
    before = replace(mixture, stages=tuple(stages))
    if not stages:
        return replace(mixture, stages=(Stage(0, weights, (0,) * num_sources),))
    if stages[-1].weights == weights:
        return before
    check_room(len(stages))
    shuffle, window = shuffle_of(state)
    counts = orders(before)(shuffle, True, window, state.seed).consumed(place)
    return replace(mixture, stages=(*stages, Stage(place, weights, counts)))


def _check_counts(mixture: Mixture, orders: Orders, stages: Sequence[Stage], state: State) -> None:
    """Raises StateError if a stage begins with other counts of rows than those before it give."""
    for number, stage in enumerate(stages):
        # The mixture's own stages may have begun under another seed.
        if not number or tuple(stages[: number + 1]) == mixture.stages[: number + 1]:
            continue
        shuffle, window = shuffle_of(state)
        before = replace(mixture, stages=tuple(stages[:number]))
        expected = orders(before)(shuffle, True, window, state.seed).consumed(stage.start)
        if stage.counts != expected:
            raise StateError(
                f"the state says that up to place {stage.start} the sources had given {stage.counts} rows, "
                f"but by its weights and its seed they gave {expected}; pass what state_dict() of a loader "
                "of this dataset gave, or reweight the mixture that has these stages"
            )
