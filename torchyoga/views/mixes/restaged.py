"""A state of a dataset with weights -> where other weights, and other sources, may begin."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ...errors import StateError
from ...order.carry import Appended
from ...order.compact import MARKS, lists_compact
from ...order.contract import Shuffle, check_epoch
from ...order.full import GOING_ON
from ...order.mixing.mixed import APPENDED, TOLD, MixOrder, MixStage, Mixture, counts_told
from ...order.mixing.proportions import MOST_WEIGHT, Proportions, whole_weights
from ...order.mixing.sources import Source, Version, read_sources, same_rows
from ...order.mixing.turns import Era, turns_after
from ...order.saved import Pin, digest
from ...order.stages import identity_of, parsed, same_past, short
from ...order.state import State
from .weighing import fractions_of, of_rows

__all__ = [
    "Restaged",
    "continued",
    "is_foreign",
    "marked",
    "place_of",
    "restaged",
    "short_weights",
    "shuffle_of",
    "told_from",
    "where_of",
]

_LONG, _DIGITS = 1250, 10  # characters of weights, and binary digits of one that is rounded
_KEPT = 8  # changes that a loader was told


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


def where_of(state: State) -> str:
    """The place of a state, for messages."""
    step = "" if state.steps is None else f"step {state.steps} of "
    return f"{step}epoch {state.epoch}, position {state.position}"


def told_from(state: State, weigh: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Weights from a state on; errors of theirs say where that is."""
    try:
        return weigh()
    except ValueError as error:
        raise ValueError(f"from {where_of(state)} on: {error}") from error


# The number of a source, the passes that were begun, how many rows it has given, and the version that it was.


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
        appended: when rows come that were appended: in the next pass over a source, or in the rest of this
            one; None if there are to be none.
        mark: TOLD if a loader is told these weights, APPENDED if it is told when rows come.

    Raises:
        StateError: the state does not tell its weights, its stages do not follow from each other, nothing
            can change within it, or it has sources that are not here.
    """
    where = where_of(state)
    if mixture.is_counted and state.length and "sources" in state.pins:
        mixture = replace(mixture, rows=state.length)
    place = place_of(state, mixture.rows)
    now, before, sources, then = _as_then(mixture, state)
    is_own = then is None
    own = mixture.sources
    mine = [own[number] for number in sources]
    then = own if then is None else then
    _check_order(mixture, state)
    # Rows of a version that only has more columns are the same ones; packs may have the rows of others.
    units = now.units or (0,) * len(mine)
    has_grown = [
        source.rows != own.rows or (unit > 0 and source.tag != own.tag)
        for source, own, unit in zip(then, mine, units, strict=False)
    ]
    if appended is None and (any(has_grown) or len(then) < len(mine)):
        raise _grown_without_leave(then, mine, has_grown, where)
    if not is_own:
        mixture = before
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
    first, is_remade = state.first, bool(mixture.measures) and any(has_grown)
    if mark == TOLD and not is_remade:  # a loop may ask for the states of some batches before
        first = min(first, stages[max(0, len(stages) - _KEPT)].start)
    before = marked(replace(mixture, stages=tuple(stages), past=past).since(first), state)
    last = stages[-1]
    rest = (0,) * (len(mine) - len(then))
    if weights is None:
        weights = (*_told_again(last.weights, mixture, now), *rest)
    # Weights that a loader is told take the place of those to come, even if they are those of now.
    goes_on = not any(has_grown) and not (mark == TOLD and mixture.stages[-1].start > place)
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
    if is_remade and first < place:
        raise StateError(
            f"the state, at {where}, has batches that came early, and documents were appended since, with "
            "which rows hold another mean of tokens; go on over the version of the state to the end of the "
            "epoch, or from a state that was saved with in_order=True"
        )
    eras = []
    for number, source in enumerate(mine):
        old, count = before.eras(number), counts[number]
        tag = then[number].tag if number < len(then) and units[number] else ""
        if number >= len(then) or not has_grown[number]:
            eras.append(old)
            continue
        eras.append(turns_after(old, count, source.rows, appended or "next", source.name, shuffle, tag))
    is_plain = all(own == (Era(0, 0, source.rows),) for own, source in zip(eras, mine, strict=True))
    grown = replace(
        now,
        stages=(*begun, stage),
        past=before.past,
        rows=before.rows,
        grown=() if is_plain else tuple(eras),
        mark=before.mark,
    )
    return Restaged(grown.since(first), sources)


def marked(mixture: Mixture, state: State) -> Mixture:
    """A mixture that is not dealt from its beginning once more, if a state tells what was given before it.

    What is told is taken if the numbers of the state follow from it; else they are found again.
    """
    mark, _, told = str(state.given or "").partition("/")
    if not mark or not mixture.measures:
        return mixture
    try:
        found = mixture.with_mark(mark)
        order = MixOrder(found, state.seed, bool(state.pins.get("shuffle")))
        counts = counts_told(order.delivered(state.epoch, state.position, state.left))
    except ValueError:
        return mixture
    return found if told in (counts, digest(counts)) else mixture


def _as_then(
    mixture: Mixture, state: State
) -> tuple[Mixture, Mixture, tuple[int, ...], Sequence[Source] | None]:
    """A mixture in the order of the sources of a state, it as it was then, that order, and those sources.

    There are none if the state has the sources that the mixture has.
    """
    sources = tuple(range(len(mixture.lengths)))
    if not mixture.versions or state.pins.get("sources") in (None, mixture.told_sources):
        return mixture, mixture, sources, None
    where = where_of(state)
    here = dict(zip(mixture.names, mixture.versions, strict=True))
    then = read_sources(state.pins["sources"], here, where)
    numbers = {name: number for number, name in enumerate(mixture.names)}
    kept = dict.fromkeys(numbers[source.name] for source in then)
    sources = (*kept, *(number for number in sources if number not in kept))
    for source in then:
        lost = {era.tag for era in source.eras} - {"", *(own.tag for own in here[source.name])}
        if lost:
            raise StateError(
                f"the state, at {where}, is in passes over versions of the source {source.name!r} that are "
                "not known here; pass the newest version that storage.append(...) made of it; or "
                "pass strict=False to take its epoch and position"
            )
        for era in source.eras:
            rows = [own.rows for own in here[source.name] if era.tag in ("", own.tag)]
            if era.rows > max(rows) or (era.tag and era.rows not in rows):
                raise StateError(
                    f"the state, at {where}, has passes over {era.rows} rows of the source {source.name!r}, "
                    f"which has {max(rows)}; pass what state_dict() gave"
                )
    return *_with_sources(mixture, sources, then), sources, then


def is_foreign(mixture: Mixture, state: State) -> bool:
    """True if a mixture that was made to go on from a state differs from what the state alone makes."""
    told = state.pins.get("sources")
    return told is not None and (told != mixture.told_sources or str(state.pins.get("stages"))[-1:] in MARKS)


def continued(mixture: Mixture, state: State, appended: Appended | None) -> Mixture:
    """A mixture as it goes on from a state with what the state alone says, if there is anything.

    That is rows that were appended to its sources since, and weights that a loader was told.

    Raises:
        StateError: it cannot go on from the state.
    """
    told = state.pins.get("sources")
    is_as_made = not mixture.stages[0].start and not mixture.past
    if told is None or mixture.known == identity_of(state):
        return mixture
    if same_rows(told, mixture.told_sources):
        _check_order(mixture, state)
    stages = str(state.pins.get("stages"))
    is_live, is_grown = stages.endswith(TOLD), stages.endswith(APPENDED)
    if same_past(stages, mixture.told, state.place + 1) if is_live or is_grown else not is_as_made:
        return mixture
    is_as_long = state.length == mixture.rows or not mixture.is_counted or "@" not in str(told)
    if same_rows(told, mixture.told_sources) and not (is_live or is_grown) and is_as_long:
        if mixture.is_counted and state.length != mixture.rows:
            raise StateError(
                f"the state is of epochs of {state.length} rows, here they have {mixture.rows}: how many "
                f"follows from the weights, which were {stages[:200]!r}, here {mixture.told[:200]!r}, and "
                "from rows= or until= of mix. Make the mixture as it was; for other weights from there on, "
                "give the loader reweighted(weights, at=state)"
            )
        return mixture
    begun = [stage for stage in mixture.stages if stage.start <= state.place]
    # Weights that a loader was told have taken the place of those to come.
    if len(begun) < len(mixture.stages) and not (is_live or is_grown):
        raise StateError(
            f"rows were appended since the state, at {where_of(state)}, and the mixture has stages that are "
            "to come; give the loader mix.reweighted(weights, at=state), made without them"
        )
    given = begun[-1].weights if begun else mixture.stages[0].weights
    grown, sources = restaged(mixture, None, state, appended, TOLD if is_live else APPENDED)
    now, before, *_ = _as_then(mixture, state)
    of_then = {before.stages[0].weights, short_weights(before.stages[0].weights)}
    of_now = {_told_again(weights, before, now) for weights in of_then} if now is not before else set()
    is_same = grown.stages[-1].weights in {*of_now, *map(short_weights, of_now)} and len(begun) == 1
    if sources != tuple(range(len(given))):
        raise StateError(
            f"the state mixes the sources {list(grown.names)[:20]} in this order, here they are "
            f"{list(mixture.names)[:20]}; give the loader mix.reweighted(weights, at=state)"
        )
    if not is_live and given != grown.stages[-1].weights:
        if not is_same and given != whole_weights(list(map(Fraction, mixture.lengths))):
            last = list(grown.stages[-1].weights)
            raise StateError(
                f"up to the state, at {where_of(state)}, the weights were {last[:20]}, here they are "
                f"{list(given)[:20]}; for other weights from there on, give the loader "
                "mix.reweighted(weights, at=state)"
            )
        grown, _ = restaged(mixture, given, state, appended, APPENDED)  # of sizes that have grown
    return replace(grown, known=identity_of(state))


def _check_order(mixture: Mixture, state: State) -> None:
    """Raises StateError if places of a state were dealt by how many rows come, and here by what they hold."""
    view = str(state.pins.get("view"))
    if mixture.measures and view.startswith("mix(") and "shares=" not in view:
        raise StateError(
            f"the state, at {where_of(state)}, was saved by an earlier version, whose packs of mixtures came "
            "in another order; finish the epoch with that version. With strict=False a loader takes epoch "
            "and position, which is sound where an epoch begins"
        )


def _with_sources(
    mixture: Mixture, sources: Sequence[int], then: Sequence[Source]
) -> tuple[Mixture, Mixture]:
    """A mixture with its sources in another order; and the same with the rows of them that a state has."""
    names = tuple(mixture.names[number] for number in sources)
    versions = tuple(mixture.versions[number] for number in sources)
    lengths = tuple(mixture.lengths[number] for number in sources)
    eras = [source.eras or (Era(0, 0, source.rows),) for source in then]
    eras += [(Era(0, 0, rows),) for rows in lengths[len(then) :]]
    is_plain = all(own == (Era(0, 0, rows),) for own, rows in zip(eras, lengths, strict=True))
    now = replace(
        mixture,
        names=names,
        versions=versions,
        units=tuple(mixture.units[number] for number in sources) if mixture.units else (),
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
    if not now.measures:
        return now, now
    known = [_with_first(source, own) for source, own in zip(then, versions, strict=False)]
    before = replace(now, versions=(*known, *versions[len(then) :]))
    first = before.stages[0]
    if before.versions != versions and not first.start and len(first.weights) == len(names):
        weights = _asked(before, len(then)) or first.weights
        before = replace(before, stages=(first._replace(weights=weights), *before.stages[1:]))
    return now, before


def _asked(mixture: Mixture, count: int) -> tuple[int, ...] | None:
    """The weights of the first sources, by how the mixture was asked for; None if that is not known."""
    (shares, temperature), names = (
        (dict(mixture.asked.shares), mixture.asked.temperature),
        mixture.names[:count],
    )
    if temperature is None and not all(name in shares for name in names):
        return None
    measures, lengths = mixture.measures[:count], [own[0].rows for own in mixture.versions[:count]]
    fractions = fractions_of(
        "size" if temperature is not None else {name: shares[name] for name in names},
        names,
        measures,
        temperature or 1.0,
    )
    return whole_weights(of_rows(fractions, lengths, measures))


def _with_first(source: Source, versions: tuple[Version, ...]) -> tuple[Version, ...]:
    """The versions of a source, the one that a state has before the others."""
    number = next(number for number, own in enumerate(versions) if own[:2] == source[1:3])
    return versions[number], *versions[:number], *versions[number + 1 :]


def _told_again(weights: tuple[int, ...], before: Mixture, now: Mixture) -> tuple[int, ...]:
    """Weights of rows that are the same shares of what is measured, although rows hold more or less now."""
    if not now.measures or before.versions == now.versions:
        return weights
    shares = [
        weight * Fraction(some[0].measure, some[0].rows or 1)
        for weight, some in zip(weights, before.versions, strict=False)
    ]
    return whole_weights(of_rows(shares, now.lengths[: len(shares)], now.measures[: len(shares)]))


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
        "appended='next' to finish the passes under way without them, or appended='now' to mix them into the "
        "rest of these; the loader, load_state_dict() and reweighted() take it"
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
