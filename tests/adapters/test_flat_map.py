"""One row to many, as a source: any data, errors that name the row, and builds that continue in a row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own import Mapped
from torch.utils.data import IterableDataset

import torchyoga as yoga
from torchyoga.adapters.sources import source_of
from torchyoga.building.sources import PlacedSource
from torchyoga.errors import SchemaError
from torchyoga.testing import check_source

Submit = Callable[[object, Any], list[Any] | None]
DOCUMENTS = [{"text": "x" * (number * 7 % 30), "id": number} for number in range(40)]


def chunks(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A document in pieces of four letters; none for an empty one."""
    for start in range(0, len(document["text"]), 4):
        yield {"text": document["text"][start : start + 4], "id": int(document["id"]), "start": start}


CHUNKS = [chunk for document in DOCUMENTS for chunk in chunks(document)]


class Broken:
    """Makes chunks, but is offline at some chunk of some document.

    Attributes:
        at: the id of that document, and the number of that chunk; none by default.
        add: how much later than they do chunks start, of documents from `add_from` on.
        seen: the ids of documents.
    """

    def __init__(self, document: int = -1, number: int = 0) -> None:
        self.at = document, number
        self.add = self.add_from = 0
        self.seen: list[int] = []

    def fail(self) -> None:
        raise ConnectionError("offline")

    def __call__(self, document: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.seen.append(int(document["id"]))
        for number, chunk in enumerate(chunks(document)):
            if (document["id"], number) == self.at:
                self.fail()
            yield {**chunk, "start": chunk["start"] + self.add * (chunk["id"] >= self.add_from)}


@pytest.fixture
def submit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Submit:
    """Call it to submit what a function makes of documents: the rows; None if it was offline."""
    caplog.set_level(logging.INFO, "torchyoga")
    storage = yoga.Storage(tmp_path / "storage")

    def submitted(documents: object, make: Any) -> list[Any] | None:
        try:
            return list(storage.submit(yoga.flat_map(documents, make), "x", "1"))
        except ConnectionError:
            return None

    return submitted


DOCUMENTED = Mapped(len(DOCUMENTS), DOCUMENTS.__getitem__)


class Stream(IterableDataset[Any]):
    """An iterable dataset."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(DOCUMENTS)


def a_dataref(folder: Path) -> yoga.DataRef:
    """The documents as a published version."""
    storage = yoga.Storage(folder)
    if ("documents", "1") not in storage.list():
        storage.submit(DOCUMENTS, "documents", "1")
    return storage.fetch("documents", "1")


KINDS: dict[str, Callable[[Path], object]] = {
    "list": lambda folder: DOCUMENTS,
    "map-style": lambda folder: DOCUMENTED,
    "function": lambda folder: lambda: DOCUMENTED,
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
    submit: Submit,
) -> None:
    data, broken = KINDS[kind](tmp_path / "whole"), Broken()
    files_of(rows_per_file)
    for document in (4, 15, 16, 37):
        broken.at = document, 2
        assert submit(data, broken) is None
    broken.seen.clear()
    broken.at = -1, 0
    assert submit(data, broken) == CHUNKS
    done = sum(chunk["id"] < 37 for chunk in CHUNKS) + 2
    assert f"continuing an interrupted build at row {done}" in caplog.text
    assert "starting over" not in caplog.text
    assert len(broken.seen) < 25  # a few to compare them, and those that were left
    assert broken.seen[-3:] == [37, 38, 39]


@pytest.mark.parametrize("change", ["function", "data", "longer", "shorter"])
def test_a_build_of_other_rows_starts_over(
    change: str, files_of: Callable[[int], None], caplog: pytest.LogCaptureFixture, submit: Submit
) -> None:
    files_of(3)
    documents, broken = [{**document} for document in DOCUMENTS], Broken(31)
    assert submit(documents, broken) is None
    broken.at = -1, 0
    if change == "function":
        broken.add = 1
    elif change == "data":
        for document in documents:
            document["text"] = document["text"].replace("x", "y")
    elif change == "longer":
        documents.append({"text": "more", "id": 40})
    else:
        for document in documents[2:]:
            document["text"] = ""  # the places of later rows lead to nothing
    assert submit(documents, broken) == [row for document in documents for row in broken(document)]
    assert "starting over, the interrupted build cannot be continued" in caplog.text


def test_an_interruption_after_starting_over_continues(
    files_of: Callable[[int], None], caplog: pytest.LogCaptureFixture, submit: Submit
) -> None:
    files_of(3)
    broken = Broken()
    broken.add_from = 21
    for document, broken.add in ((33, 0), (23, 1), (37, 1)):
        broken.at = document, 1
        assert submit(DOCUMENTS, broken) is None
    broken.at = -1, 0
    assert submit(DOCUMENTS, broken) == [chunk for document in DOCUMENTS for chunk in broken(document)]
    for document in (23, 37):
        done = sum(chunk["id"] < document for chunk in CHUNKS) + 1
        assert f"continuing an interrupted build at row {done}" in caplog.text


def test_a_row_that_gives_fewer_rows_now_takes_none_of_the_next(submit: Submit) -> None:
    documents, broken = [{**document} for document in DOCUMENTS], Broken(15, 2)
    assert submit(documents, broken) is None
    broken.at = -1, 0
    documents[15]["text"] = "x" * 8
    fewer = [chunk for chunk in CHUNKS if chunk["id"] != 15 or chunk["start"] < 8]
    assert submit(documents, broken) == fewer


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


def test_a_stream_is_read_once_and_starts_over(submit: Submit) -> None:
    assert submit(Stream(), Broken(31)) is None
    assert submit(Stream(), Broken()) == CHUNKS
