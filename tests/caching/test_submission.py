"""What a version keeps: the rows as the build read them, and info about the dataset."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own import Made, Mapped, Squares

import torchyoga as yoga


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


# -- rows that differ


class Drawn(Mapped):
    """Rows that `make` makes; it notes each read."""

    def __init__(self, make: Callable[[int], Any], length: int = 8) -> None:
        super().__init__(length, make)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return super().__getitem__(index)


RANDOM: dict[str, Callable[[int], Any]] = {
    "python": lambda i: {"x": i, "y": random.random()},
    "numpy": lambda i: (i, np.random.rand(2)),
    "torch": lambda i: torch.rand(3) + i,
}


@pytest.mark.parametrize("kind", ["python", "numpy", "torch"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_that_differ_give_a_warning(storage: yoga.Storage, kind: str, num_workers: int) -> None:
    with pytest.warns(
        UserWarning, match="rows of Drawn differ when they are read again.*'a' '1' keeps"
    ) as caught:
        storage.submit(Drawn(RANDOM[kind]), "a", "1", num_workers=num_workers)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="rows of Drawn differ"):
        storage.cacheable("a", "2", num_workers=num_workers)(lambda: Drawn(RANDOM[kind]))()
    assert storage.versions("a") == ["1", "2"]


def states() -> tuple[Any, ...]:
    found = np.random.get_state()
    return random.getstate(), found[1].tolist(), found[2:], torch.get_rng_state().tolist()  # type: ignore[index]


def test_reading_rows_again_leaves_random_generators_as_they_were(storage: yoga.Storage) -> None:
    def row(i: int) -> Any:
        return random.random(), np.random.rand(), torch.rand(())

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = [row(i) for i in range(8)]
    after = states()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with pytest.warns(UserWarning, match="differ"):
        ref = storage.submit(Drawn(row), "a", "1")
    assert list(ref) == expected
    assert states() == after


def test_few_rows_are_read_again_and_only_where_that_is_possible(storage: yoga.Storage) -> None:
    for length, again in ((0, []), (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (100, [0, 50, 99])):
        source = Drawn(lambda i: {"x": np.full(3, i), "nan": float("nan"), "s": "é"}, length)
        storage.submit(source, "a", str(length))
        assert source.read == [*range(length), *again, *again]
    once: Iterator[int] = iter([1, 2, 3])
    assert list(storage.submit(once, "b", "1")) == [1, 2, 3]
    storage.submit({"x": np.arange(5)}, "b", "2")
    storage.submit(storage.fetch("a", "100"), "b", "3")

    def once_only(i: int) -> int:
        if source.read.count(i) > 1:
            raise ConnectionError("gone")
        return i

    source = Drawn(once_only)
    assert list(storage.submit(source, "b", "4")) == list(range(8))


numbers = itertools.count()
DIFFER: dict[str, Callable[[int], Any]] = {
    "bit": lambda i: -0.0 if next(numbers) % 2 else 0.0,
    "shape": lambda i: np.zeros((2, 3) if next(numbers) % 2 else (3, 2)),
    "length": lambda i: [i, "text" * next(numbers)],
}
SAME: dict[str, Callable[[int], Any]] = {
    "nan": lambda i: float("nan"),
    "order of keys": lambda i: {"a": 1, "b": i} if next(numbers) % 2 else {"b": i, "a": 1},
    "other memory": lambda i: (np.full(3, i), torch.arange(i)),
}


@pytest.mark.parametrize("kind", [*DIFFER, *SAME])
def test_every_way_to_differ_counts_and_nothing_else(kind: str, storage: yoga.Storage) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        storage.submit(Drawn({**DIFFER, **SAME}[kind], 5), "a", "1")
    assert ["differ" in str(one.message) for one in caught] == [True] * (kind in DIFFER)


def test_rows_that_take_long_are_read_once(storage: yoga.Storage) -> None:
    slow = Drawn(lambda i: time.sleep(0.6) or i, 2)
    storage.submit(slow, "a", "1")
    assert slow.read == [0, 1]


def test_where_warnings_are_errors_nothing_is_published(storage: yoga.Storage) -> None:
    class Random(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return random.random()

    storage.submit([1.0], "a", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="differ when they are read again"):
            storage.submit(Random([1, 2]), "a", "1", overwrite=True)
    assert list(storage.fetch("a", "1")) == [1.0]


# -- info


class Folder(Drawn):
    classes = ("cat", "dog")
    class_to_idx = {"cat": 0, "dog": 1}  # noqa: RUF012
    features = np.zeros(3)
    _secret = 1


class Features(dict):  # type: ignore[type-arg]
    def to_dict(self) -> dict[str, Any]:
        return {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}


TOLD = {"classes": ["cat", "dog"], "class_to_idx": {"cat": 0, "dog": 1}}


def test_classes_and_features_of_a_dataset_are_kept(storage: yoga.Storage, tmp_path: Path) -> None:
    folder = Folder(lambda i: i)
    ref = storage.cacheable("a", "1")(lambda: folder)()
    other = yoga.Storage(tmp_path / "other", "hdf5")
    for found in (
        ref,
        storage.fetch("a", "1"),
        ref[2:5],
        ref[::2][1:],
        storage.convert("a", "1", to="2", format="hdf5"),
        storage.copy("a", "1", to=other),
        storage.submit(ref, "a", "3"),
        storage.submit(ref[1:], "a", "4"),
        storage.submit(torch.utils.data.Subset(folder, [1, 2]), "a", "5"),
        storage.submit(torch.utils.data.ConcatDataset([ref, ref[:1]]), "a", "6"),
        storage.submit(torch.utils.data.ConcatDataset([folder, folder]), "a", "7"),
        storage.submit(torch.utils.data.Subset(ref, [3, 1]), "a", "8"),
        pickle.loads(pickle.dumps(ref)),
    ):
        assert found.info == TOLD
        assert (found.classes, found.class_to_idx) == (TOLD["classes"], TOLD["class_to_idx"])
        assert not hasattr(found, "features")
    found = ref.info
    found["classes"].append("fish")
    ref.classes.append("fish")
    assert ref.info == TOLD
    with pytest.raises(
        AttributeError, match=r"VersionRef has no features: its info says \['class_to_idx', 'cl"
    ):
        _ = ref.features


def test_info_passed_by_the_user(storage: yoga.Storage) -> None:
    given = {"mean": (0.5, 1), "nested": {"deep": [None, True, "é"]}, "classes": ["x"]}
    expected = {"mean": [0.5, 1], "nested": {"deep": [None, True, "é"]}, "classes": ["x"]}
    ref = storage.submit(Folder(lambda i: i), "a", "1", info=given)
    assert ref.info == storage.fetch("a", "1").info == {**expected, "class_to_idx": {"cat": 0, "dog": 1}}
    made = storage.cacheable("a", "2", info=given)(lambda: [1])
    assert made().info == made().info == expected
    assert storage.submit(made(), "a", "3", info={"classes": ["y"]}).info == {**expected, "classes": ["y"]}
    assert storage.submit([1], "a", "4").info == {}
    assert "info" not in json.loads((storage.path / "a" / "4" / "manifest.json").read_bytes())
    assert storage.submit([], "a", "5", info={"x": 1}).info == {"x": 1}

    class Hugging(Drawn):
        features = Features()

    assert storage.submit(Hugging(lambda i: i), "b", "1").features == Features().to_dict()


class Scaler:
    mean_ = np.array([0.5, 1.0])


class Masks(Drawn):
    mask_values: Any = (0, 255)
    scaler = Scaler()

    @property
    def faulty(self) -> Any:
        return Scaler().inner  # type: ignore[attr-defined]

    @property
    def unread(self) -> Any:
        return json.loads("{oops")

    def count(self) -> int:
        return len(self)


def test_attributes_of_a_dataset_that_info_names_are_those_of_the_ref(storage: yoga.Storage) -> None:
    info = ["mask_values"]

    @storage.cacheable("masks-{top}", "1", info=info)
    def masks(top: int) -> Masks:
        made = Masks(abs)
        made.mask_values = np.array([0, top])
        return made

    for top in (1, 255):
        ref = masks(top)
        assert ref.info == {"mask_values": [0, top]}  # of each version its own
        for view in (ref[1:], ref.map(abs), ref.repeat(2), pickle.loads(pickle.dumps(ref)), masks(top)):
            assert view.mask_values == [0, top]
        assert storage.submit(ref, "again", str(top), info=["mask_values"]).mask_values == [0, top]
    many = storage.submit(Masks(abs), "many", "1", info=info, together=True)
    assert many.info == {"mask_values": [0, 255]}
    grown = storage.append([7], "many", "2", after="1", info={"license": "CC0"})
    assert grown.info == {"mask_values": [0, 255], "license": "CC0"}


def test_names_in_info_look_through_subsets(storage: yoga.Storage) -> None:
    part = torch.utils.data.Subset(torch.utils.data.Subset(Masks(abs), [1, 2]), [0])
    assert storage.submit(part, "a", "1", info=["mask_values", "indices"]).info == {
        "mask_values": [0, 255],
        "indices": [0],
    }


def test_what_info_asks_for_must_be_there_and_be_json(storage: yoga.Storage) -> None:
    data = Masks(abs)
    cases: list[tuple[Any, type[Exception], str]] = [
        (["nope"], AttributeError, r"info names 'nope', but Masks has no such.*info={'nope': \.\.\.}"),
        (["faulty"], AttributeError, r"info names 'faulty', but Masks fails to give it \(.*'inner'\)"),
        (
            ["scaler"],
            TypeError,
            r"info\['scaler'\] is a Scaler, which JSON.*info={'scaler': \.\.\.}, or name a property",
        ),
        (["unread"], json.JSONDecodeError, "Expecting property name"),  # the dataset's own error
        (["count"], TypeError, r"info\['count'\] is a method.*pass the value itself"),
        ({"x": {1}}, TypeError, r"info\['x'\] is a set"),
        ({"x": float("nan")}, ValueError, r"info\['x'\] is nan"),
        ({3: 5}, TypeError, "keys of JSON are text"),
        ({"x": len}, TypeError, r"info\['x'\] is a builtin_function"),
        (len, TypeError, "pass a dict of JSON data, or a list of names"),
        ("scaler", TypeError, "info is 'scaler'; pass a dict of JSON data, or a list of names"),
        ({"x": "x" * 2**19, "y": "y" * 2**19}, ValueError, "info is longer than"),
    ]
    for info, error, message in cases:
        with pytest.raises(error, match=message):
            storage.submit(data, "a", "1", info=info)
    for odd, error in (({"x": {1}}, TypeError), ([1], TypeError), ({"x": "\ud800"}, ValueError)):
        with pytest.raises(error, match="info"):
            storage.cacheable("a", "1", info=odd)  # type: ignore[arg-type]
    assert storage.list() == []


def test_an_attribute_that_a_ref_lacks_is_said_to_be_named_by_info(storage: yoga.Storage) -> None:
    ref = storage.submit([1, 2], "a", "1", info={"mean": 1, "schema": 3, "whole": 4, "_secret": 5})
    assert (ref.mean, ref[1:].mean) == (1, 1)
    assert ref.schema is not None  # the ref's own come first
    assert ref[1:].whole is ref
    for name in ("whole", "_secret"):
        assert not hasattr(ref, name)
    with pytest.raises(AttributeError, match=r"has no scaler: its info says \[.*if info=\['scaler'\]"):
        _ = ref.scaler

    class Faulty(Made):
        @property
        def info(self) -> Any:
            return self.missing

        @property
        def file_starts(self) -> Any:
            return self.gone

    for name, said in (("info", "missing"), ("file_starts", "gone"), ("other", "other")):
        with pytest.raises(AttributeError, match=f"has no attribute '{said}'"):
            getattr(Faulty(1), name)


def test_numpy_values_in_info_become_plain_and_values_left_out_are_logged(
    storage: yoga.Storage, caplog: pytest.LogCaptureFixture
) -> None:
    class Arrays(Drawn):
        classes = np.array(["cat", "dog"])
        class_to_idx = {"cat": np.int64(0), "dog": np.int32(1)}  # noqa: RUF012

    info = {"mean": np.array([0.5, 1.0]), "std": np.float32(0.5), "any": np.bool_(True)}
    ref = storage.submit(Arrays(lambda i: i), "a", "1", info=info)
    assert ref.info == {**TOLD, "mean": [0.5, 1.0], "std": 0.5, "any": True}
    assert storage.cacheable("a", "2", info=info)(lambda: Arrays(lambda i: i))().info == ref.info
    assert caplog.messages == []

    class Odd(Drawn):
        classes = {"cat", "dog"}  # noqa: RUF012
        features = (1, 2)  # perhaps the classes of rows

        @property
        def class_to_idx(self) -> Any:
            raise RuntimeError("unknown classes")

    odd = Odd(lambda i: i)
    for data in (odd, torch.utils.data.Subset(odd, [0, 1]), torch.utils.data.ConcatDataset([odd, odd])):
        caplog.clear()
        assert storage.submit(data, "b", "1", overwrite=True).info == {}
        (message,) = caplog.messages
        assert "classes (" in message
        assert "a set, which JSON does not have" in message
        assert "class_to_idx (RuntimeError: unknown classes)" in message
        assert "info=" in message
    caplog.clear()
    given = {"classes": ["cat", "dog"], "class_to_idx": None}
    assert storage.submit(odd, "b", "2", info=given).info == given
    assert caplog.messages == []

    class Long(Drawn):
        classes = ("x" * 2**19, "y" * 2**18)

    own = {"x": "z" * 2**19}
    assert storage.submit(Long(lambda i: i), "b", "3", info=own).info == own
    (message,) = caplog.messages
    assert "classes (info is longer than" in message
    assert list(storage.submit(Long(lambda i: i), "b", "4").info) == ["classes"]


def test_a_custom_dataref_may_have_any_info(storage: yoga.Storage) -> None:
    class Named(Squares):
        classes = ["odd", "even"]  # noqa: RUF012

        @property
        def info(self) -> dict[str, Any]:
            return {"a": 1, "b": {2}} if len(self.classes) > 2 else {"a": 1, "classes": self.classes}

    ref = Named()
    assert ref.classes == ["odd", "even"]
    assert storage.submit(ref, "a", "1").classes == ["odd", "even"]
    assert not hasattr(ref, "features")
    ref.classes.append("none")
    assert storage.submit(ref, "a", "2").info == {}
    several = torch.utils.data.ConcatDataset([storage.fetch("a", "1"), storage.fetch("a", "2")])
    assert storage.submit(several, "a", "3").info == {}
