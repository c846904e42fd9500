"""A published version -> a version without some rows, which shares its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..reading.reader import Reader
from ..reading.version_ref import VersionRef
from ..rows.types import Ints, Json
from ..stores.refs import fetched
from ..versions.checks import fingerprint_of
from ..versions.columns import ColumnGroup
from ..versions.file_entry import MOST_DELETED, Deleted, FileEntry
from ..views.chosen import Condition
from .appended import Growth

Numbers = Sequence[int] | Ints
Where = tuple[str | Sequence[str], Condition]


def reduced(
    growth: Growth,
    to: str,
    rows: Numbers | None,
    where: Where | None,
    lineage: Callable[[float], Json],
) -> VersionRef:
    """Publishes a version without some rows, which shares all files. Hold its lock.

    See `Storage.delete_rows`.
    """
    started = time.monotonic()
    whole = fetched(growth.store, growth.id, growth.first())
    old = whole.manifest
    gone = deleted_rows(whole, rows, where)
    files = tuple(file for group in old.column_groups for file in _left_in(group, whole, gone))
    if sum(file.deleted.count for file in files if file.deleted is not None) > MOST_DELETED:
        raise ValueError(f"more than {MOST_DELETED} rows would be deleted; convert the version first")
    first = int(gone[0])  # a version that lacks a row of a parent does not begin with that
    before = [replace(one, is_prefix=one.is_prefix and first >= one.rows) for one in old.parents]
    with growth.before():
        manifest = replace(
            growth.begun(to),
            schema=old.schema,
            files=files,
            groups=old.groups,
            written=old.written,
            fingerprint=fingerprint_of(old.schema, files, old.groups),
            info=old.info,
            function=old.function,
            parents=(*before, old.as_parent(is_prefix=False)),
            lineage=lineage(time.monotonic() - started),
        )
        return growth.published(manifest)


def deleted_rows(whole: VersionRef, rows: Numbers | None, where: Where | None) -> Ints:
    """(D,) the rows that `Storage.delete_rows` would delete, sorted; its errors if it would not."""
    if (rows is None) == (where is None):
        raise ValueError("pass either rows=, numbers of rows, or where=(columns, condition)")
    gone = _numbers(rows, len(whole)) if where is None else _found(whole, where)
    if not len(gone):
        found = whole.manifest
        raise ValueError(f"no row of {found.id!r} {found.version!r} is to be deleted; nothing was published")
    return gone


def _numbers(rows: Numbers | None, length: int) -> Ints:
    """(D,) numbers of rows, sorted; IndexError, TypeError or ValueError if they are not that."""
    found = np.asarray([] if rows is None else rows)
    if not found.size:
        return np.zeros(0, np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise TypeError(f"rows must be numbers of rows, found {found.dtype} of shape {found.shape}")
    wrong = found[(found < 0) | (found >= length)]
    if len(wrong):
        raise IndexError(f"there is no row {wrong[0]}: the version has {length} rows, counted from 0")
    found = np.sort(found.astype(np.int64))
    twice = found[1:][found[1:] == found[:-1]]
    if len(twice):
        raise ValueError(f"rows names row {twice[0]} twice")
    return found


def _found(whole: VersionRef, where: Where) -> Ints:
    """(D,) the rows for which a condition holds, sorted."""
    if not isinstance(where, tuple) or len(where) != 2 or not callable(where[1]):
        raise TypeError(f"where must be a pair of columns and a condition, found {where!r:.80}")
    if not len(whole):
        return np.zeros(0, np.int64)
    found = whole.where(*where)
    return np.sort(found.rows_at(np.arange(len(found))))


def _left_in(group: ColumnGroup, whole: VersionRef, gone: Ints) -> Iterator[FileEntry]:
    old, starts = whole.manifest, group.file_starts
    reader = Reader.of_group(whole.location, group)
    bounds = np.searchsorted(gone, starts).tolist()
    for number, file in enumerate(group.files):
        lost = gone[bounds[number] : bounds[number + 1]] - int(starts[number])
        shared = replace(file, of=file.of or old.version)
        if len(lost) == file.rows and file.rows:
            continue
        if not len(lost):
            yield shared
            continue
        if file.deleted is not None:
            before = file.deleted.rows
            lost = lost + np.searchsorted(before - np.arange(len(before)), lost, side="right")
            lost = np.sort(np.concatenate([before, lost]))
        checks = reader.checks_without(number, lost)
        rows = file.whole.rows - len(lost)
        yield replace(shared, rows=rows, checks=checks, deleted=Deleted.of_rows(lost, file.whole.checks))
