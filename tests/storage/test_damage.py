"""Files and manifests that were changed in any way give exactly their rows, or a YogaError."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import run_program
from damaged import places, resealed
from waiting import PATIENCE

KINDS = ["lmdb", "hdf5", "hdf5 gzip"]

# Reads each mutant of a version in one process, which must not crash, hang or need unlimited memory.
READER = """
import json, resource, signal, sys
import numpy as np
import torch
import torchyoga as yoga
from torchyoga.errors import YogaError
from torchyoga.testing import assert_rows_equal
from test_damage import mutants, rows

root, kind, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
expected = rows()
storage = yoga.Storage(root)
list(storage.fetch("a", kind)), storage.check("a", kind)  # what is imported late is in memory now
size = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (size + 2**30, resource.RLIM_INFINITY))
outcomes = {"read": 0, "refused": 0}
for seed, what in mutants(storage.path / "a" / kind, first, count):
    print(seed, what, flush=True)
    signal.alarm(30)
    try:
        found = list(storage.fetch("a", kind))
        assert_rows_equal(found, expected)
        outcomes["read"] += 1
    except YogaError:
        outcomes["refused"] += 1
    try:
        storage.check("a", kind)
    except YogaError:
        pass
    signal.alarm(0)
print(json.dumps(outcomes))
"""


def rows() -> list[Any]:
    import numpy as np
    import torch

    return [
        {
            "fixed": np.full((2, 3), i, np.float32),
            "number": i,
            "ragged": (torch.arange(i % 5), np.ones((i % 3, 2), np.int16) * i),
            "text": "é" * (i % 4),
            "noise": np.random.default_rng(i).bytes(700),
            "none": None,
        }
        for i in range(50)
    ]


# -- bytes


def flipped(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 20])):
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.choice([0, chance.randrange(len(data)), len(data) - 1, len(data) // 4096 * 4096])]


def grown(data: bytes, chance: random.Random) -> bytes:
    more = chance.choice([b"\0", chance.randbytes(4096), data])
    return chance.choice([data + more, more + data])


def without_a_piece(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.choice([1, 8, 4096]) :]


def swapped(data: bytes, chance: random.Random) -> bytes:
    """Two pieces of equal size have changed places."""
    size = min(chance.choice([1, 8, 512, 4096]), len(data) // 2)
    one, other = (chance.randrange(len(data) // size) * size for _ in range(2))
    found = bytearray(data)
    found[one : one + size], found[other : other + size] = data[other : other + size], data[one : one + size]
    return bytes(found)[: len(data)]


def overwritten(data: bytes, chance: random.Random) -> bytes:
    """A piece is all zeros, all ones or noise."""
    size = min(chance.choice([1, 8, 512, 4096]), len(data))
    start = chance.randrange(len(data) - size + 1)
    piece = chance.choice([bytes(size), b"\xff" * size, chance.randbytes(size)])
    return data[:start] + piece + data[start + size :]


def of_large_numbers(data: bytes, chance: random.Random) -> bytes:
    """A number of eight bytes is replaced."""
    start = chance.randrange(len(data) // 8) * 8
    number = chance.choice([-1, 0, 1, 2**31, 2**62, -(2**62), 2**63 - 1])
    return data[:start] + number.to_bytes(8, "little", signed=True) + data[start + 8 :]


BYTES = [flipped, cut, grown, without_a_piece, swapped, overwritten, of_large_numbers]

# -- JSON


VALUES = [
    None, True, False, -1, 0, 1, 2, 3, 49, 51, 4096, 2**31, 2**61, 2**63, 10**30, 1.5, 1e308, "", "a", "..",
    "<f4", "<f8", "<i4", "|u1", "|O", "|V8", "<M8[s]", "float32", "int64", "bfloat16", "ndarray", "tensor",
    "int", "str", "bytes", "none", "leaf", "tuple", "list", "dict", "lmdb", "hdf5", "gzip", "zstd", "values",
    [], [0], [-1], [2, 3], [3, 2], [6], [2**40, 2**40], {}, {"tuple": []}, {"list": ["leaf"]}, "é\ud800",
]  # fmt: skip


def changed(content: Any, chance: random.Random) -> None:
    """One value in it is replaced, deleted, duplicated or moved."""
    path = chance.choice([*places(content)][1:])
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], chance.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and type(parent[key]) is int:
        parent[key] += chance.choice([-8, -1, 1, 8, 4096])
    elif kind == 2 and isinstance(parent, list):
        chance.shuffle(parent)
    elif kind == 3 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif kind == 4:
        other = content
        for step in chance.choice([*places(content)][1:]):
            other = other[step]
        parent[key] = copy.deepcopy(other)
    else:
        parent[key] = copy.deepcopy(chance.choice(VALUES))


def forged(data: bytes, chance: random.Random) -> bytes:
    """A manifest with a changed value and the right checksum."""
    content = json.loads(data)
    del content["checksum"]
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        changed(content, chance)
    return resealed(content)


# -- all


def mutants(directory: Path, first: int, count: int) -> Any:
    """Puts one mutant after the other in place of the version: yields the seed and a description of each."""
    whole = {path.name: path.read_bytes() for path in directory.iterdir()}
    for seed in range(first, first + count):
        chance = random.Random(f"{directory.name} {seed}")
        name = chance.choice(sorted(whole))
        ways: list[Callable[[bytes, random.Random], bytes]] = list(BYTES)
        if name == "manifest.json":
            ways = [*BYTES[:4], *[forged] * 12]
        way = chance.choice(ways)
        (directory / name).write_bytes(way(whole[name], chance))
        yield seed, f"{name} {way.__name__}"
        (directory / name).write_bytes(whole[name])


def read_mutants(folder: Path, kind: str, first: int, count: int) -> dict[str, int]:
    """How many were read and refused.

    Raises:
        AssertionError: one gave other rows, another error than a YogaError, crashed or hung.
    """
    import torchyoga as yoga

    format, _, compression = kind.partition(" ")
    storage = yoga.Storage(folder, format, compression or None)
    storage.submit(rows(), "a", kind, progress=False)
    finished = run_program(READER, str(folder), kind, str(first), str(count), timeout=PATIENCE + count)
    *_, last = finished.stdout.splitlines() or [""]
    assert finished.returncode == 0, (
        f"{kind}, mutant {last}: ended with {finished.returncode}\n{finished.stderr[-3000:]}"
    )
    return dict(json.loads(last))


@pytest.mark.quick("150-lmdb")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [150, pytest.param(2500, marks=pytest.mark.soak)])
def test_damaged_files_give_their_rows_or_an_error(kind: str, count: int, tmp_path: Path) -> None:
    first = 0 if count == 150 else random.randrange(2**32)
    outcomes = read_mutants(tmp_path, kind, first, count)
    assert outcomes["refused"] > count // 2
    assert outcomes["read"] > 0  # such as another `created`
