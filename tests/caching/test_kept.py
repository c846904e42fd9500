"""Selections that are kept beside a version: made once, and never of other rows."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import status_of_child
from disks import full_folder
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.errors import CorruptError, ExistsError
from torchyoga.stores.local import Store
from torchyoga.versions.names import kept_id
from torchyoga.views.selection import Selection

numbers = itertools.count()
ROWS = {"x": np.arange(1000), "y": np.arange(1000) * 7919 % 10}


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


@pytest.fixture
def ref(storage: yoga.Storage) -> yoga.DataRef:
    return storage.submit(ROWS, "a", "1", progress=False)


CALLS: list[int] = []


def low(y: Any) -> Any:
    CALLS.append(1)
    return y < 5


def never(y: Any) -> Any:
    raise AssertionError("the condition is called")


def xs(ref: yoga.DataRef) -> list[int]:
    return list(ref["x"])


@contextlib.contextmanager
def silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_kept_selection_is_read_and_its_condition_is_not_called(storage: yoga.Storage) -> None:
    ref = storage.submit(ROWS, "a", "1", progress=False)
    for columns, condition in [
        ("y", lambda y: y < 5),  # bits
        ("x", lambda x: x > 500),  # runs
        ("x", lambda x: x % 97 == 0),  # a list
        ("x", lambda x: x < 0),
        ("x", lambda x: x >= 0),
        (["x", "y"], lambda c: c["x"] % 10 == c["y"]),
    ]:
        name = f"n{next(numbers)}"
        expected = ref.where(columns, condition)
        made = ref.where(columns, condition, name=name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = storage.fetch("a", "1").where(columns, never, name=name)
        for each in (made, found, pickle.loads(pickle.dumps(found))):
            assert each.fingerprint == expected.fingerprint
            assert xs(each) == xs(expected)
        assert len(pickle.dumps(found)) <= len(pickle.dumps(expected)) + 100
    assert (storage.list(), storage.versions("a")) == ([("a", "1")], ["1"])
    storage.check("a", "1")


def test_selections_of_different_views_have_places_of_their_own(ref: yoga.DataRef) -> None:
    views: list[Callable[[], yoga.DataRef]] = [
        lambda: ref,
        lambda: ref[100:],
        lambda: ref[::-1],
        lambda: ref.columns(["y", "x"]),
        lambda: ref.where("x", lambda x: x % 3 == 0),
        lambda: ref.split([0.5, 0.5])[0],
        lambda: ref.select([5, 3, 900, 3]),
        lambda: ref.repeat(2),
        lambda: ref[500:].where("x", lambda x: x % 3 == 0)[7:],
        lambda: yoga.concat([ref[5:], ref[:5]]),
    ]
    with silence():
        for turn in range(2):
            for view in views:
                CALLS.clear()
                found = view().where("y", low, name="low")
                assert len(CALLS) == 1 - turn
                expected = view().where("y", lambda y: y < 5)
                assert found.fingerprint == expected.fingerprint
                assert xs(found) == xs(expected)
                assert found.where("x", lambda x: x > 50, name="more").fingerprint == (
                    expected.where("x", lambda x: x > 50).fingerprint
                )


def test_what_has_no_version_keeps_nothing(storage: yoga.Storage, ref: yoga.DataRef, tmp_path: Path) -> None:
    other = storage.submit(ROWS, "b", "1", progress=False)
    (tmp_path / "moved").mkdir()
    for homeless in (yoga.from_arrays(ROWS), yoga.concat([ref, other]), yoga.from_arrays(ROWS)[3:]):
        with pytest.raises(ValueError, match="submit it first, or leave name out"):
            homeless.where("y", lambda y: y < 5, name="low")


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/b",
        ".",
        "é \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        "x" * 200,
        " ",
        "manifest.json",
    ],
)
def test_any_text_is_a_name(name: str, storage: yoga.Storage, ref: yoga.DataRef) -> None:
    before = sorted(storage.path.parent.iterdir())
    assert len(ref.where("y", lambda y: y < 5, name=name)) == 500
    with silence(), pytest.raises(ExistsError):
        ref.where("y", never, name=name, stale="error")
    assert sorted(storage.path.parent.iterdir()) == before
    assert len(ref[1:].where("y", lambda y: y < 5, name=name)) == len(ref[1:].where("y", lambda y: y < 5))


@pytest.mark.parametrize(
    ("given_", "error", "text"),
    [
        ({"name": ""}, ValueError, "must not be empty"),
        ({"name": 3}, TypeError, "name must be a str"),
        ({"name": "x" * 300}, ValueError, "percent-encoded, 240 are allowed"),
        ({"name": "\ud800"}, ValueError, "surrogates"),
        ({"name": "low", "stale": "ignore"}, ValueError, "stale must be 'warn', 'error' or 'rebuild'"),
    ],
)
def test_odd_arguments_are_refused(given_: Any, error: type[Exception], text: str, ref: yoga.DataRef) -> None:
    with pytest.raises(error, match=text):
        ref.where("y", lambda y: y < 5, **given_)
    with pytest.raises(KeyError, match="no column 'z'"):
        ref.where("z", lambda y: y < 5, name="fine")
    with pytest.raises(ValueError, match="must return a bool"):
        ref.where("y", lambda y: y, name="fine")


# -- conditions


def loaded(folder: Path, text: str) -> Any:
    path = folder / f"conditions_{next(numbers)}.py"
    path.write_text(f"import numpy as np\n{text}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made


LAMBDA = "made = lambda y: y < 5"
CAPTURING = "def make(k, t):\n    return lambda y: (y < k) & np.isin(y, t)\nmade = make({}, {})"
HELPED = "def make():\n    helper = lambda y: y < {}\n    return lambda y: helper(y)\nmade = make()"


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        (LAMBDA, LAMBDA, None),
        (LAMBDA, "made = (  # low\n    lambda y:\n        y<5)", None),
        (LAMBDA, "made = lambda y: y < 6", "its code differs"),
        ("def made(y): return y < 5", "def made(y):\n    'low'\n    return y < 5", None),
        ("def made(y): return y < 5", "def made(y): return y < 6", "its code differs"),
        ("n = 5\ndef made(y, k=n): return y < k", "n = 6\ndef made(y, k=n): return y < k", "default k"),
        ("n = 5\nmade = lambda y, *, k=n: y < k", "n = 6\nmade = lambda y, *, k=n: y < k", "default k"),
        (CAPTURING.format(5, "[1, 2]"), CAPTURING.format(5, "[1, 2]"), None),
        (CAPTURING.format(5, "[1, 2]"), CAPTURING.format(6, "[1, 2]"), "its captured k differs"),
        (CAPTURING.format(5, "[1, 2]"), CAPTURING.format(5, "[1, 3]"), "its captured t differs"),
        (CAPTURING.format(5, "np.arange(2)"), CAPTURING.format(5, "np.arange(3)"), "captured t"),
        (CAPTURING.format(5, "object()"), CAPTURING.format(5, "object()"), None),  # it has no digest
        (HELPED.format(5), HELPED.format(5), None),
        (HELPED.format(5), HELPED.format(6), "captured helper"),
        ("made = np.isnan", "made = np.isfinite", "its name differs"),
        ("made = np.isnan", "made = np.isnan", None),
        ("def f(k, y): return y < k\nimport functools\nmade = functools.partial(f, 5)",) * 2 + (None,),
        (
            "def f(k, y): return y < k\nimport functools\nmade = functools.partial(f, 5)",
            "def f(k, y): return y < k\nimport functools\nmade = functools.partial(f, 6)",
            "its argument 0 differs",
        ),
    ],
)
def test_conditions_are_compared(
    before: str, after: str, differs: str | None, ref: yoga.DataRef, tmp_path: Path
) -> None:
    if "object()" in before:
        before, after = (text.replace("np.isin(y, t)", "(t is not None)") for text in (before, after))
    one, other = loaded(tmp_path, before), loaded(tmp_path, after)
    first = ref.where("y", one, name="low")
    if differs is None:
        with silence():
            for stale in ("warn", "error", "rebuild"):
                assert ref.where("y", other, name="low", stale=stale).fingerprint == first.fingerprint  # type: ignore[arg-type]
        return
    with pytest.warns(UserWarning, match=differs):
        assert ref.where("y", other, name="low").fingerprint == first.fingerprint
    with silence():  # once a process
        ref.where("y", other, name="low")
    with pytest.raises(ExistsError, match=differs):
        ref.where("y", other, name="low", stale="error")
    expected = ref.where("y", other)
    assert ref.where("y", other, name="low", stale="rebuild").fingerprint == expected.fingerprint
    with silence():
        assert ref.where("y", other, name="low").fingerprint == expected.fingerprint


def test_other_columns_are_refused(ref: yoga.DataRef) -> None:
    condition = functools.partial(np.less, 5)
    ref.where("y", condition, name="low")
    for stale in ("warn", "error"):
        with pytest.raises(ExistsError, match=r"made of the columns \['y'\], not of \['x'\]"):
            ref.where("x", condition, name="low", stale=stale)  # type: ignore[arg-type]
    expected = ref.where("x", condition)
    assert ref.where("x", condition, name="low", stale="rebuild").fingerprint == expected.fingerprint


# -- versions that change


def test_a_version_that_is_overwritten_or_removed(storage: yoga.Storage, ref: yoga.DataRef) -> None:
    old = ref.where("y", lambda y: y < 5, name="low")
    other = {"x": np.arange(50), "y": np.arange(50)}
    new = storage.submit(other, "a", "1", overwrite=True, progress=False)
    with silence():
        assert xs(new.where("y", lambda y: y < 7, name="low")) == list(range(7))
    with pytest.warns(UserWarning, match="overwritten or removed since this DataRef was made"):
        again = ref.where("y", lambda y: y < 5, name="low")  # of rows that it has open
    assert again.fingerprint == old.fingerprint
    with silence():
        assert xs(new.where("y", lambda y: y < 7, name="low", stale="error")) == list(range(7))
    storage.remove("a", "1")
    assert storage.clean(0) == []
    assert not [*storage.path.rglob("manifest.json")]
    with pytest.warns(UserWarning, match="could not be kept"):
        new.where("y", lambda y: y < 7, name="low")
    assert not [*storage.path.rglob("manifest.json")]


def test_a_version_overwritten_while_rows_are_selected(storage: yoga.Storage, ref: yoga.DataRef) -> None:
    def overwriting(y: Any) -> Any:
        storage.submit({"x": ROWS["x"], "y": ROWS["x"]}, "a", "1", overwrite=True, progress=False)
        return y < 5

    with pytest.warns(UserWarning, match="could not be kept"):
        assert len(ref.where("y", overwriting, name="low")) == 500
    assert len(storage.fetch("a", "1").where("y", lambda y: y < 5, name="low")) == 5


def test_conversion_keeps_what_is_kept(storage: yoga.Storage, ref: yoga.DataRef) -> None:
    expected = ref.where("y", lambda y: y < 5, name="low")
    converted = storage.convert("a", "1", format="hdf5", progress=False)
    with pytest.warns(UserWarning, match="code"):
        assert converted.where("y", never, name="low").fingerprint == expected.fingerprint


def test_kept_selections_are_cleaned_with_the_versions(storage: yoga.Storage, ref: yoga.DataRef) -> None:
    ref.where("y", lambda y: y < 5, name="low")
    folder = Store(storage.path).kept.directory(kept_id("a", "1"), "low")
    left = folder / f"{'0' * 16}-00000.mdb"
    left.write_bytes(b"left")
    assert storage.clean(0) == [f".views/a%2F1/low/{left.name}"]


# -- damage


@pytest.mark.damages("bytes of a kept selection are changed")
@pytest.mark.parametrize("which", ["manifest.json", "*.mdb"])
def test_damage_is_never_another_selection(which: str, storage: yoga.Storage, ref: yoga.DataRef) -> None:
    expected = ref.where("y", lambda y: y < 5, name="low")
    folder = Store(storage.path).kept.directory(kept_id("a", "1"), "low")
    (path,) = folder.glob(which)
    intact = path.read_bytes()
    step = max(1, len(intact) // 120)
    found = 0
    for place in range(0, len(intact), step):
        damaged = bytearray(intact)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        try:
            assert ref.where("y", lambda y: y < 5, name="low").fingerprint == expected.fingerprint
        except CorruptError as error:
            found += "pass stale='rebuild' to select again" in str(error)
            with pytest.raises(CorruptError, match="selection 'low' of 'a' '1'"):
                storage.check("a", "1")
    assert found > 5 or which != "manifest.json"
    path.write_bytes(intact[: len(intact) // 2])
    with pytest.raises(CorruptError):
        ref.where("y", lambda y: y < 5, name="low")
    with silence():
        again = ref.where("y", lambda y: y < 5, name="low", stale="rebuild")
        assert again.fingerprint == expected.fingerprint
        assert ref.where("y", lambda y: y < 5, name="low").fingerprint == expected.fingerprint
    storage.check("a", "1")


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 3), st.integers(1, 700))
def test_parts_make_the_same_selection(mask: list[bool], kind: int, stretch: int) -> None:
    rows = np.array(mask, bool)
    if kind == 1:
        rows = np.repeat(rows, stretch)
    elif kind == 2:
        rows = np.kron(rows, np.arange(max(1, stretch)) == 0).astype(bool)
    selection = Selection.of_mask(rows)
    found = Selection.from_parts(len(rows), selection.parts)
    assert found.pin == selection.pin
    places = np.arange(len(found))
    assert found.rows(places).tolist() == np.flatnonzero(rows).tolist()


ARRAYS = st.lists(st.integers(-3, 140), max_size=12)


@given(
    st.integers(-1, 130),
    st.sampled_from([("row",), ("start", "stop"), ("bits",), ("start",), ("other",), ()]),
    st.lists(ARRAYS, min_size=2, max_size=2),
    st.sampled_from([np.uint32, np.int64, np.uint64, np.int32, np.float64]),
)
def test_forged_parts_are_refused_or_a_selection(
    total: int, names: tuple[str, ...], lists: list[list[int]], dtype: Any
) -> None:
    forged = {name: np.array(values).astype(dtype) for name, values in zip(names, lists, strict=False)}
    try:
        found = Selection.from_parts(total, forged)
    except CorruptError:
        return
    rows = found.rows(np.arange(len(found)))
    assert (np.diff(rows) > 0).all()
    assert ((rows >= 0) & (rows < total)).all()
    mask = np.zeros(total, bool)
    mask[rows] = True
    assert Selection.of_mask(mask).pin == found.pin


@pytest.mark.parametrize(
    ("total", "forged"),
    [
        (10, {"row": np.array([3, 10], np.uint32)}),
        (10, {"row": np.array([3, 3], np.uint32)}),
        (10, {"row": np.array([4, 3], np.uint32)}),
        (10, {"row": np.array([4], np.int64)}),
        (10, {"row": np.array([[4]], np.uint32)}),
        (10**10, {"row": np.array([-1, 4, 10**9])}),
        (10, {"start": np.array([3, 5]), "stop": np.array([5, 7])}),
        (10, {"start": np.array([3]), "stop": np.array([3])}),
        (10, {"start": np.array([3]), "stop": np.array([11])}),
        (10, {"start": np.array([-1]), "stop": np.array([4])}),
        (10, {"start": np.array([3, 5]), "stop": np.array([4])}),
        (512, {"bits": np.full(7, 0x5555555555555555, np.uint64)}),
        (500, {"bits": np.full(8, 0x5555555555555555, np.uint64)}),
        (512, {"bits": np.zeros(8, np.uint64)}),
        (512, {"bits": np.full(8, 2**64 - 1, np.uint64)}),
    ],
)
def test_forged_parts(total: int, forged: Any) -> None:
    with pytest.raises(CorruptError):
        Selection.from_parts(total, forged)


# -- many processes, and none that may write

PROGRAM = """
import sys, time, os
import torchyoga as yoga
folder, marks = sys.argv[1:]
def low(y):
    open(os.path.join(marks, str(os.getpid())), "w").close()
    time.sleep(0.3)
    return y < 5
print(len(yoga.Storage(folder).fetch("a", "1").where("y", low, name="low")))
"""


@pytest.mark.rest
def test_one_of_many_processes_selects(storage: yoga.Storage, ref: yoga.DataRef, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(storage.path), str(tmp_path / "marks")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert outputs == ["500\n"] * 4
    assert len([*(tmp_path / "marks").iterdir()]) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
def test_without_permission_a_selection_is_read_or_made(tmp_path_others_reach: Path) -> None:
    ref = yoga.Storage(tmp_path_others_reach / "storage").submit(ROWS, "a", "1", progress=False)
    ref.where("y", lambda y: y < 5, name="low")

    def select() -> None:
        os.setuid(65534)
        with silence():
            assert len(ref.where("y", lambda y: y < 5, name="low")) == 500
        with pytest.warns(UserWarning, match="could not be kept"):
            assert len(ref.where("y", lambda y: y < 6, name="lower")) == 600

    assert status_of_child(select) == 0


def test_what_cannot_be_published_is_not_lost(storage: yoga.Storage, ref: yoga.DataRef) -> None:
    with (
        full_folder(storage.path / ".views"),
        pytest.warns(UserWarning, match=r"could not be kept.*(No space left|Permission denied)"),
    ):
        assert len(ref.where("y", lambda y: y < 5, name="low")) == 500


def test_what_functions_have_made_has_no_place(ref: yoga.DataRef) -> None:
    for view in (
        ref.map(dict, schema=ref.schema),
        ref.map_batches(lambda c: c)[5:].columns(["y"]),
    ):
        with pytest.raises(ValueError, match=r"the code of a function .* is not part of what is kept"):
            view.where("y", lambda y: y < 5, name="low")
