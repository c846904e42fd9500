"""Packs kept by name: read, never measured again; damaged or of other rows, never used."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import calls_of
from own import Own
from packs import ROWS, SCHEMA, texts_of

import torchyoga as yoga
from torchyoga.errors import CorruptError, ExistsError
from torchyoga.testing import assert_rows_equal
from torchyoga.views.packs.plan import PackPlan, planned
from torchyoga.views.packs.request import measured


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path)


@pytest.mark.filterwarnings("ignore:packed. 2 rows cost nothing:UserWarning")
def test_kept_packs_are_read_and_nothing_is_measured(storage: yoga.Storage) -> None:
    ref = storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)

    def cost(c: Any) -> Any:
        return c["ids"].lengths

    made = ref.packed("ids", 16, long="split", name="sixteen")
    other = ref.packed({"n": 16}, cost=cost, name="by cost", balance=True)
    half = ref[:30].packed("ids", 16, name="sixteen")
    with pytest.warns(UserWarning, match="1 of 60 rows are over the budget"):
        ref.packed("ids", 15, long="drop", name="fewer")
    with calls_of(measured) as calls:
        ref = yoga.Storage(storage.path).fetch("rows", "1")
        again = ref.packed("ids", 16, long="split", name="sixteen")
        assert again.fingerprint == made.fingerprint
        assert again.report() == made.report()
        with pytest.warns(UserWarning, match="1 of 60 rows are over the budget"):
            ref.packed("ids", 15, long="drop", name="fewer")
        assert_rows_equal(list(again.in_epoch(1)), list(made.in_epoch(1)))
        read = ref.packed({"n": 16}, cost=cost, name="by cost", balance=True, labels="ids")
        assert_rows_equal([row["ids"] for row in read], [row["ids"] for row in other])
        assert ref[:30].packed("ids", 16, name="sixteen").fingerprint == half.fingerprint
        storage.check("rows", "1")
        with pytest.raises(ExistsError, match=r"packs 'sixteen' of 'rows' '1' were made with .* not with"):
            ref.packed("ids", 17, name="sixteen")
        with pytest.raises(ExistsError, match="made by another function: its code differs"):
            ref.packed(
                {"n": 16}, cost=lambda c: c["ids"].lengths + 1, name="by cost", balance=True, stale="error"
            )
    assert not calls
    assert ref.packed("ids", 17, name="sixteen", stale="rebuild").report().budget == 17
    assert ref.packed("ids", 17, name="sixteen").report().budget == 17


def test_kept_packs_of_other_rows_are_made_anew(storage: yoga.Storage) -> None:
    ref = storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)
    ref.where("label", lambda y: y < 5, name="few")
    ref.packed("ids", 16, name="few")  # a name of its own
    assert len(ref.where("label", lambda y: y < 5, name="few")) == 5
    ref = storage.submit(ROWS[:20], "rows", "1", schema=SCHEMA, progress=False, overwrite=True)
    assert ref.packed("ids", 16, name="few").report().rows == 20
    with pytest.raises(ValueError, match=r"packed\(name='a'\) keeps the packs beside the published version"):
        Own(ROWS, SCHEMA).packed("ids", 16, name="a")


@pytest.mark.damages("bytes of kept packs are changed")
def test_damage_is_never_another_plan(storage: yoga.Storage) -> None:
    ref = storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)
    made = ref.packed("ids", 16, name="p")
    (manifest,) = (
        path for path in storage.path.rglob("manifest.json") if '"packed_from"' in path.read_text()
    )
    found = json.loads(manifest.read_text())
    found["info"]["sizes"][0] += 1
    manifest.write_text(json.dumps(found))
    with pytest.raises(CorruptError):
        yoga.Storage(storage.path).fetch("rows", "1").packed("ids", 16, name="p")
    with pytest.raises(CorruptError):
        storage.check("rows", "1")
    again = yoga.Storage(storage.path).fetch("rows", "1").packed("ids", 16, name="p", stale="rebuild")
    assert again.fingerprint == made.fingerprint


SPAWNED = """
import pickle, sys
print([row["ids"].tolist() for row in pickle.load(open(sys.argv[1], "rb")).in_epoch(2)])
"""


def test_a_new_process_reads_the_same_packs(storage: yoga.Storage, tmp_path: Path) -> None:
    ref = storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)
    packed = ref.packed("ids", 16)
    (tmp_path / "view").write_bytes(pickle.dumps(packed))
    done = subprocess.run(
        [sys.executable, "-c", SPAWNED, str(tmp_path / "view")], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == str([row["ids"].tolist() for row in packed.in_epoch(2)]), done.stderr


def test_packs_kept_with_and_without_a_cost_are_others(tmp_path: Path) -> None:
    ref = texts_of(tmp_path, [3, 5, 2, 7, 1])
    ref.packed("ids", 8, name="kept")

    def dear(c: Any) -> Any:
        return c["ids"].lengths + 1

    for make in (
        lambda: ref.packed({"ids": 8}, cost=dear, along=["ids"], name="kept", stale="error"),
        lambda: ref.packed("ids", 8, cost=dear, name="kept", stale="error"),
    ):
        with pytest.raises(ExistsError):
            make()
    again = ref.packed("ids", 8, name="kept", stale="error")
    assert again.report().tokens == 18


def test_forged_plans_are_refused() -> None:
    plan = planned(np.arange(4), np.array([[3], [3], [2], [2]]), None, 4, np.array([5]), False)
    parts = {name: array.astype(np.int64) for name, array in plan.parts.items()}
    for name, change in {
        "rows": lambda array: np.array([0, 0, 2, 3]),
        "counts": lambda array: array * 2**62,
        "each": lambda array: array * 2**62,
    }.items():
        with pytest.raises(CorruptError, match="not those of a plan"):
            PackPlan.from_parts({**parts, name: change(parts[name])}, 4)
    assert PackPlan.from_parts(parts, 4).pin == plan.pin
