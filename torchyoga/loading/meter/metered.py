"""A loop whose meter is shown while it runs: in a log, a progress bar, TensorBoard or OpenTelemetry."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, TextIO, TypeVar, overload

import torch.utils.data

from ...order.full import as_int
from ...process.bar import TqdmBar
from ...rows.types import Batch, BatchT
from ..device import DeviceLoader
from ..loader import DataLoader
from .meter import Meter, Subscription, Target
from .torch_loader import MeteredLoader

__all__ = ["Log", "metered", "OpenTelemetry", "ProgressBar", "Tensorboard"]

LoaderT = TypeVar("LoaderT", DataLoader[Batch], DeviceLoader)


@overload
def metered(  # type: ignore[overload-overlap]  # ours is a loader of torch's, too
    loader: LoaderT, every: int = 100, to: Sequence[Target] = ()
) -> AbstractContextManager[LoaderT]: ...


@overload
def metered(
    loader: torch.utils.data.DataLoader[BatchT], every: int = 100, to: Sequence[Target] = ()
) -> MeteredLoader[BatchT]: ...


def metered(loader: Any, every: int = 100, to: Sequence[Target] = ()) -> Any:
    """Within the `with` statement the loader's meter is shown every so many batches, and as an epoch ends.

    Torch's own loaders get a meter by this: iterate what comes back, or the `with` statement gives, in place
    of the loader, and ask its `meter`. The batches, their order and the random numbers are the loader's.

    Args:
        loader: a `torchyoga.DataLoader`, or what `to_device` makes of it; or a `torch.utils.data.DataLoader`.
        every: batches between two, counted from one epoch into the next.
        to: what shows it: `yoga.Log()`, `yoga.ProgressBar()`, `yoga.Tensorboard(writer)`,
            `yoga.OpenTelemetry()`, or any function that takes the meter. One that raises is logged once;
            training goes on.

    Raises:
        TypeError: it is no such loader.
        ValueError: `every` is less than 1.

    Example:
        >>> shown = []
        >>> with metered(DataLoader(list(range(40)), batch_size=2), every=10, to=[shown.append]) as loader:
        ...     count = sum(1 for batch in loader)
        >>> count, len(shown)
        (20, 2)
        >>> batches = metered(torch.utils.data.DataLoader(range(40), batch_size=2))
        >>> count = sum(1 for batch in batches)
        >>> count, batches.meter.epoch.batches
        (20, 20)
    """
    step = as_int("every", every, low=1)
    meter = getattr(loader, "meter", None)
    if isinstance(meter, Meter):
        return _shown(loader, meter, Subscription(list(to), step), to)
    if isinstance(loader, torch.utils.data.DataLoader):
        return MeteredLoader(loader, step, list(to))
    raise TypeError(
        f"metered takes a DataLoader of torchyoga's or of torch's, found {type(loader).__name__}; pass the "
        "loader that the batches come from"
    )


@contextmanager
def _shown(
    loader: LoaderT, meter: Meter, subscription: Subscription, to: Sequence[Target]
) -> Iterator[LoaderT]:
    with ExitStack() as stack:
        for target in to:
            if isinstance(target, AbstractContextManager):
                stack.enter_context(target)
        meter.subscribe(subscription)
        try:
            yield loader
        finally:
            meter.unsubscribe(subscription)


class Log:
    """Shows a meter as a line of Python's logging.

    Args:
        logger: by default the one named `torchyoga.meter`.
        level: of the lines.

    Example:
        >>> with yoga.metered(DataLoader(list(range(9))), every=3, to=[Log()]) as loader:
        ...     rows = list(loader)
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger("torchyoga.meter")
        self._level = level

    def __call__(self, meter: Meter) -> None:
        """Writes a line."""
        self._logger.log(self._level, "%s", meter)


class ProgressBar:
    """Shows a meter behind a progress bar, by tqdm.

    Args:
        total: batches of the epoch; None if they are not known, or `len(loader)`.
        file: where it is shown; by default on stderr.

    Example:
        >>> import io
        >>> bar = ProgressBar(total=9, file=io.StringIO())
        >>> with yoga.metered(DataLoader(list(range(9))), every=3, to=[bar]) as loader:
        ...     rows = list(loader)
    """

    def __init__(self, total: int | None = None, file: TextIO | None = None) -> None:
        self._total, self._file = total, file
        self._bar: TqdmBar | None = None

    def __enter__(self) -> ProgressBar:
        self._bar = TqdmBar(total=self._total, unit="batch", file=self._file)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, meter: Meter) -> None:
        """Moves the bar."""
        bar = self._bar
        if bar is None:
            return
        count = meter.epoch.batches
        if count < bar.n:  # the next epoch
            bar.reset(self._total)
        last = meter.last
        bar.set_postfix_str(f"waited {last.share:.0%}, {last.most}", refresh=False)
        bar.update(count - bar.n)


class _Writer(Protocol):
    """The methods of `torch.utils.tensorboard.SummaryWriter` that are called."""

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

    def __init__(self, writer: _Writer) -> None:
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


class OpenTelemetry:
    """Shows a meter as gauges `torchyoga.data.share` and `torchyoga.data.seconds`, by stage, of a batch.

    Args:
        attributes: to add to each number, such as the rank.

    Raises:
        ImportError: opentelemetry-api is not installed.

    Example:
        >>> with yoga.metered(DataLoader(list(range(9))), every=3, to=[OpenTelemetry({"rank": 0})]) as loader:
        ...     rows = list(loader)
    """

    def __init__(self, attributes: Mapping[str, str | int] | None = None) -> None:
        try:
            from opentelemetry import metrics
        except ModuleNotFoundError as error:
            raise ImportError(
                "yoga.OpenTelemetry needs opentelemetry-api, which is not installed; pip install "
                "'torchyoga[telemetry]'"
            ) from error
        meter = metrics.get_meter("torchyoga")
        self._share = meter.create_gauge("torchyoga.data.share", "1", "share of the time waited for data")
        self._seconds = meter.create_gauge("torchyoga.data.seconds", "s", "work on a batch, by stage")
        self._attributes = dict(attributes or {})

    def __call__(self, meter: Meter) -> None:
        """Sets the gauges."""
        last = meter.last
        self._share.set(last.share, self._attributes)
        for name, seconds in last.stages.items():
            self._seconds.set(seconds / last.batches, {**self._attributes, "stage": name})
