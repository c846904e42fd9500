"""The contract of builds by many: a plan that all agree on, parts that anyone builds, one who publishes.

Builders take the plan that is there, or make a new one. With engines without futures, each worker runs
`part.build()`, wherever it likes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import secrets
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b

from ..building.board import Board, here
from ..building.build import BuildOptions
from ..building.plan import MOST_PARTS, Plan, Splits, splits_of
from ..building.publishing import build_part, check_same, publish
from ..building.sources import RowSource, SeekableBlocks
from ..errors import BusyError, ExistsError, SchemaError
from ..process.control_group import usable_cpus
from ..process.lazy import cached_property
from ..reading.version_ref import VersionRef
from ..stores.contract import Seen, Versions
from ..stores.objects import sent_with_options
from ..stores.refs import ref_of
from .pools import Pools
from .submission import prepared, warn_of_random_rows

_log = logging.getLogger("torchyoga")
_PART_BYTES, _PART_SECONDS = 256 * 2**20, 30.0
_PARTS_EACH = 4  # for a worker, at least: so none waits long for the last one
_LOOKS = 8  # rows that each builder compares
_TRIES = 5


@dataclass(frozen=True)
class Many:
    """Who builds.

    Attributes:
        executor: an executor, or a function that makes one; None for all who call.
        lease_seconds: a builder that gives no sign of life for this long counts as dead.
        timeout: seconds to wait for others.

    Raises:
        TypeError: `executor` is neither.
    """

    executor: object | None
    lease_seconds: float
    timeout: float

    def __post_init__(self) -> None:
        if self.executor is not None:
            Pools(self.executor)  # says what is wrong

    @property
    def workers(self) -> int:
        """How many work at once, as far as that is known."""
        if self.executor is not None:
            known = getattr(self.executor, "_max_workers", None)
            return known if isinstance(known, int) and known > 0 else usable_cpus()
        names = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_ARRAY_TASK_COUNT")
        texts = [os.environ.get(name, "") for name in names]
        return max([usable_cpus(), *(int(text) for text in texts if text.isdecimal())])


def agreed_job(
    data: object,
    store: Versions,
    id: str,
    version: str,
    splits: Splits,
    options: BuildOptions,
    many: Many,
    parts: int | None = None,
    replaces: Seen | None = None,
) -> BuildJob:
    """A build by a plan that others have made, or that an interrupted build has left, or by a new one.

    Args:
        data: what the rows are read from.
        store: where the version is to be published.
        id: which dataset.
        version: which version of it.
        splits: the source of these rows.
        options: how to build.
        many: who builds.
        parts: how many parts there are to be; None to choose.
        replaces: the version that may be replaced.

    Raises:
        BusyError: others build the version from other data, or with other options.
        ExistsError: others have published it since the caller looked, and it may not be replaced.
        ValueError: there are more than `max_rows` rows.
        SchemaError: rows do not fit each other, or there are none to show a schema.
        CorruptError: the plan that is there is damaged.
    """
    if splits.of_rows:
        options.refuse_more_rows(splits.source.name, splits.count)
    store.check_place(id, version)
    board = Board(store, id, version, many.lease_seconds)
    wanted = Plan(
        token=secrets.token_hex(8),
        id=id,
        version=version,
        signature=_signature(splits, options),
        schema=None,
        bounds=(0, splits.count),
        of_rows=splits.of_rows,
        host=here(),
        info=options.info,
        function=options.function,
        replaces=replaces,
    )

    def refuse_if_published() -> None:
        if replaces is None and store.find(id, version) is not None:
            board.clear()  # it can never be published
            raise ExistsError(
                f"{id!r} {version!r} was published in {store.name} by another builder meanwhile; fetch that"
            )

    def make() -> Plan:
        refuse_if_published()  # before rows are read
        return _whole(wanted, splits, options, many.workers, parts)

    for _ in range(_TRIES):
        plan = board.agreed(make, many.timeout)
        refuse_if_published()
        reason = None if plan.token == wanted.token else _differs(plan, wanted, splits, options)
        if reason is None:
            return BuildJob(store, plan, data, options, many, splits)
        if board.look(plan).alive:
            raise BusyError(
                f"{plan.host} and others build {id!r} {version!r} otherwise: {reason}. Give "
                "all builders the same data and options, or wait until those have ended"
            )
        _log.warning(
            "%r %r: starting over, the interrupted build cannot be continued: %s", id, version, reason
        )
        board.clear()
    raise BusyError(
        f"others build {id!r} {version!r} otherwise, again and again; give all builders the "
        "same data and options"
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


def _whole(wanted: Plan, splits: Splits, options: BuildOptions, workers: int, parts: int | None) -> Plan:
    """The plan that is wanted, with what some rows show, and parts."""
    schema, nbytes, seconds = splits.learned(options.schema)
    if schema is None and splits.count:
        raise SchemaError(
            f"the first inputs of {splits.source.name} have no rows, so it is unknown what rows look like; "
            "pass schema="
        )
    looks: list[tuple[int, str]] = []
    if schema is not None and splits.of_rows and splits.count:
        numbers = sorted({(splits.count - 1) * i // (_LOOKS - 1) for i in range(_LOOKS)})
        first, again = (splits.digests(numbers, schema, others) for others in (False, True))
        if first == again:
            looks = list(zip(numbers, first, strict=True))
        else:
            warn_of_random_rows(splits.source.name, wanted.id, wanted.version)
    count = splits.count
    if parts is None and splits.of_rows:
        by_size = max(nbytes * count / _PART_BYTES, seconds * count / _PART_SECONDS)
        parts = max(_PARTS_EACH * workers, math.ceil(by_size))
    parts = max(1, min(parts or count, count, MOST_PARTS))
    return replace(
        wanted,
        schema=schema,
        bounds=tuple(sorted({count * part // parts for part in range(parts + 1)})),
        looks=tuple(looks),
        lineage=options.lineage(0.0) if options.lineage is not None else {},
    )


def _differs(plan: Plan, wanted: Plan, splits: Splits, options: BuildOptions) -> str | None:
    """Why a plan is not for what is wanted; None if it is."""
    if plan.signature != wanted.signature or plan.bounds[-1] != splits.count:
        return "its source, code or options are others"
    difference = options.difference_from(plan.function)
    if difference is not None:
        return difference
    if plan.replaces != wanted.replaces:
        return "another version is to be replaced"
    row = None if plan.schema is None else splits.differing(plan.looks, plan.schema)
    return None if row is None else f"row {row} of the source is another one here ({here()}) than there"


_HERE = threading.local()  # the last job of each thread, since datasets are not for several at once


@dataclass(frozen=True)
class BuildJob:
    """A build by many: all that anybody needs to take part in it.

    Attributes:
        store: where the version is to be published.
        plan: the plan; `data`: what the rows are read from; `options`: how to build.
        many: who builds.
        splits: the source; None while the job is sent to a worker.
    """

    store: Versions
    plan: Plan
    data: object
    options: BuildOptions
    many: Many
    splits: Splits | None

    @cached_property
    def board(self) -> Board:
        """The notes of the plan."""
        return Board(self.store, self.plan.id, self.plan.version, self.many.lease_seconds)

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
        """The job with its source, which must give the rows that the plan was made of."""
        source, _ = prepared(self.data, self.plan.id, self.plan.version, self.options)
        splits = splits_of(source)
        check_same(self.plan, splits)
        return replace(self, splits=splits)

    def build(self, part: int, is_taken: bool = True) -> float:
        """Builds a part, in place of another builder if it `is_taken`.

        Returns:
            Seconds that it took; 0.0 if another builder was faster.

        Raises:
            Exception: whatever reading or writing raised.
        """
        assert self.splits is not None, "opened"
        attempt = secrets.token_hex(8)
        if not self.board.begin(self.plan, part, attempt, is_taken):
            return 0.0
        note = build_part(self.store, self.board, self.plan, part, self.splits, self.options, attempt)
        return 0.0 if note is None else note.seconds

    def publish(self) -> VersionRef | None:
        """Publishes the version when all parts are done, and opens it; None if some must be built again.

        Raises:
            ExistsError: another version is published there.
            ValueError: there are more than `max_rows` rows.
        """
        manifest = publish(self.store, self.board, self.plan, self.many.timeout, self.options)
        return None if manifest is None else ref_of(self.store, manifest)


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
    """Builds a part, in whatever process, thread or machine calls this; what engines call.

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


@dataclass(frozen=True)
class Part:
    """A part of a build, to be sent to a worker; it pickles with all that the worker needs.

    Attributes:
        number: which part.
        rows: the numbers of its first row and of the row behind its last; of inputs, with `yoga.flat_map`.
    """

    number: int
    rows: tuple[int, int]
    _payload: bytes

    def build(self) -> float:
        """Builds the part, in whatever process this is called, and notes that it is done.

        It may be called again, and by several at once: the first that is done counts.

        Returns:
            Seconds that it took; 0.0 if another was faster.

        Raises:
            SchemaError: a row does not fit.
            Exception: whatever reading and writing raises.
        """
        seconds, _ = run_part(self._payload, self.number)
        return seconds

    def __repr__(self) -> str:
        return f"<Part {self.number}: {self.rows[0]} to {self.rows[1]}>"


class PlannedBuild:
    """The result of `Storage.plan`: parts to be built by any engine, and then published.

    Attributes:
        parts: all parts.
    """

    def __init__(self, job: BuildJob) -> None:
        self._job = job
        self._name = f"{job.plan.id!r} {job.plan.version!r}"
        bounds = job.plan.bounds
        self.parts: Sequence[Part] = tuple(
            Part(number, (bounds[number], bounds[number + 1]), job.payload)
            for number in range(job.plan.num_parts)
        )

    @property
    def missing(self) -> list[Part]:
        """The parts that are not done yet."""
        done = self._job.board.look(self._job.plan).done
        return [part for part in self.parts if part.number not in done]

    def publish(self) -> VersionRef:
        """Publishes the version; any number of processes may do so.

        Raises:
            BusyError: parts are not done; names them.
            ExistsError: another version is published there.
        """
        left = [part.number for part in self.missing]
        ref = self._job.publish()
        if ref is not None:
            return ref
        if left:
            more = "" if len(left) <= 10 else f" and {len(left) - 10} more"
            raise BusyError(
                f"parts {left[:10]}{more} of {self._name} are not done; build them, and publish then"
            )
        raise BusyError(f"files of parts of {self._name} are gone; build what `missing` names")

    def __repr__(self) -> str:
        return f"<PlannedBuild {self._name}: {len(self.parts)} parts>"


def planned_build(
    data: object,
    store: Versions,
    id: str,
    version: str,
    options: BuildOptions,
    many: Many,
    parts: int | None,
    replaces: Seen | None,
) -> PlannedBuild:
    """Plans a version, as `Storage.plan` describes it."""
    source, options = prepared(data, id, version, options)
    splits = splits_of(source)
    if not splits.count:
        raise SchemaError(f"{source.name} has no rows, so there is nothing to plan; submit it")
    job = agreed_job(data, store, id, version, splits, options, many, parts, replaces)
    return PlannedBuild(job)
