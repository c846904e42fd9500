"""Columns that are added to versions, replaced and dropped."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import in_processes
from damaged import resealed
from golden.make import wide
from stored import files_below, short_lists, tidied

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError, StateError
from torchyoga.formats.contract import FORMATS
from torchyoga.reading.version_ref import GroupedReader, VersionRef
from torchyoga.storage import Storage
from torchyoga.testing import assert_rows_equal
from torchyoga.versions.manifest import Manifest
from torchyoga.versions.names import natural

pytestmark = pytest.mark.usefixtures("unsynced")
COUNTER = itertools.count()
Rows = list[dict[str, Any]]


@pytest.fixture
def storage(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Where a few files and parents make lists."""
    short_lists(monkeypatch.setitem)
    return storage


def row(random: np.random.Generator, keys: Sequence[str]) -> dict[str, Any]:
    made = {
        "n": int(random.integers(99)),
        "x": random.random(3).astype(np.float32),
        "text": "ab" * int(random.integers(4)),
        "m": {"a": float(random.random()), "b": random.integers(9, size=int(random.integers(3)))},
        "o": None if random.random() < 0.5 else int(random.integers(9)),
    }
    return {key: made[key] for key in keys}


def schema_of(keys: Sequence[str]) -> yoga.Schema:
    """Of rows with these keys in this order."""
    one = {**row(np.random.default_rng(0), ["n", "x", "text", "m"]), "o": 1}
    ragged = ["m/b"] if "m" in keys else []
    return yoga.Schema.of(
        {key: one[key] for key in keys}, ragged=ragged, nullable=[k for k in keys if k == "o"]
    )


def assert_is(ref: Any, rows: Rows) -> None:
    """In any order, whole and column by column."""
    assert len(ref) == len(rows)
    random = np.random.default_rng(len(rows))
    for number in [*range(len(rows)), *random.permutation(len(rows)).tolist()]:
        assert_rows_equal(ref[number], rows[number])
    for keys in [*([key] for key in rows[0]), [*reversed(rows[0])][:2]]:
        assert_rows_equal(list(ref.columns(keys)), [{key: row[key] for key in keys} for row in rows])


TIDYING = ["delete", "compact", "remove", "clean", "overwrite", "convert"]
OF_ROWS = [*["append"] * 6, *TIDYING]
OF_COLUMNS = ["append", "add", "add", "replace", "drop", *TIDYING]


@pytest.mark.quick("*-rows")
@pytest.mark.parametrize(
    ("acts", "seeds"),
    [
        pytest.param(OF_ROWS, 2, id="rows"),
        pytest.param(OF_COLUMNS, 2, id="columns"),
        pytest.param(OF_COLUMNS, 8, id="columns often", marks=pytest.mark.soak),
    ],
)
def test_any_history_gives_what_rows_give(
    acts: list[str], seeds: int, storage: Storage, tmp_path: Path
) -> None:
    """Appends, and columns that come, change and go, between deletions, compactions, removals and sweeps.

    In a directory, what was opened meanwhile reads on.
    """
    for seed in range(seeds):
        random, id, names = np.random.default_rng(seed), f"h{seed}", itertools.count(1)
        first: Rows = [row(random, ["n", "text"]) for _ in range(4)]
        storage.submit(first, id, "0", format="hdf5" if seed % 2 else "lmdb", schema=schema_of(["n", "text"]))
        rows: dict[str, Rows] = {"0": first}
        opened: list[tuple[Any, Rows]] = []
        for _ in range(22):
            before = str(random.choice([*rows]))
            name = str(random.choice(["0", "1"])) if random.random() < 0.2 else str(next(names))
            if name in rows:
                continue
            old, keys = rows[before], [*rows[before][0]]
            what = random.choice(acts)
            others = [key for key in ("n", "x", "text", "m", "o") if key not in keys]
            if what == "append":
                new = [row(random, keys) for _ in range(int(random.integers(3)))]
                storage.append(new, id, name, after=before)
                rows[name] = [*old, *new]
            elif what == "add" and others:
                some = [str(key) for key in random.permutation(others)[: int(random.integers(1, 3))]]
                new = [row(random, some) for _ in old]
                storage.add_columns(told(storage, new), id, name, after=before)
                rows[name] = [{**one, **more} for one, more in zip(old, new, strict=True)]
            elif what == "replace":
                some = [str(key) for key in random.permutation([*keys, *others])[:2]]
                new = [row(random, some) for _ in old]
                storage.add_columns(told(storage, new), id, name, after=before, replace=True)
                rows[name] = [{**one, **more} for one, more in zip(old, new, strict=True)]
            elif what == "drop" and len(keys) > 1:
                gone = [str(key) for key in random.permutation(keys)[: int(random.integers(1, len(keys)))]]
                storage.drop_columns(gone, id, name, after=before)
                rows[name] = [{key: one[key] for key in keys if key not in gone} for one in old]
            elif what == "overwrite":
                rows[before] = [row(random, keys) for _ in range(int(random.integers(1, 4)))]
                storage.submit(rows[before], id, before, overwrite=True, schema=schema_of(keys))
            elif what == "convert":
                storage.convert(id, before, format=str(random.choice([*FORMATS])))
            tidied(storage, id, rows, what, (before, name), random)
            assert storage.versions(id) == sorted(rows, key=natural)
            if before in rows and not storage.url.startswith("memory"):
                opened.append((storage.fetch(id, before), rows[before]))
                assert len([*opened[-1][0]]) == len(rows[before])
        for ref, expected in opened:
            assert_rows_equal(list(ref), expected)
        for version, expected in rows.items():
            storage.check(id, version)
            ref = storage.fetch(id, version)
            assert_is(ref, expected)
            alone = storage.submit(expected, "alone", f"{seed} {version}", schema=schema_of([*expected[0]]))
            assert ref.fingerprint == alone.fingerprint
            assert yoga.diff(ref, alone).same
            assert ref.stats().rows == len(expected)
        assert {entry.version for entry in storage.log(id)} == {*rows}
        away = Storage(tmp_path / "away")
        for version, expected in rows.items():
            storage.copy(id, version, to=away)
            away.check(id, version)
            assert_is(away.fetch(id, version), expected)
        for version in rows:
            storage.remove(id, version)
        storage.clean(0, id=id)
        assert files_below(storage, id) == {}


def told(storage: Storage, rows: Rows) -> yoga.DataRef:
    """Rows that say what all look like."""
    return storage.submit(rows, "told", str(next(COUNTER)), schema=schema_of([*rows[0]]))


def arrays(count: int = 40) -> dict[str, Any]:
    return {"image": np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3), "label": np.arange(count)}


def score(columns: Any) -> dict[str, Any]:
    return {"score": columns["label"] * 0.5}


def test_only_the_new_columns_are_written(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    images = {"image": np.zeros((2000, 64, 64), np.uint8), "label": np.arange(2000)}
    storage.submit(images, "a", "1")
    ref = storage.add_columns({"score": np.arange(2000)}, "a", message="scores")
    own = sum(path.stat().st_size for path in (tmp_path / "a" / "2").iterdir())
    assert own < 2000 * 8 + 200_000
    assert ref.fingerprint == storage.submit({**images, "score": np.arange(2000)}, "b", "1").fingerprint
    assert storage.log("a")[0].message == "scores"
    storage.remove("a", "1")  # its file stays
    assert int(storage.fetch("a", "2")[1999]["score"]) == 1999


def test_a_function_gets_the_columns_that_it_names(storage: Storage) -> None:
    storage.submit(arrays(), "a", "1")
    seen: set[str] = set()

    def function(columns: Any) -> dict[str, Any]:
        seen.update(columns)
        return score(columns)

    ref = storage.add_columns(function, "a", columns=["label"])
    assert seen == {"label"}
    assert [float(one["score"]) for one in ref] == [n * 0.5 for n in range(40)]
    with pytest.raises(KeyError, match=r"no column 'lable'.*'label'"):
        storage.add_columns(score, "a", columns=["lable"])
    with pytest.raises(TypeError, match="what a function gets"):
        storage.add_columns(arrays(), "a", columns=["label"])


def test_a_function_gets_few_rows_at_once(storage: Storage) -> None:
    storage.submit(arrays(4000), "a", "1")
    sizes: list[int] = []

    def function(columns: Any) -> Any:
        sizes.append(len(columns["label"]))
        return score(columns)

    ref = storage.add_columns(function, "a", columns=["label"])
    assert 64 < max(sizes) <= 1024
    sizes.clear()
    other = storage.add_columns(function, "a", batch_size=70, replace=True)
    assert max(sizes) == 70
    assert sum(sizes) >= 4000
    assert other.fingerprint == ref.fingerprint
    with pytest.raises(ValueError, match="batch_size"):
        storage.add_columns(function, "a", batch_size=0)


def test_numbers_stay_what_they_are_when_an_array_takes_their_place(storage: Storage) -> None:
    storage.submit([{"label": n, "ok": True} for n in range(3)], "a", "1")
    ref = storage.add_columns({"label": np.arange(3) % 2, "ok": np.arange(3) < 2}, "a", replace=True)
    assert [*ref] == [{"label": 0, "ok": True}, {"label": 1, "ok": True}, {"label": 0, "ok": False}]
    assert [type(value) for value in ref[0].values()] == [int, bool]
    storage.append([{"label": 5, "ok": True}], "a")
    other = storage.add_columns({"label": np.zeros(4, np.uint8)}, "a", replace=True)
    assert other[3]["label"].dtype == np.uint8


@pytest.mark.damages("its row file is overwritten")
def test_whoever_reads_some_columns_opens_only_their_files(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit(arrays(), "a", "1")
    storage.add_columns(score, "a", "2")
    (row_file,) = (path for path in (tmp_path / "a" / "1").iterdir() if path.suffix == ".mdb")
    row_file.write_bytes(b"damaged")
    manifest = store_manifest(tmp_path / "a" / "2")
    ref = VersionRef(str(tmp_path / "a" / "2"), manifest)
    assert float(ref["score"][3]) == 1.5
    (batch,) = yoga.DataLoader(ref.columns(["score"]), batch_size=40)
    assert batch["score"].tolist() == [n * 0.5 for n in range(40)]
    with pytest.raises(CorruptError, match="00000"):
        ref.take(np.arange(3))


def store_manifest(folder: Path) -> Manifest:
    return Manifest.from_bytes((folder / "manifest.json").read_bytes())


@pytest.mark.rest
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_read_all_groups(tmp_path: Path, context: str) -> None:
    storage = Storage(tmp_path)
    storage.submit(arrays(), "a", "1")
    ref = storage.append({**arrays(), "score": np.arange(40.0)}, "a", after=str(added(storage)))
    assert isinstance(pickle.loads(pickle.dumps(ref)).open(), GroupedReader)
    plain = Storage(tmp_path / "plain").submit(list(ref), "a", "1")
    loaders = [
        yoga.DataLoader(
            one, batch_size=16, shuffle=True, seed=3, num_workers=2, multiprocessing_context=context
        )
        for one in (ref, plain)
    ]
    for one, other in zip(*loaders, strict=True):
        assert all(bool((one[key] == other[key]).all()) for key in ("image", "label", "score"))


def added(storage: Storage) -> str:
    storage.add_columns(score, "a", "scored")
    return "scored"


def test_a_bounded_cache_reads_all_groups(tmp_path: Path) -> None:
    url = f"memory://columns-{next(COUNTER)}"
    writer = Storage(url, cache_dir=tmp_path / "writer")
    writer.submit(arrays(4000), "a", "1")
    for _ in range(3):
        writer.append(arrays(4000), "a")
    writer.add_columns(score, "a", "scored")
    size = writer.fetch("a", "scored").manifest.nbytes  # type: ignore[attr-defined]
    reader = Storage(url, cache_dir=tmp_path / "reader", cache_bytes=size // 2)
    ref = reader.fetch("a", "scored")
    loader = yoga.DataLoader(ref, batch_size=100, shuffle="block", seed=1, num_workers=0)
    got = np.concatenate([np.stack([b["label"], b["score"] * 2]) for b in loader], axis=1)
    assert (got[0] == got[1]).all()
    assert sorted(got[0].tolist()) == sorted([*range(4000)] * 4)
    assert [float(x) for x in reader.fetch("a", "scored")["score"][:4]] == [0.0, 0.5, 1.0, 1.5]
    reader = Storage(url, cache_dir=tmp_path / "all")
    reader.fetch("a", "scored", download=True)


def test_states_fit_versions_with_other_columns(storage: Storage) -> None:
    first = storage.submit(arrays(), "a", "1")
    scored = storage.add_columns(score, "a", "2")
    storage.add_columns({"label": np.arange(40) + 7}, "a", "3", replace=True)
    last = storage.drop_columns(["image"], "a", "4")
    views: list[tuple[Any, str]] = [
        (lambda ref: ref, "234"),
        (lambda ref: ref.columns(["label"]), "234"),
        (lambda ref: ref.where("label", lambda label: label % 2 == 0), "2"),
        (lambda ref: ref.split([0.7, 0.3], seed=1)[0], "2"),
        (lambda ref: ref.columns(["label"]).split([0.7, 0.3], seed=1, by="label")[1], "2"),
        (lambda ref: ref[3:30].repeat(2), "2"),
    ]
    for view, versions in views:
        state, rest = json.loads(json.dumps(state_of(view(first)))), labels_of(loader_of(view(first)))[1:]
        for version in versions:
            again, more = loader_of(view(storage.fetch("a", version)), state), 7 * (version > "2")
            assert labels_of(again) == [[label + more for label in batch] for batch in rest]
    picked, other = (ref.select([3, 1, 4, 1, 5])[1:] for ref in (first, last))
    assert picked.fingerprint != other.fingerprint
    loader_of(other, state_of(picked, batch_size=2), batch_size=2)
    with pytest.raises(StateError):
        loader_of(last, state_of(first.columns(["image"])))
    loader_of(scored.columns(["image", "label"]), state_of(first))
    grown = loader_of(storage.append({"label": np.arange(3), "score": np.zeros(3)}, "a", "5"))
    with pytest.raises(StateError, match="appended="):
        grown.load_state_dict(state_of(first))
    grown.load_state_dict(state_of(first), appended="next")


def test_states_fit_after_many_changes(storage: Storage) -> None:
    storage.submit({"x": np.arange(9), "z": np.arange(9)}, "a", "1")
    storage.add_columns({"y": np.arange(9)}, "a", "2")
    storage.drop_columns(["z"], "a", "3")
    storage.add_columns({"q": np.arange(9), "w": np.arange(9)}, "a", "4")
    storage.drop_columns(["x"], "a", "5")
    storage.add_columns({"a": np.arange(9), "x": np.arange(9)}, "a", "6")
    for old, new in itertools.combinations("123456", 2):
        loader_of(storage.fetch("a", new), state_of(storage.fetch("a", old)))
    for key, old, new in (("y", "2", "6"), ("q", "4", "6"), ("x", "1", "4")):
        loader_of(storage.fetch("a", new).columns([key]), state_of(storage.fetch("a", old).columns([key])))
    with pytest.raises(StateError):
        loader_of(storage.fetch("a", "6").columns(["a"]), state_of(storage.fetch("a", "1").columns(["x"])))


def loader_of(ref: Any, state: Any = None, batch_size: int = 6) -> Any:
    """A loader, at a state."""
    loader = yoga.DataLoader(ref, batch_size=batch_size, shuffle=batch_size == 6, seed=5)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def labels_of(loader: Any) -> list[list[int]]:
    return [batch["label"].tolist() for batch in loader]


def state_of(ref: Any, batch_size: int = 6) -> Any:
    """That after a batch."""
    loader = loader_of(ref, None, batch_size)
    next(iter(loader))
    return loader.state_dict()


def test_diff_of_columns_that_were_added_and_replaced(storage: Storage) -> None:
    first = storage.submit(arrays(), "a", "1")
    more = storage.add_columns(score, "a", "2")
    found = yoga.diff(first, more)
    assert not found.are_rows_compared
    assert "added: score" in str(found)
    label = np.arange(40)
    label[[3, 9]] = 99
    fixed = storage.add_columns({"label": label}, "a", "3", replace=True)
    found = yoga.diff(more, fixed)
    assert (found.added.tolist(), found.removed.tolist(), found.unchanged) == ([3, 9], [3, 9], 38)
    of_labels = yoga.diff(more.columns(["label"]), fixed.columns(["label"]))
    assert (of_labels.added.tolist(), of_labels.unchanged) == ([3, 9], 38)
    by_score = yoga.diff(more, fixed, key="score")
    assert (by_score.changed.tolist(), by_score.unchanged) == ([[3, 3], [9, 9]], 38)
    grown = storage.append({**arrays(2), "score": np.zeros(2)}, "a", "4")
    assert yoga.diff(fixed, grown).added.tolist() == [40, 41]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"score": np.arange(39)}, "'a' '1' has 40 rows, and the new columns have 39"),
        ({"score": np.arange(41)}, "have 41"),
        (39, "have 39"),
        (2**62, "or more; give a value for each row"),
        ({"label": np.arange(40)}, r"\['label'\] already; pass replace=True"),
        (lambda c: {"label": c["label"]}, r"\['label'\] already"),
        (lambda c: {"score": c["label"][:-1]}, "score"),
        (np.arange(40), "rows that are one value"),
        ([(1, 2)] * 40, r"a tuple; submit them as dicts, such as ref\.map"),
        ([{}] * 40, "no columns"),
    ],
)
def test_columns_that_do_not_fit(storage: Storage, data: Any, error: str) -> None:
    storage.submit(arrays(), "a", "1")
    if isinstance(data, int):
        data = ({"score": n} for n in range(data))
    with pytest.raises(SchemaError, match=error):
        storage.add_columns(data, "a")
    assert storage.versions("a") == ["1"]
    storage.add_columns(score, "a")  # what failed has left no lock


def test_what_has_no_columns(storage: Storage) -> None:
    storage.submit(np.arange(3), "values", "1")
    with pytest.raises(SchemaError, match="one value"):
        storage.add_columns({"x": np.arange(3)}, "values")
    with pytest.raises(SchemaError, match="no dicts"):
        storage.drop_columns(["x"], "values")
    storage.submit([], "empty", "1")
    with pytest.raises(SchemaError, match="no rows"):
        storage.add_columns({"x": np.arange(0)}, "empty")
    storage.submit(arrays(1), "none left", "1")
    storage.delete_rows("none left", "1", rows=[0], to="2")
    for nothing in (score, [], {"x": np.arange(0)}):
        with pytest.raises(SchemaError, match="no rows"):
            storage.add_columns(nothing, "none left")
    with pytest.raises(NotFoundError):
        storage.add_columns({"x": np.arange(3)}, "nothing")
    storage.submit(arrays(), "a", "1")
    with pytest.raises(KeyError, match="no column 'x'"):
        storage.drop_columns(["x"], "a")
    less = storage.drop_columns((key for key in ["image"]), "a", "less")  # type: ignore[arg-type]
    assert less.schema.tree.keys == ("label",)
    storage.remove("a", "less")
    with pytest.raises(ValueError, match="all that"):
        storage.drop_columns(["image", "label"], "a")
    with pytest.raises(ValueError, match="a list of one"):
        storage.drop_columns("image", "a")


def test_a_base_that_goes_meanwhile(storage: Storage) -> None:
    def going(what: str) -> Iterator[dict[str, int]]:
        for n in range(40):
            if n == 20 and what == "remove":
                storage.remove("a", "1")
            if n == 20 and what == "overwrite":
                storage.submit({"label": np.arange(40) + 1}, "a", "1", overwrite=True)
            if n == 20 and what == "convert":
                storage.convert("a", "1", format="hdf5")
            yield {"score": n}

    storage.submit(arrays(), "b", "1")

    def slow(columns: Any) -> Any:
        if storage.versions("b") == ["1"] and len(columns["label"]) > 1:
            storage.append(arrays(1), "b", "2")
        return score(columns)

    with pytest.raises(NotFoundError, match=r"was followed by '2' of other rows .* pass after='1'"):
        storage.add_columns(slow, "b", "3")
    assert storage.versions("b") == ["1", "2"]
    storage.add_columns(slow, "b")
    for what in ("remove", "overwrite", "convert"):
        storage.submit(arrays(), "a", "1", overwrite=True)
        if what == "convert":
            assert int(storage.add_columns(going(what), "a", "2", after="1")[39]["score"]) == 39
            continue
        with pytest.raises(NotFoundError, match="'1'"):
            storage.add_columns(going(what), "a", "2", after="1")
        assert "2" not in storage.versions("a")


def _add(folder: str, number: int) -> None:
    Storage(folder).add_columns({f"c{number}": np.full(40, number)}, "a")


@pytest.mark.rest
def test_many_add_columns_at_once(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit(arrays(), "a", "1")
    in_processes("forkserver", *(partial(_add, str(tmp_path), number) for number in range(3)))
    for version in storage.versions("a"):
        storage.check("a", version)
    ref = storage.fetch("a", latest=True)  # each came behind those that were faster
    assert {*ref.schema.tree.keys} == {"image", "label", "c0", "c1", "c2"}
    for number in range(3):
        assert {int(value) for value in ref[f"c{number}"]} == {number}


def test_forged_groups_are_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit(arrays(), "a", "1")
    storage.add_columns(score, "a", "2")
    storage.append({**arrays(2), "score": np.zeros(2)}, "a", "3")
    path = tmp_path / "a" / "3" / "manifest.json"
    content = json.loads(path.read_bytes())
    forged: list[tuple[str, Any]] = [
        ("groups", [["image", "label"]]),
        ("groups", [["image", "label"], ["score", "label"]]),
        ("groups", [["image"], ["label", "score"]]),
        ("groups", [["score"], ["image", "label"]]),
        ("groups", [["image", "label"], ["score"], *[[]] * 2**17]),
        ("groups", "image"),
        ("groups", {"image": 1, "label": 2}),
        ("groups", ["image", "label", "score"]),
        ("written", []),
        ("written", [yoga.Schema.of({"x": 1}).to_json()]),
    ]
    forged += [("files", [{**file, "group": n} for file in content["files"]]) for n in (0, 1, 2, -1, 2**70)]
    forged += [("files", [{**file, "written": n} for file in content["files"]]) for n in (1, -1, "0", 2**70)]
    forged += [("files", content["files"][:n]) for n in range(4)]
    for columns in ([-2], ["a"], 3, [2**80]):
        forged.append(("parents", [{**content["parents"][0], "columns": columns}]))
    for name, value in forged:
        with pytest.raises(CorruptError):
            Manifest.from_bytes(resealed({**content, name: value}))
    keys = [f"k{number}" for number in range(4096)]  # more than rows have columns, each a group of its own
    content["schema"]["tree"]["dict"] += [[key, {"dict": []}] for key in keys]
    content["groups"] += [[key] for key in keys]
    with pytest.raises(CorruptError, match="4098 groups do not have each key of its rows once"):
        Manifest.from_bytes(resealed(content))


def test_a_version_with_groups_is_copied_and_converted(storage: Storage, tmp_path: Path) -> None:
    storage.submit(arrays(), "a", "1")
    storage.add_columns(score, "a", "2")
    last = storage.append({**arrays(2), "score": np.zeros(2)}, "a", "3")
    for target in (
        Storage(tmp_path / "other"),
        Storage(f"memory://columns-{next(COUNTER)}", cache_dir=tmp_path),
    ):
        found = storage.copy("a", "3", to=target)
        assert found.fingerprint == last.fingerprint
        assert [float(one["score"]) for one in found] == [float(one["score"]) for one in last]
        target.check("a", "3")
        assert storage.copy("a", "3", to=target).fingerprint == last.fingerprint
        target.remove("a", "3")
    assert storage.convert("a", "3", format="hdf5").fingerprint == last.fingerprint
    assert storage.fetch("a", "3").manifest.groups == ()  # type: ignore[attr-defined]


def test_statistics_of_added_columns(storage: Storage) -> None:
    storage.submit(arrays(), "a", "1")
    ref = storage.add_columns(score, "a", "2")
    assert ref.stats()["score"].max == 19.5
    assert ref.columns(["score"]).stats()["score"].min == 0
    assert storage.drop_columns(["label"], "a", "3").stats()["score"].max == 19.5


def test_an_executor_makes_columns(storage: Storage) -> None:
    storage.submit(arrays(4000), "a", "1")
    with ThreadPoolExecutor(2) as executor:
        ref = storage.add_columns(score, "a", columns=["label"], executor=executor)
        assert [float(x) for x in ref["score"]] == [n * 0.5 for n in range(4000)]
        assert [float(x) for x in storage.fetch("a", "2")["score"][-2:]] == [1999.0, 1999.5]
        with pytest.raises(SchemaError, match="already"):
            storage.add_columns(score, "a", executor=executor)
        with pytest.raises(SchemaError, match="have 3"):
            storage.add_columns({"x": np.arange(3)}, "a", executor=executor)
    assert storage.versions("a") == ["1", "2"]
    for version in "12":
        storage.check("a", version)
    plain = {**arrays(4000), "score": np.arange(4000) * 0.5}
    assert ref.fingerprint == storage.submit(plain, "b", "1").fingerprint


def test_the_golden_columns_are_readable_for_ever(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[1] / "golden" / "v1" / "wide", tmp_path / "wide")
    storage = Storage(tmp_path)
    for version, rows in wide().items():
        storage.check("wide", version)
        assert_is(storage.fetch("wide", version), rows)
    assert_is(storage.append(wide()["6"], "wide"), 2 * wide()["6"])
