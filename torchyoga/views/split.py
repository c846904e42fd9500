"""A DataRef -> parts of it: each row in exactly one, by shares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt
import torch

from ..order.full import Order
from ..process.digests import keyed_bytes, splitmix
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..reading.dataref import DataRef
from ..reading.instead import advised
from ..rows.block import bounds_of
from ..rows.types import Array, Ints, RowT
from .chosen import SelectedRef
from .joined import RowMap, end_to_end
from .scan import has_none, single_values

Words = npt.NDArray[np.uint64]
_ROWS = 2**16  # at once
_NEAR = 1e-9  # of a row
_SUM_NEAR = 1e-6  # of 1, which shares sum to; they may be float32


@advised
def split(
    ref: DataRef[RowT],
    shares: Sequence[float],
    seed: int = 0,
    by: str | None = None,
    stratify: str | None = None,
) -> list[DataRef[RowT]]:
    """Parts of the rows, each row in exactly one of them and in its order there.

    Args:
        shares: a list with the share of each part, which sum to 1, or with the number of rows of each part.
        seed: any int; another one makes other parts.
        by: a column of integers or text: all rows with the same value are in one part, which depends on the
            value alone. So rows that are added later move no other row, and the shares are approximate.
        stratify: a column of integers or text: each part has its share of the rows of each value, give or
            take a row.

    A warning names parts without rows, and with `stratify` values of which a part has no row.

    Raises:
        ValueError: the shares do not sum to 1, or the numbers do not sum to the number of rows.
        TypeError: the column holds something else, or `shares` is not a list of numbers.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(10), "user": np.arange(10) // 3})
        >>> [len(part) for part in ref.split([0.8, 0.1, 0.1], seed=7)]
        [8, 1, 1]
        >>> train, test = ref.split([0.5, 0.5], seed=1, by="user")
        >>> {int(r["user"]) for r in train} & {int(r["user"]) for r in test}
        set()
    """
    shares = _listed(shares)
    seed = as_int("seed", seed)
    if by is not None and stratify is not None:
        raise ValueError("split by a key or stratify by a label, not both; split twice for that")
    counts = _counts_of(shares, len(ref))
    if counts is not None and (by is not None or stratify is not None):
        raise ValueError("by= and stratify= need shares of the rows, not their numbers")
    splits: tuple[str, ...] = ()
    if by is not None:
        splits = _splits_above(ref)
        parts = _by_key(ref, by, list(map(float, shares)), seed, splits)
        splits += (f"{by} {seed} {shares}",)
    elif stratify is not None:
        parts = _stratified(ref, stratify, list(map(float, shares)), seed)
    else:
        parts = _by_place(len(ref), counts or exact_counts(list(map(float, shares)), len(ref)), seed)
    rows_of: list[list[Ints]] = [[] for _ in shares]
    start = 0
    for part_of in parts:
        for number, rows in enumerate(rows_of):
            rows.append(end_to_end([start + np.flatnonzero(part_of == number)], len(ref)))
        start += len(part_of)
    found: list[DataRef[RowT]] = [
        SelectedRef(
            ref, RowMap(end_to_end(rows, len(ref))), splits and (*splits[:-1], f"{splits[-1]} {number}")
        )
        for number, rows in enumerate(rows_of)
    ]
    empty = [number for number, part in enumerate(found) if not len(part)]
    if empty and len(ref):
        more = f"{by!r} has too few values, or another seed does it" if by else "give it a larger share"
        warn_user(f"split({shares}) of {len(ref)} rows: no row is in part {empty[0]}; {more}")
    return found


def _listed(shares: object) -> list[Any]:
    """The shares, or numbers of rows, as a list of numbers."""
    found = shares.tolist() if isinstance(shares, (np.ndarray, torch.Tensor)) else shares
    if isinstance(found, Iterable) and not isinstance(found, (Mapping, Set)):
        found = list(found)
        if all(isinstance(share, SupportsFloat) and type(share) is not bool for share in found):
            return found
    raise TypeError(
        f"split takes a list of the share of each part, or of its number of rows, such as [0.8, 0.2]; found "
        f"{shares!r:.80}"
    )


def _splits_above(ref: DataRef) -> tuple[str, ...]:
    """The splits by a key whose parts a DataRef is of.

    They are mixed into the next hash: by the same one, all keys of a part would be on one side again.
    """
    found: tuple[str, ...] = ()
    while isinstance(ref, DataRef):
        if isinstance(ref, SelectedRef):
            found = ref.splits + found
        ref = getattr(ref, "sources", [getattr(ref, "whole", None)])[0]
    return found


def _counts_of(shares: Sequence[float], length: int) -> list[int] | None:
    """The number of rows of each part, if numbers of rows are given."""
    if not shares:
        raise ValueError("split needs the share of each part, such as [0.8, 0.1, 0.1]")
    if all(isinstance(share, (int, np.integer)) for share in shares) and sum(shares) != 1:
        counts = [as_int("shares", int(share), low=0) for share in shares]
        if sum(counts) != length:
            raise ValueError(f"the parts {counts} have {sum(counts)} rows, the DataRef has {length}")
        return counts
    for share in shares:
        if not 0 <= float(share) <= 1:
            raise ValueError(
                f"shares must be from 0 to 1, or numbers of rows and all of them int, found {list(shares)}"
            )
    if abs(float(sum(shares)) - 1) > _SUM_NEAR:
        raise ValueError(f"shares must sum to 1, but {list(shares)} sum to {float(sum(shares))}")
    return None


def exact_counts(shares: list[float], length: int, behind: list[float] | None = None) -> list[int]:
    """How many of the rows each part gets: its share, rounded down or up.

    Rows that are left go to the parts with the largest remainders, or to those that are most `behind`.
    """
    wanted = [share * length for share in shares]
    counts = [int(each + _NEAR) for each in wanted]
    rest = [each - count for each, count in zip(wanted, counts, strict=True)]
    some = [part for part in range(len(shares)) if rest[part] > _NEAR]
    some.sort(key=lambda part: (-(rest if behind is None else behind)[part], part))
    for part in some[: length - sum(counts)]:
        counts[part] += 1
    counts[counts.index(max(counts))] += length - sum(counts)  # of shares that sum to 1 only nearly
    return counts


def _by_place(length: int, counts: list[int], seed: int) -> Iterator[Ints]:
    """The part of each row: the first rows of a shuffle are the first part, and so on."""
    part_of = _dealt(length, counts, seed)
    for start in range(0, length, _ROWS):
        yield part_of(np.arange(start, min(start + _ROWS, length)))


def _dealt(length: int, counts: list[int], *key: int | str) -> Callable[[Ints], Ints]:
    """The part of each of so many rows, at random, exactly as many in each part."""
    order = Order(length, int.from_bytes(keyed_bytes(8, "split", *key), "little"))
    ends = np.cumsum(counts)

    def part_of(rows: Ints) -> Ints:
        return np.searchsorted(ends, order.positions(0, rows), "right")

    return part_of


def _stratified(ref: DataRef, name: str, shares: list[float], seed: int) -> Iterator[Ints]:
    """The part of each row, with its share of each class in each part, and of all rows."""
    sizes: dict[object, int] = {}
    for labels in labels_of(ref, name):
        found, counts = np.unique(labels, return_counts=True)
        for label, count in zip(found.tolist(), counts.tolist(), strict=True):
            sizes[label] = sizes.get(label, 0) + count
    part_of: dict[object, Callable[[Ints], Ints]] = {}
    counts_of: dict[object, list[int]] = {}
    behind = [0.0] * len(shares)  # how many rows each part should have, and has not
    for label in sorted(sizes, key=lambda label: keyed_bytes(8, "class", seed, repr(label))):
        size = sizes[label]
        behind = [rows + share * size for rows, share in zip(behind, shares, strict=True)]
        dealt = exact_counts(shares, size, behind)
        behind = [rows - count for rows, count in zip(behind, dealt, strict=True)]
        part_of[label], counts_of[label] = _dealt(size, dealt, seed, repr(label)), dealt
    _warn_of_few(name, counts_of)
    seen = dict.fromkeys(sizes, 0)
    for labels in labels_of(ref, name):
        found, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
        places = np.split(np.argsort(inverse.reshape(-1), kind="stable"), bounds_of(counts)[1:-1])
        parts = np.zeros(len(labels), np.int64)
        for label, rows in zip(found.tolist(), places, strict=True):
            parts[rows] = part_of[label](np.arange(seen[label], seen[label] + len(rows)))
            seen[label] += len(rows)
        yield parts


def _warn_of_few(name: str, counts_of: dict[object, list[int]]) -> None:
    """Warns of classes of which a part has no row, though it has some; takes the rows of each by part."""
    has_rows = [any(counts) for counts in zip(*counts_of.values(), strict=True)]
    few = [
        label
        for label, counts in counts_of.items()
        if any(some and not count for some, count in zip(has_rows, counts, strict=True))
    ]
    if few:
        warn_user(
            f"stratify={name!r}: {len(few)} of {len(counts_of)} values have too few rows for each part to "
            f"get one, such as {few[0]!r:.50} with {sum(counts_of[few[0]])}; take fewer parts, or "
            "leave such values out"
        )


def labels_of(ref: DataRef, name: str) -> Iterator[Array]:
    """The values of a column of integers or text, thousands of rows at once.

    Raises:
        ValueError: it holds several values a row.
        TypeError: it holds something else.
    """
    for _, labels in single_values(ref, name, f"{name!r} must hold one number or text a row"):
        if has_none(labels):
            raise TypeError(f"{name!r} is None in some rows; use ref.filled({{{name!r}: ...}}) first")
        if labels.dtype.kind not in "iubO":
            raise TypeError(f"{name!r} holds {labels.dtype}; rows are kept together by integers or text")
        yield labels


def _by_key(
    ref: DataRef, name: str, shares: list[float], seed: int, splits: tuple[str, ...]
) -> Iterator[Ints]:
    """The part of each row, by a hash of its key alone: whatever rows come later, it stays."""
    ends = [round(share * 2**64) for share in np.cumsum(shares)][:-1]
    bounds = np.array([min(end, 2**64 - 1) for end in ends], np.uint64)
    key = np.frombuffer(keyed_bytes(16, "split by", seed, *splits), "<u8")
    texts: dict[object, int] = {}
    for keys in labels_of(ref, name):
        if keys.dtype == object:
            words = np.array([_text_word(text, key.tobytes(), texts) for text in keys.tolist()], np.uint64)
        else:
            words = splitmix(splitmix(keys.astype(np.int64).view(np.uint64) ^ key[0]) ^ key[1])
        found: Ints = np.searchsorted(bounds, words, "right")
        yield found


def _text_word(text: object, key: bytes, known: dict[object, int]) -> int:
    """64 bits of a hash of a text."""
    found = known.get(text)
    if found is None:
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"a row has the key {text!r:.50}; rows are kept together by integers or text")
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        found = int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "little")
        known[text] = found
    return found
