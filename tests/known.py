"""Versions in which every row says to which version it belongs, and foreign files beside them."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from stored import objects_of, store_of

import torchyoga as yoga
from torchyoga.testing import assert_rows_equal
from torchyoga.versions.names import folder_of

FILE_ROWS = 16  # of each file, so that a version of KnownRows has 2 to 4


class KnownRows:
    """A map-style dataset: rows that follow from id, version and generation, and differ in all of them."""

    def __init__(self, id: str, version: str, generation: int) -> None:
        self.generation = generation
        self._key = f"{id}/{version}/{generation}"
        self._salt = zlib.crc32(self._key.encode())

    def __len__(self) -> int:
        return 20 + self._salt % 41

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        mixed = (self._salt + 2654435761 * number) % 2**32
        return {
            "generation": self.generation,
            "key": self._key,
            "x": np.full((3, 5), mixed, np.uint32),
            "words": np.arange(mixed % 7, dtype=np.int16),
        }


SCHEMA = yoga.Schema.of(KnownRows("", "", 0)[0], ragged=["words"])


def submit_known(
    storage: yoga.Storage, id: str, version: str, generation: int, overwrite: bool = False
) -> yoga.DataRef:
    """Publishes a generation."""
    rows = KnownRows(id, version, generation)
    return storage.submit(rows, id, version, overwrite, schema=SCHEMA, progress=False)


def survey(storage: yoga.Storage) -> list[tuple[str, str, int]]:
    """The id, version and generation of everything that is published, each of them checked; while nothing is
    replaced."""
    found = []
    for id, version in storage.list():
        storage.check(id, version)
        found.append((id, version, generation_in(storage.fetch(id, version), id, version)))
    return found


def generation_of(storage: yoga.Storage, id: str, version: str) -> int | None:
    """The generation that is published; None if there is none.

    Raises:
        AssertionError: a row is of another generation than the first, or of another version.
        CorruptError, RemoteError: it cannot be read.
    """
    try:
        return generation_in(storage.fetch(id, version), id, version)
    except yoga.errors.NotFoundError:  # absent, or replaced while it was read
        return None


def generation_in(ref: yoga.DataRef, id: str, version: str) -> int:
    """The generation of all rows; raises as `generation_of` does, and NotFoundError."""
    rows = list(ref)
    generation = int(rows[0]["generation"])
    expected = KnownRows(id, version, generation)
    assert len(rows) == len(expected), f"{id} {version} has {len(rows)} rows, not {len(expected)}"
    for number, row in enumerate(rows):
        assert_rows_equal(row, expected[number], f"{id} {version} row {number}")
    return generation


class Bystanders:
    """Foreign files and links in a storage's folder, which nothing may ever change.

    Args:
        root: the folder of the storage.
        outside: a folder outside of it, made here, to which the links lead.
        ids: of the datasets beside whose versions some lie.
    """

    def __init__(self, root: Path, outside: Path, ids: list[str]) -> None:
        self._root, self._outside = root, outside
        data = "0123456789abcdef-00000.mdb"  # named as we would name it
        for name in (data, "manifest.json.new", "progress.json", "1/" + data):
            _write(outside / name)
        places = [root, root / ".staging", root / ".locks", root / ".hidden"]
        for id in ids:
            places += [root / id, root / ".staging" / id]
        for place in places:
            _write(place / "notes.txt")
            _write(place / data)
            _write(place / ".git" / "config")
            (place / "linked").symlink_to(outside)
            (place / "linked file").symlink_to(outside / data)
        self.names = _tree(root)
        self._inside, self._there = self._look()

    def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        inside, there = _tree(self._root), _tree(self._outside)
        return {name: inside.get(name) for name in self.names}, there

    def check(self) -> None:
        """Raises AssertionError if any was changed or is gone."""
        for before, now in zip((self._inside, self._there), self._look(), strict=True):
            changed = {name: now.get(name) for name in before if now.get(name) != before[name]}
            assert not changed, f"foreign files are changed or gone: {changed}"


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"a foreign file: {path.name}")


def _tree(folder: Path) -> dict[str, Any]:
    """Every file and link below a folder: its content, or where it leads."""
    found: dict[str, Any] = {}
    for place, folders, files in os.walk(folder):
        for name in (*files, *folders):
            path = Path(place, name)
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = ("link", os.readlink(path))
            elif name in files and "a foreign file" in (
                text := path.read_bytes()[:200].decode(errors="replace")
            ):
                found[key] = text
    return found


def objects_beside_versions(storage: yoga.Storage) -> set[str]:
    """Names of objects in a store that belong to no published version."""
    store, names = store_of(storage), set(objects_of(storage).find())
    for id, version in storage.list():
        folder, files = folder_of(id, version), store.manifest(id, version).files
        names -= {f"{folder}/manifest.json", *(f"{folder}/{file.name}" for file in files)}
    return names


def files_like(folder: Path, *patterns: str) -> list[str]:
    """The files below a folder whose names match one of the patterns."""
    paths = [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]
    return [str(path.relative_to(folder)) for path in paths]


def unexpected(storage: yoga.Storage, bystanders: Bystanders | None = None) -> list[str]:
    """Files in a storage's folder other than its versions, its locks and the foreign ones."""
    wanted = set(bystanders.names) if bystanders else set()
    found = []
    for path in storage.path.rglob("*"):
        name = str(path.relative_to(storage.path))
        if path.is_symlink() or not path.is_file() or name in wanted or name.startswith(".locks/"):
            continue
        found.append(name)
    for id, version in storage.list():
        manifest = store_of(storage).find(id, version)
        assert manifest is not None
        folder = store_of(storage).directory(id, version).relative_to(storage.path)
        named = {f"{folder}/manifest.json", *(f"{folder}/{file.name}" for file in manifest.files)}
        found = [name for name in found if name not in named]
    return sorted(found)
