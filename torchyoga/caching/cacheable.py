"""A function that makes a dataset -> one that reads the version of each call, and builds it if need be.

A version is stale if the function's code, that of its module which it names, or the files that it reads were
different when it was made. A record of the files has, for each pattern, a digest of their names, sizes and
times, and one of their contents, which is only compared if the first differs: so files that were copied to
another machine or checked out again are no change. Names are not in the record.
"""

from __future__ import annotations

import difflib
import functools
import glob
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec

from ..building.build import BuildOptions, Target
from ..errors import ExistsError, NotFoundError
from ..process.digests import hexdigest
from ..process.messages import escaped, log, warn_user
from ..reading.dataref import DataRef
from ..reading.version_ref import VersionRef
from ..rows.types import Json
from ..stores.contract import Seen, Store
from ..stores.refs import fetched
from ..versions.lineage import Lineage
from ..versions.manifest import FunctionEntry, Manifest
from .arguments import Call, Function, salted
from .lineage import check_record, digest_of, inside_of, lineage_of, own_code_of
from .many import Many, submitted_by

_MOST_PATTERNS = 100
_BYTES = 2**20  # read at once
# What to do about a version that other code, or other files, may have made.
Stale = Literal["warn", "error", "ignore", "rebuild"]
_MOST_NAMED = 5
_MOST_LINES, _MOST_WIDTH = 40, 160  # of a diff in a message
P = ParamSpec("P")
_warned: set[tuple[str, str]] = set()  # warnings given in this process, and their builds


@dataclass(frozen=True)
class Cacheable:
    """Settings for reading or building the versions of a function's calls; see `Storage.cacheable`.

    Attributes:
        store: the versions are published there.
        lock: holds the writer's lock of an id and a version, or says that it took too long to get.
        options: how to build.
        stale: what to do if the function's code, or the files that it reads, were different when a version
            was made.
        sources: patterns of those files.
        record: what the lineage of a version holds; `message`: what the user says in it.
        many: who builds; None for the process that holds the lock.

    Raises:
        ValueError, TypeError: `stale`, `record` or `message` is something else.
    """

    store: Store
    lock: Callable[[str, str], AbstractContextManager[None]]
    options: BuildOptions
    stale: Stale
    sources: Sequence[str | os.PathLike[str]] = ()
    record: bool = True
    message: str | None = None
    many: Many | None = None

    def __post_init__(self) -> None:
        if self.stale not in ("warn", "error", "ignore", "rebuild"):
            raise ValueError(f"stale must be 'warn', 'error', 'ignore' or 'rebuild', found {self.stale!r}")
        check_record(self.record, self.message)

    def decorated(
        self, function: Callable[P, object], id: str, version: str, ignore: Collection[str]
    ) -> Callable[P, DataRef]:
        """The function as one that returns the version that a call of it chooses.

        Raises:
            ValueError, TypeError: as `Function`; when called: as `Storage.cacheable`.
        """
        known = Function(function, id, version, ignore)
        recipe = FunctionCode(function, digest_of(function), SourceFiles(self.sources, function))

        @functools.wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> DataRef:
            call = known.call(*args, **kwargs)
            return self._read_or_built(call, recipe, lambda: function(*args, **kwargs))

        return cached

    def _read_or_built(self, call: Call, recipe: FunctionCode, make: Callable[[], object]) -> DataRef:
        with suppress(NotFoundError, _StaleError):
            return self._read(call, recipe)
        with self.lock(call.id, call.version) if self.many is None else nullcontext():
            replaces = None
            try:
                return self._read(call, recipe)  # others may have built it meanwhile
            except NotFoundError:
                pass
            except _StaleError as error:
                log.warning("building %r %r anew: %s", call.id, call.version, error)
                replaces = self.store.seen(call.id, call.version)
            return self._built(call, recipe, make, replaces)

    def _built(
        self, call: Call, recipe: FunctionCode, make: Callable[[], object], replaces: Seen | None
    ) -> DataRef:
        target = Target(self.store, call.id, call.version, replaces)
        self.store.check_place(call.id, call.version)
        # Before the files are read, which may change meanwhile.
        entry = recipe.noted(call.noted(recipe.code))
        data = make()
        options = replace(
            self.options,
            function=entry,
            differing=lambda made: call.differing_in_all(made) + recipe.differing(made),
            lineage=lineage_of(recipe.function, self.record, self.message),
        )
        try:
            return submitted_by(self.many, data, target, options)
        except ExistsError:  # perhaps the network was cut, and another machine has built it meanwhile
            with suppress(NotFoundError, _StaleError):
                return self._read(call, recipe)
            raise

    def _read(self, call: Call, recipe: FunctionCode) -> VersionRef:
        """The version that a call chooses, if it is what the call would make.

        Raises:
            NotFoundError: it is not published.
            ExistsError: it was made by another call.
            _StaleError: it is to be built again.
        """
        ref = fetched(self.store, call.id, call.version)
        advice = stale_advice(ref.manifest, call, recipe, self.stale)
        if advice is not None and self.stale == "rebuild":
            raise _StaleError(advice)
        if advice is not None and (ref.manifest.build, advice) not in _warned:
            _warned.add((ref.manifest.build, advice))
            warn_user(advice)
        return ref


class _StaleError(Exception):
    """A version is to be built again; says why."""


def stale_advice(manifest: Manifest, call: Call, recipe: FunctionCode, stale: Stale) -> str | None:
    """A warning to give before a version is read for a call; None if the call would make the same version.

    Args:
        manifest: of the version.
        call: the call that chose it.
        recipe: the function's code, and the files that it reads, as they are now.
        stale: what to do if the version was made by other code or of other files, or has no record of what
            made it. With "rebuild" the warning says why the version is built again.

    Raises:
        ExistsError: the version was made with other arguments; or, with `stale="error"`, by other code or of
            other files; or, with "error" and "rebuild", it has no record.
    """
    what, made = f"{manifest.id!r} {manifest.version!r}", manifest.function
    anew = f"choose another version, or call storage.remove({manifest.id!r}, {manifest.version!r}) first"
    if made is not None and (differing := call.differing(made)):
        raise ExistsError(
            f"{what} is published already, made with another {' and another '.join(differing)} than this "
            f"call of {call.function.name} has. {call.advice(made)}"
        )
    if stale == "ignore":
        return None
    difference = ""
    if made is None:
        found = f"{what} does not say what made it, for submit did"
        if call.names:
            found += f", so {', '.join(call.names)} could not be compared"
        advice = f"to build it with {call.function.name}, {anew}; stale='ignore' reads it and says nothing"
    else:
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
            found.append(f"reads other files ({', '.join(changed[:_MOST_NAMED])})")
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


class SourceFiles:
    """The files that a function reads.

    Args:
        patterns: as `glob` takes them, with `**` for any folders; relative to the folder of the function's
            file, or, where it has none, to the current one.
        function: the function.

    Raises:
        TypeError, ValueError: they are not patterns.
    """

    def __init__(self, patterns: Sequence[str | os.PathLike[str]], function: Callable[..., object]) -> None:
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
        inside = inside_of(function)
        module = sys.modules.get(getattr(inside, "__module__", None) or "__main__")
        code = getattr(inside, "__code__", None)
        file = getattr(module, "__file__", None) if code is None else code.co_filename
        is_there = isinstance(file, str) and os.path.isfile(file)
        self._folder = os.path.dirname(os.path.abspath(str(file))) if is_there else os.getcwd()

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


class _File(NamedTuple):
    """A file as it is now: below the fixed part of its pattern."""

    name: str
    path: str
    nbytes: int
    written: int  # nanoseconds


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
