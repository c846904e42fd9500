"""Files: the kit, the golden version, hostile manifests, and plain LMDB."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from golden.make import rows

import torchyoga as yoga
from torchyoga import formats
from torchyoga.checksum import combine_crc32
from torchyoga.columns import Collector, Data
from torchyoga.errors import CorruptError
from torchyoga.manifest import FileEntry, Manifest, digest
from torchyoga.reader import Reader
from torchyoga.testing import assert_rows_equal, check_format

GOLDEN = Path(__file__).parent / "golden" / "v1"


KINDS = [(name, c) for name in formats.FORMATS for c in (None, *formats.format_named(name).COMPRESSIONS)]


@pytest.mark.parametrize(("name", "compression"), KINDS)
def test_the_kit(name: str, compression: str | None, tmp_path: Path) -> None:
    check_format(formats.format_named(name), tmp_path, compression)


def test_the_kit_finds_a_format_that_writes_something_else(tmp_path: Path) -> None:
    class Wrong:
        SUFFIX = ".mdb"
        read_extents = staticmethod(formats.format_named("lmdb").read_extents)

        class Writer:
            def __init__(self, path: str, schema: Any, compression: Any) -> None:
                self.inner = formats.format_named("lmdb").Writer(path, schema)

            def write(self, block: Any) -> list[int]:
                return [crc ^ 1 for crc in self.inner.write(block)]

            def close(self) -> Any:
                return self.inner.close()

    with pytest.raises(AssertionError, match="the checksum is not that of the bytes"):
        check_format(Wrong, tmp_path)  # type: ignore[arg-type]


def test_the_golden_versions_are_readable_for_ever() -> None:
    storage = yoga.Storage(GOLDEN)
    versions = storage.versions("golden")
    assert versions == ["1", "hdf5", "hdf5 gzip", "hdf5 lzf"]
    for version in versions:
        ref = storage.fetch("golden", version)
        assert_rows_equal(list(ref), rows())
        assert ref.fingerprint == "5e34989e41fe5a34ee6fc90b13d52432"
        storage.check("golden", version)
    assert {path.name for path in GOLDEN.iterdir()} == {"golden"}  # reading writes nothing


def test_plain_lmdb_reads_the_blocks_by_key(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit({"x": np.arange(3000, dtype=np.int32).reshape(1000, 3)}, "a", "1")
    (path,) = (tmp_path / "a" / "1").glob("*.mdb")
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        value = transaction.get(b"0000000000/x/values")
        assert value is not None
        assert np.frombuffer(value[:12_000], "<i4").tolist() == list(range(3000))


def test_checksums_combine() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 4096, 100_001):
        a, b = rng.bytes(37), rng.bytes(size)
        assert combine_crc32(zlib.crc32(a), zlib.crc32(b), size) == zlib.crc32(a + b)


def forged() -> dict[str, Any]:
    """Changes to a manifest, whose checksum is then made to match."""

    def file(**change: Any) -> Any:
        return lambda content: content["files"][0].update(change)

    def index(**change: Any) -> Any:
        return lambda content: content["files"][0]["index"].update(change)

    def column(number: int, **change: Any) -> Any:
        return lambda content: content["schema"]["columns"][number].update(change)

    return {
        "a name outside": file(name="../../../etc/passwd"),
        "an absolute name": file(name="/etc/passwd"),
        "an unknown format": file(format="os"),
        "a format that is a path": file(format="..store"),
        "more rows": lambda c: (file(rows=10**9)(c), c.update(rows=10**9)),
        "fewer rows": lambda c: (file(rows=1)(c), c.update(rows=1)),
        "rows that do not add up": file(rows=6),
        "negative rows": file(rows=-1),
        "huge rows": lambda c: (file(rows=2**61)(c), c.update(rows=2**61)),
        "rows as text": file(rows="5"),
        "another size": file(nbytes=5),
        "an index outside": index(offset=2**40),
        "a negative index": index(offset=-8),
        "a long index": index(nbytes=2**50),
        "an index without end": index(nbytes=0),
        "no index": file(index={}),
        "another checksum of the index": index(crc32=1),
        "objects": column(0, dtype="|O"),
        "another dtype": column(0, dtype="<u8"),
        "another shape": column(0, shape=[6, 3]),
        "a huge shape": column(0, shape=[2**30, 2**9]),
        "fixed made ragged": column(0, shape=None),
        "ragged made fixed": column(2, shape=[1], ndim=1),
        "a later version": lambda c: c.update(torchyoga=2),
        "no version": lambda c: c.pop("torchyoga"),
        "no files": lambda c: c.update(files=[]),
        "files that are none": lambda c: c.update(files=None),
        "no schema": lambda c: c.update(schema=None),
        "another id": lambda c: c.update(id="other"),
        "id as number": lambda c: c.update(id=5),
        "a fingerprint of lists": lambda c: c.update(fingerprint=[]),
    }


FETCH = """
import sys, torchyoga as yoga
from torchyoga.errors import CorruptError
for root in sys.argv[1:]:
    try:
        for row in yoga.Storage(root).fetch("golden", "1"):
            pass
        print("read", root)
    except CorruptError:
        print("refused", root)
"""


def test_hostile_manifests_are_refused_and_crash_nothing(tmp_path: Path) -> None:
    source = GOLDEN / "golden" / "1"
    roots = []
    for number, change in enumerate(forged().values()):
        target = tmp_path / str(number) / "golden" / "1"
        target.mkdir(parents=True)
        for path in source.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        content = json.loads((target / "manifest.json").read_bytes())
        del content["checksum"]
        change(content)
        content["checksum"] = digest(content)
        (target / "manifest.json").write_text(json.dumps(content))
        roots.append(str(tmp_path / str(number)))
    told = subprocess.run(
        [sys.executable, "-c", FETCH, *roots], capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 0, told.stderr
    outcomes = dict(zip(forged(), (line.split()[0] for line in told.stdout.splitlines()), strict=True))
    assert outcomes == dict.fromkeys(forged(), "refused")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"5", b"[" * 100_000, b"\xff", b'{"torchyoga": 1}']
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptError, match="the manifest is damaged"):
        Manifest.from_bytes(text)


def test_hostile_offsets_are_refused(tmp_path: Path) -> None:
    # Offsets that point outside, in a file whose checksums are right.
    collector = Collector()
    for i, row in enumerate([b"abc", b"", b"defg"]):
        collector.add(row, i)
    block = collector.take()
    bad_offsets: list[list[int]] = [[0, 9, 9, 9], [0, 3, 2, 7], [-5, 3, 3, 7], [0, 2**62, 3, 7]]
    for number, offsets in enumerate(bad_offsets):
        name = f"{number:016x}-00000.mdb"
        forged_block = type(block)(block.schema, 3, (Data(block.data[0].values, np.array(offsets, "<i8")),))
        writer = formats.format_named("lmdb").Writer(str(tmp_path / name), block.schema)
        writer.write(forged_block)
        entry = FileEntry(name, "lmdb", 3, 0, writer.close(), ())
        entry = FileEntry(**{**vars(entry), "nbytes": (tmp_path / name).stat().st_size})
        with pytest.raises(CorruptError, match="point outside their block"):
            Reader(str(tmp_path), block.schema, [entry]).take(np.arange(3))


def test_counts_that_wrap_around_are_refused() -> None:
    schema = yoga.Schema.of(np.zeros(2))

    def check(counts: list[int], sizes: list[int], num_rows: int) -> None:
        starts = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
        zeros = np.zeros(len(counts), np.int64)
        extent = formats.Extent(starts, zeros, np.array(sizes, np.int64), zeros)
        formats.check_extents([extent], schema, 10**6, num_rows)

    check([3, 2], [48, 32], 5)
    check([5, 0], [80, 0], 5)
    for counts, sizes, num_rows in [
        ([2**62] * 4 + [5], [0, 0, 0, 0, 80], 5),  # 2**64 + 5 in all
        ([2**60], [0], 2**60),  # of 2**64 bytes
        ([2**60 + 1], [16], 2**60 + 1),
        ([6, -1], [96, 0], 5),
        ([5], [64], 5),
        ([], [], 5),
    ]:
        with pytest.raises(CorruptError, match="does not fit its rows and its size"):
            check(counts, sizes, num_rows)


def test_text_that_is_none_is_refused(tmp_path: Path) -> None:
    for number, value in enumerate((b"\xff\xfe", np.bytes_(b"\xff\xfe"))):
        storage = yoga.Storage(tmp_path / str(number))
        storage.submit([value], "a", "1")
        manifest = storage.path / "a" / "1" / "manifest.json"
        content = json.loads(manifest.read_bytes())
        del content["checksum"]
        (column,) = content["schema"]["columns"]
        column["kind"] = column["kind"].replace("bytes", "str")
        manifest.write_text(json.dumps({**content, "checksum": digest(content)}))
        with pytest.raises(CorruptError, match="no UTF-8"):
            storage.fetch("a", "1")[0]


def test_a_writer_that_cannot_write_says_so_and_lets_go(tmp_path: Path) -> None:
    writer = formats.format_named("lmdb").Writer
    schema = yoga.Schema.of(1)
    with pytest.raises(OSError, match=r"nowhere.*No such file or directory"):
        writer(str(tmp_path / "nowhere" / "x.mdb"), schema)
    # LMDB opens a file once in a process: what is closed or abandoned can be opened again.
    for end in ("abort", "close", "abort"):
        getattr(writer(str(tmp_path / "x.mdb"), schema), end)()


def test_values_of_any_size_come_back(tmp_path: Path) -> None:
    # Around the size of a page, and of an LMDB map that has to grow more than once.
    for size in (0, 1, 4079, 4080, 4081, 4095, 4096, 4097, 8192, 70 * 2**20):
        pair = [np.full(size, 7, np.uint8), np.full(size, 8, np.uint8)]
        ref = yoga.Storage(tmp_path).submit(pair, "a", str(size))
        assert_rows_equal(list(ref), pair)
        yoga.Storage(tmp_path).remove("a", str(size))
