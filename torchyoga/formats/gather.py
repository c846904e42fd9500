"""Rows out of mapped files, by byte address: one call copies all rows, wherever their blocks lie.

No read waits for a team of threads, as torch's own copies do: on busy cores a member of the team that has no
core holds up all others. The reading thread copies a large read piece by piece, and a second thread takes
pieces from it while it can; so nobody waits for longer than a piece takes that the other has begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from ..files.checksum import crc32
from ..files.root import open_regular
from ..process.buffers import address_of, is_placing
from ..process.lazy import torch
from ..process.threads import are_ahead, begin_thread, in_forked_child
from ..rows.types import Array, Ints
from .pages import Residency, mapped_bytes

Bytes = npt.NDArray[np.uint8]
_LARGE_READ = 2 * 2**20  # bytes; for smaller reads, a second thread would come too late
_PIECE = 2**20  # bytes that one thread copies at a time
_MOST_BYTES = 2**62


class MappedFile:
    """A finished file as memory. Mappings survive a fork, need no lock and keep an unlinked file readable.

    Raises:
        CorruptError: the file is missing, or is not a file, or does not have `nbytes` bytes, the size it was
            published with, if that is given.
    """

    def __init__(self, path: str, nbytes: int | None = None) -> None:
        try:
            handle = open_regular(path)
        except FileNotFoundError:
            raise CorruptError(
                f"{path} is missing though its manifest names it; remove the version and build it again"
            ) from None
        try:
            about = os.fstat(handle)
            found = about.st_size
            self.identity = about.st_dev, about.st_ino, about.st_mtime_ns, found
            nbytes = found if nbytes is None else nbytes
            if found != nbytes or not nbytes:
                raise CorruptError(
                    f"{path} has {found} bytes where {nbytes} were published; "
                    "remove the version and build it again"
                )
            self.data: Bytes = mapped_bytes(handle, nbytes)
            self.pages = Residency(handle, nbytes)
        finally:
            os.close(handle)
        self.path = path
        self.address = address_of(self.data)

    def checksum(self, offset: int, nbytes: int) -> int:
        """CRC-32 of a run of bytes."""
        return crc32(self.data[offset : offset + nbytes].data)


class _Span:
    """The address range of some arrays, as one array; only their own bytes may be touched.

    It is declared writable, even if it is not, for torch has no read-only tensors and would warn.
    """

    def __init__(self, low: int, high: int, arrays: Sequence[Bytes]) -> None:
        self.__array_interface__ = {
            "data": (low, False),
            "shape": (high - low,),
            "typestr": "|u1",
            "version": 3,
        }
        self.arrays = arrays  # they keep their memory alive, and the span keeps them alive


def bytes_from(array: Array, nbytes: int) -> Bytes:
    """(nbytes,) memory from the beginning of an array on; it keeps the array alive."""
    start = address_of(array)
    return np.asarray(_Span(start, start + nbytes, [array]))


def _element_bytes(divisible: int) -> int:
    """The largest element size that divides all numbers whose bits were combined into `divisible`."""
    return next(size for size in _ELEMENTS if divisible % size == 0)


_ELEMENTS = {16: "complex128", 8: "int64", 4: "int32", 2: "int16", 1: "uint8"}  # torch's names
_NUMBERS = {1: 0, 2: 1, 4: 2, 8: 3}  # the bytes of a number, and which power of two they are
_ALONE_ELEMENTS = 2**15  # torch divides copies of more among threads


@lru_cache(maxsize=1)
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How many threads torch divides work of this thread among: what tells it, and what sets it.

    None if torch's OpenMP cannot be asked. `torch.set_num_threads` would also set it for threads to come.
    """
    try:
        library = ctypes.PyDLL(torch._C.__file__)
        asked, say = library.omp_get_max_threads, library.omp_set_num_threads
    except (AttributeError, OSError):  # torch has another pool of threads, or its symbols are not to be seen
        return None
    before = torch.get_num_threads()
    say(1)
    is_heard = torch.get_num_threads() == 1
    say(before)
    return (asked, say) if is_heard else None


@contextlib.contextmanager
def _undivided() -> Iterator[bool]:
    """Within it torch does the work of this thread on this thread only; False if that cannot be had."""
    openmp = _openmp()
    if openmp is None:
        yield False
        return
    asked, say = openmp
    before = asked()
    say(1)
    try:
        yield True
    finally:
        say(before)


class _Range:
    """All bytes from one address to another, and views of them as rows of some size."""

    def __init__(self, low: int, high: int, arrays: Sequence[Bytes]) -> None:
        self.low = low
        self.bytes: Bytes = np.asarray(_Span(low, high, arrays))
        self._views: dict[tuple[int, int], Any] = {}

    def allows(self, row_bytes: int) -> bool:
        """True if NumPy and torch can count the elements of a view of such rows."""
        return self.bytes.size < _MOST_BYTES // row_bytes

    def view(self, row_bytes: int, size: int) -> Any:
        """The runs of `row_bytes` bytes from every address on, from which NumPy or torch picks.

        Args:
            row_bytes: of each run.
            size: torch takes them for elements of so many bytes, and they begin at such; 0 for NumPy.
        """
        found = self._views.get((row_bytes, size))
        if found is None:
            found = self._views[row_bytes, size] = self._made(row_bytes, size)
        return found

    def numbers(self, places: Ints, row_bytes: int, empty: Callable[[int], Bytes]) -> Bytes | None:
        """Copies of rows of one number each; None if these are not, or do not lie where a number may."""
        if row_bytes not in _NUMBERS or (int(np.bitwise_or.reduce(places)) | self.low) % row_bytes:
            return None
        view = self.bytes[: self.bytes.size // row_bytes * row_bytes].view(f"u{row_bytes}")
        out = empty(places.nbytes // 8 * row_bytes)
        # To clip is to copy into `out` at once; no place is outside.
        np.take(view, places >> _NUMBERS[row_bytes], out=out.view(view.dtype), mode="clip")
        return out

    def copy(self, places: Ints, row_bytes: int, out: Bytes) -> None:
        """Copies rows, as a few large elements each, without Python's lock; large reads on two threads."""
        size = _element_bytes(int(np.bitwise_or.reduce(places, initial=row_bytes)) | self.low % 16)
        view, width = self.view(row_bytes, size), row_bytes // size
        numbers = torch.from_numpy(places // size)
        target = torch.from_numpy(out).view(view.dtype).view(-1, width)
        is_shared = out.nbytes >= _LARGE_READ and _has_second_core()
        with _undivided() as is_alone:
            step = max(1, _PIECE // row_bytes) if is_alone else _ALONE_ELEMENTS // width
            if not step:  # torch would divide a single row
                _copy_runs(self.bytes, places.tolist(), repeat(row_bytes, len(places)), out)
                return
            cuts = [slice(start, start + step) for start in range(0, len(places), step)]
            pieces = deque((view, numbers[cut], target[cut]) for cut in cuts)
            done: _Done = queue.SimpleQueue()
            if is_shared:
                _helper().help(pieces, done)
            _copy_pieces(pieces, done)
            for _ in cuts:
                if (error := done.get()) is not None:
                    raise error

    def _made(self, row_bytes: int, size: int) -> Any:
        if not size:
            count = self.bytes.size - row_bytes + 1
            return np.ndarray((count,), f"V{row_bytes}", self.bytes, strides=(1,))
        elements = torch.from_numpy(self.bytes[: self.bytes.size // size * size])
        elements, width = elements.view(getattr(torch, _ELEMENTS[size])), row_bytes // size
        return torch.as_strided(elements, (elements.numel() - width + 1, width), (1, 1))


def _has_second_core() -> bool:
    """True where a second thread may copy: not beside threads that read, nor in workers, which torch gives
    one core each, nor in a forked child, which has none of its parent's threads."""
    is_only_reader = threading.current_thread() is threading.main_thread() and not are_ahead()
    return is_only_reader and torch.get_num_threads() > 1 and not in_forked_child()


_Pieces: TypeAlias = "deque[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]"  # from, which rows, and to
_Done: TypeAlias = "queue.SimpleQueue[BaseException | None]"  # of each piece: why it is not copied


def _copy_pieces(pieces: _Pieces, done: _Done) -> None:
    """Copies pieces that no other thread has begun, until none is left."""
    while pieces:
        try:
            view, numbers, target = pieces.popleft()
        except IndexError:  # the other thread has taken the last one
            return
        error = None
        try:
            torch.index_select(view, 0, numbers, out=target)
        except BaseException as raised:
            error = raised
        done.put(error)


class _Helper:
    """A thread that takes pieces from the main thread."""

    def __init__(self) -> None:
        self._reads: queue.SimpleQueue[tuple[_Pieces, _Done] | None] = queue.SimpleQueue()
        begin_thread("torchyoga-copies", _help, self._reads, stop=self.stop)

    def help(self, pieces: _Pieces, done: _Done) -> None:
        """Copies some of the pieces, unless the thread has not even begun the read before."""
        if self._reads.empty():
            self._reads.put((pieces, done))

    def stop(self) -> None:
        """Ends the thread."""
        self._reads.put(None)


def _help(reads: queue.SimpleQueue[tuple[_Pieces, _Done] | None]) -> None:
    with _undivided():
        while (read := reads.get()) is not None:
            _copy_pieces(*read)
            del read  # a batch is not held while the thread waits


_helper = lru_cache(maxsize=1)(_Helper)  # made when it is first needed


class Memory:
    """Several runs of bytes, such as mapped files, as one range of addresses. More runs may be added."""

    def __init__(self, arrays: Sequence[Bytes]) -> None:
        self._arrays: list[Bytes] = []
        self._range: _Range
        self.extend(arrays)

    @property
    def arrays(self) -> tuple[Bytes, ...]:
        """All runs of bytes, in the order in which they were added."""
        return tuple(self._arrays)

    @property
    def whole(self) -> tuple[Bytes, int]:
        """The range, of which only the runs may be read, and its first address."""
        return self._range.bytes, self._range.low

    def extend(self, arrays: Sequence[Bytes]) -> None:
        """Adds runs of bytes; threads that are reading are not disturbed."""
        self._arrays += arrays
        lows = [address_of(array) for array in arrays]
        ends = [start + array.nbytes for start, array in zip(lows, arrays, strict=True)]
        if len(self._arrays) > len(arrays):
            lows.append(self._range.low)
            ends.append(self._range.low + self._range.bytes.size)
        self._range = _Range(min(lows), max(ends), self._arrays)

    def gather(self, addresses: Ints, row_bytes: int, empty: Callable[[int], Bytes]) -> Bytes:
        """Copies of `row_bytes` bytes from each address, one after the other (N * row_bytes,).

        Args:
            addresses: (N,) first byte of each row; its `row_bytes` bytes lie in a mapped file.
            row_bytes: at least 1.
            empty: makes the array for the copies, if they are large.
        """
        span = self._range
        places = addresses - span.low
        nbytes = row_bytes * len(places)
        numbers = span.numbers(places, row_bytes, empty) if len(places) else None
        if numbers is not None:
            return numbers
        if nbytes < _LARGE_READ and not is_placing() and span.allows(row_bytes):
            found: Bytes = span.view(row_bytes, 0)[places].view(np.uint8)
            return found
        out = empty(nbytes)
        if span.allows(row_bytes):
            span.copy(places, row_bytes, out)
        else:
            _copy_runs(span.bytes, places.tolist(), repeat(row_bytes, len(places)), out)
        return out

    def gather_runs(
        self, addresses: Ints, nbytes: Ints, out: Bytes, starts: Iterable[int] | None = None
    ) -> None:
        """Copies runs of different lengths into `out`, to `starts`, or else one after the other."""
        span = self._range
        sizes = nbytes.tolist()
        _copy_runs(span.bytes, (addresses - span.low).tolist(), sizes, out, starts)

    def texts(self, addresses: Ints, nbytes: Ints) -> list[bytes]:
        """Runs as bytes, which are quickest if they have one length."""
        span = self._range
        size = int(nbytes[0]) if len(nbytes) else 0
        if size and (nbytes == size).all() and span.allows(size):
            found: list[bytes] = span.view(size, 0)[addresses - span.low].tolist()
            return found
        read = span.bytes.data
        places = addresses - span.low
        ends = places + nbytes
        return [
            read[start:stop].tobytes() for start, stop in zip(places.tolist(), ends.tolist(), strict=True)
        ]

    def checksums(self, addresses: Ints, nbytes: Ints) -> Ints:
        """(N,) CRC-32 of each run."""
        span = self._range
        starts = addresses - span.low
        places = zip(starts.tolist(), (starts + nbytes).tolist(), strict=True)
        found = np.empty(len(starts), np.int64)
        read = span.bytes.data
        for i, (start, stop) in enumerate(places):
            found[i] = crc32(read[start:stop])
        return found


def _copy_runs(
    source: Bytes,
    places: Iterable[int],
    sizes: Iterable[int],
    out: Bytes,
    starts: Iterable[int] | None = None,
) -> None:
    read, write, done = source.data, out.data, 0
    if starts is not None:
        for start, place, size in zip(starts, places, sizes, strict=True):
            write[start : start + size] = read[place : place + size]
        return
    for place, size in zip(places, sizes, strict=True):
        write[done : done + size] = read[place : place + size]
        done += size
