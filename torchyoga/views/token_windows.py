"""Windows of tokens over the documents of another DataRef, laid end to end: what language models train on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from ..order.contract import described
from ..process.buffers import BufferPool
from ..process.digests import hexdigest, keyed_words
from ..process.lazy import cached_property
from ..process.messages import warn_user
from ..process.numbers import as_int, distinct
from ..reading.contract import identity, known_schema, nameless_pin, row_numbers
from ..reading.dataref import DataRef
from ..reading.readahead import Grouped, Prefetch
from ..reading.stream import in_epoch
from ..rows.block import Block, Data, Rows, bounds_of, numbered_within
from ..rows.column import Column
from ..rows.node import Node, path_name
from ..rows.schema import PACK_LENGTHS, Projection, Schema, of_one_length, schema_under
from ..rows.types import Array, Ints, Row, Seeds
from .mix import MixRef, warn_if_arranged
from .over import Over, keeps_names, named_rows
from .packs.layout import LabelKind
from .scan import lengths_of

_MOST = 2**62


def checked_lengths(given: npt.ArrayLike, count: int) -> Ints:
    """Lengths of rows that a user gave, as int64.

    Args:
        given: (N,) whole numbers of at least 0.
        count: N.

    Raises:
        TypeError: they are no whole numbers.
        ValueError: there are not as many, or one is below 0, or all together are over 2**62.
    """
    found = np.asarray(given)
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"lengths must be whole numbers, found {found.dtype}")
    if found.shape != (count,):
        raise ValueError(f"lengths must be one for each of the {count} rows, found the shape {found.shape}")
    if count and (int(found.min()) < 0 or int(found.max()) > _MOST or found.sum(dtype=float) > _MOST):
        raise ValueError(
            f"lengths must be at least 0, and at most 2**62 together; found {found.min()} to {found.max()}"
        )
    return found.astype(np.int64)


class Pieces(NamedTuple):
    """The pieces of documents that runs of tokens consist of, run after run.

    Attributes:
        counts: (B,) pieces of each run.
        documents: (P,) the number of each piece's document.
        starts: (P,) the first token of each, within its document.
        stops: (P,) the token after its last.
    """

    counts: Ints
    documents: Ints
    starts: Ints
    stops: Ints


def cut(ends: Ints, positions: Ints, size: int) -> Pieces:
    """The pieces of the runs of `size` tokens that begin at these positions (B,).

    Args:
        ends: (D + 1,) the position at which each document begins, and the number of tokens; none is empty.
        positions: where runs begin.
        size: of a run.

    Example:
        >>> cut(np.array([0, 3, 8, 9]), np.array([1, 6]), 3)[1:]
        (array([0, 1, 1, 2]), array([1, 0, 3, 0]), array([3, 1, 5, 1]))
    """
    stops = positions + size
    first = np.searchsorted(ends, positions, "right") - 1
    counts = np.searchsorted(ends, stops - 1, "right") - first
    if int(counts.max(initial=1)) == 1:
        begins = ends[first]
        return Pieces(counts, first, positions - begins, stops - begins)
    documents = np.repeat(first, counts) + numbered_within(counts)
    begins, following = ends[documents], ends[documents + 1]
    starts = np.maximum(np.repeat(positions, counts) - begins, 0)
    return Pieces(counts, documents, starts, np.minimum(np.repeat(stops, counts), following) - begins)


_MOST_TOKENS = 2**30  # of a window
_FURTHEST = 2**61  # from one window to the next
_LONG = 8  # times as long as a window: documents of which announcing all would be waste
_LABELS, _DOCUMENTS, _POSITIONS = "labels", "document_ids", "position_ids"
_OF_PIECES = ("rows", PACK_LENGTHS, "begins")
_NUMBERS, _TEXTS = ("ndarray", "tensor", "int", "float", "bool"), ("str", "bytes")


@dataclass(frozen=True)
class Cutting:
    """How a line of tokens is cut into windows; see `DataRef.token_windows`.

    Raises:
        ValueError: `labels` are of another kind, or there are none for `ignore_index`.
    """

    size: int
    stride: int
    labels: LabelKind | None
    jitter: bool
    separator: float | None
    documents: bool
    seed: int
    ignore_index: int | None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels not in get_args(LabelKind):
            raise ValueError(
                'labels must be "same" as the tokens, which the model shifts, "shifted" by one here, or '
                f"None for none; found {self.labels!r:.80}"
            )
        if self.ignore_index is not None and self.labels is None:
            raise ValueError(
                f"ignore_index={self.ignore_index} is a label, and there are none; give labels, or leave it "
                "out"
            )

    @property
    def shift(self) -> int:
        """How far the labels lie behind the tokens."""
        return int(self.labels == "shifted")

    @property
    def read(self) -> int:
        """Tokens that are read for a window."""
        return self.size + self.shift


def token_windows(
    ref: DataRef,
    column: str,
    size: SupportsIndex,
    *,
    stride: SupportsIndex | None = None,
    labels: LabelKind | Literal[False] | None = "same",
    jitter: bool = False,
    separator: float | None = None,
    documents: bool = False,
    dtype: npt.DTypeLike | None = None,
    lengths: npt.ArrayLike | None = None,
    seed: SupportsIndex = 0,
    ignore_index: SupportsIndex | None = None,
    as_tuple: bool = False,
) -> TokenWindowsRef | MixRef:
    """Windows of tokens: all documents are laid end to end, and cut into windows of one size.

    A row is a dict: `column` (size,), and "labels" (size,), the same tokens. Only lengths are kept, 8 bytes
    for each document; of a cached version only the tokens of a window are read. Tokens that fill no window
    are left out; `tokens_left_out` of the result counts them.

    Args:
        column: the column of documents: arrays of one dimension that differ in length, lists of numbers, or
            text, whose tokens are its bytes in UTF-8. Documents may be empty.
        size: tokens of a window.
        stride: tokens from one window to the next; `size` by default. A smaller one makes them overlap.
        labels: "same" copies the tokens, for models that shift labels by one, as those of transformers do.
            With "shifted" the label of a token is the token after it, for loops that do not shift labels; a
            window then reads one token more. None or False for no labels.
        jitter: True begins each epoch at another token, in 0..stride - 1, so that the cuts differ. Every
            epoch has the same number of windows.
        separator: a token that is put after each document, such as the end-of-text token.
        documents: True adds what packs have, so that attention is kept within documents: "position_ids"
            (size,), from 0 in each document or piece of one; "document_ids" (size,), which number these
            pieces; "rows", "lengths" and "begins" of each piece: its row, its number of tokens, and its first
            token's place in the row. Batches also have "cu_seqlens", "max_seqlen" and "packs", over the
            tokens of all windows. A separator belongs to the document before it.
        dtype: the dtype of the tokens in a window, such as "int64", which must hold all values of the stored
            dtype; by default the stored dtype.
        lengths: (N,) the lengths of the documents, if you know them, which must be right; else they are read
            now.
        seed: any int; with `jitter` the first token of each epoch follows from it.
        ignore_index: the label for predicting the first token of a document, as in packs: it does not follow
            from the document before. Labels are then int64. By default -100 with `documents`, which also
            ignores the first token of a window; else None, which changes no label.
        as_tuple: True for rows (tokens, labels) in place of dicts: `for x, y in loader`.

    Raises:
        KeyError: there is no such column.
        TypeError: the column does not hold documents, or the schema is not known.
        ValueError: an argument is out of range, the separator is not a value of the column, or there is not
            one length for each row.

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
    size = as_int("the tokens of a window", size, 1, _MOST_TOKENS)
    if ignore_index is None and documents and labels:
        ignore_index = -100
    cutting = Cutting(
        size,
        size if stride is None else as_int("stride", stride, 1, _FURTHEST),
        None if labels is False else labels,
        bool(jitter),
        separator,
        bool(documents),
        as_int("seed", seed),
        None if ignore_index is None else as_int("ignore_index", ignore_index, -(2**63), 2**63 - 1),
    )
    if as_tuple and (documents or not labels):
        raise ValueError(
            f"as_tuple=True is for tokens and their labels; found labels={labels!r}, documents={documents!r}"
        )

    def windows_of(one: DataRef) -> TokenWindowsRef:
        warn_if_arranged(one, "token_windows")
        if one.schema is None:  # of a version without rows
            return TokenWindowsRef(Tokens(one, one, None, np.zeros(1, np.int64), None, cutting))
        texts = one._projected(Projection.at(one.schema, column))
        assert texts.schema is not None
        kept = _column(column, texts.schema, dtype)
        own = cutting
        if own.separator is not None:
            own = replace(own, separator=_checked_separator(own.separator, kept, texts.schema.columns[0]))
        schema = _schema(column, kept, own)
        if as_tuple:
            schema = schema_under(replace(schema.tree, kind="tuple", keys=()), schema.columns)
        found = lengths_of(texts) if lengths is None else checked_lengths(lengths, len(one))
        if own.separator is not None:
            found = found + 1
        some = None
        if len(found) and not found.all():
            some = np.flatnonzero(found)
            found = found[some]
        ends = bounds_of(found)
        made = TokenWindowsRef(Tokens(one, texts, schema, ends, some, own))
        if not len(made) and len(one):
            warn_user(f"there are no windows: each needs {own.read} tokens, and there are {ends[-1]}")
        return made

    if ref._recipe is None:
        return windows_of(ref)
    if lengths is not None:
        raise ValueError("lengths are of one source: cut each into windows by them, then mix those")
    return ref._recipe.made_of(MixRef, "token_windows", windows_of)


def _column(name: str, schema: Schema, dtype: npt.DTypeLike | None) -> Column:
    """The column of a window's tokens but for its shape; raises TypeError where there are no tokens."""
    found = schema.columns[0]
    is_list = schema.tree.kind == "varying"
    if not schema.is_sequence or found.ndim != 1 or found.kind not in (*_NUMBERS, *_TEXTS):
        raise TypeError(
            f"column {name!r} does not hold documents: {of_one_length(schema.columns, name)}; a document is "
            "an array of one dimension that differs in length (named in Schema.of(row, ragged=[...])), a "
            "list of numbers, or text"
        )
    kind, stored = found.kind, found.dtype
    if is_list or found.kind in _TEXTS:
        kind, stored = "ndarray", found.storage.str
    if dtype is not None:
        wanted = np.dtype(dtype)
        is_known = found.kind != "tensor" or hasattr(np, found.dtype)
        if wanted.kind not in "iuf" or not is_known or not np.can_cast(found.storage, wanted, "safe"):
            raise ValueError(f"dtype={wanted} cannot hold every value of column {found}")
        kind, stored = "ndarray", wanted.newbyteorder("<").str
    return Column(path_name((name,)), kind, stored, (0,), 1)


def _checked_separator(separator: float, column: Column, stored: Column) -> int | float:
    values = np.zeros(1, stored.storage if stored.kind in _TEXTS else column.storage)
    try:
        values[0] = separator
        is_same = values[0] == separator and not isinstance(separator, (str, bytes))
    except (OverflowError, ValueError, TypeError):
        is_same = False
    if not is_same or (column.kind == "tensor" and not hasattr(np, column.dtype)):
        raise ValueError(
            f"separator={separator!r} is not a value of column {column.name!r}, which is of {column.dtype}"
        )
    found: int | float = values[0].item()
    return found


def _schema(name: str, column: Column, cutting: Cutting) -> Schema:
    keys = [name]
    columns = [replace(column, shape=(cutting.size,))]
    if cutting.labels:
        keys.append(_LABELS)
        labels = replace(columns[0], name=path_name((_LABELS,)))
        if cutting.ignore_index is not None:
            if not np.can_cast(labels.storage, np.int64):
                raise ValueError(
                    f"with ignore_index labels are int64, but column {name!r} holds {column.dtype}; take "
                    "whole numbers"
                )
            labels = replace(labels, kind="ndarray", dtype="<i8")
        columns.append(labels)
    for key in (_POSITIONS, _DOCUMENTS, *_OF_PIECES) if cutting.documents else ():
        keys.append(key)
        shape = None if key in _OF_PIECES else (cutting.size,)
        columns.append(Column(path_name((key,)), "ndarray", "<i8", shape, 1))
    if len(set(keys)) < len(keys):
        raise ValueError(
            f"the column is named {name!r}, as another column of the windows would be; name it otherwise "
            f"with map_batches, or leave that one out (labels=None, documents=False)"
        )
    by_token = tuple(column.name for key, column in zip(keys, columns, strict=True) if key not in _OF_PIECES)
    packed = (*by_token, PACK_LENGTHS) if cutting.documents else ()
    return Schema(Node("dict", tuple(keys), (Node("leaf"),) * len(keys)), tuple(columns), packed)


def _shortened(pieces: Pieces, by: int) -> Pieces:
    """The pieces of runs of tokens without the last token of each run, or as they are."""
    if not by:
        return pieces
    stops = pieces.stops.copy()
    last = np.cumsum(pieces.counts) - 1
    stops[last] -= 1
    kept = stops > pieces.starts
    counts = pieces.counts - (~kept)[last]
    return Pieces(counts, pieces.documents[kept], pieces.starts[kept], stops[kept])


class Tokens(NamedTuple):
    """Documents laid end to end, and how windows are cut out of them.

    Attributes:
        whole: the other DataRef.
        column: its column of documents.
        schema: what a row looks like; None if `whole` has no rows and no schema.
        ends: (D + 1,) prefix sums of the tokens of the documents, without those that have none.
        rows: (D,) the row of each of these documents; None if that is its number.
        cutting: how they are cut.
        epoch: in which epoch.
    """

    whole: DataRef
    column: DataRef
    schema: Schema | None
    ends: Ints
    rows: Ints | None
    cutting: Cutting
    epoch: int = 0


class TokenWindowsRef(Over):
    """Windows of tokens: what `ref.token_windows(...)` is.

    Args:
        tokens: what they are cut out of.

    Attributes:
        whole: the other DataRef.
        num_tokens: of all documents, with separators.
    """

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens.whole)
        self._all = tokens
        _, self._column, self._schema, self._ends, self._rows, cutting, epoch = tokens
        self._source = in_epoch(self._column, 0, 0)
        self._cutting, self._epoch = cutting, epoch
        self._pool = BufferPool()
        self.num_tokens = int(self._ends[-1])
        spare = self.num_tokens - cutting.read  # tokens after the first window, if it begins with the first
        span = min(cutting.stride, spare + 1) if cutting.jitter else 1
        self._length = (spare - span + 1) // cutting.stride + 1 if spare >= 0 else 0
        self._offset = 0
        if cutting.jitter and span > 1:
            (word,) = keyed_words(1, "token windows", cutting.seed, epoch).tolist()
            self._offset = word % span

    def __reduce__(self) -> tuple[object, ...]:
        return TokenWindowsRef, (self._all,)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens_left_out(self) -> int:
        """Tokens that are in no window of an epoch; with jitter other ones in each epoch, but as many.

        Those are the tail, which fills no window, what lies before the first one because of jitter, and, if
        the stride is longer than a window, what lies between two.
        """
        size, stride, count = self._cutting.read, self._cutting.stride, len(self)
        covered = count * size if stride >= size else (count - 1) * stride + size
        return self.num_tokens - (covered if count else 0)

    def _pieces(self, numbers: Ints) -> Pieces:
        return cut(self._ends, self._offset + self._cutting.stride * numbers, self._cutting.read)

    def _rows_of(self, documents: Ints) -> Ints:
        return documents if self._rows is None else self._rows[documents]

    _keeps_rows = Over._keeps_rows
    _is_random = DataRef._is_random  # documents are those of epoch 0 with seed 0

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        assert self._schema is not None, "there are windows"
        cutting, pieces = self._cutting, self._pieces(rows)
        tokens = self._tokens(pieces).reshape(len(rows), cutting.read) if self._reads_tokens else None
        own = _shortened(pieces, cutting.shift) if cutting.documents else pieces
        lengths, bounds = own.stops - own.starts, bounds_of(own.counts)
        found = []
        for key, column in zip(self._keys, self._schema.columns, strict=True):
            is_label = key == _LABELS and cutting.labels is not None
            if cutting.documents and key in _OF_PIECES:
                of_each = {"rows": self._rows_of(own.documents), PACK_LENGTHS: lengths}
                found.append(Data(of_each.get(key, own.starts), bounds))
                continue
            if cutting.documents and key in (_POSITIONS, _DOCUMENTS):
                numbers = numbered_within(own.counts if key == _DOCUMENTS else lengths)
                numbers = np.repeat(numbers, lengths) if key == _DOCUMENTS else numbers
                values: Array = numbers.reshape(len(rows), cutting.size)
            else:
                assert tokens is not None
                values = tokens[:, cutting.shift if is_label else 0 :][:, : cutting.size]
            # Each in memory of its own: labels that are masked in place leave the tokens as they are.
            if is_label or not values.flags.c_contiguous or values.dtype != column.storage:
                copy = self._pool.empty(values.size * column.storage.itemsize).view(column.storage)
                np.copyto(copy.reshape(values.shape), values)
                values = copy.reshape(values.shape)
            if is_label and cutting.ignore_index is not None:
                values[self._are_ignored(pieces, len(rows))] = cutting.ignore_index
            found.append(Data(values))
        return Rows(Block(self._schema, len(rows), tuple(found)))

    def _are_ignored(self, pieces: Pieces, count: int) -> npt.NDArray[np.bool_]:
        """(B, size) True for labels that a document has too many: its first token."""
        cutting = self._cutting
        begins = np.zeros(count * cutting.read, np.bool_)
        # The first one of a window, too, as that is of the window before in a flat batch.
        is_begin = (pieces.starts == 0) | (cutting.documents and not cutting.shift)
        begins[bounds_of(pieces.stops - pieces.starts)[:-1][is_begin]] = True
        return begins.reshape(count, cutting.read)[:, cutting.shift :][:, : cutting.size]

    @cached_property
    def _reads_tokens(self) -> bool:
        """True unless all columns that are left follow from lengths."""
        cutting = self._cutting
        computed = {_DOCUMENTS, _POSITIONS, *_OF_PIECES} if cutting.documents else set()
        return self._schema is not None and not computed.issuperset(self._keys)

    @property
    def _keys(self) -> tuple[object, ...]:
        """The names of its columns; a tuple has tokens and labels."""
        return () if self._schema is None else self._schema.tree.keys or ("tokens", _LABELS)

    def _tokens(self, pieces: Pieces) -> Array:
        """The tokens of pieces, end to end, with separators."""
        rows, starts, stops = self._rows_of(pieces.documents), pieces.starts, pieces.stops
        separator = self._cutting.separator
        if separator is None:
            return self._source._take_parts(rows, starts, stops)
        lengths = self._ends[pieces.documents + 1] - self._ends[pieces.documents] - 1
        own = np.minimum(stops, lengths)
        read = self._source._take_parts(rows, np.minimum(starts, own), own)
        ends = np.cumsum(stops - starts)
        places = ends[stops > lengths] - 1
        if not len(places):
            return read
        found = np.empty(int(ends[-1]), read.dtype)
        is_read = np.ones(len(found), np.bool_)
        is_read[places] = False
        found[is_read] = read
        found[places] = separator
        return found

    def members(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Of which documents these windows (B,) have tokens.

        Returns:
            (B,) how many each has, and their rows of the whole, window after window.
        """
        pieces = self._pieces(row_numbers(np.atleast_1d(np.asarray(numbers)), len(self)))
        return pieces.counts, self._rows_of(pieces.documents)

    def in_epoch(self, epoch: int) -> TokenWindowsRef:
        """The windows as they are cut in an epoch; itself, without jitter."""
        if epoch == self._epoch or not self._cutting.jitter:
            return self
        return TokenWindowsRef(self._all._replace(epoch=epoch))

    def _projected(self, of: Projection) -> DataRef:
        """The same windows with these columns; without tokens nothing is read."""
        if of.schema.tree.kind == "dict" and self._schema is not None and keeps_names(of, self._schema):
            return TokenWindowsRef(self._all._replace(schema=of.schema))
        return super()._projected(of)

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of a window."""
        return 0 if self._schema is None else sum(column.row_bytes for column in self._schema.columns)

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """That of the documents, for those of the windows."""
        documents = self._column._prefetch if self._reads_tokens else None
        return None if documents is None else Grouped(documents, self.members, self._short)

    def _short(self, rows: Ints) -> Ints:
        """Those of some rows that are not much longer than a window."""
        documents = rows if self._rows is None else np.searchsorted(self._rows, rows)
        lengths = self._ends[documents + 1] - self._ends[documents]
        return rows[lengths <= _LONG * self._cutting.read]

    @property
    def file_starts(self) -> Ints:
        """Where the windows of each file begin, without jitter."""
        starts = self.whole.file_starts
        documents = starts if self._rows is None else np.searchsorted(self._rows, starts)
        first = -(-self._ends[documents] // self._cutting.stride)
        return distinct(np.append(np.minimum(first, len(self)), [0, len(self)]))

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the column's and how it is cut."""
        column = named_rows(self._column, self._column.fingerprint)
        return None if column is None else self._pinned(column)

    @cached_property
    def _view_pin(self) -> str | None:
        """How windows are cut, and which documents there are."""
        column = named_rows(self._column, identity(self._column)) or ""
        of = nameless_pin(self, self._pinned(column), self._ends.data)
        told = {name: value for name, value in asdict(self._cutting).items() if value is not False}
        return described("token_windows", **told, of=of)

    def _pinned(self, column: str) -> str:
        schema = None if self._schema is None else self._schema.to_json()
        text = json.dumps([column, "token windows", asdict(self._cutting), schema, self.num_tokens])
        return hexdigest(text)

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None if the whole has no rows."""
        return self._schema

    def _title(self) -> str:
        return f"windows of {self._cutting.size:,} tokens of {super()._title()}"
