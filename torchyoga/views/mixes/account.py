"""A state of a mixture -> what has been read of each source up to there: rows, passes, its share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import StateError
from ...order.mixing.mixed import MixOrder, MixStage, Mixture, unpacked
from ...order.mixing.sources import Version, told_sources
from ...order.state import State
from ...rows.types import Ints
from .restaged import restaged, shuffle_of, where_of

__all__ = ["Account", "SourceAccount", "account_of_counts", "account_of_state", "counts_at"]


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


def counts_at(mixture: Mixture, state: State) -> tuple[Mixture, tuple[int, ...], list[int]]:
    """The counts of rows delivered up to a state.

    Returns:
        The mixture as it goes on from the state; how many rows each of its sources has given; and which of
        the sources of `mixture` each is.

    Raises:
        StateError: the state does not tell it.
    """
    reshuffles = state.pins.get("shuffle") not in ("once", "block once")
    mixture, numbers = restaged(mixture, None, state)
    if not reshuffles:  # every epoch is the first one again
        plain = mixture.plain
        order = MixOrder(plain, state.seed)
        epochs, position = divmod(state.place, mixture.rows)
        each = zip(order.consumed(plain.rows), order.consumed(position), strict=True)
        return plain, tuple(epochs * whole + rest for whole, rest in each), list(numbers)
    shuffle, _ = shuffle_of(state, goes_on=True) if state.place else (True, 8)
    order = MixOrder(mixture, state.seed, bool(shuffle))
    counts = np.array(order.consumed(state.place))
    counts -= np.bincount(_left(order, state)[0], minlength=len(counts))
    return mixture, tuple(counts.tolist()), list(numbers)


def _left(order: MixOrder, state: State) -> tuple[Ints, Ints, Ints]:
    """The sources, passes over them, and rows there, of what comes later although later rows have come."""
    positions = np.concatenate([np.zeros(0, np.int64), *map(np.array, state.left)])
    return unpacked(order.mixture, order.rows(state.epoch, positions))


def account_of_counts(mixture: Mixture, counts: Sequence[int], state: State) -> Account:
    """The account of a state, by how many rows each source had given, or left out.

    Raises:
        StateError: rows were left out, and the state does not tell of which sources.
    """
    if state.left_out.rows:
        out = dict(state.left_out.of)
        counts = [count - out.pop(name, 0) for name, count in zip(mixture.names, counts, strict=True)]
        if not state.left_out.of or out or min(counts) < 0:
            raise StateError(
                f"{state.left_out.rows} rows of epochs that were left early are left out, and the state does "
                "not tell how many of each source; finish epochs, or ask at a state before them"
            )
    return Account(
        where_of(state),
        tuple(
            SourceAccount(name, size, rows, mixture.passes_of(number, rows))
            for number, (name, size, rows) in enumerate(
                zip(mixture.names, mixture.lengths, counts, strict=True)
            )
        ),
    )


def account_of_state(state: State) -> Account:
    """The rows delivered of each source up to a state, by what the state itself tells.

    Raises:
        StateError: it is of no mixture, or tells its sources or weights by digests only, as there are many.
    """
    sources = told_sources(state.pins.get("sources"))
    cell = re.search(r"(?:cell|batch)=(\d+)", str(state.pins.get("view")))
    if sources is None or cell is None:
        raise StateError(
            "the state does not name its sources: it is of no mixture, or of many sources, which it tells by "
            "digests; print(mix.account(at=state)) in a program that makes the mixture"
        )
    lengths = tuple(source.rows for source in sources)
    first = MixStage(0, (1,) * len(sources), (0,) * len(sources))
    mixture = Mixture(
        lengths,
        (first,),
        state.length,
        int(cell.group(1)),
        (None,) * len(sources),
        tuple(source.name for source in sources),
        versions=tuple((Version(source.rows, source.tag),) for source in sources),
    )
    mixture, counts, _ = counts_at(mixture, state)
    return account_of_counts(mixture, counts, state)
