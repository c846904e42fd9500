"""Packs, windows and batches of mixtures: shares of them in every prefix, each source by itself."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Own
from packs import batches_of
from quick import examples

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.views.packs.packed import MixedPacks

BUDGET = 16
NAMES = ("web", "code", "math")


def source_of(lengths: list[int], first: int) -> yoga.DataRef:
    """Documents of so many tokens; a token says which document it is of, and its place there."""
    rows = [{"ids": 1000 * (first + n) + np.arange(length)} for n, length in enumerate(lengths)]
    return Own(rows, yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]))


def sources_of(seed: int = 0, most: int = 12) -> dict[str, yoga.DataRef]:
    rng = np.random.default_rng(seed)
    counts = {"web": 60, "code": 35, "math": 9}
    return {
        name: source_of(rng.integers(1, most, counts[name]).tolist(), 1000 * number)
        for number, name in enumerate(NAMES)
    }


def documents(batch: Any) -> list[int]:
    """The documents of a batch of packs; each is whole, and tokens in their order."""
    found = []
    for start, stop in itertools.pairwise(batch["cu_seqlens"].tolist()):
        tokens = batch["ids"][start:stop].tolist()
        assert tokens == list(range(tokens[0], tokens[0] + stop - start))
        assert tokens[0] % 1000 == 0
        found.append(tokens[0] // 1000)
    return found


def off(batches: list[Any], weights: dict[str, float]) -> float:
    """How many packs a prefix is off the shares, at most."""
    return most_off(np.array([batch["source"].flatten()[0].item() for batch in batches]), weights)


def most_off(of: np.ndarray, weights: dict[str, float]) -> float:
    """The same of the numbers of their sources."""
    whole, places = sum(weights.values()), np.arange(1, len(of) + 1)
    return max(
        float(np.abs(np.cumsum(of == number) - places * weight / whole).max())
        for number, weight in enumerate(weights.values())
    )


def sources_in(view: Any, epoch: int, shuffle: Any = True) -> np.ndarray:
    """The numbers of the sources in the order in which they come in an epoch."""
    numbers = view.order(7, shuffle, True, 1).rows(epoch, np.arange(len(view)))
    found = np.empty(len(numbers), np.int64)
    for _, number, places, _ in view.dealt(numbers):
        found[places] = number
    return found


@settings(max_examples=examples(12))
@given(
    lengths=st.lists(st.lists(st.integers(1, BUDGET), min_size=1, max_size=60), min_size=2, max_size=7),
    weights=st.lists(st.integers(1, 99), min_size=7, max_size=7),
    rows=st.integers(20, 400),
    cell=st.sampled_from([1, 8, 20, 64]),
    shuffle=st.sampled_from([True, False, "block"]),
)
def test_every_prefix_has_its_shares_of_packs(
    lengths: list[list[int]], weights: list[int], rows: int, cell: int, shuffle: Any
) -> None:
    refs = {f"s{n}": source_of(some, 1000 * n) for n, some in enumerate(lengths)}
    of = {name: float(weight) for name, weight in zip(refs, weights, strict=False)}
    mix = yoga.mix(refs, of, rows=rows, source_column="source", cell=cell).packed("ids", BUDGET)
    loader = yoga.DataLoader(mix, 1, shuffle=shuffle, seed=3)
    batches = [batch for _ in range(2) for batch in loader]
    assert len(batches) == 2 * len(mix)
    assert off(batches, of) <= 1.5 + cell / 2
    # Each source goes through its documents, in one pass after the other, and no document comes between.
    for number, ref in enumerate(refs.values()):
        own = [documents(batch) for batch in batches if batch["source"].item() == number]
        packs = len(ref.packed("ids", BUDGET))
        for start in range(0, len(own), packs):
            some = Counter(itertools.chain(*own[start : start + packs]))
            assert max(some.values()) == 1
            if start + packs <= len(own):
                assert sorted(some) == [1000 * number + row for row in range(len(ref))]


WEIGHTS = {"web": 5.0, "code": 3.0, "math": 2.0}


def mixed(**more: Any) -> Any:
    return yoga.mix(sources_of(), WEIGHTS, rows=150, source_column="source", **more)


def test_packs_are_filled_anew_in_each_pass() -> None:
    refs = {"one": source_of([4, 4, 8] * 10, 0), "other": source_of([8, 8] * 4, 1000)}
    mix = yoga.mix(refs, {"one": 1, "other": 1}, rows=200, source_column="source").packed("ids", BUDGET)
    (batches, _) = batches_of(mix)
    packs = [tuple(sorted(documents(batch))) for batch in batches if batch["source"].item() == 1]
    passes = [frozenset(packs[start : start + 4]) for start in range(0, len(packs) // 4 * 4, 4)]
    assert len(passes) > 8
    assert len(set(passes)) > 3


@settings(max_examples=examples(6))
@given(seed=st.integers(0, 99), long=st.sampled_from(["error", "split"]), count=st.sampled_from([3, 40, 99]))
def test_packs_of_several_sources_are_those_of_each(seed: int, long: Any, count: int) -> None:
    refs = sources_of(seed, most=40 if long == "split" else 12)
    packs = {name: ref.packed("ids", BUDGET, long=long, seed=seed) for name, ref in refs.items()}
    mix: Any = yoga.mix(packs, {"web": 1, "code": 2, "math": 3}, rows=400)
    numbers = mix.order(seed, True, True, 1).rows(seed % 3, np.arange(count) * 397 % 400)
    found = mix.take(numbers)
    for ref, _, places, own in mix.dealt(numbers):
        for place, row in zip(places.tolist(), ref.take(own), strict=True):
            assert {name: value.tolist() for name, value in found[place].items()} == {
                name: value.tolist() for name, value in row.items()
            }
    wholes: list[int] = []
    first, *_ = parts = [(ref, places, own) for ref, _, places, own in mix.dealt(numbers)]
    opened: Any = first[0].opened(parts)
    for _, places, rows in opened:
        wholes += places.tolist()
        assert len(places) == len(rows)
    assert sorted(wholes) == list(range(sum(len(row["rows"]) for row in found)))


def test_windows_of_a_mixture_are_windows_of_its_sources() -> None:
    mix = mixed().token_windows("ids", 8, labels="shifted", documents=True)
    loader = yoga.DataLoader(mix, 1, shuffle=True, seed=7)
    batches = [batch for _ in range(3) for batch in loader]
    assert off(batches, WEIGHTS) <= 1.5 + 32
    assert mix.counts(64 * 3)["web"] == 96
    own = [{tuple(row["ids"].tolist()) for row in source} for source in mix.sources]
    for number in range(3):
        windows = [tuple(b["ids"][0].tolist()) for b in batches if b["source"].item() == number]
        count = len(mix.sources[number])
        for start in range(0, len(windows) - count + 1, count):
            assert set(windows[start : start + count]) == own[number]


def test_batches_of_a_mixture_say_their_source() -> None:
    mix = mixed().token_batches("ids", 64, max_rows=8)
    assert mix.report().rows == sum(len(source.whole) for source in mix.sources)
    loader = yoga.DataLoader(mix, batch_size=None, shuffle=True, seed=7)
    batches: Counter[int] = Counter()
    for _ in range(6):
        for batch in loader:
            (source,) = set(batch["source"].tolist())
            assert len(batch["source"]) == len(batch["ids"].values)
            assert {int(row[0]) // 1_000_000 for row in batch["ids"].values} == {source}
            batches[source] += 1
    for number, weight in enumerate(WEIGHTS.values()):
        assert abs(batches[number] / batches.total() - weight / 10) < 0.02


def test_mixtures_within_a_mixture_keep_their_shares() -> None:
    refs = sources_of()
    inner = yoga.mix({"web": refs["web"], "code": refs["code"]}, {"web": 3, "code": 1}, source_column="part")
    mix = yoga.mix({"text": inner, "math": refs["math"]}, {"text": 4, "math": 1}, rows=200, columns=["ids"])
    assert mix.names == ["text/web", "text/code", "math"]
    assert mix.counts(1000) == {"text/web": 600, "text/code": 200, "math": 200}
    flat = yoga.mix(
        {"text/web": refs["web"], "text/code": refs["code"], "math": refs["math"]},
        {"text/web": 3, "text/code": 1, "math": 1},
        rows=200,
    )
    assert [row["ids"].tolist() for row in mix] == [row["ids"].tolist() for row in flat]
    nested = {"text": inner, "math": refs["math"]}
    packed = yoga.mix(
        nested, {"text": 4, "math": 1}, columns=["ids"], rows=200, source_column="source"
    ).packed("ids", BUDGET)
    batches, _ = batches_of(packed)
    assert off(batches, {"a": 3, "b": 1, "c": 1}) <= 1.5 + 32
    with pytest.raises(ValueError, match="two sources are called the same"):
        yoga.mix({"a": inner.columns(["ids"]), "a/web": refs["web"]}, {"a": 1, "a/web": 1})


def test_views_of_a_mixture_are_of_each_source() -> None:
    plain = mixed().packed("ids", BUDGET)
    for ref in (mixed().columns(["ids"]), mixed().map_batches(same)):
        found = ref.packed("ids", BUDGET)
        assert isinstance(found, MixedPacks)
        one, other = batches_of(plain)[0], batches_of(found)[0]
        assert [b["ids"].tolist() for b in one] == [b["ids"].tolist() for b in other]
    # Where the rows were changed, each document says the source.
    assert len(other[0]["source"]) == len(other[0]["rows"])


def same(c: Any) -> Any:
    return c


def test_sizes_are_packs_and_epochs_are_passes() -> None:
    refs = sources_of()
    sizes = yoga.mix(refs).packed("ids", BUDGET)
    report = sizes.report()
    assert sizes.columns(["ids"]).report() == report
    assert len(sizes) == report.packs == sum(map(len, sizes.sources))  # each document once
    assert (report.rows, report.budget) == (60 + 35 + 9, BUDGET)
    found = Counter(itertools.chain(*map(documents, batches_of(sizes)[0])))
    assert set(found.values()) == {1}
    assert len(found) == 60 + 35 + 9
    every = yoga.mix(refs, {"web": 1, "code": 1, "math": 5}, until="all").packed("ids", BUDGET)
    counts = Counter(itertools.chain(*map(documents, batches_of(every)[0])))
    assert len(counts) == 60 + 35 + 9
    held = sum(map(len, map(documents, batches_of(mixed().packed("ids", BUDGET))[0])))
    assert abs(held - 150) < 15  # as many documents as an epoch was to have
    with pytest.raises(ValueError, match=r"reads the .* rows of 'math'"):
        yoga.mix(refs, WEIGHTS, rows=150, epochs=2).packed("ids", BUDGET)


def test_bad_sources_are_named() -> None:
    refs = sources_of()
    long = {**refs, "code": source_of([3, 40], 1000)}
    mix = yoga.mix(long, WEIGHTS, rows=20)
    with pytest.raises(ValueError, match=r"source 'code': 1 of 2 rows .*\n?.*long=") as caught:
        mix.packed("ids", BUDGET)
    assert "'split'" in str(caught.value)
    assert len(mix.packed("ids", BUDGET, long="split")) > 0
    with pytest.raises(ValueError, match="source 'code': 1 of 2 rows are longer than budget"):
        mix.token_batches("ids", BUDGET)
    empty = yoga.mix({**refs, "code": source_of([0, 0], 1000)}, WEIGHTS, rows=20)
    with pytest.raises(ValueError, match="of the source 'code', of 2 rows, there is not one"):
        empty.packed("ids", BUDGET)
    with pytest.raises(ValueError, match="lengths are of one source"):
        mix.token_windows("ids", 4, lengths=np.ones(20, int))
    with pytest.raises(ValueError, match="lengths are of one source"):
        mix.token_batches(np.ones(20, int), 4)
    with pytest.raises(KeyError, match="there is no column 'no'"):
        mix.packed("no", BUDGET)


@pytest.mark.parametrize("way", ["reweighted", "load"])
def test_sources_that_went_or_became_others_are_named_with_the_step(way: str) -> None:
    refs, state = sources_of(), batches_of(mixed().packed("ids", BUDGET), steps=5)[1]
    more = source_of([3, 5, 7, 9, 2], 0)

    def goes_on(sources: dict[str, yoga.DataRef], budget: int = BUDGET) -> None:
        weights = dict(zip(sources, (5.0, 3.0, 2.0), strict=False))
        made = yoga.mix(sources, weights, rows=150, source_column="source").packed("ids", budget)
        if way == "load":
            batches_of(made, 1, 1, state=state)
        else:
            made.reweighted(weights, at=state)

    few = {name: refs[name] for name in ("web", "code")}
    renamed = {("www" if name == "web" else name): ref for name, ref in refs.items()}
    for sources, budget, message in (
        (few, BUDGET, "mixes the source 'math', which is not here.* Pass it under that name"),
        (renamed, BUDGET, "mixes the source 'web', which is not here"),
        (
            {**refs, "code": more},
            BUDGET,
            "of the source 'code', which are not those.* make them of the version",
        ),
        (refs, 32, "rows of the source 'web', which are not those.* such as packs of another budget"),
    ):
        with pytest.raises(
            StateError, match=f"^the state, at step 5 of epoch 0, position 5, .*{message}"
        ) as caught:
            goes_on(sources, budget)
        assert "strict=" not in str(caught.value)  # reweighted has no such argument


def test_token_columns_of_other_types_are_named_with_the_source() -> None:
    texts = {name: Own([{"ids": "abc"}] * 9, yoga.Schema.of({"ids": "abc"})) for name in "ab"}
    with pytest.raises(TypeError, match=r"^source 'a': packed\('ids', ...\) needs a column with a value"):
        yoga.mix(texts, {"a": 1, "b": 1}).packed("ids", BUDGET)
    schema = yoga.Schema.of({"ids": np.arange(3.0)}, ragged=["ids"])
    floats = {name: Own([{"ids": np.arange(3.0)}] * 9, schema) for name in "ab"}
    with pytest.raises(ValueError, match="source 'a': labels='ids' are int64, but the column holds <f8"):
        yoga.mix(floats, {"a": 1, "b": 1}).packed("ids", BUDGET, labels="same")


@settings(max_examples=8, deadline=None)
@given(data=st.data(), cell=st.sampled_from([1, 8, 64]), shuffle=st.sampled_from([True, False]))
def test_stories_of_packs_whose_weights_change(data: Any, cell: int, shuffle: bool) -> None:
    """From each change on every prefix has its shares, and each document comes once in a pass."""
    weights, state = dict(WEIGHTS), None
    view: Any = mixed(cell=cell).packed("ids", BUDGET)
    own: dict[str, list[Any]] = {name: [] for name in NAMES}
    for _ in range(4):
        world, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 30))
        batches, state = batches_of(view, world, steps, state=state, shuffle=shuffle)
        if batches:
            assert off(batches, weights) <= 1.5 + cell / 2 + 1
        for batch in batches:
            own[NAMES[batch["source"].item()]].append(documents(batch))
        weights = {name: float(data.draw(st.integers(1, 9))) for name in NAMES}
        view = mixed(cell=cell).packed("ids", BUDGET)
        view = view.reweighted(weights, at=state)
        assert view.counts(at=state) == {name: len(some) for name, some in own.items()}
    for name, packs in zip(NAMES, view.sources, strict=True):
        for start in range(0, len(own[name]), len(packs)):
            came = Counter(itertools.chain(*own[name][start : start + len(packs)]))
            assert max(came.values()) == 1


def test_a_block_shuffle_keeps_shares_and_blocks() -> None:
    """Thousands of packs, full ones first; windows are all alike, so they may keep to their files."""
    sources = {"a": source_of([16] * 5000 + [9] * 5000, 0), "b": source_of([16] * 5000, 20_000)}
    mix = yoga.mix(sources, {"a": 1, "b": 1}, rows=5000, source_column="source")
    packs = mix.packed("ids", BUDGET)
    assert most_off(sources_in(packs, 0, "block"), {"a": 1, "b": 1}) <= 1.5 + 32
    windows = mix.token_windows("ids", BUDGET)
    order = windows.order(7, "block", True, 1)
    numbers = order.rows(0, np.arange(2000))
    rows = [own for ref, number, _, own in windows.dealt(numbers) if number == 0]
    assert np.ptp(np.concatenate(rows)) < 4096 < len(windows.sources[0])


def test_methods_of_other_views_are_not_looked_for_in_an_info() -> None:
    mix = mixed()
    with pytest.raises(AttributeError, match=r"^this Own has no reweighted, which yoga\.mix.*mixtures\.md$"):
        mix.sources[0].reweighted({}, at={})
    assert not hasattr(mix, "members")
    with pytest.raises(AttributeError, match="has no licence: its info says"):
        mix.licence  # noqa: B018


@pytest.mark.parametrize("kind", ["packed", "token_windows", "token_batches"])
def test_documents_whose_weights_change_are_refused(kind: str) -> None:
    """Stages are places among documents, which packs, windows and batches do not have."""
    early, late = {"web": 1, "code": 0, "math": 0}, {"web": 0, "code": 1, "math": 0}
    mix: Any = mixed()
    state = batches_of(mix, steps=5)[1]
    for changing in (mix.staged([(0, early), (64, late)]), mix.reweighted(late, at=state)):
        for view in (changing, changing.columns(["ids"])):
            with pytest.raises(ValueError, match=rf"^{kind}: .*mix\.{kind}\(\.\.\.\)\.staged"):
                getattr(view, kind)("ids", BUDGET)
    # One stage, or weights that stay, change nothing.
    for same in (mix.staged([(0, early)]), mix.reweighted(late, at=yoga.DataLoader(mix, 3).state_dict())):
        assert (
            getattr(same, kind)("ids", BUDGET).mixture.stages[-1].weights == same.mixture.stages[-1].weights
        )


@pytest.mark.parametrize("kind", ["packed", "token_windows", "token_batches"])
def test_stages_begin_in_later_epochs(kind: str) -> None:
    """At the end of the cell of their position, or of its epoch."""
    ref: Any = mixed(cell=8)
    made = getattr(ref, kind)("ids", BUDGET)
    early, late = {"web": 1, "code": 0, "math": 0}, {"web": 0, "code": 1, "math": 0}
    for position in (0.5, 1, 2.3, 3, 3.9):
        place = round(position * len(made))
        course = made.staged([(0, early), (place, late), (place * 2, early)])
        came = np.concatenate([sources_in(course, epoch) for epoch in range(5)]).tolist()
        first = came.index(1)
        assert place <= first <= place + 8
        assert set(came[:first]) == {0}
        assert first <= -(-place // len(made)) * len(made)
        assert 0 not in came[first : place * 2]
