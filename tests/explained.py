"""Whether operations that ran at the same time on one thing could have run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Deed", "are_explained"]


@dataclass(frozen=True)
class Deed:
    """An operation and its outcome.

    Attributes:
        begin: when it began; `end`: when it was over, infinity if that is unknown.
        after: the states that it may lead to from a given state; none if it cannot have run then, or not with
            this outcome.
    """

    begin: float
    end: float
    after: Callable[[Hashable], Iterable[Hashable]]


def are_explained(deeds: Sequence[Deed], before: Hashable, after: Hashable) -> bool:
    """True if there is an order of the operations, each at a moment between its begin and end, that leads
    from one state to the other.

    This means that they are linearizable; see Wing and Gong, Testing and verifying concurrent objects, 1993.
    """
    seen: set[tuple[frozenset[int], Hashable]] = set()

    def lead_on(left: frozenset[int], state: Hashable) -> bool:
        if not left:
            return state == after
        if (left, state) in seen:
            return False
        seen.add((left, state))
        soonest = min(deeds[number].end for number in left)
        return any(
            lead_on(left - {number}, found)
            for number in left
            if deeds[number].begin <= soonest
            for found in deeds[number].after(state)
        )

    return lead_on(frozenset(range(len(deeds))), before)
