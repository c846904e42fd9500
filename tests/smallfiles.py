"""Versions of many small files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torchyoga import storage as storages
from torchyoga.building import build
from torchyoga.building.build import BuildOptions

__all__ = ["make_files_of"]


def make_files_of(rows: int, patch: Callable[[object, str, Any], None] = setattr) -> None:
    """Every file that this process builds has so many rows: for ever, or until the patches are undone."""
    patch(build, "_BLOCK_ROWS", rows)
    patch(storages, "BuildOptions", partial(BuildOptions, file_bytes=1))
