"""A part of a plan -> files in the store, and the note that it is done."""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from dataclasses import replace

from ...errors import SchemaError, YogaError
from ...reading.reader import Reader
from ...stores.contract import Versions
from ..build import BuildOptions, Written, written
from ..sources import RowSource
from .board import Board, here
from .note import Failure, PartNote
from .plan import Plan
from .slices import Slice, Splits

__all__ = ["build_part", "check_same"]


def check_same(plan: Plan, splits: Splits) -> None:
    """Raises ValueError if the rows here are not those that the plan was made of."""
    if plan.schema is None or not plan.looks:
        return
    numbers = [number for number, _ in plan.looks]
    found = splits.digests(numbers, plan.schema)
    for (number, digest), here_now in zip(plan.looks, found, strict=True):
        if digest and here_now != digest:
            raise ValueError(
                f"row {number} of {splits.source.name} is another one for {here()} than for {plan.host}, "
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
    assert isinstance(slice, Slice)
    began = time.monotonic()
    staging = store.scratch(attempt)
    try:
        with board.working(plan, part, attempt):
            plain = replace(
                options, schema=plan.schema, progress=False, max_rows=None, differing=None, encode=None
            )
            found = written(slice, staging, plain, start if plan.of_rows else 0)
            _check_schema(plan, found)
            Reader(str(staging.path), plan.schema, found.files).open_all()
            is_random = _is_random(plan, splits, start, slice)
            entries = store.place(staging, plan.id, plan.version, found.files)
            note = PartNote(
                plan=plan.token,
                attempt=found.token,
                rows=sum(file.rows for file in entries),
                files=tuple(entries),
                ends=tuple(slice.ends),
                seconds=round(time.monotonic() - began, 3),
                host=here(),
                is_random=is_random,
                stats=found.stats,
                found=slice.found if isinstance(slice, RowSource) else {},
            )
            if not board.is_current(plan) or not board.note(plan, part, note):
                store.displace(plan.id, plan.version, entries)
                return None
            return note
    except Exception as error:
        row = start + slice.number if plan.of_rows else None
        failure = Failure(
            part=part,
            kind=type(error).__name__,
            text=str(error),
            host=here(),
            row=row,
            is_final=isinstance(error, SchemaError),
            trace="".join(traceback.format_exception(error)),
        )
        with suppress(OSError, YogaError):  # the error itself says more
            board.fail(plan, attempt, failure)
        board.give_up(plan, part)
        raise
    except BaseException:  # as by Ctrl-C
        board.give_up(plan, part)
        raise
    finally:
        with suppress(OSError, YogaError):
            staging.clear()


def _check_schema(plan: Plan, found: Written) -> None:
    if found.files and found.schema != plan.schema:
        raise SchemaError(
            f"the plan of {plan.id!r} {plan.version!r} says\n{plan.schema}\n"
            f"but the part holds\n{found.schema}\nPass schema= to say what all rows look like"
        )


def _is_random(plan: Plan, splits: Splits, start: int, slice: Slice) -> bool:
    """True if the first row of a part is another one when it is read again."""
    if not plan.of_rows or not slice.ends or plan.schema is None:
        return False
    try:
        (again,) = splits.digests([start], plan.schema)
    except Exception:  # of a source that gives each row once
        return False
    return again not in ("", slice.ends[0])
