"""Data that a user passes -> a published version of it, built by this process, or by many.

Many share a plan that all agree on, parts that any process builds, and one manifest. Builders take the plan
that is there, or make a new one. The first note of a part counts; a builder that finds all notes publishes.

A few rows are read twice more after a build, to warn of random ones. Reading them before it would move
generators that datasets have for themselves, and so change what is stored.

Note 10. Whoever hands parts out believes notes, not futures.
A future may fail although its part is done, as when a pool breaks for another part; or never come, as when an
engine has lost its worker. A part that is noted is done, whoever built it.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import secrets
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from .. import errors
from ..adapters.sources import dataset_and_source
from ..building import board as building
from ..building.board import Board, Look, PartFailure, PartNote, Plan, Slice, Splits, here
from ..building.build import BuildOptions, Target, build, info_with, written
from ..building.sources import BlockSource, RowSource, SeekableBlocks, Source
from ..errors import BusyError, ExistsError, LostError, NotFoundError, SchemaError, YogaError
from ..process.control_group import usable_cpus
from ..process.lazy import cached_property
from ..process.messages import Bar, log, progress_bar, warn_user
from ..reading.counting import merged
from ..reading.reader import Reader
from ..reading.version_ref import VersionRef
from ..rows.collector import block_of
from ..rows.schema import Schema
from ..rows.types import Json
from ..stores.objects import sent_with_options
from ..stores.refs import fetched, ref_of
from ..versions.columns import fingerprint_of
from ..versions.file_entry import Listed
from ..versions.lineage import plain
from ..versions.location import Staging
from ..versions.manifest import Manifest
from ..views.info import info_of

_SECONDS, _SHARE = 1.0, 0.1  # time to read rows again, or its share of the build


def submitted(data: object, target: Target, options: BuildOptions) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes. Hold the lock of the version.

    Args:
        data: gives the rows; its own info is kept with them, unless `options.info` has the same names.
        target: where the version is published.
        options: how to build.

    Raises:
        TypeError: no rows can be read from the data.
        SchemaError, ValueError, OSError: as `build`. Nothing is published.
    """
    source, options = prepared(data, target, options)
    return ref_of(target.store, build(source, target, options))


def prepared(data: object, target: Target, options: BuildOptions) -> tuple[Source, BuildOptions]:
    """A source of whatever `Storage.submit` takes, and the options with what it says itself.

    Raises:
        TypeError, SchemaError, ValueError: as `dataset_and_source`.
    """
    dataset, source = dataset_and_source(data, options.num_workers, options.schema)
    info = _info(dataset, source.name, target, given_info(dataset, options))
    options = replace(options, info=info, asked=None)
    encode = None
    if options.encode is not None:
        plainer, encode = options.encode(dataset)
        if plainer is not dataset:
            _, source = dataset_and_source(plainer, options.num_workers, options.schema)
    if isinstance(source, BlockSource) or (source.seekable and source.length):
        warn = partial(_warn_if_random, source, target, time.monotonic())
        options = replace(options, before_publishing=warn)
    return source if encode is None else encode(source), options


def given_info(dataset: object, options: BuildOptions) -> Json:
    """The info that was passed, and what it asks of the dataset.

    Raises:
        TypeError, ValueError, AttributeError: as `said_and_asked`.
    """
    return options.info if options.asked is None else plain({**options.info, **options.asked(dataset)})


def _info(dataset: object, name: str, target: Target, given: Json) -> Json:
    """The info that was passed, and the dataset's own; logs what cannot be kept of the latter."""
    left_out: dict[str, str] = {}
    own = info_of(dataset, left_out)
    info = given
    try:
        info = plain({**own, **given})
    except ValueError as error:  # together they are too long
        left_out |= dict.fromkeys(own, str(error))
    reasons = [f"{key} ({left_out[key]})" for key in left_out if key not in info]
    if reasons:
        log.warning(
            "%s: of the dataset's own info, %s does not keep %s; pass it with info=",
            name,
            target,
            ", ".join(reasons),
        )
    return info


def _warn_if_random(source: Source, target: Target, began: float) -> None:
    """Warns if rows of a source that was read since then are others when they are read again.

    Says nothing where they cannot be read again, or where that would take long compared with the build.
    """
    if isinstance(source, BlockSource):
        differ = source.differ()
    else:
        splits, seconds = building.splits_of(source), time.monotonic() - began
        numbers = sorted({0, splits.count // 2, splits.count - 1})
        if 2 * len(numbers) * seconds / splits.count > max(_SECONDS, _SHARE * seconds):
            return
        try:
            first, again = (splits.digests(numbers, source.schema, others) for others in (False, True))
        except Exception:  # of a source that gives each row once
            return
        differ = first != again
    if differ:
        warn_of_random_rows(source.name, target)


def warn_of_random_rows(name: str, target: Target) -> None:
    """Warns that rows of a source were others when they were read again."""
    warn_user(
        f"rows of {name} differ when they are read again, as by a random augmentation; {target} "
        "keeps those of its build for every epoch. Cache the dataset without its random "
        "part, and apply that to the rows you load"
    )


_PART_BYTES, _PART_SECONDS = 256 * 2**20, 30.0
_PARTS_EACH = 4  # for a worker, at least: so none waits long for the last one
_LOOKS = 8  # rows that each builder compares
_TRIES = 5  # to agree on a plan
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
_PUBLICATIONS = 10  # tries, when files of parts are gone
_COMPARED = 3  # rows of a version that is there already
_HERE = threading.local()  # the last job of each thread, since datasets are not for several at once


@dataclass(frozen=True)
class Many:
    """Who builds.

    Attributes:
        executor: whatever runs parts; None for all who call.
        lease_seconds: a builder that gives no sign of life for this long counts as dead.
        timeout: seconds to wait for others.

    Raises:
        TypeError: `executor` is none.
    """

    executor: Any
    lease_seconds: float
    timeout: float

    def __post_init__(self) -> None:
        pool = self.executor
        if pool is not None and (isinstance(pool, type) or not hasattr(pool, "submit")):
            raise TypeError(
                "executor must have a method submit, as those of concurrent.futures have; found "
                f"{'a function, so pass what it makes' if callable(pool) else f'a {type(pool).__name__}'}"
            )

    @property
    def workers(self) -> int:
        """How many work at once, as far as that is known."""
        if self.executor is not None:
            return workers_of(self.executor) or usable_cpus()
        texts = map(os.environ.get, ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_ARRAY_TASK_COUNT"))
        return max([usable_cpus(), *(int(text) for text in texts if text and text.isdecimal())])


def workers_of(pool: object) -> int | None:
    """How many workers an executor has; None if it does not say."""
    count = getattr(pool, "_max_workers", None)
    return count if isinstance(count, int) and count > 0 else None


def agreed_job(data: object, target: Target, splits: Splits, options: BuildOptions, many: Many) -> BuildJob:
    """A build by a plan that others have made, or that an interrupted build has left, or by a new one.

    Args:
        data: what the rows are read from.
        target: where the version is to be published.
        splits: the source of these rows.
        options: how to build.
        many: who builds.

    Raises:
        BusyError: others build the version from other data, or with other options.
        ExistsError: others have published it since the caller looked, and it may not be replaced.
        ValueError: there are more than `max_rows` rows.
        SchemaError: rows do not fit each other, or there are none to show a schema.
        CorruptError: the plan that is there is damaged.
    """
    store, id, version, replaces = target.store, target.id, target.version, target.replaces
    if splits.of_rows:
        options.refuse_more_rows(splits.source.name, splits.count)
    store.check_place(id, version)
    board = Board(store, id, version, many.lease_seconds)
    token, signature = secrets.token_hex(8), _signature(splits, options)

    def refuse_if_published() -> None:
        if replaces is None and store.find(id, version) is not None:
            board.clear()  # it can never be published
            raise ExistsError(
                f"{target} was published in {store.name} by another builder meanwhile; fetch that"
            )

    def make() -> Plan:
        refuse_if_published()  # before rows are read
        schema, bounds, looks = _learned(splits, options.schema, many.workers)
        if splits.of_rows and splits.count and not looks:
            warn_of_random_rows(splits.source.name, target)
        return Plan(
            token=token,
            id=id,
            version=version,
            signature=signature,
            schema=schema,
            bounds=bounds,
            of_rows=splits.of_rows,
            looks=looks,
            host=here(),
            info=options.info,
            function=options.function,
            lineage=options.lineage(0.0) if options.lineage is not None else {},
            replaces=replaces,
        )

    for _ in range(_TRIES):
        plan = board.agreed(make, many.timeout)
        refuse_if_published()
        reason = None if plan.token == token else _differs(plan, target, signature, splits, options)
        if reason is None:
            return BuildJob(target, plan, data, options, many, splits)
        if board.look(plan).alive:
            raise BusyError(
                f"{plan.host} and others build {target} otherwise: {reason}. Give all builders the same data "
                "and options, or wait until those have ended"
            )
        log.warning("%s: starting over, the interrupted build cannot be continued: %s", target, reason)
        board.clear()
    raise BusyError(
        f"others build {target} otherwise, again and again; give all builders the same data and options"
    )


def _signature(splits: Splits, options: BuildOptions) -> list[object]:
    """The facts that all builders must have in common, as they come back from JSON."""
    source, schema, function = splits.source, options.schema, options.function
    signature = [
        *(source.name, splits.count, splits.of_rows, options.format, options.compression),
        schema.to_json() if schema else None,
        function.code if function else None,
        source.pin if isinstance(source, RowSource) else None,
        source.fingerprint if isinstance(source, (RowSource, SeekableBlocks)) else None,
    ]
    return list(json.loads(json.dumps(signature)))


def _learned(
    splits: Splits, given: Schema | None, workers: int
) -> tuple[Schema | None, tuple[int, ...], tuple[tuple[int, str], ...]]:
    """The schema, the bounds and the looks of a plan, as some rows show them."""
    schema, nbytes, seconds = splits.learned(given)
    if schema is None and splits.count:
        raise SchemaError(
            f"the first inputs of {splits.source.name} have no rows, so it is unknown what rows look like; "
            "pass schema="
        )
    looks: list[tuple[int, str]] = []
    if schema is not None and splits.of_rows and splits.count:
        numbers = sorted({(splits.count - 1) * i // (_LOOKS - 1) for i in range(_LOOKS)})
        first, again = (splits.digests(numbers, schema, others) for others in (False, True))
        looks = list(zip(numbers, first, strict=True)) if first == again else []
    parts = count = splits.count
    if splits.of_rows:
        by_size = max(nbytes * count / _PART_BYTES, seconds * count / _PART_SECONDS)
        parts = max(_PARTS_EACH * workers, math.ceil(by_size))
    parts = max(1, min(parts, count, building.MOST_PARTS))
    return schema, tuple(sorted({count * part // parts for part in range(parts + 1)})), tuple(looks)


def _differs(
    plan: Plan, target: Target, signature: Sequence[object], splits: Splits, options: BuildOptions
) -> str | None:
    """Why a plan is not for what is wanted; None if it is."""
    if plan.signature != signature or plan.bounds[-1] != splits.count:
        return "its source, code or options are others"
    difference = options.difference_from(plan.function)
    if difference is not None:
        return difference
    if plan.replaces != target.replaces:
        return "another version is to be replaced"
    row = splits.differing(plan.looks, plan.schema)
    return None if row is None else f"row {row} of the source is another one here ({here()}) than there"


@dataclass(frozen=True)
class BuildJob:
    """A build by many: all that anybody needs to take part in it.

    Attributes:
        target: where the version is to be published.
        plan: the plan; `data`: what the rows are read from; `options`: how to build.
        many: who builds.
        splits: the source; None while the job is sent to a worker.
    """

    target: Target
    plan: Plan
    data: object
    options: BuildOptions
    many: Many
    splits: Splits | None

    @cached_property
    def board(self) -> Board:
        """The notes of the plan."""
        return Board(self.target.store, self.plan.id, self.plan.version, self.many.lease_seconds)

    @cached_property
    def payload(self) -> bytes:
        """The job, to be sent to workers of the user's; the options of its store go with it.

        Raises:
            TypeError: something in the data cannot be sent; says what.
        """
        plain = replace(
            self.options,
            differing=None,
            before_publishing=None,
            lineage=None,
            progress=False,
            info={},
            publishing=nullcontext,
            num_workers=0,
        )
        sent = replace(self, options=plain, many=replace(self.many, executor=None), splits=None)
        with sent_with_options():
            try:
                return _dumped(sent)
            except Exception as error:
                raise TypeError(
                    f"{_culprit(self.data)} cannot be sent to workers: {error}. Make it in the worker: pass "
                    "a function of a module that returns the dataset, in place of the dataset"
                ) from error

    def opened(self) -> BuildJob:
        """The job with its source.

        Raises:
            ValueError: the source gives other rows than those that the plan was made of.
        """
        source, _ = prepared(self.data, self.target, self.options)
        splits = building.splits_of(source)
        row = splits.differing(self.plan.looks, self.plan.schema)
        if row is not None:
            raise ValueError(
                f"row {row} of {source.name} is another one for {here()} than for {self.plan.host}, which "
                f"made the plan of {self.target}; give all builders the same data"
            )
        return replace(self, splits=splits)

    # -- a part

    def build(self, part: int, is_taken: bool = True) -> float:
        """Builds a part, in place of another builder if it `is_taken`, and notes that it is done.

        Returns:
            Seconds that it took; 0.0 if another builder was faster, whose files then count.

        Raises:
            Exception: whatever reading or writing raised, which is noted, too.
        """
        assert self.splits is not None, "opened"
        plan, board, attempt = self.plan, self.board, secrets.token_hex(8)
        assert plan.schema is not None, "a plan with parts has a schema"
        if not board.begin(plan, part, attempt, is_taken):
            return 0.0
        start, stop = plan.bounds[part], plan.bounds[part + 1]
        slice = self.splits.slice(start, stop, plan.schema)
        staging = self.target.store.scratch(attempt)
        try:
            with board.working(plan, part, attempt, lambda: start + slice.number if plan.of_rows else None):
                note = self._written(slice, staging, start if plan.of_rows else 0)
                if board.is_current(plan) and board.note(plan, part, note):
                    return note.seconds
                self.target.store.delete(plan.id, plan.version, [file.name for file in note.files])
                return 0.0
        finally:
            with suppress(OSError, YogaError):
                staging.clear()

    def _written(self, slice: Slice, staging: Staging, first: int) -> PartNote:
        """Writes the rows of a part into files where the version will be; its first row has this number."""
        plan, began = self.plan, time.monotonic()
        assert plan.schema is not None, "a plan with parts has a schema"
        plain = replace(
            self.options, schema=plan.schema, progress=False, max_rows=None, differing=None, encode=None
        )
        made = written(slice, staging, plain, first)
        if made.files and made.schema != plan.schema:
            held = made.schema.exact if made.schema is not None else "no columns"
            raise SchemaError(
                f"the plan of {self.target} says\n{plan.schema.exact}\n"
                f"but the part holds\n{held}\nPass schema= to say what all rows look like"
            )
        Reader(str(staging.path), plan.schema, made.files).open_all()
        return PartNote(
            files=tuple(self.target.store.place(staging, plan.id, plan.version, made.files)),
            seconds=round(time.monotonic() - began, 3),
            found=slice.found if isinstance(slice, RowSource) else {},
            stats={} if made.stats is None else made.stats.to_json(),
        )

    # -- the version

    def publish(self) -> VersionRef | None:
        """Publishes the version when all parts are done, and opens it. Any number of builders may do so.

        Returns:
            The version; None if a part is not done, or its files are gone, since it is built again.

        Raises:
            ExistsError: another version has been published there since the plan was made.
            ValueError: there are more than `max_rows` rows.
        """
        manifest = self._published()
        if manifest is None:
            try:
                manifest = self._committed()
            except ExistsError:
                manifest = self._published()  # as when the reply to our own commit was lost
                if manifest is None:
                    raise
        return None if manifest is None else ref_of(self.target.store, manifest)

    def _published(self) -> Manifest | None:
        """The version that has come of the plan; None if there is none."""
        there = self.target.store.find(self.plan.id, self.plan.version)
        return there if there is not None and there.build == self.plan.token else None

    def _committed(self) -> Manifest | None:
        store, plan, board, target = self.target.store, self.plan, self.board, self.target
        notes = [note for note in board.read_all(plan, range(plan.num_parts)) if note is not None]
        if len(notes) < plan.num_parts:
            return self._published()  # another builder takes the notes away once it has published
        manifest = _manifest(plan, notes)
        self.options.refuse_more_rows(str(plan.signature[0]), manifest.num_rows)
        with store.lock(plan.id, plan.version, self.many.timeout):
            there = store.find(plan.id, plan.version)
            if there is not None and there.build == plan.token:
                return there
            if not board.is_current(plan):
                raise ExistsError(
                    f"the plan of {target} in {store.name} is gone: another builder has published it, or "
                    "`clean` has removed it; fetch it, or call again"
                )
            if there is not None and plan.replaces is None:
                board.clear()  # it can never be published
                raise ExistsError(
                    f"{target} was published in {store.name} by another builder meanwhile; fetch that"
                )
            gone = store.missing(manifest)
            if gone:
                where = store.where(plan.id, plan.version)
                log.warning("%s: files of parts are gone; building them again", where)
                names = [{file.name for file in note.files} for note in notes]
                board.forget(plan, [part for part, own in enumerate(names) if gone & own])
                return None
            with self.options.publishing(manifest) as grown:
                store.commit(grown, plan.replaces)
            board.clear()
        return grown


def _manifest(plan: Plan, notes: Sequence[PartNote]) -> Manifest:
    """The manifest of a version, of which these notes name the parts."""
    files, name = tuple(file for note in notes for file in note.files), f"{plan.id!r} {plan.version!r}"
    seconds = round(sum(note.seconds for note in notes), 3)  # of all builders
    extra = {name: value for note in notes for name, value in note.found.items()}
    return Manifest(
        id=plan.id,
        version=plan.version,
        build=plan.token,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        schema=plan.schema,
        fingerprint=fingerprint_of(plan.schema, files),
        files=Listed(files),
        info=info_with(plan.info, extra, name),
        function=plan.function,
        lineage={**plan.lineage, "seconds": seconds} if plan.lineage else {},
        stats=merged([(note.stats, note.rows) for note in notes], plan.schema, name),
    )


def _dumped(value: object) -> bytes:
    try:
        from cloudpickle import dumps
    except ImportError:  # engines bring it along; without one, functions must have a name in a module
        from pickle import dumps
    pickled: bytes = dumps(value)
    return pickled


def _culprit(data: object) -> str:
    """The attribute of a dataset that cannot be sent, for messages."""
    name = type(data).__name__
    for key, value in getattr(data, "__dict__", {}).items():
        try:
            _dumped(value)
        except Exception:
            return f"{name}.{key}, a {type(value).__name__},"
    return f"a {name}"


def run_part(payload: bytes, part: int) -> tuple[float, str]:
    """Builds a part, in whatever process, thread or machine calls this.

    Returns:
        How many seconds that took, 0.0 if others were faster; and the process.
    """
    key = blake2b(payload, digest_size=16).digest()
    last = getattr(_HERE, "last", None)
    if last is None or last[0] != key:
        # Sent by the user's own program to the user's own workers; no file holds it.
        job, attempt = pickle.loads(payload), secrets.token_hex(8)
        job.board.begin(job.plan, part, attempt, is_taken=True)
        with job.board.working(job.plan, part, attempt):  # to open a dataset may take long
            _HERE.last = last = key, job.opened()
    return last[1].build(part), here()


def submitted_by(many: Many | None, data: object, target: Target, options: BuildOptions) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes; in parts, if many build it. Else hold its lock.

    Args:
        many: who builds; None for this process.
        data: gives the rows; to many, to be read from anywhere.
        target: where the version is to be published.
        options: how to build.

    Raises:
        TypeError: rows can only be read from the beginning, or cannot be sent to workers.
        ValueError: there are more than `max_rows` rows.
        ExistsError: another version is published there.
        Exception: as `submitted`, and as a part fails.
    """
    if many is None:
        return submitted(data, target, options)
    store, id, version = target.store, target.id, target.version
    source, options = prepared(data, target, options)
    splits = building.splits_of(source)
    is_joined = many.executor is None and target.replaces is None
    if is_joined:
        with suppress(NotFoundError):
            return _the_same(fetched(store, id, version), splits)
    is_quiet = many.executor is None and options.progress is None and os.environ.get("RANK", "0") != "0"
    with Board(store, id, version, many.lease_seconds).present():
        for _ in range(_PUBLICATIONS):
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
        blocks = {number: block_of([ref[number]], ref.schema) for number in sorted(numbers)}
        there = [(number, building.digest_of(block)) for number, block in blocks.items()]
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
            if unseen := [part for part in left if len(built[part]) >= _UNSEEN]:
                if not job.board.is_current(plan):  # another builder has published, which removes all notes
                    return
                raise YogaError(
                    f"{plan.named(unseen[0])} was built {_UNSEEN} times, last by {built[unseen[0]][-1]}, but "
                    f"{here()} sees no note of it in {job.board.place}: do all machines see the same files "
                    "there? Use a directory that they share, or a store behind a URL"
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
