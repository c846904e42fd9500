"""A DataRef is a Dataset of torch's, and needs no torch; names of other libraries say what to write."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own import Squares
from torch.utils.data import ConcatDataset, Dataset, random_split

import torchyoga as yoga
from torchyoga.reading.instead import METHODS

PROGRAM = """
import sys
import numpy as np
import torchyoga as yoga
class Squares(yoga.DataRef):
    def __len__(self):
        return 10
    def take(self, rows):
        return [int(row) ** 2 for row in rows]
squares, part = Squares(), Squares()[3:]
assert len(list(squares.stream(shuffle=True))) == 10 and not isinstance(squares, np.ndarray)
assert "torch" not in sys.modules
{}
from torch.utils.data import Dataset
print(isinstance(squares, Dataset), isinstance(part, Dataset), issubclass(Squares, Dataset))
print(yoga.DataRef.__mro__[2:4] == (__import__("abc").ABC, Dataset), list(yoga.DataLoader(squares, 10))[0][3])
"""


@pytest.mark.parametrize(
    "loading",
    [
        "import torch",
        pytest.param("yoga.DataLoader", marks=pytest.mark.rest),
        pytest.param("import torch.utils.data.dataset", marks=pytest.mark.rest),
    ],
)
def test_it_becomes_one_when_torch_is_loaded(loading: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(loading)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.stdout.split("\n") == ["True True True", "True tensor(9)", ""], finished.stderr


def test_what_torch_makes_of_datasets_takes_it() -> None:
    squares = Squares()
    assert isinstance(squares, Dataset)
    assert isinstance(squares[3:], Dataset)
    first, second = random_split(squares, [4, 6])
    assert sorted([*first, *second]) == list(squares)
    joined = squares + squares[:2]
    assert type(joined) is ConcatDataset
    assert [int(row) for row in yoga.DataLoader(joined, batch_size=None)] == [*squares, 0, 1]


def test_a_class_may_be_both() -> None:
    class Both(Squares, Dataset[Any]):
        pass

    assert Both()[3] == 9


# -- names and calls of other libraries


CALLS: dict[str, tuple[Callable[[Any, Any], object], str]] = {  # with a storage and a version in it
    "where of a text": (lambda s, ref: ref.where("y == 1"), r"write ref\.where\("),
    "where of a mask": (lambda s, ref: ref.where("y", ref["y"]), r"found <DataRef .*; write ref\.where\("),
    "cacheable without arguments": (lambda s, ref: s.cacheable(lambda: [1]), r"write @storage\.cacheable\("),
    "transform": (lambda s, ref: yoga.DataLoader(ref, transform=abs), r"'transform'; use ref\.map\("),
    "transform of a build": (lambda s, ref: s.submit(ref, "e", "1", transform=abs), r"use ref\.map\("),
    "batchsize": (lambda s, ref: yoga.DataLoader(ref, batchsize=4), "'batchsize'; use batch_size="),
    "batched": (lambda s, ref: ref.map(abs, batched=True), r"use ref\.map_batches\("),
    "test_size": (lambda s, ref: ref.split(test_size=0.1), r"use .*ref\.split\("),
    "no storage": (lambda s, ref: yoga.Storage(None), r"found None; write Storage\("),  # type: ignore[arg-type]
    "no dataset": (lambda s, ref: yoga.DataLoader(None), r"found None; pass what storage\.fetch"),  # type: ignore[arg-type]
    "the name of one": (lambda s, ref: yoga.DataLoader("d@1"), r"found 'd@1'; pass what storage\.fetch"),
    "arrays": (
        lambda s, ref: yoga.DataLoader({"x": np.arange(9)}),
        r"; pass .*, yoga\.from_arrays\(arrays\)",
    ),
    "no length": (lambda s, ref: yoga.DataLoader(Dataset()), "by __getitem__ and"),
    "map of None": (lambda s, ref: ref.map(lambda row: None)[3], r"returned None for .*return the row"),
    "a build of None": (lambda s, ref: s.submit(lambda: None, "e", "1"), "let it return the dataset"),
    "cacheable None": (lambda s, ref: s.cacheable("e", "1")(lambda: None)(), "from None.*, or return one"),
    "columns in brackets": (lambda s, ref: ref[["x", "y"]], r"by ref\.columns\("),
    "concat of None": (lambda s, ref: yoga.concat(None), r"\[one, other\], found None"),  # type: ignore[arg-type]
    "no columns": (lambda s, ref: ref.columns(None), r"columns\(\[\"label\"\]\), found None"),
    "split": (lambda s, ref: ref.split(0.8, 0.2), "split takes a list of the share of each part"),
    "padded": (lambda s, ref: list(yoga.DataLoader(ref, collate_fn=yoga.padded)), r"collate_fn=padded\(0\)"),
}


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


@pytest.fixture
def ref(storage: yoga.Storage) -> yoga.DataRef:
    return storage.submit({"x": np.arange(9), "y": np.arange(9) % 3}, "d", "1")


def test_methods_of_other_libraries_are_answered_by_names_that_exist(ref: yoga.DataRef) -> None:
    owners = {"ref": yoga.DataRef, "yoga": yoga, "storage": yoga.Storage, "np": np}
    for name, instead in METHODS.items():
        with pytest.raises(AttributeError, match=f"^DataRef has no {name}; use {re.escape(instead)}$"):
            getattr(ref, name)
        for owner, member in re.findall(r"\b(ref|yoga|storage|np)\.(\w+)", instead):
            assert hasattr(owners[owner], member), instead
    with pytest.raises(AttributeError, match=r"use ref\['y'\]"):
        ref.y  # noqa: B018


@pytest.mark.parametrize("name", CALLS)
def test_calls_as_other_libraries_take_them_say_what_to_write(
    name: str, storage: yoga.Storage, ref: yoga.DataRef
) -> None:
    call, said = CALLS[name]
    with pytest.raises((TypeError, yoga.errors.SchemaError), match=said):
        call(storage, ref)


def test_a_type_error_of_the_call_itself_stays_as_it_is(ref: yoga.DataRef) -> None:
    def condition(values: object, more: object) -> object:
        return values

    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'more'\n"):
        ref.where("y", condition)  # type: ignore[arg-type]


def test_a_file_is_no_storage(tmp_path: Path) -> None:
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"is a file, and a storage is a directory.*from_parquet"):
        yoga.Storage(tmp_path / "table.parquet")
    below = yoga.Storage(tmp_path / "table.parquet" / "below")
    with pytest.raises(OSError, match=r"table\.parquet is a file: move it away, or choose") as caught:
        below.submit([1], "d", "1")
    assert "free some space" not in str(caught.value)
