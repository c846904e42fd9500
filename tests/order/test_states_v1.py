"""States of order version 1: their epoch is finished in its order, and the next is in version 2's."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from golden.states import FILE, opened, rows_of

import torchyoga as yoga
from torchyoga.errors import StateError

CASES = json.loads(FILE.read_text())
RESUMES = [(case, after) for case in CASES for after in case["after"]]
EACH = pytest.mark.parametrize(
    ("case", "after"), RESUMES, ids=[f"{case['name']} on {after['world']}" for case, after in RESUMES]
)


def loaded(case: dict[str, Any], after: dict[str, Any], states: list[Any] | None = None) -> list[Any]:
    """The ranks, each with its own state, if there are several."""
    states = states or case["states"]
    world = after["world"]
    ranks = [opened(case, world, rank, **after["options"]) for rank in range(world)]
    for rank, source in enumerate(ranks):
        source.load_state_dict(states[rank % len(states)])
    return ranks


def whole_epoch(case: dict[str, Any], epoch: int) -> list[int]:
    """An epoch as version 2 has it."""
    options = {name: value for name, value in case["options"].items() if name != "start_offset"}
    source = opened({**case, "options": options}, 1, 0)
    source.set_epoch(epoch)
    return rows_of(source)


@EACH
def test_the_epoch_is_finished_exactly(case: dict[str, Any], after: dict[str, Any]) -> None:
    ranks = loaded(case, after)
    assert all(source.state_dict()["version"] == 1 for source in ranks)
    assert [rows_of(source) for source in ranks] == after["rows"]
    assert all(source.state_dict()["version"] == 2 for source in ranks)
    assert all(source.state_dict()["epoch"] == case["epoch"] + 1 for source in ranks)
    keeps = {**case["options"], **after["options"]}.get("remainder", "pad") == "keep"
    if keeps or case["kind"] == "stream":
        offset = case["options"].get("start_offset", 0)
        rows = sum(case["before"] + after["rows"], [])
        assert len(set(rows)) == len(rows) == sum(case["files"]) - offset
    proof = yoga.prove([source.receipt() for source in ranks])
    assert proof, proof


@EACH
def test_the_next_epoch_is_version_2s_and_complete(case: dict[str, Any], after: dict[str, Any]) -> None:
    length = sum(case["files"])
    ranks = loaded(case, after)
    for source in ranks:
        rows_of(source)
    if length > 10**6:
        fresh = yoga.ResumableSampler(length, seed=case["options"]["seed"])
        epoch, positions = case["epoch"] + 1, range(1000)
        for source in ranks:
            assert source.rows_at(positions, epoch).tolist() == fresh.rows_at(positions, epoch).tolist()
        return
    found = [rows_of(source) for source in ranks]
    if "locality" in case["options"]:  # with another number of ranks, each has other files
        assert set(sum(found, [])) == set(range(length))
    else:
        whole = whole_epoch(case, case["epoch"] + 1)
        assert sorted(whole) == list(range(length)) or case["options"].get("remainder") == "drop"
        dealt = [row for step in itertools.zip_longest(*found) for row in step if row is not None]
        assert dealt[: min(len(dealt), length)] == whole[: len(dealt)]
    proof = yoga.prove([source.receipt() for source in ranks])
    assert proof, proof


@EACH
def test_a_state_saved_on_the_way_says_version_1_again(case: dict[str, Any], after: dict[str, Any]) -> None:
    ranks = loaded(case, after)
    got = [rows_of(source, 1) for source in ranks]
    states = [json.loads(json.dumps(source.state_dict())) for source in ranks]
    if any(state["epoch"] != case["epoch"] for state in states):
        return  # that was the end of the epoch
    assert all(state["version"] == 1 for state in states)
    proof = yoga.prove([source.receipt() for source in ranks])
    assert proof, proof
    again = loaded(case, after, states)
    assert [before + rows_of(source) for before, source in zip(got, again, strict=True)] == after["rows"]
    assert all(source.state_dict()["version"] == 2 for source in again)


def test_what_is_delivered_after_the_state_is_not_what_version_2_would_deliver() -> None:
    differ = []
    for case, after in RESUMES:
        ranks = loaded(case, after, [{**state, "version": 2} for state in case["states"]])
        differ.append([rows_of(source) for source in ranks] != after["rows"])
    assert sum(differ) > len(differ) - 8
    assert all(differ[i] for i, (case, _) in enumerate(RESUMES) if case["options"].get("shuffle", True))


def test_at_the_beginning_of_an_epoch_nothing_is_left_of_version_1() -> None:
    fresh = yoga.ResumableSampler(50, seed=3)
    fresh.set_epoch(4)
    state = {**fresh.state_dict(), "version": 1}
    sampler = yoga.ResumableSampler(50, seed=3)
    sampler.load_state_dict(state)
    assert sampler.state_dict()["version"] == 2
    assert list(sampler) == list(fresh)


def test_loading_another_state_forgets_the_first() -> None:
    case, after = RESUMES[0]
    source = loaded(case, after)[0]
    source.load_state_dict({**case["states"][0], "version": 2})
    assert source.state_dict()["version"] == 2


def test_strict_or_not_the_epoch_is_finished_in_its_version() -> None:
    case, after = RESUMES[0]
    source = loaded(case, after)[0]
    source.load_state_dict({**case["states"][0], "fingerprint": "another"}, strict=False)
    assert [rows_of(source)] == after["rows"]


def test_ranks_in_orders_of_different_versions_prove_nothing() -> None:
    case, after = next((case, after) for case, after in RESUMES if after["world"] == 2)
    ranks = loaded(case, after)
    ranks[1].load_state_dict({**case["states"][0], "version": 2})
    with pytest.raises(StateError, match="the receipt of rank 1 has version 2, rank 0's has 1"):
        yoga.prove([source.receipt() for source in ranks])


def test_a_later_version_is_refused() -> None:
    case, after = RESUMES[0]
    for version in (0, 5):
        with pytest.raises(StateError, match=f"of version {version}, this torchyoga reads"):
            loaded(case, after, [{**case["states"][0], "version": version}])
