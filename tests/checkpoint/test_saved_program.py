"""What a checkpoint saves and refuses, in one process."""

from __future__ import annotations

import itertools
import json
import os
import random
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from torch import nn

import torchyoga as yoga
from torchyoga.errors import CorruptError, StateError, YogaError
from torchyoga.files.checksum import crc32
from torchyoga.sampling.user_sampler import state_as_json


def loader_of(length: int = 12, batch_size: int = 2, **arguments: Any) -> Any:
    return yoga.DataLoader(list(range(length)), batch_size, shuffle=True, seed=7, **arguments)


def saved_run(folder: str | Path, steps: int = 5, **arguments: Any) -> Any:
    """A program that was stopped after so many steps, all of them saved."""
    arguments = {"model": nn.Linear(1, 1), "loaders": {"train": loader_of()}, **arguments}
    run = yoga.Checkpoint(folder, every=1, **arguments)
    for _ in run.forever("train"):
        run.stepped()
        if run.steps == steps:
            run.save()
            return run
    raise AssertionError(steps)


def resumed(folder: str | Path, **arguments: Any) -> Any:
    arguments = {"model": nn.Linear(1, 1), "loaders": {"train": loader_of()}, **arguments}
    run = yoga.Checkpoint(folder, resume=True, **arguments)
    assert run.steps
    return run


def test_what_is_saved_reads_without_pickle(tmp_path: Path) -> None:
    saved_run(tmp_path, values={"best": 0.5, "names": ["a", None, True]})
    assert sorted(os.listdir(tmp_path)) == ["step-3", "step-4", "step-5"]
    files = {path.name: path for path in (tmp_path / "step-5").iterdir()}
    assert set(files) == {"checkpoint.json", "items.pt", "rank-0.json"}
    assert set(torch.load(files["items.pt"], weights_only=True)) == {"model"}
    place = json.loads(files["rank-0.json"].read_text())
    assert place["loaders"]["train"]["position"] == 10
    assert place["values"] == {"best": 0.5, "names": ["a", None, True]}


HARMS = ("cut", "flip", "empty", "gone", "index", "pickle")
FORGED: list[Any] = [
    *({"ranks": odd} for odd in ("x", 0, 10**15)),
    *({"files": odd} for odd in ({}, {"items.pt": [2**60, 0], "rank-0.json": [-5, 0]}, [])),
    {"version": 2},
]


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *itertools.product(("checkpoint.json", "items.pt", "rank-0.json"), HARMS),
        *(("checkpoint.json", change) for change in FORGED),
    ],
)
def test_a_damaged_step_is_passed_over(name: str, harm: Any, tmp_path: Path) -> None:
    saved_run(tmp_path)
    path = tmp_path / "step-5" / name
    data = path.read_bytes()
    if harm in FORGED:
        forge_index(path.parent, harm)
    elif harm == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(
            {
                "cut": data[:middle],
                "flip": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
                "empty": b"",
                "index": b"[" * 100_000,
                "pickle": b"\x80\x04cos\nsystem\n(S'false'\ntR.",
            }[harm]
        )
    with pytest.warns(UserWarning, match="step-5.*the step before it is taken"):
        run = resumed(tmp_path)
    assert run.steps == 4
    for _ in run.forever("train"):
        run.stepped()
        run.save()
        break
    assert "step-5" not in os.listdir(tmp_path)  # the damaged one goes as soon as another is whole


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    saved_run(tmp_path, keep=1)
    (tmp_path / "step-5" / "items.pt").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="step-5"),
        pytest.raises(CorruptError, match=r"all steps in .* are damaged: step-5"),
    ):
        yoga.Checkpoint(tmp_path, model=nn.Linear(1, 1)).resume()


def test_a_folder_that_was_not_continued_is_kept(tmp_path: Path) -> None:
    saved_run(tmp_path)
    with pytest.raises(YogaError, match="has step-5, which this program has not continued"):
        saved_run(tmp_path, steps=2)
    assert sorted(os.listdir(tmp_path)) == ["step-3", "step-4", "step-5"]


@pytest.mark.parametrize("before", ["plain", "compiled", "parallel"])
@pytest.mark.parametrize("after", ["plain", "compiled", "parallel"])
def test_models_load_with_and_without_wrappers(before: str, after: str, tmp_path: Path) -> None:
    def wrapped(kind: str) -> nn.Module:
        inner = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
        inner.add_module("module", nn.Linear(2, 2))  # a name that wrappers have, too
        if kind == "plain":
            return inner
        return torch.compile(inner, backend="eager") if kind == "compiled" else nn.DataParallel(inner)  # type: ignore[return-value]

    first, second = wrapped(before), wrapped(after)
    run = yoga.Checkpoint(tmp_path, model=first)
    run.stepped()
    run.save()
    assert yoga.Checkpoint(tmp_path, model=second).resume()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one.cpu(), other.cpu())
    keys = set(torch.load(tmp_path / "step-1" / "items.pt", weights_only=True)["model"])
    assert "1.weight" in keys
    assert "module.weight" in keys


def test_the_best_stay(tmp_path: Path) -> None:
    run = yoga.Checkpoint(tmp_path, every=1, keep=2, keep_best=("-score", 2), values={"score": 0})
    for score in (1, 9, 3, 8, 2, 1):
        run.values["score"] = score
        run.stepped()
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-4", "step-5", "step-6"]


def test_an_epoch_without_a_counted_step_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no step was counted, so none is saved: pass loaders="):
        assert list(yoga.Checkpoint(tmp_path, every=1).epochs(1)) == [0]


def test_a_step_saved_twice_is_two(tmp_path: Path) -> None:
    run = yoga.Checkpoint(tmp_path, keep=2)
    for value in (1, 2, 3):
        run.values["n"] = value
        run.save()
    assert sorted(os.listdir(tmp_path)) == ["step-0-1", "step-0-2"]
    again = yoga.Checkpoint(tmp_path)
    assert again.resume()
    assert again.values == {"n": 3}


def test_a_step_saved_thrice_does_not_displace_others(tmp_path: Path) -> None:
    run = yoga.Checkpoint(tmp_path, every=5, keep=3, loaders={"train": loader_of(60)})
    for _ in run.forever("train"):
        run.stepped()
        if run.steps == 20:
            for _ in range(3):
                run.save()
            break
    assert sorted(os.listdir(tmp_path)) == ["step-10", "step-15", "step-20-2"]


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.SFC64, np.random.Philox])
@pytest.mark.filterwarnings("ignore:.*numpy.random.set_bit_generator")
def test_generators_come_back(kind: Any, tmp_path: Path) -> None:
    def drawn() -> list[float]:
        normal = random.gauss(0, 1), float(np.random.standard_normal())
        return [*normal, random.random(), float(np.random.rand()), float(torch.rand(()))]

    mine = np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        np.random.set_bit_generator(kind(5))  # type: ignore[attr-defined]
        drawn()
        run = yoga.Checkpoint(tmp_path)
        run.save()
        expected = drawn()
        yoga.Checkpoint(tmp_path).resume()
        assert drawn() == expected
    finally:
        np.random.set_bit_generator(mine)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"every": 0}, ValueError, "every"),
        ({"every_seconds": 0}, ValueError, "every_seconds"),
        ({"keep": 0}, ValueError, "keep"),
        ({"hold": -1}, ValueError, "hold"),
        ({"keep_best": ("score", 1)}, ValueError, "keep_best names 'score', which values lacks"),
        ({"signals": ["TERM"]}, ValueError, "names such as 'SIGTERM'"),
        ({"model": object()}, TypeError, "without state_dict and load_state_dict"),
        ({"train": yoga.DataLoader([1])}, TypeError, "train is a DataLoader; pass loaders as loaders="),
        ({"loaders": {"train": [1, 2]}}, TypeError, "make a torchyoga.DataLoader"),
        ({"loaders": [loader_of()]}, TypeError, r"loaders is a dict by names, .*'train'.*found a list"),
        ({"loaders": loader_of()}, TypeError, "loaders is a dict by names, .*found a DataLoader"),
        ({"loaders": {0: loader_of()}}, TypeError, "loaders has 0 as a key"),
        ({"values": ["best"]}, TypeError, "values is a dict by names, .*found a list"),
        ({"storage_options": {"key": "x"}}, ValueError, "storage_options is for a store"),
    ],
)
def test_arguments_are_checked(arguments: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        yoga.Checkpoint(tmp_path, **arguments)


@pytest.mark.parametrize("value", [{1: 2}, {"a": (1, 2)}, {"a": {1}}, {"a": np.float32(1)}])
def test_values_come_back_or_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="would not come back as it is"):
        yoga.Checkpoint(tmp_path, values=value).save()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
@settings(max_examples=examples(20))
def test_any_json_comes_back(value: Any) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    yoga.Checkpoint(url, values={"value": value}).save()
    run = yoga.Checkpoint(url)
    assert run.resume()
    assert repr(run.values) == repr({"value": value})


class Odd:
    """A part whose state `weights_only` refuses."""

    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("x")}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


def test_a_part_that_needs_pickle_is_refused(tmp_path: Path) -> None:
    run = yoga.Checkpoint(tmp_path, odd=Odd(), model=nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"the state of odd holds what torch\.load refuses"):
        run.save()
    assert not os.listdir(tmp_path)


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    saved_run(tmp_path)
    with pytest.raises(StateError, match="model refuses the state that was saved under its name"):
        resumed(tmp_path, model=nn.Linear(2, 2))
    with pytest.raises(StateError, match="has no other, but model"):
        resumed(tmp_path, other=nn.Linear(1, 1))
    run = yoga.Checkpoint(tmp_path, other=nn.Linear(1, 1), values={"new": 1})
    with pytest.warns(UserWarning, match="has no other, but model; it begins as it is"):
        assert run.resume(strict=False)
    assert (run.steps, run.values) == (5, {"new": 1})
    with pytest.raises(StateError, match="has the loaders train, here they are called valid"):
        resumed(tmp_path, loaders={"valid": loader_of()})


def test_a_job_of_which_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(YogaError, match="call init_process_group before resume"):
        yoga.Checkpoint(tmp_path, model=nn.Linear(1, 1)).save()


def test_a_state_that_is_none() -> None:
    run = yoga.Checkpoint("run", model=nn.Linear(1, 1))
    for state in ({}, {"run": "x"}, {"run": "[]"}, {"run": 5}):
        with pytest.raises(StateError, match="no state of a Checkpoint"):
            run.load_state_dict(state)
    assert not Path("run").exists()


def test_other_programs_are_noticed(tmp_path: Path) -> None:
    saved_run(tmp_path, steps=3)
    first = yoga.Checkpoint(tmp_path, model=nn.Linear(1, 1))
    assert first.resume()
    second = yoga.Checkpoint(tmp_path, keep=1, model=nn.Linear(1, 1))
    assert second.resume()
    for _ in range(5):
        second.stepped()
    second.save()
    with pytest.raises(YogaError, match="has step-8, which another program has saved meanwhile"):
        first.save()
    assert os.listdir(tmp_path) == ["step-8"]


@pytest.mark.parametrize("kind", ["file", "loop", "folder", "fifo", "empty"])
def test_what_is_no_step_is_passed_over(kind: str, tmp_path: Path) -> None:
    saved_run(tmp_path, steps=3)
    path = tmp_path / "step-9"
    if kind == "file":
        path.write_bytes(b"")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.mkdir()
        index = path / "checkpoint.json"
        {"folder": index.mkdir, "fifo": lambda: os.mkfifo(index), "empty": lambda: None}[kind]()
    (tmp_path / "step-7.tmp").symlink_to(tmp_path / "step-3")
    with pytest.warns(UserWarning, match="step-9.*the step before it is taken"):
        run = resumed(tmp_path)
    assert run.steps == 3
    run.save()
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-2", "step-3-1"]


def forge_index(step: Path, change: dict[str, Any]) -> None:
    """Other entries in the index of a step, whose checksum is right."""
    path = step / "checkpoint.json"
    index = {**json.loads(path.read_text())["index"], **change}
    path.write_text(json.dumps({"index": index, "crc32": crc32(json.dumps(index).encode())}))


def test_generators_that_this_process_does_not_take_are_refused(tmp_path: Path) -> None:
    saved_run(tmp_path, steps=3)
    step = tmp_path / "step-3"
    files = json.loads((step / "checkpoint.json").read_text())["index"]["files"]
    place = json.loads((step / "rank-0.json").read_text())
    before = place["generators"]["before"]
    numpy = before["numpy"]
    few, negative = (state_as_json(words) for words in (np.ones(1, np.uint8), np.full(625, -1)))
    # At such a dtype NumPy ends the process.
    damaged = {"dtype": "|u1", "base85": "xx"}, {"dtype": "<M8[s/0]", "base85": few["base85"]}
    odd_generators: list[Any] = [
        *({**before, "python": odd} for odd in (None, [3, [1], None], [3, few, None], [3, negative, None])),
        *({**before, "torch": odd} for odd in (None, 5, "zz", few, negative, [3], *damaged)),
        *({**before, "numpy": {**numpy, "state": odd}} for odd in (None, [], {"key": [10**30], "pos": 0})),
        *({**before, "numpy": {**numpy, "state": {"key": odd, "pos": 0}}} for odd in (few, *damaged)),
        {**before, "numpy": {**numpy, "state": {**numpy["state"], "pos": 625}}},
        {**before, "numpy": {**numpy, "buffer_pos": -1}},
        {**before, "numpy": ["MT19937", numpy["state"]["key"], 10**6]},
    ]
    changes: list[dict[str, Any]] = [
        *({"generators": {**place["generators"], "before": odd}} for odd in odd_generators),
        {"generators": None},
    ]
    random.seed(5)
    expected = random.getstate()
    for change in changes:
        data = json.dumps({**place, **change}).encode()
        (step / "rank-0.json").write_bytes(data)
        forge_index(step, {"files": {**files, "rank-0.json": [len(data), crc32(data)]}})
        with pytest.raises(StateError):
            resumed(tmp_path)
        assert random.getstate() == expected, "nothing moves before all of it was looked at"


def test_an_evaluation_saves_what_was_before_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    valid = loader_of()
    run = yoga.Checkpoint(tmp_path, loaders={"train": loader_of(), "valid": valid})
    with torch.no_grad():
        for _ in valid:
            torch.rand(3)
            run.save()
    expected = torch.rand(2).tolist()
    assert yoga.Checkpoint(tmp_path).resume()
    assert torch.rand(2).tolist() == expected


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_save_before_any_step_changes_nothing_and_the_loop_goes_on_there(tmp_path: Path) -> None:
    """By torch.distributed.checkpoint. Torch's own states of optimizers would change something before the
    first step, and one optimizer may step two models."""

    def losses(saves: bool, loads: str | None = None) -> list[str]:
        torch.manual_seed(0)
        model, head = nn.Linear(1, 2), nn.Linear(2, 1)
        optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], 0.1)
        parts = {"model": model, "head": head, "optimizer": optimizer, "loaders": {"train": loader_of()}}
        run = yoga.Checkpoint(tmp_path / "own", **parts)
        if loads is not None:
            dcp.load({"run": run}, checkpoint_id=tmp_path / loads, no_dist=True)
        found, batches = [], run.forever("train")
        for step in range(run.steps, 4):
            if saves:
                dcp.save({"run": run}, checkpoint_id=tmp_path / f"{step}", no_dist=True)
            loss = (head(model(next(batches).float()[:, None])) - torch.rand(())).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item().hex())
        return found

    whole = losses(saves=False)
    assert losses(saves=True) == whole
    assert losses(saves=False, loads="0") == whole
    assert losses(saves=False, loads="2") == whole[2:]
