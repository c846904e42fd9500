"""Files as memory: which of their pages are in memory, and rows out of them, by byte address.

Advised which pages are wanted next, the kernel reads many at once instead of one page fault after another.
Where there is no such call (Windows, some sandboxes) no advice is given, and reading is correct all the same.

Advice is given while the disk answers.
Advised rows do not fault, so faults cannot show when to stop; the count of blocks that the thread made the
disk read can (`getrusage`). Where other threads read, one window in 64 is advised to find out. All ranges of
a batch go out in one `process_madvise`, at half the cost of one call per row.

The kernel is asked whether a file is in memory only where it tells the truth.
To those who may not write a file mincore says that all of it is there. cachestat, of Linux 6.5, is four times
as fast and refuses instead; it needs a descriptor, so it is asked about whole files while they are opened.

Mappings are made by `mmap(2)` itself.
Python's `mmap` keeps a file descriptor for each. Reading a mapped file beyond the end at which it was cut
kills the process. So where other machines write, a file's size is looked up by its path before a batch, at
most once a second: a mapping has no descriptor to ask.

All readers of a process share a quarter of the mappings that Linux allows.
Another is refused once a process has 65,530, and then its allocations of memory fail as well. A pass over
more files than may be mapped opens each of them in each epoch, which takes a tenth of a millisecond.

No read waits for a team of threads, as torch's own copies do: see `process.copies`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError
from ..files.checksum import crc32
from ..files.root import open_regular
from ..process.buffers import address_of, is_placing
from ..process.copies import can_be_undivided, undivided
from ..process.lazy import torch
from ..rows.types import Array, Ints

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


PAGE = 4096
_RANDOM, _WILLNEED = 1, 3
# The same on every architecture of Linux that torch knows; glibc has it only since 2.36.
_PROCESS_MADVISE = 440
_MOST_RANGES = 1024  # IOV_MAX: ranges of one call


class Usage(NamedTuple):
    """Counts of a thread so far: page faults that waited for the disk, and blocks read from it."""

    faults: int = 0
    blocks: int = 0


def usage() -> Usage:
    """This thread's usage; the whole process's where the system counts no threads; zeros if neither."""
    if resource is None:
        return Usage()
    found = resource.getrusage(_WHOSE)
    return Usage(found.ru_majflt, found.ru_inblock)


class Thermometer:
    """Knows whether some data come from disk: they do while reading faults, or advice makes the disk read.

    It begins cold. Files that are all in memory when they are opened make it warm, and advice that causes no
    reads for a few thousand rows; a fault makes it cold again, and if that happens soon, it takes longer to
    become warm the next time.

    Args:
        rows: how many there are, if fewer will do.
    """

    def __init__(self, rows: int | None = None) -> None:
        self.cold = can_advise
        self._has_read = False
        self._quiet = 0  # rows advised since advice last made the disk read
        self._patience = _PATIENCE if rows is None else min(_PATIENCE, rows)

    def probe(self) -> None:
        """Becomes cold, until a single piece of advice causes no reads."""
        if not self.cold:
            self.cold = can_advise
            self._quiet = self._patience

    def after_opening(self, were_all: bool | None) -> None:
        """Takes note of a file that was opened, and whether all of it was in memory then."""
        if were_all and not self._has_read:
            self.cold = False
        elif were_all is False and not self.cold:
            self.probe()
        self._has_read = True

    def after_advice(self, before: Usage, rows: int) -> None:
        """Takes note of what advice about `rows` rows has caused since `before`."""
        if usage().blocks > before.blocks:
            self._quiet = 0
            return
        self._quiet += rows
        if self._quiet >= self._patience:
            self.cold = False

    def after_fault(self) -> None:
        """Takes note that reading has waited for the disk."""
        if not self.cold and can_advise:
            self.cold = True
            self._quiet = 0
            self._patience = min(2 * self._patience, _MOST_PATIENCE)


_WHOSE = getattr(resource, "RUSAGE_THREAD", getattr(resource, "RUSAGE_SELF", 0))
_PATIENCE, _MOST_PATIENCE = 2048, 2**17


def merged(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Runs of bytes as runs of whole pages; successive runs that touch become one."""
    begins, stops = starts & -PAGE, (ends + (PAGE - 1)) & -PAGE
    new = np.empty(len(begins), np.bool_)
    new[:1] = True
    np.logical_or(begins[1:] > stops[:-1], begins[1:] < begins[:-1], out=new[1:])
    if new.all():
        return begins, stops
    first = np.flatnonzero(new)
    return begins[first], np.maximum.reduceat(stops, first)


class _Mapping:
    """Bytes of a file as memory, until no array over them is left.

    Unlike Python's `mmap`, it keeps no file descriptor: there may be thousands of mappings.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        assert _library is not None
        self._munmap, self._forget = _library.munmap, _mappings.discard
        address = _library.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            error = ctypes.get_errno()
            raise OSError(error, f"a file of {nbytes} bytes cannot be mapped: {os.strerror(error)}")
        self._address, self._nbytes = address, nbytes
        _mappings.add(address)
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        if hasattr(self, "_address"):
            self._forget(self._address)  # before another may get the address
            self._munmap(self._address, self._nbytes)


_mappings: set[int] = set()  # the addresses of those that exist


def num_to_spare() -> int:
    """How many more files all readers together should map, beyond some thousands for each; below 0 if they
    have too many."""
    return _most_mappings() // 4 - len(_mappings)


@lru_cache(None)
def _most_mappings() -> int:
    """How many mappings a process may have, as far as Linux says; 0 if that is not known."""
    if _library is None or not hasattr(_library, "mmap"):
        return 0  # each keeps a descriptor
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return min(int(file.read()), _USUAL_MAPPINGS)
    except (OSError, ValueError):
        return 0  # another system, or a sandbox


_USUAL_MAPPINGS = 65_530


def mapped_bytes(descriptor: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """(nbytes,) an open file as read-only memory; the descriptor may be closed at once."""
    if _library is None or not hasattr(_library, "mmap"):
        return np.frombuffer(mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ), np.uint8)
    return np.asarray(_Mapping(descriptor, nbytes))


class Residency:
    """Which bytes of a mapped file are in memory, as far as the kernel tells this process.

    Attributes:
        were_all: all of them were, when the file was opened; None if that is not known.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.were_all: bool | None = None
        found = _pages_in_memory(descriptor, nbytes) if nbytes <= _MOST_COUNTED else None
        if found is not None:
            self.were_all = found >= -(-nbytes // mmap.PAGESIZE)
        about = os.fstat(descriptor)
        self._may_ask = _mincore is not None and os.geteuid() in (0, about.st_uid)

    def are_there(self, address: int, nbytes: int) -> bool | None:
        """True if nearly all bytes from an address of the mapping on are; None if that cannot be known."""
        if not self._may_ask:
            return None
        start = address & -mmap.PAGESIZE
        count = -(-(address + nbytes - start) // mmap.PAGESIZE)
        # A few pages tell of most blocks that are not there, in a tenth of the time.
        return _are_there(start, min(count, _FEW)) and _are_there(start, count)


_MOST_COUNTED = 2**34  # bytes of a file whose pages are counted, in 40 ms


def _pages_in_memory(descriptor: int, nbytes: int) -> int | None:
    """How many pages of a file are in memory; None if the kernel does not say."""
    global can_count
    if _library is None or not can_count:
        return None
    span, counts = (ctypes.c_uint64 * 2)(0, nbytes), (ctypes.c_uint64 * 5)()
    if _library.syscall(_CACHESTAT, descriptor, ctypes.addressof(span), ctypes.addressof(counts), 0, 0):
        can_count = ctypes.get_errno() != errno.ENOSYS
        return None
    return int(counts[0])


# Pages; at most one in so many is missing: each would be read from disk by a request of its own.
_FEW, _ALMOST = 16, 256
_CACHESTAT = 451  # the same on every architecture of Linux that torch knows
can_count = sys.platform.startswith("linux")


def _are_there(address: int, pages: int) -> bool:
    found = np.zeros(pages, np.uint8)
    assert _mincore is not None
    if _mincore(address, pages * mmap.PAGESIZE, found.ctypes.data):
        return False
    return _ALMOST * (pages - int(np.count_nonzero(found & 1))) <= pages


class Watch:
    """Checks now and then whether a mapped file has been cut: reading beyond its new end kills the process.

    This is not certain: a file may be cut right after a look. The file is looked up by its name, since a
    mapping keeps no descriptor; if another file has that name, or none, the mapped one is whole and readable.
    """

    def __init__(self, path: str, nbytes: int) -> None:
        self._path, self._nbytes = path, nbytes
        about = os.stat(path)
        self._file = about.st_dev, about.st_ino
        self._next_look = 0.0

    @classmethod
    def where_needed(cls, path: str, nbytes: int) -> Watch | None:
        """A watch over a file where other machines may write; None on a local disk, where a look would cost
        more than it is worth."""
        try:
            return cls(path, nbytes) if is_shared(os.stat(path).st_dev) else None
        except OSError:
            return None  # removed by now

    def look(self) -> None:
        """Raises CorruptError if the file is shorter than it was."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        try:
            about = os.stat(self._path)
        except OSError:
            return
        if (about.st_dev, about.st_ino) == self._file and about.st_size < self._nbytes:
            raise CorruptError(
                f"{self._path} has been cut while it was open, to {about.st_size} bytes of {self._nbytes}; "
                "write or build it again, under another name: no file may be cut while it is being read"
            )


_LOOK_SECONDS = 1.0  # between looks; network file systems themselves show changes some seconds late
_SHARED = frozenset(
    b"9p afs beegfs ceph cifs fuse gfs2 gpfs lustre nfs nfs4 ocfs2 orangefs panfs pvfs2 smb3 smbfs vboxsf "
    b"virtiofs wekafs".split()
)


@lru_cache(None)
def is_shared(device: int) -> bool:
    """True if other machines may write to a mounted device, as far as Linux knows its type."""
    try:
        wanted = b"%d:%d" % (os.major(device), os.minor(device))
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                # ... major:minor root mount-point options ... - type source options
                facts, _, (type, *_) = (part.split() for part in line.partition(b" - "))
                if facts[2] == wanted:
                    return type in _SHARED or type.startswith(b"fuse.")
    except (AttributeError, OSError, IndexError, ValueError):
        pass  # another system, or a line of another form
    return False


def scatter(data: npt.NDArray[np.uint8]) -> None:
    """Makes the kernel read only the requested pages of a mapped file, not those that follow."""
    if can_advise and _library is not None:
        _library.madvise(data.ctypes.data, data.nbytes, _RANDOM)


def will_need(starts: Ints, ends: Ints) -> None:
    """Asks for the pages from `starts` to `ends`, addresses of mapped files at page boundaries."""
    global can_advise
    if not can_advise or not len(starts):
        return
    ranges = np.stack([starts, ends - starts], axis=1).astype(np.uint64)
    for first in range(0, len(ranges), _MOST_RANGES):
        if not _advise(ranges[first : first + _MOST_RANGES]):
            can_advise = False
            return


def _load() -> ctypes.CDLL | None:
    if sys.platform == "win32":
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        library.syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, *(ctypes.c_size_t,) * 3)
    except (AttributeError, OSError, TypeError):
        return None  # no such library, or one without these calls
    return library


_library = _load()
_mincore = _library.mincore if _library is not None and sys.platform.startswith("linux") else None
# With larger pages, these boundaries would not be page boundaries.
can_advise = _library is not None and mmap.PAGESIZE <= PAGE
one_by_one = not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open")
_self: tuple[int, int] | None = None  # this process, and a descriptor of it


def _advise(ranges: npt.NDArray[np.uint64]) -> bool:
    """False if nothing can be advised here."""
    global one_by_one
    assert _library is not None
    if not one_by_one:
        # One call for a whole batch; it releases Python's lock.
        found = _library.syscall(
            _PROCESS_MADVISE, _descriptor(), ranges.ctypes.data, len(ranges), _WILLNEED, 0
        )
        if found >= 0:
            return True
        one_by_one = True  # an older kernel, or a sandbox that forbids it
    return all(_library.madvise(start, size, _WILLNEED) == 0 for start, size in ranges.tolist())


def _descriptor() -> int:
    global _self
    if _self is None or _self[0] != os.getpid():  # a forked child has inherited its parent's
        _self = os.getpid(), os.pidfd_open(os.getpid())  # type: ignore[attr-defined,unused-ignore]
    return _self[1]


Bytes = npt.NDArray[np.uint8]
_OWN_READ = 8 * 2**20  # bytes; the allocator keeps memory for smaller reads, so that it is not new each time
_UNLOCKED_READ = 2 * 2**20  # bytes; smaller ones keep Python's lock
_LOCKED_ITEMS = 500  # NumPy keeps Python's lock while it picks no more than these
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
        if row_bytes not in (1, 2, 4, 8) or (int(np.bitwise_or.reduce(places)) | self.low) % row_bytes:
            return None
        view = self.bytes[: self.bytes.size // row_bytes * row_bytes].view(f"u{row_bytes}")
        out = empty(places.nbytes // 8 * row_bytes)
        # To clip is to copy into `out` at once; no place is outside.
        np.take(view, places >> row_bytes.bit_length() - 1, out=out.view(view.dtype), mode="clip")
        return out

    def picked(self, places: Ints, row_bytes: int) -> Bytes:
        """Copies of rows, by NumPy; of many bytes without Python's lock, as several items each."""
        size = row_bytes
        if len(places) * row_bytes >= _UNLOCKED_READ:
            while len(places) * row_bytes // size <= _LOCKED_ITEMS and not size % 2:
                size //= 2
            places = places[:, None] + np.arange(0, row_bytes, size)
        found: Bytes = self.view(size, 0)[places].reshape(-1).view(np.uint8)
        return found

    def copy(self, places: Ints, row_bytes: int, out: Bytes) -> None:
        """Copies rows, as a few large elements each, without Python's lock."""
        size = _element_bytes(int(np.bitwise_or.reduce(places, initial=row_bytes)) | self.low % 16)
        view, width = self.view(row_bytes, size), row_bytes // size
        numbers = torch.from_numpy(places // size)
        target = torch.from_numpy(out).view(view.dtype).view(-1, width)
        with undivided():
            torch.index_select(view, 0, numbers, out=target)

    def _made(self, row_bytes: int, size: int) -> Any:
        if not size:
            count = self.bytes.size - row_bytes + 1
            return np.ndarray((count,), f"V{row_bytes}", self.bytes, strides=(1,))
        elements = torch.from_numpy(self.bytes[: self.bytes.size // size * size])
        elements, width = elements.view(getattr(torch, _ELEMENTS[size])), row_bytes // size
        return torch.as_strided(elements, (elements.numel() - width + 1, width), (1, 1))


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
        if nbytes < _OWN_READ and not is_placing() and span.allows(row_bytes):
            return span.picked(places, row_bytes)
        out = empty(nbytes)
        if span.allows(row_bytes) and can_be_undivided():
            span.copy(places, row_bytes, out)
        else:
            _copy_runs(span.bytes, places.tolist(), [row_bytes] * len(places), out)
        return out

    def gather_runs(
        self, addresses: Ints, nbytes: Ints, out: Bytes, starts: Iterable[int] | None = None
    ) -> None:
        """Copies runs of different lengths into `out`, to `starts`, or else one after the other."""
        span = self._range
        _copy_runs(span.bytes, (addresses - span.low).tolist(), nbytes.tolist(), out, starts)

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
        read = span.bytes.data
        return np.fromiter((crc32(read[start:stop]) for start, stop in places), np.int64, len(starts))


def _copy_runs(
    source: Bytes, places: list[int], sizes: list[int], out: Bytes, starts: Iterable[int] | None = None
) -> None:
    read, write = source.data, out.data
    into = accumulate(sizes, initial=0) if starts is None else starts
    for start, place, size in zip(into, places, sizes, strict=False):
        write[start : start + size] = read[place : place + size]
