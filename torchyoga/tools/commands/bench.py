"""`yoga bench`: how fast loaders of different settings read a version."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import click

from ...process.texts import count_of
from .output import Asked, Table, bytes_text, picked
from .places import as_one, id_argument, shown, storage_command, version_argument

if TYPE_CHECKING:
    from ...loading.loader import DataLoader
    from ...reading.dataref import DataRef
    from ...rows.types import Batch

__all__ = ["command"]

_Shuffle = Literal["full", "block", "none"]
_MOST_WORKERS = 1024


class _Trial(NamedTuple):
    """How a loader of each number of workers is measured: epochs, of so many seconds at most."""

    batch: int
    shuffle: _Shuffle
    epochs: int
    seconds: float


class _Epoch(NamedTuple):
    """The cost of reading an epoch, or so many seconds of it."""

    rows: int
    seconds: float
    first: float  # seconds until the first batch came


class _Setting(NamedTuple):
    """The result of one setting."""

    num_workers: int
    epochs: list[_Epoch]
    stages: dict[str, float]

    @property
    def rates(self) -> list[float]:
        """Rows a second, of each epoch."""
        return [epoch.rows / epoch.seconds for epoch in self.epochs]

    @property
    def later(self) -> float:
        """Rows a second, after the first epoch if there were several."""
        return median(self.rates[1:] or self.rates)


class _Workers(click.ParamType[list[int]]):
    name = "numbers"

    def convert(
        self, value: str | list[int], param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """Numbers with commas between them."""
        parts = value.split(",") if isinstance(value, str) else [str(one) for one in value]
        if not all(part.strip().isdecimal() and int(part) <= _MOST_WORKERS for part in parts):
            self.fail(f"{value!r:.80} is not a list of numbers of workers; write 0,2,4", param, ctx)
        return list(dict.fromkeys(int(part) for part in parts))


@storage_command("bench", id_argument(), version_argument())
@click.option(
    "--batch", "-b", type=click.IntRange(1), default=256, show_default=True, help="Rows of a batch."
)
@click.option("--workers", "-w", type=_Workers(), default="0,2", show_default=True, help="Numbers to try.")
@click.option(
    "--shuffle", type=click.Choice(get_args(_Shuffle)), default="full", show_default=True, help="The order."
)
@click.option("--columns", "-c", help="Only these columns, as in image,label.")
@click.option("--decoded", is_flag=True, help="Decode images, sound and text, as ref.decoded() does.")
@click.option("--epochs", type=click.IntRange(1, 100), default=3, show_default=True, help="For each number.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 86400),
    default=10.0,
    show_default=True,
    help="At most, of each epoch.",
)
@as_one("trial", _Trial)
def command(
    id: str,
    version: str | None,
    workers: list[int],
    columns: str | None,
    decoded: bool,
    trial: _Trial,
    asked: Asked,
) -> None:
    """Measure how fast a DataLoader reads a version, with each number of workers.

    The loop computes nothing, so this is the most that a loader can give. The first epoch begins with what
    is in memory: after a build or another reader, that may be all of it. ID may be a path or URL of files of
    another library.

    \b
    Examples:
      yoga bench images 1.1 --batch 256 --workers 0,2,4
      yoga bench images --shuffle block --seconds 5 --json
    """
    ref, name, named = shown(asked.storage, id, version)
    chosen: DataRef = ref if columns is None else ref.columns(columns.split(","))
    if decoded:
        chosen = chosen.decoded()
    if len(chosen) < 1:
        raise click.UsageError(f"{name} has no rows to read")
    found = [_measured(chosen, number, trial) for number in workers]
    best = max(found, key=lambda one: one.later)
    row_bytes = chosen.row_bytes
    rows = [
        (
            f"{one.num_workers}",
            f"{1e3 * one.epochs[0].first:,.1f} ms",
            f"{one.rates[0]:,.0f}",
            f"{one.later:,.0f}",
            f"{bytes_text(int(one.later * row_bytes))}/s",
            max(one.stages, key=lambda name: one.stages[name]),
        )
        for one in found
    ]
    titles = ("workers", "first batch", "rows/s at first", "rows/s", "read", "most work")
    plain = {
        **named,
        "rows": len(chosen),
        "row_bytes": row_bytes,
        **picked(trial, "batch shuffle"),
        "settings": [
            {
                "workers": one.num_workers,
                "rows_per_second": one.later,
                "epochs": [epoch._asdict() for epoch in one.epochs],
                "stages": one.stages,
            }
            for one in found
        ],
        "best": best.num_workers,
    }
    of = f"{name}: {count_of(len(chosen), 'row')} of {bytes_text(row_bytes)}, batches of {trial.batch}"
    end = f"fastest here: num_workers={best.num_workers}, {best.later:,.0f} rows a second"
    asked.write(plain, [of, "", Table(titles, rows, right=titles[:-1]), "", end])


def _measured(ref: DataRef, num_workers: int, trial: _Trial) -> _Setting:
    from ...loading.loader import DataLoader

    loader: DataLoader[Batch] = DataLoader(
        ref,
        batch_size=min(trial.batch, len(ref)),
        shuffle="block" if trial.shuffle == "block" else trial.shuffle == "full",
        seed=0,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    found = []
    for epoch in range(trial.epochs):
        loader.set_epoch(epoch)
        with _left_early():
            found.append(_read(loader, len(ref), trial.seconds))
    return _Setting(num_workers, found, loader.meter.epoch.stages)


@contextmanager
def _left_early() -> Iterator[None]:
    """Silences warnings of rows that are left out on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*left after")
        yield


def _read(loader: DataLoader[Batch], length: int, seconds: float) -> _Epoch:
    began = time.perf_counter()
    end, rows, first = began + seconds, 0, 0.0
    size = loader.batch_size or 1
    for number, _ in enumerate(loader):
        now = time.perf_counter()
        if not number:
            first = now - began
        rows = min(length, rows + size)
        if now > end:
            break
    return _Epoch(rows, time.perf_counter() - began, first)
