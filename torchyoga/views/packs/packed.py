"""Several rows of another DataRef as one, up to a budget of tokens: what rows cost, and the packs of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

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
from ...rows.block import Rows, bounds_of, numbered_within
from ...rows.collector import block_of
from ...rows.node import path_name
from ...rows.schema import Projection, Schema, of_one_length, unknown_column
from ...rows.types import Ints, Json, Row, Seeds
from ..mix import MixRef, warn_if_arranged
from ..over import GatheredView, Over, RowsOf
from ..scan import RaggedColumn, Scanned, lengths_of, rows_at_once, scan
from .layout import LabelKind, Layout, PackNames, are_tokens, places, sequences
from .plan import Documents, Members, PackPlan, documents_of_each, planned


@dataclass(frozen=True)
class PackReport:
    """The outcome of packing rows: what `packed.report()` returns.

    Attributes:
        packs: how many there are.
        rows: rows that are in packs.
        documents: rows and pieces of rows that are in packs.
        tokens: the cost of all documents in the first budget, which are tokens unless it was named.
        budget: the first budget of a pack.
        most: the number of documents in the pack that has the most.
        dropped: rows over the budget that are in no pack.
        cut: tokens over the budget that are in no pack.
        split: rows that were cut into pieces.
        empty: rows of length 0, which are in no pack.

    Example:
        >>> print(PackReport(packs=10, rows=40, documents=40, tokens=1000, budget=101, most=7))
        10 packs of up to 101 tokens: 40 rows, 4.0 a pack, 7 at most; 1000 tokens, 0.99 % padding
    """

    packs: int
    rows: int
    documents: int
    tokens: int
    budget: int
    most: int
    dropped: int = 0
    cut: int = 0
    split: int = 0
    empty: int = 0

    @property
    def padding(self) -> float:
        """The share of the budgets of all packs that is not used, 0 to 1."""
        room = self.packs * self.budget
        return 1 - self.tokens / room if room else 0.0

    @property
    def mean(self) -> float:
        """Documents of a pack on average."""
        return self.documents / max(1, self.packs)

    def __str__(self) -> str:
        found = (
            f"{self.packs} packs of up to {self.budget} tokens: {self.rows} rows, {self.mean:.1f} a pack, "
            f"{self.most} at most; {self.tokens} tokens, {100 * self.padding:.2g} % padding"
        )
        more = {
            f"{self.split} rows split into {self.documents - self.rows + self.split} pieces": self.split,
            f"{self.cut} tokens cut off": self.cut,
            f"{self.dropped} rows dropped": self.dropped,
            f"{self.empty} rows of length 0 left out": self.empty,
        }
        return "; ".join([found, *(text for text, count in more.items() if count)])


# Columns, by name, as arrays of many rows, to what each row costs, or a dict of that by budget.
PackCost: TypeAlias = Callable[[Any], Any]
Long: TypeAlias = Literal["error", "cut", "split", "drop"]  # what becomes of rows over the budget of a pack

_MOST = 2**31 - 1  # tokens: what cu_seqlens, which are int32, may count
_AT_ONCE = 2**20  # rows


@dataclass(frozen=True)
class Request:
    """The request of packs: of what, and how.

    Attributes:
        budgets: what a pack may cost, by name.
        column: the column that is measured; None if budgets were named.
        cost: what rows cost; None for lengths and values of columns.
        long: what becomes of rows over a budget.
        max_rows: documents of a pack.
        balance: packs are numbered by what attention within their documents costs.
    """

    budgets: Mapping[str, int]
    column: str | None
    cost: PackCost | None
    long: Long
    max_rows: int | None
    balance: bool

    @staticmethod
    def of(
        schema: Schema | None,
        column_or_budgets: str | Mapping[str, int],
        budget: SupportsIndex | None,
        cost: PackCost | None,
        long: Long,
        max_rows: SupportsIndex | None,
        balance: bool,
    ) -> Request:
        """A request that was checked; see `DataRef.packed`."""
        if isinstance(column_or_budgets, str):
            if budget is None:
                raise ValueError(
                    f"packed({column_or_budgets!r}) needs a budget, as in packed({column_or_budgets!r}, 4096)"
                )
            column, given = column_or_budgets, {column_or_budgets: budget}
        elif isinstance(column_or_budgets, Mapping):
            if budget is not None or not column_or_budgets:
                raise ValueError(
                    f'budgets are named by a dict, as in packed({{"tokens": 8192, "images": 16}}, cost=...); '
                    f"found {dict(column_or_budgets)!r:.100} and {budget!r}"
                )
            column, given = None, dict(column_or_budgets)
        else:
            raise TypeError(
                f"packed takes a column and a budget, or a dict of budgets; found {column_or_budgets!r:.100}"
            )
        budgets = {name: as_int(f"the budget of {name!r}", most, 1, _MOST) for name, most in given.items()}
        if long not in get_args(Long):
            raise ValueError(f'long must be "error", "cut", "split" or "drop", found {long!r}')
        if cost is not None and not callable(cost):
            raise TypeError(f"cost takes a function of columns, found {cost!r:.80}")
        if column is None and cost is None and len(budgets) == 1 and schema is not None:
            (name,) = budgets
            place = Projection.at(schema, name)
            column = name if are_tokens(place.schema, place.schema.tree, 0) else None
        if long in ("cut", "split") and (cost is not None or (column is None and schema is not None)):
            raise ValueError(
                f"long={long!r} needs one budget, of the tokens of a column: what a part of a row costs "
                'otherwise is not known; use long="drop", or cut the rows before'
            )
        most = None if max_rows is None else as_int("max_rows", max_rows, 1, 2**62)
        return Request(budgets, column, cost, long, most, bool(balance))

    def check(self, schema: Schema) -> None:
        """Raises TypeError if rows do not have the tokens asked for; KeyError if there is no such column."""
        for name in [self.column] if self.column is not None else self.budgets if self.cost is None else ():
            place = Projection.at(schema, name)
            if self.column is None or are_tokens(place.schema, place.schema.tree, 0):
                continue
            found = of_one_length([schema.columns[number] for number in place.columns], name)
            raise TypeError(
                f"packed({name!r}, ...) needs a column with a value for each token: a ragged column of "
                f"numbers, or a list of them; found {found}. To pack by values of "
                'a column, use budgets and cost: packed({"tokens": 4096}, cost=lambda c: c["length"])'
            )

    @property
    def told(self) -> Json:
        """All of it but the function, as JSON data."""
        return {**vars(self), "budgets": dict(self.budgets), "cost": self.cost is not None}

    @property
    def most(self) -> int | None:
        """What `Layout.block` takes: how many tokens a document has whose row may have had more."""
        if self.column is None or self.cost is not None:
            return -1
        return self.budgets[self.column] if self.long in ("cut", "split") else None


class Packing(NamedTuple):
    """The packs of the rows of a DataRef.

    Attributes:
        plan: what they hold.
        report: what packing has come to.
        looked: the columns that were looked at.
        told: how they were packed: `Request.told`.
        most: `Request.most`.
    """

    plan: PackPlan
    report: PackReport
    looked: tuple[str, ...]
    told: Json
    most: int | None


def packing_of(ref: DataRef, request: Request) -> Packing:
    """The packs of the rows of a DataRef; reads nothing but the columns that are measured."""
    looked, costs = _costs_of(ref, request)
    found = _fitting(costs, request.budgets, request.long)
    del costs  # there may be no memory for them and the plan
    budgets = list(request.budgets.values())
    most = np.array(budgets, np.int64)
    plan = planned(found.rows, found.costs, found.begins, len(ref), most, request.balance, request.max_rows)
    pieces = 0 if found.begins is None else int((found.begins > 0).sum())
    report = PackReport(
        packs=len(plan),
        rows=len(found.costs) - pieces,
        documents=len(found.costs),
        tokens=int((plan.sizes * plan.costs).sum()),
        budget=budgets[0],
        most=int(np.diff(plan.slots.bounds).max(initial=0)),
        **found.left,
    )
    return Packing(plan, report, looked, request.told, request.most)


class _Fitting(NamedTuple):
    """The documents to be packed.

    Attributes:
        rows: (M,) the row of each; None for all rows, in order.
        costs: (M, D) what it costs, of each budget.
        begins: (C,) the token that each of the last ones begins with; None if all are whole rows.
        left: by the name in a report, what became of other rows.
    """

    rows: Ints | None
    costs: Ints
    begins: Ints | None
    left: dict[str, int]


def _costs_of(ref: DataRef, request: Request) -> tuple[tuple[str, ...], Ints]:
    """The columns that are measured, and (N, D) what all rows cost."""
    names, looked = tuple(request.budgets), dict.fromkeys(request.budgets)
    whole: Iterator[Ints] = (_of_columns(given, names, start) for start, _, given in scan(ref, names))
    if request.cost is not None:
        looked.clear()
        whole = _by_function(ref, names, request.cost, looked)
    costs = _together(whole, len(ref), len(names))
    return tuple(looked), costs


def _together(whole: Iterable[Ints], count: int, budgets: int) -> Ints:
    """(N, D) the costs of all rows, in 4 bytes each if these are enough."""
    found = cast(Ints, np.empty((count, budgets), np.uint32))
    filled = 0
    for costs in whole:
        if found.dtype == np.uint32 and len(costs) and int(costs.max()) >= 2**32:
            found = found.astype(np.int64)
        found[filled : filled + len(costs)] = costs
        filled += len(costs)
    return found[:filled]


def _of_columns(given: Mapping[str, Scanned], names: Sequence[str], start: int) -> Ints:
    """(B, D) the lengths of ragged columns, the values of others."""
    found = []
    for name in names:
        column = given[name]
        if isinstance(column, RaggedColumn):
            found.append(column.lengths)
        else:
            found.append(_costs(column, len(column), start, f"column {name!r}"))
    return np.stack(found, 1)


def _costs(given: object, count: int, start: int, what: str) -> Ints:
    """(B,) costs that were checked."""
    array = np.asarray(given)
    is_masked = isinstance(given, np.ma.MaskedArray) and bool(np.ma.getmaskarray(given).any())
    if array.shape != (count,) or array.dtype.kind not in "iu" or is_masked:
        raise ValueError(
            f"{what} must give an int of at least 0 for each row: for rows {start} to {start + count - 1} an "
            f"array of ints of shape ({count},); found {'None in ' * is_masked}{array.dtype} of shape "
            f"{array.shape}"
        )
    if count and (int(array.min()) < 0 or int(array.max()) >= 2**62):
        wrong = int(np.flatnonzero((array < 0) | (array >= 2**62))[0])
        raise ValueError(
            f"{what} must give an int of at least 0 for each row, and below 2**62; for row {start + wrong} "
            f"it is {int(array[wrong])}"
        )
    return array.astype(np.int64)


# -- costs by a function


class _Columns(Mapping[str, Scanned]):
    """Columns of some rows, each read when it is first looked at."""

    def __init__(self, schema: Schema, rows: DataRef) -> None:
        self._schema, self._rows = schema, rows
        self.looked: dict[str, Scanned] = {}

    def __getitem__(self, name: str) -> Scanned:
        if name not in self.looked:
            if not isinstance(name, str):
                raise unknown_column(self._schema, name)
            ((_, _, given),) = scan(self._rows, [name], len(self._rows))
            self.looked |= given
        return self.looked[name]

    def __iter__(self) -> Iterator[str]:
        return (column.name for column in self._schema.columns)

    def __len__(self) -> int:
        return len(self._schema.columns)


def _by_function(
    ref: DataRef, names: tuple[str, ...], cost: PackCost, looked: dict[str, None]
) -> Iterator[Ints]:
    """(B, D) what a function says of some rows at a time; adds the columns that it looks at to `looked`."""
    schema = ref.schema
    if schema is None:
        return
    step = rows_at_once([ref], schema)
    for start in range(0, len(ref), step):
        given = _Columns(schema, ref[start : start + step])
        found = cost(given)
        looked |= dict.fromkeys(given.looked)
        if not looked:
            raise ValueError(
                "cost looks at no column, so it cannot say what each row costs; it is called with columns of "
                'many rows, as in lambda c: c["ids"].lengths'
            )
        yield _checked(found, names, min(step, len(ref) - start), start)


def _checked(found: object, names: tuple[str, ...], count: int, start: int) -> Ints:
    """(B, D) what a function says of some rows."""
    if isinstance(found, Mapping):
        if set(found) != set(names):
            raise ValueError(
                f"cost must give what rows cost of each budget: {list(names)}; it gives {list(found)}"
            )
        of_each = [found[name] for name in names]
    elif len(names) == 1:
        of_each = [found]
    else:
        raise ValueError(
            f"cost must return a dict of what rows cost of each budget, {list(names)}; it returned "
            f"{type(found).__name__}"
        )
    more = zip(names, of_each, strict=True)
    return np.stack([_costs(one, count, start, f"cost, of {name!r},") for name, one in more], 1)


# -- rows over the budget


def _fitting(costs: Ints, budgets: Mapping[str, int], long: Long) -> _Fitting:
    """The documents of rows of these costs, (N, D), which are changed if rows are cut."""
    most = np.array(list(budgets.values()), np.int64)
    counts = costs.any(1)
    over: npt.NDArray[np.bool_] = np.asarray((costs > most).any(1))
    left = {"empty": len(costs) - int(np.count_nonzero(counts))}
    longer = np.flatnonzero(over)
    first = next(iter(budgets))
    if len(longer) and long == "error":
        raise _too_long(costs, over, budgets)
    budget, lengths = budgets[first], costs[longer, 0].astype(np.int64)
    if len(longer) and long == "cut":
        left["cut"] = int((lengths - budget).sum())
        np.minimum(costs, budget, out=costs)
        over[:] = False
    counts &= ~over
    if counts.all():
        return _Fitting(None, costs, None, left)
    pieces = np.zeros(0, np.int64)
    if long == "split":
        pieces = -(-lengths // budget)
    elif long == "drop":
        left["dropped"] = len(longer)
    # Room for the pieces from the beginning: there may be no memory for another copy.
    whole = int(np.count_nonzero(counts))
    rows = np.empty(whole + int(pieces.sum()), np.uint32 if len(costs) <= 2**32 else np.int64)
    kept = np.empty((len(rows), len(most)), costs.dtype)
    filled = 0
    for start in range(0, len(counts), _AT_ONCE):
        some = np.flatnonzero(counts[start : start + _AT_ONCE])
        rows[filled : filled + len(some)] = some + start
        kept[filled : filled + len(some)] = costs[start : start + _AT_ONCE][some]
        filled += len(some)
    if not len(pieces):
        return _Fitting(cast(Ints, rows), kept, None, left)
    begins = numbered_within(pieces) * budget
    rows[whole:] = np.repeat(longer, pieces)
    kept[whole:, 0] = np.minimum(np.repeat(lengths, pieces) - begins, budget)
    return _Fitting(cast(Ints, rows), kept, begins, {**left, "split": len(longer)})


def _too_long(costs: Ints, over: npt.NDArray[np.bool_], budgets: Mapping[str, int]) -> ValueError:
    found = []
    for number, (name, budget) in enumerate(budgets.items()):
        some = np.flatnonzero(costs[:, number] > budget)
        if len(some):
            worst = int(some[np.argmax(costs[some, number])])
            found.append(
                f"{len(some)} of {len(costs)} rows have more than {budget} of {name!r}, at most "
                f"{int(costs[worst, number])}, in row {worst}"
            )
    ways = "'cut', 'split' or 'drop'" if len(budgets) == 1 else "'drop'"
    return ValueError(f"{'; '.join(found)}. Choose a larger budget, or say what becomes of them: long={ways}")


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
    """Packs of rows: each holds as many rows, end to end, as fit into a budget of tokens.

    Packs are planned now, by best fit decreasing; only the lengths of rows are read. Each epoch fills the
    same packs with other rows of the same lengths. A batch of packs is flat: see docs/packing.md.

    Args:
        column_or_budgets: the column whose lengths count: a ragged column, or lists, of numbers. Or several
            budgets by name, as in `{"tokens": 8192, "images": 16}`; without `cost` these are names of
            columns, and a row costs the length of a ragged column, or the value of another.
        budget: the most tokens of a pack.
        cost: a function that takes the columns of many rows, as the condition of `where` does, and returns
            the cost of each row, (B,) ints of at least 0, or a dict of such arrays by budget. Only the
            columns that it uses are read.
        long: what to do with a row over the budget: "error" raises ValueError; "cut" leaves out the tokens
            beyond the budget; "split" makes pieces of it, at most as long as the budget; "drop" leaves it
            out. Rows of length 0 are always left out. `report()` counts all that is left out.
        max_rows: the most rows of a pack.
        along: the other columns with a value for each token. By default those that are as long as the
            measured column in the first rows.
        labels: adds `labels`, int64. "same" copies the measured column, for models that shift labels by one,
            as those of transformers do; the first token of each row has the label `ignore_index`. With
            "shifted" the label of a token is the token after it, and the last token of each row has the label
            `ignore_index`. The name of another column of tokens copies that column; a dict such as
            `{"labels": "shifted"}` names a column and one of these two.
        ignore_index: see `labels`; padding has this label, too.
        first_position: what `position_ids` begin with in each row; 2 for RoBERTa and its like.
        documents: adds `document_ids`: the number of each token's row within the pack, or, in a flat batch,
            among the rows of all packs. With `padded` packs always have them, -1 for padding.
        padded: fills packs up to the budget: the value for the measured column, or a dict of values by column
            of tokens; other columns get 0.
        balance: sorts the packs by the sum of squares of the lengths in them, the highest first, and divides
            them into 64 runs: with `shuffle="block", shuffle_window=1` all ranks work on packs of one run,
            which take about as long.
        seed: any int; another one fills the packs with other rows.
        layout: with "transformers" a batch holds the arguments of its models, and nothing else: `input_ids`,
            `labels` and `position_ids`, (1, tokens) or, with `padded`, (packs, budget), of int64. Labels come
            from a column `labels`, or are the tokens. `documents=True` adds where documents begin: `seq_idx`,
            `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`.

    Raises:
        KeyError: there is no such column.
        TypeError: the schema is not known, rows are not dicts, or the measured column has no value for each
            token.
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
    columns = {name: lengths_of(few[name]) for name in dict.fromkeys([*named[:1], *possible])}
    return [name for name, lengths in columns.items() if np.array_equal(lengths, columns[named[0]])]


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
        self, whole: DataRef, packing: Packing, layout: Layout | None, seed: int = 0, epoch: int = 0
    ) -> None:
        super().__init__(whole, packing, layout, seed, epoch)
        self._packing, self._layout = packing, layout
        self._seed, self._epoch = seed, epoch
        self._members = Members(packing.plan, seed, epoch)
        self._pool = BufferPool()

    def __len__(self) -> int:
        return self._packing.report.packs

    _keeps_rows = Over._keeps_rows

    def _taken(self, packs: Ints, seeds: Seeds | None) -> Sequence[Row]:
        assert self._layout is not None, "there are packs"
        documents = self._members.documents(packs)
        ref, numbers = self._read
        own = seeds  # a seed for each row of a pack
        if seeds is not None:
            own = seeds_within(np.repeat(seeds, np.diff(documents.bounds)), documents.rows)
        given = block_of(taken_of(ref, documents.rows, own), ref.schema)
        return Rows(self._layout.block(given, numbers, documents, self._packing.most, self._pool.empty))

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
        wanted = set(layout.wanted)
        if len(wanted) == len(schema.columns):
            return self.whole, {number: number for number in wanted}
        own = {path_name(path): range(first, first + node.num_leaves) for path, node, first in places(schema)}
        of = Projection.of(schema, [name for name, numbers in own.items() if not wanted.isdisjoint(numbers)])
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
        return 0 if self._layout is None else round(self._read[0]._row_bytes * self._packing.report.mean)

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
        told = self._packing.told
        of = nameless_pin(self, self._pinned(self._named(identity(self.whole)) or ""))
        more = {name: told[name] or None for name in ("long", "max_rows", "balance")}
        budget = "+".join(map(str, told["budgets"].values()))
        return described("packed", budget=budget, **more, seed=self._seed, of=of)

    def _pinned(self, whole: str) -> str:
        packing, made = self._packing, self._made
        return hexdigest(json.dumps([whole, "packed", packing.plan.pin, packing.told, self._seed, made]))

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
