"""The contract of builds by many: a plan that all agree on, parts that anyone builds, one who publishes.

Of engines without futures, each runs `part.build()`, wherever it likes.
"""

from __future__ import annotations

import pickle
import secrets
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b

from ...building.build import BuildOptions
from ...building.parts.board import Board, here
from ...building.parts.plan import Plan
from ...building.parts.publishing import build_part, check_same, publish
from ...building.parts.slices import Splits, splits_of
from ...errors import BusyError, SchemaError
from ...process.lazy import cached_property
from ...reading.version_ref import VersionRef
from ...stores.contract import Seen, Versions
from ...stores.objects import sent_with_options
from ...stores.refs import ref_of
from ..submission import prepared, warn_of_random_rows
from .planning import Many, agreed_plan

__all__ = ["BuildJob", "Part", "PlannedBuild", "planned_build", "run_part"]

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
        done = publish(self.store, self.board, self.plan, self.many.timeout, self.options)
        if done is None:
            return None
        manifest, is_random = done
        if is_random:
            warn_of_random_rows(str(self.plan.signature[0]), self.plan.id, self.plan.version)
        return ref_of(self.store, manifest)


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
    plan = agreed_plan(store, id, version, splits, options, many, parts, replaces)
    return PlannedBuild(BuildJob(store, plan, data, options, many, splits))
