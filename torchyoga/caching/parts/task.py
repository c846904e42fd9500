"""A part's number -> the part, built in whatever process, thread or machine calls this."""

from __future__ import annotations

import pickle
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b

from ...building.build import BuildOptions
from ...building.parts.attempt import build_part, check_same
from ...building.parts.board import Board, here
from ...building.parts.note import Failure
from ...building.parts.plan import Plan
from ...building.parts.slices import Splits, splits_of
from ...errors import YogaError
from ...stores.contract import Versions
from ...stores.objects import sent_with_options
from ..submission import prepared

__all__ = ["Job", "payload_of", "run_part"]

_HERE = threading.local()  # the last job of each thread, since datasets are not for several at once


@dataclass(frozen=True)
class Job:
    """All that a worker needs.

    Attributes:
        store: where the version is to be published.
        plan: the plan; `data`: what the rows are read from; `options`: how to build.
        lease_seconds: who gives no sign of life for this long counts as dead.
        num_workers: processes that read rows for one builder.
    """

    store: Versions
    plan: Plan
    data: object
    options: BuildOptions
    lease_seconds: float
    num_workers: int = 0

    def board(self) -> Board:
        """The notes of the plan."""
        return Board(self.store, self.plan.id, self.plan.version, self.lease_seconds)

    def splits(self) -> Splits:
        """The source, which must give the rows that the plan was made of."""
        options = replace(self.options, info={})
        source, _ = prepared(self.data, self.plan.id, self.plan.version, options, self.num_workers)
        splits = splits_of(source)
        check_same(self.plan, splits)
        return splits


def payload_of(job: Job) -> bytes:
    """A job, to be sent to workers of the user's; the options of its store go with it.

    Raises:
        TypeError: something in the data cannot be sent; says what.
    """
    plain = replace(
        job.options, differing=None, before_publishing=None, lineage=None, progress=False, info={}
    )
    with sent_with_options():
        try:
            return _dumped(replace(job, options=plain))
        except Exception as error:
            raise TypeError(
                f"{_culprit(job.data)} cannot be sent to workers: {error}. Make it in the worker: pass a "
                "function of a module that returns the dataset, in place of the dataset"
            ) from error


def _dumped(value: object) -> bytes:
    try:
        from cloudpickle import dumps
    except ImportError:  # engines bring it along; without one, functions must have a name in a module
        from pickle import dumps
    found: bytes = dumps(value)
    return found


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
    """Builds a part; what engines call.

    Returns:
        How many seconds that took, 0.0 if others were faster; and the process.
    """
    attempt = secrets.token_hex(8)
    key = blake2b(payload, digest_size=16).digest()
    found = getattr(_HERE, "found", None)
    if found is None or found[0] != key:
        # Sent by the user's own program to the user's own workers; no file holds it.
        job = pickle.loads(payload)
        board = job.board()
        try:
            board.begin(job.plan, part, attempt, is_taken=True)
            with board.working(job.plan, part, attempt):  # to open a dataset may take long
                _HERE.found = found = key, job, board, job.splits()
        except Exception as error:
            failure = Failure(part, type(error).__name__, str(error), here())
            with suppress(OSError, YogaError):  # the error itself says more
                board.fail(job.plan, attempt, failure)
            raise
    _, job, board, splits = found
    board.begin(job.plan, part, attempt, is_taken=True)
    note = build_part(job.store, board, job.plan, part, splits, job.options, attempt)
    return (0.0 if note is None else note.seconds), here()
