"""Columns that are added to versions, replaced and dropped."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError, StateError, YogaError
from torchyoga.process.digests import json_digest
from torchyoga.reading.grouped_reader import GroupedReader
from torchyoga.reading.version_ref import VersionRef
from torchyoga.storage import Storage
from torchyoga.versions.listed import SIZES
from torchyoga.versions.manifest import Manifest

COUNTER = itertools.count()
Rows = list[dict[str, Any]]


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Where a few files and parents make lists."""
    for kind in SIZES:
        monkeypatch.setitem(SIZES, kind, (1, 2, 4))
    if request.param == "directory":
        return Storage(tmp_path / "storage")
    return Storage(f"memory://columns-{next(COUNTER)}", cache_dir=tmp_path / "cache")


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
        assert same(ref[number], rows[number])
    keys = list(rows[0])
    for key in keys:
        assert all(same(one[key], row[key]) for one, row in zip(ref.columns([key]), rows, strict=True))
    picked = [*reversed(keys)][:2]
    for one, row in zip(ref.columns(picked), rows, strict=True):
        assert same(one, {key: row[key] for key in picked})


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other)) and one.dtype == np.asarray(other).dtype
    return bool(one == other)


def test_any_history_gives_what_rows_give(storage: Storage) -> None:
    """Columns that come, change and go between appends, deletions, compactions, removals and sweeps."""
    for seed in range(4):
        random, id, names = np.random.default_rng(seed), f"h{seed}", itertools.count(1)
        first: Rows = [row(random, ["n", "text"]) for _ in range(4)]
        storage.submit(first, id, "0", format="hdf5" if seed % 2 else "lmdb", schema=schema_of(["n", "text"]))
        rows: dict[str, Rows] = {"0": first}
        for _ in range(22):
            before, name = str(random.choice([*rows])), str(next(names))
            old, keys = rows[before], [*rows[before][0]]
            what = random.choice(
                ["append", "add", "add", "replace", "drop", "delete", "compact", "remove", "clean"]
            )
            others = [key for key in ("n", "x", "text", "m", "o") if key not in keys]
            if what == "append":
                new = [row(random, keys) for _ in range(int(random.integers(1, 3)))]
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
            elif what == "delete" and len(old) > 1:
                gone_row = int(random.integers(len(old)))
                storage.delete_rows(id, before, rows=[gone_row], to=name)
                rows[name] = [one for number, one in enumerate(old) if number != gone_row]
            elif what == "compact":
                storage.compact(id, before)
            elif what == "remove" and len(rows) > 1:
                storage.remove(id, before)
                del rows[before]
            elif what == "clean":
                storage.clean(0, id=id)
        for version, expected in rows.items():
            storage.check(id, version)
            ref = storage.fetch(id, version)
            assert_is(ref, expected)
            alone = storage.submit(expected, "alone", f"{seed} {version}", schema=schema_of([*expected[0]]))
            assert ref.fingerprint == alone.fingerprint
            assert yoga.diff(ref, alone).same
            assert ref.stats().rows == len(expected)


def told(storage: Storage, rows: Rows) -> yoga.DataRef:
    """Rows that say what all look like."""
    return storage.submit(rows, "told", str(next(COUNTER)), schema=schema_of([*rows[0]]))
