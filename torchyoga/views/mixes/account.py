"""A state of a mixture -> what has been read of each source up to there: rows, passes, its share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import StateError
from ...order.mixing.change import counts_at, sources_of, where_of
from ...order.mixing.mixture import MixStage, Mixture
from ...order.state import State


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


def account_of_state(state: State) -> Account:
    """The rows delivered of each source up to a state, by what the state itself lists.

    Raises:
        StateError: it is of no mixture, or of more classes than it lists.
    """
    listed = state.pins.get("sources")
    cell = re.search(r"(?:cell|batch)=(\d+)", str(state.pins.get("view")))
    if not isinstance(listed, tuple) or not listed or cell is None:
        raise StateError(
            "the state does not name its sources: it is of no mixture, or of many classes, which it tells by "
            "a digest; print(mix.account(at=state)) in a program that makes the mixture"
        )
    sources = tuple(sources_of(listed))
    first = MixStage.first((1,) * len(sources))
    return account_of(Mixture(sources, (first,), state.length, int(cell.group(1))), state)
