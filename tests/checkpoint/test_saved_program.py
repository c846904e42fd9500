"""What a checkpoint saves and refuses, in one process."""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from torch import nn

import torchyoga as yoga
from torchyoga.errors import CorruptError, StateError, YogaError
from torchyoga.files.checksum import crc32
from torchyoga.tools.commands.group import command


def loader_of(length: int = 12, batch_size: int = 2, **arguments: Any) -> Any:
    return yoga.DataLoader(list(range(length)), batch_size, shuffle=True, seed=7, **arguments)


def saved_run(folder: str | Path, steps: int = 5, **arguments: Any) -> Any:
    """A program that was stopped after so many steps, all of them saved."""
    arguments = {"model": nn.Linear(1, 1), "loaders": {"train": loader_of()}, **arguments}
    run = yoga.Checkpoint(folder, every=1, **arguments)
    for _ in run.epochs(3):
        for _ in run.batches("train"):
            run.stepped()
            if run.steps == steps:
                return run
    raise AssertionError(steps)


def resumed(folder: str | Path, **arguments: Any) -> Any:
    arguments = {"model": nn.Linear(1, 1), "loaders": {"train": loader_of()}, **arguments}
    run = yoga.Checkpoint(folder, **arguments)
    assert run.resume()
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


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "gone", "index", "pickle"])
@pytest.mark.parametrize("name", ["checkpoint.json", "items.pt", "rank-0.json"])
def test_a_damaged_step_is_passed_over(name: str, harm: str, tmp_path: Path) -> None:
    saved_run(tmp_path)
    path = tmp_path / "step-5" / name
    data = path.read_bytes()
    if harm == "gone":
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
    for _ in run.epochs(1):
        for _ in run.batches("train"):
            run.stepped()
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
    for _ in run.epochs(1):
        for _ in run.batches("train"):
            run.stepped()
            if run.steps == 20:
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
        run = yoga.Checkpoint(tmp_path)
        run.resume()
        assert drawn() == expected
    finally:
        np.random.set_bit_generator(mine)  # type: ignore[attr-defined]


def test_an_evaluation_leaves_no_trace(tmp_path: Path) -> None:
    valid = yoga.DataLoader([float(n) for n in range(9)], batch_size=2, shuffle=True, drop_last=True)
    run = yoga.Checkpoint(tmp_path, loaders={"train": loader_of(), "valid": valid})

    def evaluated() -> tuple[list[Any], float]:
        with run.evaluation():
            found = [batch.tolist() for _, batch in run.batches("valid")]
            return found, float(torch.rand(()))

    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    found, draws = [], []
    for _ in range(4):
        found.append(evaluated())
        draws.append(float(torch.rand(())))
    assert draws == expected
    assert all(one == found[0] for one in found)
    with run.evaluation():  # left early
        next(iter(run.batches("valid")))
    assert evaluated() == found[0]
    with run.evaluation(), pytest.raises(ValueError, match="would move 'train' on"):
        next(iter(run.batches("train")))


def test_batches_that_no_step_has_counted(tmp_path: Path) -> None:
    run = yoga.Checkpoint(tmp_path, loaders={"train": loader_of()})
    for _ in run.epochs(1):
        for step, _ in run.batches("train"):
            if step == 1:
                with pytest.raises(
                    StateError, match="1 batches of 'train' were taken since the last stepped"
                ):
                    run.save()
            run.stepped()
    with pytest.raises(StateError, match="for the body of `for epoch in"):
        next(iter(run.batches("train")))


def test_a_loop_that_counts_nothing_is_told(tmp_path: Path) -> None:
    run = yoga.Checkpoint(tmp_path, loaders={"train": loader_of()})

    def loop() -> int:
        return sum(len(batch) for _ in run.epochs(1) for _, batch in run.batches("train"))

    with pytest.warns(UserWarning, match=r"taken 6 batches, and stepped\(\) was never called"):
        assert loop() == 12


def test_gradients_of_several_batches(tmp_path: Path) -> None:
    """Micro-batches after the last step come again."""
    run = yoga.Checkpoint(tmp_path, every=1, loaders={"train": loader_of()})
    seen = []
    for _ in run.epochs(1):
        for step, batch in run.batches("train"):
            seen.append(batch.tolist())
            if (step + 1) % 2 == 0:
                run.stepped()
            if step == 4:
                break
        break
    run = yoga.Checkpoint(tmp_path, loaders={"train": loader_of()})
    assert run.resume()
    for _ in run.epochs(1):
        assert next((step, batch.tolist()) for step, batch in run.batches("train")) == (4, seen[4])
        break


Loop = Callable[[Any], Iterator[Any]]  # gives what each step was made of, after it


def zipped(first: str, second: str) -> Loop:
    def loop(run: Any) -> Iterator[Any]:
        for epoch in run.epochs(3):
            for (_, one), (_, other) in zip(run.batches(first), run.batches(second), strict=False):
                run.stepped()
                yield epoch, one.tolist(), other.tolist()

    return loop


def limited(run: Any) -> Iterator[Any]:
    """Leaves each epoch after some steps."""
    for epoch in run.epochs(4):
        for step, batch in run.batches("a"):
            if step >= 4:
                break
            run.stepped()
            yield epoch, step, batch.tolist()


@pytest.mark.quick("0-*", "2-2")
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_epochs_left_early_are_told(steps: int, workers: int, tmp_path: Path) -> None:
    """As with a plain loop; a single batch counts, too, and so does a save of one's own before the break."""

    def new() -> tuple[Any, Any]:
        train = loader_of(num_workers=workers)
        run = yoga.Checkpoint(tmp_path, loaders={"train": train})
        return train, (run, run.resume())[0]

    def leave_early(epochs: int) -> None:
        for epoch in run.epochs(epochs):
            left = [epoch * (12 - 2 * steps), epoch - 1] if epoch else None
            assert train.state_dict().get("left_out") == left
            for step, _ in run.batches("train"):
                run.stepped()
                assert train.state_dict().get("left_out") == left
                if step + 1 == steps:
                    run.save()
                    break

    train, run = new()
    leave_early(1)  # without a warning: nothing comes behind it
    with pytest.warns(
        UserWarning, match=f"left after {2 * steps} of 12 .* other {12 - 2 * steps} rows are left"
    ):
        leave_early(2)
    train, run = new()
    state = train.state_dict()
    assert (state["epoch"], state["position"]) == (2, 0)
    assert state["left_out"] == [2 * (12 - 2 * steps), 1]
    for _ in run.epochs(3):
        for _ in run.batches("train"):
            run.stepped()
    assert f"left out: {2 * (12 - 2 * steps)} rows of epochs that were left early" in str(train.prove())


def test_an_epoch_whose_batches_were_all_taken_is_not_left_early(tmp_path: Path) -> None:
    for length in (2, 12):
        train = loader_of(length)
        run = yoga.Checkpoint(tmp_path / str(length), loaders={"train": train})
        for _ in run.epochs(3):
            for step, _ in run.batches("train"):
                run.stepped()
                if step + 1 == length // 2:
                    break
        state = train.state_dict()
        assert (state["epoch"], state["position"], state.get("left_out")) == (3, 0, None)


def test_the_log_of_what_a_program_has_read(tmp_path: Path) -> None:
    """Of a run's folder, a step's and a rank's file: a table for each loader."""
    data = yoga.from_arrays({"x": np.arange(10)})
    mix = yoga.mix({"web": data, "code": data}, {"web": 3, "code": 1}, rows=40)
    loaders = {name: yoga.DataLoader(mix, 4, shuffle=True, seed=7) for name in ("train", "more")}
    loaders["plain"] = loader_of(40, 4)
    run = yoga.Checkpoint(tmp_path / "run", every=2, loaders=loaders)

    def told(path: Path, *arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(command, ["log", "--run", str(path), *arguments])
        assert found.exit_code == code, found.output
        return found.output

    for _ in run.epochs(1):
        for _ in zip(*(run.batches(name) for name in loaders), strict=False):
            run.stepped()
    counts = mix.counts(at=loaders["train"].state_dict())
    for path in ("run", "run/step-10", "run/step-10/rank-0.json"):
        found = json.loads(told(tmp_path / path, "--json"))
        assert set(found["loaders"]) == {"train", "more"}
        for one in found["loaders"].values():
            assert {source["name"]: source["rows"] for source in one["sources"]} == counts
        text = told(tmp_path / path)
        assert "train, up to" in text
        assert "plain: the state does not name its sources" in text
        assert "**more**" in told(tmp_path / path, "--markdown")
    before = json.loads(told(tmp_path / "run/step-6", "--json"))
    assert sum(source["rows"] for source in before["loaders"]["train"]["sources"]) == 24
    (tmp_path / "run/step-10/rank-0.json").write_bytes(b"{}")
    assert "step-8" in json.loads(told(tmp_path / "run", "--json"))["file"]
    assert "damaged" in told(tmp_path / "run/step-10", code=1)
    (tmp_path / "none").mkdir()
    assert "has no steps of a Checkpoint" in " ".join(told(tmp_path / "none", code=2).split())


def in_turn(epochs: int, names: Callable[[int], str]) -> Loop:
    """Takes loaders one after the other, those of each epoch."""

    def loop(run: Any) -> Iterator[Any]:
        for epoch in run.epochs(epochs):
            for name in names(epoch):
                for step, batch in run.batches(name):
                    run.stepped()
                    yield epoch, name, step, batch.tolist()

    return loop


LOOPS = {
    "shorter first": zipped("b", "a"),
    "longer first": zipped("a", "b"),
    "limited": limited,
    "one by one": in_turn(2, lambda epoch: "ab"),
    "curriculum": in_turn(4, lambda epoch: "ab"[epoch % 2]),
}


@pytest.mark.slow("one by one", "limited", "shorter first")
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.filterwarnings("ignore:the iteration before this one was left")
def test_loops_of_other_shapes(name: str, tmp_path: Path) -> None:
    def new(folder: str) -> Any:
        loaders = {"a": loader_of(12), "b": loader_of(20, 4)}
        run = yoga.Checkpoint(tmp_path / folder, every=1, loaders=loaders)
        run.resume()
        return run

    loop = LOOPS[name]
    whole = list(loop(new("whole")))
    for stop in range(1, len(whole), 2):
        first = list(islice(loop(new(f"{stop}")), stop))
        rest = list(loop(new(f"{stop}")))
        again = len(first) + len(rest) - len(whole)  # a step at an epoch's end is saved when its body has run
        assert 0 <= again <= 12
        assert first[: len(first) - again] + rest == whole


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


def program(steps: int, run: Any, model: nn.Module, optimizer: Any, save: Callable[[], object]) -> list[str]:
    """Losses of a loop that saves after so many steps."""
    losses = []
    for _ in run.epochs(2):
        for _, batch in run.batches("train"):
            loss = (model(batch.float()[:, None]) + torch.rand(())).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            run.stepped()
            if run.steps == steps:
                save()
    return losses


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_distributed_checkpoint(is_async: bool, tmp_path: Path) -> None:
    """Saved in the midst of an epoch by torch.distributed.checkpoint, and loaded by it."""

    def make() -> tuple[Any, nn.Module, Any]:
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        run = yoga.Checkpoint(
            tmp_path / "own", model=model, optimizer=optimizer, loaders={"train": loader_of()}
        )
        run.resume()
        return run, model, optimizer

    run, model, optimizer = make()
    done: list[Any] = []

    def save() -> None:
        if is_async:
            done.append(dcp.async_save({"run": run}, checkpoint_id=tmp_path / "dcp", no_dist=True))
        else:
            dcp.save({"run": run}, checkpoint_id=tmp_path / "dcp", no_dist=True)

    whole = program(4, run, model, optimizer, save)
    for future in done:
        future.result()
    for path in (tmp_path / "own").iterdir():
        path.rename(tmp_path / path.name)
    run, model, optimizer = make()
    dcp.load({"run": run}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert (run.steps, run.epoch) == (4, 0)
    assert program(-1, run, model, optimizer, lambda: None) == whole[4:]


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
    second.steps = 8
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


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": "x"},
        {"ranks": 0},
        {"ranks": 10**15},
        {"files": {}},
        {"files": {"items.pt": [2**60, 0], "rank-0.json": [-5, 0]}},
        {"files": []},
        {"version": 2},
    ],
)
def test_forged_indices_are_passed_over(change: Any, tmp_path: Path) -> None:
    saved_run(tmp_path, steps=3)
    forge_index(tmp_path / "step-3", change)
    with pytest.warns(UserWarning, match="step-3.*the step before it is taken"):
        assert resumed(tmp_path).steps == 2


def forge_index(step: Path, change: dict[str, Any]) -> None:
    """Other entries in the index of a step, whose checksum is right."""
    path = step / "checkpoint.json"
    index = {**json.loads(path.read_text())["index"], **change}
    path.write_text(json.dumps({"index": index, "crc32": crc32(json.dumps(index).encode())}))


def test_a_forged_place_with_right_checksums_is_refused(tmp_path: Path) -> None:
    saved_run(tmp_path, steps=3)
    step = tmp_path / "step-3"
    files = json.loads((step / "checkpoint.json").read_text())["index"]["files"]
    place = json.loads((step / "rank-0.json").read_text())
    before = place["generators"]["before"]
    numpy = before["numpy"]
    odd_generators: list[Any] = [
        *({**before, "python": odd} for odd in (None, [3, [1], None], [3, [-1] * 625, None])),
        *({**before, "torch": odd} for odd in (None, 5, "zz", "00", [3])),
        *({**before, "numpy": {**numpy, "state": odd}} for odd in (None, [], {"key": [10**30], "pos": 0})),
        {**before, "numpy": {**numpy, "state": {**numpy["state"], "pos": 625}}},
        {"python": before["python"]},
        None,
    ]
    changes: list[dict[str, Any]] = [
        *({key: odd} for key in ("steps", "epoch") for odd in (None, "x", -1, 1.5, 10**30, True, [])),
        *({key: odd} for key in ("values", "begun", "loaders") for odd in (None, 5, "x", [1])),
        *({"trained": odd} for odd in (None, 5, [5], [[]])),
        *({"loaders": {"train": odd}} for odd in (None, 5, {}, {**place["loaders"]["train"], "epoch": "x"})),
        *({"generators": {**place["generators"], "before": odd}} for odd in odd_generators),
        {"generators": None},
        {"seed": "x"},
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
    run = yoga.Checkpoint(tmp_path)
    with run.evaluation():
        torch.rand(3)
        run.save()
    expected = torch.rand(2).tolist()
    assert yoga.Checkpoint(tmp_path).resume()
    assert torch.rand(2).tolist() == expected


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_save_before_the_first_step_changes_nothing(tmp_path: Path) -> None:
    """As torch's own states of optimizers would, and one optimizer may step two models."""

    def losses(saves: bool, loads: str | None = None) -> list[str]:
        torch.manual_seed(0)
        model, head = nn.Linear(1, 2), nn.Linear(2, 1)
        optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], 0.1)
        run = yoga.Checkpoint(tmp_path / "own", model=model, head=head, optimizer=optimizer)
        if loads is not None:
            dcp.load({"run": run}, checkpoint_id=tmp_path / loads, no_dist=True)
        found = []
        for step in range(run.steps, 4):
            if saves:
                dcp.save({"run": run}, checkpoint_id=tmp_path / f"{step}", no_dist=True)
            loss = (head(model(torch.ones(3, 1) * step)) - torch.rand(())).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.stepped()
            found.append(loss.item().hex())
        return found

    whole = losses(saves=False)
    assert losses(saves=True) == whole
    assert losses(saves=False, loads="0") == whole
    assert losses(saves=False, loads="2") == whole[2:]
