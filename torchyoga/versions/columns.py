"""Groups of columns of a version: each has files of its own, over the same rows.

Columns that are added lie in new files beside those of the others, which are shared, not written again.
Each group has all rows, in files that are cut as it likes. A file may hold more columns than its group
shows, as after some were dropped, or as one of rows that were appended to all groups, which is in each of
them: then its entry says with which schema it was written, and has the checks of the columns that are shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..process.lazy import cached_property, later
from ..rows.schema import Schema
from .file_entry import FileEntry
from .listed import Listed, pieces_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..rows import projection as _projection
else:
    np, _projection = later("numpy"), later("torchyoga.rows.projection")


MOST_GROUPS = 2**16
Keys: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class ColumnGroup:
    """Some columns of all rows of a version.

    Attributes:
        number: of the group, as entries have it.
        schema: of a row that has these columns only.
        columns: their numbers in the version's schema.
        files: in the order of the rows; a tuple, or `Listed`.
        written: schemas that they were written with, as `Manifest.written`.
    """

    number: int
    schema: Schema
    columns: tuple[int, ...]
    files: Sequence[FileEntry]
    written: Sequence[Schema] = ()

    @cached_property
    def file_starts(self) -> npt.NDArray[np.int64]:
        """(files + 1,) the first row of each file, and the number of rows."""
        return np.concatenate([[0], np.cumsum([file.rows for file in self.files])]).astype(np.int64)


def groups_of(
    schema: Schema, files: Sequence[FileEntry], keys: Sequence[Keys], written: Sequence[Schema] = ()
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
            some = [piece for piece in pieces_of(files) if piece.group == number]
            found.append(ColumnGroup(number, of.schema, of.columns, joined(files, some), written))
    return found


def joined(files: Sequence[FileEntry], pieces: Sequence[FileEntry]) -> Sequence[FileEntry]:
    """Pieces of some files, whose lists are read as those of the files."""
    has_list = any(piece.num_listed for piece in pieces)
    return files.with_pieces(pieces) if has_list and isinstance(files, Listed) else tuple(pieces)


def parts_of(schema: Schema, columns: Sequence[int]) -> list[int]:
    """The numbers of the parts of some columns."""
    ends = list(itertools.accumulate((len(column.parts) for column in schema.columns), initial=0))
    return [part for column in columns for part in range(ends[column], ends[column + 1])]
