"""Rows out of mapped files, by byte address: one call copies all rows, wherever their blocks lie."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CorruptError

__all__ = ["MappedFile", "Memory"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
# Bytes of one read: above, threads and reused memory pay; below, threads mostly wait for busy cores.
_LARGE_READ = 8 * 2**20


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
        CorruptError: the file is missing, or has not the size it was published with.
    """

    def __init__(self, path: str, nbytes: int) -> None:
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise CorruptError(
                f"{path} is missing though its manifest names it; remove the version and build it again"
            ) from None
        try:
            found = os.fstat(handle).st_size
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
        self.address: int = self.data.__array_interface__["data"][0]

    def checksum(self, offset: int, nbytes: int) -> int:
        """CRC-32 of a run of bytes."""
        return zlib.crc32(self.data[offset : offset + nbytes].data)


class _Span:
    """The address range that some mapped files lie in, as an array; only their own bytes may be touched.

    Called writable, though it is not, for torch knows no read-only tensors and would warn.
    """

    def __init__(self, low: int, high: int, files: Sequence[MappedFile]) -> None:
        self.__array_interface__ = {
            "data": (low, False),
            "shape": (high - low,),
            "typestr": "|u1",
            "version": 3,
        }
        self.files = files  # the arrays made from this keep the mappings alive


class Memory:
    """Several mapped files as one range of addresses."""

    def __init__(self, files: Sequence[MappedFile]) -> None:
        low = min(file.address for file in files)
        high = max(file.address + file.data.size for file in files)
        self._low = low
        self._bytes: npt.NDArray[np.uint8] = np.asarray(_Span(low, high, files))
        self._views: dict[tuple[int, bool], Any] = {}

    def gather(self, addresses: Ints, row_bytes: int, empty: Callable[[int], Bytes]) -> Bytes:
        """Copies of `row_bytes` bytes from each address, one after the other (N * row_bytes,).

        Args:
            addresses: (N,) each of `row_bytes` bytes that lie in a mapped file.
            row_bytes: at least 1.
            empty: makes the array for the copies, if they are large.
        """
        places = addresses - self._low
        small = row_bytes * len(places) < _LARGE_READ
        by_numpy = small or (_in_forked_child and torch.get_num_threads() > 1)
        key = row_bytes, by_numpy
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self._view(row_bytes, by_numpy)
        if by_numpy:
            found: Bytes = view[places].view(np.uint8)
            return found
        out = empty(len(places) * row_bytes)
        # Uses torch's threads, and unlike NumPy's take it neither copies the source first nor checks per row.
        torch.index_select(view, 0, torch.from_numpy(places), out=torch.from_numpy(out).view(-1, row_bytes))
        return out

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
