"""Where an iteration stands: epochs, offsets, set_epoch and states."""

from __future__ import annotations

import itertools
import pickle

import pytest
from cursors import Held, begin, blocks, cursor, deliver, reach, report, start

from torchyoga.order.by_file import BlockOrder
from torchyoga.order.cursor import UNKNOWN, Cursor
from torchyoga.order.epoch import IterationOptions
from torchyoga.order.full import Order
from torchyoga.order.place import Place, Shard, taken
from torchyoga.order.proof import Proof, prove, weight


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
    run = one.iteration(IterationOptions(5))
    run.taken = 4
    one.reached(run)
    assert one.steps_under_way(5, False) == 10
    state = one.state_dict()
    assert (state["position"], state["steps"]) == (40, 4)
    for world, size, steps in ((2, 5, 10), (1, 5, 4 + 12), (4, 5, 4 + 3), (1, 60, 4 + 1)):
        other = cursor(100, num_replicas=world)
        other.load_state_dict(state)
        assert other.steps_under_way(size, False) == steps
        run = other.iteration(IterationOptions(size))
        run.hold(run)
        run.taken = 1
        other.reached(run)
        last = steps == 5  # its last batch ends the epoch
        assert other.steps_under_way(size, False) == (2 if last else steps)
        assert other.state_dict()["steps"] == (0 if last else 5)
        other.finished(run)
        assert other.steps_under_way(size, False) == other.steps(size, False)
    del state["steps"]  # how many were delivered is unknown: it is the number of a whole epoch
    other.load_state_dict(state)
    assert other.steps_under_way(5, False) == 20
    assert cursor(100, offset=40).state_dict()["steps"] is None  # as of the rows that an offset leaves out
    assert cursor(100, offset=40).steps_under_way(5, False) == 20


def test_a_counter_that_was_saved_before_the_epoch_ended_is_behind() -> None:
    one = cursor()
    one.load_state_dict({**one.state_dict(), "epoch": 1})
    reach(one, 10)
    with pytest.warns(UserWarning, match="counts its epochs anew"):
        one.set_epoch(1)  # torchdata.nodes saved 0 after the last batch of epoch 0
    assert begin(one) == (2, 0)
    one.set_epoch(2)
    assert begin(one) == (3, 0)


# -- orders that depend on files


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
    # An epoch at position 0 has not begun.
    here.load_state_dict({**here.state_dict(), "shards": 5})
    assert here.state_dict()["shards"] == 2


def test_ranks_found_late_are_the_shards_unless_rows_have_been_delivered() -> None:
    here = Cursor(BlockOrder((0, 4, 10), 1, shards=1), Shard(), start_offset=4)
    here.deal(2, 1)
    assert (here.shard.num_replicas, here.shard.rank, here.state_dict()["shards"]) == (2, 1, 2)
    reach(here, 8)
    here.deal(3, 1)
    assert here.state_dict()["shards"] == 2
    here.set_epoch(1)
    assert here.state_dict()["shards"] == 3
    loaded = Cursor(BlockOrder((0, 4, 10), 1, shards=1), Shard())
    loaded.load_state_dict({**here.state_dict(), "position": 3})
    loaded.deal(4, 0)
    assert loaded.state_dict()["shards"] == 3


# -- looks, and epochs without rows left


def test_an_epoch_without_any_batch_ends() -> None:
    one = cursor(35, num_replicas=5)
    one.load_state_dict({**one.state_dict(), "position": 12})
    run = start(one, 8, drop_last=True)
    assert (run.start[:2], run.num_steps) == ((1, 0), 0)  # epoch 0 had nothing left, either
    one.finished(run)
    assert begin(one) == (2, 0)


def test_rows_left_out_are_reported() -> None:
    one = cursor(20)
    deliver(start(one), 3)
    one.set_epoch(1)
    run = start(one)
    deliver(run, 1)
    state = one.state_dict()
    assert state["left_out"] == [14, 0]
    assert "again" not in state
    other = cursor(20)
    other.load_state_dict(state)
    deliver(start(other), 9)
    proof = prove([other.receipt()])
    assert proof
    assert "2 of them before" in str(proof)
    assert "left out: 14 rows of epochs that were left early, up to 0" in str(proof)
    # Rows that drop_last leaves out were not meant to be delivered.
    one = cursor(10)
    run = start(one, 4, drop_last=True)
    deliver(run, 2)
    assert one.epoch == 1
    deliver(start(one, 4, drop_last=True), 1)
    assert "left_out" not in one.state_dict()


def test_the_proof_of_an_epoch_that_was_begun_again_fails() -> None:
    one = cursor(20)
    deliver(start(one), 3)
    one.set_epoch(0)
    run = start(one)
    deliver(run, 10)
    proof = prove([one.receipt()])
    assert not proof
    assert "restarted: 6 rows had been delivered" in str(proof)
    # A state keeps this.
    one = cursor(20)
    deliver(start(one), 3)
    one.set_epoch(0)
    deliver(start(one), 2)
    other = cursor(20)
    other.load_state_dict(one.state_dict())
    deliver(start(other), 8)
    assert "restarted: 6 rows" in str(prove([other.receipt()]))


def test_the_proof_holds_when_drop_leaves_out_rows_before_the_end() -> None:
    # In batches of 4 of 10 rows, the short last one came first; 5 ranks go on, and drop 3 of the 8 rows left.
    one = cursor(10)
    run = start(one, 4, in_order=False)
    run.deliver(2)
    report(run)
    receipts = []
    for rank in range(5):
        other = cursor(10, num_replicas=5, rank=rank, remainder="drop")
        other.load_state_dict(one.state_dict())
        deliver(start(other, 1), 1)
        receipts.append(other.receipt())
    proof = prove(receipts)
    assert proof
    assert proof.rows == 7


@pytest.mark.parametrize("in_order", [True, False])
def test_the_state_after_a_number_of_batches(in_order: bool) -> None:
    one, states = cursor(61), []
    run = start(one, 4, in_order=in_order)
    steps = iter(range(16) if in_order else (1, 0, 2, 5, 3, 4, 6, 7, 9, 8, 10, 12, 11, 13, 14, 15))
    for count in range(16):
        states.append(one.state_of(run, run.after(count)))
        step = next(steps)
        if count == 6:
            run.lose(step)  # left out: the next one is delivered
            step = next(steps)
        if count == 9:
            run.restart()
            steps = iter(range(20))
            step = next(steps)
        if run.start.position and count == 15:
            break
        run.deliver(step)
        report(run)
        assert run.num_delivered == count + 1
        assert one.state_of(run, run.after(count + 1)) == one.state_dict()
        if not run.num_steps - run.delivered:
            break
    for count, state in enumerate(states):
        assert one.state_of(run, run.after(count)) == state
    with pytest.raises(ValueError, match=rf"steps must be in 0\.\.{run.num_delivered}"):
        run.after(run.num_delivered + 1)


def test_after_many_restarts_earlier_states_are_found() -> None:
    one = cursor(3000)
    run, states = start(one, 1), []
    for _ in range(1500):
        deliver(run, 1)
        states.append(one.state_of(run))
        run.restart()
    assert run.num_delivered == 1500
    assert all(one.state_of(run, run.after(steps)) == states[steps - 1] for steps in (1, 700, 1500))


def test_an_iteration_that_does_not_count_does_not_end_the_epoch() -> None:
    one = cursor(offset=4)
    before = one.state_dict()
    run = one.iteration(IterationOptions(2, counts=False))
    run.taken = run.num_steps
    one.reached(run)
    one.finished(run)
    assert one.state_dict() == before
    assert begin(one) == (0, 4)


def test_a_look_is_of_one_batch_however_often_it_has_begun_again() -> None:
    for batches, more in ((1, 0), (0, 1), (1, 1), (7, 1), (5, 0)):
        one = cursor(20)
        run = start(one)
        deliver(run, batches)
        run.restart()
        deliver(run, more)
        is_look = batches + more == 1
        assert begin(one) == (0 if is_look else 1, 0)
        deliver(start(one), 1)
        out = None if is_look else [20 - 2 * (batches + more), 0]
        assert one.state_dict().get("left_out") == out


def test_ranks_are_level_even_if_one_of_them_has_begun_again() -> None:
    receipts = []
    for rank in (0, 1):
        one = cursor(20, num_replicas=2, rank=rank)
        run = start(one)
        deliver(run, 2)
        if rank:
            run.restart()
        deliver(run, 1)
        receipts.append(one.receipt())
    proof = prove(receipts)
    assert proof, str(proof)


@pytest.mark.parametrize("named", [False, True])
def test_rows_left_by_an_iterator_that_is_held_are_left_out_unless_it_goes_on(named: bool) -> None:
    one, old, new = cursor(20), Held(), Held()
    first = start(one, holder=old)
    deliver(first, 3)
    if named:
        one.set_epoch(1)
    second = start(one, holder=new)
    deliver(second, 2)
    assert one.state_dict()["left_out"] == one.receipt()["left_out"] == [14, 0]  # no state keeps an iterator
    assert "left_out" not in one.state_of(first)
    deliver(first, 2)
    assert "left_out" not in one.state_dict()  # this state goes on within epoch 0
    deliver(second, 1)
    assert one.state_dict()["left_out"] == [10, 0]
    del old
    third = start(one, holder=Held())
    deliver(third, 2)
    assert one.state_dict()["left_out"] == [10 + 14, 1]
    deliver(second, 7)
    deliver(third, 1)
    assert one.state_dict()["left_out"] == [10, 0]


def test_batches_that_a_trainer_skips_are_accounted_for_once() -> None:
    receipts = []
    for rank in range(2):
        one = cursor(20, num_replicas=2, rank=rank)
        run = start(one)
        run.skip(2)
        deliver(run, 3)
        receipts.append(one.receipt())
    proof = prove(receipts)
    assert proof, str(proof)
    assert (proof.rows, proof.since) == (20, 8)


def test_a_batch_that_was_left_out_is_told_however_often_a_state_is_loaded() -> None:
    for in_order in (True, False):
        one = cursor(20)
        run = start(one, in_order=in_order)
        deliver(run, 1)
        run.lose(1)
        deliver(run, 1)
        for _ in range(4):
            assert not prove([one.receipt()])
            state, one = one.state_dict(), cursor(20)
            came = [range(2), range(4, state["position"])]
            assert int(state["proof"], 16) == weight(1, 0, came)
            one.load_state_dict(state)
            run = start(one, in_order=in_order)
            assert not prove([one.receipt()])
            deliver(run, 1)
        deliver(run, 3)
        assert not prove([one.receipt()])
        assert begin(one) == (1, 0)
        deliver(start(one), 10)
        assert prove([one.receipt()]) == Proof(1, 20, 20)


def test_the_rest_of_an_epoch_is_left_out_once() -> None:
    one = cursor(20)
    for epoch in (0, 1, 0, 1):
        one.set_epoch(epoch)
        deliver(start(one), 3 if epoch == 0 else 10)
    assert one.state_dict()["left_out"] == [14, 0]


def test_an_epoch_may_get_its_length_later() -> None:
    one = Cursor(Order(UNKNOWN, shuffle=False), Shard())
    deliver(start(one, 1), 3)
    one.resize(7)
    assert (one.length, one.state_dict()["length"], one.steps(1, False)) == (7, 7, 7)


def test_what_a_cursor_keeps_does_not_grow_with_the_epochs() -> None:
    one, sizes = cursor(4), []
    for _ in range(100):
        run = start(one)
        deliver(run, 2)
        one.finished(run)
        sizes.append(len(pickle.dumps(one)))
    assert len(set(sizes[50:])) == 1


def test_the_rows_of_the_last_batches_are_those_of_the_dataset() -> None:
    for length, world, size, position in itertools.product(range(1, 14), (1, 2, 3), (1, 2, 4), (0, 3)):
        for remainder, drop_last in itertools.product(("drop", "pad"), (False, True)):
            shards = [Shard(world, rank, remainder) for rank in range(world)]  # type: ignore[arg-type]
            first, before = Place(0, min(position, length - 1)), 0
            for shard in shards:
                one = Cursor(Order(length, 1), shard)
                one.load_state_dict({**one.state_dict(), "position": first.position, "proof": None})
                one.set_epoch(0)
                run = one.iteration(IterationOptions(size, drop_last))
                if not run.num_steps:
                    continue
                before = (run.num_steps - 1) * size
                stop = min(before + size, shard.count(length, first.position))
                last = [taken(first, other, length, before, stop) for other in shards]
                rows = [row for ranges in last for some in ranges for row in some if row < length]
                assert run.rows_in_last_step == len(rows)


# -- set_epoch keeps the place, moves it, or counts from a loaded epoch


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
