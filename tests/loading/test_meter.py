"""The meter of a loader: what was waited for, by stage, in words, over ranks, and while it runs."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from advised import Sleeping, consumed, verdict
from children import status_of_child
from disks import slow_disk
from residency import linux, on_disk

import torchyoga as yoga
from docs import ROOT, blocks
from torchyoga.process.control_group import usable_cpus
from torchyoga.process.stages import STAGES
from torchyoga.tools.meter_advice import (
    AT_ONCE,
    BLOCK,
    COLLATE_FN,
    FEW_LEAVES,
    FEWER,
    KEPT,
    PIN,
    SMALLER,
    Numbers,
    Setting,
    Waits,
    most_workers,
)


def test_known_sleeps_are_found() -> None:
    loader = yoga.DataLoader(Sleeping(60, 0.005), batch_size=2)
    began = time.perf_counter()
    assert consumed(loader, 0.01) == 30
    passed = time.perf_counter() - began
    epoch = loader.meter.epoch
    assert epoch.batches == 30
    # Whatever a sleep takes on a busy machine: what is waited and what is away is all the time that passed.
    assert epoch.waited + epoch.away == pytest.approx(passed - 0.01, rel=0.02, abs=0.01)
    assert epoch.waited >= 60 * 0.005
    assert epoch.away >= 29 * 0.01
    assert 60 * 0.005 <= epoch.stages["transform"] <= epoch.waited
    assert epoch.share == pytest.approx(epoch.waited / (epoch.waited + epoch.away))


def test_the_last_hundred_batches_and_the_epoch() -> None:
    rows = Sleeping(300, 0.0)
    loader = yoga.DataLoader(rows, batch_size=1)
    for number, _ in enumerate(loader):
        rows.seconds = 0.002 if number >= 149 else 0.0
    meter = loader.meter
    assert meter.epoch.batches == 300
    assert meter.last.batches == 100
    assert meter.last.waited >= 100 * 0.002
    assert meter.last.stages["transform"] >= 100 * 0.002
    before = meter.epoch
    assert before.stages["transform"] >= 150 * 0.002
    assert before.stages["transform"] > meter.last.stages["transform"]
    assert len(list(itertools.islice(loader, 1))) == 1
    assert meter.epoch.batches == 1
    assert meter.last.batches == 101  # also those of the epoch before
    assert meter.epoch.stages["transform"] < before.stages["transform"]
    assert meter.epoch.away == 0.0


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("size", [4, None])
def test_all_stages_are_there(size: int | None, num_workers: int) -> None:
    loader = yoga.DataLoader(Sleeping(40, 0.001), size, num_workers=num_workers)
    assert loader.meter.epoch == Numbers(0, 0.0, 0.0, 0.0, dict.fromkeys(STAGES, 0.0), epochs=0)
    assert "say nothing yet" in loader.meter.verdict()
    assert consumed(loader) == 40 // (size or 1)
    stages = loader.meter.epoch.stages
    assert tuple(stages) == STAGES
    assert stages["transform"] >= 40 * 0.001
    assert stages["collate"] > 0
    assert (stages["transfer"] > 0) == (stages["start-up"] > 0) == bool(num_workers)
    assert loader.meter.epoch.first > 0


class ToDevice:
    """A batch that takes its time on the way to a device, by torch's convention."""

    def __init__(self, rows: list[torch.Tensor]) -> None:
        self.rows = rows

    def to(self, device: torch.device, non_blocking: bool = False) -> ToDevice:
        time.sleep(0.01)
        return self


@linux
def test_a_slow_disk_is_found(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (1500, 8192), dtype=np.uint8)
    storage = yoga.Storage(tmp_path)
    storage.submit(yoga.from_arrays({"x": rows}), "large", "1")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            on_disk(path)
    loader = yoga.DataLoader(storage.fetch("large", "1"), batch_size=64, shuffle=True)
    with slow_disk(tmp_path, 24_000_000):
        assert consumed(loader) == 24
    stages = loader.meter.epoch.stages
    assert max(stages, key=lambda name: stages[name]) == "disk", stages
    assert "shuffle='block'" in loader.meter.verdict()


def test_a_slow_transform_is_found() -> None:
    loader = yoga.DataLoader(Sleeping(200, 0.004), batch_size=4)
    consumed(loader, 0.001)
    advised = re.search(r"raise num_workers from 0 to (\d+)", loader.meter.verdict())
    assert advised is not None, loader.meter.verdict()
    assert int(advised[1]) >= min(2, usable_cpus())
    with pytest.warns(UserWarning, match="suggested max number of worker"):
        with_workers = yoga.DataLoader(
            Sleeping(200, 0.004),
            batch_size=4,
            num_workers=most_workers(usable_cpus()),
            persistent_workers=True,
        )
    for _ in range(4):  # so that their start does not count in the last hundred
        consumed(with_workers)
    assert "transform" in with_workers.meter.verdict()
    assert with_workers.meter.verdict().endswith(KEPT)


def test_a_slow_copy_is_found() -> None:
    loader = yoga.DataLoader(list(torch.zeros(120, 2)), batch_size=4, collate_fn=ToDevice)
    batches = yoga.to_device(loader, "cpu")
    consumed(batches, 0.001)
    assert batches.meter is loader.meter
    assert loader.meter.last.stages["copy"] >= 29 * 0.01
    assert "send smaller types" in loader.meter.verdict()
    assert "pin_memory" not in loader.meter.verdict() or torch.cuda.is_available()


def test_the_meter_does_not_ask_if_cuda_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would keep CUDA from workers that are forked later."""
    monkeypatch.setattr(torch.cuda, "is_available", None)
    assert consumed(yoga.DataLoader(Sleeping(20, 0.0), batch_size=2)) == 10


def test_a_loop_that_does_not_wait_changes_nothing() -> None:
    loader = yoga.DataLoader(list(range(20)), batch_size=2)
    consumed(loader, 0.3)  # so long that a busy machine's batches take no tenth of it
    said = r"the loop hardly waits \(\d\.\d% of the time\): its own step takes [\d.]+ ms for a batch; nothing"
    assert re.match(said, loader.meter.verdict())


def numbers(
    waited: float,
    away: float,
    batches: int = 100,
    epochs: int = 1,
    idle: float = 0.0,
    waits: Waits | None = None,
    **stages: float,
) -> Numbers:
    named = {name.replace("_", "-"): seconds for name, seconds in stages.items()}
    return Numbers(
        batches,
        waited,
        away,
        named.get("start-up", 0.0),
        dict.fromkeys(STAGES, 0.0) | named,
        epochs=epochs,
        cpu=sum(stages.values()) - idle,
        waits=waits or Waits(),
    )


SHORT = numbers(8.1, 5.0, epochs=4, start_up=8.0, transform=2.0)
COLLATING, READING = numbers(5.0, 0.1, collate=5.0), numbers(5.0, 0.1, disk=5.0)
COMPUTING, COPYING = numbers(5.0, 0.1, transform=5.0), numbers(5.0, 0.1, copy=5.0)
WAITING = numbers(5.0, 0.1, idle=9.9, transform=10.0)
SELDOM = numbers(1.0, 5.0, transform=3.0, waits=Waits(0.0, 0.4, 0.5, 0, 40))  # a batch that takes long
COPIED = Numbers(100, 5.0, 0.5, 0.05, dict.fromkeys(STAGES, 0.1) | {"read": 5.0})
TWO, EIGHT = (Setting(2, cpus, is_persistent=True) for cpus in (2, 8))


def so(*changes: str, num_workers: int = 2) -> Setting:
    """A setting in which these changes would change nothing."""
    return replace(TWO, num_workers=num_workers, is_so={*changes})


@pytest.mark.parametrize(
    ("found", "setting", "said", "unsaid"),
    [
        # Workers that start in each epoch.
        (SHORT, Setting(2, 8, num_batches=25), "set persistent_workers=True, so .* not in each epoch$", None),
        (SHORT, replace(EIGHT, num_batches=25), "", "persistent"),
        # One epoch, which may be the only one.
        (
            numbers(2.0, 5.0, batches=25, start_up=1.9, transform=0.5),
            *(Setting(2, 8), "if there are more epochs", None),
        ),
        # An epoch that goes on for long has only just begun.
        (
            numbers(2.01, 5.0, start_up=2.0, transform=0.5),
            *(Setting(2, 8, num_batches=100_000), "hardly waits", None),
        ),
        # Shares that differ are of different times: of all this time the loop has waited 17.2 % and 32.4 %.
        (
            numbers(0.0577, 0.2777, batches=60, transform=0.05),
            *(Setting(0, 2), r"^waited 17\.2% of the time, ", None),
        ),
        (
            numbers(2.4, 5.0, start_up=2.0, transform=3.0),
            *(Setting(2, 8, num_batches=1000), r"^waited 10\.7% of the time of a whole epoch, ", None),
        ),
        # Workers that wait are not called enough.
        (numbers(5.0, 0.1, transform=10.0), TWO, "2 workers are enough for 2 CPUs", None),
        (WAITING, TWO, "raise num_workers from 2 to 8: rows wait, .* no CPU each, though torch warns$", None),
        (WAITING, so(num_workers=8), r"workers \(8\) wait for something more.* in one request", None),
        (WAITING, so(AT_ONCE, num_workers=8), "", "in one request"),
        # Short waits, and rows that travel too far.
        (numbers(0.005, 0.0, read=0.004), Setting(0, 2), "50 us a batch: nothing to change$", None),
        (numbers(2.0, 0.1, read=0.3, transfer=1.5), EIGHT, "lower num_workers from 2 to 0$", None),
        # What is so already.
        (COLLATING, so(FEW_LEAVES, SMALLER), "torch.stack over whole columns$", None),
        (COLLATING, so(COLLATE_FN), "", "collate_fn"),
        (READING, TWO, "shuffle='block', which", None),
        (READING, so(BLOCK), "", "shuffle"),
        (READING, so(FEWER), "", "columns"),
        (COMPUTING, TWO, f"{re.escape(KEPT)}$", None),
        (COMPUTING, so(KEPT), "", "submit"),
        (COPYING, TWO, "set pin_memory=True", None),
        (COPYING, so(PIN), "", "pin_memory"),
        # Threads: one reads ahead already, and more than one would take the loop's own processor.
        (COPIED, Setting(0, 8, num_threads=2), "raise num_workers from 2 to ", None),
        (
            COPIED,
            Setting(0, 2, num_threads=1),
            r"1 thread is enough for 2 CPUs; read fewer columns, or store smaller types \(uint8, float16\)$",
            None,
        ),
        (COPIED, Setting(0, 2, is_ahead=True, are_threads=True), "", "num_workers"),
        (
            numbers(5.0, 0.5, read=0.1),  # the number is the user's, of whose two workers one is a thread
            *(Setting(0, 2, num_threads=1, asked=2), "lower num_workers from 2 to 0$", None),
        ),
        # Batches that take long now and then are made further ahead.
        (SELDOM, EIGHT, "raise prefetch_factor from 2 to 8", None),
        (SELDOM, replace(EIGHT, prefetch=32), "", "prefetch_factor"),
        (SELDOM._replace(delayed=1.5), EIGHT, "waited for a CPU, of which there are 8, 50% of", None),
        (SELDOM._replace(waits=Waits(0.01, 0.01, 0.01, 0, 40)), EIGHT, "", "prefetch_factor"),
    ],
)
def test_advice(found: Numbers, setting: Setting, said: str, unsaid: str | None) -> None:
    text = verdict(found, setting)
    assert re.search(said, text), text
    assert unsaid is None or unsaid not in text


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("num_workers", [0, 3])
def test_each_stage_has_advice(stage: str, num_workers: int) -> None:
    stages = dict.fromkeys(STAGES, 0.1) | {stage: 5.0}
    found = Numbers(100, 5.0, 0.5, 0.05, stages)
    said = verdict(found, Setting(num_workers, 3, is_persistent=True))
    assert f"({stage}, " in said
    advice = said.split(": ", 1)[1]
    names = re.findall(
        r"\S+", "num_workers shuffle pin_memory cache sampler larger torch.stack smaller workers"
    )
    assert any(name in advice for name in names), advice


def test_short_epochs_are_judged_over_epochs_and_by_time() -> None:
    loader = yoga.DataLoader(Sleeping(4, 0.001), batch_size=2)
    consumed(loader)
    assert loader.meter.verdict() == "2 batches say nothing yet; ask again after 10"
    for _ in range(4):
        consumed(loader)
    assert loader.meter.epoch.batches == 2
    assert loader.meter.last.batches == 10
    assert loader.meter.last.epochs == 5
    assert "transform" in loader.meter.verdict()
    slow = yoga.DataLoader(Sleeping(4, 0.3), batch_size=2)
    consumed(slow)
    assert "transform" in slow.meter.verdict()


def test_the_longest_wait_and_its_step() -> None:
    class Uneven(Sleeping):
        def __getitem__(self, row: int) -> torch.Tensor:
            time.sleep(0.2 if row == 34 else 0.0)
            return super().__getitem__(row)

    loader = yoga.DataLoader(Uneven(120, 0.001), batch_size=2)
    consumed(loader)
    for found in (loader.meter.epoch, loader.meter.last):
        assert (found.waits.epoch, found.waits.step) == (0, 17)
        assert found.waits.longest >= 0.2
        assert 0.002 <= found.waits.p50 < found.waits.p99 <= found.waits.longest
    state = {**loader.state_dict(), "epoch": 3, "position": 20, "steps": 10, "proof": None}
    loader.load_state_dict(state)
    consumed(loader)
    assert (loader.meter.epoch.waits.epoch, loader.meter.epoch.waits.step) == (3, 17)
    assert "at step 17 of epoch" in str(loader.meter)


def test_loops_that_end_early_begin_anew_and_of_two_at_once_the_later_one_counts() -> None:
    loader = yoga.DataLoader(Sleeping(40, 0.0), batch_size=2)
    assert len(list(itertools.islice(loader, 5))) == 5
    assert loader.meter.epoch.batches == 5
    with pytest.warns(UserWarning, match="left after 10 of 40 rows"):
        assert len(list(itertools.islice(loader, 3))) == 3
    assert loader.meter.epoch.batches == 3
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    assert loader.meter.epoch.batches == 1


@pytest.mark.parametrize("how", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_of_a_loader_have_meters_of_their_own(how: Any) -> None:
    loader = yoga.DataLoader(Sleeping(40, 0.0), batch_size=2)
    consumed(loader)
    other = how(loader)
    assert other.meter is not loader.meter
    assert consumed(other) == 20
    assert other.meter.epoch.batches == loader.meter.epoch.batches == 20
    assert other.meter.epoch.stages["transform"] > 0


def test_what_a_batch_that_fails_took_is_waited() -> None:
    class Bad(Sleeping):
        def __getitem__(self, row: int) -> torch.Tensor:
            found = super().__getitem__(row)
            if row % 4 == 3:
                raise ValueError("every second batch")
            return found

    loader = yoga.DataLoader(Bad(40, 0.005), batch_size=2)
    iterator: Iterator[Any] = iter(loader)
    for _ in range(20):
        with contextlib.suppress(ValueError):
            next(iterator)
    assert loader.meter.epoch.batches == 10
    assert loader.meter.epoch.waited >= 40 * 0.005
    assert loader.meter.epoch.share > 0.9


def test_functions_are_called_over_epochs_and_those_that_raise_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown: list[int] = []

    def broken(meter: Any) -> None:
        raise RuntimeError("no network")

    loader = yoga.DataLoader(Sleeping(14, 0.0), batch_size=2)
    consumed(loader)
    loader.meter.every(2, broken)
    loader.meter.every(3, lambda meter: shown.append(meter.epoch.batches))
    assert consumed(yoga.to_device(loader, "cpu")) == 7
    assert consumed(loader) == 7
    assert shown == [2, 5, 1, 4, 7]  # after 9, 12, 15, 18 and 21 batches
    assert [record.message.split(" cannot ")[1] for record in caplog.records] == [
        "show the loader's meter; this is said once"
    ]


def test_what_functions_take_is_not_the_loops() -> None:
    loader = yoga.DataLoader(Sleeping(40, 0.0), batch_size=2)
    loader.meter.every(1, lambda meter: time.sleep(0.01))
    began = time.perf_counter()
    consumed(loader)
    passed = time.perf_counter() - began
    epoch = loader.meter.epoch
    assert epoch.waited + epoch.away <= passed - 19 * 0.01


def test_arguments_of_every() -> None:
    meter = yoga.DataLoader([1]).meter
    with pytest.raises(TypeError, match="a function that takes the meter, found a str"):
        meter.every(10, "log")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batches"):
        meter.every(0, print)


def test_the_recipe_for_a_progress_bar_runs(caplog: pytest.LogCaptureFixture) -> None:
    (recipe,) = [code for code in blocks(ROOT / "docs" / "measure.md", "py") if "tqdm" in code]
    given: dict[str, Any] = {"loader": yoga.DataLoader(Sleeping(400, 0.0), batch_size=2)}
    exec(recipe, given)
    consumed(given["bar"])
    assert "cannot show" not in caplog.text
    assert "waited " in given["bar"].postfix


def test_the_recipe_over_ranks_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recipe,) = [code for code in blocks(ROOT / "docs" / "measure.md", "py") if "all_gather_object" in code]
    loader = yoga.DataLoader(Sleeping(20, 0.001), batch_size=2)
    consumed(loader)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        exec(recipe, {"loader": loader})
    finally:
        torch.distributed.destroy_process_group()
    assert capsys.readouterr().out.endswith(", 'transform')\n")


def test_forked_loops_count_for_themselves() -> None:
    loader = yoga.DataLoader(Sleeping(40, 0.0), batch_size=2)
    consumed(loader)

    def counts_again() -> None:
        assert len(list(itertools.islice(loader, 3))) == 3
        assert loader.meter.epoch.batches == 3

    assert status_of_child(counts_again) == 0
    assert loader.meter.epoch.batches == 20
