"""Rows and columns after functions: what they hold, their random numbers, and functions that misbehave."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own import Epochal, Mapped, Own
from records import in_a_version
from sampling.samplers import drawn, seed_all
from torch.utils.data import WeightedRandomSampler

import torchyoga as yoga
from torchyoga.adapters.numbered import NumberedBatches
from torchyoga.errors import SchemaError
from torchyoga.order.place import Place
from torchyoga.testing import assert_rows_equal
from torchyoga.views import changed
from torchyoga.views.changed import Draw

N = 40
ROWS = [
    {
        "id": number,
        "x": np.arange(3, dtype=np.float32) + number,
        "t": torch.tensor([number, 1]),
        "text": "ab"[number % 2] * (number % 3),
        "ids": np.arange(number % 4, dtype=np.int32),
        "meta": {"half": number / 2, "pair": (np.float32(number), number % 2 == 0)},
    }
    for number in range(N)
]
SCHEMA = yoga.Schema.of(ROWS[0], ragged=["ids"])
ref = in_a_version(ROWS, SCHEMA)


def numbers_drawn(row: Any) -> Any:
    """At the top level, so that spawned workers find it."""
    numbers = drawn()
    return {"id": row["id"], "x": row["x"] + np.float32(numbers[0]), "drawn": numbers}


def noisy(c: Any, draw: Draw) -> Any:
    x = c["x"] + draw.normal(scale=0.1, size=c["x"].shape)
    return {"id": c["id"], "x": x, "flip": draw.random() < 0.5, "crop": draw.integers(0, 9, (len(draw), 2))}


def by_id(loader: Any) -> dict[int, Any]:
    return {row["id"]: row for rows in loader for row in rows}


def listed(rows: Any) -> list[Any]:
    return [{**row} if isinstance(row, dict) else row for row in rows]


VIEWS: dict[str, Callable[[yoga.DataRef], yoga.DataRef]] = {
    "map": lambda ref: ref.map(numbers_drawn),
    "map_batches": lambda ref: ref.columns(["id", "x"]).map_batches(noisy),
    "both": lambda ref: ref.columns(["id", "x"]).map_batches(noisy).map(numbers_drawn),
    "within": lambda ref: ref.columns(["id", "x"]).map_batches(noisy)[::-1].where("id", lambda y: y > 4),
}


@pytest.mark.quick("map", "within")
@pytest.mark.parametrize("name", VIEWS)
def test_random_rows_depend_on_seed_epoch_and_row_alone(ref: yoga.DataRef, name: str) -> None:
    view = VIEWS[name](ref)

    def epochs(batch: int | None, **options: Any) -> list[dict[int, Any]]:
        options = {"seed": 7, "collate_fn": listed if batch else lambda row: [row], **options}
        loader = yoga.DataLoader(view, batch, shuffle=True, **options)
        return [by_id(loader) for _ in range(2)]

    expected = epochs(7)
    assert len(expected[0]) == len(view)
    several = [epochs(1), epochs(64), epochs(None), epochs(7, num_workers=2)]
    several.append(epochs(5, num_workers=2, persistent_workers=True))
    if name == "both":  # within "within" there is a lambda
        several.append(epochs(4, num_workers=1, multiprocessing_context="forkserver"))
    for found in several:
        for one, other in zip(found, expected, strict=True):
            assert sorted(one) == sorted(other)
            for number, row in one.items():
                np.testing.assert_array_equal(np.asarray(row["x"]), np.asarray(other[number]["x"]))
    others = epochs(7, seed=8)[0]
    firsts = [found[number]["x"][0] - number for found in (*expected, others) for number in found]
    assert len(set(map(float, firsts))) > 0.9 * len(firsts), "rows, epochs and seeds draw apart"


@pytest.mark.filterwarnings("ignore:WeightedRandomSampler")
def test_map_draws_what_an_uncached_dataset_draws(ref: yoga.DataRef) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "collate_fn": listed}
    expected = by_id(yoga.DataLoader(Mapped(N, lambda index: numbers_drawn(ref[index])), 4, **options))
    for view in (ref.map(numbers_drawn), ref.map(dict).map(numbers_drawn)):
        found = by_id(yoga.DataLoader(view, 7, **options))
        for number, row in expected.items():
            assert_rows_equal(found[number], row)
    sampler = WeightedRandomSampler([1.0] * 3 + [0.0] * (N - 3), 12, generator=torch.Generator())
    options = {"sampler": sampler, "seed": 5, "collate_fn": listed}
    found = [row["drawn"] for rows in yoga.DataLoader(ref.map(numbers_drawn), 4, **options) for row in rows]
    assert len(set(found)) == 12, "a row that comes twice is made with other random numbers"


def test_random_numbers_outside_are_left_alone(ref: yoga.DataRef) -> None:
    for view in (VIEWS["map"](ref), VIEWS["map_batches"](ref)):
        seed_all()
        expected = drawn()
        seed_all()
        for _ in yoga.DataLoader(view, 4, seed=1, collate_fn=listed):
            pass
        for _ in view.stream(shuffle=True):
            pass
        assert drawn() == expected


def test_without_seeds_the_generators_decide(ref: yoga.DataRef) -> None:
    for view in (VIEWS["map"](ref), VIEWS["map_batches"](ref)):
        loader = yoga.DataLoader(view, 4, seed=1, seed_rows=False, collate_fn=listed)
        seed_all()
        one = by_id(loader)
        again = by_id(loader)
        seed_all()
        assert_rows_equal(by_id(loader)[3], one[3])
        assert float(one[3]["x"][0]) != float(again[3]["x"][0])
        seed_all()
        assert_rows_equal(view[0], one[0])


def test_streams_and_numbered_batches_are_seeded(ref: yoga.DataRef) -> None:
    view = VIEWS["map_batches"](ref)
    loader = yoga.DataLoader(view, 8, seed=7, collate_fn=listed)
    expected = [by_id(loader) for _ in range(2)]
    stream = view.stream(shuffle=True, shuffle_seed=7)
    for epoch in range(2):
        for row in stream:
            assert_rows_equal({**row}, expected[epoch][row["id"]])
    cursor = view.stream(shuffle_seed=7).cursor
    batches = NumberedBatches(view, cursor.order, cursor.shard, 8, False, None, None)
    for epoch in range(2):
        batch = batches.batch(Place(epoch, 0), 1)
        for place, number in enumerate(batch["id"].tolist()):
            np.testing.assert_array_equal(batch["x"][place], expected[epoch][number]["x"])


# -- what comes in and goes out


def test_columns_come_and_go_as_they_are(ref: yoga.DataRef) -> None:
    seen: list[Any] = []

    def same(c: Any) -> Any:
        seen.append(c)
        return c

    for row, expected in zip(ref.map_batches(same), ROWS, strict=True):
        assert_rows_equal(row if type(row) is dict else {**row}, expected)
    (c,) = seen
    assert sorted(c) == ["id", "ids", "meta/half", "meta/pair/0", "meta/pair/1", "t", "text", "x"]
    assert c["x"].shape == (N, 3)
    assert c["t"].dtype == np.int64
    assert c["text"][5] == "bb"
    assert c["ids"].lengths.tolist() == [len(row["ids"]) for row in ROWS]
    again = ref.map_batches(lambda c: {name: np.copy(v) if name != "ids" else v for name, v in c.items()})
    for row, expected in zip(again, ROWS, strict=True):
        assert_rows_equal({**row}, expected)


def test_changes_in_place_are_kept_and_stay_out_of_the_whole(ref: yoga.DataRef) -> None:
    def in_place(c: Any) -> Any:
        c["x"] *= 2
        c["text"][:] = "new"
        c["ids"].values[:] = 9
        c["t"] = c["t"] + 1  # another array, in the dict that was given
        return c

    for whole in (ref, ref.columns(["x", "text", "ids", "t"]), ref[5:9], yoga.concat([ref, ref])):
        before = list(whole)
        for row, old in zip(whole.map_batches(in_place), before, strict=True):
            assert row["text"] == "new"
            np.testing.assert_array_equal(row["x"], old["x"] * 2)
            assert torch.equal(row["t"], old["t"] + 1)
            assert row["ids"].tolist() == [9] * len(old["ids"])
        for row, old in zip(whole, before, strict=True):
            assert_rows_equal(row, old)
    held = yoga.from_arrays({"x": np.arange(3.0)})
    doubled = held.map_batches(lambda c: {"x": np.multiply(c["x"], 2, out=c["x"])})
    assert [float(row["x"]) for row in doubled] == [0.0, 2.0, 4.0]
    assert [float(row["x"]) for row in held] == [0.0, 1.0, 2.0]


def test_arrays_that_a_function_keeps_are_copied() -> None:
    whole, kept = yoga.from_arrays({"x": np.arange(20.0)}), {"x": np.empty(5)}
    for function in (
        lambda c: {"x": np.add(c["x"], 1, out=kept["x"] if len(c["x"]) == 5 else None)},
        lambda c: kept.update(x=c["x"] + 1) or kept,
        lambda c: kept.update(x=c["x"] + 1) or {**kept},
    ):
        found = []
        for batch in yoga.DataLoader(whole.map_batches(function), 5):
            kept["x"][:] = -1
            found += batch["x"].tolist()
        assert found == list(range(1, 21))


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    ("function", "may_join"),
    [
        (lambda x: -x, True),
        (lambda x: x - x.mean(0), False),
        (lambda x: -x if len(x) != 32 else [][0], False),
    ],
)
def test_rows_that_depend_on_themselves_alone_may_come_in_several_batches(
    monkeypatch: pytest.MonkeyPatch, threads: bool, function: Callable[[Any], Any], may_join: bool
) -> None:
    monkeypatch.setattr(changed, "_QUICK", float("inf"))  # however busy the machine is
    whole, sizes = yoga.from_arrays({"x": np.arange(4096.0).reshape(1024, 4) % 37}), list[int]()
    view = whole.map_batches(lambda c: sizes.append(len(c["x"])) or {"x": function(c["x"])}, threads)
    assert view.is_thread_safe is threads
    loaders = [yoga.DataLoader(ref, 64, shuffle=True, seed=3) for ref in (view, whole)]
    for mapped, plain in zip(*loaders, strict=True):
        assert torch.equal(mapped["x"], function(plain["x"]))
    assert (max(sizes) > 64) is may_join


def test_results_of_every_kind(ref: yoga.DataRef) -> None:
    def made(c: Any) -> Any:
        count = len(c["id"])
        return {
            "meta/pair/0": c["meta/pair/0"] + 1,
            "id": c["id"] * 2,
            "t": c["t"] * 2,
            "new": np.ones((count, 2, 2), np.uint8),
            "tensor": torch.full((count, 2), 0.5, dtype=torch.bfloat16),
            "words": [f"w{number}" for number in c["id"].tolist()],
            "array of text": np.array([f"w{number}" for number in c["id"].tolist()]),
            "odd/name": c["id"],
            "lists": [np.arange(number % 3) for number in c["id"].tolist()],
            "tensors": [torch.arange(number % 3) for number in c["id"].tolist()],
            "cut": yoga.RaggedColumn(np.repeat(7, 2 * count), [2] * count),
            "flag": c["id"] > 3,
        }

    view = ref.map_batches(made)
    row = view[5]
    assert_rows_equal(
        {**row},
        {
            "id": 10,
            "t": torch.tensor([10, 2]),
            "meta": {"pair": (np.float32(6),)},
            "new": np.ones((2, 2), np.uint8),
            "tensor": torch.full((2,), 0.5, dtype=torch.bfloat16),
            "words": "w5",
            "array of text": "w5",
            "odd/name": np.int64(5),
            "lists": np.arange(2),
            "tensors": torch.arange(2),
            "cut": np.array([7, 7]),
            "flag": np.bool_(True),
        },
    )
    assert len(list(view)) == N
    assert view["words"][7] == "w7"
    assert [len(ids) for ids in view["lists"][:4]] == [0, 1, 2, 0]
    assert view.where("flag", lambda flag: ~flag)["id"][[0, 3]] == [0, 6]
    kept = [row["id"] for row in view.where("cut", lambda cut: cut.lengths == 2)]
    assert len(kept) == N


def test_rows_that_are_values_or_tuples() -> None:
    values = yoga.from_arrays(np.arange(6.0).reshape(3, 2))
    assert [row.tolist() for row in values.map_batches(lambda x: x * 2)] == [[0, 2], [4, 6], [8, 10]]
    named = values.map_batches(lambda x: {"y": x})
    assert [row["y"].tolist() for row in named] == [[0, 1], [2, 3], [4, 5]]
    assert [row.tolist() for row in named["y"]] == [[0, 1], [2, 3], [4, 5]]
    assert list(named.map_batches(lambda c: c["y"].sum(1).astype(int))) == [1, 5, 9]
    assert list(PAIRS.map_batches(lambda c: {**c, "0": c["0"] + 1})) == [(2, 2.0), (4, 4.0)]
    assert list(PAIRS.map_batches(lambda c: {"sum": c["0"] + c["1"]})) == [{"sum": 3.0}, {"sum": 7.0}]
    assert list(PAIRS.map(lambda row: row[::-1])) == [(2.0, 1), (4.0, 3)]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda c: {**c, "x": c["x"][1:]}, r"of 40 rows, 0 to 39 returned 39 rows in 'x'"),
        (lambda c: {"x": np.float32(1)}, "'x'; return an array of 40 rows"),
        (lambda c: {"x": np.array(1.0)}, "a single value in 'x'"),
        (lambda c: {}, "returned no columns"),
        (lambda c: None, "returned None as 'value'"),
        (lambda c: {"x": ["a"] * 3}, "returned 3 rows in 'x'"),
        (lambda c: {"x": [object()] * len(c["id"])}, "'x', which cannot be kept"),
        (lambda c: {"x": [{"a": 1}] * len(c["id"])}, "a list of dict as 'x'"),
        (lambda c: {3: c["x"]}, "a column named 3"),
        (lambda c: {"nest": {"x": c["x"]}}, r"returned a dict as 'nest'; .*; map makes rows that nest"),
        (lambda c: {"x": yoga.RaggedColumn(np.arange(3), [3])}, "returned 1 rows in 'x'"),
    ],
)
def test_functions_that_return_something_else(ref: yoga.DataRef, function: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        ref.map_batches(function).take(np.arange(N))


def test_batches_that_look_different(ref: yoga.DataRef) -> None:
    padded = ref.map_batches(lambda c: {"id": c["id"], "x": np.zeros((len(c["id"]), int(c["id"].max())))})
    assert len(padded.take(np.array([3]))) == 1
    with pytest.raises(SchemaError, match=r"row 5 returned x: .*\[5\]; for the rows before .*\[3\]"):
        padded.take(np.array([5]))
    renamed = ref.map_batches(lambda c: {f"x{len(c['id'])}": c["x"]})
    renamed.take(np.arange(2))
    with pytest.raises(SchemaError, match=r"returned x3: .*; for the rows before it was x2: "):
        renamed.take(np.arange(3))
    pairs = PAIRS.map_batches(lambda c: {**c, "b": c["0"]})
    with pytest.raises(SchemaError, match=r"new columns \['b'\], but the rows are a tuple"):
        list(pairs)


PAIRS = Own([(1, 2.0), (3, 4.0)], yoga.Schema.of((1, 2.0)))


def test_what_is_not_a_function_or_has_no_columns(ref: yoga.DataRef) -> None:
    for act in (ref.map, ref.map_batches):
        with pytest.raises(TypeError, match=f"{act.__name__} takes a function of .*, found 3"):
            act(3)  # type: ignore[operator]
    said = ref.map(lambda row: {"y": row["id"]}, schema=yoga.Schema.of({"y": 1}))
    assert said["y"][3] == 3
    assert len(said.where("y", lambda y: y > 30)) == 9
    assert [row["y"] for row in said.map_batches(lambda c: {"y": -c["y"]})[:2]] == [0, -1]


def test_lambdas_say_why_they_cannot_be_spawned(ref: yoga.DataRef) -> None:
    for view in (ref.map(lambda row: row), ref.map_batches(lambda c: c)):
        loader = yoga.DataLoader(view, 4, num_workers=1, multiprocessing_context="spawn", collate_fn=listed)
        message = "<lambda> cannot be sent to a process that is started by 'spawn'"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, which says less
            with pytest.raises(TypeError, match=message):
                next(iter(loader))


def test_a_view_of_random_rows_is_built_as_epoch_0_with_seed_0(
    ref: yoga.DataRef, storage: yoga.Storage
) -> None:
    view = VIEWS["map_batches"](ref)
    with pytest.warns(UserWarning, match="rows of ComputedRef differ when they are read again"):
        kept = storage.submit(view, "a", "1", progress=False)
    expected = by_id(yoga.DataLoader(view, 4, seed=0, collate_fn=listed))
    for row in kept:
        assert_rows_equal({**row}, expected[row["id"]])
    with pytest.warns(UserWarning, match="rows of ComputedRef differ"):
        again = storage.submit(view, "a", "2", progress=False)
    assert again.fingerprint == kept.fingerprint
    plain = ref.map(lambda row: {"y": row["id"]}, schema=yoga.Schema.of({"y": 1}))
    assert [row["y"] for row in storage.submit(plain, "b", "1", progress=False)] == list(range(N))
    storage.submit(ref.map_batches(lambda c: c), "b", "2", progress=False)


# -- draw


def test_draws_are_the_same_in_any_batch() -> None:
    seeds = np.random.default_rng(0).integers(0, 2**63, 64).astype(np.uint64)
    for shape in ((), (3,), (7, 5), (3072,), (0,)):
        for draw in (
            lambda d, s: d.random(s),
            lambda d, s: d.uniform(-1, 1, s),
            lambda d, s: d.normal(2, 3, s),
            lambda d, s: d.integers(-5, 7, s),
            lambda d, s: (d.random(), d.random(s))[1],
        ):
            whole = draw(Draw(seeds), (64, *shape))
            assert whole.shape == (64, *shape)
            for size in (1, 3, 7):
                cuts = [seeds[start : start + size] for start in range(0, 64, size)]
                parts = [draw(Draw(some), (len(some), *shape)) for some in cuts]
                assert np.array_equal(np.concatenate(parts), whole)
    generators = Draw(seeds).generators()
    assert generators[5].integers(0, 10**9) == Draw(seeds[5:6]).generators()[0].integers(0, 10**9)


def test_draws_are_distributed_as_they_should_be() -> None:
    draw = Draw(np.arange(1000, dtype=np.uint64))
    size = (1000, 1000)
    uniform, normal, whole = draw.random(size), draw.normal(size=size), draw.integers(3, 9, size)
    assert 0 <= uniform.min() < 1e-5
    assert 1 - 1e-5 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.002
    assert abs(uniform.var() - 1 / 12) < 0.001
    assert abs(normal.mean()) < 0.005
    assert abs(normal.std() - 1) < 0.005
    assert abs((normal**4).mean() - 3) < 0.05
    assert np.bincount(whole.reshape(-1), minlength=10)[3:9].min() > 165_000
    assert np.bincount(whole.reshape(-1)).sum() == 10**6
    assert whole.min() == 3
    assert whole.max() == 8
    for found in (uniform, normal):
        for other in (draw.random(size), found[::-1], np.roll(found, 1, 1), np.roll(found, 1, 0)):
            assert abs(np.corrcoef(found.reshape(-1), other.reshape(-1))[0, 1]) < 0.005
    assert draw.integers(np.arange(1000) + 1, endpoint=True).max() <= 1000
    assert draw.integers(2**32, size=(1000, 10)).max() > 2**31
    assert (draw.uniform(np.arange(1000), np.arange(1000) + 1) // 1 == np.arange(1000)).all()


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda d: d.random(3), ValueError, "must begin with the number of rows, 2; found 3"),
        (lambda d: d.random(()), ValueError, "must begin with the number of rows"),
        (lambda d: d.normal(size=(3, 2)), ValueError, r"found \(3, 2\)"),
        (lambda d: d.integers(0), ValueError, "1 to 2..32 integers to choose from; found 0 to 0"),
        (lambda d: d.integers(0, 2**33), ValueError, "1 to 2..32 integers"),
        (lambda d: d.integers(0.5), TypeError, "must be ints, found int64 and float64"),
    ],
)
def test_draws_that_cannot_be(act: Callable[[Draw], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        act(Draw(np.arange(2, dtype=np.uint64)))


def test_lengths_that_are_not_those_of_the_values() -> None:
    for values, lengths in ((np.arange(3), [1, 1]), (np.arange(3), [4, -1]), (np.zeros((3, 1)), [3])):
        with pytest.raises(ValueError, match="sum to the number of values"):
            yoga.RaggedColumn(values, lengths)


# -- views that depend on the epoch


def epochs_of(batches: Any) -> Iterator[int]:
    for rows in batches:
        for row in rows:
            yield int(row["epoch"])


@pytest.mark.quick("*0", "*6")
@pytest.mark.parametrize(
    "make",
    [
        lambda ref: ref,
        lambda ref: ref[::-1].where("row", lambda y: y > 2).repeat(2),
        lambda ref: yoga.concat([ref, ref]).select([3, 20, 1]),
        lambda ref: ref.columns(["epoch"])[:6],
        lambda ref: ref.map(dict),
        lambda ref: ref.map_batches(lambda c: c),
        lambda ref: ref.split([0.5, 0.5])[1],
        lambda ref: ref.map_batches(dict).zip(ref.columns(["row"]), prefix="b_"),
    ],
)
def test_every_reader_asks_for_its_epoch(make: Callable[[yoga.DataRef], yoga.DataRef]) -> None:
    view = make(Epochal(12))
    for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
        loader: Any = yoga.DataLoader(view, 4, shuffle=True, collate_fn=listed, **options)
        for epoch in range(3):
            assert set(epochs_of(loader)) == {epoch}
    single = yoga.DataLoader(view, None)
    assert [{int(row["epoch"]) for row in single} for _ in range(2)] == [{0}, {1}]
    stream = view.stream(shuffle=True)
    assert [{row["epoch"] for row in stream} for _ in range(2)] == [{0}, {1}]
    assert [set(epochs_of(stream.batches(5))) for _ in range(2)] == [{2}, {3}]
    assert {row["epoch"] for row in view} == {-1}
    cursor = view.stream().cursor
    if view.schema is not None:
        batches = NumberedBatches(view, cursor.order, cursor.shard, 3, False, None, None)
        assert set(batches.batch(Place(5, 0), 0)["epoch"].tolist()) == {5}


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()).item()])
def test_random_numbers_that_nothing_seeds_are_warned_of(draw: Callable[[], float]) -> None:
    ref = yoga.from_arrays({"x": np.arange(9)})
    view = ref.map_batches(lambda c: {"x": c["x"] + draw()})
    with pytest.warns(UserWarning, match="draws from the generators .* a parameter named draw"):
        view[3]
    view[4]
    assert ref.map_batches(lambda c: {"x": c["x"] * 2})[4]["x"] == 8


def test_packs_have_one_form_whatever_a_function_of_columns_returns(tmp_path: Path) -> None:
    rows = [{"x": np.arange(n)} for n in (3, 5, 9, 2, 7, 4)]
    packs = yoga.Storage(tmp_path).submit(rows, "documents", "1").packed("x", 20)
    for function in (lambda c: c, lambda c: {**c, "n": np.arange(len(c["x"]))}):
        (batch, *_) = yoga.DataLoader(packs.map_batches(function), 1)
        assert "lengths" in batch
        assert batch["x"].shape == (1, 20)


def test_lengths_of_random_rows_are_those_of_their_values() -> None:
    schema = yoga.Schema.of({"x": np.arange(3)}, ragged=["x"])
    base = yoga.from_arrays({"n": np.arange(40)})
    ref = base.map(lambda row: {"x": np.arange(np.random.randint(1, 9))}, schema=schema)
    long = ref.where("x", lambda x: x.lengths > 4)
    assert 0 < len(long) == len(ref.where("x", lambda x: x.any(x.values == 4))) < 40
