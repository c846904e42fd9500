"""Names of types that come from users or from NumPy, and that no annotation can say more about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..process.buffers import Array, Ints, Seeds

    RowT = TypeVar("RowT", covariant=True, default=Any)  # Python knows defaults from 3.13 on
    BatchT = TypeVar("BatchT", covariant=True, default=Any)
else:  # so that a command that reads a manifest need not load NumPy
    from typing import TypeVar

    Array = Ints = Seeds = Any
    RowT, BatchT = TypeVar("RowT", covariant=True), TypeVar("BatchT", covariant=True)

__all__ = ["Array", "Batch", "BatchT", "Collate", "Index", "Ints", "Json", "MapStyle", "Row", "RowT", "Seeds"]

Row: TypeAlias = Any  # a row of a user's dataset: arrays, tensors, numbers, text, and what nests them
Batch: TypeAlias = Any  # what a collate function makes of rows
Index: TypeAlias = Any  # what a sampler gives and a dataset takes: a row's number, or what users agree on
Json: TypeAlias = dict[str, Any]  # a JSON object: plain data, checked by whoever reads it
Collate: TypeAlias = Callable[[Row], Batch]  # of the rows of a batch; of one row, if there are no batches


class MapStyle(Protocol):
    """A dataset whose rows can be asked for by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Index, /) -> Row: ...
