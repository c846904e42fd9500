"""What each kind of store can do: S3, GCS, Azure, web servers, memory, and whatever else fsspec knows.

A method makes one request, or several where it is given `tried`, which retries each by itself.

What is downloaded goes straight into its file.
To collect a run of 8 MiB in memory first, as fsspec's `cat_ranges` does, costs the client half as much again.

obstore reads where it can.
It takes a fifth of the processor's time of the clients below fsspec, and gives up the interpreter's lock. It
gets what fsspec's filesystem has found out: the server, the region, the credentials, asked for again when
they are five minutes old. Options that it does not have, and whatever fails, are left to that filesystem,
which says what is wrong in words that callers know.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..errors import RemoteError
from ..process.messages import log
from ..process.threads import in_forked_child, renew_in_children
from .retry import causes, is_beyond, statuses

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
Info: TypeAlias = Mapping[str, Any]  # of an object, as its filesystem describes it
Tried: TypeAlias = Callable[[Callable[[], Any]], Any]
PATIENCE = 60.0  # seconds that any call may take, besides its bytes
_SLOWEST = 64 * 2**10  # bytes a second; a store slower than that counts as hanging
_ALL_PAGES = 100_000  # of a thousand names each; a longer listing is taken for an endless one
_PIECE = 2**20  # bytes
_OTHER = "the server answered a request of a range with something else"
_RUN, _RUNS = 8 * 2**20, 2  # bytes of a request, and requests at once, for what is longer than all of them
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created", "timeCreated")
_TAGS = ("ETag", "generation", "etag", "Last-Modified")


class ObjectInfo(NamedTuple):
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


class Sink(Protocol):
    """A receiver of bytes that are read, piece by piece."""

    at: int  # bytes so far

    def add(self, piece: bytes) -> None:
        """Takes the next bytes."""

    def restart(self) -> None:
        """Discards the bytes so far."""


def seconds_for(nbytes: int) -> float:
    """How long a request of so many bytes may take."""
    return PATIENCE + nbytes / _SLOWEST


class Kind:
    """Any store that fsspec knows, by what its filesystem can do.

    Args:
        fs: the filesystem.

    Attributes:
        extra: of this package, which installs what the filesystem needs.
        is_conditional: it can create an object in one step only if none exists.
        has_tags: then it can also replace and delete an object by the tag that `found` gives.
        has_folders: they must be made before a file is put there.
    """

    extra: str | None = None
    is_conditional = has_tags = False
    has_folders = True

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs: Any = fs

    @staticmethod
    def options(given: dict[str, Any]) -> dict[str, Any]:
        """Options for the filesystem, with those that were given."""
        return given

    @staticmethod
    def encoded(name: str) -> str:
        """A name, as a path has it."""
        return name

    @staticmethod
    def decoded(name: str) -> str:
        """The name that a path has; undoes `encoded`."""
        return name

    def run(self, method: str, *args: object, seconds: float = PATIENCE, **kwargs: object) -> Any:
        """Calls a method of the filesystem; bounded in time if it is an asynchronous one."""
        import fsspec.asyn

        coroutine = getattr(self.fs, f"_{method}", None)
        if getattr(self.fs, "async_impl", False) and coroutine is not None:
            return fsspec.asyn.sync(self.fs.loop, coroutine, *args, timeout=seconds, **kwargs)
        return getattr(self.fs, method)(*args, **kwargs)

    def awaited(self, function: Callable[..., Any], *args: object, seconds: float = PATIENCE) -> Any:
        """The result of a coroutine function, run in the filesystem's own loop."""
        import fsspec.asyn

        return fsspec.asyn.sync(self.fs.loop, function, *args, timeout=seconds)

    # -- reading

    def get(self, path: str, most: int) -> bytes:
        """The first bytes of an object, at most so many."""
        try:
            return bytes(self.run("cat_file", path, start=0, end=most, seconds=5 * PATIENCE))
        except Exception as error:
            if is_beyond(error):
                return b""  # no range lies within an empty object
            raise

    def ranges(self, path: str, bounds: list[tuple[int, int]], nbytes: int) -> list[bytes]:
        """Runs of an object of so many bytes; all of it as the only run, if the server knows no ranges."""
        starts, stops = map(list, zip(*bounds, strict=True))
        seconds = seconds_for(sum(stop - start for start, stop in bounds))
        paths = [path] * len(bounds)
        found: list[Any] = self.run("cat_ranges", paths, starts, stops, on_error="return", seconds=seconds)
        for error in (run for run in found if isinstance(run, BaseException)):
            raise error
        if len(found[0]) == nbytes:
            return [bytes(found[0])]
        for run, (start, stop) in zip(found, bounds, strict=True):
            if len(run) != stop - start:
                raise ConnectionError(f"{len(run)} bytes arrived where {stop - start} were asked for")
        return found

    def stream(self, path: str, sink: Sink, nbytes: int) -> None:
        """Reads the rest of an object, some runs at once, each of which is in memory before it is added."""
        if self.found(self.run("info", path)).nbytes not in (None, nbytes):
            raise ConnectionError("it has another number of bytes")
        while sink.at < nbytes:
            starts = range(sink.at, min(sink.at + _RUNS * _RUN, nbytes), _RUN)
            runs = self.ranges(path, [(start, min(start + _RUN, nbytes)) for start in starts], nbytes)
            if len(runs[0]) == nbytes and sink.at:  # the whole file, whatever was asked for
                sink.restart()
            for run in runs:
                sink.add(run)

    def find(self, path: str, tried: Tried) -> Mapping[str, Info]:
        """All objects below a folder, by their paths."""
        return dict(tried(lambda: self.run("find", path, detail=True, seconds=10 * PATIENCE)))

    def folders(self, path: str) -> list[str]:
        """The paths of the folders in a folder."""
        infos = self.run("ls", path, detail=True, seconds=10 * PATIENCE)
        return [info["name"] for info in infos if info["type"] == "directory"]

    def found(self, info: Info) -> ObjectInfo:
        """An object, as its filesystem describes it."""
        size = info.get("size", info.get("Size"))
        written = next((found for key in _TIMES if (found := seconds_of(info.get(key))) is not None), None)
        tag = next((str(info[key]) for key in _TAGS if info.get(key) is not None), None)
        return ObjectInfo(None if size is None else int(size), written, tag)

    # -- writing

    def make_folder(self, path: str) -> None:
        """Makes a folder, where there are some."""
        self.run("makedirs", path, exist_ok=True)

    def put(self, path: str, data: bytes) -> None:
        """Replaces an object."""
        self.run("pipe_file", path, data, seconds=seconds_for(len(data)))

    def create(self, path: str, data: bytes) -> None:
        """Creates an object; FileExistsError if there is one, where `is_conditional`."""
        self.run("pipe_file", path, data, mode="create", seconds=seconds_for(len(data)))

    def replace(self, path: str, data: bytes, tag: str) -> None:
        """Replaces the contents of this tag; FileExistsError or the store's answer if they are others."""
        self.put(path, data)

    def delete_seen(self, path: str, tag: str) -> None:
        """Deletes the contents of this tag; an answer may say that they are others."""
        self.run("rm_file", path)


class S3(Kind):
    """S3, by s3fs; the tag of an object is its ETag."""

    extra = "s3"
    is_conditional = has_tags = True
    has_folders = False

    @staticmethod
    def options(given: dict[str, Any]) -> dict[str, Any]:
        """Options with a configuration of botocore, whose retries are off."""
        return {**given, "config_kwargs": {**_s3_config(), **given.get("config_kwargs", {})}}

    def stream(self, path: str, sink: Sink, nbytes: int) -> None:
        """Reads the rest of an object, piece by piece."""
        self.awaited(_from_s3, self.fs, path, sink, nbytes, seconds=seconds_for(nbytes - sink.at))

    def find(self, path: str, tried: Tried) -> Mapping[str, Info]:
        """All objects below a folder.

        One request for each page, retried by itself: s3fs would make a second request if nothing exists,
        start over if one page fails, and leave out empty names.
        """
        bucket, _, prefix = path.partition("/")
        asked: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{prefix}/" if prefix else ""}
        found: dict[str, Info] = {}
        for _ in range(_ALL_PAGES):
            page: Info = tried(lambda: self.run("call_s3", "list_objects_v2", **asked))
            found |= {f"{bucket}/{info['Key']}": info for info in page.get("Contents", [])}
            if not page.get("IsTruncated"):
                return found
            asked["ContinuationToken"] = page["NextContinuationToken"]
        raise RemoteError(f"cannot list s3://{path}: its listing has no end; is that the right URL?")

    def replace(self, path: str, data: bytes, tag: str) -> None:
        """Replaces the contents of this ETag, in one piece: only such a write can be conditional."""
        self.run("pipe_file", path, data, seconds=seconds_for(len(data)), IfMatch=tag, chunksize=2**30)

    def delete_seen(self, path: str, tag: str) -> None:
        """Deletes the contents of this ETag; whatever is there by now, if the client or the server knows no
        conditions on deletions."""
        bucket, key, _ = self.fs.split_path(path)
        try:
            self.run("call_s3", "delete_object", Bucket=bucket, Key=key, IfMatch=tag)
        except Exception as error:
            names = {type(cause).__name__ for cause in causes(error)}
            if "ParamValidationError" not in names and not statuses(error) & {"501", "NotImplemented"}:
                raise
            self.run("rm_file", path)


class Gcs(Kind):
    """Google Cloud Storage, by gcsfs; the tag of an object is its generation."""

    extra = "gcs"
    is_conditional = has_tags = True
    has_folders = False

    def __init__(self, fs: AbstractFileSystem) -> None:
        super().__init__(fs)
        once = getattr(getattr(type(fs), "_request", None), "__wrapped__", None)
        if once is not None:  # gcsfs has six tries, of half a minute, built in
            self.fs._request = partial(once, fs)

    @staticmethod
    def options(given: dict[str, Any]) -> dict[str, Any]:
        """Options with a shorter wait: gcsfs asks for the kind of the bucket before each call."""
        return {"retry_timeout": 5.0, **given}

    def replace(self, path: str, data: bytes, tag: str) -> None:
        """Replaces the contents of this generation in one step."""
        self.awaited(_put_into_gcs, self.fs, path, data, tag, seconds=seconds_for(len(data)))

    def delete_seen(self, path: str, tag: str) -> None:
        """Deletes the contents of this generation in one step."""
        bucket, key, _ = self.fs.split_path(path)
        self.run("call", "DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=tag)


class Azure(Kind):
    """Azure Blob Storage, by adlfs."""

    extra = "azure"
    is_conditional = True
    has_folders = False


class Web(Kind):
    """A web server, by fsspec."""

    @staticmethod
    def encoded(name: str) -> str:
        """A name, quoted as in a URL."""
        return quote(name)

    @staticmethod
    def decoded(name: str) -> str:
        """A name without the quoting of a URL."""
        return unquote(name)

    def stream(self, path: str, sink: Sink, nbytes: int) -> None:
        """Reads the rest of a file, piece by piece."""
        self.awaited(_from_web, self.fs, path, sink, nbytes, seconds=seconds_for(nbytes - sink.at))

    def find(self, path: str, tried: Tried) -> Mapping[str, Info]:
        """The files that pages of links lead to."""
        return tried(lambda: self._if_listed(lambda: _linked(self.fs, path))) or {}

    def folders(self, path: str) -> list[str]:
        """The folders that a page of links leads to."""
        return self._if_listed(partial(super().folders, path)) or []

    @staticmethod
    def _if_listed(list_: Callable[[], T]) -> T | None:
        """A listing; None from a server that does not list folders."""
        try:
            return list_()
        except Exception as error:
            if statuses(error) & {"401", "403", "405"}:
                return None
            raise


class Memory(Kind):
    """Objects in this process; a tag is the time of writing."""

    is_conditional = has_tags = True
    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """Makes a new lock in a forked child."""
        cls.lock = threading.RLock()

    def found(self, info: Info) -> ObjectInfo:
        """An object, with the time of writing as its tag."""
        found = super().found(info)
        return found._replace(tag=str(found.written))

    def run(self, method: str, *args: object, **kwargs: Any) -> Any:
        """Calls a method in one step: fsspec's looks whether there is an object, and then creates it."""
        with self.lock:
            return super().run(method, *args, **kwargs)

    def replace(self, path: str, data: bytes, tag: str) -> None:
        """Replaces the contents of this time in one step."""
        with self.lock:
            if self.found(self.fs.info(path)).tag != tag:
                raise FileExistsError(path)
            self.fs.pipe_file(path, data)

    def delete_seen(self, path: str, tag: str) -> None:
        """Deletes the contents of this time in one step."""
        with self.lock:
            if self.found(self.fs.info(path)).tag == tag:
                self.fs.rm_file(path)


renew_in_children(Memory)
KINDS: dict[str, type[Kind]] = {
    **dict.fromkeys(("s3", "s3a"), S3),
    **dict.fromkeys(("gs", "gcs"), Gcs),
    **dict.fromkeys(("az", "abfs", "abfss"), Azure),
    **dict.fromkeys(("http", "https"), Web),
    "memory": Memory,
}


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


def seconds_of(value: object) -> float | None:
    """A time of a store in seconds since 1970; None if it is not known."""
    if isinstance(value, datetime.datetime):
        known = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        return known.timestamp()
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return seconds_of(datetime.datetime.fromisoformat(value.replace("Z", "+00:00")))
    return None


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


async def _from_web(fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int) -> None:
    """Reads a file of so many bytes from a web server, from the sink's position on.

    Raises:
        ConnectionError: more or other bytes arrived.
    """
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={sink.at}-"} if sink.at else {})}
    session = await fs.set_session()
    async with session.get(fs.encode_url(path), **{**fs.kwargs, "headers": headers}) as answer:
        fs._raise_not_found_for_status(answer, path)
        if answer.status != 206:
            sink.restart()
        elif not _is_range(answer.headers.get("Content-Range", ""), sink.at, nbytes):
            raise ConnectionError(_OTHER)
        async for piece in answer.content.iter_chunked(_PIECE):
            if sink.at + len(piece) > nbytes:
                raise ConnectionError(f"more than {nbytes} bytes arrived")
            sink.add(piece)


async def _from_s3(fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int) -> None:
    """Reads an object of so many bytes from S3, from the sink's position on.

    Raises:
        ConnectionError: more or other bytes arrived.
    """
    bucket, key, _ = fs.split_path(path)
    found = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={sink.at}-{nbytes - 1}")
    async with found["Body"] as body:
        sent = found.get("ContentRange")
        if sent is None:  # the server knows no ranges
            sink.restart()
        elif not _is_range(sent, sink.at, nbytes):
            raise ConnectionError(_OTHER)
        while piece := await body.read(_PIECE):
            if sink.at + len(piece) > nbytes:
                raise ConnectionError(f"more than {nbytes} bytes arrived")
            sink.add(piece)


def _is_range(content_range: str, start: int, nbytes: int) -> bool:
    """True for a range from a byte on, of an object of so many bytes, as a server's answer says it."""
    return content_range.startswith(f"bytes {start}-") and content_range.endswith(("/*", f"/{nbytes}"))


_MOST_BYTES = 2**24  # of a request, which are in memory before they are added
_MOST_FAILURES = 3  # one after the other, after which obstore is not asked any more
_RENEWED = datetime.timedelta(minutes=5)
_PLAIN = re.compile(r"[\w.=/+-]+", re.ASCII)  # what every client writes in the same way into an address


class ByObstore:
    """Reads objects of one filesystem of fsspec by obstore.

    Args:
        kind: of store.
    """

    def __init__(self, kind: type[Kind]) -> None:
        self._made_by = _MADE_BY.get(kind)
        self._is_web = kind is Web
        self._stores: dict[tuple[str, float], Any] = {}
        self._failures = 0

    def read(self, fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int, seconds: float) -> bool:
        """Reads an object of so many bytes, from the sink's position on; False if that is left to others.

        Args:
            fs: the filesystem, which knows the credentials.
            path: of the object, as the filesystem wants it.
            sink: takes the pieces; some of them, also if the answer is False.
            nbytes: of the whole object.
            seconds: that this may take.
        """
        ends = time.monotonic() + seconds

        def read(obstore: Any, store: Any, key: str) -> bool:
            while sink.at < nbytes:
                start, stop = sink.at, min(sink.at + _MOST_BYTES, nbytes)
                options = None if (start, stop) == (0, nbytes) else {"range": (start, stop)}
                reply = obstore.get(store, key, options=options)
                if reply.meta["size"] != nbytes:
                    raise ConnectionError(f"it has {reply.meta['size']} bytes where {nbytes} were expected")
                piece = reply.bytes()
                if len(piece) != stop - start:  # others go on from where the sink is
                    raise ConnectionError(f"{len(piece)} bytes arrived where {stop - start} were asked for")
                sink.add(piece)
                if time.monotonic() > ends:
                    raise TimeoutError(f"{sink.at} of {nbytes} bytes arrived in {seconds:.0f} s")
            return sink.at == nbytes

        return bool(self._tried(fs, path, seconds, read))

    def ranges(
        self, fs: AbstractFileSystem, path: str, bounds: Sequence[tuple[int, int]], seconds: float
    ) -> list[bytes] | None:
        """Runs of the bytes of an object, requested at once; None if that is left to others."""

        def read(obstore: Any, store: Any, key: str) -> list[bytes]:
            starts, ends = map(list, zip(*bounds, strict=True))
            runs = list(map(bytes, obstore.get_ranges(store, key, starts=starts, ends=ends, coalesce=0)))
            if [len(run) for run in runs] != [stop - start for start, stop in bounds]:
                raise ConnectionError("fewer bytes arrived than were asked for")
            return runs

        runs: list[bytes] | None = self._tried(fs, path, seconds, read)
        return runs

    def _tried(
        self, fs: AbstractFileSystem, path: str, seconds: float, read: Callable[[Any, Any, str], Any]
    ) -> Any:
        """The result of `read`, given obstore, a store and a key; None if obstore does not do it."""
        # In a forked child, obstore would wait for threads that its parent may have had.
        if self._made_by is None or self._failures >= _MOST_FAILURES or in_forked_child():
            return None
        try:
            import obstore

            bucket, key = _web_place(path) if self._is_web else _place(fs, path)
            # Few different bounds, as each store has connections of its own.
            wanted = bucket, 2.0 ** math.ceil(math.log2(seconds))
            if wanted not in self._stores:
                self._stores[wanted] = self._made_by(fs, *wanted)
            if self._stores[wanted] is None or not key:
                return None
            result = read(obstore, self._stores[wanted], key)
        except ImportError:
            self._failures = _MOST_FAILURES
            return None
        except Exception as error:  # whatever it is, the filesystem says it in words that callers know
            self._failures += 1
            log.info("%s: obstore: %s; fsspec reads it", path, type(error).__name__)
            return None
        self._failures = 0
        return result


def _place(fs: Any, path: str) -> tuple[str, str]:
    """The bucket or container of an object, and its key; no key if obstore would not find it."""
    bucket, key, version = fs.split_path(path)
    # An empty folder's name is none for obstore.
    return bucket, "" if version is not None or "//" in f"/{key}/" else key


def _web_place(path: str) -> tuple[str, str]:
    """A web server and the path of a file there; no path if obstore would not find it."""
    parts = urlsplit(path)
    is_whole = not (parts.query or parts.fragment or parts.username)
    key = parts.path[1:] if is_whole and _PLAIN.fullmatch(parts.path) else ""
    return f"{parts.scheme}://{parts.netloc}", "" if "//" in f"{parts.path}/" else key


def _client(seconds: float, **more: object) -> dict[str, Any]:
    """The options of a store besides its address; retries are in one place, which is not here."""
    options = {
        "allow_http": True,
        "connect_timeout": "10s",
        "read_timeout": "30s",
        "timeout": datetime.timedelta(seconds=seconds),
    }
    return {"client_options": {**options, **more}, "retry_config": {"max_retries": 0}}


def _soon() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc) + _RENEWED


def _is_by_proxy(url: str) -> bool:
    """True if the environment names a proxy for an address, which not every client of fsspec goes by."""
    import urllib.request  # 20 ms, with all of HTTP

    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    has_one = parts.scheme in proxies or "all" in proxies
    return has_one and not urllib.request.proxy_bypass(parts.hostname or "")


# Options that both s3fs and obstore have.
_S3_CLIENT = {"endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key"}
_WAITS = {"connect_timeout", "read_timeout"}
_S3_CONFIG = {*_WAITS, "retries", "response_checksum_validation", "region_name"}


def _of_s3fs(fs: Any, bucket: str, seconds: float) -> Any:
    """The store of a bucket; None if the filesystem has options that obstore does not have."""
    from obstore.store import S3Store

    others = [fs.client_kwargs.keys() - _S3_CLIENT, fs.config_kwargs.keys() - _S3_CONFIG]
    if any(others) or fs.s3_additional_kwargs or fs.req_kw or fs.version_aware:
        return None
    about = fs.s3.meta  # it has looked for its server everywhere
    own = {
        "access_key_id": fs.key or fs.client_kwargs.get("aws_access_key_id"),
        "secret_access_key": fs.secret or fs.client_kwargs.get("aws_secret_access_key"),
        "token": fs.token,
    }

    async def credentials() -> Any:
        keys = await (await fs.session.get_credentials()).get_frozen_credentials()
        return {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "token": keys.token}

    def provided() -> Any:
        found = own if own["access_key_id"] else Kind(fs).awaited(credentials)
        return {**found, "expires_at": _soon()}

    # All of it, as obstore would else look into the environment.
    config: dict[str, Any] = {"endpoint": about.endpoint_url, "region": about.region_name}
    config |= {"skip_signature": bool(fs.anon), "virtual_hosted_style_request": False}
    if not fs.anon:
        config["credential_provider"] = provided
    waits = {
        name: datetime.timedelta(seconds=fs.config_kwargs[name]) for name in _WAITS & fs.config_kwargs.keys()
    }
    return S3Store(bucket, **config, **_client(seconds, **waits))


def _of_gcsfs(fs: Any, bucket: str, seconds: float) -> Any:
    """The store of a bucket; None if the filesystem has options that obstore does not have."""
    from obstore.store import GCSStore

    url, known = fs._location, fs.credentials
    if fs.requester_pays or fs.version_aware or fs.session_kwargs or _is_by_proxy(url) or "mtls" in url:
        return None

    def provided() -> Any:
        known.maybe_refresh()
        return {"token": known.credentials.token, "expires_at": _soon()}

    is_anonymous = known.credentials is None
    config: dict[str, Any] = {} if is_anonymous else {"credential_provider": provided}
    return GCSStore(bucket, base_url=url, skip_signature=is_anonymous, **config, **_client(seconds))


def _of_web(fs: Any, host: str, seconds: float) -> Any:
    """The store of a web server; None if the filesystem has options that obstore does not have."""
    from obstore.store import HTTPStore

    others = [fs.client_kwargs.keys() - {"headers"}, fs.kwargs.keys() - {"headers"}]
    if any(others) or fs.encoded or _is_by_proxy(host):
        return None
    # The filesystem sends those of its requests in place of those of its session.
    headers = {**fs.client_kwargs.get("headers", {}), **fs.kwargs.get("headers", {})}
    return HTTPStore(host, **_client(seconds, default_headers=headers))


_MADE_BY: dict[type[Kind], Callable[[Any, str, float], Any]] = {S3: _of_s3fs, Gcs: _of_gcsfs, Web: _of_web}
