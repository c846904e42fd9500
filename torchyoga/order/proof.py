"""A proof that each row came exactly once: a number that each rank keeps, and that adds up over the ranks.

Position i of an epoch weighs a^i modulo the prime P = 2^127 - 1, and the rows delivered weigh the sum of
that. So a multiset of positions below N is a polynomial in `a`, of a degree below N: two different ones weigh
the same for fewer than N values of `a` (Schwartz and Zippel), and `a` is a hash of seed and epoch. A row that
was lost or came twice therefore goes unnoticed with a probability of N / 2^127. Positions in regular steps
are a geometric series, so it costs the same for any number of rows.

Note 1. The positions that each rank has delivered are a geometric series.
Its hash is computed on request, from a few numbers. The state holds the hash over all ranks, as far as this
one knows, and so stays the same on every rank: Accelerate lets all of them write one file. The share of each
rank is in its receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import StateError
from ..process.digests import keyed_bytes
from .contract import Saved, are_counts
from .place import Place, Shard, taken

PRIME = 2**127 - 1
_NOTES = ("again", "since", "peeked")  # other fields of a receipt, in rows over all ranks
PINS = ("window", "files", "shards", "stages", "view")  # fields that a state and a receipt may have
SAME = ("version", "seed", "length", "shuffle", "fingerprint", "epoch", "num_replicas")


@lru_cache(maxsize=64)
def _base(seed: int, epoch: int) -> int:
    return int.from_bytes(keyed_bytes(16, "proof", seed, epoch), "little") % (PRIME - 2) + 2


@lru_cache(maxsize=256)
def _step(base: int, step: int) -> tuple[int, int]:
    """The pair of q = base^step and 1 / (q - 1)."""
    power = pow(base, step, PRIME)
    return power, pow(power - 1, -1, PRIME) if power != 1 else 0


def _series(base: int, step: int, count: int) -> int:
    """1 + q + ... + q^(count - 1) for q = base^step."""
    if count < 2:
        return count  # most iterations begin with nothing delivered, and without the cost of an inverse
    power, inverse = _step(base, step)
    return (pow(power, count, PRIME) - 1) * inverse % PRIME if power != 1 else count


def weight(seed: int, epoch: int, positions: Iterable[range]) -> int:
    """The sum of the weights of these positions."""
    base = _base(seed, epoch)
    return (
        sum(pow(base, some.start, PRIME) * _series(base, some.step, len(some)) for some in positions) % PRIME
    )


def weight_until(seed: int, place: Place) -> int:
    """The weight of the rows that all ranks deliver to reach a place, if no row is lost or repeated."""
    if not place.left:
        return _series(_base(seed, place.epoch), 1, place.position)
    whole = _series(_base(seed, place.epoch), 1, place.end)
    return (whole - weight(seed, place.epoch, place.left)) % PRIME


def weight_of_share(seed: int, start: Place, shard: Shard, length: int, rows: int) -> int:
    """The weight of a rank's first `rows` rows from `start` on."""
    if shard.run_length == 1 or start.left:
        return weight(seed, start.epoch, taken(start, shard, length, 0, rows))
    base, world = _base(seed, start.epoch), shard.num_replicas
    full = min(
        rows // shard.run_length,
        (shard.end(length, start.position) - start.position) // (shard.run_length * world),
    )
    first = pow(base, start.position + shard.rank * shard.run_length, PRIME)
    whole = first * _series(base, 1, shard.run_length) * _series(base, shard.run_length * world, full)
    rest = weight(seed, start.epoch, taken(start, shard, length, full * shard.run_length, rows))
    return (whole + rest) % PRIME


@dataclass(frozen=True)
class Proof:
    """The result of the receipts of all ranks together. True if all came as `remainder` and `drop_last` say.

    That is: each row once with "keep"; with "pad", the default, `filled_up` rows twice where the ranks
    cannot divide an epoch; with "drop" or `drop_last`, all but `dropped` rows. Any other row that was lost
    or came twice makes it False. `is_exact` is True only if each row of the epoch came exactly once.

    It counts rows delivered to the training loops since the epoch began. It cannot know what
    a loop does with them, such as holding one batch back.

    Attributes:
        epoch: the epoch.
        rows: rows delivered, over all ranks.
        length: rows of the dataset.
        problem: what is wrong, or "".
        since: how many of these rows came earlier, according to the state that was loaded, to `start_offset`,
            or to a trainer that skips batches.
        peeked: rows that were looked at before, and came again.
        left_out: rows of earlier epochs that were left before their end, and the last of these epochs.
        dropped: rows of the epoch that no batch will have, as it is over.
    """

    epoch: int
    rows: int
    length: int
    problem: str = ""
    since: int = 0
    peeked: int = 0
    left_out: tuple[int, int] = (0, 0)
    dropped: int = 0

    def __bool__(self) -> bool:
        return not self.problem

    @property
    def filled_up(self) -> int:
        """Rows that came again at the end of the epoch, so that all ranks have as many."""
        return max(0, self.rows - self.length)

    @property
    def is_exact(self) -> bool:
        """True if each row of the epoch came exactly once."""
        return not self.problem and self.rows == self.length

    def __str__(self) -> str:
        notes = []
        if self.peeked:
            notes.append(f"again: {self.peeked} rows, after a batch had been looked at")
        if self.left_out[0]:
            notes.append(
                f"left out: {self.left_out[0]} rows of epochs that were left early, up to {self.left_out[1]}"
            )
        remarks = "".join(f"; {note}" for note in notes)
        if self.problem:
            return f"epoch {self.epoch}: {self.problem}{remarks}"
        since = f" ({self.since} of them before, as a state or a trainer says)" if self.since else ""
        rows = min(self.rows, self.length)
        if self.filled_up:
            what = f"each once; filled up by {self.filled_up} that came twice (remainder='pad')"
        elif self.dropped:
            what = f"each once; {self.dropped} left out at the end (remainder='drop' or drop_last)"
        else:
            what = "each exactly once"
        return (
            f"epoch {self.epoch}: {rows} of {self.length} rows delivered since it began{since}, "
            f"{what}{remarks}"
        )


def prove(receipts: Sequence[Mapping[str, object]]) -> Proof:
    """A `Proof` of whether all ranks together have delivered each row of the epoch so far exactly once.

    Rows that `remainder` or `drop_last` adds or leaves out at the end of an epoch are allowed: see `Proof`.

    Args:
        receipts: one from each rank, taken after the same step: what `receipt()` of a loader, sampler or
            stream returns.

    Raises:
        StateError: the receipts are damaged, of different epochs, datasets or seeds, or not one of each rank.

    Example:
        >>> import torchyoga as yoga
        >>> ranks = [yoga.DataLoader(range(10), 2, num_replicas=2, rank=r) for r in (0, 1)]
        >>> for batches in zip(*ranks):
        ...     pass
        >>> print(prove([loader.receipt() for loader in ranks]))
        epoch 0: 10 of 10 rows delivered since it began, each exactly once
    """
    each = _checked(receipts)
    first = each[0]
    seed, epoch, length = first["seed"], first["epoch"], first["length"]
    rows = found = 0
    coming: list[range] = []
    steps = {receipt["rank"]: receipt["steps"] for receipt in each}
    is_level = True
    for receipt in each:
        rows += receipt["rows"]
        found += int(receipt["weight"], 16)
        coming += [range(*some) for some in receipt["coming"]]
        # A rank with one row fewer may reach its end a batch before the others.
        is_level = is_level and (receipt["steps"] == max(steps.values()) or not receipt["steps_to_come"])
    whole = _series(_base(seed, epoch), 1, rows + sum(map(len, coming)))
    again, since, peeked = (max(receipt.get(name, 0) for receipt in each) for name in _NOTES)
    left_out = max(tuple(receipt.get("left_out") or (0, 0)) for receipt in each)
    problem = ""
    if (found + weight(seed, epoch, coming) - whole) % PRIME:
        problem = f"of {rows} rows delivered, some came twice, or others instead of them"
    elif not is_level:
        problem = f"the ranks have delivered different numbers of batches: {steps}"
    elif again:
        problem = f"restarted: {again} rows had been delivered when it was begun again, and came again"
    is_over = not any(receipt["steps_to_come"] for receipt in each)
    dropped = max(0, length - rows) if is_over and not problem else 0
    return Proof(epoch, rows, length, problem, min(since, rows), peeked, left_out, dropped)


def _checked(receipts: Sequence[Mapping[str, object]]) -> list[Saved]:
    """The receipts, as they are, if they belong together."""
    if not receipts:
        raise StateError("there are no receipts; pass what receipt() gave on every rank")
    try:
        each: list[Saved] = [dict(receipt) for receipt in receipts]
        ranks = sorted(int(receipt["rank"]) for receipt in each)
        kinds = [
            (*(receipt[name] for name in SAME), *(receipt.get(name) for name in PINS)) for receipt in each
        ]
        for receipt in each:
            counts = ("rows", "steps", "steps_to_come", "epoch", "length", "num_replicas")
            if not are_counts(*(receipt[name] for name in counts)):
                raise ValueError
            if type(receipt["seed"]) is not int or receipt["seed"].bit_length() > 4096:
                raise ValueError
            if not all(type(receipt.get(name)) in (bool, int, str, type(None)) for name in (*SAME, *PINS)):
                raise ValueError
            if not 0 <= int(receipt["weight"], 16) < PRIME:
                raise ValueError
            left_out = receipt.get("left_out") or (0, 0)
            notes = [*(receipt.get(name, 0) for name in _NOTES), *left_out]
            if len(left_out) != 2 or not are_counts(*notes):
                raise ValueError
            for some in receipt["coming"]:
                if len(some) not in (2, 3) or not are_counts(*some):
                    raise ValueError
                range(*some)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError("a receipt is damaged; pass what receipt() gave on every rank") from error
    first = each[0]
    for receipt, kind in zip(each, kinds, strict=True):
        for name, mine, firsts in zip((*SAME, *PINS), kind, kinds[0], strict=True):
            if mine != firsts:
                do = (
                    "give all the same seed="
                    if name == "seed"
                    else "take them on all ranks after the same step"
                )
                raise StateError(
                    f"the receipt of rank {receipt['rank']} has {name} {mine!r}, rank {first['rank']}'s has "
                    f"{firsts!r}; {do}"
                )
    world = first["num_replicas"]
    if world != len(ranks) or ranks != list(range(world)):
        raise StateError(
            f"expected the receipts of ranks 0 to {world - 1}, one of each, found those of {ranks}: two "
            "processes have the same rank, or one is missing: yoga.prove takes the loader.receipt() of each"
        )
    return each
