"""A published version -> a DataRef over its files."""

from __future__ import annotations

import contextlib

from ..errors import NotFoundError
from ..reading.version_ref import VersionRef
from ..versions.manifest import Manifest
from .contract import Versions

__all__ = ["fetched", "ref_of"]

_LOOKS = 4  # at a version that is overwritten or removed while it is being opened


def fetched(
    store: Versions,
    id: str,
    version: str,
    verify: bool = True,
    download: bool = False,
    progress: bool | None = None,
) -> VersionRef:
    """A version as a DataRef, as `Storage.fetch` describes it.

    Raises:
        NotFoundError: it is not published; says which versions are.
        CorruptError: its manifest is damaged, or its files are missing or cut.
    """
    for _ in range(_LOOKS - 1):
        manifest = store.manifest(id, version)
        # Overwritten or removed while it was being opened? The next look shows which.
        with contextlib.suppress(NotFoundError):
            return ref_of(store, manifest, verify, download, progress)
    return ref_of(store, store.manifest(id, version), verify, download, progress)


def ref_of(
    store: Versions,
    manifest: Manifest,
    verify: bool = True,
    download: bool = False,
    progress: bool | None = None,
) -> VersionRef:
    """The version that a manifest describes as a DataRef, whose first file is open.

    Raises:
        NotFoundError: it has been overwritten or removed.
    """
    ref = VersionRef(store.files(manifest), manifest, verify)
    if download:
        ref.download(progress)
    if len(ref):
        ref.open()
    return ref
