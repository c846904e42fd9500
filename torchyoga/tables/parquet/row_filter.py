"""A condition on Parquet files -> the rows for which it holds: only the columns that it names are read."""

from __future__ import annotations

import difflib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from ...errors import CorruptError
from .files import ParquetFiles
from .places import LocalFile, Ranges

__all__ = ["Filters", "filtered"]

Term: TypeAlias = tuple[str, str, object]
Filters: TypeAlias = "ds.Expression | Sequence[Term] | Sequence[Sequence[Term]]"
_THREADS = 4


def filtered(files: ParquetFiles, filters: Filters, all_fields: pa.Schema) -> ParquetFiles:
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
    condition = _expression(filters, all_fields)
    by_file = [np.flatnonzero(files.file == index) for index in range(len(files.footers))]
    tasks = [(files, index, groups, condition, all_fields) for index, groups in enumerate(by_file)]
    if multiprocessing.parent_process() is None and len(tasks) > 1:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="torchyoga-filter") as pool:
            masks = list(pool.map(lambda task: _masks(*task), tasks))
    else:
        masks = [_masks(*task) for task in tasks]
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


def _expression(filters: Filters, fields: pa.Schema) -> ds.Expression:
    if isinstance(filters, ds.Expression):
        return filters
    for some in filters:
        for term in [some] if _is_term(some) else some:
            if not _is_term(term):
                raise TypeError(f"filters= takes terms such as ('x', '>', 3), found {term!r:.100}")
            if term[0] not in fields.names:
                raise _unknown(term[0], fields)
    return pq.filters_to_expression(filters)


def _is_term(term: object) -> TypeGuard[Term]:
    return isinstance(term, tuple) and len(term) == 3 and isinstance(term[0], str)


def _unknown(name: str, fields: pa.Schema) -> KeyError:
    near = difflib.get_close_matches(name, fields.names, n=3, cutoff=0.5) or fields.names[:20]
    return KeyError(
        f"filters= names a column {name!r}, which there is not; there are {', '.join(map(repr, near))}"
    )


def _masks(
    files: ParquetFiles,
    index: int,
    groups: npt.NDArray[np.int64],
    condition: ds.Expression,
    fields: pa.Schema,
) -> dict[int, npt.NDArray[np.bool_]]:
    """For each group of a file that may hold such rows, which of its rows they are."""
    footer, keys = files.footers[index], files.keys[index]
    made = [
        ds.field(name) == value if value is not None else ds.field(name).is_null()
        for name, value in keys.items()
    ]
    partition = ds.scalar(True)
    for one in made:
        partition = partition & one
    by_number = {int(files.number[group]): int(group) for group in groups}
    place = footer.place
    format = ds.ParquetFileFormat()
    try:
        if isinstance(place, LocalFile):
            fragment = format.make_fragment(place.path, pyarrow.fs.LocalFileSystem(), partition)
        else:
            fragment = format.make_fragment(Ranges(place, footer.identity.nbytes, ()), None, partition)
        pruned = fragment.subset(condition, schema=fields)
        wanted = [found.id for found in pruned.row_groups if found.id in by_number]
        if not wanted:
            return {}
        some = fragment.subset(row_group_ids=wanted)
        use_threads = multiprocessing.parent_process() is None
        table = some.to_table(schema=fields, columns={"is_wanted": condition}, use_threads=use_threads)
        keep = table.column(0).fill_null(False).to_numpy()
    except pa.ArrowInvalid as error:
        if "No match for FieldRef" in str(error):
            name = str(error).partition("FieldRef.Name(")[2].partition(")")[0]
            raise _unknown(name, fields) from None
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


def _refused(name: str, error: Exception) -> ValueError:
    return ValueError(f"filters= does not fit the columns of {name}: {error}")
