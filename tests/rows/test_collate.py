"""Batches of ragged rows, as values and offsets or padded: the same from a block and from plain rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import run_program
from hypothesis import given
from hypothesis import strategies as st
from own import Mapped
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS
from torchyoga.rows.block import Rows
from torchyoga.rows.collector import block_of

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=9)


def rows_of(lengths: list[int]) -> list[Any]:
    return [
        {
            "tokens": np.arange(n, dtype=np.int32) + i,
            "half": torch.full((n,), i, dtype=torch.bfloat16),
            "label": i,
            "text": "x" * n,
        }
        for i, n in enumerate(lengths)
    ]


def ragged_block(rows: list[Any]) -> Rows:
    return Rows(block_of(rows, yoga.Schema.of(rows[0], ragged=["tokens", "half"])))


@given(LENGTHS)
def test_jagged(lengths: list[int]) -> None:
    rows = rows_of(lengths)
    for batch in (ragged_block(rows), rows):
        found = yoga.jagged(batch)
        for name in ("tokens", "half"):
            values, offsets = found[name]
            assert offsets.tolist() == np.cumsum([0, *lengths]).tolist()
            assert torch.equal(values, torch.cat([torch.as_tensor(row[name]) for row in rows]))
        assert values.dtype == torch.bfloat16
        assert found["label"].tolist() == list(range(len(lengths)))
        assert found["text"] == ["x" * n for n in lengths]


@given(LENGTHS, st.sampled_from([0, -1, 7]))
def test_padded(lengths: list[int], padding: int) -> None:
    rows = rows_of(lengths)
    for batch in (ragged_block(rows), rows):
        found = yoga.padded(padding)(batch)
        for name in ("tokens", "half"):
            expected = pad_sequence([torch.as_tensor(row[name]) for row in rows], True, padding)
            values, found_lengths = found[name]
            assert torch.equal(values, expected)
            assert values.dtype == expected.dtype
            assert found_lengths.tolist() == lengths


def test_padded_to_one_width() -> None:
    collate = yoga.padded(-1, width=6)
    for lengths in ([2, 6], [0, 1, 1]):
        found = collate(ragged_block(rows_of(lengths)))["tokens"]
        assert found.values.shape == (len(lengths), 6)
        assert (found.values == -1).sum(1).tolist() == [6 - length for length in found.lengths.tolist()]
    with pytest.raises(ValueError, match=r"'tokens' has 7 values, more than width=6; make it wider"):
        collate(ragged_block(rows_of([7])))
    with pytest.raises(ValueError, match="width must be an int of at least 1, found 0"):
        yoga.padded(width=0)


@pytest.mark.parametrize("format", FORMATS)
def test_from_files_with_and_without_workers(tmp_path: Path, format: str) -> None:
    lengths = [(7 * i) % 5 for i in range(40)]
    ref = yoga.Storage(tmp_path, format).submit(
        rows_of(lengths), "ragged", "1", schema=ragged_block(rows_of(lengths)).block.schema, progress=False
    )
    for collate in (yoga.jagged, yoga.padded(-1)):
        expected = [collate(rows_of(lengths)[i : i + 8]) for i in range(0, 40, 8)]
        for workers in (0, 2):
            found = list(yoga.DataLoader(ref, batch_size=8, collate_fn=collate, num_workers=workers))
            for one, other in zip(found, expected, strict=True):
                assert all(map(torch.equal, one["tokens"], other["tokens"]))
                assert all(map(torch.equal, one["half"], other["half"]))
                assert one["text"] == other["text"]


@pytest.mark.parametrize("collate", [yoga.jagged, yoga.padded()])
def test_rows_of_two_dimensions_are_a_list(collate: Any) -> None:
    rows = [{"x": np.full((i + 1, 2), i), "t": torch.ones(2, i), "same": np.ones((2, 2))} for i in range(3)]
    for batch in (rows, Rows(block_of(rows, yoga.Schema.of(rows[0], ragged=["x", "t"])))):
        found = collate(batch)
        for name in ("x", "t"):
            assert [tuple(each.shape) for each in found[name]] == [tuple(row[name].shape) for row in rows]
            assert all(isinstance(each, torch.Tensor) for each in found[name])
        assert found["same"].shape == (3, 2, 2)


@pytest.mark.parametrize("make", [torch.arange, np.arange])
@pytest.mark.parametrize(
    ("padding", "kind"), [(-1, "uint8"), (0.5, "int32"), (300, "uint8"), (2**40, "int16"), (10**30, "int64")]
)
def test_a_padding_that_is_not_a_value_of_the_column_is_refused(make: Any, padding: float, kind: str) -> None:
    dtype = getattr(torch if make is torch.arange else np, kind)
    rows = [{"t": make(n, dtype=dtype)} for n in (3, 0)]
    with pytest.raises(
        ValueError, match=f"padding={padding} is not a value of column 't', which is of torch.{kind}"
    ):
        yoga.padded(padding)(rows)
    assert yoga.padded(7)(rows)["t"].values.tolist() == [[0, 1, 2], [7, 7, 7]]


@pytest.mark.parametrize("made", [np.asarray, torch.from_numpy])
def test_ragged_arrays_of_one_shape_are_collated_where_they_lie(tmp_path: Path, made: Any) -> None:
    shapes = [(2, 3), (2, 3), (2, 3), (3, 2), (2, 0), (2, 0)]
    values = [made(np.full(shape, n, np.int16)) for n, shape in enumerate(shapes)]
    given_rows = [{"x": value} for value in values]
    schema = yoga.Schema.of(given_rows[0], ragged=["x"])
    ref = yoga.Storage(tmp_path).submit(given_rows, "a", "1", schema=schema, progress=False)
    for numbers in ([0, 1, 2], [2], [3], [4, 5]):
        rows = ref.take(np.array(numbers))
        found = default_collate(rows)["x"]
        expected = default_collate([values[n] for n in numbers])
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        if found.numel():
            assert found.data_ptr() == torch.from_numpy(rows.block.data[0].values).data_ptr()
    with pytest.raises(RuntimeError, match="'x' is ragged"):
        default_collate(ref.take(np.array([0, 3])))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0, 3)])
def test_arrays_beside_others_of_more_dimensions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = [*(np.full(shape, n, np.float32) for n in range(3)), np.zeros((2, 3, 4), np.float32)]
    ref = yoga.Storage(tmp_path).submit([{"x": value} for value in values], "a", "1", progress=False)
    assert torch.equal(default_collate(ref.take(np.arange(3)))["x"], default_collate(values[:3]))


def test_a_batch_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of no rows"):
        yoga.jagged([])


def test_a_batch_of_many_columns_is_nested_like_its_rows() -> None:
    found = yoga.jagged([(np.arange(2), {"a": [np.arange(i)]}) for i in range(3)])
    assert found[0].offsets.tolist() == [0, 2, 4, 6]
    assert found[1]["a"][0].offsets.tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader", [yoga.DataLoader, torch.utils.data.DataLoader])
def test_rows_that_default_collate_cannot_stack_say_what_can(
    loader: Any, workers: int, tmp_path: Path
) -> None:
    rows = [{"tokens": np.arange(n)} for n in (1, 3, 3, 2)]
    schema = yoga.Schema.of(rows[0], ragged=["tokens"])
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", schema=schema, progress=False)
    with pytest.raises(RuntimeError, match=r"column 'tokens' is ragged.*torchyoga\.padded\(\).*: ") as error:
        list(loader(ref, batch_size=2, num_workers=workers))
    assert type(error.value) is RuntimeError
    assert workers or str(error.value).count("torchyoga.padded") == 1
    assert len(list(loader(ref[1:3], batch_size=2, num_workers=workers))) == 1
    picked = torch.utils.data.Subset(Mapped(4, list(ref).__getitem__), [0, 1])
    if loader is yoga.DataLoader:
        with pytest.raises(RuntimeError, match=r"the rows differ in shape.*torchyoga\.jagged"):
            list(loader(picked, batch_size=2, num_workers=workers))
    with pytest.raises(RuntimeError, match=r"the rows differ in shape.*torchyoga\.jagged"):
        torch.utils.data.default_collate(list(ref.take(np.arange(2))))
    with pytest.raises(RuntimeError, match="list of batch should be of equal size"):
        list(loader(Mapped(2, [[1], [1, 2]].__getitem__), batch_size=2, num_workers=workers))


def test_a_loader_of_torch_alone_gives_plain_batches() -> None:
    """In a fresh process, where nothing else has made our rows known to `default_collate`."""
    code = """
    import numpy as np, torch, torchyoga as yoga
    ref = yoga.from_arrays({"x": np.arange(4)})
    batch = next(iter(torch.utils.data.DataLoader(ref, batch_size=4)))
    print(type(batch).__name__, batch["x"].tolist())
    """
    done = run_program(textwrap.dedent(code))
    assert done.stdout == "dict [0, 1, 2, 3]\n", done.stderr


LARGE: dict[str, Callable[[int], torch.Tensor]] = {
    "numbers": lambda row: torch.full((3, 150, 150), float(row)),
    "bytes": lambda row: torch.full((70_000,), row, dtype=torch.uint8),
    "half numbers": lambda row: torch.full((200, 200), float(row), dtype=torch.bfloat16),
    "channels that lie last": lambda row: torch.full((150, 150, 3), float(row)).permute(2, 0, 1),
    "frames whose channels lie last": lambda row: torch.full((2, 99, 99, 3), float(row)).permute(0, 3, 1, 2),
    "every other number": lambda row: torch.full((90_000,), float(row))[::2],
    "types that differ": lambda row: torch.full(
        (40_000,), row, dtype=torch.int32 if row % 2 else torch.int64
    ),
    "numbers that learn": lambda row: torch.full((40_000,), float(row)).requires_grad_(),
    "a kind of tensor": lambda row: torch.nn.Parameter(torch.full((40_000,), float(row))),
}


@pytest.mark.quick("1-1-*", "3-3-*", "3-40-numbers", "3-40-bytes", "3-40-* last")
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_tensors_are_stacked_as_torch_stacks_them(kind: str, count: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = [{"x": LARGE[kind](row), "y": (row, LARGE[kind](row))} for row in range(count)]
        loader = yoga.DataLoader(rows, count)
        (found,), expected = [*loader], default_collate(rows)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True)
    assert found["x"].requires_grad == expected["x"].requires_grad


def test_large_tensors_that_differ_in_shape_are_an_error_of_theirs() -> None:
    rows = [torch.zeros(40_000 + row) for row in range(3)]
    with pytest.raises(RuntimeError, match="the rows differ in shape"):
        next(iter(yoga.DataLoader(rows, 3)))


def test_large_tensors_are_stacked_in_inference_mode_too() -> None:
    rows = [torch.full((3, 200, 200), float(row)) for row in range(40)]
    with torch.inference_mode():
        (found,) = [*yoga.DataLoader(rows, 40)]
    assert found.is_inference()
    assert torch.equal(found, torch.stack(rows))
