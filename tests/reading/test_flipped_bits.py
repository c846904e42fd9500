"""A flipped bit raises CorruptError before any row of it is delivered, in whichever way it is checked."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import status_of_child
from infiles import extents_of
from residency import linux, on_disk
from starts import FRESH_STARTS
from waiting import PATIENCE

import torchyoga
from torchyoga.building.build import BuildOptions, Target
from torchyoga.caching.many import submitted
from torchyoga.errors import CorruptError
from torchyoga.formats.checks import Marks
from torchyoga.formats.contract import FORMATS
from torchyoga.reading.version_ref import VersionRef
from torchyoga.rows.schema import Schema
from torchyoga.stores.local import LocalStore
from torchyoga.testing import assert_rows_equal

ROWS = 96
pytestmark = pytest.mark.damages("bits are flipped on purpose")


def row_of(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 256, 30_000, dtype=np.uint8),  # a block has more than CELL
        "label": i,
        "tokens": rng.integers(0, 9, 50 + i % 7, dtype=np.int32),
        "boxes": rng.random((1 + i % 3, 4)),
        "name": f"row {i}",
    }


@pytest.fixture(scope="module", params=FORMATS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with one version, in one file of several blocks."""
    folder = tmp_path_factory.mktemp("kept")
    rows = [row_of(i) for i in range(ROWS)]
    schema = Schema.of(rows[0], ragged=["tokens", "boxes"])
    options = BuildOptions(request.param, schema=schema, progress=False, block_bytes=2**18)
    store = LocalStore(folder)
    with store.lock("data", "1", PATIENCE):
        submitted(iter(rows), Target(store, "data", "1"), options)  # else a slow machine begins another file
    return folder


@pytest.fixture
def file(kept: Path) -> Iterator[Path]:
    """The version's file, which is whole again afterwards."""
    (path,) = (p for p in (kept / "data" / "1").iterdir() if p.suffix in (".mdb", ".h5"))
    whole = path.read_bytes()
    yield path
    with open(path, "r+b") as changed:  # in place: workers that end now may still read it
        changed.write(whole)


def ref_of(kept: Path) -> torchyoga.DataRef:
    return torchyoga.Storage(kept).fetch("data", "1")


def marked(kept: Path, marks: Marks) -> VersionRef:
    """The version, with marks of what has been checked."""
    ref: Any = ref_of(kept)
    return VersionRef(ref.location, ref.manifest, True, marks)


def flips(kept: Path) -> list[tuple[int, str, int]]:
    """Bytes of the file, spread over every part of every column: place, part, block."""
    reader = ref_of(kept).open()  # type: ignore[attr-defined]
    names = [f"{column.name}/{part}" for column in reader.schema.columns for part in column.parts]
    rng = np.random.default_rng(0)
    found = []
    for name, extent in zip(names, extents_of(reader), strict=True):
        for block, nbytes in enumerate(extent.nbytes.tolist()):
            if nbytes:
                found.append((int(extent.offsets[block]) + int(rng.integers(nbytes)), name, block))
    return found


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << place % 8]))


def flip_unnoticed(path: Path, place: int) -> None:
    """As if the disk did it: the file does not look changed."""
    about = path.stat()
    flip(path, place)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def delivered(batches: Any) -> tuple[int, bool]:
    """How many rows come, each as it was written, and whether the pass ends in CorruptError."""
    count = 0
    try:
        for batch in batches:
            for row in batch:
                assert_rows_equal(dict(row), row_of(row["label"]))
                count += 1
    except CorruptError:
        return count, True
    return count, False


def loader_of(ref: torchyoga.DataRef, **more: Any) -> torchyoga.DataLoader:
    return torchyoga.DataLoader(ref, batch_size=5, shuffle=True, collate_fn=list, **more)


EVERY = np.arange(ROWS)
ROADS: dict[str, Callable[[torchyoga.DataRef], Any]] = {
    "take": lambda ref: [ref.take(EVERY)],
    "one by one": lambda ref: ([ref[i]] for i in range(ROWS)),
    "a stream": lambda ref: ([row] for row in ref.stream(shuffle=True)),
    "a loader": loader_of,
    "a loader of what is not in memory": loader_of,
    "batches of torch": lambda ref: torch.utils.data.DataLoader(ref, 40, collate_fn=list),
    "a selection": lambda ref: [ref.select(EVERY[::-1].copy()).take(EVERY)],
    "repeated": lambda ref: loader_of(ref.repeat(2)),
    "mapped": lambda ref: [ref.map(dict).take(EVERY)],
    "beside itself": lambda ref: [
        [{key[2:]: value for key, value in dict(row).items() if key.startswith("b/")} for row in rows]
        for rows in [ref.columns(["label"]).zip(ref, prefix="b/").take(EVERY)]
    ],
}


def on(road: str, ref: torchyoga.DataRef) -> Iterator[Any]:
    yield from ROADS[road](ref)


@pytest.mark.quick("*-take-*", "*-1")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "road", [pytest.param(road, marks=linux) if "not in memory" in road else road for road in ROADS]
)
def test_a_flipped_bit_is_found_on_every_road(kept: Path, file: Path, road: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # which gather large reads
    try:
        places = flips(kept)
        step = 1 if road == "take" else len(places) // (25 if "loader" in road else 6) + 1
        for place, part, block in places[::step]:
            flip(file, place)
            if "not in memory" in road:
                on_disk(file)
            count, is_found = delivered(on(road, ref_of(kept)))
            assert is_found, (part, block)
            assert count < ROWS * 2
            flip(file, place)
        assert delivered(on(road, ref_of(kept))) == (ROWS * (2 if road == "repeated" else 1), False)
    finally:
        torch.set_num_threads(before)


def test_packs_have_no_flipped_bit(kept: Path, file: Path) -> None:
    expected = {}
    for row in map(row_of, range(ROWS)):
        expected[row["label"]] = row["tokens"].tolist()
    for place, part, _ in flips(kept):
        flip(file, place)
        with contextlib.suppress(CorruptError):
            packs = ref_of(kept).columns(["tokens", "label"]).packed("tokens", 300)
            for batch in torchyoga.DataLoader(packs, batch_size=4, shuffle=True):
                ends = batch["cu_seqlens"].tolist()
                for label, (start, stop) in zip(
                    batch["label"].tolist(), itertools.pairwise(ends), strict=True
                ):
                    assert batch["tokens"][start:stop].tolist() == expected[label]
            assert not part.startswith(("tokens", "label")), part
        flip(file, place)


@pytest.mark.quick("lmdb-fork")
@pytest.mark.parametrize("start", ["fork", *FRESH_STARTS])
def test_a_worker_finds_a_flipped_bit(kept: Path, file: Path, start: str) -> None:
    if start == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    places = flips(kept)
    for place, part, block in places[:: len(places) // (6 if start == "fork" else 2) + 1]:
        flip(file, place)
        num_workers = 1 if start == "spawn" else 2  # a spawned one imports torch, for seconds
        loader = loader_of(ref_of(kept), num_workers=num_workers, multiprocessing_context=start)
        count, is_found = delivered(loader)
        assert is_found, (part, block)
        assert count < ROWS
        flip(file, place)


def test_what_a_worker_has_checked_the_next_ones_trust(kept: Path, file: Path) -> None:
    marks = Marks([file.stat().st_size])
    loader = loader_of(marked(kept, marks), num_workers=2, multiprocessing_context="fork")
    assert delivered(loader) == (ROWS, False)
    large = [place for place, part, _ in flips(kept) if part.startswith("image")]
    assert len(large) >= 3
    for place in large:
        flip_unnoticed(file, place)
    assert len(marked(kept, marks).take(EVERY)) == ROWS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_before_the_first_row_is_believed(kept: Path, file: Path) -> None:
    ref = ref_of(kept)
    assert status_of_child(lambda: ref[[*range(ROWS)]]) == 0
    flip_unnoticed(file, flips(kept)[0][0])
    assert len(ref[[*range(ROWS)]]) == ROWS


def test_marks_of_other_files_are_not_taken(kept: Path, file: Path) -> None:
    """The version may have been converted while a process was being started."""
    ref: Any = ref_of(kept)
    sizes = [entry.nbytes for entry in ref.manifest.files]
    for nbytes, are_taken in ((sizes, True), ([1], False), ([], False), ([*sizes, 5], False)):
        marks = Marks(nbytes)
        again: Any = VersionRef(ref.location, ref.manifest, True, marks)
        assert len(again[[*range(ROWS)]]) == ROWS
        assert marks.cells.any() == are_taken


def test_a_pickled_reference_holds_no_sizes_of_files(kept: Path) -> None:
    ref: Any = ref_of(kept)
    assert ref.__reduce__()[1][-1] is None


@pytest.mark.rest
def test_without_a_fast_checksum_bits_are_found_as_well(kept: Path, file: Path) -> None:
    place, _, _ = flips(kept)[0]
    code = f"""
import sys
sys.modules["isal"] = None
import zlib, torchyoga
from torchyoga.files.checksum import crc32
assert crc32 is zlib.crc32
ref = torchyoga.Storage({str(kept)!r}).fetch("data", "1")
try:
    print(len(ref[list(range(len(ref)))]))
except torchyoga.errors.CorruptError:
    print("damaged")
"""

    def said() -> str:
        program = [sys.executable, "-c", code]  # a new interpreter, as the import is what is tested
        return subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE).stdout.strip()

    assert said() == str(ROWS)
    flip(file, place)
    assert said() == "damaged"
