"""JSON lines in place: each row is what json.loads gives; what does not fit names file and line."""

from __future__ import annotations

import gzip
import json
import pickle
import tempfile
import zlib
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.tables.foreign import json_lines
from torchyoga.testing import assert_rows_equal, check_dataref

ROWS = [
    {
        "text": "né\u2028" * (n % 4),
        "ids": list(range(n % 5)),
        "score": n if n % 2 else n / 2,
        "meta": {"n": n, **({"extra": "x"} if n % 3 else {})},
        "maybe": None if n % 4 else n,
    }
    for n in range(120)
]
FULL = [
    {**row, "score": float(row["score"]), "meta": {"n": row["meta"]["n"], "extra": row["meta"].get("extra")}}
    for row in ROWS
]


def written(path: Path, rows: Any, **options: Any) -> Path:
    path.write_text("".join(json.dumps(row, **options) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def ref(tmp_path: Path) -> yoga.DataRef:
    files = [
        written(tmp_path / "a.jsonl", ROWS[:50]),
        written(tmp_path / "b.jsonl", ROWS[50:], ensure_ascii=False),
    ]
    return yoga.from_jsonl(files)


def test_rows_have_all_keys_and_one_type_each(ref: yoga.DataRef) -> None:
    assert list(ref) == FULL
    assert ref[7] == FULL[7]
    assert ref.file_starts.tolist() == [0, 50, 120]
    copy = pickle.loads(pickle.dumps(ref))
    assert (list(copy), copy.fingerprint) == (FULL, ref.fingerprint)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=9), st.sampled_from(["\n", "\r\n", "\n\n \n"]))
def test_any_text_and_any_ends_of_lines(texts: list[str], end: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.jsonl")
        path.write_bytes(end.join(map(json.dumps, texts)).encode())
        assert list(yoga.from_jsonl(path)) == texts


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        ('{"n": 1', CorruptError, "line 1501: this is not JSON"),
        ("\x00", CorruptError, "line 1501: this is not JSON"),
        ("[" * 100_000, CorruptError, "line 1501: this is not JSON"),
        ('{"n": "text"}', SchemaError, r"line 1501: .*column 'n'"),
        ('{"n": 1, "more": 2}', SchemaError, r"line 1501: keys \['more'\], which rows before it have not"),
        ("[1]", SchemaError, r"line 1501: expected a dict, found \[1\]"),
        ("{}", SchemaError, "line 1501: .*column 'n'"),
    ],
    ids=["cut", "zero", "deep", "text", "more", "a list", "nothing"],
)
def test_a_bad_line_is_named(line: str, error: type[Exception], text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [{"n": n} for n in range(3000)])
    lines = path.read_text().splitlines()
    lines[1500] = line
    path.write_text("\n".join(lines))
    ref = yoga.from_jsonl(path, yoga.Schema.of({"n": 1}))
    assert ref[1499] == {"n": 1499}
    with pytest.raises(error, match=rf"x\.jsonl, {text}"):
        ref.take(np.arange(1490, 1510))


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        yoga.from_jsonl(tmp_path / "none")
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(SchemaError, match="there are no rows"):
        yoga.from_jsonl(tmp_path / "empty")


def test_places_of_lines_are_kept_until_a_file_changes(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", ROWS)
    folder = tmp_path / "cache"
    assert len(yoga.from_jsonl(path, cache_dir=folder)) == 120
    (index,) = (folder / "files").glob("*.index")
    made = index.stat().st_ino
    assert list(yoga.from_jsonl(path, cache_dir=folder)) == FULL
    assert index.stat().st_ino == made
    written(path, ROWS[:60] + ROWS[:59])
    assert len(yoga.from_jsonl(path, cache_dir=folder)) == 119
    assert index.stat().st_ino != made
    index.write_bytes(index.read_bytes()[:-1])
    assert len(yoga.from_jsonl(path, cache_dir=folder)) == 119


def packed(path: Path, lines: bytes) -> Path:
    """Writes a file that gzip or zstd has compressed, in two parts."""
    how = gzip.compress if path.suffix == ".gz" else pytest.importorskip("zstandard").compress
    half = len(lines) // 2
    path.write_bytes(how(lines[:half]) + how(lines[half:]))
    return path


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_compressed_files_have_rows_by_number(ending: str, tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    path = packed(tmp_path / f"x.jsonl.{ending}", lines)
    plain = written(tmp_path / "y.jsonl", ROWS[:3])
    ref = pickle.loads(pickle.dumps(yoga.from_jsonl([path, plain])))
    assert list(ref) == list(ref) == FULL + FULL[:3]
    assert (len(ref), ref[len(FULL)], ref[-1]) == (len(FULL) + 3, FULL[0], FULL[2])
    check_dataref(ref)
    storage = yoga.Storage(tmp_path / "storage")
    made = storage.submit(ref, "lines", "1.0", progress=False)
    assert list(made) == FULL + FULL[:3]
    if ending == "gz":  # as tapes do
        path.write_bytes(path.read_bytes() + bytes(9000))
    fsspec.filesystem("memory").put(str(path), f"/packed-{ending}/x.jsonl.{ending}")
    assert list(yoga.from_jsonl(f"memory://packed-{ending}/*", cache_dir=tmp_path / "cache")) == FULL


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_bad_compressed_files_name_file_and_line(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"n": n}) for n in range(3000)]
    lines[1500] = '{"n": 1'
    path = packed(tmp_path / f"x.{ending}", "\n".join(lines).encode())
    with pytest.raises(CorruptError, match=rf"x\.{ending}, line 1501: this is not JSON"):
        list(yoga.from_jsonl(path))
    lines[1500] = '{"n": "text"}'
    path = packed(path, "\n".join(lines).encode())
    with pytest.raises(SchemaError, match=rf"x\.{ending}, line 1501: .*column 'n'"):
        list(yoga.from_jsonl(path))
    with pytest.raises(SchemaError, match="line 1501"):
        yoga.Storage(tmp_path / "storage").submit(yoga.from_jsonl(path), "lines", "1.0", progress=False)
    assert not yoga.Storage(tmp_path / "storage").list()
    packed(path, b'{"n": 1}\n' * 3000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptError, match=rf"x\.{ending} is damaged: it is cut"):
        list(yoga.from_jsonl(path))
    monkeypatch.setattr(json_lines, "_LONGEST", 1000)
    with pytest.raises(CorruptError, match="has a line of more than 1000 bytes"):
        list(yoga.from_jsonl(packed(path, b"0" * 10**6)))
    with pytest.raises(SchemaError, match="there are no rows"):
        list(yoga.from_jsonl(packed(path, b"\n\n")))


@pytest.mark.parametrize(
    ("value", "like"),
    [
        ("1.9", np.int32(1)),
        ("1.0", np.int32(1)),
        ("300", np.uint8(1)),
        ('"7"', np.int32(1)),
        ("true", np.int32(1)),
        ('"false"', np.bool_(1)),
        ("0", np.bool_(1)),
        ('{"b": 1}', np.bool_(1)),
        ("null", np.float32(1)),
        ("1e300", np.float16(1)),
        ("16777217", np.float32(1)),
        ("9007199254740993", 0.5),
        ("1" + "0" * 400, 0.5),
        ("[1.7, 2.9]", np.zeros(2, np.int32)),
        ('["1", "2"]', np.zeros(2, np.int32)),
        ("[true, 3]", np.zeros(2, np.float32)),
        ("[null, 1]", np.zeros(2, np.float32)),
        ("[1, [2]]", np.zeros(2, np.float32)),
        ("[1e300, -1e300]", np.zeros(2, np.float32)),
        ("null", np.zeros((), np.float32)),
    ],
)
def test_what_a_schema_cannot_hold_is_an_error(value: str, like: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for text in (f'{{"a": {value}}}', "{}"):
        path.write_text(f'{{"a": {json.dumps(np.asarray(like).tolist())}}}\n{text}\n')
        with pytest.raises(SchemaError, match=r"x\.jsonl, line 2: "):
            list(yoga.from_jsonl(path, yoga.Schema.of({"a": like})))


def test_what_a_schema_can_hold(tmp_path: Path) -> None:
    rows = [
        {"a": 0.1, "b": [[1, 2.7]], "c": 7, "d": [True], "e": [1, 2]},
        {"a": 2, "b": [[1e30, 3]], "c": -7, "d": [False], "e": []},
    ]
    path = written(tmp_path / "x.jsonl", rows)
    with open(path, "a") as file:
        file.write('{"a": NaN, "b": [[Infinity, -0.0]], "c": 0, "d": [true], "e": [3]}\n')
    like = {"a": np.float16(1), "b": np.zeros((1, 2), np.float32), "c": np.int8(1), "d": np.ones(1, np.bool_)}
    found = list(yoga.from_jsonl(path, yoga.Schema.of({**like, "e": np.zeros(1, np.int16)}, ragged=["e"])))
    assert [(row["a"], row["c"]) for row in found[:2]] == [(np.float16(0.1), 7), (np.float16(2), -7)]
    assert np.isnan(found[2]["a"])
    assert found[0]["b"].tolist() == np.array([[1, 2.7]], np.float32).tolist()
    assert found[2]["b"].tolist() == [[np.inf, 0]]
    assert [row["d"].tolist() for row in found] == [[True], [False], [True]]
    assert_rows_equal([row["e"] for row in found], [np.array(ids, np.int16) for ids in ([1, 2], [], [3])])


def test_ints_beside_fractions_keep_all_digits_or_are_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [2**53, 1.5])
    assert list(yoga.from_jsonl(path)) == [float(2**53), 1.5]
    for value in (2**53 + 1, 10**400):
        with pytest.raises(SchemaError, match=r"x\.jsonl, line 1: "):
            yoga.from_jsonl(written(path, [value, 1.5]))


@given(
    st.lists(
        st.sampled_from([b"1", b" 2", b"[]  ", b" ", b"\t \t\r", b"", b" " * 9, b"33333333"]), max_size=9
    ),
    st.integers(1, 12),
    st.booleans(),
)
def test_blank_lines_are_skipped_wherever_pieces_end(lines: list[bytes], piece: int, ends: bool) -> None:
    text, begin, expected = b"\n".join(lines) + b"\n" * ends, 0, []
    for line in text.split(b"\n"):
        if line.strip():
            expected.append([begin, begin + len(line)])
        begin += len(line) + 1
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "x")
        path.write_bytes(text)
        patch.setattr(json_lines, "_PIECE", piece)
        index = json_lines._lines(str(path))
        assert (index.arrays["places"].tolist(), index.info["crc"]) == (expected, zlib.crc32(text))


@pytest.mark.parametrize(
    ("late", "text"),
    [
        ('{"a": "x", "b": [1, 2]}', "line 2001: column 'a': expected int"),
        (f'{{"a": {2**64}, "b": [1, 2]}}', "line 2001: at 'a': an int of 65 bits"),
        ('{"a": ' + "[" * 600 + "]" * 600 + ', "b": [1, 2]}', "line 2001: .*nested more than 64 levels"),
    ],
    ids=["text", "large", "deep"],
)
@pytest.mark.parametrize("more", [0, 3000], ids=["in the sample", "later"])
def test_what_does_not_fit_names_its_line(late: str, text: str, more: int, tmp_path: Path) -> None:
    good = '{"a": 1, "b": [1, 2]}\n'
    path = tmp_path / "x.jsonl"
    path.write_text(good * 2000 + (late + "\n") * (1 + more))
    with pytest.raises(SchemaError, match=rf"x\.jsonl, {text}" if not more else r"x\.jsonl, line \d+: "):
        yoga.from_jsonl(path)[2000]


def test_the_fingerprint_names_all_bytes(tmp_path: Path) -> None:
    path, prints = tmp_path / "x.jsonl", set()
    for last in ([1, 2], [2, 1], [1, 2]):
        ref = yoga.from_jsonl(
            written(path, [{"ids": [0, 0]}] * 200 + [{"ids": last}] * 9 + [{"ids": [0, 0]}] * 2000)
        )
        prints.add(ref.fingerprint)
    assert len(prints) == 2


def test_a_list_that_first_differs_behind_the_sample_says_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [[1, 2], [1], *[[3, 4]] * 3000])
    with pytest.raises(SchemaError, match=r"line 2: expected a list of 2, .*found one of 1; .*in ragged="):
        yoga.from_jsonl(path)[1]
