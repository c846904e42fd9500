"""Mixtures whose sources, rows and weights change: stories of runs that are resumed, against sets of rows."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from growing import Cursors, Oracle, Pass, Rows, delivered, tell
from hypothesis import given, settings
from hypothesis import strategies as st
from mixtures import Loaders, listed
from quick import examples

import torchyoga as yoga
from torchyoga.errors import StateError

NAMES = "abcdefgh"
SOAK = 100_000


class Story:
    """A run that is resumed many times, from any of its steps; each time something may have changed."""

    def __init__(self, seed: int, job: Any) -> None:
        self.draw, self.job = random.Random(seed), job
        draw = self.draw
        self.kind = draw.choice([True, True, False, "block"])
        self.cell = draw.choice([1, 4, 16, 64])
        self.rows = draw.choice([{"rows": draw.randint(30, 90)}, {"rows": draw.randint(1, 9)}, {}])
        self.until = {} if self.rows else {"until": draw.choice(["first", "all"])}
        self.sizes = {name: [draw.randint(1, 12)] for name in NAMES[: draw.randint(1, 3)]}
        weights = self.weights_of(self.sizes)
        self.oracle = Oracle({name: some[-1] for name, some in self.sizes.items()}, weights, self.cell)
        self.view: Any = self.mixed(self.sizes, weights)
        if draw.random() < 0.3:
            apart = range(1, 120, self.cell + 1)  # two stages do not begin at the same row
            places = sorted(draw.sample(apart, draw.randint(1, min(3, len(apart)))))
            more = [(place, self.weights_of(self.sizes)) for place in places]
            self.view = self.view.staged([(0, weights), *more])
            self.oracle.plan(
                [
                    (stage.start, dict(zip(self.view.names, stage.weights, strict=True)))
                    for stage in self.view.mixture.stages[1:]
                ]
            )
        self.state: Any = None
        self.options: dict[str, Any] = {}

    def weights_of(self, names: Iterable[str], least: int = 0) -> dict[str, int]:
        weights = {name: self.draw.randint(least, 5) for name in names}
        weights[self.draw.choice(list(weights))] += 1
        return weights

    def mixed(self, names: Iterable[str], weights: dict[str, int]) -> Any:
        sources = {name: Rows(name, self.sizes[name], 3 if self.kind == "block" else None) for name in names}
        return yoga.mix(sources, weights, cell=self.cell, **self.rows, **self.until)

    def train(self) -> None:
        """A job of some ranks, until it is killed."""
        draw = self.draw
        job = self.job(
            self.view, self.state, draw.randint(1, 3), draw.randint(1, 5), shuffle=self.kind, **self.options
        )
        steps = draw.randint(1, 9)
        # What comes after the state that is saved last is lost.
        last = steps if draw.random() < 0.7 else draw.randint(1, steps)
        for step in range(1, steps + 1):
            rows = job.step()
            if step <= last:
                self.oracle.give(rows)
            if step == last:
                self.state = job.state
        assert len(json.dumps(self.state)) <= 4096
        assert self.view.counts(at=self.state) == self.oracle.counts
        assert self.view.passes(at=self.state) == pytest.approx(self.oracle.passes)

    def change(self) -> None:
        """Makes the mixture anew, as a program that is started again; something may be new."""
        draw, oracle = self.draw, self.oracle
        change = draw.choice(
            ["same view", "nothing", "weights", "source", "rows", "rows only", "loader is told"]
        )
        self.options = {}
        if change == "same view":
            self.view = pickle.loads(pickle.dumps(self.view))
            return
        if change == "source" and len(self.sizes) < len(NAMES):
            name = NAMES[len(self.sizes)]
            self.sizes[name] = [draw.randint(1, 12)]
            oracle.sources[name] = Pass(self.sizes[name][-1])
        elif change.startswith(("rows", "loader")):
            for name in draw.sample(list(self.sizes), draw.randint(1, len(self.sizes))):
                self.sizes[name].append(self.sizes[name][-1] + draw.randint(1, 9))
                oracle.sources[name].grow(self.sizes[name][-1])
        order, weights = list(self.view.names), oracle.weights
        order += [name for name in self.sizes if name not in order]
        if change == "loader is told":
            self.options = {"appended": "next"}
            self.view = self.mixed(order, weights)
            oracle.change(weights)
            return
        if change in ("weights", "source", "rows"):
            weights = self.weights_of(self.sizes)
            oracle.change(weights)
            draw.shuffle(order)
        if change == "rows only":
            oracle.change(weights)
        self.view = self.mixed(order, dict.fromkeys(order, 1)).reweighted(weights, at=self.state)
        oracle.plan([])


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32))
def test_each_source_goes_on_where_it_was_whatever_changes(seed: int) -> None:
    tell(Story, [seed], Loaders)


def test_stories() -> None:
    tell(Story, range(100), Cursors)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_many_stories(part: int) -> None:
    tell(Story, range(part * SOAK // 10, (part + 1) * SOAK // 10), Cursors)


def drained(view: Any, state: Any, rows: int, **more: Any) -> list[int]:
    """The numbers of the next rows of a view."""
    return [row for _, row in delivered(view, state, 1, 1, rows, **more)[0]]


@pytest.mark.parametrize("kind", [True, False])
def test_a_loader_is_told_of_appended_rows_once(kind: Any) -> None:
    """A mixture that is made again over more rows: what comes then, the stories say."""
    few, many, other = Rows("a", [40]), Rows("a", [40, 61]), Rows("b", [7])
    mixes = [yoga.mix({"a": rows, "b": other}, {"a": 3, "b": 1}, rows=64) for rows in (few, many)]
    _, state = delivered(mixes[0], None, 2, 2, 4, shuffle=kind)
    with pytest.raises(StateError, match=r"appended since .*'a' \(40 rows, here 61\).*Pass appended='next'"):
        delivered(mixes[1], state, 1, 1, 1, shuffle=kind)
    with pytest.raises(StateError, match=f"has shuffle {kind}, but here it is {not kind}"):
        delivered(mixes[1], state, 1, 1, 1, shuffle=not kind, appended="next")
    after, later = delivered(mixes[1], state, 3, 2, 30, shuffle=kind, appended="next")
    # From a state of after that it goes on without being told, and any state of before may be loaded again.
    delivered(mixes[1], later, 1, 3, 40, shuffle=kind)
    assert delivered(mixes[1], state, 3, 2, 30, shuffle=kind, appended="next")[0] == after


@pytest.mark.parametrize("kind", [True, False])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_buckets_go_on_over_appended_rows(kind: Any, steps: int) -> None:
    few, many = Rows("a", [40]), Rows("a", [40, 61])
    lengths = np.arange(61) * 7919 % 50
    buckets = [rows.bucketed(lengths[: len(rows)], pool=16, batch=4) for rows in (few, many)]
    some, state = delivered(buckets[0], None, 2, 2, steps, shuffle=kind)
    options: dict[str, Any] = {"shuffle": kind, "appended": "next"}
    rest = drained(buckets[1], state, 40 - len(some) + 61, **options)
    assert sorted([row for _, row in some] + rest[: 40 - len(some)]) == list(range(40))
    assert sorted(rest[40 - len(some) :]) == list(range(61))
    # Resumed within, under other ranks, it is the same.
    one, later = delivered(buckets[1], state, 1, 4, 1, **options)
    two = delivered(buckets[1], later, 3, 2, 4, **options)[0]
    assert [row for _, row in one + two] == rest[: len(one + two)]
    # What is left of the epoch keeps to its runs, and what is new has runs of its own.
    spreads = [np.ptp(lengths[rest[at : at + 4]]) for at in range(0, 40 - len(some) - 3, 4)]
    assert np.mean(spreads) < 20


def test_classes_that_are_new_and_rows_that_are_appended(storage: yoga.Storage) -> None:
    rows = [{"id": n, "label": "cd"[n % 2]} for n in range(20)]
    new = [{"id": n, "label": "bcd"[n % 3]} for n in range(20, 41)]
    storage.submit(rows, "rows", "1", progress=False)
    storage.append(new, "rows", "2", progress=False)
    views = [storage.fetch("rows", version).balanced("label", batch=6) for version in "12"]

    before, state = delivered(views[0], None, 1, 6, 2)
    with pytest.raises(StateError, match=r"does not mix the sources \['b'\], which are here"):
        delivered(views[1], state, 1, 6, 1)
    weights = {"b": 1, "c": 1, "d": 1}
    view = views[1].reweighted(weights, at=state)
    labels = {row["id"]: row["label"] for row in rows + new}
    came = Counter(row["id"] for row in before)
    for _ in range(8):
        after, state = delivered(view, state, 1, 6, 4)
        came.update(row["id"] for row in after)
        view = views[1].reweighted(weights, at=state)
    for label in "bcd":
        own = [came[row] for row in labels if labels[row] == label]
        assert max(own) - min(own) <= 2, label  # one for the pass under way, one for the first pass
    assert sum(view.counts(came.total()).values()) == came.total()


@pytest.mark.parametrize("steps", [1, 5, 12])
def test_balanced_classes_go_on_over_appended_rows(storage: yoga.Storage, steps: int) -> None:
    """Rows of each class come once in a pass."""
    storage.submit([{"id": n, "label": n % 2} for n in range(20)], "rows", "1", progress=False)
    storage.append([{"id": n, "label": n % 2} for n in range(20, 31)], "rows", "2", progress=False)
    few, many = (storage.fetch("rows", version).balanced("label", rows=24, batch=6) for version in "12")
    before, state = delivered(few, None, 2, 2, steps)
    with pytest.raises(StateError, match=r"rows were appended since the state.* Pass appended='next'"):
        delivered(many, state, 1, 1, 1)
    after, later = delivered(many, state, 3, 2, 5, appended="next")
    rest, _ = delivered(many, later, 1, 4, 12)
    assert delivered(many, state, 1, 1, len(after), appended="next")[0] == after
    classes = [Pass(10), Pass(10)]
    for rows in (before, after + rest):
        for row in rows:
            classes[row["label"]].give((row["id"] - row["label"]) // 2)
        if rows is before:
            classes[0].grow(16)
            classes[1].grow(15)


def test_what_was_read_in_rows_and_passes() -> None:
    mix = yoga.mix({"a": Rows("a", [7]), "b": Rows("b", [3])}, {"a": 2, "b": 1}, rows=20)
    rows, state = delivered(mix, None, 1, 3, 16)
    came = Counter(name for name, _ in rows)
    assert mix.counts(at=state) == {"a": came["a"], "b": came["b"]}
    assert mix.passes(at=state) == {"a": came["a"] / 7, "b": came["b"] / 3}
    for wrong in ({"rows": 10, "at": state}, {}):
        with pytest.raises(ValueError, match="pass rows, or at=state"):
            mix.counts(**wrong)


def test_what_was_read_when_batches_came_in_any_order_or_epochs_are_alike() -> None:
    mix = yoga.mix({"a": Rows("a", [9]), "b": Rows("b", [4])}, {"a": 2, "b": 1}, rows=30)
    rows, state = delivered(mix, None, 1, 3, 5)
    # The third batch is still to come: the place counts what came, and `left` names what did not.
    gaps = {**state, "position": 12, "left": [[6, 9]], "proof": None}
    here = Counter(name for name, _ in rows[:6] + rows[9:])
    assert mix.counts(at=gaps) == {"a": here["a"], "b": here["b"]}
    options: dict[str, Any] = {
        "sampler": yoga.ResumableSampler(mix, shuffle=True, seed=7),
        "collate_fn": listed,
    }
    loader = yoga.DataLoader(mix, 4, **options)
    came: Counter[str] = Counter()
    for _ in range(2):
        for batch in loader:
            came.update(name for name, _ in batch)
            assert mix.counts(at=loader.state_dict()) == {"a": came["a"], "b": came["b"]}


def test_passes_over_rows_that_a_source_does_not_have_are_refused() -> None:
    few, many, most = (yoga.mix({"a": Rows("a", some)}, rows=30) for some in ([9], [9, 15], [9, 15, 20]))
    _, state = delivered(few, None, 1, 3, 4)
    rewritten = yoga.mix({"a": Rows("a", [8, 12])}, rows=30)
    with pytest.raises(StateError, match=r"has 9 rows .* 'a', which are not those .* some were appended"):
        rewritten.reweighted({"a": 1}, at=state)
    grown = many.reweighted({"a": 1}, at=state)
    _, state = delivered(grown, state, 1, 3, 4)
    assert state["passes"] == [["a", [0, 0, 9], [18, 2, 15]]]
    assert most.reweighted({"a": 1}, at=state).counts(60)
    forged = {**state, "passes": [["a", [0, 0, 9], [18, 2, 999_999]]]}
    with pytest.raises(StateError, match=r"passes over 999999 rows of the source 'a', which has 20"):
        most.reweighted({"a": 1}, at=forged)


def test_stages_of_weights() -> None:
    mix = yoga.mix({"a": Rows("a", [50]), "b": Rows("b", [20])}, {"a": 1, "b": 1}, rows=100, cell=8)
    first, then = {"a": 1, "b": 0}, {"a": 1, "b": 1}
    course = mix.staged([(0, first), (120, then)])
    whole = delivered(course, None, 1, 1, 400)[0]
    assert {name for name, _ in whole[:124]} == {"a"}
    assert Counter(name for name, _ in whole[124:324]) == {"a": 100, "b": 100}
    for stages, message in (
        ([(0, first), (9, {"a": 1, "zz": 1})], r"stage 1, from 9 rows on: .*there is no \['zz'\]"),
        ([(5, first)], "the position of stage 0 must"),
        ([(0, first), (0, then)], "the position of stage 1 must"),
        ([(0, first), (3, {"a": 0, "b": 0})], "stage 1, from 3 rows on: all weights are 0"),
        ([(0, first), (3, then), (7, first)], "stage 1 never begins: it and stage 2, .* begin at row 8,"),
    ):
        with pytest.raises(ValueError, match=message):
            mix.staged(stages)
    few = yoga.mix({"a": Rows("a", [50]), "b": Rows("b", [20])}, {"a": 1, "b": 1}, rows=20, epochs=1)
    assert few.staged([(0, first), (40, then)]).num_epochs == 3
    with pytest.raises(ValueError, match=r"stage 1 never begins: it would at row 60, .* 2 epochs of 20 rows"):
        few.staged([(0, first), (60, then)])


@pytest.mark.rest
def test_states_of_hundreds_of_sources_stay_small() -> None:
    chance = random.Random(1)
    refs = {f"the corpus number {n}": Rows(str(n), [1000 + n]) for n in range(500)}
    mix = view = yoga.mix(refs, {name: chance.random() for name in refs}, rows=10**9)
    state = None
    for _ in range(6):
        _, state = delivered(view, state, 1, 64, 2)  # which says how small
        view = mix.reweighted({name: round(chance.random(), 6) for name in refs}, at=state)


@pytest.mark.parametrize("appended", [None, "next"])
def test_versions_with_more_columns_have_not_grown(storage: yoga.Storage, appended: Any) -> None:
    """The passes under way go on, and so do states."""
    few = storage.submit({"x": np.arange(20)}, "a", "1", progress=False)
    many = storage.add_columns({"y": np.arange(20)}, "a", "2", progress=False)
    whole, state = delivered(yoga.mix({"a": few}, rows=50), None, 1, 1, 40)[0], None
    found = []
    for steps, ref in ((7, few), (9, many), (24, many)):
        more = {} if state is None else {"appended": appended}
        rows, state = delivered(yoga.mix({"a": ref}, rows=50), state, 1, 1, steps, **more)
        found += [int(row["x"]) for row in rows]  # type: ignore[call-overload]
    assert found == [int(row["x"]) for row in whole]  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["packed", "token_windows", "token_batches"])
def test_what_is_made_of_documents_does_not_grow(storage: yoga.Storage, kind: str) -> None:
    """The error says what to do; whole sources may join, and the next epoch has all."""
    rows = [{"ids": np.arange(3 + number % 9)} for number in range(60)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    few = storage.submit(rows[:40], "a", "1", schema=schema, progress=False)
    many, other = storage.append(rows[40:], "a", "2", progress=False), few[:20]

    def made(**sources: yoga.DataRef) -> Any:
        return getattr(yoga.mix(sources, rows=50), kind)("ids", 12)

    loader = yoga.DataLoader(made(a=few, b=other), None, shuffle=True, seed=7)
    next(iter(loader))
    state, grown = loader.state_dict(), made(a=many, b=other)
    weights = {"a": 1, "b": 1}
    for ask in (
        lambda: yoga.DataLoader(grown, None, shuffle=True, appended="next").load_state_dict(state),
        lambda: grown.reweighted(weights, at=state),
        lambda: grown.counts(at=state),
    ):
        with pytest.raises(StateError, match="mix what was appended as a source of its own"):
            ask()
    joined = made(a=few, b=other, c=many[40:]).reweighted({**weights, "c": 1}, at=state)
    yoga.DataLoader(joined, None, shuffle=True).load_state_dict(state)
    for _ in loader:
        continue
    after = yoga.DataLoader(grown, None, shuffle=True)
    after.load_state_dict(loader.state_dict(), strict=False)
    assert after.state_dict()["epoch"] == 1
    assert len(list(after)) == len(grown)
    # Documents that are not mixed: their packs and windows are those of one version, too.
    for ref, other_ref in ((few, many), (few[:30], few)):
        alone = yoga.DataLoader(getattr(ref, kind)("ids", 12), None, shuffle=True, seed=7)
        next(iter(alone))
        with pytest.raises(StateError):
            yoga.DataLoader(
                getattr(other_ref, kind)("ids", 12), None, shuffle=True, seed=7, appended="next"
            ).load_state_dict(alone.state_dict())


def test_after_an_epoch_that_was_left_early_sources_are_not_counted() -> None:
    data = yoga.from_arrays({"x": np.arange(300)})
    mix = yoga.mix({"a": data, "b": data}, {"a": 1, "b": 3}, rows=1000)
    loader = yoga.DataLoader(mix, 10, shuffle=True, seed=1)
    list(itertools.islice(loader, 3))
    assert sum(mix.counts(at=loader.state_dict()).values()) == 30
    loader.set_epoch(1)
    list(itertools.islice(loader, 50))
    with pytest.raises(
        StateError, match=r"970 rows of epochs that were left early .* how many of each source"
    ):
        mix.counts(at=loader.state_dict())
