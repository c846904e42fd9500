"""A dataset as rows by number.

Note 2. A DataRef knows rows, and neither their order nor who asks.
Shuffles, shards, splits and states are arithmetic on row numbers above it; files, stores and decoding lie
below. Whatever can give rows by number is one.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from ..order.by_file import equal_runs
from ..order.contract import ARRANGED, Arrangement, Locality, Shuffle
from ..order.full import as_int
from ..order.options import OrderOptions
from ..order.place import Shard
from ..order.saved import described, digest
from ..process.digests import hexdigest
from ..process.distinct import distinct
from ..process.lazy import cached_property, later, once_loaded
from ..process.seeding import seeder, seeds_within
from ..process.texts import count_of
from ..rows.block import Rows, exact_rows
from ..rows.collector import block_of
from ..rows.outline import ShownColumn, in_lines
from ..rows.pieces import check_parts, taken_runs
from ..rows.projection import Projection
from ..rows.schema import Schema
from ..rows.stats.column_stats import TableStats
from ..rows.types import Array, Collate, Ints, Json, Row, RowT, Seeds
from .instead import METHODS, advised
from .pack_report import PackReport
from .readahead import MOST_BATCHES, ReadAhead, Translated
from .stream import Stream

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import pyarrow
    from torch.utils.data import Dataset

    from ..coding import decoded as _decoded
    from ..rows import collate as _collate
    from ..tables import exports as _exports
    from ..tools.report import notebook as _notebook
    from ..views import chosen as _chosen
    from ..views import computed as _computed
    from ..views import filled as _filled
    from ..views import split as _split
    from ..views import transformed as _transformed
    from ..views import where as _where
    from ..views import zipped as _zipped
    from ..views.mixes import balanced as _balanced
    from ..views.mixes import bucketed as _bucketed
    from ..views.mixes import mix as _mix
    from ..views.mixes import of_documents as _of_documents
    from ..views.mixes import weighted as _weighted
    from ..views.packs import packed as _packed
    from ..views.packs import request as _request
    from ..views.tokens import token_batches as _token_batches
    from ..views.tokens import token_windows as _token_windows
    from ..views.windows import windowed as _windowed
    from . import counting as _counting
else:
    # A DataRef makes views, and views are DataRefs: this circle is closed when a method is first called.
    _collate = later("torchyoga.rows.collate")
    _decoded = later("torchyoga.coding.decoded")
    _exports = later("torchyoga.tables.exports")
    _notebook = later("torchyoga.tools.report.notebook")
    _chosen = later("torchyoga.views.chosen")
    _computed = later("torchyoga.views.computed")
    _filled = later("torchyoga.views.filled")
    _split = later("torchyoga.views.split")
    _transformed = later("torchyoga.views.transformed")
    _where = later("torchyoga.views.where")
    _zipped = later("torchyoga.views.zipped")
    _balanced = later("torchyoga.views.mixes.balanced")
    _bucketed = later("torchyoga.views.mixes.bucketed")
    _of_documents = later("torchyoga.views.mixes.of_documents")
    _mix = later("torchyoga.views.mixes.mix")
    _weighted = later("torchyoga.views.mixes.weighted")
    _packed = later("torchyoga.views.packs.packed")
    _request = later("torchyoga.views.packs.request")
    _token_batches = later("torchyoga.views.tokens.token_batches")
    _token_windows = later("torchyoga.views.tokens.token_windows")
    _windowed = later("torchyoga.views.windows.windowed")
    _counting = later("torchyoga.reading.counting")
    Dataset = Generic  # until torch is loaded, see `_become_datasets`: rows can be read without it

__all__ = [
    "ChangedRows",
    "Condition",
    "DataRef",
    "Edge",
    "LabelKind",
    "Long",
    "Numbers",
    "Over",
    "PackCost",
    "PackView",
    "ProjectedRef",
    "ReweightedView",
    "RowView",
    "SlicedRef",
    "identity",
    "known_schema",
    "nameless_pin",
    "row_numbers",
    "taken_of",
]


class Numbers(Protocol):
    """Row numbers: an array, or a tensor."""

    def __len__(self) -> int: ...

    def tolist(self) -> Any:
        """The numbers as a list."""


class WithDraw(Protocol):
    """A function of columns that takes random numbers by name."""

    def __call__(self, columns: Any, /, *, draw: Any) -> object: ...


class _Told:
    """An attribute that a DataRef has if its `info` holds it, and that a subclass may set."""

    def __get__(self, ref: DataRef | None, owner: type | None = None) -> Any:
        if ref is None:
            return self
        raise AttributeError  # so that `__getattr__` is asked


_ASKING = threading.local()  # the ids of DataRefs whose info is looked at
_OF_VIEWS = ("sources", "whole")  # of some; their entries in an info are no attributes
_OF_PACKS = ("report", "members", "packs_of", "tokens_of")  # methods of some views alone
_OF_MIXTURES = ("reweighted", "account", "counts", "passes", "num_epochs", "names")


# Columns, as arrays of many rows, to a bool for each row.
RowsOf: TypeAlias = (
    "tuple[DataRef[Any], Ints, Ints]"  # the places of some rows of a DataRef, and their numbers
)
Condition: TypeAlias = Callable[[Any], npt.ArrayLike]
# Columns, by name, as arrays of many rows, to what each row costs, or a dict of that by budget.
PackCost: TypeAlias = Callable[[Any], Any]
# Columns, by name, to columns; the number of its arguments says which of these a lambda is.
OfColumns: TypeAlias = Callable[[Any], object] | Callable[[Any, Any], object] | WithDraw
Long: TypeAlias = Literal["error", "cut", "split", "drop"]  # what becomes of rows over the budget of a pack
LabelKind: TypeAlias = Literal["same", "shifted"]  # labels as the tokens, or each that of the next token
Edge: TypeAlias = Literal["drop", "repeat"]  # what becomes of windows beyond the rows of a group
_ARRAY_KINDS = frozenset(
    {"ndarray", "scalar", "int", "float", "bool", "complex", "datetime", "date", "timedelta"}
)
_LONGEST_TITLE = 200
_WHERE = 'ref.where("label", lambda label: label == 3)'
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 2**16, 2**25
_READS = {"take", "take_seeded", "_taken", "take_parts", "__getitem__", "__getitems__"}


class DataRef(ABC, Dataset[RowT]):
    """A map-style dataset: give it a row number, or many, and it gives the rows.

    Subclass it over data of your own with `__len__` and `take`, and it streams, shuffles, shards and resumes.
    A type checker knows what a row is if the subclass says so, as in `DataRef[int]`.

    Example:
        >>> class Squares(DataRef[int]):
        ...     def __len__(self):
        ...         return 10
        ...     def take(self, rows):
        ...         return [int(row) ** 2 for row in rows]
        >>> Squares()[3], Squares()[[1, -1]], list(Squares()[7:])
        (9, [1, 81], [49, 64, 81])
    """

    is_thread_safe = False  # True lets a loader call `take` from a thread of its own while you call it, too

    # What scripts ask a dataset for.
    classes: Any = _Told()
    class_to_idx: Any = _Told()
    features: Any = _Told()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not _READS.isdisjoint(vars(cls)) and "keeps_rows" not in vars(cls):
            cls.keeps_rows = DataRef.keeps_rows  # type: ignore[method-assign]

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows N."""

    @abstractmethod
    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers (int64, each in 0..N-1), in this order."""

    @property
    def keeps_rows(self) -> bool:
        """False if nothing here holds rows that `take` has given, and no row changes when it is made.

        Worker processes of a loader then gather batches straight into the memory that they share with it,
        which is used again. A subclass that overrides `take` has to say so anew.
        """
        return True

    @property
    def fingerprint(self) -> str | None:
        """A name for the content, by which a saved state knows its dataset; None if there is none."""
        return None

    @property
    def view_pin(self) -> str | None:
        """How a view is made of other rows, by which a saved state knows it; None for rows as they are."""
        whole = getattr(self, "whole", None)
        return whole.view_pin if isinstance(whole, DataRef) else None

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        """Fingerprint and rows of the versions that its rows begin with; none if that is not known."""
        return ()

    @property
    def schema(self) -> Schema | None:
        """How a row looks; None if that is not known, or there are no rows."""
        return None

    @property
    def info(self) -> Json:
        """All that is known of the dataset besides its rows, as JSON data; a copy, `{}` if nothing is.

        Its entries are attributes too, where the DataRef has no others of that name; but for `sources`,
        `whole` and names that begin with an underscore.
        """
        return {}

    @property
    def file_starts(self) -> Ints:
        """(files + 1,) the row at which each file begins, and the number of rows: what a block shuffle heeds.

        Without files these are runs of 4096 rows.
        """
        return equal_runs(len(self))

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, so that several small batches are read at once; 0 if that is not known."""
        return 0

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """The reader ahead for loaders and samplers; None if the size of a row is not known."""
        return ReadAhead(self.row_bytes) if self.row_bytes else None

    @property
    def arrangement(self) -> Arrangement | None:
        """The choice of which rows come in an epoch; None if each comes once, shuffled as a loader says."""
        return None

    @property
    def recipe(self) -> _mix.Recipe | None:
        """The sources and shares of a mixture whose rows may be changed; None for all else."""
        return None

    @property
    def is_random(self) -> bool:
        """True if rows are made with random numbers: then a loader gives each row a seed of its own."""
        return False

    def take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[RowT]:
        """The rows of these numbers; those made with random numbers are made with these seeds.

        Args:
            rows: (B,) numbers of rows.
            seeds: (B,) a seed in 0..2**63-1 for each; the same one gives the same row.
        """
        if not self.is_random:
            return self.take(rows)
        seed_all, found = seeder(), []
        for row, seed in zip(rows, seeds.tolist(), strict=True):
            seed_all(seed)
            found += exact_rows(self.take(np.array([row])))
        return found

    @property
    def only_copies(self) -> bool:
        """True if to take rows is to copy them, from memory or from files on this machine.

        Threads of a loader then do as well as processes, which would send what they have copied.
        """
        below = getattr(self, "sources", [getattr(self, "whole", None)])
        is_plain = self.is_thread_safe and not self.keeps_rows and not self.is_random
        return is_plain and all(isinstance(one, DataRef) and one.only_copies for one in below)

    @property
    def libraries(self) -> list[str]:
        """The libraries that decode rows, with their versions, where another may give other values."""
        below = getattr(self, "sources", [getattr(self, "whole", None)])
        return list(
            dict.fromkeys(name for one in below if isinstance(one, DataRef) for name in one.libraries)
        )

    def in_epoch(self, epoch: int) -> DataRef[RowT]:
        """The dataset as it is in an epoch: itself, unless what its rows hold depends on the epoch.

        Loaders and streams read an epoch from what this returns, which has as many rows.
        """
        return self

    def columns(self, names: Sequence[str]) -> DataRef:
        """The same rows with some of their columns only, in this order; the others are not read.

        Args:
            names: of columns, as `schema` shows them, such as "image" or "meta/size"; "meta" is all below it.

        Without rows it is not known which columns there are, and any may be named.

        Raises:
            KeyError: there is no such column.
            TypeError: it is not known what a row looks like.

        Example:
            >>> ref = yoga.from_arrays({"image": np.zeros((9, 8)), "label": np.arange(9)})
            >>> list(ref.columns(["label"])[3]), int(ref["label"][3])
            (['label'], 3)
        """
        if isinstance(names, str):
            raise TypeError(f"columns are named by a list, as in columns([{names!r}]), or by ref[{names!r}]")
        if not isinstance(names, Iterable):
            raise TypeError(f'columns are named by a list, as in columns(["label"]), found {names!r:.80}')
        schema = known_schema(self)
        if schema is None:
            return self
        return self.projected(Projection.of(schema, names).ordered(names))

    @advised(_WHERE)
    def where(
        self,
        names: str | Sequence[str],
        condition: Condition,
    ) -> RowView[RowT]:
        """The rows for which a condition on some columns holds, in their order; only these columns are read.

        The condition is called with thousands of rows at once, so it should work on arrays.

        Args:
            names: a column, which the condition gets as an array (B, ...), or several, as a dict of arrays.
                Of a ragged column it gets `lengths`, `offsets` and `values`, each read when looked at, and
                `any` and `all`, which turn a bool for each value into one for each row. Text is an array of
                objects.
            condition: returns a bool for each row, (B,).

        Raises:
            KeyError: there is no such column.
            ValueError: the condition returns something else; the message gives the rows.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(9), "y": np.arange(9) % 3})
            >>> [int(row["x"]) for row in ref.where("y", lambda y: y == 2)]
            [2, 5, 8]
            >>> [int(row["x"]) for row in ref.where(["x", "y"], lambda c: c["x"] < 3 * c["y"])]
            [1, 2, 5]
        """
        if not callable(condition):
            raise TypeError(
                f"where takes a function as its condition, found {condition!r:.80}; write {_WHERE}"
            )
        return _where.where(self, names, condition)

    def select(self, rows: Iterable[int] | Numbers) -> DataRef[RowT]:
        """These rows, in this order; a row may come more than once. The first n and the rest are slices.

        Args:
            rows: an array, a tensor, a list, or anything that gives ints, such as a generator.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> [int(row["x"]) for row in yoga.from_arrays({"x": np.arange(9)}).select([7, 0, 0, -1])]
            [7, 0, 0, 8]
        """
        given: Any = list(rows) if isinstance(rows, (Iterator, MappingView)) else rows
        return _chosen.select(self, row_numbers(given, len(self)))

    def order_by(self, name: str, descending: bool = False) -> DataRef[RowT]:
        """All rows in the order of a column of numbers or text; rows with equal values stay in their order.

        With `descending` the largest value comes first. Either way NaN comes after numbers, and None last.

        The row numbers are kept in memory, 4 bytes each, 8 beyond 2**32 rows.

        Example:
            >>> ref = yoga.from_arrays({"x": np.array([3, 1, 2])})
            >>> [int(row["x"]) for row in ref.order_by("x")]
            [1, 2, 3]
        """
        return _chosen.order_by(self, name, descending)

    def repeat(self, times: int) -> RowView[RowT]:
        """All rows, so many times; a shuffle mixes them all.

        Example:
            >>> [int(row["x"]) for row in yoga.from_arrays({"x": np.arange(2)}).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        return _chosen.RepeatedRef(self, times)

    def zip(self, other: DataRef, *, prefix: str = "") -> DataRef:
        """The rows of two DataRefs of one length side by side: row n of this one, and row n of the other.

        Rows that are dicts are merged. Where neither side's are, a row is a pair of both, as of Python's
        `zip`; a dict beside something else is an error. Each side is read for its own columns only.

        Args:
            other: a DataRef; `info` has the entries of both, this one's where both have one.
            prefix: put before the keys of the other's rows, if they are dicts.

        Raises:
            ValueError: the lengths differ, or both sides have a key.
            TypeError: it is no DataRef, or only one side's rows are dicts, or what they look like is not
                known.

        Example:
            >>> photos, vectors = yoga.from_arrays({"x": np.arange(3)}), yoga.from_arrays({"y": np.ones(3)})
            >>> sorted(photos.zip(vectors)[2]), sorted(photos.zip(photos, prefix="b_")[0])
            (['x', 'y'], ['b_x', 'x'])
        """
        return _zipped.zipped(self, other, prefix)

    @advised("train, test = ref.split([0.9, 0.1])")
    def split(
        self, shares: Sequence[float], seed: int = 0, by: str | None = None, stratify: str | None = None
    ) -> list[DataRef[RowT]]:
        """Parts of the rows, each row in exactly one of them and in its order there.

        Args:
            shares: a list: the share of each part, which sum to 1, or how many rows each part gets.
            seed: any int; another one makes other parts.
            by: a column of integers or text: all rows with the same value are in one part, which depends on
                the value alone. So rows that are added later move nobody, and the shares are approximate.
            stratify: a column of integers or text: each part has its share of each of the values, to a row.

        There is a warning for a part without rows, and with `stratify` for values with so few rows that a
        part has none of them.

        Raises:
            ValueError: shares that do not sum to 1, or numbers that do not sum to the number of rows.
            TypeError: the column holds something else, or `shares` is no list of numbers.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(10), "user": np.arange(10) // 3})
            >>> [len(part) for part in ref.split([0.8, 0.1, 0.1], seed=7)]
            [8, 1, 1]
            >>> train, test = ref.split([0.5, 0.5], seed=1, by="user")
            >>> {int(r["user"]) for r in train} & {int(r["user"]) for r in test}
            set()
        """
        return _split.split(self, shares, seed, by, stratify)

    @advised("ref.map(function)")
    def map(self, function: Callable[[RowT], Row], schema: Schema | None = None) -> DataRef:
        """Each row after a function, whenever it is read: a transform, or an augmentation.

        A loader seeds `random`, NumPy and torch for each row from (seed, epoch, row), as it does for any
        dataset that is not cached: the result is the same for any number of workers and ranks, and after a
        resume. `seed_rows=False` saves these 10 us a row where nothing is random.

        Args:
            function: takes a row and returns another. Worker processes that are spawned need one that can be
                pickled: defined in a module, not a lambda.
            schema: what a changed row looks like, `Schema.of(row)`, so that its columns can be named; without
                it `columns`, `where` and such must come before `map`.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(3), "y": np.arange(3)})
            >>> [int(row["x"]) for row in ref.map(lambda row: {**row, "x": row["x"] * 10})]
            [0, 10, 20]
        """
        return _transformed.mapped(self, function, schema)

    @advised("ref.map_batches(function)")
    def map_batches(self, function: OfColumns, threads: bool = False) -> DataRef:
        """The columns of many rows at once after a function of arrays, whenever they are read.

        Args:
            function: takes a dict of arrays (B, ...) by column, or the array, where a row is one value. A
                ragged column is a `yoga.RaggedColumn`, text an array of objects. It returns the columns of
                the same rows: arrays, tensors, lists of text or of arrays, or RaggedColumns. How many rows
                it is given differs, so a row must not depend on those beside it.
                If it has a parameter named `draw`, it is given random numbers: see `views.draw.Draw`. They
                follow from (seed, epoch, row), so batch size, workers, ranks and resumes do not matter.
            threads: True if a thread of the training loop's process may call it, to read ahead.

        Raises:
            SchemaError: when read: another number of rows was returned, or columns that look different from
                those of other batches.
            TypeError: it is not known what a row looks like.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(3), "y": np.arange(3)})
            >>> [int(row["x"]) for row in ref.map_batches(lambda c: {**c, "x": c["x"] * 10})]
            [0, 10, 20]
            >>> def noisy(c, draw):
            ...     return {"x": c["x"] + draw.normal(scale=0.1)}
            >>> ref.map_batches(noisy).columns(["x"]).schema.columns[0].dtype
            '<f8'
        """
        return _computed.ComputedRef(self, function, threads)

    def filled(self, values: Mapping[str, object]) -> DataRef:
        """The same rows with values in place of None, so that the columns become tensors in batches.

        Args:
            values: by name of the column; each of the column's own type, such as [] for a list.

        Raises:
            KeyError: there is no such column.
            ValueError: a column cannot hold its value.

        Example:
            >>> ref = storage.submit([{"age": 40}, {"age": None}], "ages", "1")
            >>> [row["age"] for row in ref.filled({"age": -1})]
            [40, -1]
        """
        return _filled.filled(self, values)

    def masked(self, names: Sequence[str] | None = None) -> DataRef:
        """The same rows with 0, or nothing, in place of None, and a bool besides that says where a value is.

        Args:
            names: of columns in dicts, all that may be None by default; the bool of "age" is "age_is_valid".

        Raises:
            KeyError: there is no such column.
            ValueError: there is a column of that name already.

        Example:
            >>> ref = storage.submit([{"age": 40}, {"age": None}], "more-ages", "1")
            >>> list(ref.masked())
            [{'age': 40, 'age_is_valid': True}, {'age': 0, 'age_is_valid': False}]
        """
        return _filled.masked(self, names)

    def decoded(self, decoders: Mapping[str, Any] | None = None, threads: int | None = None) -> DataRef:
        """The same rows with encoded columns decoded, whenever they are read.

        Args:
            decoders: by name of a column of bytes, or of lists of such, `yoga.codecs.image(...)`, `text()` or
                `audio()`. By default all columns that were encoded by `codecs=` come back as they were:
                arrays and tensors as such, files of images as what `yoga.codecs.image()` makes of them.
            threads: how many decode; by default one for each core, and one in a loader's worker processes.

        Random parts and mirrors follow from (seed, epoch, row), as `draw` in `map_batches`.

        Raises:
            KeyError: there is no such column.
            SchemaError: a column does not hold bytes.
            CorruptError: when read: a value cannot be decoded; says which row and column.

        Example:
            >>> images = [{"image": np.full((40, 60, 3), n, np.uint8)} for n in range(4)]
            >>> ref = storage.submit(images, "photos-kept", "1", codecs={"image": yoga.codecs.jpeg(90)})
            >>> small = ref.decoded({"image": yoga.codecs.image(size=32, crop="random", layout="chw")})
            >>> next(iter(yoga.DataLoader(small, 4)))["image"].shape
            torch.Size([4, 3, 32, 32])
        """
        return _decoded.decoded(self, decoders, threads)

    def windows(
        self,
        size_or_offsets: SupportsIndex | Mapping[str, Sequence[int]],
        stride: int = 1,
        group_by: str | None = None,
        edge: Edge = "drop",
        static: Sequence[str] = (),
    ) -> _windowed.WindowsRef:
        """Rows that are windows of rows: each column of a row is several rows of it, stacked (L, ...).

        Args:
            size_or_offsets: how many rows in sequence a window has, of all columns. Or the columns it has,
                each with its offsets from the row at which the window lies, as in
                `{"state": range(-1, 1), "action": range(0, 50)}`; a container stands for all that is in it.
            stride: rows from one window to the next.
            group_by: a column of integers or text: rows in sequence that have the same value are a group, and
                no window has rows of two. It is read now. Without it all rows are one group.
            edge: "drop" leaves out windows that do not fit into a group. With "repeat" a window lies at every
                `stride` rows of a group, and beyond its borders the first or last row is repeated; a column
                "is_pad" of bools, or "action_is_pad" and such, says where.
            static: columns that are not stacked, but read once: at the first row of the window, or at
                offset 0.

        Raises:
            KeyError: there is no such column.
            TypeError: it is not known what a row looks like, or the column of `group_by` holds floats.
            ValueError: rows of a column cannot be stacked, because they are text or differ in length; or the
                rows of a group are not all in sequence: the message says which.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(7), "episode": np.array([4, 4, 4, 4, 9, 9, 9])})
            >>> [row["x"].tolist() for row in ref.windows(3, group_by="episode")]
            [[0, 1, 2], [1, 2, 3], [4, 5, 6]]
            >>> chunks = ref.windows({"x": range(0, 3)}, stride=2, group_by="episode", edge="repeat")
            >>> chunks[1]["x"].tolist(), chunks[1]["x_is_pad"].tolist()
            ([2, 3, 3], [False, False, True])
        """
        known_schema(self)
        return _windowed.windows(self, size_or_offsets, stride, group_by, edge, static)

    def weighted(
        self, weights: Sequence[float] | Array | Numbers, rows: int | None = None
    ) -> ReweightedView[RowT]:
        """Rows as often as their weights say: of `rows` places each row gets the whole number below or above
        its share, in every epoch.

        torch's WeightedRandomSampler draws each place by itself, so that counts vary, up to 2**24 rows, in
        one process. This is exact, resumes, and is dealt to ranks like any other order.

        Args:
            weights: (N,) numbers of at least 0; they need not sum to 1.
            rows: of an epoch; as many as there are by default.

        Raises:
            ValueError: a weight is negative, NaN or infinite, all are 0, or there are more or fewer.

        Example:
            >>> ref = yoga.from_arrays({"x": np.arange(3)}).weighted([1, 0, 2], rows=6)
            >>> sorted(int(row["x"]) for row in ref.stream(shuffle=True))
            [0, 0, 2, 2, 2, 2]
        """
        return _weighted.weighted(self, weights, rows)

    def balanced(
        self,
        column: str,
        *,
        rows: int | None = None,
        batch: int = 64,
        shares: Mapping[Any, float] | None = None,
    ) -> ReweightedView[RowT]:
        """Rows of each class in fixed shares, in every batch: a mixture of the classes.

        Rows of each class come in an order of their own; a small class is read again when it is over.

        Args:
            column: of integers or text, the class of each row.
            rows: of an epoch; as many as there are by default.
            batch: rows of a batch, over all ranks: each has its shares, to a row or so.
            shares: a number for each class; equal ones by default.

        Raises:
            ValueError: shares that are negative, no numbers, all 0, or of other classes.
            TypeError: the column holds something else.

        Example:
            >>> ref = yoga.from_arrays({"label": np.repeat([0, 1], [900, 100])})
            >>> loader = yoga.DataLoader(ref.balanced("label", batch=10), 10, shuffle=True, seed=7)
            >>> [int(batch["label"].sum()) for batch in loader][:4]
            [5, 5, 5, 5]
        """
        return _balanced.balanced(self, column, rows, batch, shares)

    def bucketed(
        self, lengths: str | Sequence[int] | Array | Numbers, *, pool: int = 8192, batch: int = 64
    ) -> RowView[RowT]:
        """All rows, those of like lengths together, so that batches need little padding.

        Rows come, shuffled, into pools; each pool is sorted by length and cut into runs, and the runs come in
        random order. Each row comes once an epoch.

        Args:
            lengths: a ragged column, or an int for each row.
            pool: rows that are sorted together: the more, the less padding, and the less random an order.
            batch: rows of a batch, over all ranks: they are of like lengths.

        Raises:
            ValueError: lengths that are no ints of at least 0.
            TypeError: the column is not ragged.

        Example:
            >>> ref = yoga.from_arrays({"x": np.array([3, 1, 2, 3, 1, 2])})
            >>> batches = yoga.DataLoader(ref.bucketed([3, 1, 2, 3, 1, 2], batch=2), 2, shuffle=True, seed=7)
            >>> sorted(batch["x"].tolist() for batch in batches)
            [[1, 1], [2, 2], [3, 3]]
        """
        return _bucketed.bucketed(self, lengths, pool, batch)

    def packed(
        self,
        column_or_budgets: str | Mapping[str, int],
        budget: SupportsIndex | None = None,
        *,
        cost: PackCost | None = None,
        long: Long = "error",
        max_rows: SupportsIndex | None = None,
        along: Sequence[str] | None = None,
        labels: str | Mapping[str, LabelKind] | None = None,
        ignore_index: int = -100,
        first_position: int = 0,
        documents: bool = False,
        padded: float | Mapping[str, float] | None = None,
        balance: bool = False,
        seed: SupportsIndex = 0,
    ) -> PackView | _of_documents.MixedPacks:
        """Rows that are packs of rows: as many as fit into a budget of tokens, end to end.

        Rows are packed by best fit decreasing, now; only their lengths are read. Each epoch fills the same
        packs with other rows of the same lengths. A batch of packs is flat: see docs/packing.md.

        Args:
            column_or_budgets: the column that is measured, a ragged one of numbers or a list of them. Or
                several budgets by name, as in `{"tokens": 8192, "images": 16}`; without `cost`, of columns:
                what counts is the length of a ragged one, else its value.
            budget: how many tokens a pack may have.
            cost: takes columns of many rows, as `where` does, and returns what each row costs, (B,) ints of
                at least 0; or a dict of that by the name of the budget. Only the columns that it looks at are
                read.
            long: what becomes of rows over the budget. "error" raises ValueError; "cut" leaves out the tokens
                beyond it; "split" makes pieces of them, at most as long as the budget; "drop" leaves them
                out. Rows of length 0 are left out. `report()` counts all that is left out.
            max_rows: rows of a pack.
            along: the columns with a value for each token, besides the measured one. By default those that
                are as long in the first rows.
            labels: then packs have `labels`, int64. "same" copies the measured column, for models that shift
                labels by one, as those of transformers do; the first token of each row is `ignore_index`.
                With "shifted" the label of a token is the one that follows it, and that of the last of each
                row is `ignore_index`. A name of another column of tokens copies that one; a dict such as
                `{"labels": "shifted"}` says both.
            ignore_index: see `labels`; padding has it, too.
            first_position: what `position_ids` begin with in each row; 2 for RoBERTa and its like.
            documents: add `document_ids`, which count the rows of a pack, for each token; filled packs have
                them in any case, -1 where they are filled. In a flat batch they count those of all packs.
            padded: fill packs up to the budget with this value in the measured column; or with one for each
                column of tokens by its name, and 0 in others.
            balance: number the packs by the sum of squares of the lengths in them, the highest first, and
                divide them into 64 runs: with `shuffle="block", shuffle_window=1` all ranks work on packs of
                one run, which take about as long.
            seed: any int; another one fills the packs with other rows.

        Raises:
            KeyError: there is no such column.
            TypeError: it is not known what a row looks like, rows are not dicts, or the column that is to be
                measured has no value for each token.
            ValueError: rows are over the budget, and the message says how many; a budget is not in
                1..2**31-1; costs are not ints of at least 0; a column has another length than the one that
                is measured, when read.

        Example:
            >>> rows = [{"ids": np.arange(n)} for n in (3, 5, 2, 6)]
            >>> ref = storage.submit(rows, "texts", "1", schema=yoga.Schema.of(rows[0], ragged=["ids"]))
            >>> packed = ref.packed("ids", 8)
            >>> batch = next(iter(yoga.DataLoader(packed, 2)))
            >>> batch["ids"].tolist(), batch["cu_seqlens"].tolist(), batch["rows"].tolist()
            ([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1], [0, 5, 8, 14, 16], [1, 0, 3, 2])
            >>> print(packed.report())
            2 packs of up to 8 tokens: 4 rows, 2.0 a pack, 2 at most; 16 tokens, 0 % padding
        """
        known_schema(self)
        request = _request.Request.of(self.schema, column_or_budgets, budget, cost, long, max_rows, balance)
        columns = _request.PackColumns(along, labels, ignore_index, first_position, bool(documents), padded)
        if self.recipe is not None:
            return _of_documents.packs_of(
                self.recipe, lambda one: _packed.packed(one, request, columns, seed)
            )
        return _packed.packed(self, request, columns, seed)

    def token_windows(
        self,
        column: str,
        size: SupportsIndex,
        *,
        stride: SupportsIndex | None = None,
        labels: LabelKind | Literal[False] | None = "same",
        shuffle_documents: bool = False,
        jitter: bool = False,
        separator: float | None = None,
        documents: bool = False,
        dtype: npt.DTypeLike | None = None,
        lengths: npt.ArrayLike | None = None,
        seed: SupportsIndex = 0,
        ignore_index: SupportsIndex | None = None,
    ) -> _token_windows.TokenWindowsRef | _of_documents.MixedWindows:
        """Rows that are windows of tokens: all documents laid end to end, and cut.

        A row is a dict: `column` (size,), and "labels" (size,), the same tokens. Only lengths are kept, 8
        bytes for each document; of a cached version only the tokens of a window are read. What fills no
        window is left out; `tokens_left_out` of the result counts it.

        Args:
            column: of documents: arrays of one dimension that differ in length, lists of numbers, or text,
                whose tokens are its bytes in UTF-8. Documents may be empty.
            size: tokens of a window.
            stride: tokens from one window to the next; `size` by default. A smaller one makes them overlap.
            labels: "same" as the tokens, for models that shift them by one, as those of transformers do.
                "shifted" by one here, for loops that compare scores with labels as they are; then a window
                needs one token more than its own. None or False for no labels.
            shuffle_documents: lay the documents in another order each epoch: blocks of 4,096 change places,
                and so do the documents within each. Else they lie as they are stored.
            jitter: begin at another token each epoch, in 0..stride - 1, so that the cuts differ. There are
                as many windows in each.
            separator: a token that is laid after each document, such as that of the end of a text.
            documents: True adds what packs have, so that attention is kept within documents:
                "position_ids" (size,), from 0 in each document or piece of one; "document_ids" (size,), which
                count these; "rows", "lengths" and "begins" of each: its row, its tokens, and the token of the
                row that it begins with. Batches have "cu_seqlens", "max_seqlen" and "packs" besides, over the
                tokens of all windows. A separator is of the document before it.
            dtype: of the tokens in a window, such as "int64"; by default that in which they are stored. It
                must be able to hold all values of that.
            lengths: (N,) of the documents, if you know them; else they are read now. They must be right.
            seed: the orders and beginnings of all epochs follow from it.
            ignore_index: the label of what a document begins with, as in packs: nothing foresees it from the
                end of the document before. Labels are int64 then. By default -100 with `documents`, where
                that goes for what a window begins with, too; None leaves labels as they are without.

        Raises:
            KeyError: there is no such column.
            TypeError: it does not hold documents, or it is not known what a row looks like.
            ValueError: an argument is out of range, the separator is not a value of the column, or lengths
                are not one for each row.

        Example:
            >>> documents = storage.submit(
            ...     [{"ids": np.arange(5)}, {"ids": np.arange(10, 14)}], "lines", "1",
            ...     schema=yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]), progress=False
            ... )
            >>> windows = documents.token_windows("ids", 4)
            >>> [(row["ids"].tolist(), row["labels"].tolist()) for row in windows]
            [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 10, 11, 12], [4, 10, 11, 12])]
            >>> documents.token_windows("ids", 4, labels="shifted", ignore_index=-100)[1]["labels"].tolist()
            [-100, 11, 12, 13]
            >>> windows.tokens_left_out
            1
        """
        known_schema(self)
        size = as_int("the tokens of a window", size)
        if ignore_index is None and documents and labels:
            ignore_index = -100
        cutting = _token_windows.Cutting(
            size,
            size if stride is None else as_int("stride", stride),
            None if labels is False else labels,
            bool(shuffle_documents),
            bool(jitter),
            separator,
            bool(documents),
            as_int("seed", seed),
            None if ignore_index is None else as_int("ignore_index", ignore_index),
        )
        if self.recipe is not None:
            if lengths is not None:
                raise ValueError("lengths are of one source: cut each into windows by them, then mix those")
            return _of_documents.windows_of(
                self.recipe, lambda one: _token_windows.token_windows(one, column, cutting, dtype, None)
            )
        return _token_windows.token_windows(self, column, cutting, dtype, lengths)

    def token_batches(
        self,
        column_or_lengths: str | npt.ArrayLike,
        budget: SupportsIndex,
        *,
        pool: SupportsIndex | None = None,
        max_rows: SupportsIndex | None = None,
        multiple_of: SupportsIndex = 1,
        long: Literal["error", "drop"] = "error",
        padding: float = 0,
        collate: Collate | None = None,
        seed: SupportsIndex = 0,
    ) -> _token_batches.TokenBatchesRef | _of_documents.MixedBatches:
        """Rows that are whole batches: as many rows of like length as fit, padded, into a budget.

        Rows are sorted by length and cut into batches, once. Each epoch rows of equal length change places,
        so there are as many batches in every epoch, of the same shapes, and each row is in one of them. Load
        them one by one, with `batch_size=None`: then every rank has as many.

        Args:
            column_or_lengths: a ragged column, whose lengths count; or (N,) the length of each row.
            budget: elements of a batch: rows x longest is at most that, and so is the number of rows.
            pool: rows that are sorted among each other: with it a batch has rows of one of many pools, drawn
                from all rows once, and less like lengths. By default all are sorted.
            max_rows: of a batch.
            multiple_of: lengths are padded to a multiple of it.
            long: "error" refuses rows longer than the budget, "drop" leaves them out with a warning;
                `report()` of the result counts them.
            padding: what rows are filled up with: each batch is what `yoga.padded(padding)` makes.
            collate: makes a batch of its rows instead, such as `yoga.jagged`.
            seed: the pools, and the places of rows in all epochs, follow from it.

        Raises:
            KeyError: there is no such column.
            TypeError: it is not ragged, or lengths are no whole numbers.
            ValueError: rows are longer than the budget, or an argument is out of range.

        Example:
            >>> texts = storage.submit(
            ...     [{"ids": np.arange(n)} for n in (3, 1, 2, 6)], "some", "1",
            ...     schema=yoga.Schema.of({"ids": np.arange(3)}, ragged=["ids"]), progress=False
            ... )
            >>> batches = texts.token_batches("ids", 6)
            >>> [tuple(batch["ids"].values.shape) for batch in yoga.DataLoader(batches, batch_size=None)]
            [(1, 6), (2, 3), (1, 1)]
            >>> batches.report().padding
            0.07692307692307687
        """
        batching = _token_batches.Batching(budget, pool, max_rows, multiple_of, long, padding, collate, seed)
        if self.recipe is not None:
            if not isinstance(column_or_lengths, str):
                raise ValueError("lengths are of one source: make batches of each by them, then mix those")
            return _of_documents.batches_of(
                self.recipe, lambda one: _token_batches.token_batches(one, column_or_lengths, batching)
            )
        return _token_batches.token_batches(self, column_or_lengths, batching)

    def stats(self, rows: int | None = None, seed: int = 0, *, progress: bool | None = None) -> TableStats:
        """Statistics of each column: counts, bounds, mean, histogram, lengths, the most frequent values.

        Those of a cached version, and of some of its columns, were made when it was built: nothing is read.
        Of a view, and of a version built without them, all rows are read once; those that are made with
        random numbers are those of epoch 0 with seed 0. See docs/versions.md.

        Args:
            rows: read only so many, drawn at random, where rows are to be read at all; `rows_read` of the
                result says how many were.
            seed: of the draw; the same one draws the same rows.
            progress: show a progress bar; by default on a terminal.

        Raises:
            CorruptError: the statistics in the manifest are damaged.
            SchemaError: rows look different, of a DataRef that does not say what they look like.

        Example:
            >>> ref = storage.submit({"x": np.arange(5.0), "label": np.array([2, 1, 2, 2, 0])}, "few", "1")
            >>> stats = ref.stats()
            >>> stats["x"].mean, stats["x"].max, stats["label"].top
            (2.0, 4.0, ((2, 3), (0, 1), (1, 1)))
            >>> ref[:4].stats(rows=2)["x"].rows
            2
        """
        return _counting.stats(self, rows, seed, progress)

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a table in memory; those of a part are `ref[:1000].to_arrow()`.

        A row that is not a dict becomes columns named "0", "1" and so on, or one named "value". Codes with
        words become dictionaries, arrays of one shape lists of a fixed size, what may be None has nulls.

        Raises:
            SchemaError: a column has no type in Arrow; it is named.
            TypeError: it is not known what a row looks like.
            ImportError: pyarrow is not installed.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9), "y": np.zeros((9, 2))})[7:].to_arrow().to_pylist()
            [{'x': 7, 'y': [0.0, 0.0]}, {'x': 8, 'y': [0.0, 0.0]}]
        """
        return _exports.to_arrow(self)

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame; raises as `to_arrow` does.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_pandas()
               x
            0  7
            1  8
        """
        return _exports.to_pandas(self)

    def to_polars(self) -> polars.DataFrame:
        """All rows as a polars DataFrame; raises as `to_arrow` does.

        Times in zones that polars does not know, such as +05:30, come in UTC.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_polars().shape
            (2, 1)
        """
        return _exports.to_polars(self)

    def to_huggingface(self) -> datasets.Dataset:
        """All rows as a `datasets.Dataset` in memory; raises as `to_arrow` does.

        Codes with words become a `ClassLabel`, encoded images and recordings `Image` and `Audio`.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_huggingface()[0]
            {'x': 7}
        """
        return _exports.to_huggingface(self)

    def to_parquet(self, path: str | os.PathLike[str], group_bytes: int = 64 * 2**20) -> None:
        """Writes all rows into a Parquet file, block by block; it appears when it is whole.

        Args:
            path: of the file; one that is there is replaced.
            group_bytes: about how many bytes of rows become a row group; memory holds a few times that.

        Raises:
            SchemaError: a column has no type in Arrow; it is named.
            TypeError: it is not known what a row looks like.
            ImportError: pyarrow is not installed.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)}).to_parquet(tmp_path / "numbers.parquet")
        """
        _exports.to_parquet(self, path, group_bytes)

    def projected(self, of: Projection) -> DataRef:
        """The same rows with some of their columns only; a subclass that can read less than all overrides it.

        Args:
            of: the columns; made for `schema`.
        """
        return ProjectedRef(self, of)

    def lengths(self, rows: Ints) -> Ints:
        """How many elements rows of a ragged column have; for a DataRef that is one, such as `ref["tokens"]`.

        Args:
            rows: (N,) numbers of rows.

        Raises:
            TypeError: it is not a ragged column.
        """
        schema = self._ragged_schema()
        if not len(rows):
            return np.zeros(0, np.int64)
        (data,) = block_of(self.take(rows), schema).data
        return np.diff(data.part("offsets"))

    def take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
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
            >>> ref["ids"].take_parts(np.array([1, 0]), np.array([2, 0]), np.array([5, 1])).tolist()
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

    def _ragged_schema(self) -> Schema:
        schema = self.schema
        if schema is None or not schema.is_sequence:
            raise TypeError(f"{self!r} is not a ragged column, so its rows have no lengths")
        return schema

    @overload
    def __getitem__(self, index: str) -> DataRef: ...

    @overload
    def __getitem__(self, index: slice) -> DataRef[RowT]: ...

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> RowT: ...

    @overload
    def __getitem__(self, index: Sequence[int] | Numbers) -> list[RowT]: ...

    def __getitem__(self, index: Any) -> DataRef | RowT | list[RowT]:
        """A row; a list of rows for a list of numbers; a view, a DataRef too, of some rows for a slice, or of
        one column for its name.

        Raises:
            IndexError: there is no such row.
            KeyError: there is no such column.
        """
        if isinstance(index, str):
            schema = known_schema(self)
            return self if schema is None else self.projected(Projection.at(schema, index))
        if isinstance(index, slice):
            return SlicedRef(self, range(len(self))[index])
        if np.ndim(index) == 0:
            return exact_rows(self.take(self.numbered([index])))[0]
        return exact_rows(self.take(self.numbered(index)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """(N, ...) all rows, read thousands at once: `np.asarray(ref["label"])`, for numbers and times.

        Rows of anything else become an array (N,) of objects.
        """
        if copy is False:
            raise ValueError("the rows of a DataRef are not an array: they cannot be had without a copy")
        schema, parts = self.schema, []
        column = schema.columns[0] if schema is not None and schema.tree.kind == "leaf" else None
        if column is None or column.shape is None or column.kind not in _ARRAY_KINDS or self.is_random:
            found = np.empty(len(self), object)
            for number, row in enumerate(self):
                found[number] = row
            return found if dtype is None else found.astype(dtype)
        step = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, column.row_bytes)))
        for start in range(0, len(self), step):
            rows = self.take(np.arange(start, min(start + step, len(self))))
            parts.append(np.array(block_of(rows, schema).data[0].values))  # whose memory is used again
        parts = parts or [np.empty((0, *column.shape), column.storage)]
        whole: Array = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getitems__(self, indices: Sequence[int] | Numbers) -> Sequence[RowT]:
        """The rows of a batch, for torch's DataLoader; `default_collate` makes them tensors in one go."""
        _ = _collate.is_ours  # once it is loaded, `default_collate` knows it
        readahead = self.readahead
        if readahead is not None and type(indices) is list:
            rows = readahead.rows(indices, self.take)
            if rows is not None:
                return rows
        return self.take(self.numbered(indices))

    def numbered(self, indices: Sequence[int] | Numbers) -> Ints:
        """Indices as the row numbers that `take` takes; those below 0 are counted from the end.

        Raises:
            IndexError: there is no such row.
            TypeError: they are not whole numbers.
        """
        is_arranged = self.arrangement is not None
        return row_numbers(indices, len(self), is_arranged)

    if not TYPE_CHECKING:  # a type checker would think that there is any attribute

        def __getattr__(self, name: str) -> Any:
            """An entry of `info`; only called for what is no attribute otherwise."""
            known = getattr(type(self), name, None)
            is_own = known is not None and not isinstance(known, _Told)
            asking = _ASKING.__dict__.setdefault("ids", set())
            if is_own or name.startswith("_") or name in _OF_VIEWS or id(self) in asking:
                return object.__getattribute__(self, name)  # raises what it has raised
            asking.add(id(self))
            try:
                info = self.info
            except AttributeError:
                return object.__getattribute__(self, name)
            finally:
                asking.remove(id(self))
            if name in info:
                return info[name]
            if name in _OF_PACKS or name in _OF_MIXTURES:
                has = "ref.packed(...) has, see docs/packing.md"
                if name in _OF_MIXTURES:
                    has = "yoga.mix(...) has, see docs/mixtures.md"
                told = f"this {type(self).__name__} has no {name}, which {has}"
                raise AttributeError(told, name=name, obj=self)
            instead = METHODS.get(name)
            with suppress(Exception):  # of any kind: the schema may be a user's own
                if self._at_hand() and self.schema is not None:
                    names = {column.name.partition("/")[0] for column in self.schema.columns}
                    instead = f"ref[{name!r}], which is the column" if name in names else instead
            if instead is not None:
                raise AttributeError(f"DataRef has no {name}; use {instead}", name=name, obj=self)
            raise AttributeError(
                f"this {type(self).__name__} has no {name}: its info says "
                f"{sorted(info)[:8] or 'nothing'}. An attribute of a dataset is kept if "
                f"info=[{name!r}] names it when its version is built; "
                "docs/views.md has the names of methods",
                name=name,
                obj=self,
            )

    def __getstate__(self) -> Json:
        # What is read ahead is this process's, and a copy's rows may be others.
        return {key: value for key, value in self.__dict__.items() if key != "readahead"}

    def __iter__(self) -> Iterator[RowT]:
        for start in range(0, len(self), 256):
            yield from exact_rows(self.take(np.arange(start, min(start + 256, len(self)))))

    def __repr__(self) -> str:
        """A description, with its rows and columns, on ten lines at most; no row is made for it."""
        columns: Sequence[ShownColumn] = ()
        with suppress(Exception):  # of any kind: the schema may be a user's own
            columns = self.schema.shown if self._at_hand() and self.schema is not None else ()
        return in_lines(f"{title_of(self)}: {self._counted()}", columns)

    def _title(self) -> str:
        """The name that `repr` gives it."""
        return type(self).__name__

    def _counted(self) -> str:
        """How much `repr` says there is."""
        return count_of(len(self), "row")

    def _at_hand(self) -> bool:
        """Whether the schema is known without making a row."""
        return True

    def _repr_html_(self) -> str:
        """The page that notebooks show: columns and a few rows, see docs/report.md."""
        return _notebook.notebook_page(self)

    @advised("ref.stream(shuffle=True)")
    def stream(
        self,
        start_offset: int = 0,
        shuffle: Shuffle = False,
        shuffle_seed: int = 0,
        shard_rank: int = 0,
        num_shards: int = 1,
        skip_shuffle_at_epoch_end: bool = False,
        drop_shard_remainder: bool = False,
        shuffle_window: int = 8,
        locality: Locality = "global",
    ) -> Stream[RowT]:
        """The sequential layer: rows in order, an epoch per iteration, resumable after any row.

        Args:
            start_offset: positions of the order, over all shards, that the first iteration leaves out; more
                than an epoch has means later epochs. In a shuffled order these are any rows; `ref[n:]` leaves
                out the first n rows, in every epoch.
            shuffle: a full shuffle, anew each epoch; the same as `ResumableSampler(self, seed=shuffle_seed)`
                gives. "block" mixes a few files at a time: see docs/shuffle.md.
            shuffle_seed: any int.
            shard_rank: which shard this is, in 0..num_shards-1.
            num_shards: shard r takes positions r, r + num_shards, ... of the global order.
            skip_shuffle_at_epoch_end: every epoch comes in the order of the first.
            drop_shard_remainder: leave out the tail that the shards do not divide; else some have one row
                more.
            shuffle_window: with shuffle="block", files mixed with each other at once.
            locality: "shard" gives each shard files of its own, see `ResumableSampler`.

        Raises:
            ValueError: an argument is out of range.

        Example:
            >>> list(Squares().stream(start_offset=7))
            [49, 64, 81]
        """
        shard = Shard(num_shards, shard_rank, "drop" if drop_shard_remainder else "keep")
        reshuffle = not skip_shuffle_at_epoch_end
        options = OrderOptions(
            shuffle, shuffle_seed, reshuffle, shuffle_window, locality, shard, start_offset
        )
        return Stream(self, options)


def title_of(ref: DataRef) -> str:
    """A DataRef in a few words: its `repr` without rows and columns."""
    title = ref._title()
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 3]}..."


def are_at_hand(refs: Iterable[DataRef]) -> bool:
    """Whether the schemas of all of them are known without making a row."""
    return all(ref._at_hand() for ref in refs)


def _become_datasets(module: Any) -> None:
    DataRef.__bases__ = (ABC, module.Dataset)  # and so do the subclasses that exist


once_loaded("torch.utils.data.dataset", _become_datasets)


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
    if (
        found.dtype == np.bool_
        or not (np.issubdtype(found.dtype, np.integer) or not found.size)
        or found.ndim != 1
    ):
        hint = "; for a mask use where(...), or np.flatnonzero(mask)" if found.dtype == np.bool_ else ""
        hint = "; columns are taken by ref.columns(names), or ref[name]" if found.dtype.kind in "UT" else hint
        raise TypeError(f"rows are taken by an int, a list of ints or a slice, found {indices!r:.100}{hint}")
    numbers = found.astype(np.int64, copy=False)
    if not len(numbers):
        return numbers
    # Unsigned, a negative number is a huge one: one pass shows that nothing needs a closer look.
    if int(numbers.view(np.uint64).max()) < length:
        return numbers
    are_rows = (numbers >= -length) & (numbers < length)
    if is_arranged:
        are_rows |= (numbers >= ARRANGED.start) & (numbers < ARRANGED.stop)
    if not are_rows.all():
        raise IndexError(f"row {int(numbers[np.argmin(are_rows)])} of a dataset of {length} rows")
    return np.where(numbers < 0, numbers + length, numbers)


def identity(ref: DataRef) -> str:
    """The fingerprint; of rows without one, how they are made of others, or how many there are."""
    return ref.fingerprint or ref.view_pin or f"{len(ref)} rows"


def nameless_pin(ref: DataRef, *parts: object) -> str | None:
    """A digest of what decides which rows come, see `digest`; None with a fingerprint, which says it all."""
    return None if ref.fingerprint else digest(*parts)


def taken_of(ref: DataRef[RowT], rows: Ints, seeds: Seeds | None) -> Sequence[RowT]:
    """The rows of these numbers (B,); made with seeds, one for each, if there are any."""
    return ref.take(rows) if seeds is None else ref.take_seeded(rows, seeds)


class Over(DataRef[RowT]):
    """Rows that are made of those of another DataRef: a subclass says only in which way they differ.

    Args:
        whole: the other DataRef.
        how: what else a subclass is made with.

    Attributes:
        whole: the other DataRef.
        view_name: what `view_pin` calls a view whose rows are not the whole's, in its order.
    """

    view_name: str | None = None

    def __init__(self, whole: DataRef[RowT], *how: Any) -> None:
        self.is_thread_safe = whole.is_thread_safe
        self.whole = whole
        self._how = how

    def take(self, rows: Ints) -> Sequence[RowT]:
        """The rows of these numbers; generators are drawn from as they stand."""
        return self._taken(rows, None) if len(rows) else []

    def take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[RowT]:
        """The rows of these numbers, made with these seeds."""
        return self._taken(rows, seeds) if len(rows) else []

    @abstractmethod
    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[RowT]:
        """One or more rows (B,); made with seeds, one for each, if there are any."""

    def _title(self) -> str:
        return title_of(self.whole)

    def _at_hand(self) -> bool:
        return are_at_hand([self.whole])

    def over(self, whole: DataRef) -> DataRef:
        """The same view of another DataRef of as many rows."""
        return type(self)(whole, *self._how)

    @abstractmethod
    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's; states know it."""

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the whole's; None if the whole has none."""
        whole = self.whole.fingerprint
        return None if whole is None else self._pinned(whole)

    @cached_property
    def view_pin(self) -> str | None:
        """How it is made of the whole; None if the fingerprint says that."""
        if self.view_name is None:
            return self.whole.view_pin
        return described(self.view_name, of=nameless_pin(self, self._pinned(identity(self.whole))))

    def in_epoch(self, epoch: int) -> DataRef[RowT]:
        """The same view of the whole as it is in an epoch."""
        whole = self.whole.in_epoch(epoch)
        return self if whole is self.whole else self.over(whole)

    @property
    def keeps_rows(self) -> bool:
        """The whole's."""
        return self.whole.keeps_rows

    @property
    def is_random(self) -> bool:
        """The whole's."""
        return self.whole.is_random

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row of the whole."""
        return self.whole.row_bytes

    @property
    def schema(self) -> Schema | None:
        """The whole's schema."""
        return self.whole.schema

    @property
    def info(self) -> Json:
        """The whole's info."""
        return self.whole.info


class ChangedRows(Over[RowT]):
    """The rows of another DataRef, each changed: as many, in the same order."""

    most_read_at_once = MOST_BATCHES

    def __len__(self) -> int:
        return len(self.whole)

    def _given(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        """Rows of the whole that are changed with these seeds, if any; each is made with one of its own."""
        own = None if seeds is None or not self.whole.is_random else seeds_within(seeds, 0)
        return taken_of(self.whole, rows, own)

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        """The whole's, changed alike."""
        return [(self._pinned(name), rows) for name, rows in self.whole.prefixes]

    @property
    def arrangement(self) -> Arrangement | None:
        """The whole's."""
        return self.whole.arrangement

    @property
    def recipe(self) -> _mix.Recipe | None:
        """The whole's, with sources that are changed alike."""
        found = self.whole.recipe
        return None if found is None else found.over(self.over)

    @property
    def file_starts(self) -> Ints:
        """The whole's."""
        return self.whole.file_starts

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """The whole's, for rows that are changed after they are read; None if the whole has none."""
        whole = self.whole.readahead
        return None if whole is None else ReadAhead(self.row_bytes, whole.prefetch, self.most_read_at_once)


class RowView(Over[RowT]):
    """Some rows of another DataRef, in any order; each is one row of it.

    A subclass says which, by `rows_at` and `places_of`.

    Args:
        whole: the other DataRef.

    Attributes:
        whole: the other DataRef.
    """

    @abstractmethod
    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of `whole` behind rows of this view (B,), each in 0..len - 1."""

    @abstractmethod
    def places_of(self, rows: Ints) -> Ints:
        """Where rows of `whole` (B,) come in this view, for the first time; -1 for those that do not."""

    view_name = "view"

    @property
    def prefixes(self) -> Sequence[tuple[str, int]]:
        """Those of the whole that have all of its rows, as versions with other columns have: chosen alike."""
        found = self.whole.prefixes
        return [(self._pinned(name), len(self)) for name, rows in found if rows == len(self.whole)]

    keeps_rows = Over.keeps_rows

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[RowT]:
        return taken_of(self.whole, self.rows_at(rows), seeds)

    def lengths(self, rows: Ints) -> Ints:
        """The lengths of rows of a ragged column, as `whole` finds them."""
        return self.whole.lengths(self.rows_at(rows))

    def take_parts(self, rows: Ints, starts: Ints, stops: Ints) -> Array:
        """Parts of rows of a ragged column, as `whole` reads them."""
        return self.whole.take_parts(self.rows_at(rows), starts, stops)

    def projected(self, of: Projection) -> DataRef:
        """The same view of `whole` with these columns."""
        return self.over(self.whole.projected(of))

    @cached_property
    def readahead(self) -> ReadAhead | None:
        """The whole's, for the rows of the view; None if the whole has none."""
        whole = self.whole.readahead
        if whole is None or whole.prefetch is None:
            return super().readahead
        return ReadAhead(self.row_bytes, Translated(whole.prefetch, self.rows_at))


class ReweightedView(RowView[RowT]):
    """Rows that come as often as weights say, which may change while they are read."""

    @abstractmethod
    def reweighted(self, weights: Any, *, at: Mapping[str, object]) -> ReweightedView[RowT]:
        """The same rows with other weights from a state on; what came before stays.

        Load the same state into a loader of what this returns; without it, the loader cannot know what came
        before, and raises ValueError when it reads.

        Args:
            weights: as the method takes them that made this view.
            at: what `state_dict()` of a loader of this view gave.

        Raises:
            StateError: the state is of other data, or of weights that this view has not had.
        """


class PackView(Over):
    """Packs of rows of another DataRef: what `ref.packed(...)` is."""

    @abstractmethod
    def report(self) -> PackReport:
        """The outcome of packing: how many packs, how full they are, what was left out."""

    @abstractmethod
    def members(self, packs: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The rows (S,) of the other DataRef in these packs, and where those of each begin (B + 1,)."""

    @abstractmethod
    def packs_of(self, rows: Sequence[int] | Ints) -> Ints:
        """The packs (B,) that these rows of the other DataRef are in; -1 for those that are in none."""

    def opened(self, parts: Sequence[RowsOf]) -> list[RowsOf] | None:
        """The rows of packs of several DataRefs, this is the first; None if these are not made alike.

        Args:
            parts: the packs.

        Returns:
            For each part the DataRef that rows are read from, the places of its rows among all, and these.
        """
        return None

    def together(
        self, parts: Sequence[RowsOf], read: Callable[[Iterable[RowsOf], int], Sequence[Any]]
    ) -> Sequence[Any] | None:
        """Packs of several DataRefs, at their places; None if these are not made alike, see `opened`.

        Args:
            parts: the packs.
            read: reads rows of several DataRefs, so many in all.
        """
        return None

    @abstractmethod
    def tokens_of(self, packs: Ints) -> Ints:
        """How much of the first budget these packs (B,) take; it is the same in every epoch."""

    @abstractmethod
    def in_epoch(self, epoch: int) -> PackView:
        """The same packs with the rows that they hold in an epoch."""


class SlicedRef(RowView[RowT]):
    """Some rows of another DataRef: what `ref[start:stop:step]` is."""

    def __init__(self, whole: DataRef[RowT], rows: range) -> None:
        super().__init__(whole, rows)
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole with these numbers in the slice."""
        return self.rows.start + self.rows.step * numbers

    def places_of(self, rows: Ints) -> Ints:
        """Where rows of the whole come in the slice; -1 for those that do not."""
        places, rest = np.divmod(rows.astype(np.int64, copy=False) - self.rows.start, self.rows.step)
        places[(rest != 0) | (places < 0) | (places >= len(self))] = -1
        return places

    @property
    def file_starts(self) -> Ints:
        """The whole's, as far as the slice goes; equal runs for a slice that goes backwards."""
        if self.rows.step < 0:
            return equal_runs(len(self))
        first = -((self.rows.start - self.whole.file_starts) // self.rows.step)
        return distinct(np.append(np.clip(first, 0, len(self)), [0, len(self)]))

    def _pinned(self, whole: str) -> str:
        """A name for the content, made of one for the whole's and the slice."""
        return hexdigest(f"{whole} {self.rows.start} {self.rows.stop} {self.rows.step}")

    def _title(self) -> str:
        first, stop, step = self.rows.start, self.rows.stop, self.rows.step
        part = f"{first}:{'' if stop < 0 else stop}" + (f":{step}" if step != 1 else "")
        return f"{super()._title()}[{part}]"


class ProjectedRef(ChangedRows):
    """Some columns of another DataRef, which reads them all.

    Args:
        whole: has a schema.
        of: the columns.
    """

    def __init__(self, whole: DataRef, of: Projection) -> None:
        super().__init__(whole, of)
        self.of = of

    keeps_rows = Over.keeps_rows

    def _pinned(self, whole: str) -> str:
        return self.of.pinned(whole) or ""

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Sequence[Row]:
        return Rows(self.of.block(block_of(taken_of(self.whole, rows, seeds), self.whole.schema)))

    def projected(self, of: Projection) -> DataRef:
        """Some of these columns."""
        return self.whole.projected(self.of.then(of))

    @property
    def schema(self) -> Schema:
        """How a row looks."""
        return self.of.schema
