"""A published version and new rows -> a version of all of them, which shares the files of the first."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from ..adapters.sources import as_ref, dataset_and_source
from ..building.build import BuildOptions, build
from ..building.sources import BlockSource, Source
from ..errors import BusyError, SchemaError
from ..process.exceptions import contextmanager
from ..reading.counting import merged
from ..reading.dataref import DataRef
from ..reading.version_ref import VersionRef
from ..rows.comparing import schema_diff
from ..rows.schema import Schema
from ..rows.types import Json
from ..stores.contract import Versions
from ..stores.graph import newest
from ..stores.refs import ref_of
from ..versions.checks import fingerprint_of
from ..versions.info import plain
from ..versions.listed import with_more
from ..versions.manifest import Manifest
from ..versions.regrouped import with_rows
from ..views.info import info_of
from ..views.recoded import (
    check_names,
    codes_in,
    codes_of_both,
    extended,
    joined_names,
    lacks_names,
    named_in,
    recoded,
    rows_before,
    with_names,
)
from .submission import given_info

_PATIENCE = 1.0  # seconds to wait for the newest version, besides ten times those of finding it

Fit = Callable[[object, Schema | None], tuple[object, Schema | None, Callable[[Source], Source]]]


@dataclass(frozen=True)
class Growth:
    """A version that another one is made from.

    Attributes:
        store: where both are.
        timeout: seconds to wait for others who make a version of the same one.
        id, after: the version before; None for the newest at the moment of publication.
    """

    store: Versions
    timeout: float
    id: str
    after: str | None

    def begun(self, version: str) -> Manifest:
        """A new version without rows."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Manifest(self.id, version, secrets.token_hex(8), created, None, "")

    def published(self, manifest: Manifest) -> VersionRef:
        """Publishes a version that has no files of its own but lists. Hold its lock."""
        staging = self.store.stage(self.id, manifest.version)
        return ref_of(self.store, self.store.publish(staging, manifest.in_lists(staging.root.write)))

    def first(self) -> str:
        """The version before as it is now."""
        return newest(self.store, self.id).version if self.after is None else self.after

    @contextmanager
    def before(self) -> Iterator[Manifest]:
        """The version before, which nobody removes or replaces meanwhile, or makes another newest one of.

        Who makes a version from another one holds its lock, so under the lock of the newest it stays that.
        """
        end = time.monotonic() + self.timeout
        while True:
            began = time.monotonic()
            name = self.first()
            now = time.monotonic()
            # Who waits for the newest is to see soon that it is that no more: else all who wait for it would
            # take its lock, one after the other, for nothing.
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
    def publishing(self, added: Json, new: Manifest) -> Iterator[Manifest]:
        """The manifest of all rows, given that of the new ones.

        Args:
            added: information that was passed.
            new: of the new rows.
        """
        with self.before() as old:
            schema = new.schema if old.schema is None else old.schema
            if old.schema is not None and new.schema is not None:
                schema = extended(old.schema, new.schema)
                if schema is None:
                    raise _differing(old, new.schema)
            info = (
                old.info if old.schema is None or schema is None else named_in(old.info, old.schema, schema)
            )
            before = old.shared()
            files, written = with_rows(before, new.files)
            yield replace(
                new,
                schema=schema,
                files=files,
                groups=before.groups,
                written=written,
                fingerprint=fingerprint_of(schema, files, before.groups),
                info=plain({**info, **added}),
                parents=with_more(before.parents, [old.as_parent(is_prefix=True)]),
                stats=merged(
                    [(old.stats, old.num_rows), (new.stats, new.num_rows)],
                    schema,
                    f"{new.id!r} {new.version!r}",
                ),
            )


def appended(
    data: object,
    growth: Growth,
    version: str,
    options: BuildOptions,
    num_workers: int = 0,
    *,
    fit: Fit,
) -> VersionRef:
    """Publishes a version of the rows of another one and new ones; see `Storage.append`. Hold its lock.

    Args:
        data: the new rows.
        growth: the version before.
        version: the name of the new one.
        options: how to build.
        num_workers: processes that read rows by number.
        fit: takes a dataset and the schema of the version before; gives a dataset to read, the schema for its
            build, and what encodes a source of it.
    """
    store, id = growth.store, growth.id
    old = store.manifest(id, growth.first())
    format, compression = own_format(old, options.format, options.compression)
    options = replace(options, format=format, compression=compression)
    dataset, source = dataset_and_source(data, num_workers)
    added, wanted = given_info(dataset, options), old.schema
    if wanted is not None:
        dataset, wanted, classes = _coded_alike(as_ref(dataset), old, wanted)
        added = {**classes, **added}
        _, source = dataset_and_source(dataset, num_workers)
    options = replace(options, publishing=partial(growth.publishing, added))
    if wanted is None or not (isinstance(dataset, DataRef) and dataset.schema == wanted):
        plainer, schema, encode = fit(dataset, wanted)
        _, source = dataset_and_source(plainer, num_workers, schema)
        if isinstance(source, BlockSource) and schema not in (None, source.schema):
            raise _differing(old, source.schema)
        source, options = encode(source), replace(options, schema=schema, converts=True)
    new = build(source, store, id, version, options)
    # To open thousands of files takes longer than to append.
    return VersionRef(store.files(new), new) if new.lists else ref_of(store, new)


def _coded_alike(data: object, old: Manifest, schema: Schema) -> tuple[object, Schema, Json]:
    """New rows whose codes are those of a version for the same names; the schema, with names that are new;
    and entries of the info about new classes of columns that do not have the names themselves."""
    found = info_of(data)
    before_map = rows_before(data) if isinstance(data, DataRef) else [None]
    theirs = data.schema if isinstance(data, DataRef) else None
    if theirs is None:
        every = [schema, *(one for one in before_map if one is not None)]
        check_names(before_map, joined_names(every), "the new rows")
    elif isinstance(data, DataRef):
        _check_named(schema, theirs)
        names = joined_names([schema, theirs])
        schema, data = with_names(schema, names), recoded(data, names)
        found = info_of(data)
    assert old.schema is not None
    before = named_in(old.info, old.schema, schema)
    mine = codes_in(before)
    both = codes_of_both(theirs, mine, found, repr(old.version), "the new rows") if mine else mine
    if both == mine or not lacks_names(schema):
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


def own_format(manifest: Manifest, format: str, compression: str | None) -> tuple[str, str | None]:
    """The format and the compression of the files of a version; those given if it has none."""
    if not manifest.files:
        return format, compression
    found = manifest.files[-1].index.get("compression")
    return manifest.files[-1].format, found if isinstance(found, str) else None


def _differing(old: Manifest, found: Schema) -> SchemaError:
    """The error for rows that do not fit those of a version, with the columns that differ."""
    return SchemaError(
        f"the new rows do not fit {old.id!r} {old.version!r}:\n{schema_diff(old.schema, found)}\n"
        "Convert them, or submit all rows as a version of its own"
    )
