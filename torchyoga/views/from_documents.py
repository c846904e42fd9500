"""Packs, windows and batches of documents: of one source, or of each source of a mixture.

What is made of a mixture is mixed of what is made of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, SupportsIndex

import numpy.typing as npt

from ..process.numbers import as_int
from ..reading.contract import known_schema
from ..reading.dataref import DataRef
from ..rows.types import Collate
from .mixes import of_documents as _of_documents
from .mixes.of_documents import MixedBatches, MixedPacks, MixedWindows
from .packs import packed as _packed
from .packs.layout import LabelKind
from .packs.packed import PackedRef
from .packs.request import Long, PackColumns, PackCost, Request
from .tokens import token_batches as _token_batches
from .tokens import token_windows as _token_windows
from .tokens.token_batches import Batching, TokenBatchesRef
from .tokens.token_windows import Cutting, TokenWindowsRef


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
    request = Request.of(ref.schema, column_or_budgets, budget, cost, long, max_rows, balance)
    columns = PackColumns(along, labels, ignore_index, first_position, bool(documents), padded)
    if ref._recipe is not None:
        return _of_documents.packs_of(ref._recipe, lambda one: _packed.packed(one, request, columns, seed))
    return _packed.packed(ref, request, columns, seed)


def token_windows(
    ref: DataRef,
    column: str,
    size: SupportsIndex,
    *,
    stride: SupportsIndex | None = None,
    labels: LabelKind | Literal[False] | None = "same",
    shuffle_documents: bool = False,
    jitter: bool = False,
    separator: float | None = None,
    documents: bool = False,
    dtype: npt.DTypeLike | None = None,
    lengths: npt.ArrayLike | None = None,
    seed: SupportsIndex = 0,
    ignore_index: SupportsIndex | None = None,
) -> TokenWindowsRef | MixedWindows:
    """Rows that are windows of tokens: all documents laid end to end, and cut.

    A row is a dict: `column` (size,), and "labels" (size,), the same tokens. Only lengths are kept, 8
    bytes for each document; of a cached version only the tokens of a window are read. What fills no
    window is left out; `tokens_left_out` of the result counts it.

    Args:
        column: of documents: arrays of one dimension that differ in length, lists of numbers, or text,
            whose tokens are its bytes in UTF-8. Documents may be empty.
        size: tokens of a window.
        stride: tokens from one window to the next; `size` by default. A smaller one makes them overlap.
        labels: "same" as the tokens, for models that shift them by one, as those of transformers do.
            "shifted" by one here, for loops that compare scores with labels as they are; then a window
            needs one token more than its own. None or False for no labels.
        shuffle_documents: lay the documents in another order each epoch: blocks of 4,096 change places,
            and so do the documents within each. Else they lie as they are stored.
        jitter: begin at another token each epoch, in 0..stride - 1, so that the cuts differ. There are
            as many windows in each.
        separator: a token that is laid after each document, such as that of the end of a text.
        documents: True adds what packs have, so that attention is kept within documents:
            "position_ids" (size,), from 0 in each document or piece of one; "document_ids" (size,), which
            count these; "rows", "lengths" and "begins" of each: its row, its tokens, and the token of the
            row that it begins with. Batches have "cu_seqlens", "max_seqlen" and "packs" besides, over the
            tokens of all windows. A separator is of the document before it.
        dtype: of the tokens in a window, such as "int64"; by default that in which they are stored. It
            must be able to hold all values of that.
        lengths: (N,) of the documents, if you know them; else they are read now. They must be right.
        seed: the orders and beginnings of all epochs follow from it.
        ignore_index: the label of what a document begins with, as in packs: nothing foresees it from the
            end of the document before. Labels are int64 then. By default -100 with `documents`, where
            that goes for what a window begins with, too; None leaves labels as they are without.

    Raises:
        KeyError: there is no such column.
        TypeError: it does not hold documents, or it is not known what a row looks like.
        ValueError: an argument is out of range, the separator is not a value of the column, or lengths
            are not one for each row.

    Example:
        >>> documents = storage.submit(
        ...     [{"ids": np.arange(5)}, {"ids": np.arange(10, 14)}], "lines", "1",
        ...     schema=yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]), progress=False
        ... )
        >>> windows = documents.token_windows("ids", 4)
        >>> [(row["ids"].tolist(), row["labels"].tolist()) for row in windows]
        [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 10, 11, 12], [4, 10, 11, 12])]
        >>> documents.token_windows("ids", 4, labels="shifted", ignore_index=-100)[1]["labels"].tolist()
        [-100, 11, 12, 13]
        >>> windows.tokens_left_out
        1
    """
    known_schema(ref)
    size = as_int("the tokens of a window", size)
    if ignore_index is None and documents and labels:
        ignore_index = -100
    cutting = Cutting(
        size,
        size if stride is None else as_int("stride", stride),
        None if labels is False else labels,
        bool(shuffle_documents),
        bool(jitter),
        separator,
        bool(documents),
        as_int("seed", seed),
        None if ignore_index is None else as_int("ignore_index", ignore_index),
    )
    if ref._recipe is not None:
        if lengths is not None:
            raise ValueError("lengths are of one source: cut each into windows by them, then mix those")
        return _of_documents.windows_of(
            ref._recipe, lambda one: _token_windows.token_windows(one, column, cutting, dtype, None)
        )
    return _token_windows.token_windows(ref, column, cutting, dtype, lengths)


def token_batches(
    ref: DataRef,
    column_or_lengths: str | npt.ArrayLike,
    budget: SupportsIndex,
    *,
    pool: SupportsIndex | None = None,
    max_rows: SupportsIndex | None = None,
    multiple_of: SupportsIndex = 1,
    long: Literal["error", "drop"] = "error",
    padding: float = 0,
    collate: Collate | None = None,
    seed: SupportsIndex = 0,
) -> TokenBatchesRef | MixedBatches:
    """Rows that are whole batches: as many rows of like length as fit, padded, into a budget.

    Rows are sorted by length and cut into batches, once. Each epoch rows of equal length change places,
    so there are as many batches in every epoch, of the same shapes, and each row is in one of them. Load
    them one by one, with `batch_size=None`: then every rank has as many.

    Args:
        column_or_lengths: a ragged column, whose lengths count; or (N,) the length of each row.
        budget: elements of a batch: rows x longest is at most that, and so is the number of rows.
        pool: rows that are sorted among each other: with it a batch has rows of one of many pools, drawn
            from all rows once, and less like lengths. By default all are sorted.
        max_rows: of a batch.
        multiple_of: lengths are padded to a multiple of it.
        long: "error" refuses rows longer than the budget, "drop" leaves them out with a warning;
            `report()` of the result counts them.
        padding: what rows are filled up with: each batch is what `yoga.padded(padding)` makes.
        collate: makes a batch of its rows instead, such as `yoga.jagged`.
        seed: the pools, and the places of rows in all epochs, follow from it.

    Raises:
        KeyError: there is no such column.
        TypeError: it is not ragged, or lengths are no whole numbers.
        ValueError: rows are longer than the budget, or an argument is out of range.

    Example:
        >>> texts = storage.submit(
        ...     [{"ids": np.arange(n)} for n in (3, 1, 2, 6)], "some", "1",
        ...     schema=yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]), progress=False
        ... )
        >>> batches = texts.token_batches("ids", 6)
        >>> [tuple(batch["ids"].values.shape) for batch in yoga.DataLoader(batches, batch_size=None)]
        [(1, 6), (2, 3), (1, 1)]
        >>> batches.report().padding
        0.07692307692307687
    """
    batching = Batching(budget, pool, max_rows, multiple_of, long, padding, collate, seed)
    if ref._recipe is not None:
        if not isinstance(column_or_lengths, str):
            raise ValueError("lengths are of one source: make batches of each by them, then mix those")
        return _of_documents.batches_of(
            ref._recipe, lambda one: _token_batches.token_batches(one, column_or_lengths, batching)
        )
    return _token_batches.token_batches(ref, column_or_lengths, batching)
