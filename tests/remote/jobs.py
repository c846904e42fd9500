"""A job of many ranks, each a process, on nodes that have a cache each."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401
from waiting import PATIENCE

import torchyoga as yoga


class Job(NamedTuple):
    """What a job does.

    Attributes:
        url, options: of the storage.
        nodes, ranks: of the job; each node has a cache that its ranks share.
        distributed: False if torch.distributed is not up.
        caches: the folder of the nodes' caches.
        locality: as of a loader.
    """

    url: str
    options: dict[str, Any]
    nodes: int
    ranks: int
    distributed: bool
    caches: Path
    locality: str = "global"


class Rank(NamedTuple):
    """What a rank has done: the build that it read, its rows, and the seconds of `fetch`."""

    build: str
    rows: list[int]
    seconds: float


def done(job: Job) -> list[Rank]:
    """Runs it; what its ranks have done."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE), False)
        processes = [
            context.Process(target=_on_rank, args=(job, rank, store.port, folder))
            for rank in range(job.ranks)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + 2 * PATIENCE
        for process in processes:
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(job.ranks)]
    assert all(isinstance(one, list) for one in found), "\n".join(map(str, found))
    return [Rank(*one) for one in found]


def _on_rank(job: Job, rank: int, port: int, folder: str) -> None:
    try:
        found: object = _work(job, rank, port)
    except BaseException:
        found = traceback.format_exc()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def _work(job: Job, rank: int, port: int) -> tuple[str, list[int], float]:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(job.ranks), "RANK": str(rank)}
    if job.distributed:
        store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=PATIENCE), False)
        # Its store is real, and all that is asked of; gloo would connect each rank with each other one.
        dist.init_process_group("fake", store=store, rank=rank, world_size=job.ranks)
    cache = job.caches / f"node{rank % job.nodes}"
    storage = yoga.Storage(job.url, storage_options=job.options, cache_dir=cache)
    began = time.perf_counter()
    ref = storage.fetch("a", "1")
    seconds = time.perf_counter() - began
    loader: yoga.DataLoader[Any] = yoga.DataLoader(
        ref,
        10,
        shuffle=True,
        seed=1,
        num_replicas=job.ranks,
        rank=rank,
        remainder="keep",
        locality=job.locality,
    )
    rows = [row for batch in loader for row in batch["n"].tolist()]
    manifest: Any = ref.manifest  # type: ignore[attr-defined]
    return manifest.build, rows, seconds
