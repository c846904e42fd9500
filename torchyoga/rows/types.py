"""Names of types that come from users or from NumPy, and that no annotation can say more about."""

from __future__ import annotations

from typing import Any, TypeAlias

from ..process.buffers import Array

__all__ = ["Array", "Batch", "Json", "Row"]

Row: TypeAlias = Any  # a row of a user's dataset: arrays, tensors, numbers, text, and what nests them
Batch: TypeAlias = Any  # what a collate function makes of rows
Json: TypeAlias = dict[str, Any]  # a JSON object: plain data, checked by whoever reads it
