"""The arithmetic of workers: what is advised helps by its own account, and following it comes to an end."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from advised import Sleeping, consumed, verdict
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torchyoga as yoga
from torchyoga.process.stages import STAGES
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.workers import WORKERS
from torchyoga.tools.meter_advice import Costs, Numbers, Setting, most_workers

SECONDS = st.floats(1e-5, 10.0)
COSTS = st.builds(
    Costs,
    make=SECONDS,
    cpu=SECONDS,
    loop=st.just(0.0) | SECONDS,
    loop_cpu=st.just(0.0) | SECONDS,
    transfer=st.none() | st.floats(1e-5, 0.1),
    batch_bytes=st.integers(0, 10**9),
    cpus=st.integers(1, 16),
    is_ahead=st.booleans(),
    are_threads=st.booleans(),
    waits=st.booleans(),
)


def advice_of(costs: Costs, current: int) -> int | None:
    """The advice where a batch is waited for as long as is expected."""
    return costs.advice(current, costs.step(current) - costs.loop)


@given(COSTS, st.integers(0, 20))
def test_what_is_advised_helps_and_following_it_ends(costs: Costs, current: int) -> None:
    seen = [current]
    while (advised := advice_of(costs, current)) is not None:
        assert 0 <= advised <= (most_workers(costs.cpus) if costs.waits else costs.cpus)
        assert costs.step(advised) < costs.step(current)
        current = advised
        assert current not in seen
        seen.append(current)
    assert len(seen) <= 3


@given(COSTS, st.integers(0, 20))
def test_more_cpus_and_cheaper_batches_never_make_it_slower(costs: Costs, number: int) -> None:
    assert replace(costs, cpus=costs.cpus + 1).step(number) <= costs.step(number) + 1e-9
    cheaper = replace(costs, make=costs.make / 2, cpu=costs.cpu / 2)
    assert cheaper.step(number) <= costs.step(number)


@pytest.mark.parametrize(
    ("costs", "current", "advised"),
    [
        (Costs(make=0.04, cpu=0.0, loop=0.01, cpus=8), 0, 4),
        (Costs(make=0.04, cpu=0.04, loop=0.01, loop_cpu=0.01, cpus=2), 0, 2),
        (Costs(make=0.04, cpu=0.04, loop=0.05, cpus=8), 0, 1),
        (Costs(make=0.04, cpu=0.04, loop=0.05, cpus=8), 1, None),
        (Costs(make=0.04, cpu=0.04, loop=0.01, cpus=2), 2, None),
        (Costs(make=0.04, cpu=0.001, cpus=2, waits=True), 2, 8),
        (Costs(make=0.04, cpu=0.001, cpus=2, waits=True), 8, None),
        (Costs(make=0.04, cpu=0.001, cpus=2, waits=True, are_threads=True), 2, None),
        (Costs(make=0.04, cpu=0.64, cpus=16), 0, None),  # torch's operators take all CPUs already
        (Costs(make=0.001, cpu=0.001, transfer=0.01, cpus=4), 2, 0),
        (Costs(make=0.1, cpu=0.1, batch_bytes=10**9, cpus=2), 0, None),  # to send it takes longer
        (Costs(make=0.04, cpu=0.04, cpus=2, is_ahead=True, are_threads=True), 0, None),
        (Costs(make=0.04, cpu=0.04, cpus=8, is_ahead=True, are_threads=True), 0, 7),
    ],
)
def test_the_number_of_workers(costs: Costs, current: int, advised: int | None) -> None:
    assert advice_of(costs, current) == advised


def test_a_wait_that_workers_do_not_explain_is_not_theirs() -> None:
    costs = Costs(make=0.02, cpu=0.02, loop=0.05, cpus=8)
    for current in (1, 2, 8):
        assert costs.advice(current, 0.5) is None
    light = replace(costs, make=0.001, cpu=0.001)
    assert light.advice(2, 0.5) == 0  # then nothing but making is left


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.slow("0.0-16")
@pytest.mark.parametrize(("seconds", "num_workers"), [(0.004, 0), (0.0, 16), (0.0, 0)])
def test_the_doctor_says_what_the_meter_has_counted(seconds: float, num_workers: int) -> None:
    loader = yoga.DataLoader(Sleeping(400, seconds), batch_size=8, num_workers=num_workers)
    for _ in range(2):
        consumed(loader)
    said = loader.meter.verdict()
    facts = {"usable": 2, "rates": [], "others": 0.0, "waits": False}
    measured, *findings = WORKERS.judge(Patient.of(loader), facts, {})
    assert measured.text == f"as the loader's meter says, {said}"
    advised = re.search(r"num_workers from \d+ to (\d+)", said)
    assert [one.change for one in findings] == ([f"num_workers={advised[1]}"] if advised else [])
    assert advised or not (seconds or num_workers), said


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_of_trivial_rows_both_say_that_no_worker_is_needed() -> None:
    """Sixteen workers on two CPUs: the first batch came after a second, and rows waited for a CPU."""
    stages = dict.fromkeys(STAGES, 0.0) | {"transform": 0.4, "transfer": 0.1, "start-up": 0.3}
    found = Numbers(120, 1.16, 0.01, 1.0, stages, cpu=0.02, loop_cpu=0.01, delayed=0.38)
    setting = Setting(16, 2, is_persistent=True, num_batches=500)
    assert "lower num_workers from 16 to 0" in verdict(found, setting)
    patient = Patient.of(DataLoader([1], num_workers=16))
    facts = {"usable": 2, "rates": [(0, 1e6), (1, 9e4), (2, 1e5), (16, 5e4)], "others": 0.0, "waits": False}
    _, finding = WORKERS.judge(patient, facts, {})
    assert finding.change == "num_workers=0"
    # Where the steps take longer than the batches, the start is no reason to change anything.
    busy = found._replace(away=3.0, waited=1.01)
    assert "nothing to change" in verdict(busy, replace(setting, num_batches=5000))
