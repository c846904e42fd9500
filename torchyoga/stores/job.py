"""The manifest of a version, read by one rank of a job for all of them, and kept by a node for its processes.

Ranks find what one has read through torch.distributed's store of keys.

The reading is not a collective.
A broadcast would hang where one rank alone calls `fetch`, or two ranks fetch in different orders. In the
store of keys at rank 0, whoever comes first says that it reads, by one compare-and-set; the others wait for
what it has read, and read themselves if nothing comes. Each fetch has a connection of its own, so that
nothing else that the process does with the store waits, and forked workers do not share a socket. It is
used by a thread that is left behind if no answer comes: torch waits forever for a store whose process is
stopped, whatever timeout it is given. Such a store is not asked again.

What a rank takes was read at most `_FRESH` seconds before, after the last time that a rank of the job wrote
or removed the version, and later than what this process has taken before. So a fetch sees every overwrite by
its own job, and a second fetch in one process reads anew. An overwrite by others is seen at most 30 s later,
as if the fetch had been that much earlier.

A manifest that was kept is taken only if the store says that it is the same.
That is a request without a body. Of processes that ask at the same time, one asks the store, while the others
wait for the lock; they take what it has found if it began to ask after they did. So two requests serve
all, and none sees anything older than what was there when it began.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from datetime import timedelta
from functools import lru_cache, partial
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import BusyError, YogaError
from ..process.digests import hexdigest
from .cache import Cache

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

__all__ = ["note_written", "read_by_node", "read_by_one"]

_log = logging.getLogger("torchyoga")
_FRESH = 30.0  # seconds that a manifest may have been read before it is taken
_WAIT = 20.0  # seconds for the rank that reads, before another one does
_ROUNDS = 3  # of waiting, before a rank reads by itself
_CONNECT = 10.0  # seconds, to find out that it is there
_ANSWER = 60.0  # seconds for the connection, where all ranks of a large job ask for theirs
_PIECE = 2**20  # bytes of a value; the store takes 8 MiB at most
_MOST_PIECES = 64
_ASKED_FOR = "_get_default_store"  # in torch
_KEPT = 2  # readings that stay in the store
T = TypeVar("T")
_silent: set[tuple[str, int]] = set()  # hosts and ports of stores that did not answer in time
_taken: dict[str, int] = {}  # by key: the number of the reading that this process took or left last
# The tag that is known -> the bytes, None if they are the same, and their tag, None if there is none.
_Read = Callable[[str | None], tuple[bytes | None, str | None]]
_WAIT_FOR_NODE = 30.0  # seconds for another process that asks
_LONGEST_LINE = 4096  # bytes


class _Head(NamedTuple):
    """The last reading that was begun: its number, and who does it."""

    number: int
    reader: str

    @classmethod
    def of(cls, text: bytes) -> _Head:
        number, _, reader = text.decode("ascii").partition(":")
        return cls(int(number or 0), reader)

    def __str__(self) -> str:
        return f"{self.number}:{self.reader}" if self.number else ""


def read_by_one(name: str, limit: int, read: Callable[[], bytes | None]) -> bytes | None:
    """The result of `read` in this process, or the one that another process of the job has just got.

    Args:
        name: of what is read; the same in all ranks, and no other's.
        limit: bytes that it may have.
        read: its errors are this process's own. None if there is nothing; that is not shared.
    """
    place = _place()
    if place is None:
        return read()
    try:
        return _Readings(_connected(place), place, _key(name), limit).get(read)
    except _LostStoreError as error:
        _log.info("the store of torch.distributed does not answer (%s); reading %s", error, name)
        return read()


def note_written(name: str) -> None:
    """Says that a name was written or removed: no rank takes what was read before."""
    place = _place()
    if place is not None:
        with contextlib.suppress(_LostStoreError):
            store = _connected(place)
            _answer(place, lambda: store.add(f"{_key(name)}/written", 1))


def _key(name: str) -> str:
    return f"torchyoga/{hexdigest(name)}"


class _LostStoreError(Exception):
    """The store of torch.distributed is gone, does not answer, or holds what is not ours."""


class _Readings:
    """The readings of one name: `head` names the last that was begun, `<number>/...` holds what was read."""

    def __init__(self, store: TCPStore, place: tuple[str, int], key: str, limit: int) -> None:
        self._store, self._place, self._key, self._limit = store, place, key, limit

    def get(self, read: Callable[[], bytes | None]) -> bytes | None:
        for _ in range(_ROUNDS):
            head, is_mine = _answer(self._place, self._begun)
            if is_mine:
                return self._read(head.number, read)
            is_over, found = _answer(self._place, partial(self._taken_over, head.number))
            if is_over:
                break  # there was nothing, or an error, which this process is to see by itself
            if found is not None:
                return found
        return read()

    def _begun(self) -> tuple[_Head, bool]:
        """The reading to take, and whether this process does it."""
        name = f"{self._place}/{self._key}"
        taken, head = _taken.get(name, 0), self._head()
        is_mine = False
        if head.number <= taken:
            mine = _Head(taken + 1, secrets.token_hex(8))
            head = _Head.of(self._store.compare_set(f"{self._key}/head", str(head), str(mine)))
            is_mine = head == mine
        _taken[name] = head.number
        return head, is_mine

    def _taken_over(self, number: int) -> tuple[bool, bytes | None]:
        """Whether a reading has ended without a text, and its text; None if the next round is to read anew,
        or to wait for another one who does."""
        about = self._awaited(number)
        if about is None or not self._is_fresh(about):
            return False, None
        if about["pieces"] is None:
            return True, None
        return False, self._pieces(number, int(str(about["pieces"])))

    def _head(self) -> _Head:
        key = f"{self._key}/head"
        return _Head.of(self._store.get(key) if self._store.check([key]) else b"")

    def _written(self) -> int:
        return int(self._store.add(f"{self._key}/written", 0))

    def _read(self, number: int, read: Callable[[], bytes | None]) -> bytes | None:
        """Reads, and puts what was read, or that nothing was, where the others wait for it."""
        written = _answer(self._place, self._written)
        about: dict[str, object] = {"written": written, "began": time.time(), "pieces": None}
        found: bytes | None = None
        try:
            found = read()
        finally:
            with contextlib.suppress(_LostStoreError):
                _answer(self._place, lambda: self._publish(number, found, about))
        return found

    def _publish(self, number: int, found: bytes | None, about: dict[str, object]) -> None:
        packed = b"" if found is None else zlib.compress(found, 1)
        count = -(-len(packed) // _PIECE)
        if found is not None and count <= _MOST_PIECES:
            for piece in range(count):
                part = packed[piece * _PIECE : (piece + 1) * _PIECE]
                self._store.set(f"{self._key}/{number}/{piece}", part)  # type: ignore[arg-type]
            about["pieces"] = count
        self._store.set(f"{self._key}/{number}/about", json.dumps(about))
        old = number - _KEPT
        if old > 0 and self._store.delete_key(f"{self._key}/{old}/about"):
            piece = 0
            while piece < _MOST_PIECES and self._store.delete_key(f"{self._key}/{old}/{piece}"):
                piece += 1

    def _awaited(self, number: int) -> dict[str, object] | None:
        """The note about a reading; None if it is not finished in time, or is gone."""
        key = f"{self._key}/{number}/about"
        if not self._store.check([key]):
            try:
                self._store.wait([key], timedelta(seconds=_WAIT))
            except RuntimeError:
                if not self._store.check([key]):  # raises if the store itself is gone
                    return None
        found: dict[str, object] = json.loads(self._store.get(key))
        return found

    def _is_fresh(self, about: dict[str, object]) -> bool:
        # Clocks that differ by more than that cost a reading each, and nothing else.
        age = time.time() - float(str(about["began"]))
        return abs(age) <= _FRESH and about["written"] == self._written()

    def _pieces(self, number: int, count: int) -> bytes | None:
        """The bytes that were read; None if it is deleted meanwhile, or not whole."""
        keys = [f"{self._key}/{number}/{piece}" for piece in range(min(count, _MOST_PIECES))]
        if not all(self._store.check([key]) for key in keys):
            return None
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(b"".join(self._store.get(key) for key in keys), self._limit)
        except zlib.error:
            return None
        return found if unpacking.eof else None


def _answer(place: tuple[str, int], ask: Callable[[], T]) -> T:
    """The store's answer; _LostStoreError if it fails, or does not within _ANSWER and _WAIT seconds."""
    if place in _silent:
        raise _LostStoreError("it has not answered before")
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=work, daemon=True, name="torchyoga-job").start()
    try:
        return answer.result(_ANSWER + _WAIT)
    except NoAnswer:
        _silent.add(place)
        raise _LostStoreError(f"no answer in {_ANSWER + _WAIT:.0f} s") from None
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise _LostStoreError(str(error).partition("\n")[0]) from error


def _connected(place: tuple[str, int]) -> TCPStore:
    """A connection of its own to the store of torch.distributed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    def connect() -> TCPStore:
        socket.create_connection(place, _CONNECT).close()  # torch would wait longer, and print why
        limit = timedelta(seconds=_ANSWER)
        return TCPStore(*place, is_master=False, wait_for_workers=False, timeout=limit)

    return _answer(place, connect)


def _place() -> tuple[str, int] | None:
    """Host and port of the store of torch.distributed; None for one ranks alone, and for stores of files."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    if distributed.get_world_size() < 2:
        return None
    # There is no public way to ask for it; without this one, each node reads.
    try:
        store = getattr(sys.modules["torch.distributed.distributed_c10d"], _ASKED_FOR)()
        for _ in range(10):
            if not isinstance(store, distributed.PrefixStore):
                break
            store = store.underlying_store
        return (store.host, store.port) if isinstance(store, distributed.TCPStore) else None
    except (AttributeError, KeyError, RuntimeError, ValueError):
        return None


def read_by_node(cache: Cache, name: str, limit: int, read: _Read) -> bytes | None:
    """The bytes that a store has under a name, sent only if this node does not have the same.

    Args:
        cache: where it is kept; if that cannot be, it is read anyway.
        name: of what is read, in all stores.
        limit: bytes that it may have.
        read: asks the store; FileNotFoundError is passed on.
    """
    key = f"{hexdigest(name)}.json"
    began = time.monotonic()
    asked: list[bytes | None] = []
    failed: list[Exception] = []
    try:
        with cache.only_one(key, _WAIT_FOR_NODE):
            known = _KeptText.of(cache.noted(key, limit + _LONGEST_LINE))
            if known is not None and known.machine == _machine() and began <= known.asked <= time.monotonic():
                return known.text
            asks = time.monotonic()
            try:
                text, tag = read(None if known is None else known.tag)
            except Exception as error:
                failed.append(error)
                raise
            if text is None:
                assert known is not None, "only what is known can be the same"
                text, tag = known.text, known.tag
            asked.append(text)
            cache.note(key, _KeptText(text, tag, _machine(), asks).line() + text)
            return text
    except (OSError, YogaError, BusyError):
        if failed:
            raise failed[0] from failed[0].__cause__
        # The cache cannot be written, or its lock is held for too long.
        if asked:
            return asked[0]
    return read(None)[0]


class _KeptText(NamedTuple):
    """A text, the tag that the store gave it, and when and where the store was asked for it."""

    text: bytes
    tag: str | None
    machine: str
    asked: float

    @classmethod
    def of(cls, data: bytes | None) -> _KeptText | None:
        """None if it is damaged."""
        line, _, text = (data or b"").partition(b"\n")
        try:
            found = json.loads(line)
            tag, digest = found["tag"], found["digest"]
            machine, asked = str(found["machine"]), float(found["asked"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if digest != hexdigest(text) or not isinstance(tag, (str, type(None))):
            return None
        return cls(text, tag, machine, asked)

    def line(self) -> bytes:
        found = {"tag": self.tag, "machine": self.machine, "asked": self.asked}
        return json.dumps({**found, "digest": hexdigest(self.text)}).encode() + b"\n"


@lru_cache(maxsize=1)
def _machine() -> str:
    """This machine since it was started: its monotonic clock begins with it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return f"{socket.gethostname()} {os.name} {round(time.time() - time.monotonic(), -1):.0f}"
