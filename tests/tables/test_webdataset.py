"""Tar shards, here or behind URLs: rows are those of tarfile; cut, forged and hostile shards are refused."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import pickle
import re
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from behind_urls import in_memory
from coding.decoders import file_of
from hypothesis import given
from hypothesis import strategies as st

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.files.tar import members
from torchyoga.testing import check_dataref, check_source

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def member(name: str, size: int = 0, **more: Any) -> tarfile.TarInfo:
    """A header."""
    found = tarfile.TarInfo(name)
    found.size = size
    for key, value in more.items():
        setattr(found, key, value)
    return found


def tar(
    files: Iterable[tuple[str | tarfile.TarInfo, bytes]], format: str = "ustar", mode: str = "w", **more: Any
) -> bytes:
    """An archive of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=FORMATS[format], **more) as archive:  # type: ignore[call-overload]
        for name, data in files:
            header = member(name, len(data)) if isinstance(name, str) else name
            archive.addfile(header, io.BytesIO(data))
    return out.getvalue()


def summed(data: bytearray) -> bytes:
    """An archive whose first header has the checksum that fits."""
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


def files_of(shard: int, count: int = 20) -> list[tuple[str, bytes]]:
    """The members of a shard: an image, a class and text a sample."""
    found = []
    for number in range(count):
        key = f"train/{shard:02}{number:03}"
        found += [(f"{key}.jpg", b"\xff\xd8\xff" + bytes([number]) * (number * 37))]
        found += [(f"{key}.cls", b"%d" % number), (f"{key}.seg.json", json.dumps({"n": number}).encode())]
    return found


def rows_of(shard: int, count: int = 20) -> list[dict[str, object]]:
    """The rows of a shard."""
    files = files_of(shard, count)
    return [
        {
            "__key__": files[i][0].removesuffix(".jpg"),
            "jpg": files[i][1],
            "cls": files[i + 1][1],
            "seg.json": files[i + 2][1],
        }
        for i in range(0, len(files), 3)
    ]


ROWS = [row for shard in range(3) for row in rows_of(shard)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        (folder / f"s-{number:03}.tar").write_bytes(tar(files_of(number)))
    return folder


def test_members_of_a_key_are_a_row(shards: Path) -> None:
    ref = yoga.webdataset(shards / "s-{000..002}.tar")
    assert list(ref) == ROWS
    assert ref.file_starts.tolist() == [0, 20, 40, 60]
    assert ref.schema is not None
    codecs = [column.meaning.codec and column.meaning.codec.name for column in ref.schema.columns]
    assert codecs == [None, "jpeg", None, None]
    assert ref.columns(["cls", "__key__"])[7] == {"cls": b"7", "__key__": "train/00007"}
    assert yoga.webdataset(shards).fingerprint == ref.fingerprint


def test_names_of_shards(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(yoga.webdataset(shards))
    urls: list[Any] = [
        shards / "s-*.tar",
        str(shards / "s-00[0-2].tar"),
        [shards / "s-000.tar", shards / "s-{001,002}.tar"],
        f"file://{shards}/s-{{000..002}}.tar",
    ]
    for url in urls:
        assert list(yoga.webdataset(url)) == expected
    assert len(yoga.webdataset(shards / "s-{1..2}.tar".replace("{", "00{"))) == 40
    monkeypatch.chdir(shards)
    assert len(yoga.webdataset("s-001.tar")) == 20
    (shards / "odd{1,2}[x].tar").write_bytes(tar(files_of(7)))
    assert len(yoga.webdataset(shards / "odd{1,2}[x].tar")) == 20
    for missing in ("t-{000..002}.tar", "*.tgz", "s-{000..003}.tar"):
        with pytest.raises(NotFoundError, match="there is no file"):
            yoga.webdataset(shards / missing)
    with pytest.raises(ValueError, match="no files were named"):
        yoga.webdataset([])
    with pytest.raises(ValueError, match="would run a command"):
        yoga.webdataset(f"pipe:touch {tmp_path}/ran")
    for many in ("s-{0..99999999}.tar", "s-{0..99999}-{0..99999}.tar"):
        with pytest.raises(ValueError, match="more than 1000000"):
            yoga.webdataset(many)


def test_what_belongs_to_no_sample_is_ignored(tmp_path: Path) -> None:
    folder = member("train", type=tarfile.DIRTYPE)
    files: list[Any] = [(folder, b""), ("README", b"x"), ("train/.hidden", b"x"), ("__meta__.json", b"x")]
    (tmp_path / "x.tar").write_bytes(tar([*files, ("train/1.TXT", b"1"), ("train/2.txt", b"")]))
    assert list(yoga.webdataset(tmp_path)) == [
        {"__key__": "train/1", "txt": b"1"},
        {"__key__": "train/2", "txt": b""},
    ]


def test_missing_members_are_none(tmp_path: Path) -> None:
    files = [(name, data) for name, data in files_of(0) if name != "train/00003.cls"]
    (tmp_path / "a.tar").write_bytes(tar(files))
    (tmp_path / "b.tar").write_bytes(tar([("x.jpg", b"x")]))
    ref = yoga.webdataset(tmp_path)
    assert [number for number in range(21) if ref[number]["cls"] is None] == [3, 20]
    assert ref[20] == {"__key__": "x", "jpg": b"x", "cls": None, "seg.json": None}
    check_dataref(ref)
    built = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1")
    assert list(built) == list(ref)
    assert built.schema == ref.schema
    with pytest.raises(SchemaError, match=r"no sample has 'png'; the samples have jpg, cls, seg\.json"):
        yoga.webdataset(tmp_path, columns=["png"])
    assert list(yoga.webdataset(tmp_path, columns=["cls", "__key__"])[3]) == ["__key__", "cls"]


def test_rows_of_plain_functions_say_what_they_look_like(tmp_path: Path) -> None:
    picture = file_of(np.zeros((4, 4, 3), np.uint8), "PNG")
    names = ("a.png", "a.cls", "a.txt", "b.png", "b.cls")
    files = [(name, picture if name.endswith("png") else b"3") for name in names]
    (tmp_path / "a.tar").write_bytes(tar(files))
    ref = yoga.webdataset(tmp_path / "a.tar", parse={"cls": int, "txt": str})
    assert [row["txt"] for row in ref.columns(["txt"])] == ["3", None]
    check_dataref(ref)
    shown = ref.columns(["png", "cls"]).decoded({"png": yoga.codecs.image(layout="chw")})
    (batch,) = yoga.DataLoader(shown, batch_size=2)
    assert (batch["png"].shape, batch["cls"].tolist()) == ((2, 3, 4, 4), [3, 3])
    built = yoga.Storage(tmp_path / "storage").submit(ref, "a", "1.0", progress=False)
    assert list(built) == list(ref)
    odd = yoga.webdataset(tmp_path / "a.tar", parse={"cls": json.loads})
    assert odd[1]["cls"] == 3
    with pytest.raises(TypeError, match="parse=, too, comes last, as a map"):
        odd.decoded({"png": yoga.codecs.image()})


def test_values_are_parsed_by_choice(shards: Path, tmp_path: Path) -> None:
    parse = {"cls": int, "seg.json": json.loads, "__key__": str.upper}
    ref = yoga.webdataset(shards, parse={**parse, "jpg": len})
    assert ref[21] == {"__key__": "TRAIN/01001", "jpg": 40, "cls": 1, "seg.json": {"n": 1}}
    check_dataref(ref)
    built = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1")
    assert list(built) == list(ref)
    (tmp_path / "t.tar").write_bytes(tar([("a.txt", "ü".encode()), ("b.txt", b"\xff")]))
    texts = yoga.webdataset(tmp_path / "t.tar", parse={"txt": str})
    assert texts[0]["txt"] == "ü"
    with pytest.raises(CorruptError, match=r"parse\['txt'\] failed for the sample 'b'.*UnicodeDecodeError"):
        texts[1]


def test_pickles_stay_bytes(tmp_path: Path) -> None:
    bomb = b"cos\nmkdir\n(S'" + os.fsencode(tmp_path / "ran") + b"'\ntR."
    (tmp_path / "x.tar").write_bytes(tar([("a.pyd", bomb), ("a.pickle", bomb), ("a.pkl", bomb)]))
    assert list(yoga.webdataset(tmp_path)) == [{"__key__": "a", "pyd": bomb, "pickle": bomb, "pkl": bomb}]
    assert not (tmp_path / "ran").exists()


# -- builds


def compressed(folder: Path) -> None:
    """Compresses each shard of a folder."""
    for path in folder.glob("*.tar"):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def test_shards_go_into_a_storage(shards: Path, tmp_path: Path) -> None:
    check_source(lambda: yoga.webdataset(shards), ROWS, tmp_path / "plain")
    compressed(shards)
    check_source(lambda: yoga.webdataset(shards), ROWS, tmp_path / "gzip")
    ref = yoga.webdataset(shards)
    check_dataref(ref)
    assert list(ref) == ROWS
    few = yoga.webdataset(shards, columns=["cls"], parse={"cls": int})
    assert list(few) == [{"__key__": row["__key__"], "cls": int(row["cls"])} for row in ROWS]  # type: ignore[call-overload]


# -- what is bad


HOSTILE: dict[str, Any] = {
    "absolute": ("/etc/passwd.jpg", "leads out"),
    "above": ("../../x.jpg", "leads out"),
    "symlink": (member("x.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
    "hard link": (member("x.jpg", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "is a link"),
    "device": (member("x.jpg", type=tarfile.CHRTYPE), "is a device"),
    "FIFO": (member("x.jpg", type=tarfile.FIFOTYPE), "is a device or a FIFO"),
    "sparse": (member("x.jpg", type=tarfile.GNUTYPE_SPARSE), "is a sparse file"),
    "unknown": (member("x.jpg", type=b"Q"), "is of an unknown kind"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_hostile_members_are_left_out_or_refused(tmp_path: Path, case: str, is_compressed: bool) -> None:
    header, problem = HOSTILE[case]
    path = tmp_path / "x.tar"
    path.write_bytes(tar([("a.jpg", b"1"), (header, b""), ("b.jpg", b"2")]))
    if is_compressed:
        compressed(tmp_path)
    with pytest.raises(CorruptError, match=rf"1 of 3 samples are bad.*{problem}"):
        list(yoga.webdataset(tmp_path))
    with pytest.warns(UserWarning, match=rf"1 of 3 samples are bad and left out.*{problem}"):
        assert [row["jpg"] for row in yoga.webdataset(tmp_path, max_bad=0.5)] == [b"1", b"2"]
    assert not (tmp_path.parent / "x.jpg").exists()


def test_members_that_come_twice_are_bad(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar([("a.x", b"1"), ("a.x", b"2"), ("b.x", b"3"), ("c.__key__", b"4")]))
    with pytest.warns(UserWarning, match="2 of 3 samples"):
        ref: Any = yoga.webdataset(tmp_path, max_bad=1)
    assert list(ref) == [{"__key__": "b", "x": b"3"}]
    assert [bad.reason for bad in ref.left_out] == [
        "has a member 'x' that is there twice",
        "has a member '__key__' that has a name that means the key",
    ]


@pytest.mark.parametrize(("ending", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
def test_samples_whose_members_do_not_lie_together_are_named(tmp_path: Path, ending: str, mode: str) -> None:
    parts = [(f"{n}.{kind}", b"x") for kind in ("png", "cls") for n in range(4)]
    (tmp_path / f"a{ending}").write_bytes(tar([*parts, ("4.png", b"x"), ("4.cls", b"x")], mode=mode))
    said = (
        rf"4 of 9 samples have a key that came before .*sort=name: '.*a{ending}' has '0' again; .*'3' again$"
    )
    with pytest.warns(UserWarning, match=said):
        assert len(list(yoga.webdataset(tmp_path, columns=["png", "cls"]))) == 9


def test_sparse_files_of_pax_and_of_old_gnu(tmp_path: Path) -> None:
    sparse = member("s.x", 3, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.name": "s.x"})
    (tmp_path / "pax.tar").write_bytes(tar([(sparse, b"abc"), ("t.x", b"1")], "pax"))
    old = bytearray(tar([(member("u.x", 512, type=tarfile.GNUTYPE_SPARSE), b"d" * 512)], "gnu"))[: 2 * 512]
    (tmp_path / "zold.tar").write_bytes(bytes(old) + tar([("v.x", b"2")]))
    with pytest.warns(UserWarning, match="is a sparse file"):
        assert [row["x"] for row in yoga.webdataset(tmp_path, max_bad=0.5)] == [b"1", b"2"]
    old[482] = 1  # one more header, behind which the bytes begin
    whole = summed(old)
    (tmp_path / "zold.tar").write_bytes(whole[:512] + bytes(512) + whole[512:] + tar([("v.x", b"2")]))
    with pytest.raises(CorruptError, match=r"1 of 2 shards are bad.*'u.x' is a sparse file of many pieces"):
        yoga.webdataset(tmp_path)


def test_cut_shards_keep_what_is_whole(shards: Path) -> None:
    data = tar(files_of(1))
    path = shards / "s-001.tar"
    for cut in (0, 100, 512 * 7, 512 * 7 + 1, len(data) // 2, 512 * 120):
        path.write_bytes(data[:cut])
        with pytest.raises(CorruptError, match=r"1 of 3 shards are bad.*s-001\.tar' ends early"):
            yoga.webdataset(shards)
        with pytest.warns(UserWarning, match="1 of 3 shards are bad and left out"):
            ref = yoga.webdataset(shards, max_bad=0.4)
        found = list(ref)
        assert found == [*rows_of(0), *found[20:-20], *rows_of(2)]
        assert found[20:-20] == rows_of(1)[: len(found) - 40]
        if cut:
            check_dataref(ref)


def test_cut_and_damaged_gzip_shards(shards: Path) -> None:
    compressed(shards)
    path = shards / "s-001.tar.gz"
    data = path.read_bytes()
    middle = data[:200] + bytes(50) + data[250:]
    for damaged in (data[: len(data) // 2], data[:3], middle, data[:-4] + b"1234"):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"s-001\.tar\.gz is damaged: it is (cut|damaged)"):
            yoga.webdataset(shards, max_bad=1)


def test_what_is_left_out_is_in_the_info(shards: Path, tmp_path: Path) -> None:
    path = shards / "s-001.tar"
    path.write_bytes(path.read_bytes()[:-30000])
    storage = yoga.Storage(tmp_path / "storage")
    with pytest.warns(UserWarning, match="1 of 3 shards"):
        bad = yoga.webdataset(shards, max_bad=0.4)
    ref = storage.submit(bad, "x", "1", info={"by": "me"})
    assert ref.info["by"] == "me"
    (reason,) = ref.info["left_out"]["first"].values()
    assert ref.info["left_out"]["count"] == 1
    assert [*ref.info["left_out"]["first"]] == [str(path)]
    assert "ends early: it is cut" in reason
    ref = storage.submit(bad, "y", "1", codecs={"cls": yoga.codecs.zstd()}, info={"left_out": 3})
    assert ref.info == {"left_out": 3}  # what the caller says comes first
    whole = storage.submit(yoga.webdataset([shards / "s-000.tar"]), "z", "1")
    assert "left_out" not in whole.info


def test_a_build_of_encoded_shards_continues(
    tmp_path: Path, files_of: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    files_of(200)
    caplog.set_level(logging.INFO, "torchyoga")
    texts = [f"a text that all rows share, but for {n}" for n in range(6000)]
    for shard in range(4):
        members = [(f"{shard}/{n:04}.txt", texts[1500 * shard + n].encode()) for n in range(1500)]
        (tmp_path / f"{shard}.tar.gz").write_bytes(tar(members, mode="w:gz"))
    read: list[bytes] = []
    most = 5500

    def look(data: bytes) -> str:
        read.append(data)
        if len(read) > most:
            raise KeyboardInterrupt
        return data.decode()

    storage, codecs = yoga.Storage(tmp_path / "storage"), {"txt": yoga.codecs.zstd()}
    with pytest.raises(KeyboardInterrupt):
        storage.submit(yoga.webdataset(tmp_path, parse={"txt": look}), "x", "1", codecs=codecs)
    read.clear()
    most = 10**6
    ref = storage.submit(yoga.webdataset(tmp_path, parse={"txt": look}), "x", "1", codecs=codecs)
    (row,) = re.findall(r"continuing an interrupted build at row (\d+)", caplog.text)
    assert int(row) > 5000
    assert [row["txt"] for row in ref.decoded()] == texts


def forged(**changes: tuple[int, bytes]) -> bytes:
    """An archive whose third header is changed at some places; its checksum fits."""
    data = bytearray(tar([("0.x", b"0"), ("a.x", b"1"), ("b.x", b"2")]))
    header = data[2048:2560]
    for start, value in changes.values():
        header[start : start + len(value)] = value
    data[2048:2560] = header if "checksum" in changes else summed(header)
    return bytes(data)


WHOLE = tar([("0.x", b"0"), ("a.x", b"1")])


def followed(kind: bytes, data: bytes) -> bytes:
    """An archive of two members that goes on with a header of this kind for more."""
    return WHOLE[:2048] + tar([(member("h", len(data), type=kind), data)])


FORGED = {
    "size beyond the file": (forged(size=(124, b"77777777777\0")), "is cut, or its member"),
    "huge size": (forged(size=(124, b"\x80" + b"\xff" * 11)), "nothing has"),
    "negative size": (forged(size=(124, b"\xff" * 12)), "is not a number"),
    "size with a sign": (forged(size=(124, b"-0000000001\0")), "is not a number"),
    "size with an underscore": (forged(size=(124, b"0000000_001\0")), "is not a number"),
    "checksum": (forged(checksum=(0, b"c")), "does not fit its checksum"),
    "a link with bytes": (forged(kind=(156, b"2")), "is a link or a device of 1 bytes"),
    "a PAX header of the wrong kind": (forged(kind=(156, b"x")), "not a record of a PAX header"),
    "a header for all with a size": (followed(b"g", b"9 size=1\n"), "a header for all members says 'size'"),
    "a header for all with odd letters": (followed(b"g", b"18 GNU.sparse.\xff=1\n"), "says 'GNU.sparse"),
    "a long name without a member": (followed(b"L", b"a.b"), "within a header"),
    "a huge PAX header": (followed(b"x", bytes(2**22)), "a header of 4194304 bytes"),
    "a record longer than its header": (followed(b"x", b"999 path=x\n\n"), "not a record of a PAX header"),
    "a record of length 0": (followed(b"x", b"0 path=xyz\n\n"), "not a record of a PAX header"),
    "something far behind it": (WHOLE + bytes(2**18) + b"1", "perhaps another archive"),
    "another archive behind it": (WHOLE + tar([("b.x", b"1")]), "perhaps another archive"),
}


@pytest.mark.parametrize("case", FORGED)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_forged_headers_end_a_shard(tmp_path: Path, case: str, is_compressed: bool) -> None:
    data, problem = FORGED[case]
    (tmp_path / "x.tar").write_bytes(data)
    if is_compressed:
        compressed(tmp_path)
    with pytest.raises(CorruptError, match=problem):
        list(yoga.webdataset(tmp_path))
    with pytest.warns(UserWarning, match="ends early"):
        assert [row["__key__"] for row in yoga.webdataset(tmp_path, max_bad=1)] == ["0"]


def test_what_is_not_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"<html>" * 200)
    with pytest.raises(CorruptError, match="it is not a tar archive"):
        yoga.webdataset(tmp_path)
    (tmp_path / "x.tar").unlink()
    os.mkfifo(tmp_path / "x.tar") if os.name != "nt" else (tmp_path / "x.tar").mkdir()
    with pytest.raises(NotFoundError, match=r"there are no files|there is no file"):
        yoga.webdataset(tmp_path / "x.tar")


@given(data=st.data())
def test_any_bytes_end_in_an_error_or_at_an_end(data: st.DataObject) -> None:
    archive = bytearray(
        tar([("a.x", b"1" * 600), ("p" * 120 + ".y", b"2")], data.draw(st.sampled_from(["gnu", "pax"])))
    )
    del archive[6 * 1024 :]
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(archive) - 1), st.integers(0, 255)), max_size=8)
    ):
        archive[place] = byte
    reads = []

    def read(at: int, count: int) -> bytes:
        reads.append(at)
        assert count <= 2**20
        return bytes(archive[at : at + count])

    try:
        for found in members(read, len(archive)):
            assert 0 <= found.offset <= found.offset + found.nbytes <= len(archive)
    except CorruptError:
        pass
    assert reads == sorted(reads)
    assert len(reads) < 100


def test_members_are_those_of_tarfile(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large = bytearray(tar([("a.x", b"abc"), ("b.x", b"de")], "gnu"))
    large[124:136] = b"\x80" + (3).to_bytes(11, "big")  # as GNU writes large sizes
    archives = [summed(large), tar([("a.x", b"abc")], "pax", pax_headers={"comment": "of git archive"})]
    for format in FORMATS:
        names = [f"{'d/' * (i % 5)}{i}.x{i % 3}" for i in range(200)] + ["deep/" * 25 + "b.txt", "ü/ä.txt"]
        if format != "ustar":
            names += ["x" * 150 + ".txt", "y/" * 400 + "z.txt"]
        files = [(name, rng.bytes(int(rng.integers(0, 3000)))) for name in names]
        archives.append(tar(files, format))
    for data in archives:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            expected = [(info.name, info.offset_data, info.size) for info in archive]
        parts = members(lambda at, count, data=data: data[at : at + count], len(data))
        found = [(m.name, m.offset, m.nbytes) for m in parts]
        assert found == expected


# -- processes


@pytest.mark.parametrize("way", ["in place", "compressed", "some columns"])
def test_images_without_an_extension_are_counted_and_named(way: str, tmp_path: Path) -> None:
    files: list[tuple[str | tarfile.TarInfo, bytes]] = [*files_of(0, 40)]
    files[3:3] = [("train/0001", b"\xff\xd8\xff" + bytes(99)), ("README", b"P1 says what this is")]
    files += [("__meta__.png", b"\x89PNG\r\n\x1a\n"), (".hidden", b"\x89PNG\r\n\x1a\n"), ("empty", b"")]
    path = tmp_path / ("x.tar" if way == "in place" else "x.tar.gz")
    path.write_bytes(tar(files) if way == "in place" else gzip.compress(tar(files)))
    columns = ["cls"] if way == "some columns" else None
    storage = yoga.Storage(tmp_path / "storage")
    text = r"1 of \d+ samples are bad.*'.*train/0001' begins as an image does"
    with pytest.raises(CorruptError, match=text):
        storage.submit(yoga.webdataset(path, columns=columns, max_bad=0.0), "x", "1")
    with pytest.warns(UserWarning, match="1 of 41 samples are bad and left out"):
        ref = storage.submit(yoga.webdataset(path, columns=columns, max_bad=0.03), "x", "1")
    assert [row["cls"] for row in ref] == [row["cls"] for row in rows_of(0, 40)]


# -- behind URLs


def test_a_shard_behind_a_url_that_has_changed_is_an_error(shards: Path, tmp_path: Path) -> None:
    url = in_memory(shards)
    ref = yoga.webdataset(f"{url}/s-{{000..002}}.tar", parse={"cls": int}, cache_dir=tmp_path / "cache")
    assert ref[21]["cls"] == 1
    for file in (tmp_path / "cache" / "files").glob("*.shard"):
        file.unlink()
    fsspec.filesystem("memory").pipe_file(f"{url}/s-002.tar", tar(files_of(7)))
    fresh = pickle.loads(pickle.dumps(ref))
    assert fresh[0]["cls"] == 0
    with pytest.raises(CorruptError, match=r"s-002\.tar has changed since it was opened"):
        fresh[40]


def test_bad_shards_behind_a_url(shards: Path, tmp_path: Path) -> None:
    (shards / "s-001.tar").write_bytes(tar(files_of(1))[:15_000])
    url = in_memory(shards)
    with pytest.raises(CorruptError, match=r"s-001\.tar.*it is cut"):
        yoga.webdataset(url, cache_dir=tmp_path / "cache")
    with pytest.warns(UserWarning, match="1 of 3 shards"):
        ref = yoga.webdataset(url, max_bad=0.5, cache_dir=tmp_path / "cache")
    assert 40 < len(ref) < 60
    assert ref.left_out[0].name.endswith("s-001.tar")
    fsspec.filesystem("memory").rm_file(f"{url}/s-001.tar")
    with pytest.raises(NotFoundError, match=r"s-001\.tar"):
        yoga.webdataset(f"{url}/s-{{000..002}}.tar", cache_dir=tmp_path / "cache")


def test_wildcards_in_folders_of_a_url(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    for number, folder in enumerate(("wild/a", "wild/b", "wild/b/c", "other")):
        store.pipe(f"/{folder}/x.tar", tar([(f"{number}.x", b"")]))
    for pattern, keys in (("*/x.tar", ["0", "1"]), ("**/x.tar", ["0", "2", "1"])):
        ref = yoga.webdataset(f"memory://wild/{pattern}", cache_dir=tmp_path / "cache")
        assert [row["__key__"] for row in ref] == keys
    for missing in ("wild/t-*", "other/s-009"):
        with pytest.raises(NotFoundError, match=f"there is no memory://{re.escape(missing)}"):
            yoga.webdataset(f"memory://{missing}.tar")
