"""The arithmetic of an epoch that is read from a store; docs/scale.md derives it.

Note 140. Expected numbers, by formulas of the sizes of the files.
A file of r rows, dealt to N nodes at random, is needed by a node with probability 1 - (1 - 1/N)^r. In a block
shuffle a node reads each file in one go, in a new order in each epoch; of files that come in independent
random orders, the least recently used cache of a share c of them still holds c + (1 - c) ln(1 - c) when they
come again: the files between the two uses are 1 - uv of all, for u and v even in 0..1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import expm1, gcd, log, log1p
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Cluster", "Epoch", "Files", "Order", "epoch_of", "held_bytes", "requests_of"]

Order: TypeAlias = Literal["full", "block"]
_RUN = 8 * 2**20  # bytes of a request, as stores/streaming.py makes them: two at once of longer files
_THOUSAND, _GB = 1000, 10**9


class Files(NamedTuple):
    """The files of a version.

    Attributes:
        sizes: bytes and rows of a file -> how many are so.
        rows: of all.
        total: bytes of all.
    """

    sizes: dict[tuple[int, int], int]
    rows: int
    total: int

    @property
    def num_files(self) -> int:
        """How many files there are."""
        return sum(self.sizes.values())

    @classmethod
    def of(cls, files: Sequence[tuple[int, int]]) -> Files:
        """Of the bytes and rows of each."""
        return cls(dict(Counter(files)), sum(rows for _, rows in files), sum(nbytes for nbytes, _ in files))


class Cluster(NamedTuple):
    """The machines, and what the store takes.

    Attributes:
        nodes: machines with a cache each; `ranks`: processes of each that train.
        cache: bytes that each may keep; None for everything.
        shard: files are dealt to ranks, by `locality="shard"`, instead of rows.
        shuffle: full, or by blocks.
        bandwidth: bytes a second of a node; `store_bandwidth`: of the store, None without limit.
        request_rate: GETs a second that the store takes.
        request_price: of 1,000 GETs; `transfer_price`: of 10^9 bytes.
    """

    nodes: int
    ranks: int = 8
    cache: int | None = None
    shard: bool = False
    shuffle: Order = "full"
    bandwidth: int = 3 * _GB
    store_bandwidth: int | None = None
    request_rate: float = 5500.0
    request_price: float = 0.0004
    transfer_price: float = 0.0


class Epoch(NamedTuple):
    """What an epoch takes, all nodes together.

    Attributes:
        requests: GETs of files, without the one of the manifest.
        downloaded: bytes.
        request_cost, transfer_cost: in the currency of the prices.
        seconds: that the downloads take at least, if they never wait for the loop.
        limit: which of them takes longest: node, store or requests.
    """

    requests: float
    downloaded: float
    request_cost: float
    transfer_cost: float
    seconds: float
    limit: str

    def then(self, later: Epoch, times: int) -> Epoch:
        """This epoch, and so many others after it."""
        return Epoch(
            self.requests + times * later.requests,
            self.downloaded + times * later.downloaded,
            self.request_cost + times * later.request_cost,
            self.transfer_cost + times * later.transfer_cost,
            self.seconds + times * later.seconds,
            self.limit if self.seconds >= times * later.seconds else later.limit,
        )


def epoch_of(files: Files, cluster: Cluster, is_first: bool) -> Epoch:
    """The first epoch, which finds empty caches, or a later one.

    Example:
        >>> from torchyoga.tools.plan.epoch import Cluster, Files, epoch_of
        >>> files = Files.of([(2**30, 10_000)] * 100)
        >>> first = epoch_of(files, Cluster(nodes=16), is_first=True)
        >>> round(first.requests), round(first.downloaded / 2**30)
        (203200, 1600)
        >>> epoch_of(files, Cluster(nodes=16), is_first=False).requests
        0.0
    """
    requests = downloaded = 0.0
    for (nbytes, rows), count in files.sizes.items():
        times = count * _downloads(files, cluster, rows, is_first)
        requests += times * requests_of(nbytes)
        downloaded += times * nbytes
    waits = {
        "node": downloaded / cluster.nodes / cluster.bandwidth,
        "store": downloaded / cluster.store_bandwidth if cluster.store_bandwidth else 0.0,
        "requests": requests / cluster.request_rate,
    }
    limit = max(waits, key=lambda name: waits[name])
    return Epoch(
        requests,
        downloaded,
        requests / _THOUSAND * cluster.request_price,
        downloaded / _GB * cluster.transfer_price,
        waits[limit],
        limit if downloaded else "",
    )


def requests_of(nbytes: int) -> int:
    """GETs of a file: runs of 8 MiB, two at once, and one for the last 16 MiB or less."""
    pairs = max(0, -(-nbytes // (2 * _RUN)) - 1)
    return 2 * pairs + 1


def held_bytes(files: Files, cluster: Cluster) -> float:
    """Bytes that a node keeps if it may keep all that it reads in an epoch."""
    if cluster.shard:
        return files.total / cluster.nodes
    sizes = files.sizes.items()
    return sum(count * nbytes * _share(rows, cluster.nodes) for (nbytes, rows), count in sizes)


def _share(rows: int, nodes: int) -> float:
    """The probability that a node needs a file: 1 - (1 - 1/N)^r."""
    return -expm1(rows * log1p(-1 / nodes)) if nodes > 1 else 1.0


def _downloads(files: Files, cluster: Cluster, rows: int, is_first: bool) -> float:
    """How often a file of so many rows is downloaded, by all nodes together."""
    held = held_bytes(files, cluster)
    if cluster.shard:
        # Equal runs of rows: a file at a cut is read by both of its neighbours.
        together = gcd(files.num_files, cluster.nodes) if len(files.sizes) == 1 else 1  # cuts between files
        needed = (files.num_files + cluster.nodes - together) / max(1, files.num_files)
    else:
        needed = cluster.nodes * _share(rows, cluster.nodes)
    kept = 1.0
    if cluster.cache is not None and held > cluster.cache:  # but a file that is being read stays
        kept = min(1.0, max(cluster.cache / held, 1 / files.num_files))
    if kept == 1.0:
        if is_first:
            return needed
        return 0.0 if cluster.shard else needed * (1 - needed / cluster.nodes)  # not needed in the first
    if cluster.shuffle == "full":
        # Each row comes from any file, which is there with the probability that it was kept.
        again = rows * (1 - kept)
        return max(needed, again) if is_first else again
    return needed if is_first else needed * (1 - kept) * (1 - log(1 - kept)) if kept else needed
