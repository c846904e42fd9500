"""The addresses that a storage may have."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchyoga as yoga
from torchyoga.stores.address import directory_of


def test_a_directory_may_be_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a b%20c~"
    plain = str(place).replace("%", "%25")
    for text in (str(place), place.as_uri(), f"file:{plain}", f"file://localhost{plain}", f"FILE://{plain}"):
        assert yoga.Storage(text).path == place, text
    assert yoga.Storage("a:b").path == tmp_path / "a:b"
    assert yoga.Storage("~/x").path == Path.home() / "x" == yoga.Storage("file://~/x").path
    for wrong in ("s3:/bucket/x", "gs:/bucket", "https:/host", "", "file:below", "file:"):
        with pytest.raises(ValueError, match="a URL has two slashes"):
            yoga.Storage(wrong)
    with pytest.raises(ValueError, match="names a host, 'tmp'; a file of this machine is file:///tmp/x"):
        yoga.Storage("file://tmp/x")
    with pytest.raises(ValueError, match=r"s4:// URLs are unknown.*'s3'"):
        yoga.Storage("s4://bucket")
    yoga.Storage(place.as_uri()).submit([1], "a", "1")
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_reading_an_address_makes_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory_of("below/x") == tmp_path / "below" / "x"
    assert directory_of("local:///data") == Path("/data").absolute()
    assert list(tmp_path.iterdir()) == []
