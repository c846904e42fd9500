"""Data of every format where it lies: the kits, forks, versions; and behind a URL, through a small cache."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from behind_urls import in_memory
from children import status_of_child
from foreign_files import BEHIND_URLS, FORMATS, Format, write_lines, write_tar
from golden.foreign_rows import FOREIGN
from kinds import outcome
from mds_files import encoded
from mds_files import write as write_mds
from starts import FRESH_STARTS
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.rows.block import exact_rows
from torchyoga.testing import assert_rows_equal, check_dataref, check_view


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    (tmp_path / "files").mkdir()


@pytest.mark.parametrize("name", FORMATS)
def test_each_keeps_the_contract(name: str, tmp_path: Path) -> None:
    write, read, columns, lists = FORMATS[name]
    write(tmp_path / "files")
    ref = read(tmp_path / "files")
    check_dataref(ref)
    check_view(lambda base: base[1:].columns(columns), read(tmp_path / "files"))
    assert read(tmp_path / "files").fingerprint == ref.fingerprint is not None
    rows, some = list(ref), ref.columns(columns)
    for row in range(0, len(ref), 5):  # a batch of one row is collated as any other
        alone, taken = some.__getitems__([row]), some.take(np.array([row]))
        expected = outcome(lambda taken=taken: default_collate(taken))
        found = outcome(lambda alone=alone: default_collate(alone))
        assert found is expected if isinstance(expected, type) else not assert_rows_equal(found, expected)

    def read_again() -> None:
        assert_rows_equal(list(ref), rows, "in a forked child")

    assert status_of_child(read_again) == 0
    kept = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1", progress=False)
    assert kept.schema == ref.schema
    assert_rows_equal(list(kept), rows, "as a version")
    if lists in ref.schema.tree.keys:
        for view in (lambda of: of.token_windows(lists, 8), lambda of: of.packed(lists, 500)):
            assert_rows_equal(list(view(ref.columns([lists]))), list(view(kept.columns([lists]))))


@pytest.mark.quick("webdataset", "huggingface")
@pytest.mark.parametrize("name", FORMATS)
def test_a_process_that_is_started_anew_reads_it(name: str, tmp_path: Path) -> None:
    write, read, *_ = FORMATS[name]
    write(tmp_path / "files")
    ref = read(tmp_path / "files")
    as_they_are: Any = {"multiprocessing_context": FRESH_STARTS[0], "collate_fn": exact_rows}
    loader: Any = TorchLoader(ref, 20, num_workers=1, **as_they_are)
    assert_rows_equal([row for batch in loader for row in batch], list(ref))


@pytest.mark.parametrize("name", BEHIND_URLS)
def test_behind_a_url_rows_are_the_same(name: str, tmp_path: Path) -> None:
    write, read, *_ = BEHIND_URLS[name]
    write(tmp_path / "files")
    here = read(tmp_path / "files")
    url = in_memory(tmp_path / "files")
    there = read(url, cache_dir=tmp_path / "cache")
    assert_rows_equal(list(there), list(here))
    assert there.file_starts.tolist() == here.file_starts.tolist()
    assert there.fingerprint == here.fingerprint
    check_dataref(there)
    if name in ("jsonl", "webdataset"):  # whose files are named
        for pattern in (f"{tmp_path}/files/*", f"{url}/*"):
            assert read(pattern, cache_dir=tmp_path / "cache").fingerprint == here.fingerprint


@pytest.mark.parametrize("name", ["jsonl", "mds", "litdata", "tfrecord", "megatron", "webdataset"])
def test_files_that_change_later_are_errors(name: str, tmp_path: Path) -> None:
    write, read, *_ = FORMATS[name]
    write(tmp_path / "files")
    ref, mapped = read(tmp_path / "files"), read(tmp_path / "files")
    path = max(path for path in (tmp_path / "files").iterdir() if path.suffix not in (".json", ".idx"))
    whole, rows = path.read_bytes(), list(mapped)
    (tmp_path / "new").write_bytes(bytes(len(whole)))
    os.utime(tmp_path / "new", ns=(0, 0))
    os.replace(tmp_path / "new", path)
    assert_rows_equal(list(mapped), rows, "what is mapped stays")
    with pytest.raises(CorruptError, match="has changed since it was opened; open the dataset anew"):
        pickle.loads(pickle.dumps(mapped)).take(np.arange(len(ref)))
    os.truncate(path, len(whole) - 1)
    with pytest.raises(CorruptError, match=rf"{path.name} has {len(whole) - 1} bytes where {len(whole)}"):
        ref.take(np.arange(len(ref)))
    path.write_bytes(whole)
    os.utime(path, (1, 1))
    with pytest.raises(CorruptError, match="has changed since it was opened"):
        ref[-1]
    path.unlink()
    with pytest.raises(CorruptError, match=rf"{path.name} is missing; put it back"):
        ref[-1]


def write_many_records(folder: Path) -> None:
    for number in range(20):
        name = f"x.tfrecord-{number % 2:05}-of-00002"
        shutil.copy(FOREIGN / "tfrecord" / name, folder / f"{number:02}.tfrecord")


MANY = {
    "jsonl": Format(lambda folder: write_lines(folder, 600, 30, 200), yoga.from_jsonl),  # larger than indices
    "mds": Format(lambda folder: write_mds(folder, encoded(600), 50, {"n": 8}), yoga.from_mds),
    "tfrecord": Format(write_many_records, yoga.from_tfrecord),
    "webdataset": Format(lambda folder: write_tar(folder, 600, 30), yoga.webdataset),
}


@pytest.mark.parametrize("name", MANY)
def test_a_cache_of_a_third_is_enough_and_indices_are_kept(name: str, tmp_path: Path) -> None:
    write, read, *_ = MANY[name]
    write(tmp_path / "files")
    files = sorted(path for path in (tmp_path / "files").iterdir() if path.suffix != ".json")
    url, third = in_memory(tmp_path / "files"), sum(path.stat().st_size for path in files) // 3
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": third}
    ref = read(url, **options)
    rows = sorted(repr(row) for row in read(tmp_path / "files"))
    loader = yoga.DataLoader(ref, 4, shuffle="block", shuffle_window=1, seed=1, collate_fn=exact_rows)
    for _ in range(2):  # a warning, which is an error here, would say that a file was downloaded twice
        assert sorted(repr(row) for batch in loader for row in batch) == rows
    kept = tmp_path / "cache" / "files"
    assert sum(path.stat().st_size for path in kept.iterdir()) <= third
    for path in kept.glob("*.shard"):
        path.unlink()
    again = read(url, **options)
    assert (again.schema, again.fingerprint, len(again)) == (ref.schema, ref.fingerprint, len(rows))
    assert len(list(kept.glob("*.shard"))) == (name == "jsonl")  # whose first file shows its schema
    assert repr(again[0]) == repr(read(tmp_path / "files")[0])
    assert len(list(kept.glob("*.shard"))) == 1
    if name != "mds":  # whose index says what its files hold
        fsspec.filesystem("memory").pipe_file(f"{url}/{files[-1].name}", files[0].read_bytes())
        assert repr(read(url, **options)[-1]) == repr(read(files[0])[-1])
