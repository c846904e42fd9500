"""A version, by its name, by a tag or as the newest one -> a DataRef over its files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptError, NotFoundError
from ..files.root import Root
from ..reading.version_ref import VersionRef
from ..versions.location import Files, Folder
from ..versions.manifest import Manifest
from ..versions.names import folder_of
from .contract import Store
from .downloads import VersionDownloads
from .history import newest, tagged_manifest
from .local import LocalStore
from .remote import RemoteStore

_LOOKS = 4  # at a version that is overwritten or removed while it is being opened


class Opening(NamedTuple):
    """How a version is opened; see `Storage.fetch`."""

    verify: bool = True
    download: bool = False
    progress: bool | None = None


_OPENING = Opening()


def fetched(store: Store, id: str, version: str, how: Opening = _OPENING) -> VersionRef:
    """A version as a DataRef, as `Storage.fetch` describes it.

    Raises:
        NotFoundError: it is not published; says which versions are.
        CorruptError: its manifest is damaged, or its files are missing or cut.
    """
    for _ in range(_LOOKS - 1):
        manifest = store.manifest(id, version)
        # Overwritten or removed while it was being opened? The next look shows which.
        try:
            return ref_of(store, manifest, how)
        except NotFoundError:
            continue
        except CorruptError:
            now = store.find(id, version)
            if now is not None and now.build == manifest.build:
                raise
    return ref_of(store, store.manifest(id, version), how)


def ref_of(store: Store, manifest: Manifest, how: Opening = _OPENING) -> VersionRef:
    """The version that a manifest describes as a DataRef, whose first file is open.

    Raises:
        NotFoundError: it has been overwritten or removed.
    """
    ref = VersionRef(store.files(manifest), manifest, how.verify)
    if how.download:
        ref.download(how.progress)
    if len(ref):
        ref.open()
    return ref


def store_of(files: Files, manifest: Manifest) -> Store | None:
    """The store in which the files of a version lie; None if they do not lie where a store has them."""
    if isinstance(files, VersionDownloads):
        return RemoteStore(files.remote, files.cache)
    if not isinstance(files, Folder):
        return None
    folder = Path(files.name)
    if f"{folder.parent.name}/{folder.name}" != folder_of(manifest.id, manifest.version):
        return None
    return LocalStore(Root(folder.parent.parent, shared=files.shared))


def chosen(
    store: Store, id: str, version: str | None, tag: str | None, latest: bool, how: Opening
) -> VersionRef:
    """The version that is named, that a tag names or that is the newest, as `Storage.fetch` describes it."""
    if not isinstance(latest, bool):
        raise TypeError(f"latest must be True or False, found {latest!r:.80}")
    given = {"version=": version is not None, "tag=": tag is not None, "latest=": latest}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) != 1:
        raise TypeError(
            "fetch takes exactly one of version=, tag= and latest=True, found "
            f"{' and '.join(names) if names else 'none of them'}"
        )
    if version is not None:
        return fetched(store, id, version, how)
    for left in reversed(range(_LOOKS)):
        wanted = newest(store, id) if tag is None else tagged_manifest(store, id, tag)
        try:
            ref = fetched(store, id, wanted.version, how)
        except NotFoundError:
            if not left:
                raise
            continue
        if ref.manifest.fingerprint == wanted.fingerprint:
            return ref
    raise NotFoundError(
        f"{id!r} {wanted.version!r} in {store.name} was overwritten {_LOOKS} times while it was opened; try "
        "again when no process overwrites it"
    )
