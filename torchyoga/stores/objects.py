"""A folder behind a URL: bytes under names, by fsspec; every call is bounded in time and retried.

Options of a store are pickled only for a process that is being started.
multiprocessing shows when that happens; a checkpoint never holds them.

Retries are in one place.
s3fs, botocore and aiohttp each retry what the layer below has already retried, 50 times in all; their retries
are switched off.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import errno
import json
import logging
import os
import random
import re
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import islice
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..errors import CorruptError, RemoteError
from ..process.contexts import contextmanager
from ..process.forks import renew_in_children
from ..process.lazy import cached_property
from .by_obstore import ByObstore
from .patience import first_pause, num_starting, pause_after
from .streaming import RUN, RUNS, Sink, from_s3, from_web

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
Info: TypeAlias = Mapping[str, Any]  # of an object, as its filesystem describes it
_log = logging.getLogger("torchyoga")
_TRIES = 6
_FIRST_TRIES = 4  # where nothing listens, and never has: a wrong address, or no network
_BUSY_TRIES = 20  # for a server that answers that it is busy
_BUSY = {"429", "500", "502", "503", "504", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling"}
_PATIENCE = 60.0  # seconds that any call may take, besides its bytes
_LONGEST_SILENCE = 120.0  # seconds after which no further try is begun
_FIRST_SILENCE = 15.0  # the same, where nothing has ever answered
_DELETIONS = 8  # at once
_ALL_PAGES = 100_000  # of a thousand names each; a longer listing is taken for an endless one
_MOST_PAGES = 5  # pages that are read to find some similar names
_SLOWEST = 64 * 2**10  # bytes a second; a store slower than that counts as hanging
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_READ_ONLY = {"http", "https", "github", "zip", "tar"}
_CONDITIONAL = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}
# Errors that trying again will not change.
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ValueError,
    ImportError,
    CancelledError,  # this process is ending
)
_FINAL_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError"}
_UNREACHED = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH}
_FINAL_ERRNOS = {errno.ENOSPC, errno.EROFS, errno.ENAMETOOLONG, errno.EDQUOT}


class Found(NamedTuple):
    """An object under a name: its size in bytes, when it was written, in seconds by the store's clock, and a
    tag that no other contents of the name have; None where the store does not say."""

    nbytes: int | None
    written: float | None
    tag: str | None

    @property
    def state(self) -> str | None:
        """The tag, or else the time: what tells these contents from later ones; None if nothing does."""
        known = self.tag if self.tag is not None else self.written
        return None if known is None else str(known).strip('"')  # which some listings leave out


@contextmanager
def sent_with_options() -> Iterator[None]:
    """Stores that this thread pickles meanwhile keep their options: for workers that the user has started."""
    _SENDING.options = True
    try:
        yield
    finally:
        _SENDING.options = False


class Remote:
    """Bytes under names, in the folder behind a URL.

    It holds no connection: each process makes its own when it first needs one, also after a fork. It pickles
    without its options, which may hold credentials, unless a process is being started with it, or work
    is sent to one; a pickle that
    is loaded elsewhere gets the options last used there for the URL, or the environment's.

    Args:
        url: such as s3://bucket/prefix.
        options: for fsspec's filesystem; never written anywhere.

    Raises:
        ValueError: the URL holds a password.
    """

    def __init__(self, url: str, options: Mapping[str, object] | None = None) -> None:
        parts = urlsplit(url)
        if parts.password is not None or parts.query:
            raise ValueError("a URL with a password or query would be seen in messages; use storage_options")
        self.protocol = parts.scheme.lower()
        self._is_web, self._is_gcs = self.protocol in ("http", "https"), self.protocol in ("gs", "gcs")
        _refuse_unknown(self.protocol)
        if (self._is_web or self.protocol in _CONDITIONAL - {"memory"}) and not parts.netloc:
            raise ValueError(f"{url!r} names no {'host' if self._is_web else 'bucket'}")
        self.url = f"{self.protocol}://{url.partition('://')[2].rstrip('/')}"
        self._options: dict[str, Any] = dict(options or {})
        self._token = secrets.token_hex(8)
        self._ignores_conditions = False
        self._filesystem: tuple[AbstractFileSystem, str] | None = None
        self._obstore = ByObstore(self.protocol)
        self._lock = threading.Lock()
        self._remember()
        renew_in_children(self)

    def _remember(self) -> None:
        if self._options:
            _OPTIONS[self._token] = _OPTIONS[self._place] = self._options

    @cached_property
    def _place(self) -> str:
        """A bucket or a host."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def __reduce__(self) -> tuple[object, ...]:
        goes_along = get_spawning_popen() is not None or getattr(_SENDING, "options", False)
        options = self._options if goes_along else None
        return _remade, (self.url, self._token, options, self._place in _ANSWERED)

    def renew(self) -> None:
        """Leaves the connections to the parent.

        The objects are kept alive: garbage collection would close them, and so remove them from the epoll
        set on which the parent still waits.
        """
        _INHERITED.append(self._filesystem)
        self._filesystem = None
        self._lock = threading.Lock()
        if "fsspec.asyn" in sys.modules:
            sys.modules["fsspec.asyn"].reset_lock()  # fsspec itself forgets all but its lock

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    @property
    def options(self) -> Mapping[str, object]:
        """Options for the filesystem."""
        return self._options

    def at(self, folder: str) -> Remote:
        """The bytes under names in a folder of this one."""
        return Remote(f"{self.url}/{folder}", self._options)

    @property
    def is_conditional(self) -> bool:
        """True if this store, as far as is known, can create an object in one step only if none exists."""
        is_known = self.protocol in _CONDITIONAL or getattr(self._at("")[0], "creates_once", False)
        return is_known and not self._ignores_conditions

    def _is_unlisted(self, error: Exception) -> bool:
        """True for a web server that does not list folders."""
        return self._is_web and bool(_statuses(error) & {"401", "403", "405"})

    @property
    def is_s3(self) -> bool:
        """True for the protocol of S3."""
        return self.protocol in ("s3", "s3a")

    def where(self, name: str) -> str:
        """The URL of a name, for messages."""
        return f"{self.url}/{name}" if name else self.url

    # -- reading

    def read(self, name: str, limit: int) -> bytes:
        """All bytes under a name.

        Raises:
            FileNotFoundError: nothing has that name.
            CorruptError: there are more than `limit` bytes.
            RemoteError: the store cannot be reached or refuses.
        """

        def read() -> bytes:
            try:
                # One byte more than allowed, without asking for the size first.
                return bytes(self._call("cat_file", name, start=0, end=limit + 1, seconds=5 * _PATIENCE))
            except Exception as error:
                if _is_beyond(error):
                    return b""  # no range lies within an empty object
                raise

        found = self._tried(f"read {self.where(name)}", read)
        self._refuse_longer(name, found, limit)
        return found

    def _refuse_longer(self, name: str, data: bytes | None, limit: int) -> None:
        if data is not None and len(data) > limit:
            raise CorruptError(
                f"{self.where(name)} is larger than {limit} bytes; that is not what belongs there"
            )

    def read_tagged(self, name: str, limit: int) -> tuple[bytes, str | None]:
        """All bytes under a name, and a tag by which the store tells them from later contents.

        The tag is None for a store that has none, or cannot replace an object by its tag; see `replace`.

        Raises:
            FileNotFoundError: nothing has that name.
            CorruptError: there are more than `limit` bytes.
            RemoteError: the store cannot be reached or refuses.
        """
        if self.is_s3 and self.is_conditional:

            def read() -> tuple[bytes, str | None]:
                fs, path = self._at(name)
                return self._awaited(fs, _got_from_s3(fs, path, limit + 1))

            data, tag = self._tried(f"read {self.where(name)}", read)
            self._refuse_longer(name, data, limit)
            return data, tag
        if self._is_gcs:
            for _ in range(_TRIES):
                before, data = self._generation(name), self.read(name, limit)
                if before == self._generation(name):
                    return data, before
            raise RemoteError(f"{self.where(name)} is replaced again and again while it is read; try again")
        data = self.read(name, limit)
        return data, blake2b(data).hexdigest() if self.protocol == "memory" else None

    @property
    def lists_tags(self) -> bool:
        """True if `find` gives the tags that `read_tagged` and `delete_seen` know."""
        return (self.is_s3 and self.is_conditional) or self._is_gcs

    def _generation(self, name: str) -> str:
        return self._tried(f"read {self.where(name)}", lambda: str(self._call("info", name)["generation"]))

    def read_ranges(self, name: str, bounds: list[tuple[int, int]], nbytes: int) -> list[bytes]:
        """Runs of the bytes under a name, all requested at once.

        Args:
            name: what to read.
            bounds: first byte of each run, and the one after its last.
            nbytes: of the whole object.

        Raises:
            FileNotFoundError: nothing has that name.
            RemoteError: it cannot be read, or the answers stay shorter than what was requested.
            CorruptError: the object has another number of bytes.

            A server that does not support ranges sends everything; then that is the only run.
        """

        def read() -> list[bytes]:
            fs, path = self._at(name)
            found = self._obstore.ranges(fs, path, bounds, _seconds(_total(bounds)))
            return self._ranges(fs, path, bounds, nbytes) if found is None else found

        return self._sized(name, nbytes, read)

    def _ranges(
        self, fs: AbstractFileSystem, path: str, bounds: list[tuple[int, int]], nbytes: int
    ) -> list[bytes]:
        """The result of `read_ranges`, by one call of the filesystem."""
        starts, stops = map(list, zip(*bounds, strict=True))
        found = self._run(
            fs,
            "cat_ranges",
            [path] * len(bounds),
            starts,
            stops,
            on_error="return",
            seconds=_seconds(_total(bounds)),
        )
        for run in found:
            if isinstance(run, BaseException):
                raise run
        if len(found[0]) == nbytes:
            return [bytes(found[0])]
        runs: list[bytes] = found
        for run, (start, stop) in zip(runs, bounds, strict=True):
            if len(run) != stop - start:
                raise ConnectionError(f"{len(run)} bytes arrived where {stop - start} were asked for")
        return runs

    def stream(self, name: str, sink: Sink, nbytes: int) -> None:
        """Reads all bytes under a name, from the sink's position on, a piece at a time.

        Args:
            name: what to read.
            sink: takes the pieces; starts over if the server sends the whole object, whatever was requested.
            nbytes: of the whole object.

        Raises:
            FileNotFoundError: nothing has that name.
            RemoteError: it cannot be read, or the answers stay shorter or longer than that.
            CorruptError: the object has another number of bytes.
        """

        def read() -> None:
            fs, path = self._at(name)
            if self._obstore.read(fs, path, sink, nbytes, _seconds(nbytes - sink.at)):
                return
            if self.is_s3 or self._is_web:
                coming = from_s3(fs, path, sink, nbytes) if self.is_s3 else from_web(fs, path, sink, nbytes)
                self._awaited(fs, coming, _seconds(nbytes - sink.at))
            else:
                self._add_ranges(fs, path, sink, nbytes)
            if sink.at != nbytes:
                raise ConnectionError(f"{sink.at} of {nbytes} bytes arrived")

        self._sized(name, nbytes, read)

    def _add_ranges(self, fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int) -> None:
        """Reads the rest of an object, some runs at once, each of which is in memory before it is added."""
        while sink.at < nbytes:
            starts = range(sink.at, min(sink.at + RUNS * RUN, nbytes), RUN)
            runs = self._ranges(fs, path, [(start, min(start + RUN, nbytes)) for start in starts], nbytes)
            if len(runs[0]) == nbytes and sink.at:  # the whole file, whatever was asked for
                sink.restart()
            for run in runs:
                sink.add(run)

    def _sized(self, name: str, nbytes: int, read: Callable[[], T]) -> T:
        """The result of `read`, tried a few times; CorruptError if the object does not have so many bytes."""
        try:
            return self._tried(f"read {self.where(name)}", read)
        except RemoteError as error:
            # Only if the store has answered: it would be waited for once more.
            is_answered = type(error.__cause__) is ConnectionError or _is_beyond(error)
            found = self.find_one(name) if is_answered else None
            if found is None or found.nbytes in (None, nbytes):
                raise
            raise self.other_size(name, found, nbytes) from error

    def other_size(self, name: str, found: Found, nbytes: int) -> CorruptError:
        """The error for an object that has another number of bytes than it should."""
        return CorruptError(
            f"{self.where(name)} has {found.nbytes} bytes where {nbytes} were published; remove the "
            "version and publish it again"
        )

    def find(self, folder: str = "") -> dict[str, Found]:
        """All objects under a folder, at any depth, by their names within it; empty if there are none."""

        def find() -> dict[str, Info]:
            if not self._is_web:
                found: dict[str, Info] = self._call("find", folder, detail=True, seconds=10 * _PATIENCE)
                return found
            try:
                return _linked(*self._at(folder))
            except Exception as error:
                if self._is_unlisted(error):
                    return {}
                raise

        try:
            if self.is_s3:
                infos, _ = self._listed(folder)
            else:
                infos = self._tried(f"list {self.where(folder)}", find)
        except FileNotFoundError:
            return {}
        return {name: self._found(infos[path]) for path, name in self._within(folder, infos) if name}

    def folders(self, folder: str = "") -> list[str]:
        """Names of the folders in a folder, sorted; the first few thousand if there are very many."""

        def find() -> list[str]:
            try:
                infos = self._call("ls", folder, detail=True, seconds=10 * _PATIENCE)
            except Exception as error:
                if self._is_unlisted(error):
                    return []
                raise
            return [info["name"] for info in infos if info["type"] == "directory"]

        try:
            if self.is_s3:
                _, paths = self._listed(folder, "/", _MOST_PAGES)
            elif "//" in self.url.partition("://")[2]:  # the `ls` of some filesystems leaves out such names
                return sorted({name.split("/")[0] for name in self.find(folder) if "/" in name})
            else:
                paths = self._tried(f"list {self.where(folder)}", find)
        except FileNotFoundError:
            return []
        found = {name.strip("/") for _, name in self._within(folder, paths)}
        return sorted(found)[: 1000 * _MOST_PAGES]

    def _within(self, folder: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Those of the paths that lie below a folder, and their names within it."""
        fs, path = self._at(folder)
        base = fs._strip_protocol(path).rstrip("/") + "/"
        return ((path, self._decoded(path.removeprefix(base))) for path in paths if path.startswith(base))

    def _listed(
        self, folder: str, delimiter: str = "", most: int | None = None
    ) -> tuple[dict[str, Info], list[str]]:
        """Objects and folders below a folder in S3: all, or those in some pages of a thousand.

        One request for each page, retried by itself: s3fs would make a second request if nothing exists,
        start over if one page fails, and leave out empty names.
        """
        bucket, _, prefix = self._at(folder)[1].partition("/")
        asked: dict[str, Any] = {
            "Bucket": bucket,
            "Prefix": f"{prefix}/" if prefix else "",
            "Delimiter": delimiter,
        }

        def ask() -> Info:
            page: Info = self._run(self._at(folder)[0], "call_s3", "list_objects_v2", **asked)
            return page

        found: dict[str, Info] = {}
        folders: list[str] = []
        for _ in range(_ALL_PAGES if most is None else most):
            page = self._tried(f"list {self.where(folder)}", ask)
            found |= {f"{bucket}/{info['Key']}": info for info in page.get("Contents", [])}
            folders += [f"{bucket}/{info['Prefix']}" for info in page.get("CommonPrefixes", [])]
            if not page.get("IsTruncated"):
                return found, folders
            asked["ContinuationToken"] = page["NextContinuationToken"]
        if most is None:
            raise RemoteError(f"cannot list {self.url}: its listing has no end; is that the right URL?")
        return found, folders

    def find_one(self, name: str) -> Found | None:
        """The object under one name; None if there is none."""

        try:
            return self._tried(f"read {self.where(name)}", lambda: self._found(self._call("info", name)))
        except FileNotFoundError:
            return None

    def _found(self, info: Info) -> Found:
        size = info.get("size", info.get("Size"))
        keys = ("LastModified", "last_modified", "updated", "mtime", "created", "timeCreated")
        times = (_seconds_of(info[key]) for key in keys if info.get(key) is not None)
        written = next((found for found in times if found is not None), None)
        tags = ("ETag", "generation", "etag", "Last-Modified")
        tag = next((str(info[key]) for key in tags if info.get(key) is not None), None)
        if self.protocol == "memory":  # elsewhere, the time of creation may be that of the name
            tag = str(written)
        return Found(None if size is None else int(size), written, tag)

    # -- writing

    def create(self, name: str, data: bytes) -> None:
        """Puts bytes under a new name, in one step where `is_conditional`.

        Pass data that no other writer would write: this shows whether a reply or a race was lost.

        Raises:
            FileExistsError: something else has that name.
            RemoteError: it cannot be written.
        """

        def create() -> None:
            if self.is_conditional:
                try:
                    self._call("pipe_file", name, data, mode="create", seconds=_seconds(len(data)))
                    return
                except NotImplementedError:
                    _log.warning("%s cannot create conditionally; see docs/remote.md", self.url)
            if self.find_one(name) is not None:
                raise FileExistsError(name)
            self._call("pipe_file", name, data, seconds=_seconds(len(data)))

        self._prepare(name)
        self._written(name, data, create)

    def replace(self, name: str, data: bytes, tag: str | None, is_seen: Callable[[], bool]) -> None:
        """Puts bytes under a name, in place of the contents that `read_tagged` gave and of no others.

        In one step if there is a tag; without one, `is_seen` is called before each try, and another writer
        may come in between. Pass data that no other writer would write: this shows whether a reply or a race
        was lost.

        Raises:
            FileExistsError: something else has that name, or nothing has.
            RemoteError: it cannot be written.
        """

        def replace() -> None:
            if tag is None and not is_seen():
                raise FileExistsError(name)
            try:
                put()
            except Exception as error:
                is_gone = isinstance(error, FileNotFoundError) and not _names_bucket(error)
                if is_gone or _statuses(error) & {"412", "PreconditionFailed"}:
                    raise FileExistsError(name) from error  # these are not the contents to replace
                raise

        def put() -> None:
            fs, path = self._at(name)
            seconds = _seconds(len(data))
            if self.is_s3 and tag is not None:
                # In one piece, because only such a write can be conditional.
                self._run(fs, "pipe_file", path, data, seconds=seconds, IfMatch=tag, chunksize=2**30)
            elif self._is_gcs and tag is not None:
                self._awaited(fs, _put_into_gcs(fs, path, data, tag), seconds)
            elif self.protocol == "memory" and tag is not None:
                with _MEMORY:
                    if blake2b(fs.cat_file(path)).hexdigest() != tag:
                        raise FileExistsError(path)
                    fs.pipe_file(path, data)
            else:
                self._run(fs, "pipe_file", path, data, seconds=seconds)

        self._prepare(name)
        if tag is not None and not is_seen():  # servers may ignore conditions without saying so
            raise FileExistsError(self.where(name))
        self._written(name, data, replace)

    def _written(self, name: str, data: bytes, write: Callable[[], None]) -> None:
        """Writes; FileExistsError unless the name holds these bytes then, which a lost reply hides."""
        try:
            self._tried(f"write {self.where(name)}", write)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError, CorruptError):
                if self.read(name, len(data)) == data:
                    return
            raise

    def check_conditional(self, name: str, data: bytes) -> None:
        """Finds out whether the store respects conditions, by creating an object that exists already."""
        if self.is_conditional and not self._refuses(name, data):
            # The object may be missing because its owner counted as dead and other builders cleaned up; so
            # try again, with a name that no other process uses.
            own = _own_name()
            self.write(own, b"")
            try:
                self._ignores_conditions = not self._refuses(own, b"")
            finally:
                self.delete([own])

    def _refuses(self, name: str, data: bytes) -> bool:
        """True if the store refuses to create an object that exists."""

        def create() -> bool:
            try:
                self._call("pipe_file", name, data, mode="create")
            except (FileExistsError, NotImplementedError) as error:
                return isinstance(error, FileExistsError)
            return False

        return self._tried(f"write {self.where(name)}", create)

    def write(self, name: str, data: bytes) -> None:
        """Puts bytes under a name, in place of any others; RemoteError if that cannot be done."""

        self._prepare(name)
        seconds = _seconds(len(data))
        self._tried(f"write {self.where(name)}", lambda: self._call("pipe_file", name, data, seconds=seconds))

    def put(self, path: str, name: str) -> None:
        """Sends a file of this machine to a name; the caller checks whether it has arrived.

        Raises:
            RemoteError: that cannot be done.
        """
        nbytes = os.stat(path).st_size

        def put() -> None:
            fs, target = self._at(name)
            self._run(fs, "put_file", path, target, seconds=_seconds(nbytes))

        self._prepare(name)
        self._tried(f"write {self.where(name)}", put)

    def upload(self, path: str, name: str) -> None:
        """Puts a file of this machine under a name; RemoteError if that cannot be done."""
        nbytes = os.stat(path).st_size
        for _ in range(_TRIES):
            # Two requests, each retried by itself: both pass a server that refuses every second one.
            self.put(path, name)
            found = self.find_one(name)
            if found is not None and found.nbytes in (None, nbytes):
                return
        arrived = "nothing" if found is None else f"{found.nbytes} of {nbytes} bytes"
        raise RemoteError(f"cannot write {self.where(name)}: {arrived} arrived, {_TRIES} times; try again")

    def now(self) -> float | None:
        """The time of the store's own clock, in seconds since 1970; None if the store does not say."""
        name = _own_name()
        self.write(name, b"")
        try:
            found = self.find_one(name)
            return None if found is None else found.written
        finally:
            self.delete([name])

    def delete(self, names: Iterable[str]) -> None:
        """Removes the objects under these names, several at once; a missing one is not an error."""

        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._tried(f"remove {self.where(name)}", lambda: self._call("rm_file", name))

        left = iter(names)
        for name in islice(left, 1):
            delete(name)  # an error for one is an error for all
        with ThreadPoolExecutor(_DELETIONS, thread_name_prefix="torchyoga remove") as pool:
            deque(pool.map(delete, left), maxlen=0)

    def delete_seen(self, name: str, tag: str | None) -> None:
        """Removes the contents that `read_tagged` gave, and no others, in one step if there is a tag and the
        store can; if they are gone already, that is not an error."""

        def delete() -> None:
            fs, path = self._at(name)
            if self.is_s3 and tag is not None and not refused:
                bucket, key, _ = fs.split_path(path)
                self._run(fs, "call_s3", "delete_object", Bucket=bucket, Key=key, IfMatch=tag)
            elif self._is_gcs and tag is not None:
                bucket, key, _ = fs.split_path(path)
                self._awaited(fs, fs._call("DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=tag))
            elif self.protocol == "memory" and tag is not None:
                with _MEMORY:
                    if blake2b(fs.cat_file(path)).hexdigest() == tag:
                        fs.rm_file(path)
            else:
                self._run(fs, "rm_file", path)

        def delete_if_known() -> None:
            try:
                delete()
            except Exception as error:
                if _statuses(error) & {"412", "PreconditionFailed"}:
                    return  # there is a newer object by now, and it stays
                if refused or not (self.is_s3 and tag is not None) or not _is_unknown(error):
                    raise
                refused.append(True)  # not every client and server supports conditions on deletions
                delete()

        refused: list[bool] = []
        with contextlib.suppress(FileNotFoundError):
            self._tried(f"remove {self.where(name)}", delete_if_known)

    def abort_uploads(self, before: float, is_ours: Callable[[str], bool]) -> list[str]:
        """Ends uploads in parts that were begun before a time and never finished.

        Args:
            before: in seconds, by the store's clock.
            is_ours: True for a name under this URL whose upload may be ended.
        """

        def abort() -> list[str]:
            fs, path = self._at("")
            if not hasattr(fs, "list_multipart_uploads"):
                return []
            bucket, _, prefix = path.partition("/")
            prefix = f"{prefix.rstrip('/')}/" if prefix else ""
            ended = []
            for upload in self._run(fs, "list_multipart_uploads", bucket) or []:
                key, begun = upload["Key"], _seconds_of(upload.get("Initiated"))
                is_meant = key.startswith(prefix) and is_ours(key.removeprefix(prefix))
                if is_meant and begun is not None and begun < before:
                    wanted = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}
                    self._run(fs, "call_s3", "abort_multipart_upload", **wanted)
                    ended.append(key.removeprefix(prefix))
            return ended

        return self._tried(f"list the uploads of {self.url}", abort)

    def refuse_read_only(self) -> None:
        """Raises RemoteError if nothing can be written, whatever the credentials."""
        if self.protocol in _READ_ONLY:
            raise RemoteError(
                f"{self.url} can only be read; publish to a storage that you may write, and copy from there"
            )

    def _prepare(self, name: str) -> None:
        self.refuse_read_only()
        if self.protocol in _CONDITIONAL - {"memory"}:
            return  # object stores have no folders

        def make() -> None:
            fs, path = self._at(name)
            self._run(fs, "makedirs", path.rpartition("/")[0], exist_ok=True)

        self._tried(f"write {self.where(name)}", make)

    # -- calls

    def _at(self, name: str) -> tuple[AbstractFileSystem, str]:
        """The filesystem of this process, and the path of a name in it."""
        found = self._filesystem
        if found is None:
            with self._lock:
                found = self._filesystem
                if found is None:
                    found = self._filesystem = self._made()
        fs, base = found
        return fs, f"{base}/{self._encoded(name)}" if name else base

    def _made(self) -> tuple[AbstractFileSystem, str]:
        import fsspec

        options = {"skip_instance_cache": True, "use_listings_cache": False, **self._options}
        if self.is_s3:
            options["config_kwargs"] = {**_s3_config(), **options.get("config_kwargs", {})}
        if self._is_gcs:  # gcsfs asks for the kind of the bucket before each call, for a minute by itself
            options.setdefault("retry_timeout", 5.0)
        try:
            fs, path = fsspec.core.url_to_fs(self.url, **options)
            fs.retries = 1  # the same for s3fs
            once = getattr(getattr(type(fs), "_request", None), "__wrapped__", None)
            if self._is_gcs and once is not None:  # gcsfs has six tries, of half a minute, built in
                fs._request = partial(once, fs)
        except ImportError as error:
            extra = _EXTRAS.get(self.protocol)
            hint = f"pip install 'torchyoga[{extra}]'" if extra else str(error)
            raise ImportError(f"{self.protocol}:// needs a package that is not installed; {hint}") from error
        return fs, path.rstrip("/")

    def _encoded(self, name: str) -> str:
        return quote(name) if self._is_web else name

    def _decoded(self, name: str) -> str:
        return unquote(name) if self._is_web else name

    def _awaited(self, fs: AbstractFileSystem, coroutine: Awaitable[T], seconds: float = _PATIENCE) -> T:
        """The result of a coroutine, run in the filesystem's own loop."""
        import fsspec.asyn

        async def wait() -> T:
            return await coroutine

        found: T = fsspec.asyn.sync(fs.loop, wait, timeout=seconds)
        return found

    def _run(
        self, fs: AbstractFileSystem, method: str, *args: object, seconds: float = _PATIENCE, **kwargs: object
    ) -> Any:
        """Calls a method of the filesystem; bounded in time if it is an asynchronous one."""
        import fsspec.asyn

        coroutine = getattr(fs, f"_{method}", None)
        if getattr(fs, "async_impl", False) and coroutine is not None:
            return fsspec.asyn.sync(fs.loop, coroutine, *args, timeout=seconds, **kwargs)
        return getattr(fs, method)(*args, **kwargs)

    def _call(self, method: str, name: str, *args: object, **kwargs: Any) -> Any:
        """Calls a method of the filesystem with the path of a name."""
        fs, path = self._at(name)
        return self._run(fs, method, path, *args, **kwargs)

    def _tried(self, what: str, call: Callable[[], T]) -> T:
        """The result of the call, tried a few times, with growing pauses between."""
        if self._place not in _ASKED:
            _ASKED.add(self._place)
            if pause := first_pause(num_starting(), random.random()):
                time.sleep(pause)
        started = time.monotonic()
        for tries in range(1, max(_TRIES, _BUSY_TRIES) + 1):
            try:
                found = call()
            except Exception as error:
                is_unreached = _is_unreached(error)
                if not is_unreached:
                    _ANSWERED.add(self._place)
                if _is_final(error):
                    is_missing = isinstance(error, FileNotFoundError)
                    if is_missing and (what.startswith("write") or _names_bucket(error)):
                        raise RemoteError(
                            f"cannot {what}: {_described(error)}. Does the bucket exist?"
                        ) from error
                    if isinstance(error, (FileNotFoundError, FileExistsError, ImportError)):
                        raise
                    raise RemoteError(f"cannot {what}: {_described(error)}{_hint(error)}") from error
                is_busy = bool(_statuses(error) & _BUSY)
                most, longest = _BUSY_TRIES if is_busy else _TRIES, _LONGEST_SILENCE
                if self._place not in _ANSWERED:
                    most, longest = min(most, _FIRST_TRIES), _FIRST_SILENCE
                if tries >= most or time.monotonic() - started > longest:
                    hint = "Is the store running, and its endpoint right?"
                    if is_busy or is_unreached:
                        hint = "It is busy." if is_busy else f"Is there a network? {hint}"
                    raise RemoteError(
                        f"cannot {what}: {_described(error)} (tried {tries} times). {hint} Try again; what "
                        "has been done so far is kept"
                    ) from error
                pause = pause_after(tries, random.random(), is_busy)
                _log.info("%s: %s; trying again in %.1f s", what, _described(error), pause)
                time.sleep(pause)
            else:
                _ANSWERED.add(self._place)
                return found
        raise AssertionError("the last try returns or raises")


async def _got_from_s3(fs: AbstractFileSystem, path: str, most: int) -> tuple[bytes, str]:
    """At most `most` bytes of an object, and its ETag."""
    bucket, key, _ = fs.split_path(path)
    found = await fs._call_s3("get_object", Bucket=bucket, Key=key)
    pieces, size = [], 0
    async with found["Body"] as body:
        # To its end, where the client notices that it was cut.
        while size < most and (piece := await body.read(most - size)):
            pieces.append(piece)
            size += len(piece)
    return b"".join(pieces), found["ETag"]


async def _put_into_gcs(fs: AbstractFileSystem, path: str, data: bytes, generation: str) -> None:
    """Replaces an object only if it is of that generation."""
    bucket, key, _ = fs.split_path(path)
    # Two parts, because some servers ignore conditions on an upload of a single part.
    boundary = secrets.token_hex(16)
    head = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': key})}\r\n"
    head += f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    await fs._call(
        "POST",
        f"{fs._location}/upload/storage/v1/b/{quote(bucket)}/o",
        uploadType="multipart",
        ifGenerationMatch=generation,
        headers={"Content-Type": f"multipart/related; boundary={boundary}"},
        data=head.encode() + data + f"\r\n--{boundary}--".encode(),
        json_out=True,
    )


_SENDING = threading.local()
_MEMORY = threading.Lock()  # for the objects of `memory://`
# By the token of their owner, and the last of each bucket or host.
_OPTIONS: dict[str, dict[str, object]] = {}
_INHERITED: list[object] = []
_ASKED: set[str] = set()  # buckets and hosts
_ANSWERED: set[str] = set()  # buckets and hosts: if they restart, they are waited for


def _refuse_unknown(protocol: str) -> None:
    """Raises ValueError if fsspec does not know such stores."""
    import fsspec

    known = {*fsspec.available_protocols(), *fsspec.registry}  # those of classes that a program registers
    if re.fullmatch(r"[a-z0-9+.-]+", protocol) and protocol not in known:
        like = difflib.get_close_matches(protocol, known, 3, 0.4) or ["s3", "gs", "az", "https", "memory"]
        raise ValueError(f"{protocol}:// URLs are unknown to fsspec; did you mean one of {like}?")


def _remade(url: str, token: str, options: dict[str, object] | None, has_answered: bool) -> Remote:
    found = Remote(url, options)
    if has_answered:
        _ANSWERED.add(found._place)
    found._token = token
    found._options = options or _OPTIONS.get(token) or _OPTIONS.get(found._place) or {}
    found._remember()
    return found


def _s3_config() -> dict[str, object]:
    """Options for botocore, unless `storage_options` tell it something else."""
    # Otherwise s3fs, botocore and aiohttp each retry what the others have already retried.
    found: dict[str, object] = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 0}}
    with contextlib.suppress(ImportError):  # s3fs says what is missing
        from botocore.config import Config

        if "response_checksum_validation" in Config.OPTION_DEFAULTS:  # since 1.36
            # Files have checksums of their own; botocore's takes as long as the rest of a download.
            found["response_checksum_validation"] = "when_required"
    return found


def _own_name() -> str:
    """A name that no other process uses, in a place where `clean` finds it."""
    return f".leases/clock-{secrets.token_hex(8)}"


def _total(bounds: Iterable[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in bounds)


def _seconds(nbytes: int) -> float:
    return _PATIENCE + nbytes / _SLOWEST


def _linked(fs: AbstractFileSystem, path: str) -> dict[str, Info]:
    """The files that an HTTP server's pages of links lead to, at most three folders down, below a path."""
    found, folders = {}, [path.rstrip("/") + "/"]
    for _ in range(4):
        deeper = []
        for folder in folders:
            for info in fs.ls(folder, detail=True):
                name = info["name"]
                if not name.startswith(folder) or name == folder or "?" in name:
                    continue
                if name.endswith("/"):
                    deeper.append(name)
                else:
                    found[name] = info
        folders = deeper
    return found


def _seconds_of(value: object) -> float | None:
    if isinstance(value, datetime.datetime):
        known = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        return known.timestamp()
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        try:
            return _seconds_of(datetime.datetime.fromisoformat(value.replace("Z", "+00:00")))
        except ValueError:
            return None
    return None


def _is_final(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _FINAL_ERRNOS:
        return True
    if _is_beyond(error):  # there will be no more bytes in it
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & _FINAL_NAMES) or (isinstance(error, _FINAL) and "Timeout" not in type(error).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _is_unreached(error: BaseException) -> bool:
    """True if nothing listens there, or no way leads there, or its name is not known."""
    found = list(_causes(error))
    is_unknown = any(isinstance(cause, socket.gaierror) for cause in found)
    return is_unknown or any(getattr(cause, "errno", None) in _UNREACHED for cause in found)


def _statuses(error: BaseException) -> set[str]:
    """The server's answers, as far as its client passes them on."""
    found = set()
    for cause in _causes(error):
        status = getattr(cause, "status", None)
        found.add(str(getattr(cause, "code", "") if status is None else status))
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            found.add(str(response.get("Error", {}).get("Code")))
    return found


def _is_beyond(error: Exception) -> bool:
    """True if no byte was within the requested range."""
    is_reported = (
        isinstance(error, OSError) and error.errno == errno.EINVAL and "range" in str(error.args[-1])
    )
    return is_reported or bool(_statuses(error) & {"416", "InvalidRange"})


def _is_unknown(error: Exception) -> bool:
    """True if the client or the server does not support the request."""
    names = {type(cause).__name__ for cause in _causes(error)}
    return "ParamValidationError" in names or bool(_statuses(error) & {"501", "NotImplemented"})


def _names_bucket(error: Exception) -> bool:
    return bool(_statuses(error) & {"NoSuchBucket", "ContainerNotFound"})


def _described(error: BaseException) -> str:
    # A server may have led to an address that is signed, or that has a password.
    told = re.sub(r"(?<=://)[^\s/@]+@|\?[^\s'\")>]*=[^\s'\")>]*", "", f"{type(error).__name__}: {error}")
    return " ".join(told.split())[:300]


def _hint(error: Exception) -> str:
    if "RequestTimeTooSkewed" in _statuses(error):
        return ". This machine's clock is more than 15 minutes off that of the store; set it"
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _FINAL_NAMES:
        return ". Pass storage_options to Storage, or set the environment variables of the store's client"
    if isinstance(error, PermissionError):
        return ". The credentials do not allow it; pass others in storage_options"
    return ""
