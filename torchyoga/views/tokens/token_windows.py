"""Windows of tokens over the documents of another DataRef, laid end to end: what language models train on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ...order.saved import described
from ...process.buffers import BufferPool
from ...process.digests import hexdigest, keyed_words
from ...process.lazy import cached_property
from ...process.numbers import as_int, distinct
from ...process.warned import warn_user
from ...reading.contract import identity, nameless_pin, row_numbers
from ...reading.dataref import DataRef
from ...reading.readahead import Grouped, Prefetch
from ...rows.block import Block, Rows
from ...rows.column import Column
from ...rows.data import Data, bounds_of
from ...rows.node import Node, path_name
from ...rows.pieces import numbered_within
from ...rows.projection import Projection
from ...rows.schema import PACK_LENGTHS, Schema
from ...rows.types import Array, Ints, Json, Row
from ..mixes.arranged import warn_if_arranged
from ..over import named_rows
from ..packs.layout import LabelKind
from .documents import checked_lengths, lengths_of, parts_of
from .line import Line, Pieces, Shuffled, Stored, cut

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
        ValueError: an argument is out of range.
    """

    size: int
    stride: int
    labels: LabelKind | None
    shuffle_documents: bool
    jitter: bool
    separator: float | None
    documents: bool
    seed: int
    ignore_index: int | None

    def __post_init__(self) -> None:
        as_int("the tokens of a window", self.size, 1, _MOST_TOKENS)
        as_int("stride", self.stride, 1, _FURTHEST)
        if self.labels is not None and self.labels not in get_args(LabelKind):
            raise ValueError(
                'labels must be "same" as the tokens, which the model shifts, "shifted" by one here, or '
                f"None for none; found {self.labels!r:.80}"
            )
        if self.ignore_index is not None:
            as_int("ignore_index", self.ignore_index, -(2**63), 2**63 - 1)
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
    ref: DataRef, column: str, cutting: Cutting, dtype: npt.DTypeLike | None, lengths: npt.ArrayLike | None
) -> TokenWindowsRef:
    """Windows of tokens: see `DataRef.token_windows`."""
    warn_if_arranged(ref, "token_windows")
    if ref.schema is None:  # of a version without rows
        return TokenWindowsRef(Tokens(ref, ref, None, np.zeros(1, np.int64), None, cutting))
    one = ref._projected(Projection.at(ref.schema, column))
    assert one.schema is not None
    kept = _column(column, one.schema, dtype)
    if cutting.separator is not None:
        separator = _checked_separator(cutting.separator, kept, one.schema.columns[0])
        cutting = replace(cutting, separator=separator)
    schema = _schema(column, kept, cutting)
    found = lengths_of(one) if lengths is None else checked_lengths(lengths, len(ref))
    if cutting.separator is not None:
        found = found + 1
    some = None
    if len(found) and not found.all():
        some = np.flatnonzero(found)
        found = found[some]
    ends = bounds_of(found)
    made = TokenWindowsRef(Tokens(ref, one, schema, ends, some, cutting))
    if not len(made) and len(ref):
        warn_user(f"there are no windows: each needs {cutting.read} tokens, and there are {ends[-1]}")
    return made


def _column(name: str, schema: Schema, dtype: npt.DTypeLike | None) -> Column:
    """The column of a window's tokens but for its shape; raises TypeError where there are no tokens."""
    found = schema.columns[0]
    is_list = schema.tree.kind == "varying"
    if not schema.is_sequence or found.ndim != 1 or found.kind not in (*_NUMBERS, *_TEXTS):
        raise TypeError(
            f"column {name!r} does not hold documents: {found}; a document is an array of one dimension that "
            "differs in length (named in Schema.of(row, ragged=[...])), a list of numbers, or text"
        )
    kind, stored = found.kind, found.dtype
    if is_list or found.kind in _TEXTS:
        kind, stored = "ndarray", found.storage.str
    if dtype is not None:
        wanted = np.dtype(dtype)
        if (
            wanted.kind not in "iuf"
            or not np.can_cast(found.storage, wanted, "safe")
            or (found.kind == "tensor" and not hasattr(np, found.dtype))
        ):
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


class TokenWindowsRef(DataRef):
    """Windows of tokens: what `ref.token_windows(...)` is.

    Args:
        tokens: what they are cut out of.

    Attributes:
        whole: the other DataRef.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._all = tokens
        self.whole, self._column, self._schema, self._ends, self._rows, cutting, epoch = tokens
        self.is_thread_safe = self.whole.is_thread_safe
        self._cutting, self._epoch = cutting, epoch
        self._pool = BufferPool()
        self._num_tokens = int(self._ends[-1])
        spare = self._num_tokens - cutting.read  # tokens after the first window, if it begins with the first
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
    def num_tokens(self) -> int:
        """Tokens of all documents, with separators."""
        return self._num_tokens

    @property
    def tokens_left_out(self) -> int:
        """Tokens that are in no window of an epoch; with jitter other ones in each epoch, but as many.

        Those are the tail, which fills no window, what lies before the first one because of jitter, and, if
        the stride is longer than a window, what lies between two.
        """
        size, stride, count = self._cutting.read, self._cutting.stride, len(self)
        covered = count * size if stride >= size else (count - 1) * stride + size
        return self._num_tokens - (covered if count else 0)

    @cached_property
    def _line(self) -> Line:
        if self._cutting.shuffle_documents and len(self._ends) > 2:
            return Shuffled(self._ends, self._cutting.seed, self._epoch)
        return Stored(self._ends)

    def _pieces(self, numbers: Ints) -> Pieces:
        return cut(self._line, self._offset + self._cutting.stride * numbers, self._cutting.read)

    def _rows_of(self, documents: Ints) -> Ints:
        return documents if self._rows is None else self._rows[documents]

    @property
    def _keeps_rows(self) -> bool:
        """The whole's."""
        return self.whole._keeps_rows

    def take(self, rows: Ints) -> Sequence[Row]:
        """The windows of these numbers, as `Rows` over one block."""
        if self._schema is None or not len(rows):
            return []
        cutting, pieces = self._cutting, self._pieces(rows)
        tokens = self._tokens(pieces).reshape(len(rows), cutting.read) if self._reads_tokens else None
        own = _shortened(pieces, cutting.shift) if cutting.documents else pieces
        lengths, bounds = own.stops - own.starts, bounds_of(own.counts)
        found = []
        for key, column in zip(self._schema.tree.keys, self._schema.columns, strict=True):
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
        return self._schema is not None and not computed.issuperset(self._schema.tree.keys)

    def _tokens(self, pieces: Pieces) -> Array:
        """The tokens of pieces, end to end, with separators."""
        rows, starts, stops = self._rows_of(pieces.documents), pieces.starts, pieces.stops
        separator = self._cutting.separator
        if separator is None:
            return parts_of(self._column, rows, starts, stops)
        lengths = self._ends[pieces.documents + 1] - self._ends[pieces.documents] - 1
        own = np.minimum(stops, lengths)
        read = parts_of(self._column, rows, np.minimum(starts, own), own)
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
        """The windows as they are cut in an epoch; itself, without jitter and shuffled documents."""
        if epoch == self._epoch or not (self._cutting.jitter or self._cutting.shuffle_documents):
            return self
        return TokenWindowsRef(self._all._replace(epoch=epoch))

    def _projected(self, of: Projection) -> DataRef:
        """The same windows with these columns; without tokens nothing is read."""
        if of.schema.tree.kind == "dict":
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
        """Where the windows of each file begin, without jitter; equal runs for shuffled documents."""
        if self._cutting.shuffle_documents:
            return super().file_starts
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
        of = nameless_pin(
            self, self._pinned(named_rows(self._column, identity(self._column)) or ""), self._ends.data
        )
        told = {name: value for name, value in asdict(self._cutting).items() if value is not False}
        return described("token_windows", **told, of=of)

    def _pinned(self, column: str) -> str:
        schema = None if self._schema is None else self._schema.to_json()
        text = json.dumps([column, "token windows", asdict(self._cutting), schema, self._num_tokens])
        return hexdigest(text)

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None if the whole has no rows."""
        return self._schema

    @property
    def info(self) -> Json:
        """The whole's."""
        return self.whole.info

    def _title(self) -> str:
        return f"windows of {self._cutting.size:,} tokens of {super()._title()}"
