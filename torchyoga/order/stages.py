"""Orders that change from a place on: stages, and how a state tells them.

Places are counted over all epochs: place g is position g % N of epoch g // N. What has begun cannot be
changed, what comes can. A state tells the stages that it needs to go on, and of those before them a digest,
so that it does not grow with their number; an order goes on from it if those that had begun before its place
are the same: see `same_past`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ..process.lazy import np
from ..rows.types import Ints
from .compact import lists_compact, lists_expanded
from .contract import AnyOrder, SavedState
from .full import within
from .saved import Pin, digest

if TYPE_CHECKING:
    import numpy.typing as npt


Told: TypeAlias = tuple[int, str]  # the place at which a stage begins, and what it is
_MOST_CHARACTERS = 2**22
_LONG = 64  # characters
_LONG_NUMBERS = 512  # characters that are kept as they are in a state


def written_stages(stages: Sequence[Told], past: str = "") -> str:
    """Stages as a state tells them: the place at which each begins, and what it is.

    Args:
        stages: some that follow each other.
        past: what `folded` gave of those before.

    Example:
        >>> written_stages([(0, "7,2,1"), (1000, "5,3,2")])
        '0:7,2,1;1000:5,3,2'
    """
    return ";".join([past] * bool(past) + [f"{start}:{told}" for start, told in stages])


def parsed(pin: Pin) -> tuple[str, list[Told]]:
    """The stages that a state tells, and what it tells of those before.

    Raises:
        ValueError: it tells none, or they are damaged.
    """
    if not isinstance(pin, str) or len(pin) > _MOST_CHARACTERS:
        raise ValueError("no stages")
    texts = pin.split(";")
    past = texts.pop(0) if pin.startswith("#") else ""
    found = []
    for text in texts:
        start, colon, told = text.partition(":")
        if not colon or not start.isascii() or not start.isdigit() or len(start) > 19:
            raise ValueError("damaged stages")
        found.append((int(start), lists_expanded(told)))
    starts = [start for start, _ in found]
    if starts != sorted(set(starts)) or not (past or starts[0] == 0):
        raise ValueError("damaged stages")
    return past, found


def folded(past: str, stages: Sequence[Told]) -> str:
    """A digest of stages and of those before; what they are may be told by its own digest.

    Example:
        >>> first = folded("", [(0, "7,2,1")])
        >>> folded(first, [(9, "5,3,2")]) == folded("", [(0, "7,2,1"), (9, "5,3,2")]) != first
        True
    """
    for start, told in stages:
        past = digest(past, start, told if told.startswith("#") else digest(told))
    return past


def told_at(pin: Pin, first: int, place: int) -> str:
    """The text by which a state at a place tells all stages, if the places from `first` on are still to come.

    Example:
        >>> told_at("0:7,3;1000:5,5;2000:6,4", 500, 700), told_at("0:7,3;1000:5,5", 1000, 1000)[-9:]
        ('0:7,3', ';1000:5,5')
    """
    if isinstance(pin, str) and ";" not in pin and len(pin) <= _LONG_NUMBERS:
        return pin  # one stage
    past, stages = parsed(pin)
    begun = [stage for stage in stages if stage[0] <= place]
    over = sum(later <= first for later, _ in begun[1:])
    told = [
        (start, text if len(text) <= _LONG_NUMBERS else lists_compact(text)) for start, text in begun[over:]
    ]
    return written_stages(told, folded(past, begun[:over]))


def same_past(one: Pin, other: Pin, place: int) -> bool:
    """True if the stages that begin before a place are the same.

    Example:
        >>> same_past("0:7,3;1000:5,5", "0:7,3;1000:6,4", 1000), same_past("0:7,3", "0:6,4", 10)
        (True, False)
    """
    try:
        pasts = [
            folded(past, [stage for stage in stages if stage[0] < place])
            for past, stages in (parsed(one), parsed(other))
        ]
    except ValueError:
        return False
    return pasts[0] == pasts[1]


def short(text: str) -> str:
    """A text, or the digest of a long one."""
    return text if len(text) <= _LONG else digest(text)


def identity_of(state: SavedState) -> tuple[Pin, ...]:
    """The identity of what a state is of: fingerprint, view, sources and stages."""
    return state.fingerprint, *(state.pins.get(name) for name in ("view", "sources", "stages"))


class ArrangedOrder(AnyOrder):
    """An order that decides which rows come, in stages; its row numbers are in `ARRANGED`.

    Attributes:
        window: files mixed with each other at once, if shuffle is "block".
        what: what decides, for messages.
    """

    window: int
    what: str

    @property
    def known(self) -> tuple[Pin, ...]:
        """Identities of data whose states this goes on from, besides its own: see `identity_of`."""
        return ()

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The row numbers at these positions of the epoch; past N, the last stage comes again."""
        found = within(positions, self.length)
        if not self.length or not found.size:
            return found
        if front := self._front(epoch):
            is_past = np.asarray(positions) >= self.length
            found = np.where(is_past, front + found % (self.length - front), found)
        return self._rows(epoch, np.ascontiguousarray(found).reshape(-1)).reshape(found.shape)

    def _front(self, epoch: int) -> int:
        """The position whose row comes again past N: no state need tell what came before its last stage."""
        return 0

    def positions(self, epoch: int, rows: npt.ArrayLike) -> Ints:
        """The positions at which these row numbers come in the epoch: the inverse of `rows`."""
        numbers = np.asarray(rows, np.int64)
        if not numbers.size:
            return numbers
        flat = np.ascontiguousarray(numbers).reshape(-1)
        found = self._positions(epoch, flat)
        if int(found.min()) < 0:
            number = int(flat[np.argmin(found)])
            raise ValueError(f"row number {number} does not come in epoch {epoch} of {self.what}")
        return found.reshape(numbers.shape)

    @abstractmethod
    def _rows(self, epoch: int, positions: Ints) -> Ints:
        """(M,) what comes at positions (M,), each in 0..N-1."""

    @abstractmethod
    def _positions(self, epoch: int, numbers: Ints) -> Ints:
        """(M,) where row numbers (M,) come; -1 for those that do not."""

    @property
    @abstractmethod
    def told(self) -> str:
        """Its stages, as `written_stages` writes them."""

    def adopted(self, saved: SavedState, fingerprint: str | None, pins: Mapping[str, Pin]) -> SavedState:
        """A state that this order was made to go on from, as one of this order."""
        if not self.known or self.known != identity_of(saved):
            return saved
        own = {**saved.pins, **pins, **self.pins(saved.epoch), "stages": saved.pins["stages"]}
        return replace(saved, fingerprint=fingerprint, pins=own)

    def pins(self, epoch: int) -> dict[str, Pin]:
        """Entries of a state, so that it is not continued in another order."""
        found: dict[str, Pin] = {"shuffle": self.kind, "stages": self.told}
        return {**found, "window": self.window} if self.shuffle == "block" else found
