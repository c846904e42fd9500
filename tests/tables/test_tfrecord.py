"""TFRecord in place: each value is what TensorFlow wrote, locally and behind URLs; damage is an error."""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import flipped
from golden.foreign_rows import FOREIGN, features, steps
from hypothesis import example, given
from hypothesis import strategies as st
from messages_of_tensorflow import Example, SequenceExample

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.files.checksum import crc32c, crc32c_of_words, masked
from torchyoga.testing import assert_rows_equal, check_dataref

GOLDEN = FOREIGN / "tfrecord"
ROWS, STEPS = ([dict(sorted(row.items())) for row in rows] for rows in (features(), steps()))


def framed(record: bytes) -> bytes:
    parts = struct.pack("<Q", len(record)), record
    return b"".join(part + struct.pack("<I", masked(crc32c()(part))) for part in parts)


def write(path: Path, records: Sequence[bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(map(framed, records)))
    return path


def message(**values: Any) -> bytes:
    """An Example: of ints, floats or bytes, or lists of such."""
    made = Example()
    for name, value in values.items():
        some = value if isinstance(value, list) else [value]
        feature = made.features.feature[name]
        kind = {int: feature.int64_list, float: feature.float_list, bytes: feature.bytes_list}
        of = kind[type(some[0])] if some else feature.int64_list
        of.value.extend(some)
        of.SetInParent()
    data: bytes = made.SerializeToString()
    return data


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    records = [message(n=n, x=b"x" * (n % 7), y=[n / 4, 1.0]) for n in range(50)]
    for number, start in enumerate(range(0, 50, 9)):
        write(tmp_path / "plain" / f"{number}.tfrecord", records[start : start + 9])
    return tmp_path / "plain"


def test_rows_are_those_of_tensorflow() -> None:
    for files in (GOLDEN / "x.tfrecord-*", [GOLDEN / f"x.tfrecord-{n:05}-of-00002" for n in range(2)]):
        ref = yoga.from_tfrecord(files)
        assert_rows_equal(list(ref), ROWS)
        assert ref.file_starts.tolist() == [0, 10, 24]
    ref = yoga.from_tfrecord(GOLDEN / "steps.tfrecord")
    assert_rows_equal(list(ref), STEPS)


@pytest.mark.parametrize("name", ["zipped.tfrecord.gz", "zipped.tfrecord.zz"])
def test_compressed_files_have_rows_by_number(name: str, tmp_path: Path) -> None:
    ref = yoga.from_tfrecord(GOLDEN / name)
    assert_rows_equal(list(ref), ROWS)
    assert len(list(ref)) == len(ref) == 24
    check_dataref(ref)
    kept = yoga.Storage(tmp_path / "store").submit(ref, "x", "1")
    assert_rows_equal(list(kept), ROWS)
    assert kept.schema == yoga.from_tfrecord(GOLDEN / "x.tfrecord-*").schema
    raw = list(yoga.from_tfrecord(GOLDEN / name, raw=True))
    assert raw == list(yoga.from_tfrecord(GOLDEN / "x.tfrecord-*", raw=True))
    data = (GOLDEN / name).read_bytes()
    for damaged in (data[:-20], data[:700] + b"\xff\xff" + data[702:]):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CorruptError, match=f"{name}"):
            list(yoga.from_tfrecord(tmp_path / name))


def test_a_record_whose_length_begins_as_gzip_does(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tfrecord", [bytes(0x088B1F), b"few"])
    assert [len(record) for record in yoga.from_tfrecord(path, raw=True)] == [0x088B1F, 3]


def test_raw_records_and_those_of_any_kind(tmp_path: Path) -> None:
    records = [b"", b"\x00", b"one", bytes(2**16), b"\xff" * 300]
    path = write(tmp_path / "x.tfrecord", records)
    for ref in (yoga.from_tfrecord(path, raw=True), yoga.from_tfrecord(path, yoga.Schema.of(b""))):
        assert list(ref) == records
        check_dataref(ref)
    with pytest.raises(CorruptError, match=r"record \d \(row \d\) is no Example: .*; pass raw=True"):
        yoga.from_tfrecord(path)
    assert list(yoga.from_tfrecord(write(tmp_path / "y.tfrecord", [message(), message(a=1)]))) == [
        {"a": None},
        {"a": 1},
    ]


def test_a_schema_may_be_given(tmp_path: Path) -> None:
    rows = [
        message(t="né".encode(), n=n, image=bytes(range(6)), f=n / 2, k=[n] * n, e=[0.5, n])
        for n in range(1, 4)
    ]
    path = write(tmp_path / "x.tfrecord", rows)
    like = {
        "t": "",
        "n": np.uint8(0),
        "image": np.zeros((2, 3), np.uint8),
        "f": 0.5,
        "k": np.zeros(1, np.int16),
        "e": [0.5],
        "none": 1,
    }
    ref = yoga.from_tfrecord(path, yoga.Schema.of(like, ragged=["k", "e"], nullable=["none"]))
    row = ref[1]
    assert (row["t"], row["n"], row["f"], row["e"], row["none"]) == ("né", np.uint8(2), 1.0, [0.5, 2.0], None)
    assert (type(row["n"]), row["k"].dtype, row["k"].tolist()) == (np.uint8, np.int16, [2, 2])
    assert row["image"].tolist() == [[0, 1, 2], [3, 4, 5]]
    check_dataref(ref)
    for bad, text in [
        ({"f": 1}, "feature 'f' holds floats, which cannot be f: int <i8"),
        ({"t": 1}, "feature 't' holds bytes, which cannot be t: int"),
        ({"n": b""}, "feature 'n' holds ints, which cannot be n: bytes"),
        ([1], "rows are dicts of features"),
    ]:
        with pytest.raises(SchemaError, match=text):
            yoga.from_tfrecord(path, yoga.Schema.of(bad))
    for bad, text in [
        (
            {"image": np.zeros(5, np.uint8)},
            r"record 0 \(row 0\): feature 'image' has 6 values of a byte, which",
        ),
        ({"missing": 1}, "feature 'missing' is missing, which others have; pass a schema="),
        ({"e": np.zeros(3, np.float32)}, "feature 'e' has 2 values where others have 3"),
    ]:
        with pytest.raises(SchemaError, match=text):
            yoga.from_tfrecord(path, yoga.Schema.of(bad))[0]
    big = write(tmp_path / "big.tfrecord", [message(n=300)])
    with pytest.raises(SchemaError, match="feature 'n' is 300, which is no"):
        yoga.from_tfrecord(big, yoga.Schema.of({"n": np.uint8(0)}))[0]


INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
FLOATS = st.floats(width=32)
KINDS = st.sampled_from([INTS, FLOATS, st.binary(max_size=200)])


@st.composite
def messages(draw: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Rows of features, and messages that say the same, in any order of the features."""
    names = draw(st.lists(st.text(max_size=3) | st.just("k" * 130), min_size=1, max_size=4, unique=True))
    looks = {name: (draw(KINDS), draw(st.sampled_from([(1, 1), (0, 1), (2, 2), (0, 3)]))) for name in names}
    rows, data = [], []
    for _ in range(draw(st.integers(1, 12))):
        row = {
            name: draw(st.lists(kind, min_size=least, max_size=most))
            for name, (kind, (least, most)) in looks.items()
        }
        rows.append(row)
        parts = []
        for name in draw(st.permutations(names)):
            if row[name] or draw(st.booleans()):
                parts.append(message(**{name: row[name]}))
        data.append(draw(st.sampled_from([one, several]))(parts))
    return rows, data


def several(parts: list[bytes]) -> bytes:
    """A message of messages: their fields come one after the other, which makes them one."""
    return b"".join(parts)


def one(parts: list[bytes]) -> bytes:
    """A message as writers write it."""
    merged = Example.FromString(b"".join(parts))
    data: bytes = merged.SerializeToString()
    return data


@given(messages())
def test_any_messages_are_what_protocol_buffers_say(made: tuple[list[dict[str, Any]], list[bytes]]) -> None:
    rows, data = made
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "x.tfrecord"), data)
        ref = yoga.from_tfrecord(path, cache_dir=folder)
        for order in (np.arange(len(rows)), np.arange(len(rows))[::-1]):
            for number, row in zip(order.tolist(), ref.take(order), strict=True):
                for name, values in rows[number].items():
                    got = row.get(name)
                    if got is None:
                        assert values == []
                        continue
                    got = got.tolist() if isinstance(got, np.ndarray | np.generic) else got
                    got = got if type(got) is list else [got]
                    assert np.array_equal(np.array(got, object), np.array(values, object)) or repr(
                        got
                    ) == repr(values)
        assert_rows_equal(list(ref), [ref[number] for number in range(len(rows))])


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, body: bytes, wire: int = 2) -> bytes:
    return varint(number << 3 | wire) + (varint(len(body)) + body if wire == 2 else body)


def of(name: bytes, feature: bytes, more: bytes = b"") -> bytes:
    """An Example of one feature, whose bytes are given."""
    return field(1, field(1, field(1, name) + field(2, feature) + more))


FIVE_SIX = field(3, field(1, b"\x05\x06"))
ODD = {
    "ints that are not packed": (of(b"a", field(3, field(1, b"\x05", 0) + field(1, b"\x06", 0))), [5, 6]),
    "packed in two parts": (of(b"a", field(3, field(1, b"\x05") + field(1, b"\x06"))), [5, 6]),
    "packed and not": (of(b"a", field(3, field(1, b"\x05") + field(1, b"\x06", 0))), [5, 6]),
    "a list in two parts": (of(b"a", field(3, field(1, b"\x05")) + field(3, field(1, b"\x06"))), [5, 6]),
    "another kind before": (of(b"a", field(1, field(1, b"x")) + FIVE_SIX), [5, 6]),
    "a value before its key": (field(1, field(1, field(2, FIVE_SIX) + field(1, b"a"))), [5, 6]),
    "an unknown field": (of(b"a", FIVE_SIX + field(9, b"\x01\x02\x03\x04", 5)), [5, 6]),
    "an unknown field of 8 bytes": (of(b"a", FIVE_SIX) + field(9, bytes(8), 1), [5, 6]),
    "an unknown number": (field(4, b"\x96\x01", 0) + of(b"a", FIVE_SIX), [5, 6]),
    "a feature twice": (field(1, of(b"a", field(3, field(1, b"\x01")))[2:] + of(b"a", FIVE_SIX)[2:]), [5, 6]),
    "longer sizes": (of(b"a", field(3, b"\x0a\x82\x00\x05\x06")), [5, 6]),
    "longer numbers": (of(b"a", field(3, field(1, b"\x85\x00\x86\x80\x00"))), [5, 6]),
    "ten bytes": (of(b"a", field(3, field(1, b"\xff" * 9 + b"\x01\x06"))), [-1, 6]),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_writers_do_not_write_is_read_all_the_same(odd: str, tmp_path: Path) -> None:
    data, values = ODD[odd]
    assert list(Example.FromString(data).features.feature["a"].int64_list.value) == values
    usual = [[n, 200 + n] for n in range(20)]
    others = [message(a=some) for some in usual]
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", [*others, data, *others]))
    assert ref[20]["a"].tolist() == values
    assert [row["a"].tolist() for row in ref] == [*usual, values, *usual]


FORGED = {
    "a size beyond the end": b"\x0a\xff\x01" + of(b"a", field(3, field(1, b"\x05")))[2:],
    "a size of 2**63": b"\x0a" + b"\xff" * 8 + b"\x7f",
    "a size without an end": b"\x0a" + b"\xff" * 12,
    "a number without an end": of(b"a", field(3, field(1, b"\xff" * 12))),
    "a number cut": of(b"a", field(3, field(1, b"\x05\x86"))),
    "floats of three bytes": of(b"a", field(2, field(1, b"\x00\x00\x00"))),
    "a key beyond its entry": field(1, field(1, b"\x0a\x50a" + field(2, b""))),
    "a key that is not text": of(b"\xff\xfe", field(3, field(1, b"\x05"))),
    "a list beyond its feature": of(b"a", b"\x1a\x40" + field(1, b"\x05")),
    "a group": b"\x0b\x0c",
    "a group nested": b"\x0b" * 5000,
    "field 0": b"\x02\x00",
    "field 0 of a number": of(b"a", field(3, field(1, b"\x05")), b"\x00\x05"),
    "a body of another type": of(b"a", field(3, field(1, bytes(8), 1))),
    "noise": bytes(range(200, 256)),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_messages_are_errors(forged: str, tmp_path: Path) -> None:
    data = [message(a=n) for n in range(30)]
    schema = yoga.Schema.of({"a": 1})
    path = write(tmp_path / "x.tfrecord", [*data, FORGED[forged]])
    with pytest.raises(CorruptError, match=r"x\.tfrecord: record 30 \(row 30\)"):
        yoga.from_tfrecord(path)
    # Seen late: among more rows than the sample has.
    path = write(tmp_path / "y.tfrecord", [*data * 60, FORGED[forged], *data * 60])
    ref = yoga.from_tfrecord(path, schema)
    with pytest.raises((CorruptError, SchemaError), match=r"y\.tfrecord: record 1800 \(row 1800\)"):
        ref.take(np.arange(1700, 1900))
    assert [row["a"] for row in ref.take(np.arange(1801, 1831))] == list(range(30))


def test_numbers_of_any_width_in_lists_of_any_length(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        [int(number) >> shift for number in rng.integers(-(2**63), 2**63, count)]
        for count, shift in zip(
            rng.integers(0, 300, 700).tolist(), rng.integers(0, 63, 700).tolist(), strict=True
        )
    ]
    rows[5] = [*range(-20_000, 20_000)]  # more bytes than are read at once
    rows[6] = [1] * 40_000
    for number in range(100, 400):
        rows[number] = [value & 16383 for value in rows[number]]  # of two bytes at most
    data = [message(a=row, b=[n % 128]) for n, row in enumerate(rows)]
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", data))
    for some in (slice(None), slice(100, 400), slice(5, 7)):
        numbers = rng.permutation(np.arange(700)[some])
        for number, row in zip(numbers.tolist(), ref.take(numbers), strict=True):
            assert (row["a"].tolist(), row["b"]) == (rows[number], number % 128)
    for bad in (b"\xff" * 10 + b"\x01", b"\x05\x86", b"\xff" * 40_000 + b"\x01"):
        forged = of(b"a", field(3, field(1, bytes(300) + bad)))
        late = yoga.from_tfrecord(write(tmp_path / "y.tfrecord", [*data * 3, forged, *data]))
        with pytest.raises(CorruptError, match=r"y\.tfrecord: record 2100 \(row 2100\)"):
            late.columns(["a"]).take(np.arange(1400, 2700))


def test_layouts_may_change_from_row_to_row(tmp_path: Path) -> None:
    rng, rows, data = np.random.default_rng(0), [], []
    for n in range(1200):
        row = {
            "text": bytes(rng.integers(0, 256, rng.choice([0, 1, 90, 119, 120, 127, 128, 300, 17_000]))),
            "pair": [n, 1 << n % 60],
            "flag": n % 3,
            "glag": n % 5,
            "a longer name of a feature " * 6: [b"same", bytes(4)][n % 2],
        }
        names = [*row] if n % 4 else list(rng.permutation([*row]))
        rows.append(row)
        data.append(field(1, b"".join(inner(message(**{name: row[name]})) for name in names)))
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", data))
    for numbers in (np.arange(1200), rng.permutation(1200)):
        for number, row in zip(numbers.tolist(), ref.take(numbers), strict=True):
            assert {**row, "pair": row["pair"].tolist()} == rows[number]


def inner(data: bytes) -> bytes:
    """The body of the only field of a message."""
    return next(data[at + 1 :] for at in range(1, 9) if data[at] < 128)


def test_an_entry_ends_within_its_map(tmp_path: Path) -> None:
    entry = inner(message(a=[18, 0]))  # its last bytes could be an empty field 2 of the message
    forged = b"\x0a" + varint(len(entry) - 2) + entry
    data = [message(a=[n % 99, 5]) for n in range(4000)]
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", [*data[:2001], forged, *data[2001:]]))
    with pytest.raises(CorruptError, match=r"x\.tfrecord: record 2001 \(row 2001\)"):
        ref.take(np.arange(1900, 2100))


def test_many_entries_and_long_lists_take_no_long_time(tmp_path: Path) -> None:
    entry = field(1, field(1, b"b") + field(2, b""))
    many = field(1, entry * 20_000 + field(1, field(1, b"a") + field(2, field(3, field(1, b"\x05")))))
    texts = message(t=[b"x"] * 20_000, a=1)
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", [many, texts, message(a=1)]))
    assert [row["a"] for row in ref] == [5, 1, 1]
    assert len(ref[1]["t"]) == 20_000


def test_flipped_bits_are_errors(plain: Path) -> None:
    path = plain / "1.tfrecord"
    sound, rng = path.read_bytes(), np.random.default_rng(0)
    for damaged in flipped(sound, rng.integers(0, 8 * len(sound), 150).tolist()):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"1\.tfrecord.* record \d"):
            list(yoga.from_tfrecord(plain))
    for cut in range(1, len(sound), 3):
        path.write_bytes(sound[:cut])
        whole = sum(end <= cut for end in ends(sound))
        if cut in ends(sound):
            assert len(yoga.from_tfrecord(plain)) == 41 + whole
            continue
        with pytest.raises(CorruptError, match=rf"1\.tfrecord is cut: record {whole} begins at byte"):
            yoga.from_tfrecord(plain)


def ends(data: bytes) -> list[int]:
    at, places = 0, []
    while at < len(data):
        at += 16 + struct.unpack_from("<Q", data, at)[0]
        places.append(at)
    return places


def test_sizes_that_lie(tmp_path: Path) -> None:
    for claimed in (2**64 - 1, 2**63, 10**12):
        head = struct.pack("<Q", claimed)
        data = framed(b"x") + head + struct.pack("<I", masked(crc32c()(head))) + b"few"
        (tmp_path / "x.tfrecord").write_bytes(data)
        with pytest.raises(CorruptError, match=r"x\.tfrecord is cut: record 1 begins at byte 17"):
            yoga.from_tfrecord(tmp_path / "x.tfrecord", raw=True)


def test_large_records_are_skipped_when_records_are_found(tmp_path: Path) -> None:
    sizes = [2**22 + 1, 5, 2**20, 2**22 - 12, 2**22 - 16, 0, 3 * 2**22, 1, 4096, 4092, 1]
    for some in (sizes, sizes[::-1]):
        path = write(tmp_path / "x.tfrecord", [bytes([n]) * size for n, size in enumerate(some)])
        ref = yoga.from_tfrecord(path, raw=True)
        assert [row == bytes([n]) * size for n, (row, size) in enumerate(zip(ref, some, strict=True))] == [
            True
        ] * 11


def test_rows_that_do_not_fit_what_a_sample_shows(tmp_path: Path) -> None:
    usual = [message(a=n, f=[1.0, 2.0]) for n in range(4000)]
    for odd, text in [
        (message(a=[1, 2], f=[1.0, 2.0]), "feature 'a' has 2 values where others have 1; pass a schema="),
        (message(f=[1.0, 2.0]), "feature 'a' is missing, which others have"),
        (message(a=1, f=[1.0]), "feature 'f' has 1 values where others have 2"),
        (message(a=1.5, f=[1.0, 2.0]), "feature 'a' holds floats where others hold ints"),
    ]:
        seen = np.linspace(0, 3999, 1000).astype(int)  # by `from_tfrecord`
        for count in (1, 20):
            rows = dict.fromkeys(np.setdiff1d(np.arange(2002, 4000), seen)[:count].tolist(), odd)
            path = write(tmp_path / "x.tfrecord", [rows.get(n, row) for n, row in enumerate(usual)])
            ref = yoga.from_tfrecord(path)
            with pytest.raises(SchemaError, match=rf"x\.tfrecord: record 2002 \(row 2002\): {text}"):
                ref.take(np.arange(1990, 2030))
    path = write(tmp_path / "x.tfrecord", [message(a=1), message(a=1.5)])
    with pytest.raises(SchemaError, match="feature 'a' holds floats and ints; pass a schema= without it"):
        yoga.from_tfrecord(path)


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    texts = ["", "plain", "h\u00fcll", "\0", "\U0001f600", "\ud800"] * 20
    data = [message(t=text.encode("utf-8", "surrogatepass")) for text in texts]
    schema = yoga.Schema.of({"t": ""})
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", data), schema)
    assert [row["t"] for row in ref] == texts
    for bad in (b"\xff", b"cut \xc3", b"\0\xa0"):
        broken = [*data[:70], message(t=bad), *data[70:]]
        ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", broken), schema)
        for act in (lambda ref=ref: ref[70], lambda ref=ref: ref.take(np.arange(40, 90))):
            with pytest.raises(SchemaError, match=r"x\.tfrecord: record 70 \(row 70\): .*'t' is not text"):
                act()
    words = yoga.Schema.of({"t": ["", ""]}, ragged=["t"])
    data = [message(t=[b"one", b"two"][: n % 3]) for n in range(50)]
    data[33] = message(t=[b"one", b"\xff"])
    ref = yoga.from_tfrecord(write(tmp_path / "y.tfrecord", data), words)
    with pytest.raises(SchemaError, match=r"y\.tfrecord: record 33 \(row 33\): .*'t' is not text"):
        ref.take(np.arange(50))


def test_other_bad_input(tmp_path: Path, plain: Path) -> None:
    for missing in (tmp_path / "none", tmp_path / "*.tfrecord"):
        with pytest.raises(NotFoundError, match="there is no file"):
            yoga.from_tfrecord(missing)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"there are no files \*tfrec\* in"):
        yoga.from_tfrecord(tmp_path / "empty")
    named: list[tuple[list[Any], str]] = [
        ([], "no files were named"),
        ([plain, "memory://x"], "of this machine and of a store"),
        (["memory://x/1.tfrecord", "s3://x/1.tfrecord"], "are of several stores"),
    ]
    for files, text in named:
        with pytest.raises(ValueError, match=text):
            yoga.from_tfrecord(files)
    (tmp_path / "x.tfrecord").write_bytes(b"")
    with pytest.raises(SchemaError, match="there are no records"):
        yoga.from_tfrecord(tmp_path / "x.tfrecord")
    assert len(yoga.from_tfrecord([tmp_path / "x.tfrecord", plain])) == 50
    (tmp_path / "x.tfrecord").write_bytes(b"PAR1" * 9)
    with pytest.raises(CorruptError, match="it is not of TFRecord"):
        yoga.from_tfrecord(tmp_path / "x.tfrecord")


@given(st.binary(max_size=300) | st.binary(min_size=4090, max_size=4100))
@example(b"")
def test_crcs_by_numpy(data: bytes) -> None:
    from torchyoga.files import checksum as room

    assert room.by_numpy(data) == crc32c()(data)
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint8).reshape(-1, 8)
    assert crc32c_of_words(words).tolist() == [room.by_numpy(word.tobytes()) for word in words]
    assert room.by_numpy(b"123456789") == 0xE3069283  # the check value of its catalogue


def test_steps_are_read_however_many(tmp_path: Path) -> None:
    records = []
    for n in range(40):
        made = SequenceExample()
        made.context.feature["id"].int64_list.value.append(n)
        for step in range(n):
            made.feature_lists.feature_list["x"].feature.add().int64_list.value.append(step * 100)
            made.feature_lists.feature_list["t"].feature.add().bytes_list.value.append(b"t" * step)
        records.append(made.SerializeToString())
    ref = yoga.from_tfrecord(write(tmp_path / "x.tfrecord", records[1:]))
    for n, row in zip(range(1, 40), ref, strict=True):
        assert (row["id"], row["x"].tolist()) == (n, [100 * step for step in range(n)])
        assert row["t"] == [b"t" * step for step in range(n)]
    missing = yoga.from_tfrecord(write(tmp_path / "y.tfrecord", records))
    assert (missing[0]["x"], missing[0]["t"]) == (None, None)
    assert list(itertools.islice((row["id"] for row in missing), 3)) == [0, 1, 2]
