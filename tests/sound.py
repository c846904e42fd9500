"""Versions that a test has left behind: found, and checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchyoga.errors import CorruptError
from torchyoga.stores.cache import Cache
from torchyoga.stores.contract import Store
from torchyoga.stores.local import LocalStore
from torchyoga.stores.objects import Objects
from torchyoga.stores.remote import RemoteStore
from torchyoga.stores.transfer import check
from torchyoga.versions.location import MANIFEST
from torchyoga.versions.manifest import is_like_manifest
from torchyoga.versions.names import decoded


def check_versions(folder: Path) -> None:
    """Checks every version in a folder as `Storage.check` does; fails the test if one is damaged."""
    for id, version, root in versions_under(folder):
        _check(LocalStore(root), id, version)


def check_stored(url: str, options: Mapping[str, Any], cache: Path) -> None:
    """Checks every version in a bucket, whatever prefix its storage has; fails the test if one is damaged."""
    for prefix in {_prefix(name) for name in Objects(url, options).find()} - {None}:
        store = RemoteStore(Objects(f"{url}/{prefix}", options), Cache(cache), 60.0)
        for id, version in store.published():
            _check(store, id, version)


def _check(store: Store, id: str, version: str) -> None:
    try:
        check(store, id, version)
    except CorruptError as error:
        pytest.fail(f"the test has left a damaged version, and is not marked `damages`: {error}", False)


def _prefix(name: str) -> str | None:
    """What is above the id and the version of a manifest; None for another name."""
    *prefix, id, version, last = ["", "", *name.split("/")]
    if last != MANIFEST or not id or decoded(id) is None or decoded(version) is None:
        return None
    return "/".join(prefix[2:])


def versions_under(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """The id, the version and the root of each manifest in a folder; links are not followed."""
    for outer, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        path = Path(outer)
        id, version = decoded(path.parent.name), decoded(path.name)
        if MANIFEST in names and id is not None and version is not None:
            folders.clear()  # no version is within another
            manifest = path / MANIFEST
            if manifest.is_file() and is_like_manifest(manifest.read_bytes()):
                yield id, version, path.parent.parent
