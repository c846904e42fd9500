"""Copies of much memory, by this thread and, while a core is free, by a second one.

torch divides a large copy among a team of threads, of which each waits for all others. On busy cores a
member that has no core holds up the rest. Here the thread copies piece by piece, and a second thread takes
pieces while it can; so neither waits for longer than the other takes for a piece.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from .lazy import torch
from .threads import are_ahead, begin_thread, in_forked_child

ALONE_ELEMENTS = 2**15  # torch divides copies of more among threads
PIECE = 2**20  # bytes that one thread copies at a time
LARGE = 16 * 2**20  # bytes; of less, a second thread costs more to wake than it saves


@lru_cache(maxsize=1)
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How many threads torch divides work of this thread among: what tells it, and what sets it.

    None if torch's OpenMP cannot be asked. `torch.set_num_threads` would also set it for threads to come.
    """
    try:
        library = ctypes.PyDLL(torch._C.__file__)
        asked, say = library.omp_get_max_threads, library.omp_set_num_threads
    except (AttributeError, OSError):  # torch has another pool of threads, or its symbols are not to be seen
        return None
    before = torch.get_num_threads()
    say(1)
    is_heard = torch.get_num_threads() == 1
    say(before)
    return (asked, say) if is_heard else None


def can_be_undivided() -> bool:
    """True if `undivided` has an effect."""
    return _openmp() is not None


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Within it torch does the work of this thread on this thread only, if that can be had."""
    openmp = _openmp()
    if openmp is None:
        yield
        return
    asked, say = openmp
    before = asked()
    try:
        say(1)
        yield
    finally:
        say(before)


def copy_pieces(pieces: Sequence[Callable[[], object]], is_shared: bool) -> None:
    """Calls functions that copy pieces, each once, in `undivided`.

    Args:
        pieces: the functions.
        is_shared: a second thread calls some of them.
    """
    left: _Pieces = deque(pieces)
    done: _Done = queue.SimpleQueue()
    if is_shared:
        with contextlib.suppress(RuntimeError):  # the system refuses another thread
            _helper().help(left, done)
    _copy_left(left, done)
    for _ in pieces:
        error = done.get()
        try:
            if error is not None:
                raise error
        finally:
            del error  # it leads here, and so to what was copied


def may_share(nbytes: int) -> bool:
    """True where a second thread may copy so many bytes: not beside threads that read, nor in workers, which
    torch gives one core each, nor in a forked child, which has none of its parent's threads, nor for tensors
    of `torch.inference_mode`, which is of one thread.

    Not to be asked in `undivided`.
    """
    if nbytes < LARGE or threading.current_thread() is not threading.main_thread() or are_ahead():
        return False  # before torch is imported, which small reads do not need
    return not torch.is_inference_mode_enabled() and torch.get_num_threads() > 1 and not in_forked_child()


_Pieces: TypeAlias = "deque[Callable[[], object]]"
_Done: TypeAlias = "queue.SimpleQueue[BaseException | None]"  # of each piece: why it is not copied


def _copy_left(pieces: _Pieces, done: _Done) -> None:
    """Copies pieces that no other thread has begun, until none is left."""
    while pieces:
        try:
            copy_piece = pieces.popleft()
        except IndexError:  # the other thread has taken the last one
            return
        error = None
        try:
            copy_piece()
        except BaseException as raised:
            error = raised
        done.put(error)
        del copy_piece, error  # they hold what was copied


class _Helper:
    """A thread that takes pieces from the main thread."""

    def __init__(self) -> None:
        self._copies: queue.SimpleQueue[tuple[_Pieces, _Done] | None] = queue.SimpleQueue()
        begin_thread("torchyoga-copies", _help, self._copies, stop=self.stop)

    def help(self, pieces: _Pieces, done: _Done) -> None:
        """Copies some of the pieces, unless the thread has not even begun those before."""
        if self._copies.empty():
            self._copies.put((pieces, done))

    def stop(self) -> None:
        """Ends the thread."""
        self._copies.put(None)


def _help(copies: queue.SimpleQueue[tuple[_Pieces, _Done] | None]) -> None:
    with undivided():
        while (some := copies.get()) is not None:
            _copy_left(*some)
            del some  # a batch is not held while the thread waits


_helper = lru_cache(maxsize=1)(_Helper)  # made when it is first needed
