"""Loops of every shape under a Checkpoint: killed at any step, each goes on as if it had not been.

A kill is an exception that nothing saves after; `test_checkpoint.py` kills processes.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchyoga as yoga
from torchyoga.errors import StateError

pytestmark = [
    pytest.mark.filterwarnings("ignore:the iteration before this one was left"),
    pytest.mark.filterwarnings("ignore:the run goes on at step . of epoch 0"),  # a loop over one epoch
]


class Killed(BaseException):
    """The program is gone."""


class Refused(Exception):
    """The body of a loop has failed, and the loop catches it."""


class Story:
    """A program: its loop, what it has trained on, and the step at which it is killed."""

    def __init__(self, folder: Path, kill: int = 0, batch: int = 2, workers: int = 0, **options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.kill, self.lines, self.did = kill, [], 0  # type: ignore[var-annotated]
        self.model = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.3), nn.Linear(3, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        more: dict[str, Any] = {"num_workers": workers}
        if workers:
            more["multiprocessing_context"] = "fork"
        self.train: Any = yoga.DataLoader([float(n) for n in range(12)], batch, shuffle=True, seed=7, **more)
        self.other: Any = yoga.DataLoader([float(n) for n in range(20)], 4, shuffle=True, seed=8)
        self.valid: Any = yoga.DataLoader([float(n) for n in range(6)], 4, shuffle=True, drop_last=True)
        loaders = {"train": self.train, "other": self.other, "valid": self.valid}
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        options = {"every": 1, "resume": True, "loaders": loaders, "signals": (), **parts, **options}
        self.run: Any = yoga.Checkpoint(folder, **options)

    def backward(self, *batches: torch.Tensor) -> None:
        loss = sum(self.model(batch.float()[:, None]).square().mean() for batch in batches) + random.random()
        loss.backward()  # type: ignore[union-attr]

    def step(self, *batches: torch.Tensor, backward: bool = True) -> None:
        if backward:
            self.backward(*batches)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.log(*(batch.tolist() for batch in batches))

    def log(self, *what: Any) -> None:
        weights = [value.sum().item().hex() for value in self.model.parameters()]
        self.lines.append((self.run._loop.steps, *what, *weights))
        self.did += 1
        if self.did == self.kill:
            raise Killed

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            found = sum(self.model(batch.float()[:, None]).sum() for batch in self.valid)
        self.model.train()
        self.log("valid", float(found).hex(), random.random())


def plain(story: Story) -> None:
    for _ in story.run.epochs(3):
        for batch in story.train:
            story.step(batch)
        story.evaluate()
        story.scheduler.step()


def ranged(story: Story) -> None:
    next(iter(story.train))
    for _ in range(story.run.epoch, 3):
        for number, batch in enumerate(story.train, story.train.steps):
            story.optimizer.param_groups[0]["lr"] = 0.01 * (1 + number / len(story.train))
            story.step(batch)
            if number % 2:
                story.evaluate()
        story.scheduler.step()


def once(story: Story) -> None:
    next(iter(story.train))
    for batch in story.train:
        story.step(batch)


def accumulated(story: Story) -> None:
    """Steps come after three batches, or where the epoch ends; what is left over once is thrown away."""
    for _ in story.run.epochs(3):
        for number, batch in enumerate(story.train):
            story.backward(batch)
            if (number + 1) % 3 == 0 or number + 1 == len(story.train):
                story.step(batch, backward=False)


def remainder(story: Story) -> None:
    """The last step of an epoch comes after its batches."""
    for _ in range(story.run.epoch, 3):
        for number, batch in enumerate(story.train, story.train.steps):
            story.backward(batch)
            if number == 3:
                story.step(batch, backward=False)
        story.step(batch, backward=False)


def carried(story: Story) -> None:
    """Gradients of four batches, across the ends of epochs, at which the program saves."""
    for _ in story.run.epochs(4):
        for batch in islice(story.train, 5 - story.train.steps):
            story.backward(batch)
            story.run.values["n"] += 1
            if story.run.values["n"] % 4 == 0:
                story.step(batch, backward=False)
        story.run.save()


def broken(story: Story) -> None:
    for _ in story.run.epochs(4):
        for number, batch in enumerate(story.train, story.train.steps):
            story.step(batch)
            if number == 3:
                break
        story.evaluate()


def broken_before(story: Story) -> None:
    for _ in range(story.run.epoch, 4):
        for number, batch in enumerate(story.train, story.train.steps):
            if number == 2:
                break
            story.step(batch)


def sliced(story: Story) -> None:
    for _ in story.run.epochs(4):
        for batch in islice(story.train, 4 - story.train.steps):
            story.step(batch)
        story.evaluate()


def limited(story: Story) -> None:
    for batch in story.run.forever("train"):
        story.step(batch)
        if story.run.steps >= 15:
            break


def endless(story: Story) -> None:
    batches = iter(story.train)
    while story.run.steps < 15:
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(story.train)
            batch = next(batches)
        story.step(batch)


def kept(story: Story) -> None:
    batches, others = (chain.from_iterable(repeat(loader)) for loader in (story.train, story.other))
    for _ in story.run.epochs(4):
        for _ in range(story.run.steps % 4, 4):
            story.step(next(batches), next(others))
        story.evaluate()


def zipped(story: Story) -> None:
    for _ in story.run.epochs(3):
        for one, other in zip(story.train, story.other, strict=False):
            story.step(one, other)
        story.evaluate()


def zipped_shorter_first(story: Story) -> None:
    for _ in range(story.run.epoch, 3):
        for one, other in zip(story.other, story.train, strict=False):
            story.step(one, other)


def zipped_longer_first(story: Story) -> None:
    for _ in range(story.run.epoch, 3):
        for one, other in zip(story.train, story.other, strict=False):
            story.step(one, other)


def in_turn(story: Story) -> None:
    for epoch in story.run.epochs(4):
        for batch in story.train:
            story.step(batch)
        for batch in story.other if epoch % 2 else ():
            story.step(batch)


def twice(story: Story) -> None:
    for _ in story.run.epochs(2):
        for _ in range(2):
            for batch in story.train:
                story.step(batch)


def semi_supervised(story: Story) -> None:
    """One loader begins again and again within the epoch of another."""
    for _ in story.run.epochs(2):
        batches = chain.from_iterable(repeat(story.train))
        for other in story.other:
            for _ in range(3):
                story.backward(next(batches))
            story.step(other)


def looked(story: Story) -> None:
    """A look at a first batch comes before the loop, and a loader for evaluations gives single batches."""
    next(iter(story.train))
    evaluations = iter(story.valid)
    for _ in story.run.epochs(3):
        for batch in story.train:
            story.step(batch)
            try:
                with torch.no_grad():
                    next(evaluations)
            except StopIteration:
                evaluations = iter(story.valid)


def caught(story: Story) -> None:
    for _ in story.run.epochs(3):
        for number, batch in enumerate(story.train, story.train.steps):
            try:
                if number in (2, 5):
                    raise Refused
                story.step(batch)
            except Refused:
                continue


def held(story: Story) -> None:
    batches = story.run.forever("train")
    batch = next(batches)
    while story.run.steps < 15:
        story.backward(batch)
        used, batch = batch, next(batches)
        story.step(used, backward=False)
        story.run.stepped()


def prefetched(story: Story) -> None:
    def ahead() -> Iterator[Any]:
        held = None
        for batch in story.train:
            batch = batch * float(np.random.rand())
            if held is not None:
                yield held
            held = batch
        if held is not None:
            yield held

    for _ in story.run.epochs(3):
        for batch in ahead():
            story.step(batch)
            story.run.stepped()
        story.evaluate()


def adversarial(story: Story) -> None:
    """Of two optimizers on the same batches the last one counts."""
    for _ in story.run.epochs(3):
        for batch in story.train:
            story.backward(batch)
            story.run._parts["first"].step()
            story.step(batch)


LOOPS = [
    *(plain, ranged, once, accumulated, remainder, carried, broken, broken_before, sliced, limited, endless),
    *(kept, zipped, zipped_shorter_first, zipped_longer_first, in_turn, twice, semi_supervised, looked),
    *(caught, held, prefetched, adversarial),
]
OPTIONS: dict[Callable[[Story], None], dict[str, Any]] = {
    **{ranged: {"every": 2}, twice: {"every": 2}, sliced: {"every": 3}, endless: {"every": None}},
    **{carried: {"values": {"n": 0}}, held: {"hold": 1}, prefetched: {"hold": 1}},
    zipped_longer_first: {"batch": 1, "every": 5},
}
FEW = (plain, accumulated, broken, zipped, semi_supervised, caught, held)


def told(loop: Callable[[Story], None], folder: Path, kill: int = 0, **options: Any) -> Story:
    """A program that was run until its end, or killed after so many lines."""
    options = {**OPTIONS.get(loop, {}), **options}
    options = {name: dict(one) if name == "values" else one for name, one in options.items()}
    if loop is adversarial:
        options["critic"] = nn.Linear(1, 1)
        options["first"] = torch.optim.SGD(options["critic"].parameters())
    story = Story(folder, kill, **options)
    try:
        loop(story)
    except Killed:
        assert kill
    return story


def check(loop: Callable[[Story], None], folder: Path, kill: int, whole: list[Any], **then: Any) -> None:
    first = told(loop, folder, kill).lines
    rest = told(loop, folder, **then).lines
    again = len(first) + len(rest) - len(whole)
    assert again >= 0
    assert first == whole[:kill]
    assert rest == whole[kill - again :]


@pytest.mark.parametrize(
    ("loop", "step"),
    [
        *((loop, 5) for loop in FEW),
        *(pytest.param(loop, 3, marks=pytest.mark.rest) for loop in LOOPS),
        *(pytest.param(loop, 1, marks=pytest.mark.soak) for loop in LOOPS),
    ],
)
def test_a_kill_at_any_step(loop: Callable[[Story], None], step: int, tmp_path: Path) -> None:
    whole = told(loop, tmp_path / "whole").lines
    for kill in range(1, len(whole) + 1, step):
        check(loop, tmp_path / str(kill), kill, whole, **({"workers": kill % 2} if kill < 4 else {}))
    assert told(loop, tmp_path / "whole").lines in ([], *(whole[n:] for n in range(len(whole))))


def counted_from_zero(story: Story) -> None:
    for _ in range(3):
        for batch in story.train:
            story.step(batch)


def broken_from_zero(story: Story) -> None:
    for _ in story.run.epochs(3):
        for number, batch in enumerate(story.train):
            story.step(batch)
            if number == 3 and story.run.steps:
                break


def one_after_the_other(story: Story) -> None:
    for _ in range(story.run.epoch, 3):
        for loader in (story.train, story.other):
            for batch in loader:
                story.step(batch)


def made_again(story: Story) -> None:
    for batch in yoga.DataLoader(story.train.dataset, 2):
        story.step(batch)


def made_again_later(story: Story) -> None:
    once(story)
    made_again(story)


def held_in_silence(story: Story) -> None:
    batches = iter(story.train)
    batch = next(batches)
    while True:
        story.backward(batch)
        used, batch = batch, next(batches)
        story.step(used, backward=False)


def evaluated_on_its_own(story: Story) -> None:
    once(story)
    story.valid = story.train
    story.evaluate()


def by_a_thread(story: Story) -> None:
    with ThreadPoolExecutor(1) as pool:
        story.step(pool.submit(next, iter(story.train)).result())  # type: ignore[arg-type]


def not_held(story: Story) -> None:
    for batch in story.train:
        story.step(batch)
        story.run.stepped()


def in_turns(story: Story) -> None:
    first, second = iter(story.train), iter(story.train)
    assert story.run.epoch == 0
    for batches in (first, second, first):
        story.step(next(batches))


def left_and_saved(story: Story) -> None:
    for batch in story.train:
        story.step(batch)
        if story.run.steps == 3:
            break
    story.run.save()


@pytest.mark.parametrize(
    ("loop", "options", "words"),
    [
        (made_again, {}, "no batch of 'train', 'other', 'valid' was taken: hand over the loader"),
        (made_again_later, {}, "a step came after the last batch.*makes 'train'.* again, iterate the one"),
        (one_after_the_other, {}, r"one after the other: take epochs from `for epoch in run.epochs\(n\)"),
        (held_in_silence, {}, "after 1 batches, the first 2: .*pass hold=1"),
        (held_in_silence, {"scaler": torch.amp.GradScaler("cpu", enabled=False)}, "the first 2: .*hold=1"),
        (not_held, {"hold": 1}, "hold=1 does not fit a loop that steps after 1 batches"),
        (evaluated_on_its_own, {}, "an evaluation would move 'train' on"),
        (by_a_thread, {}, "another thread takes batches of 'train'"),
        (
            lambda story: [story.run.save() for _ in story.train],
            {},
            "1 batches of 'train' were taken since the last step",
        ),
        (in_turns, {}, "two iterators over 'train' take turns"),
        (left_and_saved, {}, "left its epoch, and only `for epoch in"),
        (lambda story: story.run.stepped(), {}, "the steps of optimizer are counted"),
    ],
)
def test_what_is_refused(
    loop: Callable[[Story], None], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    story = Story(tmp_path, **options)
    with pytest.raises(StateError, match=words):
        loop(story)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (counted_from_zero, "the loop has asked for neither; write `for"),
        (broken_from_zero, "counts from loader"),
    ],
)
def test_what_is_refused_after_a_resume(loop: Callable[[Story], None], words: str, tmp_path: Path) -> None:
    first, second = (lambda kill=kill: loop(Story(tmp_path, kill)) for kill in (11, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Killed):
            first()
        with pytest.raises(StateError, match=words):
            second()


def test_what_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="epoch 1 begins, and the loop has not asked how many are over"):
        counted_from_zero(Story(tmp_path / "range"))
    story = Story(tmp_path / "look")
    with pytest.warns(UserWarning, match="6 batches of 'train' were taken without a step"):
        list(story.train)
    with pytest.raises(ValueError, match="'train' has a Checkpoint already"):
        yoga.Checkpoint(tmp_path / "second", loaders={"train": story.train})
    with pytest.warns(UserWarning, match="steps 4 parameters of no model here"):
        plain(Story(tmp_path / "wrapped", model=nn.Linear(1, 1)))
    with pytest.raises(ValueError, match="steps='sgd' is neither 'manual' nor the name"):
        Story(tmp_path / "named", steps="sgd")


def test_evaluations_are_alike_and_leave_no_trace(tmp_path: Path) -> None:
    story = Story(tmp_path)

    def evaluated(num_batches: int) -> list[Any]:
        with torch.no_grad():
            return [(batch.tolist(), float(torch.rand(()))) for batch in islice(story.valid, num_batches)]

    expected = random.getstate(), torch.get_rng_state().tolist()
    found = [evaluated(1) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert (random.getstate(), torch.get_rng_state().tolist()) == expected


def test_the_length_is_that_of_the_rest(tmp_path: Path) -> None:
    told(plain, tmp_path, kill=3)
    story = Story(tmp_path)
    assert (story.run.steps, len(story.train), len(iter(story.train))) == (2, 4, 4)
    assert (sum(1 for _ in story.train), len(story.train)) == (4, 6)


def test_iterators_go_on_over_the_ends_of_epochs(tmp_path: Path) -> None:
    steps = [line for line in told(kept, tmp_path, every=None).lines if line[1] != "valid"]
    assert sorted(row for line in steps[:6] for row in line[1]) == list(map(float, range(12)))
    assert sorted(row for line in steps[:5] for row in line[2]) == list(map(float, range(20)))


@pytest.mark.parametrize("kill", [4, 9])
def test_another_batch_size(kill: int, tmp_path: Path) -> None:
    """Every row comes once in each epoch; batches that no save has seen come again."""
    first = told(plain, tmp_path, kill, every=2).lines
    rest = told(plain, tmp_path, batch=3).lines
    lines = [line for line in first if line[0] < rest[0][0]] + rest
    rows = Counter(row for line in lines if line[1] != "valid" for row in line[1])
    assert rows == dict.fromkeys(map(float, range(12)), 3)


def test_killed_again_before_a_step(tmp_path: Path) -> None:
    """A program that saves without a step of its own, with gradients of batches before a resume."""
    whole = told(carried, tmp_path / "whole").lines
    assert told(carried, tmp_path, 4, every=3).lines == whole[:4]
    assert told(carried, tmp_path, 1, every=3).lines == whole[3:4]
    assert told(carried, tmp_path, every=3).lines == whole[3:]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.filterwarnings("ignore:the loop has left")  # a kill is an exception, which leaves all loops
def test_stories(seed: int, tmp_path: Path) -> None:
    """Fifty programs that are killed up to three times, with other workers each time."""
    draw = random.Random(seed)
    for number in range(50):
        loop, every = draw.choice(LOOPS), draw.choice([1, 2, 3, 5, None])
        whole, folder = told(loop, tmp_path / f"whole-{number}").lines, tmp_path / str(number)
        done = 0
        for kill in [*(draw.randint(1, len(whole)) for _ in range(draw.randint(1, 3))), 0]:
            lines = told(loop, folder, kill, every=every, workers=draw.choice([0, 0, 1])).lines
            begun = [at for at in range(done + 1) if whole[at : at + len(lines)] == lines]
            assert begun, (loop.__name__, every, kill)
            done = max(done, begun[-1] + len(lines))
        assert done == len(whole)
