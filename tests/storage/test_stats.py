"""`ref.stats()` of versions, views and interrupted builds."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import resealed
from interrupting import calls_of
from own import Breakable

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.formats.contract import FORMATS
from torchyoga.reading.reader import Reader
from torchyoga.rows.statistics import TableStats
from torchyoga.versions.manifest import Manifest

ROWS = [
    {
        "x": number / 4,
        "label": "abc"[number % 3],
        "age": None if number % 5 else number,
        "im": np.full(9, number),
    }
    for number in range(300)
]


def plain(stats: TableStats) -> dict[str, Any]:
    return {name: {**vars(column), "name": ""} for name, column in stats.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_a_version_knows_its_statistics_and_reads_nothing(format: str, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path, format)
    storage.submit(ROWS, "a", "1", progress=False)
    ref = storage.fetch("a", "1")
    counted = ref[:].stats(progress=False)
    with calls_of(Reader.take) as read:
        stats = ref.stats()
        some = ref.columns(["age", "x"]).stats()
        label = ref["label"].stats()
    assert not read
    assert plain(stats) == plain(counted)
    assert list(stats) == ["x", "label", "age", "im"]
    assert (stats.rows, stats.rows_read) == (300, 300)
    assert stats["label"].top == (("a", 100), ("b", 100), ("c", 100))
    assert (stats["age"].nulls, stats["age"].max, stats["im"].count) == (240, 295, 2700)
    assert {name: column for name, column in plain(stats).items() if name in ("age", "x")} == plain(some)
    assert list(label) == ["value"]
    assert label["value"].top == stats["label"].top
    assert ref["age"].stats()["value"].nulls == 240
    assert str(stats).splitlines()[1].startswith("column")


def test_views_are_counted_and_samples_say_so(tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path).submit(ROWS, "a", "1", progress=False)
    assert ref.select([3, 3, 8]).stats()["x"].mean == (3 + 3 + 8) / 12
    assert ref.where("x", lambda x: x < 1).stats()["x"].rows == 4
    assert ref.map(lambda row: row["x"] * 2).stats()["value"].max == 149.5
    assert ref.map_batches(lambda c: {"y": c["x"] + 1}).stats()["y"].min == 1
    assert yoga.concat([ref, ref]).stats()["label"].top == (("a", 200), ("b", 200), ("c", 200))
    few = ref[:200].stats(rows=50, seed=3, progress=False)
    assert (few.rows, few.rows_read, few["x"].rows) == (200, 50, 50)
    assert plain(few) == plain(ref[:200].stats(rows=50, seed=3))
    assert plain(few) != plain(ref[:200].stats(rows=50, seed=4))
    assert str(few).startswith("50 rows, drawn from 200")
    assert ref[:200].stats(rows=200).rows_read == ref[:200].stats(rows=10**9).rows_read == 200
    with pytest.raises(ValueError, match="rows"):
        ref.stats(rows=0)
    assert len(ref[:0].stats()["x"].lengths or ()) == 0
    assert ref[:0].stats()["x"].count == 0


def test_a_build_without_statistics_is_as_before(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    without = storage.submit(ROWS, "a", "1", progress=False, stats=False)
    ref = storage.submit(ROWS, "a", "2", progress=False)
    manifests = [json.loads((tmp_path / "a" / v / "manifest.json").read_bytes()) for v in ("1", "2")]
    assert manifests[1].keys() - manifests[0].keys() == {"stats"}
    assert without.fingerprint == ref.fingerprint
    assert plain(without.stats()) == plain(ref.stats())
    assert without.stats().rows_read == 300
    assert without.stats(rows=10).rows_read == 10
    storage.check("a", "2")

    @storage.cacheable("c", "1", stats=False)
    def made() -> list[int]:
        return [1, 2]

    assert (
        "stats" not in json.loads((tmp_path / "c" / "1" / "manifest.json").read_bytes()) if made() else None
    )
    converted = storage.convert("a", "1", format="hdf5")
    assert plain(storage.fetch("a", "1").stats()) == plain(converted.stats()) == plain(ref.stats())
    storage.convert("a", "1", format="lmdb", stats=False)
    assert "stats" not in json.loads((tmp_path / "a" / "1" / "manifest.json").read_bytes())


def test_versions_without_rows(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    assert len(storage.submit([], "a", "1", progress=False).stats()) == 0
    ref = storage.submit({"x": np.zeros((0, 3))}, "a", "2", progress=False)
    assert (ref.stats()["x"].rows, ref.stats()["x"].min) == (0, None)


@pytest.mark.parametrize("format", FORMATS)
def test_a_build_that_goes_on_has_statistics_of_all_rows(
    format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = yoga.Storage(tmp_path, format)
    data = Breakable([{**row, "wide": np.full(5000, n % 7, np.float32)} for n, row in enumerate(ROWS)])
    for broken_at in (120, 170):
        data.breaks = {broken_at: OSError("the disk is gone")}
        with pytest.raises(OSError, match="gone"):
            storage.submit(data, "a", "1", progress=False)
    data.breaks = {}
    caplog.set_level(logging.INFO)
    ref = storage.submit(data, "a", "1", progress=False)
    assert "continuing an interrupted build at row 170" in caplog.text
    at_once = storage.submit(data, "a", "2", progress=False)
    one, other = ref.manifest.stats, at_once.manifest.stats
    for name in ("label", "age", "im"):
        assert one[name] == other[name]
    for name in ("x", "wide"):
        given, wanted = ref.stats()[name], at_once.stats()[name]
        for known in ("count", "min", "max", "sampled", "histogram"):
            assert getattr(given, known) == getattr(wanted, known)
        assert given.mean == pytest.approx(wanted.mean, rel=1e-6)
    assert at_once.stats()["wide"].sampled < at_once.stats()["wide"].count


def test_damaged_statistics_are_named_and_rows_still_read(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(ROWS, "a", "1", progress=False)
    path = tmp_path / "a" / "1" / "manifest.json"
    content = json.loads(path.read_bytes())
    content["stats"]["x"]["numbers"]["min"] = 7.5
    path.write_bytes(resealed(content))
    ref = storage.fetch("a", "1")
    with pytest.raises(CorruptError, match=r"of 'a' '1' are damaged: .*counts anew"):
        ref.stats()
    assert ref[:].stats()["x"].min == 0
    assert len(list(ref)) == 300
    content["stats"] = {"y": []}
    path.write_bytes(resealed(content))
    with pytest.raises(CorruptError, match="damaged"):
        storage.fetch("a", "1").stats()
    assert Manifest.from_bytes(path.read_bytes()).fingerprint == ref.fingerprint
