"""Manifests: those that are written can be read; anything else, by accident or on purpose, is refused."""

from __future__ import annotations

import copy
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import run_program
from damaged import places, sealed

from torchyoga.errors import CorruptError
from torchyoga.process.digests import json_digest
from torchyoga.rows.schema import Schema
from torchyoga.versions.columns import fingerprint_of
from torchyoga.versions.file_entry import FileEntry, Listed
from torchyoga.versions.manifest import FunctionEntry, Manifest, is_like_manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "golden" / "1"

DEEP: Any = "leaf"
for _ in range(200):
    DEEP = {"tuple": [DEEP]}
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**61, 2**63, 10**30, 0.5, 1e300),
    *("", "x", "../../../etc/passwd", "\ud800", "|O", "<U0", "blosc"),
    *([], {}, [[1, 2]], [2**40, 0], DEEP),
]


def without_stats(text: bytes) -> bytes:
    """A manifest without what readers may leave alone, of which there would be too much to forge."""
    return sealed({key: value for key, value in json.loads(text).items() if key != "stats"})


TEXT = without_stats((GOLDEN / "manifest.json").read_bytes())


def forgeries(text: bytes) -> Iterator[bytes]:
    """A manifest with each value left out or replaced by each hostile one, its checksum right."""
    content = json.loads(text)
    del content["checksum"]
    for path in list(places(content))[1:]:
        for value in (*HOSTILE, ...):
            forged = copy.deepcopy(content)
            held = forged
            for key in path[:-1]:
                held = held[key]
            if value is ...:
                del held[path[-1]]
            else:
                held[path[-1]] = value
            yield sealed(forged)


def test_a_manifest_comes_back() -> None:
    manifest = Manifest.from_bytes(TEXT)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert (manifest.id, manifest.version, manifest.num_rows, len(manifest.files)) == ("golden", "1", 5, 1)
    assert manifest.file_starts.tolist() == [0, 5]
    assert manifest.nbytes == sum(path.stat().st_size for path in GOLDEN.glob("*.mdb"))
    empty = Manifest("a", "1", "0123456789abcdef", "now", None, fingerprint_of(None, ()))
    assert Manifest.from_bytes(empty.to_bytes()) == empty
    assert (empty.num_rows, empty.nbytes, empty.file_starts.tolist()) == (0, 0, [0])


def test_no_byte_can_change_and_none_can_be_missing() -> None:
    manifest = Manifest.from_bytes(TEXT)
    for at in range(len(TEXT)):
        for bit in (0, 5):
            changed = bytearray(TEXT)
            changed[at] ^= 1 << bit
            try:
                found = Manifest.from_bytes(bytes(changed))
            except CorruptError:
                continue
            assert found == manifest  # white space
        if at < len(TEXT) - 1:
            with pytest.raises(CorruptError):
                Manifest.from_bytes(TEXT[:at])


READ = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from golden.make import rows
from torchyoga.reading.version_ref import VersionRef
from torchyoga.errors import CorruptError
from torchyoga.testing import assert_rows_equal
from torchyoga.versions.manifest import Manifest
true, outcomes = Manifest.from_bytes(Path(sys.argv[2], "manifest.json").read_bytes()), [0, 0]
with open(sys.argv[1], "rb") as file:
    for text in file.read().splitlines():
        try:
            manifest = Manifest.from_bytes(text)
            assert all(file.rows for file in manifest.files)
            ref = VersionRef(sys.argv[2], manifest)
            assert len(list(ref)) == len(ref) == manifest.num_rows == 5
            if manifest.fingerprint == true.fingerprint:
                assert_rows_equal(list(ref), rows())
            ref.__getitems__([4, 0])
            outcomes[0] += 1
        except CorruptError:
            outcomes[1] += 1
        except Exception as error:
            raise RuntimeError(text) from error
print(*outcomes)
"""


@pytest.mark.quick("1")
@pytest.mark.parametrize("version", ["1", "hdf5", "hdf5 gzip"])
def test_reading_with_a_forged_manifest_gives_rows_or_an_error_and_never_crashes(
    version: str, tmp_path: Path
) -> None:
    """The version as it is on disk, with each forged manifest: of one fingerprint are the same rows only."""
    golden = GOLDEN.with_name(version)
    text = without_stats((golden / "manifest.json").read_bytes())
    (tmp_path / "forged").write_bytes(b"\n".join(forgeries(text)))
    finished = run_program(READ, str(tmp_path / "forged"), str(golden), str(GOLDEN.parents[3]))
    assert finished.returncode == 0, finished.stderr
    read, refused = map(int, finished.stdout.split())
    assert read > 100
    assert refused > 1000


NESTED = (GOLDEN.parents[1] / "nested" / "lmdb" / "manifest.json").read_bytes()


@pytest.mark.parametrize("number", [0, 2, 3, 2**70, "1", None])
def test_other_formats_are_refused(number: object) -> None:
    assert Manifest.from_bytes(NESTED).to_bytes() == NESTED
    content = json.loads(NESTED)
    with pytest.raises(CorruptError, match=r"of format version .*, this torchyoga reads 1|is not a manifest"):
        Manifest.from_bytes(sealed({**content, "torchyoga": number}))


@pytest.mark.parametrize("number", range(40))
def test_a_tree_with_other_wrappers_is_refused(number: int) -> None:
    content = json.loads(NESTED)
    wrappers = [node for node in _nodes(content["schema"]["tree"]) if isinstance(node, dict)]
    node = wrappers[number % len(wrappers)]
    ((kind, held),) = ((k, v) for k, v in node.items() if k != "type")
    node.clear()
    node[("nullable", "varying", "texts")[number % 3]] = [*held, "leaf"][number % 2 :]
    if node != {kind: held}:
        with pytest.raises(CorruptError):
            Manifest.from_bytes(sealed(content))


def _nodes(tree: Any) -> list[Any]:
    held = [] if isinstance(tree, str) else next(iter(tree.values()))
    return [tree, *(node for item in held for node in _nodes(item[1] if isinstance(item, list) else item))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(torchyoga=2), "format version 2, this torchyoga reads 1; update torchyoga"),
        (lambda c: c.update(files=c["files"] * 2, rows=10), "names a file twice"),
        (lambda c: c["files"][0]["checks"].pop(), "checks of its schema"),
        (lambda c: c["files"][0].update(name="manifest.json"), "not the name of a data file"),
        (lambda c: c["schema"]["columns"][0].update(shape=[2**62, 0]), "are too large"),
        (lambda c: c["schema"]["columns"][0].update(dtype="<U0"), "no such kind and dtype"),
        (lambda c: c["schema"]["columns"][0].update(dtype="<M8[s/0]"), "no such kind and dtype"),
        (lambda c: c.update(rows=6), "its files hold 5 rows, it says 6"),
        (lambda c: (c["files"][0].update(rows=10**9), c.update(rows=10**9)), "do not cover the bytes"),
        (lambda c: (c["files"][0].update(rows=1), c.update(rows=1)), "do not cover the bytes"),
        (lambda c: c["schema"]["columns"][2].update(shape=[1], ndim=1), "cannot have the shape"),
        (lambda c: c.update(files=[], rows=0, schema={}), "schema in the manifest is damaged"),
    ],
)
def test_the_error_says_what_is_wrong(change: Any, message: str) -> None:
    content = json.loads(TEXT)
    change(content)
    with pytest.raises(CorruptError, match=message):
        Manifest.from_bytes(sealed(content))


TOLD = {
    "info": {"classes": ["cat", "dog"], "deep": {"er": [1, 0.5, None, True, "é"]}},
    "function": {"code": "0" * 32, "salt": "1" * 32, "arguments": {"train": "2" * 32, "{size}": "3" * 32}},
}


def test_info_and_the_function_come_back() -> None:
    content = json.loads(TEXT)
    manifest = Manifest.from_bytes(sealed({**content, **TOLD}))
    assert manifest.info == TOLD["info"]
    assert manifest.function == FunctionEntry(**TOLD["function"])  # type: ignore[arg-type]
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    without = Manifest.from_bytes(TEXT)
    assert (without.info, without.function) == ({}, None)
    assert not {"info", "function"} & json.loads(without.to_bytes()).keys()
    unseen = Manifest.from_bytes(sealed({**content, "function": {**TOLD["function"], "code": None}}))
    assert unseen.function is not None
    assert unseen.function.code is None
    assert Manifest.from_bytes(unseen.to_bytes()) == unseen


def test_forged_info_and_functions_are_sound_or_refused() -> None:
    content = json.loads(TEXT)
    accepted, refused = 0, 0
    for path in places(TOLD):
        for value in (*HOSTILE, ..., "0" * 32, "G" * 32, "x" * 2**20, float("nan"), {"a": float("inf")}):
            forged = copy.deepcopy({"told": TOLD})
            held: Any = forged
            for key in ("told", *path)[:-1]:
                held = held[key]
            last = ("told", *path)[-1]
            if value is not ...:
                held[last] = value
            elif last != "told":
                del held[last]
            told = forged["told"]
            if not isinstance(told, dict):
                continue
            try:
                manifest = Manifest.from_bytes(sealed({**content, **told}))
            except CorruptError:
                refused += 1
                continue
            accepted += 1
            assert manifest.info == told.get("info", {})
            assert (manifest.function is None) is ("function" not in told)
            if manifest.function is not None:
                assert manifest.function.to_json() == told["function"]
                digests = [manifest.function.salt, *manifest.function.arguments.values()]
                assert all(re.fullmatch("[0-9a-f]{32}", text) for text in digests)
            assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert accepted > 100
    assert refused > 100


WRONG = {
    "lists": (b'"schema": {', b'"schema": [' + b"[]," * 2**17 + b"{", "262... elements in"),
    "numbers": (b'"schema": {', b'"schema": [' + b"0," * 2**17 + b"{", "131... elements in"),
    "objects": (b'"schema": {', b'"schema": [' + b"{}," * 2**17 + b"{", "262... elements in"),
    "quotes": (TEXT, b"," * 2**17 + b'"' + b'\\"' * 10**5, "131072 elements in"),
    "digits": (b'"rows": 5', b'"rows": ' + b"1" * 5000, "damaged"),
    "NaN": (b'"rows": 5', b'"rows": NaN', "NaN is not a number"),
    "infinity": (b'"rows": 5', b'"rows": -Infinity', "-Infinity is not a number"),
    "beyond floats": (b'"rows": 5', b'"rows": 1e400', "not JSON compliant"),
    "a key twice": (b'"rows": 5', b'"rows": 6, "rows": 5', "a key twice"),
    "deep": (b'"rows": 5', b'"rows": ' + b"[" * 5000 + b"]" * 5000, "damaged"),
    "surrogates": (b'"rows": 5', b'"rows": "\xed\xa0\x80"', "can't decode"),
    "a mark": (b"{", b"\xef\xbb\xbf{", "BOM"),
    **{
        f"nothing but {text[:20]!r}": (TEXT, text, "the manifest is damaged")
        for text in (b"", b"{", b"[]", b"null", b"5", b"[" * 100_000, b"\xff", b'{"torchyoga": 1}')
    },
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_value_that_no_manifest_has_is_refused(kind: str) -> None:
    part, by, message = WRONG[kind]
    assert part in TEXT
    with pytest.raises(CorruptError, match=message):
        Manifest.from_bytes(TEXT.replace(part, by, 1))


@pytest.mark.rest
def test_a_nesting_without_end_is_refused() -> None:
    content = json.loads(TEXT)
    content["schema"] = {"tree": {"list": [{"list": []}] * 2**18}, "columns": []}
    del content["checksum"]
    text = json.dumps({**content, "checksum": json_digest(content)}, indent=1).encode()
    with pytest.raises(CorruptError, match="nest more than 262144 containers"):
        Manifest.from_bytes(text)
    content["schema"] = {"tree": "leaf", "columns": [None] * 2**14}
    with pytest.raises(CorruptError, match="it has 16384 columns, 4096 are allowed"):
        Manifest.from_bytes(sealed(content))


def test_texts_that_cannot_be_written_are_refused() -> None:
    content = json.loads(TEXT)
    for name in ("id", "version", "build", "created"):
        with pytest.raises(CorruptError, match="surrogates not allowed"):
            Manifest.from_bytes(sealed({**content, name: "a\ud800"}))


def test_many_files_are_read() -> None:
    schema = Schema.of({"x": 1, "text": "y"})
    checks = ((24, 7), (2**30, 8), (24, 9))
    index = {"offset": 4096, "nbytes": 8, "crc32": 2**32 - 1, "units": {"offset": 1, "nbytes": 2}}
    files = tuple(
        FileEntry(f"{'ab' * 8}-{n:05d}.mdb", "lmdb", 3, 2**30 + n, index, checks, n) for n in range(9000)
    )
    manifest = Manifest("a", "1", "ab" * 8, "now", schema, fingerprint_of(schema, files), Listed(files))
    text = manifest.to_bytes()
    assert Manifest.from_bytes(text) == manifest
    compact = json.dumps(json.loads(text), separators=(",", ":")).encode()  # as other programs may write it
    assert Manifest.from_bytes(compact) == manifest


def test_the_fingerprint_covers_all_rows_however_they_are_cut() -> None:
    data = np.random.default_rng(0).integers(0, 255, 8 * 1000, np.uint8).tobytes()
    schema = Schema.of({"x": 1})

    def cut(*rows: int) -> str:
        ends = np.cumsum([0, *rows])
        pieces = [data[8 * start : 8 * stop] for start, stop in itertools.pairwise(ends.tolist())]
        files = [
            FileEntry(
                f"{'ab' * 8}-{n:05d}.mdb", "lmdb", len(piece) // 8, 1, {}, ((len(piece), zlib.crc32(piece)),)
            )
            for n, piece in enumerate(pieces)
        ]
        return fingerprint_of(schema, files)

    assert cut(1000) == cut(0, 1000) == cut(1, 998, 1) == cut(*[10] * 100) == cut(333, 0, 0, 667)
    assert cut(1000) != cut(999)


def test_files_of_another_build_are_recognised_by_their_name() -> None:
    manifest = Manifest.from_bytes(TEXT)
    (file,) = manifest.files
    assert not manifest.is_of_another_build(file.name)
    assert manifest.is_of_another_build("0123456789abcdef-00000.mdb")
    for name in ("stray", "0123456789abcdef-00000", "0123456789ABCDEF-00000.mdb", "../" + file.name):
        assert not manifest.is_of_another_build(name)


def test_a_copy_is_the_same_version_under_other_names() -> None:
    manifest = Manifest.from_bytes(TEXT)
    (file,) = manifest.files
    copied = manifest.renamed("0123456789abcdef")
    assert [found.name for found in copied.files] == ["0123456789abcdef" + file.name[16:]]
    assert (copied.build, replace(copied, build=manifest.build, files=manifest.files)) == (
        "0123456789abcdef",
        manifest,
    )
    assert Manifest.from_bytes(copied.to_bytes()) == copied
    assert copied.is_copy_of(manifest)
    assert copied.is_copy_of(replace(manifest, files=Listed([replace(file, crc=7)])))
    later = replace(manifest, created="later")
    assert later.is_copy_of(manifest)  # a build is one version, whatever was noted beside it
    assert not copied.is_copy_of(later)
    assert not copied.is_copy_of(replace(manifest, files=Listed([replace(file, nbytes=1)])))


def test_a_number_of_rows_that_no_order_could_have_is_refused() -> None:
    schema = Schema.of({"x": np.empty(0)})
    for rows in (2**61 - 1, 2**61):
        files = tuple(FileEntry(f"{'ab' * 8}-{n:05d}.mdb", "lmdb", rows, 9, {}, ((0, 0),)) for n in range(2))
        manifest = Manifest("a", "1", "ab" * 8, "now", schema, fingerprint_of(schema, files), Listed(files))
        if rows < 2**61:
            assert Manifest.from_bytes(manifest.to_bytes()) == manifest
        else:
            with pytest.raises(CorruptError, match="its files hold 4611686018427387904 rows"):
                Manifest.from_bytes(manifest.to_bytes())


@pytest.mark.parametrize("text", [b"", b"\r\n", bytes(4096), TEXT, TEXT[:40], TEXT[90:], b'{"torchyoga":1}'])
def test_a_manifest_is_recognised_also_if_it_was_cut_or_lost(text: bytes) -> None:
    assert is_like_manifest(text)
    for foreign in (b"{}", b"notes", bytes(9) + b"x", b'{"build": "1"}', b'{"torchyoga": "1"}'):
        assert not is_like_manifest(foreign)


def test_commas_in_texts_do_not_count_as_elements() -> None:
    manifest = replace(Manifest.from_bytes(TEXT), info={"license": ',[{"\\' * 100_000})
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
