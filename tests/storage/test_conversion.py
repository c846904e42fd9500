"""Conversions of versions from one file format to the other: the same rows under the same fingerprint."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from samples import OTHER, ROWS, submit_damaged
from waiting import at_once

import torchyoga as yoga
from torchyoga.errors import CorruptError, ExistsError, NotFoundError
from torchyoga.formats.contract import FORMATS, format_named
from torchyoga.reading.reader import Reader
from torchyoga.rows.schema import Projection
from torchyoga.testing import assert_rows_equal


@pytest.fixture(params=FORMATS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage", request.param)


def test_a_version_is_converted_in_place(storage: yoga.Storage) -> None:
    before = storage.submit(ROWS, "a", "1")
    assert_rows_equal(before[3], ROWS[3])
    opened, pickled = pickle.loads(pickle.dumps(before)), pickle.dumps(before)
    opened.open()
    after = storage.convert("a", "1", format=OTHER[storage.format])
    (data,) = (path for path in (storage.path / "a" / "1").iterdir() if path.suffix != ".json")
    assert data.suffix == format_named(OTHER[storage.format]).SUFFIX
    assert (after.fingerprint, after.schema) == (before.fingerprint, before.schema)
    # Readers that have it open read on, and a new fetch finds the same rows.
    unopened = pickle.loads(pickled)
    for ref in (before, opened, unopened, after, storage.fetch("a", "1")):
        assert_rows_equal(list(ref), ROWS)
    again = storage.convert("a", "1", format=storage.format)
    assert again.fingerprint == before.fingerprint
    for ref in (unopened, again, pickle.loads(pickled)):
        assert_rows_equal(list(ref), ROWS)
    storage.check("a", "1")
    sampler = yoga.ResumableSampler(before, seed=1)
    sampler.load_state_dict(yoga.ResumableSampler(again, seed=1).state_dict())


def test_a_ref_that_opens_follows_conversions_one_after_the_other(
    storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.submit([{"x": 1}, {"x": 2}], "a", "1", format="lmdb")
    formats, mapped = ["hdf5", "lmdb", "hdf5"], Reader.open

    def map_late(reader: Reader, of: Projection | None) -> None:
        if formats and threading.current_thread() is threading.main_thread():
            at_once(lambda: storage.convert("a", "1", format=formats.pop()))  # as another process might
        mapped(reader, of)

    ref = storage.fetch("a", "1")
    ref = pickle.loads(pickle.dumps(ref))
    with monkeypatch.context() as patched:
        patched.setattr(Reader, "open", map_late)
        assert list(ref) == [{"x": 1}, {"x": 2}]
        assert formats == []
        formats += ["hdf5", "lmdb"]
        assert list(storage.fetch("a", "1")) == [{"x": 1}, {"x": 2}]


def test_a_version_is_converted_beside_the_old_one(storage: yoga.Storage) -> None:
    old = storage.submit(ROWS, "a", "1")
    for compression in ("gzip", None):
        version = f"1 {compression}"
        new = storage.convert("a", "1", format="hdf5", compression=compression, to=version)
        assert_rows_equal(list(new), ROWS)
        assert new.fingerprint == old.fingerprint
        storage.check("a", version)
        back = storage.convert("a", version, format="lmdb", to=f"{version} back")
        assert (back.fingerprint, list(back.schema.columns)) == (old.fingerprint, list(old.schema.columns))
    with pytest.raises(ExistsError, match="'1 gzip' is published already"):
        storage.convert("a", "1", format="lmdb", to="1 gzip")
    with pytest.raises(NotFoundError, match="no version '2'"):
        storage.convert("a", "2", format="lmdb")
    with pytest.raises(ValueError, match="format='zip' is not known"):
        storage.convert("a", "1", format="zip")
    assert_rows_equal(list(storage.fetch("a", "1")), ROWS)


@pytest.mark.damages("a byte of it is changed")
def test_a_damaged_version_is_not_converted(storage: yoga.Storage) -> None:
    data = submit_damaged(storage)
    whole = data.read_bytes()
    with pytest.raises(CorruptError, match="checksum does not match"):
        storage.convert("a", "1", format=OTHER[storage.format])
    assert data.read_bytes() == whole
    assert [path.name for path in (storage.path / ".staging").rglob("*") if path.is_file()] == []


def test_an_empty_version_is_converted(storage: yoga.Storage) -> None:
    for version, data in (("rows", []), ("arrays", np.zeros((0, 3)))):
        old = storage.submit(data, "empty", version)
        new = storage.convert("empty", version, format=OTHER[storage.format])
        assert (len(new), new.schema, new.fingerprint) == (0, old.schema, old.fingerprint)
