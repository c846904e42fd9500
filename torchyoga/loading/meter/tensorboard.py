"""A meter into TensorBoard."""

from __future__ import annotations

from typing import Protocol

from .meter import Meter

__all__ = ["Tensorboard"]


class Writer(Protocol):
    """What `torch.utils.tensorboard.SummaryWriter` can do."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Writes one number."""


class Tensorboard:
    """Shows a meter as scalars under `data/`, over the batches since this was made.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or one of tensorboardX.

    Example:
        >>> class Printer:
        ...     def add_scalar(self, tag, value, step):
        ...         print(tag, step) if tag == "data/share" else None
        >>> with yoga.metered(DataLoader(list(range(9))), every=3, to=[Tensorboard(Printer())]) as loader:
        ...     rows = list(loader)
        data/share 3
        data/share 6
        data/share 9
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._before = self._step = 0

    def __call__(self, meter: Meter) -> None:
        """Writes the numbers of the last batches."""
        count, last = meter.epoch.batches, meter.last
        self._step += count - self._before if count > self._before else count  # else an epoch has begun
        self._before = count
        self._writer.add_scalar("data/share", last.share, self._step)
        for name, seconds in last.stages.items():
            self._writer.add_scalar(f"data/{name}", seconds / last.batches, self._step)
