"""Paths, URLs, wildcards and folders -> the files that they name, in order, and an index of each.

Files of this machine are mapped where they lie; those of a store come through the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from glob import glob, has_magic
from itertools import islice

from ...errors import CorruptError, NotFoundError, RemoteError
from ...files.root import open_regular
from ...reading.in_place_ref import LocalShards, ShardFiles
from ...stores.address import directory_of, is_url
from ...stores.cache import Cache, FileIndex, IndexOf, cache_of, kept_index
from ...stores.downloads import ShardDownloads, StoredShard
from ...stores.kinds import ObjectInfo
from ...stores.objects import Objects
from ...versions.names import natural

_AT_ONCE = 8  # files that are downloaded or read for their indices
_MOST_DOWNLOADS = 20  # of a file that other processes keep deleting


@dataclass(frozen=True)
class NamedFiles:
    """The files.

    Attributes:
        files: by number.
        states: of each, as it was found; of no kind of index yet.
        cache: where indices are kept, and files of a store.
    """

    files: ShardFiles
    states: tuple[IndexOf, ...]
    cache: Cache

    @staticmethod
    def of(
        named: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        ending: str,
        *,
        storage_options: Mapping[str, object] | None,
        cache_dir: str | os.PathLike[str] | None,
        cache_bytes: int | None,
    ) -> NamedFiles:
        """The files that are named: in their order, and those of a wildcard or folder sorted.

        Args:
            named: a path or URL, which may have wildcards (`*`, `?`, `[...]`) in its last part, or a folder;
                or a list of such.
            ending: a pattern of the names of files that are taken of a folder, such as "*.jsonl".
            storage_options: for fsspec's filesystem.
            cache_dir: where indices and files of a store are kept.
            cache_bytes: how many bytes of them are kept.

        Raises:
            NotFoundError: there is no such file.
            ValueError: there are none, or some of this machine and some of a store, or of several stores.
        """
        given = [named] if isinstance(named, (str, os.PathLike)) else list(named)
        texts = [os.fspath(one) for one in given]
        if not texts:
            raise ValueError("no files were named; pass a path, a URL, or a list of such")
        if not any(map(is_url, texts)):
            return NamedFiles.at(
                [path for text in texts for path in _local(text, ending)], cache_dir, cache_bytes
            )
        if not all(map(is_url, texts)):
            raise ValueError(
                f"{texts!r:.200} are of this machine and of a store; make a DataRef of each, concat them"
            )
        cache, base = cache_of(cache_dir, cache_bytes), _common(texts)
        store = _Store(Objects(base, storage_options), len(texts) > _AT_ONCE)
        objects = [one for text in texts for one in store.named(text[len(base) + 1 :], ending)]
        shards = [StoredShard(name, nbytes, nbytes, tag=state.tag) for name, nbytes, state in objects]
        return NamedFiles(
            ShardDownloads(store.remote, shards, cache), tuple(state for *_, state in objects), cache
        )

    @staticmethod
    def at(
        paths: Sequence[str], cache_dir: str | os.PathLike[str] | None, cache_bytes: int | None
    ) -> NamedFiles:
        """The files at these paths of this machine."""
        states = tuple(IndexOf.file(path, "") for path in paths)
        local = LocalShards(_title(paths), tuple(paths), tuple(state.nbytes for state in states))
        return NamedFiles(local.as_they_are(), states, cache_of(cache_dir, cache_bytes))

    @property
    def name(self) -> str:
        """For messages."""
        return _title([state.where for state in self.states])

    def head(self, number: int, most: int) -> bytes:
        """The first bytes of a file; of one of a store no others are downloaded."""
        count = min(most, self.states[number].nbytes)
        if isinstance(self.files, ShardDownloads):
            return self.files.head(number, count) if count else b""
        with open(open_regular(self.states[number].where), "rb") as file:
            return file.read(count)

    def indices(self, kind: str, make: Callable[[str], FileIndex]) -> Iterator[FileIndex]:
        """The index of each file, as kept, or as made now.

        Args:
            kind: of the index, and its version.
            make: makes one of the file at a path.
        """
        wanted = [IndexOf(state.where, state.nbytes, state.tag, kind) for state in self.states]
        if not isinstance(self.files, ShardDownloads):
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                yield from pool.map(lambda of: kept_index(of, lambda: make(of.where), self.cache), wanted)
            return
        missing = iter([number for number, of in enumerate(wanted) if not self.cache.has(of.key)])
        share, largest = self.files.ahead_bytes, max(self.files.nbytes, default=0)
        self.files.begin(
            islice(missing, _AT_ONCE if share is None else min(_AT_ONCE, share // (1 + largest)))
        )
        for number, of in enumerate(wanted):
            was_kept = self.cache.has(of.key)
            yield kept_index(of, partial(self._made, self.files, number, make), self.cache)
            if not was_kept:
                self.files.begin(islice(missing, 1))

    @staticmethod
    def _made(files: ShardDownloads, number: int, make: Callable[[str], FileIndex]) -> FileIndex:
        """The index of a file of a store, once that is downloaded."""
        for _ in range(_MOST_DOWNLOADS):
            path = files.path(number)
            try:
                return make(path)
            except FileNotFoundError:
                continue
            except CorruptError as error:
                files.forget(number)  # the copy may be what is damaged
                raise CorruptError(str(error).replace(path, files.where(number))) from error
        raise RemoteError(
            f"{files.where(number)} was deleted {_MOST_DOWNLOADS} times before it was read; set a "
            "larger cache_bytes"
        )


def _title(places: Sequence[str]) -> str:
    return places[0] if len(places) == 1 else f"{len(places)} files, {places[0]} the first"


def _local(text: str, ending: str) -> list[str]:
    path = str(directory_of(text))
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            paths = [e.path for e in entries if e.is_file() and fnmatchcase(e.name, ending)]
        if not paths:
            raise NotFoundError(f"there are no files {ending} in {path}; pass their paths")
    else:
        paths = [one for one in glob(path) if os.path.isfile(one)] if has_magic(path) else []
        if not paths:
            raise NotFoundError(f"there is no file {path}; see that the path is right")
    return sorted(paths, key=natural)


def _common(urls: Sequence[str]) -> str:
    """The URL of the folder in which all of these lie."""
    places = [url.partition("://")[2].rstrip("/").split("/") for url in urls]
    schemes = {url.partition("://")[0] for url in urls}
    folder = list(places[0][:-1] or places[0])
    while any(place[: len(folder)] != folder for place in places):
        folder.pop()
    if len(schemes) > 1 or not folder:
        raise ValueError(
            f"{list(urls)!r:.200} are of several stores; make a DataRef of each, and concat them"
        )
    return f"{schemes.pop()}://{'/'.join(folder)}"


class _Store:
    """Names below a URL. Where there are many, folders are listed, instead of asking for each."""

    def __init__(self, remote: Objects, are_many: bool) -> None:
        self.remote, self._are_many = remote, are_many
        self._listings: dict[str, dict[str, ObjectInfo]] = {}

    def named(self, name: str, ending: str) -> list[tuple[str, int, IndexOf]]:
        """The files that a name stands for: their names, sizes and states."""
        folder, _, last = name.rstrip("/").rpartition("/")
        if has_magic(last):
            names = self._matching(folder, last)
        else:
            name = name.rstrip("/")
            about = self._listed(folder).get(last) if self._are_many and last else None
            # Servers have pages, and stores empty objects, under the names of folders: looked at first.
            names = {} if "." in last or about else self._matching(name, ending)
            if not names and last:
                about = about or self.remote.find_one(name)
                names = {} if about is None else {name: about}
                if about is not None and about.nbytes == 0:
                    names = self._matching(name, ending) or names
                elif about is None and "." in last:
                    names = self._matching(name, ending)
        if not names:
            raise NotFoundError(f"there is no {self.remote.where(name)}, nor files {ending} in it")
        return [self._state(one, names[one]) for one in sorted(names, key=natural)]

    def _listed(self, folder: str) -> dict[str, ObjectInfo]:
        if folder not in self._listings:
            self._listings[folder] = {n: f for n, f in self.remote.find(folder).items() if "/" not in n}
        return self._listings[folder]

    def _matching(self, folder: str, pattern: str) -> dict[str, ObjectInfo]:
        return {
            f"{folder}/{name}".lstrip("/"): about
            for name, about in self._listed(folder).items()
            if fnmatchcase(name, pattern)
        }

    def _state(self, name: str, about: ObjectInfo) -> tuple[str, int, IndexOf]:
        where = self.remote.where(name)
        if about.nbytes is None:  # as in the pages of web servers
            about = self.remote.find_one(name) or about
        if about.nbytes is None:
            raise RemoteError(f"the server does not say how many bytes {where} has; copy it to this machine")
        return name, about.nbytes, IndexOf.remote(where, about, about.nbytes, "")
