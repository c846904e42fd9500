"""A published version and new columns -> a version with both, which shares the files of the first; or
without some columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ..building.build import BuildOptions, build
from ..building.sources import BlockSource
from ..errors import NotFoundError, SchemaError
from ..process.exceptions import contextmanager
from ..reading.dataref import DataRef
from ..reading.version_ref import VersionRef
from ..rows.block import Block
from ..rows.projection import unknown_column
from ..rows.schema import Schema
from ..rows.types import Json
from ..stores.refs import fetched, ref_of
from ..versions.checks import fingerprint_of
from ..versions.info import plain
from ..versions.listed import with_more
from ..versions.manifest import Manifest
from ..versions.regrouped import merged_schema, with_columns, without_columns
from ..views.changed import ComputedRef
from .appended import Growth, own_format
from .many import submitted_by_many
from .planned import Many
from .submission import given_info, prepared

_CALL_ROWS, _CALL_BYTES = 1024, 2**24  # that a function gets, at most


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
    num_workers: int = 0,
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
        num_workers: processes that read rows by number.
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
    format, compression = own_format(whole.manifest, options.format, options.compression)
    options = replace(options, format=format, compression=compression)
    info = given_info(data, options)
    source, ready = prepared(data, id, version, options, num_workers)
    if source.length is not None:
        task.check_length(source.length)
    if isinstance(source, BlockSource):
        task.check_schema(source.schema)
    publishing = partial(task.publishing, info)
    if many is not None:
        options = replace(options, publishing=publishing)
        return submitted_by_many(data, store, id, version, options, many, num_workers)
    ready = replace(task.watch(ready), info={}, publishing=publishing)
    return ref_of(store, build(source, store, id, version, ready))


def dropped(
    names: Sequence[str], growth: Growth, version: str, lineage: Callable[[float], Json]
) -> VersionRef:
    """Publishes a version without some columns; see `Storage.drop_columns`. Hold its lock."""
    started = time.monotonic()
    with growth.before() as old:
        names = (*names,) if not isinstance(names, str) else names
        _refuse_unknown(old, names)
        found = without_columns(old.shared(), names)
        new = replace(
            growth.begun(version),
            schema=found.schema,
            files=found.files,
            groups=() if len(found.groups) == 1 else found.groups,
            written=found.written,
            stats=found.stats,
            info=old.info,
            lineage=lineage(time.monotonic() - started),
        )
        return growth.published(_made_of(old, new))


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
    """A version whose rows are those of an old one, with other columns: states of the old one fit it."""
    assert old.schema is not None, "it has columns"
    assert new.schema is not None, "it has columns"
    places = {column.name: place for place, column in enumerate(old.schema.columns)}
    numbers = [places.get(column.name, -1) for column in new.schema.columns]
    parent = old.as_parent(is_prefix=True).with_columns(numbers)
    before = old.shared().parents
    if parent.columns is not None:
        before = tuple(one.with_columns(numbers) for one in before)
    fingerprint = fingerprint_of(new.schema, new.files, new.groups)
    return replace(new, fingerprint=fingerprint, parents=with_more(before, [parent]))
