"""torch's subsets of DataRefs as one DataRef.

Note 17. torch's subsets become row numbers, in one step however they are nested.
So a batch is one read of each source. The parts of the subsets are compared when an epoch begins, because
people change `subset.indices`; a list of the same ints is compared by identity, at 5 ns for each row.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from ..reading.contract import row_numbers
from ..reading.dataref import DataRef
from ..reading.in_place_ref import InPlaceRef
from ..rows.types import Ints
from .joined import JoinedRef, RowMap
from .over import SlicedRef
from .recoded import named_alike


def flattened(dataset: object) -> DataRef | None:
    """A dataset as one DataRef: a DataRef itself, or torch's Subset and ConcatDataset over DataRefs.

    `random_split` returns Subsets. They may be nested. The rows are then read by blocks, and not one after
    the other. The result is None for anything else: for a subclass, which may make rows in its own way, and
    for indices that are not plain numbers of existing rows, because torch decides what they give.

    Example:
        >>> from torch.utils.data import ConcatDataset, Subset
        >>> list(flattened(Subset(ConcatDataset([Squares(), Squares()[5:]]), [14, 0, -6])))
        [81, 0, 81]
    """
    if isinstance(dataset, DataRef):
        return dataset
    if type(dataset) not in (Subset, ConcatDataset):
        return None
    made_of = _made_of(dataset)
    if made_of is None:
        return None
    known = _known.get(dataset)
    if known is not None and len(known[0]) == len(made_of) and all(map(_is_same, known[0], made_of)):
        return known[1]
    found = _flattened(dataset)
    _known[dataset] = [_kept(part) for part in made_of], found
    return found


# The DataRef made of a dataset, and the parts it was made of: indices are costly to read, and may change.
_known: weakref.WeakKeyDictionary[object, tuple[list[object], DataRef | None]] = weakref.WeakKeyDictionary()


def _made_of(dataset: object) -> list[object] | None:
    """Everything that decides which rows a dataset has; None if it is not made of DataRefs alone."""
    if type(dataset) is Subset:
        inner = _made_of(dataset.dataset)
        return None if inner is None else [dataset.indices, *inner]
    if type(dataset) is ConcatDataset:
        found: list[object] = [tuple(dataset.cumulative_sizes), len(dataset.datasets)]
        for part in dataset.datasets:
            inner = _made_of(part)
            if inner is None:
                return None
            found += inner
        return found
    return [dataset, len(dataset)] if isinstance(dataset, DataRef) and _is_taken(dataset) else None


def _is_taken(ref: DataRef) -> bool:
    """True if every way to ask for rows gives those of `take`."""
    ours = [(kind.__getitem__, kind.__getitems__) for kind in (DataRef, InPlaceRef)]
    return (type(ref).__getitem__, type(ref).__getitems__) in ours


def _kept(part: object) -> object:
    """A part as it is now, even if it changes later."""
    if isinstance(part, (list, np.ndarray)):
        return part.copy()  # the numbers of a list are not copied, so comparing them is quick
    return part.clone() if isinstance(part, torch.Tensor) else part


def _is_same(kept: object, now: object) -> bool:
    if type(kept) is not type(now):
        return False
    if isinstance(kept, np.ndarray) and isinstance(now, np.ndarray):
        return kept.dtype == now.dtype and np.array_equal(kept, now)
    if isinstance(kept, torch.Tensor) and isinstance(now, torch.Tensor):
        return kept.dtype == now.dtype and torch.equal(kept, now)
    return kept == now if isinstance(now, (list, tuple, range, int)) else kept is now


def _flattened(dataset: object) -> DataRef | None:
    """The result of `flattened`, as it is now."""
    sources: dict[int, tuple[DataRef, int]] = {}  # by identity: the source, and where its rows begin
    rows = _row_map(dataset, sources)
    if rows is None:
        return None
    found = [source for source, _ in sources.values()]
    found = [source for source in found if len(source)] or found[:1]  # those without rows have no schema
    if len(found) == 1 and isinstance(rows.piece, range):
        (source,) = found
        return source if rows.piece == range(len(source)) else SlicedRef(source, rows.piece)
    return JoinedRef(named_alike(found), rows)


def _row_map(dataset: object, sources: dict[int, tuple[DataRef, int]]) -> RowMap | None:
    """The rows of a dataset in those of all sources end to end; None if it has no plain row numbers.

    Sources that are not in it yet are added.
    """
    if type(dataset) is Subset:
        whole = _row_map(dataset.dataset, sources)
        numbers = _numbers(dataset.indices, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None or numbers is None else whole.chosen(numbers)
    if type(dataset) is ConcatDataset:
        parts = [_row_map(part, sources) for part in dataset.datasets]
        ends = np.cumsum([len(part) for part in parts if part is not None]).tolist()
        if ends != dataset.cumulative_sizes:
            return None
        return RowMap(_end_to_end([part.piece for part in parts if part is not None and len(part)]))
    if type(dataset) is SlicedRef:
        whole = _row_map(dataset.whole, sources)
        return None if whole is None else whole.chosen(dataset.rows)
    assert isinstance(dataset, DataRef)  # everything that comes here is made of DataRefs
    if id(dataset) not in sources:
        sources[id(dataset)] = dataset, sum(len(source) for source, _ in sources.values())
    start = sources[id(dataset)][1]
    return RowMap(range(start, start + len(dataset)))


def _end_to_end(pieces: Sequence[range | Ints]) -> range | Ints:
    """Pieces, each with rows, as one: a range where each begins at the number at which the last one ends."""
    ranges = [piece for piece in pieces if isinstance(piece, range) and piece.step == 1]
    if len(ranges) == len(pieces) and all(one.stop == two.start for one, two in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)
    listed = [
        np.arange(piece.start, piece.stop, piece.step) if isinstance(piece, range) else piece
        for piece in pieces
    ]
    return np.concatenate(listed)


def _numbers(indices: Any, length: int) -> range | Ints | None:
    """Indices as row numbers, those from the end counted from the front; None if they are anything else."""
    if type(indices) is range:
        low, high = (min(indices[0], indices[-1]), max(indices[0], indices[-1])) if indices else (0, -1)
        if low >= 0:
            return indices if high < length else None
    if type(indices) in (list, tuple) and not all(map(_is_number, set(map(type, indices)))):
        return None
    if type(indices) not in (list, tuple, range, np.ndarray, torch.Tensor):
        return None
    try:
        return row_numbers(np.array(indices.cpu() if type(indices) is torch.Tensor else indices), length)
    except (IndexError, OverflowError, TypeError, ValueError):
        return None


def _is_number(kind: type) -> bool:
    return kind is int or issubclass(kind, np.integer)
