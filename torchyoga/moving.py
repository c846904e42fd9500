"""Batches -> the same batches on a device, the next one on its way while this one is computed with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .nest import mapped

__all__ = ["Moving"]


class Moving(Iterator[Any]):
    """Batches on a device; one is always on its way."""

    def __init__(self, device: torch.device, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._copy = _CudaCopy(device) if device.type == "cuda" else _Copy(device)
        self._coming: _Copied | Exception | None = None

    def __next__(self) -> Any:
        coming = self._coming if self._coming is not None else self._begun()
        # An error or the end stays, for who asks again; but a failed batch has others behind it.
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
    """A batch on its way, what it is copied from, and what tells that it has come."""

    def __init__(self, batch: Any, source: Any, event: Any = None) -> None:
        self.batch = batch
        self.source = source
        self.event = event


class _Copy:
    """Copies to a device that needs no stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begun(self, batch: Any) -> _Copied:
        """Begins to copy a batch."""
        return _Copied(mapped(batch, self._moved), batch)

    def _moved(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.device, non_blocking=True)
        return leaf.to(self.device) if callable(getattr(leaf, "to", None)) else leaf

    def arrived(self, copied: _Copied) -> Any:
        """The batch, once it may be computed with."""
        return copied.batch


class _CudaCopy(_Copy):
    """Copies on a stream of its own, so that the computation goes on meanwhile."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begun(self, batch: Any) -> _Copied:
        """Begins to copy a batch."""
        with torch.cuda.stream(self._stream):
            moved = mapped(batch, self._moved)
            return _Copied(moved, batch, self._stream.record_event())

    def arrived(self, copied: _Copied) -> Any:
        """The batch; the current stream waits for it, the process does not."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied.event)

        def keep(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)  # its memory was made on the other stream
            return leaf

        return mapped(copied.batch, keep)
