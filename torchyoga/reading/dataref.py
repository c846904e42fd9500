"""A dataset as rows by number.

Note 2. A DataRef knows rows, and neither their order nor who asks.
Shuffles, shards, splits and states are arithmetic on row numbers above it; files, stores and decoding lie
below. Whatever can give rows by number is one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import numpy.typing as npt

from ..order.contract import Locality, Shuffle
from ..order.options import OrderOptions
from ..order.place import Shard
from ..process.lazy import later, methods_of, once_loaded
from ..rows.block import exact_rows
from ..rows.collector import block_of
from ..rows.schema import Projection, ShownColumn, in_lines
from ..rows.types import Array, Json, Numbers, RowT
from .contract import Contract, known_schema, title_of
from .instead import METHODS, METHODS_OF, advised
from .stream import Stream

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import pyarrow
    from torch.utils.data import Dataset

    from ..rows import collate as _collate
    from ..views import changed as _changed
    from ..views import chosen as _chosen
    from ..views import filled as _filled
    from ..views import over as _over
    from ..views import split as _split
    from ..views import token_batches as _token_batches
    from ..views import token_windows as _token_windows
    from ..views import weighted as _weighted
    from ..views import windows as _windowed
    from ..views import zipped as _zipped
    from ..views.packs import packed as _packed
    from . import counting as _counting
else:  # A view is a DataRef, so its file imports this one: it is loaded when a method is first looked at.
    Dataset = Generic  # until torch is loaded, see `_become_datasets`: rows can be read without it
    _collate, _over = later("torchyoga.rows.collate"), later("torchyoga.views.over")
    _counting = methods_of("torchyoga.reading.counting")
    _chosen = methods_of("torchyoga.views.chosen")
    _changed = methods_of("torchyoga.views.changed")
    _filled = methods_of("torchyoga.views.filled")
    _split = methods_of("torchyoga.views.split")
    _zipped = methods_of("torchyoga.views.zipped")
    _weighted = methods_of("torchyoga.views.weighted")
    _packed = methods_of("torchyoga.views.packs.packed")
    _token_batches = methods_of("torchyoga.views.token_batches")
    _token_windows = methods_of("torchyoga.views.token_windows")
    _windowed = methods_of("torchyoga.views.windows")

# Of rooms that lie above views, without which rows can be read.
_decoded: Any = later("torchyoga.coding.decoded")
_exports: Any = later("torchyoga.tables.interchange")


class _FromInfo:
    """An attribute that a DataRef has if its `info` holds it, and that a subclass may set."""

    def __get__(self, ref: DataRef | None, owner: type | None = None) -> Any:
        if ref is None:
            return self
        raise AttributeError  # so that `__getattr__` is asked


_ASKING = threading.local()  # the ids of DataRefs whose info is looked at
_OF_VIEWS = ("sources", "whole")  # of some; their entries in an info are no attributes
_ARRAY_KINDS = frozenset(
    {"ndarray", "scalar", "int", "float", "bool", "complex", "datetime", "date", "timedelta"}
)
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 2**16, 2**25


class DataRef(Contract[RowT], Dataset[RowT]):
    """A map-style dataset whose rows are read by number, one or many at a time.

    Subclass it over data of your own, with `__len__` and `take`; then it streams, shuffles, shards and
    resumes. `reading/contract.py` is the contract of what else a subclass may define. Name the type of a row
    for type checkers, as in `DataRef[int]`.

    Example:
        >>> class Squares(DataRef[int]):
        ...     def __len__(self):
        ...         return 10
        ...     def take(self, rows):
        ...         return [int(row) ** 2 for row in rows]
        >>> Squares()[3], Squares()[[1, -1]], list(Squares()[7:])
        (9, [1, 81], [49, 64, 81])
    """

    # What scripts ask a dataset for.
    classes: Any = _FromInfo()
    class_to_idx: Any = _FromInfo()

    where = _chosen.where
    select = _chosen.select
    order_by = _chosen.order_by
    repeat = _chosen.repeat
    zip = _zipped.zip
    split = _split.split
    map = _changed.map
    map_batches = _changed.map_batches
    filled = _filled.filled
    masked = _filled.masked
    windows = _windowed.windows
    weighted = _weighted.weighted
    balanced = _weighted.balanced
    bucketed = _weighted.bucketed
    packed = _packed.packed
    token_windows = _token_windows.token_windows
    token_batches = _token_batches.token_batches
    stats = _counting.stats

    def columns(self, names: Sequence[str]) -> DataRef:
        """The same rows with only some of their columns, in this order; the other columns are not read.

        Args:
            names: names of columns, as `schema` shows them, such as "image" or "meta/size"; "meta" names all
                columns below it.

        A dataset without rows has no known columns, and accepts any name.

        Raises:
            KeyError: there is no such column.
            TypeError: the schema is not known.

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
        return self._projected(Projection.of(schema, names).ordered(names))

    def decoded(self, decoders: Mapping[str, Any] | None = None, threads: int | None = None) -> DataRef:
        """The same rows with their encoded columns decoded each time they are read.

        Args:
            decoders: for columns of bytes, or of lists of bytes, by name: `yoga.codecs.image(...)`, `text()`
                or `audio()`. By default all columns that `codecs=` encoded are decoded: arrays and tensors as
                they were, image files as by `yoga.codecs.image()`.
            threads: the number of threads that decode; by default one for each core, and one in each worker
                process of a loader.

        Random crops and flips follow from (seed, epoch, row), like `draw` in `map_batches`.

        Raises:
            KeyError: there is no such column.
            SchemaError: a column does not hold bytes.
            CorruptError: when read: a value cannot be decoded; the message says which row and column.

        Example:
            >>> images = [{"image": np.full((40, 60, 3), n, np.uint8)} for n in range(4)]
            >>> ref = storage.submit(images, "photos-kept", "1", codecs={"image": yoga.codecs.jpeg(90)})
            >>> small = ref.decoded({"image": yoga.codecs.image(size=32, crop="random", layout="chw")})
            >>> next(iter(yoga.DataLoader(small, 4)))["image"].shape
            torch.Size([4, 3, 32, 32])
        """
        found: DataRef = _decoded.decoded(self, decoders, threads)
        return found

    def to_arrow(self) -> pyarrow.Table:
        """All rows as a table in memory; for some of them write `ref[:1000].to_arrow()`.

        A row that is not a dict becomes columns named "0", "1" and so on, or one column named "value". Codes
        with words become dictionaries, arrays of one shape become lists of a fixed size, None becomes null.

        Raises:
            SchemaError: a column has no type in Arrow; the message names it.
            TypeError: the schema is not known.
            ImportError: pyarrow is not installed.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9), "y": np.zeros((9, 2))})[7:].to_arrow().to_pylist()
            [{'x': 7, 'y': [0.0, 0.0]}, {'x': 8, 'y': [0.0, 0.0]}]
        """
        return _exports.to_arrow(self)

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame; it raises what `to_arrow` raises.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_pandas()
               x
            0  7
            1  8
        """
        found: pandas.DataFrame = _exports.to_pandas(self)
        return found

    def to_polars(self) -> polars.DataFrame:
        """All rows as a polars DataFrame; it raises what `to_arrow` raises.

        Times in zones that polars does not know, such as +05:30, are converted to UTC.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_polars().shape
            (2, 1)
        """
        found: polars.DataFrame = _exports.to_polars(self)
        return found

    def to_huggingface(self) -> datasets.Dataset:
        """All rows as a `datasets.Dataset` in memory; it raises what `to_arrow` raises.

        Codes with words become a `ClassLabel`, encoded images an `Image`, encoded sound an `Audio`.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_huggingface()[0]
            {'x': 7}
        """
        return _exports.to_huggingface(self)

    def to_parquet(self, path: str | os.PathLike[str], group_bytes: int = 64 * 2**20) -> None:
        """Writes all rows into a Parquet file, block by block. The file appears when it is complete.

        Args:
            path: the path of the file; an existing file is replaced.
            group_bytes: about how many bytes of rows become a row group; it takes a few times as much memory.

        Raises:
            SchemaError: a column has no type in Arrow; the message names it.
            TypeError: the schema is not known.
            ImportError: pyarrow is not installed.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)}).to_parquet(tmp_path / "numbers.parquet")
        """
        _exports.to_parquet(self, path, group_bytes)

    @advised
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
        """The rows in order, one epoch for each iteration; it can resume after any row.

        Args:
            start_offset: the number of positions of the order, over all shards, that the first iteration
                leaves out; it may lead into later epochs. In a shuffled order these are any rows; `ref[n:]`
                leaves out the first n rows, in every epoch.
            shuffle: True shuffles all rows, in another order each epoch, as a `ResumableSampler` with this
                seed does. "block" mixes a few files at a time: see docs/resume.md.
            shuffle_seed: any int.
            shard_rank: the number of this shard, in 0..num_shards-1.
            num_shards: the number of shards; shard r takes positions r, r + num_shards, ... of the order.
            skip_shuffle_at_epoch_end: True gives every epoch the order of the first.
            drop_shard_remainder: True leaves out the last rows if the shards cannot divide them equally; else
                some shards have one row more.
            shuffle_window: with shuffle="block", the number of files that are mixed with each other at a
                time.
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

    @overload
    def __getitem__(self, index: str) -> DataRef: ...

    @overload
    def __getitem__(self, index: slice) -> DataRef[RowT]: ...

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> RowT: ...

    @overload
    def __getitem__(self, index: Sequence[int] | Numbers) -> list[RowT]: ...

    def __getitem__(self, index: Any) -> DataRef | RowT | list[RowT]:
        """A row, for its number; a list of rows, for a list of numbers; a DataRef of some rows, for a slice;
        a DataRef of one column, for its name.

        Raises:
            IndexError: there is no such row.
            KeyError: there is no such column.
        """
        if isinstance(index, str):
            schema = known_schema(self)
            return self if schema is None else self._projected(Projection.at(schema, index))
        if isinstance(index, slice):
            return _over.SlicedRef(self, range(len(self))[index])
        if np.ndim(index) == 0:
            return exact_rows(self.take(self._numbered([index])))[0]
        return exact_rows(self.take(self._numbered(index)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """(N, ...) all rows as an array: `np.asarray(ref["label"])`, for numbers and times.

        Other rows become an array (N,) of objects.
        """
        if copy is False:
            raise ValueError("the rows of a DataRef are not an array: they cannot be had without a copy")
        schema, parts = self.schema, []
        column = schema.columns[0] if schema is not None and schema.tree.kind == "leaf" else None
        if column is None or column.shape is None or column.kind not in _ARRAY_KINDS or self._is_random:
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
        """The rows of a batch, for torch's DataLoader; `default_collate` makes tensors of them at once."""
        _ = _collate.is_ours  # once it is loaded, `default_collate` knows it
        readahead = self._readahead
        if readahead is not None and type(indices) is list:
            rows = readahead.rows(indices, self.take)
            if rows is not None:
                return rows
        return self.take(self._numbered(indices))

    if not TYPE_CHECKING:  # a type checker would think that there is any attribute

        def __getattr__(self, name: str) -> Any:
            """An entry of `info`; only called for what is no attribute otherwise."""
            known = getattr(type(self), name, None)
            is_own = known is not None and not isinstance(known, _FromInfo)
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
            said, instead = f"this {type(self).__name__} has no {name}", METHODS.get(name)
            with suppress(Exception):  # of any kind: the schema may be a user's own
                if self._at_hand() and self.schema is not None:
                    names = {column.name.partition("/")[0] for column in self.schema.columns}
                    instead = f"ref[{name!r}], which is the column" if name in names else instead
            if name in METHODS_OF:
                said += f", which {METHODS_OF[name]}"
            elif instead is not None:
                said = f"DataRef has no {name}; use {instead}"
            else:
                said += (
                    f": its info says {sorted(info)[:8] or 'nothing'}. An attribute of a dataset is kept if "
                    f"info=[{name!r}] names it when its version is built; "
                    "docs/views.md has the names of methods"
                )
            raise AttributeError(said, name=name, obj=self)

    def __getstate__(self) -> Json:
        # What is read ahead is this process's, and a copy's rows may be others.
        return {key: value for key, value in self.__dict__.items() if key not in ("_prefetch", "_readahead")}

    def __iter__(self) -> Iterator[RowT]:
        for start in range(0, len(self), 256):
            yield from exact_rows(self.take(np.arange(start, min(start + 256, len(self)))))

    def __repr__(self) -> str:
        """A description with the number of rows and the columns, in at most ten lines; it makes no row."""
        columns: Sequence[ShownColumn] = ()
        with suppress(Exception):  # of any kind: the schema may be a user's own
            columns = self.schema.shown if self._at_hand() and self.schema is not None else ()
        return in_lines(f"{title_of(self)}: {self._counted()}", columns)


def _become_datasets(module: Any) -> None:
    DataRef.__bases__ = (Contract, module.Dataset)  # and so do the subclasses that exist


once_loaded("torch.utils.data.dataset", _become_datasets)
