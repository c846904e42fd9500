"""Versions of many small files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchyoga.building import build
from torchyoga.building.build import BuildOptions

Patch = Callable[[object, str, Any], None]


def build_with(patch: Patch = setattr, **options: int) -> None:
    """Every build of this process has these options."""
    given = BuildOptions.__init__

    def init(self: BuildOptions, *args: Any, **kwargs: Any) -> None:
        given(self, *args, **{**kwargs, **options})

    patch(BuildOptions, "__init__", init)


def make_blocks_of(rows: int, patch: Patch = setattr) -> None:
    """Every block that this process writes has so many rows: for ever, or until the patches are undone."""
    patch(build, "_BLOCK_ROWS", rows)


def make_files_of(rows: int, patch: Patch = setattr) -> None:
    """Every file that this process builds has so many rows: for ever, or until the patches are undone."""
    make_blocks_of(rows, patch)
    build_with(patch, file_bytes=1)
