"""A storage or a dataset -> the datasets, rows and values that pages are about."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from ...coding import codecs
from ...coding.pictures import opened
from ...process.messages import escaped
from ...reading.contract import title_of
from ...reading.dataref import DataRef
from ...reading.stream import in_epoch
from ...reading.version_ref import VersionRef
from ...rows.column import Column
from ...rows.image_formats import format_of
from ...storage import Storage, store_of
from ...views.over import RowView
from ..cells.flat import Values, flat, flat_names
from ..cells.picture import Marks, file_bytes, media_type, thumbnail
from ..cells.text import classes_of, plain_name, shown
from ..report.facts import ColumnCard, columns_of, drawn_numbers, is_remote, keeps_stats, read_rows
from .answer import Refused
from .filter import Filter

MOST_COLUMNS = 200  # in the table of rows
_MOST_OPEN = 8  # versions, whose files stay mapped
_FRESH_SECONDS = 2.0  # for which a manifest of a store is not read again
_MOST_ORDERS, _MOST_PLACES = 16, 2**26  # by which a version is sorted, that are kept; and rows in all of them
_MOST_SORTED, _MOST_DOWNLOADED = 50_000_000, 2**30  # rows, and bytes of a version in a store
_COUNTED, _COUNTED_SLOWLY, _COUNTED_BYTES = 10_000, 256, 2**25  # rows read for statistics, and their bytes
_MOST_LOOKED = 20_000  # rows, for one page, of those that are downloaded
_MOST_SCANNED = 10**7  # of others
_MOST_SECONDS = 3.0
_MOST_BYTES = 2**26  # read for one page; a row that is larger is read nevertheless
_OF_BROWSERS = ("jpeg", "png", "gif", "webp", "bmp")
_MOST_MEDIA_BYTES, _MOST_PIXELS = 2**26, 2**27
LARGEST_SIDE = 4096  # pixels of images that are not of those formats, at most
_SMALL = 448  # pixels to which tiny images are enlarged
_A_LINE, _BYTES_A_LINE = 8, 16
_LONGEST_NUMBER, _LONGEST_ITEM = 60, 400


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
        kept = max(1, min(_MOST_ORDERS, _MOST_PLACES // max(1, len(self.ref))))
        self._order_by: Any = lru_cache(kept)(self.ref.order_by)

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

    def only(self, ref: DataRef, names: Sequence[str]) -> DataRef:
        """Rows of `ref`, or in another order, with only some of their values, where a schema has these."""
        schema = self.ref.schema
        by_name = dict(zip(self.shown_names, self.names, strict=True))
        if schema is None or len(names) >= len(self.names) or not by_name.keys() >= set(names):
            return ref
        return ref.columns([by_name[name] for name in names])

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
    def cards(self) -> tuple[Mapping[str, ColumnCard], str]:
        """The facts about the first columns, by the name that pages show, and of which rows they are."""
        ref, schema = self.ref, self.ref.schema
        if not len(ref) or schema is None:
            return {}, ""
        is_kept = keeps_stats(ref)
        if self.is_remote and not is_kept:
            return {}, "This version keeps no statistics, and its rows are in a store."
        counted = _COUNTED if ref._only_copies or is_kept else _COUNTED_SLOWLY
        rows = max(1, min(counted, _COUNTED_BYTES // max(1, ref._row_bytes)))
        try:
            some = self.only(ref, self.shown_names[:MOST_COLUMNS])
            columns = columns_of(some, len(self.names), 0, rows)
        except Exception as error:  # of any kind: a dataset may be a user's own, and its rows are still shown
            return {}, f"Statistics cannot be made: {escaped(f'{type(error).__name__}: {error}')[:300]}"
        return {card.name: card for card in columns.cards}, columns.source


class Shelf:
    """The data that is shown: the versions of a storage, or one dataset.

    Args:
        shown: a storage, or a DataRef.

    Attributes:
        storage: None if one dataset is shown.
        name: the directory or URL; the path or kind of a dataset.
    """

    def __init__(self, shown: Storage | DataRef) -> None:
        self.storage = shown if isinstance(shown, Storage) else None
        if isinstance(shown, Storage):
            store, self.name = store_of(shown), shown.url
            self._manifest: Any = lru_cache(_MOST_OPEN)(
                lambda id, version, moment: store.read_manifest(id, version)
            )
            self._version: Any = lru_cache(_MOST_OPEN)(
                lambda id, version, manifest: OpenRef(shown.fetch(id, version))
            )
        else:
            self._own = OpenRef(shown)
            self.name = _name_of(self._own.ref)

    def opened(self, id: str | None, version: str | None) -> OpenRef:
        """A version; without names the dataset that is shown.

        The bytes of its manifest are read each time, so that what was removed or overwritten meanwhile is
        noticed; they are parsed if they are new.

        Raises:
            NotFoundError: there is no such version.
            CorruptError: it is damaged.
        """
        if self.storage is None:
            return self._own
        is_far = "://" in self.storage.url
        moment = time.monotonic() // _FRESH_SECONDS if is_far else object()  # which equals no other
        found: OpenRef = self._version(id, version, self._manifest(id, version, moment))
        return found


def _name_of(ref: DataRef) -> str:
    if isinstance(ref, VersionRef) and ref.schema is ref.manifest.schema:
        return f"{ref.manifest.id} {ref.manifest.version}"
    return escaped(title_of(ref).removeprefix("DataRef "))


def _readable(ref: DataRef) -> DataRef:
    """The dataset with compressed texts as texts; images and sound stay files, which browsers decode."""
    schema = ref.schema
    codecs_of = {} if schema is None else {one.name: one.meaning.codec for one in schema.columns}
    texts = {name: codecs.text() for name, codec in codecs_of.items() if codec and codec.name == "zstd"}
    try:
        return ref.decoded(texts) if texts else ref
    except ImportError:  # what decompresses them is not installed: they are shown as bytes
        return ref


@dataclass(frozen=True)
class Hits:
    """The rows of a page.

    Attributes:
        rows: the number of each, and its values by name.
        start: the first row that was looked at; `stop`: the first that was not.
    """

    rows: tuple[tuple[int, Values], ...]
    start: int
    stop: int


def row_of(ref: DataRef, number: int) -> Values:
    """The values of one row by name."""
    return flat(in_epoch(ref, 0, 0).take(np.array([number]))[0])


def rows_from(
    ref: DataRef, shown: DataRef, start: int, most: int, condition: Filter | None, seed: int | None
) -> Hits:
    """The rows from one on that meet a condition, or rows drawn at random.

    Args:
        ref: the dataset.
        shown: the same rows with the columns that are shown.
        start: the first row to look at.
        most: rows; fewer if they are large, or if a bounded number of them had to be looked at.
        condition: on columns, which alone are read to find the rows; None for all rows.
        seed: of a draw; the same one draws the same rows, or the same first row to look at. Of files that
            have to be downloaded, rows of few are drawn. None for no draw.
    """
    numbers: Sequence[int]
    if not len(ref):
        return Hits((), 0, 0)
    if condition is not None:
        start = start if seed is None else int(np.random.default_rng(seed).integers(len(ref)))
        at_most = _MOST_LOOKED if is_remote(ref) else _MOST_SCANNED
        found, stop = condition.first(ref, start, most, start + at_most, _MOST_SECONDS)
        numbers = found.tolist()
    elif seed is not None:
        numbers = drawn_numbers(shown, min(most, len(ref)), seed).tolist()
        start, stop = numbers[0], numbers[-1] + 1
    else:
        stop = min(start + most, len(ref))
        numbers = range(start, stop)
    rows = tuple(read_rows(shown, numbers, 0, _MOST_BYTES))
    is_cut = len(rows) < len(numbers)
    return Hits(rows, start, numbers[len(rows)] if is_cut else stop)


@dataclass(frozen=True)
class Media:
    """A file for browsers.

    Attributes:
        type: the media type; `data`: the file.
        width, height: of an image, in pixels; 0 of sound.
    """

    type: str
    data: bytes
    width: int = 0
    height: int = 0

    @property
    def is_image(self) -> bool:
        """True if it is an image, and not sound."""
        return self.type.startswith("image/")

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height on a page, where tiny images are enlarged by a whole number."""
        times = max(1, _SMALL // max(1, self.width, self.height))
        return self.width * times, self.height * times


def media_of(value: object, name: str, side: int | None = None, marks: Marks | None = None) -> Media | None:
    """The file of a value: of what is a file already, that file.

    Args:
        value: anything.
        name: where it is from; see `thumbnail`.
        side: pixels of the longer side of an image, at most; None for the image as it is.
        marks: of its row; they are drawn on the image where its side is given.

    Returns:
        None if it is neither image nor sound, or damaged, or too large, or Pillow is not installed.
    """
    data = file_bytes(value, _MOST_MEDIA_BYTES + 1)
    data = data if len(data) <= _MOST_MEDIA_BYTES else b""
    sound = sound_type(data)
    if sound is not None:
        return Media(sound, data)
    format = format_of(data)
    if side is None and format in _OF_BROWSERS:
        size = _size_of(data)
        return None if size is None else Media(f"image/{format}", data, *size)
    try:
        picture = thumbnail(value, name, side or LARGEST_SIDE, marks)
    except ImportError:
        return None
    if picture is None:
        return None
    if side is not None:
        return Media(media_type(picture), picture)
    # Where every PNG file has them.
    width, height = int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")
    return Media("image/png", picture, width, height)


def _size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height of an image that can be decoded to its end."""
    try:
        with opened(data) as image:
            width, height = image.size
            if not 0 < width * height <= _MOST_PIXELS:
                return None
            image.load()
    except Exception:  # of any kind: what is forged is read by many small readers, and Pillow may be missing
        return None
    return width, height


def sound_type(value: object) -> str | None:
    """The media type of a value that is a file of sound, by its first bytes; None if it is not one.

    Example:
        >>> sound_type(b"fLaC..."), sound_type(b"none")
        ('audio/flac', None)
    """
    begin = file_bytes(value, 16)
    if begin.startswith(b"RIFF") and begin[8:12] == b"WAVE":
        return "audio/wav"
    if begin[4:11] in (b"ftypM4A", b"ftypM4B"):
        return "audio/mp4"
    # A frame of MPEG begins with eleven bits; then come its version and layer 3.
    if len(begin) > 4 and begin[0] == 0xFF and begin[1] in (0xFA, 0xFB, 0xF2, 0xF3, 0xE2, 0xE3):
        return "audio/mpeg"
    starts = {b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}
    return next((type for start, type in starts.items() if begin.startswith(start)), None)


class Excerpt(NamedTuple):
    """The beginning of a value.

    Attributes:
        kind: what the value is, such as `text` or `float32 (3, 4)`.
        lines: the text.
        shown: how much of it that is; `total`: how much there is.
        unit: of these two, such as "characters"; empty if the value has no parts.
    """

    kind: str
    lines: tuple[str, ...]
    shown: int = 0
    total: int = 0
    unit: str = ""


def excerpt_of(value: object, most: int) -> Excerpt:
    """The beginning of a value.

    Args:
        value: anything.
        most: characters, of a text; of others about as many.

    Example:
        >>> found = excerpt_of(np.arange(40).reshape(8, 5), 25)
        >>> found.kind, found.lines, found.total, found.unit
        ('int64 (8, 5)', ('0 1 2 3 4', '5 6 7'), 40, 'numbers')
    """
    if isinstance(value, str):
        part = value[:most]
        return Excerpt("text", tuple(map(escaped, part.split("\n"))), len(part), len(value), "characters")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value[:most]), len(value))
    if isinstance(value, (list, Mapping)):
        return _of_items(value, max(1, most // 20))
    if isinstance(value, torch.Tensor):
        is_plain = value.layout == torch.strided and not (value.is_meta or value.is_quantized)
        return _of_numbers(value, most) if is_plain else Excerpt("tensor", (shown(value, most),))
    if isinstance(value, np.ndarray) and value.ndim:
        return _of_numbers(value, most)
    return Excerpt(type(value).__name__, (shown(value, most),))


def _of_numbers(value: Any, most: int) -> Excerpt:
    """About so many characters of an array or tensor; lines end where its own do, if these are short."""
    shape = tuple(value.shape)
    first = value.reshape(-1)[: max(_A_LINE, most // 5)]
    numbers = first if isinstance(value, np.ndarray) else first.tolist()
    texts = [shown(one, _LONGEST_NUMBER) for one in numbers]
    width = shape[-1] if len(shape) > 1 and 0 < shape[-1] <= 32 else _A_LINE
    lines = tuple(" ".join(texts[at : at + width]) for at in range(0, len(texts), width))
    kind = f"{value.dtype} {shape}".removeprefix("torch.")
    return Excerpt(kind, lines, len(texts), math.prod(shape), "numbers")


def _of_bytes(part: bytes, total: int) -> Excerpt:
    lines = []
    for at in range(0, len(part), _BYTES_A_LINE):
        some = part[at : at + _BYTES_A_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{at:08x}  {some.hex(' '):<{3 * _BYTES_A_LINE}} {text}")
    return Excerpt("bytes", tuple(lines), len(part), total, "bytes")


def _of_items(value: list[object] | Mapping[object, object], most: int) -> Excerpt:
    items = enumerate(value) if isinstance(value, list) else value.items()
    lines = tuple(
        f"{shown(name, _LONGEST_ITEM)}: {shown(one, _LONGEST_ITEM)}" for name, one in islice(items, most)
    )
    return Excerpt(f"{type(value).__name__} of {len(value):,}", lines, len(lines), len(value), "items")
