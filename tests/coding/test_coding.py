"""Values are encoded on the way in, and come back as any decoder gives them."""

from __future__ import annotations

import io
import pickle
import sys
import types
import warnings
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoders import file_of, only
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Own
from PIL import Image, ImageOps
from quick import examples
from sklearn.datasets import load_sample_image

import torchyoga as yoga
from torchyoga.coding import libraries, pictures
from torchyoga.coding.images import middle, random_parts
from torchyoga.errors import CorruptError, SchemaError
from torchyoga.testing import assert_rows_equal, check_dataref
from torchyoga.views.changed import Draw

CHINA: npt.NDArray[np.uint8] = np.array(load_sample_image("china.jpg"))[:120, :161]  # of odd width


def seen(data: bytes, mode: str = "RGB") -> npt.NDArray[Any]:
    image = Image.open(io.BytesIO(data))
    if image.mode == "I":  # of 16 bits
        image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
    return np.array(image.convert(mode))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> yoga.DataRef:
    rows = [{"image": file_of(np.roll(CHINA, 9 * n, 1)[: 80 + n]), "label": n} for n in range(24)]
    return yoga.Storage(tmp_path_factory.mktemp("photos")).submit(
        rows, "photos", "1", codecs={"image": yoga.codecs.jpeg()}
    )


# -- images


def test_files_are_kept_as_they_are(photos: yoga.DataRef) -> None:
    assert photos[3]["image"] == file_of(np.roll(CHINA, 27, 1)[:83])
    codec = photos.schema.columns[0].meaning.codec
    assert (codec.name, dict(codec.parameters)) == ("jpeg", {"quality": 90})


@pytest.mark.parametrize("library", ["simplejpeg", "PIL"])
def test_jpegs_come_out_as_pillow_decodes_them(photos: yoga.DataRef, library: str) -> None:
    with only("jpeg", library):
        assert libraries.used_for("jpeg").startswith(library)
        for row, found in zip(photos, photos.decoded(), strict=True):
            assert np.array_equal(found["image"], seen(row["image"]))


@pytest.mark.parametrize("library", ["simplejpeg", "PIL"])
def test_jpegs_are_encoded_by_either_library(library: str, tmp_path: Path) -> None:
    with only("jpeg", library):
        codecs = {"image": yoga.codecs.jpeg(quality=95)}
        ref = yoga.Storage(tmp_path).submit([{"image": CHINA}], "a", "1", codecs=codecs, progress=False)
    assert np.abs(seen(ref[0]["image"]).astype(int) - CHINA).mean() < 5


GRAY = CHINA[:, :, 0]
IMAGES: dict[str, bytes] = {
    "grey jpeg": file_of(Image.fromarray(CHINA).convert("L")),
    "cmyk jpeg": file_of(Image.fromarray(CHINA).convert("CMYK")),
    "progressive jpeg": file_of(CHINA, progressive=True),
    "444 jpeg": file_of(CHINA, subsampling=0),
    "png": file_of(CHINA, "PNG"),
    "transparent": file_of(Image.fromarray(CHINA).convert("RGBA"), "PNG"),
    "palette": file_of(Image.fromarray(CHINA).convert("P"), "PNG"),
    "bits": file_of(Image.fromarray(CHINA).convert("1"), "PNG"),
    "webp": file_of(CHINA, "WEBP", lossless=True),
    "tiff": file_of(CHINA, "TIFF"),
    "large tiff": file_of(CHINA, "TIFF", big_tiff=True),
    "bmp": file_of(CHINA, "BMP"),
    "gif": file_of(CHINA, "GIF"),
    "animated": file_of(CHINA, "GIF", save_all=True, append_images=[Image.fromarray(255 - CHINA)]),
    "ppm": file_of(CHINA, "PPM"),
    "pgm": file_of(GRAY, "PPM"),
    "pbm": file_of(GRAY > 90, "PPM"),
    "wide pgm": file_of(GRAY.astype(np.int32) * 257, "PPM"),
    "ppm as text": b"P3\n# colors\n1 2\n255\n1 2 3\n4 5 6\n",
    "pgm as text": b"P2 2 1 255 7 9\n",
}


@pytest.mark.parametrize("name", IMAGES)
def test_all_kinds_of_images(name: str, tmp_path: Path) -> None:
    data, storage = IMAGES[name], yoga.Storage(tmp_path)
    ref = storage.submit([{"image": data}], "a", "1")
    decoder = yoga.codecs.image(mode="rgb") if "wide" in name else yoga.codecs.image()
    colors = ref.decoded({"image": decoder})[0]["image"]
    assert np.array_equal(colors, seen(data))
    chw = ref.decoded({"image": yoga.codecs.image(layout="chw", mode="gray")})[0]["image"]
    if "jpeg" not in name or "cmyk" in name:  # a JPEG is grey before it has colors
        assert np.array_equal(chw[0], seen(data, "L"))
    assert chw.shape == (1, *colors.shape[:2])
    if "pm" in name and "wide" not in name:
        storage.submit([{"image": data}], "b", "1", codecs={"image": yoga.codecs.jpeg()})


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_turned_as_cameras_noted_it(turn: int, format: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    plain = Image.open(io.BytesIO(file_of(CHINA, format)))
    options = {"tiffinfo": {0x0112: turn}} if format == "TIFF" else {"exif": exif}
    data = file_of(CHINA, format, **options)
    ref = yoga.Storage(tmp_path).submit([{"image": data}], "a", "1")
    expected = pictures.turned(np.array(plain), turn)
    if format != "TIFF":
        assert np.array_equal(expected, np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))
    assert np.array_equal(ref.decoded({"image": yoga.codecs.image()})[0]["image"], expected)
    stored = expected if format == "TIFF" else CHINA  # which Pillow turns itself
    assert ref.decoded({"image": yoga.codecs.image(orient=False)})[0]["image"].shape == stored.shape
    small = ref.decoded({"image": yoga.codecs.image(size=(expected.shape[0], expected.shape[1]))})
    assert np.array_equal(small[0]["image"], expected)


@pytest.mark.parametrize(
    "value",
    [Image.fromarray(CHINA), file_of(CHINA, "PNG"), Image.fromarray(CHINA).convert("P")],
    ids=["pillow", "bytes", "palette"],
)
def test_what_can_be_encoded(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(file_of(CHINA, "PNG"))
    for image in (value, path):
        for name, encoder in (("png", yoga.codecs.png()), ("jpeg", yoga.codecs.jpeg(quality=100))):
            ref = yoga.Storage(tmp_path).submit([image], name, "1", overwrite=True, codecs={"value": encoder})
            data = ref[0]
            assert pictures.format_of(data) == name
            if name == "png" and value is not None and not isinstance(value, Image.Image):
                assert {*CHINA.shape[:2]} <= {*ref.decoded()[0].shape}


@pytest.mark.parametrize("library", ["simplejpeg", "PIL"])
def test_a_cut_jpeg_is_an_error_whoever_decodes(library: str) -> None:
    with only("jpeg", library):
        data = file_of(CHINA)[:-300]
        with pytest.raises(CorruptError):
            pictures.decode(data, pictures.header(data), False)


ARRAYS = [
    CHINA,
    CHINA[:, :, 0],
    CHINA[:, :, :1],
    CHINA[:, :, 0] > 100,
    np.arange(600, dtype=np.uint16).reshape(20, 30) * 100,
    np.concatenate([CHINA, CHINA[:, :, :1]], axis=2),
    torch.from_numpy(CHINA.copy()),
    torch.from_numpy(CHINA.copy()).permute(2, 0, 1),
    torch.from_numpy(CHINA[:, :, 0] > 100),
]


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_arrays_and_tensors_come_back_as_they_were(number: int, tmp_path: Path) -> None:
    value = ARRAYS[number]
    rows = [{"x": value, "n": 1}, {"x": value[..., :5], "n": 2}, {"x": value, "n": 3}]
    storage = yoga.Storage(tmp_path)
    ref = storage.submit(rows, "a", "1", codecs={"x": yoga.codecs.png()})
    assert_rows_equal(list(ref.decoded()), rows)
    if value.dtype in (np.uint8, torch.uint8) and 4 not in (*value.shape,):
        near = storage.submit(rows, "b", "1", codecs={"x": yoga.codecs.jpeg(quality=95)})
        for row, found in zip(rows, near.decoded(), strict=True):
            assert type(found["x"]) is type(row["x"])
            assert (found["x"].shape, found["x"].dtype) == (row["x"].shape, row["x"].dtype)
            assert np.abs(np.asarray(found["x"]).astype(int) - np.asarray(row["x"]).astype(int)).mean() < 9


# -- sizes, parts, mirrors


@pytest.mark.rest
def test_parts_are_the_same_for_any_batches(photos: yoga.DataRef) -> None:
    decoder = yoga.codecs.image(size=32, crop="random", flip=True, layout="chw")
    view = photos.decoded({"image": decoder})

    def epochs(batch_size: int, workers: int, **options: Any) -> list[torch.Tensor]:
        loader = yoga.DataLoader(view, batch_size, shuffle=True, seed=7, num_workers=workers, **options)
        return [torch.cat([batch["image"] for batch in loader]) for _ in range(2)]

    first, second = epochs(8, 0)
    assert first.shape == (24, 3, 32, 32)
    assert not torch.equal(first, second)
    for found in (epochs(5, 2), epochs(24, 1, multiprocessing_context="forkserver")):
        assert torch.equal(found[0], first)
        assert torch.equal(found[1], second)
    one = photos.decoded({"image": decoder}, threads=1)
    rows, seeds = np.arange(24), np.arange(24, dtype=np.uint64)
    assert_rows_equal(list(one._take_seeded(rows, seeds)), list(view._take_seeded(rows, seeds)))


@pytest.mark.parametrize("mode", ["rgb", "gray", "rgba"])
def test_parts_are_the_same_in_each_layout(photos: yoga.DataRef, mode: Any) -> None:
    """In one of them they are resized straight into the batch."""
    rows, seeds = np.arange(24), np.arange(24, dtype=np.uint64)
    found = [
        photos.decoded({"image": yoga.codecs.image(32, crop="random", layout=layout, mode=mode)})
        for layout in ("hwc", "chw")
    ]
    flat, tall = (list(view._take_seeded(rows, seeds)) for view in found)
    for row, other in zip(flat, tall, strict=True):
        assert np.array_equal(row["image"].transpose(2, 0, 1), other["image"])


def test_other_libraries_on_resume_are_warned_of(photos: yoga.DataRef) -> None:
    loader = yoga.DataLoader(photos.decoded({"image": yoga.codecs.image(size=16)})[3:], 6, seed=7)
    state = loader.state_dict()
    assert "simplejpeg" in str(state["libraries"])
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"decoded by old 0\.1, here it is"):
        loader.load_state_dict({**state, "libraries": "old 0.1"})


@settings(max_examples=examples(50))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=8),
    seed=st.integers(0, 2**63 - 1),
)
def test_random_parts_lie_in_their_images(sizes: list[tuple[int, int]], seed: int) -> None:
    given_, seeds = np.array(sizes), np.arange(len(sizes), dtype=np.uint64) + np.uint64(seed)
    found = random_parts(given_, Draw(seeds), (0.08, 1.0), (3 / 4, 4 / 3))
    for part in (found, middle(given_, 32, 48)):
        assert (part[:, :2] >= 0).all()
        assert (part[:, 2:] >= 1).all()
        assert (part[:, :2] + part[:, 2:] <= given_).all()
    alone = random_parts(given_[-1:], Draw(seeds[-1:]), (0.08, 1.0), (3 / 4, 4 / 3))
    assert np.array_equal(alone[0], found[-1])


def test_parts_have_all_areas_and_shapes() -> None:
    count = 4000
    sizes = np.full((count, 2), 1000)
    found = random_parts(sizes, Draw(np.arange(count, dtype=np.uint64)), (0.08, 1.0), (3 / 4, 4 / 3))
    area, aspect = found[:, 2] * found[:, 3] / 1e6, found[:, 3] / found[:, 2]
    assert 0.079 < area.min() < 0.09
    assert area.max() > 0.93
    assert 0.45 < area.mean() < 0.55
    assert 0.749 < aspect.min() < 0.76
    assert 1.3 < aspect.max() < 1.34


def test_a_scaled_decode_is_nearly_the_same(tmp_path: Path) -> None:
    large = np.array(Image.fromarray(CHINA).resize((1288, 960)))
    ref = yoga.Storage(tmp_path).submit([{"image": file_of(large)}], "a", "1")
    for crop in (None, "center"):
        exact, quick = (
            ref.decoded({"image": yoga.codecs.image(size=64, crop=crop, exact=exact)})[0]["image"].astype(int)  # type: ignore[arg-type]
            for exact in (True, False)
        )
        assert 0 < np.abs(exact - quick).mean() < 3


def test_columns_that_are_left_out_are_not_decoded(tmp_path: Path) -> None:
    rows = [{"image": b"no image", "mask": file_of(CHINA, "PNG"), "n": n} for n in range(3)]
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1")
    view = ref.decoded({"image": yoga.codecs.image(), "mask": yoga.codecs.image()})
    assert view["n"][2] == 2
    assert view.columns(["mask", "n"])[1]["mask"].shape == CHINA.shape
    assert list(view.where("n", lambda n: n > 0)["n"]) == [1, 2]
    with pytest.raises(CorruptError, match="row 1, column 'value': it begins with b'no image'"):
        view["image"][1]


def test_what_may_be_none_is_decoded_where_it_is_not(tmp_path: Path) -> None:
    rows = [
        {"image": None if n % 3 else CHINA[: n + 1], "text": None if n % 2 else "ab" * n} for n in range(9)
    ]
    codecs = {"image": yoga.codecs.png(), "text": yoga.codecs.zstd()}
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1", codecs=codecs)
    assert_rows_equal(list(ref.decoded()), rows)
    fixed = ref.decoded({"image": yoga.codecs.image(size=4)})
    assert fixed[1]["image"] is None
    assert fixed[3]["image"].shape == (4, 4, 3)
    assert fixed.columns(["image"]).masked()[1]["image"].sum() == 0
    assert ref.decoded()[[1, 2]][0]["image"] is None  # none of the batch has one


# -- text and sound


def test_text_and_bytes_come_back(tmp_path: Path) -> None:
    rows = [{"text": f"def f{n}(x):\n    return {n} * x ä", "data": bytes([n % 251]) * n} for n in range(300)]
    codecs = {"text": yoga.codecs.zstd(), "data": yoga.codecs.zstd()}
    storage = yoga.Storage(tmp_path)
    ref = storage.submit(rows, "a", "1", codecs=codecs)
    assert_rows_equal(list(ref.decoded()), rows)
    view = pickle.loads(pickle.dumps(ref.decoded({"text": yoga.codecs.text()})))
    assert view[[7, 3]][0]["text"] == rows[7]["text"]
    assert [len(batch["text"]) for batch in yoga.DataLoader(view, 150, num_workers=2)] == [150, 150]


def test_sound_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    wave = (np.sin(np.arange(4000) / 9) * 20000).astype(np.int16)
    rows = [{"sound": wave}, {"sound": np.stack([wave, -wave], 1)}, {"sound": torch.from_numpy(wave[:7])}]
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1", codecs={"sound": yoga.codecs.flac(16000)})
    for row, found in zip(rows, ref.decoded(), strict=True):
        assert np.array_equal(found["sound"], np.asarray(row["sound"]).reshape(len(row["sound"]), -1))
    floats = ref.decoded({"sound": yoga.codecs.audio(dtype="float32")})[0]["sound"]
    assert np.allclose(floats[:, 0] * 32768, wave)
    bad = yoga.Storage(tmp_path).submit([{"sound": b"fLaC none"}], "c", "1")
    with pytest.raises(CorruptError, match="row 0, column 'sound': it cannot be read as sound"):
        bad.decoded({"sound": yoga.codecs.audio()})[0]


# -- where a column may lie


Pair = namedtuple("Pair", "left right")  # as many programs have it


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("a/b", {"a": {"b": CHINA}, "n": 1}),
        ("1", (1, CHINA)),
        ("left", Pair(CHINA, 1)),
        ("0/x", [{"x": CHINA}, 2]),
        ("value", CHINA),
    ],
)
def test_columns_in_any_nest(name: str, row: Any, tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path).submit([row] * 3, "a", "1", codecs={name: yoga.codecs.png()})
    assert_rows_equal(list(ref.decoded()), [row] * 3)


def shapes_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shapes_of(held) for key, held in value.items()}
    return [*map(shapes_of, value)] if isinstance(value, list) else getattr(value, "shape", value)


def test_items_of_lists_are_decoded(tmp_path: Path) -> None:
    def of(*shape: int) -> bytes:
        return file_of(CHINA[: shape[0], : shape[1]], "PNG")

    rows: list[Any] = [
        {"seen": [of(4, 5), of(3, 2)], "n": 1, "boxes": [{"crop": of(1, 2), "x": 5}, {"crop": None, "x": 6}]},
        {"seen": [], "n": 2, "boxes": None},
        {"seen": [of(9, 9)], "n": 3, "boxes": []},
    ]
    names = {"ragged": ["seen", "boxes"], "nullable": ["boxes", "boxes{items}/crop"]}
    schema = yoga.Schema.of({**rows[0], "boxes": rows[0]["boxes"][:1]}, **names)
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1", schema=schema)
    view = ref.decoded({"seen": yoga.codecs.image(), "boxes{items}/crop": yoga.codecs.image(mode="gray")})
    assert shapes_of([*view]) == [
        {
            "seen": [(4, 5, 3), (3, 2, 3)],
            "n": 1,
            "boxes": [{"crop": (1, 2, 1), "x": 5}, {"crop": None, "x": 6}],
        },
        {"seen": [], "n": 2, "boxes": None},
        {"seen": [(9, 9, 3)], "n": 3, "boxes": []},
    ]
    assert np.array_equal(view[0]["seen"][1], CHINA[:3, :2])
    assert [column.name for column in view.schema.columns[:2]] == ["seen", "n"]
    check_dataref(view[1:])  # in which images of one list are alike
    batches = yoga.DataLoader(view, 3, shuffle=True, seed=1, num_workers=1, collate_fn=list)
    assert sorted(row["n"] for row in next(iter(batches))) == [1, 2, 3]
    assert list(view["n"]) == [1, 2, 3]
    assert shapes_of(view["seen"][0]) == [(4, 5, 3), (3, 2, 3)]
    assert shapes_of(view.columns(["n", "boxes"])[0]["boxes"][0]) == {"crop": (1, 2, 1), "x": 5}
    assert view.columns(["n"])[1] == {"n": 2}  # nothing is decoded
    assert shapes_of(pickle.loads(pickle.dumps(view))[2]["seen"]) == [(9, 9, 3)]
    with pytest.raises(SchemaError, match=r"a list holds arrays of shape \(4, 5, 3\) and \(3, 2, 3\)"):
        view.columns(["seen"]).to_arrow()
    small = ref.decoded({"seen": yoga.codecs.image(6)}).columns(["seen"])
    built = yoga.Storage(tmp_path).submit(small, "small", "1")
    assert_rows_equal(list(built), list(small))
    batch = next(iter(yoga.DataLoader(small[[2, 2, 2]], 3, num_workers=1)))
    assert batch["seen"][0].shape == (3, 6, 6, 3)


def test_items_of_lists_have_parts_and_errors_of_their_own(tmp_path: Path) -> None:
    rows = [{"seen": [file_of(CHINA)] * (2 + n % 2)} for n in range(6)]
    schema = yoga.Schema.of(rows[0], ragged=["seen"])
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1", schema=schema)
    view = ref.decoded({"seen": yoga.codecs.image(16, crop="random", flip=True)})
    numbers, seeds = np.arange(6), np.arange(6, dtype=np.uint64)
    whole = list(view._take_seeded(numbers, seeds))
    assert not np.array_equal(whole[0]["seen"][0], whole[0]["seen"][1])
    assert_rows_equal(list(view._take_seeded(numbers[3:4], seeds[3:4])), whole[3:4])
    rows.append({"seen": [file_of(CHINA), b"none"]})
    bad = yoga.Storage(tmp_path).submit(rows, "b", "1", schema=schema)
    with pytest.raises(CorruptError, match="row 6, column 'seen': it begins with b'none'"):
        bad.decoded({"seen": yoga.codecs.image()}).take(np.arange(7))
    with pytest.warns(UserWarning, match="1 values could not be decoded so far, .* row 6"):
        filled = bad.decoded({"seen": yoga.codecs.image(8, on_error=7)})[6]["seen"]
    assert (filled[1] == 7).all()
    deep = {"seen": [file_of(np.full((4, 4), 1500, np.uint16), "PNG")]}
    depth = yoga.Storage(tmp_path).submit([{"seen": []}, deep], "c", "1", schema=schema)
    assert (depth.decoded({"seen": yoga.codecs.image(mode="unchanged")})[1]["seen"][0] == 1500).all()
    with pytest.raises(SchemaError, match="was not compressed by zstd"):
        ref.decoded({"seen": yoga.codecs.text()})


def test_a_dataref_and_arrays_are_encoded(tmp_path: Path, photos: yoga.DataRef) -> None:
    storage = yoga.Storage(tmp_path)
    for short_side, shape in ((20, (20, 40, 3)), (81, (80, 161, 3))):
        codecs = {"image": yoga.codecs.jpeg(short_side=short_side)}
        ref = storage.submit(photos, "smaller", "1", overwrite=True, codecs=codecs)
        assert ref.decoded()[0]["image"].shape == shape
    assert ref[0]["image"] == photos[0]["image"]  # small enough
    arrays = {"image": np.stack([CHINA] * 5), "n": np.arange(5)}
    ref = storage.submit(arrays, "arrays", "1", codecs={"image": yoga.codecs.png()})
    assert np.array_equal(ref.decoded()[3]["image"], CHINA)

    @storage.cacheable("made", "1", codecs={"image": yoga.codecs.png()})
    def made() -> Iterator[Any]:
        yield {"image": CHINA}

    assert np.array_equal(made().decoded()[0]["image"], CHINA)


def test_convert_changes_codecs(tmp_path: Path, photos: yoga.DataRef) -> None:
    storage = yoga.Storage(tmp_path)
    rows = [{"image": row["image"], "text": f"line {row['label']}" * 9, "n": row["label"]} for row in photos]
    plain = storage.submit(rows, "a", "1", info={"by": "me"})
    codecs = {"text": yoga.codecs.zstd(), "image": yoga.codecs.jpeg()}
    first = storage.convert("a", "1", codecs=codecs, to="2")
    assert [row["image"] for row in first] == [row["image"] for row in rows]
    texts = [row["text"] for row in rows]
    assert [row["text"] for row in first.decoded({"text": yoga.codecs.text()})] == texts
    assert first.info["by"] == "me"
    assert first.fingerprint != plain.fingerprint
    learned = storage.convert("a", "2", codecs={"text": yoga.codecs.zstd(9)}, format="hdf5")
    assert [row["text"] for row in learned.decoded({"text": yoga.codecs.text()})] == texts
    small = storage.convert("a", "2", codecs={"image": yoga.codecs.jpeg(short_side=20), "text": None}, to="3")
    assert small.decoded()[0]["image"].shape[0] == 20
    assert [row["text"] for row in small] == [row["text"] for row in rows]
    assert [row["n"] for row in small] == list(range(24))
    with pytest.raises(KeyError, match="there is no column 'txet'"):
        storage.convert("a", "2", codecs={"txet": None})
    pixels = storage.convert("a", "1", codecs={"image": None}, to="4")  # there is nothing to undo
    assert pixels[0]["image"] == rows[0]["image"]
    storage.append(rows[:2], "a", "5", after="1")
    again = storage.convert("a", "5", codecs={"image": yoga.codecs.jpeg(short_side=20)}, to="6")
    assert [parent.is_prefix for parent in again.manifest.parents] == [False, False]  # no state of those fits


def test_other_columns_keep_what_they_stand_for(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for n in range(3):
            (tmp_path / "pets" / name / f"{n}.png").write_bytes(file_of(CHINA, "PNG"))
    folder = yoga.image_folder(tmp_path / "pets")
    codecs = {"image": yoga.codecs.jpeg(short_side=30)}
    ref = yoga.Storage(tmp_path / "s").submit(folder, "pets", "1", codecs=codecs)
    words = {column.name: column.meaning.words for column in ref.schema.columns}
    assert words["label"] == ("cat", "dog")
    assert ref.decoded()[4]["image"].shape == (30, 40, 3)
    schema = yoga.Schema.of({"image": CHINA, "ids": np.arange(2)}, ragged=["ids"])
    rows = [{"image": CHINA, "ids": np.arange(2)}]
    ref = yoga.Storage(tmp_path / "s").submit(
        rows, "rows", "1", schema=schema, codecs={"image": yoga.codecs.png()}
    )
    assert np.array_equal(ref.decoded()[0]["image"], CHINA)
    with pytest.raises(KeyError, match="there is no column 'imgae'"):
        yoga.Storage(tmp_path).submit(rows, "b", "1", schema=schema, codecs={"imgae": yoga.codecs.png()})


# -- bad input


JPEG, PNG = {"image": yoga.codecs.jpeg()}, {"image": yoga.codecs.png()}
ZSTD = {"text": yoga.codecs.zstd()}


@pytest.mark.parametrize(
    ("codecs", "rows", "error", "message"),
    [
        ({"imgae": PNG["image"]}, [{"image": CHINA}], KeyError, "column 'imgae', but the rows have 'image'"),
        ({"image": "jpeg"}, [{"image": CHINA}], TypeError, "must map columns to yoga.codecs.jpeg"),
        (JPEG, [{"image": CHINA / 255}], SchemaError, "row 0, column 'image': jpeg takes .*uint8"),
        (JPEG, [{"image": np.zeros((4, 5, 7), np.uint8)}], SchemaError, r"found shape \(4, 5, 7\)"),
        (JPEG, [{"image": b"none"}], SchemaError, "begins with b'none'"),
        (PNG, [{"image": 5}], SchemaError, "found a int"),
        (PNG, [{"image": Path("nowhere.png")}], SchemaError, "the file cannot be read"),
        (JPEG, [{"image": np.zeros((4, 5, 4), np.uint8)}], SchemaError, "transparency"),
        (ZSTD, [{"text": 5}], SchemaError, "zstd takes text and bytes, found a int"),
        (ZSTD, [{"text": "a"}, {"text": b"a"}], SchemaError, "unlike those of the rows before"),
        (ZSTD, [{"text": "a"}, {"b": "a"}], SchemaError, "the row has no 'text'"),
        ({"x": yoga.codecs.flac(8000)}, [{"x": np.zeros(4)}], SchemaError, "samples of int16"),
    ],
)
def test_what_cannot_be_encoded_is_said(
    codecs: Any, rows: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    storage = yoga.Storage(tmp_path)
    with pytest.raises(error, match=message):
        storage.submit(rows, "a", "1", codecs=codecs)
    assert storage.list() == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: yoga.codecs.image(crop="random"), "needs a size"),
        (lambda: yoga.codecs.image(size=0), "size must be in"),
        (lambda: yoga.codecs.image(size=8, crop="middle"), "crop must be one of"),  # type: ignore[arg-type]
        (lambda: yoga.codecs.image(on_error=3), "on_error needs a size"),
        (lambda: yoga.codecs.image(size=8, on_error=300), "on_error must be in"),
        (
            lambda: yoga.codecs.image(size=8, crop="random", scale=(0.5, 0.2)),
            "scale must be two rising numbers",
        ),
        (lambda: yoga.codecs.jpeg(quality=0), "quality must be in"),
        (lambda: yoga.codecs.zstd(level=99), "level must be in"),
        (lambda: yoga.codecs.audio(dtype="int8"), "dtype must be"),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_decoded_says_what_is_wrong(photos: yoga.DataRef) -> None:
    with pytest.raises(KeyError, match="there is no column 'imgae'; there are 'image'"):
        photos.decoded({"imgae": yoga.codecs.image()})
    with pytest.raises(SchemaError, match="image decodes bytes, but column 'label' is"):
        photos.decoded({"label": yoga.codecs.image()})
    with pytest.raises(SchemaError, match="was not compressed by zstd"):
        photos.decoded({"image": yoga.codecs.text()})
    with pytest.raises(TypeError, match=r"takes yoga.codecs.image\(\)"):
        photos.decoded({"image": yoga.codecs.jpeg()})
    with pytest.raises(ValueError, match="no column has a codec"):
        photos.columns(["label"]).decoded()


@given(
    format=st.sampled_from(["JPEG", "PNG", "WEBP", "TIFF", "GIF"]),
    cut=st.integers(0, 3000),
    flips=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=4),
)
def test_damaged_images_raise_or_decode(format: str, cut: int, flips: list[tuple[int, int]]) -> None:
    """Never anything else: no other error, no other shape."""
    data = bytearray(file_of(CHINA[:30, :40], format)[:cut])
    for place, value in flips:
        if place < len(data):
            data[place] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = pictures.header(bytes(data), most_pixels=10**6)
            pixels = pictures.decode(bytes(data), found, False)
        except CorruptError:
            return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3


def test_images_that_cannot_be_decoded_may_be_filled(tmp_path: Path) -> None:
    rows = [{"image": b"none" if n % 5 == 4 else file_of(CHINA)} for n in range(20)]
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1")
    view: Any = ref.decoded({"image": yoga.codecs.image(size=8, on_error=7)})
    with pytest.warns(UserWarning, match=r"1 values could not be decoded so far, .*column 'image', row 4"):
        assert (view[4]["image"] == 7).all()
    assert (view[9]["image"] == 7).all()
    assert view.num_failed == 2
    with pytest.raises(CorruptError, match="row 14, column 'image'"):
        ref.decoded({"image": yoga.codecs.image(size=8)}).take(np.arange(10, 20))


def test_a_forged_zstd_frame_is_refused(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    ref = yoga.Storage(tmp_path).submit(["text"] * 3, "a", "1", codecs={"value": yoga.codecs.zstd()})
    frame = bytearray(zstandard.ZstdCompressor().compress(b"x" * 1000))
    for data in (b"", b"none", bytes(frame[:9])):
        forged = yoga.Storage(tmp_path).submit([data], "b", "1", overwrite=True)
        with pytest.raises(CorruptError, match="it cannot be decompressed"):
            Own(list(forged), ref.schema).decoded()[0]


def test_a_library_that_another_thread_is_loading_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "half_loaded", types.ModuleType("half_loaded"))  # has no spec
    with only("zstd", "half_loaded"):
        assert libraries.used_for("zstd").startswith("half_loaded")


def test_missing_libraries_are_named() -> None:
    with only("zstd", "no_such_module"):
        assert libraries.used_for("zstd") == ""
        with pytest.raises(SchemaError, match=r"pip install 'torchyoga\[zstd\]'"):
            libraries.library("zstd")
