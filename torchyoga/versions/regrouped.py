"""A manifest -> one of the same rows with other columns, or of more rows, in groups of columns."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..errors import SchemaError
from ..rows.column import Column
from ..rows.node import Node
from ..rows.schema import Projection, Schema
from .columns import ColumnGroup, groups_of, parts_of
from .file_entry import Deleted, FileEntry, Listed
from .manifest import Manifest


def merged_schema(old: Schema, new: Schema, replacing: bool) -> Schema:
    """The schema of rows that have the columns of both; those of the new one replace others in their places.

    Raises:
        SchemaError: rows are not dicts; or both have a key, and none is to be replaced.
    """
    for schema in (old, new):
        if schema.tree.kind != "dict":
            raise SchemaError(
                f"columns are added to rows that are dicts, by their keys; found rows that are "
                f"{'one value' if schema.tree.kind == 'leaf' else f'a {schema.tree.kind}'}; submit them as "
                "dicts, such as ref.map(lambda row: {'image': row[0], 'label': row[1]})"
            )
    if not new.columns:
        raise SchemaError("there are no columns in the new rows; add at least one")
    clashing = [key for key in new.tree.keys if key in old.tree.keys]
    if clashing and not replacing:
        raise SchemaError(
            f"there are columns {clashing[:8]} already; pass replace=True to put the new ones in their place"
        )
    held = {**_by_key(old), **_by_key(new)}
    tree = Node("dict", tuple(held), tuple(child for child, _ in held.values()))
    return Schema(tree, tuple(itertools.chain.from_iterable(columns for _, columns in held.values())))


def with_columns(old: Manifest, new: Manifest, replacing: bool) -> Manifest:
    """A new version, whose rows also have the columns of an old one; `SchemaError` as `merged_schema`."""
    assert old.schema is not None, "it was looked at before"
    assert new.schema is not None, "it has as many rows"
    added = _of_kinds(new.schema, old.schema)
    schema = merged_schema(old.schema, added, replacing)
    base = without_columns(old.shared(), added.tree.keys)
    (own,) = groups_of(schema, Listed(), (*((),) * len(base.groups), added.tree.keys))
    written = list(base.written)
    files = base.files.with_more([_cut(file, added, own, written) for file in new.files])
    has_stats = new.stats and (base.stats or not any(base.groups))
    return replace(
        new,
        schema=schema,
        files=files,
        groups=(*base.groups, own.schema.tree.keys),
        written=tuple(written),
        stats={**base.stats, **new.stats} if has_stats else {},
    )


def _of_kinds(new: Schema, old: Schema) -> Schema:
    """A schema whose columns give values as those of an old one do, if they have the same bytes: an int stays
    an int, though an array of numbers takes its place."""

    def look(column: Column) -> tuple[object, ...]:
        return column.name, column.dtype, column.shape, column.ndim, column.meaning

    before = {look(column): column for column in old.columns}
    return Schema(new.tree, tuple(before.get(look(column), column) for column in new.columns))


def without_columns(old: Manifest, keys: Collection[str | int]) -> Manifest:
    """A version without the columns of some keys, with a list of its groups."""
    assert old.schema is not None, "it has columns"
    left = Projection.of_keys(old.schema, [key for key in old.schema.tree.keys if key not in keys]).schema
    groups = [(*filter(lambda key: key not in keys, own),) for own in old.groups or [old.schema.tree.keys]]
    pieces: list[FileEntry] = []
    written = list(old.written)
    after = {group.number: group for group in groups_of(left, Listed(), groups)}
    for group in old.column_groups:
        if group.number not in after:
            continue
        now = after[group.number]
        if now.schema.columns == group.schema.columns:
            pieces += group.files.pieces
        else:
            pieces += [_cut(file, group.schema, now, written) for file in group.files]
    names = [column.name for column in left.columns if column.name in old.stats]
    return replace(
        old,
        schema=left,
        files=old.files.with_pieces(pieces),
        groups=tuple(groups),
        written=tuple(written),
        stats={name: old.stats[name] for name in names},
    )


def with_rows(old: Manifest, new: Sequence[FileEntry]) -> tuple[Listed[FileEntry], tuple[Schema, ...]]:
    """The files of a version and those of new rows behind them, in each group, and `Manifest.written`."""
    if not old.groups:
        return old.files.with_more(new), old.written
    assert old.schema is not None, "it has groups"
    pieces: list[FileEntry] = []
    written = list(old.written)
    for group in old.column_groups:
        pieces += group.files.pieces
        pieces += [_cut(file, old.schema, group, written) for file in new]
    return old.files.with_pieces(pieces), tuple(written)


def _cut(file: FileEntry, before: Schema, now: ColumnGroup, written: list[Schema]) -> FileEntry:
    """A file as one of a group, which shows some of its columns.

    Args:
        file: its entry.
        before: the schema that its checks are of.
        now: the group.
        written: what `Manifest.written` is to be.
    """
    file = replace(file, group=now.number)
    if before.columns == now.schema.columns:
        return file
    number = file.written
    if number is None:
        if before not in written:
            written.append(before)
        number = written.index(before)
    places = {column.name: place for place, column in enumerate(before.columns)}
    parts = parts_of(before, [places[column.name] for column in now.schema.columns])
    deleted = file.deleted
    if deleted is not None:
        deleted = Deleted(deleted.text, deleted.count, tuple(deleted.checks[part] for part in parts))
    return replace(file, written=number, checks=tuple(file.checks[part] for part in parts), deleted=deleted)


def _by_key(schema: Schema) -> dict[str | int, tuple[Node, tuple[Column, ...]]]:
    """For each key of the rows, what it holds, and the columns of that."""
    found, first = {}, 0
    for key, child in zip(schema.tree.keys, schema.tree.children, strict=True):
        found[key] = child, schema.columns[first : first + child.num_leaves]
        first += child.num_leaves
    return found
