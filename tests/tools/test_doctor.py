"""What the doctor says as a whole: nothing of what is healthy, within its time, and nothing moves."""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doctored import Drawing, Hanging, Held, Slow
from own import Mapped

import torchyoga as yoga
from docs import ROOT
from torchyoga.process.control_group import usable_cpus
from torchyoga.tools.doctor import examination
from torchyoga.tools.doctor.batch import EPOCH
from torchyoga.tools.doctor.contents import IN_PLACE, VALUES
from torchyoga.tools.doctor.diagnosis import NO_LOADER, Diagnosis, Finding
from torchyoga.tools.doctor.examination import examined
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.trial import Hang, Outcome
from torchyoga.tools.doctor.workers import WORKERS
from torchyoga.tools.meter_advice import most_workers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trials are forked")
GOLDEN = Path(__file__).parents[1] / "golden"
CHANCE = {"few-cpus", "num-workers", "short-epochs"}  # of the machine, or measured on a busy one


def names(diagnosis: Diagnosis) -> set[str]:
    return {finding.name for finding in diagnosis.findings}


@pytest.fixture
def ref(tmp_path: Path) -> yoga.DataRef:
    storage = yoga.Storage(tmp_path / "storage")
    rows = [{"x": np.full(100, row, np.float32), "label": row} for row in range(500)]
    return storage.submit(rows, "digits", "1", progress=False)


def test_nothing_is_found_on_a_healthy_loader_of_a_version(ref: yoga.DataRef) -> None:
    loader = yoga.DataLoader(ref, batch_size=50, shuffle=True, seed=3)
    diagnosis = yoga.doctor(loader, seconds=12)
    assert names(diagnosis) - CHANCE == set()
    assert set(diagnosis.measured) == {"batch", "workers"}
    assert diagnosis.left_out == {}


def without_rates(loader: Any) -> Diagnosis:
    """All but the rates of workers, which take most of the time."""
    return examined(Patient.of(loader), seconds=60, with_rates=False)


def test_numbers_that_lie_in_larger_tensors_are_examined() -> None:
    rows = [torch.eye(3)[:1, number % 3] for number in range(40)]  # contiguous, though their stride is 3
    assert without_rates(torch.utils.data.DataLoader(rows, 4)).left_out == {}


def test_a_batch_of_texts_has_no_tensors() -> None:
    loader = yoga.DataLoader(yoga.from_arrays({"x": np.arange(9)}), batch_size=3, collate_fn=list)
    assert without_rates(loader).measured["batch"] == "3 rows, no tensors"


@pytest.mark.slow("torch's-*")
@pytest.mark.parametrize(
    "kind", ["numpy", *(pytest.param(kind, marks=pytest.mark.rest) for kind in ("random", "torch"))]
)
@pytest.mark.parametrize("make", [yoga.DataLoader, torch.utils.data.DataLoader], ids=["ours", "torch's"])
def test_nothing_is_found_on_a_healthy_loader_with_workers(make: Any, kind: str) -> None:
    diagnosis = without_rates(make(Drawing(kind), batch_size=8, shuffle=True, num_workers=2))
    assert names(diagnosis) - CHANCE == set(), diagnosis
    assert "workers" not in diagnosis.measured


def test_nothing_moves() -> None:
    loader = yoga.DataLoader(Drawing("numpy"), batch_size=8, shuffle=True, seed=3, num_workers=2)
    batches = iter(loader)
    next(batches)

    def states() -> list[Any]:
        legacy: Any = np.random.get_state()
        generators = [random.getstate(), torch.get_rng_state().tolist(), legacy[1].tolist(), legacy[2:]]
        return [*generators, loader.state_dict(), loader.receipt()]

    before = states()
    yoga.doctor(loader, seconds=2)
    assert states() == before
    plain = torch.utils.data.DataLoader(Drawing("own"), batch_size=8, shuffle=True, num_workers=1)
    own = plain.dataset.generator.bit_generator.state  # type: ignore[attr-defined]
    yoga.doctor(plain, seconds=1)
    assert states() == before
    assert plain.dataset.generator.bit_generator.state == own  # type: ignore[attr-defined]
    rest = [batch.tolist() for batch in batches]
    assert sum(map(len, rest)) == 56


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.rest)])
def test_a_dataset_that_hangs_is_a_finding_and_ends(everywhere: bool) -> None:
    loader = torch.utils.data.DataLoader(Hanging(everywhere), batch_size=8, num_workers=1)
    started = time.monotonic()
    diagnosis = yoga.doctor(loader, seconds=12)
    assert time.monotonic() - started < 60  # not for ever
    assert "hang" in names(diagnosis)
    (hang,) = (finding for finding in diagnosis.findings if finding.name == "hang")
    assert hang.measured.startswith("rows" if everywhere else "an epoch")
    assert hang.severity == "wrong"


class Locked(Slow):
    """Rows that take a lock for a moment."""

    lock = threading.Lock()

    def __getitem__(self, row: int) -> torch.Tensor:
        with self.lock:
            return super().__getitem__(row)


def test_a_lock_that_a_thread_held_by_chance_as_the_trial_was_forked_is_no_hang() -> None:
    forks = threading.Semaphore(0)
    os.register_at_fork(after_in_parent=forks.release)

    def hold() -> None:
        with Locked.lock:
            ready.set()
            for _ in range(2):  # of the handles, and of the rows
                forks.acquire(timeout=60)

    ready = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    loader = torch.utils.data.DataLoader(Locked(0.0), batch_size=8, num_workers=1)
    diagnosis = examined(Patient.of(loader), seconds=12, with_rates=False)
    thread.join()
    assert "hang" not in names(diagnosis)
    assert "batch" in diagnosis.measured


def test_a_loader_with_a_timeout_is_tried_without_workers_too() -> None:
    loader = torch.utils.data.DataLoader(Slow(0.0), 8, collate_fn=len, num_workers=1, timeout=60)
    diagnosis = without_rates(loader)
    assert (names(diagnosis) - CHANCE, "batch" in diagnosis.measured) == (set(), True)


def last_raises(row: int) -> int:
    if row == 63:
        raise ValueError("cut short")
    return row


def test_rows_that_raise_are_a_finding_and_what_raises_them_again_is_a_line_that_runs() -> None:
    last = Mapped(64, last_raises)
    for loader, line, said in (
        (torch.utils.data.DataLoader(last, 8, num_workers=1), "loader.dataset[63]", "cut short"),
        (torch.utils.data.DataLoader(Slow(0.0), 8, collate_fn=int), "next(iter(loader))", "TypeError"),
        (yoga.DataLoader(Slow(0.0), 8, collate_fn=int), "loader.peek()", "TypeError"),
    ):
        (found,) = (one for one in without_rates(loader).findings if one.name == "broken-rows")
        assert found.change == f"{line} raises it here"
        assert said in found.measured
        with pytest.raises((ValueError, TypeError)):
            eval(line)


class Shared(Held):
    """Rows of a handle that only the process which opened it can read from."""

    def __getitem__(self, row: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            raise OSError("bad magic number")
        return super().__getitem__(row)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors take no notes")
def test_a_handle_is_proved_wrong_where_only_workers_raise() -> None:
    for is_open, expected in ((True, {"fork-unsafe", "broken-rows"}), (False, {"broken-rows"})):
        with open(__file__) as file:
            loader = torch.utils.data.DataLoader(Shared(file if is_open else None), 8, num_workers=1)
            found = without_rates(loader).findings
        assert {one.name for one in found if one.severity == "wrong"} == expected
        assert all("bad magic number" in one.measured for one in found)


@pytest.mark.quick("in forked*")
@pytest.mark.parametrize("said", examination._NO_CUDA)
def test_what_a_child_that_is_forked_after_cuda_was_used_cannot_do_is_no_fault_of_rows(said: str) -> None:
    here = os.getpid()

    def on_cuda(row: int) -> int:
        if os.getpid() != here:
            raise RuntimeError(said)
        return row

    for workers, expected in ((0, set()), (1, {"broken-rows"})):  # which are forked
        found = without_rates(torch.utils.data.DataLoader(Mapped(64, on_cuda), 8, num_workers=workers))
        assert names(found) - CHANCE == expected
        assert said in found.left_out["an epoch"]


def test_such_a_child_pins_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    loader = torch.utils.data.DataLoader(Slow(0.0), 8, pin_memory=True)
    assert names(without_rates(loader)) - CHANCE == set()


def test_an_epoch_that_was_set_to_0_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "CHECKS", [one for one in examination.CHECKS if one is not WORKERS])
    rows = list(range(200))
    sampler = torch.utils.data.DistributedSampler(rows, num_replicas=1, rank=0)
    loader = torch.utils.data.DataLoader(rows, 8, sampler=sampler)
    scope = {"yoga": yoga, "loader": loader}
    for code, found in (("", {"same-order"}), ("loader.sampler.set_epoch(0); ", set())):
        exec(f"def main():\n    {code}return yoga.doctor(loader, seconds=6)", scope)
        diagnosis = scope["main"]()  # type: ignore[operator]
        assert names(diagnosis) & {"same-order"} == found
        assert "never set" not in str(diagnosis)


def test_a_slow_batch_is_no_hang_and_what_a_loader_does_already_is_not_advised() -> None:
    found = yoga.doctor(torch.utils.data.DataLoader(Slow(0.3), 32, num_workers=2), seconds=6)
    assert "hang" not in names(found)
    (slow,) = (one for one in found.findings if one.name == "slow-rows")
    assert re.match(r"a row takes 0\.\d+ s; an epoch: not within 2 s", slow.measured)
    wanted = most_workers(usable_cpus())  # which wait at once
    assert slow.change.startswith(f"num_workers={wanted}; or make the rows once")
    loader = torch.utils.data.DataLoader(Slow(0.0), 8, num_workers=1, collate_fn=lambda _: sum(range(9**11)))
    loader.num_workers += usable_cpus()  # torch warns of so many
    (slow,) = (one for one in yoga.doctor(loader, seconds=6).findings if one.name == "slow-rows")
    assert slow.change.startswith(f"num_workers={usable_cpus()}; or make the rows once")  # they take turns


def test_slow_rows_are_those_that_take_the_time_and_that_wait_on_a_busy_machine_too() -> None:
    hang, row = Hang(8.0, is_busy=True, ran=8.0), {"each": 1e-5, "bytes": 8}
    epoch, patient = {EPOCH.name: Outcome(hang=hang)}, Patient.of(torch.utils.data.DataLoader([1]))

    def said(**outcomes: Outcome) -> list[str]:
        known = {IN_PLACE.name: Outcome(), VALUES.name: Outcome(row)}
        return [one.severity for one in examination._failed(patient, {**known, **epoch, **outcomes})]

    assert said() == ["maybe"]  # what collates them may compute
    assert said(**{EPOCH.name: Outcome(hang=hang._replace(ran=1.0))}) == []
    assert said(**{EPOCH.name: Outcome({}), WORKERS.name: Outcome(hang=hang)}) == []
    slow = {VALUES.name: Outcome({**row, "each": 2.5}), EPOCH.name: Outcome(hang=hang._replace(is_idle=True))}
    assert said(**slow) == ["slow"]


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(TypeError, match="doctor takes a DataLoader or a dataset, found int; pass the loader"):
        yoga.doctor(3)
    loader = yoga.DataLoader([1])
    assert Patient.of(yoga.to_device(loader, "cpu")).loader is loader
    with pytest.raises(TypeError, match="found str; pass the loader"):
        yoga.doctor("shards")
    for seconds in (0, -1, float("inf"), "1"):
        with pytest.raises(ValueError, match="seconds must be a positive number"):
            yoga.doctor([1], seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="severity must be one of"):
        Finding("a", "b", "c", "d", "bad")  # type: ignore[arg-type]


@pytest.mark.rest
def test_a_dataset_alone_is_examined() -> None:
    diagnosis = yoga.doctor(Slow(0.0), seconds=20)  # which it does not need
    assert names(diagnosis) == set()
    said = r"rows/s: [\d,]+ with 0, [\d,]+ with 1|too much to tell how many"  # on a busy machine
    assert re.search(said, diagnosis.measured["workers"])


@pytest.mark.quick("80")
@pytest.mark.parametrize("width", [80, 200])
def test_the_text_is_as_it_was(width: int) -> None:
    """What was measured is masked, the rest is compared."""
    held = Held(open(__file__))  # noqa: SIM115 - it is the finding
    try:
        loader = torch.utils.data.DataLoader(held, batch_size=8, num_workers=1)
        found = without_rates(loader)
    finally:
        held.held.close()  # type: ignore[attr-defined]
    kept = [one for one in found.findings if one.name not in CHANCE]
    masked = [replace(one, measured=re.sub(r"\d[\d.,]*", "9", one.measured)) for one in kept]
    measured = {name: re.sub(r"\d[\d.,]*( [kMG]?B)?", "9", text) for name, text in found.measured.items()}
    measured.pop("workers' start", None)  # said on a busy machine
    text = Diagnosis(masked, measured, found.left_out).text(width)
    assert text + "\n" == (GOLDEN / f"doctor_{width}.txt").read_text()
    assert all(len(line) <= width for line in text.splitlines())


def test_the_page_has_a_line_for_each_finding_and_no_other() -> None:
    folder = Path(yoga.__file__).parent / "tools" / "doctor"
    made = re.findall(r'Finding\(\s*"([a-z-]+)"', "".join(p.read_text() for p in folder.glob("*.py")))
    page = (ROOT / "docs" / "measure.md").read_text()
    doctor = page.partition("## The doctor\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", doctor, re.MULTILINE)
    assert sorted(set(made)) == sorted(name for row in rows for name in re.findall("`(.+?)`", row))


def test_the_worst_comes_first_and_all_of_it_is_plain_data() -> None:
    kinds = [Finding(kind, "1", "2", "3", kind) for kind in ("maybe", "wrong", "slow")]  # type: ignore[arg-type]
    diagnosis = Diagnosis(kinds, {"a": "b"}, {"c": "d"})
    assert [finding.name for finding in diagnosis.findings] == ["wrong", "slow", "maybe"]
    assert not diagnosis
    assert Diagnosis([])
    plain = diagnosis.to_dict()
    first = {"name": "wrong", "measured": "1", "why": "2", "change": "3", "severity": "wrong", "loader": ""}
    assert plain["findings"][0] == first  # type: ignore[index]
    assert Diagnosis.together([diagnosis, diagnosis]) == diagnosis
    both = Diagnosis.together([diagnosis.of("train_loader"), diagnosis.of("val_loader")])
    assert [one.loader for one in both.findings] == 3 * ["train_loader", "val_loader"]
    assert both.measured == {"train_loader: a": "b", "val_loader: a": "b"}
    assert "wrong: wrong (val_loader)" in str(both)
    assert str(Diagnosis([])) == "nothing was found"
    machine = Diagnosis([], {}, {NO_LOADER: "none was given"})
    assert str(machine).startswith("no loader was examined\n")
    assert str(Diagnosis.together([machine, diagnosis])).startswith("3 findings\n")
    assert str(Diagnosis([kinds[0]], {}, machine.left_out)).startswith("1 finding; no loader was examined\n")
