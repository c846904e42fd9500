"""Files of another library -> paths on this machine: files that a user names, and those that an index names.

A user names paths, URLs, wildcards and folders; an index lies in a folder or behind a URL. Files of this
machine are mapped where they lie. Those of a store come through the cache, and so do those that are
compressed, which are decompressed there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from glob import glob, has_magic
from itertools import islice, takewhile
from pathlib import Path
from typing import BinaryIO

from ...errors import CorruptError, NotFoundError, RemoteError
from ...files.root import open_regular, read_regular
from ...process.digests import hexdigest
from ...reading.in_place_ref import LocalShards, ShardFiles
from ...rows.types import Json
from ...stores.address import directory_of, is_url
from ...stores.cache import Cache, FileIndex, IndexOf, cache_of, kept_index
from ...stores.downloads import AS_IT_BEGINS, HEAD, ShardDownloads, StoredShard, packing_of
from ...stores.kinds import ObjectInfo
from ...stores.objects import Objects
from ...versions.names import natural

_AT_ONCE = 8  # files that are downloaded or read for their indices
_REQUESTS = 32  # at once
_MOST_INDEX = 2**30  # bytes
_SAMPLE = 2**16  # bytes of a file, for a name of its content
_MOST_DOWNLOADS = 20  # of a file that other processes keep deleting
Hashes = tuple[tuple[str, str], ...]


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
        storage_options: Mapping[str, object] | None,
        cache_dir: str | os.PathLike[str] | None,
        cache_bytes: int | None,
        unpack: bool = True,
    ) -> NamedFiles:
        """The files that are named: in their order, and those of a wildcard or folder sorted.

        Args:
            named: a path or URL, which may have wildcards (`*`, `?`, `[...]`), or a folder; or a list of
                these.
            ending: a pattern of the names of files that are taken of a folder, such as "*.jsonl".
            storage_options: for fsspec's filesystem.
            cache_dir: where indices and files of a store are kept.
            cache_bytes: how many bytes of them are kept.
            unpack: decompress files of gzip, zlib or zstd into the cache.

        Raises:
            NotFoundError: there is no such file.
            ValueError: there are none, or some of this machine and some of a store, or of several stores.
        """
        given = [named] if isinstance(named, (str, os.PathLike)) else list(named)
        texts = [os.fspath(one) for one in given]
        if not texts:
            raise ValueError("no files were named; pass a path, a URL, or a list of such")
        if not any(map(is_url, texts)):
            paths = [path for text in texts for path in _local(text, ending)]
            return _of_paths(paths, cache_of(cache_dir, cache_bytes), unpack)
        if not all(map(is_url, texts)):
            raise ValueError(
                f"{texts!r:.200} are of this machine and of a store; make a DataRef of each, concat them"
            )
        cache, base = cache_of(cache_dir, cache_bytes), _common(texts)
        store = _Store(Objects(base, storage_options), len(texts) > _AT_ONCE)
        objects = [one for text in texts for one in store.named(text[len(base) + 1 :], ending)]
        how = AS_IT_BEGINS if unpack else None
        shards = [StoredShard(name, at.nbytes, at.nbytes, how, tag=at.tag) for name, at in objects]
        return NamedFiles(ShardDownloads(store.remote, shards, cache), tuple(at for _, at in objects), cache)

    @property
    def name(self) -> str:
        """For messages."""
        return _title([state.where for state in self.states])

    def head(self, number: int, most: int) -> bytes:
        """The first bytes of a file; of one of a store no others are downloaded."""
        count = min(most, self.states[number].nbytes)
        if isinstance(self.files, ShardDownloads):
            return self.files.head(number, count) if count else b""
        return _head(self.states[number].where, count)

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
            made = partial(self._made, self.files, number, make)
            index = kept_index(of, made, self.cache, lambda index: index.info["nbytes"])
            self.files.nbytes[number] = index.info["nbytes"]
            yield index
            if not was_kept:
                self.files.begin(islice(missing, 1))

    @staticmethod
    def _made(files: ShardDownloads, number: int, make: Callable[[str], FileIndex]) -> FileIndex:
        """The index of a file of a store, once that is downloaded and decompressed, and its size then."""
        for _ in range(_MOST_DOWNLOADS):
            path = files.path(number)
            try:
                made = make(path)
                return FileIndex(made.arrays, {**made.info, "nbytes": os.stat(path).st_size})
            except FileNotFoundError:
                continue
            except CorruptError as error:
                files.forget(number)  # the copy may be what is damaged
                raise CorruptError(str(error).replace(path, files.where(number))) from error
        raise RemoteError(
            f"{files.where(number)} was deleted {_MOST_DOWNLOADS} times before it was read; set a "
            "larger cache_bytes"
        )


def _of_paths(paths: Sequence[str], cache: Cache, unpack: bool) -> NamedFiles:
    """The files at these paths of this machine; through the cache if one is compressed."""
    states = tuple(IndexOf.file(path, "") for path in paths)
    if unpack and any(packing_of(_head(path, HEAD)) for path in paths):
        folder = Path(os.path.commonpath(list(map(os.path.dirname, paths))))
        remote = Objects(f"file://{folder.as_posix()}")
        shards = []
        for path, state in zip(paths, states, strict=True):
            name = Path(path).relative_to(folder).as_posix()
            about = remote.find_one(name)
            tag = None if about is None else about.state
            shards.append(StoredShard(name, state.nbytes, state.nbytes, AS_IT_BEGINS, tag=tag))
        return NamedFiles(ShardDownloads(remote, shards, cache), states, cache)
    local = LocalShards(_title(paths), tuple(paths), tuple(state.nbytes for state in states))
    return NamedFiles(local.as_they_are(), states, cache)


def _head(path: str, most: int) -> bytes:
    with open(open_regular(path), "rb") as file:
        return file.read(most)


def _run(file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def _is_wanted(name: str, pattern: str) -> bool:
    """True for the name of a file that a pattern matches, and that is not hidden."""
    return name[0] != "." and fnmatchcase(name, pattern)


def _title(places: Sequence[str]) -> str:
    return places[0] if len(places) == 1 else f"{len(places)} files, {places[0]} the first"


def _local(text: str, ending: str) -> list[str]:
    path = str(directory_of(text))
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            paths = [e.path for e in entries if e.is_file() and _is_wanted(e.name, ending)]
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
    folder = list(takewhile(lambda part: not has_magic(part), places[0][:-1] or places[0]))
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

    def named(self, name: str, ending: str) -> list[tuple[str, IndexOf]]:
        """The files that a name stands for: their names and states."""
        folder, _, last = name.rstrip("/").rpartition("/")
        if has_magic(folder):
            names = self._below(folder, name)
        elif has_magic(last):
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
        return [(one, state_of(self.remote, one, names[one])) for one in sorted(names, key=natural)]

    def _listed(self, folder: str) -> dict[str, ObjectInfo]:
        if folder not in self._listings:
            self._listings[folder] = {n: f for n, f in self.remote.find(folder).items() if "/" not in n}
        return self._listings[folder]

    def _below(self, folder: str, pattern: str) -> dict[str, ObjectInfo]:
        """The files that a pattern with wildcards in its folders matches."""
        from fsspec.utils import glob_translate

        first = "/".join(takewhile(lambda part: not has_magic(part), folder.split("/")))
        matches = re.compile(glob_translate(pattern)).match
        found = {f"{first}/{name}".lstrip("/"): about for name, about in self.remote.find(first).items()}
        return {name: about for name, about in found.items() if matches(name)}

    def _matching(self, folder: str, pattern: str) -> dict[str, ObjectInfo]:
        return {
            f"{folder}/{name}".lstrip("/"): about
            for name, about in self._listed(folder).items()
            if _is_wanted(name, pattern)
        }


def state_of(remote: Objects, name: str, about: ObjectInfo) -> IndexOf:
    """A file of a store as it was found; RemoteError if nothing says its size."""
    where = remote.where(name)
    if about.nbytes is None:  # as in the pages of web servers
        about = remote.find_one(name) or about
    if about.nbytes is None:
        raise RemoteError(f"the server does not say how many bytes {where} has; copy it to this machine")
    return IndexOf.remote(where, about, about.nbytes, "")


def is_below(name: object) -> str:
    """A path below the folder of an index; ValueError if it leads out of it."""
    if not isinstance(name, str) or "\\" in name or ":" in name or "\0" in name:
        raise ValueError(f"{name!r:.80} is no name of a file")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r:.80} leads out of the folder")
    return name


@dataclass(frozen=True)
class IndexedFile:
    """A file as an index describes it.

    Attributes:
        name: its path below the folder, where it is not compressed.
        rows: how many it has.
        stored: the file that is sent; 0 bytes of it if the index does not say its size.
    """

    name: str
    rows: int
    stored: StoredShard

    @property
    def hashes(self) -> Hashes:
        """Those of the file that is not compressed."""
        return self.stored.raw_hashes if self.stored.compression else self.stored.hashes


@dataclass(frozen=True)
class IndexedFolder:
    """The folder.

    Attributes:
        name: its path or URL.
        folder: if it is of this machine.
        remote: by which files are downloaded, or decompressed.
        cache: where those are kept.
    """

    name: str
    folder: Path | None
    remote: Objects
    cache: Cache

    @staticmethod
    def of(
        path: str | os.PathLike[str],
        options: Mapping[str, object] | None,
        cache_dir: str | os.PathLike[str] | None,
        cache_bytes: int | None,
    ) -> IndexedFolder:
        """The source that a path or URL names; ValueError if it names none."""
        text = os.fspath(path)
        cache = cache_of(cache_dir, cache_bytes)
        if is_url(text):
            remote = Objects(text, options)
            return IndexedFolder(remote.url, None, remote, cache)
        folder = directory_of(text)
        return IndexedFolder(str(folder), folder, Objects(f"file://{folder.as_posix()}", options), cache)

    def where(self, name: str) -> str:
        """The path or URL of a file, for messages."""
        return self.remote.where(name) if self.folder is None else str(self.folder / name)

    def json(self, name: str) -> Json:
        """A JSON object in a file.

        Raises:
            NotFoundError: there is no such file.
            CorruptError: it is not a JSON object.
        """
        try:
            if self.folder is None:
                data = self.remote.read(name, _MOST_INDEX)
            else:
                data = read_regular(self.folder / name, _MOST_INDEX)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"there is no {self.where(name)}; pass the folder that holds it") from None
        try:
            read = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"{self.where(name)} is not JSON, or is damaged: {error}") from error
        if not isinstance(read, dict):
            raise CorruptError(f"{self.where(name)} holds a {type(read).__name__}, not an index")
        return read

    def runs(self, name: str, bounds: list[tuple[int, int]], nbytes: int) -> list[bytes]:
        """Some runs of bytes of a file of so many; of one behind a URL no others are downloaded.

        Raises:
            CorruptError: there is no such file.
        """
        try:
            if self.folder is not None:
                with open(open_regular(self.folder / name), "rb") as file:
                    return [_run(file, start, stop) for start, stop in bounds]
            return self.remote.read_ranges(name, bounds, nbytes)
        except FileNotFoundError:
            raise CorruptError(
                f"{self.where(name)} is missing though the index names it; write the dataset again"
            ) from None

    def files(
        self, listed: Sequence[IndexedFile], verify: bool
    ) -> tuple[ShardFiles, tuple[Hashes, ...], list[str]]:
        """The files that an index names, the hashes with which they are to be compared when mapped, and what
        names the content of those without hashes.

        Raises:
            CorruptError: a file is missing, or has another size than the index says.
        """
        if self.folder is not None and all(
            file.stored.compression is None or (self.folder / file.name).is_file() for file in listed
        ):
            paths = tuple(str(self.folder / file.name) for file in listed)
            local = LocalShards(self.name, paths, tuple(file.stored.nbytes for file in listed)).as_they_are()
            hashes = tuple(file.hashes for file in listed) if verify else ()
            unsaid = [(file.name, file.stored.nbytes) for file in listed if not file.hashes]
            return local, hashes if any(hashes) else (), self._digests(unsaid)
        there = self.remote.find()
        with ThreadPoolExecutor(_REQUESTS) as pool:
            shards = list(pool.map(lambda file: self._found(file.stored, there, verify), listed))
        have_hashes = [bool(file.stored.hashes or file.stored.raw_hashes) for file in listed]
        pairs = zip(shards, have_hashes, strict=True)
        unsaid = [(shard.name, shard.sent) for shard, has_hashes in pairs if not has_hashes]
        return ShardDownloads(self.remote, shards, self.cache), (), self._digests(unsaid)

    def _digests(self, files: Sequence[tuple[str, int]]) -> list[str]:
        """What tells some of the files of these names and sizes from others; the same behind any URL."""
        digests = []
        for number in sorted({0, len(files) // 2, len(files) - 1}) if files else ():
            name, nbytes = files[number]
            bounds = [(0, min(_SAMPLE, nbytes)), (max(0, nbytes - _SAMPLE), nbytes)]
            digests.append(hexdigest(*self.runs(name, bounds, nbytes)))
        return digests

    def _found(self, stored: StoredShard, there: Mapping[str, ObjectInfo], verify: bool) -> StoredShard:
        """A file of the store with its size and its tag, and with hashes if they are to be compared."""
        name, about = stored.name, there.get(stored.name)
        if not verify:
            stored = replace(stored, hashes=(), raw_hashes=())
        has_size = bool(stored.sent or (about is not None and about.nbytes is not None))
        has_tag = bool(stored.hashes or stored.raw_hashes or (about is not None and about.state is not None))
        if not (has_size and has_tag) and not (there and about is None):
            about = self.remote.find_one(name)  # listings of the web say neither sizes nor tags
        if about is None and (there or not stored.sent):
            raise CorruptError(f"{self.where(name)} is missing though the index names it; write it again")
        sent = stored.sent or (about.nbytes if about is not None else None)
        sent = sent if sent is not None or stored.compression else stored.nbytes
        if sent is None or (about is not None and about.nbytes not in (None, sent)):
            raise CorruptError(
                f"{self.where(name)} has {about and about.nbytes} bytes, not {sent}; write it again"
            )
        return replace(stored, sent=sent, tag=None if about is None else about.state)
