"""Rows out of mapped files, by byte address: one call copies all rows, wherever their blocks lie."""

from __future__ import annotations

import mmap
import os
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptError

__all__ = ["Bytes", "MappedFile", "Memory", "address_of", "bytes_from"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_LARGE_READ = 2 * 2**20  # bytes; below, threads are not worth waiting for
_RETRY = 64  # large reads after which the slower way is tried again


# torch's threads do not survive a fork: an operation that waits for them hangs. DataLoader's workers are
# safe, they set the number of threads to 1; a child forked by anybody else gathers with NumPy.
_in_forked_child = False


def _note_fork() -> None:
    global _in_forked_child
    _in_forked_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class MappedFile:
    """A finished file as memory. Mappings survive a fork, need no lock and keep an unlinked file readable.

    Raises:
        CorruptError: the file is missing, or has not the size it was published with, if that is given.
    """

    def __init__(self, path: str, nbytes: int | None = None) -> None:
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise CorruptError(
                f"{path} is missing though its manifest names it; remove the version and build it again"
            ) from None
        try:
            found = os.fstat(handle).st_size
            nbytes = found if nbytes is None else nbytes
            if found != nbytes or not nbytes:
                raise CorruptError(
                    f"{path} has {found} bytes where {nbytes} were published; "
                    "remove the version and build it again"
                )
            self.map = mmap.mmap(handle, nbytes, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
        self.path = path
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.address = address_of(self.data)

    def checksum(self, offset: int, nbytes: int) -> int:
        """CRC-32 of a run of bytes."""
        return zlib.crc32(self.data[offset : offset + nbytes].data)


class _Span:
    """The address range that some arrays lie in, as an array; only their own bytes may be touched.

    Called writable, though it may not be, for torch knows no read-only tensors and would warn.
    """

    def __init__(self, low: int, high: int, arrays: Sequence[Bytes]) -> None:
        self.__array_interface__ = {
            "data": (low, False),
            "shape": (high - low,),
            "typestr": "|u1",
            "version": 3,
        }
        self.arrays = arrays  # they keep what they lie in alive, and the span keeps them


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where an array begins in memory."""
    found: int = array.__array_interface__["data"][0]
    return found


def bytes_from(array: np.ndarray[Any, Any], nbytes: int) -> Bytes:
    """(nbytes,) memory from the begin of an array on, which stays alive as long as this does."""
    start = address_of(array)
    return np.asarray(_Span(start, start + nbytes, [array]))


class Memory:
    """Several runs of bytes, such as mapped files, as one range of addresses."""

    def __init__(self, arrays: Sequence[Bytes]) -> None:
        lows = [address_of(array) for array in arrays]
        low = min(lows)
        high = max(start + array.nbytes for start, array in zip(lows, arrays, strict=True))
        self._low = low
        self._bytes: npt.NDArray[np.uint8] = np.asarray(_Span(low, high, arrays))
        self._paces = {True: 0.0, False: 0.0}  # seconds a byte of large reads, by NumPy and by torch
        self._reads = 0
        self._views: dict[tuple[int, bool], Any] = {}

    def gather(self, addresses: Ints, row_bytes: int, empty: Callable[[int], Bytes]) -> Bytes:
        """Copies of `row_bytes` bytes from each address, one after the other (N * row_bytes,).

        Args:
            addresses: (N,) each of `row_bytes` bytes that lie in a mapped file.
            row_bytes: at least 1.
            empty: makes the array for the copies, if they are large.
        """
        places = addresses - self._low
        nbytes = row_bytes * len(places)
        by_numpy = self._numpy_is_better(nbytes)
        key = row_bytes, by_numpy
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self._view(row_bytes, by_numpy)
        if nbytes < _LARGE_READ:
            found: Bytes = view[places].view(np.uint8)
            return found
        started = time.perf_counter()
        if by_numpy:
            out: Bytes = view[places].view(np.uint8)
        else:
            out = empty(nbytes)
            torch.index_select(
                view, 0, torch.from_numpy(places), out=torch.from_numpy(out).view(-1, row_bytes)
            )
        pace, before = (time.perf_counter() - started) / nbytes, self._paces[by_numpy]
        self._paces[by_numpy] = 0.75 * before + 0.25 * pace if before else pace
        return out

    def _numpy_is_better(self, nbytes: int) -> bool:
        """Torch reads with threads into reused memory, and crawls where other work keeps the cores busy."""
        if nbytes < _LARGE_READ or (_in_forked_child and torch.get_num_threads() > 1):
            return True
        self._reads += 1
        faster = self._paces[True] < self._paces[False]
        return not faster if self._reads % _RETRY == 0 else faster

    def _view(self, row_bytes: int, by_numpy: bool) -> Any:
        """All runs of `row_bytes` bytes, from every address on."""
        count = self._bytes.size - row_bytes + 1
        if by_numpy:
            return np.ndarray((count,), f"V{row_bytes}", self._bytes, strides=(1,))
        return torch.as_strided(torch.from_numpy(self._bytes), (count, row_bytes), (1, 1))

    def gather_runs(self, addresses: Ints, nbytes: Ints, out: npt.NDArray[np.uint8]) -> None:
        """Copies runs of different lengths one after the other into `out` (sum of nbytes,)."""
        target = out.data
        source = self._bytes.data
        done = 0
        for place, size in zip((addresses - self._low).tolist(), nbytes.tolist(), strict=True):
            target[done : done + size] = source[place : place + size]
            done += size
