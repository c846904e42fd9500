"""Folders of image files: classes, order, bad files, and builds that continue."""

from __future__ import annotations

import io
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import status_of_child
from coding.decoders import file_of
from PIL import Image, features

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, SchemaError
from torchyoga.testing import check_dataref, check_source


def image(number: int, format: str = "JPEG", size: int = 8) -> bytes:
    """An encoded image, different for each number."""
    return file_of(np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8), format)


def write(root: Path, files: dict[str, bytes]) -> Path:
    """Writes files below a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def pets(root: Path, count: int = 30, padding: int = 0) -> Path:
    """A folder of three classes, some of the files deeper; with bytes behind each image."""
    names = [f"{['cat', 'dog', 'eel'][i % 3]}/{'deep/er/' * (i % 4 == 0)}{i:03}.jpg" for i in range(count)]
    return write(root, {name: image(i) + bytes(padding) for i, name in enumerate(names)})


def codec_of(ref: Any) -> str | None:
    """The name of the codec of images."""
    codec = ref.schema.columns[0].meaning.codec
    return None if codec is None else codec.name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three classes."""
    return pets(tmp_path / "pets")


def test_classes_are_folders_and_bytes_stay_as_they_are(folder: Path) -> None:
    ref = yoga.image_folder(folder)
    assert len(ref) == 30
    assert len(pickle.dumps(ref)) < 4096 + 60 * len(ref)
    assert ref.classes == ["cat", "dog", "eel"]
    assert ref.class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
    for row in ref:
        assert row["image"] == (folder / row["path"]).read_bytes()
        assert ref.classes[row["label"]] == row["path"].partition("/")[0]
        assert Image.open(io.BytesIO(row["image"])).size == (8, 8)
    meanings = {column.name: column.meaning for column in ref.schema.columns}
    assert codec_of(ref) == "jpeg"
    assert meanings["label"].words == ("cat", "dog", "eel")
    assert ref.left_out == ()


def test_columns_without_bytes_touch_no_file(folder: Path) -> None:
    ref = yoga.image_folder(folder)
    (folder / "cat/deep/er/000.jpg").unlink()
    assert list(ref["label"]) == [0] * 10 + [1] * 10 + [2] * 10
    with pytest.raises(NotFoundError, match=r"deep/er/000\.jpg has been removed"):
        ref["image"].take(np.arange(30))


def test_rows_come_by_class_folder_and_name(tmp_path: Path) -> None:
    names = ["b/2.png", "b/10.png", "b/a/9.png", "a/z.png", "b/A.PNG", "b/a-b/1.png"]
    write(tmp_path, {name: image(1, "PNG") for name in names})
    found = [row["path"] for row in yoga.image_folder(tmp_path)]
    assert found == ["a/z.png", "b/10.png", "b/2.png", "b/A.PNG", "b/a/9.png", "b/a-b/1.png"]


def test_folders_without_classes(tmp_path: Path) -> None:
    write(tmp_path / "flat", {f"{i}.png": image(i, "PNG") for i in range(3)})
    ref = yoga.image_folder(tmp_path / "flat")
    assert [row["path"] for row in ref] == ["0.png", "1.png", "2.png"]
    assert set(ref[0]) == {"image", "path"}
    assert ref.info == {}
    check_dataref(ref)
    write(tmp_path / "flat", {"more/x.png": image(9, "PNG")})
    with pytest.raises(SchemaError, match=r"3 images beside folders, and 1 in.*classes=True.*classes=False"):
        yoga.image_folder(tmp_path / "flat")
    assert len(yoga.image_folder(tmp_path / "flat", classes=False)) == 4
    with pytest.warns(UserWarning, match=r"3 of 4 files .*'0\.png' lies beside the folders of the classes"):
        assert [row["path"] for row in yoga.image_folder(tmp_path / "flat", classes=True)] == ["more/x.png"]


def test_classes_by_name(folder: Path) -> None:
    ref = yoga.image_folder(folder, classes=["eel", "cat"])
    assert ref.classes == ["eel", "cat"]
    assert [row["path"][:3] for row in ref] == ["eel"] * 10 + ["cat"] * 10
    with pytest.raises(NotFoundError, match="no folder 'cow'"):
        yoga.image_folder(folder, classes=["cow"])
    with pytest.warns(UserWarning, match="has no folder 'cow', which classes= names"):
        ref = yoga.image_folder(folder, classes=["cow", "cat"])
    assert (len(ref), ref[0]["label"], ref.classes) == (10, 1, ["cow", "cat"])
    with pytest.raises(ValueError, match="twice"):
        yoga.image_folder(folder, classes=["cat", "cat"])
    with pytest.raises(ValueError, match="must be a list"):
        yoga.image_folder(folder, classes="cat")
    (folder / "empty").mkdir()
    assert yoga.image_folder(folder).class_to_idx["empty"] == 3


def test_hidden_and_other_files_are_ignored(folder: Path) -> None:
    write(folder, {"cat/.hidden.jpg": b"x", ".git/x.jpg": b"x", "cat/notes.txt": b"x", "Thumbs.db": b"x"})
    assert len(yoga.image_folder(folder)) == 30
    ref = yoga.image_folder(folder, extensions=[".TXT"])
    assert [row["image"] for row in ref] == [b"x"]
    assert codec_of(ref) is None
    with pytest.raises(NotFoundError, match=r"no files with \.flac; it has .*\.jpg.*extensions="):
        yoga.image_folder(folder, extensions=[".flac"])
    for extensions in ("jpg", ["jpg"], [], False):
        with pytest.raises(ValueError, match="list of endings"):
            yoga.image_folder(folder, extensions=extensions)
    with pytest.raises(NotFoundError, match="no folder"):
        yoga.image_folder(folder / "cow")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_are_followed_but_never_for_ever(folder: Path, tmp_path: Path) -> None:
    (folder / "cat/deep/loop").symlink_to(folder / "cat")
    (folder / "dog/up").symlink_to(folder.parent)
    (folder / "eel/elsewhere").symlink_to(write(tmp_path / "other", {"x/y.jpg": image(77)}))
    ref = yoga.image_folder(folder)
    paths = [row["path"] for row in ref]
    assert "eel/elsewhere/x/y.jpg" in paths
    assert sum(path.startswith("cat/") for path in paths) == 10
    assert len(set(paths)) == len(paths)
    # Two links a level: 2**40 ways to the bottom.
    level = write(tmp_path / "bomb" / "a", {"x.jpg": image(1)})
    for number in range(40):
        above = tmp_path / "bomb" / f"level{number}"
        above.mkdir()
        for side in "lr":
            (above / side).symlink_to(level)
        level = above
    assert len(yoga.image_folder(level, classes=False)) == 1


def test_bad_files_are_left_out_and_named(folder: Path) -> None:
    (folder / "cat/deep/er/000.jpg").write_bytes(b"")
    (folder / "dog/001.jpg").write_bytes(b"<html>not found</html>")
    if os.name != "nt":
        (folder / "eel/zzz.jpg").symlink_to(folder / "nothing")
        os.mkfifo(folder / "eel/zz.jpg")
    expected = {"cat/deep/er/000.jpg": "is empty", "dog/001.jpg": "does not begin as an image does"}
    if os.name != "nt":
        expected |= {"eel/zz.jpg": "is not a file", "eel/zzz.jpg": "is a link to nothing"}
    with pytest.raises(CorruptError, match=r"4 of 32 files are bad.*'cat/deep/er/000\.jpg' is empty"):
        yoga.image_folder(folder)
    with pytest.warns(UserWarning, match=r"4 of 32 files are bad and left out"):
        ref = yoga.image_folder(folder, max_bad=0.2)
    assert {bad.name: bad.reason[: len(expected[bad.name])] for bad in ref.left_out} == expected
    assert len(ref) == 28
    assert ref.info["left_out"]["count"] == 4
    check_dataref(ref)
    for share in (-0.1, 1.1, True, None):
        with pytest.raises(ValueError, match="max_bad must be"):
            yoga.image_folder(folder, max_bad=share)  # type: ignore[arg-type]


def test_an_image_of_another_format_than_its_name_is_no_bad_file(folder: Path) -> None:
    (folder / "cat/deep/er/000.jpg").write_bytes(image(0, "PNG"))  # as ImageNet has one
    ref = yoga.image_folder(folder)
    assert len(ref) == 30
    assert codec_of(ref) is None  # no decoder for one format alone would do


def test_no_image_is_passed_over(tmp_path: Path) -> None:
    """All that looks like an image is among the rows, or is counted and named."""
    kinds = {
        "avif": "AVIF",
        "jp2": "JPEG2000",
        "j2k": "JPEG2000",
        "jfif": "JPEG",
        "dib": "BMP",
        "jpg": "JPEG",
    }
    Image.init()
    known = [format for format in kinds.values() if format in Image.SAVE]
    read = {f"a/{n}.{end}": image(n, kind) for n, (end, kind) in enumerate(kinds.items()) if kind in known}
    others = {"a/x.heic": b"any", "b/y.SVG": b"<svg/>", "b/z.psd": b"8BPS"}
    unknown = {"b/000123": image(7), "b/c/photo.jpg.bak": image(8, "PNG"), "b/scan.lsm": image(9, "TIFF")}
    texts = {"a/notes.txt": b"P1 and BM", "b/labels": b"BM is short for", "a/1.json": b"{}", "b/0.h5": b""}
    write(tmp_path, read | others | unknown | texts)
    with pytest.warns(UserWarning, match=f"6 of {10 + len(read)} files look like images and are not read; "):
        ref = yoga.image_folder(tmp_path)
    assert {row["path"]: row["image"] for row in ref} == read
    assert {bad.name for bad in ref.left_out} == {*others, *unknown}
    assert "begins as an image does" in dict(ref.left_out)["b/000123"]
    assert ref.info["left_out"]["count"] == 6
    check_dataref(ref)
    # Whoever names endings, "" too, has all others passed over.
    some = yoga.image_folder(tmp_path, extensions=[".jpg", "", ".heic"])
    assert {row["path"] for row in some} == {"a/5.jpg", "a/x.heic", "b/000123", "b/labels"}
    assert some.left_out == ()


def test_each_file_of_another_ending_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"a/{n:03}.dat": b"data" for n in range(99)}
    write(tmp_path, {"a/1.jpg": image(1), **names})
    assert yoga.image_folder(tmp_path).left_out == ()
    write(tmp_path, {f"a/{n:03}.dat": image(n) for n in (80, 90)})
    with pytest.warns(UserWarning, match="2 of 100 files look like images"):
        ref = yoga.image_folder(tmp_path)
    assert [bad.name for bad in ref.left_out] == ["a/080.dat", "a/090.dat"]
    # Beyond some number they are counted and named.
    monkeypatch.setattr("torchyoga.adapters.image_folder._LOOKED_AT", 85)
    with (
        pytest.warns(UserWarning, match="1 of 100 files look like images"),
        pytest.warns(UserWarning, match=r"14 of 100 files may be images.*'a/085\.dat' comes after 85 files"),
    ):
        ref = yoga.image_folder(tmp_path)
    assert [bad.name for bad in ref.left_out] == ["a/080.dat", *(f"a/{n:03}.dat" for n in range(85, 99))]


@pytest.mark.parametrize("classes", [None, True, ["a"]])
def test_images_beside_classes_are_counted_and_named(
    tmp_path: Path, classes: bool | list[str] | None
) -> None:
    beside = {"x.heic": b"any", "x": image(1), "notes.txt": b"text", "x.png": image(2)}
    write(tmp_path, {"a/1.jpg": image(1), "b/2.jpg": image(2), **beside})
    with (
        pytest.warns(UserWarning, match=r"files look like images and are not read.*'x\.heic' is of a kind"),
        pytest.warns(UserWarning, match=r"'x\.png' lies beside the folders of the classes"),
    ):
        ref = yoga.image_folder(tmp_path, classes=classes)
    assert {bad.name for bad in ref.left_out} == {*beside} - {"notes.txt"}
    assert yoga.image_folder(tmp_path, classes=["a"], extensions=[".jpg"]).left_out == ()


@pytest.mark.parametrize("begin", [b"\0\0\0\x18ftypavif", b"\0\0\0\x20ftypmif1\0\0\0\0mif1avifmiaf"])
def test_avif_is_known_by_any_of_its_brands(begin: bytes, tmp_path: Path) -> None:
    write(tmp_path, {"1.avif": begin + bytes(20)})
    ref = yoga.image_folder(tmp_path)
    assert codec_of(ref) == "avif"
    write(tmp_path, {"2.avif": b"\0\0\0\x18ftypheic" + bytes(20)})
    with pytest.raises(CorruptError, match=r"1 of 2 files are bad.*'2\.avif' does not begin as an image"):
        yoga.image_folder(tmp_path)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "JPEG2000"])
def test_formats_that_pillow_writes(tmp_path: Path, format: str) -> None:
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow lacks AVIF")
    ending = {"JPEG2000": "jp2"}.get(format, format.lower())
    write(tmp_path / "x", {f"{i}.{ending}": image(i, format) for i in range(2)})
    ref = yoga.image_folder(tmp_path / "x")
    assert codec_of(ref) == format.lower()
    assert ref.decoded()[1]["image"].shape == (8, 8, 3)


def test_files_that_change_later_are_errors(folder: Path) -> None:
    ref = yoga.image_folder(folder)
    path = folder / ref[5]["path"]
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CorruptError, match="bytes any more"):
        ref[5]
    os.truncate(path, 10)
    with pytest.raises(CorruptError, match="bytes any more"):
        ref.take(np.arange(30))
    path.unlink()
    with pytest.raises(NotFoundError, match="has been removed"):
        ref[5]
    path.mkdir()
    with pytest.raises(CorruptError, match="a directory"):
        ref[5]


def test_a_build_keeps_rows_labels_and_meaning(folder: Path, tmp_path: Path) -> None:
    ref = yoga.image_folder(folder)
    check_source(lambda: yoga.image_folder(folder), [{**row} for row in ref], tmp_path / "again")
    storage, plain = yoga.Storage(tmp_path / "storage"), yoga.Schema.of(ref[0])
    assert storage.submit(ref, "pets", "1.0").classes == ref.classes
    assert storage.submit(ref, "plain", "1.0", schema=plain).schema == plain


@pytest.mark.parametrize("is_other", [False, True])
def test_an_interrupted_build_continues_unless_the_folder_is_another(
    is_other: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torchyoga")
    folder = pets(tmp_path / "pets", 30, padding=2**18)  # so large that they are read in pieces
    ref, storage = yoga.image_folder(folder), yoga.Storage(tmp_path / "storage")
    assert ref._row_bytes > 2**18
    last = folder / ref[29]["path"]
    data = last.read_bytes()
    last.unlink()
    with pytest.raises(NotFoundError):
        storage.submit(ref, "pets", "1.0")
    assert storage.list() == []
    last.write_bytes(image(1) if is_other else data)
    again = yoga.image_folder(folder)
    assert list(storage.submit(again, "pets", "1.0")) == list(again)
    assert ("continuing an interrupted build at row" in caplog.text) == (not is_other)
    assert ("starting over" in caplog.text) == is_other


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's")
def test_threads_read_what_is_slow(folder: Path, threads_for_all: None) -> None:
    ref = yoga.image_folder(folder, threads=3)
    expected = [(folder / row["path"]).read_bytes() for row in ref]
    check_dataref(ref)
    numbers = np.random.default_rng(0).integers(0, 30, 500)
    assert [row["image"] for row in ref.take(numbers)] == [expected[number] for number in numbers]

    def read() -> None:
        assert [row["image"] for row in ref] == expected

    assert status_of_child(read) == 0  # by threads of its own
    (folder / ref[29]["path"]).unlink()
    with pytest.raises(NotFoundError, match="has been removed"):
        ref.take(np.arange(30))
    with pytest.raises(ValueError, match="threads must be"):
        yoga.image_folder(folder, threads=0)


def test_what_is_taken_as_an_image_can_be_decoded(tmp_path: Path) -> None:
    for name, data in (
        ("a.ppm", b"P6 2 1 255\n" + bytes(range(6))),
        ("b.pgm", b"P5 2 1 255\n" + bytes(range(2))),
        ("c.pgm", b"P2 2 1 255 4 5\n"),
    ):
        (tmp_path / name).write_bytes(data)
    folder = yoga.image_folder(tmp_path)
    assert [row["image"].shape for row in folder.decoded({"image": yoga.codecs.image()})] == [(1, 2, 3)] * 3
    assert folder.decoded()[0]["image"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
    ref = yoga.Storage(tmp_path / "s").submit(folder, "x", "1", codecs={"image": yoga.codecs.png()})
    assert [row["image"].shape for row in ref.decoded()] == [(1, 2, 3)] * 3
    (tmp_path / "d.ppm").write_bytes(b"P7\nWIDTH 2\n")
    with pytest.raises(CorruptError, match="does not begin as an image does"):
        yoga.image_folder(tmp_path, classes=False)
