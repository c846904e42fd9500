"""in_order=False: batches come as they are ready, and the state is still exact."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from typing import Any

import pytest
from waiting import PATIENCE

import torchyoga as yoga

LENGTH, BATCH = 61, 4
FIRST = set(yoga.ResumableSampler(LENGTH, seed=3).rows_at(range(BATCH), 0).tolist())


class Uneven:
    """Some rows take longer than others; those of the first batch of epoch 0 wait until they may come."""

    def __init__(self, may_come: Any) -> None:
        self.may_come = may_come

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index in FIRST and self.may_come is not None:
            assert self.may_come.wait(PATIENCE)
        time.sleep(0.01 if index % 7 == 0 else 0)
        return index


def loader(**options: Any) -> yoga.DataLoader:
    options = {"num_workers": 2, "in_order": False, "remainder": "keep", **options}
    may_come = None
    if options["num_workers"] > 1 and "data" not in options:  # otherwise no other batch would come first
        context = multiprocessing.get_context(options.get("multiprocessing_context"))
        may_come = context.Event()
    return yoga.DataLoader(options.pop("data", Uneven(may_come)), BATCH, True, seed=3, **options)


def some(loader: yoga.DataLoader, steps: int | None = None) -> list[int]:
    """The rows of `steps` batches; the first batch of an epoch comes after two others, or not at all."""
    may_come = getattr(loader.dataset, "may_come", None)
    rows: list[int] = []
    batches = iter(loader)  # kept until the end, or its workers would be ended while they wait
    for step, batch in enumerate(itertools.islice(batches, steps)):
        rows += batch.tolist()
        if step == 1 and may_come is not None:
            may_come.set()
    if may_come is not None:
        may_come.set()  # its worker ends
    return rows


def saved(loader: yoga.DataLoader) -> dict[str, Any]:
    state = json.dumps(loader.state_dict())
    assert len(state) < 1024
    return json.loads(state)


@pytest.mark.quick("2")
@pytest.mark.parametrize("prefetch", [2, 5])
def test_resumed_twice_every_row_comes_once(prefetch: int) -> None:
    whole, early = some(loader(num_workers=0)), 0
    for first, second, world in ((3, 2, 1), (5, 4, 2), (6, 0, 3), (1, 7, 1)):
        one = loader(prefetch_factor=prefetch)
        got = some(one, first)
        state = saved(one)
        early += len(state["left"])
        one = loader(prefetch_factor=prefetch)
        one.load_state_dict(state)
        got += some(one, second)
        state = saved(one)
        assert state["position"] == len(got)
        ranks = [loader(num_workers=0, num_replicas=world, rank=rank) for rank in range(world)]
        for one in ranks:
            one.load_state_dict(state)
        rest = [some(one) for one in ranks]
        assert sorted(got + sum(rest, [])) == list(range(LENGTH))
        # Batches that were overtaken come in the order of the epoch.
        dealt = [row for step in itertools.zip_longest(*rest) for row in step if row is not None]
        assert dealt == [row for row in whole if row not in got]
        proof = yoga.prove([one.receipt() for one in ranks])
        assert proof
        assert proof.rows == LENGTH
    assert early  # otherwise nothing was tested


def test_a_whole_epoch_and_the_next() -> None:
    one = loader(persistent_workers=True)
    for epoch in range(2):
        assert sorted(some(one)) == list(range(LENGTH))
        assert one.prove()
        assert one.state_dict()["epoch"] == epoch + 1
        assert not one.state_dict()["left"]


def test_without_workers_batches_are_in_order() -> None:
    assert some(loader(num_workers=0)) == some(yoga.DataLoader(range(LENGTH), BATCH, True, seed=3))


def test_on_several_ranks_batches_come_in_order_and_all_have_the_same_state() -> None:
    ranks = [loader(num_replicas=2, rank=rank, data=Uneven(None)) for rank in (0, 1)]
    plain = [loader(num_replicas=2, rank=rank, num_workers=0) for rank in (0, 1)]
    held = [[iter(one) for one in some] for some in (ranks, plain)]
    for steps in (3, None):
        rows, expected = (
            [[batch.tolist() for batch in itertools.islice(one, steps)] for one in some] for some in held
        )
        assert rows == expected
        assert [saved(one) for one in ranks] == [saved(plain[0])] * 2
    one = loader(num_replicas=1, rank=0, data=Uneven(None), persistent_workers=True)
    some(one)
    one.sampler.indices.ranks = ranks[1].sampler.indices.ranks  # as if other processes had begun
    assert some(one) == some(plain[1])
