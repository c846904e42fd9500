"""Two versions -> which of their rows are the same ones, without reading them, or by few columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from ...reading.dataref import DataRef
from ...reading.version_ref import VersionRef
from ...rows.compared import differing
from ...rows.hashing import values_of
from ...rows.projection import Projection
from ...rows.types import Ints
from ...versions.checks import checks_of_columns
from ...versions.columns import parts_of
from ...versions.file_entry import FileEntry
from ...versions.manifest import Manifest
from .blocks import Ranges, RowBlocks

__all__ = ["apart", "differing_values"]

_Name: TypeAlias = tuple[object, ...]


def apart(
    old: DataRef, new: DataRef, names: Collection[str], changed: Sequence[str] | None
) -> tuple[Ranges, Ranges, Ranges]:
    """The rows that only one version has: of the old and of the new one; and those of the new one in both.

    A row is in both if the files that hold its values are: by their names, which no other build gives, their
    sizes and all their checksums. Where one version was made of the other by columns alone, those whose
    checksums differ are compared row by row. Of anything but whole versions, all rows are apart.

    Args:
        old: a dataset.
        new: another one.
        names: the values that count.
        changed: what `differing_values` gives of them; None to look at files only.
    """
    if not isinstance(old, VersionRef) or not isinstance(new, VersionRef):
        return _whole(old), _whole(new), []
    if changed is not None and {*names} - {*changed}:
        some = [name for name in changed if name in names]
        rows = _differing_rows(old, new, some) if some else np.zeros(0, np.int64)
        found, rest = _runs(rows), np.setdiff1d(np.arange(len(new)), rows, assume_unique=True)
        return found, found, _runs(rest)
    mine, theirs = _pieces(old.manifest, names), _pieces(new.manifest, names)
    common = {name for name, *_ in mine} & {name for name, *_ in theirs}
    return (
        _joined((start, stop) for name, start, stop in mine if name not in common),
        _joined((start, stop) for name, start, stop in theirs if name not in common),
        _joined((start, stop) for name, start, stop in theirs if name in common),
    )


def differing_values(old: DataRef, new: DataRef) -> tuple[str, ...] | None:
    """The values that two versions have and that differ in some row, by their checksums.

    None if it is not known that their rows lie side by side: then neither is made of the other by columns
    that were added, replaced or dropped.
    """
    if not isinstance(old, VersionRef) or not isinstance(new, VersionRef) or len(old) != len(new):
        return None
    was, now = (old.fingerprint, len(old)), (new.fingerprint, len(new))
    if old.schema is None or new.schema is None or (was not in new.prefixes and now not in old.prefixes):
        return None
    mine, theirs = (checks_of_columns(ref.manifest.column_groups) for ref in (old, new))
    common = values_of(new.schema)
    return tuple(
        name
        for name, (_, columns) in values_of(old.schema).items()
        if name in common and any(theirs.get(column.name) != mine[column.name] for column in columns)
    )


def _differing_rows(old: VersionRef, new: VersionRef, names: Sequence[str]) -> Ints:
    """(D,) the rows in which some values differ, ascending."""
    found = [np.zeros(0, np.int64)]
    sides = []
    for ref in (old, new):
        assert ref.schema is not None, "it has these columns"
        sides.append(RowBlocks(ref, ref.schema, Projection.of(ref.schema, names)))
    for first, block in sides[0].within(_whole(old)):
        rows = np.arange(first, first + block.num_rows)
        found.append(rows[differing(block, sides[1].take(rows)).any(axis=1)])
    return np.concatenate(found)


def _whole(ref: DataRef) -> Ranges:
    return [(0, len(ref))] if len(ref) else []


def _runs(rows: Ints) -> Ranges:
    """Rows as ranges of neighbours."""
    if not len(rows):
        return []
    ends = np.flatnonzero(np.diff(rows) != 1)
    starts, stops = np.append(0, ends + 1), np.append(ends, len(rows) - 1)
    return list(zip(rows[starts].tolist(), (rows[stops] + 1).tolist(), strict=True))


def _pieces(manifest: Manifest, names: Collection[str]) -> list[tuple[frozenset[object], int, int]]:
    """Rows whose values lie in the same files, one after the other: a name of the files, and the rows."""
    if manifest.schema is None:
        return []
    values = values_of(manifest.schema)
    wanted = {column.name for name in names if name in values for column in values[name][1]}
    groups = [
        (group, [place for place, column in enumerate(group.schema.columns) if column.name in wanted])
        for group in manifest.column_groups
    ]
    groups = [(group, places) for group, places in groups if places] or groups[:1]
    if not groups:
        return []
    starts = np.unique(np.concatenate([group.file_starts for group, _ in groups]))
    found = []
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        held: dict[_Name, list[_Name]] = {}  # by file, and the row in it, the columns
        for group, places in groups:
            number = int(np.searchsorted(group.file_starts, start, side="right")) - 1
            file = group.files[number]
            columns = held.setdefault((*_name(file), start - int(group.file_starts[number])), [])
            columns += [
                (group.schema.columns[at].name, *(file.checks[part] for part in parts_of(group.schema, [at])))
                for at in places
            ]
        name = *((file, tuple(sorted(columns))) for file, columns in held.items()), stop - start
        found.append((frozenset(name), start, stop))
    return found


def _name(file: FileEntry) -> _Name:
    deleted = None if file.deleted is None else file.deleted.text
    return file.name, file.format, file.nbytes, json.dumps(file.index, sort_keys=True), file.crc, deleted


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges, neighbours as one."""
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found
