"""A version of one store -> the same version in another."""

from __future__ import annotations

from dataclasses import replace

from ..errors import CorruptError
from ..reading.version_ref import VersionRef
from ..versions.lineage import sendable
from ..versions.manifest import Manifest
from .checking import MOST_LOOKS, checked_files, latest, overwritten
from .contract import Held, Versions
from .local import Store
from .refs import ref_of

__all__ = ["copied"]


def copied(
    store: Versions, to: Versions, manifest: Manifest, overwrite: bool, progress: bool | None
) -> VersionRef:
    """Copies a version, as `Storage.copy` describes it. Hold the lock of `to`.

    Args:
        store: the version is read from here.
        to: the version is published here.
        manifest: the manifest of the version, as `store` had it.
        overwrite: replace another version of that name. The same version is never sent twice.
        progress: show a progress bar.

    Returns:
        The version that is published in `to`.

    Raises:
        NotFoundError, ExistsError, CorruptError: as `Storage.copy`.
    """
    id, version = manifest.id, manifest.version
    for _ in range(MOST_LOOKS):
        manifest = (
            manifest if isinstance(to, Store) else replace(manifest, lineage=sendable(manifest.lineage))
        )
        published = to.find(id, version)
        if published is not None and published.is_copy_of(manifest):
            return ref_of(to, published)
        if not overwrite:
            to.refuse_existing(id, version)
        to.check_place(id, version)
        replaces = to.seen(id, version) if overwrite else None
        try:
            published = to.receive(manifest.on_its_own(), _own(store, manifest), replaces, progress, ())
            return ref_of(to, published)
        except (CorruptError, FileNotFoundError):
            now = latest(store, manifest, "copied")
            if now.build == manifest.build:
                raise
            manifest = now
    raise overwritten(store, manifest, "copied")


def _own(store: Versions, manifest: Manifest) -> Held:
    """Gives a path for each file of `manifest.on_its_own()`, once the file has been checked."""
    held = checked_files(store, manifest)
    files = dict(zip((file.name for file in manifest.on_its_own().files), manifest.files, strict=True))
    return lambda entry: held(files[entry.name])
