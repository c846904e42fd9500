"""A source of rows -> the plan that all its builders follow: the one that is there, or a new one."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
from dataclasses import dataclass, replace

from ...building.build import BuildOptions
from ...building.parts.board import Board, here
from ...building.parts.plan import MOST_PARTS, Plan
from ...building.parts.slices import Splits
from ...building.sources import RowSource, SeekableBlocks
from ...errors import BusyError, ExistsError, SchemaError
from ...process.control_group import num_cpus
from ...stores.contract import Seen, Versions
from .pools import Pools

__all__ = ["Many", "agreed_plan"]

_log = logging.getLogger("torchyoga")
_PART_BYTES, _PART_SECONDS = 256 * 2**20, 30.0
_PARTS_EACH = 4  # for a worker, at least: so none waits long for the last one
_LOOKS = 4  # rows that each builder compares
_COMPARED = 8  # parts of an interrupted build
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
            return known if isinstance(known, int) and known > 0 else num_cpus()
        names = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_ARRAY_TASK_COUNT")
        texts = [os.environ.get(name, "") for name in names]
        return max([num_cpus(), *(int(text) for text in texts if text.isdecimal())])


def agreed_plan(
    store: Versions,
    id: str,
    version: str,
    splits: Splits,
    options: BuildOptions,
    many: Many,
    parts: int | None = None,
    replaces: Seen | None = None,
) -> Plan:
    """The plan of a build: one that others have made, or that an interrupted build has left, or a new one.

    Args:
        store: where the version is to be published.
        id: which dataset.
        version: which version of it.
        splits: the source.
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
        reason = None if plan.token == wanted.token else _differs(board, plan, wanted, splits, options)
        if reason is None:
            return plan
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
        looks = list(zip(numbers, first, strict=True)) if first == again else []
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


def _differs(board: Board, plan: Plan, wanted: Plan, splits: Splits, options: BuildOptions) -> str | None:
    """Why a plan is not for what is wanted; None if it is."""
    if plan.signature != wanted.signature or plan.bounds[-1] != splits.count:
        return "its source, code or options are others"
    difference = options.difference_from(plan.function)
    if difference is not None:
        return difference
    if plan.replaces != wanted.replaces:
        return "another version is to be replaced"
    looks = [*plan.looks]
    if looks:
        parts = sorted(board.look(plan).done)
        parts = parts[:: max(1, len(parts) // _COMPARED)]
        for part, note in zip(parts, board.read_all(plan, parts), strict=True):
            if note is not None and not note.is_random and len(note.ends) == 2:
                looks += [(plan.bounds[part], note.ends[0]), (plan.bounds[part + 1] - 1, note.ends[1])]
    row = None if plan.schema is None else splits.differing(looks, plan.schema)
    return None if row is None else f"row {row} of the source is another one here ({here()}) than there"
