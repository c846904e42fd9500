"""What Accelerate expects of a loader that it has prepared: it would replace it by one of its own.

Accelerate deals the batches of a loader to its processes and, to drop what `pad` has added, lays the batches
of all ranks end to end. A loader of ours deals rows by itself, in runs of a batch, and tells Accelerate where
its epochs end.
"""

from __future__ import annotations

from dataclasses import replace

from ..order.shard import Remainder
from ..sampling.indices import Indices
from ..sampling.trainers import gradient_state, is_accelerate_asking

__all__ = ["AcceleratePrepared", "Accelerated"]


class Accelerated:
    """What an Accelerator knows about a loader.

    Attributes:
        is_prepared: True if an Accelerator uses the loader.
        is_at_end: True if the batch that was delivered last is the last one of its epoch.
        rest: rows of the dataset in the last batches of all ranks, if they are not full; -1 if that is not
            known.
    """

    def __init__(self) -> None:
        self.is_prepared = self.is_at_end = False
        self.rest = -1

    def prepare(self, indices: Indices, batch_size: int, in_order: bool) -> None:
        """Makes rows be dealt as Accelerate expects, if it uses the loader.

        Raises:
            ValueError: they cannot be dealt so.
        """
        cursor = indices.cursor
        run_length = batch_size if self.is_prepared else 1
        if cursor.shard.run_length != run_length:
            cursor.shard = replace(cursor.shard, run_length=run_length)
        if not self.is_prepared or indices.num_replicas == 1:
            return
        if not in_order:
            raise ValueError(
                "with Accelerate and several processes batches must come in order; leave in_order at True"
            )
        if indices.locality == "shard":
            raise ValueError(
                "Accelerate deals runs of the order to its processes, so with locality='shard' each would "
                "read the files of all; leave it at 'global'"
            )
        if indices.is_dealt_by_nobody:
            raise ValueError(
                f"there are {indices.num_replicas} processes, and {indices.name} does not say that it heeds "
                "them; Accelerate would deal its batches out if torch's own DataLoader was prepared, but "
                "leaves this one as it is. Have the sampler keep a `rank`, or use torch's DataLoader"
            )

    def begun(self, loader: object, rest: int) -> None:
        """Tells Accelerate that an epoch begins, whose last batches have `rest` rows more than full ones."""
        if not self.is_prepared:
            return
        self.is_at_end, self.rest = False, rest
        state = gradient_state()
        if state is not None:
            state._remove_dataloader(loader)  # an iteration that was left early may still be active
            state._add_dataloader(loader)

    def ended(self, loader: object) -> None:
        """Tells Accelerate that an epoch is over."""
        state = gradient_state() if self.is_prepared else None
        if state is not None:
            state._remove_dataloader(loader)


class AcceleratePrepared:
    """The attributes by which Accelerate knows a loader; all other code sees the loader's own."""

    use_stateful_dataloader = True  # so save_state and load_state ask for the state
    _accelerated: Accelerated
    _indices: Indices

    @property
    def _is_accelerate_prepared(self) -> bool:
        # `prepare` sets it, `prepare_data_loader` only asks.
        if is_accelerate_asking():
            self._accelerated.is_prepared = True
        return self._accelerated.is_prepared

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        self._accelerated.is_prepared = value

    @property
    def end_of_dataloader(self) -> bool:
        """True if the batch that was delivered last is the last one of its epoch: Accelerate asks for it."""
        return self._accelerated.is_at_end

    @property
    def remainder(self) -> int | Remainder:
        """What happens to rows that the ranks cannot divide evenly: "pad", "drop" or "keep".

        For Accelerate, which uses this name for something else: how many rows of the last batch, gathered
        from all ranks, its `gather_for_metrics` keeps; all, if less than 1.
        """
        return self._accelerated.rest if is_accelerate_asking() else self._indices.cursor.shard.remainder
