"""Storage: rows come back as they went in; versions never change; none is ever half written."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import forked
from own import Mapped
from samples import OTHER, ROWS, submit_damaged
from stored import told
from torch.utils.data import IterableDataset
from waiting import at_once

import torchyoga as yoga
from torchyoga.errors import CorruptError, ExistsError, NotFoundError, SchemaError
from torchyoga.formats.contract import FORMATS, format_named
from torchyoga.testing import assert_rows_equal, check_source


class Many(Mapped):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [ROWS[index] for index in indices]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(ROWS)


@pytest.fixture(autouse=True, scope="module", params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    """Every test here runs with every file format."""
    return str(request.param)


@pytest.fixture
def storage(tmp_path: Path, format: str) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage", format)


SOURCES: dict[str, Any] = {
    "map": lambda: Mapped(len(ROWS), ROWS.__getitem__),
    "map with __getitems__": lambda: Many(len(ROWS)),
    "iterable": Endless,
    "list": lambda: list(ROWS),
    "tuple": lambda: tuple(ROWS),
    "iterator": lambda: iter(ROWS),
    "generator": lambda: (row for row in ROWS),
    "function": lambda: lambda: iter(ROWS),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source(kind: str, tmp_path: Path, format: str) -> None:
    check_source(SOURCES[kind], ROWS, tmp_path, format=format)


@pytest.mark.quick("lmdb")
def test_worker_processes_read_a_map_style_source(tmp_path: Path, format: str) -> None:
    check_source(SOURCES["map"], ROWS, tmp_path, num_workers=2, format=format)


def test_a_cached_dataset_is_a_source_too(storage: yoga.Storage, tmp_path: Path) -> None:
    ref = storage.submit(ROWS, "a", "1")
    check_source(lambda: ref[10:30:2], ROWS[10:30:2], tmp_path, format=storage.format)


@pytest.mark.slow("hdf5-*")
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int16).reshape(4, 3),
        np.arange(5.0),
        np.zeros((3, 0, 2), np.uint8),
        np.array(["a", "bcd", ""]),
        np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
        np.arange(4, dtype=">u4"),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        torch.arange(6).reshape(3, 2),
        torch.arange(3, dtype=torch.bfloat16),
        np.zeros((0, 4), np.int32),
    ],
    ids=lambda array: f"{array.dtype} {tuple(array.shape)}",
)
def test_rows_of_arrays(array: Any, tmp_path: Path, format: str) -> None:
    check_source(lambda: array, [array[i] for i in range(len(array))], tmp_path / "one", format=format)
    many = {"a": array, "b": np.arange(len(array))}
    expected = [{"a": array[i], "b": many["b"][i]} for i in range(len(array))]
    check_source(lambda: many, expected, tmp_path / "many", format=format)


def test_arguments_of_a_wrong_type_are_refused(storage: yoga.Storage) -> None:
    storage.submit([1], "a", "1")
    with pytest.raises(TypeError, match=r"to must be a Storage, found 'there'; pass Storage\('there'\)"):
        storage.copy("a", "1", to="there")  # type: ignore[arg-type]
    for grace in ("a", -1, float("nan"), None):
        with pytest.raises(ValueError, match="grace must be at least 0 seconds"):
            storage.clean(grace)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'y' is a list; numpy\.asarray makes"):
        storage.submit({"x": np.zeros(3), "y": [1, 2, 3]}, "b", "1")


def test_an_empty_dataset_is_a_version(storage: yoga.Storage) -> None:
    for version, data in (("list", []), ("array", np.zeros((0, 3))), ("generator", iter(()))):
        ref = storage.submit(data, "empty", version)
        assert (len(ref), list(ref), list(ref.stream(shuffle=True))) == (0, [], [])
        storage.check("empty", version)
        assert len(pickle.loads(pickle.dumps(storage.fetch("empty", version)))) == 0
        for loader in (yoga.DataLoader(ref, batch_size=4), torch.utils.data.DataLoader(ref, batch_size=4)):
            assert (list(loader), len(loader)) == ([], 0)
        with pytest.raises(IndexError):
            ref[0]


@pytest.mark.quick("lmdb")
def test_a_row_that_does_not_fit_publishes_nothing(storage: yoga.Storage) -> None:
    def rows() -> Any:
        yield from ({"a": {"b": i}} for i in range(100_000))
        yield {"a": {"b": "text"}}

    message = r"row 100000 does not fit: column 'a/b': expected int <i8, found str \|u1"
    with pytest.raises(SchemaError, match=message):
        storage.submit(rows(), "a", "1")
    assert storage.list() == []
    assert not list(storage.path.rglob("*" + format_named(storage.format).SUFFIX))


@pytest.mark.quick("lmdb")
def test_a_shape_that_varies_late_needs_a_schema(storage: yoga.Storage) -> None:
    def rows() -> Any:
        yield from (np.zeros(60_000) for _ in range(20))  # more than a block
        yield np.zeros(5)

    message = r"expected shape \(60000,\), found shape \(5,\); .*ragged=\['value'\]"
    with pytest.raises(SchemaError, match=message):
        storage.submit(rows, "a", "1")
    ref = storage.submit(rows, "a", "1", schema=yoga.Schema.of(np.zeros(4), ragged=["value"]))
    assert ref[-1].shape == (5,)


def test_a_published_version_stays(storage: yoga.Storage) -> None:
    storage.submit([1, 2], "a", "1")

    def never() -> Any:
        raise RuntimeError("the source must not be read")
        yield

    with pytest.raises(ExistsError, match="published already"):
        storage.submit(never, "a", "1")
    assert list(storage.fetch("a", "1")) == [1, 2]


def test_overwriting_leaves_open_readers_what_they_opened(storage: yoga.Storage) -> None:
    old = storage.submit([1, 2, 3], "a", "1")
    pickled = pickle.dumps(old)
    unopened = [pickle.loads(pickled) for _ in range(2)]
    new = storage.submit([4, 5], "a", "1", overwrite=True)
    assert (list(old), list(new), list(storage.fetch("a", "1"))) == ([1, 2, 3], [4, 5], [4, 5])
    for opens in (partial(unopened[0].take, np.arange(1)), partial(pickle.loads, pickled)):
        with pytest.raises(NotFoundError, match="has been overwritten since"):
            opens()
    storage.check("a", "1")
    with pytest.raises(SchemaError):
        storage.submit([1, object()], "a", "1", overwrite=True)
    assert list(storage.fetch("a", "1")) == [4, 5]
    storage.remove("a", "1")
    assert list(new) == [4, 5]
    for opens in (partial(unopened[1].take, np.arange(1)), lambda: pickle.loads(pickle.dumps(new))):
        with pytest.raises(NotFoundError, match="has been removed since"):
            opens()


def test_the_error_for_a_missing_version_lists_those_that_exist(storage: yoga.Storage) -> None:
    with pytest.raises(NotFoundError, match="holds nothing"):
        storage.fetch("a", "1")
    storage.submit([1], "a", "1")
    storage.submit([1], "a", "2")
    with pytest.raises(NotFoundError, match=r"its versions are \['1', '2'\]"):
        storage.fetch("a", "3")
    for kind in (KeyError, FileNotFoundError):
        with pytest.raises(kind, match=r"the storage holds \['a'\]"):
            storage.remove("b", "1")
    assert storage.list() == [("a", "1"), ("a", "2")]
    assert storage.versions("a") == ["1", "2"]
    assert storage.versions("b") == []
    (storage.path / "a" / "2" / "manifest.json").unlink()  # unfinished
    with pytest.raises(NotFoundError, match=r"its versions are \['1'\]"):
        storage.fetch("a", "2")


@pytest.mark.parametrize("name", ["", "..", ".", "/", "../../x", "%2e", "a" * 300, "\0", ".staging", 5])
def test_awkward_ids(storage: yoga.Storage, name: Any) -> None:
    if name in ("", 5) or len(name) > 240:
        with pytest.raises(ValueError, match=r"non-empty str|240 are allowed"):
            storage.submit([1], name, "1")
    else:
        assert list(storage.submit([1], name, name)) == [1]
        assert storage.list() == [(name, name)]


def test_an_endless_source_is_found_by_max_rows(storage: yoga.Storage) -> None:
    with pytest.raises(ValueError, match=r"more than max_rows=1000 rows.*Nothing was published"):
        storage.submit(itertools.count(), "a", "1", max_rows=1000)
    assert storage.list() == []
    assert len(storage.submit(range(1000), "a", "1", max_rows=1000)) == 1000
    with pytest.raises(ValueError, match="has 11 rows, more than max_rows=10"):
        storage.submit(list(range(11)), "b", "1", max_rows=10)


@pytest.mark.damages("the last of its manifests is cut")
def test_cut_missing_and_extra_files_are_found(storage: yoga.Storage) -> None:
    storage.submit(ROWS, "a", "1")
    manifest, data = sorted((storage.path / "a" / "1").iterdir(), key=lambda path: path.suffix != ".json")
    whole = data.read_bytes()
    for size in (0, 1, 4096, len(whole) // 2, len(whole) - 1):
        data.write_bytes(whole[:size])
        for act in (lambda: list(storage.fetch("a", "1")), lambda: storage.check("a", "1")):
            with pytest.raises(CorruptError, match=r"bytes"):
                act()
    data.write_bytes(whole)
    (data.parent / "stray").touch()
    with pytest.raises(CorruptError, match="stray is not named in the manifest"):
        storage.check("a", "1")
    (data.parent / "stray").unlink()
    data.rename(data.parent.parent / "moved")
    with pytest.raises(CorruptError, match="missing"):
        storage.check("a", "1")
    (data.parent.parent / "moved").rename(data)
    text = manifest.read_bytes()
    for size in (0, 10, len(text) // 2, len(text) - 1):
        manifest.write_bytes(text[:size])
        with pytest.raises(CorruptError, match="manifest is damaged"):
            storage.fetch("a", "1")


def _cache(root: str, format: str, log: str, start: Any) -> int:
    start.wait(300)

    @yoga.Storage(root, format).cacheable("numbers", "1")
    def numbers() -> Any:
        with open(log, "a") as file:
            file.write("built\n")
        for i in range(300):
            time.sleep(0.001)
            yield i

    return sum(numbers())


@pytest.mark.slow("hdf5")
def test_many_processes_and_threads_build_once(tmp_path: Path, format: str) -> None:
    log = tmp_path / "log"
    start = multiprocessing.get_context("fork").Event()

    def work() -> None:
        assert _cache(str(tmp_path / "s"), format, str(log), start) == sum(range(300))

    children = [forked(work) for _ in range(4)]
    at_once(*[work] * 4, start.set)
    assert [status() for status in children] == [0] * 4
    assert log.read_text() == "built\n"


def first(storage: yoga.Storage, name: str, acts: Iterator[Any]) -> None:
    """Before a method of its store does its work, another process does the next of these acts."""
    is_acting = False

    def after_an_act(method: Any, *args: Any, **more: Any) -> Any:
        nonlocal is_acting
        if not is_acting:  # an act may call the method itself
            is_acting = True
            for act in itertools.islice(acts, 1):
                act()
            is_acting = False
        return method(*args, **more)

    told(storage, **{name: after_an_act})


# What is done, the method of a store before which others act, and the errors if they removed the version, or
# overwrite it all the time.
GONE, AGAIN = "'a' '1' in .* was removed while it was", "overwritten 5 times while it was"
DONE = {
    "check": ("sizes", f"{GONE} checked", f"{AGAIN} checked; try"),
    "copy": ("files", f"{GONE} copied", f"{AGAIN} copied; try"),
    "fetch": ("files", "the storage holds nothing", "has been overwritten since"),
}


@pytest.mark.parametrize("overwritten", [0, 1, 3, 9])
@pytest.mark.parametrize("doing", DONE)
def test_a_version_overwritten_or_removed_meanwhile_is_not_called_damaged(
    doing: str, overwritten: int, storage: yoga.Storage, tmp_path: Path
) -> None:
    storage.submit([0], "a", "1")
    acts = [partial(storage.submit, [n + 1], "a", "1", overwrite=True) for n in range(overwritten)]
    method, removed, replaced = DONE[doing]
    first(storage, method, iter(acts or [partial(storage.remove, "a", "1")]))
    to = yoga.Storage(tmp_path / "to")
    work = partial(getattr(storage, doing), "a", "1", **({"to": to} if doing == "copy" else {}))
    if overwritten in (0, 9):
        with pytest.raises(NotFoundError, match=replaced if overwritten else removed):
            work()
        assert to.list() == []
    else:
        found = work()
        assert doing == "check" or list(found) == [overwritten]


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, format: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match="cannot write to the storage"):
        yoga.Storage(tmp_path / "file" / "s", format).submit([1], "a", "1")
    with pytest.raises(ValueError, match="cache_dir is for a store behind a URL"):
        yoga.Storage(tmp_path, cache_dir=tmp_path)
    with pytest.raises(ValueError, match="format='zip' is not known"):
        yoga.Storage(tmp_path, format="zip")


MEMORY = """
import sys
import numpy as np
import torch  # before memory is counted
import torchyoga as yoga

def anonymous():  # KiB of memory that is not a cached page of a file
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

def rows():
    global peak
    for i in range(4000):
        peak = max(peak, anonymous())
        yield np.full(100_000, i % 256, np.uint8)

yoga.Storage
peak = before = anonymous()
yoga.Storage(sys.argv[1], sys.argv[2]).submit(rows, "a", "1")
print(peak - before)
"""


@pytest.mark.rest
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports its memory there")
def test_memory_while_building_is_bounded(tmp_path: Path, format: str) -> None:
    arguments = [sys.executable, "-c", MEMORY, str(tmp_path), format]
    finished = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True)
    assert 0 < int(finished.stdout) < 100 * 1024  # KiB, while 400 MB went through


@pytest.mark.damages("a byte of it is changed")
def test_without_verification_rows_come_as_they_lie(storage: yoga.Storage) -> None:
    submit_damaged(storage)
    with pytest.raises(CorruptError, match="checksum does not match"):
        storage.fetch("a", "1")[[1999, 2000]]
    assert [row["x"] for row in storage.fetch("a", "1", verify=False)[[1999, 2000]]] == [1999, 2001]


def test_the_format_of_a_call_comes_before_that_of_the_storage(storage: yoga.Storage) -> None:
    other = OTHER[storage.format]
    storage.submit([1, 2], "a", "1", format=other)

    @storage.cacheable("a", "2", format=other)
    def numbers() -> Any:
        yield from range(5)

    assert list(numbers()) == [0, 1, 2, 3, 4]
    for version in ("1", "2"):
        assert list((storage.path / "a" / version).glob("*" + format_named(other).SUFFIX))
    with pytest.raises(ValueError, match=r"format='lmdb' has no compression='gzip'"):
        storage.submit([1], "a", "3", format="lmdb", compression="gzip")
    with pytest.raises(ValueError, match=r"format='lmdb' has no compression='gzip'"):
        yoga.Storage(storage.path, "lmdb", "gzip")
    squeezed = yoga.Storage(storage.path, "hdf5", "gzip")
    assert repr(squeezed).endswith("format='hdf5', compression='gzip')")
    zeros = np.zeros((1000, 100))
    sizes = {}
    for version, options in {"gzip": {}, "lmdb": {"format": "lmdb"}}.items():
        assert_rows_equal(list(squeezed.submit(zeros, "zeros", version, **options)), list(zeros))
        sizes[version] = squeezed.fetch("zeros", version).manifest.nbytes
    assert sizes["gzip"] < 100_000 < 800_000 < sizes["lmdb"]
