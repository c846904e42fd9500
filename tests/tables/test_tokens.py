"""Files of tokens as documents: each row is what was written, and damage is an error."""

from __future__ import annotations

import itertools
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from damaged import flipped
from golden.foreign_rows import DOCUMENTS, FOREIGN
from hypothesis import given
from hypothesis import strategies as st

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError
from torchyoga.testing import check_dataref

CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
SEQUENCES = [sequence for document in DOCUMENTS for sequence in document]
LISTS = st.lists(st.lists(st.integers(0, 100), max_size=6), max_size=12)


def index(lengths: list[int], ends: list[int], code: int = 8, version: int = 1) -> bytes:
    """An index of Megatron's, as its documentation lays it out."""
    pointers = np.cumsum([0, *lengths])[:-1] * np.dtype(CODES.get(code, "u1")).itemsize
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(lengths), len(ends))
    tables = [np.array(lengths, "<i4"), pointers.astype("<i8"), np.array(ends, "<i8")]
    return head + b"".join(table.tobytes() for table in tables)


def written(folder: Path, sequences: list[list[int]], code: int = 8, ends: list[int] | None = None) -> Path:
    tokens = [token for sequence in sequences for token in sequence]
    np.array(tokens, CODES[code]).tofile(folder / "corpus.bin")
    ends = list(range(len(sequences) + 1)) if ends is None else ends
    (folder / "corpus.idx").write_bytes(index(list(map(len, sequences)), ends, code))
    return folder / "corpus"


def lists(ref: yoga.DataRef) -> list[list[float]]:
    return [row["tokens"].tolist() for row in ref]


@pytest.mark.parametrize("name", ["uint16", "int32"])
def test_rows_are_what_megatron_wrote(name: str) -> None:
    ref = yoga.from_megatron(FOREIGN / "megatron" / name)
    assert lists(ref) == SEQUENCES
    assert ref[0]["tokens"].dtype == name
    assert lists(yoga.from_megatron(FOREIGN / "megatron" / f"{name}.bin", documents=True)) == [
        sum(document, []) for document in DOCUMENTS
    ]
    check_dataref(ref)
    check_dataref(ref["tokens"])


@given(LISTS, st.sampled_from(sorted(CODES)), st.data())
def test_every_dtype_any_lengths_any_documents(sequences: Any, code: int, data: Any) -> None:
    inner = sorted(data.draw(st.lists(st.integers(0, len(sequences)), max_size=5)))
    ends = [0, *inner, len(sequences)]
    with tempfile.TemporaryDirectory() as folder:
        prefix = written(Path(folder), sequences, code, ends)
        ref = yoga.from_megatron(prefix)
        assert lists(ref) == sequences
        assert [ref[row]["tokens"].tolist() for row in range(len(ref))] == sequences
        whole = [sum(sequences[a:b], []) for a, b in itertools.pairwise(ends)]
        assert lists(yoga.from_megatron(prefix, documents=True)) == whole
        if sequences:
            assert ref[0]["tokens"].dtype == CODES[code]


@given(st.lists(LISTS.map(lambda some: sum(some, [])), min_size=1, max_size=3), st.integers(0, 9))
def test_plain_tokens_are_cut_at_their_ends(files: Any, end: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        expected = []
        for number, tokens in enumerate(files):
            paths.append(Path(folder, f"{number}.bin"))
            paths[-1].write_bytes(b"head" + np.array(tokens, "<u4").tobytes())
            left: list[int] = []
            for token in tokens:
                left.append(token)
                if token == end:
                    expected.append(left)
                    left = []
            expected += [left] if left else []
        ref = yoga.from_tokens(paths, "uint32", end=end, offset=4)
        assert lists(ref) == expected
        assert [ref[row]["tokens"].tolist() for row in range(len(ref))] == expected
        assert lists(yoga.from_tokens(paths, "<u4", offset=4)) == [tokens for tokens in files if tokens]
        copy = pickle.loads(pickle.dumps(ref))
        assert (lists(copy), copy.fingerprint) == (expected, ref.fingerprint)


def test_a_window_reads_no_more_than_its_tokens(tmp_path: Path) -> None:
    np.arange(10**6, dtype="<u4").tofile(tmp_path / "train.bin")
    ref = yoga.from_tokens(tmp_path / "train.bin", "uint32")
    parts = ref["tokens"]._take_parts(np.array([0, 0, 0]), np.array([5, 8, 999_999]), np.array([8, 9, 10**6]))
    assert parts.tolist() == [5, 6, 7, 8, 999_999]
    with pytest.raises(IndexError, match="elements 5 to 1000001 of row 0, which has 1000000 elements"):
        ref["tokens"]._take_parts(np.array([0]), np.array([5]), np.array([1_000_001]))


def test_every_flipped_bit_of_an_index_is_an_error(tmp_path: Path) -> None:
    prefix = written(tmp_path, [[1, 2], [3], [4, 5, 6], [7]], ends=[0, 4])
    sound = Path(f"{prefix}.idx").read_bytes()
    for damaged in flipped(sound, range(8 * len(sound))):
        Path(f"{prefix}.idx").write_bytes(damaged)
        with pytest.raises((CorruptError, ValueError), match=r"corpus\.idx"):
            yoga.from_megatron(prefix)
    for size in range(len(sound)):
        Path(f"{prefix}.idx").write_bytes(sound[:size])
        with pytest.raises(CorruptError, match=r"corpus\.idx"):
            yoga.from_megatron(prefix)


BAD = {
    "an index of something else": (b"PK\x03\x04" + bytes(60), "is not an index of Megatron's"),
    "a later version": (index([2], [0, 1], version=2), "says version 2"),
    "an unknown dtype": (index([2], [0, 1], code=9), "dtype 9"),
    "10**9 sequences": (
        index([2], [0, 1])[:18] + struct.pack("<QQ", 10**9, 2) + bytes(28),
        "take 12000000050",
    ),
    "lengths below 0": (index([3, -1], [0, 2]), "sequence 1 of -1 tokens"),
    "more tokens than there are": (index([3], [0, 1]), "has 3 tokens of 2 bytes, but .* has 4 bytes"),
    "documents beyond the sequences": (index([2], [0, 2]), "its documents are not those of 1 sequences"),
    "documents in disorder": (index([1, 1], [0, 2, 1, 2]), "its documents are not"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_index_is_an_error(bad: str, tmp_path: Path) -> None:
    data, text = BAD[bad]
    np.array([1, 2], "<u2").tofile(tmp_path / "corpus.bin")
    (tmp_path / "corpus.idx").write_bytes(data)
    with pytest.raises(CorruptError, match=text):
        yoga.from_megatron(tmp_path / "corpus")


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is multimodal: each of its 2 sequences has a mode"):
        yoga.from_megatron(FOREIGN / "megatron" / "modes")
    with pytest.raises(NotFoundError, match=r"there is no file .*none\.bin"):
        yoga.from_megatron(tmp_path / "none")
    with pytest.raises(NotFoundError, match=r"there is no file .*none\.bin"):
        yoga.from_tokens(tmp_path / "none.bin", "uint16")
    (tmp_path / "odd.bin").write_bytes(bytes(5))
    with pytest.raises(CorruptError, match="5 bytes: after 0, that is no whole number of tokens of uint16"):
        yoga.from_tokens(tmp_path / "odd.bin", "uint16")
    for dtype, end, offset, text in (
        ("S2", None, 0, "is not one of tokens"),
        (">u2", None, 0, "the byte order of other machines, .*; write the tokens as uint16"),
        ("uint16", 70_000, 0, "end=70000 is not a value of uint16"),
        ("uint16", None, -1, "must be at least 0"),
    ):
        with pytest.raises(ValueError, match=text):
            yoga.from_tokens(tmp_path / "odd.bin", dtype, end=end, offset=offset)


def test_npy_files_are_read_by_their_headers(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for number in (1, 2):
        np.save(tmp_path / f"part{number}.npy", np.array([number, 0, number + 1], np.uint16))
        fs.pipe_file(f"/npy-tokens/part{number}.npy", (tmp_path / f"part{number}.npy").read_bytes())
    for place in (f"{tmp_path}/*.npy", "memory://npy-tokens/*.npy"):
        ref = yoga.from_tokens(place, "uint16", cache_dir=tmp_path / "a")
        assert lists(ref) == [[1, 0, 2], [2, 0, 3]]
        assert ref[1]["tokens"].tolist() == [2, 0, 3]
        ends = yoga.from_tokens(place, np.uint16, end=0, cache_dir=tmp_path / "a")
        assert lists(ends) == [[1, 0], [2], [2, 0], [3]]
        text = r"part1\.npy has an array of uint16 \(3,\), where tokens of int32"
        with pytest.raises(ValueError, match=text):
            yoga.from_tokens(place, "int32", cache_dir=tmp_path / "a")
    with pytest.raises(ValueError, match=r"part1\.npy has NumPy's header, which neither offset=128"):
        yoga.from_tokens(tmp_path / "part1.npy", "uint16", offset=128)
    sound = (tmp_path / "part1.npy").read_bytes()
    (tmp_path / "part1.bin").write_bytes(sound)
    with pytest.raises(ValueError, match="files of other endings"):
        yoga.from_tokens(f"{tmp_path}/part1*", "uint16")
    np.save(tmp_path / "part3.npy", np.zeros((2, 2), np.uint16))
    (tmp_path / "part4.npy").write_bytes(sound[:-2])
    (tmp_path / "part5.npy").write_bytes(b"no header")
    (tmp_path / "part6.npy").write_bytes(b"")
    (tmp_path / "part7.npy").write_bytes(sound.replace(b"(3,)", b"(3, "))
    said = {3: r"\(2, 2\), where", 4: "says 3 tokens", 5: "is not a", 6: "is not a", 7: "is not a"}
    for number, text in said.items():
        with pytest.raises((ValueError, CorruptError), match=rf"part{number}\.npy .*{text}"):
            yoga.from_tokens(tmp_path / f"part{number}.npy", "uint16")


def test_folders_wildcards_and_urls_of_tokens(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for number in (10, 9):  # in the order of people
        np.array([number, 0, number + 1], "<u2").tofile(tmp_path / f"part{number}.bin")
        fs.pipe_file(f"/some-tokens/part{number}.bin", (tmp_path / f"part{number}.bin").read_bytes())
    (tmp_path / "meta.pkl").write_bytes(b"not tokens")
    rows = [[9, 0], [10], [10, 0], [11]]
    for place in (str(tmp_path), f"{tmp_path}/*.bin", "memory://some-tokens", "memory://some-tokens/part*"):
        for cache in ("a", "a", "b"):  # the second time the ends are kept
            ref = yoga.from_tokens(place, "uint16", end=0, cache_dir=tmp_path / cache)
            assert lists(ref) == rows, place
        check_dataref(ref)
        assert lists(yoga.from_tokens(place, "uint16", cache_dir=tmp_path / "a")) == [[9, 0, 10], [10, 0, 11]]
    assert lists(yoga.from_tokens(place, "uint16", end=10, cache_dir=tmp_path / "a")) == [
        [9, 0, 10],
        [10],
        [0, 11],
    ]
