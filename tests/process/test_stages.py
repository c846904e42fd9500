"""Seconds by stage: nested stages, threads, processes, interrupts."""

from __future__ import annotations

import pickle
import time

import pytest

from torchyoga.process.stages import CPU, STAGES, Stage, Stopwatch, WorkerClock, is_timed, shift, timed


def test_the_innermost_stage_is_charged_and_all_add_up() -> None:
    watch = Stopwatch()
    began = time.perf_counter()
    with watch.running(Stage.READ):
        time.sleep(0.02)
        with timed(Stage.TRANSFORM):
            time.sleep(0.04)
            with timed(Stage.READ):
                time.sleep(0.02)
            time.sleep(0.01)
    passed = time.perf_counter() - began
    assert sum(watch.totals) == pytest.approx(passed, abs=0.002)
    assert watch.totals[Stage.READ] >= 0.04
    assert watch.totals[Stage.TRANSFORM] >= 0.05
    assert not is_timed()


def test_errors_leave_stages_as_they_were() -> None:
    watch = Stopwatch()
    with watch.running(Stage.READ):
        with pytest.raises(ValueError, match="no"), timed(Stage.DECODE), timed(Stage.COLLATE):
            raise ValueError("no")
        time.sleep(0.02)
    assert watch.totals[Stage.READ] >= 0.02
    with pytest.raises(KeyboardInterrupt), watch.running(Stage.PIN):
        raise KeyboardInterrupt
    assert not is_timed()


def test_what_is_shifted_is_another_stages() -> None:
    watch = Stopwatch()
    with watch.running(Stage.READ):
        time.sleep(0.02)
        shift(0.015, Stage.READ, Stage.DISK)
    assert watch.totals[Stage.DISK] == 0.015
    assert watch.totals[Stage.READ] >= 0.005


def test_what_is_sent_is_added_once() -> None:
    one, other = Stopwatch(), Stopwatch()
    one.add(Stage.COPY, 2.0)
    other.add_sent(one.sent())
    other.add_sent(one.sent())
    assert other.totals[Stage.COPY] == 2.0
    assert len(other.totals) == len(STAGES) + 2
    began = time.process_time()
    clock = WorkerClock()
    while time.process_time() < began + 0.03:
        pass
    for _ in range(3):
        other.add_sent(clock.sent(one))
    assert 0.01 < other.totals[CPU] <= time.process_time() - began


def test_another_process_measures_its_own() -> None:
    watch = Stopwatch()
    watch.add(Stage.COPY, 2.0)
    assert sum(pickle.loads(pickle.dumps(watch)).totals) == 0.0
