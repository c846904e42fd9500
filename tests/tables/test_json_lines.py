"""JSON lines in place: each row is what json.loads gives; what does not fit names file and line."""

from __future__ import annotations

import gzip
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.testing import check_dataref, check_resume, check_view

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


def test_kits_views_and_resumes(ref: yoga.DataRef) -> None:
    check_dataref(ref)
    check_view(lambda base: base[5:80].columns(["score", "ids"]), ref, workers=2)
    check_view(lambda base: base.token_windows("text", 8), ref, reads_ahead=False)
    check_resume(lambda: yoga.DataLoader(ref.columns(["score"]), 16, shuffle="block", seed=7), 4)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=9), st.sampled_from(["\n", "\r\n", "\n\n \n"]))
def test_any_text_and_any_ends_of_lines(texts: list[str], end: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.jsonl")
        path.write_bytes(end.join(map(json.dumps, texts)).encode())
        assert list(yoga.from_jsonl(path)) == texts


def test_a_schema_may_be_given(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [{"x": [1, 2], "y": 3}, {"x": [], "y": 4}])
    schema = yoga.Schema.of({"x": np.zeros(1, np.int16), "y": 0.5}, ragged=["x"])
    row = yoga.from_jsonl(path, schema)[0]
    assert (row["x"].dtype, row["x"].tolist(), row["y"]) == (np.int16, [1, 2], 3.0)
    assert yoga.from_jsonl(path, schema)[1]["x"].shape == (0,)


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
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(ValueError, match="is compressed; decompress it, or submit a generator"):
        yoga.from_jsonl(tmp_path / "x.gz")
    with pytest.raises(ValueError, match="is a URL"):
        yoga.from_jsonl("s3://bucket/x.jsonl")
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(SchemaError, match="there are no rows"):
        yoga.from_jsonl(tmp_path / "empty")
    path = written(tmp_path / "x.jsonl", [1, 2, 3])
    ref = yoga.from_jsonl(path)
    path.write_text("1\n2\n")
    with pytest.raises(CorruptError, match="has 4 bytes where 6 are expected"):
        ref[0]
