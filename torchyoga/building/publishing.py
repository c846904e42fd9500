"""A part of a plan -> its files and a note that it is done; the notes of all parts -> one manifest."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from ..errors import ExistsError, SchemaError, YogaError
from ..reading.counting import merged
from ..reading.reader import Reader
from ..rows.types import Json
from ..stores.contract import Versions
from ..versions.checks import fingerprint_of
from ..versions.lineage import MOST_BUILDERS
from ..versions.manifest import Manifest
from .board import Board, PartNote, here
from .build import BuildOptions, info_with, written
from .plan import Plan, Splits
from .sources import RowSource

_log = logging.getLogger("torchyoga")


def publish(
    store: Versions, board: Board, plan: Plan, timeout: float, options: BuildOptions
) -> Manifest | None:
    """Publishes a version whose parts are all done. Any number of builders may do so: they write the same.

    Args:
        store: where to publish it.
        board: the notes of the plan.
        plan: says which parts there are.
        timeout: seconds to wait for others that publish it.
        options: how to build; more than its `max_rows` are an error.

    Returns:
        The manifest; None if a part is not done, or its files are gone: it is built again.

    Raises:
        ExistsError: another version has been published there since the plan was made.
        ValueError: there are more than `max_rows` rows.
    """
    published = _published(store, plan)
    if published is not None:
        return published
    notes = [note for note in board.read_all(plan, range(plan.num_parts)) if note is not None]
    if len(notes) < plan.num_parts:
        return None
    manifest = _manifest(plan, notes)
    options.refuse_more_rows(str(plan.signature[0]), manifest.num_rows)
    try:
        with store.lock(plan.id, plan.version, timeout):
            there = store.find(plan.id, plan.version)
            if there is not None and there.build == plan.token:
                return there
            if not board.is_current(plan):
                raise ExistsError(
                    f"the plan of {plan.id!r} {plan.version!r} in {store.name} is gone: another builder has "
                    "published it, or `clean` has removed it; fetch it, or call again"
                )
            if there is not None and plan.replaces is None:
                board.clear()  # it can never be published
                raise ExistsError(
                    f"{plan.id!r} {plan.version!r} was published in {store.name} by another builder "
                    "meanwhile; fetch that"
                )
            gone = store.missing(manifest)
            if gone:
                where = store.where(plan.id, plan.version)
                _log.warning("%s: files of parts are gone; building them again", where)
                names = [{file.name for file in note.files} for note in notes]
                board.forget(plan, [part for part, own in enumerate(names) if gone & own])
                return None
            with options.publishing(manifest) as grown:
                store.commit(grown, plan.replaces)
            board.clear()
    except ExistsError:
        published = _published(store, plan)  # as when the reply to our own commit was lost
        if published is None:
            raise
        return published
    return grown


def _published(store: Versions, plan: Plan) -> Manifest | None:
    """The version that has come of the plan; None if there is none."""
    there = store.find(plan.id, plan.version)
    return there if there is not None and there.build == plan.token else None


def _manifest(plan: Plan, notes: list[PartNote]) -> Manifest:
    files, name = tuple(file for note in notes for file in note.files), f"{plan.id!r} {plan.version!r}"
    extra = {name: value for note in notes for name, value in note.found.items()}
    return Manifest(
        id=plan.id,
        version=plan.version,
        build=plan.token,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        schema=plan.schema,
        fingerprint=fingerprint_of(plan.schema, files),
        files=files,
        info=info_with(plan.info, extra, name),
        function=plan.function,
        lineage=_lineage(plan, notes),
        stats=merged([(note.stats, note.rows) for note in notes], plan.schema, name),
    )


def _lineage(plan: Plan, notes: list[PartNote]) -> Json:
    """The lineage of the plan, with all builders and their seconds."""
    if not plan.lineage:
        return {}
    builders: dict[str, list[float]] = {}
    for note in notes:
        sums = builders.setdefault(note.host, [0, 0, 0.0])
        sums[:] = sums[0] + 1, sums[1] + note.rows, round(sums[2] + note.seconds, 3)
    return {
        **plan.lineage,
        "seconds": round(sum(note.seconds for note in notes), 3),
        "builders": [[host, *sums] for host, sums in sorted(builders.items())[:MOST_BUILDERS]],
    }


def check_same(plan: Plan, splits: Splits) -> None:
    """Raises ValueError if the rows here are not those that the plan was made of."""
    row = None if plan.schema is None else splits.differing(plan.looks, plan.schema)
    if row is not None:
        raise ValueError(
            f"row {row} of {splits.source.name} is another one for {here()} than for {plan.host}, "
            f"which made the plan of {plan.id!r} {plan.version!r}; give all builders the same data"
        )


def build_part(
    store: Versions, board: Board, plan: Plan, part: int, splits: Splits, options: BuildOptions, attempt: str
) -> PartNote | None:
    """Builds a part, puts its files where the version will be, and notes that it is done.

    Args:
        store: where the version is to be published.
        board: the notes of the plan.
        plan: says where the part begins and ends.
        part: its number.
        splits: the source that all parts are read from.
        options: how to build.
        attempt: a token for this attempt.

    Returns:
        The note; None if another builder had noted the part before, whose files then count.

    Raises:
        Exception: whatever reading or writing raised, which is noted, too.
    """
    assert plan.schema is not None, "a plan with parts has a schema"
    start, stop = plan.bounds[part], plan.bounds[part + 1]
    slice = splits.slice(start, stop, plan.schema)
    began = time.monotonic()
    staging = store.scratch(attempt)
    try:
        with board.working(plan, part, attempt, lambda: start + slice.number if plan.of_rows else None):
            plain = replace(
                options, schema=plan.schema, progress=False, max_rows=None, differing=None, encode=None
            )
            made = written(slice, staging, plain, start if plan.of_rows else 0)
            if made.files and made.schema != plan.schema:
                held = made.schema.exact if made.schema is not None else "no columns"
                raise SchemaError(
                    f"the plan of {plan.id!r} {plan.version!r} says\n{plan.schema.exact}\n"
                    f"but the part holds\n{held}\nPass schema= to say what all rows look like"
                )
            Reader(str(staging.path), plan.schema, made.files).open_all()
            entries = store.place(staging, plan.id, plan.version, made.files)
            note = PartNote(
                files=tuple(entries),
                seconds=round(time.monotonic() - began, 3),
                host=here(),
                found=slice.found if isinstance(slice, RowSource) else {},
                stats={} if made.stats is None else made.stats.to_json(),
            )
            if not board.is_current(plan) or not board.note(plan, part, note):
                store.displace(plan.id, plan.version, entries)
                return None
            return note
    finally:
        with suppress(OSError, YogaError):
            staging.clear()
