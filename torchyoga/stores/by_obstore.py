"""Objects of S3, GCS and web servers, read by obstore where it is installed.

It takes a fifth of the processor's time of the clients below fsspec, and gives up the interpreter's lock. It
is told what fsspec's filesystem has found out: the server, the region, the credentials, asked for again when
they are five minutes old. What it was told nothing of, and whatever fails, is left to that filesystem, which
says what is wrong in words that callers know.
"""

from __future__ import annotations

import logging
import math
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..process.threads import in_forked_child
from .kinds import Sink

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


_log = logging.getLogger("torchyoga")
_MOST_BYTES = 2**24  # of a request, which are in memory before they are added
_MOST_FAILURES = 3  # one after the other, after which obstore is not asked any more
_RENEWED = timedelta(minutes=5)
_PLAIN = re.compile(r"[\w.=/+-]+", re.ASCII)  # what every client writes in the same way into an address


class ByObstore:
    """Reads objects of one filesystem of fsspec by obstore.

    Args:
        protocol: of its URLs.
    """

    def __init__(self, protocol: str) -> None:
        self._made_by = _MADE_BY.get(protocol)
        self._is_web = protocol in ("http", "https")
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
            _log.info("%s: obstore: %s; fsspec reads it", path, type(error).__name__)
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
        "timeout": timedelta(seconds=seconds),
    }
    return {"client_options": {**options, **more}, "retry_config": {"max_retries": 0}}


def _awaited(fs: Any, get: Callable[[], Any]) -> Any:
    import fsspec.asyn

    return fsspec.asyn.sync(fs.loop, get, timeout=60)


def _soon() -> datetime:
    return datetime.now(timezone.utc) + _RENEWED


def _is_by_proxy(url: str) -> bool:
    """True if the environment names a proxy for an address, which not every client of fsspec goes by."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    has_one = parts.scheme in proxies or "all" in proxies
    return has_one and not urllib.request.proxy_bypass(parts.hostname or "")


# What s3fs is told and obstore as well.
_S3_CLIENT = {"endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key"}
_WAITS = {"connect_timeout", "read_timeout"}
_S3_CONFIG = {*_WAITS, "retries", "response_checksum_validation", "region_name"}


def _of_s3fs(fs: Any, bucket: str, seconds: float) -> Any:
    """The store of a bucket; None if the filesystem was told what obstore would not do."""
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
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
        }

    def provided() -> Any:
        found = own if own["access_key_id"] else _awaited(fs, credentials)
        return {**found, "expires_at": _soon()}

    # All of it, as obstore would else look into the environment.
    config: dict[str, Any] = {"endpoint": about.endpoint_url, "region": about.region_name}
    config |= {"skip_signature": bool(fs.anon), "virtual_hosted_style_request": False}
    if not fs.anon:
        config["credential_provider"] = provided
    waits = {name: timedelta(seconds=fs.config_kwargs[name]) for name in _WAITS & fs.config_kwargs.keys()}
    return S3Store(bucket, **config, **_client(seconds, **waits))


def _of_gcsfs(fs: Any, bucket: str, seconds: float) -> Any:
    """The store of a bucket; None if the filesystem was told what obstore would not do."""
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
    """The store of a web server; None if the filesystem was told what obstore would not do."""
    from obstore.store import HTTPStore

    others = [fs.client_kwargs.keys() - {"headers"}, fs.kwargs.keys() - {"headers"}]
    if any(others) or fs.encoded or _is_by_proxy(host):
        return None
    # The filesystem sends those of its requests in place of those of its session.
    headers = {**fs.client_kwargs.get("headers", {}), **fs.kwargs.get("headers", {})}
    return HTTPStore(host, **_client(seconds, default_headers=headers))


_MADE_BY: dict[str, Callable[[Any, str, float], Any]] = {
    "s3": _of_s3fs,
    "s3a": _of_s3fs,
    "gs": _of_gcsfs,
    "gcs": _of_gcsfs,
    "http": _of_web,
    "https": _of_web,
}
