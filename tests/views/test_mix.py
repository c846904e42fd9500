"""Mixtures, weights, balance, curricula and buckets as users have them: loaders, states, bad input."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mixtures import delivered, ids, listed, shares
from own import Epochal, Made
from records import FORMATS

import torchyoga as yoga
from torchyoga.errors import SchemaError, StateError
from torchyoga.views.mix import MixRef

SIZES = {"web": 90, "code": 30, "math": 7}
WEIGHTS = {"web": 5, "code": 3, "math": 2}


@pytest.fixture(scope="module", params=FORMATS)
def sources(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    storage = yoga.Storage(tmp_path_factory.mktemp("mix"), format=request.param)
    return {
        name: storage.submit(
            [{"id": 1000 * number + n, "ids": np.arange(n % 5)} for n in range(size)],
            name,
            "1",
            progress=False,
        )
        for number, (name, size) in enumerate(SIZES.items())
    }


@pytest.fixture(scope="module")
def plain() -> dict[str, yoga.DataRef]:
    return {
        name: yoga.from_arrays({"id": 1000 * number + np.arange(size)})
        for number, (name, size) in enumerate(SIZES.items())
    }


@pytest.mark.parametrize("kind", [True, "block", False])
def test_an_epoch_has_the_shares_and_every_source_its_passes(sources: Any, kind: Any) -> None:
    mix = yoga.mix(sources, WEIGHTS, rows=200)
    rows, _ = delivered(mix, shuffle=kind)
    assert shares(rows) == {0: 100, 1: 60, 2: 40}
    assert mix.counts(200) == {"web": 100, "code": 60, "math": 40}
    with pytest.raises(TypeError, match=r"a state write counts\(at=state\)"):
        mix.counts({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"for a number of rows write counts\(rows\)"):
        mix.counts(at=200)  # type: ignore[arg-type]
    assert mix.passes(400) == {"web": 200 / 90, "code": 4.0, "math": 80 / 7}
    counts = Counter(ids(rows))
    for number, (size, count) in enumerate(zip(SIZES.values(), (100, 60, 40), strict=True)):
        own = [counts[1000 * number + n] for n in range(size)]
        assert {min(own), max(own)} <= {count // size, -(-count // size)}
    for row in rows:
        assert row["ids"].tolist() == list(range(row["id"] % 1000 % 5))


def test_the_number_of_epochs_is_known_before_training(plain: Any) -> None:
    even = dict.fromkeys(SIZES, 1)
    for rows, epochs, number in [(21, 1, 1), (21, 10, 10), (9, {"math": 3}, 7), (10, {"code": 2.5}, 22)]:
        mix = yoga.mix(plain, even, rows=rows, epochs=epochs)
        assert mix.num_epochs == number
        limits = epochs if isinstance(epochs, dict) else dict.fromkeys(SIZES, epochs)
        assert all(mix.passes(number * rows)[name] <= most for name, most in limits.items())
        assert any(mix.passes((number + 1) * rows)[name] > most for name, most in limits.items())
        for options in ({"shuffle": True}, {"shuffle": False}):
            loader = yoga.DataLoader(mix, 5, seed=7, **options)
            loader.set_epoch(number - 1)
            next(iter(loader))
            loader.set_epoch(number)
            with pytest.raises(ValueError, match=f"which is {number} epochs of the mixture"):
                next(iter(loader))
    assert yoga.mix(plain, even, rows=9).num_epochs is None
    mix = yoga.mix(plain, WEIGHTS, rows=30, epochs=1)
    _, state = delivered(mix, 2)
    with pytest.raises(
        ValueError, match=r"reads the 7 rows of 'math' 1.29 times, and epochs= allows 1, which is 0"
    ):
        mix.reweighted({"web": 1, "code": 1, "math": 1}, at=state)
    assert mix.reweighted({"web": 1, "code": 1, "math": 0}, at=state).num_epochs == 2


def test_until_the_first_or_the_last_source_is_over(plain: Any) -> None:
    even = dict.fromkeys(SIZES, 1)
    first, last = yoga.mix(plain, even), yoga.mix(plain, even, until="all")
    assert len(first) == len(yoga.mix(plain, even, until="first"))
    assert len(first) in (21, 22, 23)
    assert max(Counter(ids(delivered(first)[0])).values()) == 1
    assert len(last) in range(268, 273)
    assert set(ids(delivered(last)[0])) == {
        1000 * n + k for n, size in enumerate(SIZES.values()) for k in range(size)
    }
    size = yoga.mix(plain)
    assert sorted(ids(delivered(size)[0])) == sorted(
        number for ref in plain.values() for number in ids(list(ref))
    )


def test_temperature(plain: Any) -> None:
    for temperature in (1.0, 2.0, 0.5, 100.0):
        mix = yoga.mix(plain, rows=10**6, temperature=temperature)
        sized = {name: size ** (1 / temperature) for name, size in SIZES.items()}
        for name, count in mix.counts(10**6).items():
            assert abs(count - 10**6 * sized[name] / sum(sized.values())) < 2


def test_weights_are_the_decimal_numbers_they_are_written_as_of_any_type(plain: Any) -> None:
    mix = yoga.mix(plain, {"web": 0.7, "code": 0.2, "math": 0.1}, rows=10)
    assert mix.mixture.stages[0].weights == (7, 2, 1)
    zero = yoga.mix(plain, {"web": 1, "code": np.float32(0.0), "math": np.int64(0)}, rows=50)
    assert shares(delivered(zero)[0]) == {0: 50}
    scalars: Any = {
        "web": torch.tensor(1.5),
        "code": np.array(2),
        "math": torch.tensor(0.5, dtype=torch.half),
    }
    mix = yoga.mix(plain, scalars, rows=50)
    assert mix.mixture.stages[0].weights == (3, 4, 1)
    loader = yoga.DataLoader(mix, 5, shuffle=True, seed=7)
    next(iter(loader))
    again = mix.reweighted({**scalars, "math": np.float64(6)}, at=loader.state_dict())
    assert again.mixture.stages[-1].weights == (3, 4, 12)
    for wrong in (torch.ones(1), np.ones(2), torch.tensor(float("nan")), torch.tensor(True), np.bool_(True)):
        with pytest.raises(ValueError, match="the weight of 'web' must be a number of at least 0"):
            yoga.mix(plain, {**scalars, "web": wrong}, rows=50)


def test_other_weights_from_a_state_of_a_view_on(plain: Any) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=120)
    _, state = delivered(mix.map_batches(dict).columns(["id"]), 3)
    other = mix.reweighted({"web": 0, "code": 0, "math": 1}, at=state)
    after, _ = delivered(other.map_batches(dict).columns(["id"]), None, state)
    assert shares(after) == {2: 96}


def test_gaps_keep_their_weights(plain: Any) -> None:
    """With in_order=False some batches come early; those before them are still to come."""
    mix = yoga.mix(plain, WEIGHTS, rows=120)
    sampler = yoga.ResumableSampler(mix, shuffle=True, seed=7)
    whole = list(sampler)
    _, state = delivered(mix, 3)
    early = {**state, "position": 16, "left": [[8, 16]], "proof": None}
    other = mix.reweighted({"web": 0, "code": 0, "math": 1}, at=early)
    assert [stage.start for stage in other.mixture.stages] == [0, 24]
    loader = yoga.DataLoader(other, 8, shuffle=True, seed=7, collate_fn=listed)
    loader.load_state_dict(early)
    found = ids([row for rows in loader for row in rows])
    assert found[:8] == ids(mix[whole[8:16]])
    assert {number // 1000 for number in found[8:]} == {2}
    assert len(found) == 104


@pytest.mark.parametrize("name", ["mix", "weighted", "balanced", "bucketed", "windows"])
def test_rows_of_a_mixture_within_another_view_are_always_the_same(plain: Any, name: str) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=120)
    made: dict[str, Any] = {
        "mix": lambda: yoga.mix({"mix": plain["web"].weighted(np.ones(90)), "code": plain["code"]}, rows=50),
        "weighted": lambda: mix.weighted(np.ones(120)),
        "balanced": lambda: mix.balanced("id"),
        "bucketed": lambda: mix.bucketed(np.arange(120)),
        "windows": lambda: mix.windows(4),
    }
    with pytest.warns(UserWarning, match=f"{name}.*rows of its first epoch without shuffle, again and again"):
        made[name]()


def test_the_past_of_a_mixture_cannot_be_changed(plain: Any) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=120)
    _, state = delivered(mix, 3)
    for weights in ({**WEIGHTS, "math": 1}, "size"):
        other = yoga.mix(plain, weights, rows=120)
        with pytest.raises(StateError, match=r"\(5, 3, 2\).*, here by .*use reweighted\(weights, at=state\)"):
            delivered(other, 1, state)
    even = dict.fromkeys(WEIGHTS, 1)
    second = mix.reweighted(even, at=state)
    _, later = delivered(second, 3, state)
    # One that is made with the last weights goes on as well.
    made = yoga.mix(plain, even, rows=120)
    rest, end = delivered(made, None, later, world=3)
    assert sorted(ids(rest)) == sorted(ids(delivered(second, None, later)[0]))
    assert made.counts(at=end) == second.counts(at=end)
    with pytest.raises(
        StateError, match=r"the past cannot be changed.*a Checkpoint keeps that state in its newest step"
    ):
        delivered(mix, 1, later)
    delivered(second, 1, state)
    assert yoga.mix(plain, WEIGHTS, rows=120).reweighted(WEIGHTS, at=state).mixture == mix.mixture
    # At the very beginning nothing has come yet.
    _, start = delivered(mix, 0)
    assert mix.reweighted("size", at=start).mixture.stages == yoga.mix(plain, rows=120).mixture.stages


def test_states_and_receipts_do_not_grow_with_changes_of_weights(labelled: yoga.DataRef) -> None:
    data = {f"s{n}": labelled.columns(["id"]) for n in range(8)}
    chance = np.random.default_rng(0)

    def weights() -> Any:
        return dict(zip(data, chance.integers(1, 10**6, 8).tolist(), strict=True))

    for view in (yoga.mix(data, weights(), rows=rows) for rows in (2000, 20)):
        now: Any = view
        state, size = None, 0
        for number in range(70):
            loader = yoga.DataLoader(now, 3, shuffle=True, seed=7)
            if state is not None:
                loader.load_state_dict(state)
            next(iter(loader))
            state = loader.state_dict()
            assert loader.prove()
            assert len(json.dumps(state)) < 1024
            assert len(json.dumps(loader.receipt())) < 1024
            now = now.reweighted(weights(), at=state)
            if number == 9:
                size = len(pickle.dumps(now))
        assert len(pickle.dumps(now)) < size + 1000
        again = view.reweighted({**dict.fromkeys(data, 1), "s7": 3}, at=state)
        assert len(delivered(again, 2, state)[0]) == 16


def test_states_do_not_grow_with_classes() -> None:
    data = yoga.from_arrays({"label": np.arange(4000) % 2000})
    many = yoga.from_arrays({"label": np.arange(21_841)})
    for view in (many.balanced("label"), data.balanced("label"), data.weighted(np.arange(4000))):
        loader = yoga.DataLoader(view, 8, shuffle=True, seed=7)
        for _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
        assert len(json.dumps(state)) < 1024
        assert len(json.dumps(loader.receipt())) < 1024
        assert len(delivered(view, 2, state)[0]) == 16
    even: Any = data.balanced("label")
    _, state = delivered(even, 3)
    weights = dict.fromkeys(range(2000), 0) | {5: 1}
    for view in (even, data.balanced("label", shares=weights)):
        other = view.reweighted(weights, at=state)
        assert {int(row["label"]) for row in delivered(other, 2, state)[0]} == {5}


def test_what_was_reweighted_goes_on_from_there_only(plain: Any, labelled: yoga.DataRef) -> None:
    for view, weights in [
        (yoga.mix(plain, WEIGHTS, rows=120), {"web": 0, "code": 1, "math": 0}),
        (labelled.balanced("label", rows=120), {0: 0, 1: 1, 2: 0}),
    ]:
        ref: Any = view
        _, early = delivered(ref, 2)
        _, state = delivered(ref, 5)
        other = ref.reweighted(weights, at=state)
        for old in (early, {**state, "stages": early["stages"], "position": 39}):
            with pytest.raises(
                StateError, match=r"from which on the weights are known|past cannot be changed"
            ):
                delivered(other, 1, old)
        with pytest.raises(ValueError, match="load the state that they were changed at"):
            delivered(other, 1)
        assert len(delivered(other, None, state)[0]) == 80
        assert len(delivered(other, None, delivered(other, 1, state)[1])[0]) == 72
        assert len(list(other)) == 120  # rows by number have the last weights
        sampler = yoga.ResumableSampler(other, shuffle=True, seed=7)
        numbers = sampler.rows_at(range(40, 120), epoch=0)
        assert [sampler.position_of(int(number), epoch=0) for number in numbers] == list(range(40, 120))
        with pytest.raises(ValueError, match="does not come in epoch 0"):
            sampler.position_of(
                int(yoga.ResumableSampler(ref, shuffle=True, seed=7).rows_at([3])[0]), epoch=0
            )
        # A state before, as an older checkpoint: the view is made anew.
        assert len(delivered(ref.reweighted(weights, at=early), None, early)[0]) == 104


def test_what_came_before_other_weights_is_not_known(plain: Any, labelled: yoga.DataRef) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=60)
    even: Any = labelled.balanced("label", batch=10, rows=60)
    for view, weights in ((mix, {"web": 1, "code": 1, "math": 1}), (even, {0: 1, 1: 3, 2: 1})):
        _, state = delivered(view, batch=6)
        _, state = delivered(view, 5, state, batch=6)
        changed = view.reweighted(weights, at=state)
        assert sum(changed.counts(90).values()) == 90
        assert sum(changed.counts(0).values()) == 0
        with pytest.raises(ValueError, match=r"first 60 rows are made of is not known: .* at row 90"):
            changed.passes(60) if view is mix else changed.counts(60)
        fresh = yoga.DataLoader(changed, 6, shuffle=True, seed=7)
        with pytest.raises(ValueError, match=r"position 0 of epoch 0 lies before .* into the loader"):
            fresh.peek()
        fresh.load_state_dict(state)
        assert len(list(fresh)) == 5


def test_states_of_others_and_damaged_ones(plain: Any) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=120)
    _, state = delivered(mix, 3)
    loader = yoga.DataLoader(plain["web"], 8, shuffle=True, seed=7)
    with pytest.raises(StateError, match="has length 120, but here it is 90"):
        loader.load_state_dict(state)
    for changed, message in {
        "length": ({"length": 121}, "has length 121, but here it is 120"),
        "no stages": ({"stages": None}, "does not say which weights"),
        "too few": ({"stages": [[0, [1, 2]]]}, "does not say which weights"),
        "no weights": ({"stages": [[0, [0, 0, 0]]]}, "does not say which weights"),
        "huge": ({"stages": [[0, [9**9999, 1, 1]]]}, "does not say which weights"),
        "text": ({"stages": [[0, ["1", 1, 1]]]}, "does not say which weights"),
        "many": ({"stages": [[0, 1, 2**60]]}, "does not say which weights"),
        "of a later place": ({"stages": [[25, [5, 3, 2], [13, 7, 5]]]}, "does not say which weights"),
        "no list": ({"sources": 7}, "sources are damaged"),
        "no names": ({"sources": [[1, 2]]}, "sources are damaged"),
        "no number": ({"sources": [["web", [], "0123"]]}, "sources is damaged"),
        "twice": ({"sources": state["sources"][:1] * 2}, "sources are damaged"),
        "passes of none": ({"passes": [["x", [0, 0, 5]]]}, "sources are damaged"),
        "passes of no rows": ({"passes": [["web", [0, 0, 0]]]}, "sources are damaged"),
        "short passes": ({"passes": [["web", [0, 0]]]}, "sources are damaged"),
        "no sources": ({"sources": "#0123"}, "has other rows, or classes"),
    }.values():
        with pytest.raises(StateError, match=message):
            mix.reweighted("size", at={**state, **changed})
    for stages in ([[0, [1, 2]]], 7, None, "x", [[0]], [[0, [1, 1, 1]], [0, [1, 1, 1]]]):
        with pytest.raises(StateError):
            delivered(mix, 1, {**state, "stages": stages})
    without = {key: value for key, value in state.items() if key != "stages"}
    with pytest.raises(StateError, match="do not have the same kind of weights or stages"):
        delivered(mix, 1, without)
    loader = yoga.DataLoader(mix, 8, shuffle=True, seed=7)
    loader.load_state_dict({**state, "stages": [[0, [1, 2]]]}, strict=False)
    assert len(next(iter(loader))["id"]) == 8


@pytest.mark.parametrize("epoch", [2**61, 2**62, 2**61 // 90])
def test_an_epoch_beyond_all_that_are_counted_is_refused_at_load(plain: Any, epoch: int) -> None:
    web = plain["web"]
    for view in (yoga.mix(plain, WEIGHTS, rows=120), web.balanced("id")):
        for strict in (True, False):
            loader = yoga.DataLoader(view, 8, shuffle=True, seed=7)
            forged = {**loader.state_dict(), "epoch": epoch}
            with pytest.raises(StateError, match=r"cannot be continued here: epoch .* lies beyond the"):
                loader.load_state_dict(forged, strict=strict)
            assert len(next(iter(loader))["id"]) == 8
    for view in (web.weighted(np.ones(90)), web.bucketed(np.arange(90)), web):
        loader = yoga.DataLoader(view, 8, shuffle=True, seed=7)
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch})
        assert len(next(iter(loader))["id"]) == 8


def test_bad_arguments(plain: Any) -> None:
    even = dict.fromkeys(SIZES, 1)
    for given, message in [
        ({"weights": {"web": 1}}, r"the sources are \['web', 'code', 'math'\], without a weight are"),
        ({"weights": {"web": 1}}, r"\['code', 'math'\]\. Give each of them a number, 0 to leave"),
        ({"weights": {**even, "new": 1}}, r"there is no \['new'\]. Give each of them a number.* mixed first"),
        ({"weights": {**even, "web": -1}}, "the weight of 'web' must be a number of at least 0, found -1"),
        ({"weights": {**even, "web": float("nan")}}, "found nan"),
        ({"weights": {**even, "web": "1"}}, "found '1'"),
        ({"weights": {**even, "web": True}}, "found True"),
        ({"weights": dict.fromkeys(SIZES, 0)}, "all weights are 0"),
        ({"weights": "sizes"}, "weights must be a dict"),
        ({"weights": [1, 1, 1]}, "weights must be a dict"),
        ({"rows": 5, "until": "all"}, "give rows or until, not both"),
        ({"until": "last"}, 'until must be "first" or "all"'),
        ({"rows": 0}, "rows must be in 1"),
        ({"rows": 10, "cell": 0}, "cell must be in 1"),
        ({"rows": 10, "temperature": 0}, "temperature must be a number above 0"),
        ({"rows": 10, "epochs": 0}, "epochs= of 'web' must be a number above 0"),
        ({"rows": 10, "epochs": {"wob": 1}}, "epochs= names 'wob'"),
        ({"weights": even, "rows": 100, "epochs": 2}, "reads the 7 rows of 'math' 4.71 times"),
        ({"weights": even, "rows": 100, "epochs": {"math": 4}}, "reads the 7 rows of 'math'"),
    ]:
        with pytest.raises(ValueError, match=message):
            yoga.mix(plain, **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mix takes a dict of a name and a DataRef"):
        yoga.mix({})
    with pytest.raises(ValueError, match="sources are named by text"):
        yoga.mix({1: plain["web"]})  # type: ignore[dict-item]
    with pytest.raises(
        TypeError, match=r"the source 'a' is a list; mix takes DataRefs, such as storage.submit\(data, "
    ):
        yoga.mix({"a": [1, 2]})  # type: ignore[dict-item]


def test_sources_without_rows(plain: Any) -> None:
    empty = {**plain, "none": plain["web"][:0]}
    with pytest.raises(ValueError, match="the source 'none' has no rows"):
        yoga.mix(empty, {**WEIGHTS, "none": 1}, rows=10)
    mix = yoga.mix(empty, {**WEIGHTS, "none": 0}, rows=50)
    assert mix.counts(50)["none"] == 0
    assert len(delivered(mix, shuffle="block")[0]) == 50
    _, state = delivered(mix, 2)
    with pytest.raises(ValueError, match="the source 'none' has no rows"):
        mix.reweighted({**WEIGHTS, "none": 1}, at=state)
    assert len(yoga.mix(empty)) == sum(SIZES.values())


def test_rows_that_differ(plain: Any) -> None:
    other = yoga.from_arrays({"id": np.zeros(3, np.int32)})
    with pytest.raises(SchemaError, match=r"source 'web' has id: .*, source 'other' has id: .*map_batches"):
        yoga.mix({**plain, "other": other})
    wide = yoga.from_arrays({"id": np.arange(3), "more": np.arange(3)})
    with pytest.raises(SchemaError, match="take the same of each, by columns"):
        yoga.mix({**plain, "other": wide})
    assert list(yoga.mix({**plain, "other": wide}, columns=["id"])[0]) == ["id"]
    with pytest.raises(SchemaError, match="the sources have a column 'id' already"):
        yoga.mix(plain, source_column="id")
    with pytest.raises(SchemaError, match="needs rows that are dicts, found a leaf"):
        yoga.mix({"a": plain["web"]["id"]}, source_column="source")
    with pytest.raises(SchemaError, match="needs sources that say what their rows look like"):
        yoga.mix({"a": plain["web"].map(dict)}, source_column="source")


def test_columns_of_any_kind_come_with_the_number_of_their_source(storage: yoga.Storage) -> None:
    rows = [{"k": n if n % 2 else None, "t": ["a"] * n, "m": {"x": n, "y": -n}} for n in range(1, 6)]
    schema = yoga.Schema.of(rows[0], ragged=["t"], nullable=["k"])
    ref = storage.submit(rows, "any", "1", schema=schema, progress=False)
    mix = yoga.mix({"a": ref, "b": ref}, source_column="source")
    for whole in (mix, yoga.mix({"both": mix})):
        for names in (["k", "source"], ["source", "t"], ["m", "k", "source"], ["source"], ["k"]):
            found = [{name: row[name] for name in names} for row in whole]
            assert [list(row.items()) for row in whole.columns(names)] == [list(row.items()) for row in found]
        assert whole.columns(["m/y", "source"])[0] == {"m": {"y": -1}, "source": whole[0]["source"]}


def test_rows_by_number_are_those_of_the_first_epoch_without_a_shuffle(plain: Any, tmp_path: Path) -> None:
    first, then = {"web": 1, "code": 0, "math": 0}, {"web": 0, "code": 1, "math": 2}
    mix = yoga.mix(plain, WEIGHTS, rows=120, source_column="source")
    course = mix.staged([(0, first), (64, then), (500, first)])
    expected = ids(delivered(course, shuffle=False)[0])
    assert {number // 1000 for number in expected[:64]} == {0}
    assert {number // 1000 for number in expected[64:]} == {1, 2}
    assert ids(list(course)) == [int(course[n]["id"]) for n in range(120)] == expected
    assert ids(list(yoga.Storage(tmp_path).submit(course, "mix", "1", progress=False))) == expected
    assert ids(list(course[:100])) == expected[:100]
    assert mix[-1] == mix[119]
    for number in (120, -121, 2**61 - 1, 2**62, [0, 120]):
        with pytest.raises(IndexError, match=r"row .* of a dataset of 120 rows"):
            mix[number]
    assert ids(list(course.repeat(2))) == expected * 2
    assert ids(list(course.where("source", lambda source: source >= 0))) == expected
    assert sorted(ids(delivered(course[:70])[0])) == sorted(expected[:70])
    assert sorted(ids(list(course.order_by("id")))) == sorted(expected)
    with pytest.raises(ValueError, match=r"source 'm' is a mixture whose weights change .*\.staged\("):
        yoga.mix({"m": course, "more": plain["web"]}, {"m": 1, "more": 1}, rows=10, columns=["id"])
    with pytest.raises(ValueError, match=r"every epoch is the first one.* mix\[:\]"):
        course.stream(shuffle=True, skip_shuffle_at_epoch_end=True)


def test_samplers_name_rows_that_the_mixture_gives(plain: Any) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=60)
    sampler = yoga.ResumableSampler(mix, shuffle=True, seed=7)
    numbers = list(sampler)
    assert len(set(numbers)) == 60
    assert list(yoga.ResumableSampler(mix, shuffle=True, seed=8)) != numbers
    assert [sampler.position_of(number, epoch=0) for number in numbers] == list(range(60))
    batches = torch.utils.data.DataLoader(mix, 10, sampler=yoga.ResumableSampler(mix, shuffle=True, seed=7))  # type: ignore[arg-type]
    assert torch.cat([batch["id"] for batch in batches]).tolist() == ids(delivered(mix)[0])
    assert ids(list(mix.stream(shuffle=True, shuffle_seed=7))) == ids(delivered(mix)[0])


def test_a_row_that_comes_again_is_made_with_other_random_numbers(plain: Any) -> None:
    def noisy(c: Any, draw: Any) -> Any:
        return {**c, "noise": draw.uniform()}

    few = plain["math"].map_batches(noisy)
    mix = yoga.mix({"few": few}, {"few": 1}, rows=70)
    rows, _ = delivered(mix)
    assert len({row["noise"] for row in rows}) == 70
    again, _ = delivered(mix, world=2, batch=3)
    assert {row["noise"] for row in again} == {row["noise"] for row in rows}


def test_sources_that_depend_on_the_epoch_have_epochs_of_their_own() -> None:
    stream = yoga.mix({"a": Epochal(4)}, {"a": 1}, rows=10).stream(shuffle=True)
    rows = [row for _ in range(2) for row in stream]
    assert [row["epoch"] for row in rows] == sorted(row["epoch"] for row in rows)
    assert Counter(row["epoch"] for row in rows) == {0: 4, 1: 4, 2: 4, 3: 4, 4: 4}


def test_views_of_a_mixture_keep_its_order_and_parts_do_not(plain: Any) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=60, source_column="source")
    expected = ids(delivered(mix)[0])
    negated = mix.map(lambda row: {**row, "id": -row["id"]})
    assert [-number for number in ids(delivered(negated)[0])] == expected
    assert ids(delivered(mix.map_batches(dict))[0]) == expected
    assert ids(delivered(mix.columns(["id"]))[0]) == expected
    only = yoga.DataLoader(mix["source"], 60, shuffle=True, seed=7)
    assert next(iter(only)).tolist() == [number // 1000 for number in expected]
    assert list(mix.columns(["source"])[3]) == ["source"]
    part = mix[:30]
    assert part._arrangement is None
    assert sorted(ids(delivered(part)[0])) == sorted(ids(list(mix)[:30]))
    codes = mix.where("source", lambda source: source == 1)
    assert shares(list(codes)) == {1: 18}


def test_a_mixture_shows_itself_and_pickles_small(sources: Any) -> None:
    mix = yoga.mix(sources, WEIGHTS, rows=60)
    assert (
        repr(mix) == "<mix of web 0.5, code 0.3, math 0.2: 60 rows; id: int, ids: ndarray int64 ragged, 1-d>"
    )
    assert len(pickle.dumps(mix)) < len(pickle.dumps(list(sources.values()))) + 1500
    again = pickle.loads(pickle.dumps(mix))
    assert isinstance(again, MixRef)
    assert again.fingerprint == mix.fingerprint != yoga.mix(sources, WEIGHTS, rows=60, cell=8).fingerprint
    assert ids(delivered(again)[0]) == ids(delivered(mix)[0])
    many = yoga.mix({str(n): sources["web"] for n in range(20)})
    assert "7 0.05 and 12 more: " in repr(many)


def test_what_a_mixture_cannot(plain: Any) -> None:
    mix = yoga.mix(plain, WEIGHTS, rows=120)
    stream = mix.stream(shuffle=True, skip_shuffle_at_epoch_end=True)
    next(iter(stream))
    with pytest.raises(StateError, match="shuffle='once'"):
        mix.reweighted("size", at=stream.state_dict())
    with pytest.raises(ValueError, match="locality='shard' gives each rank rows of its own"):
        yoga.DataLoader(yoga.mix(plain), 8, shuffle=True, locality="shard")
    with pytest.raises(ValueError, match="ask for the quality of the shuffle of each source"):
        yoga.shuffle_quality(yoga.mix(plain))


# -- buckets


def test_buckets_need_little_padding(sources: Any) -> None:
    ref = sources["web"].bucketed("ids", pool=90, batch=6)
    loader = yoga.DataLoader(ref, 6, shuffle=True, seed=3, collate_fn=yoga.padded(), num_workers=2)
    spread = [int(batch["ids"].lengths.max() - batch["ids"].lengths.min()) for batch in loader]
    assert len(spread) == 15
    assert sum(spread) <= 5
    _, state = delivered(ref, 2, world=3, batch=2)
    with pytest.raises(StateError, match=r"of bucketed\(batch=6, pool=90\), but here .*pool=30"):
        delivered(sources["web"].bucketed("ids", pool=30, batch=6), 1, state)


def test_what_a_view_without_a_name_is_made_of_is_read_once() -> None:
    schema = yoga.Schema.of({"id": 1, "ids": [1]})
    data = Made(120, lambda row: {"id": row, "ids": [row]}, schema)
    views = [data.bucketed(np.arange(120)), data.weighted(np.ones(120)), data[::2]]
    for view in [*views, data.balanced("id"), yoga.mix({"a": data})]:
        assert view._view_pin is not None
        assert view._view_pin is view._view_pin


def test_lengths_that_are_none(sources: Any) -> None:
    web = sources["web"]
    for given, message in [
        ([1, 2], r"an int for each of the 90 rows, found int64 of shape \(2,\)"),
        (np.ones(90), "an int for each of the 90 rows, found float64"),
        ([-1] * 90, "lengths must be at least 0, found -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            web.bucketed(given)
    with pytest.raises(ValueError, match="pool must be in 64"):
        web.bucketed("ids", pool=10)
    with pytest.raises(TypeError, match="is not a ragged column"):
        web.bucketed("id")
    assert len(web.bucketed(torch.arange(90)).take(np.array([3]))) == 1
    assert len(delivered(web[:0].bucketed("ids"))[0]) == 0


def test_reweighting_at_an_end_and_beyond_what_is_counted(plain: dict[str, yoga.DataRef]) -> None:
    even: Any = yoga.from_arrays({"label": np.arange(9) % 2}).balanced("label", rows=120)
    for ref, weights in ((yoga.mix(plain, WEIGHTS, rows=120), {**WEIGHTS, "web": 0}), (even, {0: 1, 1: 3})):
        _, state = delivered(ref, 3, world=2)
        ref.reweighted(weights, at={**state, "position": 120})
        with pytest.raises(StateError, match=r"the state is damaged: epoch \d+ of 120 rows lies beyond"):
            ref.reweighted(weights, at={**state, "epoch": 2**62})


def test_numbers_of_numpy_and_bfloat16_are_taken(plain: dict[str, yoga.DataRef]) -> None:
    mix = yoga.mix(plain, "size", rows=50, temperature=np.float32(2), epochs=np.int64(4))  # type: ignore[arg-type]
    assert mix.mixture == yoga.mix(plain, "size", rows=50, temperature=2, epochs=4).mixture
    weights = torch.arange(1, 8)
    found = plain["math"].weighted(weights.to(torch.bfloat16), rows=28)
    assert Counter(ids(delivered(found)[0])) == Counter(
        ids(delivered(plain["math"].weighted(weights, rows=28))[0])
    )
    for wrong in (np.float32(0), np.float32(np.nan), "2", np.bool_(True)):
        with pytest.raises(ValueError, match="temperature must be a number above 0"):
            yoga.mix(plain, "size", rows=50, temperature=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no rows to weigh"):
        plain["math"][:0].weighted([])
