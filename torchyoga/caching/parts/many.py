"""Data that a user passes -> a version of it, built by workers of an executor or by all who call."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace

from ...building.build import BuildOptions
from ...building.parts.board import Board
from ...building.parts.plan import Plan
from ...building.parts.publishing import publish
from ...building.parts.slices import Splits, splits_of
from ...errors import ExistsError, LostError, NotFoundError
from ...process.cpus import num_cpus
from ...reading.version_ref import VersionRef
from ...rows.collector import block_of
from ...stores.contract import Seen, Versions
from ...stores.refs import fetched, ref_of
from ..submission import prepared, submitted, warn_of_random_rows
from .driver import drive
from .helping import help_out
from .planning import Wanted, agreed_plan
from .pools import Pools
from .task import Job, payload_of

__all__ = ["Many", "published", "submitted_by_many"]

_TRIES = 10  # to publish, when files of parts are gone
_COMPARED = 3  # rows of a version that is there already


@dataclass(frozen=True)
class Many:
    """Who builds.

    Attributes:
        executor: an executor, or a function that makes one; None for all who call.
        lease_seconds: a builder that gives no sign of life for this long counts as dead.
        timeout: seconds to wait for others.
    """

    executor: object | None
    lease_seconds: float
    timeout: float

    def __post_init__(self) -> None:
        if self.executor is not None and not hasattr(self.executor, "submit") and not callable(self.executor):
            Pools(self.executor)  # says what is wrong


def submitted_by_many(
    data: object,
    store: Versions,
    id: str,
    version: str,
    options: BuildOptions,
    many: Many,
    num_workers: int = 0,
    replaces: Seen | None = None,
) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes, in parts.

    Args:
        data: gives the rows, to be read from anywhere.
        store: the version is published there, as `version` of `id`.
        id: which dataset.
        version: which version of it.
        options: how to build.
        many: who builds.
        num_workers: processes that read rows for each who calls.
        replaces: the version that may be replaced; None if none may.

    Raises:
        TypeError: rows can only be read from the beginning, or cannot be sent to workers.
        ValueError: there are more than `max_rows` rows.
        ExistsError: another version is published there.
        Exception: as `submitted`, and as a part fails.
    """
    source, options = prepared(data, id, version, options, num_workers)
    splits = splits_of(source)
    is_joined = many.executor is None and replaces is None
    if is_joined:
        with suppress(NotFoundError):
            return _the_same(fetched(store, id, version), splits, id, version)
    if options.max_rows is not None and splits.of_rows and splits.count > options.max_rows:
        raise ValueError(
            f"{source.name} has {splits.count} rows, more than max_rows={options.max_rows}; raise max_rows"
        )
    store.check_place(id, version)
    if not splits.count:
        return _empty(data, store, id, version, options, many, replaces)
    workers = _workers(many)
    board = Board(store, id, version, many.lease_seconds)
    plan = agreed_plan(board, Wanted(id, version, splits, options, workers, replaces=replaces))
    if is_joined and store.find(id, version) is not None:  # published since the first look
        board.clear()
        return _the_same(fetched(store, id, version), splits, id, version)
    for _ in range(_TRIES):
        if many.executor is None:
            quiet = options.progress is None and os.environ.get("RANK", "0") != "0"
            progress = False if quiet else options.progress
            help_out(store, board, plan, splits, options, many.timeout, progress)
        else:
            payload = payload_of(Job(store, plan, data, options, many.lease_seconds))
            drive(board, plan, payload, many.executor, options.progress, many.lease_seconds)
        try:
            found = published(store, board, plan, options, many.timeout, source.name)
        except ExistsError:
            if not is_joined:
                raise
            return _the_same(fetched(store, id, version), splits, id, version)
        if found is not None:
            return found
    raise LostError(
        f"files of parts of {id!r} {version!r} were removed from {store.name} each time they were built, by "
        "clean or by remove; call again when no process does that"
    )


def published(
    store: Versions, board: Board, plan: Plan, options: BuildOptions, timeout: float, name: str
) -> VersionRef | None:
    """Publishes a version whose parts are done, and opens it; None if some must be built again.

    Raises:
        ExistsError: another version is published there.
        ValueError: there are more than `max_rows` rows.
    """
    if options.max_rows is not None and not plan.of_rows:
        rows = sum(note.rows for note in board.read_all(plan, range(plan.num_parts)) if note is not None)
        if rows > options.max_rows:
            raise ValueError(f"{name} has {rows} rows, more than max_rows={options.max_rows}; raise max_rows")
    try:
        found = publish(store, board, plan, timeout)
    except ExistsError:
        now = store.find(plan.id, plan.version)
        if now is None or now.build != plan.token:
            raise
        return ref_of(store, now)  # another builder of this plan was faster
    if found is None:
        return None
    manifest, is_random = found
    if is_random:
        warn_of_random_rows(name, plan.id, plan.version)
    return ref_of(store, manifest)


def _workers(many: Many) -> int:
    """How many work at once, as far as that is known."""
    if many.executor is None:
        found = [
            os.environ.get(name, "") for name in ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_ARRAY_TASK_COUNT")
        ]
        return max([num_cpus(), *(int(text) for text in found if text.isdecimal())])
    known = getattr(many.executor, "_max_workers", None)
    return known if isinstance(known, int) and known > 0 else num_cpus()


def _the_same(ref: VersionRef, splits: Splits, id: str, version: str) -> VersionRef:
    """A version that is there already; ExistsError if it is not of these rows, as some show."""
    count = splits.count if splits.of_rows else len(ref)
    numbers = (
        sorted({len(ref) * i // _COMPARED for i in range(_COMPARED)}) if splits.of_rows and len(ref) else []
    )
    differs = f"has {len(ref)} rows, not {count}" if len(ref) != count else None
    if differs is None and ref.schema is not None:
        there = [Splits.digest(block_of([ref[number]], ref.schema)) for number in numbers]
        here, again = (splits.digests(numbers, ref.schema, others) for others in (False, True))
        for number, one, other, last in zip(numbers, there, here, again, strict=True):
            if other and other == last != one:
                differs = f"has another row {number}"
                break
        if not splits.of_rows and len(ref):
            found, other = splits.first(ref.schema), splits.first(ref.schema)
            if found and found == other != Splits.digest(block_of([ref[0]], ref.schema)):
                differs = "has another first row"
    if differs is not None:
        raise ExistsError(
            f"{id!r} {version!r} is published already, and {differs}; fetch it, or choose another version"
        )
    return ref


def _empty(
    data: object,
    store: Versions,
    id: str,
    version: str,
    options: BuildOptions,
    many: Many,
    replaces: Seen | None,
) -> VersionRef:
    """A version without rows, for which nobody is needed."""
    with store.lock(id, version, many.timeout):
        if replaces is None and store.find(id, version) is not None:
            return fetched(store, id, version)
        return submitted(data, store, id, version, replace(options, info=options.info), 0, replaces)
