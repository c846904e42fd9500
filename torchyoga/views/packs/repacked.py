"""Packs that are made anew in the middle of an epoch: longer ones, of what has not come yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, SupportsIndex

import numpy as np

from ...errors import StateError
from ...order.by_file import equal_runs
from ...order.carry import Appended, check_appended
from ...order.contract import AnyOrder, Arrangement, Shuffle
from ...order.options import OrderOptions
from ...order.saved import described
from ...order.state import State
from ...process.digests import hexdigest
from ...process.distinct import distinct
from ...process.lazy import cached_property
from ...reading.dataref import DataRef, identity, title_of
from ...reading.pack_report import PackReport
from ...rows.data import bounds_of
from ...rows.pieces import numbered_within
from ...rows.projection import Projection
from ...rows.schema import Schema
from ...rows.types import Ints
from ..joined import JoinedRef
from ..mixes.arranged import Arranged
from .layout import ANY_PART
from .members import Documents
from .packed import PackedRef
from .plan import planned
from .repacked_order import RepackedOrder, apart, told_in
from .request import Packing

__all__ = ["Gathered", "RepackedRef", "check_documents", "check_whole", "found_in", "repacked", "rest_of"]

_CHUNK = 2**18  # packs that are looked up at once
_JOINED = "n"  # behind a way of making packs: of documents that were appended, too


class Change(NamedTuple):
    """Where packs were made anew.

    Attributes:
        epoch: in which epoch.
        place: from which of its positions on; 0 for all of it.
        stages: the positions of the epoch from which on packs are made in some way, and these ways.
        before: the fingerprint and the view of the data before.
        size: of how many documents the rest of the epoch is.
        mark: behind the way in which packs are made, if documents that were appended are in them at once.
    """

    epoch: int
    place: int
    stages: tuple[tuple[int, str], ...]
    before: tuple[str | None, str | None]
    size: int
    mark: str


def repacked(
    packs: DataRef, longer: DataRef, at: Mapping[str, object], appended: Appended = "next"
) -> RepackedRef:
    """Packs that are made anew from a state on: see `PackView.repacked`."""
    assert isinstance(packs, (PackedRef, RepackedRef)), "there are no others"
    if not isinstance(longer, PackedRef):
        raise TypeError(
            "repacked takes the packs from there on, as ref.packed('ids', 8192) makes them; found "
            f"{title_of(longer) if isinstance(longer, DataRef) else type(longer).__name__}"
        )
    check_appended(appended)
    check_documents(packs.newest, longer)
    state = State.from_dict(at)
    total, stages = len(longer.whole), told_in(state)
    mine = packs.fingerprint, packs.view_pin
    if isinstance(packs, PackedRef):  # an epoch that was begun before documents were appended has others
        packs = packs.begun_with([text for _, text in stages[:1]])
    mark = _JOINED if appended == "now" and packs.newest.size_in(state.epoch) < total else ""
    told = [*packs.told, *(text + mark for text in longer.told)]
    first = _order_of(packs, state)
    known = first.adopted(state, mine[0], {"view": mine[1]})
    is_own = (known.fingerprint, known.pins.get("view", mine[1])) == mine
    if stages and [text for _, text in stages][: len(told)] == told:  # it was saved behind the change
        epoch, place = state.epoch, stages[len(told) - 1][0]
    elif is_own:
        epoch, place = known.epoch, known.position + sum(map(len, known.left))
        if place >= known.length:
            epoch, place = epoch + 1, 0
    else:
        found = " > ".join(text for _, text in stages) or "none"
        raise StateError(
            f"the state is neither of these {len(packs)} packs, nor of what repacked() has made of them: it "
            f"tells packs of {found}, here they are {' > '.join(told)}; pass what state_dict() of a loader "
            "of these gave"
        )
    check_whole(state)
    # Of an epoch that began with the packs before, a state says where these had been made anew in turn.
    before = packs.ways(epoch, stages) if place else [(0, text) for text in packs.told]
    ways = (*before, *((place, text) for text in told[len(packs.told) :]))
    size = total if mark or not place else packs.size_in(epoch)
    change = Change(epoch, place, ways, mine, size, mark)
    if not place:
        return RepackedRef(longer, None, packs, change)
    came, left = (
        _documents(packs, first, epoch, *bounds) for bounds in ((0, place), (place, first.length_in(epoch)))
    )
    rest = rest_of(longer, came, left, epoch, size)
    return RepackedRef(longer, rest, packs, change)


def check_documents(packs: PackedRef, longer: PackedRef) -> None:
    """Raises ValueError if packs of the one cannot go on as packs of the other."""
    same = identity(packs.whole) == identity(longer.whole) and len(packs.whole) == len(longer.whole)
    if not same and (packs.whole.fingerprint, len(packs.whole)) not in longer.whole.prefixes:
        raise ValueError(
            "packs are made anew of the same documents, or of a version that storage.append(...) made of "
            f"them; here are {title_of(packs)} and {title_of(longer)}"
        )
    if not longer.knows_costs:
        raise ValueError(
            f"packs that were kept by name= do not know what documents cost of {longer.request['budgets']}; "
            "make the packs from there on without name="
        )
    pieces = [one.request["long"] == "split" for one in (packs, longer)]
    if pieces[0] != pieces[1]:
        raise ValueError(
            f"packs with long={packs.request['long']!r} cannot go on with long={longer.request['long']!r}: "
            "pieces of documents go on as pieces; pass long='split' to both, or to none"
        )


def check_whole(state: State) -> None:
    """Raises StateError if a state is of one rank alone, or of files of its own."""
    if state.share is not None and state.share.num_replicas > 1:
        raise StateError(
            f"the state is of rank {state.share.rank} of {state.share.num_replicas}, whose batches came in "
            "any order, so ranks would not agree on what has come; pass one saved with in_order=True, or at "
            "the end of an epoch"
        )
    if state.shards is not None:
        raise StateError(
            "the state is of locality 'shard', where each rank has packs of its own; pass one of locality "
            "'global', or make packs anew at the end of an epoch"
        )


def _order_of(packs: PackedRef | RepackedRef, state: State) -> AnyOrder:
    """The order that a state goes on in."""
    kind, window = state.pins.get("shuffle"), state.pins.get("window")
    shuffle: Shuffle = "block" if str(kind).startswith("block") else bool(kind)
    reshuffle = kind not in ("once", "block once")
    options = OrderOptions(
        shuffle, state.seed, reshuffle, window if isinstance(window, int) and window > 0 else 8
    )
    return options.order_of(packs)


class Gathered(NamedTuple):
    """Documents: their rows, what each costs, and the token of its row that it begins with."""

    rows: Ints
    costs: Ints
    begins: Ints


def _documents(
    packs: PackedRef | RepackedRef, order: AnyOrder, epoch: int, start: int, stop: int
) -> Gathered:
    """The documents at some positions of an epoch."""
    found = []
    for first in range(start, stop, _CHUNK):
        numbers = order.rows(epoch, np.arange(first, min(first + _CHUNK, stop)))
        found += packs.documents(numbers, epoch)
    return found_in(found)


def found_in(found: Sequence[Documents]) -> Gathered:
    """All of some documents."""
    begins = [np.zeros_like(one.rows) if one.begins is None else one.begins for one in found]
    none = np.zeros(0, np.int64)
    rows, costs, begun = (
        np.concatenate([none, *some])
        for some in ([one.rows for one in found], [one.costs for one in found], begins)
    )
    return Gathered(rows, costs, begun)


def rest_of(longer: PackedRef, came: Gathered, left: Gathered, epoch: int, size: int) -> PackedRef:
    """Packs of what has not come of the first `size` documents, made as `longer` was made."""
    rows, costs, begins = longer.all_documents
    total, budgets = len(longer.whole), list(longer.request["budgets"].values())
    budget = budgets[0]
    has_come = np.zeros(total, np.bool_)
    has_come[came.rows] = True
    kept = ~has_come[rows] & (rows < size)
    rows, costs, begins = rows[kept], costs[kept], begins[kept]
    if longer.request["long"] == "split":
        of_begun = has_come[left.rows]
        more = _joined(left.rows[of_begun], left.begins[of_begun], left.costs[of_begun], budget)
        rows, begins = (np.concatenate(both) for both in zip((rows, begins), more[:2], strict=True))
        costs = np.concatenate([costs, more[2][:, None]])
    most_rows, balance = longer.request["max_rows"], longer.request["balance"]
    begun = begins if begins.any() else None
    plan = planned(rows, costs, begun, total, np.array(budgets, np.int64), balance, most_rows)
    report = PackReport(
        packs=len(plan),
        rows=len(distinct(rows)),
        documents=len(rows),
        tokens=int(costs[:, 0].sum()),
        budget=budget,
        most=int(np.diff(plan.slots.bounds).max(initial=0)),
    )
    most = longer.most if longer.most in (None, -1) else ANY_PART
    return longer.packed_as(Packing(plan, report, (), longer.request, most), epoch, size)


def _joined(rows: Ints, begins: Ints, costs: Ints, budget: int) -> tuple[Ints, Ints, Ints]:
    """Pieces of rows, those that follow each other as one, cut to a budget: rows, begins and costs."""
    order = np.lexsort((begins, rows))
    rows, begins, costs = rows[order], begins[order], costs[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (begins[1:] != begins[:-1] + costs[:-1])
    firsts = np.flatnonzero(is_first)
    lengths = np.add.reduceat(costs, firsts) if len(firsts) else costs
    pieces = -(-lengths // budget)
    within = numbered_within(pieces) * budget
    return (
        np.repeat(rows[firsts], pieces),
        np.repeat(begins[firsts], pieces) + within,
        np.minimum(np.repeat(lengths, pieces) - within, budget),
    )


class RepackedRef(JoinedRef):
    """Packs that are made anew in an epoch: what `packed.repacked(...)` is.

    Its own rows, 0 to its length, are the packs of later epochs.

    Args:
        longer: these packs.
        rest: the packs of the rest of the epoch; None if it begins with them.
        packs: those before.
        change: where.
    """

    def __init__(
        self, longer: PackedRef, rest: PackedRef | None, packs: PackedRef | RepackedRef, change: Change
    ) -> None:
        before = (packs,) if isinstance(packs, PackedRef) else packs.sources
        sources = (longer, longer if rest is None else rest, *before)
        super().__init__(sources, _PackNumbers(bounds_of(map(len, sources))))
        self.newest, self._rest, self._packs, self._change = longer, rest, packs, change

    sources: tuple[PackedRef, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return RepackedRef, (self.newest, self._rest, self._packs, self._change)

    def ways(self, epoch: int, told: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
        """Where in an epoch packs are made in which way, as a state tells it, or by what is known here."""
        if told:
            return told[: len(self.told)]
        return self._change.stages if epoch == self._change.epoch else [(0, text) for text in self.told]

    def size_in(self, epoch: int) -> int:
        """How many documents, the first ones, an epoch is made of."""
        return self._change.size if epoch == self._change.epoch else len(self.newest.whole)

    @property
    def told(self) -> list[str]:
        """The ways in which packs were made, for states."""
        return [*self._packs.told, *(text + self._change.mark for text in self.newest.told)]

    def report(self) -> PackReport:
        """The outcome of packing, of later epochs."""
        return self.newest.report()

    def rest(self) -> PackReport | None:
        """The outcome of packing what had not come of the epoch in which packs were made anew."""
        return None if self._rest is None else self._rest.report()

    def members(self, packs: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The rows (S,) of the documents in these packs, of later epochs, and where each begins (B + 1,)."""
        return self.newest.members(packs)

    def packs_of(self, rows: Sequence[int] | Ints) -> Ints:
        """The packs (B,) of later epochs that these documents are in; -1 for those that are in none."""
        return self.newest.packs_of(rows)

    def repacked(
        self, packs: DataRef, *, at: Mapping[str, object], appended: Appended = "next"
    ) -> RepackedRef:
        """Packs that are made anew once more: see `PackView.repacked`."""
        return repacked(self, packs, at, appended)

    def documents(self, numbers: Ints, epoch: int) -> list[Documents]:
        """The documents of packs with these row numbers, in an epoch and in any order."""
        source, own = apart(numbers)
        return [
            documents
            for number in distinct(source).tolist()
            for documents in self.sources[number].documents(own[source == number], epoch)
        ]

    def order(self, shuffle: Shuffle, reshuffle: bool, window: int, seed: int) -> AnyOrder:
        """The order of every epoch."""
        options = OrderOptions(shuffle, seed, reshuffle, window)
        whole, first = options.order_of(self.newest), options.order_of(self._packs)
        change, rest = self._change, 0 if self._rest is None else len(self._rest)
        return RepackedOrder(whole, first, change.epoch, change.place, rest, change.stages, change.before)

    @property
    def arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arranged(self.order)

    def in_epoch(self, epoch: int) -> RepackedRef:
        """The same packs with the members that they have in an epoch."""
        longer, packs = self.newest.in_epoch(epoch), self._packs.in_epoch(epoch)
        rest = None if self._rest is None else self._rest.in_epoch(epoch)
        if longer is self.newest and packs is self._packs and rest is self._rest:
            return self
        return RepackedRef(longer, rest, packs, self._change)

    def projected(self, of: Projection) -> RepackedRef:
        """The same packs with these columns, if all of them have these."""
        rest = None if self._rest is None else self._rest.projected(of)
        return RepackedRef(self.newest.projected(of), rest, self._packs.projected(of), self._change)

    @property
    def schema(self) -> Schema | None:
        """How a pack of later epochs looks."""
        return self.newest.schema

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content: which packs came after which; where is told by states."""
        both = self._packs.fingerprint, self.newest.fingerprint
        return None if None in both else hexdigest(f"repacked {both[0]} {both[1]}")

    @cached_property
    def view_pin(self) -> str | None:
        """How packs are made, one way after the other."""
        return described("repacked", ways="+".join(self.told))

    def _title(self) -> str:
        return f"packs made anew in epoch {self._change.epoch}, of {title_of(self.newest.whole)}"


class _PackNumbers:
    """The row numbers of packs that were made anew."""

    def __init__(self, starts: Ints) -> None:
        self._starts = starts

    def __len__(self) -> int:
        return int(self._starts[1])

    @property
    def pin(self) -> str:
        """Nothing: states tell what was changed."""
        return ""

    def rows(self, numbers: Ints) -> Ints:
        """Their packs, those of all sources being laid end to end."""
        source, row = apart(numbers)
        return self._starts[source] + row

    def places(self, rows: Ints) -> Ints:
        """Where they come among its own, which are those of the first source."""
        return np.where(rows < len(self), rows, -1)

    def counts(self, starts: Ints) -> Ints:
        """How many of its own rows each source has."""
        return np.append(len(self), np.zeros(len(starts) - 2, np.int64))

    def starts(self, file_starts: Ints) -> Ints:
        """Where runs of packs begin."""
        return equal_runs(len(self))
