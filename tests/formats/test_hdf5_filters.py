"""Every filter of HDF5 and hdf5plugin, alone and with others: rows equal those that h5py reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin as plugin
import numpy as np
import pytest
from children import status_of_child
from h5py import h5d, h5p, h5s, h5t, h5z

import torchyoga as yoga

Options = dict[str, Any]
Case = tuple[Any, tuple[int, ...], tuple[int, ...], Options]  # type, shape, chunks, other filters

FILTERS: dict[str, Options] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "lzf": {"compression": "lzf"},
    **{f"bitshuffle {c} {n}": plugin.Bitshuffle(n, c) for c in ("none", "lz4", "zstd") for n in (0, 8, 1024)},
    **{
        f"blosc {c} {s}": plugin.Blosc(c, shuffle=s)
        for c in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
        for s in range(3)
    },
    **{
        f"blosc2 {c} {s}": plugin.Blosc2(c, filters=s)
        for c in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for s in range(5)
    },
    **{f"bzip2 {size}": plugin.BZip2(size) for size in (1, 9)},
    "fcidecomp": plugin.FciDecomp(),
    **{f"lz4 {size}": plugin.LZ4(size) for size in (0, 16, 100, 1024, 10**6)},
    **{f"zstd {level}": plugin.Zstd(level) for level in (1, 3, 22)},
}
# Each of these accepts less, and some values that it does not accept end the process, not only the test.
NUMBERS = ("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")
NARROW: dict[str, tuple[Options, tuple[Any, ...], tuple[int, ...]]] = {
    "scale-offset": ({"scaleoffset": 2}, (*NUMBERS, "<f4", "<f8", ">i4", ">f8"), (1, 2, 3)),
    "szip nn": ({"compression": "szip", "compression_opts": ("nn", 16)}, (*NUMBERS, "<f4", ">f8"), (1, 2, 3)),
    "szip ec": ({"compression": "szip", "compression_opts": ("ec", 8)}, (*NUMBERS, "<f4", ">f8"), (1, 2, 3)),
    "htj2k": (plugin.Htj2k(), ("i1", "u1", "<i2", "<u2"), (2,)),
    "zfp rate": (plugin.Zfp(rate=10.0), ("<i4", "<i8", "<f4", "<f8"), (1, 2, 3)),
    "zfp precision": (plugin.Zfp(precision=10), ("<i4", "<i8", "<f4", "<f8"), (1, 2, 3)),
    "zfp accuracy": (plugin.Zfp(accuracy=0.001), ("<f4", "<f8"), (1, 2, 3)),
    "zfp reversible": (plugin.Zfp(reversible=True), ("<i4", "<i8", "<f4", "<f8"), (1, 2, 3)),
    "zfp expert": (
        plugin.Zfp(minbits=1, maxbits=16657, maxprec=64, minexp=-1074), ("<i4", "<f4", "<f8"), (1, 2, 3),
    ),
    "sz absolute": (plugin.SZ(absolute=0.01), ("<i4", "<f4", "<f8"), (1, 2, 3)),
    "sz relative": (plugin.SZ(relative=0.01), ("<i4", "<f4", "<f8"), (1, 2, 3)),
    "sz pointwise": (plugin.SZ(pointwise_relative=0.01), ("<f4", "<f8"), (1, 2, 3)),
    "sz3 absolute": (plugin.SZ3(absolute=0.01), ("<f4", "<f8"), (1, 2, 3)),
    "sz3 norm": (plugin.SZ3(norm2=0.01), ("<f4", "<f8"), (1, 2, 3)),
    "sperr rate": (plugin.Sperr(rate=8), ("<f4", "<f8"), (2, 3)),
    "sperr psnr": (plugin.Sperr(peak_signal_to_noise_ratio=60.0), ("<f4", "<f8"), (2, 3)),
    "sperr absolute": (plugin.Sperr(absolute=0.001, swap=True), ("<f4", "<f8"), (2, 3)),
}  # fmt: skip
RECORD = np.dtype([("a", "<i2"), ("b", "<f4"), ("c", "S3")])
COLOUR = h5py.enum_dtype({"red": 1, "green": 2}, "<i2")
TYPES = (*NUMBERS, "<f2", "<f4", "<f8", "<c8", "<c16", "?", ">i4", ">f8", "S5", RECORD, COLOUR)
# Chunks that divide the rows and that do not, larger than the rows, and than the blocks of filters.
GRIDS = (
    ((1000,), (100,)),
    ((999,), (128,)),
    ((37,), (64,)),
    ((5000,), (4096,)),
    ((40, 33), (8, 16)),
    ((20, 64), (4, 64)),
    ((64, 64), (64, 64)),
    ((10, 20, 19), (3, 8, 19)),
    ((10, 20, 19), (5, 20, 19)),
)
BESIDE: tuple[Options, ...] = (
    {},
    {"shuffle": True},
    {"fletcher32": True},
    {"shuffle": True, "fletcher32": True},
)


def cases(filter: str) -> list[Case]:
    """The cases in which a filter is tested."""
    _, types, dimensions = NARROW.get(filter, (None, TYPES, (1, 2, 3)))
    grids = [grid for grid in GRIDS if len(grid[0]) in dimensions]
    beside = BESIDE if filter in FILTERS else BESIDE[:1]
    return [(dtype, *grid, more) for dtype in types for grid in grids for more in beside]


def values_of(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype, rng = np.dtype(dtype), np.random.default_rng(0)
    count = int(np.prod(shape))
    walk = np.cumsum(rng.integers(0, 3, count)) % 100
    if dtype.names:
        found = np.zeros(count, dtype)
        found["a"], found["b"], found["c"] = walk, walk / 7, walk.astype("S3")
    elif h5py.check_enum_dtype(dtype):
        found = (walk % 2 + 1).astype(dtype)
    elif dtype.kind in "fc":
        found = (walk + rng.random(count)).astype(dtype)
    else:
        found = walk.astype(dtype)
    return found.reshape(shape)


def assert_same(found: Any, expected: Any, what: str) -> None:
    if expected.dtype.names:
        for name in expected.dtype.names:
            assert_same([row[name] for row in found], expected[name], f"{what}, field {name}")
    elif expected.dtype.kind == "S" and expected.ndim == 1:
        assert found == [text.decode() for text in expected.tolist()], what
    else:
        assert np.stack(found).astype(expected.dtype).tobytes() == expected.tobytes(), what


def assert_read_as_h5py_reads(path: Path, what: str) -> None:
    with h5py.File(path) as file:
        expected = file["x"][...]
    assert_same(list(yoga.from_hdf5(path, "x")), expected, what)


def assert_all_read(filter: str, tried: list[Case], path: Path) -> None:
    options = FILTERS[filter] if filter in FILTERS else NARROW[filter][0]
    for dtype, shape, chunks, more in tried:
        how = {"chunks": chunks, "maxshape": (None,) * len(shape), **options, **more}
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values_of(dtype, shape), **how)
        assert_read_as_h5py_reads(path, f"{filter} with {more}: {dtype} {shape} in chunks of {chunks}")


@pytest.mark.quick(
    "none",
    "gzip",
    "lzf",
    "bitshuffle * 8",
    "blosc * 1",
    "blosc2 * 2",
    "bzip2 9",
    "fcidecomp",
    "lz4 100",
    "zstd 3",
    "[!bflnz]*",
    "zfp*",
)
@pytest.mark.parametrize("filter", [*FILTERS, *NARROW])
def test_a_sample_of_what_a_filter_accepts_is_read_correctly(filter: str, tmp_path: Path) -> None:
    found = cases(filter)
    some = found[:: max(1, len(found) // 8)]  # each time another type, and with other filters
    if filter.startswith(("sz", "sp", "ht")):  # they have been seen to end a process
        assert status_of_child(lambda: assert_all_read(filter, some, tmp_path / "x.h5")) == 0
    else:
        assert_all_read(filter, some, tmp_path / "x.h5")


def codes_of(*options: Any) -> list[tuple[int, tuple[int, ...]]]:
    return [(dict(each)["compression"], dict(each)["compression_opts"]) for each in options]


SHUFFLE, GZIP, FLETCHER = (h5z.FILTER_SHUFFLE, (8,)), (h5z.FILTER_DEFLATE, (4,)), (h5z.FILTER_FLETCHER32, ())
LZF, NBIT, SCALE = (h5z.FILTER_LZF, ()), (h5z.FILTER_NBIT, ()), (h5z.FILTER_SCALEOFFSET, (2, 0))
LZ4, BITS, BLOSC, ZSTD, BZIP2 = codes_of(
    plugin.LZ4(100), plugin.Bitshuffle(), plugin.Blosc(), plugin.Zstd(), plugin.BZip2()
)
PIPELINES = {
    "gzip inside lzf": [GZIP, LZF],
    "gzip inside blosc": [SHUFFLE, GZIP, BLOSC],
    "gzip inside bitshuffle": [SHUFFLE, GZIP, BITS, FLETCHER],
    "bitshuffle inside gzip": [BITS, GZIP],
    "checksums inside lzf": [FLETCHER, LZF],
    "checksums inside lz4": [SHUFFLE, FLETCHER, LZ4],
    "checksums inside zstd inside gzip": [FLETCHER, ZSTD, GZIP],
    "shuffled within": [BZIP2, SHUFFLE, LZ4],
    "n-bit inside bitshuffle": [NBIT, BITS],
    "scale-offset inside bitshuffle": [SCALE, BITS, FLETCHER],
    "twice": [BITS, BITS, GZIP, GZIP],
    "four": [SHUFFLE, LZ4, BZIP2, ZSTD, BLOSC],
}


def create(path: Path, pipeline: Any, values: np.ndarray, chunks: tuple[int, ...], masks: Any = ()) -> None:
    """A dataset with these filters; bits of `masks` are filters that the chunks of some rows leave out."""
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk(chunks)
    for code, options in pipeline:
        properties.set_filter(code, h5z.FLAG_OPTIONAL, options)
    with h5py.File(path, "w") as file:
        h5d.create(file.id, b"x", h5t.py_create(values.dtype), h5s.create_simple(values.shape), properties)
        file["x"][...] = values
        for row, (mask, stored) in masks:
            file["x"].id.write_direct_chunk((row, *(0,) * (values.ndim - 1)), stored, mask)


@pytest.mark.parametrize("kind", PIPELINES)
def test_pipelines_of_several_filters(kind: str, tmp_path: Path) -> None:
    create(tmp_path / "x.h5", PIPELINES[kind], np.arange(50 * 33).reshape(50, 33) % 97, (8, 33))
    assert_read_as_h5py_reads(tmp_path / "x.h5", kind)


def stored_by(path: Path, pipeline: Any, values: np.ndarray) -> bytes:
    """A chunk of these values, as a pipeline stores it."""
    create(path, pipeline, values, values.shape)
    with h5py.File(path) as file:
        return file["x"].id.read_direct_chunk((0,) * values.ndim)[1]


def test_filters_that_were_left_out_of_some_chunks(tmp_path: Path) -> None:
    values = np.arange(48 * 16).reshape(48, 16) % 97
    pipeline = [SHUFFLE, BITS, FLETCHER]
    masks = [
        (8 * mask, (mask, stored_by(tmp_path / "part.h5", some, values[8 * mask : 8 * mask + 8])))
        for mask in range(6)
        for some in [[each for i, each in enumerate(pipeline) if not mask >> i & 1]]
    ]
    create(tmp_path / "x.h5", pipeline, np.zeros_like(values), (8, 16), masks)
    with h5py.File(tmp_path / "x.h5") as file:
        assert {file["x"].id.get_chunk_info(i).filter_mask for i in range(6)} == set(range(6))
        assert np.array_equal(file["x"][...], values)
    assert_read_as_h5py_reads(tmp_path / "x.h5", "masks")


def test_values_of_few_bits_in_records(tmp_path: Path) -> None:
    few = h5t.STD_U16LE.copy()
    few.set_precision(9)
    kind = h5t.create(h5t.COMPOUND, 8)
    for i, name in enumerate((b"a", b"b", b"c", b"d")):
        kind.insert(name, 2 * i, few)
    values = np.zeros(100, [(name, "<u2") for name in "abcd"])
    for i, name in enumerate("abcd"):
        values[name] = np.arange(100) * (i + 1)
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((16,))
    for code, options in (NBIT, BITS):
        properties.set_filter(code, h5z.FLAG_OPTIONAL, options)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        h5d.create(file.id, b"x", kind, h5s.create_simple((100,)), properties)
        file["x"][...] = values
        assert len(file["x"].id.get_create_plist().get_filter(0)[2]) > 16
    assert_read_as_h5py_reads(tmp_path / "x.h5", "records of 9 bits")


@pytest.mark.parametrize("compression", [None, "gzip", "lzf", "blosc", "zstd"])
def test_cached_rows_are_read_as_h5py_reads_them(compression: str | None, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path, format="hdf5")
    types = [dtype for dtype in TYPES if np.dtype(dtype).kind in "iufcb" and dtype is not COLOUR]
    shapes = [(dtype, (999, n)) for dtype in types for n in (1, 33)]
    columns = {f"x{i}": values_of(dtype, shape) for i, (dtype, shape) in enumerate(shapes)}
    rows = [{name: values[i] for name, values in columns.items()} for i in range(999)]
    ref = storage.submit(rows, "rows", "1", compression=compression)
    (path,) = (tmp_path / "rows" / "1").glob("*.h5")
    found = ref[list(range(999))]
    with h5py.File(path) as file:
        for name, values in columns.items():
            assert np.array_equal(file["columns"][name][...], values), name
            assert np.array_equal(np.stack([row[name] for row in found]), values), name
