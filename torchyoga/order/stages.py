"""What an order does from which place on: stages, and how a state tells them.

Places are counted over all epochs: place g is position g % N of epoch g // N. What has begun cannot be
changed, what comes can. So a state lists the stages, and an order goes on from it if those that had begun
before its place are the same; see `same_past`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .saved import Pin

__all__ = ["MOST_STAGES", "parsed", "same_past", "written_stages"]

MOST_STAGES = 4096
_MOST_CHARACTERS = 2**22


def written_stages(stages: Sequence[tuple[int, str]]) -> str:
    """Stages as a state tells them: the place at which each begins, and what it is.

    Example:
        >>> written_stages([(0, "7,2,1"), (1000, "5,3,2")])
        '0:7,2,1;1000:5,3,2'
    """
    return ";".join(f"{start}:{told}" for start, told in stages)


def parsed(pin: Pin) -> list[tuple[int, str]]:
    """The stages that a state tells.

    Raises:
        ValueError: it tells none, or they are damaged.
    """
    if not isinstance(pin, str) or len(pin) > _MOST_CHARACTERS:
        raise ValueError("no stages")
    found = []
    for text in pin.split(";"):
        start, colon, told = text.partition(":")
        if not colon or not start.isascii() or not start.isdigit() or len(start) > 19:
            raise ValueError("damaged stages")
        found.append((int(start), told))
    starts = [start for start, _ in found]
    if starts[0] != 0 or starts != sorted(set(starts)) or len(found) > MOST_STAGES:
        raise ValueError("damaged stages")
    return found


def same_past(one: Pin, other: Pin, place: int) -> bool:
    """True if the stages that begin before a place are the same.

    Example:
        >>> same_past("0:7,3;1000:5,5", "0:7,3;1000:6,4", 1000), same_past("0:7,3", "0:6,4", 10)
        (True, False)
    """
    try:
        return [some for some in parsed(one) if some[0] < place] == [
            some for some in parsed(other) if some[0] < place
        ]
    except ValueError:
        return False
