"""The laws of `Place`, `Epoch` and `State`, in every small world: ranks, remainders, batches in any order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from torchyoga.order.epoch import Epoch, Iteration, IterationOptions, Skipped
from torchyoga.order.place import Place, Shard, taken
from torchyoga.order.proof import weight
from torchyoga.order.state import State

SEED = 5


def worlds() -> Iterator[tuple[int, Shard, int, bool]]:
    """Rows, ranks with a remainder, rows of a batch, drop_last."""
    for length, world, remainder in itertools.product((1, 4, 5, 7), (1, 2, 3), ("keep", "drop", "pad")):
        for rank, size, drop_last in itertools.product(range(world), (1, 2), (False, True)):
            yield length, Shard(world, rank, remainder), size, drop_last  # type: ignore[arg-type]


def coming(at: Epoch, shard: Shard, length: int) -> list[int]:
    """The positions that a rank still has to deliver."""
    count = shard.count(length, at.place.position)
    return [position for some in taken(at.place, shard, length, 0, count) for position in some]


def state(at: Epoch, length: int) -> State:
    return State(SEED, length, {"shuffle": True}, "f", at, Skipped(2, 0) if at.place.epoch else Skipped())


def starts(length: int, shard: Shard, size: int) -> Iterator[Epoch]:
    """Where epochs are entered: at their start, within, and with a batch left that others have overtaken."""
    yield Epoch(Place(0, 0))
    if length > shard.num_replicas:
        yield Epoch(Place(1, shard.num_replicas), 1, again=2)
    run = Iteration(Epoch(Place(2, 0)), length, shard, SEED, IterationOptions(size, in_order=False))
    if run.num_steps > 1 and not run.in_order:
        run.deliver(1)
        yield run.now()


@pytest.mark.parametrize("in_order", [True, False])
def test_what_is_delivered_and_what_is_coming_are_the_epoch(in_order: bool) -> None:
    for length, shard, size, drop_last in worlds():
        for entry in starts(length, shard, size):
            options = IterationOptions(size, drop_last, in_order)
            mine = coming(entry, shard, length)
            num_steps = Iteration(entry, length, shard, SEED, options).num_steps
            orders: Any = (
                [range(num_steps)]
                if in_order or shard.num_replicas > 1
                else itertools.permutations(range(num_steps))
            )
            for order in itertools.islice(orders, 24):
                run, seen = Iteration(entry, length, shard, SEED, options), [entry]
                left = dict.fromkeys(mine)
                for step in order:
                    run.deliver(step)
                    for position in mine[step * size : (step + 1) * size]:
                        del left[position]
                    now = run.now()
                    seen.append(now)
                    assert coming(now, shard, length) == list(left)
                    # Each rank accounts for what it has delivered: nothing was lost, nothing came twice.
                    rows, own = run.share
                    assert rows == entry.share_of(SEED, shard.rank)[0] + len(mine) - len(left)
                    before = entry.share_of(SEED, shard.rank)[1]
                    came = [range(position, position + 1) for position in mine if position not in left]
                    assert (own - before - weight(SEED, entry.place.epoch, came)) % (2**127 - 1) == 0
                    assert now.steps == (entry.steps or 0) + len(seen) - 1
                assert [run.after(steps) for steps in range(1, len(seen))] == seen[1:]


def test_a_state_as_json_is_the_same_epoch() -> None:
    for length, shard, size, drop_last in worlds():
        for entry in starts(length, shard, size):
            run = Iteration(entry, length, shard, SEED, IterationOptions(size, drop_last, in_order=False))
            for step in sorted(range(run.num_steps), reverse=not run.in_order):
                run.deliver(step)
                one = state(run.now().rolled(length, shard, size, drop_last), length)
                written = json.loads(json.dumps(one.to_dict()))
                found = State.from_dict(written)
                assert found.to_dict() == written
                assert found.left_out == one.left_out
                assert coming(found.at, shard, length) == coming(one.at, shard, length)
                assert found.at.place._replace(left=()) == one.at.place._replace(left=())
                assert (found.at.steps, found.at.again) == (one.at.steps, one.at.again)
                assert found.at.proof(SEED) == one.at.proof(SEED)


def test_an_epoch_rolls_over_when_no_rank_has_a_batch_left() -> None:
    for length, shard, size, drop_last in worlds():
        if shard.rank:
            continue
        ranks = [Shard(shard.num_replicas, rank, shard.remainder) for rank in range(shard.num_replicas)]
        for position in range(length + 1):
            at = Epoch(Place(0, position))
            left = max(rank.steps(length, position, size, drop_last) for rank in ranks)
            is_over = position > 0 and not left
            for rank in ranks:
                assert at.rolled(length, rank, size, drop_last) == (at.next if is_over else at)
