"""Ranks are found when an iteration begins, and compared on request, over real process groups."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.sampling.ranks import Processes, Ranks

LENGTH = 22


def on_ranks(world: int, work: Callable[[int], None], folder: Path) -> None:
    """Runs `work` on the ranks of a gloo group, each a process."""
    mp.start_processes(_on_rank, (world, work, str(folder / "store")), world, start_method="forkserver")


def _on_rank(rank: int, world: int, work: Callable[[int], None], store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    before = yoga.ResumableSampler(LENGTH, seed=1), yoga.DataLoader(range(LENGTH), 2, seed=1)
    assert (before[0].num_replicas, len(before[0]), len(before[1])) == (1, 22, 11)
    # By default torch takes gloo, and NCCL if it can, and calls that "undefined".
    backend = None if world == 3 and not torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    # A loader made before the ranks were known knows them now.
    assert (before[0].num_replicas, before[0].rank) == (world, rank)
    assert len(before[0]) == -(-LENGTH // world)
    try:
        work(rank)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def loader(**options: Any) -> yoga.DataLoader:
    return yoga.DataLoader(range(LENGTH), 2, True, seed=1, remainder="keep", **options)


def deliver(loader: Any, steps: int | None = None) -> list[int]:
    return [row for batch in itertools.islice(loader, steps) for row in batch.tolist()]


def proofs_and_comparisons(rank: int) -> None:
    one = loader()
    rows = deliver(one, 2)
    assert rows == yoga.ResumableSampler(LENGTH, seed=1).rows_at(range(rank, 12, 3), 0).tolist()
    assert one.prove().rows == 12
    with pytest.warns(UserWarning, match="the other 10 rows are left out"):
        deliver(one)
    assert one.state_dict()["epoch"] == 2  # the rest of the first epoch was left out, and is lost
    assert str(one.prove()) == (
        "epoch 1: 22 of 22 rows delivered since it began, each exactly once; "
        "left out: 10 rows of epochs that were left early, up to 0"
    )
    for sampler in (
        yoga.ResumableSampler(LENGTH, seed=1),
        yoga.ResumableBatchSampler(yoga.ResumableSampler(LENGTH, seed=1), 4),
    ):
        list(sampler)
        assert sampler.prove().rows == 24
    # One rank loads another state than the others.
    other = loader()
    other.load_state_dict({**loader().state_dict(), "position": 6 if rank == 1 else 12})
    assert not other.prove()
    deliver(other)
    assert not other.prove()
    # One rank has delivered a batch more.
    ahead = loader()
    deliver(ahead, 3 if rank == 2 else 2)
    assert "different numbers of batches" in str(ahead.prove())
    # One rank is in another epoch, or has another seed.
    for options, name in (({"seed": rank}, "seed"), ({"start_offset": LENGTH * rank}, "epoch")):
        wrong = yoga.DataLoader(range(LENGTH), 2, **{"seed": 1, **options})
        with pytest.raises(StateError, match=name):
            wrong.prove()
    # All processes say that they are rank 0.
    with pytest.raises(StateError, match=r"the receipts of ranks 0 to 2, .* found those of \[0\]"):
        loader(num_replicas=3, rank=0).prove()
    assert Processes().most(rank == 1 and 15) == 15
    # And within a group of some of them.
    some = dist.new_group([0, 1])
    if rank < 2:
        part = loader(group=some)
        deliver(part)
        assert part.prove(some).rows == LENGTH
    else:
        with pytest.raises(ValueError, match="not in the group"):
            loader(group=some)


def test_proofs_and_comparisons(tmp_path: Path) -> None:
    on_ranks(3, proofs_and_comparisons, tmp_path)


def model_parallel(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = [loader(num_replicas=2, rank=r) for r in (0, 1)]
    expected = deliver(whole[rank // 2])
    for options in (
        {"group": mesh["dp"]},
        {"group": mesh["dp"].get_group()},
        {"num_replicas": 2, "rank": rank // 2},
    ):
        one = loader(**options)
        assert deliver(one, 3) == expected[:6]
        assert one.prove().rows == 12
        state = one.state_dict()
        assert state == loader(num_replicas=1, rank=0, start_offset=12).state_dict() | {"steps": 3}
        # Resumed with one rank more, or one less, that sees the same rows.
        again = loader(group=mesh["tp"])
        again.load_state_dict(state)
        assert again.prove()
        deliver(again)
        assert again.prove().rows == LENGTH
    assert deliver(loader(group=mesh)) == deliver(loader())  # all four
    # One of the ranks that should see the same rows does not.
    one = loader(group=mesh["dp"])
    deliver(one, 2 if rank == 3 else 3)
    with pytest.raises(StateError, match="process 3 and another are both rank 1, but have not delivered"):
        one.prove()


def test_ranks_that_see_the_same_rows(tmp_path: Path) -> None:
    on_ranks(4, model_parallel, tmp_path)


def shares(rank: int, world: int) -> list[list[int]]:
    """The rows of a rank that was given its number, in two epochs, by each kind of sampler and loader."""
    ranks: Any = {"num_replicas": world, "rank": rank}
    sampler = yoga.ResumableSampler(LENGTH, **ranks)
    batches = yoga.ResumableBatchSampler(yoga.ResumableSampler(LENGTH, **ranks), 2)
    one, blocks = (
        yoga.DataLoader(range(LENGTH), 2, shuffle=kind, **ranks) for kind in (True, cast(Any, "block"))
    )
    return [
        [row for _ in range(2) for row in sampler],
        [row for _ in range(2) for batch in batches for row in batch],
        deliver(one) + deliver(one),
        deliver(blocks) + deliver(blocks),
    ]


def _write_shares(rank: int, world: int, folder: Path) -> None:
    (folder / str(rank)).write_text(json.dumps(shares(rank, world)))


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "two processes"])
def test_ranks_that_were_given_without_a_group_and_a_seed_share_the_rows(
    processes: bool, tmp_path: Path
) -> None:
    if processes:
        mp.start_processes(_write_shares, (2, tmp_path), 2, start_method="forkserver")
        found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    else:
        found = [shares(rank, 2) for rank in range(2)]
    for one, other in zip(*found, strict=True):
        half = LENGTH // 2
        assert sorted(one[:half] + other[:half]) == sorted(one[half:] + other[half:]) == list(range(LENGTH))
    assert found[0][0] == list(yoga.ResumableSampler(LENGTH, 2, 0, seed=0)) + found[0][0][half:]


def test_processes_without_a_group_are_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    one = loader()
    with pytest.warns(UserWarning, match="WORLD_SIZE is 4, but torch.distributed is not initialised"):
        deliver(one, 1)
    deliver(one, 1)
    deliver(loader(num_replicas=4, rank=2), 1)


def test_bad_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="but not both"):
        Ranks(2, 1, object())
