"""A plan and an executor -> all parts noted, whatever happens to the workers.

Note 107. The driver believes notes, not futures.
A future may fail although its part is done, as when a pool breaks for another part; or never come, as when an
engine has lost its worker. A part that is noted is done, whoever built it.
"""

from __future__ import annotations

import logging
import statistics
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait

from ...building.parts.board import Board, Look, here
from ...building.parts.plan import Plan
from ...errors import YogaError
from ...process.progress import Bar, progress_bar
from .failures import Failures
from .pools import Broken, Pools
from .task import run_part

__all__ = ["bar_over", "drive", "shown"]

_log = logging.getLogger("torchyoga")
_FIRST_POLL, _LONGEST_POLL, _POLL_SHARE = 0.02, 2.0, 10  # seconds; and times what a listing takes
_WINDOW, _UNKNOWN_WINDOW = 2, 1000  # parts in flight: for each worker, or if their number is unknown
_SLOW, _FEWEST, _SHORTEST = 3.0, 3, 1.0  # medians, of so many parts, and seconds: from then on a part is slow
_QUIET = 10.0  # seconds without a note or a sign of life, until work counts as lost on its way
_ENDING = 10.0  # seconds to wait for work under way when a build has failed
_MOST_SILENCES = 10  # of an executor that cannot be made anew
_CURRENT = 5.0  # seconds between two looks whether the plan is still there
_UNSEEN = 3  # times that a part is said to be done, and is not noted
_MOST_DEATHS = 5  # of pools, without a part done in between
_LONGEST_SILENCE = 180.0  # seconds without a note or a sign of life


def drive(
    board: Board, plan: Plan, payload: bytes, executor: object, progress: bool | None, lease_seconds: float
) -> None:
    """Has every part built by workers of an executor.

    Args:
        board: the notes of the plan.
        plan: says which parts there are.
        payload: what each worker needs.
        executor: see `Pools`.
        progress: show a progress bar.
        lease_seconds: who gives no sign of life for this long counts as dead.

    Raises:
        SchemaError: a row does not fit; of whatever class else the error is with which a part failed.
        YogaError: a part fails again and again, or workers die again and again.
    """
    pools = Pools(executor)
    try:
        with bar_over(plan, progress) as bar:
            driver = _Driver(board, plan, payload, pools, bar, lease_seconds)
            try:
                driver.run()
            except Exception:
                driver.stop()
                raise
            except BaseException:  # as by Ctrl-C
                driver.cancel()
                raise
    finally:
        pools.close()


def bar_over(plan: Plan, progress: bool | None) -> Bar:
    """A progress bar over all parts, wherever they are built."""
    unit, total = (" rows", plan.num_rows) if plan.of_rows else (" inputs", plan.bounds[-1])
    return progress_bar(progress, total, f"{plan.id} {plan.version}", unit)


def shown(plan: Plan, look: Look, before: set[int], bar: Bar) -> None:
    """Adds the parts that are done, and were not before, to a progress bar."""
    new = look.done - before
    if new:
        bar.update(sum(plan.bounds[part + 1] - plan.bounds[part] for part in new))


class _Driver:
    def __init__(
        self, board: Board, plan: Plan, payload: bytes, pools: Pools, bar: Bar, lease_seconds: float
    ) -> None:
        self._board, self._plan, self._payload = board, plan, payload
        self._pools, self._bar = pools, bar
        self._silence = max(_LONGEST_SILENCE, 3 * lease_seconds)
        self._futures: dict[Future[tuple[float, str]], int] = {}
        self._claimed: dict[int, list[str]] = {}  # parts that are said to be done: by which processes
        self._begun: dict[int, float] = {}  # when a claim on a part was first seen
        self._took: list[float] = []  # seconds of parts that were seen from their claim on
        self._extra: dict[int, int] = {}  # parts handed out again although they are in flight
        self._done: set[int] = set()
        self._deaths = 0
        self._heard = self._looked = (
            time.monotonic()
        )  # the last note or sign of life; when the plan was there
        self._silences = 0
        self._poll = _FIRST_POLL

    def run(self) -> None:
        look = self._board.look(self._plan)
        failures = Failures(self._board, self._plan, look.failed)
        while True:
            is_gone = self._is_gone(look)
            self._take_in(look)
            if len(look.done) >= self._plan.num_parts or is_gone:
                return
            failures.check(look)
            self._hand_out(look)
            self._wait(failures)
            began = time.monotonic()
            look = self._board.look(self._plan)
            cost = _POLL_SHARE * (time.monotonic() - began)
            self._poll = min(
                _LONGEST_POLL, max(cost, 1.5 * self._poll if look.done == self._done else _FIRST_POLL)
            )

    def _is_gone(self, look: Look) -> bool:
        """True if the plan has been removed, as when another builder has published the version."""
        now = time.monotonic()
        if self._done <= look.done and now - self._looked < _CURRENT:
            return False
        self._looked = now
        return not self._board.is_current(self._plan)

    def stop(self) -> None:
        """Leaves no work behind, as far as it ends soon: the next call may build from corrected data."""
        self.cancel()
        wait(self._futures, timeout=_ENDING)

    def cancel(self) -> None:
        """Takes back what no worker has begun."""
        for future in self._futures:
            future.cancel()

    def _take_in(self, look: Look) -> None:
        """Notes what a look has shown."""
        now = time.monotonic()
        shown(self._plan, look, self._done, self._bar)
        if look.done - self._done:
            self._deaths = 0
        if look.done - self._done or look.alive:
            self._heard = now
        for part in look.done - self._done:
            if part in self._begun:
                self._took.append(now - self._begun.pop(part))
        for part in look.alive:
            self._begun.setdefault(part, now)
        self._done = look.done

    def _hand_out(self, look: Look) -> None:
        """Fills the workers with parts that nobody has, and then with those that are late."""
        if time.monotonic() - self._heard > self._silence:
            self._silences += 1
            if self._pools.can_renew or self._silences >= _MOST_SILENCES:
                self._renew(f"no sign of life for {self._silence:.0f} s")
            else:  # perhaps its first worker has yet to begin
                _log.warning("%r %r: no sign of life of a worker so far", self._plan.id, self._plan.version)
                self._heard = time.monotonic()
        unseen = [part for part, hosts in self._claimed.items() if len(hosts) >= _UNSEEN]
        if set(unseen) - look.done:
            part = min(set(unseen) - look.done)
            raise YogaError(
                f"{self._plan.named(part)} was built {_UNSEEN} times, last by {self._claimed[part][-1]}, but "
                f"{here()} sees no note of it in {self._board.place}: do all machines see the same files "
                "there? Use a directory that they share, or a store behind a URL"
            )
        flying = set(self._futures.values())
        room = self._window - len(self._futures)
        fresh = [k for k in range(self._plan.num_parts) if k not in look.done and k not in flying]
        # Parts of another builder that is alive come last: it may yet be done with them.
        fresh.sort(key=lambda part: part in look.alive)
        for part in fresh[: max(0, room)]:
            self._hand(part)
        for part in sorted(flying - look.done):
            if self._is_late(part, look, has_others=bool(fresh)):
                _log.info("%s is late; another worker builds it, too", self._plan.named(part))
                self._extra[part] = self._extra.get(part, 0) + 1
                self._hand(part)

    def _is_late(self, part: int, look: Look, has_others: bool) -> bool:
        """True for a part whose builder is silent, that takes much longer than others did, or that nobody
        begins although nobody is at work."""
        times = self._extra.get(part, 0)
        if part in look.silent:
            return times < _MOST_DEATHS
        usual = _SLOW * statistics.median(self._took) if len(self._took) >= _FEWEST else 0.0
        now = time.monotonic()
        if part not in self._begun:
            return bool(now - self._heard > max(_QUIET, usual) * 2**times)
        allowed: float = max(_SHORTEST, usual) * 2**times
        return not has_others and usual > 0 and now - self._begun[part] > allowed

    @property
    def _window(self) -> int:
        workers = self._pools.workers
        return _UNKNOWN_WINDOW if workers is None else _WINDOW * workers

    def _hand(self, part: int) -> None:
        for _ in range(_MOST_DEATHS + 1):
            try:
                self._futures[self._pools.submit(run_part, self._payload, part)] = part
                return
            except Broken as error:
                self._renew(str(error))

    def _wait(self, failures: Failures) -> None:
        """Waits for the first futures, and not for long."""
        if not self._futures:
            time.sleep(self._poll)
            return
        ended, _ = wait(self._futures, timeout=self._poll, return_when=FIRST_COMPLETED)
        died: list[str] = []
        for future in ended:
            part = self._futures.pop(future)
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Broken):
                died.append(str(error))
            elif error is not None:
                failures.see(part, error, "a worker")
            elif not future.cancelled():
                self._claimed.setdefault(part, []).append(future.result()[1])
        if died:
            self._renew(died[0])

    def _renew(self, why: str) -> None:
        """Goes on with new workers; a part that has no note is handed out again."""
        self._deaths += 1
        left = sorted(set(range(self._plan.num_parts)) - self._done)
        if self._deaths > _MOST_DEATHS:
            raise YogaError(
                f"workers died {self._deaths} times without a part done in between ({why}), perhaps as "
                f"memory ran out; {self._plan.named(left[0])} is the first of {len(left)} left. Parts that "
                "are done stay: call again with fewer workers, or look at the rows of that part"
            )
        _log.warning(
            "%r %r: workers have died (%s); going on with new ones", self._plan.id, self._plan.version, why
        )
        self._pools.renew(why)
        self._futures.clear()
        self._begun.clear()
        self._heard = time.monotonic()
