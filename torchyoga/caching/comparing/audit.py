"""A version, and what it was made of -> whether some of its rows are made anew as they are: `audited`.

A share f of wrong rows escapes k rows drawn at random with a chance of (1 - f)^k.
So 300 rows find a share of 1 % with 95 %, however many rows there are.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from ...adapters.sources import dataset_and_source
from ...building.sources import BlockSource, RowSource, SeekableBlocks, Source
from ...errors import AuditError, SchemaError
from ...process.seeding import GeneratorsPutBack
from ...reading.version_ref import VersionRef
from ...rows.block import Block, Rows
from ...rows.collector import Collector
from ...rows.compared import differing, is_float, schema_diff
from ...rows.hashing import alike, values_of
from ...rows.projection import unknown_column
from ...rows.schema import Schema
from ...rows.types import Ints, Row
from ...rows.values import array_of
from .blocks import RowBlocks

__all__ = ["Audit", "Encode", "audited"]

Encode: TypeAlias = Callable[[object], tuple[object, Callable[[Source], Source]]]
_BLOCK_BYTES = 2**22
_AT_ONCE = 64  # rows that are compared at once


@dataclass(frozen=True)
class Audit:
    """Rows of a version that were made anew, and were equal: what `Storage.audit` gives.

    Attributes:
        rows: how many were compared.
        total: rows of the version.
        share: if this share of the rows of the version were wrong, one of them would have been found with
            95 %; 0 if all were compared, 1 if none was drawn at random.
        is_prefix: True if they were the first ones, since rows of the source cannot be read by number.
    """

    rows: int
    total: int
    share: float
    is_prefix: bool

    def __str__(self) -> str:
        if self.rows == self.total:
            return f"all {self.total:,} rows are as the source gives them"
        if self.is_prefix:
            return f"the first {self.rows:,} of {self.total:,} rows are as the source gives them"
        return (
            f"{self.rows:,} of {self.total:,} rows are as the source gives them; if {self.share:.2%} or more "
            "were wrong, one would have been found with 95 %"
        )


def audited(
    ref: VersionRef,
    data: object,
    rows: int,
    tolerance: float | Mapping[str, float] | None,
    seed: int | None,
    encode: Encode | None,
) -> Audit:
    """Compares rows of a version with those of its source, as `Storage.audit` describes it.

    Args:
        ref: the version.
        data: whatever `Storage.submit` takes.
        rows: how many, besides the first and the last.
        tolerance: for columns of floats; see `Storage.audit`.
        seed: of the choice of rows.
        encode: as in `BuildOptions`; None to compare values as they are kept, or decoded.

    Raises:
        AuditError: a row differs.
    """
    given = _tolerances(ref.schema, tolerance)
    with GeneratorsPutBack():  # a source may draw random numbers
        source = _source(ref, data, encode)
        task = _Task(ref, source, given, encode is not None)
        if source.length is not None and source.length != len(ref):
            raise AuditError(
                f"{source.name} has {source.length:,} rows, but {task.what} has {len(ref):,}. {_ADVICE}"
            )
        if not len(ref):
            task.refuse_more(source, 0)
            return Audit(0, 0, 0.0, False)
        if not _is_seekable(source):
            return task.prefix(rows)
        return task.drawn(_chosen(len(ref), rows, seed), rows)


def _tolerances(schema: Schema | None, given: float | Mapping[str, float] | None) -> dict[str, float]:
    """The tolerance of each column of floats that has one."""
    if given is None or schema is None:
        return {}
    columns = {column.name: column for column in schema.columns}
    if not isinstance(given, Mapping):
        given = {name: given for name, column in columns.items() if is_float(column)} or {"": given}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"tolerance must be a number of at least 0, found {value!r:.80}")
        if name and name not in columns:
            raise unknown_column(schema, name)
        if name and not is_float(columns[name]):
            raise ValueError(
                f"a tolerance is for floats, but column {columns[name]} is always compared by its bits"
            )
    return {name: float(value) for name, value in given.items()}


def _chosen(length: int, rows: int, seed: int | None) -> list[int]:
    drawn = np.random.default_rng(seed).choice(length, min(rows, length), replace=False)
    return sorted({0, length - 1, *drawn.tolist()})


def _source(ref: VersionRef, data: object, encode: Encode | None) -> Source:
    """A source of the rows that a version was made of; `encode` as in `BuildOptions`."""
    dataset, source = dataset_and_source(data)
    if _is_itself(dataset, ref) and callable(data) and hasattr(data, "__wrapped__"):
        dataset, source = dataset_and_source(data.__wrapped__)
    if _is_itself(dataset, ref):
        raise ValueError(
            "the source is the version itself; pass what it was made of. If it is a function that cacheable "
            "decorates, that is `function.__wrapped__(...)`"
        )
    if encode is None:
        return source
    plainer, encoded = encode(dataset)
    return encoded(source if plainer is dataset else dataset_and_source(plainer)[1])


def _is_itself(dataset: object, ref: VersionRef) -> bool:
    return isinstance(dataset, VersionRef) and (dataset.manifest.build, dataset.location.name) == (
        ref.manifest.build,
        ref.location.name,
    )


def _is_seekable(source: Source) -> bool:
    if isinstance(source, SeekableBlocks):
        return True
    return isinstance(source, RowSource) and source.seekable and source.length is not None


class _Task:
    """The comparison of a version with a source."""

    def __init__(
        self, ref: VersionRef, source: Source, tolerances: Mapping[str, float], is_encoded: bool
    ) -> None:
        self._version = ref
        self._rows = RowBlocks(ref, ref.schema)
        self._source = source
        self._tolerances = tolerances
        # Whether values are compared as they are kept, or decoded; what is encoded anew is as it is kept.
        self._is_decided = is_encoded
        columns = () if ref.schema is None else ref.schema.columns
        self._may_be_encoded = not is_encoded and any(column.meaning.codec for column in columns)

    @property
    def what(self) -> str:
        """The version, for messages."""
        return f"{self._version.manifest.id!r} {self._version.manifest.version!r}"

    def drawn(self, numbers: list[int], rows: int) -> Audit:
        """These rows of a source that can be read by number; `rows` of them were drawn."""
        if isinstance(self._source, SeekableBlocks):
            for start in range(0, len(numbers), _AT_ONCE):
                some = np.array(numbers[start : start + _AT_ONCE], np.int64)
                block = self._block_at(self._source, some)
                self._compare(partial(self._refuse_others, some, block))
        else:
            for number in numbers:
                self._compare_row(number, self._row_at(number))
        total = len(self._version)
        share = 0.0 if len(numbers) == total else 1 - 0.05 ** (1 / rows) if rows else 1.0
        return Audit(len(numbers), total, share, False)

    def prefix(self, rows: int) -> Audit:
        """The first rows of a source that is read from its beginning."""
        total, count = len(self._version), 0
        wanted = min(max(1, rows), total)
        given = _rows_of(self._source)
        with contextlib.closing(given):
            for number, row in enumerate(itertools.islice(given, wanted)):
                self._compare_row(number, row)
                count += 1
            if count < wanted:
                raise AuditError(
                    f"{self._source.name} has {count:,} rows, but {self.what} has {total:,}. {_ADVICE}"
                )
            if count == total:
                self.refuse_more(given, total)
        return Audit(count, total, 0.0 if count == total else 1.0, count < total)

    def refuse_more(self, given: Source | Iterator[Row], total: int) -> None:
        """Raises AuditError if there is another row."""
        rows = given if isinstance(given, Iterator) else _rows_of(given)
        if next(rows, _END) is not _END:
            raise AuditError(
                f"{self._source.name} has more rows than {self.what}, which has {total:,}. {_ADVICE}"
            )

    def _row_at(self, number: int) -> Row:
        assert isinstance(self._source, RowSource)
        return self._source.row(number)

    def _block_at(self, source: SeekableBlocks, numbers: Ints) -> Block:
        found = source.some(numbers)
        if found is not None:
            return found
        rows = (next(iter(Rows(next(source.blocks_from(n, 1))).exact())) for n in numbers.tolist())
        return self._collected(dict(zip(numbers.tolist(), rows, strict=True)), source.schema)

    def _collected(self, rows: Mapping[int, Row], schema: Schema | None) -> Block:
        collector = Collector(schema)
        for number, row in rows.items():
            collector.add(row, number)
        return collector.take()

    def _compare_row(self, number: int, row: Row) -> None:
        def compare() -> None:
            try:
                found = self._collected({number: row}, self._rows.schema)
            except SchemaError as error:
                self._refuse_random(number)
                raise AuditError(
                    f"{self.what}: {error}, as {self._source.name} gives it now. {_ADVICE}"
                    f"{self._advice_on_codecs()}"
                ) from None
            self._refuse_others(np.array([number]), found)

        self._compare(compare)

    def _compare(self, compare: Callable[[], None]) -> None:
        """Compares values as they are kept; if the first ones differ, and are encoded, decoded ones."""
        try:
            compare()
        except AuditError:
            if self._is_decided or not self._may_be_encoded:
                raise
            decoded = self._version.decoded()
            self._rows = RowBlocks(decoded, decoded.schema)
            compare()
        self._is_decided = True

    def _refuse_others(self, numbers: Ints, found: Block) -> None:
        """Raises AuditError unless the rows of these numbers are those of the version."""
        schema = self._rows.schema
        assert schema is not None, "a version with rows has a schema"
        names = sorted(values_of(schema))
        if alike(schema, found.schema) != names or sorted(values_of(found.schema)) != names:
            changes = str(schema_diff(schema, found.schema)).replace("\n", "; ")
            raise AuditError(f"{self.what}: columns of {self._source.name} differ: {changes}. {_ADVICE}")
        kept = self._rows.take(numbers)
        differs = differing(kept, found, self._tolerances)
        wrong = np.flatnonzero(differs.any(axis=1))
        if not len(wrong):
            return
        place = int(wrong[0])
        number = int(numbers[place])
        self._refuse_random(number)
        columns = np.flatnonzero(differs[place]).tolist()
        texts = [_difference(kept, found, place, column) for column in columns[:_MOST_COLUMNS]]
        more = f" and {len(columns) - len(texts)} more columns" if len(columns) > len(texts) else ""
        raise AuditError(
            f"row {number:,} of {self.what} is not what {self._source.name} gives now: {'; '.join(texts)}"
            f"{more}. {_ADVICE}{self._advice_on_codecs()}"
        )

    def _advice_on_codecs(self) -> str:
        return ". If it was submitted with codecs=, pass the same ones" if self._may_be_encoded else ""

    def _refuse_random(self, number: int) -> None:
        """Raises AuditError if a row of the source differs each time it is read."""
        if not _is_seekable(self._source):
            return
        numbers = np.array([number])
        try:
            if isinstance(self._source, SeekableBlocks):
                first, second = (self._block_at(self._source, numbers) for _ in range(2))
            else:
                first, second = (self._collected({number: self._row_at(number)}, None) for _ in range(2))
        except SchemaError:
            return
        if first.schema != second.schema or differing(first, second).any():
            raise AuditError(
                f"row {number:,} of {self._source.name} differs each time it is read, as if augmented at "
                f"random, so {self.what} cannot be compared with it; pass the source without its random part"
            )


_END = object()
_MOST_COLUMNS = 3  # in a message
_ADVICE = "The source, its code or the version has changed; build it again, or pass what it was made of"


def _rows_of(source: Source) -> Generator[Row, None, None]:
    if isinstance(source, BlockSource):
        for block in source.blocks(_BLOCK_BYTES):
            yield from Rows(block).exact()
    else:
        yield from source.rows(0)


def _difference(kept: Block, found: Block, place: int, number: int) -> str:
    """In what a column of a row differs, in short."""
    column = kept.schema.columns[number]
    names = [other.name for other in found.schema.columns]
    mine = array_of(column, kept.data[number], place)
    theirs = array_of(column, found.data[names.index(column.name)], place)
    if mine.shape != theirs.shape and column.kind not in ("str", "bytes"):
        return f"column {column.name!r}: expected shape {mine.shape}, found {theirs.shape}"
    if column.kind in ("str", "bytes", "numpy.str", "numpy.bytes"):
        old, new = (values.tobytes() for values in (mine, theirs))
        if column.kind in ("str", "numpy.str"):
            texts = [text.decode("utf-8", "replace") for text in (old, new)]
            return f"column {column.name!r}: expected {texts[0]!r:.60}, found {texts[1]!r:.60}"
        return (
            f"column {column.name!r}: expected {old!r:.60} ({len(old)} bytes), found {new!r:.60} ({len(new)})"
        )
    if not mine.shape:
        return f"column {column.name!r}: expected {mine[()]!s:.60}, found {theirs[()]!s:.60}"
    size = max(1, column.storage.itemsize)
    one, other = (np.ascontiguousarray(values, column.storage).reshape(-1) for values in (mine, theirs))
    differs = (one.view(np.uint8).reshape(-1, size) != other.view(np.uint8).reshape(-1, size)).any(axis=1)
    at = np.flatnonzero(differs)
    where = tuple(int(extent) for extent in np.unravel_index(at[0], mine.shape))
    return (
        f"column {column.name!r}: {len(at):,} of {one.size:,} values differ, at {list(where)} expected "
        f"{one[at[0]]!s:.40}, found {other[at[0]]!s:.40}"
    )
