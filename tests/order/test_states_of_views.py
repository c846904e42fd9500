"""States of version 2 of views that decide which rows come: their epoch is finished as it was begun."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden.states import VIEWS_FILE, opened, rows_of, view

import torchyoga as yoga
from torchyoga.errors import StateError

CASES = json.loads(VIEWS_FILE.read_text())
RESUMES = [(case, after) for case in CASES for after in case["after"]]
EACH = pytest.mark.parametrize(
    ("case", "after"), RESUMES, ids=[f"{case['name']} on {after['world']}" for case, after in RESUMES]
)


def ranks_of(case: dict[str, Any], after: dict[str, Any], state: Any = None) -> list[Any]:
    """The ranks that go on from a state, by default the golden one."""
    ranks = [opened(case, after["world"], rank, **after["options"]) for rank in range(after["world"])]
    for source in ranks:
        source.load_state_dict(state or case["states"][0])
    return ranks


@EACH
def test_the_epoch_is_finished_exactly_and_the_next_is_that_of_today(
    case: dict[str, Any], after: dict[str, Any]
) -> None:
    ranks = ranks_of(case, after)
    assert all(source.state_dict()["version"] == 2 for source in ranks)
    assert [rows_of(source) for source in ranks] == after["rows"]
    assert yoga.prove([source.receipt() for source in ranks])
    fresh = [opened(case, after["world"], rank, **after["options"]) for rank in range(after["world"])]
    for source in fresh:
        source.set_epoch(case["epoch"] + 1)
    assert [rows_of(source) for source in ranks] == [rows_of(source) for source in fresh]
    assert all(source.state_dict() == ranks[0].state_dict() for source in ranks)


@EACH
def test_a_state_saved_on_the_way_goes_on_as_exactly(case: dict[str, Any], after: dict[str, Any]) -> None:
    ranks = ranks_of(case, after)
    got = [rows_of(source, 1) for source in ranks]
    again = ranks_of(case, after, json.loads(json.dumps(ranks[0].state_dict())))
    assert [before + rows_of(source) for before, source in zip(got, again, strict=True)] == after["rows"]


@pytest.mark.parametrize("name", ["mix", "balanced", "staged"])
def test_epochs_without_a_shuffle_have_a_version_of_their_own(name: str) -> None:
    data = view(name)
    loader = yoga.DataLoader(data, 4, shuffle=False)
    loader.set_epoch(2)
    whole = rows_of(loader)
    loader.set_epoch(2)
    got = rows_of(loader, 5)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["version"] == 4
    other = yoga.DataLoader(data, 4, shuffle=False)
    other.load_state_dict(state)
    assert got + rows_of(other) == whole
    assert yoga.DataLoader(data, 4, shuffle=True, seed=1).state_dict()["version"] == 2


@pytest.mark.parametrize("name", ["mix", "balanced"])
def test_other_weights_wait_for_the_end_of_an_epoch_begun_before(name: str) -> None:
    case = next(case for case in CASES if case["name"] == f"{name}, False")
    data: Any = view(name)
    weights = {"many": 1, "few": 1} if name == "mix" else {0: 3, 1: 1}
    with pytest.raises(
        StateError, match=r"is of an earlier version.* began epoch 2 with the first rows again"
    ):
        data.reweighted(weights, at=case["states"][0])
    loader = yoga.DataLoader(data, 4, shuffle=False)
    loader.load_state_dict(case["states"][0])
    rows_of(loader)
    state = loader.state_dict()
    loader = yoga.DataLoader(data.reweighted(weights, at=state), 4, shuffle=False)
    loader.load_state_dict(state)
    assert len(rows_of(loader)) == len(data)
