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
_notebook: Any = methods_of("torchyoga.tools.report.page")


class _Told:
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
    """A map-style dataset: give it a row number, or many, and it gives the rows.

    Subclass it over data of your own with `__len__` and `take`, and it streams, shuffles, shards and resumes.
    What else a subclass may define is the contract in `reading/contract.py`. A type checker knows what a row
    is if the subclass says so, as in `DataRef[int]`.

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
    classes: Any = _Told()
    class_to_idx: Any = _Told()

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
    _repr_html_ = _notebook.notebook_page

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
        return self._projected(Projection.of(schema, names).ordered(names))

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
        found: DataRef = _decoded.decoded(self, decoders, threads)
        return found

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
        found: pandas.DataFrame = _exports.to_pandas(self)
        return found

    def to_polars(self) -> polars.DataFrame:
        """All rows as a polars DataFrame; raises as `to_arrow` does.

        Times in zones that polars does not know, such as +05:30, come in UTC.

        Example:
            >>> yoga.from_arrays({"x": np.arange(9)})[7:].to_polars().shape
            (2, 1)
        """
        found: polars.DataFrame = _exports.to_polars(self)
        return found

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
        """The sequential layer: rows in order, an epoch per iteration, resumable after any row.

        Args:
            start_offset: positions of the order, over all shards, that the first iteration leaves out; more
                than an epoch has means later epochs. In a shuffled order these are any rows; `ref[n:]` leaves
                out the first n rows, in every epoch.
            shuffle: a full shuffle, anew each epoch; the same as `ResumableSampler(self, seed=shuffle_seed)`
                gives. "block" mixes a few files at a time: see docs/resume.md.
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
            return self if schema is None else self._projected(Projection.at(schema, index))
        if isinstance(index, slice):
            return _over.SlicedRef(self, range(len(self))[index])
        if np.ndim(index) == 0:
            return exact_rows(self.take(self._numbered([index])))[0]
        return exact_rows(self.take(self._numbered(index)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """(N, ...) all rows, read thousands at once: `np.asarray(ref["label"])`, for numbers and times.

        Rows of anything else become an array (N,) of objects.
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
        """The rows of a batch, for torch's DataLoader; `default_collate` makes them tensors in one go."""
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
        """A description, with its rows and columns, on ten lines at most; no row is made for it."""
        columns: Sequence[ShownColumn] = ()
        with suppress(Exception):  # of any kind: the schema may be a user's own
            columns = self.schema.shown if self._at_hand() and self.schema is not None else ()
        return in_lines(f"{title_of(self)}: {self._counted()}", columns)


def _become_datasets(module: Any) -> None:
    DataRef.__bases__ = (Contract, module.Dataset)  # and so do the subclasses that exist


once_loaded("torch.utils.data.dataset", _become_datasets)
