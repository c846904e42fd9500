"""Rows of one DataRef by their weights, by class in fixed shares, or those of like lengths together."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..order.by_file import BlockOrder
from ..order.change import changed
from ..order.contract import AnyOrder, Arrangement, Shuffle, described
from ..order.full import Order
from ..order.mixed import MixOrder, unpacked
from ..order.mixture import MixStage, Mixture, Source, Version, fraction, tag_of, whole_weights
from ..order.state import State
from ..order.weighted import MOST_PLACES, BucketOrder, RowWeights, WeightedOrder, whole_ends
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.numbers import as_int, distinct
from ..reading.contract import identity, nameless_pin
from ..reading.dataref import DataRef
from ..rows.block import bounds_of
from ..rows.types import Array, Ints, Numbers, RowT
from .mix import ArrangedRef, MixArrangement, warn_if_arranged
from .over import RowView
from .scan import lengths_of
from .split import labels_of

Weights: TypeAlias = Sequence[float] | npt.NDArray[np.generic] | Numbers


def weighted(ref: DataRef[RowT], weights: Weights, rows: int | None = None) -> ArrangedRef[RowT]:
    """Each row as often as its weight says: in every epoch it comes its share of `rows` times, rounded down
    or up.

    torch's WeightedRandomSampler draws each row independently, so counts vary; it works in one process, up to
    2**24 rows. Here counts are exact, and the order resumes and is divided among ranks like any other.

    Args:
        weights: (N,) numbers of at least 0; they need not sum to 1.
        rows: the rows of an epoch; by default N.

    Raises:
        ValueError: a weight is negative, NaN or infinite, all are 0, or there are not N.

    Example:
        >>> ref = yoga.from_arrays({"x": np.arange(3)}).weighted([1, 0, 2], rows=6)
        >>> sorted(int(row["x"]) for row in ref.stream(shuffle=True))
        [0, 0, 2, 2, 2, 2]
    """
    warn_if_arranged(ref, "weighted")
    length = len(ref) if rows is None else as_int("rows", rows, 1, MOST_PLACES)
    if length > MOST_PLACES:
        raise ValueError(f"an epoch of weighted rows has at most {MOST_PLACES} of them; pass rows=")
    return WeightedRef(ref, RowWeights.of(_ends(ref, weights)), length)


def _ends(ref: DataRef, weights: Weights) -> Ints:
    if not len(ref):
        raise ValueError("there are no rows to weigh")
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().cpu()
        # NumPy has no bfloat16.
        found = (weights.float() if weights.dtype == torch.bfloat16 else weights).numpy()
    else:
        found = np.asarray(weights)
    if found.ndim != 1 or len(found) != len(ref):
        raise ValueError(
            f"weighted takes a weight for each of the {len(ref)} rows, found an array of shape {found.shape}"
        )
    return whole_ends(found)


class WeightedRef(ArrangedRef):
    """Rows of another DataRef, as often as their weights say: what `ref.weighted(weights)` is.

    Args:
        whole: the other DataRef.
        weights: of its rows.
        length: rows of an epoch.
    """

    def __init__(self, whole: DataRef, weights: RowWeights, length: int) -> None:
        super().__init__(whole, weights, length)
        self._weights = weights
        self._length = length

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> WeightedOrder:
        """The order of every epoch."""
        files = self.whole.file_starts if shuffle == "block" else None
        return WeightedOrder(self._weights, self._length, seed, shuffle, reshuffle, window, files)

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's, as often as their weights say."""
        return [(self._pinned(name, rows), self._length) for name, rows in self.whole._prefixes]

    @cached_property
    def _view_pin(self) -> str | None:
        """How many rows an epoch has; states also say the weights."""
        return described("weighted", rows=self._length, of=nameless_pin(self, identity(self.whole)))

    def _pinned(self, whole: str, rows: int | None = None) -> str:
        """A name for the content, made of one for the whole's, or for its first rows."""
        return hexdigest(f"{whole} weighted {len(self.whole) if rows is None else rows} {self._length}")

    def _title(self) -> str:
        return f"weighted rows of {super()._title()}"


Shares: TypeAlias = Mapping[Hashable, float]
_MOST_CLASSES, _MOST_ROWS, _MOST_CELL = 2**16, 2**60, 2**16


def balanced(
    ref: DataRef[RowT], column: str, *, rows: int | None = None, batch: int = 64, shares: Shares | None = None
) -> ArrangedRef[RowT]:
    """Rows of each class in fixed shares, in every batch: a mixture of the classes.

    Rows of each class are shuffled by themselves; a small class is read again when all its rows have come.

    Args:
        column: a column of integers or text: the class of each row.
        rows: the rows of an epoch; by default as many as the dataset has.
        batch: the rows of a batch, over all ranks: each batch has the shares, give or take a row.
        shares: a number for each class; by default equal ones.

    Raises:
        ValueError: a share is negative, not a number, or of a class that does not exist; or all are 0.
        TypeError: the column holds something else.

    Example:
        >>> ref = yoga.from_arrays({"label": np.repeat([0, 1], [900, 100])})
        >>> loader = yoga.DataLoader(ref.balanced("label", batch=10), 10, shuffle=True, seed=7)
        >>> [int(batch["label"].sum()) for batch in loader][:4]
        [5, 5, 5, 5]
    """
    warn_if_arranged(ref, "balanced")
    if not len(ref):
        raise ValueError("there are no rows to balance")
    length = len(ref) if rows is None else as_int("rows", rows, 1, _MOST_ROWS)
    cell = as_int("batch", batch, 1, _MOST_CELL)
    numbers: dict[Hashable, int] = {}
    parts = []
    for labels in labels_of(ref, column):
        found, inverse = np.unique(labels, return_inverse=True)
        # NumPy's own text, which an array of objects keeps, shows itself otherwise.
        plain = [label.item() if isinstance(label, np.generic) else label for label in found.tolist()]
        codes = [numbers.setdefault(label, len(numbers)) for label in plain]
        if len(numbers) > _MOST_CLASSES:
            raise ValueError(f"{column!r} has more than {_MOST_CLASSES} different values; is it a label?")
        parts.append(np.array(codes, np.uint16)[inverse.reshape(-1)])
    # In ascending order, however the rows lie.
    classes = sorted(numbers, key=lambda label: (str(type(label)), label))
    ranks = np.empty(len(classes), np.uint16)
    ranks[[numbers[label] for label in classes]] = np.arange(len(classes))
    classes_of = ranks[np.concatenate(parts)]
    members = np.argsort(classes_of, kind="stable")
    lengths = tuple(np.bincount(classes_of, minlength=len(classes)).tolist())
    versions = _versions(ref, members, lengths)
    sources = tuple(map(Source, map(str, classes), lengths, itertools.repeat(None), versions))
    first = MixStage.first(_weights(classes, shares))
    mixture = Mixture(sources, (first,), length, cell, is_counted=rows is None, is_one=True)
    return BalancedRef(ref, members.astype(np.uint32) if len(ref) <= 2**32 else members, mixture, classes)


def _versions(ref: DataRef, members: Ints, lengths: Sequence[int]) -> tuple[tuple[Version, ...], ...]:
    """Of each class, its rows and a tag of the dataset: as it is, and as it was before rows were appended."""
    starts = bounds_of(lengths)
    told = [[Version(rows, tag_of(identity(ref)))] for rows in lengths]
    for name, rows in ref._prefixes:
        # Members of a class ascend.
        for number, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
            told[number].append(Version(int(np.searchsorted(members[begin:end], rows)), tag_of(name)))
    return tuple(map(tuple, told))


def _weights(classes: Sequence[Hashable], shares: object) -> tuple[int, ...]:
    """The weight of each class; equal ones by default."""
    if shares is None:
        return (1,) * len(classes)
    if not isinstance(shares, Mapping):
        raise ValueError(f"shares must be a dict of a number for each class, found {shares!r:.80}")
    unknown = [label for label in shares if label not in classes]
    missing = [label for label in classes if label not in shares]
    if unknown or missing:
        raise ValueError(
            f"shares must name each class once; without a share are {missing[:20]}, unknown are "
            f"{unknown[:20]}; the classes are {list(classes[:20])}"
        )
    found = [fraction(shares[label], label) for label in classes]
    if not any(found):
        raise ValueError("all shares are 0; give at least one class a share above 0")
    return whole_weights(found)


class BalancedRef(ArrangedRef):
    """Rows of another DataRef, those of each class in a fixed share: what `ref.balanced(column)` is.

    Args:
        whole: the other DataRef.
        members: (N,) the rows of the first class, then those of the second, ...
        mixture: the classes as sources.
        class_labels: the value of each class, ascending.

    Attributes:
        mixture: the classes as sources.
    """

    def __init__(
        self, whole: DataRef, members: Ints, mixture: Mixture, class_labels: Sequence[Hashable]
    ) -> None:
        super().__init__(whole, members, mixture, class_labels)
        self._members, self.mixture, self._labels = members, mixture, list(class_labels)

    def __len__(self) -> int:
        return self.mixture.rows

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return MixArrangement(self.order, self.mixture)

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> MixOrder:
        """The order of every epoch: each class by itself, in the shares."""
        files = tuple(self._files) if shuffle == "block" else ()
        return MixOrder(self.mixture, seed, shuffle, reshuffle, window, files)

    @cached_property
    def _plain(self) -> MixOrder:
        """The order of its own rows."""
        return MixOrder(self.mixture.plain, shuffle=False)

    @cached_property
    def _files(self) -> list[Ints]:
        """For each class, where among its rows files begin."""
        found, starts = [], self.mixture.starts.tolist()
        for begin, end in itertools.pairwise(starts):
            rows = self._members[begin:end].astype(np.int64)
            found.append(distinct(np.append(np.searchsorted(rows, self.whole.file_starts), [0, len(rows)])))
        return found

    def unpacked(self, numbers: Ints) -> Ints:
        """The rows of the whole that numbers of its orders (B,) stand for."""
        of_class, _, place = unpacked(self.mixture, numbers)
        found: Ints = self._members[self.mixture.starts[of_class] + place].astype(np.int64)
        return found

    def counts(self, rows: int) -> dict[Hashable, int]:
        """How many of the first rows, of all epochs together, are of each class; exact at ends of batches.

        After `reweighted` it is known from the row on that its state had reached; ValueError for fewer rows.

        Example:
            >>> ref = yoga.from_arrays({"label": np.array([0, 0, 0, 1])})
            >>> ref.balanced("label", batch=2).counts(8)
            {0: 4, 1: 4}
        """
        counts = self.mixture.of_first(as_int("rows", rows, 0, _MOST_ROWS))
        return dict(zip(self._labels, counts, strict=True))

    def reweighted(self, shares: Shares | None, *, at: Mapping[str, object]) -> BalancedRef:
        """The same rows with other shares from a state on; what came before stays.

        The dataset may have rows that were appended since, and classes that are new: see `MixRef.reweighted`.

        Load the same state into a loader of what this returns, which goes on from there, and from later
        states; without it a loader raises ValueError when it reads, or peeks.

        Args:
            shares: of each class, as `DataRef.balanced` takes them.
            at: what `state_dict()` of a loader of this view gave.

        Raises:
            StateError: the state is of other data.
        """
        mixture, numbers = changed(self.mixture, _weights(self._labels, shares), State.from_dict(at))
        starts = self.mixture.starts
        members = [self._members[starts[number] : starts[number + 1]] for number in numbers]
        labels = [self._labels[number] for number in numbers]
        return BalancedRef(self.whole, np.concatenate(members), mixture, labels)

    @cached_property
    def _view_pin(self) -> str | None:
        """How classes are balanced; states also say the shares."""
        mixture = self.mixture
        column = nameless_pin(self, self._members.data, mixture.lengths)
        of = nameless_pin(self, identity(self.whole))
        return described("balanced", batch=mixture.cell, column=column, of=of)

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and the classes."""
        text = f"{whole} balanced {self.mixture.rows} {self.mixture.cell} {self.mixture.lengths}\n"
        return hexdigest(text, self._members.astype("<i8").tobytes())

    def _title(self) -> str:
        return f"{super()._title()} balanced over {len(self._labels):,} classes"


_MOST_POOL = 2**24


def bucketed(
    ref: DataRef[RowT], lengths: str | Sequence[int] | Array | Numbers, *, pool: int = 8192, batch: int = 64
) -> RowView[RowT]:
    """All rows, in batches of similar lengths, which need little padding.

    Shuffled rows are divided into pools; each pool is sorted by length and cut into batches, which come in
    random order. Each row comes once an epoch.

    Args:
        lengths: a ragged column, or an int for each row.
        pool: the number of rows that are sorted together: a larger one gives less padding, and an order that
            is less random.
        batch: the rows of a batch, over all ranks, which have similar lengths.

    Raises:
        ValueError: the lengths are not ints of at least 0.
        TypeError: the column is not ragged.

    Example:
        >>> ref = yoga.from_arrays({"x": np.array([3, 1, 2, 3, 1, 2])})
        >>> batches = yoga.DataLoader(ref.bucketed([3, 1, 2, 3, 1, 2], batch=2), 2, shuffle=True, seed=7)
        >>> sorted(batch["x"].tolist() for batch in batches)
        [[1, 1], [2, 2], [3, 3]]
    """
    warn_if_arranged(ref, "bucketed")
    run = as_int("batch", batch, 1, _MOST_POOL)
    size = as_int("pool", pool, run, _MOST_POOL) // run * run
    if isinstance(lengths, str):
        found = lengths_of(ref[lengths])
    else:
        given = lengths.cpu().numpy() if isinstance(lengths, torch.Tensor) else np.asarray(lengths)
        if given.shape != (len(ref),) or (len(given) and given.dtype.kind not in "iu"):
            raise ValueError(
                f"lengths must be an int for each of the {len(ref)} rows, found {given.dtype} of shape "
                f"{given.shape}"
            )
        found = given.astype(np.int64)
    if len(found) and int(found.min()) < 0:
        raise ValueError(f"lengths must be at least 0, found {int(found.min())}")
    if len(found) and int(found.max()) < 2**31:
        found = found.astype(np.int32)  # half the memory
    return BucketedRef(ref, found, size, run)


class BucketedRef(RowView):
    """The rows of another DataRef, those of like lengths together: what `ref.bucketed(column)` is.

    Args:
        whole: the other DataRef.
        row_lengths: (N,) the length of each row.
        pool: rows of a pool, a multiple of `run`.
        run: rows that stay together.
    """

    def __init__(self, whole: DataRef, row_lengths: Ints, pool: int, run: int) -> None:
        super().__init__(whole, row_lengths, pool, run)
        self._lengths, self._pool, self._run = row_lengths, pool, run

    def __len__(self) -> int:
        return len(self.whole)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole: those of the same numbers."""
        return numbers

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arrangement(self.order)

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> BucketOrder:
        """The order of every epoch."""
        base: AnyOrder = Order(len(self), seed, bool(shuffle), reshuffle)
        if shuffle == "block":
            base = BlockOrder(self.file_starts, seed, shuffle, reshuffle, window)
        return BucketOrder(base, self._lengths, self._pool, self._run)

    @cached_property
    def _view_pin(self) -> str | None:
        """How the buckets are made."""
        lengths, of = nameless_pin(self, self._lengths.data), nameless_pin(self, identity(self.whole))
        return described("bucketed", batch=self._run, pool=self._pool, lengths=lengths, of=of)

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's, in buckets."""
        return [(self._pinned(name, rows), rows) for name, rows in self.whole._prefixes]

    def _pinned(self, whole: str, rows: int | None = None) -> str:
        """A name for the content and its buckets, made of one for the whole's, or for its first rows."""
        lengths = self._lengths[:rows].astype("<i8").tobytes()
        return hexdigest(f"{whole} bucketed {self._pool} {self._run}\n", lengths)

    def _title(self) -> str:
        return f"{super()._title()} in buckets of {self._run:,} rows"
