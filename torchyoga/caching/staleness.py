"""A published version and a call -> whether the version is the one that the call would make.

A function's code, that of its module which it names, and the files that it reads are a record, which is
compared. Files are read only if their names, sizes or times differ: the record has one digest of those for
each pattern, and one of the contents. The first is compared at each call, the second only if it differs, so
files that were copied to another machine or checked out again are no change. Names are not in the record.
"""

from __future__ import annotations

import difflib
import functools
import glob
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import ExistsError
from ..process.digests import hexdigest
from ..process.messages import escaped
from ..rows.types import Json
from ..versions.lineage import Lineage
from ..versions.manifest import FunctionEntry, Manifest
from .arguments import Call, salted
from .code import inside_of, own_code_of

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


# What to do about a version that other code, or other files, may have made.
Stale = Literal["warn", "error", "ignore", "rebuild"]
_MOST_NAMED = 5
_MOST_LINES, _MOST_WIDTH = 40, 160  # of a diff in a message


def stale_advice(manifest: Manifest, call: Call, recipe: FunctionCode, stale: Stale) -> str | None:
    """A warning to give before a version is read for a call; None if the call would make the same version.

    Args:
        manifest: of the version.
        call: the call that chose it.
        recipe: the function's code, and the files that it reads, as they are now.
        stale: what to do if the version was made by other code or of other files, or has no record of what
            made it. With "rebuild" the warning says why the version is built anew.

    Raises:
        ExistsError: the version was made with other arguments; or, with `stale="error"`, by other code or of
            other files; or, with "error" and "rebuild", it has no record.
    """
    what, made = f"{manifest.id!r} {manifest.version!r}", manifest.function
    anew = f"choose another version, or call storage.remove({manifest.id!r}, {manifest.version!r}) first"
    difference = ""
    if made is None:
        found = f"{what} does not say what made it, for submit did"
        if call.names:
            found += f", so {', '.join(call.names)} could not be compared"
        advice = f"to build it with {call.function.name}, {anew}; stale='ignore' reads it and says nothing"
    else:
        differing = call.differing(made)
        if differing:
            raise ExistsError(
                f"{what} is published already, made with another {' and another '.join(differing)} than "
                f"this call of {call.function.name} has. {call.advice(made)}"
            )
        if stale == "ignore":
            return None
        captured = call.captured_differing(made)
        changes = recipe.differing(made)
        if captured:
            others = " and another ".join(captured)
            changes = [f"has another {others} around it", *changes]
        if not changes:
            return None
        found = f"{call.function.name} {', and '.join(changes)} than when it made {what}"
        difference = recipe.difference(manifest)
        advice = (
            f"to build it anew, pass stale='rebuild', {anew}; if the rows are the same, pass stale='ignore'"
        )
    if stale == "ignore":
        return None
    if stale == "error" or (stale == "rebuild" and made is None):
        raise ExistsError(f"{found}; {advice}{difference}")
    return (
        f"{found}. It is read as it is; {advice}{difference}" if stale == "warn" else f"{found}{difference}"
    )


@dataclass(frozen=True)
class FunctionCode:
    """Everything that a function makes its rows of, apart from its arguments.

    Attributes:
        function: the function.
        code: a digest of its code; None without its source.
        files: that it reads.
    """

    function: Callable[..., object]
    code: str | None
    files: SourceFiles

    def noted(self, entry: FunctionEntry) -> FunctionEntry:
        """A record of a call with all that is known now.

        Raises:
            FileNotFoundError: a pattern of `files` matches none.
        """
        parts = own_code_of(self.function).parts
        return replace(
            entry,
            parts=None if parts is None else _salted_parts(entry.salt, parts),
            sources=tuple(self.files.recorded(entry.salt)),
        )

    def differing(self, entry: FunctionEntry) -> list[str]:
        """Differences from a record, each as the end of a sentence that names the function."""
        found = []
        if None not in (self.code, entry.code) and self.code != entry.code:
            found.append("is written otherwise")
        parts = own_code_of(self.function).parts
        if parts is not None and entry.parts is not None:
            now, then = _salted_parts(entry.salt, parts), entry.parts
            other = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
            if other:
                found.append(f"uses other code: {_some(other)}")
        changed = self.files.differing(entry.sources, entry.salt)
        if changed:
            found.append(f"reads other files: {', '.join(changed[:_MOST_NAMED])}")
        return found

    def difference(self, manifest: Manifest) -> str:
        """The stored source beside the present one, as lines to add to a message; empty if there is none."""
        then = Lineage.of(manifest.lineage).source
        parts, now = own_code_of(self.function)
        if parts is None or not then or then == now:
            return ""
        lines = [*difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", n=1, lineterm="")]
        shown = [escaped(line[:_MOST_WIDTH]) for line in lines[:_MOST_LINES]]
        more = [f"... and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        return "\n".join(["", *shown, *more])


def _salted_parts(salt: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {name: salted(salt, name, digest.encode()) for name, digest in parts.items()}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(escaped(name)[:100] for name in names[:_MOST_NAMED]) + more
