"""`yoga plan`: what an epoch from a store costs, by arithmetic."""

from __future__ import annotations

import re
from math import ceil, isnan

import click

from ..plan.epoch import Cluster, Epoch, Files, Order, epoch_of, held_bytes
from .output import Table, bytes_text, json_option, write
from .places import id_argument, placed, storage_option, version_argument, versions_in

__all__ = ["command"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_UNITS |= {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("kmgtp", 1)}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?) ?([kmgtp]?i?)b?", re.IGNORECASE)
_TITLES = ("epoch", "GET requests", "downloaded", "requests", "transfer", "seconds", "limited by")


_MOST_BYTES = 10**20


class _Bytes(click.ParamType[int]):
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


@click.command("plan")
@id_argument()
@version_argument()
@click.option("--nodes", "-n", type=click.IntRange(1, 10**6), default=1, show_default=True, help="Machines.")
@click.option(
    "--ranks",
    type=click.IntRange(1, 10**4),
    default=8,
    show_default=True,
    help="Processes of each node.",
)
@click.option("--cache", type=_Bytes(0), help="What each node may keep, as 2TB; by default everything.")
@click.option(
    "--locality",
    type=click.Choice(["global", "shard"]),
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
@click.option("--bandwidth", type=_Bytes(), default="3GB", show_default=True, help="Of a node, a second.")
@click.option(
    "--store-bandwidth", type=_Bytes(), help="Of the store for all nodes, a second; by default without limit."
)
@click.option(
    "--request-rate",
    type=_Number(1, 10**12),
    default=5500.0,
    show_default=True,
    help="GETs a second.",
)
@click.option(
    "--request-price", type=_Number(0, 10**6), default=0.0004, show_default=True, help="Of 1,000 GETs."
)
@click.option(
    "--transfer-price", type=_Number(0, 10**6), default=0.0, show_default=True, help="Of 1 GB downloaded."
)
@click.option("--epochs", type=click.IntRange(1, 10**6), default=3, show_default=True, help="For the sum.")
@storage_option
@json_option
def command(
    id: str,
    version: str | None,
    nodes: int,
    ranks: int,
    cache: int | None,
    locality: str,
    shuffle: Order,
    bandwidth: int,
    store_bandwidth: int | None,
    request_rate: float,
    request_price: float,
    transfer_price: float,
    epochs: int,
    storage: str,
    as_json: bool,
) -> None:
    """Say what an epoch takes on some nodes: requests, bytes, money and seconds, by arithmetic.

    Only the manifest is read. The figures are of files that are downloaded; what the loop computes is not
    among them. docs/scale.md has the arithmetic and what it assumes.

    \b
    Examples:
      yoga plan images 1.1 --nodes 16 --cache 2TB
      yoga plan images --nodes 1250 --locality shard --json
    """
    store = versions_in(storage)
    place = placed(store, id, version)
    manifest = store.manifest(*place)
    files = Files.of([(file.nbytes, file.rows) for file in manifest.files])
    prices = {"request_price": request_price, "transfer_price": transfer_price}
    limits = {"bandwidth": bandwidth, "store_bandwidth": store_bandwidth, "request_rate": request_rate}
    cluster = Cluster(nodes, ranks, cache, locality == "shard", shuffle, **limits, **prices)  # type: ignore[arg-type]
    first, later = epoch_of(files, cluster, is_first=True), epoch_of(files, cluster, is_first=False)
    together = first.then(later, epochs - 1)
    rows = [
        _row("first", first),
        *([_row("each later", later), _row(f"all {epochs}", together)] if epochs > 1 else []),
    ]
    remarks = _remarks(files, cluster, first, later)
    name = f"{place.id} {place.version}"
    of = f"{name}: {files.rows:,} rows in {files.num_files:,} files, {bytes_text(files.total)}"
    on = f"on {nodes:,} {'node' if nodes == 1 else 'nodes'} of {ranks} ranks"
    kept = "all that it reads" if cache is None else bytes_text(cache)
    lines: list[str | Table] = [
        f"{of}, {on}; each may keep {kept}",
        "",
        Table(_TITLES, rows, right=_TITLES[1:-1]),
        "",
        *remarks,
    ]
    plain = {
        "id": place.id,
        "version": place.version,
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
    write(plain, as_json, lines)


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


def _remarks(files: Files, cluster: Cluster, first: Epoch, later: Epoch) -> list[str]:
    """What was assumed, and what to change."""
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
