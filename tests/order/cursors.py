"""Cursors of small orders, and iterations that stand where a test wants them."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torchyoga.order.by_file import BlockOrder
from torchyoga.order.cursor import Cursor
from torchyoga.order.epoch import Iteration, IterationOptions
from torchyoga.order.full import Order
from torchyoga.order.place import Shard


def cursor(length: int = 10, offset: int = 0, fingerprint: str | None = "f", **shard: Any) -> Cursor:
    return Cursor(Order(length, 1), Shard(**shard), offset, fingerprint)


def reach(one: Cursor, position: int, batch_size: int = 1, drop_last: bool = False) -> None:
    """An iteration that begins now delivers everything before `position`."""
    run = one.iteration(IterationOptions(batch_size, drop_last))
    run.taken = (position - run.start.position) // (batch_size * one.shard.num_replicas)
    one.reached(run)
    assert run.now().place.position == position


def begin(one: Cursor, *step: Any) -> tuple[int, int]:
    return one.begin(*step)[:2]


def blocks(world: int = 1, starts: Any = (0, 4, 10), rank: int = 0, **options: Any) -> Cursor:
    return Cursor(BlockOrder(starts, 1, **options), Shard(world, rank), 0, "f")


_cursors: WeakKeyDictionary[Iteration, Cursor] = WeakKeyDictionary()


class Held:
    """An iterator that something may hold."""


def start(one: Cursor, size: int = 2, holder: Any = None, **options: Any) -> Iteration:
    run = one.iteration(IterationOptions(size, **{"made": one.num_begun, **options}))
    if holder is not None:
        run.hold(holder)
    one.begun(run)
    _cursors[run] = one
    return run


def report(run: Iteration) -> None:
    """Lets the cursor of a run that was started here ask how far it is."""
    _cursors[run].reached(run)


def deliver(run: Iteration, steps: int) -> None:
    for _ in range(steps):
        run.deliver(run.taken)
    report(run)
