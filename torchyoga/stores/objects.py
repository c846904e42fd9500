"""A folder behind a URL: bytes under names, by fsspec; every call is bounded in time and retried.

Options of a store are pickled only for a process that is being started.
multiprocessing shows when that happens; a checkpoint never holds them.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing.context import get_spawning_popen
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..errors import CorruptError, RemoteError
from ..process.lazy import cached_property
from ..process.messages import log
from ..process.threads import renew_in_children
from .kinds import KINDS, ByObstore, Kind, Memory, ObjectInfo, Sink, Web, seconds_for
from .retry import ANSWERED, is_beyond, names_bucket, statuses, tried

T = TypeVar("T")
_TRIES = 6  # to send a file that does not arrive, or to read one that is replaced meanwhile
_DELETIONS = 8  # at once
_READ_ONLY = {"http", "https", "github", "zip", "tar"}
_SENDING = threading.local()
# By the token of their owner, and the last of each bucket or host.
_OPTIONS: dict[str, dict[str, object]] = {}
_INHERITED: list[object] = []


@contextlib.contextmanager
def sent_with_options() -> Iterator[None]:
    """Stores that this thread pickles meanwhile keep their options: for workers that the user has started."""
    _SENDING.options = True
    try:
        yield
    finally:
        _SENDING.options = False


class Objects:
    """Bytes under names, in the folder behind a URL.

    It holds no connection: each process makes its own when it first needs one, also after a fork. It pickles
    without its options, which may hold credentials, unless a process is being started with it, or work is
    sent to one; a pickle that is loaded elsewhere gets the options last used there for the URL, or the
    environment's.

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
        self._kind = KINDS.get(self.protocol, Kind)
        _refuse_unknown(self.protocol)
        if self._kind not in (Kind, Memory) and not parts.netloc:
            raise ValueError(f"{url!r} names no {'host' if self._kind is Web else 'bucket'}")
        self.url = f"{self.protocol}://{url.partition('://')[2].rstrip('/')}"
        self._options: dict[str, Any] = dict(options or {})
        self._token = secrets.token_hex(8)
        self._ignores_conditions = False
        self._filesystem: tuple[Kind, str] | None = None
        self._obstore = ByObstore(self._kind)
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
        return _remade, (self.url, self._token, options, self._place in ANSWERED)

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
        return f"Objects({self.url!r})"

    @property
    def options(self) -> Mapping[str, object]:
        """Options for the filesystem."""
        return self._options

    def at(self, folder: str) -> Objects:
        """The bytes under names in a folder of this one."""
        return Objects(f"{self.url}/{folder}", self._options)

    @property
    def is_conditional(self) -> bool:
        """True if this store, as far as is known, can create an object in one step only if none exists."""
        is_known = self._kind.is_conditional or getattr(self._at("")[0].fs, "creates_once", False)
        return is_known and not self._ignores_conditions

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
        # One byte more than allowed, without asking for the size first.
        data = self._call("read", name, lambda kind, path: kind.get(path, limit + 1))
        if len(data) > limit:
            raise CorruptError(
                f"{self.where(name)} is larger than {limit} bytes; that is not what belongs there"
            )
        return data

    def read_tagged(self, name: str, limit: int) -> tuple[bytes, str | None]:
        """All bytes under a name, and a tag by which the store tells them from later contents.

        The tag is None for a store that has none, or cannot replace an object by its tag; see `replace`.

        Raises:
            FileNotFoundError: nothing has that name.
            CorruptError: there are more than `limit` bytes.
            RemoteError: the store cannot be reached or refuses.
        """
        if not (self._kind.has_tags and self.is_conditional):
            return self.read(name, limit), None
        for _ in range(_TRIES):
            before, data = self.find_one(name), self.read(name, limit)
            if before is not None and before == self.find_one(name):
                return data, before.tag
        raise RemoteError(f"{self.where(name)} is replaced again and again while it is read; try again")

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
        """
        seconds = seconds_for(sum(stop - start for start, stop in bounds))

        def read(kind: Kind, path: str) -> list[bytes]:
            found = self._obstore.ranges(kind.fs, path, bounds, seconds)
            return kind.ranges(path, bounds, nbytes) if found is None else found

        runs = self._sized(name, nbytes, read)
        # Some servers send all, whatever is asked for.
        return [runs[0][start:stop] for start, stop in bounds] if runs and len(runs[0]) == nbytes else runs

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

        def read(kind: Kind, path: str) -> None:
            if self._obstore.read(kind.fs, path, sink, nbytes, seconds_for(nbytes - sink.at)):
                return
            if sink.at < nbytes:
                kind.stream(path, sink, nbytes)
            if sink.at != nbytes:
                raise ConnectionError(f"{sink.at} of {nbytes} bytes arrived")

        self._sized(name, nbytes, read)

    def _sized(self, name: str, nbytes: int, read: Callable[[Kind, str], T]) -> T:
        """The result of `read`, tried a few times; CorruptError if the object does not have so many bytes."""

        def sized(kind: Kind, path: str) -> T:
            try:
                return read(kind, path)
            except Exception as error:
                # Only if the store has answered: it would be waited for once more.
                is_answered = type(error) is ConnectionError or is_beyond(error)
                found = kind.found(kind.run("info", path)).nbytes if is_answered else None
                if found in (None, nbytes):
                    raise
                raise CorruptError(
                    f"{self.where(name)} has {found} bytes where {nbytes} were published; remove the version "
                    "and publish it again"
                ) from error

        return self._call("read", name, sized)

    def find(self, folder: str = "") -> dict[str, ObjectInfo]:
        """All objects under a folder, at any depth, by their names within it; empty if there are none."""
        try:
            kind, base = self._call("list", folder, lambda *place: place)
            infos = kind.find(base, partial(tried, f"list {self.where(folder)}", self._place))
        except FileNotFoundError:
            return {}
        return {name: kind.found(infos[path]) for path, name in self._within(folder, infos) if name}

    def folders(self, folder: str = "") -> list[str]:
        """Names of the folders in a folder, sorted."""
        if "//" in self.url.partition("://")[2]:  # the `ls` of some filesystems leaves out such names
            return sorted({name.split("/")[0] for name in self.find(folder) if "/" in name})
        try:
            paths = self._call("list", folder, lambda kind, path: kind.folders(path))
        except FileNotFoundError:
            return []
        return sorted({name.strip("/") for _, name in self._within(folder, paths)})

    def _within(self, folder: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The paths that lie below a folder, and their names within it."""
        kind, path = self._at(folder)
        base = kind.fs._strip_protocol(path).rstrip("/") + "/"
        return ((path, kind.decoded(path.removeprefix(base))) for path in paths if path.startswith(base))

    def find_one(self, name: str) -> ObjectInfo | None:
        """The object under one name; None if there is none."""
        try:
            return self._call("read", name, lambda kind, path: kind.found(kind.run("info", path)))
        except FileNotFoundError:
            return None

    # -- writing

    def create(self, name: str, data: bytes) -> bool:
        """Puts bytes under a new name, in one step where `is_conditional`; False if something else has it.

        Pass data that no other writer would write: this shows whether a reply or a race was lost.

        Raises:
            RemoteError: it cannot be written.
        """

        def create(kind: Kind, path: str) -> None:
            if self.is_conditional:
                try:
                    kind.create(path, data)
                    return
                except NotImplementedError:
                    log.warning("%s cannot create conditionally; see docs/remote.md", self.url)
            if self.find_one(name) is not None:
                raise FileExistsError(name)
            kind.put(path, data)

        self._prepare(name)
        return self._written(name, data, create)

    def replace(self, name: str, data: bytes, tag: str | None, is_seen: Callable[[], bool]) -> bool:
        """Puts bytes under a name, in place of the contents that `read_tagged` gave; False if it has others.

        In one step if there is a tag; without one, `is_seen` is called before each try, and another writer
        may come in between. Pass data that no other writer would write: this shows whether a reply or a race
        was lost.

        Raises:
            RemoteError: it cannot be written.
        """

        def replace(kind: Kind, path: str) -> None:
            if tag is None and not is_seen():
                raise FileExistsError(name)
            try:
                kind.put(path, data) if tag is None else kind.replace(path, data, tag)
            except Exception as error:
                is_gone = isinstance(error, FileNotFoundError) and not names_bucket(error)
                if is_gone or statuses(error) & {"412", "PreconditionFailed"}:
                    raise FileExistsError(name) from error  # these are not the contents to replace
                raise

        self._prepare(name)
        if tag is not None and not is_seen():  # servers may ignore conditions without saying so
            return False
        return self._written(name, data, replace)

    def _written(self, name: str, data: bytes, write: Callable[[Kind, str], None]) -> bool:
        """Writes; True if the name holds these bytes then, although a lost reply may hide that."""
        try:
            self._call("write", name, write)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError, CorruptError):
                return self.read(name, len(data)) == data
            return False
        return True

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

        def create(kind: Kind, path: str) -> bool:
            try:
                kind.create(path, data)
            except (FileExistsError, NotImplementedError) as error:
                return isinstance(error, FileExistsError)
            return False

        return self._call("write", name, create)

    def write(self, name: str, data: bytes) -> None:
        """Puts bytes under a name, in place of any others; RemoteError if that cannot be done."""
        self._prepare(name)
        self._call("write", name, lambda kind, path: kind.put(path, data))

    def upload(self, path: str, name: str) -> None:
        """Puts a file of this machine under a name; RemoteError if that cannot be done."""
        nbytes = os.stat(path).st_size
        seconds = seconds_for(nbytes)
        self._prepare(name)
        for _ in range(_TRIES):
            # Two requests, each retried by itself: both pass a server that refuses every second one.
            self._call("write", name, lambda kind, to: kind.run("put_file", path, to, seconds=seconds))
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
                self._call("remove", name, lambda kind, path: kind.run("rm_file", path))

        left = iter(names)
        for name in islice(left, 1):
            delete(name)  # an error for one is an error for all
        with ThreadPoolExecutor(_DELETIONS, thread_name_prefix="torchyoga remove") as pool:
            deque(pool.map(delete, left), maxlen=0)

    def delete_seen(self, name: str, tag: str | None) -> None:
        """Removes the contents that `read_tagged` gave, and no others, in one step if there is a tag and the
        store can; if they are gone already, that is not an error."""

        def delete(kind: Kind, path: str) -> None:
            try:
                kind.run("rm_file", path) if tag is None else kind.delete_seen(path, tag)
            except Exception as error:
                if not statuses(error) & {"412", "PreconditionFailed"}:
                    raise  # else there is a newer object by now, and it stays

        with contextlib.suppress(FileNotFoundError):
            self._call("remove", name, delete)

    def refuse_read_only(self) -> None:
        """Raises RemoteError if nothing can be written, whatever the credentials."""
        if self.protocol in _READ_ONLY:
            raise RemoteError(
                f"{self.url} can only be read; publish to a storage that you may write, and copy from there"
            )

    def _prepare(self, name: str) -> None:
        self.refuse_read_only()
        if self._kind.has_folders:
            self._call("write", name, lambda kind, path: kind.make_folder(path.rpartition("/")[0]))

    # -- calls

    def _call(self, what: str, name: str, call: Callable[[Kind, str], T]) -> T:
        """The result of a call with the filesystem of this process and the path of a name, tried a few
        times."""
        return tried(f"{what} {self.where(name)}", self._place, lambda: call(*self._at(name)))

    def _at(self, name: str) -> tuple[Kind, str]:
        """The store as this process has it, and the path of a name in it."""
        found = self._filesystem
        if found is None:
            with self._lock:
                found = self._filesystem
                if found is None:
                    found = self._filesystem = self._made()
        kind, base = found
        return kind, f"{base}/{kind.encoded(name)}" if name else base

    def _made(self) -> tuple[Kind, str]:
        import fsspec

        options = {"skip_instance_cache": True, "use_listings_cache": False, **self._options}
        try:
            fs, path = fsspec.core.url_to_fs(self.url, **self._kind.options(options))
        except ImportError as error:
            extra = self._kind.extra
            hint = f"pip install 'torchyoga[{extra}]'" if extra else str(error)
            raise ImportError(f"{self.protocol}:// needs a package that is not installed; {hint}") from error
        fs.retries = 1  # of s3fs; see `retry`
        return self._kind(fs), path.rstrip("/")


def _refuse_unknown(protocol: str) -> None:
    """Raises ValueError if fsspec does not know such stores."""
    import fsspec

    known = {*fsspec.available_protocols(), *fsspec.registry}  # those of classes that a program registers
    if re.fullmatch(r"[a-z0-9+.-]+", protocol) and protocol not in known:
        like = difflib.get_close_matches(protocol, known, 3, 0.4) or ["s3", "gs", "az", "https", "memory"]
        raise ValueError(f"{protocol}:// URLs are unknown to fsspec; did you mean one of {like}?")


def _remade(url: str, token: str, options: dict[str, object] | None, has_answered: bool) -> Objects:
    found = Objects(url, options)
    if has_answered:
        ANSWERED.add(found._place)
    found._token = token
    found._options = options or _OPTIONS.get(token) or _OPTIONS.get(found._place) or {}
    found._remember()
    return found


def _own_name() -> str:
    """A name that no other process uses, in a place where `clean` finds it."""
    return f".leases/clock-{secrets.token_hex(8)}"
