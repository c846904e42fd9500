"""The options of an order, as one value that is checked once."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass

from ..process.numbers import as_int
from .by_file import MOST_WINDOW, BlockOrder, equal_runs
from .contract import AnyOrder, Appended, Arrangement, Locality, Shuffle, check_appended
from .cursor import Cursor
from .full import Order
from .place import Shard

_ALONE = Shard()


@dataclass(frozen=True)
class OrderOptions:
    """The order of the rows, which of them this rank takes, and where the first iteration begins.

    Args:
        shuffle: True, False or "block".
        seed: any int; None if it is still to be drawn.
        reshuffle: False gives every epoch the order of epoch 0.
        window: files mixed with each other at once, if shuffle is "block".
        locality: "global", or "shard" to give each rank files of its own.
        shard: ranks and remainder.
        offset: rows over all ranks that the first iteration leaves out.
        appended: when rows come that were appended since a state was saved.

    Raises:
        ValueError: an argument is out of range.
    """

    shuffle: Shuffle = False
    seed: int | None = 0
    reshuffle: bool = True
    window: int = 8
    locality: Locality = "global"
    shard: Shard = _ALONE
    offset: int = 0
    appended: Appended | None = None

    def __post_init__(self) -> None:
        check_appended(self.appended)
        if self.shuffle not in (True, False, "block"):
            raise ValueError(f"shuffle must be True, False or 'block', found {self.shuffle!r}")
        if self.locality not in ("global", "shard"):
            raise ValueError(f"locality must be 'global' or 'shard', found {self.locality!r}")
        as_int("shuffle_window", self.window, low=1, high=MOST_WINDOW)
        kind: Shuffle = "block" if isinstance(self.shuffle, str) else bool(self.shuffle)
        object.__setattr__(self, "shuffle", kind)

    def order_of(self, source: Sized | int) -> AnyOrder:
        """The order of the rows of a source, or of a number of rows.

        Args:
            source: an int, or anything with a length; its `file_starts`, if it has any, say where files
                begin.

        Raises:
            ValueError: its files do not end with its rows.
        """
        # An int first: to find out that it is not Sized takes 0.1 ms, the first time in a process.
        if isinstance(source, int) or not isinstance(source, Sized):
            length = as_int("dataset_or_length", source, low=0)
        else:
            length = len(source)
        seed = 0 if self.seed is None else self.seed
        arrangement = getattr(source, "_arrangement", None)
        if isinstance(arrangement, Arrangement):
            if self.locality == "shard":
                raise ValueError(
                    "locality='shard' gives each rank rows of its own, and a mixture, weights, stages or "
                    "buckets decide over the rows of all ranks; leave it out"
                )
            return arrangement.order(seed, self.shuffle, self.reshuffle, self.window)
        if self.shuffle != "block" and self.locality == "global":
            return Order(length, seed, self.shuffle, self.reshuffle)
        starts = getattr(source, "file_starts", None)
        order = BlockOrder(
            equal_runs(length) if starts is None else starts,
            seed,
            self.shuffle,
            self.reshuffle,
            self.window,
            self.shard.num_replicas if self.locality == "shard" else None,
        )
        if order.length != length:
            raise ValueError(
                f"file_starts must end with the {length} rows of the dataset, found {order.length}"
            )
        return order

    def cursor_of(self, source: Sized | int, draw: Callable[[bool], int] | None = None) -> Cursor:
        """A cursor at the beginning of the order of a source; `draw` returns the seed if there is none."""
        fingerprint = getattr(source, "fingerprint", None)
        cursor = Cursor(
            self.order_of(source),
            self.shard,
            self.offset,
            fingerprint if isinstance(fingerprint, str) else None,
            draw=draw if self.seed is None else None,
        )
        cursor.appended, cursor.prefixes = self.appended, tuple(getattr(source, "_prefixes", ()))
        arrangement = getattr(source, "_arrangement", None)
        cursor.arrangement = arrangement if isinstance(arrangement, Arrangement) else None
        view = getattr(source, "_view_pin", None)
        if isinstance(view, str) or cursor.fingerprint is None:
            cursor.pins = {"view": view if isinstance(view, str) else None}
        return cursor
