"""A source of rows -> the plan that all its builders follow: the one that is there, or a new one."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...building.build import BuildOptions
from ...building.parts.board import Board, here
from ...building.parts.plan import MOST_PARTS, Plan
from ...building.parts.slices import Splits
from ...building.sources import RowSource, SeekableBlocks
from ...errors import BusyError, SchemaError
from ...stores.contract import Seen

__all__ = ["Wanted", "agreed_plan"]

_log = logging.getLogger("torchyoga")
_PART_BYTES, _PART_SECONDS = 256 * 2**20, 30.0
_PARTS_EACH = 4  # for a worker, at least: so none waits long for the last one
_LOOKS, _FEW_LOOKS, _LOOKING = 16, 3, 2.0  # rows that each builder compares: fewer if they take that long
_COMPARED = 8  # parts of an interrupted build
_TRIES = 5


@dataclass(frozen=True)
class Wanted:
    """What a caller wants to be built.

    Attributes:
        id: which dataset; `version`: which version of it.
        splits: the source.
        options: how to build.
        workers: how many will work at once, as far as that is known.
        parts: how many parts there are to be; None to choose.
        replaces: the version that may be replaced.
    """

    id: str
    version: str
    splits: Splits
    options: BuildOptions
    workers: int
    parts: int | None = None
    replaces: Seen | None = None

    @property
    def signature(self) -> list[object]:
        """What all builders must have in common."""
        source, options = self.splits.source, self.options
        schema = options.schema.to_json() if options.schema else None
        found: list[object] = [source.name, self.splits.count, self.splits.of_rows]
        found += [options.format, options.compression, schema, options.function and options.function.code]
        found += [source.pin if isinstance(source, RowSource) else None]
        found += [source.fingerprint if isinstance(source, (RowSource, SeekableBlocks)) else None]
        return found


def agreed_plan(board: Board, wanted: Wanted) -> Plan:
    """The plan of a build: one that others have made, or that an interrupted build has left, or a new one.

    Raises:
        BusyError: others build the version from other data, or with other options.
        SchemaError: rows do not fit each other, or there are none to show a schema.
        CorruptError: the plan that is there is damaged.
    """
    for _ in range(_TRIES):
        found = board.plan()
        if found is None:
            found = board.agreed(_new(wanted))
        reason = _differs(board, found, wanted)
        if reason is None:
            return found
        if board.look(found).alive:
            raise BusyError(
                f"{found.host} and others build {wanted.id!r} {wanted.version!r} otherwise: {reason}. Give "
                "all builders the same data and options, or wait until those have ended"
            )
        _log.warning(
            "%r %r: starting over, the interrupted build cannot be continued: %s",
            wanted.id,
            wanted.version,
            reason,
        )
        board.clear()
    raise BusyError(
        f"others build {wanted.id!r} {wanted.version!r} otherwise, again and again; give all builders the "
        "same data and options"
    )


def _new(wanted: Wanted) -> Plan:
    splits, options = wanted.splits, wanted.options
    schema, nbytes, seconds = splits.learned(options.schema)
    if schema is None:
        raise SchemaError(
            f"the first inputs of {splits.source.name} have no rows, so it is unknown what rows look like; "
            "pass schema="
        )
    most = _LOOKS if _LOOKS * seconds < _LOOKING else _FEW_LOOKS
    numbers = sorted({splits.count * i // (most - 1) for i in range(most)})
    numbers = sorted({min(number, splits.count - 1) for number in numbers})
    looks: Sequence[tuple[int, str]] = ()
    if splits.of_rows:
        first, again = splits.digests(numbers, schema), splits.digests(numbers, schema, others=True)
        looks = tuple(zip(numbers, first, strict=True)) if first == again else ()
    return Plan(
        token=secrets.token_hex(8),
        id=wanted.id,
        version=wanted.version,
        signature=wanted.signature,
        schema=schema,
        bounds=_bounds(wanted, nbytes, seconds),
        of_rows=splits.of_rows,
        looks=tuple(looks),
        host=here(),
        info=options.info,
        function=options.function,
        lineage=options.lineage(0.0) if options.lineage is not None else {},
        replaces=wanted.replaces,
    )


def _bounds(wanted: Wanted, nbytes: float, seconds: float) -> tuple[int, ...]:
    """Where parts begin, and the last one ends."""
    count = wanted.splits.count
    if wanted.parts is not None:
        parts = wanted.parts
    elif wanted.splits.of_rows:
        by_size = max(nbytes * count / _PART_BYTES, seconds * count / _PART_SECONDS)
        parts = max(_PARTS_EACH * wanted.workers, math.ceil(by_size))
    else:
        parts = count
    parts = max(1, min(parts, count, MOST_PARTS))
    return tuple(np.unique(np.arange(parts + 1, dtype=object) * count // parts).astype(np.int64).tolist())


def _differs(board: Board, plan: Plan, wanted: Wanted) -> str | None:
    """Why a plan is not for what is wanted; None if it is."""
    if [*plan.signature] != _plain(wanted.signature) or plan.bounds[-1] != wanted.splits.count:
        return "its source, code or options are others"
    function = wanted.options.function
    if (plan.function is None) != (function is None):
        return "only one of them is made by a function whose arguments are known"
    if plan.function is not None and wanted.options.differing is not None:
        names = wanted.options.differing(plan.function)
        if names:
            return f"it is made with another {' and another '.join(names)}"
    if plan.replaces != wanted.replaces:
        return "another version is to be replaced"
    assert plan.schema is not None
    looks = [*plan.looks]
    if looks:
        parts = sorted(board.look(plan).done)
        parts = parts[:: max(1, len(parts) // _COMPARED)]
        for part, note in zip(parts, board.read_all(plan, parts), strict=True):
            if note is not None and not note.is_random and len(note.ends) == 2:
                looks += [(plan.bounds[part], note.ends[0]), (plan.bounds[part + 1] - 1, note.ends[1])]
    found = wanted.splits.digests([number for number, _ in looks], plan.schema)
    for (number, digest), now in zip(looks, found, strict=True):
        if digest and now and now != digest:
            return f"row {number} of the source is another one here ({here()}) than there"
    return None


def _plain(data: object) -> object:
    """Plain data as it comes back from JSON."""
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    if isinstance(data, dict):
        return {str(key): _plain(item) for key, item in data.items()}
    return data
