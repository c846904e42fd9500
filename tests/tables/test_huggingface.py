from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets

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


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


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


def test_a_loader_resumes_with_workers(dataset: datasets.Dataset) -> None:
    small = dataset.select_columns(["label", "grid"]).shuffle(seed=3)

    def loader(workers: int) -> yoga.DataLoader[Any]:
        return yoga.DataLoader(small, 64, shuffle=True, seed=3, num_workers=workers)

    whole = [batch["grid"][:, 0, 0].tolist() for batch in loader(0)]
    first = loader(1)
    taken = [batch["grid"][:, 0, 0].tolist() for _, batch in zip(range(3), first, strict=False)]
    second = loader(0)
    second.load_state_dict(first.state_dict())
    assert taken == whole[:3]
    assert [batch["grid"][:, 0, 0].tolist() for batch in second] == whole[3:]


def test_images_are_bytes_from_the_table_or_from_their_files(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    picture.save(tmp_path / "a.png")
    held = io.BytesIO()
    picture.save(held, "png")
    features = datasets.Features({"image": datasets.Image()})
    values = [str(tmp_path / "a.png"), {"bytes": held.getvalue(), "path": None}, None]
    made = datasets.Dataset.from_dict({"image": values}, features)
    ref = yoga.from_huggingface(made)
    found = [row["image"] for row in ref]
    assert found[2] is None
    for data in found[:2]:
        assert np.array_equal(np.asarray(image.open(io.BytesIO(data))), np.asarray(picture))
    assert ref.schema.columns[0].meaning.codec.name == "image"  # type: ignore[union-attr]
    inside = yoga.from_huggingface(made.select([1]))
    assert inside[0]["image"] == held.getvalue()
    again = ref.to_huggingface()
    assert isinstance(again.features["image"], datasets.Image)
    assert np.array_equal(np.asarray(again[0]["image"]), np.asarray(picture))
    (tmp_path / "a.png").unlink()
    with pytest.raises(yoga.errors.NotFoundError, match=r"column 'image': the file .*a\.png"):
        ref[0]


def test_datasets_come_back(dataset: datasets.Dataset) -> None:
    again = yoga.from_huggingface(dataset)[:50].to_huggingface()
    assert isinstance(again.features["label"], datasets.ClassLabel)
    assert again.features["label"].names == ["cat", "dog"]
    assert list(again) == list(dataset.select(range(50)))
