"""Set-ups of tests/doctor_corpus: what is broken is named, and nothing healthy is called wrong."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from children import started

from torchyoga.tools.doctor.examination import examined
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.trial import tried

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trials are forked")
CORPUS = Path(__file__).parents[1] / "doctor_corpus"
SUBJECTS = ("held_memory", "open_handles", "orders", "random_numbers", "row_contents", "streams")
LEAST = 40  # of 43 broken ones that are named
SECONDS, PATIENCE = 24.0, 240.0  # a quarter of them for each step, also on a busy machine
Found = list[tuple[str, str, str]]  # names, severities and all that was said


@cache
def setups() -> dict[str, Any]:
    """All of the corpus, which workers that are spawned import, too, by what each is."""
    sys.path.insert(0, str(CORPUS))
    found = [one for subject in SUBJECTS for one in importlib.import_module(subject).SETUPS]
    assert len({one.about for one in found}) == len(found)
    return {one.about: one for one in found}


def found_in(about: str) -> Found:
    """What the doctor says of a set-up, in a process of its own."""
    setup = setups()[about]

    def work() -> Found:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            os.environ |= {"WORLD_SIZE": str(setup.job), "RANK": "0"}
            patient = Patient.of(setup.make(), [setup.called])
            diagnosis = examined(patient, seconds=SECONDS, with_rates=False)
            return [(one.name, one.severity, f"{one.measured}; {one.change}") for one in diagnosis.findings]

    outcome = tried(work, PATIENCE)
    assert not outcome.problem, (about, outcome)
    return [tuple(one) for one in outcome.value]


def examine(abouts: Sequence[str]) -> dict[str, Found]:
    """What is said of each, by two processes that share them."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        return dict(zip(abouts, pool.map(found_in, abouts), strict=True))


def missed(setup: Any, found: Found) -> list[str]:
    """What should have been said and was not, or the reverse."""
    problems = []
    for wanted in filter(None, setup.says.split("; ")):
        name, _, severity = wanted.partition(" ")
        if not any(one[0] == name and severity in ("", one[1]) for one in found):
            problems.append(f"did not say {wanted}")
    said = " ".join(one[2] for one in found)
    problems += [f"did not name {text}" for text in setup.names.split("; ") if text not in said]
    for name in filter(None, setup.never.split("; ")):
        if any(name == one[0] for one in found) or ("." in name and name in said):
            problems.append(f"said {name}")
    return problems


def test_the_corpus_has_as_many_and_half_of_the_broken_are_from_public_threads() -> None:
    broken = [one for one in setups().values() if one.says]
    assert (len(broken), len(setups())) == (43, 43 + 52)
    assert sum(bool(one.thread) for one in broken) >= 20


@pytest.mark.rest
def test_nearly_all_that_is_broken_is_named() -> None:
    found = examine([about for about, one in setups().items() if one.says])
    problems = {about: missed(setups()[about], some) for about, some in found.items()}
    named = [about for about, some in problems.items() if not some]
    assert len(named) >= LEAST, {about: some for about, some in problems.items() if some}


@pytest.mark.rest
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_nothing_healthy_is_accused_beside_two_computing_processes(every: int) -> None:
    """A third of the set-ups, and all in `make soak`; the others are examined without such processes."""
    healthy = [about for about, one in setups().items() if not one.says]
    with started("while True: pass"), started("while True: pass"):
        found = examine(healthy[::every])
    found |= examine([about for about in healthy if about not in found])
    accused = {about: [one for one in some if one[1] != "maybe"] for about, some in found.items()}
    problems = {about: accused[about] or missed(setups()[about], some) for about, some in found.items()}
    assert {about: some for about, some in problems.items() if some} == {}
