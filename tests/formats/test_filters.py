"""Chunks that HDF5 stores with filters: read as h5py reads them; damaged ones of a version are refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin as plugin
import numpy as np
import pytest
from children import status_of_child
from damaged import flip
from waiting import running, switching_often

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.formats.contract import format_named

# -- files of other programs

OPTIONS: dict[str, dict[str, Any]] = {
    "shuffle and gzip": {"compression": "gzip", "shuffle": True},
    "zstd": plugin.Zstd(),
    "bitshuffle and checksums": {**plugin.Bitshuffle(), "fletcher32": True},
    "a lossy one": plugin.Zfp(accuracy=0.001),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_filters_are_left_to_hdf5(kind: str, tmp_path: Path) -> None:
    values = np.cumsum(np.random.default_rng(0).random((100, 33)), axis=1)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(8, 16), **OPTIONS[kind])
        expected = file["x"][...]
    assert np.array_equal(np.stack(list(yoga.from_hdf5(tmp_path / "x.h5", "x"))), expected)


# -- the chunks of a version


def chunks_of(folder: Path, rows: np.ndarray) -> tuple[list[bytes], Callable[..., bytes]]:
    """The chunks of a version as they are stored, and what decodes one, or bytes in its place."""
    storage = yoga.Storage(folder, format="hdf5", compression="gzip")
    ref = storage.submit({"x": rows}, "d", "1", progress=False)
    (file,) = ref.manifest.files
    data = np.fromfile(folder / "d" / "1" / file.name, np.uint8)
    (extent,) = format_named("hdf5").read_extents(data, file.index, ref.manifest.schema)

    places = zip(extent.offsets.tolist(), extent.nbytes.tolist(), strict=True)
    stored = [data[start : start + nbytes].tobytes() for start, nbytes in places]

    def decode(block: int, other: bytes | None = None) -> bytes:
        out = np.empty(extent.block_bytes, np.uint8)
        extent.decode(block, np.frombuffer(stored[block] if other is None else other, np.uint8), out)
        return out.tobytes()

    return stored, decode


def test_chunks_of_a_version_that_do_not_compress(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3 * 1024, 8))
    _, decode = chunks_of(tmp_path, rows)
    assert b"".join(map(decode, range(3))) == rows.tobytes()


def test_chunks_of_a_version_of_another_length_are_refused(tmp_path: Path) -> None:
    """A long one would fill the memory."""
    _, decode = chunks_of(tmp_path / "own", np.zeros((1024, 8), np.int64))
    for name, count in (("short", 512), ("long", 10**6)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            dataset = file.create_dataset(
                "x", data=np.zeros((count, 8), np.int64), chunks=(count, 8), compression="gzip", shuffle=True
            )
            stored = dataset.id.read_direct_chunk((0, 0))[1]
        with pytest.raises(CorruptError, match="a chunk "):
            decode(0, stored)


def test_cut_chunks_of_a_version_are_refused(tmp_path: Path) -> None:
    (stored,), decode = chunks_of(tmp_path, np.arange(1024 * 8).reshape(1024, 8) % 97)
    for cut in (0, 1, 3, 5, len(stored) // 2, len(stored) - 1):
        with pytest.raises(CorruptError):
            decode(0, stored[:cut])


def test_decompressed_values_are_compared_with_their_checksum(tmp_path: Path) -> None:
    """Another intact chunk of the same size: the stored bytes do not show the mistake."""
    rows = np.arange(2).repeat(1024 * 8).reshape(-1, 8)
    stored, decode = chunks_of(tmp_path, rows)
    assert decode(1) == rows[1024:].tobytes()
    with pytest.raises(CorruptError, match="what it decompresses to does not match its checksum"):
        decode(1, stored[0])


@pytest.mark.damages("a chunk is flipped")
def test_an_unchecked_chunk_that_cannot_be_decompressed_is_named_with_its_file(tmp_path: Path) -> None:
    (stored, *_), _ = chunks_of(tmp_path, np.arange(1024))
    (path,) = (tmp_path / "d" / "1").glob("*.h5")
    flip(path, stored, 9)
    with pytest.raises(CorruptError, match=f"{path.name}: block 0: a chunk"):
        list(yoga.Storage(tmp_path).fetch("d", "1", verify=False))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_threads_decode_goes_on(tmp_path: Path) -> None:
    rows = np.arange(5 * 1024 * 8).reshape(-1, 8)
    _, decode = chunks_of(tmp_path, rows)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(64, 8), compression="lzf")
    ref = yoga.from_hdf5(tmp_path / "x.h5", "x", cache_bytes=64 * 64)  # which h5py reads
    stop = threading.Event()

    def work(times: int) -> None:
        for i in range(times):
            block = i % 5
            assert decode(block) == rows[1024 * block : 1024 * block + 1024].tobytes()
            assert ref[700 * block].tolist() == rows[700 * block].tolist()

    def work_on() -> None:
        while not stop.is_set():
            work(5)

    with switching_often(1e-4), running(work_on, work_on, work_on):
        try:
            for _ in range(10):
                assert status_of_child(lambda: work(20)) == 0
        finally:
            stop.set()
