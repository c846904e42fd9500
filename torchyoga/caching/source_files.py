"""Patterns of files that a function reads -> a record of them, and which of them have changed since.

Files are read only if their names, sizes or times differ.
The record has one digest of those for each pattern, and one of the contents; the first is compared at each
call, the second only if it differs, so files that were copied to another machine or checked out again are no
change. Names are not in the record.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..process.digests import hexdigest
from ..rows.types import Json
from .code import inside_of

__all__ = ["SourceFiles"]

_MOST_PATTERNS = 100
_BYTES = 2**20  # read at once


class _File(NamedTuple):
    """A file as it is now: below the fixed part of its pattern."""

    name: str
    path: str
    nbytes: int
    written: int  # nanoseconds


class SourceFiles:
    """The files that a function reads.

    Args:
        patterns: as `glob` takes them, with `**` for any folders; relative to `folder`.
        folder: the folder of the function's file, or, where it has none, the current one.

    Raises:
        TypeError, ValueError: they are not patterns.
    """

    def __init__(self, patterns: Sequence[str | os.PathLike[str]], folder: str) -> None:
        if isinstance(patterns, (str, os.PathLike)):
            raise TypeError(f"sources must be a list of patterns, such as [{os.fspath(patterns)!r}]")
        self._patterns = [os.fspath(pattern) for pattern in patterns]
        for pattern in self._patterns:
            if not isinstance(pattern, str) or not pattern:
                raise TypeError(f"sources holds {pattern!r:.80}; it takes patterns of file names")
            if "://" in pattern:
                raise ValueError(f"sources holds {pattern!r:.80}; it takes files of this machine, no URLs")
        if len(self._patterns) > _MOST_PATTERNS or len({*self._patterns}) < len(self._patterns):
            raise ValueError(
                f"sources takes up to {_MOST_PATTERNS} different patterns; use ** for many folders"
            )
        self._folder = folder

    @staticmethod
    def of(patterns: Sequence[str | os.PathLike[str]], function: Callable[..., object]) -> SourceFiles:
        """The files of a function."""
        inside = inside_of(function)
        module = sys.modules.get(getattr(inside, "__module__", None) or "__main__")
        code = getattr(inside, "__code__", None)
        file = getattr(module, "__file__", None) if code is None else code.co_filename
        is_there = isinstance(file, str) and os.path.isfile(file)
        return SourceFiles(patterns, os.path.dirname(os.path.abspath(str(file))) if is_there else os.getcwd())

    def recorded(self, salt: str) -> list[Json]:
        """The record of the files as they are now, before they are read.

        Raises:
            FileNotFoundError: a pattern matches no file.
        """
        found = []
        for pattern in self._patterns:
            files = self._files(pattern)
            if not files:
                raise FileNotFoundError(
                    f"sources: {pattern!r} matches no file in {self._folder}, the folder of the function's "
                    "file; correct it, or pass an absolute pattern"
                )
            digests = {"pattern": _salted(salt, pattern), "look": _look(salt, files)}
            found.append({**digests, "digest": _contents(salt, files)})
        return found

    def differing(self, record: Sequence[Json], salt: str) -> list[str]:
        """Differences from a record, for a message; a pattern without any file here is not compared."""
        known = {one["pattern"]: one for one in record}
        found = []
        for pattern in self._patterns:
            one, files = known.pop(_salted(salt, pattern), None), self._files(pattern)
            if one is None:
                found.append(f"the files {pattern!r} were not among its sources")
            elif files and _look(salt, files) != one["look"] and _contents(salt, files) != one["digest"]:
                found.append(f"the files {pattern!r} have changed")
        if known:
            found.append(f"{len(known)} of its sources are not named any more")
        return found

    def _files(self, pattern: str) -> list[_File]:
        """The files that a pattern matches, by name."""
        whole = os.path.join(self._folder, os.path.expanduser(pattern))
        fixed = Path(whole).parts
        base = Path(
            *fixed[: next((n for n, part in enumerate(fixed) if glob.has_magic(part)), len(fixed) - 1)]
        )
        found = []
        for path in glob.iglob(whole, recursive=True):
            try:
                at = os.stat(path)
            except OSError:  # it was removed just now
                continue
            if stat.S_ISREG(at.st_mode):
                name = Path(path).relative_to(base).as_posix()
                found.append(_File(name, path, at.st_size, at.st_mtime_ns))
        return sorted({*found})


def _salted(salt: str, *texts: str) -> str:
    return hexdigest(salt, *(b"%d %b" % (len(data), data) for data in map(os.fsencode, texts)))


def _look(salt: str, files: Sequence[_File]) -> str:
    return _salted(salt, *(f"{file.name}/{file.nbytes}/{file.written}" for file in files))


def _contents(salt: str, files: Sequence[_File]) -> str:
    return _salted(salt, *(text for file in files for text in (file.name, _content(file))))


@functools.lru_cache(maxsize=2**16)
def _content(file: _File) -> str:
    """A digest of a file's bytes."""
    found = hashlib.blake2b(digest_size=16)
    try:
        with open(file.path, "rb") as opened:
            while data := opened.read(_BYTES):
                found.update(data)
    except OSError as error:
        return f"not read: {error.errno}"
    return found.hexdigest()
