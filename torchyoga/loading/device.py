"""A loader whose batches come on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..order.contract import Appended
from ..order.saved import Saved
from ..rows.types import Batch
from .delivery import Delivery
from .loader import DataLoader


def to_device(loader: DataLoader[Batch], device: torch.device | str | int) -> DeviceLoader:
    """The batches of a loader on a device, each copied while the one before it is computed with.

    The copy runs during the computation if the loader has `pin_memory=True`. The state, of this or of the
    loader, counts the batches that were handed out, not the one that is on its way. A `Checkpoint` takes it
    in place of the loader: `loaders={"train": to_device(loader, "cuda")}`.

    Args:
        loader: a `torchyoga.DataLoader`.
        device: such as "cuda", or a torch.device.

    Raises:
        TypeError: it is another loader.

    Example:
        >>> batches = to_device(DataLoader(list(range(6)), batch_size=4), "cpu")
        >>> [batch.tolist() for batch in batches]
        [[0, 1, 2, 3], [4, 5]]
    """
    if isinstance(loader, Iterator):
        raise TypeError(
            f"to_device takes a torchyoga.DataLoader, found {type(loader).__name__}, an iterator, which has "
            "no state; wrap the loader that the batches come from, for a Checkpoint in "
            "loaders={'train': to_device(loader, 'cuda')}"
        )
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"to_device takes a torchyoga.DataLoader, found {type(loader).__name__}, whose state would be a "
            "batch ahead; make a torchyoga.DataLoader, it takes the same arguments"
        )
    return DeviceLoader(loader, torch.device(device))


class DeviceLoader:
    """A loader whose batches come on a device; see `to_device`. It has the attributes of the loader."""

    def __init__(self, loader: DataLoader[Batch], device: torch.device) -> None:
        self.loader = loader
        self.device = device

    def __iter__(self) -> Iterator[Batch]:
        delivery: Delivery = iter(self.loader)
        delivery.move_to(self.device)
        return delivery

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See `DataLoader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> Saved:
        """See `DataLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """See `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state, strict, appended)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)
