"""Set-ups of tests/doctor_corpus: what is broken is named, and nothing healthy is called wrong."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from children import started

from torchyoga.tools.doctor.examination import examined
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.trial import tried

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trials are forked")
CORPUS = Path(__file__).parents[1] / "doctor_corpus"
BROKEN, HEALTHY = sorted(CORPUS.glob("broken/*.py")), sorted(CORPUS.glob("healthy/*.py"))
LEAST = 40  # of 43 broken ones that are named
SECONDS, PATIENCE = 24.0, 240.0  # a quarter of them for each step, also on a busy machine
Found = list[tuple[str, str, str]]  # names, severities and all that was said


def head(path: Path) -> dict[str, list[str]]:
    """What must and must not be said."""
    lines = path.read_text().split('"""')[1].splitlines()
    pairs = (line.partition(": ") for line in lines if line.startswith(("says:", "names:", "not:", "job:")))
    return {key: value.split("; ") for key, _, value in pairs}


def found_in(path: Path) -> Found:
    """What the doctor says of a set-up, in a process of its own."""

    def work() -> Found:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.path.insert(0, str(path.parent))
            os.environ |= {"WORLD_SIZE": head(path).get("job", ["1"])[0], "RANK": "0"}
            module = importlib.import_module(path.stem)
            names = [name for name, value in vars(module).items() if value is module.loader]
            patient = Patient.of(module.loader, names)
            diagnosis = examined(patient, seconds=SECONDS, with_rates=False)
            return [(one.name, one.severity, f"{one.measured}; {one.change}") for one in diagnosis.findings]

    outcome = tried(work, PATIENCE)
    assert not outcome.problem, (path.stem, outcome)
    return [tuple(one) for one in outcome.value]


def examine(paths: Sequence[Path]) -> dict[str, Found]:
    """What is said of each, by two processes that share them."""
    lanes = [paths[::2], paths[1::2]]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in lanes]
    processes = [
        context.Process(target=lambda lane=lane, end=end: end.send({one.stem: found_in(one) for one in lane}))
        for lane, (_, end) in zip(lanes, pipes, strict=True)
    ]
    for process, (_, end) in zip(processes, pipes, strict=True):
        process.start()
        end.close()
    found: dict[str, Found] = {}
    for process, (end, _) in zip(processes, pipes, strict=True):
        found |= end.recv()
        process.join()
    return found


def missed(path: Path, found: Found) -> list[str]:
    """What should have been said and was not, or the reverse."""
    asked, problems = head(path), []
    for wanted in asked.get("says", []):
        name, _, severity = wanted.partition(" ")
        if not any(one[0] == name and severity in ("", one[1]) for one in found):
            problems.append(f"did not say {wanted}")
    said = " ".join(one[2] for one in found)
    problems += [f"did not name {text}" for text in asked.get("names", []) if text not in said]
    for name in asked.get("not", []):
        if any(name == one[0] for one in found) or ("." in name and name in said):
            problems.append(f"said {name}")
    return problems


def test_the_corpus_has_as_many_and_half_of_the_broken_are_from_public_threads() -> None:
    assert (len(BROKEN), len(HEALTHY)) == (43, 52)
    assert sum("thread: " in path.read_text() for path in BROKEN) >= 20
    assert all(head(path).get("says") for path in BROKEN)


@pytest.mark.rest
def test_nearly_all_that_is_broken_is_named() -> None:
    found = examine(BROKEN)
    problems = {path.stem: missed(path, found[path.stem]) for path in BROKEN}
    named = [stem for stem, some in problems.items() if not some]
    assert len(named) >= LEAST, {stem: some for stem, some in problems.items() if some}


@pytest.mark.rest
def test_nothing_healthy_is_accused_beside_two_computing_processes() -> None:
    with started("while True: pass"), started("while True: pass"):
        found = examine(HEALTHY)
    accused = {path.stem: [some for some in found[path.stem] if some[1] != "maybe"] for path in HEALTHY}
    problems = {path.stem: accused[path.stem] or missed(path, found[path.stem]) for path in HEALTHY}
    assert {stem: some for stem, some in problems.items() if some} == {}
