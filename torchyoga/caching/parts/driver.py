"""A plan -> all parts noted: by workers of an executor, or by all who call, such as ranks and terminals.

Note 10. The driver believes notes, not futures.
A future may fail although its part is done, as when a pool breaks for another part; or never come, as when an
engine has lost its worker. A part that is noted is done, whoever built it.
"""

from __future__ import annotations

import logging
import secrets
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from ... import errors
from ...building.parts.board import Look, PartFailure, here
from ...errors import BusyError, YogaError
from ...process.progress import Bar, progress_bar
from .planned import BuildJob, run_part
from .pools import Broken, Pools

__all__ = ["build_all"]

_log = logging.getLogger("torchyoga")
_WINDOW, _UNKNOWN_WINDOW = 2, 1000  # parts in flight: for each worker, or if their number is unknown
_SLOW, _FEWEST, _SHORTEST = 3.0, 3, 1.0  # medians, of so many parts, and seconds: from then on a part is slow
_SHORTEST_HERE = 5.0  # seconds: for one who helps, who knows only the longest part that was built here
_QUIET = 10.0  # seconds without a note or a sign of life, until work counts as lost on its way
_ENDING = 10.0  # seconds to wait for work under way when a build has failed
_MOST_SILENCES = 10  # of an executor that cannot be made anew
_UNSEEN = 3  # times that a part is said to be done, and is not noted
_MOST_DEATHS = 5  # of pools, without a part done in between
_LONGEST_SILENCE = 180.0  # seconds without a note or a sign of life
_FIRST_POLL, _LONGEST_POLL, _POLL_SHARE = 0.02, 2.0, 10  # seconds; and times what a listing takes
_CURRENT = 5.0  # seconds between two looks whether the plan is still there
_ALIKE, _ALL = 3, 6  # attempts at a part


def build_all(job: BuildJob, progress: bool | None) -> None:
    """Has every part built by workers of the executor; without one, here and wherever else this is called.

    Args:
        job: the build.
        progress: show a progress bar over all parts, wherever they are built.

    Raises:
        SchemaError: a row does not fit; of whatever class else the error is with which a part failed.
        YogaError: a part fails again and again, or workers die again and again.
        BusyError: others have begun the last parts, and do not end.
    """
    plan = job.plan
    unit = " rows" if plan.of_rows else " inputs"
    with progress_bar(progress, plan.bounds[-1], f"{plan.id} {plan.version}", unit) as bar:
        watch = _BuildWatch(job, bar)
        if job.many.executor is None:
            _help(job, watch)
        else:
            _drive(job, watch)


def _help(job: BuildJob, watch: _BuildWatch) -> None:
    """Builds parts that nobody builds until every part is noted."""
    longest, ended = 0.0, time.monotonic()
    for look in watch.looks():
        waited = time.monotonic() - max(watch.progressed, ended)
        part = _next(job.plan.num_parts, look, waited > max(_SHORTEST_HERE, _SLOW * longest))
        if part is not None:
            began = time.monotonic()
            try:
                job.build(part, is_taken=part in look.alive | look.silent)
            except Exception as error:
                watch.see(part, error, "this process")
            ended = time.monotonic()
            longest = max(longest, ended - began)
        elif waited > job.many.timeout:
            raise BusyError(
                f"others have begun the last parts of {job.plan.id!r} {job.plan.version!r}, and none was "
                f"done for {job.many.timeout:.0f} s; wait longer, or stop them"
            )
        else:
            time.sleep(watch.poll)


def _next(num_parts: int, look: Look, is_late: bool) -> int | None:
    """A part that nobody builds; drawn, since many look at once. If all are begun, one whose builder is
    silent, or that is late."""
    left = set(range(num_parts)) - look.done
    choices = sorted(left - look.alive - look.silent or left & look.silent or (left if is_late else ()))
    return secrets.choice(choices) if choices else None


def _drive(job: BuildJob, watch: _BuildWatch) -> None:
    """Keeps the workers of an executor busy until every part is noted."""
    pools = Pools(job.many.executor)
    driver = _Driver(job, watch, pools)
    try:
        for look in watch.looks():
            driver.hand_out(look)
            driver.wait()
    except BaseException as error:
        for future in driver.futures:  # takes back what no worker has begun
            future.cancel()
        if isinstance(error, Exception):  # not for Ctrl-C; the next call may build from corrected data
            wait(driver.futures, timeout=_ENDING)
        raise
    finally:
        pools.close()


class _Driver:
    """Hands parts to the workers of an executor, and takes in what comes back.

    Attributes:
        futures: parts in flight.
    """

    def __init__(self, job: BuildJob, watch: _BuildWatch, pools: Pools) -> None:
        self._job, self._plan, self._watch, self._pools = job, job.plan, watch, pools
        self._silence = max(_LONGEST_SILENCE, 3 * job.many.lease_seconds)
        self.futures: dict[Future[tuple[float, str]], int] = {}
        self._built: dict[int, list[str]] = {}  # parts that are said to be done: by which processes
        self._took: list[float] = []  # seconds of those
        self._begun: dict[int, float] = {}  # when a claim on a part was first seen
        self._extra: Counter[int] = Counter()  # parts handed out again although they are in flight
        self._deaths = self._silences = 0
        self._heard = time.monotonic()  # the last note or sign of life

    def hand_out(self, look: Look) -> None:
        """Fills the workers with parts that nobody has, and then with those that are late."""
        now = time.monotonic()
        if self._watch.new:
            self._deaths = 0
        if self._watch.new or look.alive:
            self._heard = now
        for part in look.alive:
            self._begun.setdefault(part, now)
        self._left = sorted(set(range(self._plan.num_parts)) - look.done)
        self._check_life()
        for part in self._left:
            if len(self._built.get(part, ())) >= _UNSEEN:
                raise YogaError(
                    f"{self._plan.named(part)} was built {_UNSEEN} times, last by {self._built[part][-1]}, "
                    f"but {here()} sees no note of it in {self._job.board.place}: do all machines see the "
                    "same files there? Use a directory that they share, or a store behind a URL"
                )
        flying = set(self.futures.values())
        # Parts of another builder that is alive come last: it may yet be done with them.
        fresh = sorted(set(self._left) - flying, key=lambda part: (part in look.alive, part))
        workers = self._pools.workers
        window = _UNKNOWN_WINDOW if workers is None else _WINDOW * workers
        for part in fresh[: max(0, window - len(self.futures))]:
            self._hand(part)
        for part in sorted(flying - look.done):
            if self._is_late(part, look, has_others=bool(fresh)):
                _log.info("%s is late; another worker builds it, too", self._plan.named(part))
                self._extra[part] += 1
                self._hand(part)

    def _check_life(self) -> None:
        """Makes the workers anew if nothing was heard of them for long."""
        if time.monotonic() - self._heard <= self._silence:
            return
        self._silences += 1
        if self._pools.can_renew or self._silences >= _MOST_SILENCES:
            self._renew(f"no sign of life for {self._silence:.0f} s")
        else:  # perhaps its first worker has yet to begin
            _log.warning("%r %r: no sign of life of a worker so far", self._plan.id, self._plan.version)
            self._heard = time.monotonic()

    def _is_late(self, part: int, look: Look, has_others: bool) -> bool:
        """True for a part whose builder is silent, that takes much longer than others did, or that nobody
        begins although nobody is at work."""
        times = self._extra[part]
        if part in look.silent:
            return times < _MOST_DEATHS
        usual = _SLOW * statistics.median(self._took) if len(self._took) >= _FEWEST else 0.0
        now = time.monotonic()
        if part not in self._begun:
            return bool(now - self._heard > max(_QUIET, usual) * 2**times)
        allowed: float = max(_SHORTEST, usual) * 2**times
        return not has_others and usual > 0 and now - self._begun[part] > allowed

    def _hand(self, part: int) -> None:
        for _ in range(_MOST_DEATHS + 1):
            try:
                self.futures[self._pools.submit(run_part, self._job.payload, part)] = part
                return
            except Broken as error:
                self._renew(str(error))

    def wait(self) -> None:
        """Waits for the first futures, and not for long."""
        if not self.futures:
            time.sleep(self._watch.poll)
            return
        ended, _ = wait(self.futures, timeout=self._watch.poll, return_when=FIRST_COMPLETED)
        died: list[str] = []
        for future in ended:
            part = self.futures.pop(future)
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Broken):
                died.append(str(error))
            elif error is not None:
                self._watch.see(part, error, "a worker")
            elif not future.cancelled():
                seconds, host = future.result()
                self._built.setdefault(part, []).append(host)
                self._took += [seconds] if seconds else []
        if died:
            self._renew(died[0])

    def _renew(self, why: str) -> None:
        """Goes on with new workers; a part that has no note is handed out again."""
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise YogaError(
                f"workers died {self._deaths} times without a part done in between ({why}), perhaps as "
                f"memory ran out; {self._plan.named(self._left[0])} is the first of {len(self._left)} left. "
                "Parts that are done stay: call again with fewer workers, or look at the rows of that part"
            )
        _log.warning(
            "%r %r: workers have died (%s); going on with new ones", self._plan.id, self._plan.version, why
        )
        self._pools.renew(why)
        self.futures.clear()
        self._begun.clear()
        self._heard = time.monotonic()


class _BuildWatch:
    """Looks at the notes of a build.

    Args:
        job: the build.
        bar: shows what is done.

    Attributes:
        new: parts that are done, and were not at the look before.
        progressed: when there were some for the last time.
        poll: seconds until the next look is worth it.
    """

    def __init__(self, job: BuildJob, bar: Bar) -> None:
        self._board, self._plan, self._bar = job.board, job.plan, bar
        self._known: set[str] | None = None  # failures before the first look do not count
        self._noted: defaultdict[int, list[PartFailure]] = defaultdict(list)
        self._raised: defaultdict[int, list[PartFailure]] = defaultdict(list)
        self._last: dict[int, BaseException] = {}
        self.new: set[int] = set()
        self.progressed = time.monotonic()
        self.poll = _FIRST_POLL

    def looks(self) -> Iterator[Look]:
        """Looks at the notes, until every part is done, or another builder has published the version.

        Raises:
            Exception: of a part that failed three times alike, six times, or cannot but fail.
        """
        plan, done = self._plan, set[int]()
        asked = -_CURRENT
        while True:
            began = time.monotonic()
            look = self._board.look(plan)
            now = time.monotonic()
            self.new = look.done - done
            self._bar.update(sum(plan.bounds[part + 1] - plan.bounds[part] for part in self.new))
            if self.new:
                self.progressed, self.poll = now, _FIRST_POLL / 1.5
            self.poll = min(_LONGEST_POLL, max(_POLL_SHARE * (now - began), 1.5 * self.poll))
            is_gone = False
            if not done <= look.done or now - asked >= _CURRENT:
                is_gone, asked = not self._board.is_current(plan), now
            if len(look.done) >= plan.num_parts or is_gone:
                return
            self._check(look)
            yield look
            done = look.done

    def see(self, part: int, error: BaseException, host: str) -> None:
        """Takes an error that came back from a worker, and may have been noted, too."""
        self._last[part] = error
        self._raised[part].append(PartFailure(part, type(error).__name__, str(error), host))

    def _check(self, look: Look) -> None:
        known = look.failed if self._known is None else self._known
        self._known = known | look.failed
        for failure in self._board.failures(sorted(look.failed - known)):
            if 0 <= failure.part < self._plan.num_parts:  # else it is forged
                self._noted[failure.part].append(failure)
        for part in {*self._noted, *self._raised} - look.done:
            failures = max(self._noted[part], self._raised[part], key=len)
            alike = Counter((failure.kind, failure.text) for failure in failures)
            if failures[-1].is_final or len(failures) >= _ALL or max(alike.values()) >= _ALIKE:
                raise self._error(failures[-1], len(failures)) from self._last.get(part)

    def _error(self, failure: PartFailure, times: int) -> Exception:
        row = "" if failure.row is None else f", at row {failure.row}"
        often = "" if times == 1 else f" {times} times"
        text = (
            f"{self._plan.named(failure.part)} failed{often} on {failure.host}{row}: {failure.kind}: "
            f"{failure.text}\nNothing was published; parts that are done stay, so correct it and call again"
        )
        if self._last.get(failure.part) is None and failure.trace:
            text += f"\n\n{failure.trace}"
        known = OSError if failure.kind == "OSError" else getattr(errors, failure.kind, None)
        if isinstance(known, type) and issubclass(known, (YogaError, OSError)):
            return known(text)
        return YogaError(text)
