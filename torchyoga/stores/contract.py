"""Published versions under ids, wherever they are kept, and small notes beside them.

Note 10. Who creates a note first has decided.
Many processes agree on texts that are each created once, without a server.
"""

from __future__ import annotations

import difflib
import errno
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import CorruptError, ExistsError, NotFoundError, YogaError
from ..files.root import Entry, Root
from ..versions.file_entry import FileEntry, Listed, is_data_file
from ..versions.location import MANIFEST, Files, Staging, is_foreign, list_bytes
from ..versions.manifest import Manifest, Outline, is_like_manifest
from ..versions.names import encoded, natural

if TYPE_CHECKING:
    from .kinds import ObjectInfo
    from .objects import Objects

K = TypeVar("K", Manifest, Outline)
S = TypeVar("S")
T = TypeVar("T")
LocalPaths = Callable[[FileEntry], AbstractContextManager[str]]
Sweep = Callable[[Mapping[str, Mapping[str, int]], Callable[[str], Iterable[str]], bool], dict[str, int]]
MOST_NAMED = 10  # in a message
_TRIES = 20  # to write a note beside processes that clean up
_DELETIONS = 8  # at once
_HIDDEN = ".new-"  # begins the name of a note that is being written
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_AT_WORK = re.compile(r"here/[0-9a-f]{16}-([0-9]{1,5})\.json")


def sealed(manifest: Manifest, held: LocalPaths | None = None) -> bytes:
    """The text of a manifest to publish, after everything that readers will do with it has been tried.

    Args:
        manifest: the manifest of the version.
        held: gives a path for each of its files; None if they have been opened already.

    Raises:
        CorruptError: the text reads back as another manifest, or a file cannot be opened.
    """
    text = manifest.to_bytes()
    if Manifest.from_bytes(text) != manifest:
        raise CorruptError("the manifest would read back as another one; nothing was published")
    if held is not None:
        for entry in manifest.own_files:
            if not entry.num_listed:
                with opening(manifest, held)(entry):
                    pass
    return text


def opening(manifest: Manifest, held: LocalPaths) -> LocalPaths:
    """`held`, with a CorruptError for a file of the version that readers could not open."""

    from ..reading.reader import Reader  # which needs NumPy and torch; who lists versions does not

    @contextmanager
    def opened(entry: FileEntry) -> Iterator[str]:
        with held(entry) as path:
            if not entry.num_listed:
                Reader.of_file(path, manifest.group_of(entry), entry).open_all()
            yield path

    return opened


class Seen(NamedTuple):
    """A published version as a writer saw it; the writer may replace that one and no other.

    Attributes:
        build: the build its manifest names; None if the manifest is damaged.
        tag: distinguishes this manifest from any later one in the store; None if the store has no tags.
    """

    build: str | None
    tag: str | None = None


class Shown(NamedTuple):
    """A manifest, as a listing shows it.

    Attributes:
        is_published: it is there.
        stamp: another one if there was another manifest meanwhile; None if the listing does not show that.
        written: when it was written, in seconds by the store's clock; None if the listing does not show that.
    """

    is_published: bool
    stamp: object
    written: float | None = None


class Notes:
    """Notes in a directory: texts under names such as `7.json`, by the verbs of `Objects`.

    A finished file gets its name by a link, so a note is never seen half written, and of many that are
    written under one name the first one stays. Where a file system has no links, a note may be cut: its
    reader takes what is no JSON for no note.

    Args:
        root: the folder; made when something is first written.
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    def where(self, name: str) -> str:
        """The path of a note."""
        return str(self._root.path / name)

    def create(self, name: str, text: bytes) -> bool:
        """Writes a note, in one step where the file system has links; False if another one has the name.

        Pass a text that no other writer would write: this shows whether a race was lost.
        """
        return self._written(name, text, self._link)

    def write(self, name: str, text: bytes) -> None:
        """Writes a note, in place of any other of that name, in one step."""
        self._written(name, text, self._move)

    def _written(self, name: str, text: bytes, put: Callable[[str, str, bytes], bool]) -> bool:
        """Writes a text beside a note, and puts it in the note's place."""
        folder = name.rpartition("/")[0]
        for left in reversed(range(_TRIES)):
            new = f"{folder}/{_HIDDEN}{secrets.token_hex(8)}".lstrip("/")
            try:
                self._root.make(folder)
                self._root.fill(new, text)
                return put(new, name, text)
            except FileNotFoundError:  # `clean` took it for one that a killed writer has left
                if not left:
                    raise
            finally:
                with suppress(OSError):
                    self._root.unlink(new)
        raise AssertionError("the last try returns or raises")

    def _move(self, new: str, name: str, text: bytes) -> bool:
        self._root.move(new, name)
        return True

    def _link(self, new: str, name: str, text: bytes) -> bool:
        try:
            self._root.link(new, name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                self._root.fill(name, text)
            except FileExistsError:
                return False
        self._root.sync(name.rpartition("/")[0])
        return True

    def read(self, name: str, limit: int) -> bytes:
        """The text of a note.

        Raises:
            FileNotFoundError: there is none.
            CorruptError: it has more than `limit` bytes.
        """
        return self._root.read(name, limit)

    def find(self) -> dict[str, Entry]:
        """The notes below the folder, at any depth, by their names within it."""
        return {name: one for name, one in self._below("") if not one.name.startswith(_HIDDEN)}

    def _below(self, folder: str) -> Iterable[tuple[str, Entry]]:
        for entry in self._root.scan(folder):
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_folder:
                yield from self._below(name)
            elif entry.is_file:
                yield name, entry

    def unfinished(self, before: float) -> dict[str, int]:
        """The names and bytes of files that were being written before a time, and may have been left by
        killed writers."""
        return {
            name: one.nbytes
            for name, one in self._below("")
            if one.name.startswith(_HIDDEN) and one.written < before
        }

    def now(self) -> float | None:
        """The time of the file system's clock, which need not be this machine's."""
        name = f"{_HIDDEN}{secrets.token_hex(8)}"
        self._root.make()
        self._root.create(name).close()
        try:
            found = self._root.find(name)
            return time.time() if found is None else found.written
        finally:
            self._root.unlink(name)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes notes, and folders that are then empty; a missing note is not an error."""
        names = list(names)
        with ThreadPoolExecutor(_DELETIONS, "torchyoga notes") as pool:
            deque(pool.map(self._root.unlink, names), maxlen=0)
        for folder in {"", *(name.rpartition("/")[0] for name in names)}:
            with suppress(OSError):
                self._root.at(folder).remove_empty()


class Store(ABC):
    """The published versions of a directory, or of a store behind a URL.

    Attributes:
        most_locks: that a sweep holds for one look at all versions.
        file_bytes: of the rows in a file of a new version, where the caller does not say it.
    """

    most_locks = 64
    file_bytes = 2**30

    @property
    @abstractmethod
    def name(self) -> str:
        """The directory or URL, for messages."""

    @abstractmethod
    def where(self, id: str, version: str) -> str:
        """Where a version lies, published or not, for messages."""

    @abstractmethod
    def files(self, manifest: Manifest) -> Files:
        """The files of a version."""

    @abstractmethod
    def fresh(self, manifest: Manifest) -> AbstractContextManager[Files]:
        """The files of a version as they are in the store, whatever copies this machine has."""

    @abstractmethod
    def notes(self, folder: str) -> Notes | Objects:
        """The notes in a folder beside the versions, whose name begins with a dot, as in `.tags/photos`."""

    @abstractmethod
    def published(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted, 1.9 before 1.10."""

    @abstractmethod
    def versions(self, id: str) -> list[str]:
        """The published versions of an id, sorted, 1.9 before 1.10."""

    @abstractmethod
    def lock(
        self, id: str, version: str, timeout: float = -1, deletes: bool = False
    ) -> AbstractContextManager[None]:
        """Holds the writer's lock of a version; waits while another holds it.

        Args:
            id: which dataset.
            version: which version of it.
            timeout: seconds to wait.
            deletes: this process deletes files there.

        Raises:
            BusyError: it was still held after `timeout` seconds; names the holder. A negative timeout waits
                for ever.
        """

    @abstractmethod
    def check_place(self, id: str, version: str) -> None:
        """Raises YogaError if the place of a version holds something that torchyoga has not written."""

    @abstractmethod
    def seen(self, id: str, version: str) -> Seen | None:
        """The version published now, which may be replaced; None if there is none."""

    @abstractmethod
    def stage(self, id: str, version: str, replaces: Seen | None = None) -> Staging:
        """A place to build a version in, with the files that an interrupted build has left. Hold the lock.

        Which version may be replaced is decided before anything is built: None if none may.
        """

    @abstractmethod
    def publish(self, staging: Staging, manifest: Manifest, progress: bool | None = None) -> Manifest:
        """Makes the staged files the version that `manifest` describes, and returns it. Hold the lock.

        Raises:
            ExistsError: another builder has published it since it was staged.
        """

    @abstractmethod
    def scratch(self, attempt: str) -> Staging:
        """An empty place to build a part in, named after a token; no lock is needed."""

    @abstractmethod
    def place(
        self, staging: Staging, id: str, version: str, files: Sequence[FileEntry]
    ) -> Sequence[FileEntry]:
        """Puts files of a part where the version will be, which stays as it is; returns their entries."""

    @abstractmethod
    def commit(self, manifest: Manifest, replaces: Seen | None) -> None:
        """Publishes a version whose files are in their places. Hold the lock.

        Raises:
            ExistsError: another builder has published it.
            LostError: others took the work over, and have deleted files.
        """

    @abstractmethod
    def receive(
        self, manifest: Manifest, held: LocalPaths, replaces: Seen | None = None, progress: bool | None = None
    ) -> Manifest:
        """Publishes a version with copies of its own files. Hold the lock.

        Args:
            manifest: of the version.
            held: gives a path for each of its own files.
            replaces: the version that may be replaced.
            progress: show a progress bar.
        """

    @abstractmethod
    def unpublish(self, id: str, version: str, known: Outline | None) -> list[str]:
        """Takes the manifest of a version away; returns the names of our files in its folder. Hold
        its lock.

        Args:
            id: which dataset.
            version: which version of it.
            known: what its manifest says; None if that is damaged.

        Raises:
            NotFoundError: it is not published.
            YogaError: something lies there that torchyoga has not written.
        """

    @abstractmethod
    def delete(self, id: str, version: str, names: Sequence[str]) -> list[str]:
        """Deletes files in the folder of a version, and returns their names. Hold its lock."""

    @abstractmethod
    def now(self) -> float:
        """The time of the store's clock, in seconds since 1970; RemoteError if it has none."""

    @abstractmethod
    def clean(
        self,
        grace: float,
        id: str | None = None,
        dry_run: bool = False,
        sweep: Callable[[str], Sweep] | None = None,
    ) -> dict[str, int]:
        """Removes files that no version needs and no process has touched for `grace` seconds; returns their
        names, sorted, and the bytes of each.

        Args:
            grace: in seconds.
            id: only files of this dataset; None for all.
            dry_run: remove nothing.
            sweep: gives `Sharing.clean` of an id, if some manifests have been read already.
        """

    def clean_plans(
        self, notes: Mapping[str, Entry | ObjectInfo], before: float, id: str | None, dry_run: bool
    ) -> tuple[dict[str, int], set[str]]:
        """Removes the notes of builds by many at which nobody is, and nobody has been since a time.

        Args:
            notes: all notes below `.builds`, by name.
            before: in seconds, by the store's clock.
            id: only those of this dataset; None for all.
            dry_run: remove nothing.

        Returns:
            The names of what was removed; and the folders of the versions of the other builds, whose files no
            manifest names yet.
        """
        builds: dict[str, dict[str, float | None]] = {}
        for name, one in notes.items():
            of, version, note = (*name.split("/", 2), "", "")[:3]
            if note:
                builds.setdefault(f"{of}/{version}", {})[note] = one.written
        removed: dict[str, int] = {}
        now = self.now() if builds else before
        for folder, written_at in builds.items():
            is_old = all(written is not None and written < before for written in written_at.values())
            is_meant = id is None or folder.startswith(f"{encoded('id', id)}/")
            if is_old and is_meant and not are_at_work(written_at, now):
                removed[f".builds/{folder}"] = 0
                if not dry_run:
                    place = self.notes(f".builds/{folder}")
                    place.delete(["plan.json"])  # first, so that nobody counts on the others
                    place.delete(written_at)
        return removed, {folder for folder in builds if f".builds/{folder}" not in removed}

    @abstractmethod
    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """The names and bytes of the files next to the manifest of a version."""

    @abstractmethod
    def read_manifest(self, id: str, version: str) -> bytes | None:
        """The text of a manifest, None if there is none; CorruptError if it is too large."""

    def places(self, id: str) -> dict[str, Shown]:
        """The places of an id, by version, as one listing shows them; some may have no manifest."""
        return {version: Shown(True, None) for version in self.versions(id)}

    def ages(self, id: str) -> dict[str, float]:
        """The seconds since the manifest of each version of an id was written, by the store's clock.

        Raises:
            RemoteError: the store has no clock.
        """
        now, places = self.now(), self.places(id)
        return {v: now - place.written for v, place in places.items() if place.written is not None}

    def missing(self, manifest: Manifest) -> set[str]:
        """The names of files of a version that are not in their place, or have another size."""
        present = self.sizes(manifest) if manifest.own_files else {}
        return {file.name for file in manifest.own_files if present.get(file.name) != file.nbytes}

    def each(self, items: Iterable[S], call: Callable[[S], T]) -> Iterator[T]:
        """Results of `call` for each item, in order; several at once behind a URL, where a call waits."""
        return map(call, items)

    def find(self, id: str, version: str) -> Manifest | None:
        """The manifest, or None if the version is not published; CorruptError as `manifest`."""
        text = self.read_manifest(id, version)
        return None if text is None else self.parsed(id, version, text, Manifest)

    def readable(self, id: str, version: str) -> Outline | None:
        """The outline of a manifest, or None if it is damaged, or the version not published."""
        try:
            text = self.read_manifest(id, version)
            return None if text is None else self.parsed(id, version, text, Outline)
        except CorruptError:
            return None

    def parsed(self, id: str, version: str, text: bytes, kind: type[K]) -> K:
        """The manifest, or its outline, that a text describes, which was read in the place of a version;
        CorruptError if it is damaged, or of another version."""
        where = self.where(id, version)
        try:
            manifest = kind.from_bytes(text)
        except CorruptError as error:
            advice = "remove the version and build it again"
            if not is_like_manifest(text):
                advice = "if it is not torchyoga's, move it away; else remove the version and build it again"
            raise CorruptError(f"{where}: {error}; {advice}") from error
        if (manifest.id, manifest.version) != (id, version):
            raise CorruptError(
                f"{where} belongs to {manifest.id!r} {manifest.version!r}; it was moved here by hand"
            )
        return manifest.located(partial(self.read_list, id, version))

    def read_list(self, id: str, version: str, entry: FileEntry) -> bytes:
        """The bytes of a list that a version names; FileNotFoundError or NotFoundError if it is gone."""
        return list_bytes(self.files(Manifest(id, version, "", "", None, "")), entry)

    def manifest(self, id: str, version: str) -> Manifest:
        """The manifest of a published version.

        Raises:
            NotFoundError: it is not published; says which versions are.
            CorruptError: its manifest is damaged.
        """
        text = self.read_manifest(id, version)
        if text is None:
            raise self.not_published(id, version)
        return self.parsed(id, version, text, Manifest)

    def not_published(self, id: str, version: str | None = None) -> NotFoundError:
        """The error of a version, or of any version of an id, that is asked for: it says which there are."""
        if similar := nearest(version or "", self.versions(id)):
            what = f"its versions are {some(similar)}"
        elif ids := self.ids_like(id):
            what = f"the storage holds {some(ids)}"
        else:
            what = "the storage holds nothing"
        named = "versions" if version is None else f"version {version!r}"
        return NotFoundError(
            f"{id!r} has no {named} in {self.name}: {what}. Submit it, or fetch one of these"
        )

    def ids_like(self, id: str) -> list[str]:
        """Ids, the most similar first; only some if there are many."""
        return nearest(id, {found for found, _ in self.published()})

    def refuse_existing(self, id: str, version: str, may_be_replaced: bool = True) -> None:
        """Raises ExistsError if a version is published."""
        if self.find(id, version) is not None:
            what = "fetch it, choose another version, or pass overwrite=True"
            if not may_be_replaced:
                what = "fetch it, or choose another version"
            raise ExistsError(f"{id!r} {version!r} is published already in {self.name}; {what}")

    def refuse_foreign(
        self,
        id: str,
        version: str,
        names: Iterable[str],
        others: Iterable[str] = (),
        has_manifest: bool = False,
    ) -> None:
        """Raises YogaError if a name in the folder of a version is not ours; names in `others` are not ours,
        either; `has_manifest` if its manifest is known to be.

        Such files would damage a version published there later, and be lost when it is removed.
        """
        names = list(names)
        found = sorted({*others, *filter(is_foreign, names)})
        try:
            is_ours = has_manifest or is_like_manifest(self.read_manifest(id, version) or b"")
            # Next to our data files the manifest is ours, however damaged.
            is_ours = is_ours or any(map(is_data_file, names))
        except CorruptError:  # we would not have written that
            is_ours = False
        if not is_ours:
            found.append(MANIFEST)
        if found:
            more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            raise YogaError(
                f"{self.where(id, version)} holds what torchyoga has not written: "
                f"{', '.join(map(repr, found[:MOST_NAMED]))}{more}. Nothing was changed; move it elsewhere, "
                "or choose another version"
            )

    def check_files(
        self, manifest: Manifest, unnamed: Callable[[Iterable[str]], set[str]] = set
    ) -> list[str]:
        """Differences between a manifest and the files next to it, both ways; empty if there are none.

        Args:
            manifest: of the version.
            unnamed: gives those of some files that no version of the id names.
        """
        present = self.sizes(manifest)
        named = {file.name: file.nbytes for file in manifest.own_files}
        # An interrupted publication, or readers on Windows, may leave files of another build behind. They
        # are harmless, and the next publication deletes them.
        left = {name for name in present.keys() - named.keys() if not manifest.is_of_another_build(name)}
        # Others may share what a version had before it was removed and copied back.
        left -= {name for name in left if is_data_file(name)} - unnamed(filter(is_data_file, left))
        problems = [f"{name} is not named in the manifest" for name in sorted(left)]
        for name, nbytes in named.items():
            if name not in present:
                problems.append(f"{name} is missing")
            elif present[name] != nbytes:
                problems.append(f"{name} has {present[name]} bytes, the manifest says {nbytes}")
        shared: dict[str, list[FileEntry]] = {}
        for file in (*manifest.lists, *manifest.files):
            if file.of is not None:
                shared.setdefault(file.of, []).append(file.whole)
        for version, files in sorted(shared.items()):
            present = self.sizes(replace(manifest, version=version, files=Listed(files), parents=Listed()))
            for file in files:
                if present.get(file.name) != file.nbytes:
                    found = f"has {present[file.name]} bytes" if file.name in present else "is missing"
                    problems.append(f"{file.name} of {version!r} {found}, the manifest says {file.nbytes}")
        return problems

    def refuse_unshared(self, manifest: Manifest) -> None:
        """Raises NotFoundError unless the direct parent of a version still names all files that it shares.

        Hold the parent's lock: as long as it is published nobody deletes these files.
        """
        files = manifest.files.pieces
        is_shared = any(piece.num_listed for piece in files)  # what lies in lists is of others
        if not is_shared and all(piece.of is None for piece in (*manifest.lists, *files)):
            return
        parent = manifest.parents[-1].version
        found = self.find(manifest.id, parent)
        if found is None or not manifest.shares_with(found):
            raise NotFoundError(
                f"{manifest.id!r} {parent!r} in {self.name}, whose files {manifest.version!r} shares, was "
                "removed or replaced meanwhile; nothing was published, try again"
            )


def at_work(seconds: float) -> str:
    """The name of a note that a builder by many writes again within some seconds, as long as it lives."""
    return f"here/{secrets.token_hex(8)}-{int(seconds)}.json"


def are_at_work(names: Mapping[str, float | None], now: float) -> bool:
    """True if one of the notes of a build was written so lately that its builder counts as alive."""
    ages = ((_AT_WORK.fullmatch(name), written) for name, written in names.items() if written is not None)
    return any(abs(now - written) <= int(match[1]) + 1 for match, written in ages if match)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """A few names, sorted; if there are many, twice as many as a message holds, the most similar first."""
    found = sorted(names, key=natural)
    if len(found) <= MOST_NAMED:
        return found
    close = difflib.get_close_matches(name, found, MOST_NAMED)
    return [*close, *(other for other in found if other not in close)][: 2 * MOST_NAMED]


def some(names: Sequence[str]) -> str:
    """Names for a message, at most as many as it holds."""
    more = len(names) - MOST_NAMED
    return f"{list(names)}" if more <= 0 else f"{list(names[:MOST_NAMED])} and more"
