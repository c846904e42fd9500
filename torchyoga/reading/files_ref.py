"""Rows whose bytes lie in many files: a DataRef that reads them when they are wanted."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.stages import Stage, timed
from ..rows.block import Block, Rows
from ..rows.data import Data
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Json
from .dataref import DataRef
from .file_parts import Names, WholeFiles
from .left_out import LeftOut
from .stored_ref import StoredRef


class FilesRef(StoredRef):
    """Rows whose bytes lie in files, which are read when a row is wanted.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
        columns: for each column of the schema: values (N,), text, or files.
        content: a name for the content of all rows.
        info: what is known besides.
        left_out: what is damaged and not among the rows.

    Attributes:
        name: as passed.
        left_out: as passed: pairs of a name and the reason.
    """

    def __init__(
        self,
        name: str,
        schema: Schema,
        length: int,
        columns: tuple[Array | Names | WholeFiles, ...],
        content: str,
        info: Json,
        left_out: tuple[LeftOut, ...],
    ) -> None:
        self.name, self.left_out = name, left_out
        super().__init__(name, schema, length)
        self._columns, self._content, self._info = columns, content, info

    def _block(self, rows: Ints) -> Block:
        return self.begin(rows)().block

    def begin(self, rows: Ints) -> Callable[[], Rows]:
        """Begins to read rows by threads; returns what waits for them. At least one row."""
        begun = [_begun(column, rows) for column in self._columns]

        def waited() -> Rows:
            with timed(Stage.DISK):
                return Rows(Block(self._schema, len(rows), tuple(wait() for wait in begun)))

        return waited

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; files that hold none of them are not touched."""
        columns = tuple(self._columns[number] for number in of.columns)
        how = self._length, columns, of.pinned(self.fingerprint), self._info, self.left_out
        return FilesRef(self.name, of.schema, *how)

    @property
    def info(self) -> Json:
        """All that is known besides the rows; `left_out` says how many files are damaged, and names some."""
        found: Json = json.loads(json.dumps(self._info))
        return found

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of an average row."""
        total = sum(int(one.sizes.sum()) for one in self._columns if isinstance(one, WholeFiles))
        return total // max(1, len(self)) + 8 * len(self._columns)

    @property
    def fingerprint(self) -> str:
        """A name for the content, made of the names and sizes of all files."""
        return self._content

    def _counted(self) -> str:
        left_out = f", {len(self.left_out):,} left out" if self.left_out else ""
        return f"{super()._counted()}{left_out}"


def _begun(column: Array | Names | WholeFiles, rows: Ints) -> Callable[[], Data]:
    if isinstance(column, WholeFiles):
        return column.begin(rows)
    data = column.column(rows) if isinstance(column, Names) else Data(column[rows])
    return lambda: data


def content_of(schema: Schema, *parts: Array | Names | str) -> str:
    """A name for the content that these parts describe."""
    found: list[str | bytes] = [json.dumps(schema.to_json())]
    for part in parts:
        for piece in (part.ends, part.text) if isinstance(part, Names) else (part,):
            data = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
            found.append(data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes())
    return hexdigest(*found)
