"""A plan -> all parts noted, by whoever calls: ranks, array tasks, terminals."""

from __future__ import annotations

import secrets
import time

from ...building.build import BuildOptions
from ...building.parts.attempt import build_part
from ...building.parts.board import Board, Look
from ...building.parts.plan import Plan
from ...building.parts.slices import Splits
from ...errors import BusyError
from ...stores.contract import Versions
from .driver import bar_over, shown
from .failures import Failures

__all__ = ["help_out"]

_FIRST_POLL, _LONGEST_POLL = 0.05, 2.0  # seconds
_SLOW, _SHORTEST = (
    3.0,
    5.0,
)  # times the longest part built here, and seconds: from then on another one is slow


def help_out(
    store: Versions,
    board: Board,
    plan: Plan,
    splits: Splits,
    options: BuildOptions,
    timeout: float,
    progress: bool | None,
) -> None:
    """Builds parts that nobody builds until every part is noted.

    Args:
        store: where the version is to be published.
        board: the notes of the plan.
        plan: says which parts there are.
        splits: the source.
        options: how to build.
        timeout: seconds to wait for others that do not end.
        progress: show a progress bar.

    Raises:
        Exception: whatever a part failed with, three times alike.
        BusyError: others have begun the last parts, and do not end.
    """
    look = board.look(plan)
    failures = Failures(board, plan, look.failed)
    done: set[int] = set()
    longest, poll, waited = 0.0, _FIRST_POLL, time.monotonic()
    with bar_over(plan, progress) as bar:
        while True:
            shown(plan, look, done, bar)
            if look.done - done:
                poll, waited = _FIRST_POLL, time.monotonic()
            done = look.done
            if len(done) >= plan.num_parts or not board.is_current(plan):
                return
            failures.check(look)
            late = time.monotonic() - waited > max(_SHORTEST, _SLOW * longest)
            part = _next(plan, look, late)
            attempt = secrets.token_hex(8)
            if part is not None and board.begin(
                plan, part, attempt, is_taken=part in look.alive | look.silent
            ):
                began = time.monotonic()
                try:
                    build_part(store, board, plan, part, splits, options, attempt)
                except Exception as error:
                    failures.see(part, error, "this process")
                longest, waited = max(longest, time.monotonic() - began), time.monotonic()
            elif part is None:
                if time.monotonic() - waited > timeout:
                    raise BusyError(
                        f"others have begun the last parts of {plan.id!r} {plan.version!r}, and none was "
                        f"done for {timeout:.0f} s; wait longer, or stop them"
                    )
                time.sleep(poll)
                poll = min(_LONGEST_POLL, 1.5 * poll)
            look = board.look(plan)


def _next(plan: Plan, look: Look, late: bool) -> int | None:
    """A part that nobody builds; drawn, since many look at once. If all are begun, one whose builder is
    silent, or that is late."""
    open_ = [part for part in range(plan.num_parts) if part not in look.done]
    free = [part for part in open_ if part not in look.alive and part not in look.silent]
    choices = free or [part for part in open_ if part in look.silent] or (open_ if late else [])
    return choices[secrets.randbelow(len(choices))] if choices else None
