"""Golden states: rows that follow them are the same for ever, under other ranks and batch sizes."""

from __future__ import annotations

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


def test_states_of_another_version_are_refused() -> None:
    case = CASES[0]
    for version in (0, 2):
        with pytest.raises(StateError, match=f"is of version {version}, this torchyoga reads version 1"):
            ranks_of(case, case["after"][0], [{**case["states"][0], "version": version}])
