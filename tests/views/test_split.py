"""Parts of a dataset: shares that are exact, rows of a key that stay together, classes split alike."""

from __future__ import annotations

import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mixtures import ids
from quick import examples

import torchyoga as yoga
from torchyoga.views import split


def test_splits_are_exact_and_complete(ref: yoga.DataRef) -> None:
    parts = ref.split([0.5, 0.49, 0.01], seed=3)
    assert list(map(len, parts)) == [30, 29, 1]
    assert all(ids(part) == sorted(ids(part)) for part in parts)
    assert ids(ref.split([0.5, 0.5], seed=3)[0]) != ids(ref.split([0.5, 0.5], seed=4)[0])
    assert ids(ref.split([0.5, 0.5], seed=3)[0]) == ids(ref.split([0.5, 0.5], seed=3)[0])
    for shares in ([1.0, 0.0], [60, 0], [0.999, 0.001]):
        for how in ({}, {"stratify": "text"}) if isinstance(shares[0], float) else ({},):
            with pytest.warns(UserWarning, match="no row is in part 1; give it a larger share") as caught:
                ref.split(shares, **how)  # type: ignore[arg-type]
            assert len(caught) == 1
    with pytest.warns(UserWarning, match="no row is in part 1; 'id' has too few values"):
        yoga.concat([ref[:1]] * 9).split([1.0, 0.0], by="id")


@settings(max_examples=examples(50))
@given(st.integers(0, 300), st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 9))
def test_counts_are_within_one_of_the_shares(length: int, weights: list[int], seed: int) -> None:
    weights[0] += 1
    shares = [weight / sum(weights) for weight in weights]
    ref = yoga.from_arrays({"x": np.arange(length)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = ref.split(shares, seed)
    assert sorted(int(row["x"]) for part in parts for row in part) == list(range(length))
    assert all(abs(len(part) - share * length) < 1 for part, share in zip(parts, shares, strict=True))


def test_rows_of_a_key_stay_together_and_where_they_are(tmp_path: Path) -> None:
    users = np.random.default_rng(0).integers(-50, 50, 3000)
    rows = [{"user": user, "name": f"u{user}"} for user in users.tolist()]
    ref = yoga.Storage(tmp_path).submit(rows, "users", "1", progress=False)
    for key in ("user", "name"):
        low, high = ref.split([0.7, 0.3], seed=5, by=key)
        sides = [{row[key] for row in part} for part in (low, high)]
        assert not sides[0] & sides[1]
        assert 0.5 < len(low) / 3000 < 0.9
        some, _ = ref[:1000].split([0.7, 0.3], seed=5, by=key)
        assert {int(row["user"]) for row in some} <= {int(row["user"]) for row in low}
    narrow = yoga.from_arrays({"user": users.astype(np.int8)})
    assert [int(r["user"]) for r in narrow.split([0.7, 0.3], 5, "user")[0]] == [
        int(r["user"]) for r in ref.split([0.7, 0.3], 5, "user")[0]
    ]


def test_values_with_too_few_rows_for_each_part_are_told() -> None:
    ref = yoga.from_arrays({"label": np.repeat([0, 1, 7], [50, 8, 1])})
    for shares, said in (
        ([0.5, 0.5], "'label': 1 of 3 values have too few rows for each part .*7 with 1; take fewer parts"),
        ([0.97, 0.03], "'label': 2 of 3 values have too few"),
    ):
        with pytest.warns(UserWarning, match=said) as caught:
            parts = ref.split(shares, stratify="label")
        assert caught[0].filename == __file__
        assert sum(map(len, parts)) == 59
    ref.where("label", lambda label: label < 7).split([0.5, 0.25, 0.25], stratify="label")


NO_LIST = r"split takes a list of the share of each part.*\[0\.8, 0\.2\]; found"
NO_LISTS = [0.8, 8, None, "0.8", {"train": 0.8}, {0.8, 0.2}, ["a", "b"], [None, 1], [True]]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        *(({"shares": shares}, TypeError, NO_LIST) for shares in NO_LISTS),
        ({"shares": [0.5, 0.4]}, ValueError, "must sum to 1"),
        ({"shares": []}, ValueError, "share of each part"),
        ({"shares": [1.5, -0.5]}, ValueError, "from 0 to 1"),
        ({"shares": [48.0, 12.0]}, ValueError, "or numbers of rows and all of them int"),
        ({"shares": [30, 20]}, ValueError, "have 50 rows, the DataRef has 60"),
        ({"shares": [30, 30], "by": "id"}, ValueError, "need shares"),
        ({"shares": [30, 30], "stratify": "id"}, ValueError, "need shares"),
        ({"shares": [0.5, 0.5], "by": "id", "stratify": "id"}, ValueError, "not both"),
        ({"shares": [0.5, 0.5], "by": "meta/half"}, TypeError, "integers or text"),
        ({"shares": [0.5, 0.5], "by": "ids"}, ValueError, "one number or text a row"),
        ({"shares": [0.5, 0.5], "seed": 0.5}, ValueError, "seed"),
    ],
)
def test_splits_that_cannot_be(
    arguments: dict[str, Any], error: type[Exception], text: str, ref: yoga.DataRef
) -> None:
    with pytest.raises(error, match=text):
        ref.split(**arguments)


def test_parts_are_split_again_by_the_same_key_and_seed(tmp_path: Path) -> None:
    users = np.arange(6000) // 3
    ref = yoga.from_arrays({"user": users, "x": np.arange(6000)})
    train, rest = ref.split([0.8, 0.2], by="user")
    windows = rest.windows({"x": range(2)}, group_by="user", static=["user"])
    changed = rest.map_batches(lambda c: c), rest.order_by("x", descending=True), yoga.concat([rest, rest])
    chosen = rest, rest.where("x", lambda x: x >= 0), rest[:], train, rest.columns(["user"])
    for view in (*chosen, *changed, windows):
        some, _ = view.split([0.5, 0.5], by="user")
        assert 0.4 < len(some) / len(view) < 0.6
        more, _ = some.split([0.5, 0.5], by="user")
        assert 0.35 < len(more) / len(some) < 0.65
    # Rows that come later move nobody, in parts of parts, too.
    early = ref[:3000].split([0.8, 0.2], by="user")[1].split([0.5, 0.5], by="user")[0]
    late = rest.split([0.5, 0.5], by="user")[0]
    assert {int(user) for user in early["user"]} <= {int(user) for user in late["user"]}


@pytest.mark.filterwarnings("ignore:stratify='label'")  # some classes have fewer rows than there are parts
@pytest.mark.parametrize("sizes", [[3] * 200, [300] + [1] * 300, [500, 90, 10], [1, 2, 5, 92]])
@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.9, 0.1], [0.6, 0.3, 0.1]])
def test_each_class_and_all_rows_have_their_shares(sizes: list[int], shares: list[float]) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    ref = yoga.from_arrays({"label": labels, "x": np.arange(len(labels))})
    parts = ref.split(shares, 2, stratify="label")
    assert sorted(int(x) for part in parts for x in part["x"]) == list(range(len(labels)))
    found = [[int(y) for y in part["label"]] for part in parts]
    counts = np.stack([np.bincount(each, minlength=len(sizes)) for each in found], 1)
    assert (counts.sum(1) == sizes).all()
    assert (np.abs(counts - np.outer(sizes, shares)) < 1).all()
    assert (np.abs(counts.sum(0) - len(labels) * np.array(shares)) <= 2).all()


def test_shares_may_be_arrays_and_sum_to_1_nearly() -> None:
    ref = yoga.from_arrays({"x": np.arange(60)})
    some = (
        np.array([0.8, 0.2]),
        torch.tensor([0.8, 0.2]),
        iter([0.8, 0.2]),
        [Fraction(4, 5), np.float32(0.2)],
    )
    for shares in (*some, (48, 12), np.array([48, 12])):
        assert [len(part) for part in ref.split(shares)] == [48, 12]  # type: ignore[arg-type]
    assert split.exact_counts([0.9999999991], 1_200_000_000) == [1_200_000_000]
    assert sum(split.exact_counts([0.5, 0.4999999991], 3_000_000_000)) == 3_000_000_000
