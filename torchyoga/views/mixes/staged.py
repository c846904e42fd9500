"""Rows of which more and more may come: a curriculum."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np

from ...errors import StateError
from ...order.carry import Appended
from ...order.contract import AnyOrder, Arrangement, Shuffle
from ...order.curriculum import OpenStage, StagedOrder
from ...order.full import as_int
from ...order.saved import described
from ...order.scale import Begin, Scale, exact
from ...order.stages import identity_of, parsed, same_past
from ...order.state import State
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...reading.dataref import DataRef, identity, nameless_pin
from .arranged import ArrangedRef, warn_if_arranged
from .restaged import place_of
from .weighing import fraction

__all__ = ["StagedRef", "mean_of", "pairs_of", "staged"]

T = TypeVar("T")
_MOST, _MOST_STAGES = 2**60, 4096
_STEP = 2**16  # rows whose lengths are asked for at once
_BY_ROWS = Scale()


def staged(
    ref: DataRef, stages: Sequence[tuple[float, float]], rows: int | None = None, scale: Scale = _BY_ROWS
) -> StagedRef:
    """The first rows at first, later more: see `DataRef.staged`."""
    warn_if_arranged(ref, "staged")
    if not len(ref):
        raise ValueError("there are no rows to begin with")
    length = len(ref) if rows is None else as_int("rows", rows, 1, _MOST)
    begins: list[Begin] = []
    shares: list[OpenShare] = []
    for number, (position, share) in enumerate(pairs_of(stages)):
        opened = fraction(share, f"stage {number}")
        if not 0 < opened <= 1:
            raise ValueError(f"the share of stage {number} must be above 0 and at most 1, found {share!r}")
        before = begins[-1] if begins else Begin(Fraction(0), 0)
        mean = Fraction(1)
        if scale.tokens is not None:
            mean = mean_of(ref, scale.tokens, (shares or [OpenShare(0, opened)])[-1].rows(len(ref)))
        place = scale.place(position, number, before, length, mean)
        begins.append(Begin(exact(position), place))
        shares.append(OpenShare(place, opened))
    return StagedRef(ref, shares, length, is_counted=rows is None)


def pairs_of(stages: Sequence[tuple[float, T]]) -> Iterator[tuple[float, T]]:
    """The position of each stage, and what it has.

    Raises:
        ValueError: there are none, or too many, or they are no pairs.
    """
    if not 1 <= len(stages) <= _MOST_STAGES:
        raise ValueError(f"give 1 to {_MOST_STAGES} stages, found {len(stages)}")
    for stage in stages:
        try:
            position, has = stage
        except (TypeError, ValueError):
            raise ValueError(
                f"stages are pairs of a position and a share, such as (50_000, 0.5); found {stage!r:.80}"
            ) from None
        yield position, has


def mean_of(ref: DataRef, column: str, rows: int) -> Fraction:
    """Values of a ragged column in one of the first rows, on average."""
    lengths = ref[column].lengths
    total = sum(
        int(lengths(np.arange(start, min(start + _STEP, rows))).sum()) for start in range(0, rows, _STEP)
    )
    if not total:
        raise ValueError(
            f"the first {rows} rows have nothing in {column!r}, so stages have no place by tokens"
        )
    return Fraction(total, rows)


class OpenShare(NamedTuple):
    """The share of the rows that may come from a place on."""

    start: int
    share: Fraction

    def rows(self, of: int) -> int:
        """How many of so many rows may come."""
        return -(-of * self.share.numerator // self.share.denominator)


class StagedRef(ArrangedRef):
    """Rows of another DataRef, of which more and more may come: what `ref.staged(stages)` is.

    Args:
        whole: the other DataRef.
        shares: how many of its first rows may come from each place on.
        length: rows of an epoch.
        is_counted: True if these are as many as the whole has.
    """

    def __init__(
        self, whole: DataRef, shares: Sequence[OpenShare], length: int, is_counted: bool = False
    ) -> None:
        super().__init__(whole, shares, length, is_counted)
        self.shares = tuple(shares)
        self._stages = tuple(OpenStage(stage.start, stage.rows(len(whole))) for stage in shares)
        self._length, self.is_counted = length, is_counted

    def __len__(self) -> int:
        return self._length

    @property
    def arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return _Staged(self)

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
        return _pin(whole, len(self.whole), self._length)

    def _title(self) -> str:
        told = ", ".join(f"{stage.rows} from {stage.start} on" for stage in self._stages[:8])
        return f"{super()._title()} in stages: {told}"


def _pin(whole: str, rows: int, length: int) -> str:
    return hexdigest(f"{whole} staged {rows} {length}")


class _Staged(Arrangement):
    """The arrangement of stages, which goes on from states of fewer rows."""

    def __init__(self, ref: StagedRef) -> None:
        self._ref = ref

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> StagedOrder:
        """The order of every epoch."""
        return self._ref.order(shuffle, reshuffle, window, seed)

    def going_on(self, order: AnyOrder, saved: State, appended: Appended | None) -> AnyOrder:
        """The order in which a state goes on, if rows were appended since: with one more stage."""
        ref = self._ref
        assert isinstance(order, StagedOrder)
        plain = ref.order(order.shuffle, order.reshuffle, order.window, order.seed)
        is_same = saved.length == len(ref) and same_past(saved.pins.get("stages"), plain.told, saved.place)
        versions = [] if ref.whole.fingerprint is None else [(ref.whole.fingerprint, len(ref.whole))]
        versions += ref.whole.prefixes
        pins = {_pin(name, rows, saved.length) for name, rows in versions}
        if is_same or saved.fingerprint not in pins:
            return plain
        if saved.length != len(ref) and ref.is_counted:
            raise StateError(
                f"the state has epochs of {saved.length} rows; rows were appended since, so here they have "
                f"{len(ref)}, and stages would lie elsewhere. Pass rows={saved.length} to staged, and keep it"
            )
        grown = self._grown(plain, saved, {rows for _, rows in versions}, appended)
        return plain if grown is None else replace(grown, adopts=identity_of(saved))

    def _grown(
        self, plain: StagedOrder, saved: State, sizes: Collection[int], appended: Appended | None
    ) -> StagedOrder | None:
        """The order of the stages that a state tells, those to come, and one where appended rows begin to.

        None if the state has other stages.
        """
        size, place = len(self._ref.whole), place_of(saved, saved.length)
        try:
            past, told = parsed(saved.pins.get("stages"))
            begun = [self._begun(start, text) for start, text in told if start <= place]
        except ValueError:
            return None
        of = [_one(sizes, self._ref.shares[stage.number or 0], stage.rows) for stage in begun]
        if not all(of):
            return None
        before, ahead = of[-1], [stage for stage in self._ref.shares if stage.start > place]
        is_within = bool(saved.left) or 0 < saved.position < saved.length
        at = (saved.epoch + 1) * saved.length if appended == "next" and is_within else place
        kept = [stage for stage in begun if stage.start < at or before == size]
        if before == size:
            at = place
        elif appended is None:
            raise StateError(
                f"the state is of {before} rows, and {size - before} rows were appended since. Pass "
                "appended='next' to finish the epoch under way without them, or appended='now' to begin a "
                "pass over all of them there; the loader and load_state_dict() take it"
            )
        else:
            kept += [
                self._open(stage.start, before, begun[-1].has_grown) for stage in ahead if stage.start < at
            ]
            kept.append(self._open(at, size, True))
        later = [self._open(stage.start, size, kept[-1].has_grown) for stage in ahead if stage.start > at]
        first = next((rows for stage, rows in zip(begun, of, strict=True) if not stage.has_grown), size)
        least = min(stage.rows(first) for stage in self._ref.shares)
        return replace(plain, stages=(*kept, *later), past=past, least=least)

    def _begun(self, start: int, told: str) -> OpenStage:
        return OpenStage(start, int(told.removesuffix("+")), self._number(start), told.endswith("+"))

    def _open(self, start: int, size: int, has_grown: bool) -> OpenStage:
        number = self._number(start)
        return OpenStage(start, self._ref.shares[number].rows(size), number, has_grown)

    def _number(self, place: int) -> int:
        """The number of the stage that a place lies in."""
        return sum(stage.start <= place for stage in self._ref.shares) - 1


def _one(sizes: Collection[int], share: OpenShare, rows: int) -> int:
    """The largest of some numbers of rows of which a share is so many; 0 if there is none."""
    return max((size for size in sizes if share.rows(size) == rows), default=0)
