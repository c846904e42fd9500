"""Chunks as HDF5 stores them, decoded with and without HDF5, whole or damaged."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from children import run_program, status_of_child

from torchyoga.errors import CorruptError
from torchyoga.formats.hdf5_filters import FilterPipeline, compression_arguments, memory_file

VALUES = np.round(np.random.default_rng(0).random((40, 7)) * 100).astype("<f8")
OPTIONS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "gzip, shuffled": {"compression": "gzip", "shuffle": True},
    "shuffled": {"shuffle": True},
    "lzf": {"compression": "lzf"},
    "checksums": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "checksums only": {"fletcher32": True},
    "checksums of lzf": {"compression": "lzf", "fletcher32": True},
    "scale-offset": {"scaleoffset": 1},
    "blosc": compression_arguments("blosc"),
    "zstd": compression_arguments("zstd"),
}


Stored = list[tuple[int, np.ndarray]]  # mask and bytes of each chunk


def chunks(options: dict[str, Any], values: np.ndarray = VALUES) -> tuple[FilterPipeline, Stored]:
    with memory_file() as file:
        dataset = file.create_dataset("x", data=values, chunks=(8, *values.shape[1:]), **options)
        file.flush()
        pipeline = FilterPipeline(dataset.id.get_create_plist(), dataset.id.get_type(), dataset.dtype)
        places = [(start, *(0,) * (values.ndim - 1)) for start in range(0, len(values), 8)]
        found = [dataset.id.read_direct_chunk(place) for place in places]
        return pipeline, [(mask, np.frombuffer(data, np.uint8)) for mask, data in found]


@pytest.mark.parametrize("kind", OPTIONS)
def test_chunks_are_decoded_as_hdf5_does(kind: str) -> None:
    pipeline, stored = chunks(OPTIONS[kind])
    out = np.empty(8 * 7 * 8, np.uint8)
    for number in [0, 4, 2, 2, 1, 3]:
        mask, data = stored[number]
        pipeline.decode(data, mask, out)
        assert np.array_equal(out.view("<f8").reshape(8, 7), VALUES[8 * number : 8 * number + 8])


def test_filters_that_a_chunk_left_out_are_not_applied() -> None:
    for options in (OPTIONS["gzip, shuffled"], {"compression": "lzf", "shuffle": True}):
        pipeline, _ = chunks(options)
        raw = VALUES[:8].tobytes()
        shuffled = np.frombuffer(raw, np.uint8).reshape(-1, 8).T.tobytes()
        out = np.empty(8 * 7 * 8, np.uint8)
        stored = {3: raw, 2: shuffled}
        if options["compression"] == "gzip":
            stored |= {1: zlib.compress(raw), 0: zlib.compress(shuffled)}
        for mask, data in itertools.chain(stored.items(), stored.items()):
            pipeline.decode(np.frombuffer(data, np.uint8), mask, out)
            assert out.tobytes() == raw


@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind not in ("shuffled", "scale-offset")])
def test_damaged_chunks_are_refused(kind: str) -> None:
    pipeline, stored = chunks(OPTIONS[kind])
    mask, data = stored[0]
    out = np.empty(8 * 7 * 8, np.uint8)
    # HDF5 itself does not notice that a chunk is cut in half, unless it has a checksum.
    cuts = (0, 1) if kind in ("lzf", "zstd", "blosc") else (0, 1, 3, 5, len(data) // 2, len(data) - 1)
    flips = range(0, len(data), 5) if kind.startswith("checksums") else ()
    flipped = [np.concatenate([data[:i], data[i : i + 1] ^ 8, data[i + 1 :]]) for i in flips]
    for bad in [*(data[:cut] for cut in cuts), *flipped]:
        with pytest.raises(CorruptError):
            pipeline.decode(bad, mask, out)
    pipeline.decode(data, mask, out)  # the pipeline still works
    assert np.array_equal(out.view("<f8").reshape(8, 7), VALUES[:8])


@pytest.mark.parametrize("kind", ["blosc", "zstd"])
def test_a_chunk_of_another_length_is_refused(kind: str) -> None:
    # HDF5 would read beyond its end.
    pipeline, _ = chunks(OPTIONS[kind])
    _, other = chunks(OPTIONS[kind], np.random.default_rng(0).random((8, 6)))
    _, huge = chunks(OPTIONS[kind], np.zeros((8, 10**6)))
    for _, data in (*other, *huge):
        with pytest.raises(CorruptError, match="instead of 448"):
            pipeline.decode(data, 0, np.empty(8 * 7 * 8, np.uint8))
    with pytest.raises(CorruptError, match="a chunk holds 20 bytes instead of 448"):
        pipeline.decode(np.zeros(20, np.uint8), 1, np.empty(8 * 7 * 8, np.uint8))


def test_a_chunk_that_would_fill_the_memory_is_refused() -> None:
    pipeline, _ = chunks(OPTIONS["gzip"])
    bomb = np.frombuffer(zlib.compress(bytes(10**8)), np.uint8)
    with pytest.raises(CorruptError, match="decompresses to more than 960 bytes"):
        pipeline.decode(bomb, 0, np.empty(8 * 7 * 8, np.uint8))


@pytest.mark.parametrize("kind", ["checksums", "checksums only", "checksums of lzf"])
def test_a_chunk_that_hdf5_converts_is_not_shorter_than_its_checksum(kind: str) -> None:
    # Where HDF5 converts, it undoes all filters, and would read a checksum from before the beginning of a
    # chunk.
    with memory_file() as file:
        dataset = file.create_dataset("x", data=VALUES.astype(">f4"), chunks=(8, 7), **OPTIONS[kind])
        file.flush()
        pipeline = FilterPipeline(dataset.id.get_create_plist(), dataset.id.get_type(), np.dtype("<f8"), True)
        mask, data = dataset.id.read_direct_chunk((8, 0))
    stored, out = np.frombuffer(data, np.uint8), np.empty(8 * 7 * 8, np.uint8)
    for size in (0, 1, 3):
        with pytest.raises(CorruptError, match="a chunk is shorter than its checksum"):
            pipeline.decode(stored[:size], mask, out)
    pipeline.decode(stored, mask, out)
    assert np.array_equal(out.view("<f8").reshape(8, 7), VALUES[8:16].astype("<f4"))


def test_bytes_that_shuffle_does_not_divide() -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(24 * 5), "V5")
    pipeline, stored = chunks({"compression": "gzip", "shuffle": True}, values)
    out = np.empty(40, np.uint8)
    for number, (mask, data) in enumerate(stored):
        pipeline.decode(data, mask, out)
        assert out.tobytes() == values[8 * number : 8 * number + 8].tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_threads_decode_goes_on() -> None:
    pipeline, stored = chunks(OPTIONS["lzf"])
    stop = threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads meet more often

    def decode(times: int) -> None:
        out = np.empty(8 * 7 * 8, np.uint8)
        for i in range(times):
            pipeline.decode(stored[i % 5][1], stored[i % 5][0], out)
            assert np.array_equal(out.view("<f8").reshape(8, 7), VALUES[8 * (i % 5) : 8 * (i % 5) + 8])

    def work() -> None:
        while not stop.is_set():
            decode(5)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert status_of_child(lambda: decode(50)) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(300)
        sys.setswitchinterval(interval)


def output_of(code: str) -> str:
    finished = run_program(code)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


MEMORY = """
import resource
import numpy as np
from torchyoga.formats.hdf5_filters import FilterPipeline, memory_file
values = np.random.default_rng(0).integers(0, 50, (64, 4096))
with memory_file() as file:
    dataset = file.create_dataset("x", data=values, chunks=(8, 4096), compression="lzf", shuffle=True)
    file.flush()
    pipeline = FilterPipeline(dataset.id.get_create_plist(), dataset.id.get_type(), dataset.dtype)
    stored = [dataset.id.read_direct_chunk((8 * i, 0)) for i in range(8)]
out = np.empty(8 * 4096 * 8, np.uint8)
def decode(times):
    for i in range(times):
        mask, data = stored[i % 8]
        pipeline.decode(np.frombuffer(data, np.uint8), mask, out)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = decode(100)
print(decode(3000) - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="other systems report memory in another unit"
)
def test_decoding_by_hdf5_does_not_fill_the_memory() -> None:
    assert int(output_of(MEMORY)) < 20 * 1024  # KiB, while 750 MB went through


def test_an_error_names_a_compression_that_is_missing() -> None:
    with pytest.raises(ValueError, match=r"compression='zip' is not known; choose one of \['gzip', 'lzf'"):
        compression_arguments("zip")
    code = (
        "import sys; sys.modules['hdf5plugin'] = None\n"
        "from torchyoga.formats.hdf5_filters import compression_arguments\n"
        "try: compression_arguments('zstd')\n"
        "except ValueError as error: print(error)\n"
    )
    assert (
        output_of(code).strip() == "compression='zstd' needs the package hdf5plugin; pip install hdf5plugin"
    )


def test_memory_files_do_not_share_their_content() -> None:
    with memory_file() as one, memory_file() as other:
        one["x"], other["x"] = 1, 2
        assert (one["x"][()], other["x"][()]) == (1, 2)
        assert isinstance(one, h5py.File)
