"""A state of a dataset with weights -> where other weights, and other sources, may begin."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ...errors import StateError
from ...order.compact import MARK, lists_compact
from ...order.contract import Appended, Shuffle, check_epoch
from ...order.mixing.mixed import APPENDED, MixOrder, MixStage, Mixture
from ...order.mixing.proportions import MOST_WEIGHT, Proportions, whole_weights
from ...order.mixing.sources import Source, read_sources, same_rows
from ...order.mixing.turns import Era, turns_after
from ...order.saved import Pin
from ...order.stages import identity_of, parsed, same_past, short
from ...order.state import State

__all__ = [
    "Restaged",
    "continued",
    "is_foreign",
    "place_of",
    "restaged",
    "short_weights",
    "shuffle_of",
    "told_from",
    "where_of",
]

_LONG, _DIGITS = 1250, 10  # characters of weights, and binary digits of one that is rounded


def place_of(state: State, length: int) -> int:
    """The place, over all epochs, behind all that was delivered up to a state.

    Raises:
        StateError: it is of another number of rows, of an epoch that is not counted, or of one rank of
            several whose batches came in any order. Of which data it is, loaders check: it may be of a view
            that has these rows.
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
    is_within = bool(state.left) or 0 < state.position < state.length
    if is_within and state.at.is_alone:
        rank, world = state.at.place.share
        raise StateError(
            f"the state is of rank {rank} of {world}, whose batches came in "
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
    return "block" if kind == "block" else bool(kind), window if isinstance(window, int) else 8


def where_of(state: State) -> str:
    """The place of a state, for messages."""
    step = "" if state.at.steps is None else f"step {state.at.steps} of "
    return f"{step}epoch {state.epoch}, position {state.position}"


def told_from(state: State, weigh: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Weights from a state on; errors of theirs say where that is."""
    try:
        return weigh()
    except ValueError as error:
        raise ValueError(f"from {where_of(state)} on: {error}") from error


class Restaged(NamedTuple):
    """A mixture that goes on from a state.

    Attributes:
        mixture: it, with the sources that the state has first, and new ones behind them.
        sources: (S,) which of the sources that were given each of its sources is.
    """

    mixture: Mixture
    sources: tuple[int, ...]


def restaged(
    mixture: Mixture,
    weights: tuple[int, ...] | None,
    state: State,
    appended: Appended | None = "next",
    mark: str = "",
) -> Restaged:
    """A mixture with the stages that a state needs to go on, and other weights from its place on.

    Args:
        mixture: what the state is of, or that with more sources, or more rows of some.
        weights: whole numbers, of each source; None for those that the state has.
        state: of a loader.
        appended: "next" if rows that were appended come in the next pass over a source; None if there are to
            be none.
        mark: APPENDED if a loader goes on so by itself.

    Raises:
        StateError: the state does not tell its weights, its stages do not follow from each other, nothing
            can change within it, or it has sources that are not here.
    """
    where = where_of(state)
    if mixture.is_counted and state.length and "sources" in state.pins:
        mixture = replace(mixture, rows=state.length)
    place = place_of(state, mixture.rows)
    now, sources, then = _as_then(mixture, state)
    is_own = then is None
    own = mixture.sources
    mine = [own[number] for number in sources]
    then = own if then is None else then
    # Rows of a version that only has more columns are the same ones.
    has_grown = [source.rows != own.rows for source, own in zip(then, mine, strict=False)]
    if appended is None and (any(has_grown) or len(then) < len(mine)):
        raise _grown_without_leave(then, mine, has_grown, where)
    if not is_own:
        mixture = now
        weights = None if weights is None else tuple(weights[number] for number in sources)
    try:
        if is_own and mixture.told == state.pins.get("stages"):
            past, stages = mixture.past, [stage for stage in mixture.stages if stage.start <= place]
        else:
            past, stages = _past_and_stages(mixture, weights, len(then), place, state.pins.get("stages"))
        if not stages or stages[0].start > state.first or len(stages[-1].weights) != len(then):
            raise ValueError("damaged stages")
    except ValueError as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"the state does not say which weights there have been ({error}); pass what state_dict() of a "
            "loader of this dataset gave"
        ) from error
    _check_counts(mixture, past, stages, state)
    first = state.first
    before = replace(mixture, stages=tuple(stages), past=past).since(first)
    last = stages[-1]
    rest = (0,) * (len(mine) - len(then))
    if weights is None:
        weights = (*last.weights, *rest)
    goes_on = not any(has_grown)
    if weights == (*last.weights, *rest) and len(then) == len(mine) and goes_on:
        return Restaged(before, sources)
    if place and weights != last.weights:
        weights = short_weights(weights)
        if weights == last.weights and goes_on:
            return Restaged(before, sources)
    shuffle = shuffle_of(state, goes_on=True)[0] if place else True
    counts = last.counts if last.start == place else _consumed(before, shuffle, state.seed, place)
    counts = (*counts, *(0,) * len(mine))[: len(mine)]
    stage = MixStage(place, weights, counts, mark)
    # Nothing has come by weights that begin here.
    begun = before.stages[:-1] if last.start == place else before.stages
    eras = []
    for number, source in enumerate(mine):
        old, count = before.eras(number), counts[number]
        if number >= len(then) or not has_grown[number]:
            eras.append(old)
            continue
        eras.append(turns_after(old, count, source.rows))
    is_plain = all(own == (Era(0, 0, source.rows),) for own, source in zip(eras, mine, strict=True))
    grown = replace(
        now,
        stages=(*begun, stage),
        past=before.past,
        rows=before.rows,
        grown=() if is_plain else tuple(eras),
    )
    return Restaged(grown.since(first), sources)


def _as_then(mixture: Mixture, state: State) -> tuple[Mixture, tuple[int, ...], Sequence[Source] | None]:
    """A mixture in the order of the sources of a state, with the passes over them; that order; and those.

    There are no sources if the state has those that the mixture has.
    """
    sources = tuple(range(len(mixture.lengths)))
    if not mixture.versions or state.pins.get("sources") in (None, mixture.told_sources):
        return mixture, sources, None
    where = where_of(state)
    here = dict(zip(mixture.names, mixture.versions, strict=True))
    then = read_sources(state.pins["sources"], here, where)
    numbers = {name: number for number, name in enumerate(mixture.names)}
    kept = dict.fromkeys(numbers[source.name] for source in then)
    sources = (*kept, *(number for number in sources if number not in kept))
    for source in then:
        most = max(own.rows for own in here[source.name])
        for era in source.eras:
            if era.rows > most:
                raise StateError(
                    f"the state, at {where}, has passes over {era.rows} rows of the source {source.name!r}, "
                    f"which has {most}; pass what state_dict() gave"
                )
    return _with_sources(mixture, sources, then), sources, then


def is_foreign(mixture: Mixture, state: State) -> bool:
    """True if a mixture that was made to go on from a state differs from what the state alone makes."""
    told = state.pins.get("sources")
    return told is not None and (told != mixture.told_sources or str(state.pins.get("stages")).endswith(MARK))


def continued(mixture: Mixture, state: State, appended: Appended | None) -> Mixture:
    """A mixture as it goes on from a state if rows were appended to its sources, since or before.

    Raises:
        StateError: it cannot go on from the state.
    """
    told = state.pins.get("sources")
    is_as_made = not mixture.stages[0].start and not mixture.past
    if told is None or mixture.known == identity_of(state):
        return mixture
    stages = str(state.pins.get("stages"))
    is_grown = stages.endswith(APPENDED)
    if same_past(stages, mixture.told, state.place + 1) if is_grown else not is_as_made:
        return mixture
    is_as_long = state.length == mixture.rows or not mixture.is_counted or "@" not in str(told)
    if same_rows(told, mixture.told_sources) and not is_grown and is_as_long:
        if mixture.is_counted and state.length != mixture.rows:
            raise StateError(
                f"the state is of epochs of {state.length} rows, here they have {mixture.rows}: how many "
                f"follows from the weights, which were {stages[:200]!r}, here {mixture.told[:200]!r}, and "
                "from rows= or until= of mix. Make the mixture as it was; for other weights from there on, "
                "give the loader reweighted(weights, at=state)"
            )
        return mixture
    begun = [stage for stage in mixture.stages if stage.start <= state.place]
    if len(begun) < len(mixture.stages) and not is_grown:
        raise StateError(
            f"rows were appended since the state, at {where_of(state)}, and the mixture has stages that are "
            "to come; give the loader mix.reweighted(weights, at=state), made without them"
        )
    given = begun[-1].weights if begun else mixture.stages[0].weights
    grown, sources = restaged(mixture, None, state, appended, APPENDED)
    if sources != tuple(range(len(given))):
        raise StateError(
            f"the state mixes the sources {list(grown.names)[:20]} in this order, here they are "
            f"{list(mixture.names)[:20]}; give the loader mix.reweighted(weights, at=state)"
        )
    if given != grown.stages[-1].weights:
        if given != whole_weights(list(map(Fraction, mixture.lengths))):
            last = list(grown.stages[-1].weights)
            raise StateError(
                f"up to the state, at {where_of(state)}, the weights were {last[:20]}, here they are "
                f"{list(given)[:20]}; for other weights from there on, give the loader "
                "mix.reweighted(weights, at=state)"
            )
        grown, _ = restaged(mixture, given, state, appended, APPENDED)  # of sizes that have grown
    return replace(grown, known=identity_of(state))


def _with_sources(mixture: Mixture, sources: Sequence[int], then: Sequence[Source]) -> Mixture:
    """A mixture with its sources in another order, and the passes over them that a state has."""
    names = tuple(mixture.names[number] for number in sources)
    versions = tuple(mixture.versions[number] for number in sources)
    lengths = tuple(mixture.lengths[number] for number in sources)
    eras = [source.eras or (Era(0, 0, source.rows),) for source in then]
    eras += [(Era(0, 0, rows),) for rows in lengths[len(then) :]]
    is_plain = all(own == (Era(0, 0, rows),) for own, rows in zip(eras, lengths, strict=True))
    return replace(
        mixture,
        names=names,
        versions=versions,
        lengths=lengths,
        passes=tuple(mixture.passes[number] for number in sources),
        stages=tuple(
            MixStage(
                stage.start,
                tuple(stage.weights[number] for number in sources if number < len(stage.weights)),
                tuple(stage.counts[number] for number in sources if number < len(stage.counts)),
            )
            for stage in mixture.stages
        ),
        grown=() if is_plain else tuple(eras),
    )


def _grown_without_leave(
    then: Sequence[Source], mine: Sequence[Source], has_grown: Sequence[bool], where: str
) -> StateError:
    """The error of a state of fewer sources, or of fewer rows of some, if it is not said when others come."""
    if len(then) < len(mine):
        names = [source.name for source in mine[len(then) :]]
        return StateError(
            f"the state, at {where}, does not mix the sources {names[:20]}, which are here; give the loader "
            "mix.reweighted(weights, at=state), which says from where on they come, and how often"
        )
    some = [
        f"{own.name!r} ({source.rows} rows, here {own.rows})"
        for source, own in itertools.compress(zip(then, mine, strict=True), has_grown)
    ]
    return StateError(
        f"rows were appended since the state, at {where}, to the sources {', '.join(some[:20])}. Pass "
        "appended='next' to finish the passes under way without them; the loader and load_state_dict() "
        "take it"
    )


def short_weights(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Weights as a state can tell them: of many that would take long, the first ten binary digits of each."""
    if len(lists_compact(",".join(map(str, weights)))) <= _LONG:
        return weights
    rounded = tuple(map(_rounded, weights))
    return rounded if sum(rounded) <= MOST_WEIGHT else tuple(max(_rounded(n // 2), n > 0) for n in weights)


def _rounded(weight: int) -> int:
    """A weight with ten binary digits; what is not 0 stays so."""
    spare = max(0, weight.bit_length() - _DIGITS)
    rounded: int = (weight + (1 << spare >> 1)) >> spare << spare
    return rounded


def _past_and_stages(
    mixture: Mixture, weights: tuple[int, ...] | None, num_sources: int, place: int, pin: Pin
) -> tuple[str, list[MixStage]]:
    """What a state tells of the stages that it needs no more, and those that begin up to a place."""
    past, told = parsed(pin)
    stages = [_told(mixture, weights, num_sources, start, text) for start, text in told if start <= place]
    for stage in stages:
        Proportions(stage.weights)  # raises if they are no weights
    return past, stages


def _told(
    mixture: Mixture, weights: tuple[int, ...] | None, num_sources: int, start: int, text: str
) -> MixStage:
    """The stage that a state tells; the first may be told by a digest of weights that are given here."""
    if start or not text.startswith("#"):
        return MixStage.of_told(start, text, num_sources)
    given = [mixture.stages[0].weights, weights or ()]
    if num_sources < len(mixture.lengths):  # those without the new sources
        given += [whole_weights(list(map(Fraction, some[:num_sources]))) for some in given if any(some)]
    for some in given:
        stage = MixStage(0, some, (0,) * len(some))
        if short(stage.told) == text:
            return stage
    raise StateError(
        "the state is of other weights than this was made with, and does not list them, as they are many; "
        "make it with those that it had at the beginning"
    )


def _consumed(mixture: Mixture, shuffle: Shuffle, seed: int, place: int) -> tuple[int, ...]:
    """How many rows each source has given before a place."""
    return MixOrder(mixture, seed, bool(shuffle)).consumed(place)


def _check_counts(mixture: Mixture, past: str, stages: Sequence[MixStage], state: State) -> None:
    """Raises StateError if a stage begins with other counts of rows than those before it give."""
    for number, stage in enumerate(stages):
        # The mixture's own stages may have begun under another seed.
        if not number or stage in mixture.stages:
            continue
        shuffle, _ = shuffle_of(state, goes_on=True)
        before = replace(mixture, stages=tuple(stages[:number]), past=past)
        expected = _consumed(before, shuffle, state.seed, stage.start)[: len(stage.counts)]
        if stage.counts != expected:
            raise StateError(
                f"the state says that up to place {stage.start} the sources had given {stage.counts} rows, "
                f"but by its weights and its seed they gave {expected}; pass what state_dict() of a loader "
                "of this dataset gave, or reweight the mixture that has these stages"
            )
