"""A storage or a dataset -> the datasets that pages are about."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...coding import codecs
from ...process.messages import escaped
from ...reading.contract import title_of
from ...reading.dataref import DataRef
from ...reading.stream import in_epoch
from ...reading.version_ref import VersionRef
from ...rows.column import Column
from ...rows.schema import Projection
from ...storage import Storage
from ...rows.schema import Projection
from ...storage import Storage, store_of
from ...stores.address import is_url
from ...stores.refs import fetched
from ...views.over import RowView
from ..cells.flat import flat, flat_names
from ..cells.marks import is_mark
from ..cells.picture import thumbnail
from ..cells.text import classes_of, named_class, plain_name
from ..report.columns import ColumnCard, columns_of
from ..report.sample import is_remote, keeps_stats
from .answer import Refused
from .rows import Values, row_of

MOST_COLUMNS = 200  # in the table of rows
_MOST_OPEN = 8  # versions, whose files stay mapped
_FRESH_SECONDS = 2.0  # for which a manifest of a store is not read again
_MOST_ORDERS = 16  # by which a version is sorted, that are kept
_MOST_SORTED, _MOST_DOWNLOADED = 50_000_000, 2**30  # rows, and bytes of a version in a store
_LOOKED_FOR_IMAGES, _TINY = 2, 8  # rows, and pixels
_COUNTED, _COUNTED_SLOWLY, _COUNTED_BYTES = 10_000, 256, 2**25  # rows read for statistics, and their bytes


class OpenRef:
    """A dataset that is open, and what was made of it for pages.

    Attributes:
        ref: its rows, to be shown; `whole`: as they are kept.
        lock: held while a page is made, if only one thread may take rows at once.
        is_remote: files may have to be downloaded.
    """

    def __init__(self, ref: DataRef) -> None:
        self.whole, self.ref, self.is_remote = ref, _readable(ref), is_remote(ref)
        self.lock = nullcontext() if self.ref.is_thread_safe else threading.Lock()
        self._order_by: Any = lru_cache(_MOST_ORDERS)(self.ref.order_by)

    @cached_property
    def names(self) -> list[str]:
        """The names of the values of a row: as its schema has them, else as the first row does."""
        schema = self.ref.schema
        if schema is not None:
            return list(flat_names(schema.tree))
        if not len(self.ref):
            return []
        return [name for name, _ in flat(self.ref[0])]

    @cached_property
    def shown_names(self) -> list[str]:
        """The same, as rows have them."""
        return self.names if self.ref.schema is None else list(map(plain_name, self.names))

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """The columns of single values and arrays, by the name in rows."""
        schema = self.ref.schema
        return {} if schema is None else {plain_name(column.name): column for column in schema.columns}

    @cached_property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """The names of classes, by the name of their column in rows."""
        return classes_of(self.ref.schema, self.ref.info)

    def class_of(self, name: str, value: object) -> str:
        """The name of the class that a value stands for; "" if it is not known."""
        return named_class(self.classes.get(name, ()), value)

    def only(self, ref: DataRef, names: Sequence[str]) -> DataRef:
        """Rows of `ref`, or in another order, with only some of their values, where a schema has these."""
        schema = self.ref.schema
        by_name = dict(zip(self.shown_names, self.names, strict=True))
        if schema is None or len(names) >= len(self.names) or not by_name.keys() >= set(names):
            return ref
        return ref._projected(Projection.of(schema, [by_name[name] for name in names]))

    def values(self, row: int, names: Sequence[str]) -> Values:
        """Some values of a row, as rows name them; only their columns are read, where a schema says which."""
        is_known = self.ref.schema is not None and names[0] in self.shown_names
        known = [name for name in self.shown_names if name in names] if is_known else []
        found = row_of(self.only(self.ref, known), row) if known else row_of(self.ref, row)
        # A tuple that was cut down has its values under other names.
        return (
            list(zip(known, (value for _, value in found), strict=True))
            if len(known) == len(found)
            else found
        )

    @cached_property
    def mark_names(self) -> list[str]:
        """The names of values that may be marks of images."""
        return [name for name in self.shown_names if is_mark(name)]

    def sorted(self, name: str, is_descending: bool) -> RowView[Any]:
        """All rows in the order of a column.

        Raises:
            Refused: it cannot be sorted, or only by reading more than a page is worth.
        """
        if name not in self.sortable:
            raise Refused(
                400, f"{escaped(name)!r:.200} is not a column of numbers, texts or times to sort by"
            )
        if len(self.ref) > _MOST_SORTED:
            raise Refused(400, f"{len(self.ref):,} rows are too many to sort; the most are {_MOST_SORTED:,}")
        if self.is_remote and len(self.ref) * self.ref._row_bytes > _MOST_DOWNLOADED:
            raise Refused(
                400,
                "to sort these rows, all files of the version would be downloaded; `yoga copy` it to this "
                "machine, and view it there",
            )
        ordered: RowView[Any] = self._order_by(self.columns[name].name, is_descending)
        return ordered

    @cached_property
    def sortable(self) -> frozenset[str]:
        """The names of the columns by which rows can be sorted."""
        single = {
            name
            for name, column in self.columns.items()
            if "{" not in column.name
            and column.storage.kind != "c"
            and column.kind != "none"
            and (column.shape == () or column.kind in ("str", "numpy.str"))
        }
        return frozenset(single & set(self.shown_names))

    @cached_property
    def images(self) -> Sequence[str]:
        """The names of the values that are images, as the first rows have them; none without Pillow."""
        if not len(self.ref):
            return ()
        rows = in_epoch(self.ref, 0, 0).take(np.arange(min(_LOOKED_FOR_IMAGES, len(self.ref))))
        values = [pair for row in rows for pair in flat(row)]
        try:
            names = [name for name, value in values if thumbnail(value, name, _TINY) is not None]
        except ImportError:
            return ()
        return list(dict.fromkeys(names))

    @cached_property
    def cards(self) -> tuple[Mapping[str, ColumnCard], str]:
        """The facts about the first columns, by the name that pages show, and of which rows they are."""
        ref, schema = self.ref, self.ref.schema
        if not len(ref) or schema is None:
            return {}, ""
        is_kept = keeps_stats(ref)
        if self.is_remote and not is_kept:
            return {}, "This version keeps no statistics, and its rows are in a store."
        rows = min(
            _COUNTED if ref._only_copies or is_kept else _COUNTED_SLOWLY,
            _COUNTED_BYTES // max(1, ref._row_bytes),
        )
        try:
            columns = columns_of(
                self.only(ref, self.shown_names[:MOST_COLUMNS]), len(self.names), 0, max(1, rows)
            )
        except Exception as error:  # of any kind: a dataset may be a user's own, and its rows are still shown
            return {}, f"Statistics cannot be made: {escaped(f'{type(error).__name__}: {error}')[:300]}"
        return {card.name: card for card in columns.cards}, columns.source


class Shelf:
    """The data that is shown: the versions of a storage, or one dataset.

    Args:
        shown: a storage, or a DataRef.
    """

    def __init__(self, shown: Storage | DataRef) -> None:
        self.storage = shown if isinstance(shown, Storage) else None
        self._own = None if isinstance(shown, Storage) else OpenRef(shown)
        self._kept: dict[tuple[str, str, str], OpenRef] = {}
        if isinstance(shown, Storage):
            self._fetch: Any = lru_cache(_MOST_OPEN)(lambda id, version, moment: shown.fetch(id, version))

    @property
    def name(self) -> str:
        """The directory or URL; the path or kind of a dataset."""
        if self.storage is not None:
            return self.storage.url
        assert self._own is not None, "there is a storage or a dataset"
        ref = self._own.ref
        return (
            f"{ref.manifest.id} {ref.manifest.version}"
            if isinstance(ref, VersionRef) and ref.schema is ref.manifest.schema
            else escaped(title_of(ref).removeprefix("DataRef "))
        )

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
        is_far = "://" in self.storage.url
        moment = time.monotonic() // _FRESH_SECONDS if is_far else object()  # which equals no other
        ref = self._fetch(str(id), str(version), moment)
        key = (str(id), str(version), ref.manifest.build)
        kept = self._kept.pop(key, None) or OpenRef(ref)
        self._kept[key] = kept  # as the newest
        for old in [*self._kept][:-_MOST_OPEN]:
            self._kept.pop(old, None)
        return kept


def _readable(ref: DataRef) -> DataRef:
    """The dataset with compressed texts as texts; images and sound stay files, which browsers decode."""
    schema = ref.schema
    codecs_of = {} if schema is None else {one.name: one.meaning.codec for one in schema.columns}
    texts = {name: codecs.text() for name, codec in codecs_of.items() if codec and codec.name == "zstd"}
    try:
        return ref.decoded(texts) if texts else ref
    except ImportError:  # what decompresses them is not installed: they are shown as bytes
        return ref
