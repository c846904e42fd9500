"""A billion rows in a thousand files: nothing grows with the rows, and little with the files."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, resource, sys, numpy as np, torchyoga as yoga

def memory():
    text = open("/proc/self/smaps_rollup").read()
    return int(next(line for line in text.splitlines() if line.startswith("Anonymous")).split()[1]) / 1024

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
yoga.DataLoader(list(range(4)))
before = memory()
ref = yoga.Storage(sys.argv[1]).fetch("huge", "1")
first = ref[[0, 10**9 - 1]]
opened = memory() - before
loader = yoga.DataLoader(ref, batch_size=256, shuffle=True, seed=1)
rows = 0
for batch in loader:
    rows += len(batch["x"])
    assert not batch["x"].any()
    if rows >= 256 * 200:
        break
state = loader.state_dict()
loader.load_state_dict({**state, "position": 999_999_744})
last = [len(batch["x"]) for batch in loader]
maps = sum(".mdb" in line for line in open("/proc/self/maps"))
print(json.dumps({
    "length": len(ref), "first": [row["x"].tolist() for row in first], "rows": rows, "last": last,
    "maps": maps, "opened": opened, "after": memory() - before, "files": len(os.listdir("/proc/self/fd")),
}))
"""


def sparse() -> Any:
    """The module that writes versions of zeros; the benchmarks use it, too."""
    path = Path(__file__).parents[2] / "benchmarks" / "sparse.py"
    spec = importlib.util.spec_from_file_location("sparse", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.rest
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux about memory and mappings")
def test_a_billion_rows(tmp_path: Path) -> None:
    sparse().write_sparse(tmp_path, "huge", 8, 10**9, 1000)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    expected = {"length": 10**9, "first": [[0] * 8] * 2, "rows": 256 * 200, "last": [256]}
    assert found.items() >= expected.items()
    assert found["maps"] <= 4096
    assert found["files"] < 30
    assert found["opened"] < 50, "MB for opening it and reading two rows"
    assert found["after"] < 120, "MB after reading from every file"
    shutil.rmtree(tmp_path / "huge")  # gigabytes of zeros, which need not be checked
