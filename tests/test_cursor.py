"""Where an iteration stands: epochs, offsets, set_epoch and states."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchyoga.blocks import BlockOrder
from torchyoga.cursor import Cursor, Run
from torchyoga.errors import StateError
from torchyoga.order import Order, Shard


def cursor(length: int = 10, offset: int = 0, fingerprint: str | None = "f", **shard: Any) -> Cursor:
    return Cursor(Order(length, 1), Shard(**shard), offset, fingerprint)


def reach(one: Cursor, position: int, batch_size: int = 1, drop_last: bool = False) -> None:
    """An iteration that begins now delivers all before `position`."""
    run = Run(one, batch_size, drop_last)
    run.taken = (position - run.start.position) // (batch_size * one.shard.num_replicas)
    run.report()
    assert run.place.position == position


def begin(one: Cursor, *step: Any) -> tuple[int, int]:
    return one.begin(*step)[:2]


def test_an_offset_beyond_the_epoch_means_later_epochs() -> None:
    assert [begin(cursor(offset=n)) for n in (0, 9, 10, 25)] == [(0, 0), (0, 9), (1, 0), (2, 5)]


def test_asking_changes_nothing() -> None:
    one = cursor(offset=4)
    before = one.state_dict()
    for _ in range(3):
        assert begin(one) == (0, 4)
    assert one.state_dict() == before


def test_a_finished_epoch_rolls_to_the_next_with_its_last_item() -> None:
    one = cursor()
    run = Run(one)
    run.taken = 9
    run.report()
    assert one.state_dict()["position"] == 9
    run.taken = 10
    run.report()
    assert (one.state_dict()["epoch"], one.state_dict()["position"]) == (1, 0)
    one.finished(run)
    assert begin(one) == (1, 0)


def test_with_drop_last_what_is_too_short_for_a_batch_is_finished() -> None:
    one = cursor()
    reach(one, 8, batch_size=4, drop_last=True)
    assert begin(one, 4, True) == (1, 0)
    reach(one, 8, batch_size=4)
    assert begin(one) == (2, 0)  # abandoned: the next iteration is the next epoch


def test_a_rank_without_rows_waits_for_the_others() -> None:
    # 5 rows on 2 ranks: rank 1 has 2, rank 0 has 3. After two rows each, the epoch is not over.
    for rank in (0, 1):
        one = cursor(5, num_replicas=2, rank=rank)
        reach(one, 4)
        assert one.state_dict()["position"] == 4


def test_set_epoch_keeps_moves_and_rebases() -> None:
    one = cursor(offset=3)
    one.set_epoch(0)
    assert begin(one) == (0, 3)
    one.set_epoch(4)
    assert begin(one) == (4, 0)
    reach(one, 6)
    one.set_epoch(4)  # said late: the place stays
    assert one.state_dict()["position"] == 6
    one.set_epoch(2)  # no load before it: the user wants epoch 2
    assert begin(one) == (2, 0)
    one.load_state_dict({**one.state_dict(), "epoch": 7, "position": 5})
    with pytest.warns(UserWarning, match="counts its epochs anew"):
        one.set_epoch(0)
    assert begin(one) == (7, 5)
    reach(one, 10)
    one.set_epoch(1)
    assert begin(one) == (8, 0)
    one.set_epoch(5)
    assert begin(one) == (12, 0)


def test_set_epoch_of_the_epoch_under_way_makes_it_come_again() -> None:
    one = cursor()
    reach(one, 5)
    one.set_epoch(0)
    assert begin(one) == (0, 0)
    one = cursor()
    reach(one, 5)
    assert begin(one) == (1, 0)


def test_the_state_is_small_json_and_the_same_on_every_rank() -> None:
    states = []
    for rank in range(3):
        one = cursor(10, num_replicas=3, rank=rank, remainder="pad")
        reach(one, 6)
        states.append(json.dumps(one.state_dict(), sort_keys=True))
    assert len(set(states)) == 1
    assert len(states[0]) < 1024
    assert set(json.loads(states[0])) == {
        *("version", "seed", "epoch", "position", "length", "shuffle", "fingerprint"),
        *("steps", "left", "share", "proof"),
    }


def test_a_finished_position_loads_as_the_next_epoch() -> None:
    one = cursor()
    one.load_state_dict({**one.state_dict(), "position": 10})
    assert begin(one) == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "seed 2, but here it is 1"),
        ({"length": 11}, "length 11, but here it is 10"),
        ({"shuffle": False}, "shuffle False, but here it is True"),
        ({"shuffle": "once"}, "shuffle 'once'"),
        ({"fingerprint": "g"}, "fingerprint 'g'"),
        ({"version": 3}, "of version 3, this torchyoga reads versions 1 to 2"),
        ({"epoch": -1}, "epoch must be an int of at least 0, found -1"),
        ({"position": "3"}, "position must be an int"),
        ({"position": True}, "position must be an int"),
        ({"position": 11}, "lies past its length"),
    ],
)
def test_a_state_that_does_not_belong_here_is_refused_and_changes_nothing(change: Any, message: str) -> None:
    one = cursor(offset=3)
    with pytest.raises(StateError, match=message):
        one.load_state_dict({**one.state_dict(), **change})
    assert begin(one) == (0, 3)
    assert one.generation == 0


def test_what_is_no_state_is_refused() -> None:
    for damaged in ({}, {"epoch": 1}, [], None, "state"):
        with pytest.raises(StateError, match="expected a state with the keys"):
            cursor().load_state_dict(damaged)  # type: ignore[arg-type]


def test_not_strict_takes_epoch_and_position() -> None:
    one = cursor()
    one.load_state_dict({**cursor(500).state_dict(), "epoch": 2, "position": 7, "seed": 9}, strict=False)
    assert begin(one) == (2, 7)
    one.load_state_dict({**cursor(500).state_dict(), "epoch": 2, "position": 70}, strict=False)
    assert begin(one) == (3, 0)


def test_bad_offsets_are_refused() -> None:
    with pytest.raises(ValueError, match="start_offset must be at least 0, found -1"):
        cursor(offset=-1)
    with pytest.raises(ValueError, match="the dataset is empty"):
        cursor(0, offset=1)
    with pytest.raises(ValueError, match="epoch must be an int"):
        cursor().set_epoch(None)  # type: ignore[arg-type]


def test_the_steps_of_an_epoch_are_those_done_and_those_to_come() -> None:
    one = cursor(100, num_replicas=2)
    assert one.steps_under_way(5, False) == 10
    run = Run(one, 5)
    run.taken = 4
    run.report()
    assert one.steps_under_way(5, False) == 10
    state = one.state_dict()
    assert (state["position"], state["steps"]) == (40, 4)
    for world, size, steps in ((2, 5, 10), (1, 5, 4 + 12), (4, 5, 4 + 3), (1, 60, 4 + 1)):
        other = cursor(100, num_replicas=world)
        other.load_state_dict(state)
        assert other.steps_under_way(size, False) == steps
        run = Run(other, size)
        run.taken = 1
        run.report()
        last = steps == 5  # its last batch ends the epoch
        assert other.steps_under_way(size, False) == (2 if last else steps)
        assert other.state_dict()["steps"] == (0 if last else 5)
        other.finished(run)
        assert other.steps_under_way(size, False) == other.steps(size, False)
    del state["steps"]  # of nobody knows how many: it is what a whole epoch has
    other.load_state_dict(state)
    assert other.steps_under_way(5, False) == 20


def test_a_counter_that_was_saved_before_the_epoch_ended_is_behind() -> None:
    one = cursor()
    one.load_state_dict({**one.state_dict(), "epoch": 1})
    reach(one, 10)
    with pytest.warns(UserWarning, match="counts its epochs anew"):
        one.set_epoch(1)  # torchdata.nodes saved 0 after the last batch of epoch 0
    assert begin(one) == (2, 0)
    one.set_epoch(2)
    assert begin(one) == (3, 0)


# -- orders that heed files


def blocks(world: int = 1, starts: Any = (0, 4, 10), rank: int = 0, **options: Any) -> Cursor:
    return Cursor(BlockOrder(starts, 1, **options), Shard(world, rank), 0, "f")


def test_a_state_says_what_a_block_shuffle_depends_on() -> None:
    state = blocks(window=3).state_dict()
    assert (state["shuffle"], state["window"]) == ("block", 3)
    assert "shards" not in state
    state = blocks(shards=7).state_dict()
    assert state["shards"] == 7
    assert len(json.dumps(state)) < 1024
    assert blocks(reshuffle=False).state_dict()["shuffle"] == "block once"
    assert blocks(shuffle=True, shards=2, reshuffle=False).state_dict()["shuffle"] == "once"
    assert "window" not in blocks(shuffle=True, shards=2).state_dict()
    # Files without rows change nothing.
    blocks(starts=(0, 4, 4, 10)).load_state_dict(blocks().state_dict())


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        (blocks(window=4), blocks(window=8), "shuffle_window 4, but here it is 8"),
        (blocks(starts=(0, 5, 10)), blocks(), "the same rows in other files"),
        (blocks(), cursor(), "shuffle 'block', but here it is True"),
        (cursor(), blocks(), "shuffle True, but here it is 'block'"),
        (blocks(), blocks(shards=1), "of locality 'global', but here it is 'shard'"),
        (blocks(shards=2), blocks(), "of locality 'shard', but here it is 'global'"),
        (blocks(shuffle=True, shards=2), cursor(), "of locality 'shard', but here it is 'global'"),
        (blocks(reshuffle=False), blocks(), "shuffle 'block once', but here it is 'block'"),
    ],
)
def test_a_state_of_another_order_is_refused(saved: Cursor, here: Cursor, message: str) -> None:
    with pytest.raises(StateError, match=message):
        here.load_state_dict(saved.state_dict())
    here.load_state_dict({**saved.state_dict(), "position": 3}, strict=False)
    assert begin(here) == (0, 3)


@pytest.mark.parametrize("shards", [0, -1, 2**40, "3", None, True, 1.0])
def test_damaged_shards_are_refused(shards: Any) -> None:
    here = blocks(shards=2)
    with pytest.raises(StateError, match="shards must be an int in 1"):
        here.load_state_dict({**here.state_dict(), "shards": shards})


def test_an_epoch_keeps_the_shards_that_it_was_begun_with() -> None:
    here = blocks(2, shards=2)
    here.load_state_dict({**here.state_dict(), "epoch": 3, "position": 3, "shards": 5})
    assert here.state_dict()["shards"] == 5
    reach(here, 9)
    assert here.state_dict()["shards"] == 5
    assert here.order.positions(3, here.order.rows(3, [9])).tolist() == [9]
    assert begin(here) == (4, 0)
    here.set_epoch(4)
    assert here.state_dict()["shards"] == 2
    # At its beginning an epoch is not begun.
    here.load_state_dict({**here.state_dict(), "shards": 5})
    assert here.state_dict()["shards"] == 2


def test_ranks_found_late_are_the_shards_unless_rows_have_been_delivered() -> None:
    here = Cursor(BlockOrder((0, 4, 10), 1, shards=1), Shard(), start_offset=4)
    here.deal(2, 1)
    assert (here.shard.num_replicas, here.shard.rank, here.state_dict()["shards"]) == (2, 1, 2)
    reach(here, 6)
    here.deal(3, 1)
    assert here.state_dict()["shards"] == 2
    here.set_epoch(1)
    assert here.state_dict()["shards"] == 3
    loaded = Cursor(BlockOrder((0, 4, 10), 1, shards=1), Shard())
    loaded.load_state_dict({**here.state_dict(), "position": 3})
    loaded.deal(4, 0)
    assert loaded.state_dict()["shards"] == 3
