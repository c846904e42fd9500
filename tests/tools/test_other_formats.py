"""Datasets of other libraries under a path or URL: what lies there tells the format, in each command."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from commanding import parsed, run, said
from foreign_files import COUNT, TABLE, copy, write_lines
from foreign_files import FORMATS as WRITTEN
from golden.foreign_rows import FOREIGN
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError
from torchyoga.testing import assert_rows_equal
from torchyoga.tools.other_formats import read_at

OLD = Path("old")
write_mds = copy("mds/gz")
# What is written, the place that names it, and how it is read by name.
FORMATS: dict[str, tuple[str, str, Callable[[Path], yoga.DataRef]]] = {
    "mds": ("mds", "old", yoga.from_mds),
    "litdata": ("litdata", "old", yoga.from_litdata),
    "litdata-tables": ("litdata, tables", "old", yoga.from_litdata),
    "megatron": ("megatron", "old/uint16", yoga.from_megatron),
    "megatron-bin": ("megatron", "old/uint16.bin", yoga.from_megatron),
    "jsonl": ("jsonl", "old/00.jsonl", yoga.from_jsonl),
    "jsonl-folder": ("jsonl", "old/*.jsonl", yoga.from_jsonl),
    "tfrecord": ("tfrecord", "old/x.tfrecord-*", yoga.from_tfrecord),
    "parquet": ("parquet", "old/x.parquet", yoga.from_parquet),
    "arrow": ("arrow", "old/x.arrow", yoga.from_arrow),
    "hdf5": ("hdf5", "old/x.h5", yoga.from_hdf5),
    "npy": ("npy", "old/x.npy", yoga.from_arrays),
    "webdataset": ("webdataset", "old/00.tar", yoga.webdataset),
    "images": ("images", "old", yoga.image_folder),
    "zarr": ("zarr", "old", yoga.from_zarr),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHYOGA_STORAGE", raising=False)
    (tmp_path / "data" / OLD).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "data")


@pytest.mark.quick(
    "mds", "litdata-tables", "megatron-bin", "jsonl-folder", "arrow", "npy", "webdataset", "images", "zarr"
)
@pytest.mark.parametrize("name", FORMATS)
def test_each_command_reads_each_format_where_it_lies(name: str, tmp_path: Path) -> None:
    written, place, read = FORMATS[name]
    WRITTEN[written].write(OLD)
    expected = read(Path(place))
    assert_rows_equal(list(read_at(place)), list(expected), name)
    shown = parsed("head", place, "2")
    assert (shown["path"], shown["total"]) == (place, len(expected))
    assert [row["row"] for row in shown["rows"]] == [0, 1]
    assert len(expected) == parsed("convert", place, "--to", "made@1.0")["rows"]
    storage = yoga.Storage("storage")
    made = storage.fetch("made", "1.0")
    assert made.fingerprint == storage.submit(expected, "twice", "1.0", progress=False).fingerprint
    assert place in said("report", place, "--output", "page.html")
    if name == "images":
        assert parsed("report", place, "--output", "page.html")["of"] == place
    assert Path("page.html").stat().st_size > 1000
    with yoga.view(read_at(place)) as server, urlopen(server.url, timeout=PATIENCE) as page:
        text = page.read().decode()
    assert f"{len(expected)} rows" in text
    assert "Ref" not in re.sub("<[^>]*>", "", text)  # it has the name of the files, not of a class


def test_folders_wildcards_first_bytes_and_names_of_formats() -> None:
    write_lines(Path(), each=COUNT)
    Path("00.jsonl").rename("b.data")
    pq.write_table(TABLE, "odd")  # whose first bytes tell it
    Path("odd.idx").touch()  # an index as DALI has for any format
    Path("years", "year=2020").mkdir(parents=True)
    pq.write_table(TABLE, "years/year=2020/x.parquet")
    for place in ("years/*/*.parquet", "jsonl://b.data", "odd", "years"):
        assert parsed("head", place)["total"] == COUNT, place
    write_mds(OLD)
    assert parsed("head", f"mds://{Path('old').absolute()}")["total"] == 12


def test_urls_tell_their_format() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("mds/gz", "litdata/zstd"):
        memory.put(str(FOREIGN / name), f"/told/{name}", recursive=True)
        assert parsed("head", f"memory://told/{name}", "1")["total"] == 12
        assert parsed("head", f"{name.partition('/')[0]}://memory://told/{name}", "1")["total"] == 12
    with pytest.raises(
        ValueError, match="the format of 'memory://told' is not recognised: it has litdata/zstd/"
    ):
        read_at("memory://told")
    memory.rm("/told", recursive=True)


def test_what_is_not_told_says_what_was_looked_for() -> None:
    Path("notes").mkdir()
    Path("notes", "a.txt").write_text("a")
    Path("a.txt").write_text("a")
    Path("both").mkdir()
    write_lines(Path("both"))
    pq.write_table(TABLE, "both/a.parquet")
    found = run("head", "notes")
    assert found.exit_code == 2
    assert "it has a.txt. Looked for index.json with shards" in found.stderr
    assert "mds://notes, or a storage with --storage" in found.stderr
    with pytest.raises(ValueError, match=r"neither its name nor its first bytes say it\. Looked for"):
        read_at("a.txt")
    with pytest.raises(ValueError, match="it may be jsonl or parquet"):
        read_at("both")
    with pytest.raises(NotFoundError, match=r"nothing under '[.]/none'"):
        read_at("./none")
    Path("notes", "index.json").write_text("{")
    with pytest.raises(CorruptError, match=r"index\.json of notes is not JSON"):
        read_at("notes")
    Path("notes", "index.json").unlink()
    Path("notes", "index.json").symlink_to("/dev/zero")
    with pytest.raises(CorruptError, match="is a device"):
        read_at("notes")


def test_ids_of_the_storage_come_before_paths() -> None:
    storage = yoga.Storage("storage")
    storage.submit([{"x": 1}], "old", "1.0", progress=False)
    write_mds(OLD)
    assert parsed("head", "old")["total"] == parsed("head", "old@1.0")["total"] == 1
    assert parsed("head", "./old")["total"] == 12


def test_files_of_other_libraries_are_appended_and_measured() -> None:
    write_mds(OLD)
    assert parsed("convert", "old", "--to", "made@1.0")["rows"] == 12
    assert parsed("append", "made", "1.1", "mds://old", "old")["rows"] == 36


def test_compressed_files_are_read_converted_and_appended() -> None:
    Path("old.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n{"n": 2}\n'))
    assert parsed("convert", "old.jsonl.gz", "--to", "made@1.0")["rows"] == 2
    for name in ("made", "old.jsonl.gz"):
        assert [row["values"] for row in parsed("head", name)["rows"]] == [{"n": 1}, {"n": 2}]
    assert parsed("append", "made", "1.1", "old.jsonl.gz")["rows"] == 4


def test_what_does_not_fit_a_path_is_said() -> None:
    write_mds(OLD)
    for line, problem in {
        "convert old": "--to ID@VERSION",
        "convert old --to made": "--to ID@VERSION",
        "report old 1.0": "a path or URL, which has no version",
        "head old --version 1.0": "a path or URL, which has no version",
    }.items():
        found = run(*line.split())
        assert found.exit_code == 2, line
        assert problem in re.sub(r"\s+", " ", found.stderr), line


def test_a_wrong_path_is_said_to_be_no_file() -> None:
    for command in ("head", "info"):
        found = run(command, "data/nope.jsonl")
        assert found.exit_code == 2
        expected = (
            "the storage 'storage' is not there" if command == "info" else "nothing under 'data/nope.jsonl'"
        )
        assert expected in found.stderr
    yoga.Storage("storage").submit([{"x": 1}], "made", "1.0", progress=False)
    for command in ("head", "info"):
        error = re.sub(r"\s+", " ", run(command, "data/nope.jsonl").stderr)
        assert "there is no dataset 'data/nope.jsonl' in " in error
        assert "holds 'made'; and there is no file or folder 'data/nope.jsonl'" in error
    write_mds(OLD)
    found = run("head", "old@1")
    assert found.exit_code == 2
    assert "old is a path, which has no version '1'; leave it out" in re.sub(r"\s+", " ", found.stderr)
    assert parsed("head", "made@1.0")["total"] == 1


def test_megatron_behind_a_url_is_told_by_its_index() -> None:
    memory = fsspec.filesystem("memory")
    for path in FOREIGN.glob("megatron/uint16.*"):
        memory.put(str(path), f"/mega/old{path.suffix}")
    total = len(yoga.from_megatron(FOREIGN / "megatron/uint16"))
    for place in ("memory://mega/old", "memory://mega/old.bin", "memory://mega/old.idx"):
        assert parsed("head", place)["total"] == total
    with pytest.raises(ValueError, match="it has nothing"):
        read_at("memory://mega/odd")
    memory.rm("/mega", recursive=True)


def test_files_of_tokens_are_named_by_their_dtype() -> None:
    np.arange(8, dtype="<u2").tofile("train.bin")
    with pytest.raises(ValueError, match=r"or a file of tokens uint16://train\.bin"):
        read_at("train.bin")
    assert read_at("uint16://train.bin")[0]["tokens"].tolist() == [*range(8)]
    assert read_at("uint32://train.bin")[0]["tokens"].tolist() == [n | n + 1 << 16 for n in range(0, 8, 2)]
    assert parsed("convert", "uint16://train.bin", "--to", "tokens@1.0")["rows"] == 1
