"""A storage or a dataset -> the datasets that pages are about."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from ...coding.decoders import decoder_of
from ...errors import YogaError
from ...reading.dataref import DataRef
from ...reading.version_ref import VersionRef
from ...storage import Storage
from ...stores.history.log import LogEntry
from ..report.columns import first_columns
from ..report.sample import is_remote

__all__ = ["Dataset", "OpenRef", "Shelf"]

_MOST_OPEN = 8  # versions, whose files stay mapped
_READERS = 8  # of tags


class Dataset(NamedTuple):
    """An id with its versions and tags; `problem` says why the tags cannot be read."""

    id: str
    versions: Sequence[str]
    tags: dict[str, str]
    problem: str = ""


class OpenRef(NamedTuple):
    """A dataset that is open.

    Attributes:
        ref: its rows; `first`: the same with the first columns only; `total`: how many columns there are,
            0 if only the rows say so.
        held: held while rows are taken, if only one thread may at once.
        is_remote: files may have to be downloaded.
        build: of its files.
    """

    ref: DataRef
    first: DataRef
    total: int
    held: AbstractContextManager[object]
    is_remote: bool
    build: str = ""


class Shelf:
    """The data that is shown: the versions of a storage, or one dataset.

    Args:
        shown: a storage, or a DataRef.
        most_columns: of `Kept.first`.
    """

    def __init__(self, shown: Storage | DataRef, most_columns: int) -> None:
        self.storage = shown if isinstance(shown, Storage) else None
        self._most_columns = most_columns
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, str], OpenRef] = OrderedDict()
        self._own = None if isinstance(shown, Storage) else self._kept(shown)

    @property
    def name(self) -> str:
        """The directory or URL; the kind of dataset, if it is one."""
        if self.storage is not None:
            return self.storage.url
        assert self._own is not None, "there is a storage or a dataset"
        ref = self._own.ref
        return (
            f"{ref.manifest.id} {ref.manifest.version}" if isinstance(ref, VersionRef) else type(ref).__name__
        )

    def ids(self) -> dict[str, list[str]]:
        """The versions of each id."""
        found: dict[str, list[str]] = {}
        for id, version in [] if self.storage is None else self.storage.list():
            found.setdefault(id, []).append(version)
        return found

    def datasets(self, ids: Sequence[tuple[str, Sequence[str]]]) -> list[Dataset]:
        """Ids with their tags; several at once, since a store answers slowly."""
        with ThreadPoolExecutor(_READERS, "torchyoga tags") as pool:
            return list(pool.map(self._dataset, ids))

    def _dataset(self, found: tuple[str, Sequence[str]]) -> Dataset:
        assert self.storage is not None, "only a storage has ids"
        id, versions = found
        try:
            return Dataset(id, versions, self.storage.tags(id))
        except YogaError as error:
            return Dataset(id, versions, {}, str(error))

    def log(self, id: str, most: int) -> tuple[Sequence[LogEntry], int]:
        """The newest versions of an id, and how many more there are.

        Raises:
            NotFoundError: it has none.
        """
        assert self.storage is not None, "only a storage has ids"
        log = self.storage.log(id, most)
        return log[:], log.left_out

    def opened(self, id: str | None, version: str | None) -> OpenRef:
        """A version; without names the dataset that is shown.

        Its manifest is read each time, so that what was removed or overwritten meanwhile is noticed.

        Raises:
            NotFoundError: there is no such version.
            CorruptError: it is damaged.
        """
        if self._own is not None:
            return self._own
        assert self.storage is not None, "there is a storage or a dataset"
        ref = self.storage.fetch(str(id), str(version))
        assert isinstance(ref, VersionRef), "a storage gives its versions"
        place = (str(id), str(version))
        with self._lock:
            found = self._open.get(place)
            if found is None or found.build != ref.manifest.build:
                found = self._open[place] = self._kept(ref)
            self._open.move_to_end(place)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return found

    def _kept(self, ref: DataRef) -> OpenRef:
        build = ref.manifest.build if isinstance(ref, VersionRef) else ""
        remote = is_remote(ref)
        whole = _readable(ref)
        first, total = first_columns(whole, self._most_columns)
        held = nullcontext() if whole.is_thread_safe else threading.Lock()
        return OpenRef(whole, first, total, held, remote, build)


def _readable(ref: DataRef) -> DataRef:
    """The dataset with compressed texts as texts; images and sound stay files, which browsers decode."""
    schema = ref.schema
    packed = {}
    for column in [] if schema is None else schema.columns:
        if column.meaning.codec is not None and column.meaning.codec.name == "zstd":
            packed[column.name] = decoder_of(column.meaning.codec)
    if not packed:
        return ref
    try:
        return ref.decoded({name: one for name, one in packed.items() if one is not None})
    except ImportError:  # what decompresses them is not installed: they are shown as bytes
        return ref
