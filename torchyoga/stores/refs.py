"""A version, by its name, by a tag or as the newest one -> a DataRef over its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptError, NotFoundError
from ..files.root import Root
from ..reading.version_ref import VersionRef
from ..versions.location import Files, Folder
from ..versions.manifest import Manifest
from ..versions.names import folder_of
from .contract import Versions
from .graph import newest
from .local import Store
from .mirror import Mirror
from .tags import gone, named_by
from .version_downloads import VersionDownloads

_LOOKS = 4  # at a version that is overwritten or removed while it is being opened


class Opening(NamedTuple):
    """How a version is opened; see `Storage.fetch`."""

    verify: bool = True
    download: bool = False
    progress: bool | None = None


_OPENING = Opening()


def fetched(store: Versions, id: str, version: str, how: Opening = _OPENING) -> VersionRef:
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


def ref_of(store: Versions, manifest: Manifest, how: Opening = _OPENING) -> VersionRef:
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


def store_of(files: Files, manifest: Manifest) -> Versions | None:
    """The store in which the files of a version lie; None if they do not lie where a store has them."""
    if isinstance(files, VersionDownloads):
        return Mirror(files.remote, files.cache, files.lease_seconds)
    if not isinstance(files, Folder):
        return None
    folder = Path(files.name)
    if f"{folder.parent.name}/{folder.name}" != folder_of(manifest.id, manifest.version):
        return None
    return Store(Root(folder.parent.parent, shared=files.shared))


@dataclass(frozen=True)
class Choice:
    """Which version of an id: exactly one of `version`, `tag` (at a moment, `at`) and `latest`.

    Raises:
        TypeError: not exactly one of them is given.
    """

    id: str
    version: str | None = None
    tag: str | None = None
    at: object = None
    latest: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.latest, bool):
            raise TypeError(f"latest must be True or False, found {self.latest!r:.80}")
        given = {"version": self.version is not None, "tag": self.tag is not None, "latest": self.latest}
        if sum(given.values()) != 1:
            names = [f"{name}=" for name, is_given in given.items() if is_given]
            raise TypeError(
                f"fetch takes exactly one of version=, tag= and latest=True, found "
                f"{' and '.join(names) if names else 'none of them'}"
            )
        if self.at is not None and self.tag is None:
            raise TypeError("at= asks what a tag named then; pass tag=, too")


def chosen(store: Versions, choice: Choice, how: Opening) -> VersionRef:
    """The version that was chosen, as `Storage.fetch` describes it."""
    if choice.tag is not None:
        return _tagged(store, choice, how)
    if not choice.latest:
        assert choice.version is not None, "exactly one of them is given"
        return fetched(store, choice.id, choice.version, how)
    for left in reversed(range(_LOOKS)):
        node = newest(store, choice.id)
        try:
            ref = fetched(store, choice.id, node.version, how)
        except NotFoundError:
            if not left:
                raise
            continue
        if ref.manifest.fingerprint == node.fingerprint or not left:
            return ref
    raise AssertionError("the last look returns or raises")


def _tagged(store: Versions, choice: Choice, how: Opening) -> VersionRef:
    assert choice.tag is not None, "exactly one of them is given"
    entry = named_by(store, choice.id, choice.tag, choice.at)
    version = str(entry.version)
    # Before any file is downloaded.
    manifest = store.find(choice.id, version)
    if manifest is None:
        raise gone(entry, "removed")
    if manifest.fingerprint != entry.fingerprint:
        raise gone(entry, "overwritten by other rows")
    try:
        ref = fetched(store, choice.id, version, how)
    except NotFoundError:
        raise gone(entry, "removed") from None
    if ref.manifest.fingerprint != entry.fingerprint:
        raise gone(entry, "overwritten by other rows")
    return ref
