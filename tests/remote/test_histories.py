"""Histories that processes make and remove at once, in a directory and in a store: nothing is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from machines import running
from servers import S3

TESTS = Path(__file__).parents[1]
ROUNDS, ROUNDS_IN_ALL = 3, 200
DELETERS = pytest.mark.parametrize("what", ["remove", "clean"])
PROGRAM = Path(__file__).with_name("programs") / "histories.py"


@pytest.fixture(params=["directory", "s3"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where the storages of a program are."""
    (tmp_path / "here").mkdir()
    found: dict[str, Any] = {"folder": str(tmp_path / "here"), "url": None, "options": None}
    if request.param == "s3":
        server: S3 = request.getfixturevalue("s3")
        found |= {"url": f"s3://{server.new_bucket()}/a", "options": server.storage_options}
    return found


def run(what: str, given: dict[str, Any], patience: float) -> None:
    """Runs one of `programs/histories.py`, whose output says how to run it again."""
    folder = Path(given["folder"]).with_name("machine")
    with running(PROGRAM.read_text(), folder, str(TESTS), what, json.dumps(given)) as program:
        print(program.check(timeout=patience))


def stop_rolling(given: dict[str, Any], what: str, seed: int, rounds: int) -> None:
    run("stop_rolling", {**given, "what": what, "seed": seed, "rounds": rounds}, 120 + 60 * rounds)


@DELETERS
def test_a_deleter_that_is_stopped_beside_a_rolling_window_loses_nothing(
    given: dict[str, Any], what: str
) -> None:
    stop_rolling(given, what, 0, ROUNDS if given["url"] is None else 1)  # a round in a store takes 20 s


@pytest.mark.soak
@DELETERS
def test_a_deleter_that_is_stopped_for_hundreds_of_rounds_loses_nothing(
    given: dict[str, Any], what: str
) -> None:
    stop_rolling(given, what, random.randrange(2**32), ROUNDS_IN_ALL)


def test_a_few_processes_that_append_at_once_make_one_line(given: dict[str, Any]) -> None:
    run("append_at_once", {**given, "processes": 3, "each": 4}, 120)


@pytest.mark.soak
def test_many_processes_that_append_at_once_make_one_line(given: dict[str, Any]) -> None:
    # In a store most of an hour: the server, which is one Python process, is asked by all who wait.
    run("append_at_once", {**given, "processes": 16, "each": 50}, 5400)
