"""A mixture that changes at a state: other weights, new sources, rows that were appended.

An arrangement is the sources of a mixture, the passes over each, and the weights. A state lists the one that
it was saved in, and from that follows how many rows each source has given. Another arrangement goes on from
these counts: a new source begins, and one that has grown has its new rows in its next pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import StateError
from .contract import Appended, Pin, are_counts, check_epoch, in_effect
from .mixed import MixOrder, unpacked
from .mixture import Era, MixStage, Mixture, Source, Version, sources_pin, turns_after, whole_weights
from .state import State

_MOST_ROWS = 2**61


def place_of(state: State, length: int) -> int:
    """The place, over all epochs, behind all that was delivered up to a state.

    Raises:
        StateError: it is of another number of rows, or of an epoch that is not counted. Of which data it is,
            loaders check: it may be of a view that has these rows.
    """
    if state.length != length:
        raise StateError(
            f"the state has length {state.length}, but here it is {length}: it is of another dataset; ask "
            "the view that its loader reads, such as the packs of a mixture in place of the mixture"
        )
    try:
        check_epoch(state.epoch, state.length)
    except ValueError as error:
        raise StateError(f"the state is damaged: {error}; pass what state_dict() gave") from error
    # Rows that came early are behind the place; those left out there keep their weights.
    return state.place


def check_shuffle(state: State, *kinds: Pin) -> None:
    """Raises StateError if every epoch of a state is the same; `kinds` of shuffle are not refused, either."""
    kind = state.pins.get("shuffle")
    if kind not in (True, "block", *kinds):
        raise StateError(
            f"the state has shuffle={kind!r}, with which every epoch is the same, so that nothing can change "
            "within; shuffle, or make another view when the epoch is over"
        )


def where_of(state: State) -> str:
    """The place of a state, for messages."""
    step = "" if state.at.steps is None else f"step {state.at.steps} of "
    return f"{step}epoch {state.epoch}, position {state.position}"


def changed(
    mixture: Mixture, weights: tuple[int, ...] | None, state: State, appended: Appended | None = "next"
) -> tuple[Mixture, tuple[int, ...]]:
    """A mixture with the stages that a state needs to go on, and other weights from its place on.

    Args:
        mixture: what the state is of, or that with more sources, or more rows of some.
        weights: whole numbers, of each source; None for those that the state has, and 0 for new sources.
        state: of a loader.
        appended: "next" if rows that were appended come in the next pass over a source; None if there are to
            be none.

    Returns:
        The mixture, with the sources that the state has first, and new ones behind them; and which of the
        sources that were given each of them is.

    Raises:
        StateError: the state does not list its weights, its stages do not follow from each other, nothing
            can change within it, or it has sources that are not here.
    """
    if mixture.is_counted and state.length and "sources" in state.pins:
        mixture = replace(mixture, rows=state.length)
    place = place_of(state, mixture.rows)
    then = _sources_then(mixture, state)
    numbers = {name: number for number, name in enumerate(mixture.names)}
    order = tuple(dict.fromkeys([*(numbers[source.name] for source in then), *numbers.values()]))
    now = [mixture.sources[number] for number in order]
    # Rows of a version that only has more columns are the same ones.
    has_grown = [own.rows != source.rows for source, own in zip(then, now, strict=False)]
    is_new = any(has_grown) or len(then) < len(now)
    if appended is None and is_new:
        raise _grown_without_leave(then, now, has_grown, where_of(state))
    stages = _stages_then(state, len(then), place)
    sources = [own.with_eras(source.eras) for source, own in zip(then, now, strict=False)] + now[len(then) :]
    before = replace(mixture, sources=tuple(sources), stages=stages, begin=None)
    last = stages[-1]
    weights = None if weights is None else tuple(weights[number] for number in order)
    same = (*last.weights, *(0,) * (len(now) - len(then)))
    if not is_new and weights in (None, same):
        return before.since(state.first), order
    counts = last.counts
    if last.start < place:
        check_shuffle(state, False)
        counts = MixOrder(before, state.seed, bool(state.pins.get("shuffle"))).consumed(place)
    counts = (*counts, *(0,) * len(now))[: len(now)]
    sources = [
        source.with_eras(turns_after(source.eras, count, source.rows)) if grown else source
        for source, count, grown in itertools.zip_longest(sources, counts, has_grown)
    ]
    # Nothing has come by weights that begin here.
    begun = stages[:-1] if last.start == place else stages
    stages = (*begun, MixStage(place, weights or same, counts))
    after = replace(before, sources=tuple(sources), stages=stages, begin=0)
    return after.since(state.first), order


def going_on(mixture: Mixture, state: State, appended: Appended | None) -> Mixture | None:
    """A mixture as it goes on from a state that lists other sources, rows or weights; None if it need not.

    Raises:
        StateError: it cannot go on from the state.
    """
    pins, last, where = state.pins, mixture.stages[-1].weights, where_of(state)
    if "sources" not in pins or "stages" not in pins:
        return None
    is_alike = all(pins.get(name) == mixture.pins.get(name) for name in ("sources", "passes"))
    is_as_long = state.length == mixture.rows or not mixture.is_counted
    if is_alike and is_as_long and state.has_come_by(mixture.pins["stages"]):
        return None
    if mixture.begin is not None:  # it was made to go on from a state, perhaps from this one
        return mixture if not is_alike and changed(mixture, last, state)[0] == mixture else None
    found, order = changed(mixture, None, state, appended)
    were = found.stages[-1].weights
    if is_alike and (were != last or not is_as_long):
        if is_as_long:
            return None
        raise StateError(
            f"the state is of epochs of {state.length} rows, here they have {mixture.rows}: how many follows "
            f"from the weights, which were {list(were)[:20]}, here {list(last)[:20]}, and from rows= or "
            "until= of mix. Make the mixture as it was; for other weights from there on, give the loader "
            "reweighted(weights, at=state)"
        )
    has_stages = any(stage.start > state.place for stage in mixture.stages)
    are_sizes = last == whole_weights(list(map(Fraction, mixture.lengths)))
    if has_stages or order != tuple(range(len(last))) or not (were == last or are_sizes):
        raise StateError(
            f"up to the state, at {where}, the sources {list(found.names)[:20]} had the weights "
            f"{list(were)[:20]}, here {list(mixture.names)[:20]} have {list(last)[:20]}"
            f"{', and other stages to come' * has_stages}; for other weights from there on, give the loader "
            "mix.reweighted(weights, at=state), made without stages"
        )
    return found if were == last else changed(mixture, last, state, appended)[0]  # sizes that have grown


def counts_at(mixture: Mixture, state: State) -> tuple[Mixture, list[int]]:
    """The mixture as it goes on from a state, and the rows that each of its sources has given up to there.

    Raises:
        StateError: the state does not say it.
    """
    mixture, _ = changed(mixture, None, state)
    shuffle = state.pins.get("shuffle")
    if shuffle in ("once", "block once"):  # every epoch is the first one again
        order = MixOrder(mixture.plain, state.seed)
        epochs, position = divmod(state.place, mixture.rows)
        each = zip(order.consumed(mixture.rows), order.consumed(position), strict=True)
        return order.mixture, [epochs * whole + rest for whole, rest in each]
    order = MixOrder(mixture, state.seed, bool(shuffle))
    # What comes later although later rows have come.
    left = np.concatenate([np.zeros(0, np.int64), *map(np.array, state.left)])
    sources, _, _ = unpacked(mixture, order.rows(state.epoch, left))
    counts = np.array(order.consumed(state.place)) - np.bincount(sources, minlength=len(mixture.sources))
    return mixture, counts.tolist()


def sources_of(pin: Any) -> list[Source]:
    """The sources that a state lists by name; StateError if they are damaged."""
    try:
        found = [Source(name, rows, None, (Version(rows, tag),)) for name, rows, tag in pin]
    except (TypeError, ValueError) as error:
        raise _damaged(error) from error
    names = {source.name for source in found if isinstance(source.name, str)}
    are_sound = all(are_counts(rows) and isinstance(tag, str) for one in found for rows, tag in one.versions)
    if not found or not are_sound or len(names) < len(found):
        raise _damaged("a name comes twice, or there is none")
    return found


def _damaged(what: object) -> StateError:
    return StateError(f"the state's sources are damaged ({what}); pass what state_dict() gave")


def _sources_then(mixture: Mixture, state: State) -> list[Source]:
    """The sources that a state lists, with the rows that they had and the passes over them."""
    pin: Any = state.pins.get("sources")
    eras_of: Any = state.pins.get("passes", ())
    here = {source.name: source for source in mixture.sources}
    if pin is None or not mixture.sources[0].versions:
        return list(mixture.sources)
    listed = sources_of(_classes_then(mixture, pin, state) if isinstance(pin, str) else pin)
    try:
        passes = {name: tuple(_era(*numbers) for numbers in eras) for name, *eras in eras_of}
    except (TypeError, ValueError) as error:
        raise _damaged(error) from error
    found = [source._replace(grown=passes.pop(source.name, ())) for source in listed]
    if passes:
        raise _damaged("passes over sources that are not there")
    for source in found:
        _check_source(source, here, where_of(state))
    return found


def _era(first: int, turn: int, rows: int) -> Era:
    if not are_counts(first, turn, rows) or not 0 < rows < _MOST_ROWS > max(first, turn):
        raise ValueError("damaged passes")
    return Era(first, turn, rows)


def _classes_then(mixture: Mixture, pin: str, state: State) -> list[tuple[str, int, str]]:
    """The classes of the version of one dataset that a digest is of."""
    for version in zip(*(source.versions for source in mixture.sources), strict=False):
        named = zip(mixture.names, version, strict=True)
        found = [(name, rows, tag) for name, (rows, tag) in named if rows]
        if sources_pin(found, True) == pin:
            return found
    raise StateError(
        f"the state, at {where_of(state)}, has other rows, or classes, than there are here, or were before "
        "rows were appended; pass the version of the state, or one that storage.append(...) made of it"
    )


def _check_source(source: Source, here: Mapping[str, Source], where: str) -> None:
    """Raises StateError if a source of a state is not here, or has other rows."""
    own = here.get(source.name)
    if own is None:
        raise StateError(
            f"the state, at {where}, mixes the source {source.name!r}, which is not here: the sources are "
            f"{list(here)[:20]}. Pass it under that name; to leave it out from there on, give it the weight 0"
        )
    if source.versions[0] not in own.versions:
        raise StateError(
            f"the state, at {where}, has {source.rows} rows of the source {source.name!r}, which are not "
            f"those that it has here, {own.rows}, nor those that it began with: they are of other data, or "
            "made otherwise, such as packs of another budget or width. If the state is of packs or windows "
            "of a mixture, reweight those, not the mixture before: "
            "mix.packed(...).reweighted(weights, at=state). Rows may be of a version to which some were "
            "appended; packs, windows and batches may not: make them of the version of the state, and mix "
            "what was appended as a source of its own"
        )
    most = max(version.rows for version in own.versions)
    for era in source.grown:
        if era.rows > most:
            raise StateError(
                f"the state, at {where}, has passes over {era.rows} rows of the source {source.name!r}, "
                f"which has {most}; pass what state_dict() gave"
            )


def _stages_then(state: State, num_sources: int, place: int) -> tuple[MixStage, ...]:
    """The stages that a state lists, up to its place."""
    try:
        listed = in_effect(state.pins.get("stages"), state.first, place)
        stages = tuple(MixStage.of_pin(pin, num_sources) for pin in listed)
        if not stages or stages[0].start > state.first or len(stages[-1].weights) != num_sources:
            raise ValueError("damaged stages")
    except (TypeError, ValueError, IndexError) as error:
        raise StateError(
            f"the state does not say which weights there have been ({error}); pass what state_dict() of a "
            "loader of this dataset gave"
        ) from error
    return stages


def _grown_without_leave(
    then: Sequence[Source], now: Sequence[Source], has_grown: Sequence[bool], where: str
) -> StateError:
    """The error of a state of fewer sources, or of fewer rows of some, if it is not said when others come."""
    if len(then) < len(now):
        names = [source.name for source in now[len(then) :]]
        return StateError(
            f"the state, at {where}, does not mix the sources {names[:20]}, which are here; give the loader "
            "mix.reweighted(weights, at=state), which says from where on they come, and how often"
        )
    some = [
        f"{own.name!r} ({source.rows} rows, here {own.rows})"
        for source, own in itertools.compress(zip(then, now, strict=True), has_grown)
    ]
    return StateError(
        f"rows were appended since the state, at {where}, to the sources {', '.join(some[:20])}. Pass "
        "appended='next' to finish the passes under way without them; the loader and load_state_dict() "
        "take it"
    )
