"""A few rows of a dataset, drawn at random -> texts and thumbnails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...process.messages import escaped
from ...reading.dataref import DataRef
from ...reading.stream import in_epoch
from ...reading.version_ref import VersionRef
from ...rows.types import Ints
from ..cells.flat import bytes_of, flat
from ..cells.marks import marks_of
from ..cells.picture import thumbnail, url_of
from ..cells.text import classes_of, named_class, shown

_MOST_BYTES = 2**28  # read for all rows
_AT_ONCE = 8  # rows
_MOST_FILES = 4  # of a store, from which rows are read
_MOST_PICTURES = 700_000  # bytes of all thumbnails


@dataclass
class Cell:
    """A value of a row.

    Attributes:
        column: its name; `text`: what it is.
        picture: the URL of a thumbnail, which holds it; None if it is not an image.
        is_number: texts of numbers stand at the right.
        link: where it is shown in full; `sound`: its file, if a browser plays it.
    """

    column: str
    text: str
    picture: str | None = None
    is_number: bool = False
    link: str = ""
    sound: str | None = None


def cell_of(name: str, value: object, classes: Mapping[str, Sequence[str]], most: int) -> Cell:
    """The cell of a value, without a picture; its text has so many characters, and the name of its class."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    text, named = shown(value, most), named_class(classes.get(name, ()), value)
    return Cell(escaped(name), f"{text} {named}" if named else text, None, is_number and not named)


@dataclass(frozen=True)
class SampleRow:
    """A row: its number, and the cells of the columns that are shown."""

    number: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RowSample:
    """Some rows.

    Attributes:
        rows: in ascending order; `columns`: the names of those shown.
        notes: what is not shown, and why.
    """

    rows: tuple[SampleRow, ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_pictures(self) -> bool:
        """True if there is a thumbnail."""
        return any(cell.picture for row in self.rows for cell in row.cells)


def keeps_stats(ref: DataRef) -> bool:
    """True if statistics were kept with the rows, so that nothing is read for them."""
    return isinstance(ref, VersionRef) and bool(ref.manifest.stats)


def is_remote(ref: object) -> bool:
    """True if files may have to be downloaded before rows can be read."""
    if isinstance(ref, VersionRef):
        return ref.location.is_remote
    below = getattr(ref, "sources", None) or [getattr(ref, "whole", None)]
    return any(is_remote(one) for one in below if isinstance(one, DataRef))


def sample_of(ref: DataRef, seed: int, most: int = 64, most_columns: int = 40, text: int = 80) -> RowSample:
    """Some rows of a dataset.

    Args:
        ref: the dataset.
        seed: of the draw, and of rows that are made with random numbers.
        most: rows; fewer if they are large.
        most_columns: columns that are shown.
        text: characters of a cell.
    """
    if not len(ref):
        return RowSample((), ())
    notes = []
    wanted = most if not ref._row_bytes else max(1, min(most, _MOST_BYTES // ref._row_bytes))
    drawn = drawn_numbers(ref, min(wanted, len(ref)), seed)
    source, classes = in_epoch(ref, 0, seed), classes_of(ref.schema, ref.info)
    rows: list[SampleRow] = []
    names: tuple[str, ...] = ()
    read = pictures = total = left_out = 0
    missing = ""  # what thumbnails need
    step = _AT_ONCE if ref._row_bytes < _MOST_BYTES // 64 else 1
    for start in range(0, len(drawn), step):
        part = drawn[start : start + step]
        for row_number, row in zip(part.tolist(), source.take(part), strict=True):
            found = flat(row)
            total = max(total, len(found))
            cells, marks = [], marks_of(found, classes)
            for name, value in found[:most_columns]:
                cells.append(cell_of(name, value, classes, text))
                read += bytes_of(value)
                try:
                    picture = url_of(thumbnail(value, name, marks=marks)) or ""
                except ImportError as error:
                    picture, missing = "", str(error)
                if pictures + len(picture) > _MOST_PICTURES:
                    left_out += 1
                elif picture:
                    cells[-1].picture, pictures = picture, pictures + len(picture)
            rows.append(SampleRow(row_number, tuple(cells)))
            names = tuple(dict.fromkeys([*names, *(cell.column for cell in cells)]))[:most_columns]
        if read > _MOST_BYTES:
            break
    if len(rows) < min(most, len(ref)):
        notes.append(f"{len(rows)} rows and not {min(most, len(ref))}, because they are large.")
    if total > most_columns:
        notes.append(f"The first {most_columns} of {total:,} columns.")
    if missing:
        notes.append(f"Images are not shown: {missing}.")
    if left_out:
        notes.append(f"{left_out} images have no thumbnail, to keep the page small.")
    if is_remote(ref):
        notes.append("They are from few files, so that little is downloaded.")
    return RowSample(tuple(rows), names, tuple(notes))


def drawn_numbers(ref: DataRef, count: int, seed: int) -> Ints:
    """The numbers of rows that are drawn at random, in ascending order; of few files if these are remote."""
    random = np.random.default_rng(seed)
    if is_remote(ref):  # rows side by side, which lie in few files
        runs = min(_MOST_FILES, count)
        starts = np.sort(random.choice(len(ref) // runs, 1)) + np.arange(runs) * (len(ref) // runs)
        near = np.unique(starts[:, None] + np.arange(count // runs))
        return near[near < len(ref)].astype(np.int64)
    return np.sort(random.choice(len(ref), count, replace=False, shuffle=False)).astype(np.int64)
