"""Other systems: what runs on them, and that the package works without the features they lack."""

from __future__ import annotations

import configparser
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import ROOT

SYSTEMS = {
    "ubuntu-latest": "Operating System :: POSIX :: Linux",
    "macos-latest": "Operating System :: MacOS",
    "windows-latest": "Operating System :: Microsoft :: Windows",
}


@pytest.mark.rest
@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack these features anyway")
@pytest.mark.parametrize("system", [pytest.param("no-linux", marks=pytest.mark.rest), "no-posix"])
def test_the_package_works_without_features_that_other_systems_lack(system: str, tmp_path: Path) -> None:
    # In tests/, so that the package is found in the same way as in the tests, also in workers that are
    # started.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests" / "elsewhere.py"), system, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.strip() == f"all is well, {system}"


def jobs() -> dict[str, Any]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    found: dict[str, Any] = workflow["jobs"]
    return found


def commands(job: dict[str, Any]) -> list[str]:
    """The commands of a job, with all values of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = []
    for values in itertools.product(*matrix.values()):
        chosen = dict(zip(matrix, values, strict=True))
        for step in job["steps"]:
            if "run" in step:
                found.append(
                    re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name, of=chosen: of[name[1]], step["run"])
                )
    return found


def classifiers() -> set[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return set(setup["metadata"]["classifiers"].split("\n"))


def test_the_workflow_runs_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = {command for job in jobs().values() for command in commands(job)}
    assert {command.split()[1] for command in run} >= {"test", "dist-check"}
    for command in run:
        words = command.split()
        assert words[0] == "make", command
        assert words[1] in targets, command
        assert words[2:] == ["PYTHON=python"], command


def test_the_workflow_has_the_systems_and_pythons_that_the_package_names() -> None:
    matrix = jobs()["test"]["strategy"]["matrix"]
    texts = classifiers()
    versions = {f"Programming Language :: Python :: {version}" for version in matrix["python"]}
    assert versions == {text for text in texts if re.search(r":: 3\.\d+$", text)}
    assert {SYSTEMS[system] for system in matrix["os"]} == {
        text for text in texts if "Operating System" in text
    }
    others = [step["with"]["python-version"] for step in jobs()["rest"]["steps"] if "with" in step]
    assert set(others) <= set(matrix["python"])
