"""HDF5 files of users: every way to store rows is read as h5py reads it, or refused by name."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from children import forked, run_program, started
from h5py import h5d, h5p, h5s, h5t
from hypothesis import given
from hypothesis import strategies as st
from interrupting import calls_of

import torchyoga as yoga
import torchyoga.adapters.hdf5 as adapter
from torchyoga.errors import BusyError, CorruptError, NotFoundError, SchemaError
from torchyoga.testing import assert_rows_equal, check_dataref, check_source

N = 37
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 6, 5), dtype=np.uint8)
FLOATS = RNG.random((N, 6, 5)).astype(np.float32)


def create(
    dtype: Any, shape: tuple[int, ...] = (N,), write: Any = None, **options: Any
) -> Callable[[Any], None]:
    def make(file: Any) -> None:
        dataset = file.create_dataset("x", shape, dtype, **options)
        if write is not None:
            dataset[...] = write

    return make


def of(values: Any, **options: Any) -> Callable[[Any], None]:
    return lambda file: file.create_dataset("x", data=values, **options)


def partly(dtype: Any, fillvalue: Any, **options: Any) -> Callable[[Any], None]:
    """Chunks in the middle are never written."""

    def make(file: Any) -> None:
        dataset = file.create_dataset("x", (N, 4), dtype, chunks=(5, 3), fillvalue=fillvalue, **options)
        dataset[10:20, :2] = np.arange(20).reshape(10, 2)

    return make


def of_type(type_id: h5t.TypeID, values: Any, **chunks: Any) -> Callable[[Any], None]:
    """Values of a type that NumPy does not have, converted by HDF5."""

    def make(file: Any) -> None:
        properties = h5p.create(h5p.DATASET_CREATE)
        if chunks:
            properties.set_chunk(chunks["chunks"])
        if chunks.get("nbit"):
            properties.set_filter(5, h5py.h5z.FLAG_OPTIONAL, ())
        h5d.create(file.id, b"x", type_id, h5s.create_simple(values.shape), properties)
        file["x"][...] = values

    return make


def of_12_bits() -> h5t.TypeID:
    found = h5t.STD_U16LE.copy()
    found.set_precision(12)
    found.set_offset(2)
    return found


def bfloat16() -> h5t.TypeID:
    found = h5t.IEEE_F32LE.copy()
    found.set_fields(15, 7, 8, 0, 7)
    found.set_size(2)
    found.set_ebias(127)
    return found


def padded_text(padding: int) -> Callable[[Any], None]:
    def make(file: Any) -> None:
        kind = h5t.C_S1.copy()
        kind.set_size(6)
        kind.set_strpad(padding)
        h5d.create(file.id, b"x", kind, h5s.create_simple((3,)))
        fill = b" " if padding == h5t.STR_SPACEPAD else b"\0"
        values = np.array([text.ljust(6, fill) for text in (b"", b"abc", b"a cde")])
        file["x"].id.write(h5s.ALL, h5s.ALL, values, kind)

    return make


def committed(file: Any) -> None:
    file["type"] = np.dtype("<i4")
    file.create_dataset("x", data=np.arange(N), dtype=file["type"])


def shrunk(file: Any) -> None:
    dataset = file.create_dataset("x", (3 * N, 6), "i4", chunks=(4, 4), maxshape=(None, None))
    dataset[...] = np.arange(3 * N * 6).reshape(-1, 6)
    dataset.resize((N, 5))


def grown(file: Any) -> None:
    dataset = file.create_dataset("x", (3, 2), "i4", chunks=(4, 4), maxshape=(None, None), fillvalue=7)
    dataset[...] = 1
    dataset.resize((N, 9))


def masked(file: Any) -> None:
    """Two chunks, one of which has left out its filter."""
    dataset = file.create_dataset("x", (8,), "i8", chunks=(4,), compression="gzip", shuffle=True)
    dataset[:4] = np.arange(4)
    dataset.id.write_direct_chunk((4,), np.arange(4, 8).tobytes(), 3)


def compact(file: Any) -> None:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_layout(h5d.COMPACT)
    h5d.create(file.id, b"x", h5t.STD_I32LE, h5s.create_simple((N, 2)), properties)
    file["x"][...] = np.arange(2 * N).reshape(N, 2)


def virtual(file: Any) -> None:
    file["a"], file["b"] = FLOATS[:20], FLOATS[20:]
    layout = h5py.VirtualLayout((N, 6, 5), "<f4")
    layout[:20], layout[20:] = h5py.VirtualSource(file["a"]), h5py.VirtualSource(file["b"])
    file.create_virtual_dataset("x", layout)


def soft_link(file: Any) -> None:
    file["deep/er/data"] = FLOATS
    file["deep/link"] = h5py.SoftLink("er/data")
    file["x"] = h5py.SoftLink("/deep/./link")


RECORD = np.dtype(
    [("id", "<i4"), ("pos", ">f4", (3,)), ("name", "S5"), ("in", [("flag", "?"), ("z", "<c8")])]
)
RECORDS = np.zeros(N, RECORD)
RECORDS["id"], RECORDS["pos"] = np.arange(N), RNG.random((N, 3))
RECORDS["name"] = [b"n%d" % i for i in range(N)]
RECORDS["in"]["flag"], RECORDS["in"]["z"] = np.arange(N) % 3 == 0, RNG.random(N) * 1j
PADDED = np.zeros(
    (N, 2, 3), {"names": ["a", "b"], "formats": ["<i2", "<f8"], "offsets": [3, 8], "itemsize": 24}
)
PADDED["a"], PADDED["b"] = RNG.integers(0, 99, PADDED.shape), RNG.random(PADDED.shape)
TEXTS = [text.encode() for text in ("", "abc", "Grüße", "日本" * 50, "a\n", *map(str, range(N - 5)))]

RAGGED = np.array([np.arange(i % 5, dtype=np.int32) for i in range(N)], object)

WAYS: dict[str, Callable[[Any], None]] = {
    "contiguous": of(IMAGES),
    "chunked by rows": of(IMAGES, chunks=(4, 6, 5)),
    "chunked by h5py": of(FLOATS, chunks=True),
    "chunked across rows": of(FLOATS, chunks=(5, 4, 2)),
    "chunks of columns": of(FLOATS, chunks=(N, 1, 5)),
    "chunks larger than the data": of(FLOATS, chunks=(64, 9, 7), maxshape=(None,) * 3),
    "single chunk": of(FLOATS, chunks=FLOATS.shape),
    "scalars": of(np.arange(N)),
    "empty rows": create("i8", (N, 0)),
    "no rows": create("i8", (0, 3), maxshape=(None, 3)),
    "gzip": of(FLOATS, chunks=(5, 6, 5), compression="gzip"),
    "gzip, across rows": of(FLOATS, chunks=(5, 4, 2), compression="gzip", shuffle=True),
    "lzf": create("f4", FLOATS.shape, np.round(FLOATS), chunks=(5, 6, 5), compression="lzf", shuffle=True),
    "lzf of noise": of(IMAGES, chunks=(5, 6, 5), compression="lzf"),
    "checksums": of(FLOATS, chunks=(5, 6, 5), fletcher32=True),
    "gzip and checksums": of(FLOATS, fletcher32=True, compression="gzip"),
    "scale-offset of floats": of(FLOATS, chunks=(5, 6, 5), scaleoffset=2),
    "scale-offset of ints": create("i4", (N, 3), np.arange(3 * N).reshape(N, 3), scaleoffset=0),
    "big-endian": create(">f4", FLOATS.shape, FLOATS),
    "big-endian scalars": create(">u2", (N,), np.arange(N)),
    "big-endian, gzip": create(
        ">i4", (N, 3), np.arange(3 * N).reshape(N, 3), compression="gzip", shuffle=True
    ),
    "half": create("<f2", FLOATS.shape, FLOATS),
    "double": of(RNG.random((N, 3))),
    "complex": of(RNG.random(N) * 1j),
    "bool": of(RNG.random((N, 2)) < 0.5),
    "enum": create(h5py.enum_dtype({"red": 1, "green": 42}, "<i2"), (N,), 42),
    "array type": create(np.dtype(("<f4", (2, 3))), (N,), RNG.random((N, 2, 3)), chunks=(5,)),
    "dates": create(
        h5py.opaque_dtype(np.dtype("M8[s]")),
        (N,),
        np.arange(N).astype("M8[s]").astype(h5py.opaque_dtype(np.dtype("M8[s]"))),
    ),
    "fill values": partly("i4", -1),
    "fill values, gzip": partly("i4", 77, compression="gzip"),
    "fill values of 0": partly("f8", None),
    "fill values of 12 bits": of_type(of_12_bits(), np.arange(2 * N).reshape(N, 2), chunks=(5, 2)),
    "never written": create("f4", (N, 3), fillvalue=2.5),
    "never written, chunked": create("f4", (N, 3), fillvalue=2.5, chunks=(5, 2)),
    "never written, big-endian": create(">i4", (N, 3), fillvalue=9, chunks=(5, 3), compression="gzip"),
    "shrunk": shrunk,
    "grown": grown,
    "filter left out": masked,
    "12 bits": of_type(of_12_bits(), np.arange(N) * 100),
    "12 bits, packed": of_type(of_12_bits(), np.arange(N) * 100, chunks=(5,), nbit=True),
    "bfloat16": of_type(bfloat16(), np.arange(2 * N).reshape(N, 2) * 0.5),
    "bfloat16, chunked across rows": of_type(bfloat16(), FLOATS, chunks=(4, 4, 3)),
    "compact": compact,
    "virtual, in the file": virtual,
    "committed type": committed,
    "soft links": soft_link,
    "texts in rows": of(np.array([[b"ab", b"c"]] * N)),
    "texts": of(TEXTS, dtype=h5py.string_dtype()),
    "texts, gzip": of(TEXTS, dtype=h5py.string_dtype(), chunks=(4,), compression="gzip"),
    "texts of fixed length": of(TEXTS, dtype=h5py.string_dtype("utf-8", 400)),
    "texts as bytes": of(np.array(TEXTS)),
    "arrays of varying length": create(h5py.vlen_dtype(np.int32), write=RAGGED),
    "compound": of(RECORDS),
    "compound, chunked": of(RECORDS, chunks=(5,)),
    "compound, gzip": of(RECORDS, compression="gzip", shuffle=True),
    "compound with gaps": of(PADDED),
    "compound with gaps, chunked": of(PADDED, chunks=(5, 2, 3)),
    "compound with gaps, across rows": of(PADDED, chunks=(4, 1, 2)),
}


def native(value: Any) -> Any:
    """The value as a DataRef gives it: in this machine's byte order, compound values as dicts."""
    value = np.asarray(value)
    if value.dtype.names:
        return {name: native(value[name]) for name in value.dtype.names}
    if value.dtype.kind == "S" and not value.ndim:
        return value.item().decode()
    value = value.astype(value.dtype.newbyteorder("="))
    return value if value.ndim else value[()]


def written(path: Path, make: Callable[[Any], None], **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        make(file)
    return path


@pytest.mark.parametrize("layout", ["earliest", "latest", "user block"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_what_h5py_reads(way: str, layout: str, tmp_path: Path) -> None:
    # MATLAB's files begin with a block of the user's.
    options: Any = {"userblock_size": 1024} if layout == "user block" else {"libver": layout}
    path = written(tmp_path / "x.h5", WAYS[way], **options)
    with h5py.File(path) as file:
        expected = [native(row) for row in file["x"][...]]
        as_one_by_one = [native(file["x"][i]) for i in range(len(expected))]
    assert_rows_equal(expected, as_one_by_one)
    ref = yoga.from_hdf5(path, {"x": "x"})
    assert len(ref) == len(expected)
    order = RNG.permutation(np.repeat(np.arange(len(expected)), 3))
    for index, row in zip(order, ref[order.tolist()], strict=True):
        assert_rows_equal(row, {"x": expected[index]}, f"row {index}")
    assert_rows_equal(list(yoga.from_hdf5(path, "x")), expected)
    assert_rows_equal([ref[i] for i in range(len(ref))], [{"x": row} for row in expected])


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data(), st.booleans())
def test_any_shape_and_any_chunks(tmp_path_factory, shape, data, compressed) -> None:  # type: ignore[no-untyped-def]
    chunks = tuple(data.draw(st.integers(1, 8)) for _ in shape)
    path = tmp_path_factory.mktemp("grid") / "x.h5"
    values = np.arange(np.prod(shape), dtype=data.draw(st.sampled_from(["<i4", ">i2", "u1"]))).reshape(shape)
    written_part = tuple(slice(data.draw(st.integers(0, n)), None) for n in shape)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", shape, values.dtype, chunks=chunks, maxshape=(None,) * len(shape), fillvalue=3,
            compression="gzip" if compressed else None,
        )  # fmt: skip
        dataset[written_part] = values[written_part]
        expected = dataset[...]
    order = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=9))
    found = yoga.from_hdf5(path, "x", cache_bytes=data.draw(st.sampled_from([0, 100, 10**6])))[order]
    assert_rows_equal(found, [native(expected[i]) for i in order])
    path.unlink()


@pytest.mark.parametrize("padding", [h5t.STR_NULLTERM, h5t.STR_NULLPAD, h5t.STR_SPACEPAD])
def test_text_of_fixed_length_ends_where_its_padding_begins(padding: int, tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", padded_text(padding))
    assert list(yoga.from_hdf5(path, "x")) == ["", "abc", "a cde"]


def test_arrays_of_varying_length_are_ragged(tmp_path: Path) -> None:
    ref = yoga.from_hdf5(written(tmp_path / "x.h5", WAYS["arrays of varying length"]), {"tokens": "x"})
    check_source(lambda: ref, [{"tokens": row} for row in RAGGED], tmp_path / "storage")


def test_names_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["train/x"], file["train/y"] = FLOATS, np.arange(N)
        file["label"], file["image"] = np.arange(N), IMAGES
        file["elsewhere"] = h5py.ExternalLink("other.h5", "x")
    ref = yoga.from_hdf5(path, {"image": "train/x", "label": "/train/y"})
    assert_rows_equal(ref[5], {"image": FLOATS[5], "label": np.int64(5)})
    assert list(yoga.from_hdf5(path, ["train/y", "label"])[4]) == ["train/y", "label"]
    assert_rows_equal(yoga.from_hdf5(path)[5], {"image": IMAGES[5], "label": np.int64(5)})
    assert_rows_equal(yoga.from_hdf5(path, "train/x")[-1], FLOATS[-1])
    assert "37 rows" in repr(ref)


_READING = """
import ctypes, sys
import torchyoga as yoga

ref = yoga.from_hdf5(sys.argv[1])
row = ref[3]
ctypes.pythonapi.Py_IncRef(ctypes.py_object(ref))  # as a worker's frames: it is there when HDF5 cleans up
"""
_BUILDING = """
import sys, threading
import numpy as np
import torchyoga as yoga

begun = threading.Event()

def rows():
    yield from [np.zeros(2**17)] * 20
    begun.set()
    threading.Event().wait()

storage = yoga.Storage(sys.argv[1] + "-storage", format="hdf5")
threading.Thread(target=storage.submit, args=(rows(), "d", "1"), daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("program", [_READING, _BUILDING], ids=["reading", "building"])
def test_a_process_ends_well_while_its_file_is_open(program: str, tmp_path: Path) -> None:
    # HDF5 reads and writes through file objects of Python, which it closes by itself at the end.
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("y", data=np.arange(N, dtype=">i8"), compression="gzip")
    command = [sys.executable, "-c", program, str(tmp_path / "x.h5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- files whose bytes are not in the usual places


def test_a_read_only_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", WAYS["chunked by rows"])
    path.chmod(stat.S_IRUSR)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert_rows_equal(yoga.from_hdf5(path, "x")[[3, 0]], [IMAGES[3], IMAGES[0]])
        assert os.listdir(tmp_path) == ["x.h5"]
    finally:
        tmp_path.chmod(stat.S_IRWXU)


SWMR = """
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w", libver="latest") as file:
    how = {"compression": "lzf"} if sys.argv[2] else {}
    dataset = file.create_dataset("x", (0, 3), "i4", chunks=(4, 3), maxshape=(None, 3), **how)
    file.swmr_mode = True
    for rows in (10, 15):
        dataset.resize((rows, 3))
        dataset[-10:] = np.arange(30).reshape(10, 3)
        dataset.flush()
        print(rows, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("compression", ["", "lzf"])
def test_a_file_that_is_written_in_swmr_mode_gives_the_rows_it_has(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with started(SWMR, str(path), compression) as writer:
        assert writer.stdout.readline() == "10\n"
        first = yoga.from_hdf5(path, "x")
        assert_rows_equal(list(first), list(np.arange(30, dtype=np.int32).reshape(10, 3)))
        writer.stdin.write("\n")
        assert writer.stdout.readline() == "15\n"
        assert len(first) == 10
        assert len(yoga.from_hdf5(path, "x")) == 15
        writer.stdin.write("\n")
        assert writer.wait() == 0
    assert len(yoga.from_hdf5(path, "x")) == 15


WRITER = """
import sys, h5py
with h5py.File(sys.argv[1], "a") as file:
    file["y"] = 1
    print("open", flush=True)
    sys.stdin.readline()
"""


def test_a_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", WAYS["contiguous"])
    with started(WRITER, str(path)) as writer:
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(BusyError, match=r"x.h5 is open for writing .*close it in its writer first"):
            yoga.from_hdf5(path, "x")
        writer.stdin.close()
        assert writer.wait() == 0


# -- processes and threads


@pytest.mark.quick("contiguous", "gzip", "texts")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "way", ["contiguous", "chunked across rows", "gzip", "lzf", "virtual, in the file", "texts"]
)
def test_children_forked_after_reading_read_every_row(way: str, tmp_path: Path) -> None:
    ref = yoga.from_hdf5(written(tmp_path / "x.h5", WAYS[way]), "x", cache_bytes=2000)
    before = list(ref)
    children = []
    for seed in range(4):

        def reads_all(seed: int = seed) -> None:
            order = np.random.default_rng(seed).permutation(np.repeat(np.arange(N), 20))
            for i, row in zip(order.tolist(), ref[order.tolist()], strict=True):
                assert_rows_equal(row, before[i])

        children.append(forked(reads_all))
    order = RNG.permutation(np.repeat(np.arange(N), 20)).tolist()  # the parent reads at the same time
    for i, row in zip(order, ref[order], strict=True):
        assert_rows_equal(row, before[i])
    assert [wait() for wait in children] == [0] * 4


@pytest.mark.parametrize("way", ["contiguous", "gzip", "lzf", "virtual, in the file"])
def test_threads_read_the_same(way: str, tmp_path: Path) -> None:
    ref = yoga.from_hdf5(written(tmp_path / "x.h5", WAYS[way]), "x", cache_bytes=1500)  # for a few chunks
    assert ref.is_thread_safe
    check_dataref(ref)


def test_it_pickles_by_path(tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", WAYS["gzip"])
    ref = yoga.from_hdf5(path, "x")
    packed = pickle.dumps(ref)
    assert len(packed) < 1000
    assert_rows_equal(list(pickle.loads(packed)), list(ref))
    again = pickle.loads(packed)
    assert again.fingerprint == ref.fingerprint
    with h5py.File(path, "a") as file:
        file["x"][0] = 0
    with pytest.raises(NotFoundError, match="has changed since this DataRef was made"):
        pickle.loads(packed)
    assert yoga.from_hdf5(path, "x").fingerprint != ref.fingerprint


def test_a_cache_of_chunks_is_bounded_and_decodes_once(tmp_path: Path) -> None:
    values = np.arange(1000 * 100, dtype=np.int64).reshape(1000, 100)  # 100 chunks of 8,000 bytes
    path = written(tmp_path / "x.h5", of(values, chunks=(10, 100), compression="gzip"))
    roomy, tight = (yoga.from_hdf5(path, "x", cache_bytes=size) for size in (2**20, 10 * 8000))
    order = RNG.permutation(1000).tolist()
    with calls_of(adapter._ByHdf5.chunk) as calls:
        for _ in range(3):
            assert [row[0] for row in roomy[order]] == [100 * i for i in order]
    assert len(calls) == 100
    with calls_of(adapter._ByHdf5.chunk) as calls:
        assert [row[0] for row in tight[order]] == [100 * i for i in order]
        assert len(calls) == 100  # a read of many chunks decodes each once, some at a time
        for _ in range(3):
            assert [row[0] for row in tight[list(range(100))]] == [100 * i for i in range(100)]
        assert len(calls) == 110
        assert [row[0] for row in tight[[999, 5]]] == [99900, 500]
    assert len(calls) == 111  # the least recently used one made room


@pytest.mark.parametrize("way", ["contiguous", "chunked across rows", "gzip", "lzf", "virtual, in the file"])
def test_the_file_is_closed_at_once(way: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.h5", WAYS[way])
    gc.disable()
    try:
        ref = yoga.from_hdf5(path, "x")
        assert len(list(ref)) == N
        maps = Path("/proc/self/maps")
        if maps.exists():
            assert str(path) in maps.read_text()
            del ref
            assert str(path) not in maps.read_text()
    finally:
        gc.enable()


# -- what is refused


def external_source(file: Any) -> None:
    layout = h5py.VirtualLayout((N,), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd.h5", "x", (N,))
    file.create_virtual_dataset("x", layout)


def unknown_filter(file: Any) -> None:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((N,))
    properties.set_filter(305, h5py.h5z.FLAG_OPTIONAL, (1, 2))
    h5d.create(file.id, b"x", h5t.STD_I32LE, h5s.create_simple((N,)), properties)


REFUSED: dict[str, tuple[Callable[[Any], None], Any, type[Exception], str]] = {
    "a wrong name": (WAYS["contiguous"], "y", NotFoundError, r"no 'y'; its datasets are 'x' \(37, 6, 5\)"),
    "not all of many names": (
        lambda file: file.update({f"d{i:03}": [1] for i in range(100)}), "nowhere", NotFoundError,
        r"'d019' \(1,\), \.\.\.$",
    ),
    "a name inside a dataset": (WAYS["contiguous"], "x/y", NotFoundError, "no 'x/y'"),
    "nothing there": (lambda file: None, "x", NotFoundError, "it has no datasets"),
    "nothing at the root": (
        lambda file: file.create_dataset("a/b", data=[1]), None, NotFoundError, 
        r"no dataset at its root.*'a/b' \(1,\)",
    ),
    "a group": (soft_link, "deep", NotFoundError, "'deep' is a group, not a dataset"),
    "a type": (committed, "type", NotFoundError, "'type' is a type, not a dataset"),
    "two lengths": (
        lambda f: f.update(x=np.zeros(3), y=np.zeros((4, 2))), ["x", "y"], SchemaError,
        r"different numbers of rows: \{'x': 3, 'y': 4\}",
    ),
    "a single value": (lambda file: file.create_dataset("x", data=3), "x", SchemaError, "is a single value"),
    "an empty dataset": (lambda f: f.create_dataset("x", dtype="f"), "x", SchemaError, "holds nothing"),
    "an external link": (
        lambda f: f.__setitem__("x", h5py.ExternalLink("/etc/passwd", "y")), "x", SchemaError,
        "another file, '/etc/passwd' .an external link., which is not followed",
    ),
    "a link that goes on": (
        lambda f: f.__setitem__("g", h5py.ExternalLink("o.h5", "y")), "g/x/y", SchemaError, "external link",
    ),
    "endless links": (
        lambda f: f.update(x=h5py.SoftLink("/y"), y=h5py.SoftLink("/x")), "x", SchemaError,
        "more than 32 soft links",
    ),
    "external storage": (
        lambda f: f.create_dataset("x", (N,), "u1", external=[("/etc/passwd", 0, N)]), "x", SchemaError, 
        r"other files, \['/etc/passwd'\] .external st",
    ),
    "an external source": (external_source, "x", SchemaError, r"other files, \['/etc/passwd.h5'\]"),
    "an unknown filter": (unknown_filter, "x", SchemaError, "filter 305 .*not installed.*hdf5plugin"),
    "references": (create(h5py.ref_dtype), "x", SchemaError, "'/x' holds references to other objects"),
    "references inside": (create([("a", "i4"), ("r", h5py.ref_dtype)]), "x", SchemaError, "field 'r' holds"),
    "texts inside": (
        create([("a", "i4"), ("t", h5py.string_dtype())]), "x", SchemaError, "field 't' holds values",
    ),
    "opaque values": (create("V5"), "x", SchemaError, r"values of type .*V5.* which cannot be rows"),
    "texts in a grid": (create(h5py.string_dtype(), (3, 2)), "x", SchemaError, "several values of varying"),
    "big-endian values of varying length": (
        create(h5py.vlen_dtype(np.dtype(">i4"))), "x", SchemaError, "varying length in another byte order",
    ),
    "ragged text": (create(h5py.vlen_dtype(h5py.string_dtype())), "x", SchemaError, "which cannot be rows"),
    "no columns": (WAYS["contiguous"], [], SchemaError, "columns must be a name"),
    "columns that are not names": (WAYS["contiguous"], {"x": 3}, SchemaError, "columns must be a name"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_says_why(what: str, tmp_path: Path) -> None:
    make, columns, error, message = REFUSED[what]
    path = written(tmp_path / "x.h5", make)
    with pytest.raises(error, match=message):
        yoga.from_hdf5(path, columns)


def test_an_error_names_the_row_whose_bytes_are_not_text(tmp_path: Path) -> None:
    ref = yoga.from_hdf5(written(tmp_path / "x.h5", of(np.array([b"fine", b"\xff\xfe"]))), "x")
    assert ref[0] == "fine"
    with pytest.raises(SchemaError, match="'/x', row 1: the text is not UTF-8"):
        ref[[0, 1]]


def test_files_that_are_not_hdf5_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file .*x\.h5"):
        yoga.from_hdf5(tmp_path / "x.h5", "x")
    with pytest.raises(CorruptError, match="not an HDF5 file"):
        yoga.from_hdf5(tmp_path, "x")
    for number, content in enumerate((b"", b"some text", os.urandom(5000))):
        path = tmp_path / f"{number}.h5"
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=f"{number}.h5 is not an HDF5 file"):
            yoga.from_hdf5(path, "x")


OPEN = """
import sys, torchyoga as yoga
from torchyoga.errors import YogaError
for path in sys.argv[1:]:
    try:
        for _ in yoga.from_hdf5(path, "x"):
            pass
        print("read")
    except YogaError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("way", ["contiguous", "chunked by rows", "gzip"])
def test_files_that_are_cut_are_refused(way: str, tmp_path: Path) -> None:
    data = written(tmp_path / "x.h5", WAYS[way]).read_bytes()
    paths = []
    for number, size in enumerate(itertools.chain(range(8, len(data), 97), [len(data) - 1])):
        paths.append(tmp_path / f"{number}.h5")
        paths[-1].write_bytes(data[:size])
    finished = run_program(OPEN, *map(str, paths))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["CorruptError"] * len(paths)


def test_a_chunk_that_is_damaged_is_never_read(tmp_path: Path) -> None:
    for way in ("gzip", "gzip and checksums", "checksums"):
        path = written(tmp_path / "x.h5", WAYS[way])
        with h5py.File(path) as file:
            place = file["x"].id.get_chunk_info(0)
        data = bytearray(path.read_bytes())
        data[place.byte_offset + place.size // 2] ^= 255
        path.write_bytes(data)
        with pytest.raises(CorruptError, match="'/x', from row 0 on"):
            list(yoga.from_hdf5(path, "x"))
