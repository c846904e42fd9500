"""A published version -> another one made of it: with more or fewer rows, other columns, or in other files.

All but a converted one share the files of the version before.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ..adapters.sources import as_ref, dataset_and_source
from ..building.build import BuildOptions, Target, build
from ..building.sources import BlockSource, Source
from ..errors import BusyError, NotFoundError, SchemaError
from ..reading.counting import merged
from ..reading.dataref import DataRef
from ..reading.reader import Reader
from ..reading.version_ref import VersionRef
from ..rows.block import Block
from ..rows.comparing import schema_diff
from ..rows.schema import Schema, unknown_column
from ..rows.types import Ints, Json
from ..stores.contract import Store
from ..stores.history import newest
from ..stores.refs import fetched, ref_of
from ..versions.columns import ColumnGroup, fingerprint_of
from ..versions.file_entry import MOST_DELETED, Deleted, FileEntry, Listed
from ..versions.lineage import plain
from ..versions.manifest import Manifest
from ..versions.regrouped import merged_schema, with_columns, with_rows, without_columns
from ..views import recoded
from ..views.changed import ComputedRef
from ..views.chosen import Condition
from ..views.info import info_of
from .many import Many, given_info, prepared, submitted_by

_PATIENCE = 1.0  # seconds to wait for the newest version, besides ten times those of finding it
_CALL_ROWS, _CALL_BYTES = 1024, 2**24  # that a function of columns gets, at most
_KEPT = ("function", "code", "source", "message")  # entries of the lineage of the code that made the rows

Fit = Callable[[object, Schema | None], tuple[object, Schema | None, Callable[[Source], Source]]]
Numbers = Sequence[int] | Ints
Where = tuple[str | Sequence[str], Condition]


@dataclass(frozen=True)
class Growth:
    """A version that another one is made from.

    Attributes:
        store: where both are.
        timeout: seconds to wait for others who make a version of the same one.
        id, after: the version before; None for the newest at the moment of publication.
    """

    store: Store
    timeout: float
    id: str
    after: str | None

    def first(self) -> str:
        """The version before as it is now."""
        return newest(self.store, self.id).version if self.after is None else self.after

    @contextmanager
    def before(self) -> Iterator[Manifest]:
        """The version before, under its lock: no process removes or replaces it, or publishes a newer one.

        A process that makes a version from another one holds that one's lock, so the newest one stays the
        newest while its lock is held.
        """
        end = time.monotonic() + self.timeout
        while True:
            began = time.monotonic()
            name = self.first()
            now = time.monotonic()
            # A process that waits for the newest version looks again soon whether it still is: else all that
            # wait for it would take its lock, one after the other, for nothing.
            patience = end - now
            if self.after is None:
                patience = min(patience, _PATIENCE + 10 * (now - began))
            with ExitStack() as held:
                try:
                    held.enter_context(self.store.lock(self.id, name, max(0.0, patience)))
                except BusyError:
                    if self.after is not None or time.monotonic() > end:
                        raise
                    continue
                if self.after is not None or self.first() == name:
                    yield self.store.manifest(self.id, name)
                    return

    @contextmanager
    def named(self, version: str | None) -> Iterator[str]:
        """The name of the new version, by default the next number that names none; its lock is held."""
        store, id = self.store, self.id
        if version is not None:
            store.refuse_existing(id, version, False)
        store.manifest(id, self.first())
        with self._next() if version is None else store.lock(id, version, self.timeout) as free:
            to = free or version
            assert to is not None, "one of them has a name"
            store.refuse_existing(id, to, False)
            store.check_place(id, to)
            yield to

    @contextmanager
    def _next(self) -> Iterator[str]:
        """The next number that names no version of the id, and none that others build; its lock is held."""
        numbers = [int(name) for name in self.store.versions(self.id) if name.isascii() and name.isdigit()]
        for number in itertools.count(max(numbers, default=0) + 1):
            with ExitStack() as held:
                try:
                    held.enter_context(self.store.lock(self.id, str(number), 0))
                except BusyError:  # others build it
                    continue
                if self.store.find(self.id, str(number)) is None:
                    yield str(number)
                    return

    def published(self, version: str, manifest: Manifest) -> VersionRef:
        """Publishes a version that has no files of its own but lists. Hold its lock."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        new = replace(manifest, version=version, build=secrets.token_hex(8), created=created)
        staging = self.store.stage(self.id, version)
        return ref_of(self.store, self.store.publish(staging, new.in_lists(staging.root.write)))


def in_format_of(manifest: Manifest, options: BuildOptions) -> BuildOptions:
    """Options for files of the format and the compression of a version, if it has files."""
    if not manifest.files:
        return options
    last = manifest.files[-1]
    found = last.index.get("compression")
    return replace(options, format=last.format, compression=found if isinstance(found, str) else None)


# -- more rows


def appended(data: object, growth: Growth, version: str, options: BuildOptions, fit: Fit) -> VersionRef:
    """Publishes a version of the rows of another one and new ones; see `Storage.append`. Hold its lock.

    Args:
        data: the new rows.
        growth: the version before.
        version: the name of the new one.
        options: how to build.
        fit: takes a dataset and the schema of the version before; gives a dataset to read, the schema for its
            build, and what encodes a source of it.
    """
    store, id = growth.store, growth.id
    old = store.manifest(id, growth.first())
    options = in_format_of(old, options)
    dataset, source = dataset_and_source(data, options.num_workers)
    added, wanted = given_info(dataset, options), old.schema
    if wanted is not None:
        dataset, wanted, classes = _coded_alike(as_ref(dataset), old, wanted)
        added = {**classes, **added}
        _, source = dataset_and_source(dataset, options.num_workers)
    options = replace(options, publishing=partial(_with_rows, growth, added))
    if wanted is None or not (isinstance(dataset, DataRef) and dataset.schema == wanted):
        plainer, schema, encode = fit(dataset, wanted)
        _, source = dataset_and_source(plainer, options.num_workers, schema)
        if isinstance(source, BlockSource) and schema not in (None, source.schema):
            raise _differing(old, source.schema)
        source, options = encode(source), replace(options, schema=schema, converts=True)
    new = build(source, Target(store, id, version), options)
    # To open thousands of files takes longer than to append.
    return VersionRef(store.files(new), new) if new.lists else ref_of(store, new)


@contextmanager
def _with_rows(growth: Growth, added: Json, new: Manifest) -> Iterator[Manifest]:
    """The manifest of all rows, from that of the new ones and the info that was passed."""
    with growth.before() as old:
        schema, info = old.schema or new.schema, old.info
        if old.schema is not None and new.schema is not None:
            schema = recoded.extended(old.schema, new.schema)
            if schema is None:
                raise _differing(old, new.schema)
            info = recoded.named_in(info, old.schema, schema)
        before = old.shared()
        files, written = with_rows(before, new.files)
        yield replace(
            new,
            schema=schema,
            files=files,
            groups=before.groups,
            written=written,
            fingerprint=fingerprint_of(schema, files.pieces, before.groups),
            info=plain({**info, **added}),
            parents=before.parents.with_more([old.as_parent(is_prefix=True)]),
            stats=merged(
                [(old.stats, old.num_rows), (new.stats, new.num_rows)], schema, f"{new.id!r} {new.version!r}"
            ),
        )


def _coded_alike(data: object, old: Manifest, schema: Schema) -> tuple[object, Schema, Json]:
    """New rows whose codes are those of a version for the same names; the schema, with names that are new;
    and entries of the info about new classes of columns that do not have the names themselves."""
    found = info_of(data)
    before_map = recoded.rows_before(data) if isinstance(data, DataRef) else [None]
    theirs = data.schema if isinstance(data, DataRef) else None
    if theirs is None:
        every = [schema, *(one for one in before_map if one is not None)]
        recoded.check_names(before_map, recoded.joined_names(every), "the new rows")
    elif isinstance(data, DataRef):
        _check_named(schema, theirs)
        names = recoded.joined_names([schema, theirs])
        schema, data = recoded.with_names(schema, names), recoded.recoded(data, names)
        found = info_of(data)
    assert old.schema is not None
    before = recoded.named_in(old.info, old.schema, schema)
    mine = recoded.codes_in(before)
    both = recoded.codes_of_both(theirs, mine, found, repr(old.version), "the new rows") if mine else mine
    if both == mine or not recoded.lacks_names(schema):
        return data, schema, {}
    added: Json = {"class_to_idx": both} if "class_to_idx" in before else {}
    if "classes" in before and sorted(both.values()) == list(range(len(both))):
        added["classes"] = sorted(both, key=both.__getitem__)
    return data, schema, added


def _check_named(old: Schema, new: Schema) -> None:
    """Raises SchemaError if new rows have names of codes that the column before has not."""
    plain = {one.name for one in old.columns if one.letter in "iu" and one.meaning.words is None}
    for column in new.columns:
        if column.meaning.words is not None and column.name in plain:
            raise SchemaError(
                f"column {column.name!r} of the new rows has names for its codes, "
                f"{', '.join(column.meaning.words)!s:.200}, which that of the old rows has not; convert the "
                "codes to plain numbers first, as by map, or submit all rows as a version of its own"
            )


def _differing(old: Manifest, found: Schema) -> SchemaError:
    """The error for rows that do not fit those of a version, with the columns that differ."""
    return SchemaError(
        f"the new rows do not fit {old.id!r} {old.version!r}:\n{schema_diff(old.schema, found)}\n"
        "Convert them, or submit all rows as a version of its own"
    )


# -- other columns


@dataclass(frozen=True)
class Added:
    """New columns of a version, until they are published beside its own.

    Attributes:
        growth: the version.
        old: its manifest when the build began.
        replacing: a new column may take the place of one that has its name.
    """

    growth: Growth
    old: Manifest
    replacing: bool

    @property
    def _name(self) -> str:
        return f"{self.old.id!r} {self.old.version!r}"

    def check_schema(self, schema: Schema) -> None:
        """Raises SchemaError unless rows of the version can have these columns as well."""
        assert self.old.schema is not None, "it has columns"
        try:
            merged_schema(self.old.schema, schema, self.replacing)
        except SchemaError as error:
            raise SchemaError(f"the new columns do not fit {self._name}: {error}") from None

    def check_length(self, found: int, is_all: bool = True) -> None:
        """Raises SchemaError if there are other new rows than the version has, or more."""
        if found > self.old.num_rows or (is_all and found != self.old.num_rows):
            more = "" if is_all else " or more"
            raise SchemaError(
                f"{self._name} has {self.old.num_rows} rows, and the new columns have {found}{more}; give a "
                "value for each row, in the same order. Nothing was published"
            )

    def watch(self, options: BuildOptions) -> BuildOptions:
        """Options of a build that ends as soon as the columns do not fit."""
        seen = 0

        def each_block(block: Block) -> None:
            nonlocal seen
            if not seen:
                self.check_schema(block.schema)
            seen += block.num_rows
            self.check_length(seen, is_all=False)

        return replace(options, each_block=each_block)

    @contextmanager
    def publishing(self, given: Json, new: Manifest) -> Iterator[Manifest]:
        """The manifest of all columns, from that of the new ones."""
        self.check_length(new.num_rows)
        with self.growth.before() as old:
            if not self._has_same_rows(old):
                what = f"followed by {old.version!r} of"
                if old.version == self.old.version:
                    what = "overwritten by"
                how = "" if self.growth.after else f", or pass after={self.old.version!r}"
                raise NotFoundError(
                    f"{self._name} was {what} other rows while columns of it were made; nothing was "
                    f"published, call again{how}"
                )
            now = replace(self, old=old)
            assert new.schema is not None, "it was looked at before"
            now.check_schema(new.schema)
            found = with_columns(old, new, self.replacing)
            yield _made_of(old, replace(found, info=plain({**old.info, **given})))

    def _has_same_rows(self, old: Manifest) -> bool:
        """True for the version, and for those that others have made of it by columns meanwhile."""
        own = self.old.fingerprint, self.old.num_rows
        return own[1] == old.num_rows and (own[0] == old.fingerprint or own in old.prefixes)


class Given(NamedTuple):
    """The columns that a function gets, None for all; and how many rows at most, None to choose."""

    columns: Sequence[str] | None = None
    most_rows: int | None = None

    def through(self, function: Callable[..., object], whole: VersionRef) -> DataRef:
        """The rows of a version through the function."""
        ref: DataRef = whole if self.columns is None else whole.columns([*self.columns])
        most = max(1, min(_CALL_ROWS, _CALL_BYTES // max(1, ref._row_bytes)))
        return ComputedRef(ref, function, most_rows=self.most_rows or most)


def added(
    data: object,
    growth: Growth,
    version: str,
    options: BuildOptions,
    *,
    given: Given,
    replacing: bool,
    many: Many | None = None,
) -> VersionRef:
    """Publishes a version with more columns; see `Storage.add_columns`. Hold its lock, unless many build it.

    Args:
        data: the columns, or a function of columns that are there.
        growth: the version that they are added to.
        version: the name of the new one.
        options: how to build.
        given: what the function gets.
        replacing: a new column may take the place of one that has its name.
        many: who builds; None for this process.
    """
    store, id = growth.store, growth.id
    whole = fetched(store, id, growth.first())
    task, name = Added(growth, whole.manifest, replacing), whole.manifest.version
    if whole.schema is None or not len(whole):
        raise SchemaError(f"{id!r} {name!r} has no rows, so no columns can be added; submit rows instead")
    if callable(data):
        data = given.through(data, whole)
    elif given != Given():
        raise TypeError("columns= and batch_size= are about what a function gets; pass them with one only")
    options = in_format_of(whole.manifest, options)
    info = given_info(data, options)
    target = Target(store, id, version)
    source, ready = prepared(data, target, options)
    if source.length is not None:
        task.check_length(source.length)
    if isinstance(source, BlockSource):
        task.check_schema(source.schema)
    publishing = partial(task.publishing, info)
    if many is not None:
        options = replace(options, publishing=publishing)
        return submitted_by(many, data, target, options)
    ready = replace(task.watch(ready), info={}, publishing=publishing)
    return ref_of(store, build(source, target, ready))


def dropped(
    names: Sequence[str], growth: Growth, version: str, lineage: Callable[[float], Json]
) -> VersionRef:
    """Publishes a version without some columns; see `Storage.drop_columns`. Hold its lock."""
    started = time.monotonic()
    with growth.before() as old:
        names = (*names,) if not isinstance(names, str) else names
        _refuse_unknown(old, names)
        found = without_columns(old.shared(), names)
        groups = () if len(found.groups) == 1 else found.groups
        spent = lineage(time.monotonic() - started)
        return growth.published(
            version, _made_of(old, replace(found, groups=groups, function=None, lineage=spent))
        )


def _refuse_unknown(old: Manifest, names: Sequence[str]) -> None:
    """Raises KeyError, ValueError or SchemaError unless these are keys of rows, and others are left."""
    if isinstance(names, str) or not names:
        raise ValueError(f"names must be a list of one column or more, found {names!r:.80}")
    if old.schema is None or old.schema.tree.kind != "dict":
        raise SchemaError(f"the rows of {old.id!r} {old.version!r} are no dicts, so no key can be dropped")
    for name in names:
        if name not in old.schema.tree.keys:
            raise unknown_column(old.schema, name)
    if not {*old.schema.tree.keys} - {*names}:
        raise ValueError(f"{list(names)} are all that {old.id!r} {old.version!r} has; remove it instead")


def _made_of(old: Manifest, new: Manifest) -> Manifest:
    """A version with the rows of an old one and other columns: states of the old one fit it."""
    assert old.schema is not None, "it has columns"
    assert new.schema is not None, "it has columns"
    places = {column.name: place for place, column in enumerate(old.schema.columns)}
    numbers = [places.get(column.name, -1) for column in new.schema.columns]
    parent = old.as_parent(is_prefix=True).with_columns(numbers)
    before = old.shared().parents
    if parent.columns is not None:
        before = Listed(one.with_columns(numbers) for one in before)
    fingerprint = fingerprint_of(new.schema, new.files.pieces, new.groups)
    return replace(new, fingerprint=fingerprint, parents=before.with_more([parent]))


# -- fewer rows


def reduced(
    growth: Growth, to: str, rows: Numbers | None, where: Where | None, lineage: Callable[[float], Json]
) -> VersionRef:
    """Publishes a version without some rows, which shares all files. Hold its lock.

    See `Storage.delete_rows`.
    """
    started = time.monotonic()
    whole = fetched(growth.store, growth.id, growth.first())
    old = whole.manifest
    gone = deleted_rows(whole, rows, where)
    left = (file for group in old.column_groups for file in _left_in(group, whole, gone))
    files = old.files.with_pieces(left)
    if sum(file.deleted.count for file in files if file.deleted is not None) > MOST_DELETED:
        raise ValueError(f"more than {MOST_DELETED} rows would be deleted; convert the version first")
    first = int(gone[0])  # a version that lacks a row of a parent does not begin with that
    before = [replace(one, is_prefix=one.is_prefix and first >= one.rows) for one in old.parents]
    with growth.before():
        manifest = replace(
            old,
            files=files,
            fingerprint=fingerprint_of(old.schema, files.pieces, old.groups),
            parents=Listed((*before, old.as_parent(is_prefix=False))),
            lineage=lineage(time.monotonic() - started),
            stats={},
        )
        return growth.published(to, manifest)


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


# -- other files


def converted(
    version: str, target: Target, options: BuildOptions, keeps_format: bool, compression: str | None
) -> VersionRef:
    """Publishes the rows of a version in files of their own; see `Storage.convert`. Hold the target's lock.

    Args:
        version: a version of the target's id.
        target: where the rows are to be published.
        options: how to build.
        keeps_format: the files have the format and the compression of the version.
        compression: another compression then; None for that of the version.
    """
    whole = fetched(target.store, target.id, version)
    old, own = whole.manifest, options.lineage
    if keeps_format:
        options = in_format_of(old, options)
        options = replace(options, compression=compression or options.compression)

    def lineage(seconds: float) -> Json:
        made = {} if own is None else own(seconds)
        return {**{name: old.lineage[name] for name in _KEPT if name in old.lineage}, **made} if made else {}

    encode = options.encode
    is_recoded = encode is not None
    parents = [replace(parent, is_prefix=parent.is_prefix and not is_recoded) for parent in old.parents]
    if target.version != version:
        parents.append(old.as_parent(is_prefix=not is_recoded))
    options = replace(options, info=old.info, function=old.function, parents=tuple(parents), lineage=lineage)
    plainer, encoded = (whole, None) if encode is None else encode(whole)
    _, source = dataset_and_source(plainer)
    if encoded is not None:
        source = encoded(source)
    return ref_of(target.store, build(source, target, options))
