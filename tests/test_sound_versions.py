"""Versions that tests leave behind are checked: a damaged one is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import versions_under

import torchyoga
from torchyoga.errors import CorruptError
from torchyoga.stores.checking import check
from torchyoga.stores.local import Store


@pytest.mark.damages
def test_every_version_that_a_test_has_left_is_found(tmp_path: Path) -> None:
    for name in ("one", "two/below"):
        torchyoga.Storage(tmp_path / name).submit([1, 2], "a/b", "1")
    (tmp_path / "one" / "mine").mkdir()
    (tmp_path / "one" / "mine" / "manifest.json").write_text("{}")
    found = sorted(versions_under(tmp_path))
    assert found == [("a/b", "1", tmp_path / "one"), ("a/b", "1", tmp_path / "two" / "below")]
    next((tmp_path / "one").rglob("*.mdb")).unlink()
    with pytest.raises(CorruptError, match="is missing"):
        check(Store(tmp_path / "one"), "a/b", "1")
