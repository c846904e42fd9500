"""Chunks as HDF5 stores them, decoded with and without HDF5, whole or damaged."""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from children import run_program, status_of_child

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.formats.contract import format_named
from torchyoga.formats.hdf5_filters import (
    Filter,
    announced,
    compression_arguments,
    decoded,
    filters_of,
)

VALUES = np.round(np.random.default_rng(0).random((40, 7)) * 100).astype("<f8")
OPTIONS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "gzip, shuffled": {"compression": "gzip", "shuffle": True},
    "shuffled": {"shuffle": True},
}


Stored = list[tuple[int, np.ndarray]]  # mask and bytes of each chunk


def chunks(options: dict[str, Any], values: np.ndarray = VALUES) -> tuple[Any, Stored]:
    with h5py.File.in_memory() as file:
        dataset = file.create_dataset("x", data=values, chunks=(8, *values.shape[1:]), **options)
        file.flush()
        places = [(start, *(0,) * (values.ndim - 1)) for start in range(0, len(values), 8)]
        found = [dataset.id.read_direct_chunk(place) for place in places]
        filters = filters_of(dataset.id.get_create_plist())
        return filters, [(mask, np.frombuffer(data, np.uint8)) for mask, data in found]


def test_other_filters_are_left_to_hdf5() -> None:
    for options in ({"compression": "lzf"}, {"fletcher32": True}, compression_arguments("zstd")):
        assert chunks(options)[0] is None
    assert chunks({})[0] == ()


@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind != "shuffled"])
def test_damaged_chunks_are_refused(kind: str) -> None:
    filters, stored = chunks(OPTIONS[kind])
    mask, data = stored[0]
    cuts = (0, 1, 3, 5, len(data) // 2, len(data) - 1)
    for cut in cuts:
        with pytest.raises(CorruptError):
            decoded(filters, data[:cut], mask, 8 * 7 * 8)


def test_a_chunk_of_another_length_is_not_given_to_hdf5() -> None:
    """HDF5 would read beyond its end."""
    for kind in ("blosc", "zstd", "lzf"):
        for columns in (6, 7, 10**5):
            _, ((_, data),) = chunks(compression_arguments(kind), np.zeros((8, columns)))
            assert announced(kind, data) == 8 * columns * 8


def test_a_chunk_that_would_fill_the_memory_is_refused() -> None:
    bomb = np.frombuffer(zlib.compress(bytes(10**8)), np.uint8)
    with pytest.raises(CorruptError, match="decompresses to more than 960 bytes"):
        decoded(chunks(OPTIONS["gzip"])[0], bomb, 0, 8 * 7 * 8)


def test_bytes_that_shuffle_does_not_divide() -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(24 * 5), "V5")
    filters, stored = chunks({"compression": "gzip", "shuffle": True}, values)
    assert filters[0].size == Filter(0, 5).size
    for number, (mask, data) in enumerate(stored):
        found = decoded(filters, data, mask, 40)
        assert found.tobytes() == values[8 * number : 8 * number + 8].tobytes()


# -- the chunks of a version


def chunks_of(folder: Path, compression: str, rows: np.ndarray) -> Callable[[int], bytes]:
    """Decodes a chunk of a version."""
    storage = yoga.Storage(folder, format="hdf5", compression=compression)
    ref = storage.submit({"x": rows}, "d", "1", progress=False)
    (file,) = ref.manifest.files
    data = np.fromfile(folder / "d" / "1" / file.name, np.uint8)
    (extent,) = format_named("hdf5").read_extents(data, file.index, ref.manifest.schema)
    assert extent.decode is not None

    def decode(block: int) -> bytes:
        out = np.empty(extent.block_bytes, np.uint8)
        start = int(extent.offsets[block])
        extent.decode(block, data[start : start + int(extent.nbytes[block])], out)
        return out.tobytes()

    return decode


@pytest.mark.parametrize("compression", ["gzip", "lzf", "blosc", "zstd"])
def test_chunks_of_a_version_that_do_not_compress(compression: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3 * 1024, 8))
    decode = chunks_of(tmp_path, compression, rows)
    assert b"".join(map(decode, range(3))) == rows.tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_threads_decode_goes_on(tmp_path: Path) -> None:
    rows = np.arange(5 * 1024 * 8).reshape(-1, 8)
    decode = chunks_of(tmp_path, "lzf", rows)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(64, 8), compression="lzf")
    ref = yoga.from_hdf5(tmp_path / "x.h5", "x", cache_bytes=64 * 64)  # which h5py reads
    stop = threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads meet more often

    def work(times: int) -> None:
        for i in range(times):
            block = i % 5
            assert decode(block) == rows[1024 * block : 1024 * block + 1024].tobytes()
            assert ref[700 * block].tolist() == rows[700 * block].tolist()

    def work_on() -> None:
        while not stop.is_set():
            work(5)

    threads = [threading.Thread(target=work_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert status_of_child(lambda: work(20)) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(300)
        sys.setswitchinterval(interval)


def output_of(code: str, *arguments: str) -> str:
    finished = run_program(code, *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from formats.test_filters import chunks_of
decode = chunks_of(Path(sys.argv[1]), "lzf", np.random.default_rng(0).integers(0, 50, (8 * 1024, 8)))
def decoded(times):
    for i in range(times):
        decode(i % 8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = decoded(100)
print(decoded(6000) - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="other systems report memory in another unit"
)
def test_decoding_by_hdf5_does_not_fill_the_memory(tmp_path: Path) -> None:
    found = output_of(MEMORY, str(tmp_path), str(Path(__file__).parents[1]))
    assert int(found) < 20 * 1024  # KiB, while 375 MB went through


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
