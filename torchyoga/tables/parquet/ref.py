"""Parquet files of any other program -> rows, where they lie.

A row group is decoded as a whole, and counts as a file: a block shuffle needs a few of them at a time. A row
alone costs as much as its group, so a full shuffle of more than memory can keep is for the cache:
`storage.submit(from_parquet(...))` reads group by group.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from ...errors import CorruptError
from ...process.lazy import cached_property
from ...process.messages import count_of
from ...reading.dataref import DataRef
from ...reading.readahead import Prefetch
from ...reading.stored_ref import StoredRef
from ...rows.block import Block, joined
from ...rows.node import VALID
from ...rows.schema import Projection
from ...rows.types import Array, Ints
from ..arrow import Decimals
from ..buffers import type_without_views
from ..groups import RowGroups
from .condition import Condition, Filters, unknown_name
from .files import Options, ParquetFiles, opened
from .footers import INT96_UNIT
from .places import LocalFile, Paths, Ranges, found_at
from .unified import common_type

_LARGE_GROUP = 128 * 2**20  # bytes; a build reads groups from this size on in pieces
_THREADS = 4


class ParquetRef(StoredRef):
    """The rows of Parquet files. Pickles by their paths, and survives fork, spawn and threads.

    Args:
        files: the files, and what is read of them.
        of: the columns of what is read that a row has.
        cache_bytes: of decoded row groups to keep; None for a share of the memory.
    """

    def __init__(self, files: ParquetFiles, of: Projection, cache_bytes: int | None = None) -> None:
        names = [footer.place.name for footer in files.footers]
        name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        super().__init__(name, of.schema, int(files.starts[-1]))
        self._files, self._of = files, of
        self._cache_bytes = cache_bytes
        sizes = files.nbytes.sum(axis=1)
        fixed = sum(c.row_bytes for c in of.schema.columns if not c.is_ragged) * files.sizes
        self._group_bytes = np.maximum(sizes, fixed)
        self._groups = RowGroups(name, files.starts, self._group_bytes, self._decoded, cache_bytes)

    def _decoded(self, group: int) -> Block:
        return self._files.block(group).projected(self._of)

    def _block(self, rows: Ints) -> Block:
        return self._groups.take(rows)

    def blocks(self, start: int, nbytes: int) -> Iterator[Block]:
        """All rows from `start` on, in order, in blocks of about so many bytes, each group decoded once.

        What is read is not kept: this is for a single pass over everything.
        """
        starts, waiting, held = self._files.starts, list[Block](), 0
        first = int(np.searchsorted(starts, start, side="right")) - 1
        for group in range(first, len(starts) - 1):
            for block in self._pieces(group, max(0, start - int(starts[group])), nbytes):
                waiting.append(block)
                held += block.nbytes
                if held >= nbytes:
                    yield from _cut(joined(waiting), nbytes)
                    waiting, held = [], 0
        if waiting:
            yield joined(waiting)

    def _pieces(self, group: int, start: int, nbytes: int) -> Iterator[Block]:
        size, rows = int(self._group_bytes[group]), int(self._files.sizes[group])
        if size < _LARGE_GROUP:
            block = self._decoded(group)
            yield block.slice(start, block.num_rows) if start else block
            return
        most = max(1, rows * nbytes // size)
        yield from (block.projected(self._of) for block in self._files.blocks(group, start, most))

    @property
    def file_starts(self) -> Ints:
        """(groups + 1,) the row at which each row group begins, and the number of rows."""
        return self._files.starts

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of an average row, as the footers say."""
        return int(self._group_bytes.sum()) // max(1, len(self))

    @property
    def _prefetch(self) -> Prefetch:
        """The thread that decodes the next row group before its rows are taken."""
        return self._groups

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the files' footers and the columns."""
        return self._of.pinned(self._files.fingerprint)

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; nothing of the others is read."""
        files, part = self._files.projected(self._of.then(of))
        return ParquetRef(files, part, self._cache_bytes)

    def _counted(self) -> str:
        return f"{super()._counted()} in {count_of(len(self._files.sizes), 'row group')}"

    def __reduce__(self) -> tuple[object, ...]:
        return ParquetRef, (self._files, self._of, self._cache_bytes)


def _cut(block: Block, nbytes: int) -> Iterator[Block]:
    """A block in pieces of about so many bytes."""
    count = max(1, round(block.nbytes / max(1, nbytes)))
    step = -(-block.num_rows // count)
    for start in range(0, block.num_rows, step):
        yield block.slice(start, min(start + step, block.num_rows)) if count > 1 else block


def from_parquet(
    paths: Paths,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    nulls: Sequence[str] = (),
    words: bool = False,
    decimals: Decimals = "error",
    cache_bytes: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    schema: pa.Schema | None = None,
) -> DataRef:
    """The rows of Parquet files as a DataRef: nothing is copied, and only footers are read now.

    What a footer says is kept in the user's cache until its file changes, so other processes open it quickly.

    A row group is decoded as a whole when a row of it is wanted; the next one in the order is decoded ahead.
    So `shuffle="block"` and reading in order are quick, and so is `shuffle=True` of what fits into
    `cache_bytes`. Over more, a full shuffle decodes a group for nearly every row, and warns: convert such
    files once by `storage.submit(yoga.from_parquet(...), id, version)`, which goes group by group, and
    continues after an interruption.

    Args:
        paths: a file, a folder of files, a pattern such as `"logs/*.parquet"` (with `**` across folders), or
            several of these; paths of this machine, or URLs of fsspec such as s3://, gs://, hf://, https://.
            Files come in the order of their names. Below a folder or a pattern, folders called `key=value`
            are columns.
        columns: the only ones to read, such as `["ids", "meta/size"]`; all by default, without those in which
            pandas keeps an index that has no name.
        filters: only rows for which it holds: an expression of `pyarrow.dataset`, or terms such as
            `[("year", ">=", 2020), ("lang", "in", ["de", "fr"])]`, of which all hold, or a list of such
            lists, of which one holds. What terms compare with becomes a value of the column's type; a time
            without a zone is in UTC where the column has one. Groups in which it cannot hold are skipped; of
            the others, the columns that it names are read now. An expression that names a column of floats
            skips none, for statistics leave out NaN, nor does one of uint64; terms with `!=`, `in` and
            `not in` on floats skip none either.
        nulls: places that may be None though no group that was looked at has such, as in `["tags{items}"]`;
            see below.
        words: dictionaries of words, such as pandas' categories, are codes, and the schema has their words,
            for which these columns are read now; True makes them text.
        decimals: decimals of more than 18 digits are an "error", "float" or "text".
        cache_bytes: of decoded groups that are kept in each process; by default a quarter of the memory that
            its control group has left, which the workers of a loader and the ranks of a machine share, and at
            least what ten groups need.
        storage_options: for fsspec; never written anywhere.
        schema: of pyarrow's: the columns to read, and what their values become, such as int64 where some
            files have int32; None where a file has no such column. By default the columns of all files are
            the same, and of the same types, however text, bytes and lists are written.
    Times of 96 bits, which Spark and Impala write, have microseconds; digits below are left out.

    Lists of numbers are arrays of varying length, or of one shape where the file says so. The DataRef pickles
    by its paths. Older writers do not say which are nulls within lists, and which are empty lists: then these
    are looked for in a few groups; name a place in `nulls` if it turns up later.

    Raises:
        NotFoundError: a path names no file.
        SchemaError: files differ in a column, one is encrypted, or a column holds what cannot be rows, or
            what `schema` says.
        CorruptError: a file is not a Parquet file, or is empty, cut or damaged; when rows are read also if it
            has changed since, or is gone.
        KeyError: there is no such column.
        ValueError: the condition does not fit the columns; when rows are read also if a group is larger than
            `cache_bytes`.
        RemoteError: a store cannot be reached.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet
        >>> table = pa.table({"id": range(10), "x": [[0.5, i] for i in range(10)]})
        >>> pa.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=4)
        >>> ref = yoga.from_parquet(tmp_path / "x.parquet")
        >>> ref[7], ref.file_starts.tolist()
        ({'id': np.int64(7), 'x': array([0.5, 7. ])}, [0, 4, 8, 10])
        >>> [int(i) for i in yoga.from_parquet(tmp_path / "x.parquet", filters=[("id", ">", 7)])["id"]]
        [8, 9]
        >>> len(storage.submit(ref, "from-parquet", "1"))
        10
    """
    if isinstance(nulls, (str, Mapping)):
        raise TypeError(f"nulls= takes a list of places, found {nulls!r:.80}; use ref.filled(...) for values")
    options = Options(frozenset(nulls), decimals=decimals, are_codes=not words)
    ref = ref_of(paths, columns, filters, cache_bytes, storage_options, options, schema)
    names = [column.name for column in ref.schema.columns]
    unknown = [place for place in nulls if place + VALID not in names]
    if unknown:
        raise KeyError(f"nulls= names {unknown}, which are not there; there are {names[:20]}")
    return ref


def ref_of(
    paths: Paths,
    columns: Sequence[str] | None,
    filters: Filters | None,
    cache_bytes: int | None,
    storage_options: Mapping[str, object] | None,
    options: Options,
    schema: pa.Schema | None = None,
) -> ParquetRef:
    """A DataRef over Parquet files; see `from_parquet`."""
    if isinstance(columns, str):
        raise TypeError(f"columns are named by a list, as in columns=[{columns!r}]")
    if schema is not None and not isinstance(schema, pa.Schema):
        raise TypeError(f"schema= takes a pyarrow.Schema, found {schema!r:.80}")
    files, all_fields = opened(found_at(paths, storage_options), columns, options, schema)
    if filters is not None:
        files = _filtered(files, filters, all_fields)
    if columns is None:
        of = Projection(files.schema, tuple(range(len(files.schema.columns))))
    else:
        of = Projection.of(files.schema, columns).ordered(columns)
    return ParquetRef(files, of, cache_bytes)


def _filtered(files: ParquetFiles, filters: Filters, all_fields: pa.Schema) -> ParquetFiles:
    """Files without the rows for which a condition does not hold, or is null.

    Groups in which it cannot hold, as their smallest and largest values say, are not read at all.

    Args:
        files: with all of their rows.
        filters: an expression of pyarrow's, or terms such as `[("x", ">", 3), ("y", "in", [1, 2])]`, of which
            all hold; or a list of such lists, of which one holds.
        all_fields: what the condition may name.

    Raises:
        KeyError: there is no such column.
        ValueError, TypeError: it is not a condition, or not on values of these types.
    """
    # Arrow makes dictionaries of not all texts, and compares their values only.
    all_fields = pa.schema(
        one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in all_fields
    )
    condition = Condition.of(filters, all_fields)
    masks_of, numbers = partial(_masks, files, condition, all_fields), range(len(files.footers))
    if multiprocessing.parent_process() is None and len(numbers) > 1:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="torchyoga-filter") as pool:
            masks = list(pool.map(masks_of, numbers))
    else:
        masks = list(map(masks_of, numbers))
    found = {group: mask for some in masks for group, mask in some.items() if mask.any()}
    left = np.array(sorted(found), np.int64)
    sizes = np.array([int(found[group].sum()) for group in left.tolist()], np.int64)
    share = sizes / files.sizes[left] if len(left) else np.zeros(0)
    return replace(
        files,
        file=files.file[left],
        number=files.number[left],
        sizes=sizes,
        nbytes=np.ceil(files.nbytes[left] * share[:, None]).astype(np.int64),
        kept=tuple(
            None if found[group].all() else np.packbits(found[group]).tobytes() for group in left.tolist()
        ),
    )


def _masks(files: ParquetFiles, condition: Condition, fields: pa.Schema, index: int) -> dict[int, Array]:
    """For each group of a file that may hold such rows, which of its rows they are."""
    footer, partition = files.footers[index], ds.scalar(True)
    for name, value in files.keys[index].items():
        if name in fields.names:
            made, kind = ds.field(name), fields.field(name).type
            partition &= made.is_null() if value is None else made == pa.scalar(value).cast(kind)
    by_number = {int(files.number[group]): int(group) for group in np.flatnonzero(files.file == index)}
    place = footer.place
    format = ds.ParquetFileFormat(coerce_int96_timestamp_unit=INT96_UNIT)
    try:
        if isinstance(place, LocalFile):
            fragment = format.make_fragment(place.path, pyarrow.fs.LocalFileSystem(), partition)
        else:
            fragment = format.make_fragment(Ranges(place, footer.identity.nbytes, ()), None, partition)
        wanted = [number for number in _possible(fragment, condition, fields) if number in by_number]
        if not wanted:
            return {}
        some = fragment.subset(row_group_ids=wanted)
        use_threads = multiprocessing.parent_process() is None
        table = some.to_table(schema=fields, columns={"is_wanted": condition.holds}, use_threads=use_threads)
        keep = table.column(0).fill_null(False).to_numpy()
    except pa.ArrowInvalid as error:
        if "No match for FieldRef" in str(error):
            name = str(error).partition("FieldRef.Name(")[2].partition(")")[0]
            raise unknown_name(name, fields) from None
        raise _refused(place.name, error) from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _refused(place.name, error) from error
    except OSError as error:
        raise CorruptError(f"{place.name} is damaged, or has changed: {error}") from error
    footer.check()
    found, done = {}, 0
    for number in wanted:
        stop = done + int(files.sizes[by_number[number]])
        found[by_number[number]] = keep[done:stop]
        done = stop
    if done != len(keep):
        raise CorruptError(f"{place.name} has other rows than its footer says; write it again")
    return found


def _possible(fragment: ds.ParquetFileFragment, condition: Condition, fields: pa.Schema) -> list[int]:
    """The groups of a file in which a condition may hold, as their statistics say.

    Statistics are of the file's own values: of columns that become another type they say nothing.
    """
    own = fragment.physical_schema
    places = ((one, own.get_field_index(one.name)) for one in fields)
    changed = {
        one.name
        for one, at in places
        if at >= 0 and common_type(type_without_views(own.field(at).type), one.type) is None
    }
    # pyarrow takes an empty schema for the file's own; one of no fields here fits no condition.
    known = [one for one in condition.fields if one.name not in changed] or [pa.field("\0", pa.null())]
    # Where statistics cannot be compared with it, rows perhaps can.
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        fragment = fragment.subset(condition.may_hold(changed), schema=pa.schema(known))
    return [group.id for group in fragment.row_groups]


def _refused(name: str, error: Exception) -> ValueError:
    cure = "; write terms, such as [('x', '>', 3)], which fit it" if "not in range" in str(error) else ""
    return ValueError(f"filters= does not fit the columns of {name}: {error}{cure}")
