"""Data that a user passes -> a version of it, built by workers of an executor or by all who call."""

from __future__ import annotations

import os
from contextlib import suppress

from ...building.build import BuildOptions
from ...building.parts.board import Board
from ...building.parts.slices import Splits, digest_of, splits_of
from ...errors import ExistsError, LostError, NotFoundError
from ...reading.version_ref import VersionRef
from ...rows.collector import block_of
from ...stores.contract import Seen, Versions
from ...stores.refs import fetched
from ..submission import prepared
from .driver import build_all
from .planned import BuildJob
from .planning import Many, agreed_plan

__all__ = ["Many", "submitted_by_many"]

_TRIES = 10  # to publish, when files of parts are gone
_COMPARED = 3  # rows of a version that is there already


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
            return _the_same(fetched(store, id, version), splits)
    is_quiet = many.executor is None and options.progress is None and os.environ.get("RANK", "0") != "0"
    board = Board(store, id, version, many.lease_seconds)
    with board.present():
        for _ in range(_TRIES):
            try:
                # Another one if that was removed.
                plan = agreed_plan(store, id, version, splits, options, many, None, replaces)
                job = BuildJob(store, plan, data, options, many, splits)
                build_all(job, False if is_quiet else options.progress)
                ref = job.publish()
            except ExistsError:
                if not is_joined:
                    raise
                return _the_same(fetched(store, id, version), splits)
            if ref is not None:
                return ref
    raise LostError(
        f"files of parts of {id!r} {version!r} were removed from {store.name} each time they were built, by "
        "clean or by remove; call again when no process does that"
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
