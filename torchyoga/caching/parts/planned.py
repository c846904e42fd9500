"""A build in parts for engines without futures: they run `part.build()`, wherever they like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...building.build import BuildOptions
from ...building.parts.board import Board
from ...building.parts.plan import Plan
from ...building.parts.slices import splits_of
from ...errors import BusyError, SchemaError
from ...process.cpus import num_cpus
from ...reading.version_ref import VersionRef
from ...stores.contract import Seen, Versions
from ..submission import prepared
from .many import Many, published
from .planning import Wanted, agreed_plan
from .task import Job, payload_of, run_part

__all__ = ["Part", "PlannedBuild", "planned_build"]


@dataclass(frozen=True)
class Part:
    """A part of a build, to be sent to a worker; it pickles with all that the worker needs.

    Attributes:
        number: which part.
        rows: the numbers of its first row and of the row behind its last; of inputs, with `yoga.shards`.
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
    """What `Storage.plan` returns: parts to be built by any engine, and then published.

    Attributes:
        parts: all parts.
    """

    def __init__(
        self, store: Versions, plan: Plan, board: Board, job: Job, options: BuildOptions, many: Many
    ) -> None:
        self._store, self._plan, self._board = store, plan, board
        self._options, self._many = options, many
        payload = payload_of(job)
        bounds = plan.bounds
        self.parts: Sequence[Part] = tuple(
            Part(number, (bounds[number], bounds[number + 1]), payload) for number in range(plan.num_parts)
        )

    @property
    def missing(self) -> list[Part]:
        """The parts that are not done yet."""
        done = self._board.look(self._plan).done
        return [part for part in self.parts if part.number not in done]

    def publish(self) -> VersionRef:
        """Publishes the version; any number of processes may do so.

        Raises:
            BusyError: parts are not done; names them.
            ExistsError: another version is published there.
        """
        found = self._store.find(self._plan.id, self._plan.version)
        if found is None or found.build != self._plan.token:
            left = [part.number for part in self.missing]
            if left:
                more = "" if len(left) <= 10 else f" and {len(left) - 10} more"
                raise BusyError(
                    f"parts {left[:10]}{more} of {self._plan.id!r} {self._plan.version!r} are not done; "
                    "build them, and publish then"
                )
        name = str(self._plan.signature[0])
        ref = published(self._store, self._board, self._plan, self._options, self._many.timeout, name)
        if ref is None:
            raise BusyError(
                f"files of parts of {self._plan.id!r} {self._plan.version!r} are gone; build what "
                "`missing` names"
            )
        return ref

    def __repr__(self) -> str:
        return f"<PlannedBuild {self._plan.id!r} {self._plan.version!r}: {len(self.parts)} parts>"


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
    if options.max_rows is not None and splits.of_rows and splits.count > options.max_rows:
        raise ValueError(
            f"{source.name} has {splits.count} rows, more than max_rows={options.max_rows}; raise max_rows"
        )
    store.check_place(id, version)
    board = Board(store, id, version, many.lease_seconds)
    plan = agreed_plan(board, Wanted(id, version, splits, options, num_cpus(), parts, replaces))
    return PlannedBuild(
        store, plan, board, Job(store, plan, data, options, many.lease_seconds), options, many
    )
