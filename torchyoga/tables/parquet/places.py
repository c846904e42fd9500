"""Paths, globs, folders and URLs -> the files that they name, and bytes out of these."""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

from ...errors import CorruptError, NotFoundError
from ...stores.address import directory_of, is_url
from ...stores.cache import IndexOf
from ...stores.objects import Objects

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
Run: TypeAlias = tuple[int, int]  # first byte, and the one after the last
_SUFFIXES = (".parquet", ".parq", ".pq")
_KIND = "parquet footer 2"  # of what is kept of a file
_MOST_NAMED = 5  # in a message


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine."""

    path: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.path

    def identity(self) -> IndexOf:
        """Its size and time now; CorruptError if it is gone."""
        try:
            return IndexOf.file(self.path, _KIND)
        except FileNotFoundError:
            raise _gone(self.path) from None

    def read(self, runs: Sequence[Run], nbytes: int) -> list[bytes]:
        """These runs of bytes; CorruptError if the file is shorter."""
        found = []
        try:
            with open(self.path, "rb") as file:
                for start, stop in runs:
                    file.seek(start)
                    found.append(file.read(stop - start))
                    if len(found[-1]) != stop - start:
                        raise CorruptError(f"{self.path} has been cut while it was read; write it again")
        except FileNotFoundError:
            raise _gone(self.path) from None
        return found


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL."""

    folder: Objects
    key: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.folder.where(self.key)

    def identity(self) -> IndexOf:
        """Its size and time now; CorruptError if it is gone."""
        found = self.folder.find_one(self.key)
        if found is None:
            raise _gone(self.name)
        if found.nbytes is None:
            raise CorruptError(
                f"{self.name}: the server does not say how large it is, so that its end cannot be found; "
                "download it first"
            )
        return IndexOf.remote(self.name, found, found.nbytes, _KIND)

    def read(self, runs: Sequence[Run], nbytes: int) -> list[bytes]:
        """These runs of bytes, requested at once.

        Raises:
            CorruptError: it has another size, or is gone.
            RemoteError: it cannot be read.
        """
        try:
            return self.folder.read_ranges(self.key, list(runs), nbytes)
        except FileNotFoundError:
            raise _gone(self.name) from None


Place = LocalFile | RemoteFile


def _gone(name: str) -> CorruptError:
    return CorruptError(f"{name} is gone since it was opened; write it again, or open the files anew")


class Ranges(io.RawIOBase):
    """A file of which some runs of bytes have been read already, for programs that read files.

    Args:
        place: the file.
        nbytes: its size.
        runs: read at once, now; others are read when they are asked for.
    """

    def __init__(self, place: Place, nbytes: int, runs: Sequence[Run]) -> None:
        super().__init__()
        self._place, self._nbytes = place, nbytes
        self._at = 0
        some = _joined(runs)
        self._read = list(zip(some, place.read(some, nbytes) if some else [], strict=True))

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place in the file."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a place in the file, and returns it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; all that are left by default."""
        stop = self._nbytes if size is None or size < 0 else min(self._at + size, self._nbytes)
        start, self._at = self._at, max(self._at, stop)
        if stop <= start:
            return b""
        for (first, last), data in self._read:
            if first <= start and stop <= last:
                return data[start - first : stop - first]
        return self._place.read([(start, stop)], self._nbytes)[0]


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Runs in order; those that touch, or nearly so, as one."""
    found: list[Run] = []
    for start, stop in sorted(runs):
        if found and start <= found[-1][1] + _GAP:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


_GAP = 64 * 2**10  # bytes between two runs that are read with them: another request takes longer


# -- finding files


class Located(NamedTuple):
    """A file, and its path below the folder or pattern that was passed."""

    place: Place
    below: str

    @property
    def keys(self) -> dict[str, str]:
        """The values of its folders that are called `key=value`."""
        pairs = (part.partition("=") for part in self.below.split("/")[:-1])
        return {unquote(key): unquote(value) for key, equals, value in pairs if equals and key}


def found_at(paths: Paths, options: Mapping[str, object] | None = None) -> list[Located]:
    """The files that paths name, each path's in the order of their names.

    Args:
        paths: a file, a folder, a pattern with `*`, `?`, `[...]` or `**`, or several of these; local or URLs.
        options: for fsspec's filesystems.

    Raises:
        NotFoundError: a path names no file.
        RemoteError: a store cannot be reached.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise NotFoundError("from_parquet was given an empty list of paths; pass at least one file")
    found = []
    for path in [os.fspath(one) for one in several]:
        some = sorted(_of_url(path, options) if is_url(path) else _of_path(path), key=lambda one: one.below)
        if not some:
            raise NotFoundError(
                f"no files match {path!r}; pass a Parquet file, a folder of such, or a pattern"
            )
        found += some
    return found


def within(folder: str | os.PathLike[str], name: str, options: Mapping[str, object] | None = None) -> Place:
    """The file of this name in a folder.

    Raises:
        NotFoundError: there is none.
    """
    path = os.fspath(folder)
    if is_url(path):
        remote = RemoteFile(Objects(path.rstrip("/"), options), name)
        if remote.folder.find_one(name) is None:
            raise NotFoundError(f"{path} has no {name}")
        return remote
    place = LocalFile(str(directory_of(path) / name))
    if not os.path.isfile(place.path):
        raise NotFoundError(f"{path} has no {name}")
    return place


def _of_path(path: str) -> Iterator[Located]:
    path = os.path.normpath(directory_of(path))
    if os.path.isdir(path):
        names = list[str]()
        for folder, folders, files in os.walk(path, followlinks=True):
            folders[:] = [name for name in folders if not _leads_back(folder, name)]
            below = os.path.relpath(folder, path).replace(os.sep, "/")
            names += [name if below == "." else f"{below}/{name}" for name in files]
        for name in _data_files(names):
            yield Located(LocalFile(os.path.join(path, name)), name)
    elif os.path.isfile(path) or not glob.has_magic(path):
        if not os.path.isfile(path):
            raise NotFoundError(f"there is no file {path}; {_neighbours(path)}")
        yield Located(LocalFile(path), os.path.basename(path))
    else:
        base = _fixed(path.replace(os.sep, "/"))
        for name in glob.iglob(path, recursive=True):
            if os.path.isfile(name):
                yield Located(LocalFile(name), os.path.relpath(name, base or os.sep).replace(os.sep, "/"))


def _leads_back(folder: str, name: str) -> bool:
    """True for a link in a folder to that folder, or to one that it lies in, which has no end."""
    link, here = os.path.join(folder, name), os.path.join(os.path.realpath(folder), "")
    return os.path.islink(link) and here.startswith(os.path.join(os.path.realpath(link), ""))


def _neighbours(path: str) -> str:
    folder = os.path.dirname(path)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES))
    except OSError:
        return f"there is no folder {folder} either"
    listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    return f"{folder} has {listed or 'no Parquet files'}"


def _of_url(url: str, options: Mapping[str, object] | None) -> Iterator[Located]:
    url = url.rstrip("/")
    if glob.has_magic(url.partition("://")[2]):
        from fsspec.utils import glob_translate

        base = _fixed(url)
        pattern = re.compile(glob_translate(url.removeprefix(base + "/")))
        folder = Objects(base, options)
        for name in folder.find():
            if pattern.fullmatch(name):
                yield Located(RemoteFile(folder, name), name)
        return
    parent, _, name = url.rpartition("/")
    if parent.endswith(":/") or not url.endswith(_SUFFIXES):
        folder = Objects(url, options)
        names = list(_data_files(folder.find()))
        for found in names:
            yield Located(RemoteFile(folder, found), found)
        if names or parent.endswith(":/"):
            return
    one = RemoteFile(Objects(parent, options), name)
    if one.folder.find_one(name) is None:
        raise NotFoundError(
            f"there is no file {one.name}; pass a Parquet file, a folder of such, or a pattern"
        )
    yield Located(one, name)


def _data_files(names: Iterable[str]) -> list[str]:
    """Those of the names that hold rows: not hidden, and with the suffix of Parquet files if any has it."""
    seen = [name for name in names if not any(part[:1] in (".", "_") for part in name.split("/"))]
    return [name for name in seen if name.endswith(_SUFFIXES)] or seen


def _fixed(pattern: str) -> str:
    """The folder before the first part of a pattern that has wild characters."""
    return "/".join(takewhile(lambda part: not glob.has_magic(part), pattern.split("/")))
