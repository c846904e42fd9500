"""After the meter's advice is taken, the loop waits less."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from advised import Burning, Copied, Large, Program, Sleeping, Uneven, slowly

from torchyoga.process.control_group import usable_cpus

pytestmark = [
    pytest.mark.soak,  # a comparison of times, which wants a machine that does nothing else
    pytest.mark.skipif(usable_cpus() < 2, reason="one CPU: nothing to divide work among"),
    # More workers than CPUs are one of the programs.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers and programs are forked")
TWO: dict[str, Any] = {"num_workers": 2}
LASTING: dict[str, Any] = {**TWO, "persistent_workers": True}
PROGRAMS = {
    "sleeping rows": Program(Sleeping(320, 0.004), 2, 0.01, {"batch_size": 8}),
    "burning rows": Program(Burning(320, 0.002), 2, 0.02, {"batch_size": 8}),
    "short epochs": Program(Sleeping(32, 0.004), 12, 0.01, {"batch_size": 8, **TWO}),
    "workers that are spawned": Program(
        Sleeping(64, 0.001), 3, 0.005, {"batch_size": 8, **TWO, "multiprocessing_context": "spawn"}
    ),
    "more workers than CPUs": Program(Sleeping(80, 0.0), 6, 0.005, {"batch_size": 8, "num_workers": 12}),
    "slow collate": Program(Sleeping(400, 0.0), 2, 0.015, {"batch_size": 8, "collate_fn": slowly}),
    "memory": Program(Copied(200, 0.0), 2, 0.05, {"batch_size": 2}),
    "large batches": Program(Large(128, 0.008), 2, 0.03, {"batch_size": 4}),
    "now and then": Program(Uneven(440, 0.0), 1, 0.02, {"batch_size": 4, **LASTING}),
}


@linux
@pytest.mark.parametrize("name", PROGRAMS)
def test_after_the_advice_is_taken_the_loop_waits_less(name: str) -> None:
    program = PROGRAMS[name]
    before, after, said = [], [], []
    for _ in range(3):  # whatever else the machine does: by the quietest of a few runs
        waited, advice = program.run_beside()
        better = program.followed(advice)
        before.append(waited)
        after.append(better.run_beside()[0])
        said.append(advice)
        if min(after) < 0.8 * min(before):
            return
    raise AssertionError((name, before, after, said))
