"""All bytes of a version -> whether they match its manifest, even if it is overwritten meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import CorruptError, NotFoundError
from ..process.exceptions import contextmanager
from ..reading.reader import Reader
from ..versions.file_entry import FileEntry
from ..versions.manifest import Manifest
from .contract import Held, Versions
from .sharing import Sharing

MOST_LOOKS = 5  # at a version that is overwritten at the same time


def check(store: Versions, id: str, version: str) -> None:
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


def _problems(store: Versions, manifest: Manifest) -> Sequence[str]:
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


def checked_files(store: Versions, manifest: Manifest) -> Held:
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


def latest(store: Versions, manifest: Manifest, doing: str) -> Manifest:
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


def overwritten(store: Versions, manifest: Manifest, doing: str) -> NotFoundError:
    """The error for a version that was overwritten at every look."""
    return NotFoundError(
        f"{manifest.id!r} {manifest.version!r} in {store.name} was overwritten {MOST_LOOKS} times while it "
        f"was {doing}; try again when no process overwrites it"
    )
