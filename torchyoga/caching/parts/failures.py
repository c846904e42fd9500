"""Attempts at parts that ended with errors -> whether another one is worth it, and the error if not."""

from __future__ import annotations

from collections import Counter, defaultdict

from ... import errors
from ...building.parts.board import Board, Look
from ...building.parts.note import Failure
from ...building.parts.plan import Plan
from ...errors import YogaError

__all__ = ["Failures"]

_ALIKE, _ALL = 3, 6  # attempts at a part


class Failures:
    """The failures since a build was begun or continued by this process; those before it do not count.

    Args:
        board: where they are noted.
        plan: the plan of the build.
        before: names of notes that do not count.
    """

    def __init__(self, board: Board, plan: Plan, before: set[str]) -> None:
        self._board, self._plan = board, plan
        self._known = set(before)
        self._noted: defaultdict[int, list[Failure]] = defaultdict(list)
        self._raised: defaultdict[int, list[Failure]] = defaultdict(list)
        self._last: dict[int, BaseException] = {}

    def see(self, part: int, error: BaseException, host: str) -> None:
        """Takes an error that came back from a worker, and may have been noted, too."""
        self._last[part] = error
        self._raised[part].append(Failure(part, type(error).__name__, str(error), host))

    def check(self, look: Look) -> None:
        """Raises the error of a part that failed three times alike, six times, or cannot but fail."""
        new = sorted(look.failed - self._known)
        self._known |= set(new)
        for failure in self._board.failures(new):
            if not 0 <= failure.part < self._plan.num_parts:
                continue  # forged
            self._noted[failure.part].append(failure)
        for part in {*self._noted, *self._raised} - look.done:
            found = max(self._noted[part], self._raised[part], key=len)
            alike = Counter((failure.kind, failure.text) for failure in found)
            last = found[-1]
            if last.is_final or len(found) >= _ALL or max(alike.values()) >= _ALIKE:
                raise self._error(last, len(found)) from self._last.get(part)

    def _error(self, failure: Failure, times: int) -> Exception:
        row = "" if failure.row is None else f", at row {failure.row}"
        often = "" if times == 1 else f" {times} times"
        text = (
            f"{self._plan.named(failure.part)} failed{often} on {failure.host}{row}: {failure.kind}: "
            f"{failure.text}\nNothing was published; parts that are done stay, so correct it and call again"
        )
        if self._last.get(failure.part) is None and failure.trace:
            text += f"\n\n{failure.trace}"
        known = getattr(errors, failure.kind, None)
        if isinstance(known, type) and issubclass(known, YogaError):
            return known(text)
        if failure.kind == "OSError":
            return OSError(text)
        return YogaError(text)
