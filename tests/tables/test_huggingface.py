from __future__ import annotations

import datetime
import decimal
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
from coding.decoders import file_of
from types_of_arrow import plain

import torchyoga as yoga

FEATURES = datasets.Features(
    {
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "ids": datasets.Sequence(datasets.Value("int32")),
        "box": datasets.Sequence(datasets.Value("float32"), length=4),
        "grid": datasets.Array2D((2, 3), "float32"),
        "tall": datasets.Array2D((None, 2), "int64"),
        "text": datasets.Value("string"),
        "answers": {"text": datasets.Sequence(datasets.Value("string")), "start": datasets.Value("int8")},
        "objects": [{"kind": datasets.ClassLabel(names=["u", "v"])}],
    }
)


def rows(count: int) -> dict[str, list[Any]]:
    return {
        "label": [i % 2 for i in range(count)],
        "ids": [list(range(i % 5)) for i in range(count)],
        "box": [[i, 0, 0, 1] for i in range(count)],
        "grid": [np.full((2, 3), i).tolist() for i in range(count)],
        "tall": [[[i, i]] * (i % 3 + 1) for i in range(count)],
        "text": [f"row {i}" for i in range(count)],
        "answers": [{"text": ["a"] * (i % 3), "start": i % 100} for i in range(count)],
        "objects": [[{"kind": 1}] * (i % 2) for i in range(count)],
    }


@pytest.fixture
def dataset(tmp_path: Path) -> datasets.Dataset:
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows(500), FEATURES).save_to_disk(str(tmp_path / "saved"))
    return datasets.load_from_disk(str(tmp_path / "saved"))  # mapped


def test_rows_are_those_of_the_dataset(dataset: datasets.Dataset) -> None:
    ref = yoga.from_huggingface(dataset)
    assert [plain(row) for row in ref] == list(dataset)
    columns = {column.name: column for column in ref.schema.columns}  # type: ignore[union-attr]
    assert columns["label"].meaning.words == ("cat", "dog")
    assert columns["objects{items}/kind"].meaning.words == ("u", "v")
    assert columns["grid"].shape == (2, 3)
    assert (columns["tall"].shape, columns["tall"].ndim) == (None, 2)


def test_row_numbers_columns_and_formats_are_heeded(dataset: datasets.Dataset) -> None:
    mixed = dataset.shuffle(seed=1).select(range(100)).filter(lambda row: row["label"] == 1)
    ref = yoga.from_huggingface(mixed)
    assert [row["text"] for row in ref] == mixed["text"][:]
    few = yoga.from_huggingface(mixed.with_format("torch", columns=["label", "text"]))
    assert list(few[0]) == ["label", "text"]
    again = pickle.loads(pickle.dumps(few))
    assert [row["text"] for row in again] == mixed["text"][:]
    assert again.fingerprint == few.fingerprint
    renamed = yoga.from_huggingface(dataset.rename_column("text", "t").remove_columns(["tall"]))
    assert renamed[7]["t"] == "row 7"


def test_all_columns_of_a_format_come(dataset: datasets.Dataset) -> None:
    shown = dataset.with_format("numpy", columns=["label"], output_all_columns=True)
    ref = yoga.from_huggingface(shown)
    assert list(ref[0]) == list(shown[0])
    assert [plain(row) for row in ref[:5]] == [
        {name: row[name] for name in ref[0]} for row in dataset.select(range(5))
    ]
    again = pickle.loads(pickle.dumps(yoga.from_huggingface(shown.select([7, 3]))))
    assert [row["text"] for row in again] == ["row 7", "row 3"]


def test_a_transform_is_called_for_each_row(dataset: datasets.Dataset) -> None:
    shown = dataset.with_transform(lambda batch: {"shout": [text.upper() for text in batch["text"]]})
    ref = yoga.from_huggingface(shown)
    assert ref[[3, 0]] == [{"shout": "ROW 3"}, {"shout": "ROW 0"}]
    batch = next(iter(yoga.DataLoader(shown, 2, shuffle=False)))
    assert batch == {"shout": ["ROW 0", "ROW 1"]}


def test_bare_datasets_work(dataset: datasets.Dataset, tmp_path: Path) -> None:
    small = dataset.select(range(20)).select_columns(["label", "box", "text"])
    ref = yoga.Storage(tmp_path / "cache").submit(small, "hf", "1", progress=False)
    assert [row["text"] for row in ref] == [f"row {i}" for i in range(20)]
    loader = yoga.DataLoader(small, 8, shuffle=True, seed=1)
    assert {tuple(batch["box"].shape[1:]) for batch in loader} == {(4,)}
    with pytest.raises(TypeError, match=r"DatasetDict.*\['train'\]"):
        yoga.Storage(tmp_path / "cache").submit(datasets.DatasetDict({"train": small}), "dict", "1")


def test_images_are_bytes_from_the_table_or_from_their_files(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    picture.save(tmp_path / "a.png")
    held = file_of(picture, "png")
    features = datasets.Features({"image": datasets.Image()})
    values = [str(tmp_path / "a.png"), {"bytes": held, "path": None}, None]
    made = datasets.Dataset.from_dict({"image": values}, features)
    ref = yoga.from_huggingface(made)
    found = [row["image"] for row in ref]
    assert found[2] is None
    for data in found[:2]:
        assert np.array_equal(np.asarray(image.open(io.BytesIO(data))), np.asarray(picture))
    assert ref.schema.columns[0].meaning.codec.name == "image"  # type: ignore[union-attr]
    inside = yoga.from_huggingface(made.select([1]))
    assert inside[0]["image"] == held
    again = ref.to_huggingface()
    assert isinstance(again.features["image"], datasets.Image)
    assert np.array_equal(np.asarray(again[0]["image"]), np.asarray(picture))
    (tmp_path / "a.png").unlink()
    with pytest.raises(yoga.errors.NotFoundError, match=r"column 'image': the file .*a\.png"):
        ref[0]


PNG = {"bytes": b"\x89PNG", "path": None}
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "2d": (datasets.Array2D((2, 3), "float32"), [[[1.0, 2.0, 3.0]] * 2] * 2),
    "2d of any height": (datasets.Array2D((None, 3), "int8"), [[[1, 2, 3]], [[4, 5, 6]] * 2]),
    "3d": (datasets.Array3D((1, 2, 1), "uint8"), [[[[1], [2]]]] * 2),
    "4d": (datasets.Array4D((1, 1, 2, 1), "uint8"), [[[[[1], [2]]]]] * 2),
    "5d": (datasets.Array5D((1, 1, 1, 2, 1), "int64"), [[[[[[1], [2]]]]]] * 2),
    "2d in a dict": ({"x": datasets.Array2D((1, 2), "int8")}, [{"x": [[1, 2]]}] * 2),
    "translation": (datasets.Translation(["en", "de"]), [{"en": "a", "de": "b"}] * 2),
    "translations": (
        datasets.TranslationVariableLanguages(["en", "de", "fr"]),
        [{"en": "a", "de": ["b", "c"]}, {"fr": "d"}],
    ),
    "large list": (datasets.LargeList(datasets.Value("int64")), [[1, 2], []]),
    "large list of dicts": (datasets.LargeList({"a": datasets.Value("string")}), [[{"a": "x"}], []]),
    "labels": (datasets.List(datasets.ClassLabel(names=["u", "v"])), [[0, 1], []]),
    "pairs of labels": (datasets.List(datasets.ClassLabel(names=["u", "v"]), length=2), [[0, 1]] * 2),
    "large list of labels": (datasets.LargeList(datasets.ClassLabel(names=["u", "v"])), [[0, 1], [1]]),
    "labels in dicts": ([{"k": datasets.ClassLabel(names=["u"])}], [[{"k": 0}], []]),
    "image": (datasets.Image(mode="L"), [PNG, None]),
    "images": (datasets.List(datasets.Image()), [[PNG, PNG], []]),
    "images in a dict": ({"x": datasets.Image(), "n": datasets.Value("int8")}, [{"x": PNG, "n": 1}] * 2),
    "images in dicts": ([{"x": datasets.Image(decode=False)}], [[{"x": PNG}], []]),
    "lists of images": (datasets.List(datasets.List(datasets.Image())), [[[PNG], []], []]),
    "text": (datasets.Value("large_string"), ["a", None]),
    "bytes": (datasets.Value("large_binary"), [b"a", b"b"]),
    "decimal": (datasets.Value("decimal128(5, 2)"), [decimal.Decimal("1.50"), None]),
    "date": (datasets.Value("date64"), [datetime.date(2024, 2, 29)] * 2),
    "time": (datasets.Value("time64[us]"), [datetime.time(1, 2, 3)] * 2),
    "zone": (datasets.Value("timestamp[ms, tz=UTC]"), [datetime.datetime(2024, 1, 2)] * 2),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("way", ["in place", "stored", "empty"])
def test_features_come_back(name: str, way: str, tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    feature, values = KINDS[name]
    features = datasets.Features({"x": feature, "n": datasets.Value("int8")})
    given = datasets.Dataset.from_dict({"x": values, "n": [1, 2]}, features)
    ref = yoga.from_huggingface(given)
    if way == "stored":
        ref = yoga.Storage(tmp_path).submit(given, "x", "1", progress=False)
    again = (ref[:0] if way == "empty" else ref).to_huggingface()
    assert again.features == given.features
    if way != "empty":
        assert again.data.table.to_pylist() == given.data.table.to_pylist()


def test_features_that_do_not_fit_any_more_are_not_claimed() -> None:
    features = datasets.Features(
        {
            "grid": datasets.Array2D((2, 3), "float32"),
            "label": datasets.ClassLabel(names=["u", "v"]),
            "pair": datasets.List(datasets.Value("int64"), length=2),
            "price": datasets.Value("decimal128(3, 1)"),
            "text": datasets.Value("large_string"),
        }
    )
    rows = [
        {"grid": np.ones((2, 3)), "label": 1, "pair": [1, 2], "price": decimal.Decimal("1.5"), "text": "a"}
    ]
    ref = yoga.from_huggingface(datasets.Dataset.from_list(rows, features))

    def other(columns: Any) -> Any:
        grid, pair = columns["grid"][:, :, :2], np.repeat(columns["pair"], 2, axis=1)
        return {"grid": grid, "label": columns["label"] + 5, "pair": pair, "text": columns["pair"][:, 0]}

    made = ref.map_batches(other)
    assert made.info["features"]
    found = made.to_huggingface()
    assert found.features == {
        "grid": datasets.List(datasets.List(datasets.Value("float32"), length=2), length=2),
        "label": datasets.Value("int64"),
        "pair": datasets.List(datasets.Value("int64"), length=4),
        "text": datasets.Value("int64"),
    }
    assert found[0]["label"] == 6


def test_what_info_says_may_be_anything(tmp_path: Path) -> None:
    for features in (["x"], {"x": {"_type": "Nothing"}}, {"x": 5}, {"x": {"_type": "Image"}}):
        info = {"features": features}
        ref = yoga.Storage(tmp_path).submit([{"x": 1}], "a", "1", overwrite=True, info=info, progress=False)
        assert ref.to_huggingface().features == {"x": datasets.Value("int64")}


def test_images_in_lists_and_dicts_are_decoded(tmp_path: Path) -> None:
    def of(*shape: int) -> dict[str, Any]:
        return {"bytes": file_of(np.full((*shape, 3), shape[0], np.uint8), "png"), "path": None}

    (tmp_path / "a.png").write_bytes(of(7, 7)["bytes"])
    features = {
        "images": datasets.List(datasets.Image()),
        "pair": {"left": datasets.Image(), "n": datasets.Value("int8")},
        "deep": datasets.List({"x": datasets.Image()}),
        "n": datasets.Value("int64"),
    }
    rows = [
        {"images": [of(4, 5), of(3, 2)], "pair": {"left": of(2, 2), "n": 1}, "deep": [{"x": None}], "n": 0},
        {"images": [], "pair": None, "deep": None, "n": 1},
        {
            "images": [str(tmp_path / "a.png")],
            "pair": {"left": None, "n": 2},
            "deep": [{"x": of(1, 1)}],
            "n": 2,
        },
    ]
    made = datasets.Dataset.from_list(rows, datasets.Features(features))
    ref = yoga.from_huggingface(made)
    for view in (
        ref.decoded(),
        ref.decoded({name: yoga.codecs.image() for name in ("images", "deep{items}/x")}),
    ):
        for row, expected in zip(view, made, strict=True):
            assert [one.tolist() for one in row["images"]] == [
                np.asarray(one).tolist() for one in expected["images"]
            ]
            assert (row["deep"] is None) == (expected["deep"] is None)
    whole = list(ref.decoded())
    assert [one.shape for one in whole[0]["images"]] == [(4, 5, 3), (3, 2, 3)]
    assert whole[0]["pair"]["left"].shape == (2, 2, 3)
    assert (whole[1]["pair"], whole[2]["pair"]["left"], whole[0]["deep"]) == (None, None, [{"x": None}])
    assert whole[2]["deep"][0]["x"].shape == (1, 1, 3)
    sized = ref.decoded({"images": yoga.codecs.image(8, crop="random", flip=True)}).columns(["images", "n"])
    batches = [*yoga.DataLoader(sized[[0, 0, 0]], 3, seed=1)]
    assert batches[0]["images"][1].shape == (3, 8, 8, 3)
