"""Data that a user passes -> a published version of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from ..adapters.sources import dataset_and_source
from ..adapters.watched import Watched
from ..building.build import BuildOptions, build
from ..building.sources import BlockSource, RowSource, Source
from ..process.warned import warn_user
from ..reading.version_ref import VersionRef
from ..rows.types import Json
from ..stores.contract import Seen, Versions
from ..stores.refs import ref_of
from ..versions.info import plain
from ..views.info import info_of

__all__ = ["prepared", "submitted", "warn_of_random_rows"]

_log = logging.getLogger("torchyoga")


def submitted(
    data: object,
    store: Versions,
    id: str,
    version: str,
    options: BuildOptions,
    num_workers: int = 0,
    replaces: Seen | None = None,
) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes. Hold the lock of the version.

    Args:
        data: gives the rows; its own info is kept with them, unless `options.info` has the same names.
        store: the version is published there, as `version` of `id`.
        id: which dataset.
        version: which version of it.
        options: how to build.
        num_workers: processes that read rows by number.
        replaces: the version that may be replaced; None if none may.

    Raises:
        TypeError: no rows can be read from the data.
        SchemaError, ValueError, OSError: as `build`. Nothing is published.
    """
    source, options = prepared(data, id, version, options, num_workers)
    return ref_of(store, build(source, store, id, version, options, replaces))


def prepared(
    data: object, id: str, version: str, options: BuildOptions, num_workers: int = 0
) -> tuple[Source, BuildOptions]:
    """A source of whatever `Storage.submit` takes, and the options with what it says itself.

    Raises:
        TypeError, SchemaError, ValueError: as `dataset_and_source`.
    """
    dataset, source = dataset_and_source(data, num_workers, options.schema)
    options = replace(options, info=_info(dataset, source.name, id, version, options.info))
    encode = None
    if options.encode is not None:
        plainer, encode = options.encode(dataset)
        if plainer is not dataset:
            _, source = dataset_and_source(plainer, num_workers, options.schema)
    if isinstance(source, RowSource) and source.seekable and source.length is not None:
        source = Watched(source)
    if isinstance(source, (Watched, BlockSource)):
        options = replace(options, before_publishing=partial(_warn_of_random_rows, source, id, version))
    return source if encode is None else encode(source), options


def _info(dataset: object, name: str, id: str, version: str, given: Json) -> Json:
    """The info that was passed, and the dataset's own; logs what cannot be kept of the latter."""
    left_out: dict[str, str] = {}
    own = info_of(dataset, left_out)
    info = given
    try:
        info = plain({**own, **given})
    except ValueError as error:  # together they are too long
        left_out |= dict.fromkeys(own, str(error))
    reasons = [f"{key} ({left_out[key]})" for key in left_out if key not in info]
    if reasons:
        _log.warning(
            "%s: of the dataset's own info, %r %r does not keep %s; pass it with info=",
            name,
            id,
            version,
            ", ".join(reasons),
        )
    return info


def _warn_of_random_rows(source: Watched | BlockSource, id: str, version: str) -> None:
    if source.differ():
        warn_of_random_rows(source.name, id, version)


def warn_of_random_rows(name: str, id: str, version: str) -> None:
    """Warns that rows of a source were others when they were read again."""
    warn_user(
        f"rows of {name} differ when they are read again, as by a random augmentation; {id!r} "
        f"{version!r} keeps those of its build for every epoch. Cache the dataset without its random "
        "part, and apply that to the rows you load"
    )
