"""Codes with names keep their meaning wherever rows of several datasets come together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from own import Mapped
from torch.utils.data import ConcatDataset

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.reading.dataref import DataRef
from torchyoga.testing import check_dataref

PNG = bytes.fromhex("89504e470d0a1a0a")


def folder(path: Path, *classes: str) -> DataRef:
    """Three images of each class."""
    for name in classes:
        (path / name).mkdir(parents=True)
        for number in range(3):
            (path / name / f"{number}.png").write_bytes(PNG + f"{name}{number}".encode())
    return yoga.image_folder(path)


def frame(*values: str) -> DataRef:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    data = {"label": pandas.Categorical(values), "path": [f"{value}/" for value in values]}
    return yoga.from_arrow(pandas.DataFrame(data))


def labels(names: list[str], *codes: int) -> DataRef:
    datasets = pytest.importorskip("datasets")
    features = {"label": datasets.ClassLabel(names=names), "path": datasets.Value("string")}
    data = {"label": codes, "path": [f"{names[code]}/" for code in codes]}
    return yoga.from_huggingface(datasets.Dataset.from_dict(data, datasets.Features(features)))


PAIRS: dict[str, Callable[[Path], Sequence[DataRef]]] = {
    "folders": lambda path: [folder(path / "a", "cat", "dog"), folder(path / "b", "dog", "eel")],
    "more classes": lambda path: [folder(path / "a", "cat", "dog"), folder(path / "b", "ant", "cat", "dog")],
    "dictionaries of Arrow": lambda _: [frame("cat", "dog"), frame("eel", "dog")],
    "ClassLabels": lambda _: [labels(["dog", "cat"], 1, 0), labels(["eel", "cat", "dog"], 0, 1, 2)],
}


def check_names(ref: Any, num_rows: int) -> None:
    """The name of each row's code is the folder of its path, as schema and info say it."""
    (words,) = (column.meaning.words for column in ref.schema.columns if column.name == "label")
    rows = list(ref)
    assert len(rows) == num_rows
    assert [words[row["label"]] for row in rows] == [row["path"].partition("/")[0] for row in rows]
    assert ref.info.get("classes", list(words)) == list(words)
    assert (
        ref.info.get("class_to_idx", {name: n for n, name in enumerate(words)})[words[-1]] == len(words) - 1
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_codes_are_those_of_one_list_of_names(pair: str, tmp_path: Path) -> None:
    one, other = PAIRS[pair](tmp_path)
    both, storage = len(one) + len(other), yoga.Storage(tmp_path / "storage")
    check_names(yoga.concat([one, other]), both)
    check_names(yoga.concat([other, one]), both)
    check_dataref(yoga.concat([one, other]))
    check_names(yoga.mix({"a": one, "b": other}, {"a": 1, "b": 1}, rows=2 * both), 2 * both)
    check_names(storage.submit(ConcatDataset([one, other]), "at once", "1"), both)
    columns = yoga.concat([one, other]).columns(["label"])
    assert [row["label"] for row in columns] == [row["label"] for row in yoga.concat([one, other])]
    old = storage.submit(one, "grown", "1", info=one.info)
    grown = storage.append(other, "grown")
    check_names(grown, both)
    assert old.schema == storage.fetch("grown", "1").schema
    state = yoga.DataLoader(old, 1, seed=1).state_dict()
    yoga.DataLoader(grown, 1, seed=1, appended="next").load_state_dict(state)
    check_names(storage.append(one, "grown"), both + len(one))  # its schema has more names by now
    storage.check("grown", "2")


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_after_map_are_not_joined_with_other_codes(pair: str, tmp_path: Path) -> None:
    one, other = PAIRS[pair](tmp_path)
    storage = yoga.Storage(tmp_path / "storage")
    mapped, last = (ref.map(dict) for ref in (one, other))
    for refs in ([mapped, last], [mapped, other], [one, last], [yoga.concat([mapped, mapped]), last]):
        with pytest.raises(SchemaError, match=r"call map last, as concat\(\[one, other\]\)\.map\(function\)"):
            yoga.concat(refs)
    with pytest.raises(SchemaError, match="call map last"):
        yoga.mix({"a": mapped, "b": last}, "size")
    with pytest.raises(SchemaError, match="call map last"):
        storage.submit(ConcatDataset([mapped, last]), "d", "1")
    storage.submit(one, "d", "1", info=one.info)
    with pytest.raises(SchemaError, match="the new rows"):
        storage.append(last, "d")
    assert len(yoga.concat([mapped, one])) == 2 * len(one)
    assert len(storage.append(mapped, "d")) == 2 * len(one)


def test_map_batches_keeps_no_codes_of_others(tmp_path: Path) -> None:
    refs = [folder(tmp_path / "a", "cat", "dog"), folder(tmp_path / "b", "ant", "dog")]
    with pytest.raises(SchemaError, match=r"the label 0 is 'ant'.* call map last"):
        yoga.concat([ref.map_batches(lambda columns: {"y": columns["label"]}) for ref in refs])


def test_rows_with_classes_are_not_appended_to_other_names(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    storage.submit(folder(tmp_path / "a", "cat", "dog"), "d", "1")
    rows = [{"image": PNG, "label": 0, "path": "ant/"}]
    for new in (yoga.from_arrays({"x": np.zeros(1)}).map(lambda _: rows[0]), Told(rows)):
        if isinstance(new, DataRef):
            new = storage.submit(new, "other", "1", info={"class_to_idx": {"ant": 0}})
        with pytest.raises(SchemaError, match="the label 0 is 'ant'"):
            storage.append(new, "d")


class Told(list[Any]):
    class_to_idx: ClassVar = {"ant": 0}


def test_numbers_that_are_no_codes_are_refused(storage: yoga.Storage) -> None:
    storage.submit(frame("cat", "dog"), "d", "1")
    good = {"label": np.int8(1), "path": "dog/"}
    for code in (2, -1, True, np.int8(2), np.int8(-1)):
        with pytest.raises(SchemaError, match=r"'label': expected codes of its 2 names, 0 to 1, found "):
            storage.append([good, {**good, "label": code}], "d")
    assert storage.append([good, good], "d")[3]["label"] == 1


def test_names_are_not_dropped_where_the_old_codes_have_none(storage: yoga.Storage) -> None:
    storage.submit([{"label": np.int8(0), "path": "cat/"}], "d", "1")
    with pytest.raises(SchemaError, match=r"'label' of the new rows has names for its codes, cat, dog"):
        storage.append(frame("cat", "dog"), "d")


def test_a_name_is_taken_for_its_code_and_an_unknown_one_refused(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit(folder(tmp_path / "a", "cat", "dog"), "d", "1")
    row = {"image": PNG, "path": "dog/"}
    assert storage.append([{**row, "label": "dog"}, {**row, "label": 1}], "d")[6]["label"] == 1
    with pytest.raises(SchemaError, match=r"'label': 'eel' is none of its 2 names, cat, dog"):
        storage.append([{**row, "label": "eel"}], "d")


def test_too_many_names_for_small_codes_are_an_error() -> None:
    many = [frame(*(f"{start + n}" for n in range(100))) for start in (0, 100)]
    with pytest.raises(SchemaError, match=r"'label' has codes of .i1, too small for the 200 names"):
        yoga.concat(many)


class Pictures(Mapped):
    def __init__(self, **class_to_idx: int) -> None:
        super().__init__(4, lambda index: (np.zeros(2), index % 2))
        self.class_to_idx, self.classes = class_to_idx, list(class_to_idx)


def test_classes_that_no_column_names_are_compared(storage: yoga.Storage) -> None:
    old = storage.submit(Pictures(cat=0, dog=1), "d", "1")
    for others in (Pictures(dog=0, eel=1), Pictures(eel=1), Pictures(cat=1)):
        with pytest.raises(SchemaError, match=r"class_to_idx of the new rows .*'cat': 0.*"):
            storage.append(others, "d")
        other = storage.submit(others, "other", "1", overwrite=True)
        with pytest.raises(SchemaError, match="change the labels of DataRef 1 first"):
            yoga.concat([old, other])
        with pytest.raises(SchemaError, match="change the labels of DataRef 1 first"):
            yoga.mix({"a": old, "b": other}, "size")
        assert len(yoga.concat([old, other.map(lambda row: (row[0], 1 - row[1]))])) == 8
        zipped = old.zip(other)
        assert "classes" not in zipped.info
    grown = storage.append(Pictures(cat=0, dog=1, eel=2), "d")
    assert grown.class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
    assert grown.classes == ["cat", "dog", "eel"]


def test_a_zip_has_the_classes_of_the_side_with_labels(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "a", "cat", "dog"), folder(tmp_path / "b", "dog", "eel")
    assert one.columns(["image"]).zip(other.columns(["label"])).classes == ["dog", "eel"]
    assert one.columns(["label"]).zip(other.columns(["image"])).classes == ["cat", "dog"]
