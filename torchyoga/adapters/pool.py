"""Batches by number -> the same batches, made ahead by threads or processes."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.context import BaseContext

from ..order.full import as_int
from ..order.place import Place
from ..rows.types import Batch
from .numbered import NumberedBatches

__all__ = ["Pool"]


class Pool:
    """Makes batches before they are asked for, if they are asked for in order.

    Args:
        batches: the batches to make.
        workers: how many make them.
        threads: True for threads, False for processes.
        depth: how many batches to be ahead.
    """

    def __init__(self, batches: NumberedBatches, workers: int, threads: bool, depth: int) -> None:
        self._batches = batches
        self._workers = as_int("workers", workers, low=0)
        self._threads = threads
        self._depth = depth
        self._forget()

    def _forget(self) -> None:
        self._executor: Executor | None = None
        self._process = os.getpid()
        self._ahead: dict[tuple[Place, int], Future[Batch]] = {}
        self._next = 0

    def __getstate__(self) -> dict[str, object]:
        return {key: self.__dict__[key] for key in ("_batches", "_workers", "_threads", "_depth")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def make(self, batches: NumberedBatches) -> None:
        """Makes other batches from now on."""
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._batches = batches
        self._forget()

    def batch(self, start: Place, index: int) -> Batch:
        """A batch, ready or made now."""
        if self._process != os.getpid():
            return self._batches.batch(start, index)  # a forked child has none of the workers
        in_order, self._next = index in (0, self._next), index + 1
        if in_order:
            self._read_ahead(start, index)
        future = self._ahead.pop((start, index), None)
        return self._batches.batch(start, index) if future is None else future.result()

    def _read_ahead(self, start: Place, index: int) -> None:
        if self._executor is None:
            self._executor = (
                ThreadPoolExecutor(self._workers, "torchyoga-pool")
                if self._threads
                else ProcessPoolExecutor(self._workers, _context(), _give, (self._batches,))
            )
        wanted = [(start, i) for i in range(index, min(index + self._depth, self._batches.steps(start)))]
        for key in list(self._ahead):
            if key not in wanted:
                self._ahead.pop(key).cancel()
        for key in wanted:
            if key not in self._ahead:
                make = self._batches.batch if self._threads else _made
                self._ahead[key] = self._executor.submit(make, *key)


def _context() -> BaseContext:
    """The default start method, with forkserver in place of fork: the backends run threads."""
    method = multiprocessing.get_start_method()
    return multiprocessing.get_context("forkserver" if method == "fork" else method)


_given: NumberedBatches | None = None  # in a worker process: what it makes batches of


def _give(batches: NumberedBatches) -> None:
    global _given
    _given = batches


def _made(start: Place, index: int) -> Batch:
    assert _given is not None
    return _given.batch(start, index)
