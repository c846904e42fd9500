"""Rows side by side: columns of several datasets in one row."""

from __future__ import annotations

import numpy as np
import pytest
from own import Filed

import torchyoga as yoga
from torchyoga.testing import assert_rows_equal


def test_rows_side_by_side(storage: yoga.Storage) -> None:
    rows = [{"x": n, "meta": {"a": n % 3, "b": str(n)}, "ids": np.arange(n % 4)} for n in range(30)]
    one = storage.submit(rows, "one", "1", progress=False, info={"classes": ["a"], "license": "CC0"})
    two = yoga.from_arrays({"x": -np.arange(30), "z": np.arange(60).reshape(30, 2)})
    both = one.zip(two, prefix="of_")
    assert both.info == {"classes": ["a"], "license": "CC0"}
    assert list(both[3]) == ["x", "meta", "ids", "of_x", "of_z"]
    assert both[4]["meta"] == {"a": 1, "b": "4"}
    batch = next(iter(yoga.DataLoader(both.columns(["of_z", "meta/b", "x"]), 5)))
    assert list(batch) == ["of_z", "meta", "x"]
    assert batch["of_z"].tolist() == [[2 * n, 2 * n + 1] for n in range(5)]
    assert int(both["of_x"][7]) == -7
    assert list(both["meta"][5]) == ["a", "b"]
    assert both.order_by("of_x")[0]["x"] == 29
    assert len(both.where("of_x", lambda x: x > -5)) == 5
    plain = two.zip(two, prefix="of_")  # rows that are in memory
    assert sum(len(batch["x"]) for batch in yoga.DataLoader(plain, 7, shuffle=True, seed=1)) == 30
    pairs = one["x"].zip(two["z"])
    assert pairs[2][0] == 2
    assert pairs[2][1].tolist() == [4, 5]
    assert pairs["1"][2].tolist() == [4, 5]
    assert list(both[:0]) == []
    assert list(both[:0].zip(two[:0].columns(["z"]))) == []
    assert storage.submit([], "no rows", "1").zip(two[:0]).schema is None
    other = yoga.from_arrays({"x": np.arange(30), "z": np.arange(60).reshape(30, 2)})
    assert (
        len(
            {both.fingerprint, one.zip(other, prefix="of_").fingerprint, one.zip(two, prefix="p").fingerprint}
        )
        == 3
    )


def test_a_side_is_read_for_its_own_columns_only() -> None:
    rows = [[{f"{name}1": n, f"{name}2": 2 * n} for n in range(9)] for name in "ab"]
    one, other = sides = [Filed(some, yoga.Schema.of(some[0]), 9) for some in rows]
    both = one.zip(other)
    assert both.columns(["b2"])[3] == {"b2": 6}
    assert [(side.seen, side.calls) for side in sides] == [([], []), ([["b2"]], [[3]])]
    assert both.columns(["b2", "a1"])[3] == {"b2": 6, "a1": 3}
    assert [(side.seen, side.calls) for side in sides] == [([["a1"]], [[3]]), ([["b2"]] * 2, [[3]] * 2)]


def test_rows_of_a_mixture_keep_what_lies_beside_them() -> None:
    mix = yoga.mix({name: yoga.from_arrays({"x": np.arange(n, n + 9)}) for name, n in (("a", 0), ("b", 50))})
    with pytest.warns(UserWarning, match="zip: mix of a 0.5, b 0.5 decides itself which rows come when"):
        both = mix.zip(yoga.from_arrays({"y": -np.asarray(mix["x"])}))
    assert [row["x"] + row["y"] for row in yoga.mix({"both": both})] == [0] * len(mix)


def test_a_prefix_changes_names_and_nothing_else(storage: yoga.Storage) -> None:
    rows = [{"ids": np.arange(10 * n, 11 * n)} for n in (3, 5, 2, 6)]
    ref = storage.submit(rows, "ids", "1", schema=yoga.Schema.of(rows[0], ragged=["ids"]), progress=False)
    number = yoga.from_arrays({"n": np.arange(3)})
    for other in (
        ref.token_windows("ids", 4, labels="shifted", documents=True),
        ref.packed("ids", 8, labels="same", padded=7),
        number.zip(yoga.from_arrays({"x": np.arange(3), "y": np.arange(3)})),
    ):
        count = min(len(other), len(number))
        both = number[:count].zip(other[:count], prefix="of_")
        for name in other[0]:
            expected = [row[name] for row in other[:count]]
            for of in (both, both.columns([f"of_{name}", "n"])):
                assert_rows_equal([row[f"of_{name}"] for row in of], expected)
            assert_rows_equal(list(both[f"of_{name}"]), list(other[name][:count]))


def test_rows_that_cannot_be_side_by_side() -> None:
    one, two = yoga.from_arrays({"x": np.arange(3)}), yoga.from_arrays({"x": np.arange(4)})
    with pytest.raises(ValueError, match=r"found 3 rows of .* and 4 of .* as in ref\[:3\]"):
        one.zip(two)
    with pytest.raises(ValueError, match=r"both sides of zip have \['x'\]; pass prefix=, as in zip\(other"):
        one.zip(two[:3])
    with pytest.raises(ValueError, match=r"both sides of zip have \['_x'\]"):
        yoga.from_arrays({"_x": np.arange(3)}).zip(one, prefix="_")
    with pytest.raises(
        TypeError, match=r"zip needs rows that are dicts on both sides.* columns\(\[\"a\"\]\)"
    ):
        one.zip(one["x"])
    with pytest.raises(TypeError, match=r"zip takes a DataRef, .* found a list"):
        one.zip([1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="schema is None"):
        one.zip(one.map(dict), prefix="b")
