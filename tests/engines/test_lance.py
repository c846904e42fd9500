"""Lance in place: the rows of one version, whatever is written after, by threads and new processes.

It is here because a process that has loaded it is warned at each fork, also of other tests.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import forked

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, RemoteError, SchemaError
from torchyoga.testing import check_dataref, check_resume, check_view
from torchyoga.tools.other_formats import read_at

pa = pytest.importorskip("pyarrow")
lance = pytest.importorskip("lance")

N = 200


def table(first: int = 0) -> Any:
    numbers = range(first, first + N)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "ids": pa.array([list(range(n % 5)) for n in numbers], pa.list_(pa.int16())),
            "text": [None if n % 7 == 3 else f"t{n}" for n in numbers],
            "box": [{"x": n / 2, "name": "a" * (n % 3)} for n in numbers],
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    lance.write_dataset(table(), tmp_path / "x.lance", max_rows_per_file=60)
    return tmp_path / "x.lance"


def test_rows_are_those_that_lance_reads(path: Path) -> None:
    ref = yoga.from_lance(path)
    expected = table().to_pylist()
    for found, row in zip(ref, expected, strict=True):
        assert found["ids"].tolist() == row["ids"]
        assert {**found, "ids": 0} == {**row, "ids": 0}
    assert [int(row["id"]) for row in ref[[5, 4, 5, 199]]] == [5, 4, 5, 199]
    assert ref.file_starts.tolist() == [0, 60, 120, 180, 200]
    assert ref["box/x"][9] == 4.5
    assert [row["text"] for row in yoga.from_lance(path, ["text"], nulls={"text": "?"})[2:5]] == [
        "t2",
        "?",
        "t4",
    ]
    assert len(ref.packed("ids", 50)) > 5


def test_a_single_row_is_that_of_a_batch(tmp_path: Path) -> None:
    numbers = np.arange(N)
    columns = {
        f"{kind}": numbers.astype(kind) for kind in ("int8", "uint64", "float16", "float32", "float64")
    }
    words = pa.array([f"w{n % 3}" for n in numbers]).dictionary_encode()
    texts = {"text": [f"t{n}" for n in numbers], "word": words, "bytes": [bytes([n % 250]) for n in numbers]}
    lance.write_dataset(
        pa.table({**columns, **texts, "odd": (numbers % 2).astype(bool)}), tmp_path / "y.lance"
    )
    whole = yoga.from_lance(tmp_path / "y.lance")
    for ref in (whole, whole.columns(["word"]), whole.columns(["text", "int8"]), whole["float16"]):
        for number in (0, 7, N - 1):
            (row,) = ref.take(np.array([number]))
            for one in (ref[number], *ref.__getitems__([number])):
                pairs = (
                    zip(one.values(), row.values(), strict=True) if isinstance(row, dict) else [(one, row)]
                )
                assert all(type(a) is type(b) and a == b for a, b in pairs)


def test_kits_views_and_resumes(path: Path) -> None:
    ref = yoga.from_lance(path)
    check_dataref(ref)
    check_view(lambda base: base[3:].columns(["text", "id"]), ref, workers=2)
    check_resume(lambda: yoga.DataLoader(ref.columns(["id"]), 16, shuffle="block", seed=7), 4)
    assert ref.stats()["id"].max == N - 1


def test_a_version_is_pinned(path: Path, tmp_path: Path) -> None:
    ref = yoga.from_lance(path, ["id"])
    blob = pickle.dumps(ref)
    lance.dataset(path).delete("id % 2 = 0")
    lance.write_dataset(table(1000), path, mode="append")
    later = yoga.from_lance(path, ["id"])
    assert len(later) == N + N // 2
    assert [row["id"] for row in later[[0, 99, 100]]] == [1, 199, 1000]
    again = pickle.loads(blob)
    assert [row["id"] for row in again] == list(range(N))
    assert again.fingerprint == ref.fingerprint == yoga.from_lance(path, ["id"], version=1).fingerprint
    assert later.fingerprint != ref.fingerprint
    assert [row["id"] for row in yoga.Storage(tmp_path / "storage").submit(ref, "of-lance", "1.0")] == list(
        range(N)
    )
    with pytest.raises(NotFoundError, match="no dataset of version 99"):
        yoga.from_lance(path, version=99)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_workers_are_threads_or_new_processes(path: Path, is_mapped: bool) -> None:
    ref = yoga.from_lance(path, ["id"])
    assert ref[0]["id"] == 0
    data = ref.map(doubled) if is_mapped else ref
    loader = yoga.DataLoader(data, 16, shuffle=True, seed=1, num_workers=2)
    assert loader.multiprocessing_context.get_start_method() == "forkserver"
    found = sorted(int(n) for batch in loader for n in batch["id"])
    assert found == [n * (1 + is_mapped) for n in range(N)]


def doubled(row: Any) -> Any:
    return {"id": int(row["id"]) * 2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_told(path: Path) -> None:
    ref = yoga.from_lance(path, ["id"])
    assert ref[0]["id"] == 0

    def child() -> None:
        with pytest.raises(ValueError, match="does not survive a fork"):
            ref[0]

    assert forked(child)() == 0


def test_nulls_that_come_late_and_columns_that_are_not_there(tmp_path: Path) -> None:
    count = 5000
    late = pa.table({"n": [None if n == 4001 else n for n in range(count)], "ok": [1] * count})
    lance.write_dataset(late, tmp_path / "late.lance")
    ref = yoga.from_lance(tmp_path / "late.lance")
    assert ref[4000]["n"] == 4000
    with pytest.raises(SchemaError, match=r"column 'n' has 1 nulls .* name it in nulls="):
        ref[4001]
    assert yoga.from_lance(tmp_path / "late.lance", nulls={"n": -1})[4001]["n"] == -1
    with pytest.raises(KeyError, match=r"no columns \['x'\]; it has n, ok"):
        yoga.from_lance(tmp_path / "late.lance", ["x"])
    with pytest.raises(NotFoundError, match=r"there is no .*nowhere"):
        yoga.from_lance(tmp_path / "nowhere")


def test_damaged_files_are_errors(path: Path) -> None:
    ref = yoga.from_lance(path, ["id"])
    for file in (path / "data").iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CorruptError, match=r"rows \[0, 1, 2\]\.\.\. cannot be read"):
        pickle.loads(pickle.dumps(ref)).take(np.arange(100))
    for file in (path / "_versions").iterdir():
        file.write_bytes(b"x" * 99)
    with pytest.raises((CorruptError, NotFoundError)):
        yoga.from_lance(path)


def test_urls_that_lance_does_not_read_are_said_so() -> None:
    with pytest.raises(
        RemoteError, match=r"Lance reads no such URLs, but s3://.*copy the dataset to a disk$"
    ):
        yoga.from_lance("http://127.0.0.1:9/rows.lance")


def test_commands_tell_it_by_its_folder(path: Path) -> None:
    assert read_at(str(path))[7]["id"] == 7
