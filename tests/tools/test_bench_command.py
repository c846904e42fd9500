"""`yoga bench`: each setting is measured, within its time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commanding import parsed, run

import torchyoga as yoga


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A storage of 1,000 rows, and one version without any."""
    folder = tmp_path_factory.mktemp("bench")
    storage = yoga.Storage(folder)
    storage.submit(yoga.from_arrays({"x": np.zeros((1000, 100), np.float32), "n": np.arange(1000)}), "a", "1")
    storage.submit([], "none", "1")
    return str(folder)


def test_all_settings_are_measured(url: str) -> None:
    found = parsed("bench", "a", "-s", url, "--workers", "0,1,0", "--epochs", "2", "--batch", "300", "--json")
    assert [one["workers"] for one in found["settings"]] == [0, 1]
    assert found["best"] in (0, 1)
    for one in found["settings"]:
        assert [epoch["rows"] for epoch in one["epochs"]] == [1000, 1000]
        assert all(0 < epoch["first"] <= epoch["seconds"] for epoch in one["epochs"])
        assert one["rows_per_second"] > 0
        assert one["stages"]["read"] > 0
    assert found["rows"] == 1000
    assert found["row_bytes"] >= 408


def test_epochs_end_after_their_seconds(url: str) -> None:
    found = parsed(
        "bench",
        "a",
        "-s",
        url,
        "-w",
        "0",
        "--epochs",
        "2",
        "-b",
        "1",
        "--seconds",
        "0.01",
        "-c",
        "n",
        "--json",
    )
    (one,) = found["settings"]
    assert len(one["epochs"]) == 2
    assert all(0 < epoch["rows"] <= 1000 for epoch in one["epochs"])


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
def test_orders(url: str, shuffle: str) -> None:
    said = run("bench", "a", "-s", url, "-w", "0", "--epochs", "1", "--shuffle", shuffle)
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("a 1: 1,000 rows of ")
    assert "fastest here: num_workers=0" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "-w", "two"], "not a list of numbers of workers"),
        (["a", "-w", "-1"], "not a list of numbers of workers"),
        (["a", "-w", "99999"], "not a list of numbers of workers"),
        (["a", "-b", "0"], "0"),
        (["none"], "has no rows to read"),
        (["b"], "there is no dataset 'b'"),
        (["a", "-c", "y"], "y"),
    ],
)
def test_wrong_use(url: str, arguments: list[str], message: str) -> None:
    found = run("bench", "-s", url, *arguments)
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_json_is_json(url: str) -> None:
    assert json.loads(run("bench", "a", "-s", url, "-w", "0", "--epochs", "1", "--json").stdout)["id"] == "a"
    assert Path(url).exists()
