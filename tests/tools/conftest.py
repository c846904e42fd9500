"""The storage on which commands are tested, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import made

import torchyoga as yoga


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    made(folder)
    return folder


@pytest.fixture
def storage(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> yoga.Storage:
    """A storage that a test may change, in the current folder."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHYOGA_STORAGE", raising=False)
    return yoga.Storage("storage")


@pytest.fixture(scope="module")
def shown(storage: yoga.Storage) -> Iterator[str]:
    """The address of a view of the storage of a module."""
    with yoga.view(storage) as found:
        yield found.url
