"""Places, epochs and states: their laws in every small world of ranks, remainders, and orders of batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.order.epoch import Epoch, Iteration, IterationOptions, Skipped
from torchyoga.order.full import Order
from torchyoga.order.place import (
    Place,
    Shard,
    after,
    batches,
    chunks,
    first_positions,
    positions,
    skipped,
    taken,
)
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
    """Where epochs are entered: at their start, within, and with all batches left but the last."""
    yield Epoch(Place(0, 0))
    if length > shard.num_replicas:
        yield Epoch(Place(1, shard.num_replicas), 1, again=2)
    run = Iteration(Epoch(Place(2, 0)), length, shard, SEED, IterationOptions(size, in_order=False))
    if run.num_steps > 1 and not run.in_order:
        run.deliver(run.num_steps - 1)
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


# -- the positions that a rank takes from a place


def flat(ranges: Any) -> list[int]:
    return [number for some in ranges for number in some]


def model(place: Place, shard: Shard, length: int) -> list[int]:
    """All positions of a rank, as a list: first those that were left, then those after the place; dealt to
    the ranks."""
    world, count = shard.num_replicas, max(length - place.position, 0)
    count += {"keep": 0, "drop": -(count % world), "pad": -count % world}[shard.remainder]
    behind = flat(place.left)
    coming = behind + list(range(place.position + len(behind), place.position + count))
    coming = coming[:count]  # `drop` may leave out positions that were left, too
    run = 1 if place.left else shard.run_length
    mine: list[int] = []
    while coming:
        now, coming = coming[: run * world], coming[run * world :]
        if len(now) == run * world:
            mine += now[shard.rank * run : (shard.rank + 1) * run] if run > 1 else [now[shard.rank]]
            continue
        size, longer = divmod(len(now), world)
        first = shard.rank * size + min(shard.rank, longer)
        mine += now[first : first + size + (shard.rank < longer)]
    return mine


def test_all_small_epochs_dealt_one_by_one_and_in_runs() -> None:
    for length, world, run in itertools.product(range(14), range(1, 7), range(1, 5)):
        order, firsts = Order(length, shuffle=False), range(0, length + 1, 1 if run == 1 else 3)
        for remainder in ("keep", "drop", "pad"):
            for start, rank in itertools.product(firsts, range(world)):
                place, shard = Place(0, start), Shard(world, rank, remainder, run)  # type: ignore[arg-type]
                expected = model(place, shard, length)
                count = shard.count(length, start)
                assert count == len(expected)
                for cut in range(count + 1):
                    assert flat(taken(place, shard, length, 0, cut)) == expected[:cut]
                    assert flat(taken(place, shard, length, cut, count)) == expected[cut:]
                assert positions(place, shard, length, 0, count).tolist() == expected
                for size, drop_last in itertools.product((1, 2, 5), (False, True)) if run == 1 else ():
                    cut_up = [order.rows(0, expected[i : i + size]).tolist() for i in range(0, count, size)]
                    made = [batch.tolist() for batch in batches(order, shard, place, size, drop_last)]
                    assert made == [batch for batch in cut_up if len(batch) == size or not drop_last]
                    assert shard.steps(length, start, size, drop_last) == len(made)


def test_batches_of_all_ranks_in_runs_are_the_global_order_end_to_end() -> None:
    for length, world, size in itertools.product((5, 12, 29), (2, 3, 4), (1, 3)):
        order = Order(length, 1)
        whole = order.rows(0, range(length + world)).tolist()
        ranks = [
            batches(order, Shard(world, rank, "pad", size), Place(0, 0), size, False) for rank in range(world)
        ]
        laid = [row for step in zip(*ranks, strict=True) for batch in step for row in batch.tolist()]
        assert laid == whole[: len(laid)]
        assert length <= len(laid) < length + world


def test_batches_of_any_size_are_whole_but_the_last() -> None:
    for size in (1, 3, 1000, 1025, 70_000):
        made = list(batches(Order(75_000, shuffle=False), Shard(), Place(0, 5), size, False))
        assert np.concatenate(made).tolist() == list(range(5, 75_000))
        assert {len(batch) for batch in made[:-1]} == {size}


@st.composite
def places(draw: Any) -> tuple[Place, int]:
    """A place with something left, and the length of the epoch."""
    cuts = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=8)))
    ranges = tuple(
        range(a, b, draw(st.integers(1, 3))) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if b > a
    )
    before = draw(st.integers(0, cuts[0]))  # this many were delivered, and those between the ranges
    behind = ranges[-1][-1] + 1
    position = behind - sum(map(len, ranges))
    assert before <= position
    return Place(3, position, ranges), behind + draw(st.integers(0, 20))


@given(places(), st.integers(1, 4), st.sampled_from(["keep", "drop", "pad"]), st.integers(1, 3))
def test_positions_that_are_left_are_dealt_first(
    found: tuple[Place, int], world: int, remainder: Any, run: int
) -> None:
    place, length = found
    order = Order(length, 2)
    dealt = []
    for rank in range(world):
        shard = Shard(world, rank, remainder, run)
        expected = model(place, shard, length)
        rows = [row for chunk in chunks(order, shard, place) for row in chunk.tolist()]
        assert rows == order.rows(3, expected).tolist()
        dealt.append(expected)
        if not rank:
            for cut in range(len(expected) + 1):
                assert flat(taken(place, shard, length, cut, len(expected))) == expected[cut:]
    if remainder == "keep":
        left = flat(place.left) + list(range(place.position + len(flat(place.left)), length))
        assert sorted(itertools.chain(*dealt)) == sorted(left)


@given(places(), st.integers(1, 3), st.sampled_from(["keep", "drop", "pad"]), st.integers(1, 5))
@pytest.mark.parametrize("chunk", [1, 65536])
def test_a_batch_begins_at_the_position_of_its_first_row(
    chunk: int, found: tuple[Place, int], world: int, remainder: Any, size: int
) -> None:
    place, length = found
    for rank, run in itertools.product(range(world), {1, size}):
        shard = Shard(world, rank, remainder, run)
        firsts = list(first_positions(shard, length, place, size, chunk))
        assert firsts == model(place, shard, length)[::size]
        whole = list(batches(Order(length, shuffle=False), shard, place, size, False))
        assert [int(batch[0]) for batch in whole] == [first % length for first in firsts]


@given(places(), st.integers(0, 60))
def test_skipping_drops_the_first_positions(found: tuple[Place, int], count: int) -> None:
    left = found[0].left
    assert flat(skipped(left, count)) == flat(left)[count:]
    assert skipped((), count) == ()


@given(places(), st.integers(1, 4), st.sampled_from(["keep", "drop", "pad"]), st.integers(0, 20))
def test_after_some_rows_the_others_are_left(
    found: tuple[Place, int], world: int, remainder: Any, rows: int
) -> None:
    for place in (found[0], Place(*found[0][:2])):
        for rank in range(world):
            shard = Shard(world, rank, remainder)
            then = after(place, shard, found[1], rows)
            assert model(then, shard, found[1]) == model(place, shard, found[1])[rows:]
