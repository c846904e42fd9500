"""How the batches of a loader are made: here, ahead by a thread, by threads or by processes; decided once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..order.full import as_int
from ..process.control_group import num_cpus
from ..reading.dataref import DataRef

__all__ = ["Way", "way_of"]

_AHEAD = 2  # batches, as torch's workers make


@dataclass(frozen=True)
class Way:
    """How the batches of a loader are made.

    Attributes:
        kind: "here" when they are asked for, "ahead" by a thread of this process, by "threads", or by
            "processes".
        why: why they are made here, or by processes; "" otherwise.
        is_read: True if this process reads a DataRef by itself: where no row needs Python, torch's machinery
            would cost more than reading.
        num_threads: threads that read in place of processes; 0 if there are none.
        may_be_threads: a larger `num_workers` means more threads, not processes.
        num_ahead: batches that are read ahead.
        at_once: windows that are read before they are wanted.
        together: batches that travel together at most; None for as many as are best.
        is_single: single rows are handed out, no batches of them.
        is_unordered: batches may come in any order.
        seeds_rows: each row is made with random numbers of its own.
        seeds_batches: each batch is collated with random numbers of its own.
    """

    kind: Literal["here", "ahead", "threads", "processes"]
    why: str
    is_read: bool
    num_threads: int
    may_be_threads: bool
    num_ahead: int
    at_once: int
    together: int | None
    is_single: bool
    is_unordered: bool
    seeds_rows: bool
    seeds_batches: bool

    @property
    def is_ahead(self) -> bool:
        """True if a thread makes batches ahead, wherever the training loop takes its time."""
        return self.kind in ("ahead", "threads")

    def __str__(self) -> str:
        if self.kind == "processes":
            return f"made by processes, as {self.why}"
        if self.kind == "here":
            return f"made here when they are asked for, as {self.why}"
        threads = f"{self.num_threads} threads" if self.num_threads > 1 else "a thread"
        return f"read ahead by {threads}"


def way_of(
    read: DataRef | None,
    num_workers: int,
    prefetch_factor: int | None,
    *,
    is_single: bool,
    is_in_order: bool,
    is_known_ahead: bool,
    has_own_collate: bool,
    asks_for_processes: bool,
    seeds_rows: bool,
    seeds_batches: bool,
) -> Way:
    """The way that these facts decide.

    Args:
        read: the DataRef that there is to read; None for any other dataset.
        num_workers: as passed.
        prefetch_factor: as passed; None for the default.
        is_single: see `Way`.
        is_in_order: batches come in order.
        is_known_ahead: the sampler may be asked before a batch is.
        has_own_collate: the collate function is neither torch's nor torchyoga's.
        asks_for_processes: an argument was passed that is for processes.
        seeds_rows: see `Way`.
        seeds_batches: see `Way`.

    Raises:
        ValueError: `prefetch_factor` is below 0.
    """
    not_read = ""  # why this process does not read by itself
    if read is None:
        not_read = "the dataset is no DataRef"
    elif is_single:
        not_read = "rows are handed out one by one"
    elif seeds_rows:
        not_read = "each row has random numbers of its own"
    if asks_for_processes:
        no_threads = "an argument is for processes"
    elif num_workers and not is_in_order:
        no_threads = "batches may come in any order"
    elif has_own_collate:
        no_threads = "the collate function is your own"
    elif not is_known_ahead:
        no_threads = "the sampler draws when it is asked"
    else:
        no_threads = not_read
        if read is not None and not not_read and not read._only_copies:
            no_threads = "rows are not only copied"
    kind: Literal["here", "ahead", "threads", "processes"]
    num_threads, num_ahead = 0, prefetch_factor or _AHEAD
    if num_workers:
        kind, why = "processes", no_threads
        num_ahead *= num_workers
        if not no_threads:
            kind, num_threads = "threads", max(1, min(num_workers, num_cpus() - 1))  # the loop needs one, too
    else:
        kind, why = "here", not_read or ("" if is_known_ahead else "the sampler draws when it is asked")
        num_ahead = _AHEAD
        if read is not None and prefetch_factor is not None:
            num_ahead = as_int("prefetch_factor", prefetch_factor, low=0)
        if not why:
            kind, why = ("ahead", "") if num_ahead else ("here", "prefetch_factor is 0")
    return Way(
        kind,
        why,
        is_read=not not_read and kind != "processes",
        num_threads=num_threads,
        may_be_threads=not no_threads,
        num_ahead=num_ahead,
        at_once=num_ahead + (kind != "processes"),
        together=None if num_workers and not has_own_collate and not seeds_rows else 1,
        is_single=is_single,
        is_unordered=bool(num_workers) and not is_in_order,
        seeds_rows=seeds_rows,
        seeds_batches=seeds_batches,
    )
