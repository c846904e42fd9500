"""Rows that an order names by numbers of its own, and what a state says was read of each source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import StateError
from ...order.by_file import equal_runs
from ...order.change import counts_at, going_on, where_of
from ...order.contract import ARRANGED, AnyOrder, Appended, Arrangement, Pin, Shuffle
from ...order.mixed import MixOrder
from ...order.mixture import Mixture
from ...order.state import State
from ...process.lazy import cached_property
from ...process.messages import warn_user
from ...reading.contract import title_of
from ...reading.dataref import DataRef
from ...rows.types import Ints, RowT
from ..over import RowView


class SourceAccount(NamedTuple):
    """The rows that were read of a source.

    Attributes:
        name: its name.
        size: how many rows it has.
        rows: how many were delivered, a row of each pass counted by itself.
        passes: how often it was read.
    """

    name: str
    size: int
    rows: int
    passes: float


class Account(NamedTuple):
    """The rows that were read of each source of a mixture: a table, for logs and for model cards.

    Attributes:
        where: the place up to which it counts.
        sources: of each source.

    Example:
        >>> data = yoga.from_arrays({"x": np.arange(10)})
        >>> mix = yoga.mix({"a": data, "b": data[:5]}, {"a": 1, "b": 1}, rows=20)
        >>> loader = yoga.DataLoader(mix, 10, shuffle=True, seed=7)
        >>> batches = list(loader)
        >>> print(mix.account(at=loader.state_dict()))
        source  rows  share  passes
        a         10  50.0%    1.00
        b         10  50.0%    2.00
    """

    where: str
    sources: tuple[SourceAccount, ...]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The titles of its columns, and the text of each source."""
        total = sum(source.rows for source in self.sources) or 1
        rows = [
            [source.name, f"{source.rows:,}", f"{source.rows / total:.1%}", f"{source.passes:.2f}"]
            for source in self.sources
        ]
        return ["source", "rows", "share", "passes"], rows

    def markdown(self) -> str:
        """The table as Markdown, for a model card."""
        titles, rows = self.table()
        rule = ["---", *["---:"] * (len(titles) - 1)]
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rule, *cells])

    def numbers(self) -> dict[str, float]:
        """Rows and passes of each source as one flat dict, for exporters: `web/rows` and so on."""
        flat: dict[str, float] = {}
        for source in self.sources:
            flat |= {f"{source.name}/rows": float(source.rows), f"{source.name}/passes": source.passes}
        return flat

    def __str__(self) -> str:
        titles, rows = self.table()
        lines = [titles, *rows]
        widths = [max(len(line[number]) for line in lines) for number in range(len(titles))]
        shown = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *cells[1:]])
            for line, cells in zip(lines, shown, strict=True)
        )


def accounts_of(mixture: Mixture, counts: Sequence[int]) -> tuple[SourceAccount, ...]:
    """What was read of each source, by how many rows each has given."""
    return tuple(
        SourceAccount(source.name, source.rows, count, mixture.passes_of(number, count))
        for number, (source, count) in enumerate(zip(mixture.sources, counts, strict=True))
    )


def account_of(mixture: Mixture, state: State) -> Account:
    """The rows delivered of each source of a mixture up to a state.

    Raises:
        StateError: the state does not say it, as if epochs were left early.
    """
    if state.left_out.rows:
        raise StateError(
            f"{state.left_out.rows} rows of epochs that were left early are left out, and the state does not "
            "say how many of each source; finish epochs, or ask at a state before them"
        )
    mixture, counts = counts_at(mixture, state)
    return Account(where_of(state), accounts_of(mixture, counts))


_OF_DATA = ("view", "sources", "passes", "files")  # entries of a state


def warn_if_arranged(ref: DataRef, what: str) -> None:
    """Warns if rows are taken of a view that decides which of them come: here they are always the same.

    Args:
        ref: what is taken.
        what: is made of it, for the message.
    """
    if ref._arrangement is not None:
        warn_user(
            f"{what}: {title_of(ref)} decides itself which rows come when. What is made of it has the rows "
            "of its first epoch without shuffle, again and again. Make it the other way round: of each "
            "source first, then mix, weigh, stage or bucket"
        )


class ArrangedRef(RowView[RowT]):
    """Rows of another DataRef, each as often as an arrangement says.

    Its own rows, 0 to its length, are those of an epoch without shuffle.

    Args:
        whole: the other DataRef.
    """

    @abstractmethod
    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> AnyOrder:
        """The order of every epoch."""

    def unpacked(self, numbers: Ints) -> Ints:
        """The rows of the whole that numbers of its orders (B,) stand for."""
        return (numbers - ARRANGED.start) % len(self.whole)

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arrangement(self.order)

    @cached_property
    def _plain(self) -> AnyOrder:
        """The order of its own rows."""
        return self.order(0, False, True, 1)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind rows of this view, or behind numbers of its orders."""
        own = np.flatnonzero(numbers < ARRANGED.start)
        if len(own):
            numbers = numbers.copy()
            numbers[own] = self._plain.rows(0, numbers[own])
        return self.unpacked(numbers)

    @property
    def file_starts(self) -> Ints:
        """Runs of rows: those of files are mixed."""
        return equal_runs(len(self))


class MixArrangement(Arrangement):
    """The arrangement of a mixture, which goes on from states of fewer rows."""

    def __init__(self, order: Callable[[int, Shuffle, bool, int], AnyOrder], mixture: Mixture) -> None:
        super().__init__(order)
        self._mixture = mixture

    def going_on(
        self,
        order: AnyOrder,
        saved: State,
        appended: Appended | None,
        fingerprint: str | None,
        pins: Mapping[str, Pin],
    ) -> tuple[AnyOrder, State]:
        """The order in which a state goes on, if its sources, rows or weights are not those of the mixture.

        What identifies the data is taken from here, if the state is of other sources.
        """
        assert isinstance(order, MixOrder)
        mixture = going_on(self._mixture, saved, appended)
        if mixture is None:
            return order, saved
        made = replace(order, mixture=mixture)
        own = {**pins, **made.pins(saved.epoch)}
        if saved.pins["sources"] == own["sources"]:
            return made, saved
        taken: dict[str, Pin] = {name: own[name] for name in own if name in _OF_DATA}
        return made, replace(saved, fingerprint=fingerprint, pins={**saved.pins, **taken})
