"""Groups of columns of a version, each with files of its own over the same rows, and all their checksums.

Columns that are added lie in new files beside those of the others, which are shared, not written again.
Each group has all rows, in files that are cut as it likes. A file may hold more columns than its group
shows, as after some were dropped, or as one of rows that were appended to all groups, which is in each of
them: then its entry says with which schema it was written, and has the checks of the columns that are shown.

Note 8. The fingerprint binds the schema to the rows.
It is made of both, so opening the manifest shows whether a type or a shape was changed. The CRCs of all files
are combined together, one digit of the lengths that follow at a time. A conversion keeps the fingerprint, so
references that were pickled before it still find their rows.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from ..files.checksum import combine_crc32, crc32_of_all
from ..process.digests import json_digest
from ..process.lazy import cached_property, later
from ..rows.schema import Schema
from .file_entry import LIST, FileEntry, Listed
from .lineage import Parent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..rows import schema as _projection
else:
    np, _projection = later("numpy"), later("torchyoga.rows.schema")

MOST_GROUPS = 2**16
Keys: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class ColumnGroup:
    """Some columns of all rows of a version.

    Attributes:
        number: of the group, as entries have it.
        schema: of a row that has these columns only.
        columns: their numbers in the version's schema.
        files: in the order of the rows.
        written: schemas that they were written with, as `Manifest.written`.
    """

    number: int
    schema: Schema
    columns: tuple[int, ...]
    files: Listed[FileEntry]
    written: Sequence[Schema] = ()

    @cached_property
    def file_starts(self) -> npt.NDArray[np.int64]:
        """(files + 1,) the first row of each file, and the number of rows."""
        return np.concatenate([[0], np.cumsum([file.rows for file in self.files])]).astype(np.int64)


def groups_of(
    schema: Schema, files: Listed[FileEntry], keys: Sequence[Keys], written: Sequence[Schema] = ()
) -> list[ColumnGroup]:
    """The groups of a version that have columns.

    Args:
        schema: the version's.
        files: of all groups.
        keys: for each group, which keys of the rows it has; none if there is one group, with all of them.
        written: as `Manifest.written`.
    """
    if not keys:
        return [ColumnGroup(0, schema, tuple(range(len(schema.columns))), files, written)]
    found = []
    for number, own in enumerate(keys):
        if own:
            of = _projection.Projection.of_keys(schema, own)
            some = files.with_pieces(piece for piece in files.pieces if piece.group == number)
            found.append(ColumnGroup(number, of.schema, of.columns, some, written))
    return found


def parts_of(schema: Schema, columns: Sequence[int]) -> list[int]:
    """The numbers of the parts of some columns."""
    ends = list(itertools.accumulate((len(column.parts) for column in schema.columns), initial=0))
    return [part for column in columns for part in range(ends[column], ends[column + 1])]


_FEW = 16  # checks that are combined in less time than it takes to load NumPy


def fingerprint_of(schema: Schema | None, pieces: Sequence[FileEntry], keys: Sequence[Keys] = ()) -> str:
    """A name for the content, equal for equal rows, whatever the files, blocks, groups and format are.

    Args:
        schema: of the rows; None if there are none.
        pieces: the files of all groups of columns, or lists in place of some.
        keys: those of each group, as `groups_of` takes them.
    """
    if schema is None or not pieces:
        return json_digest([schema.to_json() if schema else None, 0, []])
    groups = groups_of(schema, Listed(pieces), keys)
    rows = sum(piece.rows for piece in groups[0].files.pieces) if groups else 0
    checks = checks_of_columns(groups)
    every = [check for column in schema.columns for check in checks[column.name]]
    return json_digest([schema.to_json(), rows, every])


def checks_of_columns(groups: Sequence[ColumnGroup]) -> dict[str, tuple[tuple[int, int], ...]]:
    """For each column the bytes and the CRC-32 of each part of all rows: equal for equal values."""
    found = {}
    for group in groups:
        totals = iter(_total_checks(group.files.pieces, group.schema.num_parts))
        for column in group.schema.columns:
            found[column.name] = tuple(itertools.islice(totals, len(column.parts)))
    return found


def refuse_unfit(group: ColumnGroup) -> None:
    """Raises ValueError unless the checks of each file, or list, of a group cover as many bytes as its rows
    need, and files hold the columns that they are said to.
    """
    files, written = group.files.pieces, group.written
    for number in {file.written for file in files} - {None}:
        if not 0 <= number < len(written):
            raise ValueError(f"a file was written with schema {number} of {len(written)}")
        if not {*group.schema.columns} <= {*written[number].columns}:
            raise ValueError(f"schema {number} does not have the columns of its files")
    for some in (files, [file.whole for file in files if file.deleted]):
        _refuse_other_sizes(group.schema, some)


def _refuse_other_sizes(schema: Schema, files: Sequence[FileEntry]) -> None:
    rows = [file.rows for file in files]
    names = [(column, name) for column in schema.columns for name in column.parts]
    item_bytes = [size for column in schema.columns for size in column.part_bytes]
    for (column, name), checks, size in zip(
        names, _checks_of(files, schema.num_parts), item_bytes, strict=True
    ):
        sizes = [nbytes for nbytes, _ in checks]
        if size and not (column.is_ragged and name == "values"):
            sound = sizes == [count * size for count in rows]
        else:
            sound = not any(nbytes % size if size else nbytes for nbytes in sizes)
        if not sound:
            raise ValueError(f"the checks of {column.name}/{name} do not cover the bytes that its rows have")


def list_of(entries: Sequence[FileEntry | Parent], name: str, text: bytes, digest: str) -> FileEntry:
    """The entry of a list of these files or parents."""
    files = [entry for entry in entries if isinstance(entry, FileEntry)]
    return FileEntry(
        name=name,
        format=LIST,
        rows=sum(file.rows for file in files),
        nbytes=len(text),
        index={
            "entries": len(entries),
            "nbytes": sum(file.nbytes for file in files),
            "deleted": sum(file.deleted.count for file in files if file.deleted is not None),
            "digest": digest,
        },
        group=files[0].group if files else 0,
        checks=_total_checks(files, len(files[0].checks) if files else 0),
        crc=zlib.crc32(text),
    )


def _total_checks(files: Sequence[FileEntry], num_parts: int) -> tuple[tuple[int, int], ...]:
    """For each part, the checks of all files as of one."""
    found = _checks_of(files, num_parts)
    return tuple(
        (sum(size for size, _ in part), crc) for part, crc in zip(found, _combined(found), strict=True)
    )


def _checks_of(files: Sequence[FileEntry], num_parts: int) -> list[tuple[tuple[int, int], ...]]:
    """For each part, the checks of all files; ValueError if some file has another number of them."""
    if any(len(file.checks) != num_parts for file in files):
        raise ValueError(f"a file does not have the {num_parts} checks of its schema")
    found = [tuple(file.checks[part] for file in files) for part in range(num_parts)]
    if any(sum(nbytes for nbytes, _ in part) >= 2**61 for part in found):
        raise ValueError("the sizes in the checks of its files are too large")
    return found


def _combined(checks: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """For each part, the CRC-32 of the bytes of all files."""
    if sum(map(len, checks)) > _FEW:
        sizes, crcs = np.array(checks, np.int64).transpose(2, 1, 0)
        found: list[int] = crc32_of_all(crcs.astype(np.uint32), sizes).tolist()
        return found
    return [reduce(lambda whole, check: combine_crc32(whole, check[1], check[0]), part, 0) for part in checks]
