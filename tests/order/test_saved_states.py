"""States of a cursor: small, the same on every rank; what does not fit is refused before anything changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cursors import begin, blocks, cursor, reach
from golden.states import FILE, opened, rows_of

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.order.cursor import Cursor
from torchyoga.order.state import State, written


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
        *("steps", "left", "proof"),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "seed 2, but here it is 1"),
        ({"length": 11}, "length 11, but here it is 10"),
        ({"shuffle": False}, "shuffle False, but here it is True"),
        ({"shuffle": "once"}, "shuffle 'once'"),
        ({"fingerprint": "g"}, "fingerprint 'g'"),
        ({"fingerprint": None}, "fingerprint None, but here it is 'f'"),
        ({"version": 5}, "of version 5, this torchyoga reads version 1"),
        ({"version": 0}, "of version 0, this torchyoga reads version 1"),
        ({"epoch": -1}, "epoch must be an int of at least 0, found -1"),
        ({"position": "3"}, "position must be an int"),
        ({"position": True}, "position must be an int"),
        ({"position": 11}, "lies past its length"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: Any, message: str) -> None:
    one = cursor(offset=3)
    with pytest.raises(StateError, match=message):
        one.load_state_dict({**one.state_dict(), **change})
    assert begin(one) == (0, 3)
    assert one.generation == 0


def test_a_value_that_is_not_a_state_is_refused() -> None:
    for damaged in ({}, {"epoch": 1}, [], None, "state"):
        with pytest.raises(StateError, match="expected a state with the keys"):
            cursor().load_state_dict(damaged)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="is of the sampler Mine, which decided which rows came"):
        cursor().load_state_dict({"sampler": "Mine", "steps": 3})


def test_a_state_keeps_what_a_loader_adds_apart() -> None:
    known = {**cursor().state_dict(), "position": 3, "again": 2, "left_out": [4, 0]}
    state = State.from_dict({**known, "libraries": "pillow 1"})
    assert state.extra == {"libraries": "pillow 1"}
    assert state.to_dict() == {**known, "libraries": "pillow 1"}


def test_ranges_are_written_as_few() -> None:
    assert written((range(2), range(2, 4), range(6, 10, 2), range(10, 12, 2), range(12, 13))) == [
        [0, 4],
        [6, 12, 2],
        [12, 13],
    ]


def test_a_state_with_more_ranges_than_a_loader_could_leave_is_refused() -> None:
    left = [[2 * i, 2 * i + 1] for i in range(2**16 + 1)]
    big = cursor(2**18)
    state = {**big.state_dict(), "position": 2**17, "proof": None}
    with pytest.raises(StateError, match="left or proof are damaged"):
        big.load_state_dict({**state, "left": left})
    big.load_state_dict({**state, "left": left[1:]})
    assert len(big.begin().left) == 2**16


def test_with_strict_false_epoch_and_position_are_taken() -> None:
    one = cursor()
    one.load_state_dict({**cursor(500).state_dict(), "epoch": 2, "position": 7, "seed": 9}, strict=False)
    assert begin(one) == (2, 7)
    one.load_state_dict({**cursor(500).state_dict(), "epoch": 2, "position": 70}, strict=False)
    assert begin(one) == (3, 0)


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
    # Files without rows make no difference.
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


@pytest.mark.parametrize("more", [{"sources": [["web", 9, "5a"]]}, {"passes": [["web", 0, 0, 9]]}])
def test_a_state_of_a_mixture_is_refused_where_there_is_none(more: Any) -> None:
    one = cursor()
    state = {**one.state_dict(), "position": 3, **more}
    with pytest.raises(
        StateError, match=r"has the (sources|passes) of a mixture, \(\('web'.* is none\. Load it"
    ):
        one.load_state_dict(state)
    one.load_state_dict(state, strict=False)
    assert begin(one) == (0, 3)


@pytest.mark.parametrize("shards", [0, -1, 2**40, "3", None, True, 1.0])
def test_damaged_shards_are_refused(shards: Any) -> None:
    here = blocks(shards=2)
    with pytest.raises(StateError, match="shards must be an int in 1"):
        here.load_state_dict({**here.state_dict(), "shards": shards})


FORGED: dict[str, list[Any]] = {
    "left": [
        *([[0, 10**30]], [[0, 2**63]], [[True, 3]], [[8, 10]], [[3, 5], [2, 4]], [[4]], [[4, 8, 1, 1]]),
        *([[8, 4, 1]], [[4, 8, 1], [6, 9, 1]], [[4, 8, 0]], [[-4, 8, 1]], [[40, 44, 1]], [["4", "8", "1"]]),
        [[3, 4]],
        "all",
    ],
    "steps": [2**63, True, -1, 1.5],
    "proof": ["what", 5],
    "again": [10**5000, True],
    "left_out": [[True, 0], [1, 2, 3]],
    **{"epoch": [10**5000], "seed": [10**5000], "length": [10**5000]},
    **{"shuffle": [[1, 2]], "fingerprint": [{"a": 1}], "window": [[1]], "files": [["a"]]},
}


@pytest.mark.parametrize(
    "change",
    [{"left": [[1, 4]], "position": 9}, *({key: one} for key, values in FORGED.items() for one in values)],
)
@pytest.mark.parametrize("strict", [True, False])
def test_forged_states_are_refused_before_anything_changes(change: Any, strict: bool) -> None:
    one = cursor(10)
    before = one.state_dict()
    try:
        one.load_state_dict({**before, "position": 2, **change}, strict=strict)
    except StateError:
        assert one.state_dict() == before
        return
    assert not strict
    assert set(change) & {"left", "steps", "again", "left_out", "proof", "length"}  # not loaded
    assert begin(one) == (0, change.get("position", 2))


# -- golden states


CASES = json.loads(FILE.read_text())
RESUMES = [(case, after) for case in CASES for after in case["after"]]
EACH = pytest.mark.parametrize(
    ("case", "after"), RESUMES, ids=[f"{case['name']} on {after['world']}" for case, after in RESUMES]
)


def ranks_of(case: dict[str, Any], after: dict[str, Any], states: Any = None) -> list[Any]:
    """The ranks that go on from states, by default the golden ones."""
    states = states or case["states"]
    ranks = [opened(case, after["world"], rank, **after["options"]) for rank in range(after["world"])]
    for rank, source in enumerate(ranks):
        source.load_state_dict(states[rank % len(states)])
    return ranks


@EACH
def test_the_epoch_is_finished_exactly_and_the_next_is_whole(
    case: dict[str, Any], after: dict[str, Any]
) -> None:
    ranks = ranks_of(case, after)
    assert [rows_of(source) for source in ranks] == after["rows"]
    assert all(source.state_dict()["epoch"] == case["epoch"] + 1 for source in ranks)
    assert yoga.prove([source.receipt() for source in ranks])
    options = {name: value for name, value in case["options"].items() if name != "start_offset"}
    fresh = [
        opened({**case, "options": options}, after["world"], rank, **after["options"])
        for rank in range(after["world"])
    ]
    for source in fresh:
        source.set_epoch(case["epoch"] + 1)
    if sum(case["files"]) < 10**6:
        assert [rows_of(source) for source in ranks] == [rows_of(source) for source in fresh]


@EACH
def test_a_state_saved_on_the_way_goes_on_as_exactly(case: dict[str, Any], after: dict[str, Any]) -> None:
    ranks = ranks_of(case, after)
    got = [rows_of(source, 1) for source in ranks]
    again = ranks_of(case, after, [json.loads(json.dumps(ranks[0].state_dict()))])
    assert [before + rows_of(source) for before, source in zip(got, again, strict=True)] == after["rows"]
