"""Data that a user passes -> a published version of it.

Rows are read a second time after the build.
They are compared by hashes taken as they went by. Reading them before the build would move generators that
datasets have for themselves, and so change what is stored.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..adapters.sources import dataset_and_source
from ..building.build import BuildOptions, Target, build
from ..building.sources import BlockSource, RowSource, Source
from ..errors import SchemaError
from ..process.messages import warn_user
from ..process.seeding import GeneratorsPutBack
from ..reading.version_ref import VersionRef
from ..rows.collector import block_of
from ..rows.comparing import row_hashes
from ..rows.types import Json, Row
from ..stores.refs import ref_of
from ..versions.lineage import plain
from ..views.info import info_of

_log = logging.getLogger("torchyoga")
_SECONDS, _SHARE = 1.0, 0.1  # time of the second reading, or its share of the first


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
    if isinstance(source, RowSource) and source.seekable and source.length is not None:
        source = Watched(source)
    if isinstance(source, (Watched, BlockSource)):
        options = replace(options, before_publishing=partial(_warn_of_random_rows, source, target))
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


def _warn_of_random_rows(source: Watched | BlockSource, target: Target) -> None:
    if source.differ():
        warn_of_random_rows(source.name, target)


def warn_of_random_rows(name: str, target: Target) -> None:
    """Warns that rows of a source were others when they were read again."""
    warn_user(
        f"rows of {name} differ when they are read again, as by a random augmentation; {target} "
        "keeps those of its build for every epoch. Cache the dataset without its random "
        "part, and apply that to the rows you load"
    )


class Watched(RowSource):
    """A source that can be read anywhere, of which the first, the middle and the last row are remembered.

    Args:
        source: gives the rows; seekable.
    """

    seekable = True

    def __init__(self, source: RowSource) -> None:
        assert source.seekable
        assert source.length is not None
        self.length = source.length
        self.name, self.schema, self.fingerprint = source.name, source.schema, source.fingerprint
        self.source = source
        self._read: dict[int, bytes] = {}
        self._seconds = 0.0  # what reading took, and all that was done with the rows meanwhile
        self._num_read = 0

    def rows(self, start: int) -> Iterator[Row]:
        """The rows of the source."""
        assert self.length is not None
        watched = {0, self.length // 2, self.length - 1}
        started = time.monotonic()
        for number, row in enumerate(self.source.rows(start), start):
            self._num_read, self._seconds = number + 1 - start, time.monotonic() - started
            if number in watched:
                with contextlib.suppress(SchemaError):  # the build's error says more
                    self._read[number] = _hash_of(row)
            yield row

    @property
    def found(self) -> Json:
        """Facts that the source has found."""
        return self.source.found

    def row(self, number: int) -> Row:
        """One row of the source."""
        return self.source.row(number)

    def differ(self) -> bool:
        """True if a remembered row differs when it is read again; the generators are put back after it.

        False where it cannot be read any more, or where that would take long compared with the first reading.
        """
        if self._seconds / max(1, self._num_read) * len(self._read) > max(_SECONDS, _SHARE * self._seconds):
            return False
        with GeneratorsPutBack():
            return any(self._differs(number) for number in self._read)

    def _differs(self, number: int) -> bool:
        try:
            row = self.source.row(number)
        except Exception:  # of a source that gives each row once
            return False
        try:
            return _hash_of(row) != self._read[number]
        except SchemaError:
            return True


def _hash_of(row: Row) -> bytes:
    """A hash of a row, whatever the order of its keys; SchemaError if it cannot be kept."""
    return row_hashes(block_of([row])).tobytes()
