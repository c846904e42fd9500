"""Names and calls of other libraries are answered by what to write here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import torchyoga as yoga
from torchyoga.reading.instead import METHODS

CALLS: dict[str, tuple[Callable[[yoga.Storage, yoga.DataRef], object], str]] = {
    "where of a text": (lambda storage, ref: ref.where("y == 1"), r"write ref\.where\("),  # type: ignore[call-arg]
    "where of a mask": (
        lambda storage, ref: ref.where("y", ref["y"]),
        r"found <DataRef .*; write ref\.where\(",
    ),  # type: ignore[arg-type]
    "cacheable without arguments": (
        lambda storage, ref: storage.cacheable(lambda: [1]),  # type: ignore[call-arg,arg-type]
        r"write @storage\.cacheable\(",
    ),
    "transform": (lambda storage, ref: yoga.DataLoader(ref, transform=abs), r"'transform'; use ref\.map\("),
    "transform of a build": (
        lambda storage, ref: storage.submit(ref, "e", "1", transform=abs),  # type: ignore[call-arg]
        r"use ref\.map\(",
    ),
    "batchsize": (lambda storage, ref: yoga.DataLoader(ref, batchsize=4), "'batchsize'; use batch_size="),
    "batched": (lambda storage, ref: ref.map(abs, batched=True), r"use ref\.map_batches\("),  # type: ignore[call-arg,arg-type]
    "test_size": (lambda storage, ref: ref.split(test_size=0.1), r"use .*ref\.split\("),  # type: ignore[call-arg]
    "no storage": (lambda storage, ref: yoga.Storage(None), r"found None; write Storage\("),  # type: ignore[arg-type]
    "no dataset": (lambda storage, ref: yoga.DataLoader(None), r"found None; pass what storage\.fetch"),  # type: ignore[arg-type]
    "the name of one": (
        lambda storage, ref: yoga.DataLoader("d@1"),
        r"found 'd@1'; pass what storage\.fetch",
    ),
    "map of None": (lambda storage, ref: ref.map(lambda row: None)[3], r"returned None for .*return the row"),
    "a build of None": (
        lambda storage, ref: storage.submit(lambda: None, "e", "1"),
        "let it return the dataset",
    ),
    "columns in brackets": (lambda storage, ref: ref[["x", "y"]], r"by ref\.columns\("),  # type: ignore[list-item]
    "concat of None": (lambda storage, ref: yoga.concat(None), r"\[one, other\], found None"),  # type: ignore[arg-type]
    "no columns": (lambda storage, ref: ref.columns(None), r"columns\(\[\"label\"\]\), found None"),  # type: ignore[arg-type]
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
