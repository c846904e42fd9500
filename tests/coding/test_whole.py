"""Nothing of a file or an array is lost or changed in silence by a codec."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoders import file_of, only
from PIL import Image, ImageOps, features
from sklearn.datasets import load_sample_image

import torchyoga as yoga
from torchyoga.coding import pictures
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.testing import assert_rows_equal

CHINA: npt.NDArray[np.uint8] = np.array(load_sample_image("china.jpg"))[:60, :81]
DEPTH = (np.arange(60 * 81, dtype=np.uint16).reshape(60, 81) * 13).astype(np.uint16)


def kept(storage: yoga.Storage, value: Any, codec: Any, version: str = "1") -> yoga.DataRef:
    return storage.submit([{"x": value}], "kept", version, overwrite=True, codecs={"x": codec})


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


# -- columns that are encoded already


TEXTS = [{"t": f"a text that rows share, but for {n}"} for n in range(200)]


@pytest.mark.parametrize("way", ["ref", "function", "subset"])
def test_text_is_not_compressed_twice(way: str, storage: yoga.Storage) -> None:
    old = storage.submit(TEXTS, "old", "1", codecs={"t": yoga.codecs.zstd()})
    given: Any = old
    if way == "function":
        given = lambda: old  # noqa: E731
    if way == "subset":
        given = torch.utils.data.Subset(old, range(200))  # type: ignore[arg-type]
    new = storage.submit(given, "new", "1", codecs={"t": yoga.codecs.zstd(9)})
    assert_rows_equal(list(new.decoded()), TEXTS)
    typed = storage.submit(
        given, "typed", "1", schema=yoga.Schema.of({"t": "text"}), codecs={"t": yoga.codecs.zstd()}
    )
    assert_rows_equal(list(typed.decoded()), TEXTS)
    plain = storage.submit(given, "plain", "1", codecs={"t": None})
    assert_rows_equal(list(plain), TEXTS)
    with pytest.raises(KeyError, match="there is no column 'u'"):
        storage.submit(old, "no", "1", codecs={"u": None})


ARRAYS = [CHINA, CHINA[:, :, 0], CHINA[:, :, 0] > 100, DEPTH, torch.from_numpy(CHINA.copy()).permute(2, 0, 1)]


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_arrays_that_are_encoded_anew_keep_their_form(number: int, storage: yoga.Storage) -> None:
    rows = [{"x": ARRAYS[number]}, {"x": ARRAYS[number]}]
    old = storage.submit(rows, "old", "1", codecs={"x": yoga.codecs.png()})
    same = storage.submit(old, "same", "1", codecs={"x": yoga.codecs.png()})
    assert_rows_equal(list(same.decoded()), rows)
    assert same[0]["x"] == old[0]["x"]
    assert_rows_equal(list(storage.convert("old", "1", codecs={"x": yoga.codecs.png()}).decoded()), rows)
    value = rows[0]["x"]
    if value.dtype not in (np.uint8, torch.uint8):
        with pytest.raises(SchemaError, match="row 0, column 'x': jpeg takes pixels of uint8"):
            storage.submit(old, "lossy", "1", codecs={"x": yoga.codecs.jpeg()})
        return
    for codec in (yoga.codecs.jpeg(), yoga.codecs.jpeg(short_side=30)):
        lossy = storage.submit(old, "lossy", "1", overwrite=True, codecs={"x": codec})
        again = storage.submit(
            lossy, "again", "1", overwrite=True, codecs={"x": yoga.codecs.jpeg(short_side=30)}
        )
        for ref in (lossy, again):
            found = ref.decoded()[0]["x"]
            assert type(found) is type(value)
            assert (found.ndim, found.dtype) == (value.ndim, value.dtype)
        assert min(side for side in again.decoded()[0]["x"].shape if side > 3) == 30
    with pytest.raises(SchemaError, match="zstd takes text and bytes"):
        storage.submit(old, "text", "1", codecs={"x": yoga.codecs.zstd()})


# -- images


@pytest.mark.parametrize("turn", range(1, 9))
def test_depths_are_turned_once(turn: int, storage: yoga.Storage) -> None:
    data = file_of(DEPTH, "TIFF", tiffinfo={0x0112: turn})
    expected = pictures.turned((DEPTH >> 8).astype(np.uint8)[:, :, None], turn)
    ref = storage.submit([{"x": data}], "x", "1")
    assert np.array_equal(ref.decoded({"x": yoga.codecs.image(mode="gray")})[0]["x"], expected)
    assert np.array_equal(
        ref.decoded({"x": yoga.codecs.image(mode="rgb")})[0]["x"], np.repeat(expected, 3, 2)
    )
    whole = ref.decoded({"x": yoga.codecs.image(mode="unchanged")})[0]["x"]
    assert np.array_equal(whole, pictures.turned(DEPTH[:, :, None], turn))
    kept_ = np.array(Image.open(io.BytesIO(kept(storage, data, yoga.codecs.png())[0]["x"])))
    assert np.array_equal(kept_, pictures.turned(DEPTH[:, :, None], turn)[:, :, 0])


@pytest.mark.parametrize(
    ("dtype", "what"), [(np.float32, "floats"), (np.int32, "of 32 bits")], ids=["floats", "ints"]
)
def test_what_has_no_black_and_white_is_an_error(dtype: Any, what: str, storage: yoga.Storage) -> None:
    data = file_of((DEPTH / 65536).astype(dtype), "TIFF")
    ref = storage.submit([{"x": data}], "x", "1")
    for mode in ("rgb", "gray"):
        with pytest.raises(CorruptError, match=f"row 0, column 'x': .*its pixels are {what}"):
            ref.decoded({"x": yoga.codecs.image(mode=mode)})[0]  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="could not be decoded") as heard:
        assert (ref.decoded({"x": yoga.codecs.image(8, on_error=3)})[0]["x"] == 3).all()
    assert len(heard) == 1
    for codec in (yoga.codecs.png(), yoga.codecs.jpeg()):
        with pytest.raises(SchemaError, match="row 0, column 'x'"):
            kept(storage, data, codec)


CLEAR = np.concatenate([CHINA, CHINA[:, :, :1]], 2)


@pytest.mark.parametrize(
    ("image", "format"),
    [
        (CHINA, "TIFF"),
        (CHINA[:, :, 0], "TIFF"),
        (CHINA[:, :, 0], "BMP"),
        (CHINA[:, :, 0] > 90, "TIFF"),
        (DEPTH, "TIFF"),
        (CLEAR, "TIFF"),
        (CLEAR, "WEBP"),
        (Image.fromarray(CLEAR).convert("LA"), "TIFF"),
        (CHINA, "PPM"),
        (CHINA[:, :, 0], "PPM"),
        (DEPTH.astype(np.int32), "PPM"),
        (Image.fromarray(CHINA).convert("P"), "GIF"),
    ],
)
def test_png_keeps_all_of_a_file(image: Any, format: str, storage: yoga.Storage, tmp_path: Path) -> None:
    data = file_of(image, format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    path = tmp_path / "image"
    path.write_bytes(data)
    expected = Image.open(io.BytesIO(data))
    if expected.mode in ("LA", "P"):
        expected = expected.convert("RGBA" if expected.mode == "LA" else "RGB")
    for value in (data, path, *([image] if isinstance(image, Image.Image) else [])):
        found = Image.open(io.BytesIO(kept(storage, value, yoga.codecs.png())[0]["x"]))
        if expected.mode != "1":  # is kept as black and white
            found_, expected_ = np.array(found), np.array(expected)
            assert found_.shape == expected_.shape
            assert np.array_equal(found_, expected_)
        else:
            assert np.array_equal(np.array(found) > 0, np.array(expected))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file_of(Image.fromarray(CHINA).convert("CMYK"), "TIFF"), "mode CMYK"),
        (file_of(Image.fromarray(CHINA).convert("CMYK"), "JPEG"), "mode CMYK"),
        (
            file_of(CHINA, "GIF", save_all=True, append_images=[Image.fromarray(255 - CHINA)]),
            "holds 2 images",
        ),
        (Image.fromarray(CHINA).convert("CMYK"), "png cannot keep an image of the mode CMYK"),
        (b"P6 2 1 65535\n" + bytes(range(12)), "colors have 16 bits each"),
        (file_of(DEPTH.astype(np.float32), "TIFF"), "mode F"),
    ],
    ids=["cmyk tiff", "cmyk jpeg", "animated", "cmyk image", "wide colors", "floats"],
)
def test_png_names_what_would_be_lost(data: Any, message: str, storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match=f"row 0, column 'x': .*{message}"):
        kept(storage, data, yoga.codecs.png())


def test_a_damaged_file_is_named_by_its_path_as_it_is_where_it_is_decoded(storage: yoga.Storage) -> None:
    whole = file_of(CHINA, "PNG")
    rows = [{"image": whole, "path": "a/0.png"}, {"image": whole[: len(whole) // 2], "path": "a/1.png"}]
    ref = storage.submit(rows, "x", "1")
    problem = r"row 1 \(a/1.png\), column 'image': it cannot be decoded: .*truncated"
    with pytest.raises(CorruptError, match=problem):
        ref.decoded({"image": yoga.codecs.image()})[1]
    with pytest.raises(CorruptError, match=rf"{problem}.*on_error=128\)"):
        list(ref.decoded({"image": yoga.codecs.image(size=32)}))
    for given in (rows, ref):
        with pytest.raises(SchemaError, match=f"{problem}.*; replace the file"):
            storage.submit(given, "y", "1", codecs={"image": yoga.codecs.jpeg()})


@pytest.mark.parametrize(("mode", "color"), [("RGB", (0, 0, 0)), ("L", 0), ("P", 0)])
def test_a_color_of_an_image_may_be_transparent(mode: str, color: Any, storage: yoga.Storage) -> None:
    image = Image.open(io.BytesIO(file_of(Image.new(mode, (5, 4)), "PNG", transparency=color)))
    found = Image.open(io.BytesIO(kept(storage, image, yoga.codecs.png())[0]["x"]))
    assert found.convert("RGBA").getpixel((0, 0)) == (0, 0, 0, 0)
    with pytest.raises(SchemaError, match="jpeg cannot keep transparency"):
        kept(storage, image, yoga.codecs.jpeg())


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_jpeg_refuses_transparency_of_files(format: str, storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match="row 0, column 'x': it has transparency"):
        kept(storage, file_of(CLEAR, format), yoga.codecs.jpeg())
    full = CLEAR.copy()
    full[:, :, 3] = 255
    assert kept(storage, file_of(full, format), yoga.codecs.jpeg()).decoded()[0]["x"].shape == CHINA.shape


def turned_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(CHINA, exif=exif)


def test_jpeg_warns_of_bits_that_it_cannot_keep(storage: yoga.Storage) -> None:
    rows = [{"x": file_of(CHINA, "PNG")}, *({"x": file_of(DEPTH, "PNG")} for _ in range(9))]
    with pytest.warns(UserWarning, match="jpeg keeps 8 bits of an image, and a file has 16") as heard:
        ref = storage.submit(rows, "x", "1", codecs={"x": yoga.codecs.jpeg(quality=100)})
    assert len(heard) == 1
    apart = ref.decoded({"x": yoga.codecs.image(mode="gray")})[4]["x"][:, :, 0].astype(int) - (DEPTH >> 8)
    assert np.abs(apart).mean() < 20
    assert yoga.codecs.jpeg() == yoga.codecs.jpeg()


@pytest.mark.parametrize("count", [1, 3, 80])
def test_bytes_that_fill_before_exif_are_skipped(count: int, storage: yoga.Storage) -> None:
    data = turned_jpeg()
    data = data[:2] + b"\xff" * count + data[2:]
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    found = storage.submit([{"x": data}], "x", "1").decoded({"x": yoga.codecs.image()})[0]["x"]
    assert found.shape == expected.shape == (81, 60, 3)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("stray", [b"\x00", b"ab", b"\x00" * 9])
def test_stray_bytes_before_a_marker_are_skipped(
    stray: bytes, is_turned: bool, storage: yoga.Storage
) -> None:
    data = turned_jpeg() if is_turned else file_of(CHINA)
    at = 4 + int.from_bytes(data[4:6], "big")  # behind the first segment
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    data = data[:at] + stray + data[at:]
    assert np.array_equal(np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))), expected)
    ref = storage.submit([{"x": data}], "x", "1")
    assert np.array_equal(ref.decoded({"x": yoga.codecs.image()})[0]["x"], expected)
    small = ref.decoded({"x": yoga.codecs.image(16, exact=False)})[0]["x"]
    assert np.abs(small.mean() - expected.mean()) < 8
    with pytest.raises(CorruptError, match="81 x 60 pixels, max_pixels=100"):
        ref.decoded({"x": yoga.codecs.image(max_pixels=100)})[0]


@pytest.mark.parametrize("data", [b"P6 99999 99999 255\n", b"P5 30000 30000 255\n" + bytes(90)])
def test_forged_sizes_of_ppm_are_refused(data: bytes, storage: yoga.Storage) -> None:
    ref = storage.submit([{"x": data}], "x", "1")
    with pytest.raises(CorruptError, match=r"row 0, column 'x': its header says .* max_pixels"):
        ref.decoded({"x": yoga.codecs.image()})[0]


def test_large_images_are_decoded_when_they_may(
    storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    data = file_of(Image.new("1", (200, 90), 1), "PNG")  # more than Pillow allows by itself
    ref = storage.submit([{"x": data}], "x", "1")
    with pytest.raises(CorruptError, match="200 x 90 pixels, max_pixels=1000;"):
        ref.decoded({"x": yoga.codecs.image(8, max_pixels=1000)})[0]
    assert (ref.decoded({"x": yoga.codecs.image(8, mode="gray")})[0]["x"] == 255).all()
    plain = storage.submit([{"x": file_of(CHINA)}], "plain", "1")
    with pytest.raises(CorruptError, match=r"row 0, column 'x': .*81 x 60 pixels, max_pixels=100"):
        plain.decoded({"x": yoga.codecs.image(max_pixels=100)})[0]


# -- depth and channels


WIDE = np.dstack([DEPTH, DEPTH[::-1], DEPTH[:, ::-1], DEPTH.T.reshape(DEPTH.shape)])


def wide_file(pixels: npt.NDArray[np.uint16], ending: str) -> bytes:
    """A file of colors of 16 bits, which Pillow does not write."""
    cv2 = pytest.importorskip("cv2")
    return bytes(cv2.imencode(ending, pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]])[1])


DEEP: dict[str, tuple[npt.NDArray[Any], Any]] = {
    "grey png": (DEPTH, lambda: file_of(DEPTH, "PNG")),
    "grey tiff": (DEPTH, lambda: file_of(DEPTH, "TIFF")),
    "grey pgm": (DEPTH, lambda: file_of(DEPTH.astype(np.int32), "PPM")),
    "grey jpeg 2000": (DEPTH, lambda: file_of(DEPTH, "JPEG2000")),
    "wide png": (WIDE[:, :, :3], lambda: wide_file(WIDE[:, :, :3], ".png")),
    "wide tiff": (WIDE[:, :, :3], lambda: wide_file(WIDE[:, :, :3], ".tiff")),
    "wide and clear png": (WIDE, lambda: wide_file(WIDE, ".png")),
    "clear png": (CLEAR, lambda: file_of(CLEAR, "PNG")),
    "clear tiff": (CLEAR, lambda: file_of(CLEAR, "TIFF")),
    "clear webp": (CLEAR, lambda: file_of(CLEAR, "WEBP", lossless=True, exact=True)),
    "clear palette": (
        np.array(Image.fromarray(CHINA).convert("P").convert("RGBA")) * np.array([1, 1, 1, 0], np.uint8),
        lambda: file_of(Image.fromarray(CHINA).convert("P"), "PNG", transparency=b"\0" * 256),
    ),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_kept_if_the_caller_says_so_and_told_if_nobody_does(name: str, storage: yoga.Storage) -> None:
    pixels, make = DEEP[name]
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, None]
    ref = storage.submit([{"x": make(), "path": f"{n}.png"} for n in range(6)], "x", "1")
    view = ref.decoded({"x": yoga.codecs.image(mode="unchanged")})
    assert view.schema.columns[0].dtype == ("<u2" if pixels.dtype == np.uint16 else "|u1")
    assert np.array_equal(view[5]["x"], pixels)
    sized = ref.decoded({"x": yoga.codecs.image((60, 81), mode="unchanged", layout="chw")})
    assert np.array_equal(sized[0]["x"], pixels.transpose(2, 0, 1))
    small = ref.decoded({"x": yoga.codecs.image(8, mode="unchanged", crop="center")}, threads=2)
    assert small[3]["x"].dtype == pixels.dtype
    batch = next(iter(yoga.DataLoader(small.columns(["x"]), 6)))["x"]
    assert batch.shape == (6, 8, 8, pixels.shape[2])
    for options in ({}, {"size": 8}, {"size": 8, "crop": "random"}):
        for threads in (1, 3):
            plain = ref.decoded({"x": yoga.codecs.image(**options)}, threads)  # type: ignore[arg-type]
            with pytest.warns(UserWarning, match=r"row \d \(\d\.png\), column 'x': .*unchanged") as heard:
                found = plain.take(np.array([4, 1]))
            assert len(heard) == 1
            assert found[0]["x"].dtype == np.uint8
            assert found[0]["x"].shape[2] == 3
            plain.take(np.arange(6))  # is told once
            plain.in_epoch(3).take(np.arange(6))
    for mode, channels in (("rgb", 3), ("gray", 1), ("rgba", 4)):
        chosen = ref.decoded({"x": yoga.codecs.image(mode=mode)})[0]["x"]  # type: ignore[arg-type]
        assert (chosen.dtype, chosen.shape[2]) == (np.uint8, channels)


def test_opaque_images_and_eight_bits_lose_nothing(storage: yoga.Storage) -> None:
    full = CLEAR.copy()
    full[:, :, 3] = 255
    files = [file_of(image, "PNG") for image in (full, CHINA, CHINA[:, :, 0], CHINA[:, :, 0] > 90)]
    ref = storage.submit([{"x": data} for data in files], "x", "1")
    assert [row["x"].shape for row in ref.decoded({"x": yoga.codecs.image()})] == [(60, 81, 3)] * 4
    shapes = [row["x"].shape[2] for row in ref.decoded({"x": yoga.codecs.image(mode="unchanged")})]
    assert shapes == [4, 3, 1, 1]
    turned = ref.decoded({"x": yoga.codecs.image(mode="rgba")})
    assert all((row["x"][:, :, 3] == 255).all() for row in turned)
    batch = next(iter(yoga.DataLoader(ref.decoded({"x": yoga.codecs.image(8, mode="rgba")}), 4)))
    assert batch["x"].shape == (4, 8, 8, 4)


def test_images_unlike_the_first_are_errors_that_say_what_to_do(storage: yoga.Storage) -> None:
    files = [b"none", None, file_of(CHINA, "PNG"), file_of(CLEAR, "PNG"), file_of(DEPTH, "PNG")]
    ref = storage.submit([{"x": data} for data in files], "x", "1")
    own = ref.decoded(
        {"x": yoga.codecs.image(mode="unchanged")}
    )  # the first that can be read says what they are
    assert np.array_equal(own[3]["x"], CLEAR)
    with pytest.raises(CorruptError, match="row 4, column 'x': it has 1 channels of 16 bits, unlike the 3"):
        own[4]
    sized = ref.decoded({"x": yoga.codecs.image(8, mode="unchanged")})
    with pytest.raises(CorruptError, match=r"row 3, column 'x': it has 4 channels .*mode='rgb', 'rgba'"):
        sized[3]
    assert sized[2]["x"].shape == (8, 8, 3)
    with pytest.raises(SchemaError, match="image decodes bytes"):
        storage.submit([{"n": 1}], "n", "1").decoded({"n": yoga.codecs.image(mode="unchanged")})
    empty = ref[:0].decoded({"x": yoga.codecs.image(mode="unchanged")})
    assert len(empty) == 0


@pytest.mark.parametrize("value", [DEPTH, CLEAR, torch.from_numpy(DEPTH.astype(np.int64)).to(torch.uint16)])
def test_the_column_says_what_is_kept(value: Any, storage: yoga.Storage) -> None:
    ref = storage.submit([{"x": value}] * 3, "x", "1", codecs={"x": yoga.codecs.png()})
    pixels = np.asarray(value) if value.ndim == 3 else np.asarray(value)[:, :, None]
    assert np.array_equal(ref.decoded({"x": yoga.codecs.image()})[0]["x"], pixels)
    sized = ref.decoded({"x": yoga.codecs.image((60, 81), flip=True, layout="chw")})
    batch = next(iter(yoga.DataLoader(sized, 3, seed=1)))["x"].numpy().transpose(0, 2, 3, 1)
    assert batch.dtype == pixels.dtype
    assert all(np.array_equal(one, pixels) or np.array_equal(one, pixels[:, ::-1]) for one in batch)
    assert ref.decoded({"x": yoga.codecs.image(mode="rgb")})[0]["x"].shape == (60, 81, 3)
    assert np.array_equal(ref.decoded()[0]["x"], value)
    plain = storage.submit([{"x": CHINA[:, :, 0]}], "grey", "1", codecs={"x": yoga.codecs.png()})
    assert plain.decoded({"x": yoga.codecs.image()})[0]["x"].shape == (60, 81, 3)  # nothing is lost


def test_wide_pixels_without_opencv(storage: yoga.Storage) -> None:
    colors = wide_file(WIDE[:, :, :3], ".png")
    with only("resizing", "PIL"):
        ref = storage.submit([{"x": colors, "depth": file_of(DEPTH, "PNG")}], "x", "1")
        with pytest.raises(
            SchemaError, match=r"colors of 16 bits each, .*pip install opencv-python-headless"
        ):
            ref.decoded({"x": yoga.codecs.image(mode="unchanged")})[0]
        small = ref.decoded({"depth": yoga.codecs.image((30, 40), mode="unchanged")})[0]["depth"]
        assert small.shape == (30, 40, 1)
        assert abs(float(small.mean()) - float(DEPTH.mean())) < 100


def test_views_keep_the_fingerprints_that_they_had() -> None:
    text = (
        "_Image(size=(8, 8), crop=None, flip=False, layout='hwc', mode='rgb', exact=True, orient=True, "
        "scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), on_error='raise', max_pixels=268435456)"
    )
    assert repr(yoga.codecs.image(8)) == repr(yoga.codecs.image(8, mode="rgb")) == text


@pytest.mark.parametrize("format", ["AVIF", "JPEG2000"])
def test_newer_formats_are_decoded_as_pillow_does(format: str, storage: yoga.Storage) -> None:
    if not features.check({"AVIF": "avif", "JPEG2000": "jpg_2000"}[format]):
        pytest.skip(f"this Pillow lacks {format}")
    files = [file_of(image, format) for image in (CHINA, CHINA[:, :, 0], CLEAR)]
    ref = storage.submit([{"x": data} for data in files], "x", "1")
    view = ref.decoded({"x": yoga.codecs.image(mode="rgb")})
    for data, row in zip(files, view, strict=True):
        assert np.array_equal(row["x"], np.array(Image.open(io.BytesIO(data)).convert("RGB")))
    assert ref.decoded({"x": yoga.codecs.image(mode="unchanged")})[2]["x"].shape == (60, 81, 4)
    with pytest.raises(CorruptError, match="81 x 60 pixels, max_pixels=100"):
        ref.decoded({"x": yoga.codecs.image(max_pixels=100)})[0]
    cut = storage.submit([{"x": files[0][: len(files[0]) // 2]}], "cut", "1")
    with pytest.raises(CorruptError, match="row 0, column 'x': it cannot be"):
        cut.decoded({"x": yoga.codecs.image()})[0]


@pytest.mark.parametrize(("bits", "format"), [(10, "avif"), (12, "avif"), (12, "jpeg2k")])
def test_bits_of_newer_formats_are_told(bits: int, format: str, storage: yoga.Storage) -> None:
    imagecodecs = pytest.importorskip("imagecodecs")
    options = {"bitspersample": bits} if format == "avif" else {"bitspersample": bits, "level": 0}
    try:
        data = getattr(imagecodecs, f"{format}_encode")(WIDE[:, :, :3] >> (16 - bits), **options)
    except Exception as error:  # what a build of it lacks is known when it is called
        pytest.skip(str(error))
    ref = storage.submit([{"x": bytes(data)}], "x", "1")
    with pytest.warns(UserWarning, match=f"its pixels have {bits} bits a channel, of which 8 are kept"):
        assert ref.decoded({"x": yoga.codecs.image()})[0]["x"].shape == (60, 81, 3)


# -- what is cut or damaged


def with_chunk(data: bytes, kind: bytes, content: bytes, is_late: bool) -> bytes:
    """A PNG with a chunk before or behind its pixels."""
    chunk = struct.pack(">I", len(content)) + kind + content
    chunk += struct.pack(">I", zlib.crc32(kind + content))
    at = data.index(b"IEND" if is_late else b"IDAT") - 4
    return data[:at] + chunk + data[at:]


def test_a_cut_or_damaged_png_is_told_as_such(storage: yoga.Storage) -> None:
    whole = file_of(CHINA, "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    noted = with_chunk(whole, b"eXIf", exif.tobytes()[6:], True)
    damaged = bytearray(noted)
    damaged[len(whole) // 2] ^= 0xFF
    files = [whole, whole[: len(whole) // 2], whole[:40], bytes(damaged), noted]
    view = storage.submit([{"x": data} for data in files], "x", "1").decoded({"x": yoga.codecs.image()})
    assert np.array_equal(view[0]["x"], CHINA)
    with pytest.raises(CorruptError, match=r"row 1, column 'x': it cannot be decoded: .*truncated"):
        view[1]
    with pytest.raises(CorruptError, match=r"row 2, column 'x': .*begins as png does, and is cut or damaged"):
        view[2]
    with pytest.raises(CorruptError, match="row 3, column 'x': it cannot be decoded: "):
        view[3]
    assert np.array_equal(view[4]["x"], pictures.turned(CHINA, 6))  # what is noted behind the pixels
    early = with_chunk(whole, b"eXIf", exif.tobytes()[6:], False)
    ref = storage.submit([{"x": early}], "early", "1").decoded({"x": yoga.codecs.image()})
    assert np.array_equal(ref[0]["x"], pictures.turned(CHINA, 6))
    broken = storage.submit([{"x": with_chunk(whole, b"eXIf", b"II*\0\xff\xff\xff\xff", False)}], "b", "1")
    with pytest.raises(CorruptError, match="row 0, column 'x': its EXIF data cannot be read"):
        broken.decoded({"x": yoga.codecs.image()})[0]


# -- sound


def sound_of(samples: npt.NDArray[Any], format: str = "WAV", subtype: str | None = None) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format=format, subtype=subtype)
    return out.getvalue()


WAVE = (np.sin(np.arange(800) / 9) * 20000).astype(np.int16)


def test_flac_keeps_24_bits(storage: yoga.Storage) -> None:
    samples = (np.arange(800, dtype=np.int32) * 12345) << 8
    ref = kept(storage, sound_of(samples, subtype="PCM_24"), yoga.codecs.flac(16000))
    found = ref.decoded({"x": yoga.codecs.audio(dtype="float32")})[0]["x"]
    assert np.array_equal(found[:, 0], (samples / 2.0**31).astype(np.float32))
    again = kept(storage, sound_of(WAVE), yoga.codecs.flac(16000)).decoded()[0]["x"]
    assert np.array_equal(again[:, 0], WAVE)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE", "PCM_32"])
def test_flac_names_what_would_be_lost(subtype: str, storage: yoga.Storage) -> None:
    data = sound_of(WAVE / 40000 if subtype != "PCM_32" else WAVE.astype(np.int32) * 65537, subtype=subtype)
    with pytest.raises(SchemaError, match=f"row 0, column 'x': its samples are {subtype}"):
        kept(storage, data, yoga.codecs.flac(16000))


@pytest.mark.parametrize("shape", [(0,), (0, 2), (5, 0), (5, 9)])
def test_flac_refuses_what_it_could_not_give_back(shape: tuple[int, ...], storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match="row 0, column 'x': flac takes 1 to 8 channels"):
        kept(storage, np.zeros(shape, np.int16), yoga.codecs.flac(16000))


def test_flac_of_another_rate_is_refused(storage: yoga.Storage) -> None:
    data = sound_of(WAVE, "FLAC", "PCM_16")
    assert kept(storage, data, yoga.codecs.flac(16000))[0]["x"] == data
    with pytest.raises(SchemaError, match="the file has 16000 samples a second, flac was told 8000"):
        kept(storage, data, yoga.codecs.flac(8000))


@pytest.mark.parametrize("length", [0, 2**36 - 1])
def test_flac_of_unknown_or_forged_length_is_an_error(length: int, storage: yoga.Storage) -> None:
    data = bytearray(sound_of(WAVE, "FLAC", "PCM_16"))
    data[21] = (data[21] & 0xF0) | (length >> 32)
    data[22:26] = (length & 0xFFFFFFFF).to_bytes(4, "big")
    ref = storage.submit([{"x": bytes(data)}], "x", "1")
    with pytest.raises(CorruptError, match="row 0, column 'x': its header"):
        ref.decoded({"x": yoga.codecs.audio()})[0]


@pytest.mark.parametrize("format", ["WAV", "AIFF"])
def test_sound_that_is_cut_is_an_error(format: str, storage: yoga.Storage) -> None:
    data = sound_of(WAVE, format, "PCM_16")
    ref = storage.submit([{"x": data}, {"x": data[:-600]}], "x", "1")
    view = ref.decoded({"x": yoga.codecs.audio()})
    assert np.array_equal(view[0]["x"][:, 0], WAVE)
    with pytest.raises(CorruptError, match=r"row 1, column 'x': it is cut: .* 160. bytes, .* 100."):
        view[1]
    with pytest.raises(SchemaError, match="row 0, column 'x': it is cut"):
        kept(storage, data[:-600], yoga.codecs.flac(16000))


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFF000])
def test_streams_of_wav_are_read_to_their_end(size: int, storage: yoga.Storage) -> None:
    data = bytearray(sound_of(WAVE))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = struct.pack("<I", size)
    found = storage.submit([{"x": bytes(data)}], "x", "1").decoded({"x": yoga.codecs.audio()})[0]["x"]
    assert np.array_equal(found[:, 0], WAVE)
