"""A meter into OpenTelemetry, which Prometheus and others read."""

from __future__ import annotations

from collections.abc import Mapping

from .meter import Meter

__all__ = ["OpenTelemetry"]


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
