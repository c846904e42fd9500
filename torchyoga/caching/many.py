"""Data that a user passes -> a version of it, built by workers of an executor, or by all who call.

Note 10. The driver believes notes, not futures.
A future may fail although its part is done, as when a pool breaks for another part; or never come, as when an
engine has lost its worker. A part that is noted is done, whoever built it.
"""

from __future__ import annotations

import logging
import os
import secrets
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress

from .. import errors
from ..building.board import Board, Look, PartFailure, here
from ..building.build import BuildOptions, Target
from ..building.plan import Splits, digest_of, splits_of
from ..errors import BusyError, ExistsError, LostError, NotFoundError, YogaError
from ..process.messages import Bar, progress_bar
from ..reading.version_ref import VersionRef
from ..rows.collector import block_of
from ..stores.refs import fetched
from .planned import BuildJob, Many, agreed_job, run_part, workers_of
from .submission import prepared, submitted

_log = logging.getLogger("torchyoga")
_WINDOW, _UNKNOWN_WINDOW = 2, 1000  # parts in flight: for each worker, or if their number is unknown
_SLOW, _FEWEST = 3.0, 3  # medians, of so many parts: from then on a part is late
_SHORTEST, _UNKNOWN = 5.0, 60.0  # seconds: no part is late before; and before so many parts are done
_ENDING = 10.0  # seconds to wait for work under way when a build has failed
_LONGEST_SILENCE = 1800.0  # seconds without a note or a sign of life of any worker
_UNSEEN = 3  # times that a part is said to be done, and is not noted
_MOST_TAKEN = 5  # times that a part whose builder is silent is given to another one
_FIRST_POLL, _LONGEST_POLL, _POLL_SHARE = 0.02, 2.0, 10  # seconds; and times what a listing takes
_CURRENT = 5.0  # seconds between two looks whether the plan is still there
_ALIKE, _ALL = 3, 6  # attempts at a part
_TRIES = 10  # to publish, when files of parts are gone
_COMPARED = 3  # rows of a version that is there already


def submitted_by(many: Many | None, data: object, target: Target, options: BuildOptions) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes. Hold its lock, unless many build it.

    Args:
        many: who builds; None for this process.
        data: gives the rows.
        target: where the version is to be published.
        options: how to build.

    Raises:
        Exception: as `submitted` and `submitted_by_many`.
    """
    if many is None:
        return submitted(data, target, options)
    return submitted_by_many(data, target, options, many)


def submitted_by_many(data: object, target: Target, options: BuildOptions, many: Many) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes, in parts.

    Args:
        data: gives the rows, to be read from anywhere.
        target: where the version is to be published.
        options: how to build.
        many: who builds.

    Raises:
        TypeError: rows can only be read from the beginning, or cannot be sent to workers.
        ValueError: there are more than `max_rows` rows.
        ExistsError: another version is published there.
        Exception: as `submitted`, and as a part fails.
    """
    store, id, version = target.store, target.id, target.version
    source, options = prepared(data, target, options)
    splits = splits_of(source)
    is_joined = many.executor is None and target.replaces is None
    if is_joined:
        with suppress(NotFoundError):
            return _the_same(fetched(store, id, version), splits)
    is_quiet = many.executor is None and options.progress is None and os.environ.get("RANK", "0") != "0"
    with Board(store, id, version, many.lease_seconds).present():
        for _ in range(_TRIES):
            try:
                # Another one if that was removed.
                job = agreed_job(data, target, splits, options, many)
                _build_all(job, False if is_quiet else options.progress)
                ref = job.publish()
            except ExistsError:
                if not is_joined:
                    raise
                return _the_same(fetched(store, id, version), splits)
            if ref is not None:
                return ref
    raise LostError(
        f"files of parts of {target} were removed from {store.name} each time they were built, by clean or "
        "by remove; call again when no process does that"
    )


def _the_same(ref: VersionRef, splits: Splits) -> VersionRef:
    """A version that is there already; ExistsError if it is not of these rows, as some show."""
    differs = None
    if splits.of_rows and len(ref) != splits.count:
        differs = f"has {len(ref)} rows, not {splits.count}"
    elif ref.schema is not None and len(ref):
        numbers = {len(ref) * i // _COMPARED for i in range(_COMPARED)} if splits.of_rows else {0}
        there = [(number, digest_of(block_of([ref[number]], ref.schema))) for number in sorted(numbers)]
        row = splits.differing(there, ref.schema)
        if row is not None:
            differs = f"has another row {row}" if splits.of_rows else "has another first row"
    if differs is not None:
        id, version = ref.manifest.id, ref.manifest.version
        raise ExistsError(
            f"{id!r} {version!r} is published already, and {differs}; fetch it, or choose another version"
        )
    return ref


def _build_all(job: BuildJob, progress: bool | None) -> None:
    """Has every part built by workers of the executor; without one, here and wherever else this is called.

    Args:
        job: the build.
        progress: show a progress bar over all parts, wherever they are built.

    Raises:
        SchemaError: a row does not fit; of whatever class else the error is with which a part failed.
        YogaError: a part fails again and again, or the executor breaks.
        BusyError: others have begun the last parts, and do not end.
    """
    plan = job.plan
    unit = " rows" if plan.of_rows else " inputs"
    with progress_bar(progress, plan.bounds[-1], f"{plan.id} {plan.version}", unit) as bar:
        watch = _BuildWatch(job, bar)
        build_parts = _help if job.many.executor is None else _drive
        build_parts(job, watch)


def _help(job: BuildJob, watch: _BuildWatch) -> None:
    """Builds parts that no other process has begun until every part is noted; if all are begun, a part
    whose builder is silent or late."""
    begun: Counter[int] = Counter()  # parts that were built here
    ended = time.monotonic()
    for look in watch.looks():
        left = set(range(job.plan.num_parts)) - look.done
        free = left - look.alive - look.silent
        choices = sorted(free or (part for part in left if watch.is_late(look, part, begun[part])))
        if choices:
            part = secrets.choice(choices)  # drawn, since many look at once
            begun[part] += 1
            try:
                job.build(part, is_taken=part not in free)
            except Exception as error:
                watch.see(part, error, "this process")
            ended = time.monotonic()
        elif time.monotonic() - max(watch.progressed, ended) > job.many.timeout:
            raise BusyError(
                f"others have begun the last parts of {job.target}, and none was done for "
                f"{job.many.timeout:.0f} s; wait longer, or stop them"
            )
        else:
            time.sleep(watch.poll)


def _drive(job: BuildJob, watch: _BuildWatch) -> None:
    """Keeps the workers of the executor busy until every part is noted; a part that is late is given to a
    second worker as well."""
    plan, pool = job.plan, job.many.executor
    workers = workers_of(pool)
    window = _UNKNOWN_WINDOW if workers is None else _WINDOW * workers
    flying: dict[Future[tuple[float, str]], int] = {}  # the part of each
    built: defaultdict[int, list[str]] = defaultdict(list)  # by which processes, as they say
    extra: Counter[int] = Counter()  # parts handed out again although they are in flight
    try:
        for look in watch.looks():
            left = set(range(plan.num_parts)) - look.done
            unseen = [part for part in left if len(built[part]) >= _UNSEEN]
            if unseen:
                part = unseen[0]
                raise YogaError(
                    f"{plan.named(part)} was built {_UNSEEN} times, last by {built[part][-1]}, but {here()} "
                    f"sees no note of it in {job.board.place}: do all machines see the same files there? Use "
                    "a directory that they share, or a store behind a URL"
                )
            if time.monotonic() - watch.heard > _LONGEST_SILENCE:
                raise YogaError(
                    f"no worker of the executor began a part of {job.target} for {_LONGEST_SILENCE:.0f} s; "
                    "parts that are done stay: look at its workers, and call again"
                )
            begun = {*flying.values()}
            # Parts of another builder that is alive come last: it may yet be done with them.
            fresh = sorted(left - begun, key=lambda part: (part in look.alive, part))
            waits = look.alive if fresh else set[int]()
            late = [part for part in sorted(begun & left - waits) if watch.is_late(look, part, extra[part])]
            extra.update(late)
            for part in [*fresh[: max(0, window - len(flying))], *late]:
                flying[pool.submit(run_part, job.payload, part)] = part
            if not flying:
                time.sleep(watch.poll)
            ended, _ = wait(flying, timeout=watch.poll, return_when=FIRST_COMPLETED)
            for future in ended:
                part, error = flying.pop(future), None if future.cancelled() else future.exception()
                if isinstance(error, BrokenExecutor):
                    raise error
                if error is not None:
                    watch.see(part, error, "a worker")
                elif not future.cancelled():
                    built[part].append(future.result()[1])
    except BaseException as error:
        for future in flying:  # takes back what no worker has begun
            future.cancel()
        if isinstance(error, BrokenExecutor):
            raise YogaError(
                f"workers of {job.target} have died ({error}), perhaps as memory ran out; parts that are "
                "done stay: call again with another executor, or one of fewer workers"
            ) from error
        if isinstance(error, Exception):  # not for Ctrl-C; the next call may build from corrected data
            wait(flying, timeout=_ENDING)
        raise


class _BuildWatch:
    """Looks at the notes of a build.

    Args:
        job: the build.
        bar: shows what is done.

    Attributes:
        progressed: when a part was done for the last time.
        heard: when a part was done, or a builder showed life.
        poll: seconds until the next look is worth it.
    """

    def __init__(self, job: BuildJob, bar: Bar) -> None:
        self._board, self._plan, self._bar = job.board, job.plan, bar
        self._known: set[str] | None = None  # failures before the first look do not count
        self._noted: defaultdict[int, list[PartFailure]] = defaultdict(list)
        self._raised: defaultdict[int, list[PartFailure]] = defaultdict(list)
        self._last: dict[int, BaseException] = {}
        self._took: list[float] = []  # seconds of parts that were done meanwhile
        self._begun: dict[int, float] = {}  # when a claim on a part was first seen
        self.progressed = self.heard = time.monotonic()
        self.poll = _FIRST_POLL

    def looks(self) -> Iterator[Look]:
        """Looks at the notes, until every part is done, or another builder has published the version.

        Raises:
            Exception: of a part that failed three times alike, six times, or cannot but fail.
        """
        plan, done = self._plan, set[int]()
        asked = before = -_CURRENT
        while True:
            began = time.monotonic()
            look = self._board.look(plan)
            now = time.monotonic()
            new = look.done - done
            self._bar.update(sum(plan.bounds[part + 1] - plan.bounds[part] for part in new))
            if new:
                self.progressed, self.poll = now, _FIRST_POLL / 1.5
            if new or look.alive:
                self.heard = now
            if before > 0:  # parts done before the first look show nothing
                self._took += [now - self._begun.get(part, before) for part in new]
            for part in look.alive:
                self._begun.setdefault(part, now)
            self.poll = min(_LONGEST_POLL, max(_POLL_SHARE * (now - began), 1.5 * self.poll))
            is_gone = False
            if not done <= look.done or now - asked >= _CURRENT:
                is_gone, asked = not self._board.is_current(plan), now
            if len(look.done) >= plan.num_parts or is_gone:
                return
            self._check(look)
            yield look
            done, before = look.done, now

    def is_late(self, look: Look, part: int, times: int) -> bool:
        """True for a part whose builder is silent, that takes much longer than others did, or that no worker
        begins although none is busy; the time allowed doubles with each of the `times` that the part was
        given to another builder."""
        if part in look.silent:
            return times < _MOST_TAKEN
        usual = _SLOW * statistics.median(self._took) if len(self._took) >= _FEWEST else _UNKNOWN
        allowed: float = max(_SHORTEST, usual) * 2**times
        return time.monotonic() - self._begun.get(part, self.heard) > allowed

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
