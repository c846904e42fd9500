"""An object of a store into a sink, piece by piece, as the bytes arrive, by the clients below fsspec.

What is downloaded goes straight into its file.
To collect a run of 8 MiB in memory first, as fsspec's `cat_ranges` does, costs the client half as much again.
Of long objects two runs are requested at once, and the second waits in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


_PIECE = 2**20  # bytes
_OTHER = "the server answered a request of a range with something else"
RUN, RUNS = 8 * 2**20, 2  # bytes of a request, and requests at once, for what is longer than all of them


class Sink(Protocol):
    """A receiver of bytes that are read, piece by piece."""

    at: int  # bytes so far

    def add(self, piece: bytes) -> None:
        """Takes the next bytes."""

    def restart(self) -> None:
        """Discards the bytes so far."""


async def from_web(fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int) -> None:
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
        elif not _begins(answer.headers.get("Content-Range", ""), sink.at):
            raise ConnectionError(_OTHER)
        async for piece in answer.content.iter_chunked(_PIECE):
            if sink.at + len(piece) > nbytes:
                raise ConnectionError(f"more than {nbytes} bytes arrived")
            sink.add(piece)


async def from_s3(fs: AbstractFileSystem, path: str, sink: Sink, nbytes: int) -> None:
    """Reads an object of so many bytes from S3, from the sink's position on.

    Raises:
        ConnectionError: fewer or other bytes arrived; the sink may be asked to go on.
    """
    while sink.at < nbytes:
        start = sink.at
        if nbytes - start <= RUN * RUNS:
            await _copied(fs, path, start, nbytes, sink)
            return
        bounds = [(first, min(first + RUN, nbytes)) for first in range(start, start + RUN * RUNS, RUN)]
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
        sent = found.get("ContentRange")
        if sent is None:
            sink.restart()
        elif not _begins(sent, start):
            raise ConnectionError(_OTHER)
        while piece := await body.read(_PIECE):
            if sent is not None and sink.at + len(piece) > stop:
                raise ConnectionError(f"more than {stop - start} bytes arrived")
            sink.add(piece)


def _begins(content_range: str, start: int) -> bool:
    return content_range.startswith(f"bytes {start}-")


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
        raise ConnectionError(_OTHER)
