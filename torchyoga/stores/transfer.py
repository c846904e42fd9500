"""All bytes of a version of one store -> whether they match its manifest, and the same version in another.

The oldest version comes first.
Each file is sent with the first version that names it, into that one's folder; later versions name it there.
So what others there share needs no folder of a version that was removed here, and is guarded as after an
append: a version is published while the locks of those that it shares with are held, or these are looked at
once more.

What was sent is known by the manifests there.
Files of one version here and there stand in the same order, whatever their names are, so no note has to be
kept, and a version that was copied alone, or by another process meanwhile, counts as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import CorruptError, ExistsError, NotFoundError
from ..process.messages import Bar, progress_bar
from ..reading.reader import Reader
from ..reading.version_ref import VersionRef
from ..versions.file_entry import FileEntry, Listed
from ..versions.lineage import sendable
from ..versions.manifest import Manifest
from .contract import LocalPaths, Store, some
from .history import Moves, add_moves, all_moves, in_time, line_of
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


Place = tuple[str, str]  # the version in whose folder a file lies, and its name


class Transfer:
    """Versions of an id that are copied.

    Args:
        store: the versions are read from here.
        to: they are published here.
        id: which dataset.
        version: this one, and of a history those that it was made from; None for all.
        overwrite: replace other versions of these names.
    """

    def __init__(self, store: Store, to: Store, id: str, version: str | None, overwrite: bool) -> None:
        self._store, self._to, self._id, self._version = store, to, id, version
        self._overwrite = overwrite
        self._here: dict[str, Manifest] = {}  # those that have arrived
        self._missing: dict[str, Manifest] = {}
        self._sent: list[str] = []
        self._known = _Arrived()
        self._moves: Moves = {}

    def history(self) -> None:
        """Makes this a transfer of a version with those that it was made from, see `Storage.copy`.

        Raises:
            NotFoundError, CorruptError, ExistsError: as `Storage.copy`.
        """
        store, to, id = self._store, self._to, self._id
        self._moves = all_moves(store, id)  # before the versions, so that those named are among them
        here = self._each(store, _chosen(store, id, self._version))
        there, others = self._each(to, [*here]), []
        for name, manifest in here.items():
            manifest = self._fitting(manifest)
            if name in there and there[name].is_copy_of(manifest):
                self._here[name] = manifest
                continue
            self._missing[name] = manifest
            others += [name] if name in there else []
        if others and not self._overwrite:
            raise ExistsError(
                f"{to.name} has other rows, files or parents under {id!r} {some(others)} than {store.name}; "
                "nothing was sent. Remove these versions there, or pass overwrite=True"
            )
        for name in self._here if self._missing else ():
            self._known.add(self._here[name], there[name])

    def alone(self, manifest: Manifest, progress: bool | None) -> VersionRef:
        """Copies this version with all its files, and returns the copy. Hold the lock of that.

        Raises:
            NotFoundError, ExistsError, CorruptError: as `Storage.copy`.
        """
        what = f"copying to {self._to.name}"
        with progress_bar(progress, manifest.nbytes, what, "B", unit_scale=True) as bar:
            published = self._send(self._fitting(manifest), bar)
        assert published is not None, "a version that was named and has been removed is an error"
        return ref_of(self._to, published)

    def _each(self, store: Store, names: Sequence[str]) -> dict[str, Manifest]:
        """The manifests of versions, of those that are published."""
        read = zip(names, store.each(names, partial(store.find, self._id)), strict=True)
        return {name: manifest for name, manifest in read if manifest is not None}

    def _fitting(self, manifest: Manifest) -> Manifest:
        """A version as it may be published there."""
        is_local = isinstance(self._to, LocalStore)
        return manifest if is_local else replace(manifest, lineage=sendable(manifest.lineage))

    def sizes(self) -> dict[str, int]:
        """The versions that are missing there, the oldest first, and the bytes to send with each."""
        seen: set[Place] = set()
        sizes = {}
        for version, manifest in self._missing.items():
            sizes[version] = 0
            for entries in (manifest.files, manifest.parents):
                for piece in self._new(seen, version, entries.pieces):
                    inner = entries.of_piece(piece) if piece.num_listed else ()
                    files = [piece, *self._new(seen, version, inner)]
                    sizes[version] += sum(file.nbytes for file in files)
        return sizes

    def _new(self, seen: set[Place], version: str, entries: Sequence[Any]) -> Iterator[FileEntry]:
        for entry in entries:
            if isinstance(entry, FileEntry) and (place := entry.place_in(version)) not in seen:
                seen.add(place)
                if self._known.entry(entry, version) is None:
                    yield entry

    def run(self, timeout: float, progress: bool | None) -> dict[str, int]:
        """Sends what is missing, and returns the versions that were, the oldest first, as `sizes` does."""
        sizes = self.sizes() if self._missing else {}
        what = f"copying {len(self._missing)} versions to {self._to.name}"
        with progress_bar(progress, sum(sizes.values()), what, "B", unit_scale=True) as bar:
            for version, manifest in self._missing.items():
                with self._to.lock(self._id, version, timeout):
                    self._send(manifest, bar)
        named = None if self._version is None else {None, *self._here}
        add_moves(self._to, self._id, self._moves, named)
        return {version: sizes.get(version, 0) for version in self._sent}

    def _send(self, manifest: Manifest, bar: Bar) -> Manifest | None:
        """Publishes a version, unless it is there by now, and returns it; None if it was removed here."""
        store, to, id, version = self._store, self._to, self._id, manifest.version
        for left in reversed(range(MOST_LOOKS)):
            published = to.find(id, version)
            try:
                if published is None or not published.is_copy_of(manifest):
                    published = self._publish(manifest, bar)
                    self._sent.append(version)
                self._here[version] = manifest
                self._known.add(manifest, published)
                return published
            except (CorruptError, FileNotFoundError, NotFoundError) as error:
                now = store.find(id, version)
                if now is None and version != self._version:
                    return None
                now = self._fitting(now or latest(store, manifest, "copied"))
                # A version there, whose files it shares, may have been removed.
                if now.build == manifest.build and not (left and isinstance(error, NotFoundError)):
                    raise
                manifest, self._known = now, _Arrived()
                for name, one in self._each(to, [*self._here]).items():
                    if one.is_copy_of(self._here[name]):
                        self._known.add(self._here[name], one)
        raise overwritten(store, manifest, "copied")

    def _publish(self, manifest: Manifest, bar: Bar) -> Manifest:
        to, id, version = self._to, self._id, manifest.version
        if not self._overwrite:
            to.refuse_existing(id, version)
        to.check_place(id, version)
        replaces = to.seen(id, version) if self._overwrite else None
        hosts: set[str] = set()
        sources: dict[str, FileEntry] = {}  # of what is sent, by its name there

        def place(entry: FileEntry) -> FileEntry | None:
            twin = self._known.entry(entry, version)
            if twin is None:
                sources[entry.as_own.name] = replace(entry.whole, of=entry.of)
                return None
            hosts.add(twin[1])
            return twin[0]

        if not self._missing:  # a version that is copied alone has no lists
            manifest = replace(manifest, parents=Listed(manifest.parents))
        new, lists = manifest.elsewhere(place, partial(to.read_list, id, version))
        held = checked_files(self._store, manifest)

        @contextmanager
        def opened(entry: FileEntry) -> Iterator[str]:
            if entry.num_listed:
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, entry.name)
                    with open(path, "wb") as file:
                        file.write(lists[entry.index["digest"]])
                    yield path
                return
            with held(sources[entry.name]) as path:
                yield path
            bar.update(entry.nbytes)

        return to.receive(new, opened, replaces, False, sorted(hosts))


class _Arrived:
    """Where files and lists of versions here lie there, and a version that names them there."""

    def __init__(self) -> None:
        self._there: dict[Place, FileEntry] = {}
        self._by: dict[Place, str] = {}  # the last version that names a file or a list
        self._inside: dict[Place, Place] = {}  # files that it names by a list: which

    def add(self, here: Manifest, there: Manifest) -> None:
        """Takes in a version that was copied."""
        there = there.shared()
        for ours, theirs in ((here.files, there.files), (here.parents, there.parents)):
            pairs = [*zip(ours.pieces, theirs.pieces, strict=False)]
            if not all(_are_alike(*pair) for pair in pairs) or len(ours) != len(theirs):
                pairs = [*zip(ours, theirs, strict=False)]
            for piece, copy in pairs:
                if not isinstance(piece, FileEntry):
                    continue
                place = piece.place_in(here.version)
                if piece.num_listed and self._there.get(place) != copy:
                    for file, twin in zip(ours.of_piece(piece), theirs.of_piece(copy), strict=False):
                        if isinstance(file, FileEntry) and isinstance(twin, FileEntry):
                            inner = file.place_in(here.version)
                            self._there[inner], self._inside[inner] = twin, place
                self._there[place], self._by[place] = copy, here.version
                self._inside.pop(place, None)

    def entry(self, entry: FileEntry, version: str) -> tuple[FileEntry, str] | None:
        """A file or list of a version as another one there names it, and which does; None if none does."""
        place = entry.place_in(version)
        twin = self._there.get(place)
        if twin is None or twin.of == version or not _are_alike(entry, twin):
            return None
        if not entry.num_listed:
            twin = replace(entry, of=twin.of, name=twin.name, crc=twin.crc)
        return twin, self._by[self._inside.get(place, place)]


def _are_alike(one: object, other: object) -> bool:
    """True for two parents, or for files or lists of the same rows, whatever their names are."""
    if not isinstance(one, FileEntry) or not isinstance(other, FileEntry):
        return type(one) is type(other)
    one, other = one.whole, other.whole
    if (one.num_listed, one.rows) != (other.num_listed, other.rows):
        return False
    # The checks are of the columns that a version shows.
    if (one.group, one.written) == (other.group, other.written) and one.checks != other.checks:
        return False
    return bool(one.num_listed) or (one.nbytes, one.index) == (other.nbytes, other.index)


def _chosen(store: Store, id: str, version: str | None) -> list[str]:
    """The versions to copy, the oldest first."""
    nodes, damaged = Sharing(store, id).outlines()
    if not nodes and not damaged:
        raise store.not_published(id, version)
    if version is not None and version not in nodes:
        store.manifest(id, version)  # its error says what is damaged, or published
    line = None if version is None else line_of(nodes[version], nodes)
    for name, error in damaged.items():
        if line is None or name in line:
            raise error
    return [name for name in in_time(nodes) if line is None or name in line]
