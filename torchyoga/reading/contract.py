"""The contract of a DataRef: what a subclass defines, and what loaders, samplers and views ask it.

Users call the methods of `DataRef`; the names here that begin with an underscore are for those who read rows.
The kit of the contract is `torchyoga.testing`: `check_dataref` for any dataset, `check_view` for views.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from ..order.by_file import equal_runs
from ..order.contract import ARRANGED, Arrangement, digest
from ..process.lazy import cached_property, later
from ..process.messages import count_of
from ..process.numbers import distinct
from ..process.seeding import seeder
from ..rows.block import check_parts, exact_rows, taken_runs
from ..rows.collector import block_of
from ..rows.schema import Projection, Schema
from ..rows.types import Array, Ints, Json, Numbers, RowT, Seeds
from .readahead import MOST_BATCHES, Prefetch, ReadAhead

if TYPE_CHECKING:
    from ..views import over as _over
    from ..views.mix import Recipe
    from .dataref import DataRef
else:  # a view is a DataRef, so its file imports this one
    _over = later("torchyoga.views.over")

_LONGEST_TITLE = 200
_READS = {"take", "_take_seeded", "_taken", "_take_parts", "__getitem__", "__getitems__"}


class Contract(ABC, Generic[RowT]):
    """What a subclass of DataRef defines: `__len__` and `take`, and whatever else it knows better than this.

    ================  ====================================================================================
    For any dataset
    `schema`          how a row looks, so that columns can be named
    `fingerprint`     a name for the content, by which a saved state knows its dataset
    `info`            whatever else is known, as JSON data
    `file_starts`     where files begin, for a block shuffle
    `is_thread_safe`  True lets a loader call `take` from a thread of its own while you call it, too
    For speed
    `_row_bytes`      how large a row is, so that small batches are read at once
    `_prefetch`       what makes rows ready before they are taken; `_readahead` is made of it
    `_most_batches`   how many batches may be read at once
    `_keeps_rows`     False lets worker processes gather batches straight into shared memory
    `_only_copies`    True if threads of a loader do as well as processes
    `_projected`      the same rows with some columns only
    `lengths`         how many elements rows of a ragged column have
    `_take_parts`     parts of rows of a ragged column
    For rows that depend on random numbers or on the epoch
    `_is_random`      True if rows are made with random numbers
    `_take_seeded`    rows that are made with given seeds
    `in_epoch`        the dataset as it is in an epoch
    For orders and states
    `_arrangement`    which rows come in an epoch, if not each once
    `_recipe`         the sources and shares of a mixture
    `_view_pin`       how a view is made of other rows
    `_prefixes`       the versions that its rows begin with
    `_libraries`      the libraries that decode rows
    For messages
    `_title`          its name; `_counted`: how much there is
    `_at_hand`        False if to ask for the schema would make a row
    ================  ====================================================================================
    """

    is_thread_safe = False
    _most_batches = MOST_BATCHES

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not _READS.isdisjoint(vars(cls)) and "_keeps_rows" not in vars(cls):
            cls._keeps_rows = Contract._keeps_rows  # type: ignore[method-assign]
        if "take" in vars(cls) and cls.__module__.partition(".")[0] != "torchyoga":
            cls.take = _of_all_rows(cls.take)  # type: ignore[method-assign]

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows N."""

    @abstractmethod
    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers (int64, each in 0..N-1), in this order."""

    @property
    def schema(self) -> Schema | None:
        """The types and shapes of a row; None if they are not known, or there are no rows."""
        return None

    @property
    def fingerprint(self) -> str | None:
        """A name for the content, by which a saved state knows its dataset; None if there is none."""
        return None

    @property
    def info(self) -> Json:
        """What is known of the dataset besides its rows, as JSON data: a copy; `{}` if nothing is known.

        Its entries are attributes, too, unless the DataRef has another attribute of that name. `sources`,
        `whole` and names that begin with an underscore are not attributes.
        """
        return {}

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows, for a block shuffle.

        Without files they are those of runs of 4096 rows.
        """
        return equal_runs(len(self))

    def in_epoch(self, epoch: int) -> DataRef[RowT]:
        """The dataset in an epoch: itself, unless the values of its rows depend on the epoch.

        Loaders and streams read an epoch from the dataset that this returns. It has as many rows.
        """
        return self  # type: ignore[return-value]  # each is a DataRef

    def lengths(self, rows: Ints) -> Ints:
        """(N,) the lengths of rows of a ragged column; for a DataRef of one column, such as `ref["tokens"]`.

        Args:
            rows: (N,) row numbers.

        Raises:
            TypeError: this is not a ragged column.
        """
        schema = self._ragged_schema()
        if not len(rows):
            return np.zeros(0, np.int64)
        (data,) = block_of(self.take(rows), schema).data
        return np.diff(data.part("offsets"))

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row, so that several small batches are read at once; 0 if that is not known."""
        return 0

    @property
    def _prefetch(self) -> Prefetch | None:
        """What makes rows ready before they are taken; None if they are always in memory."""
        return None

    @cached_property
    def _readahead(self) -> ReadAhead | None:
        """The reader ahead for loaders and samplers; None if the size of a row is not known."""
        if self._prefetch is None and not self._row_bytes:
            return None
        return ReadAhead(self._row_bytes, self._prefetch, self._most_batches)

    @property
    def _keeps_rows(self) -> bool:
        """False if nothing here holds rows that `take` has given, and no row changes when it is made.

        Worker processes of a loader then gather batches straight into the memory that they share with it,
        which is used again. A subclass that overrides `take` says so again.
        """
        return True

    @property
    def _only_copies(self) -> bool:
        """True if to take rows is to copy them, from memory or from files on this machine.

        Threads of a loader then do as well as processes, which would send what they have copied.
        """
        below = getattr(self, "sources", [getattr(self, "whole", None)])
        is_plain = self.is_thread_safe and not self._keeps_rows and not self._is_random
        return is_plain and all(isinstance(one, Contract) and one._only_copies for one in below)

    @property
    def _is_random(self) -> bool:
        """True if rows are made with random numbers: then a loader gives each row a seed of its own."""
        return False

    def _take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[RowT]:
        """The rows of these numbers; those made with random numbers are made with these seeds.

        Args:
            rows: (B,) numbers of rows.
            seeds: (B,) a seed in 0..2**63-1 for each; the same one gives the same row.
        """
        if not self._is_random:
            return self.take(rows)
        seed_all, found = seeder(), []
        for row, seed in zip(rows, seeds.tolist(), strict=True):
            seed_all(seed)
            found += exact_rows(self.take(np.array([row])))
        return found

    def _take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, end to end: what lies from `starts` to before `stops` in each.

        A cached version reads no more than that; other datasets read the rows whole, each once.

        Args:
            rows: (N,) numbers of rows; one may come several times.
            starts: (N,) the first element wanted of each.
            stops: (N,) the element after the last.

        Returns:
            (elements of all parts,) as they are stored.

        Raises:
            IndexError: a row has fewer elements.
            TypeError: it is not a ragged column.

        Example:
            >>> ref = yoga.Storage(tmp_path).submit(
            ...     [{"ids": np.arange(n)} for n in (3, 5)], "documents", "1",
            ...     schema=yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]), progress=False
            ... )
            >>> ref["ids"]._take_parts(np.array([1, 0]), np.array([2, 0]), np.array([5, 1])).tolist()
            [2, 3, 4, 0]
        """
        schema = self._ragged_schema()
        if not len(rows):
            return np.empty(0, schema.columns[0].storage)
        read = distinct(rows)
        (data,) = block_of(self.take(read), schema).data
        offsets = data.part("offsets")
        places = np.searchsorted(read, rows)
        first = offsets[places]
        check_parts(rows, offsets[places + 1] - first, starts, stops)
        return taken_runs(data.values, first + starts, first + stops)

    def _projected(self, of: Projection) -> DataRef:
        """The same rows with some of their columns only; a subclass that can read less than all overrides it.

        Args:
            of: the columns; made for `schema`.
        """
        return _over.ProjectedRef(self, of)  # type: ignore[arg-type]  # each is a DataRef

    @property
    def _arrangement(self) -> Arrangement | None:
        """The choice of which rows come in an epoch; None if each comes once, shuffled as a loader says."""
        return None

    @property
    def _recipe(self) -> Recipe | None:
        """The sources and shares of a mixture whose rows may be changed; None for all else."""
        return None

    @property
    def _view_pin(self) -> str | None:
        """How a view is made of other rows, by which a saved state knows it; None for rows as they are."""
        whole = getattr(self, "whole", None)
        return whole._view_pin if isinstance(whole, Contract) else None

    @property
    def _prefixes(self) -> Sequence[tuple[str, int]]:
        """Fingerprint and rows of the versions that its rows begin with; none if that is not known."""
        return ()

    @property
    def _libraries(self) -> list[str]:
        """The libraries that decode rows, with their versions, where another may give other values."""
        below = getattr(self, "sources", [getattr(self, "whole", None)])
        return list(
            dict.fromkeys(name for one in below if isinstance(one, Contract) for name in one._libraries)
        )

    def _title(self) -> str:
        """The name that `repr` gives it."""
        return type(self).__name__

    def _counted(self) -> str:
        """How much `repr` says there is."""
        return count_of(len(self), "row")

    def _at_hand(self) -> bool:
        """Whether the schema is known without making a row."""
        return True

    def _numbered(self, indices: Sequence[int] | Numbers) -> Ints:
        """Indices as the row numbers that `take` takes; those below 0 are counted from the end.

        Raises:
            IndexError: there is no such row.
            TypeError: they are not whole numbers.
        """
        return row_numbers(indices, len(self), self._arrangement is not None)

    def _ragged_schema(self) -> Schema:
        schema = self.schema
        if schema is None or not schema.is_sequence:
            raise TypeError(f"{self!r} is not a ragged column, so its rows have no lengths")
        return schema


def _of_all_rows(take: Callable[..., Any]) -> Callable[..., Any]:
    """A user's `take`; it raises ValueError if it gives another number of rows than it was asked for."""

    @wraps(take)
    def checked(ref: DataRef, rows: Ints) -> Any:
        found = take(ref, rows)
        if hasattr(found, "__len__") and not isinstance(found, Mapping) and len(found) != len(rows):
            raise ValueError(
                f"{type(ref).__name__}.take was asked for {count_of(len(rows), 'row')}, "
                f"{[*map(int, rows)]!r:.100}, and returned {len(found):,}; it returns one for each "
                "number, in this order"
            )
        return found

    return checked


def title_of(ref: DataRef) -> str:
    """A DataRef in a few words: its `repr` without rows and columns."""
    title = ref._title()
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 3]}..."


def are_at_hand(refs: Iterable[DataRef]) -> bool:
    """Whether the schemas of all of them are known without making a row."""
    return all(ref._at_hand() for ref in refs)


def known_schema(ref: DataRef) -> Schema | None:
    """How a row looks; None for a version without rows, of whose columns nothing is known: any of them
    has no rows.

    Raises:
        TypeError: the DataRef has rows, and does not say what they look like.
    """
    schema = ref.schema
    if schema is None and len(ref):
        raise TypeError(
            f"this {type(ref).__name__} of {len(ref)} rows does not say what its rows look like: its schema "
            "is None. Call where, order_by, columns and such before map, or give the map before it a schema, "
            "as map(function, schema=yoga.Schema.of(row)); of tar shards parse=, too, comes last, as a map, "
            "unless it has int, float and str only; a DataRef of your own has a property schema"
        )
    return schema


def row_numbers(indices: Sequence[int] | Numbers, length: int, is_arranged: bool = False) -> Ints:
    """Indices as row numbers, each in 0..length - 1; those below 0 are counted from the end.

    With `is_arranged` they may be in `ARRANGED`, too.

    Raises:
        IndexError: there is no such row.
        TypeError: they are not whole numbers.
    """
    found = np.asarray(indices)
    kind = found.dtype.kind
    if found.ndim != 1 or (kind not in "iu" and (found.size or kind == "b")):
        hint = "; for a mask use where(...), or np.flatnonzero(mask)" if kind == "b" else ""
        hint = "; columns are taken by ref.columns(names), or ref[name]" if kind in "UT" else hint
        raise TypeError(f"rows are taken by an int, a list of ints or a slice, found {indices!r:.100}{hint}")
    if found.dtype == np.uint64 and int(found.max(initial=0)) >= 2**63:  # as int64 it would be below 0
        raise IndexError(f"row {int(found.max())} of a dataset of {length} rows")
    numbers = found.astype(np.int64, copy=False)
    if not len(numbers):
        return numbers
    # Unsigned, a negative number is a huge one: one pass shows that nothing needs a closer look.
    if int(numbers.view(np.uint64).max()) < length:
        return numbers
    if is_arranged and int(numbers.min()) >= ARRANGED.start and int(numbers.max()) < ARRANGED.stop:
        return numbers
    are_rows = (numbers >= -length) & (numbers < length)
    if is_arranged:
        are_rows |= (numbers >= ARRANGED.start) & (numbers < ARRANGED.stop)
    if not are_rows.all():
        raise IndexError(f"row {int(numbers[np.argmin(are_rows)])} of a dataset of {length} rows")
    return np.where(numbers < 0, numbers + length, numbers)


def identity(ref: DataRef) -> str:
    """The fingerprint; of rows without one, how they are made of others, or how many there are."""
    return ref.fingerprint or ref._view_pin or f"{len(ref)} rows"


def nameless_pin(ref: DataRef, *parts: object) -> str | None:
    """A digest of what decides which rows come, see `digest`; None with a fingerprint, which says it all."""
    return None if ref.fingerprint else digest(*parts)


def taken_of(ref: DataRef[RowT], rows: Ints, seeds: Seeds | None) -> Sequence[RowT]:
    """The rows of these numbers (B,); made with seeds, one for each, if there are any."""
    return ref.take(rows) if seeds is None else ref._take_seeded(rows, seeds)
