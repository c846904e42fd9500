"""Random stories of training jobs that are killed and resumed, by arithmetic alone: every row comes once."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.order.by_file import BlockOrder
from torchyoga.order.cursor import Cursor
from torchyoga.order.epoch import Iteration, IterationOptions
from torchyoga.order.full import Order
from torchyoga.order.place import Shard, taken

STYLES = ("plain", "ddp", "tutorial", "lightning", "counts anew", "peeks first", "peeks and binds")
SOAK = 500_000


class Iterator:
    """An iterator that a training loop holds."""


class Job:
    """Processes that train in step, from a state until they are killed; `rows` records each epoch."""

    def __init__(self, chance: random.Random, story: Story, states: list[Any] | None) -> None:
        self.chance, self.story = chance, story
        self.world, self.size = chance.choice([1, 1, 1, 2, 3, 4, 7]), chance.randint(1, 9)
        self.policy = chance.choice(["keep", "drop", "pad"])
        self.drop_last = chance.random() < 0.3
        self.in_order = self.world > 1 or chance.random() < 0.3
        self.style = chance.choice(STYLES)
        self.cursors = []
        for rank in range(self.world):
            cursor = Cursor(story.order(self.world), Shard(self.world, rank, self.policy), fingerprint="f")
            if states is not None:
                cursor.load_state_dict(json.loads(json.dumps(states[0])))
            self.cursors.append(cursor)
        self.counter = 0 if self.style == "counts anew" else self.cursors[0].epoch

    def begin(self) -> list[tuple[Iteration, Iterator]]:
        found = []
        for cursor in self.cursors:
            made, iterator = cursor.num_begun, Iterator()
            run = cursor.iteration(IterationOptions(self.size, self.drop_last, self.in_order, made))
            run.hold(iterator)
            cursor.begun(run)
            found.append((run, iterator))
        return found

    def set_epoch(self) -> None:
        for cursor in self.cursors:
            cursor.set_epoch(self.counter)

    def peek(self) -> None:
        """Looks at a batch, as `next(iter(loader))` does."""
        for cursor, (run, _) in zip(self.cursors, self.begin(), strict=True):
            if run.num_steps:
                run.deliver(0)
                cursor.reached(run)
            else:
                cursor.finished(run)  # the end is reported to it

    def epoch(self, most: int) -> list[Any] | None:
        """Trains one epoch; returns the states if it was killed after `most` steps."""
        if self.style in ("tutorial", "peeks and binds") or (
            self.style == "peeks first" and not self.story.peeked
        ):
            self.story.peeked = True
            if self.story.has_steps(self):
                self.peek()
        if self.style in ("ddp", "tutorial", "counts anew", "peeks and binds"):
            self.set_epoch()
        runs = self.begin()
        if self.style == "lightning":
            self.set_epoch()
            if runs[0][0].start != self.cursors[0].begin(self.size, self.drop_last):
                runs = self.begin()  # it had not begun: its first batch is asked for after set_epoch
        epoch = runs[0][0].start.epoch
        assert {run.start.epoch for run, _ in runs} == {epoch}, "ranks have fallen apart"
        steps = [run.num_steps for run, _ in runs]
        assert max(steps) - min(steps) <= (self.policy == "keep")
        waiting = [list(range(count)) for count in steps]
        for step in range(max(steps)):
            for rank, (run, _) in enumerate(runs):
                cursor = self.cursors[rank]
                if not waiting[rank]:
                    cursor.finished(run)
                    continue
                ahead = 0 if self.in_order else self.chance.randrange(min(3, len(waiting[rank])))
                number = waiting[rank].pop(ahead)
                self.story.train(epoch, run, number, rank, self)
                run.deliver(number)
                cursor.reached(run)
                if self.style == "lightning" and step == 0:
                    cursor.set_epoch(self.counter)  # called late
            states = [cursor.state_dict() for cursor in self.cursors]
            self.check_in_step(states, runs)
            if step + 1 == most:
                return states
        for cursor, (run, _) in zip(self.cursors, runs, strict=True):
            cursor.finished(run)
        states = [cursor.state_dict() for cursor in self.cursors]
        assert all(state == states[0] for state in states)
        assert (states[0]["epoch"], states[0]["position"]) == (epoch + 1, 0)
        self.counter += 1
        self.story.ended(epoch, self)
        return None

    def check_in_step(self, states: list[Any], runs: list[tuple[Iteration, Iterator]]) -> None:
        assert len({state["epoch"] for state in states}) == 1, f"ranks have fallen apart: {states}"
        assert all(state == states[0] for state in states)
        run = runs[0][0]
        assert self.cursors[0].state_of(run, run.after(run.num_delivered)) == {**states[0]}


class Story:
    """A dataset, and the jobs that trained on it."""

    def __init__(self, chance: random.Random) -> None:
        self.length = chance.randint(0, 40) if chance.random() < 0.8 else chance.randint(41, 300)
        self.kind = chance.choice(["full", "plain", "block", "shard", "block shard"])
        self.seed = chance.randrange(10)
        cuts = sorted(chance.randint(0, self.length) for _ in range(chance.randint(0, 5)))
        self.starts = [0, *cuts, self.length]
        self.rows: dict[int, Counter[int]] = {}
        self.peeked = False
        self.ends: dict[int, bool] = {}

    def order(self, world: int) -> Any:
        if self.kind in ("full", "plain"):
            return Order(self.length, self.seed, self.kind == "full")
        shards = world if "shard" in self.kind else None
        return BlockOrder(
            self.starts, self.seed, "block" if "block" in self.kind else True, window=2, shards=shards
        )

    def has_steps(self, job: Job) -> bool:
        """True if `next(iter(loader))` gives a batch on every rank; otherwise their programs end."""
        return all(
            cursor.iteration(IterationOptions(job.size, job.drop_last)).num_steps for cursor in job.cursors
        )

    def train(self, epoch: int, run: Iteration, number: int, rank: int, job: Job) -> None:
        ranges = taken(run.start, run.shard, self.length, number * job.size, (number + 1) * job.size)
        count = run.shard.count(self.length, run.start.position, rank)
        rows = [position for some in ranges for position in some][: max(count - number * job.size, 0)]
        self.rows.setdefault(epoch, Counter()).update(rows)

    def ended(self, epoch: int, job: Job) -> None:
        """Checks that every position of the epoch came once, except those that the policy of its last job
        adds or leaves out."""
        found = self.rows.pop(epoch, Counter())
        inside = {position: n for position, n in found.items() if position < self.length}
        assert all(n == 1 for n in found.values()), f"rows came twice: {found}"
        missing, added = self.length - len(inside), len(found) - len(inside)
        assert added < job.world if job.policy == "pad" else not added
        most = 0 if job.policy != "drop" else job.world - 1
        if job.drop_last:
            most += job.world * (job.size - 1) + (job.policy == "keep") * (job.world - 1)
        assert missing <= most, f"{missing} rows are lost"


def tell(chance: random.Random) -> None:
    story, states = Story(chance), None
    for _ in range(chance.randint(1, 5)):
        job = Job(chance, story, states)
        story.peeked = False
        for _ in range(chance.randint(0, 2)):
            job.epoch(0)
        states = job.epoch(chance.randint(1, 12))
        if states is None:
            states = [cursor.state_dict() for cursor in job.cursors]


@pytest.mark.parametrize("seeds", [range(500), pytest.param(range(SOAK), marks=pytest.mark.soak)])
def test_stories(seeds: range) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "set_epoch.*counts its epochs anew")
        for seed in seeds:
            try:
                tell(random.Random(seed))
            except (AssertionError, StateError, ValueError, IndexError) as error:
                raise AssertionError(f"story {seed}: {error}") from error


# -- ranks that look at batches, and ask, where others do not


class Rank(NamedTuple):
    """What a rank iterates over, and what has its state."""

    batches: Any
    place: Any


class Shape(NamedTuple):
    """A dataset, and how it is dealt."""

    length: int
    size: int
    world: int
    remainder: Any
    drop_last: bool


def our_loader(shape: Shape, rank: int, **options: Any) -> Rank:
    if "sampler" not in options:
        options |= {"shuffle": True, "remainder": shape.remainder}
    loader = yoga.DataLoader(
        range(shape.length),
        shape.size,
        seed=3,
        num_replicas=shape.world,
        rank=rank,
        drop_last=shape.drop_last,
        **options,
    )
    return Rank(loader, loader)


def foreign_loader(shape: Shape, rank: int) -> Rank:
    weights = torch.ones(shape.length)
    return our_loader(
        shape, rank, sampler=torch.utils.data.WeightedRandomSampler(weights, num_samples=shape.length)
    )


def torchs_loader(shape: Shape, rank: int, is_batched: bool = False) -> Rank:
    sampler = yoga.ResumableSampler(shape.length, shape.world, rank, seed=3, remainder=shape.remainder)
    data = range(shape.length)
    if not is_batched:
        loader = torch.utils.data.DataLoader(data, shape.size, sampler=sampler, drop_last=shape.drop_last)  # type: ignore[arg-type]
        return Rank(loader, sampler)
    batches = yoga.ResumableBatchSampler(sampler, shape.size, shape.drop_last)
    return Rank(torch.utils.data.DataLoader(data, batch_sampler=batches), batches)  # type: ignore[arg-type]


def look(chance: random.Random, rank: Rank, held: list[Any], may_hold: bool) -> None:
    """Does some things that are to change nothing."""
    for _ in range(chance.choice([0, 0, 1, 1, 2, 4])):
        kind = chance.choice(["look", "look", "hold", "drop", "iter", "state", "receipt", "len"])
        if kind == "look" or (kind == "hold" and may_hold):
            iterator = iter(rank.batches)
            next(iterator, None)
            held += [iterator] if kind == "hold" else []
        elif kind == "drop":
            held.clear()
        elif kind == "iter":
            iter(rank.batches)
        elif kind == "len":
            len(rank.batches)
        elif kind == "state":
            rank.place.state_dict()
        elif not isinstance(getattr(rank.place, "sampler", None), torch.utils.data.WeightedRandomSampler):
            rank.place.receipt()


def trained(seed: int, make: Callable[[Shape, int], Rank], is_quiet: bool) -> list[Any] | None:
    """The rows and states of a job of some ranks, of which some look and ask in between unless `is_quiet`."""
    chance = random.Random(seed)
    world, length, size = chance.randint(1, 3), chance.randint(1, 30), chance.randint(1, 5)
    shape = Shape(length, size, world, chance.choice(["keep", "drop", "pad"]), chance.random() < 0.3)
    # Through torch's loader a sampler is asked for the end of an epoch with its last rows.
    is_early = make is torchs_loader
    if length < world * (size if shape.drop_last else 1) or (is_early and length <= world * size):
        return None
    acts = [
        chance.choice(["epoch", "epoch", "some", "set_epoch", "load"]) for _ in range(chance.randint(1, 6))
    ]
    looks = [not is_quiet and some for some in (True, *(chance.random() < 0.5 for _ in range(world - 1)))]
    often = random.Random(seed)
    ranks, held = [make(shape, rank) for rank in range(world)], [[] for _ in range(world)]
    found: list[Any] = []
    states = [rank.place.state_dict() for rank in ranks]
    for act in acts:
        number = chance.randint(0, 4)
        for rank, mine, looking, state in zip(ranks, held, looks, states, strict=True):
            if looking:
                look(often, rank, mine, not is_early)
            if act == "set_epoch":
                rank.place.set_epoch(number)
            elif act == "load":
                rank.place.load_state_dict(state)
            else:
                rows = []
                for step, batch in enumerate(rank.batches, start=1):
                    rows.append(batch.tolist())
                    if looking and (not is_early or step < len(rank.batches)):
                        look(often, rank, mine, not is_early)
                    if act == "some" and step == number:
                        break
                found.append(rows)
        if act == "epoch":
            states = [rank.place.state_dict() for rank in ranks]
            assert len({state["epoch"] for state in states}) == 1, "ranks have fallen apart"
            found.append(states)
    return found


LOADERS = [our_loader, foreign_loader, torchs_loader, partial(torchs_loader, is_batched=True)]


@pytest.mark.slow("foreign_loader-*")
@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(20_000), marks=pytest.mark.soak)])
@pytest.mark.parametrize("make", LOADERS)
def test_ranks_that_look_and_ask_get_the_same_rows_as_ranks_that_do_not(seeds: range, make: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(left after|counts its epochs anew)")
        for seed in seeds:
            assert trained(seed, make, False) == trained(seed, make, True), f"story {seed}"
