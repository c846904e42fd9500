"""What `set_epoch` does: it keeps the place, moves it, or counts from a loaded epoch."""

from __future__ import annotations

import pytest
from cursors import Held, begin, cursor, deliver, reach, report, start

from torchyoga.order.place import Place
from torchyoga.order.proof import prove


def test_set_epoch_keeps_the_place_or_moves_it() -> None:
    one = cursor(offset=3)
    one.set_epoch(0)
    assert begin(one) == (0, 3)
    one.set_epoch(4)
    assert begin(one) == (4, 0)
    reach(one, 6)
    one.set_epoch(4)  # called late: the place stays
    assert one.state_dict()["position"] == 6
    one.set_epoch(2)  # without a load before it: the user wants epoch 2
    assert begin(one) == (2, 0)


def test_a_trainer_that_counts_epochs_from_zero_after_each_load_is_understood() -> None:
    one = cursor()
    for epoch in (7, 3):
        one.load_state_dict({**one.state_dict(), "epoch": epoch, "position": 5, "proof": None})
        with pytest.warns(UserWarning, match=f"its epoch 0 is taken as {epoch} from now on"):
            one.set_epoch(0)
        assert begin(one) == (epoch, 5)
        reach(one, 10)
        one.set_epoch(1)
        assert begin(one) == (epoch + 1, 0)
    # A trainer that goes on counting where it was saved is not corrected because an earlier one was.
    one.load_state_dict({**one.state_dict(), "epoch": 3})
    one.set_epoch(3)
    assert begin(one) == (3, 0)


def test_set_epoch_with_the_current_epoch_goes_back_to_where_this_process_began_it() -> None:
    one = cursor(20)
    one.load_state_dict({**one.state_dict(), "position": 12, "epoch": 3})
    for steps in (1, 2):
        deliver(start(one), steps)
        one.set_epoch(3)
        assert begin(one, 2) == (3, 12)
    run = start(one)
    assert run.again == 4
    deliver(run, 1)
    one.set_epoch(3)  # said late
    deliver(run, 2)
    assert one.state_dict()["position"] == 18
    assert begin(one, 2) == (4, 0)


def test_an_epoch_of_one_batch_ends_even_if_set_epoch_names_it_late() -> None:
    one, holder = cursor(2), Held()
    run = start(one, holder=holder)
    deliver(run, 1)
    one.set_epoch(0)  # as Lightning does, after its first batch
    assert (one.epoch, one.position, begin(one)) == (0, 2, (0, 0))
    assert (one.state_dict()["epoch"], one.state_dict()["position"]) == (1, 0)
    one.finished(run)
    assert begin(one) == (1, 0)
    one.set_epoch(0)  # its end was reported: the caller wants it again
    assert begin(one) == (0, 0)


def test_an_epoch_without_steps_left_is_empty_if_set_epoch_names_it() -> None:
    # 24 of 25 rows were delivered on 4 ranks; nothing is left for 8, if rows that they cannot share are
    # dropped.
    state = {**cursor(100).state_dict(), "position": 96, "steps": 24}
    for named in (False, True):
        one = cursor(100, num_replicas=8, rank=3, remainder="drop")
        one.load_state_dict(state)
        if named:
            one.set_epoch(0)
        assert one.steps_under_way(1, False) == (state["steps"] if named else 12)
        run = start(one, 1)
        assert run.num_steps == (0 if named else 12)
        assert run.start.epoch == (0 if named else 1)
        if named:
            one.finished(run)
            one.set_epoch(1)
        assert begin(one) == (1, 0)


def test_set_epoch_counts_from_a_loaded_epoch_only_right_after_the_load() -> None:
    one = cursor(10)
    one.load_state_dict({**one.state_dict(), "epoch": 2})
    for _ in range(2):
        run = start(one, 5)
        deliver(run, 2)
        one.finished(run)
    one.set_epoch(2)  # on purpose
    assert begin(one) == (2, 0)


def test_after_a_look_at_the_next_epoch_set_epoch_can_name_one_without_steps_left() -> None:
    one = cursor(19, num_replicas=2, remainder="drop")
    one.load_state_dict({**one.state_dict(), "position": 8})
    look = start(one, 9, drop_last=True)
    assert (look.start[:2], look.num_steps) == ((1, 0), 1)
    deliver(look, 1)
    one.set_epoch(0)
    run = start(one, 9, drop_last=True)
    assert (run.start[:2], run.num_steps) == ((0, 8), 0)
    one.finished(run)
    one.set_epoch(1)
    assert begin(one, 9, True) == (1, 0)


def test_an_epoch_named_after_the_last_batch_but_before_the_end_is_reported_is_the_next_one() -> None:
    one = cursor()
    run = start(one)
    deliver(run, 5)
    one.set_epoch(4)
    one.finished(run)
    assert begin(one) == (4, 0)


def test_only_the_first_set_epoch_after_a_load_may_count_from_zero() -> None:
    one = cursor()
    one.load_state_dict({**one.state_dict(), "epoch": 7})
    one.set_epoch(8)
    assert begin(one) == (8, 0)
    one.set_epoch(7)  # on purpose
    assert begin(one) == (7, 0)


def test_steps_ahead_are_counted_from_the_epoch_that_set_epoch_names() -> None:
    one = cursor()
    one.set_epoch(3)
    assert [one.ahead(steps, 4)[:2] for steps in (0, 2, 3, 7)] == [(3, 0), (3, 8), (4, 0), (5, 4)]
    one.load_state_dict({**one.state_dict(), "epoch": 5, "position": 8, "proof": None})
    assert [one.ahead(steps, 4)[:2] for steps in (0, 1)] == [(5, 8), (6, 0)]
    assert [one.ahead(steps, 4, drop_last=True)[:2] for steps in (0, 1)] == [(6, 0), (6, 4)]
    assert one.state_at(one.ahead(0, 4, drop_last=True))["steps"] == 0  # of an epoch that has not begun
    assert one.state_at(one.ahead(0, 4))["steps"] is None  # steps were not counted
    assert one.ahead(1)[:2] == (5, 9)
    with pytest.raises(ValueError, match="an epoch has no batch of 20 rows; use a smaller batch_size"):
        one.ahead(1, 20, drop_last=True)


@pytest.mark.parametrize("world", [1, 2])
def test_an_epoch_that_is_named_twice_begins_where_it_began_whether_or_not_there_was_a_look(
    world: int,
) -> None:
    receipts = []
    for rank in range(world):
        one = cursor(40, num_replicas=world, rank=rank)
        run = start(one, in_order=False)
        for step in (0, 2, 3) if world == 1 else (0, 1, 2):
            run.deliver(step)
            report(run)
        one.set_epoch(0)
        if rank == 0:
            deliver(start(one, in_order=False), 1)
            one.set_epoch(0)
        run = start(one, in_order=False)
        assert (run.start, run.steps_before, one.steps_under_way(2, False)) == (Place(0, 0), 0, 20 // world)
        deliver(run, run.num_steps)
        receipts.append(one.receipt())
    assert prove(receipts).problem.startswith(f"restarted: {6 * world} rows")
