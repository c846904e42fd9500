"""How states and receipts are written: as plain data that JSON takes."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Pin", "Saved"]

Pin: TypeAlias = int | str | None  # what a state records so that it is not continued in another order
Saved: TypeAlias = dict[str, Any]  # a state or a receipt as a dict: checked by whoever reads it
