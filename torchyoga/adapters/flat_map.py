"""Each row of any data -> many rows: documents into chunks, videos into clips."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from ..building.sources import PlacedSource, RowSource, Source
from ..process.exceptions import Note, add_note
from ..rows.block import Rows
from ..rows.types import Json, Row
from ..views.changed import name_of


@dataclass(frozen=True)
class FlatMapped:
    """Rows of `data`, each turned into many by a function: to be submitted to a storage."""

    data: object
    function: Callable[[Row], Iterable[Row]]


def flat_map(data: object, function: Callable[[Row], Iterable[Row]]) -> FlatMapped:
    """Many rows made from each row of some data, for a storage: documents into chunks, videos into clips.

    Args:
        data: anything that `submit` takes, or a list of paths.
        function: takes a row or a path, and returns or yields rows: any number, also none.

    How many rows there are is known only once they are made, so this is a source for `submit` and not a
    DataRef; `map` is for one row from one. Where rows of `data` are read by number, an interrupted build
    continues in the row that it had reached, whose first rows are made again and left out: the function
    should give the same rows for the same row. Several processes can build it at once (docs/caching.md), each
    from other rows.

    Raises:
        TypeError: when built: the function returns something else than rows; the message says for which row.
        Exception: when built: whatever the function raises; a note names the row.

    Example:
        >>> def chunks(document):
        ...     for start in range(0, len(document["text"]), 4):
        ...         yield {"text": document["text"][start : start + 4]}
        >>> documents = [{"text": "a few words"}, {"text": ""}, {"text": "more"}]
        >>> ref = storage.submit(flat_map(documents, chunks), "chunks", "1.0")
        >>> [row["text"] for row in ref]
        ['a fe', 'w wo', 'rds', 'more']
    """
    if not callable(function):
        raise TypeError(f"flat_map needs a function that turns a row into rows, found {function!r:.100}")
    return FlatMapped(data, function)


def source_of(data: object, sources: Callable[[object], Source]) -> RowSource | None:
    """The result of `flat_map` as a source; None for anything else.

    Args:
        data: anything.
        sources: makes a source of any data, whose rows can begin anywhere if that is possible.
    """
    if not isinstance(data, FlatMapped):
        return None
    found = sources(data.data)
    if isinstance(found, RowSource) and found.seekable and found.length is not None:
        return _Continued(found, data.function, _names_of(data.data))
    return _Once(found, data.function)


def _names_of(data: object) -> str | None:
    """A digest of inputs that are numbers or paths, which may lie in other folders on other machines."""
    if not isinstance(data, (list, tuple, range)) or not data:
        return None
    found = blake2b(digest_size=8)
    for item in data:
        if not isinstance(item, (str, int, os.PathLike)):
            return None
        found.update(f"{str(item).replace(os.sep, '/').rpartition('/')[2]}\n".encode(errors="replace"))
    return found.hexdigest()


class _Once(RowSource):
    """The rows of a source that is read once, each turned into many."""

    def __init__(self, source: Source, function: Callable[[Row], Iterable[Row]]) -> None:
        self.name = f"{name_of(function)} of {source.name}"
        self._source, self._function = source, function

    @property
    def found(self) -> Json:
        """Facts that the source has found."""
        return self._source.found if isinstance(self._source, RowSource) else {}

    def rows(self, start: int) -> Iterator[Row]:
        """All rows."""
        source = self._source
        if isinstance(source, RowSource):
            given = source.rows(0)
        else:
            given = (row for block in source.blocks(2**22) for row in Rows(block).exact())
        for number, row in enumerate(given):
            yield from _made(self._function, row, number, source.name)


class _Continued(PlacedSource):
    """The rows of a source that can begin anywhere, each turned into many."""

    def __init__(
        self, source: RowSource, function: Callable[[Row], Iterable[Row]], names: str | None = None
    ) -> None:
        self.name = f"{name_of(function)} of {source.length} rows of {source.name}"
        self.fingerprint = source.fingerprint
        self._source, self._function = source, function
        assert source.length is not None
        self.num_inputs = source.length
        self._names = names
        self._begun: list[tuple[int, int]] = []  # the first row that was made of each row, and the row

    @property
    def found(self) -> Json:
        """Facts that the source has found."""
        return self._source.found

    @property
    def pin(self) -> object:
        """A digest of the names of the inputs."""
        return self._names

    def rows(self, start: int) -> Iterator[Row]:
        """All rows."""
        return self.rows_at({"row": 0, "skip": 0}, 0)

    def place(self, number: int) -> Json:
        """The row of which row `number` is made, and how many are made of it before."""
        begun = self._begun
        index = bisect_right(begun, number, key=lambda pair: pair[0]) - 1
        first, row = begun[index]
        del begun[:index]
        return {"row": row, "skip": number - first}

    def rows_of(self, start: int, stop: int) -> Iterator[Row]:
        """The rows that are made of some rows."""
        for number, row in zip(range(start, stop), self._source.rows(start), strict=False):
            yield from _made(self._function, row, number, self._source.name)

    def rows_at(self, place: Json, number: int) -> Iterator[Row]:
        """The rows from a place on."""
        start, skip = int(place["row"]), int(place["skip"])
        number -= skip
        self._begun = begun = [(number, start)]  # a new list, whatever was read before
        for given, row in enumerate(self._source.rows(start), start):
            begun.append((number, given))
            for made in _made(self._function, row, given, self._source.name):
                number += 1
                if skip:
                    skip -= 1
                    continue
                yield made
            skip = 0


def _made(function: Callable[[Row], Iterable[Row]], row: Row, number: int, name: str) -> Iterator[Row]:
    """The rows that a function makes of one."""
    try:
        found = function(row)
        if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
            raise TypeError(
                f"flat_map: {name_of(function)} returned a {type(found).__name__} for row {number} of "
                f"{name}; it must return or yield rows, as in `yield row`"
            )
        yield from found
    except GeneratorExit:
        raise
    except Exception as error:
        add_note(error, Note(f"in flat_map, {name_of(function)} of row {number} of {name}"))
        raise
