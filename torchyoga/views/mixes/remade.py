"""A mixture of packs that are made anew from a state on: each source is in a pass of its own, of which the
documents that have not come are packed as the new packs are, and its later passes are of these.

A pass that goes on so is two eras of the source, one of the packs of before, which is cut short, and one of
the rest. Both are told by states: so the rest is made once more from what they say came before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ...errors import StateError
from ...order.carry import Appended
from ...order.mixing.sources import Version, read_eras, tag_of
from ...order.mixing.turns import Era
from ...order.stages import identity_of
from ...order.state import State
from ...process.distinct import distinct
from ...reading.dataref import identity
from ...rows.types import Ints
from ..packs.packed import PackedRef
from ..packs.repacked import Gathered, check_documents, check_whole, found_in, rest_of
from .mix import MixRef, units_of, versions_of
from .restaged import restaged, shuffle_of

__all__ = ["remade"]

_Kind = TypeVar("_Kind", bound=MixRef)


def remade(before: MixRef, after: _Kind, state: State, appended: Appended) -> _Kind:
    """A mixture of packs that goes on from a state with others: see `MixedPacks.repacked`."""
    own = dict(zip(before.names, before.sources, strict=True))
    if set(own) != set(after.names):
        raise ValueError(
            f"packs of a mixture are made anew of the same sources, {before.names[:20]}; found "
            f"{after.names[:20]}. New sources come from a state on by reweighted(weights, at=state)"
        )
    check_whole(state)
    sources: list[PackedRef] = []
    for name, ref in zip(after.names, after.sources, strict=True):
        packs = own[name]
        assert isinstance(ref, PackedRef), "there are no others"
        assert isinstance(packs, PackedRef), "there are no others"
        check_documents(packs, ref)
        same = identity(packs) == identity(ref)
        sources.append(packs if same else ref.after(tag_of(identity(packs)), packs))
    eras = read_eras(state.pins.get("sources"), after.names)
    view = _of(after, sources)
    is_behind = False
    for number, name in enumerate(after.names):
        for place, era in enumerate(eras.get(name, ())):
            for version in range(sources[number].num_prefixes + 1) if era.tag.startswith("r") else ():
                rest = _RestOfPass(view, number, eras[name][:place], era.first, appended, version)
                if era.tag == rest.tag:
                    sources[number] = sources[number].after(era.tag, rest.packs(state))
                    is_behind = True
    view = _of(after, sources)
    rests: dict[int, _RestOfPass] = {}

    def go_on(number: int, begun: tuple[Era, ...], count: int, tag: str) -> tuple[Era, ...] | None:
        known = view.mixture_at(state).versions[number][1 : sources[number].num_prefixes + 1]
        if appended == "next" and tag in [version.tag for version in known]:
            return None  # documents were appended to packs that were made anew
        rests[number] = rest = _RestOfPass(view, number, begun, count, appended)
        return rest.eras(state)

    try:
        mixture, numbers = restaged(view.mixture_at(state), None, state, remake=go_on)
    except StateError:
        every = zip(view.names, view.mixture_at(state).versions, sources, strict=True)
        known = {name: {own.tag for own in some[: ref.num_prefixes + 1]} for name, some, ref in every}
        if is_behind or any(era.tag in known[name] for name, some in eras.items() for era in some):
            return view  # packs were made anew once more since
        raise
    made = [sources[number] for number in numbers]
    versions = list(mixture.versions)
    for place, number in enumerate(numbers):
        if number in rests and rests[number].is_cut(state):
            packs = rests[number].packs(state)
            made[place] = made[place].after(rests[number].tag, packs)
            versions[place] = (
                *versions[place],
                Version(len(packs), rests[number].tag, *view.measured(packs)),
            )
    found = replace(mixture, versions=tuple(versions), units=units_of(made), known=identity_of(state))
    goes_on = type(after)(made, found, after.recipe.column)
    goes_on.order(True, True, 1, 0).rows(*divmod(state.place, len(goes_on)))  # raises if `epochs` are too few
    return goes_on


def _of(after: _Kind, sources: Sequence[PackedRef]) -> _Kind:
    """A mixture of these sources, which know of other packs."""
    versions = tuple(versions_of(ref, after.measured) for ref in sources)
    mixture = replace(after.recipe.mixture, versions=versions, units=units_of(sources))
    return type(after)(sources, mixture, after.recipe.column)


class _RestOfPass:
    """The rest of a pass over a source.

    Args:
        view: the mixture.
        number: of the source.
        begun: the passes over it up to there.
        count: how many rows it has given.
        appended: whether documents that were appended are in it.
        version: of the source, as which it is packed.
    """

    def __init__(
        self,
        view: MixRef,
        number: int,
        begun: tuple[Era, ...],
        count: int,
        appended: Appended,
        version: int = 0,
    ) -> None:
        self._view, self._number, self._count, self._appended = view, number, count, appended
        self._version = version
        self._begun = tuple(era for era in begun if era.first < count)
        self._packs: PackedRef | None = None
        last = self._begun[-1] if self._begun else Era(0, 0, 1)
        turns, self._place = divmod(count - last.first, last.rows)
        self._turn, self._end = last.turn + turns, last.first + (turns + 1) * last.rows
        self._parts = []  # eras that have numbers of the pass, and which
        for era, end in pairwise([*self._begun, Era(count, 0, 1)]) if self._place else ():
            begin = era.first + (self._turn - era.turn) * era.rows
            low, high = max(begin, era.first), min(begin + era.rows, end.first)
            if low < high:
                self._parts.append((era, low, high))

    @property
    def tag(self) -> str:
        """Its name, which follows from what a state tells."""
        came = [f"{era.told} {low}" for era, low, _ in self._parts]
        ref = self._view.sources[self._number]
        assert isinstance(ref, PackedRef), "there are no others"
        longer = ref.tag_before(self._version) if self._version else tag_of(identity(ref))
        return "r" + tag_of(json.dumps([longer, came, self._count, self._appended]))

    def is_cut(self, state: State) -> bool:
        """True if there is anything left of the pass, in packs of its own."""
        return bool(self._place) and len(self.packs(state)) > 0

    def eras(self, state: State) -> tuple[Era, ...]:
        """The passes over the source as it goes on."""
        rows = len(self._view.sources[self._number])
        if not self._place:
            return (*self._begun, Era(self._count, self._turn, rows)) if self._begun else (Era(0, 0, rows),)
        own = len(self.packs(state))
        end = Era(self._count + own, self._turn + 1, rows)
        cut = (Era(self._count, self._turn, own, (), self.tag),) if own else ()
        return *self._begun, *cut, end

    def packs(self, state: State) -> PackedRef:
        """The rest of the pass, in packs."""
        if self._packs is None:
            ref = self._view.sources[self._number]
            assert isinstance(ref, PackedRef), "there are no others"
            longer = ref.before(self._version)
            came = self._documents(state, [np.arange(low, high) for _, low, high in self._parts])
            left = self._documents(state, [np.arange(self._count, self._end)])
            _, whole = self._versions(state, np.arange(self._parts[0][1], self._parts[0][1] + 1))[0]
            size = (longer if self._appended == "now" else whole).size_in(self._turn)
            self._packs = rest_of(longer, came, left, self._turn, size)
        return self._packs

    def _documents(self, state: State, numbers: Sequence[Ints]) -> Gathered:
        """The documents of numbers of the source, in the pass."""
        some = np.concatenate([np.zeros(0, np.int64), *numbers])
        parts = self._versions(state, some)
        return found_in([found for rows, packs in parts for found in packs.documents(rows, self._turn)])

    def _versions(self, state: State, numbers: Ints) -> list[tuple[Ints, PackedRef]]:
        """The packs behind numbers of the source, by the version that they are of, and these versions."""
        mixture, number = self._view.mixture_at(state), self._number
        every = [mixture.eras(place) for place in range(len(mixture.lengths))]
        every[number] = self._begun
        shuffle, window = shuffle_of(state, goes_on=True)
        order = self._view.over_mixture(replace(mixture, grown=tuple(every))).order(
            shuffle, True, window, state.seed
        )
        version, rows = mixture.apart(number, order.rows_of(number, numbers))
        ref, found = self._view.sources[number], []
        assert isinstance(ref, PackedRef), "there are no others"
        for own in distinct(version).tolist():
            found.append((rows[version == own], ref.before(own)))
        return found
