"""The notes of all parts -> one manifest."""

from __future__ import annotations

import logging
import time

from ...errors import ExistsError
from ...rows.types import Json
from ...stores.contract import Versions
from ...versions.info import plain
from ...versions.lineage import MOST_BUILDERS
from ...versions.manifest import Manifest, fingerprint_of
from ..statistics import merged
from .board import Board
from .note import PartNote
from .plan import Plan

__all__ = ["publish"]

_log = logging.getLogger("torchyoga")


def publish(store: Versions, board: Board, plan: Plan, timeout: float) -> tuple[Manifest, bool] | None:
    """Publishes a version whose parts are all done. Any number of builders may do so: they write the same.

    Args:
        store: where to publish it.
        board: the notes of the plan.
        plan: says which parts there are.
        timeout: seconds to wait for others that publish it.

    Returns:
        The manifest, and True if rows were others when they were read again; None if a part is not done, or
        its files are gone: it is built again.

    Raises:
        ExistsError: another version has been published there since the plan was made.
    """
    found = store.find(plan.id, plan.version)
    if found is not None and found.build == plan.token:
        return found, False
    notes = board.read_all(plan, range(plan.num_parts))
    whole = [note for note in notes if note is not None]
    if len(whole) < plan.num_parts:
        return None
    files = tuple(file for note in whole for file in note.files)
    manifest = Manifest(
        id=plan.id,
        version=plan.version,
        build=plan.token,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        schema=plan.schema,
        fingerprint=fingerprint_of(plan.schema, files),
        files=files,
        info=_info(plan, whole),
        function=plan.function,
        lineage=_lineage(plan, whole),
        stats=_stats(plan, whole),
    )
    with store.lock(plan.id, plan.version, timeout):
        found = store.find(plan.id, plan.version)
        if found is not None and found.build == plan.token:
            return found, False
        if not board.is_current(plan):
            raise ExistsError(
                f"the plan of {plan.id!r} {plan.version!r} in {store.name} is gone: another builder has "
                "published it, or `clean` has removed it; fetch it, or call again"
            )
        if found is not None and plan.replaces is None:
            board.clear()  # it can never be published
            raise ExistsError(
                f"{plan.id!r} {plan.version!r} was published in {store.name} by another builder meanwhile; "
                "fetch that"
            )
        gone = store.missing(manifest)
        if gone:
            _log.warning(
                "%s: files of parts are gone; building them again", store.where(plan.id, plan.version)
            )
            board.forget(
                plan, [k for k, note in enumerate(whole) if gone & {file.name for file in note.files}]
            )
            return None
        store.commit(manifest, plan.replaces)
        board.clear()
    return manifest, any(note.is_random for note in whole)


def _lineage(plan: Plan, notes: list[PartNote]) -> Json:
    """The lineage of the plan, with all builders and their seconds."""
    if not plan.lineage:
        return {}
    builders: dict[str, list[float]] = {}
    for note in notes:
        sums = builders.setdefault(note.host, [0, 0, 0.0])
        sums[:] = sums[0] + 1, sums[1] + note.rows, round(sums[2] + note.seconds, 3)
    found = [[host, *sums] for host, sums in sorted(builders.items())[:MOST_BUILDERS]]
    return {
        **plan.lineage,
        "seconds": round(sum(note.seconds for note in notes), 3),
        "builders": found,
    }


def _stats(plan: Plan, notes: list[PartNote]) -> Json:
    """Statistics of all parts together; none if a note tells no sound ones."""
    if plan.schema is None or not any(note.stats for note in notes):
        return {}
    try:
        return merged([(note.stats, note.rows) for note in notes], plan.schema)
    except (ValueError, TypeError, KeyError) as error:
        _log.warning("%r %r has no statistics, those of a part are damaged: %s", plan.id, plan.version, error)
        return {}


def _info(plan: Plan, notes: list[PartNote]) -> dict[str, object]:
    """The info of the plan, and what the sources of the parts have found besides."""
    found: dict[str, object] = {}
    for note in notes:
        found |= note.found
    if not found:
        return plan.info
    try:
        return plain({**found, **plan.info})
    except ValueError as error:  # together they are too long
        _log.warning("%r %r: its info does not keep %s: %s", plan.id, plan.version, [*found], error)
        return plan.info
