"""A state of a mixture -> what has been read of each source up to there: rows, tokens, passes, its share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import StateError
from ...order.mixing.mixed import MixOrder, MixStage, Mixture, unpacked
from ...order.mixing.sources import Version, told_sources
from ...order.state import State
from ...process.distinct import distinct
from ...rows.types import Ints
from .restaged import restaged, shuffle_of, where_of

__all__ = ["Account", "SourceAccount", "account_of_counts", "account_of_state", "counts_at", "tokens_at"]

_STEP = 2**16  # rows whose lengths are asked for at once
# The lengths of rows (B,) of a source in a pass over it.
Lengths = Callable[[int, int, Ints], Ints]


class SourceAccount(NamedTuple):
    """The rows that were read of a source.

    Attributes:
        name: its name.
        size: how many rows it has.
        rows: how many were delivered, a row of each pass counted by itself.
        passes: how often it was read.
        tokens: how many were delivered; None if they were not asked for.
    """

    name: str
    size: int
    rows: int
    passes: float
    tokens: int | None = None


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
        has_tokens = any(source.tokens is not None for source in self.sources)
        counted = [source.tokens if has_tokens else source.rows for source in self.sources]
        total = sum(count or 0 for count in counted) or 1
        titles = ["source", "rows", *(["tokens"] if has_tokens else []), "share", "passes"]
        rows = [
            [
                source.name,
                f"{source.rows:,}",
                *([f"{source.tokens or 0:,}"] if has_tokens else []),
                f"{(count or 0) / total:.1%}",
                f"{source.passes:.2f}",
            ]
            for source, count in zip(self.sources, counted, strict=True)
        ]
        return titles, rows

    def markdown(self) -> str:
        """The table as Markdown, for a model card."""
        titles, rows = self.table()
        rule = ["---", *["---:"] * (len(titles) - 1)]
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rule, *cells])

    def numbers(self) -> dict[str, float]:
        """Rows, passes and tokens of each source as one flat dict, for exporters: `web/rows` and so on."""
        flat: dict[str, float] = {}
        for source in self.sources:
            flat |= {f"{source.name}/rows": float(source.rows), f"{source.name}/passes": source.passes}
            if source.tokens is not None:
                flat[f"{source.name}/tokens"] = float(source.tokens)
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


def account_of_counts(
    mixture: Mixture, counts: Sequence[int], state: State, tokens: Sequence[int] | None = None
) -> Account:
    """The account of a state, by how many rows each source had given, or left out.

    Raises:
        StateError: rows were left out, and the state does not tell of which sources, or how many tokens.
    """
    if state.left_out.rows:
        out = dict(state.left_out.of)
        counts = [count - out.pop(name, 0) for name, count in zip(mixture.names, counts, strict=True)]
        if tokens is not None or not state.left_out.of or out or min(counts) < 0:
            what, ask = ("how many of each source", "ask at a state before them")
            if tokens is not None:
                what, ask = "their tokens", "ask without tokens="
            raise StateError(
                f"{state.left_out.rows} rows of epochs that were left early are left out, and the state does "
                f"not tell {what}; finish epochs, or {ask}"
            )
    return Account(
        where_of(state),
        tuple(
            SourceAccount(
                name, size, rows, mixture.passes_of(number, rows), None if tokens is None else tokens[number]
            )
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
    if "shares=tokens" in str(state.pins.get("view")):
        grown = tuple(source.eras or mixture.eras(number) for number, source in enumerate(sources))
        return account_of_counts(replace(mixture, grown=grown), _told(state, len(sources)), state)
    mixture, counts, _ = counts_at(mixture, state)
    return account_of_counts(mixture, counts, state)


def _told(state: State, num_sources: int) -> list[int]:
    """How many packs, windows or batches of each source were delivered, as a state tells."""
    _, slash, told = (state.given or "").partition("/")
    if not slash or told.startswith("#"):
        raise StateError(
            "the state is of packs, windows or batches of a mixture, and does not tell how many came of each "
            "source: it is of an earlier version, of one rank alone, of epochs that are all the same, or of "
            "many sources; print(packed.account(at=state)) in a program that makes them"
        )
    counts = [int(text) for text in told.split(",") if text.isascii() and text.isdigit() and len(text) < 19]
    if len(counts) > num_sources or sum(counts) != state.epoch * state.length + state.position:
        raise StateError("the state's given is damaged; pass what state_dict() gave")
    return counts + [0] * (num_sources - len(counts))


def tokens_at(
    order: MixOrder,
    counts: Sequence[int],
    state: State,
    lengths: Lengths,
    column: str,
    changes: Sequence[bool],
) -> list[int]:
    """How many tokens each source has given up to a state.

    Args:
        order: of the mixture that goes on from the state.
        counts: how many rows each source has given.
        state: the state.
        lengths: the lengths of rows of a source.
        column: what they are of, for messages.
        changes: of each source, whether passes over it differ in how many tokens they have.

    Raises:
        StateError: too much was appended to a source for a state to know of.
    """
    source_left, turn_left, row_left = _left(order, state)
    totals = []
    for number in range(len(counts)):
        left = source_left == number
        before = counts[number] + int(np.count_nonzero(left))
        eras = order.mixture.eras(number)
        if before and eras[0].first:
            raise StateError(
                f"rows were appended to the source {order.mixture.names[number]!r} so often that the state "
                f"does not know how many of {column!r} each pass had; ask at earlier states, and add up"
            )
        total = 0
        for era, end in zip(eras, [*(era.first for era in eras[1:]), before], strict=True):
            given = max(0, min(end, before) - era.first)
            passes, rest = divmod(given, era.rows or 1)
            unit = order.mixture.units[number] if order.mixture.units else 0
            every = np.arange(era.rows if passes else 0) + unit * order.mixture.version_of(number, era)
            if passes and not changes[number]:
                total += passes * _sum(lengths, number, era.turn, every)
            else:
                turns = range(era.turn, era.turn + passes)
                total += sum(_sum(lengths, number, turn, every) for turn in turns)
            if rest:
                begin = era.first + passes * era.rows
                rows = order.rows_of(number, np.arange(begin, begin + rest))
                total += _sum(lengths, number, era.turn + passes, rows)
        for turn in distinct(turn_left[left]).tolist():
            total -= _sum(lengths, number, turn, row_left[left & (turn_left == turn)])
        totals.append(total)
    return totals


def _sum(lengths: Lengths, number: int, turn: int, rows: Ints) -> int:
    parts = (rows[start : start + _STEP] for start in range(0, len(rows), _STEP))
    return sum(int(lengths(number, turn, part).sum()) for part in parts)
