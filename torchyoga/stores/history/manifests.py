"""The manifests of all versions of an id -> what is asked of each; in parallel where they are far away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ...errors import CorruptError
from ...versions.manifest import Manifest
from ..contract import Versions
from ..local import Store

__all__ = ["each", "of_all"]

S = TypeVar("S")
T = TypeVar("T")
_READERS = 16  # of one store at once


def each(store: Versions, items: Iterable[S], call: Callable[[S], T]) -> Iterator[T]:
    """What `call` returns for each item, in order; several at once behind a URL, where a call waits."""
    if isinstance(store, Store):
        yield from map(call, items)
        return
    pool = ThreadPoolExecutor(_READERS, thread_name_prefix="torchyoga manifests")
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) >= 2 * _READERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def of_all(
    store: Versions, id: str, summary: Callable[[Manifest], T]
) -> tuple[dict[str, T], dict[str, CorruptError]]:
    """A summary of each version of an id, and the errors of those whose manifest is damaged.

    The summary is made at once, so that only one manifest is in memory for each reader.
    """

    def read(version: str) -> T | CorruptError | None:
        try:
            manifest = store.find(id, version)
        except CorruptError as error:
            return error
        return None if manifest is None else summary(manifest)  # it was removed just now

    found: dict[str, T] = {}
    damaged: dict[str, CorruptError] = {}
    names = store.versions(id)
    for version, one in zip(names, each(store, names, read), strict=True):
        if isinstance(one, CorruptError):
            damaged[version] = one
        elif one is not None:
            found[version] = one
    return found, damaged
