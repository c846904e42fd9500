"""Batches -> the same batches on a device, the next one on its way while this one is computed with."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch

from ..rows.tree import mapped
from ..rows.types import Batch, Row

__all__ = ["Moving"]


class Moving(Iterator[Batch]):
    """Batches on a device; one is always on its way."""

    def __init__(self, device: torch.device, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._copy = _CudaCopy(device) if device.type == "cuda" else _Copy(device)
        self._coming: _Copied | Exception | None = None

    def __next__(self) -> Batch:
        coming = self._coming if self._coming is not None else self._begun()
        # An error or the end stays, for whoever asks again; but other batches follow a failed one.
        self._coming = coming if isinstance(coming, StopIteration) else self._begun()
        if isinstance(coming, Exception):
            raise coming
        return self._copy.arrived(coming)

    def _begun(self) -> _Copied | Exception:
        try:
            return self._copy.begun(next(self._batches))
        except Exception as error:
            return error


class _Copied:
    """A batch on its way, what it is copied from, and what signals that it has come."""

    def __init__(self, batch: Batch, source: Batch, event: torch.Event | None = None) -> None:
        self.batch = batch
        self.source = source
        self.event = event


class _Copy:
    """Copies to a device that needs no stream of its own.

    They are waited for: the memory copied from may be used again as soon as nothing holds it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begun(self, batch: Batch) -> _Copied:
        """Begins to copy a batch."""
        return _Copied(mapped(batch, self._moved, _moves_itself), batch)

    def arrived(self, copied: _Copied) -> Batch:
        """The batch, once it may be computed with."""
        return copied.batch

    def _moved(self, leaf: Row) -> Row:
        return leaf.to(self.device) if _moves_itself(leaf) else leaf


class _CudaCopy(_Copy):
    """Copies on a stream of its own, so that the computation goes on meanwhile.

    Whatever is more than one run of memory is copied when it is wanted: the allocator
    could not be told that each part of it is used on another stream than it was made on.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._read: deque[tuple[torch.Event, Batch]] = deque()  # perhaps still being read by the device

    def begun(self, batch: Batch) -> _Copied:
        """Begins to copy a batch."""
        while self._read and self._read[0][0].query():
            self._read.popleft()
        with torch.cuda.stream(self._stream):
            moved = mapped(batch, self._moved_ahead, _moves_itself)
            event = self._stream.record_event()
            self._read.append((event, batch))
            return _Copied(moved, batch, event)

    def arrived(self, copied: _Copied) -> Batch:
        """The batch; the current stream waits for it, the process does not."""
        current = torch.cuda.current_stream(self.device)
        assert copied.event is not None
        current.wait_event(copied.event)

        def keep(leaf: Row) -> Row:
            if not _is_one_run(leaf):
                return self._moved(leaf)
            if leaf.is_cuda:
                leaf.record_stream(current)  # its memory was made on the other stream
            return leaf

        return mapped(copied.batch, keep, _moves_itself)

    def _moved_ahead(self, leaf: Row) -> Row:
        return leaf.to(self.device, non_blocking=True) if _is_one_run(leaf) else leaf


def _moves_itself(leaf: object) -> bool:
    return callable(getattr(leaf, "to", None))


def _is_one_run(leaf: Row) -> bool:
    """True for a tensor that is just its own memory."""
    return type(leaf) is torch.Tensor and leaf.layout == torch.strided and not leaf.is_nested
