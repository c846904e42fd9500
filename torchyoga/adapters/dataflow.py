"""TensorPack DataFlows -> rows."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

from ..build import RowSource

__all__ = ["DataflowSource", "source_of"]

# The process in which each DataFlow was readied: a second reset_state would start its worker processes anew.
_ready: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def source_of(data: Any) -> DataflowSource | None:
    """A TensorPack DataFlow as a source; None for anything else."""
    return DataflowSource(data) if hasattr(data, "reset_state") and hasattr(data, "__iter__") else None


class DataflowSource(RowSource):
    """The datapoints of a DataFlow, lists or dicts, read once; `reset_state` is called here.

    Its length is TensorPack's, which is a rough one: the rows end where the DataFlow ends.

    Raises:
        ValueError: it is repeated without end.
    """

    def __init__(self, dataflow: Any) -> None:
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

    def rows(self, start: int) -> Iterator[Any]:
        """All datapoints."""
        if _ready.get(self._dataflow) != os.getpid():
            self._dataflow.reset_state()
            _ready[self._dataflow] = os.getpid()
        return iter(self._dataflow)


def _is_endless(dataflow: Any) -> bool:
    """True if one of the DataFlows this one draws from is repeated for ever, and none before it bounds it."""
    seen = 0
    while dataflow is not None and seen < 1000:
        name = type(dataflow).__name__
        if name == "FixedSizeData":
            return False
        if name == "RepeatedData" and dataflow.num == -1:
            return True
        dataflow, seen = getattr(dataflow, "ds", None), seen + 1
    return False
