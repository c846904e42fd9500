"""Random stories of training jobs that are killed and resumed, by arithmetic alone: every row comes once."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from typing import Any

import pytest

from torchyoga.errors import StateError
from torchyoga.order.by_file import BlockOrder
from torchyoga.order.cursor import Cursor
from torchyoga.order.full import Order
from torchyoga.order.iteration import Iteration
from torchyoga.order.place import taken
from torchyoga.order.shard import Shard

STYLES = ("plain", "ddp", "tutorial", "lightning", "counts anew", "peeks first", "peeks and binds")
SOAK = 500_000


class Iterator:
    """An iterator that a training loop holds."""


class Job:
    """Processes that train in step, from a state until they are killed; `rows` records each epoch."""

    def __init__(self, chance: random.Random, story: Story, states: list[Any] | None) -> None:
        self.chance, self.story = chance, story
        held = states is not None and states[0]["share"] is not None
        if held:  # only the same number of ranks with the same batch size can go on
            assert states is not None
            self.world, self.size = states[0]["share"][1], states[0]["share"][3]
        else:
            self.world, self.size = chance.randint(1, 7), chance.randint(1, 9)
        # Within an epoch that was begun out of order, ranks keep their shares.
        self.policy = story.policy if held else chance.choice(["keep", "drop", "pad"])
        self.drop_last = story.drop_last if held else chance.random() < 0.3
        self.in_order = chance.random() < 0.6
        story.policy, story.drop_last = self.policy, self.drop_last
        self.style = chance.choice(STYLES)
        self.cursors = []
        for rank in range(self.world):
            cursor = Cursor(story.order(self.world), Shard(self.world, rank, self.policy), fingerprint="f")
            if states is not None:
                cursor.load_state_dict(json.loads(json.dumps(states[rank] if held else states[0])))
            self.cursors.append(cursor)
        self.counter = 0 if self.style == "counts anew" else self.cursors[0].epoch

    def begin(self) -> list[tuple[Iteration, Iterator]]:
        found = []
        for cursor in self.cursors:
            made, iterator = cursor.num_begun, Iterator()
            run = cursor.iteration(self.size, self.drop_last, self.in_order, made)
            run.hold(iterator)
            cursor.begun(run)
            found.append((run, iterator))
        return found

    def set_epoch(self) -> None:
        for cursor in self.cursors:
            cursor.set_epoch(self.counter)

    def peek(self) -> None:
        """Looks at a batch, as `next(iter(loader))` does."""
        for run, _ in self.begin():
            if run.num_steps:
                run.deliver(0)
                run.report()
            else:
                run.cursor.finished(run)  # the end is reported to it

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
                if not waiting[rank]:
                    run.cursor.finished(run)
                    continue
                ahead = 0 if self.in_order else self.chance.randrange(min(3, len(waiting[rank])))
                number = waiting[rank].pop(ahead)
                self.story.train(epoch, run, number, rank, self)
                run.deliver(number)
                run.report()
                if self.style == "lightning" and step == 0:
                    run.cursor.set_epoch(self.counter)  # called late
            states = [cursor.state_dict() for cursor in self.cursors]
            self.check_in_step(states, runs)
            if step + 1 == most:
                return states
        for run, _ in runs:
            run.cursor.finished(run)
        states = [cursor.state_dict() for cursor in self.cursors]
        assert all(state == states[0] for state in states)
        assert (states[0]["epoch"], states[0]["position"]) == (epoch + 1, 0)
        self.counter += 1
        self.story.ended(epoch, self)
        return None

    def check_in_step(self, states: list[Any], runs: list[tuple[Iteration, Iterator]]) -> None:
        assert len({state["epoch"] for state in states}) == 1, f"ranks have fallen apart: {states}"
        if self.in_order and states[0]["share"] is None:
            assert all(state == states[0] for state in states)
        run = runs[0][0]
        assert run.cursor.state_of(run.after(run.num_delivered)) == {**states[0]}


class Story:
    """A dataset, and the jobs that trained on it."""

    def __init__(self, chance: random.Random) -> None:
        self.length = chance.randint(0, 40) if chance.random() < 0.8 else chance.randint(41, 300)
        self.kind = chance.choice(["full", "plain", "block", "shard", "block shard"])
        self.seed = chance.randrange(10)
        cuts = sorted(chance.randint(0, self.length) for _ in range(chance.randint(0, 5)))
        self.starts = [0, *cuts, self.length]
        self.rows: dict[int, Counter[int]] = {}
        self.policy, self.drop_last = "keep", False
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
        return all(cursor.iteration(job.size, job.drop_last).num_steps for cursor in job.cursors)

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


def tell_many(seeds: range) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "set_epoch.*counts its epochs anew")
        for seed in seeds:
            try:
                tell(random.Random(seed))
            except (AssertionError, StateError, ValueError, IndexError) as error:
                raise AssertionError(f"story {seed}: {error}") from error


def test_stories() -> None:
    tell_many(range(1500))


@pytest.mark.soak
def test_many_stories() -> None:
    tell_many(range(SOAK))
