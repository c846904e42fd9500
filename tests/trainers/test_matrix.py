"""One state under every trainer: each program is stopped, and continued by another process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import NURSERIES, Step, evaluated, launch, record, runs, trained
from matrix import ROWS

import torchyoga as yoga

LENGTH, BATCH, SEED, EPOCHS = 42, 4, 7, 2
STEPS = 11  # batches of an epoch on one rank
OURS = [
    name for name in ROWS if name not in ("stateful", "nodes")
]  # train with our loader, others our sampler
# These make rows themselves, so the random numbers of rows are not seeded.
OPTIONS: dict[str, dict[str, Any]] = {name: {"noise": False} for name in ("stateful", "nodes")}
DISTRIBUTED = ["plain", "dcp", "lightning_trainer", "fabric", "accelerate_loop"]
ISSUE = "[#22580](https://github.com/huggingface/transformers/issues/22580)"


def each(column: str, trainers: list[str] | None = None, says: str = "yes") -> Any:
    """The trainers, each with the cell that its test fills; all tests of one nursery run in one process."""
    return pytest.mark.parametrize(
        "trainer",
        [
            pytest.param(
                name,
                marks=[pytest.mark.cell(name, column, says=says), pytest.mark.xdist_group(NURSERIES[name])],
            )
            for name in trainers or ROWS
        ],
    )


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[list[Step]]]:
    """The steps of each rank of a run without a break; each is run once."""
    known: dict[tuple[str, int], list[list[Step]]] = {}

    def of(trainer: str, world: int = 1) -> list[list[Step]]:
        if (trainer, world) not in known:
            folder = tmp_path_factory.mktemp(trainer)
            options = {**OPTIONS.get(trainer, {}), "remainder": "keep" if world == 1 else "pad"}
            known[trainer, world] = trained(trainer, folder, world=world, **options)
        return known[trainer, world]

    return of


def epochs_of(length: int = LENGTH) -> list[list[int]]:
    sampler = yoga.ResumableSampler(length, seed=SEED)
    return [list(sampler) for _ in range(EPOCHS)]


@pytest.mark.xdist_group("torch")
def test_what_one_nursery_starts_is_tested_by_one_process(request: pytest.FixtureRequest) -> None:
    """Each process that tests imports the trainers that it needs, for seconds."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@torch"), "pytest-xdist 3.8 needs pytest before 9.2 to group tests"


@each("drop-in")
def test_each_epoch_is_the_whole_order(trainer: str, whole: Any) -> None:
    steps = whole(trainer)[0]
    for epoch, order in enumerate(epochs_of()):
        rows = [row for step in steps if step.epoch == epoch for row in step.rows]
        assert rows == order
    assert len(steps) == EPOCHS * STEPS


@pytest.mark.parametrize(
    ("trainer", "world"),
    [
        pytest.param(name, world, marks=pytest.mark.xdist_group(NURSERIES[name]))
        for name, world in (("lightning_trainer", 2), ("accelerate_loop", 2), ("transformers_trainer", 1))
    ],
)
def test_dropout_goes_on_as_it_would_have(trainer: str, world: int, tmp_path: Path) -> None:
    """Lightning needs our callback for that, the others nothing; Keras: tests/frameworks."""
    options = {"world": world, "dropout": 0.5, "remainder": "pad"}
    expected = trained(trainer, tmp_path / "whole", **options)
    assert trained(trainer, tmp_path / "stopped", [3, 4], **options) == expected


@each("drop-in", ["plain", "stateful"])
def test_set_epoch_changes_nothing(trainer: str, whole: Any, tmp_path: Path) -> None:
    options = OPTIONS.get(trainer, {})
    assert trained(trainer, tmp_path, [14], set_epoch=True, **options) == whole(trainer)


@pytest.mark.parametrize(
    "stops",
    [
        [STEPS],
        [0, 3, 4, STEPS - 7, 3],
    ],  # in all: before the first batch, twice, at an epoch's end, in the next
    ids=["at the end of an epoch", "again and again"],
)
@each("resume")
def test_stopped_and_continued_rows_and_losses_are_the_same(
    trainer: str, stops: list[int], whole: Any, tmp_path: Path
) -> None:
    assert trained(trainer, tmp_path, stops, **OPTIONS.get(trainer, {})) == whole(trainer)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"start_method": "fork", "persistent": True, "prefetch": 2},
            {"start_method": "spawn", "prefetch": 5, "workers": 1},  # each imports torch
        ),
        ({"start_method": "forkserver", "persistent": True, "prefetch": 5}, {"workers": 0}),
    ],
    ids=["fork to spawn", "forkserver to none"],
)
@each("workers")
def test_with_worker_processes(
    trainer: str, before: dict[str, Any], after: dict[str, Any], whole: Any, tmp_path: Path
) -> None:
    if trainer in ("stateful", "nodes") and "workers" in after:
        after = {**after, "workers": 2}  # torchdata's states are for one number of workers
    options = {"workers": 2, **OPTIONS.get(trainer, {})}
    found = in_two(trainer, tmp_path, STEPS + 2, {**options, **before}, {**options, **after})
    assert found[0] + found[1] == whole(trainer)[0]


def in_two(
    trainer: str, folder: Path, stop: int, before: dict[str, Any], after: dict[str, Any]
) -> list[list[Step]]:
    """The steps of two processes, each with options of its own."""
    tasks: list[dict[str, Any]] = [{**before, "stop_after": stop}, {**after, "resume": True}]
    for run, task in enumerate(tasks):
        launch(trainer, {**task, "folder": str(folder), "run": run})
    return [record(folder, run)[0] for run in (0, 1)]


@each("in_order=False", [name for name in OURS if name != "transformers_trainer"])
def test_batches_as_they_are_ready(trainer: str, tmp_path: Path) -> None:
    options = {"workers": 2, "in_order": False, "uneven": True}
    found = in_two(trainer, tmp_path, 5, options, options)
    first, rest = ([row for step in steps for row in step.rows] for steps in found)
    for epoch in range(EPOCHS):
        assert sorted((first + rest)[epoch * LENGTH :][:LENGTH]) == list(range(LENGTH))
    assert len(first + rest) == EPOCHS * LENGTH
    assert (first + rest)[:LENGTH] != epochs_of()[0]  # otherwise nothing was tested


# -- several ranks


@each("ranks", DISTRIBUTED)
def test_two_ranks_are_stopped_twice_and_continued(trainer: str, whole: Any, tmp_path: Path) -> None:
    options = {**OPTIONS.get(trainer, {}), "remainder": "pad"}
    assert trained(trainer, tmp_path, [4, 3], world=2, **options) == whole(trainer, 2)


@each("ranks", DISTRIBUTED)
def test_continued_by_other_ranks_every_row_comes_once(trainer: str, tmp_path: Path) -> None:
    # All are started with torchrun's environment; two runs of one by torchrun itself, which imports torch for
    # every rank.
    found = runs(trainer, tmp_path, [3, 2], [2, 1, 4], torchrun=2 * (trainer == "plain"), remainder="pad")
    assert_each_row_once(found, "pad", 4)


@pytest.mark.parametrize("length", [42, 48])
@pytest.mark.parametrize("remainder", ["keep", "drop"])
@each("ranks", ["plain"])
def test_every_remainder_policy_delivers_each_row_once(
    trainer: str, remainder: str, length: int, tmp_path: Path
) -> None:
    found = runs(trainer, tmp_path, [1, 2], [4, 2, 4], remainder=remainder, length=length)
    assert_each_row_once(found, remainder, 4, length)


@each("ranks", ["lightning_trainer"])
def test_fewer_ranks_within_the_second_epoch_do_not_shorten_the_third(trainer: str, tmp_path: Path) -> None:
    found = runs(trainer, tmp_path, [8], [2, 1], remainder="pad", epochs=3, validate=True)
    assert_each_row_once(found, "pad", 2, epochs=3)
    assert len(evaluated(tmp_path, 1)[0]) > 2 * STEPS


def assert_each_row_once(
    found: list[list[list[Step]]], remainder: str, world: int, length: int = LENGTH, epochs: int = EPOCHS
) -> None:
    """Over all runs and ranks, each epoch has every row, but for those that `remainder` drops or repeats."""
    for epoch in range(epochs):
        counts = Counter(
            row for run in found for rank in run for step in rank if step.epoch == epoch for row in step.rows
        )
        assert set(counts) <= set(range(length))
        total = counts.total()
        if remainder == "drop":
            assert max(counts.values()) == 1
            assert length - world < total <= length
        else:
            assert len(counts) == length
            assert total == length if remainder == "keep" else length <= total < length + world


@each("ranks", ["stateful", "nodes"])
def test_torchdatas_state_continues_on_other_ranks(trainer: str) -> None:
    make = {"stateful": stateful, "nodes": nodes}[trainer]
    got: list[int] = []
    state = None
    for world, steps in ((2, 3), (1, 2), (4, None)):
        ranks = [make(world, rank) for rank in range(world)]
        if state is not None:
            for one in ranks:
                one.load_state_dict(state)
        delivered = [[batch.tolist() for batch in taken(one, steps)] for one in ranks]
        got += [row for rank in delivered for batch in rank for row in batch]
        states = [one.state_dict() for one in ranks]
        assert steps is None or all(found == states[0] for found in states)
        state = states[0]
    assert sorted(got) == list(range(LENGTH))


def taken(batches: Any, steps: int | None) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        yield batch
        if number + 1 == steps:
            return


def share(world: int, rank: int) -> yoga.ResumableSampler:
    return yoga.ResumableSampler(LENGTH, seed=SEED, num_replicas=world, rank=rank, remainder="keep")


def stateful(world: int, rank: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    return StatefulDataLoader(range(LENGTH), BATCH, sampler=share(world, rank))


def nodes(world: int, rank: int) -> Any:
    from torch.utils.data import default_collate
    from torchdata import nodes as found  # type: ignore[import-untyped]

    numbers = found.Batcher(found.SamplerWrapper(share(world, rank)), BATCH, drop_last=False)
    return found.Loader(found.Mapper(numbers, default_collate))


# -- evaluation, and other things that trainers do


@pytest.mark.parametrize("world", [2, 4])
@each("evaluation", ["plain", "accelerate_loop"])
def test_evaluation_counts_each_row_once(trainer: str, world: int, tmp_path: Path) -> None:
    runs(trainer, tmp_path, [], [world], epochs=0, evaluate=True, length=41, remainder="pad")
    ranks = [[row for batch in rank for row in batch] for rank in evaluated(tmp_path, 0, world)]
    if trainer == "accelerate_loop":  # each rank gathers all rows, in the order of the dataset
        assert ranks == [list(range(41))] * world
    else:
        assert sorted(sum(ranks, [])) == list(range(41))


@each("evaluation", ["lightning_trainer"])
def test_validation_within_epochs(trainer: str, whole: Any, tmp_path: Path) -> None:
    assert trained(trainer, tmp_path, [5, 8], validate=True) == whole(trainer)
    rows = [row for run in range(3) for batch in evaluated(tmp_path, run)[0] for row in batch]
    assert len(rows) >= 2 * LENGTH
    assert set(Counter(rows).values()) == {len(rows) // LENGTH}


@each("evaluation", ["lightning_trainer"])
def test_validation_on_two_ranks_counts_each_row_once(trainer: str, tmp_path: Path) -> None:
    runs(trainer, tmp_path, [], [2], epochs=1, validate=True, length=41, remainder="pad")
    rows = Counter(row for rank in evaluated(tmp_path, 0, 2) for batch in rank for row in batch)
    assert set(rows) == set(range(41))
    assert len(set(rows.values())) == 1


@each("resume", ["accelerate_loop", "lightning_trainer"])
def test_gradients_that_are_accumulated(trainer: str, tmp_path: Path) -> None:
    expected = trained(trainer, tmp_path / "whole", accumulate=3)
    assert trained(trainer, tmp_path / "stopped", [6], accumulate=3) == expected


# -- limits that we cannot change


def transformers_warns(stops: list[int], worlds: list[int], folder: Path, **task: Any) -> None:
    said = ""
    for run, (stop, world) in enumerate(zip([*stops, None], worlds, strict=True)):
        one = {**task, "folder": str(folder), "run": run, "stop_after": stop, "resume": run > 0}
        said = launch("transformers_trainer", one, world)
    assert "finds its place by skipping batches" in said
    assert "huggingface/transformers#22580" in said


@each("ranks", ["transformers_trainer"], f"as many as before; else it warns ({ISSUE})")
def test_transformers_with_as_many_ranks_as_before(trainer: str, whole: Any, tmp_path: Path) -> None:
    assert trained(trainer, tmp_path / "same", [4, 4], world=2, remainder="pad") == whole(trainer, 2)
    transformers_warns([4], [2, 1], tmp_path / "other")


@each("in_order=False", ["transformers_trainer"], f"no: it counts batches, and warns ({ISSUE})")
def test_transformers_and_batches_as_they_are_ready(trainer: str, tmp_path: Path) -> None:
    transformers_warns([5], [1, 1], tmp_path, workers=2, in_order=False, uneven=True)
