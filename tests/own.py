"""DataRefs and map-style datasets of a program's own: of rows that exist, or are made when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

import torchyoga as yoga


class Made(yoga.DataRef[Any]):
    """Rows that are made when they are taken.

    Args:
        length: how many.
        row: makes one of its number.
        schema, fingerprint, row_bytes: what it says of them.
    """

    def __init__(
        self,
        length: int,
        row: Callable[[int], Any] = int,
        schema: yoga.Schema | None = None,
        fingerprint: str | None = None,
        row_bytes: int = 0,
    ) -> None:
        self._length, self._row = length, row
        self._said = schema, fingerprint, row_bytes

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Any) -> list[Any]:
        return [self._row(number) for number in rows.tolist()]

    @property
    def schema(self) -> yoga.Schema | None:
        return self._said[0]

    @property
    def fingerprint(self) -> str | None:
        return self._said[1]

    @property
    def _row_bytes(self) -> int:
        return self._said[2]


class Own(Made):
    """These rows.

    Args:
        rows: all of them.
        schema, fingerprint: what it says of them.
    """

    def __init__(
        self, rows: Sequence[Any], schema: yoga.Schema | None = None, fingerprint: str | None = None
    ) -> None:
        super().__init__(len(rows), schema=schema, fingerprint=fingerprint)
        self.rows = rows

    def take(self, rows: Any) -> list[Any]:
        return [self.rows[number] for number in rows.tolist()]


class Filed(Own):
    """These rows, in files of so many.

    Attributes:
        calls: the rows that each read took.
        seen: the columns of each part that was asked for.
    """

    def __init__(self, rows: Sequence[Any], schema: yoga.Schema | None, file_rows: int) -> None:
        super().__init__(rows, schema, "own")
        self.file_rows, self.calls, self.seen = file_rows, list[list[int]](), list[list[str]]()

    def take(self, rows: Any) -> list[Any]:
        self.calls.append(rows.tolist())
        return super().take(rows)

    def _projected(self, of: Any) -> yoga.DataRef:
        assert self.schema is not None
        self.seen.append(sorted(self.schema.columns[number].name for number in of.columns))
        return super()._projected(of)

    @property
    def file_starts(self) -> Any:
        return np.append(np.arange(0, len(self), self.file_rows), len(self))


class Announced(yoga.DataRef[Any]):
    """Notes what readers announce of its rows, in `announced`; to be mixed with one of the above."""

    is_cold: Any = True
    ahead_bytes: int | None = 100

    @cached_property
    def _prefetch(self) -> Any:
        self.announced: list[Any] = []
        return self

    def announce(self, rows: Any, values: bool) -> None:
        self.announced.append((rows.tolist(), values))

    def probe(self) -> None:
        self.announced.append("probe")

    def follow(self, order: Iterable[Any], progress: Callable[[], int | None]) -> None:
        self.announced.append(([rows.tolist() for rows in order], progress))


class Epochal(Made):
    """Rows that say which epoch they are of; -1 before any."""

    def __init__(self, length: int, epoch: int = -1) -> None:
        schema = yoga.Schema.of({"row": 1, "epoch": 1})
        super().__init__(length, lambda row: {"row": row, "epoch": epoch}, schema)

    def in_epoch(self, epoch: int) -> Epochal:
        return Epochal(len(self), epoch)


def square(row: int) -> int:
    return row**2


class Squares(Made):
    """The squares of the numbers of rows."""

    def __init__(self, length: int = 10, row_bytes: int = 0) -> None:
        super().__init__(length, square, row_bytes=row_bytes)


class Mapped(torch.utils.data.Dataset[Any]):
    """A map-style dataset of rows that are made when they are read.

    Args:
        length: how many.
        row: makes one of its number.
    """

    def __init__(self, length: int, row: Callable[[int], Any] = int) -> None:
        self.length, self.row = length, row

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


class Breakable:
    """A map-style dataset of these rows, which notes each read, and fails where `breaks` says so."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.given = rows
        self.read: list[int] = []
        self.breaks: dict[int, BaseException] = {}

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, index: int) -> Any:
        if index in self.breaks:
            raise self.breaks[index]
        self.read.append(index)
        return self.given[index]
