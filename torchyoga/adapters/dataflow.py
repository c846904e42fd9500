"""TensorPack DataFlows -> rows."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeGuard

from ..building.sources import RowSource
from ..rows.types import Row

__all__ = ["DataflowSource", "source_of"]


class _Dataflow(Protocol):
    def reset_state(self) -> None: ...

    def __iter__(self) -> Iterator[Row]: ...

    def __len__(self) -> int: ...


# The process in which each DataFlow was readied: a second reset_state would start its worker processes anew.
_ready: weakref.WeakKeyDictionary[_Dataflow, int] = weakref.WeakKeyDictionary()


def source_of(data: object) -> DataflowSource | None:
    """A TensorPack DataFlow as a source; None for anything else."""
    return DataflowSource(data) if _is_dataflow(data) else None


def _is_dataflow(data: object) -> TypeGuard[_Dataflow]:
    return hasattr(data, "reset_state") and hasattr(data, "__iter__")


class DataflowSource(RowSource):
    """The datapoints of a DataFlow, lists or dicts, read once; `reset_state` is called here.

    Its length is TensorPack's, which is a rough one: the rows end where the DataFlow ends.

    Raises:
        ValueError: it is repeated without end.
    """

    def __init__(self, dataflow: _Dataflow) -> None:
        self.name = type(dataflow).__name__
        if _is_endless(dataflow):
            raise ValueError(
                f"{self.name} repeats its data without end; cache it before it is repeated, or bound it with "
                "FixedSizeData"
            )
        # What TensorPack and its DataFromGenerator raise if there is no length.
        with contextlib.suppress(NotImplementedError, TypeError):
            self.length = len(dataflow)
        self._dataflow = dataflow

    def rows(self, start: int) -> Iterator[Row]:
        """All datapoints."""
        if _ready.get(self._dataflow) != os.getpid():
            self._dataflow.reset_state()
            _ready[self._dataflow] = os.getpid()
        return iter(self._dataflow)


def _is_endless(dataflow: object) -> bool:
    """True if one of the DataFlows this one draws from is repeated for ever, and none before it bounds it."""
    seen = 0
    while dataflow is not None and seen < 1000:
        name = type(dataflow).__name__
        if name == "FixedSizeData":
            return False
        if name == "RepeatedData" and getattr(dataflow, "num", None) == -1:
            return True
        dataflow, seen = getattr(dataflow, "ds", None), seen + 1
    return False
