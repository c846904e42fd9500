"""A version of a Lance dataset -> rows by number, by Lance's `take`; columns become rows as Arrow's do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from ...errors import CorruptError, NotFoundError, RemoteError, SchemaError
from ...process.digests import json_digest
from ...process.distinct import spread
from ...reading.dataref import DataRef
from ...reading.library_ref import LibraryRef
from ...rows.data import Data, bounds_of
from ...rows.types import Ints, Row
from ...stores.address import directory_of, is_url
from ...stores.objects import Remote
from ..arrow import ArrowPlan, Decimals, found_in, plan_of
from ..arrow_ref import Nulls, without_nulls
from ..in_place import owned

__all__ = ["from_lance"]

Place: TypeAlias = "Remote | str"
_SAMPLE = 1000  # rows that show where there are nulls
_PLACE_IN_RUST = re.compile(r",?\s*/\S+\.rs:\d+:\d+")  # where Lance was built, which says nothing to anyone
_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "bytes": bytes}  # Arrow has such, too
_BLOBS = "lance-encoding:blob"


def from_lance(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    version: int | str | None = None,
    nulls: Nulls = None,
    decimals: Decimals = "error",
    storage_options: Mapping[str, str] | None = None,
) -> DataRef:
    """A version of a Lance dataset as a DataRef, read where it lies by Lance.

    Later versions do not change it: the DataRef keeps the number of its version, also where it is pickled.
    Each fragment is a file to a block shuffle. Lance does not survive a fork, so a `DataLoader` with workers
    reads by threads, or where it needs processes starts these by forkserver; each opens the dataset anew. In
    a process that was forked otherwise, to read rows is an error.

    Args:
        path: of the dataset, or its URL, as `lance.dataset` takes them.
        columns: names of the columns to keep; all by default.
        version: a number or a tag; by default the latest one.
        nulls: by default columns with nulls give None. Values for some, as in `{"label": -1}`, are those of
            `DataRef.filled`; "mask" adds the masks of `DataRef.masked`; "error" refuses nulls. It is learned
            from 1,000 rows spread over the dataset where there are some; a null elsewhere is an error when it
            is read, so name such a place here, as in `{"tags{items}": 0}`.
        decimals: decimals of more than 18 digits are an "error", "float" or "text".
        storage_options: for Lance's own store.

    Lists of numbers are arrays, dictionaries are their words, as of `from_arrow`.

    Raises:
        NotFoundError: there is no such dataset, or no such version.
        KeyError: there is no such column.
        SchemaError: a column cannot be kept; it is named. When rows are read: a value is null.
        CorruptError: when rows are read: the dataset is damaged.
        ValueError: when rows are read: this process was forked from the one that opened it.
        RemoteError: the store cannot be reached.
        ImportError: pylance is not installed.
    """
    text = os.fspath(path)
    place: Place = Remote(text, storage_options) if is_url(text) else str(directory_of(text))
    dataset = _opened(place, version)
    names = dataset.schema.names if columns is None else list(columns)
    unknown = [name for name in names if name not in dataset.schema.names]
    if unknown or not names:
        raise KeyError(f"{text} has no columns {unknown}; it has {', '.join(dataset.schema.names)}")
    schema = pa.schema([dataset.schema.field(name) for name in names])
    blobs = [field.name for field in schema if _BLOBS.encode() in (field.metadata or {})]
    if blobs:
        raise SchemaError(f"{text}: {blobs} are blobs, which cannot be read so; pass columns= without them")
    count = dataset.count_rows()
    rows = spread(count, _SAMPLE)
    sample = _taken(dataset, rows, names, text) if len(rows) else schema.empty_table()
    named = dict.fromkeys(nulls, 0) if isinstance(nulls, Mapping) else {}
    places = {**named, **found_in(sample).nulls}
    how = _KeptFields(schema, tuple(places), decimals)
    size = sample.nbytes // max(1, len(rows))
    return without_nulls(LibraryRef(_LanceRows(place, dataset, how, size)), nulls, places)


def _opened(place: Place, version: int | str | None) -> Any:
    try:
        import lance
    except ImportError:
        raise ImportError("from_lance needs pylance; pip install 'torchyoga[lance]'") from None
    options = None
    if isinstance(place, Remote):
        options = {name: str(value) for name, value in place.options.items()} or None
        place = place.url
    elif not os.path.exists(place):
        raise NotFoundError(f"there is no {place}; pass the path of a Lance dataset")
    try:
        return lance.dataset(place, version=version, storage_options=options)
    except (ValueError, OSError, RuntimeError) as error:
        if "not found" in str(error).lower():
            raise NotFoundError(f"{place} has no dataset of version {version}: {error}") from error
        kind = RemoteError if is_url(place) else CorruptError
        if "No object store provider" in str(error):
            said = "Lance reads no such URLs, but s3://, gs://, az:// and hf://; copy the dataset to a disk"
        else:
            said = _PLACE_IN_RUST.sub("", str(error))
        raise kind(f"{place} cannot be opened: {said}") from error


def _taken(dataset: Any, rows: Ints, names: Sequence[str], where: str) -> pa.Table:
    try:
        return dataset.take(rows.tolist(), columns=list(names))
    except (ValueError, OSError, RuntimeError, pa.ArrowException) as error:
        kind = RemoteError if is_url(where) else CorruptError
        said = _PLACE_IN_RUST.sub("", str(error))
        raise kind(f"{where}: rows {rows[:3].tolist()}... cannot be read: {said}") from error


class _KeptFields(NamedTuple):
    """The fields that are kept, the places that may be null, and how decimals are kept."""

    schema: pa.Schema
    nulls: tuple[str, ...]
    decimals: Decimals

    def plan(self, names: Sequence[str]) -> ArrowPlan:
        """How some of them become rows."""
        return plan_of(
            pa.schema([self.schema.field(name) for name in names]), self.nulls, decimals=self.decimals
        )


class _LanceRows:
    """The rows of one version: `reading.library_ref.LibraryRows`.

    Args:
        place: of the dataset.
        dataset: the version, open in this process.
        how: they are kept.
        row_bytes: of an average row.
    """

    prefetch = None
    only_copies = True

    def __init__(self, place: Place, dataset: Any, how: _KeptFields, row_bytes: int) -> None:
        self._place, self._version, self._how = place, int(dataset.version), how
        self.opened_by, self._dataset = os.getpid(), dataset
        self.row_bytes = row_bytes
        self.name = f"{place if isinstance(place, str) else place.url}, version {self._version}"
        plan = how.plan(how.schema.names)
        self.schema = plan.schema
        self._firsts = bounds_of(len(form.columns) for form in plan.form.fields)  # column of each field
        fragments = dataset.get_fragments()
        self.starts = bounds_of(fragment.count_rows() for fragment in fragments)
        # Files of Lance have names that are never given twice, and do not change.
        self.content = json_digest([self.schema.to_json(), [one.metadata.to_json() for one in fragments]])
        self._plans: dict[tuple[int, ...], ArrowPlan] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._place, self._version, self._how, self.row_bytes, self.content)

    def gather(self, rows: Ints, columns: Sequence[int]) -> Sequence[Data]:
        """These columns; no other fields are read."""
        fields = tuple(sorted({int(self._firsts.searchsorted(column, "right")) - 1 for column in columns}))
        plan = self._plans.get(fields)
        if plan is None:
            names = [self._how.schema.names[field] for field in fields]
            plan = self._plans[fields] = self._how.plan(names)
        table = _taken(self._dataset, rows, plan.names, self.name)
        if len(table) != len(rows):
            raise CorruptError(f"{self.name}: it gives {len(table)} rows for {len(rows)} numbers")
        block = plan.block(table, f"{self.name}, some of rows {rows[:3].tolist()}...")
        numbers = [n for field in fields for n in range(self._firsts[field], self._firsts[field + 1])]
        read = dict(zip(numbers, map(owned, block.data), strict=True))
        return [read[column] for column in columns]

    def alone(self, columns: Sequence[int]) -> Callable[[int], list[Row] | None] | None:
        """Values as Arrow gives them, where these are the values of rows."""
        wanted = [self.schema.columns[number] for number in columns]
        makers = [c.storage.type if c.kind == "scalar" else _PLAIN.get(c.kind) for c in wanted]
        fields = [self._how.schema.field(int(self._firsts.searchsorted(n, "right")) - 1) for n in columns]
        if None in makers or not all(column.letter in "iufb" for column in wanted):
            return None
        if any(pa.types.is_nested(field.type) for field in fields):
            return None
        names = [field.name for field in fields]

        def row(number: int) -> list[Row] | None:
            try:
                table = self._dataset.take([number], columns=names)
                values = [column[0].as_py() for column in table.columns]
            except (ValueError, OSError, RuntimeError, IndexError, pa.ArrowException):
                return None  # `gather` says why
            if None in values:
                return None
            return [make(value) for make, value in zip(makers, values, strict=True)]  # type: ignore[misc]

        return row


def _again(place: Place, version: int, how: _KeptFields, row_bytes: int, content: str) -> _LanceRows:
    """The same rows in another process."""
    rows = _LanceRows(place, _opened(place, version), how, row_bytes)
    if rows.content != content:
        raise NotFoundError(f"{rows.name} is another dataset than when this DataRef was made; open it again")
    return rows
