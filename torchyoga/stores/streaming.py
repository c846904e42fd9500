"""An object of a store into a sink, piece by piece, as the bytes arrive.

What is downloaded goes straight into its file.
To collect a run of 8 MiB in memory first, as fsspec's `cat_ranges` does, costs the client half as much again.
Of long objects two runs are requested at once, and the second waits in memory.

Objects of S3 that are not long are read by obstore, where it is installed.
It takes a fifth of the processor's time of aiobotocore, and gives up the interpreter's lock. It is told what
s3fs has found out: the server, the region, the credentials. What it does not do, or fails at, s3fs does from
there on, and says what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol

from ..process.forks import in_forked_child

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["ByObstore", "Sink", "from_s3", "from_web"]

_log = logging.getLogger("torchyoga")
_PIECE = 2**20  # bytes
_MOST_FAILURES = 3  # one after the other, after which obstore is not asked any more
_RENEWED = timedelta(minutes=5)  # after which credentials are asked for again
_RUN, _RUNS = 8 * 2**20, 2  # bytes of a request, and requests at once, for what is longer than all of them


class Sink(Protocol):
    """A receiver of bytes that are read, piece by piece."""

    at: int  # bytes so far

    def add(self, piece: bytes) -> None:
        """Takes the next bytes."""

    def restart(self) -> None:
        """Discards the bytes so far."""


async def from_web(fs: AbstractFileSystem, path: str, sink: Sink) -> None:
    """Reads a file from a web server, from the sink's position on."""
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={sink.at}-"} if sink.at else {})}
    session = await fs.set_session()
    async with session.get(fs.encode_url(path), **{**fs.kwargs, "headers": headers}) as answer:
        fs._raise_not_found_for_status(answer, path)
        begin = re.match(rf"bytes {sink.at}-", answer.headers.get("Content-Range", ""))
        if answer.status != 206 or begin is None:
            sink.restart()
        async for piece in answer.content.iter_chunked(_PIECE):
            sink.add(piece)


async def from_s3(fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int) -> None:
    """Reads an object of so many bytes from S3, from the sink's position on.

    Raises:
        ConnectionError: fewer or other bytes arrived; the sink may be asked to go on.
    """
    while sink.at < nbytes:
        start = sink.at
        if nbytes - start <= _RUN * _RUNS:
            await _copied(fs, path, start, nbytes, sink)
            return
        bounds = [(first, min(first + _RUN, nbytes)) for first in range(start, start + _RUN * _RUNS, _RUN)]
        later = [_Pieces(first) for first, _ in bounds[1:]]
        tasks = [
            asyncio.ensure_future(_copied(fs, path, *ends, pieces))
            for ends, pieces in zip(bounds[1:], later, strict=True)
        ]
        try:
            await _copied(fs, path, *bounds[0], sink)
            for task, pieces, (first, _) in zip(tasks, later, bounds[1:], strict=True):
                if sink.at != first:  # the server has sent more, or less
                    break
                await task
                for piece in pieces.found:
                    sink.add(piece)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if sink.at <= start:
            raise ConnectionError(f"no bytes arrived from byte {start} on")


async def _copied(fs: AbstractFileSystem, path: str, start: int, stop: int, sink: Sink) -> None:
    """Copies a run of an object; all of it to a sink that starts over, if the server knows no ranges."""
    bucket, key, _ = fs.split_path(path)
    found = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
    async with found["Body"] as body:
        if start and not re.match(rf"bytes {start}-", found.get("ContentRange", "")):
            sink.restart()
        while piece := await body.read(_PIECE):
            sink.add(piece)


class _Pieces:
    """A sink that keeps a run in memory; it has none of another run."""

    def __init__(self, start: int) -> None:
        self.at = start
        self.found: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Takes the next bytes."""
        self.found.append(piece)
        self.at += len(piece)

    def restart(self) -> None:
        """Refuses what is not the run that was requested."""
        raise ConnectionError("the server answered a request of a range with something else")


class ByObstore:
    """Reads objects of the buckets of one filesystem of s3fs by obstore."""

    def __init__(self) -> None:
        self._stores: dict[str, Any] = {}
        self._failures = 0

    def read(self, fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int, seconds: float) -> bool:
        """Reads an object of so many bytes, from the sink's position on; False if that is left to s3fs.

        Long objects are, as two runs of them are to be requested at once.

        Args:
            fs: an s3fs, which knows the credentials.
            path: of the object, with its bucket.
            sink: takes the pieces; some of them, also if the answer is False.
            nbytes: of the whole object.
            seconds: that this may take.
        """
        # In a forked child, obstore would wait for threads that its parent may have had.
        if self._failures >= _MOST_FAILURES or in_forked_child() or nbytes - sink.at > _RUN * _RUNS:
            return False
        bucket, key, version = fs.split_path(path)
        try:
            import obstore

            if bucket not in self._stores:
                self._stores[bucket] = _store(fs, bucket)
            if self._stores[bucket] is None or version is not None:
                return False
            start, ends = sink.at, time.monotonic() + seconds
            options: Any = {"range": (start, nbytes)} if start else None
            found = obstore.get(self._stores[bucket], key, options=options)
            if found.meta["size"] != nbytes:
                raise ConnectionError(f"it has {found.meta['size']} bytes where {nbytes} were expected")
            pieces: Any = [found.bytes()] if nbytes - start <= _PIECE else found.stream(min_chunk_size=_PIECE)
            for piece in pieces:
                sink.add(piece)
                if time.monotonic() > ends:
                    raise TimeoutError(f"{sink.at} of {nbytes} bytes arrived in {seconds:.0f} s")
        except ImportError:
            self._failures = _MOST_FAILURES
            return False
        except Exception as error:  # whatever it is, s3fs says it in words that callers know
            self._failures += 1
            _log.info("%s: obstore: %s; s3fs reads it", path, type(error).__name__)
            return False
        self._failures = 0
        return sink.at == nbytes


# What s3fs is told and obstore as well.
_CLIENT = {"endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key"}
_CONFIG = {"connect_timeout", "read_timeout", "retries", "response_checksum_validation", "region_name"}


def _store(fs: Any, bucket: str) -> Any:
    """The object from which obstore reads a bucket; None if s3fs was told what obstore would not do."""
    from obstore.store import S3Store

    others = [fs.client_kwargs.keys() - _CLIENT, fs.config_kwargs.keys() - _CONFIG]
    if any(others) or fs.s3_additional_kwargs or fs.req_kw or fs.version_aware:
        return None
    about = fs.s3.meta  # it has looked for its server everywhere
    own = {
        "access_key_id": fs.key or fs.client_kwargs.get("aws_access_key_id"),
        "secret_access_key": fs.secret or fs.client_kwargs.get("aws_secret_access_key"),
        "token": fs.token,
    }

    async def credentials() -> Any:
        found = await (await fs.session.get_credentials()).get_frozen_credentials()
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
        }

    def provided() -> Any:
        import fsspec.asyn

        found = own if own["access_key_id"] else fsspec.asyn.sync(fs.loop, credentials, timeout=60)
        return {**found, "expires_at": datetime.now(timezone.utc) + _RENEWED}

    # All of it, as obstore would else look into the environment.
    config: dict[str, Any] = {"endpoint": about.endpoint_url, "region": about.region_name}
    config |= {"skip_signature": bool(fs.anon), "virtual_hosted_style_request": False}
    if not fs.anon:
        config["credential_provider"] = provided
    return S3Store(
        bucket,
        client_options={
            "allow_http": True,
            "connect_timeout": "10s",
            "read_timeout": "30s",
            "timeout": "5min",  # of 16 MiB
        },
        retry_config={"max_retries": 0},  # retries are in one place
        **config,
    )
