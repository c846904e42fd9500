"""The manifests of an id -> which files of its versions none of them names, so that they may be deleted.

Note 20. Nobody comes to share a file that no version names.
A version that shares files is published under the lock of the one that it is made from, which names all of
them; not under the locks of the versions in whose folders they lie, of which there may be a thousand. So a
file that no version names at some moment is never named again: whoever has seen that may be as late with
deleting it as a stopped process is. To see it takes two looks, because others may publish C, made from B, and
remove B between a listing and the reading of B, or while the listing is made. Two looks one after the other
that show the same manifests show all that there were in between; what is read on the way counts even if it is
gone, unless this process has removed it. So a sweep reads each manifest once, however many versions it
removes: a look lists, and reads only what is new. No clock decides, and nobody waits.

In a store, where a lock can be lost, the version before is looked at again after publishing: if it is still
there, whoever removes it will see the new manifest; if not, the new manifest is taken back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from itertools import chain

from ..errors import CorruptError, NotFoundError, RemoteError, YogaError
from ..process.messages import log, progress_bar
from ..versions.file_entry import FileEntry
from ..versions.manifest import DataFile, Outline
from ..versions.names import folder_of
from .contract import Shown, Store

_MANY, _SMALL = 128, 2**16  # versions; bytes
_LOOKS = 8  # if versions come and go all the time, `clean` is to delete the files another time

Read = Outline | CorruptError | None


class Sharing:
    """Which files the versions of an id name, as far as their manifests have been read.

    It reads each manifest once, so whoever looks at several versions keeps one of these.

    Args:
        store: the versions.
        id: which dataset.
    """

    def __init__(self, store: Store, id: str) -> None:
        self.store, self.id = store, id
        self._known: dict[tuple[str, object], Read] = {}
        self._named: Counter[str] = Counter()
        self._lists: Counter[tuple[str, str]] = Counter()  # that manifests name, by folder and name
        self._inside: dict[tuple[str, str], tuple[DataFile, ...] | None] = {}  # of them; None if unreadable
        self._last: dict[str, object] | None = None

    # -- looking

    def outlines(self) -> tuple[dict[str, Outline], dict[str, CorruptError]]:
        """The outlines of the versions that a look shows, and the errors of damaged manifests."""
        self._look()
        reads = {place[0]: self._known.get(place) for place in (self._last or {}).items()}
        whole = {version: read for version, read in reads.items() if isinstance(read, Outline)}
        return whole, {version: read for version, read in reads.items() if isinstance(read, CorruptError)}

    def files_of(self, one: Outline, seen: set[tuple[str, str]]) -> set[DataFile]:
        """The files of a version that a look has shown, and those in its lists, unless these were seen."""
        new = {entry.place_in(one.version) for entry in one.lists} - seen
        seen |= new
        return {*one.files}.union(*(self._inside.get(place) or () for place in new))

    def unnamed(self, names: Iterable[str]) -> set[str]:
        """The files among some that no manifest names. Hold the locks of the versions in whose folders they
        lie, and have listed them since.

        If a manifest is damaged, or versions come and go all the time, all count as named.
        """
        left = self.perhaps_unnamed(names)
        for _ in range(_LOOKS):
            if not left:
                break
            is_same = self._look()
            left = self.perhaps_unnamed(left)
            if is_same:
                return left
        return set()

    def perhaps_unnamed(self, names: Iterable[str]) -> set[str]:
        """The files among some that no look so far, or else a first one, has shown in a manifest. No lock is
        needed."""
        left = set(names)
        if left and self._last is None:
            self._look()
        is_torn = any(isinstance(read, CorruptError) for read in self._known.values())
        if is_torn or None in self._inside.values():
            return set()
        return {name for name in left if self._named[name] <= 0}

    def _look(self) -> bool:
        """Lists the manifests, and reads those that are new; True if the look before has shown the same."""
        found = self._read_new(self.store.places(self.id))
        before, self._last = self._last, found
        return found == before

    def _read_new(self, places: Mapping[str, Shown]) -> dict[str, object]:
        """Reads the manifests in those places that are new; returns the stamps of all places."""
        new = [
            (version, place)
            for version, place in places.items()
            if place.is_published and (place.stamp is None or (version, place.stamp) not in self._known)
        ]
        found = {version: place.stamp for version, place in places.items()}
        reads = []
        for (version, _), (stamp, read) in zip(new, self.store.each(new, self._read), strict=True):
            found[version] = stamp
            if (version, stamp) not in self._known:
                self._known[version, stamp] = read
                reads.append(read)
        self._read_lists([read for read in reads if isinstance(read, Outline)])
        for read in reads:
            self._count(read, 1)
        return found

    def _read_lists(self, outlines: Iterable[Outline]) -> None:
        """Reads those lists of files that none before has named."""
        lists = {entry.place_in(one.version): (one, entry) for one in outlines for entry in one.lists}
        new = [pair for place, pair in lists.items() if place not in self._inside]

        def inside(pair: tuple[Outline, FileEntry]) -> tuple[DataFile, ...] | None:
            try:
                return pair[0].inside(partial(self.store.read_list, self.id, pair[0].version), pair[1])
            except (CorruptError, NotFoundError) as error:
                log.warning("%s: of %r, %s", self.store.name, self.id, error)  # which names the list
                return None

        for pair, files in zip(new, self.store.each(new, inside), strict=True):
            self._inside[pair[1].place_in(pair[0].version)] = files

    def _count(self, read: Read, by: int) -> list[DataFile]:
        """Counts a manifest in or out; returns the files that none names any more."""
        if not isinstance(read, Outline):
            return []
        files = [*read.files]
        for place in (entry.place_in(read.version) for entry in read.lists):
            if self._lists[place] == (0 if by > 0 else 1):  # the first that names it, or the last
                files += self._inside.get(place) or ()
            self._lists[place] += by
        for file in files:
            self._named[file.name] += by
        return [file for file in files if self._named[file.name] <= 0]

    def _read(self, new: tuple[str, Shown]) -> tuple[object, Read]:
        """The stamp of a manifest and what it says, as long as it is listed."""
        version, place = new
        try:
            text = self.store.read_manifest(self.id, version)
            if text is None:  # it was removed just now
                return object(), None
            stamp = place.stamp or blake2b(text).digest()
            return stamp, self.store.parsed(self.id, version, text, Outline)
        except CorruptError as error:
            return place.stamp or str(error), error

    # -- deleting

    def remove_one(self, version: str, timeout: float, refuse: Callable[[], None] | None) -> None:
        """Removes a version, also a damaged one, and the files that no other one names.

        Args:
            version: which one.
            timeout: seconds to wait for its lock.
            refuse: raises what keeps it, while the lock is held.

        Raises:
            NotFoundError: it is not published.
            BusyError, LostError, YogaError: as `Store.lock`, `unpublish` and `delete`.
        """
        store, id = self.store, self.id
        with store.lock(id, version, timeout, deletes=True):
            if refuse is not None:
                refuse()
            known, places = store.readable(id, version), store.places(id)
            names = store.unpublish(id, version, known)
            if known is not None and self._is_small(known, places):
                store.delete(id, version, [])
                return
            left = self.unnamed(names)
            self._read_lists([] if known is None else [known])  # before they are deleted
            store.delete(id, version, [name for name in names if name in left])
        self._count(known, 1)
        lost = self._count(known, -1)  # that no other one names
        self._delete_shared([file for file in lost if file.version != version], set())

    def _is_small(self, known: Outline, places: Mapping[str, Shown]) -> bool:
        """True if a version of many has too little in its own folder to read all manifests for it."""
        own = sum(file.nbytes for file in known.files if file.version == known.version)
        return own < _SMALL and sum(place.is_published for place in places.values()) > _MANY

    def remove(
        self, versions: Mapping[str, Outline], needed: Callable[[], Collection[str] | None]
    ) -> list[str]:
        """Removes versions, and the files that no other one names; returns the names of those removed.

        Args:
            versions: as `outlines` has shown them; those that others hold, or have replaced since, stay.
            needed: those that have to stay, asked while the locks of some are held; None for all.
        """
        removed: list[str] = []
        lost: list[DataFile] = []
        deleted: set[str] = set()
        with progress_bar(None, len(versions), f"removing versions of {self.id!r}", "version") as bar:
            for some in self._batches(versions):
                with self._held(some) as held:
                    self._look()
                    stay, now = needed(), self._last or {}
                    same = [v for v in held if versions[v] is self._known.get((v, now.get(v)))]
                    spare = [] if stay is None else same
                    files = self._unpublished([versions[v] for v in spare if v not in (stay or ())], lost)
                    deleted.update(chain.from_iterable(self._delete(files).values()))
                    removed += files
                bar.update(len(some))
        self._delete_shared(lost, deleted)
        return removed

    def _unpublished(self, versions: Sequence[Outline], lost: list[DataFile]) -> dict[str, list[str]]:
        """The names of the files that are left when the manifests of versions are gone; some may stay.

        Puts files that none names any more into `lost`, wherever they lie.
        """

        def unpublish(known: Outline) -> list[str] | None:
            with self._going_on(known.version):
                return self.store.unpublish(self.id, known.version, known)
            return None

        files = {}
        for known, names in zip(versions, self.store.each(versions, unpublish), strict=True):
            if names is not None:
                files[known.version] = names
                del self._known[known.version, (self._last or {})[known.version]]
                lost += self._count(known, -1)
        return files

    def _delete_shared(self, lost: Iterable[DataFile], deleted: Collection[str]) -> None:
        """Deletes files that were lost with the versions removed, unless they are deleted already."""
        shared: dict[str, set[str]] = {}
        for file in lost:
            if file.name not in deleted:
                shared.setdefault(file.version, set()).add(file.name)
        # What others hold, `clean` takes.
        spare = [version for version, names in shared.items() if self.perhaps_unnamed(names)]
        deque(self._deleted(spare, shared.__getitem__), maxlen=0)

    def clean(
        self, old: Mapping[str, Mapping[str, int]], condemned: Callable[[str], Iterable[str]], dry_run: bool
    ) -> dict[str, int]:
        """Deletes files in the folders of versions that no manifest names; returns their names below the
        root, and the bytes of each.

        Args:
            old: those that may go, and their bytes, by version.
            condemned: lists them again for a version, while its lock is held.
            dry_run: delete nothing.
        """
        left = self.perhaps_unnamed(chain.from_iterable(old.values()))
        found: Iterable[tuple[str, Iterable[str]]] = ((v, left & names.keys()) for v, names in old.items())
        if not dry_run:
            found = self._deleted([version for version, names in found if names], condemned)
        return {
            f"{folder_of(self.id, version)}/{name}": old[version].get(name, 0)
            for version, names in found
            for name in names
        }

    def _deleted(
        self, versions: Iterable[str], condemned: Callable[[str], Iterable[str]]
    ) -> Iterator[tuple[str, list[str]]]:
        """Deletes what no manifest names of versions that nobody else holds."""

        def listed(version: str) -> list[str]:
            with self._going_on(version):
                return [*condemned(version)]
            return []

        for some in self._batches(versions):
            with self._held(some) as held:
                found = dict(zip(held, self.store.each(held, listed), strict=True))
                yield from self._delete(found).items()

    def _delete(self, files: dict[str, list[str]]) -> dict[str, list[str]]:
        """Deletes files in the folders of versions, whose locks are held, that no manifest names."""
        left = self.unnamed(chain.from_iterable(files.values()))

        def delete(version: str) -> list[str]:
            with self._going_on(version):
                return self.store.delete(self.id, version, [name for name in files[version] if name in left])
            return []

        return dict(zip(files, self.store.each(files, delete), strict=True))

    def _batches(self, versions: Iterable[str]) -> Iterator[list[str]]:
        every, size = list(versions), self.store.most_locks
        return (every[start : start + size] for start in range(0, len(every), size))

    @contextmanager
    def _held(self, versions: Sequence[str]) -> Iterator[list[str]]:
        """Holds the locks of those versions that nobody else holds."""
        locks = {version: ExitStack() for version in versions}

        def hold(version: str) -> bool:
            with self._going_on(version):
                locks[version].enter_context(self.store.lock(self.id, version, 0, deletes=True))
                return True
            return False

        with ExitStack() as every:
            for lock in locks.values():
                every.enter_context(lock)
            yield [v for v, is_held in zip(versions, self.store.each(versions, hold), strict=True) if is_held]
            deque(self.store.each(locks.values(), ExitStack.close), maxlen=0)

    @contextmanager
    def _going_on(self, version: str) -> Iterator[None]:
        """A version that others hold, or take over, is left to the next sweep."""
        try:
            yield
        except RemoteError:
            raise
        except (YogaError, PermissionError) as error:
            log.info("%s: %r %r is left: %s", self.store.name, self.id, version, error)
