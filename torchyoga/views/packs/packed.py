"""Several rows of another DataRef as one, up to a budget of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import SupportsIndex

import numpy as np

from ...order.by_file import equal_runs
from ...order.saved import described
from ...process.buffers import BufferPool
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.numbers import as_int
from ...process.seeding import seeds_within
from ...process.warned import warn_user
from ...reading.contract import identity, nameless_pin, row_numbers, taken_of
from ...reading.dataref import DataRef
from ...reading.readahead import Grouped, Prefetch
from ...rows.block import Rows
from ...rows.collector import block_of
from ...rows.data import bounds_of
from ...rows.node import outermost, path_name
from ...rows.projection import Projection
from ...rows.schema import Schema
from ...rows.types import Ints, Row, Seeds
from ..mixes.arranged import warn_if_arranged
from ..over import GatheredView, Over, RowsOf
from ..ragged import RaggedColumn
from ..scan import scan
from .layout import Layout, sequences
from .members import Documents, Members, documents_of_each
from .report import PackReport
from .request import PackColumns, Packing, Request, packing_of

_LOOKED_AT = 64  # rows, to see which columns are as long as the measured one
_BALANCED_RUNS = 64  # of packs that cost about the same


def packed(
    ref: DataRef,
    request: Request,
    columns: PackColumns,
    seed: SupportsIndex,
) -> PackedRef:
    """Rows that are packs of rows: see `DataRef.packed`.

    Args:
        ref: the rows.
        request: how they are packed.
        columns: what the packs hold.
        seed: of the order in which they fill the packs.
    """
    number = as_int("seed", seed)
    warn_if_arranged(ref, "packed")
    if isinstance(columns.along, str):
        raise TypeError(f"columns are named by a list, as in along=[{columns.along!r}]")
    schema, padded = ref.schema, columns.padded
    if schema is not None:
        request.check(schema)
    if padded is not None and schema is not None and (request.cost or request.column is None):
        raise ValueError("padded needs one budget, of the tokens of a column: they fill the packs up to it")
    packing = packing_of(ref, request)
    _warn_of_losses(packing.report, request)
    if schema is None:  # of a version without rows
        return PackedRef(ref, packing, None, number)
    layout = Layout.of(
        schema,
        _along(ref, schema, request, packing.looked, columns.along),
        labels=columns.labels,
        ignored=columns.ignore_index,
        first_position=columns.first_position,
        documents=columns.documents,
        in_pieces=request.long == "split",
        padding=None if padded is None else (packing.report.budget, padded),
    )
    return PackedRef(ref, packing, layout, number)


def _warn_of_losses(report: PackReport, request: Request) -> None:
    """Says what is in no pack, and is not empty."""
    if report.cut:
        warn_user(
            f"packed: {report.cut} tokens of {report.cut + report.tokens} are in no pack, for rows are cut "
            f"to {report.budget}: long='cut'"
        )
    if report.dropped:
        total = report.rows + report.dropped + report.empty
        warn_user(
            f"packed: {report.dropped} of {total} rows are over the budget, and in no pack: long='drop'"
        )
    if report.empty and request.cost is not None:
        warn_user(f"packed: {report.empty} rows cost nothing, so they are in no pack")


def _along(
    ref: DataRef, schema: Schema, request: Request, looked: Sequence[str], given: Sequence[str] | None
) -> list[str]:
    """The columns with a value for each token, the measured one first."""
    possible = sequences(schema)
    named = [] if request.column is None else [request.column]
    if given is not None:
        found = list(dict.fromkeys([*named, *given]))
        if found:
            return found
    if not named:
        named = [name for name in looked if name in possible] or possible[:2]
        if len(named) != 1 and len(possible) != 1:
            raise ValueError(
                f"it is not clear which column has the tokens: {possible or 'none is ragged'}; say it by "
                "along=[...]"
            )
    few = ref[:_LOOKED_AT]
    if given is not None or not len(few):
        return named[:1]
    columns = {name: _lengths(few, name) for name in dict.fromkeys([*named[:1], *possible])}
    return [name for name, lengths in columns.items() if np.array_equal(lengths, columns[named[0]])]


def _lengths(few: DataRef, name: str) -> Ints:
    """The lengths of some rows of a column."""
    found = []
    for _, _, given in scan(few, [name]):
        column = given[name]
        assert isinstance(column, RaggedColumn), "sequences are ragged"
        found.append(column.lengths)
    return np.concatenate(found)


class PackedRef(GatheredView):
    """Packs of rows of another DataRef: what `ref.packed(...)` is.

    Args:
        whole: the other DataRef.
        packing: which of its rows are in which pack.
        layout: what a pack is made of; None if `whole` has no rows and no schema.
        seed: of the order in which rows fill the packs.
        epoch: whose members the packs have.

    Attributes:
        whole: the other DataRef.
    """

    def __init__(
        self,
        whole: DataRef,
        packing: Packing,
        layout: Layout | None,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        super().__init__(whole, packing, layout, seed, epoch)
        self._packing, self._layout = packing, layout
        self._seed, self._epoch = seed, epoch
        self._members = Members(packing.plan, seed, epoch)
        self._pool = BufferPool()

    def __len__(self) -> int:
        return self._packing.report.packs

    def __reduce__(self) -> tuple[object, ...]:
        return PackedRef, (self.whole, self._packing, self._layout, self._seed, self._epoch)

    _keeps_rows = Over._keeps_rows

    def _taken(self, packs: Ints, seeds: Seeds | None) -> Sequence[Row]:
        assert self._layout is not None, "there are packs"
        documents = self._members.documents(packs)
        ref, numbers = self._read
        own = seeds  # a seed for each row of a pack
        if seeds is not None:
            own = seeds_within(np.repeat(seeds, np.diff(documents.bounds)), documents.rows)
        given = block_of(taken_of(ref, documents.rows, own), ref.schema)
        most, empty = self._packing.most, self._pool.empty
        return Rows(self._layout.block(given, numbers, documents, most, empty))

    def opened(self, parts: Sequence[RowsOf]) -> list[RowsOf] | None:
        """The documents of packs of several DataRefs; None if these are not made alike."""
        return self._documents_of(parts)[0] if self._are_alike(parts) else None

    def together(
        self, parts: Sequence[RowsOf], read: Callable[[Iterable[RowsOf], int], Sequence[Row]]
    ) -> Sequence[Row] | None:
        """Packs of several DataRefs: all of their documents are read at once."""
        if not self._are_alike(parts):
            return None
        assert self._layout is not None, "there are packs"
        wholes, documents = self._documents_of(parts)
        ref, numbers = self._read
        given = block_of(read(wholes, len(documents.rows)), ref.schema)
        return Rows(self._layout.block(given, numbers, documents, self._packing.most, self._pool.empty))

    def _are_alike(self, parts: Sequence[RowsOf]) -> bool:
        """True if these are packs that are made as its own are."""
        layout, most = self._layout, self._packing.most
        return layout is not None and all(
            type(view) is PackedRef
            and (view._layout is layout or view._made == self._made)
            and view._packing.most == most
            for view, _, _ in parts
        )

    @staticmethod
    def _documents_of(parts: Sequence[RowsOf]) -> tuple[list[RowsOf], Documents]:
        """The documents of packs that are made alike: where they are read, and all of them in order."""
        views, places, packs = zip(*parts, strict=True)
        bounds = bounds_of(map(len, packs))
        found = documents_of_each([view._members for view in views], bounds, np.concatenate(packs))
        counts, place = np.diff(found.bounds), np.concatenate(places)
        ordered = np.empty_like(counts)
        ordered[place] = counts
        ends = bounds_of(ordered)
        # Where each document comes, and where it is found.
        to = np.repeat(ends[place] - found.bounds[:-1], counts) + np.arange(len(found.rows))
        back = np.empty_like(to)
        back[to] = np.arange(len(to))
        begins = None if found.begins is None else found.begins[back]
        wholes = [
            (view._read[0], to[low:high], found.rows[low:high])
            for view, (low, high) in zip(views, pairwise(found.bounds[bounds].tolist()), strict=True)
        ]
        return wholes, Documents(ends, found.rows[back], found.costs[back], begins)

    @cached_property
    def _made(self) -> str | None:
        """A name for how packs are laid out."""
        return None if self._layout is None else self._layout.pin

    @cached_property
    def _read(self) -> tuple[DataRef, dict[int, int]]:
        """What is read of the whole; and by the number of a column there, its number here."""
        schema, layout = self.whole.schema, self._layout
        assert schema is not None, "else there is no layout"
        assert layout is not None
        wanted, names, first = set(layout.wanted), [], 0
        if len(wanted) == len(schema.columns):
            return self.whole, {number: number for number in wanted}
        for path, node in outermost(schema.tree):
            if wanted & set(range(first, first + node.num_leaves)):
                names.append(path_name(path))
            first += node.num_leaves
        of = Projection.of(schema, names)
        is_all = len(of.columns) == len(schema.columns)
        ref = self.whole if is_all else self.whole._projected(of)
        return ref, {number: place for place, number in enumerate(of.columns)}

    def report(self) -> PackReport:
        """The outcome of packing: how many packs, how full they are, what was left out."""
        return self._packing.report

    def members(self, packs: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The rows of the whole (S,) in these packs, in this epoch, and where each pack begins (B + 1,)."""
        documents = self._members.documents(row_numbers(np.atleast_1d(np.asarray(packs)), len(self)))
        return documents.rows, documents.bounds

    def in_epoch(self, epoch: int) -> PackedRef:
        """The same packs with the members that they have in an epoch."""
        whole = self.whole.in_epoch(epoch)
        if whole is self.whole and epoch == self._epoch:
            return self
        found = PackedRef(whole, self._packing, self._layout, self._seed, epoch)
        found._pool = self._pool
        if whole is self.whole and self._layout is not None:
            found._read, found._made = self._read, self._made
        return found

    def _projected(self, of: Projection) -> PackedRef:
        """The same packs with these columns; nothing is read for the others but lengths."""
        assert self._layout is not None, "else there is no schema to project"
        layout = self._layout.projected(of)
        return PackedRef(self.whole, self._packing, layout, self._seed, self._epoch)

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of what is read for a pack; 0 if the whole does not know."""
        if self._layout is None:
            return 0
        return round(self._read[0]._row_bytes * self._packing.report.mean)

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """The whole's, for all rows of the packs."""
        whole = None if self._layout is None else self._read[0]._prefetch
        return None if whole is None else Grouped(whole, self._members_of)

    def _members_of(self, packs: Ints) -> tuple[Ints, Ints]:
        """How many rows each pack holds, and these."""
        documents = self._members.documents(packs)
        return np.diff(documents.bounds), documents.rows

    @property
    def file_starts(self) -> Ints:
        """Runs of 4096 packs, whose rows are of all files; of balanced ones, 64 runs that cost alike."""
        length = len(self)
        if not self._packing.told["balance"] or length < 2 * _BALANCED_RUNS:
            return equal_runs(length)
        return np.arange(_BALANCED_RUNS + 1) * length // _BALANCED_RUNS

    @cached_property
    def _view_pin(self) -> str | None:
        """How packs are made, and which rows they hold."""
        told, of = (
            self._packing.told,
            nameless_pin(self, self._pinned(self._named(identity(self.whole)) or "")),
        )
        more = {name: told[name] or None for name in ("long", "max_rows", "balance")}
        budget = "+".join(map(str, told["budgets"].values()))
        return described("packed", budget=budget, **more, seed=self._seed, of=of)

    def _pinned(self, whole: str) -> str:
        packing, made = self._packing, self._made
        told = {**packing.told, "budgets": list(packing.told["budgets"].items())}
        return hexdigest(json.dumps([whole, "packed", packing.plan.pin, told, self._seed, made]))

    @property
    def schema(self) -> Schema | None:
        """How a pack looks; None if the whole has no rows."""
        return None if self._layout is None else self._layout.schema

    def _title(self) -> str:
        return f"packs of {super()._title()}"
