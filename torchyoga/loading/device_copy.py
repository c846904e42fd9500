"""Batches -> the same batches on a device, the next one on its way while this one is computed with."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch

from ..process.stages import Stage, Stopwatch
from ..rows.types import Batch, Row, mapped

__all__ = ["Moving"]


class Moving(Iterator[Batch]):
    """Batches on a device; one is always on its way."""

    def __init__(self, device: torch.device, watch: Stopwatch, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._copy = _CudaCopy(device, watch) if device.type == "cuda" else _Copy(device, watch)
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

    def __init__(self, device: torch.device, watch: Stopwatch) -> None:
        self.device = device
        self.watch = watch

    def begun(self, batch: Batch) -> _Copied:
        """Begins to copy a batch."""
        with self.watch.running(Stage.COPY):
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

    def __init__(self, device: torch.device, watch: Stopwatch) -> None:
        super().__init__(device, watch)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Perhaps still being read by the device: when the copy began and ended, and what it is of.
        self._read: deque[tuple[torch.cuda.Event, torch.cuda.Event, Batch]] = deque()

    def begun(self, batch: Batch) -> _Copied:
        """Begins to copy a batch."""
        while self._read and self._read[0][1].query():  # type: ignore[no-untyped-call]
            began, ended, _ = self._read.popleft()
            self.watch.add(Stage.COPY, began.elapsed_time(ended) / 1e3)
        with torch.cuda.stream(self._stream):
            began, ended = _event(), _event()
            began.record(self._stream)
            moved = mapped(batch, self._moved_ahead, _moves_itself)
            ended.record(self._stream)
            self._read.append((began, ended, batch))
            return _Copied(moved, batch, ended)

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


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
