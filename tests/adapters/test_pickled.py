"""LMDB files of pickles that others wrote."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from starts import FRESH_STARTS

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError
from torchyoga.testing import assert_rows_equal, check_source

ROWS = [{"x": np.arange(i, dtype=np.float32), "y": i, "t": f"{i}"} for i in range(30)]


def write(
    path: Path,
    rows: list[Any],
    keys: list[bytes] | None = None,
    lose: int = -1,
    listed: Any = True,
    **more: Any,
) -> Path:
    """Writes a file as TensorPack and yogadl lay it out."""
    with (
        lmdb.open(str(path), subdir=path.is_dir(), map_size=2**24) as environment,
        environment.begin(write=True) as file,
    ):
        names = [f"{i:08}".encode() for i in range(len(rows))] if keys is None else keys
        for number, (name, row) in enumerate(zip(names, rows, strict=True)):
            if number != lose:
                file.put(name, pickle.dumps(row, protocol=-1))
        if listed:
            more["keys"] = names if listed is True else listed
        for name, value in more.items():
            file.put(f"__{name}__".encode(), pickle.dumps(value, protocol=-1))
    return path


class Bomb:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


LAYOUTS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "tensorpack": ("tensorpack", lambda path: write(path, ROWS)),
    "its keys are missing": ("tensorpack", lambda path: write(path, ROWS, listed=False)),
    "other keys": (
        "tensorpack",
        lambda path: write(path, ROWS, keys=[b"k%03d" % (7 * i % 30) for i in range(30)]),
    ),
    "yogadl": ("yogadl", lambda path: write(path, ROWS, shapes=None, types={"x": "float32"})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pickled_files_are_read_and_cached(layout: str, tmp_path: Path) -> None:
    format, make = LAYOUTS[layout]
    path = make(tmp_path / "old.mdb")
    ref = yoga.from_lmdb(path, format=format, trust_pickle=True)
    again = pickle.loads(pickle.dumps(ref))
    for number in (29, 0, 13):
        assert_rows_equal(ref[number], ROWS[number])
        assert_rows_equal(again[number], ROWS[number])
    check_source(lambda: yoga.from_lmdb(path, format, trust_pickle=True), ROWS, tmp_path / "storage")


@pytest.mark.parametrize("method", ["fork", *FRESH_STARTS])
def test_worker_processes_read_them(method: str, tmp_path: Path) -> None:
    ref = yoga.from_lmdb(write(tmp_path / "old.mdb", list(range(50))), "tensorpack", trust_pickle=True)
    loader = yoga.DataLoader(ref, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=method)
    assert sorted(row for batch in loader for row in batch.tolist()) == list(range(50))


def test_without_trust_nothing_is_unpickled(tmp_path: Path) -> None:
    path = write(tmp_path / "old.mdb", [Bomb(tmp_path / "exploded")])
    for trust in ({}, {"trust_pickle": False}, {"trust_pickle": 1}):
        with pytest.raises(
            ValueError, match=r"old.mdb holds pickles, .* can run any code .* trust_pickle=True"
        ):
            yoga.from_lmdb(path, format="yogadl", **trust)
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(ValueError, match="format='caffe' is not known; pass tensorpack or yogadl"):
        yoga.from_lmdb(path, format="caffe", trust_pickle=True)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.mdb").write_text("text" * 5000)
    write(tmp_path / "keyless.mdb", ROWS, listed=False)
    write(tmp_path / "other.mdb", ROWS, listed="not a list")
    for name, format, error, message in (
        ("none.mdb", "yogadl", NotFoundError, "there is no LMDB file"),
        ("folder", "yogadl", NotFoundError, "there is no LMDB file"),
        ("text.mdb", "yogadl", CorruptError, "text.mdb cannot be opened as an LMDB file"),
        ("keyless.mdb", "yogadl", CorruptError, "keyless.mdb has no record '__keys__'"),
        ("other.mdb", "tensorpack", CorruptError, "__keys__ is not a list of keys"),
    ):
        with pytest.raises(error, match=message):
            yoga.from_lmdb(tmp_path / name, format, trust_pickle=True)
    # Both writers do this when their map is full.
    lost = yoga.from_lmdb(write(tmp_path / "lost.mdb", ROWS, lose=3), "tensorpack", trust_pickle=True)
    assert lost[2]["y"] == 2
    with pytest.raises(
        CorruptError, match="has no record '00000003', though it should: tensorpack loses records"
    ):
        lost[3]
    with pytest.raises(CorruptError):
        yoga.Storage(tmp_path / "storage").submit(lost, "x", "1")
    foreign = tmp_path / "foreign.mdb"
    with (
        lmdb.open(str(foreign), subdir=False, map_size=2**20) as environment,
        environment.begin(write=True) as file,
    ):
        file.put(b"00000000", b"\x93\x01\x02\x03")
    with pytest.raises(CorruptError, match="'00000000' cannot be unpickled"):
        yoga.from_lmdb(foreign, "tensorpack", trust_pickle=True)[0]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "old.mdb", [1, 2, 3])
    before = yoga.from_lmdb(path, "tensorpack", trust_pickle=True)
    os.replace(write(tmp_path / "new.mdb", [10, 20]), path)
    with pytest.raises(ValueError, match="cannot be opened twice in a process"):
        yoga.from_lmdb(path, "tensorpack", trust_pickle=True)
    assert list(before) == [1, 2, 3]
    del before
    after = yoga.from_lmdb(path, "tensorpack", trust_pickle=True)
    same = yoga.from_lmdb(path, "tensorpack", trust_pickle=True)
    assert list(after) == list(same) == [10, 20]
    del after, same
    with lmdb.open(str(path), subdir=False):  # and it is closed when nothing reads it
        pass
