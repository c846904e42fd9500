"""A folder or URL with an index of another library -> the files that it names, mapped or downloaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...errors import CorruptError, NotFoundError
from ...files.root import open_regular, read_regular
from ...process.digests import hexdigest
from ...reading.in_place_ref import LocalShards, ShardFiles
from ...rows.types import Json
from ...stores.address import directory_of, is_url
from ...stores.cache import Cache, cache_of
from ...stores.downloads import ShardDownloads, StoredShard
from ...stores.kinds import ObjectInfo
from ...stores.objects import Objects

_AT_ONCE = 32  # requests
_MOST_INDEX = 2**30  # bytes
_SAMPLE = 2**16  # bytes of a file, for a name of its content
Hashes = tuple[tuple[str, str], ...]


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
        name: its path below the folder.
        rows: how many it has; `nbytes`: its size.
        hashes: pairs of an algorithm and hex digits.
        compression: of the file that is sent in its place; None if it is sent itself.
        sent_name: the name of that file; `sent`: its size, or 0; `sent_hashes`: its hashes.
    """

    name: str
    rows: int
    nbytes: int
    hashes: Hashes = ()
    compression: str | None = None
    sent_name: str = ""
    sent: int = 0
    sent_hashes: Hashes = ()


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

    def head(self, name: str, count: int, nbytes: int) -> bytes:
        """The first bytes of a file of so many; of one behind a URL no others are downloaded.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if self.folder is None:
            return self.remote.read_ranges(name, [(0, count)], nbytes)[0][:count]
        with open(open_regular(self.folder / name), "rb") as file:
            return file.read(count)

    def files(
        self, stored: Sequence[IndexedFile], verify: bool
    ) -> tuple[ShardFiles, tuple[Hashes, ...], list[str]]:
        """The files that an index names, the hashes with which they are to be compared when mapped, and what
        names the content of those without hashes.

        Raises:
            CorruptError: a file is missing, or has another size than the index says.
        """
        if self.folder is not None and all(
            file.compression is None or (self.folder / file.name).is_file() for file in stored
        ):
            paths = tuple(str(self.folder / file.name) for file in stored)
            local = LocalShards(self.name, paths, tuple(file.nbytes for file in stored)).as_they_are()
            hashes = tuple(file.hashes for file in stored) if verify else ()
            unsaid = [(file.name, file.nbytes) for file in stored if not file.hashes]
            return local, hashes if any(hashes) else (), self._told(unsaid)
        listed = self.remote.find()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            shards = list(pool.map(lambda file: self._shard(file, listed, verify), stored))
        unsaid = [
            (shard.name, shard.sent)
            for file, shard in zip(stored, shards, strict=True)
            if not (file.hashes or file.sent_hashes)
        ]
        return ShardDownloads(self.remote, shards, self.cache), (), self._told(unsaid)

    def _told(self, files: Sequence[tuple[str, int]]) -> list[str]:
        """What tells some of the files of these names and sizes from others; the same behind any URL."""
        told = []
        for number in sorted({0, len(files) // 2, len(files) - 1}) if files else ():
            name, nbytes = files[number]
            bounds = [(0, min(_SAMPLE, nbytes)), (max(0, nbytes - _SAMPLE), nbytes)]
            if self.folder is None:
                runs = self.remote.read_ranges(name, bounds, nbytes)
                if len(runs[0]) == nbytes:  # whatever was asked for
                    runs = [runs[0][start:stop] for start, stop in bounds]
            else:
                with open(open_regular(self.folder / name), "rb") as file:
                    runs = [file.read(_SAMPLE)]
                    file.seek(bounds[1][0])
                    runs.append(file.read(_SAMPLE))
            told.append(hexdigest(*runs))
        return told

    def _shard(self, file: IndexedFile, listed: Mapping[str, ObjectInfo], verify: bool) -> StoredShard:
        name = file.sent_name or file.name
        about = listed.get(name)
        hashes = (file.sent_hashes if file.compression else file.hashes) if verify else ()
        raw_hashes = file.hashes if verify and file.compression else ()
        is_told = bool(file.sent) or (about is not None and about.nbytes is not None)
        is_told = is_told and bool(hashes or raw_hashes or (about is not None and about.state is not None))
        if not is_told and not (listed and about is None):
            about = self.remote.find_one(name)  # listings of the web say neither sizes nor tags
        if about is None and (listed or not file.sent):
            raise CorruptError(f"{self.where(name)} is missing though the index names it; write it again")
        sent = file.sent or (about.nbytes if about is not None else None)
        sent = sent if sent is not None or file.compression else file.nbytes
        if sent is None or (about is not None and about.nbytes not in (None, sent)):
            raise CorruptError(
                f"{self.where(name)} has {about and about.nbytes} bytes, not {sent}; write it again"
            )
        return StoredShard(
            name,
            file.nbytes,
            sent,
            file.compression,
            hashes,
            raw_hashes,
            None if about is None else about.state,
        )
