"""Anything else in place of a file is named in an error, and nothing waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from others import OTHERS, remove

import torchyoga as yoga
from torchyoga.errors import CorruptError, YogaError
from torchyoga.files.root import open_regular, read_regular


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 3) == b"abc"
    with pytest.raises(CorruptError, match="larger than any manifest"):
        read_regular(tmp_path / "file", 2)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", OTHERS)
def test_something_in_place_of_a_file_of_a_storage_is_named(kind: str, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    storage.submit([1, 2], "a", "1")
    folder = storage.path / "a" / "1"
    (data,) = folder.glob("*.mdb")
    for path in (folder / "manifest.json", data):
        path.rename(tmp_path / "kept")
        OTHERS[kind](path)
        for ask in (lambda: storage.fetch("a", "1")[0], lambda: storage.check("a", "1")):
            with pytest.raises(CorruptError, match=kind):
                ask()
        remove(path)
        (tmp_path / "kept").rename(path)
    assert list(storage.fetch("a", "1")) == [1, 2]


@pytest.mark.parametrize("kind", OTHERS)
def test_something_in_place_of_a_file_of_a_build_is_named(kind: str, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    folder = storage.path / ".staging" / "a" / "1"
    folder.mkdir(parents=True)
    OTHERS[kind](folder / "progress.json")
    is_link = (folder / "progress.json").is_symlink()  # builders do not follow links
    with pytest.raises(YogaError, match=f"progress.json is {'a link to' if is_link else kind}"):
        storage.submit([1, 2], "a", "1")
    assert os.path.lexists(folder / "progress.json")
