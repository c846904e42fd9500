"""Packs that are made anew in mid-epoch: what has come does not come again, the rest does, once."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own import Own
from packs import batches_of, tokens_of

import torchyoga as yoga
from torchyoga.errors import StateError

SOAK = 10_000
LENGTHS = np.random.default_rng(0).integers(1, 12, 40).tolist()


def came(
    ref: yoga.DataRef, steps: int | None, state: Any = None, world: int = 1, **more: Any
) -> tuple[list[Any], Any]:
    """The packs that all ranks give in so many steps, in the order of their positions, and the state then."""
    return batches_of(ref, world, steps, state=state, **more)


def tokens(batches: list[Any]) -> Counter[int]:
    """Each token, and how often it came; all tokens of `tokens_of` differ."""
    return Counter(token for batch in batches for token in batch["ids"].reshape(-1).tolist())


def told(batches: list[Any]) -> list[Any]:
    return [(batch["ids"].tolist(), batch["rows"].tolist()) for batch in batches]


@pytest.mark.parametrize("shuffle", [True, False, "block"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_at_every_position_the_rest_comes_once_and_later_epochs_are_as_ever(shuffle: Any, epoch: int) -> None:
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12), ref.packed("ids", 30)
    everything = Counter(range(sum(LENGTHS)))
    options = {"shuffle": shuffle}
    whole = yoga.DataLoader(short, 1, seed=7, remainder="keep", **options)
    longer = yoga.DataLoader(long, 1, seed=7, remainder="keep", **options)
    for loader in (whole, longer):
        loader.set_epoch(epoch)
    expected = list(whole)
    longer.set_epoch(epoch + 1)
    after = told(list(longer))
    for place in range(1, len(short)):
        loader = yoga.DataLoader(short, 1, seed=7, remainder="keep", **options)
        loader.set_epoch(epoch)
        batches = iter(loader)
        first = list(itertools.islice(batches, place))
        state = loader.state_dict()
        del batches
        assert told(first) == told(expected[:place])
        made = short.repacked(long, at=state)
        rest, later = came(made, None, state, **options)
        assert tokens(first) + tokens(rest) == everything
        assert all(len(batch["ids"]) <= 30 for batch in rest)
        assert later["epoch"] == epoch + 1
        again, _ = came(made, None, later, **options)
        assert told(again) == after
        report = made.rest()
        assert report is not None
        assert (report.packs, report.tokens) == (len(rest), tokens(rest).total())


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_go_on_where_others_were(workers: int) -> None:
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12, labels="shifted"), ref.packed("ids", 30, labels="shifted")
    first, state = came(short, 6)
    made = short.repacked(long, at=state)
    expected = told(came(made, None, state)[0])
    for world, steps, other in ((1, 3, 2), (2, 2, 3), (3, 1, 1)):
        some, then = came(made, steps, state, world)
        # The program writes the same with the newest state.
        again = short.repacked(long, at=then)
        rest, _ = came(again, None, then, other, num_workers=workers)
        assert told(some) + told(rest) == expected
    assert tokens(first) == tokens(came(short, 6)[0])


class Story:
    """A run in which packs are made anew, and that is resumed: what came, by epoch."""

    def __init__(self, ref: Any, budgets: list[int], options: dict[str, Any]) -> None:
        self.packs = [ref.packed("ids", budget, **options) for budget in budgets]
        self.made: Any = self.packs[0]
        self.used, self.state = 1, None
        self.of: dict[int, Counter[int]] = {}

    def steps(self, steps: int, world: int, **more: Any) -> None:
        before = self.state["epoch"] if self.state else 0
        batches, state = came(self.made, steps, self.state, world, **more)
        self.of[before] = self.of.get(before, Counter()) + tokens(batches)
        self.state = state

    def change(self) -> None:
        if self.state is not None and self.used < len(self.packs):
            self.made = self.made.repacked(self.packs[self.used], at=self.state)
            self.used += 1

    def resume(self) -> None:
        """Makes all anew from the newest state, as a program that is started again."""
        if self.state is not None:
            self.made = self.packs[0]
            for packs in self.packs[1 : self.used]:
                self.made = self.made.repacked(packs, at=self.state)
            self.made = pickle.loads(pickle.dumps(self.made))


@given(
    lengths=st.lists(st.integers(0, 20), min_size=6, max_size=30),
    budgets=st.lists(st.integers(8, 40), min_size=2, max_size=4),
    long=st.sampled_from(["split", "drop", "cut"]),
    shuffle=st.sampled_from([True, False, "block"]),
    acts=st.lists(
        st.one_of(st.just("change"), st.just("resume"), st.tuples(st.integers(1, 4), st.integers(1, 3))),
        min_size=2,
        max_size=12,
    ),
)
@pytest.mark.filterwarnings("ignore:packed. :UserWarning")
def test_stories(lengths: list[int], budgets: list[int], long: Any, shuffle: Any, acts: list[Any]) -> None:
    tell(lengths, budgets, long, shuffle, acts)


def tell(lengths: list[int], budgets: list[int], long: Any, shuffle: Any, acts: list[Any]) -> None:
    ref = tokens_of([*lengths, 5])
    ends = np.cumsum([0, *lengths, 5]).tolist()
    story = Story(ref, sorted(budgets), {"long": long})
    for act in acts:
        if act == "change":
            story.change()
        elif act == "resume":
            story.resume()
        else:
            story.steps(*act, shuffle=shuffle)
    for _ in range(2):  # to the end of the running epoch, and of the next
        story.steps(10_000, 2, shuffle=shuffle)
        assert story.state["epoch"] == max(story.of) + 1
    least, most = min(budgets), max(budgets)
    for epoch, found in story.of.items():
        assert max(found.values()) == 1, (epoch, found)
        for start, stop in itertools.pairwise(ends):
            own = sum(found[token] for token in range(start, stop))
            length = stop - start
            if long == "split":
                assert own == length
            elif long == "cut":
                assert min(length, least) <= own <= min(length, most)
            elif length <= least:
                assert own == length


def test_pieces_of_a_row_that_came_do_not_come_again() -> None:
    ref = tokens_of([30, 3, 4, 25, 5])
    short, long = (ref.packed("ids", budget, long="split") for budget in (8, 20))
    for place in range(1, len(short)):
        first, state = came(short, place)
        rest, _ = came(short.repacked(long, at=state), None, state)
        assert tokens(first) + tokens(rest) == Counter(range(67))
        for batch in rest:
            ends = itertools.pairwise(batch["cu_seqlens"].tolist())
            for (a, b), row, begin in zip(
                ends, batch["rows"].tolist(), batch["begins"].tolist(), strict=True
            ):
                own = ref[row]["ids"][begin : begin + b - a].tolist()
                assert batch["ids"][a:b].tolist() == own


def test_filled_packs_become_wider() -> None:
    ref = tokens_of(LENGTHS)
    short, long = (ref.packed("ids", n, labels="same", padded=0) for n in (12, 32))
    first, state = came(short, 5)
    made = short.repacked(long, at=state)
    rest, _ = came(made, None, state)
    assert {batch["ids"].shape[1] for batch in rest} == {32}
    rows = [row for batch in [*first, *rest] for row in batch["rows"].tolist()]
    assert sorted(rows) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("world", [3, 5])
def test_packs_that_fill_up_ranks_are_as_wide_as_the_others(world: int) -> None:
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12, padded=0), ref.packed("ids", 30, padded=0)
    for steps in range(1, len(short)):
        _, state = came(short, steps)
        made = short.repacked(long, at=state)
        rest, _ = batches_of(made, world, state=state, remainder="pad", batch_size=2)
        assert {batch["ids"].shape[1] for batch in rest} == {30}


def test_batches_that_came_early_leave_packs_of_before() -> None:
    """With in_order=False positions before the change may be left: they keep their packs."""
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12), ref.packed("ids", 30)
    whole, state = came(short, 8)
    early = {**state, "position": 6, "left": [[2, 4]], "proof": None}
    made = short.repacked(long, at=early)
    rest, _ = came(made, None, early)
    assert told(rest[:2]) == told(whole[2:4])
    assert tokens(whole) + tokens(rest[2:]) == Counter(range(sum(LENGTHS)))


def test_at_the_end_of_an_epoch_the_next_is_of_the_new_packs() -> None:
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12), ref.packed("ids", 30)
    _, state = came(short, None)
    assert state["epoch"] == 1
    made = short.repacked(long, at=state)
    assert made.rest() is None
    loader = yoga.DataLoader(long, 1, shuffle=True, seed=7)
    loader.set_epoch(1)
    found, later = came(made, None, state)
    assert told(found) == told(list(loader))
    assert len(made) == len(long)
    assert later["stages"].count(">") == 1
    assert "+" not in later["stages"]


def test_states_say_where_packs_were_made_anew() -> None:
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12), ref.packed("ids", 30)
    _, state = came(short, 6)
    _, later = came(short.repacked(long, at=state), 2, state)
    ways = later["stages"].removeprefix("0:").split(">")
    assert [way.partition("@")[0] for way in ways] == ["12", "30"]
    assert ways[1].endswith("+6")
    assert later["length"] == 6 + short.repacked(long, at=later).rest().packs  # type: ignore[union-attr]
    assert len(json.dumps(later)) < 600


def test_what_does_not_fit_together_is_refused() -> None:
    ref = tokens_of(LENGTHS)
    short, long = ref.packed("ids", 12), ref.packed("ids", 30)
    _, state = came(short, 6)
    _, other = came(short, 9)
    made = short.repacked(long, at=state)
    with pytest.raises(StateError):
        came(made, 1, other)
    with pytest.raises(StateError, match=r"is neither of these .* packs, nor of what repacked"):
        ref.packed("ids", 14).repacked(long, at=state)
    with pytest.raises(StateError):
        came(short.repacked(ref.packed("ids", 20), at=state), 1, came(made, 1, state)[1])
    with pytest.raises(StateError):
        came(made, 1, state, shuffle=False)
    with pytest.raises(StateError):
        came(made, 1, {**state, "seed": 8})
    with pytest.raises(ValueError, match="of the same documents"):
        short.repacked(tokens_of([*LENGTHS, 3]).packed("ids", 30), at=state)
    with pytest.raises(TypeError, match="takes the packs from there on"):
        short.repacked(ref, at=state)
    with pytest.raises(ValueError, match="pieces of documents go on as pieces"):
        short.repacked(ref.packed("ids", 30, long="split"), at=state)
    late = short.repacked(long, at=came(short, None)[1])
    with pytest.raises(ValueError, match="lies before place"):
        next(iter(yoga.DataLoader(late, 1, shuffle=True, seed=7)))
    alone = {**state, "share": [0, 2, 3, 1], "left": [[4, 6]]}
    with pytest.raises(StateError, match="of rank 0 of 2"):
        short.repacked(long, at=alone)


def test_columns_may_be_left_out() -> None:
    rows = [{"ids": np.arange(n), "k": number} for number, n in enumerate(LENGTHS)]
    ref = Own(rows, yoga.Schema.of(rows[0], ragged=["ids"]))
    short, long = ref.packed("ids", 12), ref.packed("ids", 30)
    _, state = came(short, 6)
    made = short.repacked(long, at=state)
    some, _ = came(made.columns(["k", "rows"]), None, state)
    every, _ = came(made, None, state)
    assert [batch["k"].tolist() for batch in some] == [batch["rows"].tolist() for batch in every]
    assert "ids" not in some[0]


@pytest.mark.parametrize("mode", ["next", "now"])
@pytest.mark.parametrize("long", ["split", "drop"])
@pytest.mark.parametrize("world", [1, 3])
def test_documents_that_were_appended(tmp_path: Path, mode: Any, long: Any, world: int) -> None:
    storage, more = yoga.Storage(tmp_path), [7, 2, 9, 4, 4]
    sizes = [len(LENGTHS), len(LENGTHS) + 5, len(LENGTHS) + 10]
    rows = [tokens_of([*LENGTHS, *more, *more])[number] for number in range(sizes[-1])]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    refs = [storage.submit(rows[: sizes[0]], "grown", "1", schema=schema, progress=False)]
    for version, (start, stop) in enumerate(itertools.pairwise(sizes), 2):
        refs.append(storage.append(rows[start:stop], "grown", str(version), progress=False))
    packs = [ref.packed("ids", budget, long=long) for ref, budget in zip(refs, (12, 12, 20), strict=True)]
    first, state = came(packs[0], 4)
    made: Any = packs[0].repacked(packs[1], at=state, appended=mode)
    second, then = came(made, 3 // world, state, world)
    # It is made anew by the same line, and goes on to documents that were appended after that.
    made = packs[0].repacked(packs[1], at=then, appended=mode)
    made = pickle.loads(pickle.dumps(made.repacked(packs[2], at=then, appended=mode)))
    rest, end = came(made, None, then, 2)
    counted = tokens([*first, *second, *rest])
    documents = sizes[0] if mode == "next" else sizes[2]
    assert counted == Counter(range(sum([*LENGTHS, *more, *more][:documents])))
    assert tokens(came(made, None, end)[0]) == Counter(range(sum([*LENGTHS, *more, *more])))
    other = packs[0].repacked(packs[1], at=state, appended="now" if mode == "next" else "next")
    with pytest.raises(StateError):
        came(other, 1, then)
    with pytest.raises(ValueError, match="appended must be"):
        packs[0].repacked(packs[1], at=state, appended="later")  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffle", [True, False, "block"])
@pytest.mark.parametrize("more", [[7, 2, 9, 4, 4], [1]])
def test_a_loader_finishes_its_epoch_with_the_packs_of_before(
    tmp_path: Path, shuffle: Any, more: list[int]
) -> None:
    """At every position, under other ranks and workers; also where there are as many packs as before."""
    storage, sizes = yoga.Storage(tmp_path), [len(LENGTHS), len(LENGTHS) + len(more)]
    rows = [tokens_of([*LENGTHS, *more, 3])[number] for number in range(sizes[1] + 1)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    refs = [storage.submit(rows[: sizes[0]], "grown", "1", schema=schema, progress=False)]
    refs.append(storage.append(rows[sizes[0] : sizes[1]], "grown", "2", progress=False))
    refs.append(storage.append(rows[sizes[1] :], "grown", "3", progress=False))
    packs = [ref.packed("ids", 12, labels="same") for ref in refs]
    everything, options = Counter(range(sum([*LENGTHS, *more]))), {"shuffle": shuffle}
    whole = told(came(packs[0], None, **options)[0])
    for place in range(len(packs[0]) + 1):
        first, state = came(packs[0], place, **options)
        assert told(first) == whole[:place]
        if state["position"]:
            with pytest.raises(
                StateError, match=r"of packs of 40 documents, and \d were appended since. Pass"
            ):
                came(packs[1], 1, state, **options)
            with pytest.raises(StateError, match=r"Give it before\.repacked"):
                came(packs[1], 1, state, **options, appended="now")
        if state["position"]:
            # Under other ranks, and resumed once more without being told, also over still more documents.
            second, then = came(packs[1], 2, state, 2, **options, appended="next")
            third, end = came(packs[1], None, then, 3, **options) if not then["epoch"] else ([], then)
            assert told(first + second + third) == whole
            if third:
                assert told(came(packs[2], None, then, **options, appended="next")[0]) == told(third)
            assert "stages" not in end
        else:
            end = state
        after, last = came(packs[1], None, end, **options, appended="next")
        assert tokens(after) == everything
        plain = yoga.DataLoader(packs[1], 1, seed=7, remainder="keep", **options)
        plain.set_epoch(end["epoch"])
        assert told(list(plain)) == told(after)
        assert last["fingerprint"] == packs[1].fingerprint
    with pytest.raises(StateError):
        came(refs[1].packed("ids", 14, labels="same"), 1, then, **options, appended="next")


@pytest.mark.parametrize("appended", ["next", "now"])
def test_an_epoch_that_is_finished_with_the_packs_of_before_is_packed_anew(
    tmp_path: Path, appended: Any
) -> None:
    """On the way, by the same line with the newest state, and at its end: nothing is lost or comes twice."""
    storage = yoga.Storage(tmp_path)
    rows = [tokens_of([*LENGTHS, 5, 6])[number] for number in range(len(LENGTHS) + 2)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    few = storage.submit(rows[:-2], "grown", "1", schema=schema, progress=False).packed("ids", 12)
    many = storage.append(rows[-2:], "grown", "2", progress=False)
    packs, longer = many.packed("ids", 12), many.packed("ids", 30)
    first, begun = came(few, 3)
    second, state = came(packs, 3, begun, appended="next")
    made = packs.repacked(longer, at=state, appended=appended)
    fourth, then = came(made, 2, state, 2)
    made = pickle.loads(pickle.dumps(packs.repacked(longer, at=then, appended=appended)))
    fifth, last = came(made, None, then)
    documents = [*LENGTHS, 5, 6] if appended == "now" else LENGTHS
    assert tokens(first + second + fourth + fifth) == Counter(range(sum(documents)))
    assert last["epoch"] == 1
    assert tokens(came(made, None, last)[0]) == Counter(range(sum([*LENGTHS, 5, 6])))
    third, end = came(packs, None, state, appended="next")
    assert tokens(first + second + third) == Counter(range(sum(LENGTHS)))
    made = packs.repacked(longer, at=end)
    assert tokens(came(made, None, end)[0]) == Counter(range(sum([*LENGTHS, 5, 6])))
    made = few.repacked(longer, at=begun)
    assert tokens(first + came(made, None, begun)[0]) == Counter(range(sum(LENGTHS)))


def test_workers_finish_with_the_packs_of_before(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    rows = [tokens_of([*LENGTHS, 5, 6])[number] for number in range(len(LENGTHS) + 2)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    few = storage.submit(rows[:-2], "grown", "1", schema=schema, progress=False)
    many = storage.append(rows[-2:], "grown", "2", progress=False)
    first, state = came(few.packed("ids", 30, long="split"), 3)
    rest, end = came(many.packed("ids", 30, long="split"), None, state, num_workers=2, appended="next")
    assert tokens(first) + tokens(rest) == Counter(range(sum(LENGTHS)))
    assert end["epoch"] == 1


def two_costs(c: Any) -> Any:
    return {"tokens": c["ids"].lengths, "images": c["n_img"]}


@pytest.mark.parametrize("max_rows", [None, 3])
def test_several_budgets_and_a_context_that_grows_twice_in_an_epoch(tmp_path: Path, max_rows: Any) -> None:
    ends = np.cumsum([0, *LENGTHS]).tolist()
    rows = [
        {"ids": np.arange(start, stop), "n_img": number % 3}
        for number, (start, stop) in enumerate(itertools.pairwise(ends))
    ]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    ref = yoga.Storage(tmp_path).submit(rows, "pages", "1", schema=schema, progress=False)
    budgets = [{"tokens": 12, "images": 4}, {"tokens": 24, "images": 4}, {"tokens": 48, "images": 6}]
    more: dict[str, Any] = {"cost": two_costs, "along": ["ids"], "max_rows": max_rows}
    packs: list[Any] = [ref.packed(some, **more) for some in budgets]
    for one, other in ((1, 2), (4, 3), (9, 1)):
        found, state = [], None
        made: Any = packs[0]
        for number, steps in enumerate((one, other, None)):
            batches, state = came(made, steps, state, 2 if number == 1 else 1)
            for batch in batches:
                assert len(batch["ids"]) <= budgets[number]["tokens"]
                assert batch["n_img"].sum() <= budgets[number]["images"]
                assert max_rows is None or len(batch["rows"]) <= max_rows
            found += batches
            if number < 2:
                made = made.repacked(packs[number + 1], at=state)
                if number == 1:
                    # A program that is started again, under other ranks.
                    again = packs[0].repacked(packs[1], at=state).repacked(packs[2], at=state)
                    rest = told(came(again, None, state, 3, num_workers=2)[0])
                    assert state["stages"].count(">") == 1
        assert tokens(found) == Counter(range(sum(LENGTHS)))
        assert told(found[-len(rest) :]) == rest
        assert state["stages"].count(">") == 2  # type: ignore[index]
    plain = [ref.packed("ids", 12), ref.packed("ids", 24)]
    first, state = came(plain[0], 4)
    rest, _ = came(plain[0].repacked(packs[2], at=state), None, state)
    assert tokens([*first, *rest]) == Counter(range(sum(LENGTHS)))
    columns = {"ids": 24, "n_img": 4}
    kept = [ref.packed(columns, along=["ids"], name="kept") for _ in range(2)][1]
    with pytest.raises(ValueError, match="kept by name= do not know what documents cost"):
        plain[0].repacked(kept, at=state)
    assert plain[0].repacked(ref.packed(columns, along=["ids"]), at=state).rest() is not None


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:packed. :UserWarning")
def test_many_stories() -> None:
    for seed in range(SOAK):
        draw = random.Random(seed)
        steps = [(draw.randint(1, 4), draw.randint(1, 3)) for _ in range(draw.randint(1, 8))]
        acts = [*steps, *draw.choices(["change", "resume"], k=draw.randint(1, 6))]
        draw.shuffle(acts)
        lengths = [draw.randint(0, 20) for _ in range(draw.randint(6, 30))]
        budgets = [draw.randint(8, 40) for _ in range(draw.randint(2, 4))]
        kinds = draw.choice(["split", "drop", "cut"]), draw.choice([True, False, "block"])
        try:
            tell(lengths, budgets, *kinds, acts)
        except Exception as error:
            raise AssertionError(f"story {seed}: {error!r}") from error
