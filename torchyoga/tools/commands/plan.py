"""`yoga plan`: what an epoch from a store costs, by arithmetic; docs/scale.md derives it.

Expected numbers, by formulas of the sizes of the files.
A file of r rows, dealt to N nodes at random, is needed by a node with probability 1 - (1 - 1/N)^r. In a block
shuffle a node reads each file in one go, in a new order in each epoch; of files that come in independent
random orders, the least recently used cache of a share c of them still holds c + (1 - c) ln(1 - c) when they
come again: the files between the two uses are 1 - uv of all, for u and v even in 0..1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import ceil, expm1, gcd, isnan, log, log1p
from typing import Literal, NamedTuple, TypeAlias

import click

from ...process.texts import count_of
from .output import Asked, Table, bytes_text
from .places import as_one, id_argument, placed, storage_command, version_argument, versions_in

__all__ = ["Cluster", "command", "Epoch", "epoch_of", "Sizes", "held_bytes", "requests_of"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_UNITS |= {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("kmgtp", 1)}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?) ?([kmgtp]?i?)b?", re.IGNORECASE)
_TITLES = ("epoch", "GET requests", "downloaded", "requests", "transfer", "seconds", "limited by")
_MOST_BYTES = 10**20
_Order: TypeAlias = Literal["full", "block"]
_RUN = 8 * 2**20  # bytes of a request, as stores/streaming.py makes them: two at once of longer files
_THOUSAND, _GB = 1000, 10**9


class _Size(click.ParamType[int]):
    name = "bytes"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number of bytes, such as 500GB, 2TB or 512MiB."""
        found = _SIZE.fullmatch(str(value).strip())
        if found is None or found[2].lower() not in _UNITS:
            self.fail(f"{value!r:.80} is not a number of bytes; write 500GB, 2TB or 512MiB", param, ctx)
        nbytes = float(found[1]) * _UNITS[found[2].lower()]
        if not self._least <= nbytes <= _MOST_BYTES:
            self.fail(
                f"{value!r:.80} is not from {self._least} byte to {bytes_text(_MOST_BYTES)}", param, ctx
            )
        return round(nbytes)


class _Number(click.FloatRange):
    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A number in the range; nan is in none."""
        found: float = super().convert(value, param, ctx)
        if isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


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
    shuffle: _Order = "full"
    bandwidth: int = 3 * _GB
    store_bandwidth: int | None = None
    request_rate: float = 5500.0
    request_price: float = 0.0004
    transfer_price: float = 0.0


@storage_command("plan", id_argument(), version_argument())
@click.option("--nodes", "-n", type=click.IntRange(1, 10**6), default=1, show_default=True, help="Machines.")
@click.option(
    "--ranks", type=click.IntRange(1, 10**4), default=8, show_default=True, help="Processes of each node."
)
@click.option("--cache", type=_Size(0), help="What each node may keep, as 2TB; by default everything.")
@click.option(
    "--locality",
    "shard",
    type=click.Choice(["global", "shard"]),
    callback=lambda ctx, param, value: value == "shard",
    default="global",
    show_default=True,
    help="global: each node needs rows of all files. shard: files are dealt to nodes.",
)
@click.option(
    "--shuffle",
    type=click.Choice(["full", "block"]),
    default="full",
    show_default=True,
    help="As of a loader.",
)
@click.option("--bandwidth", type=_Size(), default="3GB", show_default=True, help="Of a node, a second.")
@click.option(
    "--store-bandwidth", type=_Size(), help="Of the store for all nodes, a second; by default without limit."
)
@click.option(
    "--request-rate", type=_Number(1, 10**12), default=5500.0, show_default=True, help="GETs a second."
)
@click.option(
    "--request-price", type=_Number(0, 10**6), default=0.0004, show_default=True, help="Of 1,000 GETs."
)
@click.option(
    "--transfer-price", type=_Number(0, 10**6), default=0.0, show_default=True, help="Of 1 GB downloaded."
)
@click.option("--epochs", type=click.IntRange(1, 10**6), default=3, show_default=True, help="For the sum.")
@as_one("cluster", Cluster)
def command(id: str, version: str | None, cluster: Cluster, epochs: int, asked: Asked) -> None:
    """Say what an epoch takes on some nodes: requests, bytes, money and seconds, by arithmetic.

    Only the manifest is read. The figures are of files that are downloaded; what the loop computes is not
    among them. docs/scale.md has the arithmetic and what it assumes.

    \b
    Examples:
      yoga plan images 1.1 --nodes 16 --cache 2TB
      yoga plan images --nodes 1250 --locality shard --json
    """
    store = versions_in(asked.storage)
    place = placed(store, id, version)
    manifest = store.manifest(*place)
    # Files of added columns are of the same rows.
    groups = [group.number for group in manifest.column_groups]
    files = Sizes.of(
        [(file.nbytes, file.rows if file.group == groups[0] else 0) for file in manifest.each_file]
    )
    first, later = epoch_of(files, cluster, is_first=True), epoch_of(files, cluster, is_first=False)
    together = first.then(later, epochs - 1)
    rows = [
        _row("first", first),
        *([_row("each later", later), _row(f"all {epochs}", together)] if epochs > 1 else []),
    ]
    remarks = _remarks(files, cluster, first, later)
    held = f"{count_of(files.rows, 'row')} in {count_of(files.num_files, 'file')}"
    of = f"{place.id} {place.version}: {held}, {bytes_text(files.total)}"
    on = f"on {count_of(cluster.nodes, 'node')} of {count_of(cluster.ranks, 'rank')}"
    kept = "all that it reads" if cluster.cache is None else bytes_text(cluster.cache)
    lines: list[str | Table] = [
        f"{of}, {on}; each may keep {kept}",
        "",
        Table(_TITLES, rows, right=_TITLES[1:-1]),
        "",
        *remarks,
    ]
    plain = {
        **place._asdict(),
        "rows": files.rows,
        "files": files.num_files,
        "bytes": files.total,
        "cluster": cluster._asdict(),
        "first": first._asdict(),
        "later": later._asdict(),
        "epochs": epochs,
        "together": together._asdict(),
        "remarks": remarks,
    }
    asked.write(plain, lines)


def _row(title: str, epoch: Epoch) -> tuple[str, ...]:
    return (
        title,
        f"{epoch.requests:,.0f}",
        bytes_text(round(epoch.downloaded)),
        f"{epoch.request_cost:,.2f}",
        f"{epoch.transfer_cost:,.2f}",
        f"{epoch.seconds:,.1f}",
        epoch.limit,
    )


def _remarks(files: Sizes, cluster: Cluster, first: Epoch, later: Epoch) -> list[str]:
    """The assumptions, and advice."""
    found = [
        f"assumed: {bytes_text(cluster.bandwidth)}/s a node, {cluster.request_rate:,.0f} GETs/s, "
        f"{cluster.request_price} for 1,000 GETs, {cluster.transfer_price} for a GB; a manifest is read once"
    ]
    if later.downloaded > 0.01 * first.downloaded:
        wanted = f"--cache {_rounded_up(ceil(held_bytes(files, cluster))).replace(' ', '')}"
        ways = [f"{wanted} keeps what a node reads"]
        ways += [] if cluster.shard else ["--locality shard deals files instead of rows"]
        ways += [] if cluster.shuffle == "block" else ["--shuffle block reads file by file"]
        found.append(f"later epochs download again: {'; '.join(ways)}")
    if first.limit == "requests":
        found.append("the store's requests limit the first epoch: larger files need fewer of them")
    return found


def _rounded_up(nbytes: int) -> str:
    """Two digits of it, so that what is shown is enough."""
    unit = 10 ** max(0, len(str(nbytes)) - 2)
    return bytes_text(-(-nbytes // unit) * unit)


class Sizes(NamedTuple):
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
    def of(cls, files: Sequence[tuple[int, int]]) -> Sizes:
        """Of the bytes and rows of each."""
        return cls(dict(Counter(files)), sum(rows for _, rows in files), sum(nbytes for nbytes, _ in files))


class Epoch(NamedTuple):
    """The cost of an epoch, all nodes together.

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


def epoch_of(files: Sizes, cluster: Cluster, is_first: bool) -> Epoch:
    """The first epoch, which finds empty caches, or a later one.

    Example:
        >>> files = Sizes.of([(2**30, 10_000)] * 100)
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


def held_bytes(files: Sizes, cluster: Cluster) -> float:
    """Bytes that a node keeps if it may keep all that it reads in an epoch."""
    if cluster.shard:
        return files.total / cluster.nodes
    sizes = files.sizes.items()
    return sum(count * nbytes * _share(rows, cluster.nodes) for (nbytes, rows), count in sizes)


def _share(rows: int, nodes: int) -> float:
    """The probability that a node needs a file: 1 - (1 - 1/N)^r."""
    return -expm1(rows * log1p(-1 / nodes)) if nodes > 1 else 1.0


def _downloads(files: Sizes, cluster: Cluster, rows: int, is_first: bool) -> float:
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
