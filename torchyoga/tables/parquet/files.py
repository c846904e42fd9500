"""Parquet files -> their row groups, and one row group -> a block of its rows."""

from __future__ import annotations

import difflib
import json
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import CorruptError, RemoteError, SchemaError
from ...process.digests import hexdigest
from ...process.lazy import cached_property
from ...process.messages import warn_user
from ...rows.block import Block, bounds_of
from ...rows.node import leaf_paths, path_name
from ...rows.schema import Projection, Schema
from ...rows.types import Array, Ints
from ..arrow import Decimals, found_in, plan_of
from ..buffers import num_leaves, type_without_views
from ..groups import contiguous
from .footers import INT96_UNIT, Footer, FooterIndex, footers_of, is_nested, nulls_below, some_groups
from .places import LocalFile, Located, Ranges
from .unified import as_type, can_become, common_type

_UNSET = "__HIVE_DEFAULT_PARTITION__"
_INDEX = re.compile(r"__index_level_\d+__")
_WORTH_THREADS = 4 * 2**20  # bytes of a group
_MOST_WORDS = 2**16  # of a column of codes; with more it becomes text
_MOST_SHOWN = 20  # names in a message


class Conversion(Protocol):
    """Turns tables of one Arrow schema into blocks of one of ours."""

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""

    def block(self, table: pa.Table, where: str) -> Block:
        """The rows of a table; `where` they lie, for messages.

        Raises:
            SchemaError: there are nulls, or words, where none are expected.
            CorruptError: values contradict their type.
        """


@dataclass(frozen=True)
class Options:
    """How Arrow's columns are converted.

    Attributes:
        nulls: the places that may be null.
        words: what the codes of dictionaries stand for.
        decimals: what becomes of decimals of more than 18 digits.
        are_codes: True if dictionaries of words become codes, False if they become text.
    """

    nulls: frozenset[str] = frozenset()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    decimals: Decimals = "error"
    are_codes: bool = True

    def conversion(self, fields: pa.Schema) -> Conversion:
        """The conversion of these fields."""
        return plan_of(fields, self.nulls, self.words, self.decimals)


@dataclass(frozen=True, eq=False)
class ParquetFiles:
    """The row groups of some files, in order, and how their rows are read.

    Attributes:
        footers: of the files.
        file: (groups,) the file that each group is in.
        number: (groups,) its number there.
        sizes: (groups,) its rows, or those of them that are kept.
        nbytes: (groups, fields) about how large each field is, decoded.
        fields: what is read: the fields of the files, and those made of the names of folders.
        keys: for each file, the values of the latter.
        kept: for each group, a bit for each row, packed; None if all are kept.
        options: for the conversion of Arrow's columns.
    """

    footers: tuple[Footer, ...]
    file: Ints
    number: Ints
    sizes: Ints
    nbytes: Ints
    fields: pa.Schema
    keys: tuple[Mapping[str, object], ...]
    kept: tuple[bytes | None, ...]
    options: Options

    @cached_property
    def conversion(self) -> Conversion:
        """The conversion of Arrow's columns into ours."""
        return self.options.conversion(self.fields)

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""
        return self.conversion.schema

    @cached_property
    def starts(self) -> Ints:
        """(groups + 1,) the row at which each group begins, and the number of rows."""
        return bounds_of(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """A name for the content: the same for the same files elsewhere."""
        parts: list[str | bytes] = [json.dumps(self.schema.to_json())]
        for footer, keys in zip(self.footers, self.keys, strict=True):
            parts.append(f"{footer.digest} {footer.identity.nbytes} {json.dumps(keys)}\n")
        for file, number, kept in zip(self.file.tolist(), self.number.tolist(), self.kept, strict=True):
            parts += [f"{file} {number} {kept is None}\n", kept or b""]
        return hexdigest(*parts)

    # -- some columns

    def projected(self, of: Projection) -> tuple[ParquetFiles, Projection]:
        """These files with only the fields that a projection needs, and the projection of what they give."""
        numbers: dict[str | int, int] = {name: number for number, name in enumerate(self.fields.names)}
        owners = [numbers[path[0]] for path in leaf_paths(self.schema.tree)]  # the field of each column
        wanted = sorted({owners[number] for number in of.columns})
        before = [number for number, owner in enumerate(owners) if owner in set(wanted)]
        files = replace(
            self,
            fields=pa.schema([self.fields.field(number) for number in wanted]),
            nbytes=self.nbytes[:, wanted],
        )
        return files, Projection(of.schema, tuple(before.index(number) for number in of.columns))

    # -- rows

    def block(self, group: int) -> Block:
        """The rows of a group.

        Raises:
            CorruptError: the file has changed, is gone, or is damaged.
            SchemaError: its values are not such as the schema says.
            RemoteError: the file cannot be read.
        """
        return self._block(group, self.table(group))

    def _block(self, group: int, table: pa.Table) -> Block:
        return contiguous(self.conversion.block(table, self._where(group)))

    def blocks(self, group: int, start: int, num_rows: int) -> Iterator[Block]:
        """The rows of a group from `start` on, so many at a time; only some are in memory at once."""
        kept = self._mask(group)
        done = 0
        with self._opened(group) as (file, names):
            some = [int(self.number[group])]
            for batch in file.iter_batches(num_rows, some, names, use_threads=self._threads(group)):
                table = _without_views(pa.Table.from_batches([batch]))
                if kept is not None:
                    table, kept = table.filter(pa.array(kept[: len(table)])), kept[len(table) :]
                skip = min(len(table), max(0, start - done))
                done += len(table)
                if skip < len(table):
                    yield self._block(group, self._completed(group, table[skip:]))

    def table(self, group: int) -> pa.Table:
        """The rows of a group, as Arrow's table of `fields`."""
        number = int(self.number[group])
        with self._opened(group) as (file, names):
            table = _without_views(file.read_row_group(number, names, use_threads=self._threads(group)))
            if table.num_rows != file.metadata.row_group(number).num_rows:
                raise pa.ArrowInvalid(f"it has {table.num_rows} rows")
        kept = self._mask(group)
        return self._completed(group, table if kept is None else table.filter(pa.array(kept)))

    def _completed(self, group: int, table: pa.Table) -> pa.Table:
        """A table as `fields` say: of their types, and with columns that the file does not have."""
        keys = self.keys[self.file[group]]
        known = set(table.column_names)
        columns = []
        for wanted in self.fields:
            if wanted.name not in known:
                value = pa.scalar(keys.get(wanted.name)).cast(wanted.type)
                columns.append(pa.chunked_array([pa.repeat(value, len(table))], wanted.type))
                continue
            try:
                columns.append(as_type(table.column(wanted.name), wanted.type))
            except pa.ArrowInvalid as error:
                raise SchemaError(
                    f"{self._where(group)}: column {wanted.name!r} does not become {wanted.type}, as the "
                    f"schema says: {error}"
                ) from error
        return pa.table(columns, self.fields.names)

    def _mask(self, group: int) -> Array | None:
        packed = self.kept[group]
        if packed is None:
            return None
        count = self.footers[self.file[group]].metadata.row_group(int(self.number[group])).num_rows
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(bool)

    @contextmanager
    def _opened(self, group: int) -> Iterator[tuple[pq.ParquetFile, list[str]]]:
        """The file of a group, and those of its columns that are read; errors of Arrow become ours."""
        footer, keys = self.footers[self.file[group]], self.keys[self.file[group]]
        names = [name for name in self.fields.names if name not in keys]
        footer.check()
        metadata, place = footer.metadata, footer.place
        source: str | Ranges = place.name
        if not isinstance(place, LocalFile):
            runs = _runs_of(metadata, int(self.number[group]), set(names))
            source = Ranges(place, footer.identity.nbytes, runs)
        try:
            # Pages of writers that note no checksums are read as before.
            with pq.ParquetFile(
                source,
                metadata=metadata,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit=INT96_UNIT,
            ) as file:
                yield file, names
        except (pa.ArrowException, OSError) as error:
            footer.check()
            if isinstance(error, RemoteError):  # of a range that was read when it was asked for
                raise
            raise _damage(self._where(group), names, error) from error
        footer.check()  # it may have been written over while it was read

    def _threads(self, group: int) -> bool:
        """True if a group is worth several threads; never in child processes, of which there are several."""
        return int(self.nbytes[group].sum()) >= _WORTH_THREADS and multiprocessing.parent_process() is None

    def _where(self, group: int) -> str:
        return f"{self.footers[self.file[group]].place.name}, row group {self.number[group]}"


def _damage(where: str, names: list[str], error: Exception) -> Exception:
    """The error for callers where Arrow cannot read some columns of a group."""
    text = " ".join(str(error).split())[:300]
    if "encrypt" in text or "decrypt" in text:
        return SchemaError(f"{where} is encrypted, which is not supported; write a copy that is not")
    if isinstance(error, (pa.ArrowNotImplementedError, pa.ArrowCapacityError)):
        return SchemaError(
            f"{where}: pyarrow cannot read its columns {names!r:.200}: {text}; leave the column out with "
            "columns=, or write smaller groups"
        )
    return CorruptError(f"{where} is damaged: {text}; write the file again")


def _runs_of(metadata: pq.FileMetaData, number: int, names: set[str]) -> list[tuple[int, int]]:
    """Where the columns of a group lie in its file."""
    group, runs = metadata.row_group(number), list[tuple[int, int]]()
    leaves = [one.name for one in metadata.schema.to_arrow_schema() for _ in range(num_leaves(one.type))]
    for column in (group.column(index) for index, owner in enumerate(leaves) if owner in names):
        start = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
        runs.append((start, start + column.total_compressed_size))
    return runs


# -- opening


def opened(
    located: Sequence[Located],
    columns: Sequence[str] | None,
    options: Options,
    schema: pa.Schema | None = None,
) -> tuple[ParquetFiles, pa.Schema]:
    """Files as one table, and all of their fields, with those that are not wanted.

    Args:
        located: the files.
        columns: the names of columns that are wanted, which may lie in others; None for all.
        options: for the conversion.
        schema: the columns that there are, and their types; None for those of the files.

    Raises:
        SchemaError: the files differ in a field, or cannot be as the schema says.
        KeyError: there is no such column.
    """
    opened = footers_of([one.place for one in located])
    keys, made = _keys_of(located, schema)
    schemas = [file.fields.schema for file in opened]
    places = [one.place.name for one in located]
    if schema is None:
        tops = None if columns is None else {name.split("/")[0] for name in columns}
        found = _common(schemas, places, tops)
    else:
        found = _promoted([one for one in schema if one.name not in made.names], schemas, places)
        made = pa.schema([one for one in made if one.name in schema.names])
    for name in made.names:
        if name in schemas[0].names:
            raise SchemaError(
                f"{places[0]} has a column {name!r}, and its folder is called {name}=...; rename one of them"
            )
    fields = pa.schema(_wanted([*found, *made], columns))
    read = [_groups_of(file, one, fields) for file, one in zip(opened, schemas, strict=True)]
    groups = [np.flatnonzero(file.rows) for file in opened]
    sizes = [file.rows[some] for file, some in zip(opened, groups, strict=True)]
    files = ParquetFiles(
        footers=tuple(file.footer for file in opened),
        file=np.repeat(np.arange(len(opened)), [len(some) for some in groups]),
        number=np.concatenate(groups),
        sizes=np.concatenate(sizes),
        nbytes=np.concatenate([nbytes for nbytes, _ in read]),
        fields=fields,
        keys=tuple(keys),
        kept=(None,) * sum(map(len, groups)),
        options=options,
    )
    nested = [np.concatenate([nulls[number] for _, nulls in read]) for number in range(len(fields))]
    nulls = list(map(_has_nulls, fields, nested))
    for number, name in enumerate(fields.names):
        if name in made.names:
            nulls[number] = any(one[name] is None for one in keys)
    exact = [nulls_below(name, opened) for name in fields.names]
    rows_of = [(one, rows.sum()) for one, rows in zip(schemas, sizes, strict=True)]
    absent = {
        path_name((name,))
        for name in fields.names
        if name not in made.names and any(count and _own(one, name) is None for one, count in rows_of)
    }
    files = replace(files, options=replace(options, nulls=options.nulls | absent))
    return _looked_at(files, nulls, nested, exact), pa.schema([*found, *made])


def _looked_at(
    files: ParquetFiles,
    have_nulls: Sequence[bool | None],
    nested: Sequence[Ints],
    exact: Sequence[set[str] | None],
) -> ParquetFiles:
    """Files whose options say where there are nulls, and what the words of dictionaries are.

    Not all footers count levels. Others count empty lists and nulls alike, so where a nested column may have
    nulls is seen in a few of its groups that have either. The words of a dictionary are in its column only.
    """
    nulls, words = set(files.options.nulls), dict[str, dict[str, None]]()
    for number, (one, has_nulls) in enumerate(zip(files.fields, have_nulls, strict=True)):
        if has_nulls is not False and not is_nested(one.type):
            nulls.add(path_name((one.name,)))
        has_words = files.options.are_codes and _has_words(one.type)
        known = exact[number]
        nulls |= known or set()
        is_unknown = has_nulls is not False and known is None and is_nested(one.type)
        some = replace(files, fields=pa.schema([one]), nbytes=files.nbytes[:, [number]])
        looked_at = some_groups(nested[number]) if is_unknown else []
        for group in range(len(files.sizes)) if has_words else looked_at:
            found = found_in(some.table(group).to_batches())
            nulls |= found.nulls
            for place, listed in found.words.items() if has_words else ():
                words.setdefault(place, {}).update(dict.fromkeys(listed))
    few = {place: tuple(listed) for place, listed in words.items() if len(listed) <= _MOST_WORDS}
    return replace(files, options=replace(files.options, nulls=frozenset(nulls), words=few))


def _has_words(of: pa.DataType) -> bool:
    if pa.types.is_dictionary(of):
        return bool(pa.types.is_string(of.value_type) or pa.types.is_large_string(of.value_type))
    return any(_has_words(of.field(i).type) for i in range(of.num_fields))


def _without_views(table: pa.Table) -> pa.Table:
    to = pa.schema([field.with_type(type_without_views(field.type)) for field in table.schema])
    return table if to == table.schema else table.cast(to)


def _common(schemas: Sequence[pa.Schema], places: Sequence[str], tops: set[str] | None) -> list[pa.Field]:
    """The fields of all files, in the order of the first; SchemaError if they differ."""
    first, at = schemas[0], places[0]
    found = {one.name: one for one in first}
    for schema, name in zip(schemas[1:], places[1:], strict=True):
        if schema is first or schema.equals(first):
            continue
        for one in [*first.names, *schema.names]:
            if tops is not None and path_name((one,)) not in tops and one not in tops:
                continue
            if one not in first.names or one not in schema.names:
                has, lacks = (at, name) if one in first.names else (name, at)
                raise SchemaError(
                    f"the files differ: {has} has a column {one!r}, {lacks} has none; name the columns that "
                    "all have with columns=, or pass schema=, for None where one is missing"
                )
            old, new = found[one].type, schema.field(one).type
            both = common_type(old, new)
            if both is None:
                raise SchemaError(
                    f"the files differ: column {one!r} is {old} in {at} and {new} in {name}; pass schema= "
                    "with a type for both, leave the column out with columns=, or read the files apart"
                )
            found[one] = found[one].with_type(both)
    return [found[name] for name in first.names]


def _promoted(
    fields: Sequence[pa.Field], schemas: Sequence[pa.Schema], places: Sequence[str]
) -> list[pa.Field]:
    """The fields that a caller wants; SchemaError if what is in a file cannot become them."""
    wanted = [one.with_type(type_without_views(one.type)) for one in fields]
    known = set()
    for schema, place in zip(schemas, places, strict=True):
        for one in wanted:
            own = _own(schema, one.name)
            pair = (one.type if own is None else own.type, one.type)
            if pair not in known and not can_become(*pair):
                raise SchemaError(
                    f"column {one.name!r} is {pair[0]} in {place}, which cannot become "
                    f"{one.type}, as schema= says"
                )
            known.add(pair)
    names = {name for schema in schemas for name in schema.names}
    if nowhere := [one.name for one in wanted if one.name not in names]:
        warn_user(
            f"schema= names {', '.join(map(repr, nowhere))}, which no file has: None in every row. The files "
            f"have {sorted(names)}"
        )
    return wanted


def _wanted(fields: Sequence[pa.Field], columns: Sequence[str] | None) -> list[pa.Field]:
    """The fields that hold these columns."""
    if columns is None:
        return [one for one in fields if not _INDEX.fullmatch(one.name)]
    known = {path_name((one.name,)): one for one in fields}
    tops = set()
    for name in columns:
        top = name if name in known else name.split("/")[0]
        if top not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            others = [one for one in known if one not in near][: _MOST_SHOWN - len(near)]
            raise KeyError(
                f"there is no column {name!r}; there are {', '.join(map(repr, [*near, *others])) or 'none'}"
            )
        tops.add(top)
    return [one for name, one in known.items() if name in tops]


def _groups_of(file: FooterIndex, schema: pa.Schema, fields: pa.Schema) -> tuple[Ints, list[Ints]]:
    """Of the groups that have rows: (groups, fields) bytes of each field; and for each field (groups,
    columns) of nulls and of empty lists, below 0 where that is not known."""
    some = file.rows > 0
    unpacked, counts = file.unpacked[some], file.nulls[some]
    nbytes, nulls = np.zeros((len(counts), len(fields)), np.int64), list[Ints]()
    for number, one in enumerate(fields):
        columns, own = file.fields.columns_of(one.name), _own(schema, one.name)
        nbytes[:, number] = unpacked[:, columns].sum(axis=1)
        if own is None:
            nulls.append(np.broadcast_to(file.rows[some, None], (len(counts), num_leaves(one.type))))
        elif own.nullable or is_nested(own.type):
            nulls.append(counts[:, columns])
        else:
            nulls.append(np.zeros((len(counts), len(columns)), np.int64))
    return nbytes, nulls


def _own(schema: pa.Schema, name: str) -> pa.Field | None:
    """A field of a file; None if it has none of that name, or nothing but nulls in it."""
    index = schema.get_field_index(name)
    return None if index < 0 or pa.types.is_null(schema.field(index).type) else schema.field(index)


def _has_nulls(of: pa.Field, counts: Ints) -> bool | None:
    """True if a field has nulls, given those of its columns; None if empty lists may have been counted."""
    some = bool(counts.any())
    return None if (counts < 0).any() or (some and is_nested(of.type)) else some


def _keys_of(
    located: Sequence[Located], schema: pa.Schema | None
) -> tuple[list[dict[str, object]], pa.Schema]:
    """The values from the names of folders for each file, and their fields."""
    texts = [one.keys for one in located]
    for one, keys in zip(located, texts, strict=True):
        if keys.keys() != texts[0].keys():
            raise SchemaError(
                f"the folders of {located[0].place.name} name the columns {list(texts[0])}, those of "
                f"{one.place.name} {list(keys)}; read them apart"
            )
    keys_of: list[dict[str, object]] = [{} for _ in located]
    fields = []
    for name in texts[0] if texts else ():
        values = [None if keys[name] == _UNSET else keys[name] for keys in texts]
        known = [value for value in values if value is not None]
        are_ints = bool(known) and all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", value) for value in known)
        if schema is not None and name in schema.names:
            fields.append(schema.field(name))
            are_ints = are_ints and not pa.types.is_string(schema.field(name).type)
        else:
            fields.append(pa.field(name, pa.int64() if are_ints else pa.string()))
        for found, value in zip(keys_of, values, strict=True):
            found[name] = int(value) if are_ints and value is not None else value
    return keys_of, pa.schema(fields)
