"""Nothing of a file or an array is lost or changed in silence by a codec."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

import torchyoga as yoga
from torchyoga.coding import pictures
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.testing import assert_rows_equal

CHINA: npt.NDArray[np.uint8] = np.array(load_sample_image("china.jpg"))[:60, :81]
DEPTH = (np.arange(60 * 81, dtype=np.uint16).reshape(60, 81) * 13).astype(np.uint16)


def file_of(image: Any, format: str = "JPEG", **options: Any) -> bytes:
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def kept(storage: yoga.Storage, value: Any, codec: Any, version: str = "1") -> yoga.DataRef:
    return storage.submit([{"x": value}], "kept", version, overwrite=True, codecs={"x": codec})


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


# -- columns that are encoded already


TEXTS = [{"t": f"a text that rows share, but for {n}"} for n in range(200)]


@pytest.mark.parametrize("was", [False, True])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("way", ["ref", "function", "subset"])
def test_text_is_not_compressed_twice(was: bool, dictionary: bool, way: str, storage: yoga.Storage) -> None:
    old = storage.submit(TEXTS, "old", "1", codecs={"t": yoga.zstd(dictionary=was)})
    given: Any = old
    if way == "function":
        given = lambda: old  # noqa: E731
    if way == "subset":
        given = torch.utils.data.Subset(old, range(200))  # type: ignore[arg-type]
    new = storage.submit(given, "new", "1", codecs={"t": yoga.zstd(9, dictionary=dictionary)})
    assert_rows_equal(list(new.decoded()), TEXTS)
    plain = storage.submit(given, "plain", "1", codecs={"t": None})
    assert_rows_equal(list(plain), TEXTS)
    with pytest.raises(KeyError, match="there is no column 'u'"):
        storage.submit(old, "no", "1", codecs={"u": None})


def test_text_is_not_compressed_twice_with_a_schema(storage: yoga.Storage) -> None:
    old = storage.submit(TEXTS, "old", "1", codecs={"t": yoga.zstd(dictionary=True)})
    schema = yoga.Schema.of({"t": "text"})
    new = storage.submit(old, "new", "1", schema=schema, codecs={"t": yoga.zstd()})
    assert_rows_equal(list(new.decoded()), TEXTS)


ARRAYS = [
    CHINA,
    CHINA[:, :, 0],
    CHINA[:, :, 0] > 100,
    DEPTH,
    torch.from_numpy(CHINA.copy()).permute(2, 0, 1),
]


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_arrays_that_are_encoded_anew_keep_their_form(number: int, storage: yoga.Storage) -> None:
    rows = [{"x": ARRAYS[number]}, {"x": ARRAYS[number]}]
    old = storage.submit(rows, "old", "1", codecs={"x": yoga.png()})
    same = storage.submit(old, "same", "1", codecs={"x": yoga.png()})
    assert_rows_equal(list(same.decoded()), rows)
    assert same[0]["x"] == old[0]["x"]
    assert_rows_equal(list(storage.convert("old", "1", codecs={"x": yoga.png()}).decoded()), rows)
    value = rows[0]["x"]
    if value.dtype not in (np.uint8, torch.uint8):
        with pytest.raises(SchemaError, match="row 0, column 'x': jpeg takes pixels of uint8"):
            storage.submit(old, "lossy", "1", codecs={"x": yoga.jpeg()})
        return
    for codec in (yoga.jpeg(), yoga.jpeg(short_side=30)):
        lossy = storage.submit(old, "lossy", "1", overwrite=True, codecs={"x": codec})
        again = storage.submit(lossy, "again", "1", overwrite=True, codecs={"x": yoga.jpeg(short_side=30)})
        for ref in (lossy, again):
            found = ref.decoded()[0]["x"]
            assert type(found) is type(value)
            assert (found.ndim, found.dtype) == (value.ndim, value.dtype)
        assert min(side for side in again.decoded()[0]["x"].shape if side > 3) == 30
    with pytest.raises(SchemaError, match="zstd takes text and bytes"):
        storage.submit(old, "text", "1", codecs={"x": yoga.zstd()})


# -- images


@pytest.mark.parametrize("turn", range(1, 9))
def test_depths_are_turned_once(turn: int, storage: yoga.Storage) -> None:
    data = file_of(DEPTH, "TIFF", tiffinfo={0x0112: turn})
    expected = pictures.turned((DEPTH >> 8).astype(np.uint8)[:, :, None], turn)
    ref = storage.submit([{"x": data}], "x", "1")
    assert np.array_equal(ref.decoded({"x": yoga.image(mode="gray")})[0]["x"], expected)
    assert np.array_equal(ref.decoded({"x": yoga.image()})[0]["x"], np.repeat(expected, 3, 2))
    kept_ = np.array(Image.open(io.BytesIO(kept(storage, data, yoga.png())[0]["x"])))
    assert np.array_equal(kept_, pictures.turned(DEPTH[:, :, None], turn)[:, :, 0])


@pytest.mark.parametrize(
    ("dtype", "what"), [(np.float32, "floats"), (np.int32, "of 32 bits")], ids=["floats", "ints"]
)
def test_what_has_no_black_and_white_is_an_error(dtype: Any, what: str, storage: yoga.Storage) -> None:
    data = file_of((DEPTH / 65536).astype(dtype), "TIFF")
    ref = storage.submit([{"x": data}], "x", "1")
    for mode in ("rgb", "gray"):
        with pytest.raises(CorruptError, match=f"row 0, column 'x': .*its pixels are {what}"):
            ref.decoded({"x": yoga.image(mode=mode)})[0]  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (ref.decoded({"x": yoga.image(8, on_error=3)})[0]["x"] == 3).all()
    for codec in (yoga.png(), yoga.jpeg()):
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
    for value in (data, path):
        found = Image.open(io.BytesIO(kept(storage, value, yoga.png())[0]["x"]))
        if expected.mode != "1":  # is kept as black and white
            found_, expected_ = np.array(found), np.array(expected)
            assert found_.shape == expected_.shape
            assert np.array_equal(found_, expected_)
        else:
            assert np.array_equal(np.array(found) > 0, np.array(expected))


def wide_ppm() -> bytes:
    return b"P6 2 1 65535\n" + bytes(range(12))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file_of(Image.fromarray(CHINA).convert("CMYK"), "TIFF"), "mode CMYK"),
        (file_of(Image.fromarray(CHINA).convert("CMYK"), "JPEG"), "mode CMYK"),
        (
            file_of(CHINA, "GIF", save_all=True, append_images=[Image.fromarray(255 - CHINA)]),
            "holds 2 images",
        ),
        (wide_ppm(), "colors have 16 bits each"),
        (file_of(DEPTH.astype(np.float32), "TIFF"), "mode F"),
    ],
    ids=["cmyk tiff", "cmyk jpeg", "animated", "wide colors", "floats"],
)
def test_png_names_what_would_be_lost(data: bytes, message: str, storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match=f"row 0, column 'x': .*{message}"):
        kept(storage, data, yoga.png())


def test_png_refuses_a_pillow_image_of_cmyk(storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match="png cannot keep an image of the mode CMYK"):
        kept(storage, Image.fromarray(CHINA).convert("CMYK"), yoga.png())
    gray = Image.fromarray(CLEAR).convert("LA")
    found = Image.open(io.BytesIO(kept(storage, gray, yoga.png())[0]["x"]))
    assert np.array_equal(np.array(found), np.array(gray.convert("RGBA")))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_jpeg_refuses_transparency_of_files(format: str, storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match="row 0, column 'x': it has transparency"):
        kept(storage, file_of(CLEAR, format), yoga.jpeg())
    full = CLEAR.copy()
    full[:, :, 3] = 255
    assert kept(storage, file_of(full, format), yoga.jpeg()).decoded()[0]["x"].shape == CHINA.shape


def turned_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(CHINA, exif=exif)


@pytest.mark.parametrize("count", [1, 3, 80])
def test_bytes_that_fill_before_exif_are_skipped(count: int, storage: yoga.Storage) -> None:
    data = turned_jpeg()
    data = data[:2] + b"\xff" * count + data[2:]
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    found = storage.submit([{"x": data}], "x", "1").decoded({"x": yoga.image()})[0]["x"]
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
    assert np.array_equal(ref.decoded({"x": yoga.image()})[0]["x"], expected)
    small = ref.decoded({"x": yoga.image(16, exact=False)})[0]["x"]
    assert np.abs(small.mean() - expected.mean()) < 8
    with pytest.raises(CorruptError, match="81 x 60 pixels, max_pixels=100"):
        ref.decoded({"x": yoga.image(max_pixels=100)})[0]


@pytest.mark.parametrize(
    "data",
    [
        file_of(CHINA, "PPM"),
        file_of(CHINA[:, :, 0], "PPM"),
        file_of(CHINA[:, :, 0] > 90, "PPM"),
        file_of(DEPTH.astype(np.int32), "PPM"),
        b"P3\n# colors\n1 2\n255\n1 2 3\n4 5 6\n",
        b"P2 2 1 255 7 9\n",
        file_of(CHINA, "TIFF", big_tiff=True),
    ],
    ids=["ppm", "pgm", "pbm", "wide pgm", "ppm as text", "pgm as text", "large tiff"],
)
def test_other_images_are_decoded(data: bytes, storage: yoga.Storage) -> None:
    ref = storage.submit([{"x": data}], "x", "1")
    image = Image.open(io.BytesIO(data))
    expected = np.array(image) >> 8 if image.mode == "I" else np.array(image.convert("RGB"))
    expected = expected if expected.ndim == 3 else np.repeat(expected[:, :, None], 3, 2)
    assert np.array_equal(ref.decoded({"x": yoga.image()})[0]["x"], expected)
    if image.mode != "I":
        kept(storage, data, yoga.jpeg())


@pytest.mark.parametrize("data", [b"P6 99999 99999 255\n", b"P5 30000 30000 255\n" + bytes(90)])
def test_forged_sizes_of_ppm_are_refused(data: bytes, storage: yoga.Storage) -> None:
    ref = storage.submit([{"x": data}], "x", "1")
    with pytest.raises(CorruptError, match=r"row 0, column 'x': its header says .* max_pixels"):
        ref.decoded({"x": yoga.image()})[0]


def test_large_images_are_decoded_when_they_may(storage: yoga.Storage) -> None:
    data = file_of(Image.new("1", (20_000, 9_000), 1), "PNG")  # more than Pillow allows by itself
    ref = storage.submit([{"x": data}], "x", "1")
    with pytest.raises(CorruptError, match="20000 x 9000 pixels, max_pixels=1000;"):
        ref.decoded({"x": yoga.image(8, max_pixels=1000)})[0]
    assert (ref.decoded({"x": yoga.image(8, mode="gray")})[0]["x"] == 255).all()


# -- sound


def sound_of(samples: npt.NDArray[Any], format: str = "WAV", subtype: str | None = None) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    soundfile.write(out, samples, 16000, format=format, subtype=subtype)
    return out.getvalue()


WAVE = (np.sin(np.arange(800) / 9) * 20000).astype(np.int16)


def test_flac_keeps_24_bits(storage: yoga.Storage) -> None:
    samples = (np.arange(800, dtype=np.int32) * 12345) << 8
    ref = kept(storage, sound_of(samples, subtype="PCM_24"), yoga.flac(16000))
    found = ref.decoded({"x": yoga.audio(dtype="float32")})[0]["x"]
    assert np.array_equal(found[:, 0], (samples / 2.0**31).astype(np.float32))
    again = kept(storage, sound_of(WAVE), yoga.flac(16000)).decoded()[0]["x"]
    assert np.array_equal(again[:, 0], WAVE)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE", "PCM_32"])
def test_flac_names_what_would_be_lost(subtype: str, storage: yoga.Storage) -> None:
    data = sound_of(WAVE / 40000 if subtype != "PCM_32" else WAVE.astype(np.int32) * 65537, subtype=subtype)
    with pytest.raises(SchemaError, match=f"row 0, column 'x': its samples are {subtype}"):
        kept(storage, data, yoga.flac(16000))


@pytest.mark.parametrize("shape", [(0,), (0, 2), (5, 0), (5, 9)])
def test_flac_refuses_what_it_could_not_give_back(shape: tuple[int, ...], storage: yoga.Storage) -> None:
    with pytest.raises(SchemaError, match="row 0, column 'x': flac takes 1 to 8 channels"):
        kept(storage, np.zeros(shape, np.int16), yoga.flac(16000))


def test_flac_of_another_rate_is_refused(storage: yoga.Storage) -> None:
    data = sound_of(WAVE, "FLAC", "PCM_16")
    assert kept(storage, data, yoga.flac(16000))[0]["x"] == data
    with pytest.raises(SchemaError, match="the file has 16000 samples a second, flac was told 8000"):
        kept(storage, data, yoga.flac(8000))


@pytest.mark.parametrize("length", [0, 2**36 - 1])
def test_flac_of_unknown_or_forged_length_is_an_error(length: int, storage: yoga.Storage) -> None:
    data = bytearray(sound_of(WAVE, "FLAC", "PCM_16"))
    data[21] = (data[21] & 0xF0) | (length >> 32)
    data[22:26] = (length & 0xFFFFFFFF).to_bytes(4, "big")
    ref = storage.submit([{"x": bytes(data)}], "x", "1")
    with pytest.raises(CorruptError, match="row 0, column 'x': its header"):
        ref.decoded({"x": yoga.audio()})[0]


@pytest.mark.parametrize("format", ["WAV", "AIFF"])
def test_sound_that_is_cut_is_an_error(format: str, storage: yoga.Storage) -> None:
    data = sound_of(WAVE, format, "PCM_16")
    ref = storage.submit([{"x": data}, {"x": data[:-600]}], "x", "1")
    view = ref.decoded({"x": yoga.audio()})
    assert np.array_equal(view[0]["x"][:, 0], WAVE)
    with pytest.raises(CorruptError, match=r"row 1, column 'x': it is cut: .* 160. bytes, .* 100."):
        view[1]
    with pytest.raises(SchemaError, match="row 0, column 'x': it is cut"):
        kept(storage, data[:-600], yoga.flac(16000))


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFF000])
def test_streams_of_wav_are_read_to_their_end(size: int, storage: yoga.Storage) -> None:
    data = bytearray(sound_of(WAVE))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = struct.pack("<I", size)
    found = storage.submit([{"x": bytes(data)}], "x", "1").decoded({"x": yoga.audio()})[0]["x"]
    assert np.array_equal(found[:, 0], WAVE)


def test_an_image_that_cannot_be_decoded_is_named_by_its_path(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(data, "JPEG")
    whole = data.getvalue()
    rows = [{"image": whole, "path": "a/1.jpg"}, {"image": whole[:500], "path": "b/2.jpg"}]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)
    with pytest.raises(CorruptError, match=r"row 1 \(b/2\.jpg\), column 'image': .*on_error=128\)"):
        list(ref.decoded({"image": yoga.image(size=32)}))
