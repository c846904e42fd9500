"""A loop whose meter is shown while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from ...order.full import as_int
from ...rows.types import Batch
from ..device import DeviceLoader
from ..loader import DataLoader
from .meter import Meter, Target, Told

__all__ = ["metered"]

LoaderT = TypeVar("LoaderT", DataLoader[Batch], DeviceLoader)


@contextmanager
def metered(loader: LoaderT, every: int = 100, to: Sequence[Target] = ()) -> Iterator[LoaderT]:
    """Within the `with` statement the loader's meter is shown every so many batches, and as an epoch ends.

    Args:
        loader: a `torchyoga.DataLoader`, or what `to_device` makes of it.
        every: batches between two, counted from one epoch into the next.
        to: what shows it: `yoga.Log()`, `yoga.ProgressBar()`, `yoga.Tensorboard(writer)`,
            `yoga.OpenTelemetry()`, or any function that takes the meter. One that raises is logged once;
            training goes on.

    Raises:
        TypeError: it is another loader.
        ValueError: `every` is less than 1.

    Example:
        >>> shown = []
        >>> with metered(DataLoader(list(range(40)), batch_size=2), every=10, to=[shown.append]) as loader:
        ...     count = sum(1 for batch in loader)
        >>> count, len(shown)
        (20, 2)
    """
    meter = getattr(loader, "meter", None)
    if not isinstance(meter, Meter):
        raise TypeError(
            f"metered takes a torchyoga.DataLoader, found {type(loader).__name__}, which has no meter; "
            "make a torchyoga.DataLoader, it takes the same arguments"
        )
    step = as_int("every", every, low=1)
    with ExitStack() as stack:
        for target in to:
            if isinstance(target, AbstractContextManager):
                stack.enter_context(target)
        told = Told(list(to), step)
        meter.tell(told)
        try:
            yield loader
        finally:
            meter.stop_telling(told)
