"""Packs of rows: what a pack and a batch hold, each row once an epoch, nothing lost in silence."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import run_program
from hypothesis import given
from hypothesis import strategies as st
from own import Announced, Filed, Mapped, Own
from packs import LENGTHS, ROWS, SCHEMA, texts_of, tokens_of
from records import in_every_format

import torchyoga as yoga
from torchyoga.testing import assert_rows_equal, check_view
from torchyoga.views.packs import plan as packing
from torchyoga.views.packs.packed import PackedRef

OF_TOKENS = ("ids", "mask", "position_ids", "labels")


ref = in_every_format(Own(ROWS, SCHEMA))


def expected_of(packed: PackedRef, number: int) -> dict[str, Any]:
    """A pack, made of rows one by one."""
    rows, bounds = packed.members([number])
    assert bounds.tolist() == [0, len(rows)]
    some = [ROWS[row] for row in rows.tolist()]
    lengths = [len(row["ids"]) for row in some]
    return {
        "ids": np.concatenate([row["ids"] for row in some]),
        "mask": np.concatenate([row["mask"] for row in some]),
        "label": np.array([row["label"] for row in some]),
        "text": [row["text"] for row in some],
        "boxes": [[np.int64(box) for box in row["boxes"]] for row in some],
        "meta": {
            "vector": np.stack([row["meta"]["vector"] for row in some]),
            "name": [row["meta"]["name"] for row in some],
        },
        "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        "labels": np.concatenate([[-100, *row["ids"][1:]] for row in some]),
        "rows": rows,
        "lengths": np.array(lengths),
    }


# -- the laws


LAWS: dict[str, Callable[[yoga.DataRef], yoga.DataRef]] = {
    "pieces": lambda base: base[20:].packed("ids", 7, long="split", max_rows=3),
    "padded": lambda base: base[3:].packed("ids", 16, padded=3)[1:],
    "of two": lambda base: yoga.concat([base[:9], base]).packed("ids", 16).columns(["ids", "rows"]),
    "two": lambda base: yoga.concat([base.packed("ids", 16), base.packed("ids", 20, seed=1)]),
    "column": lambda base: base.where("label", lambda y: y % 3 > 0).packed("ids", 16)["ids"],
    "with workers": lambda base: base.packed("ids", 16, labels="ids", along=["mask"]),
}


@pytest.mark.quick("lmdb-pieces", "lmdb-with workers")
@pytest.mark.parametrize("name", LAWS)
def test_the_laws_of_views(ref: yoga.DataRef, name: str) -> None:
    with_workers = name == "with workers"
    check_view(LAWS[name], ref if with_workers else ref[:40], workers=2 if with_workers else 0)


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_pack_is_its_rows_end_to_end(ref: yoga.DataRef, epoch: int) -> None:
    packed = ref.packed("ids", 16, labels="ids")
    assert packed.schema is not None
    bound = packed.in_epoch(epoch)
    for number in range(len(packed)):
        assert_rows_equal(bound[number], expected_of(bound, number))
        assert sum(bound[number]["lengths"]) == len(bound[number]["ids"]) <= 16
    assert type(packed[0]) is dict


@pytest.mark.parametrize("padded", [None, 0])
def test_labels_lie_as_the_tokens_or_as_the_next_ones(ref: yoga.DataRef, padded: Any) -> None:
    kinds: list[Any] = ["same", "shifted", "ids", {"ids": "shifted"}, "mask", {"mask": "shifted"}]
    same, shifted, *others = (
        [row["labels"].tolist() for row in ref.packed("ids", 16, labels=kind, padded=padded)]
        for kind in kinds
    )
    assert shifted == [[*row[1:], -100] for row in same]
    assert others[0] == same
    assert others[1] == shifted
    assert [row[1:] for row in others[2]] == [[*row[:-1]] for row in others[3]] or padded == 0
    names = [ref.packed("ids", 16, labels=kind, padded=padded).fingerprint for kind in kinds]
    assert names[0] == names[2]
    assert names[1] == names[3]
    assert len(set(names)) == (1 if ref.fingerprint is None else 4)


def test_a_batch_is_flat(ref: yoga.DataRef) -> None:
    packed = ref.packed("ids", 16, labels="ids")
    batch = next(iter(yoga.DataLoader(packed, 5)))
    some = [expected_of(packed, number) for number in range(5)]
    for name in OF_TOKENS:
        assert batch[name].tolist() == np.concatenate([pack[name] for pack in some]).tolist()
    assert (batch["ids"].dtype, batch["labels"].dtype) == (torch.int32, torch.int64)
    lengths = np.concatenate([pack["lengths"] for pack in some])
    assert type(batch["max_seqlen"]) is int
    assert batch["packs"].tolist() == [0, *np.cumsum([len(pack["rows"]) for pack in some]).tolist()]
    assert batch["rows"].tolist() == batch["label"].tolist()
    assert batch["text"] == [f"text {row}" for row in batch["rows"].tolist()]
    assert batch["meta"]["vector"].shape == (len(lengths), 2, 3)
    boxes = np.diff(batch["boxes"].offsets).tolist()
    assert boxes == [row % 4 for row in batch["rows"].tolist()]
    assert "lengths" not in batch
    nested = torch.nested.nested_tensor_from_jagged(batch["ids"], batch["cu_seqlens"].long())
    assert [len(one) for one in nested.unbind()] == lengths.tolist()


def test_the_tokens_of_a_batch_are_not_copied(tmp_path: Path) -> None:
    ref = yoga.Storage(tmp_path).submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)
    packed = ref.packed("ids", 16).columns(["ids"])
    rows: Any = packed.take(np.arange(5))
    batch = torch.utils.data.default_collate(rows)
    assert batch["ids"].data_ptr() == rows.block.data[0].values.ctypes.data


def test_every_loader_gives_the_same_batches(ref: yoga.DataRef) -> None:
    packed = ref.packed("ids", 16, labels="ids")
    expected = list(yoga.DataLoader(packed, 4))
    assert sum(len(batch["rows"]) for batch in expected) == 58
    torchs: Any = torch.utils.data.DataLoader
    row_by_row = Mapped(len(packed), lambda index: next(iter(packed.take(np.array([index])))))
    for loader in (
        torchs(packed, 4),
        torchs(row_by_row, 4),
        torchs(torch.utils.data.Subset(packed, range(len(packed))), 4),
        yoga.DataLoader(packed, 4, num_workers=2),
        yoga.DataLoader(packed, 4, seed_rows=True),
        yoga.DataLoader(packed[::-1][::-1], 4, num_workers=1, persistent_workers=True),
    ):
        assert_rows_equal(list(loader), expected)
    assert packed._keeps_rows is isinstance(ref, Own)
    (single,) = itertools.islice(yoga.DataLoader(packed, None), 1)
    assert len(single["ids"]) == sum(single["lengths"])


def test_jagged_and_padded_batches_are_of_packs(ref: yoga.DataRef) -> None:
    packed = ref.packed("ids", 16).columns(["ids", "rows"])
    batch = next(iter(yoga.DataLoader(packed, 3, collate_fn=yoga.jagged)))
    assert np.diff(batch["ids"].offsets).tolist() == [len(packed[n]["ids"]) for n in range(3)]
    batch = next(iter(yoga.DataLoader(packed, 3, collate_fn=yoga.padded(-1))))
    assert batch["rows"].values.shape == (3, max(len(packed[n]["rows"]) for n in range(3)))


def test_packs_of_one_width(ref: yoga.DataRef) -> None:
    packed = ref.packed("ids", 16, padded={"ids": -7}, labels="ids", first_position=2)
    plain = ref.packed("ids", 16, labels="ids", first_position=2)
    assert all(batch["ids"].shape[1:] == (16,) for batch in yoga.DataLoader(packed, 4))
    fills = {"ids": -7, "labels": -100, "position_ids": 1, "document_ids": -1, "mask": False}
    for number in range(len(packed)):
        row, other = packed[number], plain[number]
        for name in ("ids", "labels", "position_ids"):
            length = len(other[name])
            assert row[name][:length].tolist() == other[name].tolist()
            assert (row[name][length:] == fills[name]).all()
        which = np.repeat(np.arange(len(row["rows"])), row["lengths"])
        assert row["document_ids"].tolist() == [*which.tolist(), *[-1] * (16 - len(which))]
    with pytest.raises(KeyError, match="names no column of tokens"):
        ref.packed("ids", 16, padded={"text": 0})
    with pytest.raises(ValueError, match=r"padding=0\.5 is not a value"):
        ref.packed("ids", 16, padded=0.5)


def test_columns_are_read_alone_and_lengths_come_along(ref: yoga.DataRef) -> None:
    packed = ref.packed("ids", 16)
    some = packed.columns(["label", "ids"])
    assert list(some[0]) == ["label", "ids", "lengths"]
    assert set(next(iter(yoga.DataLoader(some, 2)))) == {"ids", "label", "cu_seqlens", "max_seqlen", "packs"}
    assert set(next(iter(yoga.DataLoader(packed[1:].columns(["rows"]), 2)))) == {
        *("rows", "cu_seqlens", "max_seqlen", "packs")
    }
    assert packed["rows"][0].tolist() == packed.members(0)[0].tolist()
    assert packed["ids"].lengths(np.arange(3)).tolist() == [len(packed[n]["ids"]) for n in range(3)]
    assert (
        ref.columns(["ids"]).packed("ids", 16).fingerprint != packed.fingerprint or packed.fingerprint is None
    )


# -- which column has the tokens


def test_columns_that_are_as_long_come_along(ref: yoga.DataRef) -> None:
    assert ref.packed("ids", 16).schema.packed == ("ids", "mask", "position_ids", "lengths")
    alone = ref.packed("ids", 16, along=[])
    assert len(alone[0]["mask"]) == len(alone[0]["rows"])  # a list for each row
    rows = [*ROWS, {**ROWS[0], "ids": np.arange(5, dtype=np.int32), "mask": np.zeros(4, bool)}] * 3
    other = Own([ROWS[0]] * 70 + rows, SCHEMA).packed("ids", 16)
    with pytest.raises(ValueError, match=r"has 4 values in 'mask', but 5 tokens; .* along=\[...\]"):
        list(other)


def test_lists_of_numbers_are_tokens(storage: yoga.Storage) -> None:
    rows = [{"input_ids": list(range(n)), "labels": [-100] * n, "length": n} for n in (3, 1, 4, 2)]
    ref = storage.submit(rows, "lists", "1", progress=False)
    packed = ref.packed("input_ids", 5, labels="labels", first_position=2, ignore_index=-1)
    assert list(packed[0]) == ["input_ids", "length", "position_ids", "labels", "rows", "lengths"]
    batch = next(iter(yoga.DataLoader(packed, 2)))
    assert batch["input_ids"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 0]
    assert batch["labels"].tolist() == [-1, -100, -100, -1, -100, -1, -100, -100, -100, -1]
    assert batch["position_ids"].tolist() == [2, 3, 4, 2, 3, 2, 3, 4, 5, 2]


# -- what does not fit


def test_rows_over_the_budget() -> None:
    ref = tokens_of([3, 9, 4, 0, 20, 8, 2, 16])
    with pytest.raises(ValueError, match="3 of 8 rows have more than 8 of 'ids', at most 20, in row 4"):
        ref.packed("ids", 8)
    with pytest.warns(UserWarning, match="21 tokens of 62 are in no pack, for rows are cut to 8"):
        cut = ref.packed("ids", 8, long="cut")
    assert sorted(token for row in cut for token in row["ids"].tolist())[3:11] == list(range(3, 11))
    with pytest.warns(UserWarning, match="3 of 8 rows are over the budget, and in no pack"):
        ref.packed("ids", 8, long="drop")
    split = ref.packed("ids", 8, long="split")
    report = split.report()
    assert (report.split, report.rows, report.documents, report.cut, report.dropped) == (3, 7, 11, 0, 0)
    assert "3 rows split into 7 pieces" in str(report)
    assert "1 rows of length 0 left out" in str(report)
    batch = next(iter(yoga.DataLoader(split, len(split))))
    starts = np.cumsum([0, 3, 9, 4, 0, 20, 8, 2])
    firsts = batch["ids"][batch["cu_seqlens"][:-1].long()]
    assert firsts.tolist() == (starts[batch["rows"].numpy()] + batch["begins"].numpy()).tolist()
    assert (batch["position_ids"][batch["cu_seqlens"][:-1].long()] == 0).all()


def test_one_budget_by_its_name_is_one_of_tokens() -> None:
    ref = tokens_of([3, 9, 4, 20])
    one, other = ref.packed({"ids": 8}, long="split"), ref.packed("ids", 8, long="split")
    assert_rows_equal(list(one), list(other))
    assert len(ref.packed({"ids": 20}, padded=0)[0]["ids"]) == 20


@given(
    lengths=st.lists(st.integers(0, 30), max_size=30),
    budget=st.integers(1, 40),
    long=st.sampled_from(["cut", "split", "drop"]),
    most=st.none() | st.integers(1, 4),
    epoch=st.integers(0, 3),
)
@pytest.mark.filterwarnings("ignore:packed:UserWarning")
def test_all_is_counted(lengths: list[int], budget: int, long: Any, most: int | None, epoch: int) -> None:
    packed = tokens_of(lengths).packed("ids", budget, long=long, max_rows=most)
    report = packed.report()
    rows = list(packed.in_epoch(epoch))
    tokens = [token for row in rows for token in row["ids"].tolist()]
    assert len(rows) == len(packed) == report.packs
    assert len(tokens) == len(set(tokens)) == report.tokens
    too_long = [length for length in lengths if length > budget]
    lost = {"cut": sum(too_long) - budget * len(too_long), "drop": sum(too_long), "split": 0}[long]
    assert report.tokens == sum(lengths) - lost
    assert (report.cut, report.dropped) == {"cut": (lost, 0), "drop": (0, len(too_long))}.get(long, (0, 0))
    assert report.empty == lengths.count(0)
    assert report.rows == len(lengths) - report.empty - report.dropped
    assert report.documents == sum(len(row["rows"]) for row in rows)
    assert report.most == max((len(row["rows"]) for row in rows), default=0) <= (most or 10**9)
    assert all(0 < len(row["ids"]) <= budget for row in rows)
    in_packs = {row for one in rows for row in one["rows"].tolist()}
    assert len(in_packs) == report.rows


def test_rows_must_not_change_in_length() -> None:
    ref = tokens_of([3, 4, 5])
    packed = ref.packed("ids", 8)
    for other in (np.arange(2), np.arange(6)):
        ref.rows = [{"ids": other}] * 3  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="not as many as when it was packed"):
            list(packed)


# -- budgets


def test_several_budgets_and_the_columns_that_a_cost_looks_at() -> None:
    rng = np.random.default_rng(1)
    rows = [
        {"ids": np.arange(rng.integers(1, 9)), "n_img": int(rng.integers(0, 3)), "text": "t", "id": n}
        for n in range(200)
    ]
    ref = Filed(rows, yoga.Schema.of(rows[0], ragged=["ids"]), 200)
    calls: list[int] = []

    def cost(c: Any) -> Any:
        assert set(c) == {"ids", "n_img", "text", "id"}
        calls.append(len(c["n_img"]))
        return {"tokens": c["ids"].lengths + 10 * c["n_img"], "images": c["n_img"]}

    packed = ref.packed({"tokens": 64, "images": 4}, cost=cost, max_rows=5)
    assert calls == [200]
    assert {name for names in ref.seen for name in names} == {"ids", "n_img"}
    for epoch in (0, 1):
        found: list[int] = []
        for row in packed.in_epoch(epoch):
            assert len(row["ids"]) + 10 * row["n_img"].sum() <= 64
            assert row["n_img"].sum() <= 4
            assert len(row["rows"]) <= 5
            assert row["lengths"].tolist() == [len(rows[n]["ids"]) for n in row["rows"]]
            found += row["id"].tolist()
        assert sorted(found) == list(range(200))
    by_columns = ref.packed({"ids": 20, "n_img": 3})
    assert all(len(row["ids"]) <= 20 and row["n_img"].sum() <= 3 for row in by_columns)
    alone = ref.packed("ids", 30, cost=lambda c: c["ids"].lengths * 2)
    assert all(len(row["ids"]) <= 15 for row in alone)
    pickle.dumps(packed)  # without the function


def test_what_is_refused(ref: yoga.DataRef) -> None:
    def refused(match: str, *given: Any, error: type[Exception] = ValueError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            ref.packed(*given, **options)

    for budget in (0, -1, 2**31, True, 1.5):
        refused("the budget of 'ids' must be", "ids", budget)
    refused("needs a budget", "ids")
    refused("budgets are named by a dict", {"ids": 9}, 9)
    refused("budgets are named by a dict", {})
    refused("packed takes a column and a budget", 9, error=TypeError)
    refused("there is no column 'id'; there are 'ids'", "id", 9, error=KeyError)
    refused("found text: str", "text", 9, error=TypeError)
    alike = yoga.Schema.of({"ids": [1, 2]})
    with pytest.raises(
        TypeError, match=r"found 2 columns, as all lists have that length; .* ragged=\['ids'\]"
    ):
        Own([{"ids": [1, 2]}], alike).packed("ids", 9)
    with pytest.raises(KeyError, match=r"there is no column 'ids'; .* pass dicts: \{'ids': row\}"):
        Own([[1, 2]], yoga.Schema.of([1, 2])).packed("ids", 9)
    refused('long must be "error", "cut"', "ids", 9, long="keep")
    refused("max_rows must be at least 1|max_rows must be in", "ids", 16, max_rows=0)
    refused("long='split' needs one budget", {"ids": 9, "label": 9}, long="split")
    refused("long='cut' needs one budget", "ids", 9, long="cut", cost=lambda c: c["ids"].lengths)
    refused("cost takes a function", "ids", 9, cost=3, error=TypeError)
    refused('labels=\'text\' must be one of "same", "shifted", "ids"', "ids", 16, labels="text")
    refused('labels=\'shift\' must be one of "shifted", "same".*"same" as the', "ids", 16, labels="shift")
    refused("labels='text' must be a column of \"ids\",", "ids", 16, labels={"text": "same"})
    for labels in ({"ids": "moved"}, {}, {"ids": "same", "mask": "same"}, 3):
        refused('labels must be "same", "shifted", a column, or a dict', "ids", 16, labels=labels)
    for dtype in (np.float32, np.uint64, np.complex64):
        rows = [{"ids": np.arange(3, dtype=dtype)}]
        with pytest.raises(ValueError, match="labels='ids' are int64, but the column holds"):
            Own(rows, yoga.Schema.of(rows[0], ragged=["ids"])).packed("ids", 8, labels="ids")
    refused("there is no column 'masks'", "ids", 16, along=["masks"], error=KeyError)
    refused("'label' has no value for each token", "ids", 16, along=["label"])
    refused(r"along=\['mask'\]", "ids", 16, along="mask", error=TypeError)
    refused("seed must be an int", "ids", 16, seed=1.5)
    refused("first_position must be", "ids", 16, first_position=-1)
    refused("padded needs one budget", {"ids": 16, "label": 99}, padded=0)
    refused("long='cut' needs one budget", {"label": 99}, long="cut")
    for cost, match in {
        (lambda c: c["label"] - 1): "at least 0 for each row, and below .*; for row 0 it is -1",
        (lambda c: c["label"] + 2**62 - 9): "below .*; for row 9 it is",
        (lambda c: c["label"] / 2): "found float64 of shape",
        (lambda c: c["label"][:-1]): r"an array of ints of shape \(60,\); found int64 of shape \(59,\)",
        (lambda c: {"text": c["label"]}): r"must give what rows cost of each budget: \['ids'\]",
        (lambda c: 3): "cost looks at no column|of shape",
    }.items():
        refused(match, {"ids": 99}, cost=cost)
    refused("it is not clear which column has the tokens", {"n": 99}, cost=lambda c: c["label"] + 1)
    refused("cost must return a dict", {"a": 99, "b": 9}, cost=lambda c: c["label"])
    refused("there is no column 'lable'", {"n": 99}, cost=lambda c: c["lable"], error=KeyError)


def test_columns_of_every_kind(storage: yoga.Storage) -> None:
    def other_row(n: int) -> dict[str, Any]:
        return {
            "ids": np.arange(n % 5 + 1),
            "maybe": None if n % 3 else n,
            "note": None if n % 2 else f"note {n}",
            "numbers": [n] * (n % 3),
            "tags": ["a", "b" * n][: n % 3],
            "steps": [{"at": k, "what": "s" * k} for k in range(n % 4)],
            "deep": [[1, 2], [3]][: n % 3],
            "pairs": [np.full(2, k) for k in range(n % 3)],
            "price": Decimal(n),
            "when": datetime(2026, 1, 1 + n),
            "done": n % 2 == 0,
            "bits": torch.full((2,), n, dtype=torch.bfloat16),
            "pair": (n, {"b": b"x" * n}),
            "nothing": None,
        }

    rows = [other_row(n) for n in range(20)]
    ragged = ["numbers", "tags", "steps", "deep", "pairs"]
    full = {**other_row(5), "maybe": 3, "note": "n"}
    schema = yoga.Schema.of(full, ragged=["ids", *ragged], nullable=["maybe", "note"])
    ref = storage.submit(rows, "kinds", "1", schema=schema, progress=False)
    packed = ref.packed("ids", 9)
    for number, pack in enumerate(packed.in_epoch(1)):
        some = [rows[row] for row in packed.in_epoch(1).members(number)[0].tolist()]
        for name in (*ragged, "maybe", "note", "price"):
            assert_rows_equal(pack[name], [row[name] for row in some], name)
        assert pack["when"].tolist() == [row["when"] for row in some]
        assert pack["done"].tolist() == [row["done"] for row in some]
        assert torch.equal(pack["bits"], torch.stack([row["bits"] for row in some]))
        assert_rows_equal(
            pack["pair"],
            (np.array([row["pair"][0] for row in some]), {"b": [row["pair"][1]["b"] for row in some]}),
        )
        assert pack["nothing"] is None
    names = [*rows[0], "rows"]
    names.remove("nothing")
    loader = yoga.DataLoader(packed.columns(names), 3, shuffle=True, seed=1)
    assert_rows_equal(
        list(yoga.DataLoader(packed.columns(names), 3, shuffle=True, seed=1, num_workers=1)), list(loader)
    )
    for batch in yoga.DataLoader(packed.columns(names), 3):
        some = [rows[row] for row in batch["rows"].tolist()]
        for name in ("maybe", "note", "tags", "steps", "deep"):
            assert_rows_equal(batch[name], [row[name] for row in some], name)
        assert_rows_equal(batch["price"], torch.tensor([float(row["price"]) for row in some]).double())
        ends = batch["numbers"].offsets.tolist()
        numbers = [batch["numbers"].values[a:b].tolist() for a, b in itertools.pairwise(ends)]
        assert numbers == [row["numbers"] for row in some]
        assert batch["bits"].dtype == torch.bfloat16
        assert batch["when"].dtype == torch.int64
        assert batch["pair"][0].tolist() == [row["pair"][0] for row in some]
    mixed = [{"ids": np.arange(2), "pairs": [np.zeros(n)]} for n in (2, 3)]
    schema = yoga.Schema.of(mixed[0], ragged=["ids", "pairs"])
    with pytest.raises(ValueError, match="the items of 'pairs' differ in shape, in row 1"):
        list(Own(mixed, schema).packed("ids", 4))


def test_rows_that_cannot_be_in_packs() -> None:
    images = [{"ids": np.arange(3), "image": np.zeros((n, 2))} for n in (1, 2)]
    with pytest.raises(ValueError, match=r"'image' differ in shape.*\.columns"):
        Own(images, yoga.Schema.of(images[0], ragged=["ids", "image"])).packed("ids", 8)
    for name in ("rows", "document_ids"):
        named = [{"ids": np.arange(n), name: 3} for n in (1, 2)]
        with pytest.raises(ValueError, match=f"a column '{name}', which packs have of their own"):
            Own(named, yoga.Schema.of(named[0], ragged=["ids"])).packed("ids", 8)
    pairs = [(np.arange(n), n) for n in (1, 2)]
    with pytest.raises(TypeError, match="rows that are dicts with names, found rows of tuple"):
        Own(pairs, yoga.Schema.of(pairs[0], ragged=["0"])).packed("0", 8)
    with pytest.raises(TypeError, match="schema is None"):
        Own(images).packed("ids", 8)
    none = tokens_of([0, 0]).packed("ids", 8)
    assert (len(none), none.report().padding, list(none)) == (0, 0.0, [])


def test_too_many_tokens_for_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyoga.rows.collate._MOST_TOKENS", 30)
    packed = tokens_of([8] * 9).packed("ids", 16)
    with pytest.raises(ValueError, match=r"a batch of 2 packs holds 32 tokens, more than int32"):
        next(iter(yoga.DataLoader(packed, 2)))


# -- epochs, states


def test_members_change_with_the_epoch_and_packs_do_not(ref: yoga.DataRef) -> None:
    packed = ref.packed("ids", 16)
    seen = [packed.in_epoch(epoch).members(np.arange(len(packed)))[0].tolist() for epoch in range(4)]
    assert all(sorted(rows) == [n for n, length in enumerate(LENGTHS) if length] for rows in seen)
    assert len({tuple(rows) for rows in seen}) == 4
    assert packed.in_epoch(0) is packed
    assert "packs of" in repr(packed)
    assert ref.packed("ids", 16, seed=1).members(np.arange(len(packed)))[0].tolist() != seen[0]
    loader = yoga.DataLoader(packed, 4, shuffle=True, seed=7)
    for rows in seen[:2]:
        given = [row for batch in loader for row in batch["rows"].tolist()]
        assert sorted(given) == sorted(rows)
        assert given != rows


def noisy(c: Any, draw: Any) -> Any:
    return {**c, "label": c["label"] + draw.integers(0, 1000)}


def test_rows_made_at_random_are_those_of_epoch_and_row() -> None:
    rows = [{"ids": np.arange(length), "label": n} for n, length in enumerate(LENGTHS)]
    view = Own(rows, yoga.Schema.of(rows[0], ragged=["ids"])).map_batches(noisy)
    packed = view.packed("ids", 16)

    def labels(batch: int, workers: int) -> dict[int, int]:
        loader = yoga.DataLoader(packed, batch, shuffle=True, seed=3, num_workers=workers)
        return {
            row: label
            for one in loader
            for row, label in zip(one["rows"].tolist(), one["label"].tolist(), strict=True)
        }

    assert labels(3, 0) == labels(7, 2)
    check_view(lambda base: base.packed("ids", 16), view[:30], reads_ahead=False)


def test_balanced_packs_cost_alike_on_all_ranks() -> None:
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(3, 1, 6000)), 1, 128).astype(int).tolist()
    ref = tokens_of(lengths)

    def waiting(packed: yoga.DataRef, **options: Any) -> float:
        """How much longer the slowest of four ranks takes in each step than they do on average."""
        squares = np.array([(row["lengths"] ** 2).sum() for row in packed])
        ranks = [list(yoga.ResumableSampler(packed, 4, rank, seed=1, **options)) for rank in range(4)]
        costs = squares[np.array(ranks)]
        return float(costs.max(0).sum() / costs.mean(0).sum())

    plain = waiting(ref.packed("ids", 128), shuffle=True)
    balanced = waiting(ref.packed("ids", 128, balance=True), shuffle="block", shuffle_window=1)
    assert balanced < 1.05 < plain


# -- other processes, stores


def test_packs_are_built_under_a_new_name(ref: yoga.DataRef, storage: yoga.Storage) -> None:
    packed = ref.packed("ids", 16, labels="ids")
    built = storage.submit(packed, "packs", "1", progress=False)
    assert_rows_equal(list(built), list(packed))


class _Announced(Announced, Own):
    pass


def test_delivered_packs_are_delivered_rows() -> None:
    base = _Announced(ROWS, SCHEMA)
    packed, reached = base.packed("ids", 16), 0
    packed._readahead.prefetch.follow([np.array([3, 1]), np.array([0, 2, 5])], lambda: reached)  # type: ignore[union-attr]
    ((rows, progress),) = base.announced
    counts = [len(packed.members(number)[0]) for number in (3, 1, 0, 2, 5)]
    assert [len(some) for some in rows] == [sum(counts[:2]), sum(counts[2:])]
    for reached in range(6):
        assert progress() == sum(counts[:reached])


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    ref = texts_of(tmp_path, [3, 5, 2])
    numpys = ref.packed("ids", np.int64(8), labels="ids", padded=np.int32(7), ignore_index=np.int64(-1))
    assert numpys.fingerprint == ref.packed("ids", 8, labels="ids", padded=7, ignore_index=-1).fingerprint
    assert ref.token_batches("ids", 8, padding=np.int64(3)).fingerprint is not None


def test_with_several_budgets_some_packs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever budget comes first: else many packs with the same room of it would all be looked at."""
    rng, most = np.random.default_rng(0), 0
    costs = np.column_stack([rng.integers(0, 4, 3000), rng.integers(1, 10**5, 3000)])
    real = packing._ends

    def counted(rests: Any, number: int) -> Any:
        nonlocal most
        found = real(rests, number)
        most = max(most, len(found))
        return found

    monkeypatch.setattr(packing, "_ends", counted)
    for order, packs in (([0, 1], 1100), ([1, 0], 1450)):
        groups = packing.fitted(costs[:, order], np.ones(3000, np.int64), np.array([8, 400_000])[order])
        assert int(groups.counts.sum()) < packs
    assert most == 32


SPAWNED = """
import pickle, sys
view = pickle.load(open(sys.argv[1], "rb"))
print([row["ids"].tolist() for row in view.in_epoch(2)], view.fingerprint)
"""


def test_a_new_process_reads_the_same_packs_by_the_same_name(storage: yoga.Storage, tmp_path: Path) -> None:
    ref = storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)
    packed = yoga.concat([ref, ref.select([5, 3, 9])]).packed("ids", 16)
    (tmp_path / "view").write_bytes(pickle.dumps(packed))
    done = run_program(SPAWNED, str(tmp_path / "view"))
    rows = [row["ids"].tolist() for row in packed.in_epoch(2)]
    assert done.stdout.strip() == f"{rows} {packed.fingerprint}", done.stderr


def test_packs_are_looked_at_changed_and_filled_by_columns_beside_the_lengths_of_documents(
    tmp_path: Path,
) -> None:
    rows = [{"ids": np.arange(n), "k": n if n % 2 else None} for n in (3, 5, 2, 6)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"], nullable=["k"])
    packs = yoga.Storage(tmp_path).submit(rows, "a", "1", schema=schema).packed("ids", 8, padded=0)
    for names in (["ids"], ["position_ids", "ids"]):
        assert len(packs.where(names, lambda c: c["ids"].max(1) > 4)) == 1
    assert [list(row) for row in packs.map_batches(lambda c: {"ids": c["ids"] + 1})] == [["ids"]] * 2
    batch = next(iter(yoga.DataLoader(packs.filled({"k": -1}), 2)))
    assert batch["cu_seqlens"].tolist() == [0, 5, 8, 14, 16]
    assert batch["k"].tolist() == [5, 3, -1, -1]
