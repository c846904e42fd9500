"""tf.data -> blocks of rows, and streams -> tf.data.

tf.data gets blocks, Keras gets batches by number.
TensorFlow cannot say what it has delivered, so the loop counts steps and the state is arithmetic
(`Stream.state_after`). An iteration is an epoch once its last batch is asked for, so that batch is a block of
its own, and nothing of ours reads ahead on TensorFlow's side of the border.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import torch

from ..building.sources import BlockSource
from ..errors import SchemaError, StateError
from ..order.epoch import Iteration, IterationOptions
from ..order.place import batches
from ..process.numbers import as_int
from ..process.threads import Ahead, Task
from ..reading.contract import Contract
from ..reading.dataref import DataRef
from ..reading.stream import Stream, begun, in_epoch, windows_of
from ..rows.block import Block, Data, bounds_of, joined
from ..rows.collector import block_of
from ..rows.column import TEXT_KINDS, Column
from ..rows.node import Node, path_name
from ..rows.schema import Schema
from ..rows.types import Array, Batch, Ints, Row
from ..sampling.trainers import epochs_without_length, is_keras_building
from .numbered import as_numpy, nested, refuse_wrapped, sample_of, with_arrays

_PLAIN = {
    getattr(tf, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_NO_TENSOR = type(tf.type_spec_from_value(None))  # making a dataset would fix the devices
_VARYING_ROWS, _TEXT_ROWS, _MOST_ROWS = 32, 256, 4096  # of a batch that crosses the border
_EXPORT_BYTES = 4 * 2**20
_MOST_LEFT = 4096  # single rows that an iteration may leave and still counts
_MOST_GIVEN_UP = 3  # iterations in a row before a warning


# -- tf.data -> blocks


def source_of(data: object) -> TensorflowSource | None:
    """A `tf.data.Dataset` as a source; None for anything else."""
    return TensorflowSource(data) if isinstance(data, tf.data.Dataset) else None


class _Shaped(NamedTuple):
    """A tensor that varies in more than its first dimension."""

    values: tf.Tensor  # flat
    shape: tf.Tensor


_Spec: TypeAlias = "tf.TypeSpec | dict[str, _Spec] | tuple[_Spec, ...]"  # of an element
_Part: TypeAlias = "tf.Tensor | tf.RaggedTensor | _Shaped"  # a column of a batch


class TensorflowSource(BlockSource):
    """The elements of a `tf.data.Dataset` as rows, in blocks that TensorFlow makes.

    Tensors come back as NumPy arrays, strings as bytes, bfloat16 as torch tensors.

    Raises:
        ValueError: it has no end, or TensorFlow is not running eagerly.
        SchemaError: its elements hold something that cannot be kept; names its path.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        if not tf.executing_eagerly():
            raise ValueError(
                "a tf.data.Dataset is read eagerly, but this is inside a tf.function or a graph; cache it "
                "outside"
            )
        cardinality = int(dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "this tf.data.Dataset has no end, as after .repeat(); cache it before it is repeated, or "
                "bound it with .take(n)"
            )
        self.name = "tf.data.Dataset"
        self.length = None if cardinality == tf.data.UNKNOWN_CARDINALITY else cardinality
        spec = dataset.element_spec
        _check(spec, ())
        self._dataset = dataset.map(lambda *parts: _spelled(spec, parts if type(spec) is tuple else parts[0]))
        varying: list[str] = []
        self.schema = Schema.of(_example(self._dataset.element_spec, (), varying), ragged=varying)

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """The rows in blocks of about so many bytes."""
        ragged = [column for column in self.schema.columns if column.is_ragged]
        if not ragged:
            row_bytes = sum(column.row_bytes for column in self.schema.columns)
            batches = self._dataset.batch(min(_MOST_ROWS, max(1, nbytes // max(1, row_bytes))))
        elif all(column.kind == "bytes" for column in ragged):
            batches = self._dataset.batch(_TEXT_ROWS)
        else:
            batches = self._dataset.ragged_batch(_VARYING_ROWS)
        waiting: list[Block] = []
        size = 0
        for batch in batches.prefetch(1):
            waiting.append(self._block(batch))
            size += waiting[-1].nbytes
            if size >= nbytes:
                yield joined(waiting)
                waiting, size = [], 0
        if waiting:
            yield joined(waiting)

    def _block(self, batch: Batch) -> Block:
        parts = list(_leaves(self._dataset.element_spec, batch))
        num_rows = next(_num_rows(part) for part in parts if part is not None)
        columns = zip(self.schema.columns, parts, strict=True)
        return Block(self.schema, num_rows, tuple(_data(column, part, num_rows) for column, part in columns))


def _check(spec: _Spec, path: tuple[str | int, ...]) -> None:
    """Raises SchemaError if elements of this kind cannot be kept."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            _check(value, (*path, key))
    elif isinstance(spec, tuple):
        for key, value in zip(getattr(spec, "_fields", range(len(spec))), spec, strict=True):
            _check(value, (*path, key))
    elif isinstance(spec, tf.TensorSpec) or (isinstance(spec, tf.RaggedTensorSpec) and not spec.ragged_rank):
        # TensorFlow cannot batch 8-bit floats.
        if spec.dtype not in {*_PLAIN, tf.bfloat16, tf.string}:
            raise SchemaError(
                f"at {path_name(path)!r}: tensors of {spec.dtype.name} cannot be kept; map them to another "
                "dtype"
            )
        if spec.shape.rank is None:
            raise SchemaError(
                f"at {path_name(path)!r}: tensors of unknown rank cannot be kept; map them by "
                "tf.ensure_shape(x, [None, None, 3]), or by tf.reshape"
            )
        if spec.dtype == tf.string and spec.shape.rank:
            raise SchemaError(
                f"at {path_name(path)!r}: tensors of several strings cannot be kept; map them to one, as by "
                "tf.strings.reduce_join(x, separator=' ')"
            )
    elif not isinstance(spec, _NO_TENSOR):
        raise SchemaError(
            f"at {path_name(path)!r}: {type(spec).__name__} cannot be kept; map it to tensors: "
            f"{_CURES.get(type(spec), 'windows by .flat_map(lambda window: window.batch(n))')}"
        )


_CURES = {
    tf.RaggedTensorSpec: "what is ragged by x.to_tensor()",
    tf.SparseTensorSpec: "what is sparse by tf.sparse.to_dense(x)",
}


def _spelled(spec: _Spec, value: Row) -> Row:
    """An element whose tensors vary in their first dimension alone."""
    if isinstance(spec, dict):
        return {key: _spelled(spec[key], value[key]) for key in spec}
    if isinstance(spec, tuple):
        return _tuple_like(spec, [_spelled(s, v) for s, v in zip(spec, value, strict=True)])
    if value is not None and value.shape.rank > 1 and not value.shape.is_fully_defined():
        return _Shaped(tf.reshape(value, [-1]), tf.shape(value, tf.int64))
    return value


def _tuple_like(like: tuple[_Spec, ...], items: Sequence[Row]) -> Row:
    return tuple.__new__(type(like), items)


def _leaves(spec: _Spec, value: Row) -> Iterator[_Part | None]:
    """The tensors of what `_spelled` made, in the order of its columns; None where a row holds None."""
    if isinstance(spec, dict):
        for key in spec:
            yield from _leaves(spec[key], value[key])
    elif isinstance(spec, tuple) and not isinstance(spec, _Shaped):
        for part_spec, part in zip(spec, value, strict=True):
            yield from _leaves(part_spec, part)
    else:
        yield value


def _example(spec: _Spec, path: tuple[str | int, ...], varying: list[str]) -> Row:
    """A row as these elements will be; notes the columns that vary."""
    if isinstance(spec, dict):
        return {key: _example(value, (*path, key), varying) for key, value in spec.items()}
    if isinstance(spec, tuple) and not isinstance(spec, _Shaped):
        keys = getattr(spec, "_fields", range(len(spec)))
        items = [_example(value, (*path, key), varying) for key, value in zip(keys, spec, strict=True)]
        return _tuple_like(spec, items)
    if isinstance(spec, _NO_TENSOR):
        return None
    if isinstance(spec, _Shaped):
        shape, spec = [0] * spec.shape.shape[0], spec.values
        varying.append(path_name(path))
    elif spec.dtype == tf.string:
        return b""
    else:
        shape = [extent or 0 for extent in spec.shape]
        if not spec.shape.is_fully_defined():
            varying.append(path_name(path))
    if spec.dtype == tf.bfloat16:  # NumPy has no bfloat16
        return torch.zeros(shape, dtype=torch.bfloat16)
    return np.zeros(shape, spec.dtype.as_numpy_dtype)[()]


def _num_rows(part: _Part) -> int:
    first = part.shape if isinstance(part, _Shaped) else part
    return int(first.shape[0] if not isinstance(first, tf.RaggedTensor) else first.nrows())


def _data(column: Column, part: _Part | None, num_rows: int) -> Data:
    if part is None:
        return Data(np.empty((num_rows, 0), np.uint8))
    if column.kind == "bytes":
        assert not isinstance(part, _Shaped)
        texts = part.numpy().tolist()
        offsets = bounds_of(map(len, texts)).astype("<i8", copy=False)
        return Data(np.frombuffer(b"".join(texts), np.uint8), offsets)
    if not column.is_ragged:
        return Data(_stored(column, part))
    if not isinstance(part, _Shaped):
        return Data(_stored(column, part.values), part.row_splits.numpy())
    values, shape = part
    return Data(_stored(column, values.values), values.row_splits.numpy(), shape.numpy())


def _stored(column: Column, tensor: tf.Tensor) -> Array:
    values = np.ascontiguousarray(tensor.numpy())
    return values.view(column.storage) if column.kind == "tensor" else values


# -- streams -> tf.data


def make_tf_dataset(
    stream: Stream | DataRef,
    batch_size: int | None = None,
    drop_last: bool = False,
    *,
    one_epoch: bool = False,
) -> tf.data.Dataset:
    """A stream as a `tf.data.Dataset`; each iteration of it is the next epoch of the stream.

    Args:
        stream: gives the rows and their order; a DataRef streams in its own.
        batch_size: batches of so many rows, B first; None for single rows, which `.batch` takes slower.
        drop_last: leave out a shorter last batch.
        one_epoch: the dataset is the epoch under way or about to begin, or what is left of it, and no other.

    Columns become tensors of their shape and dtype. Of ragged columns, and of lists of numbers whose length
    varies, single rows are dense tensors of unknown shape, for `.padded_batch` or `.ragged_batch`; in batches
    those of one dimension are `tf.RaggedTensor`. Text and bytes are `tf.string`, bfloat16 stays bfloat16.
    What may be None is refused, unless `filled` or `masked` put something in its place; so are dates, times,
    decimals, and lists of anything but numbers.

    An iteration counts as an epoch once its last batch was asked for. One that ends before, as `.take(5)`
    does, or Keras that looks at a batch to build a model, does not: the next one begins where it began.
    Single rows may be batched with `drop_remainder`, so of them up to half, and 4,096, may be left.

    TensorFlow asks for rows ahead of your loop, and it is not known how far, so count the steps of your
    training, over all epochs since the stream was made or loaded, and save `stream.state_after(steps,
    batch_size, drop_last)`. `stream.state_dict()` is the beginning of the epoch under way.

    The dataset knows its cardinality, unless the stream begins within an epoch and the first iteration is
    shorter than the others. Keras would take the first for the length of all: pass `one_epoch=True`, and
    give what is left of an epoch a `fit` of its own.

    Raises:
        ValueError: the stream has no rows, or `batch_size` is less than 1.
        SchemaError: a column is of a kind that TensorFlow does not have; names it.

    Example:
        >>> ref = storage.submit([{"x": n, "y": [n, n]} for n in range(10)], "pairs", "1.0")
        >>> stream = ref.stream(start_offset=4)
        >>> dataset = make_tf_dataset(stream, batch_size=3, one_epoch=True)
        >>> [batch["x"].numpy().tolist() for batch in dataset]
        [[4, 5, 6], [7, 8, 9]]
        >>> stream.epoch
        1
    """
    if isinstance(stream, DataRef):
        stream = stream.stream()
    if not isinstance(stream, Stream):
        raise TypeError(
            f"expected a Stream or a DataRef, found {type(stream).__name__}; DataRef.stream() makes a Stream"
        )
    step = 1 if batch_size is None else as_int("batch_size", batch_size, low=1)
    export = _Export(stream, batch_size is None)
    epochs = _Epochs(stream, export, batch_size, drop_last, one_epoch)

    def elements(*parts: tf.Tensor) -> tf.data.Dataset:
        """The elements of a block, which holds whole batches."""
        block = tf.data.Dataset.from_tensors(export.batch(*parts))
        if not (export.by_shape or batch_size is None):
            return block.rebatch(step, drop_remainder=drop_last)
        found = block.unbatch()
        is_ragged = any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(found.element_spec))
        # In a map a ragged tensor of one row is a dense one, which `padded_batch` takes.
        if export.by_shape or (is_ragged and batch_size is None):
            found = found.map(export.row)
        return found if batch_size is None else found.ragged_batch(batch_size, drop_remainder=drop_last)

    # TensorFlow makes maps parallel, and then asks for blocks before they are wanted: not here.
    dataset = tf.data.Dataset.from_generator(epochs.blocks, output_signature=export.signature)
    return _told(dataset.flat_map(elements), epochs)


def _told(dataset: tf.data.Dataset, epochs: _Epochs) -> tf.data.Dataset:
    """The dataset with its length, where that is known, and not to be sharded again."""
    if epochs.num_steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(epochs.num_steps))
    if epochs.cursor.shard.num_replicas > 1:  # it is a shard already
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    return dataset


class _Epochs:
    """Which epoch of a stream each iteration of a dataset is, and its blocks of rows as flat arrays.

    Attributes:
        num_steps: elements of each iteration; None if the first is shorter than the others.
    """

    def __init__(
        self, stream: Stream, export: _Export, batch_size: int | None, drop_last: bool, one_epoch: bool
    ) -> None:
        self._stream, self._export, self.cursor = stream, export, stream.cursor
        self._options = IterationOptions(batch_size or 1, drop_last)
        self._is_in_batches, self._one_epoch = batch_size is not None, one_epoch
        first = self.cursor.iteration(self._options)
        self._start = first.start
        self.num_steps = None if first.start.position and not one_epoch else first.num_steps
        self._lock = threading.Lock()
        self._given_up = (first.start, 0)  # where the last one that ended early began, and how many did so

    def blocks(self) -> Iterator[tuple[Array, ...]]:
        """What an iteration gives; it counts once its last part is asked for."""
        run = begun(self._stream, self._options)
        self._check(run)
        num_most, given = self._num_most(run), 0
        # What Keras builds a model with is not trained on, even if it is the whole epoch.
        is_open = counts = not is_keras_building()
        try:
            for num_rows, part in Ahead(self._tasks(run), most=int(self._stream.source.is_thread_safe)):
                self.cursor.check_generation(run.generation)
                if is_open and given >= num_most:
                    is_open = self._finish(run)
                given += num_rows
                run.taken = max(run.taken, given // run.batch_size)
                yield part
            if is_open:  # there were none
                is_open = self._finish(run)
        finally:
            if counts and is_open:
                at, count = self._given_up
                self._given_up = run.start, count + 1 if at == run.start else 1

    def _num_most(self, run: Iteration) -> int:
        """The rows of an iteration before its last part."""
        if self._is_in_batches:
            return max(0, run.num_steps - 1) * run.batch_size
        # They may be batched with `drop_remainder`, it is not known how, and Keras leaves what that drops.
        return run.num_steps - max(1, min(_MOST_LEFT, run.num_steps // 2))

    def _finish(self, run: Iteration) -> bool:
        """Counts an iteration; returns whether it is still to be counted: False."""
        with self._lock:
            self.cursor.finish(run)
        return False

    def _check(self, run: Iteration) -> None:
        """Raises StateError if an iteration that begins so is not what the dataset has promised, or Keras
        would cut it short; warns of what the user cannot want."""
        start, first = run.start, self._start
        if self._one_epoch and start != first:
            raise StateError(
                f"this dataset was made with one_epoch=True for epoch {first.epoch} from position "
                f"{first.position} on, but the stream is in epoch {start.epoch} at {start.position} by now; "
                "make another one"
            )
        if self.num_steps is not None and not self._one_epoch and start.position:
            raise StateError(
                "a state was loaded after make_tf_dataset, which has promised full epochs; load first"
            )
        epochs = epochs_without_length() if start.position and not self._one_epoch else 0
        if epochs > 1:
            raise StateError(
                f"this dataset begins within epoch {start.epoch}, of which {run.num_steps} batches are left, "
                f"and Keras would give each of the {epochs} epochs of this fit as many; train what is left "
                "by a fit of its own, on make_tf_dataset(stream, ..., one_epoch=True) with epochs="
                f"{start.epoch + 1}, and then the others on another dataset, with initial_epoch="
                f"{start.epoch + 1}"
            )
        if epochs:
            _warn(
                "this dataset begins within an epoch and does not say how long it is, so Keras finds its "
                "end by a step too many, which moves the optimizer and the random numbers; pass "
                "one_epoch=True"
            )
        order = self.cursor.order
        if self._given_up == (start, _MOST_GIVEN_UP) and order.shuffle and order.reshuffle:
            _warn(
                f"{_MOST_GIVEN_UP} iterations of this dataset ended before epoch {start.epoch} did, so each "
                "began with the same rows. If these were epochs of yours, keep one iterator over "
                "dataset.repeat(), or call stream.set_epoch(epoch) before each"
            )

    def _tasks(self, run: Iteration) -> Iterator[Task[tuple[int, tuple[Array, ...]]]]:
        source = in_epoch(self._stream.source, run.start.epoch, self.cursor.order.seed)
        for window in windows_of(source, self._numbers(run), most=1):
            yield Task(partial(self._read, source, window.numbers), 1)

    def _read(self, source: Contract, rows: npt.NDArray[np.int64]) -> tuple[int, tuple[Array, ...]]:
        block = block_of(source.take(rows), self._export.rows_schema)
        return len(rows), self._export.arrays(block)

    def _numbers(self, run: Iteration) -> Iterator[npt.NDArray[np.int64]]:
        """The rows of each block."""
        step, order = run.batch_size, self.cursor.order
        at_once = self._export.rows_at_once // step * step or step
        ends = [self._num_most(run), run.num_steps * step]
        given = 0
        for rows in batches(order, run.shard, run.start, at_once, drop_last=False):
            cuts = [max(0, end - given) for end in ends]
            given += len(rows)
            yield from (some for some in (rows[: cuts[0]], rows[cuts[0] : cuts[1]]) if len(some))


def _warn(message: str) -> None:
    # By a thread of TensorFlow's, so there is no caller to name.
    warnings.warn(f"make_tf_dataset: {message}", stacklevel=2)


class _Export:
    """How the rows of a stream cross into TensorFlow: as flat arrays, reassembled there."""

    def __init__(self, stream: Stream, by_row: bool) -> None:
        some = sample_of(stream.source)
        self.rows_schema = some.schema
        self.schema = with_arrays(some.schema)
        refuse_wrapped(self.schema.tree, (), "TensorFlow")
        self._ranks = [_rank(c, data) for c, data in zip(self.schema.columns, some.data, strict=True)]
        # True if rows cross with their shapes, and so one by one.
        self.by_shape = any(rank is not None for rank in self._ranks)
        for column in self.schema.columns if by_row or self.by_shape else ():
            if 0 in (column.shape or ()) and column.kind != "none":
                raise SchemaError(
                    f"column {column.name!r} holds arrays without values, {column.shape}, which TensorFlow "
                    "does not split into rows; leave it out by ref.columns([...])"
                )
        self.signature = tuple(
            spec
            for column, rank in zip(self.schema.columns, self._ranks, strict=True)
            for spec in _signature(column, rank)
        )
        row_bytes = max(1, some.nbytes // some.num_rows)
        self.rows_at_once = max(1, min(_MOST_ROWS, _EXPORT_BYTES // row_bytes))

    def arrays(self, block: Block) -> tuple[Array, ...]:
        """The columns of a block as arrays that TensorFlow takes."""
        columns = zip(self.schema.columns, block.data, self._ranks, strict=True)
        return tuple(array for column, data, rank in columns for array in _arrays(column, data, rank))

    def batch(self, *parts: tf.Tensor) -> Batch:
        """The tensors of many rows, nested as a row is."""
        left = iter(parts)
        columns = zip(self.schema.columns, self._ranks, strict=True)
        return nested(self.schema.tree, iter([_batched(column, rank, left) for column, rank in columns]))

    def row(self, *parts: Row) -> Row:
        """The tensors of one row, from those of many rows that were split."""
        tree = self.schema.tree
        columns = iter(zip(self.schema.columns, self._ranks, strict=True))
        return _row(tree, parts if tree.kind in ("tuple", "list") else parts[0], columns)


def _rank(column: Column, data: Data) -> int | None:
    """Dimensions of the rows of a ragged column that keeps shapes; else None.

    Raises:
        SchemaError: they differ.
    """
    return None if data.shapes is None else _same_rank(column, data.shapes, int((data.shapes[0] >= 0).sum()))


def _same_rank(column: Column, shapes: Ints, rank: int) -> int:
    """The rank, if it is that of all rows.

    Raises:
        SchemaError: a row has another one.
    """
    found = (shapes >= 0).sum(axis=1)
    if (found != rank).any():
        raise SchemaError(
            f"column {column.name!r}: expected rows of {rank} dimensions, as the first ones have, found one "
            f"of {found[found != rank][0]}; reshape them by ref.map(...)"
        )
    return rank


def _dtype(column: Column) -> tf.DType:
    """TensorFlow's name for the dtype of a column.

    Raises:
        SchemaError: it has none.
    """
    if column.kind in TEXT_KINDS or column.storage.kind in "SU":
        return tf.string
    if column.kind == "tensor" and column.dtype == "bfloat16":
        return tf.bfloat16
    if column.kind in ("date", "datetime", "time", "timedelta", "decimal"):
        raise SchemaError(
            f"column {column.name!r}: TensorFlow has no {column.kind}; make a number of it by ref.map(...), "
            "or leave it out by ref.columns([...])"
        )
    found = None
    if not column.dtype.startswith("float8"):
        with contextlib.suppress(TypeError):
            found = tf.dtypes.as_dtype(column.storage.newbyteorder("="))
    if found not in _PLAIN:
        raise SchemaError(
            f"column {column.name!r}: TensorFlow has no {column.dtype}; cache it as another dtype"
        )
    return found


def _signature(column: Column, rank: int | None) -> list[tf.TensorSpec]:
    """The specs of the arrays of a column, for any number of rows."""
    if column.kind == "none":
        return []
    dtype = _dtype(column)
    if column.kind in TEXT_KINDS:
        return [tf.TensorSpec([None], dtype)]
    if column.shape is not None:
        return [tf.TensorSpec([None, *column.shape], dtype)]
    specs = [tf.TensorSpec([None], dtype), tf.TensorSpec([None], tf.int64)]
    if rank is not None:
        specs.append(tf.TensorSpec([None, rank], tf.int64))
    return specs


def _arrays(column: Column, data: Data, rank: int | None) -> Iterator[Array]:
    """The arrays that `_signature` describes."""
    if column.kind == "none":
        return
    if column.kind in TEXT_KINDS:
        texts = np.empty(len(data.part("offsets")) - 1, object)
        texts[:] = data.texts()
        yield texts
        return
    yield _values(column, data.values)
    if column.is_ragged:
        yield data.part("offsets")
    if rank is not None:
        shapes = data.part("shapes")
        yield np.ascontiguousarray(shapes[:, : _same_rank(column, shapes, rank)])


def _values(column: Column, values: Array) -> Array:
    if values.dtype.kind == "U":
        values = np.char.encode(values, "utf-8")
    return values.astype(object) if values.dtype.kind == "S" else as_numpy(column, values)


def _batched(column: Column, rank: int | None, parts: Iterator[tf.Tensor]) -> _Part | None:
    """The tensor of a column, of many rows."""
    if column.kind == "none":
        return None
    values = next(parts)
    if not column.is_ragged or column.kind in TEXT_KINDS:
        return values
    ragged = tf.RaggedTensor.from_row_splits(values, next(parts), validate=False)
    return ragged if rank is None else _Shaped(ragged, next(parts))


def _row(node: Node, value: Row, columns: Iterator[tuple[Column, int | None]]) -> Row:
    """A row with its shaped tensors reassembled."""
    if node.kind == "leaf":
        _, rank = next(columns)
        return (
            value if rank is None else tf.ensure_shape(tf.reshape(value.values, value.shape), [None] * rank)
        )
    items = [value[key] for key in node.keys] if node.kind == "dict" else value
    children = [_row(child, item, columns) for child, item in zip(node.children, items, strict=True)]
    if node.kind == "dict":
        return dict(zip(node.keys, children, strict=True))
    return tuple.__new__(node.row_type if node.kind == "namedtuple" else tuple, children)
