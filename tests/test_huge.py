"""A billion rows in a thousand files: nothing grows with the rows, and little with the files."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from torchyoga.formats.checks import num_units, unit_bytes_of
from torchyoga.manifest import FileEntry, Manifest
from torchyoga.schema import Schema

FILES, ROWS, BLOCK_ROWS = 1000, 10**6, 2**19
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
    "length": len(ref), "first": [row["x"] for row in first], "rows": rows, "last": last, "maps": maps,
    "opened": opened, "after": memory() - before, "files": len(os.listdir("/proc/self/fd")),
}))
"""


def write_sparse(root: Path) -> None:
    """A version of zeros, whose files take up no space on the disk."""
    schema = Schema.of({"x": 0})
    folder = root / "huge" / "1"
    folder.mkdir(parents=True)
    counts = [BLOCK_ROWS, ROWS - BLOCK_ROWS]
    places = [4096, 4096 + 8 * BLOCK_ROWS + 4096]
    table = np.array(
        [[n, at, 8 * n, zlib.crc32(bytes(8 * n))] for n, at in zip(counts, places, strict=True)], "<i8"
    )
    size = unit_bytes_of(8)
    units = np.full(int(num_units(8 * np.array(counts), size).sum()), zlib.crc32(bytes(size)), "<u4")
    for end, n in zip(np.cumsum(num_units(8 * np.array(counts), size)), counts, strict=True):
        units[end - 1] = zlib.crc32(bytes(8 * n % size or size))
    offset = places[-1] + 8 * counts[-1] + 4096
    tail = table.tobytes() + units.tobytes()
    index = {"offset": offset, "nbytes": table.nbytes, "crc32": zlib.crc32(table.tobytes())}
    index["units"] = {"offset": offset + table.nbytes, "nbytes": units.nbytes}
    entries = []
    for number in range(FILES):
        entry = FileEntry(
            f"{'ab' * 8}-{number:05d}.mdb", "lmdb", ROWS, offset + len(tail), index, ((8 * ROWS, 0),)
        )
        with open(folder / entry.name, "wb") as file:
            file.seek(offset)
            file.write(tail)
        entries.append(entry)
    manifest = Manifest("huge", "1", "ab" * 8, "2026-01-01T00:00:00+00:00", schema, "f" * 32, tuple(entries))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux about memory and mappings")
def test_a_billion_rows(tmp_path: Path) -> None:
    write_sparse(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["length"] == 10**9
    assert found["first"] == [0, 0]
    assert found["rows"] == 256 * 200
    assert found["last"] == [256]
    assert found["maps"] <= 4096
    assert found["files"] < 30
    assert found["opened"] < 50, "MB for opening it and reading two rows"
    assert found["after"] < 120, "MB after reading from every file"
