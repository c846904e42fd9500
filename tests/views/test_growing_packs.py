"""Mixtures of packs and windows that grow, or are packed anew: stories of resumed runs, against an oracle."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing import Cursors, Loaders, tell
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import batches_of
from quick import examples

import torchyoga as yoga
from torchyoga.errors import StateError

NAMES = "abcde"
SOAK = 10_000
BUDGET = 12


class Texts(yoga.DataRef):
    """Documents of a version to which others were appended for each of `sizes` but the first.

    A token tells its source, document and place.
    """

    def __init__(self, name: str, sizes: Sequence[int], seed: int) -> None:
        self.name, self.sizes, self.seed = name, tuple(sizes), seed
        self.lengths_of = np.random.default_rng([seed, ord(name)]).integers(1, BUDGET, 200).tolist()

    def __len__(self) -> int:
        return self.sizes[-1]

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.seed} {self.sizes[-1]}"

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        return [(f"{self.name} {self.seed} {size}", size) for size in self.sizes[:-1]]

    @property
    def schema(self) -> Any:
        return yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"])

    def take(self, rows: Any) -> list[Any]:
        first = 10_000 * NAMES.index(self.name)
        return [{"ids": first + 20 * row + np.arange(self.lengths_of[row])} for row in rows.tolist()]


class Made:
    """What is made of a source, and what must come of it: each token of a pass once, and all of packs."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.sizes = name, [size]
        self.left, self.came, self.given = 0, set[int](), 0

    def give(self, story: Story, tokens: list[int]) -> None:
        if not self.left or self.came == self.able:
            self.begin(story)
        assert self.came.isdisjoint(tokens), "a token came twice"
        assert self.able.issuperset(tokens), "a document came before its time"
        self.came.update(tokens)
        self.given += 1
        if story.kind == "token_windows":
            self.left -= 1

    def begin(self, story: Story) -> None:
        ref = story.texts(self.name)
        rows = [row["ids"] for row in ref.take(np.arange(len(ref)))]
        self.able, self.came = set(np.concatenate(rows).tolist()), set[int]()
        self.left = len(story.view_of(ref))


class Story:
    """A run that is resumed many times, from any of its steps; each time something may have changed."""

    def __init__(self, seed: int, job: Any) -> None:
        self.seed, self.job, self.draw = seed, job, random.Random(seed)
        draw = self.draw
        self.kind = draw.choice(["packed", "packed", "token_windows", "own packs"])
        self.more: dict[str, Any] = {}
        if self.kind == "token_windows":
            self.more = {"jitter": draw.random() < 0.5, "shuffle_documents": draw.random() < 0.3}
        elif draw.random() < 0.3:
            self.more = {"max_rows": draw.randint(1, 3)}
        self.shuffle = True if self.more.get("shuffle_documents") else draw.choice([True, False, "block"])
        self.cell = draw.choice([1, 8, 64])
        self.rows = draw.choice([{"rows": draw.randint(20, 90)}, {"until": "first"}, {"until": "all"}])
        self.made = {name: Made(name, draw.randint(8, 30)) for name in NAMES[: draw.randint(1, 3)]}
        self.weights: Any = self.weights_of(self.made)
        self.view = self.mixed(self.made, self.weights)
        self.state: Any = None
        self.options: dict[str, Any] = {}
        self.changed()

    def texts(self, name: str) -> Texts:
        return Texts(name, self.made[name].sizes, self.seed)

    def view_of(self, ref: Any, budget: int = BUDGET) -> Any:
        if self.kind == "token_windows":
            return ref.token_windows("ids", BUDGET, labels=None, **self.more)
        return ref.packed("ids", budget, **self.more)

    def weights_of(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self.draw.randint(1, 5) for name in names}

    def mixed(self, names: Iterable[str], weights: Any, budget: int = BUDGET) -> Any:
        sources: dict[str, Any] = {name: self.texts(name) for name in names}
        if self.kind == "own packs":
            sources = {name: self.view_of(ref) for name, ref in sources.items()}
        mix: Any = yoga.mix(sources, weights, cell=self.cell, source_column="source", **self.rows)
        return mix if self.kind == "own packs" else self.view_of(mix, budget)

    def program(self, names: Iterable[str]) -> Any:
        """The mixture as a program makes it, with the state that it goes on from."""
        return self.mixed(names, self.weights)

    def changed(self) -> None:
        """From here on every prefix has the shares."""
        self.held = dict.fromkeys(self.made, 0)
        self.most = 0

    def give(self, rows: list[Any]) -> None:
        for row in rows:
            name = self.view.names[int(np.asarray(row["source"]).reshape(-1)[0])]
            tokens = np.asarray(row["ids"]).tolist()
            assert {token // 10_000 for token in tokens} == {NAMES.index(name)}
            self.made[name].give(self, tokens)
            size = 1 if self.kind == "own packs" else len(tokens)
            self.held[name] += size
            total, whole = sum(self.held.values()), sum(self.weights.values())
            bound = 2 + self.cell / 2 if self.kind == "own packs" else BUDGET
            for other, held in self.held.items():
                assert abs(held - total * self.weights[other] / whole) <= bound

    def train(self) -> None:
        draw = self.draw
        more = {"shuffle": self.shuffle, **self.options}
        job = self.job(self.view, self.state, draw.randint(1, 3), draw.randint(1, 4), **more)
        for _ in range(draw.randint(1, 9)):
            self.give(job.step())
        if draw.random() < 0.2:
            self.weights = self.weights_of(self.view.names)
            job.reweight(self.weights)
            self.changed()
        self.state = job.state
        assert len(json.dumps(self.state)) <= 4096
        found = {one.name: one.rows for one in self.view.account(at=self.state).sources}
        assert found == {name: made.given for name, made in self.made.items()}

    def change(self) -> None:
        """Makes the mixture anew, as a program that is started again; something may be new."""
        draw = self.draw
        change = draw.choice(["same view", "nothing", "weights", "source", "grow", "told", "repack"])
        self.options = {}
        if change == "same view":
            self.view = pickle.loads(pickle.dumps(self.view))
            return
        if change == "source" and len(self.made) < len(NAMES):
            name = NAMES[len(self.made)]
            self.made[name] = Made(name, draw.randint(8, 30))
            self.changed()
        if change in ("grow", "told"):
            for name in draw.sample(list(self.made), draw.randint(1, len(self.made))):
                self.made[name].sizes.append(self.made[name].sizes[-1] + draw.choice([1, 3, 20]))
        if change in ("grow", "told"):
            self.changed()
        if change == "told":
            self.options = {"appended": "next"}
            names = [*self.view.names]
            self.view = self.mixed(names, self.weights)
            return
        if change in ("weights", "source", "grow"):
            before, self.weights = self.weights, self.weights_of(self.made)
            one, other = sum(before.values()), sum(self.weights.values())
            if any(before.get(name, 0) * other != self.weights[name] * one for name in self.made):
                self.changed()  # else nothing changes
        names = [*self.view.names, *(name for name in self.made if name not in self.view.names)]
        self.view = self.program(names)
        self.view = self.view.reweighted(self.weights, at=self.state)


LENGTHS = np.random.default_rng(3).integers(1, BUDGET, 90).tolist()


def versions_of(folder: Path, more: int = 7) -> tuple[list[yoga.DataRef], yoga.DataRef]:
    """A source, to which documents were appended twice, and one that stays as it is."""
    storage, ends = yoga.Storage(folder), np.cumsum([0, *LENGTHS]).tolist()
    rows = [{"ids": np.arange(start, stop)} for start, stop in itertools.pairwise(ends)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    refs = [storage.submit(rows[:40], "a", "1", schema=schema, progress=False)]
    refs.append(storage.append(rows[40 : 40 + more], "a", "2", progress=False))
    refs.append(storage.append(rows[40 + more : 70], "a", "3", progress=False))
    return refs, storage.submit(rows[70:], "b", "1", schema=schema, progress=False)


def told(batches: list[Any], source: int | None = None) -> list[list[int]]:
    """The tokens of batches of one row, of one source, or of all."""
    return [
        batch["ids"].reshape(-1).tolist()
        for batch in batches
        if source is None or int(batch["source"].reshape(-1)[0]) == source
    ]


@pytest.mark.parametrize("shuffle", [True, False, "block"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("packed", {"labels": "same"}),
        ("packed", {"balance": True}),
        ("packed", {"long": "split"}),
        ("token_windows", {"jitter": True}),
        ("token_windows", {"documents": True, "separator": 0}),
    ],
)
def test_passes_are_finished_as_they_were_begun(
    tmp_path: Path, kind: str, more: dict[str, Any], shuffle: Any
) -> None:
    """To the row, under other ranks and workers, by loaders and by weights; then all documents come."""
    refs, other = versions_of(tmp_path)
    budget = 8 if more.get("long") else BUDGET
    made: list[Any] = [
        getattr(yoga.mix({"a": ref, "b": other}, {"a": 2, "b": 1}, rows=600, source_column="source"), kind)(
            "ids", budget, **more
        )
        for ref in refs
    ]
    options = {"shuffle": shuffle, "batch_size": 1}
    length = len(made[0].sources[0])
    plain = told(batches_of(made[0], steps=70, **options)[0], 0)
    for steps in (1, 5, 12):
        first, state = batches_of(made[0], steps=steps, **options)
        count = len(told(first, 0))
        with pytest.raises(StateError, match=r"appended since the state.*'a' \(.*Pass appended='next'"):
            batches_of(made[1], steps=1, state=state, **options)
        with pytest.raises(StateError, match=r"source 'a', and the rest .* pass appended='next'"):
            batches_of(made[1], steps=1, state=state, appended="now", **options)
        second, then = batches_of(made[1], 2, 4, state=state, appended="next", **options)
        assert "appended" not in then
        third, _ = batches_of(made[1], 1, 12, state=then, num_workers=2 * (steps == 5), **options)
        weighed = made[1].reweighted({"a": 2, "b": 1}, at=state)
        assert told(batches_of(weighed, 3, 4, state=state, **options)[0])[:8] == told(second)
        of_a = told([*first, *second, *third], 0)
        assert of_a[: min(length, len(of_a))] == plain[:length][: len(of_a)]
        # Once more, in the pass that is under way, or in the one after it.
        last, end = batches_of(made[2], 1, 70, state=then, appended="next", **options)
        again = told([*first, *second, *last], 0)
        assert again[:length] == plain[:length]
        after = again[length:]
        assert len(after) > 2
        tokens = [token for row in again[length : length + len(made[2].sources[0])] for token in row]
        if not more.get("separator", 1):
            tokens = [token for token in tokens if token]
        assert len(tokens) == len(set(tokens))
        counted = made[2].counts(at=end)
        assert counted["a"] == len(again)
        sizes = [len(row) for row in again]
        assert count == len(told(first, 0))
        assert made[2].counts(at=end, tokens="ids")["a"] == sum(sizes)
        assert made[2].passes(at=end)["a"] >= 1


@pytest.mark.parametrize("kind", ["packed", "token_windows"])
def test_columns_of_what_grows(tmp_path: Path, kind: str) -> None:
    """States name the sources by all of their columns."""
    refs, other = versions_of(tmp_path)

    def read(number: int, state: Any, columns: list[str] | None) -> tuple[Any, Any]:
        view: Any = getattr(yoga.mix({"a": refs[number], "b": other}, {"a": 2, "b": 1}, rows=600), kind)(
            "ids", BUDGET, documents=True
        )
        view = view if columns is None else view.columns(columns)
        found, state = batches_of(pickle.loads(pickle.dumps(view)), 1, 9, state=state, appended="next")
        return [batch["ids"].tolist() for batch in found], state

    for columns in (["ids"], ["position_ids", "ids"]):
        one, other_one = (read(0, None, some) for some in (columns, None))
        for number in (1, 2, 2):
            assert one[0] == other_one[0]
            assert one[1]["sources"] == other_one[1]["sources"]
            one, other_one = read(number, one[1], columns), read(number, one[1], None)


@settings(max_examples=examples(8))
@given(st.integers(0, 2**32))
def test_each_source_finishes_its_pass_and_goes_on_with_all_documents(seed: int) -> None:
    tell(Story, [seed], Loaders)


def test_growing_stories() -> None:
    tell(Story, range(8), Cursors, 8)


@pytest.mark.soak
def test_many_growing_stories() -> None:
    tell(Story, range(SOAK), Cursors, 8)
