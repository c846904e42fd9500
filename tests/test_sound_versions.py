"""Versions that tests leave behind are checked: a damaged one is found."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from sound import check_stored, check_versions, versions_under

import torchyoga
from torchyoga.stores.objects import Objects


@pytest.mark.damages("to see that it is found")
def test_every_version_that_a_test_has_left_is_found(tmp_path: Path) -> None:
    for name in ("one", "two/below"):
        torchyoga.Storage(tmp_path / name).submit([1, 2], "a/b", "1")
    (tmp_path / "one" / "mine").mkdir()
    (tmp_path / "one" / "mine" / "manifest.json").write_text("{}")
    found = sorted(versions_under(tmp_path))
    assert found == [("a/b", "1", tmp_path / "one"), ("a/b", "1", tmp_path / "two" / "below")]
    next((tmp_path / "one").rglob("*.mdb")).unlink()
    with pytest.raises(pytest.fail.Exception, match=r"damaged version, and is not marked.* is missing"):
        check_versions(tmp_path)


def test_every_version_that_a_test_has_left_in_a_store_is_found(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    for prefix in ("", "/two/below"):
        torchyoga.Storage(url + prefix, cache_dir=tmp_path / "cache").submit([1, 2], "a/b", "1")
    check_stored(url, {}, tmp_path / "checks")
    remote = Objects(f"{url}/two/below")
    (name,) = (name for name in remote.find() if name.endswith(".mdb"))
    remote.delete([name])
    with pytest.raises(pytest.fail.Exception, match=r"damaged version, and is not marked.* is missing"):
        check_stored(url, {}, tmp_path / "checks")
