"""Arrays, tensors and .npy files: their rows are what indexing gives, wherever they lie."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import torchyoga as yoga
from torchyoga.adapters.arrays import from_arrays, is_arrays
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.rows.collector import Collector
from torchyoga.testing import assert_rows_equal, check_source

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.boolean_dtypes(),
    hnp.datetime64_dtypes(),
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
)


# Ways an array may lie in memory.
LIES = {
    "plain": lambda array: array,
    "in columns": np.asfortranarray,
    "backwards": lambda array: array[::-1],
    "every other": lambda array: np.repeat(array, 2, axis=0)[::2],
    "part of a row": lambda array: np.concatenate([array, array], -1)[..., : array.shape[-1]],
    "rows transposed": lambda array: (
        np.swapaxes(np.swapaxes(array, -1, -2).copy(), -1, -2) if array.ndim > 2 else array
    ),
    "one row for all": lambda array: np.broadcast_to(array[:1], array.shape) if len(array) else array,
    "unaligned": lambda array: from_bytes(array, 1),
    "read-only": lambda array: from_bytes(array, 0),
}


def from_bytes(array: Any, offset: int) -> Any:
    if not array.size:
        return array
    data = b"x" * offset + array.tobytes()
    return np.frombuffer(data, array.dtype, offset=offset).reshape(array.shape)


@pytest.mark.parametrize("lies", LIES)
@given(ARRAYS, st.data())
def test_rows_are_what_indexing_gives(lies: str, array: Any, data: Any) -> None:
    array = LIES[lies](array)
    before = array.copy()
    ref = from_arrays({"x": array})
    assert len(ref) == len(array)
    order = data.draw(st.lists(st.integers(0, len(array) - 1), max_size=9)) if len(array) else []
    found = ref[order]
    assert_rows_equal(found, [{"x": row} for row in array[order]])
    for row in found:
        if isinstance(row["x"], np.ndarray) and array.dtype.kind != "b":
            row["x"][...] = np.zeros((), array.dtype)  # users may change rows
    assert_rows_equal([array[i] for i in range(len(array))], [before[i] for i in range(len(array))])
    # The same as if each row had been submitted alone.
    collector = Collector()
    for i, row in enumerate(array):
        collector.add({"x": row}, i)
    assert not len(array) or collector.take().schema == ref.schema


def test_rows_outlive_their_arrays() -> None:
    ref = from_arrays({"x": np.arange(20_000.0).reshape(100, 200).copy(), "y": torch.arange(100)})
    gc.collect()
    np.full(20_000, np.nan)  # would take the place of freed memory
    for i, row in enumerate(ref):
        assert row["x"].tolist() == list(range(200 * i, 200 * i + 200))
        assert row["y"] == i


GIVEN: dict[str, Any] = {
    "text": np.array(["a", "", "löng"]),
    "bytes": np.array([b"a", b"", b"long"]),
    "rows of text": np.array([["ab", "c"], ["", "d"]]),
    "turned": torch.arange(12).reshape(3, 4).t(),
    "conjugate": torch.tensor([[1 + 2j], [3j]]).conj(),
    "negative": torch.tensor([[1 + 2j], [3j]]).conj().imag,
    "expanded": torch.zeros(1, 3).expand(4, 3),
    "bfloat16, turned": torch.arange(6).reshape(2, 3).t().bfloat16(),
    "float8": torch.arange(6).reshape(2, 3).to(torch.float8_e4m3fn),
    "uint16": torch.arange(6).reshape(2, 3).to(torch.uint16),
    "bool": torch.arange(6).reshape(2, 3) % 2 == 0,
    "scalars": torch.arange(4),
    "no rows": torch.zeros(0, 5),
    "empty rows": torch.zeros(5, 0),
}


@pytest.mark.parametrize("name", GIVEN)
def test_rows_of_text_and_of_tensors(name: str, tmp_path: Path) -> None:
    given = GIVEN[name]
    rows = [given[i] for i in range(len(given))]
    check_source(lambda: given, rows, tmp_path / "alone")
    numbers = np.arange(len(given))
    pairs = [{"given": row, "number": number} for row, number in zip(rows, numbers, strict=True)]
    check_source(lambda: {"given": given, "number": numbers}, pairs, tmp_path / "beside numbers")


def test_rows_of_a_file_mapped_as_an_array(tmp_path: Path) -> None:
    np.arange(12.0).tofile(tmp_path / "data")
    array = np.memmap(tmp_path / "data", float, "r", shape=(4, 3))
    rows = [np.array(row) for row in array]
    check_source(lambda: array, rows, tmp_path / "array")
    check_source(
        lambda: {"a": array, "b": array[:, 0]}, [{"a": r, "b": r[0]} for r in rows], tmp_path / "dict"
    )
    check_source(lambda: list(array), rows, tmp_path / "list")


def test_npy_files_are_mapped(tmp_path: Path) -> None:
    images, labels = np.arange(600, dtype=np.float32).reshape(20, 5, 6), np.arange(20)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "turned.npy", np.asfortranarray(images))
    np.save(tmp_path / "none.npy", images[:0])
    for name in ("images.npy", "turned.npy"):
        ref = from_arrays({"image": tmp_path / name, "label": labels})
        rows = [{"image": images[i], "label": labels[i]} for i in range(20)]
        assert_rows_equal(list(ref), rows)
        check_source(lambda ref=ref: ref, rows, tmp_path / f"storage {name}")
        assert_rows_equal(list(from_arrays(str(tmp_path / name))), list(images))
    assert list(from_arrays(tmp_path / "none.npy")) == []


def test_arrays_in_files_are_pickled_by_path(tmp_path: Path) -> None:
    whole = np.arange(60_000.0).reshape(200, 300)
    np.save(tmp_path / "x.npy", whole)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    views = {"all": mapped, "later": mapped[50:], "cut": mapped[3:100:2, 7:20], "column": mapped[:, 5]}
    for name, view in views.items():
        for ref in (from_arrays(view), from_arrays({"x": view})):
            packed = pickle.dumps(ref)
            assert len(packed) < 1000, name
            again = pickle.loads(packed)
            assert_rows_equal(list(again), list(ref))
            assert len(pickle.dumps(again)) < 1000
    assert_rows_equal(list(pickle.loads(pickle.dumps(from_arrays(mapped[::-1])))), list(whole[::-1]))
    ref = from_arrays(tmp_path / "x.npy")
    packed = pickle.dumps(ref)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
    with pytest.raises(CorruptError, match="has been cut"):
        pickle.loads(packed)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(NotFoundError, match="has been removed"):
        pickle.loads(packed)


class Explosive:
    def __reduce__(self) -> Any:
        return pytest.fail, ("code from a file was run",)


def test_files_that_do_not_hold_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(NotFoundError, match=r"no file .*x\.npy"):
        from_arrays(path)
    np.save(path, np.array([Explosive()], object), allow_pickle=True)
    with pytest.raises(CorruptError, match=r"x\.npy cannot be read"):
        from_arrays(path)
    path.write_bytes(pickle.dumps(Explosive()))
    with pytest.raises(CorruptError, match=r"x\.npy cannot be read"):
        from_arrays(path)
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(CorruptError, match="holds several arrays"):
        from_arrays(tmp_path / "x.npz")
    np.save(path, np.arange(1000))
    data = path.read_bytes()
    cut = [data[:size] for size in (0, 5, 20, 200, len(data) - 1)]
    said = [data.replace(b"(1000,)", shape) for shape in (b"(1000, ", b"(True,)")]
    for bad in (*cut, *said):
        path.write_bytes(bad)
        with pytest.raises(CorruptError, match=r"x\.npy cannot be read"):
            from_arrays(path)
    with pytest.raises(SchemaError, match=r"'x': expected an array.*by np.asarray.*\"y\": y}"):
        from_arrays({"x": [1, 2]})
    with np.load(tmp_path / "x.npz") as several:  # a mapping that is no dict
        assert list(from_arrays(several)) == [{"a": 0.0}] * 3


def test_which_data_counts_as_arrays() -> None:
    for data in (np.zeros(3), torch.zeros(3), {"a": np.zeros(3), "b": torch.zeros(3)}):
        assert is_arrays(data)
    for other in ({}, {"a": [1]}, {"a": np.zeros(3), "b": 1}, [np.zeros(3)], 3, "text", np.float32(1)):
        assert not is_arrays(other)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array(3), "'the array' has 0 dimensions"),
        ({"x": np.zeros(3), "y": torch.tensor(1)}, "'y' has 0 dimensions"),
        ({"x": np.zeros(3), "y": torch.zeros(4)}, r"different numbers of rows: \{'x': 3, 'y': 4\}"),
        (np.array([1, None]), "dtype object"),
        (np.zeros((0, 2**40)), "is too large"),
        ({"x": np.zeros(2, [("o", "O")])}, "'x' is an array of dtype .* cannot be kept"),
        (np.zeros(3, "i4,f4"), "turn structured arrays into a dict"),
        (np.zeros(3, "V8"), "use a numeric dtype"),
        (np.ma.zeros((3, 2)), "array subclasses lose their meaning"),
        (torch.eye(3).to_sparse(), "make it dense"),
        (torch.zeros(3, 2, requires_grad=True), r"requires grad cannot be kept.*\.detach\(\)"),
        (torch.nn.Parameter(torch.zeros(3, 2)), r"\.detach\(\)"),
        ({3.5: np.zeros(3)}, "dict keys must be str or int"),
    ],
)
def test_the_error_says_what_cannot_be_stored(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=message):
        yoga.Storage(tmp_path).submit(data, "a", "1")
    assert yoga.Storage(tmp_path).list() == []
