"""Several rows of another DataRef as one, up to a budget of tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import SupportsIndex, get_args

import numpy as np

from ...order.by_file import equal_runs
from ...order.contract import described
from ...process.buffers import BufferPool
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.messages import warn_user
from ...process.numbers import as_int
from ...process.seeding import seeds_within
from ...reading.contract import identity, known_schema, nameless_pin, row_numbers, taken_of
from ...reading.dataref import DataRef
from ...reading.readahead import Grouped, Prefetch
from ...rows.block import Rows, bounds_of
from ...rows.collector import block_of
from ...rows.node import outermost, path_name
from ...rows.schema import Projection, Schema
from ...rows.types import Ints, Row, Seeds
from ..mixes.arranged import warn_if_arranged
from ..mixes.mix import MixRef
from ..over import GatheredView, Over, RowsOf
from ..scan import RaggedColumn, scan
from .layout import LabelKind, Layout, PackNames, sequences
from .plan import Documents, Members, documents_of_each
from .request import Long, PackCost, Packing, PackReport, Request, packing_of

_LOOKED_AT = 64  # rows, to see which columns are as long as the measured one
_BALANCED_RUNS = 64  # of packs that cost about the same


def packed(
    ref: DataRef,
    column_or_budgets: str | Mapping[str, int],
    budget: SupportsIndex | None = None,
    *,
    cost: PackCost | None = None,
    long: Long = "error",
    max_rows: SupportsIndex | None = None,
    along: Sequence[str] | None = None,
    labels: str | Mapping[str, LabelKind] | None = None,
    ignore_index: int = -100,
    first_position: int = 0,
    documents: bool = False,
    padded: float | Mapping[str, float] | None = None,
    balance: bool = False,
    seed: SupportsIndex = 0,
    layout: PackNames | None = None,
) -> PackedRef | MixedPacks:
    """Rows that are packs of rows: as many as fit into a budget of tokens, end to end.

    Rows are packed by best fit decreasing, now; only their lengths are read. Each epoch fills the same
    packs with other rows of the same lengths. A batch of packs is flat: see docs/packing.md.

    Args:
        column_or_budgets: the column that is measured, a ragged one of numbers or a list of them. Or
            several budgets by name, as in `{"tokens": 8192, "images": 16}`; without `cost`, of columns:
            what counts is the length of a ragged one, else its value.
        budget: how many tokens a pack may have.
        cost: takes columns of many rows, as `where` does, and returns what each row costs, (B,) ints of
            at least 0; or a dict of that by the name of the budget. Only the columns that it looks at are
            read.
        long: what becomes of rows over the budget. "error" raises ValueError; "cut" leaves out the tokens
            beyond it; "split" makes pieces of them, at most as long as the budget; "drop" leaves them
            out. Rows of length 0 are left out. `report()` counts all that is left out.
        max_rows: rows of a pack.
        along: the columns with a value for each token, besides the measured one. By default those that
            are as long in the first rows.
        labels: then packs have `labels`, int64. "same" copies the measured column, for models that shift
            labels by one, as those of transformers do; the first token of each row is `ignore_index`.
            With "shifted" the label of a token is the one that follows it, and that of the last of each
            row is `ignore_index`. A name of another column of tokens copies that one; a dict such as
            `{"labels": "shifted"}` says both.
        ignore_index: see `labels`; padding has it, too.
        first_position: what `position_ids` begin with in each row; 2 for RoBERTa and its like.
        documents: add `document_ids`, which count the rows of a pack, for each token; filled packs have
            them in any case, -1 where they are filled. In a flat batch they count those of all packs.
        padded: fill packs up to the budget with this value in the measured column; or with one for each
            column of tokens by its name, and 0 in others.
        balance: number the packs by the sum of squares of the lengths in them, the highest first, and
            divide them into 64 runs: with `shuffle="block", shuffle_window=1` all ranks work on packs of
            one run, which take about as long.
        seed: any int; another one fills the packs with other rows.
        layout: with "transformers" a batch is the arguments of its models, and nothing else: `input_ids`,
            `labels` and `position_ids`, (1, tokens) or, with `padded`, (packs, budget), of int64. Labels are
            a column of that name, or the tokens. `documents=True` adds where documents begin: `seq_idx`,
            `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`.

    Raises:
        KeyError: there is no such column.
        TypeError: it is not known what a row looks like, rows are not dicts, or the column that is to be
            measured has no value for each token.
        ValueError: rows are over the budget, and the message says how many; a budget is not in
            1..2**31-1; costs are not ints of at least 0; a column has another length than the one that
            is measured, when read.

    Example:
        >>> rows = [{"ids": np.arange(n)} for n in (3, 5, 2, 6)]
        >>> ref = storage.submit(rows, "texts", "1", schema=yoga.Schema.of(rows[0], ragged=["ids"]))
        >>> packed = ref.packed("ids", 8)
        >>> batch = next(iter(yoga.DataLoader(packed, 2)))
        >>> batch["ids"].tolist(), batch["cu_seqlens"].tolist(), batch["rows"].tolist()
        ([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1], [0, 5, 8, 14, 16], [1, 0, 3, 2])
        >>> print(packed.report())
        2 packs of up to 8 tokens: 4 rows, 2.0 a pack, 2 at most; 16 tokens, 0 % padding
    """
    known_schema(ref)
    if layout not in (None, *get_args(PackNames)):
        raise ValueError(f'layout must be "transformers", or None for all columns; found {layout!r:.80}')
    if isinstance(along, str):
        raise TypeError(f"columns are named by a list, as in along=[{along!r}]")
    request = Request.of(ref.schema, column_or_budgets, budget, cost, long, max_rows, balance)
    number = as_int("seed", seed)

    def packs_of(one: DataRef) -> PackedRef:
        warn_if_arranged(one, "packed")
        schema = one.schema
        if schema is not None:
            request.check(schema)
        if padded is not None and schema is not None and (cost or request.column is None):
            raise ValueError(
                "padded needs one budget, of the tokens of a column: they fill the packs up to it"
            )
        packing = packing_of(one, request)
        _warn_of_losses(packing.report, request)
        if schema is None:  # of a version without rows
            return PackedRef(one, packing, None, number)
        made = Layout.of(
            schema,
            _along(one, schema, request, packing.looked, along),
            labels=labels,
            ignored=ignore_index,
            first_position=first_position,
            documents=bool(documents),
            in_pieces=long == "split",
            padding=None if padded is None else (packing.report.budget, padded),
            names=layout,
        )
        return PackedRef(one, packing, made, number)

    recipe = ref._recipe
    return packs_of(ref) if recipe is None else recipe.made_of(MixedPacks, "packed", packs_of)


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


class MixedPacks(MixRef):
    """Packs of documents of several sources in fixed shares: what `mix(...).packed(...)` is."""

    sources: tuple[PackedRef, ...]

    def report(self) -> PackReport:
        """The outcome of packing all sources: how many packs, how full they are, what was left out."""
        some = [source.report() for source in self.sources]
        sums = {
            field.name: sum(getattr(one, field.name) for one in some)
            for field in dataclasses.fields(PackReport)
        }
        return PackReport(**{**sums, "budget": some[0].budget, "most": max(one.most for one in some)})
