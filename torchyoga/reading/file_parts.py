"""Many files -> their bytes, one after the other, read by threads where a disk or a network is slow.

Nothing is mapped: a file that others cut meanwhile is an error, and no signal ends the process.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NoReturn, TypeVar

import numpy as np

from ..errors import CorruptError, NotFoundError
from ..files.root import open_regular
from ..process.buffers import BufferPool
from ..rows.data import Data, bounds_of
from ..rows.types import Array, Ints

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
