"""Data that a user passes -> a published version of it.

A few rows are read twice more after the build, to warn of random ones. Reading them before it would move
generators that datasets have for themselves, and so change what is stored.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

from ..adapters.sources import dataset_and_source
from ..building.board import splits_of
from ..building.build import BuildOptions, Target, build
from ..building.sources import BlockSource, Source
from ..process.messages import warn_user
from ..reading.version_ref import VersionRef
from ..rows.types import Json
from ..stores.refs import ref_of
from ..versions.lineage import plain
from ..views.info import info_of

_log = logging.getLogger("torchyoga")
_SECONDS, _SHARE = 1.0, 0.1  # time to read rows again, or its share of the build


def submitted(data: object, target: Target, options: BuildOptions) -> VersionRef:
    """Builds a version of whatever `Storage.submit` takes. Hold the lock of the version.

    Args:
        data: gives the rows; its own info is kept with them, unless `options.info` has the same names.
        target: where the version is published.
        options: how to build.

    Raises:
        TypeError: no rows can be read from the data.
        SchemaError, ValueError, OSError: as `build`. Nothing is published.
    """
    source, options = prepared(data, target, options)
    return ref_of(target.store, build(source, target, options))


def prepared(data: object, target: Target, options: BuildOptions) -> tuple[Source, BuildOptions]:
    """A source of whatever `Storage.submit` takes, and the options with what it says itself.

    Raises:
        TypeError, SchemaError, ValueError: as `dataset_and_source`.
    """
    dataset, source = dataset_and_source(data, options.num_workers, options.schema)
    info = _info(dataset, source.name, target, given_info(dataset, options))
    options = replace(options, info=info, asked=None)
    encode = None
    if options.encode is not None:
        plainer, encode = options.encode(dataset)
        if plainer is not dataset:
            _, source = dataset_and_source(plainer, options.num_workers, options.schema)
    if isinstance(source, BlockSource) or (source.seekable and source.length):
        warn = partial(_warn_if_random, source, target, time.monotonic())
        options = replace(options, before_publishing=warn)
    return source if encode is None else encode(source), options


def given_info(dataset: object, options: BuildOptions) -> Json:
    """The info that was passed, and what it asks of the dataset.

    Raises:
        TypeError, ValueError, AttributeError: as `said_and_asked`.
    """
    return options.info if options.asked is None else plain({**options.info, **options.asked(dataset)})


def _info(dataset: object, name: str, target: Target, given: Json) -> Json:
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
            "%s: of the dataset's own info, %s does not keep %s; pass it with info=",
            name,
            target,
            ", ".join(reasons),
        )
    return info


def _warn_if_random(source: Source, target: Target, began: float) -> None:
    """Warns if rows of a source that was read since then are others when they are read again.

    Says nothing where they cannot be read again, or where that would take long compared with the build.
    """
    if isinstance(source, BlockSource):
        differ = source.differ()
    else:
        splits, seconds = splits_of(source), time.monotonic() - began
        numbers = sorted({0, splits.count // 2, splits.count - 1})
        if 2 * len(numbers) * seconds / splits.count > max(_SECONDS, _SHARE * seconds):
            return
        try:
            first, again = (splits.digests(numbers, source.schema, others) for others in (False, True))
        except Exception:  # of a source that gives each row once
            return
        differ = first != again
    if differ:
        warn_of_random_rows(source.name, target)


def warn_of_random_rows(name: str, target: Target) -> None:
    """Warns that rows of a source were others when they were read again."""
    warn_user(
        f"rows of {name} differ when they are read again, as by a random augmentation; {target} "
        "keeps those of its build for every epoch. Cache the dataset without its random "
        "part, and apply that to the rows you load"
    )
