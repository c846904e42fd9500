"""Rows that are stored elsewhere: as columns wherever these are, or in many files.

Files are read by threads where a disk or a network is slow. Nothing is mapped: a file that others cut
meanwhile is an error, and no signal ends the process. Damaged files and samples are left out and named, as
long as they are few.
"""

from __future__ import annotations

import io
import json
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ..errors import CorruptError, NotFoundError
from ..files.root import open_regular
from ..process.buffers import BufferPool
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.messages import warn_user
from ..process.numbers import spread
from ..process.stages import Stage, timed
from ..rows.block import Block, Data, Rows, bounds_of
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints, Json, Row
from .dataref import DataRef


class StoredRef(DataRef):
    """Rows that are stored as columns; a subclass says how a block of them is gathered.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
    """

    is_thread_safe = True

    def __init__(self, name: str, schema: Schema, length: int) -> None:
        self._name, self._schema, self._length = name, schema, length

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, as `Rows` over one gathered block."""
        return Rows(self._block(rows)) if len(rows) else []

    @abstractmethod
    def _block(self, rows: Ints) -> Block:
        """The rows of these numbers (B,), at least one."""

    @property
    def schema(self) -> Schema:
        """How a row looks."""
        return self._schema

    def _title(self) -> str:
        return f"DataRef {self._name}"


_TEXT = 100  # bytes of a ragged value, where they are not known


class ColumnsRef(StoredRef):
    """Rows over columns that stay where they are, such as arrays in memory or in a file of any format.

    Args:
        name: what this is, for messages.
        schema: what a row looks like.
        length: number of rows N.
        columns: for each column of the schema, a function of row numbers (B,) that gives those rows.
        remade: a function and its arguments that make an equal DataRef, for pickling.
        has_runs: whether the functions take a slice of rows, too, and give these without a copy.
    """

    def __init__(
        self,
        name: str,
        schema: Schema,
        length: int,
        columns: Sequence[Callable[[Ints | slice], Data]] | Sequence[Callable[[Ints], Data]],
        remade: tuple[Callable[..., DataRef], tuple[object, ...]],
        has_runs: bool = False,
    ) -> None:
        super().__init__(name, schema, length)
        self._columns = columns
        self._remade = remade
        self._has_runs = has_runs
        self._of: tuple[ColumnsRef, Projection] | None = None  # what it is made of, if it is projected

    @property
    def _keeps_rows(self) -> bool:
        """False: each batch is gathered into new memory."""
        return False

    @property
    def _only_copies(self) -> bool:
        """True for arrays; other columns may have to be decoded."""
        return self._has_runs

    def _block(self, rows: Ints) -> Block:
        return Block(self._schema, len(rows), tuple(column(rows) for column in self._columns))

    def run(self, start: int, stop: int) -> Block:
        """The rows start..stop-1, over the memory where they lie if they do: nobody may write into it."""
        rows: Any = slice(start, stop) if self._has_runs else np.arange(start, stop)
        return Block(self._schema, stop - start, tuple(column(rows) for column in self._columns))

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with these columns; the others are not touched."""
        if self._of is not None:
            whole, first = self._of
            return whole._projected(first.then(of))
        columns = [self._columns[number] for number in of.columns]
        remade = projected_again, (*self._remade, of)
        found = ColumnsRef(self._name, of.schema, self._length, columns, remade, self._has_runs)
        found._of = self, of
        return found

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row, as far as its schema says."""
        return sum(column.row_bytes if not column.is_ragged else _TEXT for column in self._schema.columns)

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of its schema, its length and 64 rows spread over it."""
        if self._of is not None:
            whole, of = self._of
            if of.in_schema_order is not of:  # the content is the same
                return whole._projected(of.in_schema_order).fingerprint
        parts: list[str | bytes] = [f"{len(self)} {json.dumps(self._schema.to_json())}"]
        rows = spread(len(self), 64)
        if len(rows):
            for column, take in zip(self._schema.columns, self._columns, strict=True):
                data = take(rows)
                parts += [np.ascontiguousarray(data.part(part)).tobytes() for part in column.parts]
        return hexdigest(*parts)

    def __reduce__(self) -> tuple[object, ...]:
        return self._remade


def projected_again(remake: Callable[..., DataRef], arguments: tuple[object, ...], of: Projection) -> DataRef:
    """Some columns of a DataRef that a function makes, for pickling."""
    return remake(*arguments)._projected(of)


_NAMED = 10  # in a message
_KEPT = 100  # in the info of a version


class LeftOut(NamedTuple):
    """A file that is not among the rows, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name!r:.200} {self.reason}"


def check_share(max_bad: float) -> float:
    """A share; ValueError if it is not in 0..1."""
    if isinstance(max_bad, bool) or not isinstance(max_bad, (int, float)) or not 0 <= max_bad <= 1:
        raise ValueError(
            f"max_bad must be in 0..1, found {max_bad!r}; it is the share that may be left out, such as 0.01"
        )
    return float(max_bad)


def refuse_many(bad: Sequence[LeftOut], total: int, max_bad: float, where: str, what: str) -> None:
    """Raises CorruptError if more than this share of all is to be left out; names the first ones."""
    if len(bad) > max_bad * total:
        raise CorruptError(
            f"{where}: {len(bad)} of {total} {what} are bad, more than max_bad={max_bad:g} allows: "
            f"{_listed(bad)}. Repair or remove them, or allow more with max_bad"
        )


def warn_of(
    bad: Sequence[LeftOut], total: int, where: str, what: str, how: str = "are bad and left out"
) -> None:
    """Warns of what is left out, if anything is."""
    if bad:
        warn_user(f"{where}: {len(bad)} of {total} {what} {how}: {_listed(bad)}")


def info_of_left_out(bad: Sequence[LeftOut]) -> Json:
    """The entries of `info` about them; nothing if there are none."""
    if not bad:
        return {}
    first = {part.name: part.reason for part in bad[:_KEPT]}
    return {"left_out": {"count": len(bad), "first": first}}


def counted(rows: str, bad: Sequence[LeftOut]) -> str:
    """How many rows there are, and how many are left out."""
    return f"{rows}, {len(bad):,} left out" if bad else rows


def _listed(bad: Sequence[LeftOut]) -> str:
    return "; ".join(map(str, bad[:_NAMED])) + ("; ..." if len(bad) > _NAMED else "")


T = TypeVar("T")
S = TypeVar("S")
_WORTH_A_THREAD = 1e-4  # seconds for a file; what lies in memory is read faster by one thread than by many
_PIECE = 8  # files, after which that is looked at


class Names(Sequence[str]):
    """Many names in little memory, which are pickled quickly."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self.ends = bounds_of(map(len, encoded))
        self.text = b"".join(encoded)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices are needed
        number = range(len(self))[index]
        return self.text[self.ends[number] : self.ends[number + 1]].decode("utf-8", "surrogatepass")

    def column(self, rows: Ints) -> Data:
        """The names of these numbers as a column of text."""
        starts, stops = self.ends[rows], self.ends[rows + 1]
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        joined = b"".join(self.text[start:stop] for start, stop in pairs)
        return Data(np.frombuffer(joined, np.uint8), bounds_of(stops - starts))


class Threads:
    """Threads of this process, made when they are needed; forked children make their own.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"threads must be an int of at least 1, found {count!r}")
        self.count = count
        # A parent's threads stay listed in its children: to let go of them would take locks that they held.
        self._executors: dict[int, ThreadPoolExecutor] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Threads, (self.count,)

    def submit(self, function: Callable[[S], T], argument: S) -> Future[T]:
        """Calls a function on one of the threads."""
        executor = self._executors.get(os.getpid())
        if executor is None:
            made = ThreadPoolExecutor(self.count, "torchyoga-files")
            executor = self._executors.setdefault(os.getpid(), made)
        return executor.submit(function, argument)

    def map(self, function: Callable[[S], T], arguments: Sequence[S]) -> list[T]:
        """The results for all arguments, in order; the first error is raised."""
        if self.count == 1 or len(arguments) == 1:
            return list(map(function, arguments))
        found = [self.submit(function, argument) for argument in arguments]
        try:
            return [future.result() for future in found]
        finally:
            for future in found:
                future.cancel()


@dataclass(frozen=True, eq=False)
class WholeFiles:
    """Files, each of which is the value of one row.

    Args:
        root: the folder in which they are.
        names: of each row, its name below the folder.
        sizes: (rows,) bytes of each; another size later is an error.
        threads: read them.
    """

    root: str
    names: Names
    sizes: Ints
    threads: Threads
    _pool: BufferPool = field(default_factory=BufferPool, init=False)

    def __reduce__(self) -> tuple[object, ...]:
        return WholeFiles, (self.root, self.names, self.sizes, self.threads)

    def begin(self, rows: Ints) -> Callable[[], Data]:
        """Begins to read the files of these rows; returns what waits for them.

        What that raises:
            NotFoundError: a file has been removed since.
            CorruptError: it has changed since.
            OSError: it cannot be read.
        """
        sizes = self.sizes[rows]
        ends = bounds_of(sizes)
        out = self._pool.empty(int(ends[-1]))
        order = np.argsort(rows, kind="stable")
        places = order[sizes[order] > 0]
        try:
            places = self._read_while_quick(rows, places, ends, out)
        except Exception as error:  # comes when the rows are wanted: those before them may be good
            return partial(_raised, error)
        if not len(places):
            return lambda: Data(out, ends)
        cuts = np.linspace(0, len(places), min(self.threads.count, len(places)) + 1).astype(np.int64)
        begun = [
            self.threads.submit(lambda some: self._read(rows, some, ends, out), places[start:stop])
            for start, stop in pairwise(cuts.tolist())
        ]
        return lambda: _awaited(begun, Data(out, ends))

    def _read_while_quick(self, rows: Ints, places: Ints, ends: Ints, out: Array) -> Ints:
        """Reads files as long as they come from memory; returns those that threads should read."""
        while len(places):
            piece, places = places[:_PIECE], places[_PIECE:]
            began = time.perf_counter()
            self._read(rows, piece, ends, out)
            if time.perf_counter() - began > _WORTH_A_THREAD * len(piece) and self.threads.count > 1:
                break
        return places

    def _read(self, rows: Ints, places: Ints, ends: Ints, out: Array) -> None:
        """Reads some files; `places` are those of `rows`."""
        for place, row in zip(places.tolist(), rows[places].tolist(), strict=True):
            path = os.path.join(self.root, self.names[row])
            try:
                handle = open_regular(path)
            except FileNotFoundError:
                raise NotFoundError(f"{path} has been removed since this was opened; open it again") from None
            with io.FileIO(handle) as file:
                left = out[ends[place] : ends[place + 1]].data
                has_changed = os.fstat(handle).st_size != len(left)
                while len(left) and not has_changed:
                    count = file.readinto(left)
                    has_changed, left = not count, left[count:]
            if has_changed:
                raise CorruptError(
                    f"{path} does not have {self.sizes[row]} bytes any more, as it had when this was opened; "
                    "open it again"
                )


def _raised(error: Exception) -> NoReturn:
    raise error


def _awaited(begun: Sequence[Future[None]], data: Data) -> Data:
    """The data, once all of it is read; nothing is read into it after an error is raised."""
    errors = [error for error in (future.exception() for future in begun) if error is not None]
    if errors:
        raise errors[0]
    return data


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
        return counted(super()._counted(), self.left_out)


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
