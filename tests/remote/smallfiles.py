"""Versions of many small files."""

from __future__ import annotations

from functools import partial

import pytest

from torchyoga.building.build import BuildOptions

__all__ = ["make_files_of"]


def make_files_of(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Every file that is built has so many rows, until the patches are undone."""
    monkeypatch.setattr("torchyoga.building.build._BLOCK_ROWS", rows)
    monkeypatch.setattr("torchyoga.storage.BuildOptions", partial(BuildOptions, file_bytes=1))
