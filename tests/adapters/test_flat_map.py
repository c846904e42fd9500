"""One row to many, as a source: any data, errors that name the row, and builds that continue in a row."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from becoming import leave
from children import status_of_child
from own import Mapped
from torch.utils.data import IterableDataset

import torchyoga as yoga
from torchyoga.adapters.sources import source_of
from torchyoga.building.sources import PlacedSource
from torchyoga.errors import SchemaError
from torchyoga.testing import check_source

DOCUMENTS = [{"text": "x" * (number * 7 % 30), "id": number} for number in range(40)]


def chunks(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A document in pieces of four letters; none for an empty one."""
    for start in range(0, len(document["text"]), 4):
        yield {"text": document["text"][start : start + 4], "id": int(document["id"]), "start": start}


CHUNKS = [chunk for document in DOCUMENTS for chunk in chunks(document)]


DOCUMENTED = Mapped(len(DOCUMENTS), DOCUMENTS.__getitem__)


class Stream(IterableDataset[Any]):
    """An iterable dataset."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(DOCUMENTS)


def make_documents() -> Mapped:
    """A function that makes a dataset."""
    return DOCUMENTED


def a_dataref(folder: Path) -> yoga.DataRef:
    """The documents as a published version."""
    storage = yoga.Storage(folder)
    if ("documents", "1") not in storage.list():
        storage.submit(DOCUMENTS, "documents", "1")
    return storage.fetch("documents", "1")


KINDS: dict[str, Callable[[Path], object]] = {
    "list": lambda folder: DOCUMENTS,
    "map-style": lambda folder: DOCUMENTED,
    "function": lambda folder: make_documents,
    "DataRef": a_dataref,
    "view": lambda folder: a_dataref(folder).where("id", lambda ids: ids >= 0),
    "iterable": lambda folder: Stream(),
    "generator": lambda folder: (document for document in DOCUMENTS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_data_gives_many_rows_of_each(kind: str, tmp_path: Path) -> None:
    make = KINDS[kind]
    check_source(lambda: yoga.flat_map(make(tmp_path / "whole"), chunks), CHUNKS, tmp_path / "storage")


def test_arrays_lists_and_what_returns_rows(tmp_path: Path) -> None:
    def twice(row: Any) -> list[Any]:
        return [row, row]

    storage = yoga.Storage(tmp_path)
    ref = storage.submit(yoga.flat_map({"x": np.arange(3)}, twice), "x", "1", num_workers=0)
    assert [int(row["x"]) for row in ref] == [0, 0, 1, 1, 2, 2]
    nested = yoga.flat_map(yoga.flat_map([1, 2], twice), twice)
    assert list(storage.submit(nested, "x", "2")) == [1] * 4 + [2] * 4
    assert len(storage.submit(yoga.flat_map([1, 2], lambda row: []), "x", "3")) == 0
    workers = yoga.flat_map(DOCUMENTED, chunks)
    assert list(storage.submit(workers, "x", "4", num_workers=2)) == CHUNKS
    with pytest.raises(SchemaError, match="row 1 does not fit"):
        storage.submit(yoga.flat_map([1], lambda row: [1, "x"]), "x", "5")


def test_errors_name_the_row(tmp_path: Path) -> None:
    def fails(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"id": document["id"]}
        if document["id"] == 7:
            raise KeyError("text")

    storage = yoga.Storage(tmp_path)
    for data in (DOCUMENTS, iter(DOCUMENTS)):
        with pytest.raises(KeyError) as caught:
            storage.submit(yoga.flat_map(data, fails), "x", "1")
        notes = [*getattr(caught.value, "__notes__", []), *map(str, caught.value.args)]
        assert "fails of row 7 of" in " ".join(notes)
    for wrong in (lambda row: {"a": 1}, lambda row: "text", lambda row: 5, lambda row: None):
        with pytest.raises(TypeError, match=r"returned a \w+ for row 0 of .*must return or yield rows"):
            storage.submit(yoga.flat_map([1], wrong), "x", "1")
    with pytest.raises(TypeError, match="needs a function"):
        yoga.flat_map([1], 5)  # type: ignore[arg-type]
    assert storage.list() == []


@pytest.mark.quick("*-3")
@pytest.mark.parametrize("rows_per_file", [1, 3, 1000])
@pytest.mark.parametrize("kind", ["list", "DataRef"])
def test_an_interrupted_build_continues_in_its_row(
    tmp_path: Path,
    files_of: Callable[[int], None],
    rows_per_file: int,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    data = KINDS[kind](tmp_path / "whole")
    files_of(rows_per_file)
    storage, seen = yoga.Storage(tmp_path / "storage"), list[int]()
    stop = 0

    def broken(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        seen.append(int(document["id"]))
        for number, chunk in enumerate(chunks(document)):
            if number == 2 and document["id"] == stop:
                raise ConnectionError("offline")
            yield chunk

    for stop in (4, 15, 16, 37):  # noqa: B007  # what `broken` sees
        with pytest.raises(ConnectionError):
            storage.submit(yoga.flat_map(data, broken), "x", "1")
    seen.clear()
    stop = -1
    assert list(storage.submit(yoga.flat_map(data, broken), "x", "1")) == CHUNKS
    done = sum(chunk["id"] < 37 for chunk in CHUNKS) + 2
    assert f"continuing an interrupted build at row {done}" in caplog.text
    assert "starting over" not in caplog.text
    assert len(seen) < 25  # a few to compare them, and those that were left
    assert seen[-3:] == [37, 38, 39]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's")
def test_a_killed_build_continues(
    tmp_path: Path, files_of: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    files_of(4)

    def killed(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for chunk in chunks(document):
            if in_child and document["id"] == 31:
                leave(5)
            yield chunk

    in_child = True
    build = partial(yoga.Storage(tmp_path).submit, yoga.flat_map(DOCUMENTS, killed), "x", "1")
    assert status_of_child(build) == 5
    in_child = False
    assert list(yoga.Storage(tmp_path).submit(yoga.flat_map(DOCUMENTS, killed), "x", "1")) == CHUNKS
    assert "continuing an interrupted build at row" in caplog.text


@pytest.mark.parametrize("change", ["function", "data", "longer", "shorter"])
def test_a_build_of_other_rows_starts_over(
    change: str, tmp_path: Path, files_of: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    files_of(3)
    storage, is_broken = yoga.Storage(tmp_path), True
    documents = [{**document} for document in DOCUMENTS]

    def broken(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if is_broken and document["id"] == 30:
            raise ConnectionError("offline")
        for chunk in chunks(document):
            yield {**chunk, "start": chunk["start"] + (change == "function" and not is_broken)}

    with pytest.raises(ConnectionError):
        storage.submit(yoga.flat_map(documents, broken), "x", "1")
    is_broken = False
    if change == "data":
        for document in documents:
            document["text"] = document["text"].replace("x", "y")
    elif change == "longer":
        documents.append({"text": "more", "id": 40})
    elif change == "shorter":
        for document in documents[2:]:
            document["text"] = ""  # the places of later rows lead to nothing
    expected = [row for document in documents for row in broken(document)]
    assert list(storage.submit(yoga.flat_map(documents, broken), "x", "1")) == expected
    assert "starting over, the interrupted build cannot be continued" in caplog.text


def test_an_interruption_after_starting_over_continues(
    tmp_path: Path, files_of: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    files_of(3)
    storage, stop, plus = yoga.Storage(tmp_path), 33, 0

    def broken(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number, chunk in enumerate(chunks(document)):
            if document["id"] == stop and number == 1:
                raise ConnectionError("offline")
            yield {**chunk, "start": chunk["start"] + plus * (chunk["id"] > 20)}

    for stop, plus in ((33, 0), (23, 1), (37, 1)):  # noqa: B007  # what `broken` sees
        with pytest.raises(ConnectionError):
            storage.submit(yoga.flat_map(DOCUMENTS, broken), "x", "1")
    stop = -1
    expected = [chunk for document in DOCUMENTS for chunk in broken(document)]
    assert list(storage.submit(yoga.flat_map(DOCUMENTS, broken), "x", "1")) == expected
    for stop in (23, 37):
        done = sum(chunk["id"] < stop for chunk in CHUNKS) + 1
        assert f"continuing an interrupted build at row {done}" in caplog.text


def test_a_row_that_gives_fewer_rows_now_takes_none_of_the_next(tmp_path: Path) -> None:
    storage, is_broken = yoga.Storage(tmp_path), True

    def broken(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number, chunk in enumerate(chunks(document)):
            if document["id"] == 15 and number == 2:
                if is_broken:
                    raise ConnectionError("offline")
                return
            if is_broken or document["id"] != 15:
                yield chunk

    with pytest.raises(ConnectionError):
        storage.submit(yoga.flat_map(DOCUMENTS, broken), "x", "1")
    is_broken = False
    found = list(storage.submit(yoga.flat_map(DOCUMENTS, broken), "x", "1"))
    assert found == [chunk for chunk in CHUNKS if chunk["id"] != 15 or chunk["start"] < 8]


def test_places_are_those_of_rows() -> None:
    source = source_of(yoga.flat_map(DOCUMENTS, chunks))
    assert isinstance(source, PlacedSource)
    places = []
    for number, row in enumerate(source.rows(0)):
        assert row == CHUNKS[number]
        places.append(source.place(number))
    for number, place in enumerate(places):
        assert next(source.rows_at(place, number)) == CHUNKS[number]
        assert source.place(number) == place
    assert list(source.rows_at(places[17], 17)) == CHUNKS[17:]


def test_a_stream_is_read_once_and_starts_over(tmp_path: Path) -> None:
    storage, is_broken = yoga.Storage(tmp_path), True

    def broken(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if is_broken and document["id"] == 30:
            raise ConnectionError("offline")
        yield from chunks(document)

    with pytest.raises(ConnectionError):
        storage.submit(yoga.flat_map(Stream(), broken), "x", "1")
    is_broken = False
    assert list(storage.submit(yoga.flat_map(Stream(), broken), "x", "1")) == CHUNKS
