"""A job of many ranks, each a process, on nodes that have a cache each."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401
from children import in_processes
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
    """What a rank has done: the build that it read, and its rows."""

    build: str
    rows: list[int]


def done(job: Job) -> list[Rank]:
    """Runs it; what its ranks have done."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE), False)
        paths = [Path(folder) / f"{rank}.json" for rank in range(job.ranks)]
        works = [partial(_work, job, rank, store.port, path) for rank, path in enumerate(paths)]
        in_processes("forkserver", *works)
        return [Rank(*json.loads(path.read_text())) for path in paths]


def _work(job: Job, rank: int, port: int, path: Path) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(job.ranks), "RANK": str(rank)}
    if job.distributed:
        store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=PATIENCE), False)
        # Its store is real, and all that is asked of; gloo would connect each rank with each other one.
        dist.init_process_group("fake", store=store, rank=rank, world_size=job.ranks)
    cache = job.caches / f"node{rank % job.nodes}"
    storage = yoga.Storage(job.url, storage_options=job.options, cache_dir=cache)
    ref = storage.fetch("a", "1")
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
    path.write_text(json.dumps(Rank(manifest.build, rows)))
