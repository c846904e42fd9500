"""The notes of an unfinished build, so that the next one can continue it.

An interrupted build continues, if its source is map-style.
The next build compares the files' checksums, and some rows with the source: those at the files' ends, and one
drawn at random from each stretch. If the source has changed, the build starts over; see docs/caching.md. Of a
source with a fingerprint, that is compared, and no rows.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..errors import CorruptError
from ..reading.reader import Reader
from ..rows.block import Block, bounds_of
from ..rows.collector import Collector
from ..rows.comparing import equal_blocks
from ..rows.schema import Schema
from ..rows.types import Json, Row
from ..versions.file_entry import FileEntry, is_token
from ..versions.location import Staging
from ..versions.manifest import FunctionEntry
from .sources import PlacedSource, RowSource, SeekableBlocks

_Asked: TypeAlias = Callable[[Callable[[], Iterable[Any]]], Iterator[Any]]  # passes on what the source gives

_ROWS_TO_COMPARE, _SHARE_TO_COMPARE = 32, 0.1  # at most, of the rows kept by an interrupted build


@dataclass(frozen=True)
class KeptRows:
    """The rows of an interrupted build.

    Attributes:
        token: the beginning of its files' names.
        reader: reads its finished files.
        learned: False if its rows may be too few to show which columns vary.
        place: where the source continues, if that is not the number of rows.
    """

    token: str
    reader: Reader
    learned: bool
    place: Json | None = None


class Record:
    """The note of a build from a source that can begin anywhere."""

    def __init__(
        self,
        staging: Staging,
        source: RowSource | SeekableBlocks,
        options: Sequence[object],
        function: FunctionEntry | None,
        difference_from: Callable[[FunctionEntry | None], str | None],
    ) -> None:
        """A record beside the files of `staging`; `options`, plain data, must be the same to continue, and
        `difference_from` says what differs from a function that has made rows."""
        self._staging, self._source = staging, source
        self._signature = [source.name, source.length, *options, function.code if function else None]
        if source.fingerprint is not None:
            self._signature.append(source.fingerprint)
        self._function, self._difference_from = function, difference_from
        self._noted: Json | None = None
        self._places: dict[str, Json] = {}  # where the source goes on behind a file, by the file's name

    def note(self, token: str, schema: Schema, learned: bool, files: Sequence[FileEntry]) -> None:
        """Records one more finished, synced file, the last of `files`."""
        build = {
            "token": token,
            "source": self._signature,
            "function": self._function.to_json() if self._function else None,
            "learned": learned,
            "schema": schema.to_json(),
        }
        if isinstance(self._source, PlacedSource):
            self._places[files[-1].name] = self._source.place(sum(file.rows for file in files))
        # None until the note is written: nothing could be added after half a line.
        noted, self._noted = self._noted, None
        if noted == build:
            self._staging.add(self._placed(files[-1]))
        else:
            self._staging.save({**build, "files": list(map(self._placed, files))})
        self._noted = build

    def _placed(self, file: FileEntry) -> Json:
        """The note of a file."""
        place = self._places.get(file.name)
        return file.to_json() if place is None else {**file.to_json(), "place": place}

    def kept(self, found: Json, asked: _Asked) -> KeptRows:
        """The rows that an interrupted build has left, compared with the source.

        Args:
            found: what `Staging.load` gave.
            asked: passes on the rows of the source.

        Raises:
            ValueError: it was another build, or the source has changed.
            CorruptError, SchemaError, TypeError, KeyError, AttributeError, OSError: the record or the files
                are damaged.
        """
        schema = Schema.from_json(found["schema"])
        files = [FileEntry.from_json(file) for file in found["files"]]
        if not is_token(found["token"]):
            raise ValueError("its record is not from torchyoga")
        made = found.get("function")
        difference = self._difference_from(None if made is None else FunctionEntry.from_json(made))
        if difference is not None:
            raise ValueError(difference)
        placed = isinstance(self._source, PlacedSource)
        if not placed and sum(file.rows for file in files) > (self._source.length or 0):
            raise ValueError("it has more rows than the source")
        if found["source"] != self._signature:
            raise ValueError("it had another source, other code or other options")
        if placed:
            self._places = {file["name"]: file["place"] for file in found["files"]}
        reader = Reader(str(self._staging.path), schema, files)
        damaged = reader.verify_all()
        if damaged:
            raise CorruptError(damaged[0])
        self._compare(reader, self._source, asked)
        place = self._places[files[-1].name] if placed and files else None
        return KeptRows(found["token"], reader, bool(found["learned"]), place)

    def _compare(self, reader: Reader, source: RowSource | SeekableBlocks, asked: _Asked) -> None:
        """Raises ValueError if some of the kept rows differ from what the source gives now."""
        numbers = sorted({*_ends(reader.files), *_drawn(reader.num_rows)})
        places: dict[int, Json | None] = {}
        if isinstance(source, PlacedSource):  # whose rows can only be read where a file begins
            places = self._starts(reader.files)
            numbers = list(places)[:: max(1, len(places) // 16)]

        def read(numbers: list[int]) -> Block | None:
            if isinstance(source, SeekableBlocks):
                (block,) = asked(lambda: [source.some(np.array(numbers, np.int64))])
                return block  # type: ignore[no-any-return]
            row = partial(_row_at, source, places) if isinstance(source, PlacedSource) else source.row
            collector = Collector(reader.schema, converts=True)  # as they were when they were kept
            for number, found in zip(numbers, asked(partial(map, row, numbers)), strict=True):
                collector.add(found, number)
            return collector.take()

        found = read(numbers)
        if found is None:
            return
        kept = reader.take(np.array(numbers, np.int64))
        for place, number in enumerate(numbers):
            if equal_blocks(found.slice(place, place + 1), kept.slice(place, place + 1)):
                continue
            first, second = read([number]), read([number])
            assert first is not None
            assert second is not None
            raise ValueError(
                f"row {number} of the source has changed"
                if equal_blocks(first, second)
                else f"row {number} of the source differs each time it is read, as if augmented at random; a "
                "build of such rows always starts over, so cache them before they are augmented"
            )

    def _starts(self, files: Sequence[FileEntry]) -> dict[int, Json | None]:
        """The numbers of the first rows of files, and where they come; None for the beginning."""
        found: dict[int, Json | None] = {0: None}
        number = 0
        for file in files[:-1]:
            number += file.rows
            found[number] = self._places[file.name]
        return found


def _row_at(source: PlacedSource, places: Mapping[int, Json | None], number: int) -> Row:
    place = places[number]
    rows = source.rows(0) if place is None else source.rows_at(place, number)
    return next(rows, None)  # which fits no file


def _ends(files: Sequence[FileEntry]) -> list[int]:
    """The first and the last row of some of the files."""
    bounds = bounds_of(file.rows for file in files)
    found: list[int] = sorted({0, *bounds[:-1].tolist(), *(bounds[1:] - 1).tolist()})
    return found[:: max(1, len(files) // 8)]


def _drawn(num_rows: int) -> list[int]:
    """One row from each of some equal stretches; different ones each time, so that no change stays hidden."""
    count = min(_ROWS_TO_COMPARE, max(1, int(_SHARE_TO_COMPARE * num_rows)))
    bounds = [num_rows * i // count for i in range(count + 1)]
    return [start + secrets.randbelow(stop - start) for start, stop in itertools.pairwise(bounds)]
