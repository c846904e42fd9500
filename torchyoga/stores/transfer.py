"""All bytes of a version of one store -> whether they match its manifest, and the same version in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..errors import CorruptError, NotFoundError
from ..process.messages import Bar, progress_bar
from ..reading.reader import Reader
from ..reading.version_ref import VersionRef
from ..versions.file_entry import FileEntry, Listed
from ..versions.lineage import sendable
from ..versions.manifest import Manifest
from .contract import LocalPaths, Store
from .local import LocalStore
from .refs import ref_of
from .sharing import Sharing

MOST_LOOKS = 5  # at a version that is overwritten at the same time


def check(store: Store, id: str, version: str) -> None:
    """Reads a whole version and compares it with its manifest, as `Storage.check` describes it."""
    manifest = store.manifest(id, version)
    for _ in range(MOST_LOOKS):
        problems = _problems(store, manifest)
        if not problems:
            return
        now = latest(store, manifest, "checked")
        if now.build == manifest.build:
            raise CorruptError(
                f"{id!r} {version!r} is damaged: {'; '.join(problems)}. Remove it and build it again"
            )
        manifest = now
    raise overwritten(store, manifest, "checked")


def _problems(store: Store, manifest: Manifest) -> Sequence[str]:
    """Files that are missing, cut, damaged or not in the manifest, even if the version is about to be
    removed."""
    try:
        problems = store.check_files(manifest, Sharing(store, manifest.id).perhaps_unnamed)
    except (CorruptError, FileNotFoundError) as error:  # of a list of files
        return [str(error)]
    with store.fresh(manifest) as files:
        for group in manifest.column_groups:
            problems += Reader.of_group(files, group).verify_all()
    return problems


def checked_files(store: Store, manifest: Manifest) -> LocalPaths:
    """A function that gives a local path of a file of a version, once the file has been checked."""
    files = store.files(manifest)
    every: dict[tuple[str | None, str], list[FileEntry]] = {}  # a file may be in several groups of columns
    for entry in manifest.files if manifest.groups else ():
        every.setdefault((entry.of, entry.name), []).append(entry)

    @contextmanager
    def held(entry: FileEntry) -> Iterator[str]:
        with files.held(entry) as path:
            for one in every.get((entry.of, entry.name), [entry]):
                problems = Reader.of_file(path, manifest.group_of(one), one).verify_all()
                if problems:
                    raise CorruptError(f"{files.name} is damaged: {problems[0]}; nothing was published")
            yield path

    return held


def latest(store: Store, manifest: Manifest, doing: str) -> Manifest:
    """The manifest that is published now under the id and version of another one.

    Raises:
        NotFoundError: none is published; says what was being done.
    """
    found = store.find(manifest.id, manifest.version)
    if found is None:
        raise NotFoundError(
            f"{manifest.id!r} {manifest.version!r} in {store.name} was removed while it was {doing}; "
            "submit it again, or fetch another"
        )
    return found


def overwritten(store: Store, manifest: Manifest, doing: str) -> NotFoundError:
    """The error for a version that was overwritten at every look."""
    return NotFoundError(
        f"{manifest.id!r} {manifest.version!r} in {store.name} was overwritten {MOST_LOOKS} times while it "
        f"was {doing}; try again when no process overwrites it"
    )


def copied(store: Store, to: Store, manifest: Manifest, overwrite: bool, progress: bool | None) -> VersionRef:
    """Copies a version with all its files, and returns the copy. Hold the lock of that.

    Args:
        store: the version is read from here.
        to: it is published here.
        manifest: of the version.
        overwrite: replace another version of this name.
        progress: show a progress bar.

    Raises:
        NotFoundError, ExistsError, CorruptError: as `Storage.copy`.
    """
    what = f"copying to {to.name}"
    with progress_bar(progress, manifest.nbytes, what, "B", unit_scale=True) as bar:
        for _ in range(MOST_LOOKS):
            try:
                published = to.find(manifest.id, manifest.version)
                if published is None or not published.is_copy_of(_fitting(manifest, to)):
                    published = _published(store, to, _fitting(manifest, to), overwrite, bar)
                return ref_of(to, published)
            except (CorruptError, FileNotFoundError, NotFoundError):
                now = latest(store, manifest, "copied")
                if now.build == manifest.build:
                    raise
                manifest = now
    raise overwritten(store, manifest, "copied")


def _fitting(manifest: Manifest, to: Store) -> Manifest:
    """A version as it may be published in a store."""
    is_local = isinstance(to, LocalStore)
    return manifest if is_local else replace(manifest, lineage=sendable(manifest.lineage))


def _published(store: Store, to: Store, manifest: Manifest, overwrite: bool, bar: Bar) -> Manifest:
    """A version that is sent and published."""
    id, version = manifest.id, manifest.version
    if not overwrite:
        to.refuse_existing(id, version)
    to.check_place(id, version)
    replaces = to.seen(id, version) if overwrite else None
    sources = {file.as_own.name: replace(file.whole, of=file.of) for file in manifest.files}
    own: Listed[FileEntry] = Listed(file.as_own for file in manifest.files)
    held = checked_files(store, manifest)

    @contextmanager
    def opened(entry: FileEntry) -> Iterator[str]:
        with held(sources[entry.name]) as path:
            yield path
        bar.update(entry.nbytes)

    new = replace(manifest, files=own, parents=Listed(manifest.parents))
    return to.receive(new, opened, replaces, False)
