"""How the batches of an iteration are made: by this process, or by torch's loader and its workers.

The makers take indices from a plan that moves nothing. Batches are counted as they come out.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import cast

from ..order.iteration import Iteration, IterationOptions
from ..process.seeding import GeneratorsPutBack, worker_seed
from ..process.stages import Stopwatch
from ..reading.dataref import DataRef
from ..rows.collate import is_ours
from ..rows.types import Batch, MapStyle
from ..sampling.seeding import Quiet, Seeding
from ..views.flattened import flattened
from .making import Failure, InProcess, Maker
from .plan import EpochIndices
from .redrawn import Redrawn
from .workers import Arriving, TorchLoader, Workers


class Pipeline:
    """The maker of a loader's batches, one iteration after the other.

    Args:
        plan: the indices, and the way in which their batches are made.
        quiet: whether rows draw random numbers.

    Attributes:
        way: see `Way`.
        watch: counts the seconds of each stage.
        latest: the iteration that has begun last.
        redrawn: says if the dataset's rows were drawn anew.
        workers: the processes.
    """

    def __init__(self, plan: EpochIndices, quiet: Quiet) -> None:
        self.plan, self.way, self.watch = plan, plan.way, plan.watch
        self.latest: Iteration | None = None
        self.redrawn, self.workers = Redrawn(), Workers()
        self._quiet = quiet

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "latest": None}

    def begin(self, loader: TorchLoader, made: int | None = None) -> Iteration:
        """An iteration that begins now; `made` says when its iterator was made."""
        indices = self.plan.indices
        expected, found = len(indices.dataset), len(_dataset_of(loader))
        if found != expected:
            raise ValueError(
                f"the sampler is of {expected} rows, the dataset has {found}; make a new loader, and load "
                "the state with strict=False"
            )
        in_order = not self.way.is_unordered
        begun = indices.begin(IterationOptions(loader.batch_size or 1, loader.drop_last, in_order, made))
        if begun.options.counts:
            is_kept = bool(loader.num_workers) and loader.persistent_workers
            self.redrawn.begun(loader.dataset, begun.start.epoch, indices.cursor.extra, is_kept)
        return begun

    def start(self, loader: TorchLoader, iteration: Iteration) -> Arriving | InProcess:
        """The batches of an iteration from where it stands."""
        plan, is_here = self.plan, self.way.kind != "processes"
        plan.iteration = iteration
        read = flattened(loader.dataset)  # anew, as a Subset's indices may have changed
        dataset = _dataset_of(loader) if read is None else read
        plan.source = dataset.in_epoch(plan.epoch) if isinstance(dataset, DataRef) else dataset
        maker = Maker(
            dataset,
            self._seeding(is_here),
            loader.collate_fn,
            self.watch,
            self.way.is_single,
            pins=is_here and loader.pin_memory,
            parts=self.way.is_ahead and not is_ours(loader.collate_fn),
            bound=(plan.epoch, plan.source),
        )
        if is_here:
            return InProcess(plan, maker)
        try:
            seed = worker_seed(plan.indices.cursor.order.seed, plan.epoch)
            return self.workers.arriving(loader, plan, maker, seed)
        except BaseException:
            self.workers.give_up()
            raise

    def peek(self, loader: TorchLoader) -> Batch:
        """The batch that an iteration which begins now would give first, made here."""
        plan, indices = copy(self.plan), self.plan.indices
        size, drop_last = loader.batch_size or 1, loader.drop_last
        look = indices.begin(IterationOptions(size, drop_last, made=indices.cursor.num_begun, counts=False))
        plan.iteration, plan.way = look, replace(plan.way, is_read=False)
        plan.seen_by, plan.watch = None, Stopwatch()
        wanted = next(plan.jobs_here(0), None)
        if wanted is None:
            raise ValueError(
                f"epoch {look.start.epoch} has no batch from position {look.start.position} on, so none "
                "tells types and shapes; add rows, or pass drop_last=False or a smaller batch_size"
            )
        read = flattened(loader.dataset)
        dataset = _dataset_of(loader) if read is None else read
        seeding, collate = self._seeding(is_here=True), loader.collate_fn
        maker = Maker(dataset, seeding, collate, plan.watch, self.way.is_single, pins=loader.pin_memory)
        with GeneratorsPutBack():
            (found,) = maker.made(wanted)
        if type(found) is Failure:
            raise found.error
        return found

    def _seeding(self, is_here: bool) -> Seeding:
        # A foreign sampler may give a row twice, with different random numbers each time.
        return Seeding(
            self.way.seeds_rows, self.way.seeds_batches, is_here, self._quiet, self.plan.indices.may_repeat
        )


def _dataset_of(loader: TorchLoader) -> MapStyle:
    return cast("MapStyle", loader.dataset)  # a torchyoga.DataLoader takes no other
